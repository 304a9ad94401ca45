heft_add_bench(push_bench)

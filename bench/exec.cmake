heft_add_bench(exec_push)

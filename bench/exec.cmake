heft_add_bench(exec_push)
target_sources(bench_exec_push PRIVATE exec_model.c)
heft_add_bench(exec_files)
target_sources(bench_exec_files PRIVATE exec_model.c)

heft_add_bench(kernels)

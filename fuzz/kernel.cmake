heft_add_fuzz(kernel_copy)

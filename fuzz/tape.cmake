heft_add_fuzz(fold)
heft_add_fuzz(known_kernel)

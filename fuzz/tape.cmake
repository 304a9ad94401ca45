heft_add_fuzz(fold)

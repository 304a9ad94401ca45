heft_add_fuzz(settings)

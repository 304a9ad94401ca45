heft_add_fuzz(shm_hello)

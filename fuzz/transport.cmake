heft_add_fuzz(shm_hello)
heft_add_fuzz(chunk)

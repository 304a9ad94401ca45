heft_add_test(test_segment SOURCES unit/test_segment.c LABELS transport)
heft_add_test(test_shm_frame SOURCES unit/test_shm_frame.c LABELS transport)
heft_add_test(test_shm SOURCES unit/test_shm.c LABELS transport)
heft_add_test(test_loop SOURCES unit/test_loop.c LABELS transport)

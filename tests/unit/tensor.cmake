heft_add_test(test_dtype SOURCES unit/test_dtype.c LABELS unit)

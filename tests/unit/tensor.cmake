heft_add_test(test_cuts SOURCES unit/test_cuts.c LABELS unit)
heft_add_test(test_dtype SOURCES unit/test_dtype.c LABELS unit)
heft_add_test(test_region SOURCES unit/test_region.c LABELS unit)

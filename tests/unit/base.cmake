heft_add_test(test_base SOURCES unit/test_base.c LABELS unit)

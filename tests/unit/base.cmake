heft_add_test(test_base SOURCES unit/test_base.c LABELS unit)
heft_add_test(test_config SOURCES unit/test_config.c LABELS unit)

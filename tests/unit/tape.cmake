heft_add_test(test_fold_scale SOURCES unit/test_fold_scale.c LABELS unit)

heft_add_test(test_fold_scale SOURCES unit/test_fold_scale.c LABELS unit)
heft_add_test(test_fold SOURCES unit/test_fold.c LABELS unit)
heft_add_test(test_fold_maps SOURCES unit/test_fold_maps.c LABELS unit)
heft_add_test(test_tape SOURCES unit/test_tape.c LABELS unit)

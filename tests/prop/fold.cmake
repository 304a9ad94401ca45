heft_add_test(prop_region SOURCES prop/prop_region.c LABELS prop)
heft_add_test(prop_fold SOURCES prop/prop_fold.c LABELS prop)
heft_add_test(prop_tape SOURCES prop/prop_tape.c LABELS prop)

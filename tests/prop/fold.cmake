heft_add_test(prop_region SOURCES prop/prop_region.c LABELS prop)

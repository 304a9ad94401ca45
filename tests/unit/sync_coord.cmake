heft_add_test(test_round_explore SOURCES unit/test_round_explore.c LABELS sync TIMEOUT 300)

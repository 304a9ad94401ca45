heft_add_test(test_round_explore SOURCES unit/test_round_explore.c LABELS sync)
heft_add_test(test_coordinator_rounds SOURCES unit/test_coordinator_rounds.c unit/http_fleet.c LABELS sync)

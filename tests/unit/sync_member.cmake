heft_add_test(test_staging SOURCES unit/test_staging.c LABELS sync)
heft_add_test(test_member SOURCES unit/test_member.c LABELS sync)
heft_add_test(test_member_gate SOURCES unit/test_member_gate.c LABELS sync)
heft_add_test(test_home SOURCES unit/test_home.c LABELS sync)

heft_add_test(test_exec_parts SOURCES unit/test_exec_parts.c)

heft_add_test(prop_region SOURCES prop/prop_region.c LABELS prop)
heft_add_test(prop_fold SOURCES prop/prop_fold.c LABELS prop)
heft_add_test(prop_tape SOURCES prop/prop_tape.c LABELS prop)
# No cases at all would pass whatever is tested.
add_test(NAME cases_must_be_some COMMAND prop_region)
set_tests_properties(cases_must_be_some PROPERTIES ENVIRONMENT "HEFT_TEST_CASES=" LABELS prop
  PASS_REGULAR_EXPRESSION "HEFT_TEST_CASES=\"\" is no number of cases")

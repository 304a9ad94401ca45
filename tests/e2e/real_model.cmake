# On real weights (brought once, see tools/demo/fetch_model); optimised builds only, the data are the same.
if(TARGET heft_cli AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME e2e_real_model COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/e2e/real_model" $<TARGET_FILE:heft_cli>)
  set_tests_properties(e2e_real_model PROPERTIES TIMEOUT 400 LABELS e2e)
endif()

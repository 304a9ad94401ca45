heft_add_test(test_fleet_faults SOURCES fault/test_fleet_faults.c fault/node.c LIBS heft_fleet_support
  LABELS "sync;fault" TIMEOUT 360)
heft_add_test(test_late_join_faults SOURCES fault/test_late_join_faults.c fault/node.c LIBS heft_fleet_support
  LABELS "sync;fault" TIMEOUT 240)

# The same with processes of the command, and signals at random moments and in each phase.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND TARGET heft_cli)
  add_test(NAME fault_processes COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_LIST_DIR}/process_faults.py" -v)
  set_tests_properties(fault_processes PROPERTIES TIMEOUT 600 LABELS fault
    ENVIRONMENT "HEFT_BIN=$<TARGET_FILE:heft_cli>;HEFT_RECIPES=${PROJECT_SOURCE_DIR}/recipes;PYTHONDONTWRITEBYTECODE=1")
  add_test(NAME fault_lossy_control COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_LIST_DIR}/lossy_control.py" -v)
  set_tests_properties(fault_lossy_control PROPERTIES TIMEOUT 300 LABELS fault
    ENVIRONMENT "HEFT_BIN=$<TARGET_FILE:heft_cli>;HEFT_RECIPES=${PROJECT_SOURCE_DIR}/recipes;PYTHONDONTWRITEBYTECODE=1")
endif()

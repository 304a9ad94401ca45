# Several hosts on this machine, of namespaces: they need root or user namespaces, and say so where there are none.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND TARGET heft_cli)
  set(names host_network host_control)
  if(HEFT_HAS_UCX)
    list(APPEND names host_ucx host_matrix host_relay) # the whole matrix, and host_faults: tools/test_hosts
  endif()
  foreach(name ${names})
    set(arguments -v)
    if(name STREQUAL host_matrix)
      set(arguments --short)
    endif()
    add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_LIST_DIR}/${name}.py" ${arguments})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS hosts SKIP_RETURN_CODE 77
      ENVIRONMENT "HEFT_BIN=$<TARGET_FILE:heft_cli>;HEFT_RECIPES=${PROJECT_SOURCE_DIR}/recipes;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()

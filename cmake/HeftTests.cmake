# heft_add_test(<name> SOURCES ... [LABELS ...] [TIMEOUT s]): one cmocka executable, registered with CTest.
function(heft_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LABELS;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support")
  target_link_libraries(${name} PRIVATE heft_flags heft_static heft_test_support PkgConfig::CMOCKA ${ARG_LIBS})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}/tests")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 240)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" SKIP_RETURN_CODE 77)
endfunction()

# heft_order_tests(): the tests of this folder that may take longest begin first. One that begins last runs alone while
# the other cores are idle, and a fresh tree has no times of an earlier run to go by.
function(heft_order_tests)
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(name ${names})
    get_test_property(${name} TIMEOUT seconds)
    if(seconds)
      set_tests_properties(${name} PROPERTIES COST ${seconds})
    endif()
  endforeach()
endfunction()

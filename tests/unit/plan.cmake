heft_add_test(test_cover SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_cover.c LABELS unit)
if(EXISTS "${PROJECT_SOURCE_DIR}/src/recipe/CMakeLists.txt") # matches the names of exceptions
  foreach(name test_plan test_plan_cases test_plan_groups test_plan_digest test_proof test_report)
    heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS unit)
  endforeach()
endif()

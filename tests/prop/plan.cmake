heft_add_test(prop_cover SOURCES ${CMAKE_CURRENT_LIST_DIR}/prop_cover.c LABELS prop)
if(EXISTS "${PROJECT_SOURCE_DIR}/src/recipe/CMakeLists.txt") # matches the names of exceptions
  heft_add_test(prop_plan SOURCES ${CMAKE_CURRENT_LIST_DIR}/prop_plan.c LABELS prop)
endif()

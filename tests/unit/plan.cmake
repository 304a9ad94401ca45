heft_add_test(test_cover SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_cover.c LABELS unit)

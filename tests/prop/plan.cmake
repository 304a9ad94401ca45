heft_add_test(prop_cover SOURCES ${CMAKE_CURRENT_LIST_DIR}/prop_cover.c LABELS prop)

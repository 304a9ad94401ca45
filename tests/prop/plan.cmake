foreach(name prop_boxes prop_cover prop_hosts prop_plan)
  heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS prop)
endforeach()

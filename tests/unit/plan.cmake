foreach(name test_cover test_models test_placement test_placement_part test_placement_sources test_plan test_plan_boxes test_plan_cases test_plan_checks test_plan_digest test_plan_groups test_plan_together test_price test_proof test_report test_routes)
  heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS unit)
endforeach()
heft_add_test(test_loader_tapes SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_loader_tapes.c LIBS PkgConfig::JANSSON LABELS unit)

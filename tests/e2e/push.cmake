add_library(heft_fleet_support STATIC e2e/fleet_model.c)
target_include_directories(heft_fleet_support PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/e2e")
target_link_libraries(heft_fleet_support PRIVATE heft_flags PUBLIC heft_test_support)
heft_add_test(test_push SOURCES e2e/test_push.c e2e/push_fleet.c LIBS heft_fleet_support LABELS "sync;e2e")

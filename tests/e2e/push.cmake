add_library(heft_fleet_support STATIC e2e/fleet_model.c)
target_include_directories(heft_fleet_support PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/e2e")
target_link_libraries(heft_fleet_support PRIVATE heft_flags PUBLIC heft_test_support)
heft_add_test(test_push SOURCES e2e/test_push.c e2e/push_fleet.c LIBS heft_fleet_support LABELS "sync;e2e")
heft_add_test(test_preflight SOURCES e2e/test_preflight.c LABELS "sync;e2e")
heft_add_test(test_recover SOURCES e2e/test_recover.c e2e/push_fleet.c LIBS heft_fleet_support LABELS "sync;e2e")
heft_add_test(test_in_place SOURCES e2e/test_in_place.c e2e/push_fleet.c LIBS heft_fleet_support LABELS "sync;e2e")
# The oracle goes element by element over tens of megabytes: worth optimising in every build.
set_source_files_properties(e2e/fleet_model.c PROPERTIES COMPILE_OPTIONS -O2)

set(recipe_tests
  bindings
  cases
  chain
  checks
  docs
  functions
  issues
  known
  language
  layouts
  lists
  memory
  names
  plan
  ranks
  scanned
  shipped
  sizes
  vectors
)
foreach(name ${recipe_tests})
  set(name test_recipe_${name})
  heft_add_test(${name} SOURCES unit/${name}.c unit/recipe_bench.c support/ref_known.c LIBS PkgConfig::JANSSON LABELS unit)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/unit")
endforeach()
heft_add_test(test_dtype_policy SOURCES unit/test_dtype_policy.c unit/recipe_bench.c support/ref_known.c LIBS PkgConfig::JANSSON LABELS unit)
target_include_directories(test_dtype_policy PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/unit")
heft_add_test(test_cache_map SOURCES unit/test_cache_map.c LABELS unit)
heft_add_test(test_expert_table SOURCES unit/test_expert_table.c unit/recipe_bench.c support/ref_known.c LIBS PkgConfig::JANSSON LABELS unit)
target_include_directories(test_expert_table PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/unit")

# The rules of conversion with their vectors, and faults planted into them. --wrap puts a faulty
# function in the place of a right one.
heft_add_test(test_recipe_rules SOURCES unit/test_recipe_rules.c unit/recipe_rules.c unit/recipe_trip.c unit/recipe_bench.c support/ref_known.c
  LIBS PkgConfig::JANSSON LABELS unit)
heft_add_test(test_recipe_back SOURCES unit/test_recipe_back.c unit/recipe_trip.c unit/recipe_bench.c support/ref_known.c
  LIBS PkgConfig::JANSSON LABELS unit)
heft_add_test(test_recipe_mutants SOURCES unit/test_recipe_mutants.c unit/recipe_rules.c unit/recipe_bench.c support/ref_known.c
  LIBS PkgConfig::JANSSON LABELS unit)
target_link_options(test_recipe_mutants PRIVATE -Wl,--wrap=heft_padded_size -Wl,--wrap=heft_kv_repeat
  -Wl,--wrap=heft__policy_dtype)
foreach(name back mutants rules)
  target_include_directories(test_recipe_${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/unit")
endforeach()

set(recipe_tests
  bindings
  cases
  checks
  docs
  functions
  issues
  known
  language
  lists
  memory
  names
  plan
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
heft_add_test(test_cache_map SOURCES unit/test_cache_map.c LABELS unit)

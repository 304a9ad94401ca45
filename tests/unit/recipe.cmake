foreach(name recipe_names recipe_language recipe_lists recipe_functions recipe_bindings recipe_vectors recipe_sizes recipe_cases recipe_shipped recipe_plan recipe_checks recipe_docs recipe_memory)
  heft_add_test(test_${name} SOURCES unit/test_${name}.c unit/recipe_bench.c LIBS PkgConfig::JANSSON LABELS unit)
  target_include_directories(test_${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/unit")
endforeach()

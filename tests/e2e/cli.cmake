# The command as a user runs it: real processes, tiny checkpoints. Python's standard library only.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND AND TARGET heft_cli)
  foreach(name cli_chain cli_config cli_engine_golden cli_engine_moe cli_experts cli_files cli_fp8 cli_gathered cli_maxtext cli_maxtext_rollout cli_megatron cli_names cli_operations cli_price cli_rounds cli_sharded cli_sources cli_surface cli_traced)
    add_test(NAME e2e_${name} COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_LIST_DIR}/${name}.py" -v)
    set_tests_properties(e2e_${name} PROPERTIES TIMEOUT 480 LABELS e2e
      ENVIRONMENT "HEFT_BIN=$<TARGET_FILE:heft_cli>;HEFT_RECIPES=${PROJECT_SOURCE_DIR}/recipes;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()

# Launch recipes, with the interpreter that the package's tests use: the one that has PyTorch's torchrun.
if(TARGET heft_python)
  add_test(NAME launching COMMAND "${heft_python_found}" "${CMAKE_CURRENT_LIST_DIR}/launching.py" -v)
  set_tests_properties(launching PROPERTIES TIMEOUT 600 LABELS python ENVIRONMENT
    "PYTHONPATH=${heft_python_path};HEFT_BIN=$<TARGET_FILE:heft_cli>;HEFT_RECIPES=${PROJECT_SOURCE_DIR}/recipes;PYTHONDONTWRITEBYTECODE=1")
endif()

foreach(name test_manifest test_safetensors_header test_safetensors_folder)
  heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS unit)
endforeach()

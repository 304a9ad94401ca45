foreach(name test_manifest test_manifest_parts test_drift test_safetensors_header test_safetensors_folder test_safetensors_ranks test_checkpoint_writer
    test_checkpoint_writer_full)
  heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS unit)
endforeach()
heft_add_test(test_names SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_names.c LIBS PkgConfig::JANSSON LABELS unit)
heft_add_test(test_tensor_attrs SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_tensor_attrs.c LABELS unit)

foreach(name test_manifest test_safetensors_header test_safetensors_folder test_checkpoint_writer
    test_checkpoint_writer_full)
  heft_add_test(${name} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}.c LABELS unit)
endforeach()

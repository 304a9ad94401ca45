heft_add_test(test_kernel_copy SOURCES unit/test_kernel_copy.c "${PROJECT_SOURCE_DIR}/fuzz/kernel_copy.c" LABELS kernel)

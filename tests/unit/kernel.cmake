heft_add_test(test_golden_casts SOURCES unit/test_golden_casts.c LABELS unit)
heft_add_test(test_kernel_bench SOURCES unit/test_kernel_bench.c LABELS unit)
heft_add_test(test_kernel_cast SOURCES unit/test_kernel_cast.c LABELS unit)
heft_add_test(test_kernel_copy SOURCES unit/test_kernel_copy.c "${PROJECT_SOURCE_DIR}/fuzz/kernel_copy.c" LABELS unit)
heft_add_test(test_kernel_cpu SOURCES unit/test_kernel_cpu.c LABELS unit)
heft_add_test(test_kernel_crc SOURCES unit/test_kernel_crc.c LABELS unit)
heft_add_test(test_kernel_jobs SOURCES unit/test_kernel_jobs.c LABELS unit)
heft_add_test(test_kernel_transform SOURCES unit/test_kernel_transform.c
  "${PROJECT_SOURCE_DIR}/fuzz/kernel_transform.c" LABELS unit)

if(HEFT_HAS_UCX)
  heft_add_bench(ucx_bench)
  target_include_directories(bench_ucx_bench SYSTEM PRIVATE ${UCX_INCLUDE_DIRS})
endif()

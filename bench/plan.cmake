heft_add_bench(plan_scale)
target_sources(bench_plan_scale PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/synth_model.c")
target_include_directories(bench_plan_scale PRIVATE "${PROJECT_SOURCE_DIR}/tests/support")

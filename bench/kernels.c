/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_kernels [NAME | all [MIB [RUNS [THREADS]]]]: heft_bench_run as a table.
 * HEFT_CPU=scalar|avx2|avx2-wide|avx512 selects the level.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heft/bench.h"

static void print_result(void *arg, const heft_bench_result_t *r)
{
    const char *verdict = r->aim <= 0 ? "" : r->ratio >= r->aim ? "ok" : "below aim";
    (void)arg;
    (void)printf("%-20s %6.2f GB/s  x%.2f [%.2f %.2f]", r->name, r->gb_per_s, r->ratio,
                 r->ratio_min, r->ratio_max);
    if (r->aim > 0) {
        (void)printf("  aim %.2f %s", r->aim, verdict);
    }
    (void)printf("\n");
}

static long number(int argc, char **argv, int i)
{
    return argc > i ? strtol(argv[i], NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    heft_error_t err = HEFT_ERROR_INIT;
    opts.only = argc > 1 && strcmp(argv[1], "all") != 0 ? argv[1] : NULL;
    opts.bytes = (int64_t)number(argc, argv, 2) << 20;
    opts.runs = (int32_t)number(argc, argv, 3);
    opts.n_threads = (uint32_t)number(argc, argv, 4);
    if (heft_bench_run(&opts, print_result, NULL, &err) != HEFT_OK) {
        (void)fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 1;
    }
    return 0;
}

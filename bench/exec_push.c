/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole push in one process to two targets, of a synthetic model (exec_model.h). Prints GB/s of
 * destination bytes and the ratio to glibc memcpy of as many bytes, measured in the same round,
 * with and without digests.
 *
 *   exec_push dense|scanned [layers] [rounds] [threads]
 *
 * Memory is mapped in huge pages where the system grants them, touched and kept before anything is
 * timed. Rounds alternate the variants; medians are printed. One thread is timed by its own clock,
 * which stops while another process has the core; several by the wall's.
 */
#include "exec_model.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_ROUNDS = 64 };

typedef struct arena {
    char *base;
    size_t bytes;
    size_t used;
} arena_t;

static arena_t arena_make(size_t bytes)
{
    arena_t arena = { .bytes = bytes };
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        (void)fprintf(stderr, "exec_push: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    arena.base = p;
    uint64_t x = 1;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(arena.base + i, &x, sizeof x);
    }
    return arena;
}

static void *arena_take(arena_t *arena, int64_t bytes)
{
    size_t at = arena->used;
    arena->used += ((size_t)bytes + 4095) / 4096 * 4096;
    if (arena->used > arena->bytes) {
        (void)fprintf(stderr, "exec_push: arena of %zu bytes is too small\n", arena->bytes);
        exit(1);
    }
    return arena->base + at;
}

static clockid_t clock_id = CLOCK_THREAD_CPUTIME_ID;

static double now(void)
{
    struct timespec ts;
    (void)clock_gettime(clock_id, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- measuring ---- */

typedef struct bench {
    heft_plan_t *plan;
    heft_plan_info_t info;
    int64_t n_bytes; /* of all parameters */
    arena_t from;
    arena_t to;
    const void **sources;
    void **params[EXEC_MODEL_RANKS];
    uint64_t *digests[EXEC_MODEL_RANKS];
    heft_exec_t *plain;
    heft_exec_t *with_digests;
} bench_t;

static heft_exec_t *make_exec(const bench_t *b, uint32_t n_threads, int has_digests)
{
    static heft_exec_target_t targets[2][EXEC_MODEL_RANKS]; /* borrowed by the runs */
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = n_threads;
    for (uint32_t r = 0; r < EXEC_MODEL_RANKS; r++) {
        targets[has_digests][r] =
            (heft_exec_target_t){ .rank_index = r,
                                  .params = b->params[r],
                                  .digests_out = has_digests ? b->digests[r] : NULL };
    }
    heft_exec_t *exec = NULL;
    CHECK(heft_exec_create(b->plan, targets[has_digests], EXEC_MODEL_RANKS, &opts, &exec,
                           &exec_model_err));
    return exec;
}

static void set_up(bench_t *b, int is_scanned, int n_layers, uint32_t n_threads)
{
    b->plan = exec_model_plan(is_scanned, n_layers);
    heft_plan_query(b->plan, &b->info);
    size_t slack = (size_t)(n_layers + 1) * 64 * 4096;
    b->n_bytes = b->info.n_bytes + b->info.n_constant_bytes;
    b->from = arena_make((size_t)b->n_bytes + slack);
    b->to = arena_make((size_t)b->n_bytes + slack);
    b->sources = calloc(b->info.n_sources, sizeof *b->sources);
    for (uint32_t s = 0; s < b->info.n_sources; s++) {
        heft_tensor_info_t info;
        CHECK(heft_plan_query_source(b->plan, s, &info, &exec_model_err));
        b->sources[s] = arena_take(&b->from, info.n_bytes);
    }
    for (uint32_t r = 0; r < EXEC_MODEL_RANKS; r++) {
        uint32_t n = heft_plan_get_n_params(b->plan, r);
        b->params[r] = calloc(n, sizeof *b->params[r]);
        b->digests[r] = calloc(n, sizeof *b->digests[r]);
        for (uint32_t p = 0; p < n; p++) {
            heft_tensor_info_t info;
            CHECK(heft_plan_query_param(b->plan, r, p, &info, &exec_model_err));
            b->params[r][p] = arena_take(&b->to, info.n_bytes);
        }
    }
    double begin = now();
    b->plain = make_exec(b, n_threads, 0);
    double built = now() - begin;
    b->with_digests = make_exec(b, n_threads, 1);
    (void)printf("%.2f GB, %llu pieces, prepared in %.1f ms\n", (double)b->n_bytes * 1e-9,
                 (unsigned long long)b->info.n_pieces, built * 1e3);
}

/* Every parameter has the digest that the run computed from the source side. */
static void check_digests(const bench_t *b)
{
    for (uint32_t r = 0; r < EXEC_MODEL_RANKS; r++) {
        for (uint32_t p = 0; p < heft_plan_get_n_params(b->plan, r); p++) {
            heft_tensor_info_t info;
            CHECK(heft_plan_query_param(b->plan, r, p, &info, &exec_model_err));
            if (heft_digest(b->params[r][p], info.n_bytes) != b->digests[r][p]) {
                (void)fprintf(stderr, "exec_push: rank %u \"%s\": wrong digest\n", r, info.name);
                exit(1);
            }
        }
    }
}

static double time_run(const bench_t *b, heft_exec_t *exec)
{
    double begin = now();
    CHECK(heft_exec_run(exec, b->sources, &exec_model_err));
    return now() - begin;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void report(const char *name, double gb, double *seconds, double *ratios, int n)
{
    double rate = gb / median(seconds, n);
    double ratio = median(ratios, n);
    (void)printf("%-14s %6.2f GB/s  x memcpy %.2f [%.2f-%.2f]\n", name, rate, ratio, ratios[0],
                 ratios[n - 1]);
}

int main(int argc, char **argv)
{
    int is_dense = argc > 1 && strcmp(argv[1], "dense") == 0;
    int is_scanned = argc > 1 && strcmp(argv[1], "scanned") == 0;
    int n_layers = argc > 2 ? (int)strtol(argv[2], NULL, 10) : is_scanned ? 8 : 22;
    int rounds = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 5;
    int n_threads = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 1;
    if (is_dense == is_scanned || n_layers < 1 || rounds < 1 || rounds > MAX_ROUNDS ||
        n_threads < 1) {
        (void)fprintf(stderr, "usage: exec_push dense|scanned [layers] [rounds] [threads]\n");
        return 2;
    }
    if (n_threads > 1) {
        clock_id = CLOCK_MONOTONIC;
    }
    bench_t b = { .plan = NULL };
    set_up(&b, is_scanned, n_layers, (uint32_t)n_threads);
    double seconds[3][MAX_ROUNDS];
    double ratios[3][MAX_ROUNDS];
    for (int i = -1; i < rounds; i++) { /* the first round warms up */
        double begin = now();
        memcpy(b.to.base, b.from.base, (size_t)b.n_bytes);
        double t[3] = { now() - begin, 0, 0 };
        t[1] = time_run(&b, b.plain);
        t[2] = time_run(&b, b.with_digests);
        for (int k = 0; i >= 0 && k < 3; k++) {
            seconds[k][i] = t[k];
            ratios[k][i] = t[0] / t[k];
        }
    }
    check_digests(&b);
    double gb = (double)b.n_bytes * 1e-9;
    report("memcpy", gb, seconds[0], ratios[0], rounds);
    report("push", gb, seconds[1], ratios[1], rounds);
    report("push+digests", gb, seconds[2], ratios[2], rounds);
    heft_exec_destroy(b.plain);
    heft_exec_destroy(b.with_digests);
    heft_plan_destroy(b.plan);
    return 0;
}

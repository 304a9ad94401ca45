/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole push in one process: a synthetic dense model (hidden 2048, 22 layers: 2 GiB in bf16),
 * every tensor under its trainer name, to two tensor-parallel targets with fused qkv and gate_up.
 * Prints GB/s of destination bytes and the ratio to glibc memcpy of as many bytes, measured in the
 * same round, with and without digests.
 *
 *   exec_push dense|scanned [layers] [rounds] [threads]
 *
 * Memory is mapped in huge pages where the system grants them, touched and kept before anything is
 * timed. Rounds alternate the variants; medians are printed.
 */
#include "heft/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { HIDDEN = 2048, KV = 512, INTER = 5632, VOCAB = 32000, TP = 2, MAX_ROUNDS = 64 };

#define CHECK(call)                                                           \
    do {                                                                      \
        if ((call) != HEFT_OK) {                                              \
            (void)fprintf(stderr, "exec_push: %s: %s\n", #call, err.message); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static heft_error_t err;

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

static double now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- the model ---- */

static heft_view_t add_shape(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name,
                             heft_shape_t shape)
{
    uint32_t id;
    CHECK(heft_tape_add_buffer(tape, kind, name, HEFT_DTYPE_BF16, &shape, &id, &err));
    return heft_view_contiguous(id, &shape);
}

static heft_view_t add(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name, int64_t rows,
                       int64_t cols)
{
    return add_shape(tape, kind, name, (heft_shape_t){ .rank = 2, .extent = { rows, cols } });
}

static heft_view_t source(heft_tape_t *tape, int layer, const char *what, int64_t rows,
                          int64_t cols)
{
    char name[96];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, what);
    return add(tape, HEFT_BUFFER_SOURCE, name, rows, cols);
}

static heft_view_t param(heft_tape_t *tape, int layer, const char *what, int64_t rows, int64_t cols)
{
    char name[96];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, what);
    return add(tape, HEFT_BUFFER_PARAM, name, rows, cols);
}

static heft_view_t narrow(heft_view_t view, int dim, int64_t begin, int64_t n)
{
    view.offset += begin * view.stride[dim];
    view.extent[dim] = n;
    return view;
}

/* Rank r's share of src along dim, to dst at this row. */
static void copy_share(heft_tape_t *tape, heft_view_t dst, int64_t row, heft_view_t src, int dim,
                       int r)
{
    int64_t n = src.extent[dim] / TP;
    src = narrow(src, dim, r * n, n);
    dst = narrow(dst, 0, row, src.extent[0]);
    CHECK(heft_tape_copy(tape, &dst, &src, "bench", &err));
}

static void add_layer(heft_tape_t *tape, int l, int r)
{
    heft_view_t q = source(tape, l, "q_proj", HIDDEN, HIDDEN);
    heft_view_t k = source(tape, l, "k_proj", KV, HIDDEN);
    heft_view_t v = source(tape, l, "v_proj", KV, HIDDEN);
    heft_view_t o = source(tape, l, "o_proj", HIDDEN, HIDDEN);
    heft_view_t gate = source(tape, l, "gate_proj", INTER, HIDDEN);
    heft_view_t up = source(tape, l, "up_proj", INTER, HIDDEN);
    heft_view_t down = source(tape, l, "down_proj", HIDDEN, INTER);
    heft_view_t norm = source(tape, l, "norm", 2, HIDDEN);
    heft_view_t qkv = param(tape, l, "qkv_proj", (HIDDEN + 2 * KV) / TP, HIDDEN);
    copy_share(tape, qkv, 0, q, 0, r);
    copy_share(tape, qkv, HIDDEN / TP, k, 0, r);
    copy_share(tape, qkv, (HIDDEN + KV) / TP, v, 0, r);
    copy_share(tape, param(tape, l, "o_proj", HIDDEN, HIDDEN / TP), 0, o, 1, r);
    heft_view_t gate_up = param(tape, l, "gate_up_proj", 2 * INTER / TP, HIDDEN);
    copy_share(tape, gate_up, 0, gate, 0, r);
    copy_share(tape, gate_up, INTER / TP, up, 0, r);
    copy_share(tape, param(tape, l, "down_proj", HIDDEN, INTER / TP), 0, down, 1, r);
    heft_view_t norm_param = param(tape, l, "norm", 2, HIDDEN);
    CHECK(heft_tape_copy(tape, &norm_param, &norm, "bench", &err));
}

enum { EXPERTS = 32, EXPERT_INTER = 768, PADDED = 1024, LANE = 128 };

static void fill(heft_tape_t *tape, heft_view_t dst)
{
    CHECK(heft_tape_fill(tape, &dst, 0, "bench", &err));
}

/* [e, l, d, f] of gate (which = 0) or up (1), layer l, rank r, to wi [e, d, (b 2 n)]: f is shared
 * out, padded, cut in blocks b of n lanes. */
static void copy_lanes(heft_tape_t *tape, heft_view_t wi, heft_view_t src, int which, int l, int r)
{
    const int64_t share = EXPERT_INTER / TP;
    src = narrow(narrow(src, 1, l, 1), 3, r * share, share);
    heft_view_t from = { .buffer = src.buffer,
                         .rank = 4,
                         .offset = src.offset,
                         .extent = { EXPERTS, HIDDEN, share / LANE, LANE },
                         .stride = { src.stride[0], src.stride[2], LANE, 1 } };
    heft_view_t to = { .buffer = wi.buffer,
                       .rank = 4,
                       .offset = wi.offset + which * LANE,
                       .extent = { EXPERTS, HIDDEN, share / LANE, LANE },
                       .stride = { wi.stride[0], wi.stride[1], 2 * LANE, 1 } };
    CHECK(heft_tape_copy(tape, &to, &from, "bench", &err));
    to.offset += share / LANE * 2 * LANE;
    to.extent[2] = (PADDED / TP - share) / LANE;
    fill(tape, to);
}

static heft_tape_t *make_scanned_tape(int n_layers, int r)
{
    heft_tape_t *tape = NULL;
    CHECK(heft_tape_create(&tape, &err));
    const heft_shape_t wide = { .rank = 4, .extent = { EXPERTS, n_layers, HIDDEN, EXPERT_INTER } };
    const heft_shape_t square = { .rank = 3, .extent = { HIDDEN, n_layers, HIDDEN } };
    heft_view_t wi_0 = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.wi_0", wide);
    heft_view_t wi_1 = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.wi_1", wide);
    heft_view_t query = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.query", square);
    for (int l = 0; l < n_layers; l++) {
        char name[64];
        (void)snprintf(name, sizeof name, "layers.%d.wi", l);
        heft_view_t wi =
            add_shape(tape, HEFT_BUFFER_PARAM, name,
                      (heft_shape_t){ .rank = 3, .extent = { EXPERTS, HIDDEN, 2 * PADDED / TP } });
        copy_lanes(tape, wi, wi_0, 0, l, r);
        copy_lanes(tape, wi, wi_1, 1, l, r);
        (void)snprintf(name, sizeof name, "layers.%d.q", l);
        heft_view_t q = add(tape, HEFT_BUFFER_PARAM, name, HIDDEN / TP, HIDDEN);
        heft_view_t src = narrow(query, 2, r * (HIDDEN / TP), HIDDEN / TP);
        heft_view_t turned = { .buffer = src.buffer,
                               .rank = 2,
                               .offset = src.offset + l * src.stride[1],
                               .extent = { HIDDEN / TP, HIDDEN },
                               .stride = { 1, src.stride[0] } };
        CHECK(heft_tape_copy(tape, &q, &turned, "bench", &err));
    }
    return tape;
}

static heft_tape_t *make_tape(int n_layers, int r)
{
    heft_tape_t *tape = NULL;
    CHECK(heft_tape_create(&tape, &err));
    heft_view_t embed = add(tape, HEFT_BUFFER_SOURCE, "model.embed.weight", VOCAB, HIDDEN);
    copy_share(tape, add(tape, HEFT_BUFFER_PARAM, "model.embed.weight", VOCAB / TP, HIDDEN), 0,
               embed, 0, r);
    for (int l = 0; l < n_layers; l++) {
        add_layer(tape, l, r);
    }
    return tape;
}

static heft_plan_t *make_plan(int is_scanned, int n_layers)
{
    heft_tape_t *tapes[TP];
    const heft_tape_t *borrowed[TP];
    for (int r = 0; r < TP; r++) {
        tapes[r] = is_scanned ? make_scanned_tape(n_layers, r) : make_tape(n_layers, r);
        borrowed[r] = tapes[r];
    }
    heft_plan_t *plan = NULL;
    CHECK(heft_plan_create(borrowed, TP, 0, NULL, &plan, NULL, &err));
    for (int r = 0; r < TP; r++) {
        heft_tape_destroy(tapes[r]);
    }
    return plan;
}

/* ---- measuring ---- */

typedef struct bench {
    heft_plan_t *plan;
    heft_plan_info_t info;
    int64_t n_bytes; /* of all parameters */
    arena_t from;
    arena_t to;
    const void **sources;
    void **params[TP];
    uint64_t *digests[TP];
    heft_exec_t *plain;
    heft_exec_t *with_digests;
} bench_t;

static heft_exec_t *make_exec(const bench_t *b, uint32_t n_threads, int has_digests)
{
    static heft_exec_target_t targets[2][TP]; /* borrowed by the runs */
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = n_threads;
    for (uint32_t r = 0; r < TP; r++) {
        targets[has_digests][r] =
            (heft_exec_target_t){ .rank_index = r,
                                  .params = b->params[r],
                                  .digests_out = has_digests ? b->digests[r] : NULL };
    }
    heft_exec_t *exec = NULL;
    CHECK(heft_exec_create(b->plan, targets[has_digests], TP, &opts, &exec, &err));
    return exec;
}

static void set_up(bench_t *b, int is_scanned, int n_layers, uint32_t n_threads)
{
    b->plan = make_plan(is_scanned, n_layers);
    heft_plan_query(b->plan, &b->info);
    size_t slack = (size_t)(n_layers + 1) * 64 * 4096;
    b->n_bytes = b->info.n_bytes + b->info.n_constant_bytes;
    b->from = arena_make((size_t)b->n_bytes + slack);
    b->to = arena_make((size_t)b->n_bytes + slack);
    b->sources = calloc(b->info.n_sources, sizeof *b->sources);
    for (uint32_t s = 0; s < b->info.n_sources; s++) {
        heft_tensor_info_t info;
        CHECK(heft_plan_query_source(b->plan, s, &info, &err));
        b->sources[s] = arena_take(&b->from, info.n_bytes);
    }
    for (uint32_t r = 0; r < TP; r++) {
        uint32_t n = heft_plan_get_n_params(b->plan, r);
        b->params[r] = calloc(n, sizeof *b->params[r]);
        b->digests[r] = calloc(n, sizeof *b->digests[r]);
        for (uint32_t p = 0; p < n; p++) {
            heft_tensor_info_t info;
            CHECK(heft_plan_query_param(b->plan, r, p, &info, &err));
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
    for (uint32_t r = 0; r < TP; r++) {
        for (uint32_t p = 0; p < heft_plan_get_n_params(b->plan, r); p++) {
            heft_tensor_info_t info;
            CHECK(heft_plan_query_param(b->plan, r, p, &info, &err));
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
    CHECK(heft_exec_run(exec, b->sources, &err));
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

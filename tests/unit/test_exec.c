/* SPDX-License-Identifier: Apache-2.0 */
/* Prepared runs: what they write, what they refuse, progress, cancelling, digests. */
#include "ref_reshard.h"

#include "heft/exec.h"

#include <pthread.h>
#include <sys/mman.h>

/* q [8, 16], k [4, 16], v [4, 16] fused to qkv, split over two ranks by heads; a norm on both. */
static void fused_case(ref_case_t *c)
{
    *c = (ref_case_t){ 0 };
    int k = ref_case_source(c, "k", HEFT_DTYPE_BF16, 2, (int64_t[]){ 4, 16 });
    int norm = ref_case_source(c, "norm", HEFT_DTYPE_BF16, 1, (int64_t[]){ 16 });
    int q = ref_case_source(c, "q", HEFT_DTYPE_BF16, 2, (int64_t[]){ 8, 16 });
    int v = ref_case_source(c, "v", HEFT_DTYPE_BF16, 2, (int64_t[]){ 4, 16 });
    for (int r = 0; r < 2; r++) {
        heft_tape_t *tape = ref_case_tape(c);
        uint32_t qkv = ref_tape_param(tape, "qkv", HEFT_DTYPE_BF16, 2, (int64_t[]){ 8, 16 });
        uint32_t n = ref_tape_param(tape, "norm", HEFT_DTYPE_BF16, 1, (int64_t[]){ 16 });
        heft_view_t dst = ref_view(tape, qkv);
        ref_copy(tape, ref_narrow(dst, 0, 0, 4),
                 ref_narrow(ref_view(tape, (uint32_t)q), 0, r * 4, 4));
        ref_copy(tape, ref_narrow(dst, 0, 4, 2),
                 ref_narrow(ref_view(tape, (uint32_t)k), 0, r * 2, 2));
        ref_copy(tape, ref_narrow(dst, 0, 6, 2),
                 ref_narrow(ref_view(tape, (uint32_t)v), 0, r * 2, 2));
        ref_copy(tape, ref_view(tape, n), ref_view(tape, (uint32_t)norm));
    }
    ref_case_finish(c);
}

static void one_run_feeds_all_ranks_and_replicas(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    fused_case(&c);
    ref_params_t params[3];
    heft_exec_target_t targets[3];
    uint64_t digests[3][2] = { { 0 } };
    for (int t = 0; t < 3; t++) {
        ref_params_init(&params[t], &c, t % 2);
        targets[t] = (heft_exec_target_t){ .rank_index = (uint32_t)t % 2,
                                           .params = params[t].data,
                                           .digests_out = digests[t] };
    }
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, targets, 3, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
    for (int t = 0; t < 3; t++) {
        ref_params_check(&params[t], &c, t % 2);
        for (uint32_t p = 0; p < params[t].n; p++) {
            assert_int_equal(digests[t][p], heft_digest(params[t].data[p], params[t].n_bytes[p]));
            assert_int_not_equal(digests[t][p], 0);
        }
    }
    assert_memory_equal(digests[0], digests[2], sizeof digests[0]);
    heft_exec_destroy(exec);
    for (int t = 0; t < 3; t++) {
        ref_params_fini(&params[t]);
    }
    ref_case_fini(&c);
}

static void sources_may_change_from_run_to_run(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    fused_case(&c);
    ref_params_t params;
    ref_params_init(&params, &c, 1);
    heft_exec_target_t target = { .rank_index = 1, .params = params.data };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    uint8_t *moved[4];
    const void *sources[4];
    for (int s = 0; s < 4; s++) {
        moved[s] = calloc(1, (size_t)c.sources[s].n_bytes);
        assert_non_null(moved[s]);
        sources[s] = moved[s];
    }
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    for (uint32_t p = 0; p < params.n; p++) {
        for (int64_t b = 0; b < params.n_bytes[p]; b++) {
            assert_int_equal(((uint8_t *)params.data[p])[b], 0);
        }
    }
    for (int s = 0; s < 4; s++) {
        memcpy(moved[s], c.sources[s].data, (size_t)c.sources[s].n_bytes);
    }
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    ref_params_check(&params, &c, 1);
    heft_exec_destroy(exec);
    for (int s = 0; s < 4; s++) {
        free(moved[s]);
    }
    ref_params_fini(&params);
    ref_case_fini(&c);
}

/* Scalars, packed dtypes, tensors without elements, constants of every width, casts. */
static void odd_dtypes_and_shapes_are_exact(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c = { 0 };
    int empty = ref_case_source(&c, "empty", HEFT_DTYPE_F32, 2, (int64_t[]){ 0, 5 });
    int f4 = ref_case_source(&c, "f4", HEFT_DTYPE_F4, 2, (int64_t[]){ 6, 32 });
    int f6 = ref_case_source(&c, "f6", HEFT_DTYPE_F6_E2M3, 2, (int64_t[]){ 2, 4 });
    int scalar = ref_case_source(&c, "scalar", HEFT_DTYPE_F32, 0, NULL);
    heft_tape_t *t = ref_case_tape(&c);
    uint32_t p = ref_tape_param(t, "empty", HEFT_DTYPE_F32, 2, (int64_t[]){ 0, 5 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)empty));
    p = ref_tape_param(t, "f4", HEFT_DTYPE_F4, 2, (int64_t[]){ 3, 32 });
    ref_copy(t, ref_view(t, p), ref_narrow(ref_view(t, (uint32_t)f4), 0, 3, 3));
    p = ref_tape_param(t, "f6", HEFT_DTYPE_F6_E2M3, 2, (int64_t[]){ 2, 4 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)f6));
    p = ref_tape_param(t, "scalar", HEFT_DTYPE_F32, 0, NULL);
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)scalar));
    p = ref_tape_param(t, "scalar_bf16", HEFT_DTYPE_BF16, 1, (int64_t[]){ 1 });
    heft_view_t one = ref_view(t, (uint32_t)scalar);
    one.rank = 1;
    one.extent[0] = 1;
    ref_copy(t, ref_view(t, p), one);
    heft_shape_t shape = { .rank = 1, .extent = { 6 } }; /* a constant that is cast on its way */
    uint32_t temp;
    EXPECT_STATUS(
        heft_tape_add_buffer(t, HEFT_BUFFER_TEMP, "", HEFT_DTYPE_F32, &shape, &temp, &err),
        HEFT_OK);
    ref_fill(t, ref_view(t, temp), 0x3fc00000);
    p = ref_tape_param(t, "third", HEFT_DTYPE_F16, 1, (int64_t[]){ 6 });
    ref_copy(t, ref_view(t, p), ref_view(t, temp));
    static const struct {
        const char *name;
        heft_dtype_t dtype;
        uint64_t bits;
    } fills[] = { { "x1", HEFT_DTYPE_U8, 0x7f },
                  { "x2", HEFT_DTYPE_BF16, 0x3f80 },
                  { "x4", HEFT_DTYPE_F32, 0xdeadbeef },
                  { "x8", HEFT_DTYPE_F64, 0x0123456789abcdef } };
    for (size_t i = 0; i < sizeof fills / sizeof fills[0]; i++) {
        p = ref_tape_param(t, fills[i].name, fills[i].dtype, 2, (int64_t[]){ 3, 37 });
        ref_fill(t, ref_view(t, p), fills[i].bits);
        char name[8]; /* long rows, cut in blocks, and a column beside them */
        (void)snprintf(name, sizeof name, "y%zu", i);
        p = ref_tape_param(t, name, fills[i].dtype, 2, (int64_t[]){ 3, 20011 });
        ref_fill(t, ref_narrow(ref_view(t, p), 1, 0, 20010), fills[i].bits);
        ref_fill(t, ref_narrow(ref_view(t, p), 1, 20010, 1), 0);
    }
    ref_case_finish(&c);
    ref_params_t params;
    ref_params_init(&params, &c, 0);
    uint64_t digests[20];
    heft_exec_target_t target = { .params = params.data, .digests_out = digests };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
    ref_params_check(&params, &c, 0);
    for (uint32_t i = 0; i < params.n; i++) {
        assert_int_equal(digests[i], heft_digest(params.data[i], params.n_bytes[i]));
    }
    heft_exec_destroy(exec);
    ref_params_fini(&params);
    ref_case_fini(&c);
}

/* 13.5 MiB stacked [3, 1536, 1536] bf16, unstacked and transposed on one target, padded on another.
 */
static void large_case(ref_case_t *c)
{
    *c = (ref_case_t){ 0 };
    int f = ref_case_source(c, "f", HEFT_DTYPE_F32, 3, (int64_t[]){ 2, 2112, 1024 });
    int s = ref_case_source(c, "w", HEFT_DTYPE_BF16, 3, (int64_t[]){ 3, 1536, 1536 });
    heft_tape_t *t = ref_case_tape(c);
    for (int l = 0; l < 3; l++) {
        char name[16];
        (void)snprintf(name, sizeof name, "layer.%d", l);
        uint32_t p = ref_tape_param(t, name, HEFT_DTYPE_BF16, 2, (int64_t[]){ 1536, 1536 });
        heft_view_t src = ref_narrow(ref_view(t, (uint32_t)s), 0, l, 1);
        heft_view_t flat = { .buffer = src.buffer,
                             .rank = 2,
                             .offset = src.offset,
                             .extent = { 1536, 1536 },
                             .stride = { 1536, 1 } };
        ref_copy(t, ref_view(t, p), l == 1 ? ref_swap(flat, 0, 1) : flat);
    }
    t = ref_case_tape(c);
    uint32_t half = ref_tape_param(t, "half", HEFT_DTYPE_BF16, 3, (int64_t[]){ 2112, 2, 1024 });
    ref_copy(t, ref_view(t, half), ref_swap(ref_view(t, (uint32_t)f), 0, 1));
    uint32_t p = ref_tape_param(t, "padded", HEFT_DTYPE_BF16, 3, (int64_t[]){ 3, 1600, 1536 });
    ref_copy(t, ref_narrow(ref_view(t, p), 1, 0, 1536), ref_view(t, (uint32_t)s));
    ref_fill(t, ref_narrow(ref_view(t, p), 1, 1536, 64), 0);
    p = ref_tape_param(t, "zeros", HEFT_DTYPE_F64, 1, (int64_t[]){ 2000003 }); /* several parts */
    ref_fill(t, ref_view(t, p), 0);
    ref_case_finish(c);
}

typedef struct watch {
    pthread_t caller;
    int n_calls;
    int64_t last;
    int64_t total;
    int64_t stop_at; /* 0: never */
} watch_t;

static int on_progress(void *arg, int64_t done, int64_t total)
{
    watch_t *w = arg;
    assert_true(pthread_equal(w->caller, pthread_self()));
    assert_true(done >= w->last);
    assert_true(done <= total);
    w->n_calls++;
    w->last = done;
    w->total = total;
    return w->stop_at > 0 && done >= w->stop_at;
}

static void run_large(const ref_case_t *c, uint32_t n_threads, watch_t *watch, heft_status_t want)
{
    heft_error_t err = HEFT_ERROR_INIT;
    ref_params_t params[2];
    heft_exec_target_t targets[2];
    uint64_t digests[2][4];
    for (uint32_t t = 0; t < 2; t++) {
        ref_params_init(&params[t], c, (int)t);
        targets[t] = (heft_exec_target_t){ .rank_index = t,
                                           .params = params[t].data,
                                           .digests_out = digests[t] };
    }
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = n_threads;
    opts.progress = on_progress;
    opts.progress_arg = watch;
    watch->caller = pthread_self();
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c->plan, targets, 2, &opts, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, c->source_data, &err), want);
    for (uint32_t t = 0; want == HEFT_OK && t < 2; t++) {
        ref_params_check(&params[t], c, (int)t);
        for (uint32_t p = 0; p < params[t].n; p++) {
            assert_int_equal(digests[t][p], heft_digest(params[t].data[p], params[t].n_bytes[p]));
        }
    }
    heft_exec_destroy(exec);
    for (uint32_t t = 0; t < 2; t++) {
        ref_params_fini(&params[t]);
    }
}

static void large_runs_report_progress_and_can_be_canceled(void **state)
{
    (void)state;
    const int64_t total = 3 * (1536 + 1600) * 1536 * 2 + 2 * 2112 * 1024 * 2 + 2000003 * 8;
    ref_case_t c;
    large_case(&c);
    for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
        watch_t watch = { .n_calls = 0 };
        run_large(&c, n_threads, &watch, HEFT_OK);
        assert_int_equal(watch.last, total);
        assert_int_equal(watch.total, total);
        assert_true(watch.n_calls > 1);
        watch = (watch_t){ .stop_at = 1 };
        run_large(&c, n_threads, &watch, HEFT_ERR_CANCELED);
        assert_int_equal(watch.n_calls, 1);
        /* with two threads, the other one may have done all before the caller looks */
        assert_true(n_threads > 1 ? watch.last <= total : watch.last < total);
    }
    ref_case_fini(&c);
}

/* gate and up [4, 300, 384] to [4, 300, 4 * 256] in lanes of 128, gate first, the last lanes
 * padded; a mirrored copy beside it: pieces of several loops, taken apart until one is left. */
static void interleaved_lanes_are_exact(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c = { 0 };
    const int64_t extent[] = { 4, 300, 384 };
    int gate = ref_case_source(&c, "gate", HEFT_DTYPE_BF16, 3, extent);
    int up = ref_case_source(&c, "up", HEFT_DTYPE_BF16, 3, extent);
    heft_tape_t *t = ref_case_tape(&c);
    uint32_t p = ref_tape_param(t, "wi", HEFT_DTYPE_BF16, 3, (int64_t[]){ 4, 300, 1024 });
    for (int which = 0; which < 2; which++) {
        heft_view_t src = { .buffer = (uint32_t)(which == 0 ? gate : up),
                            .rank = 4,
                            .extent = { 4, 300, 3, 128 },
                            .stride = { 300 * 384, 384, 128, 1 } };
        heft_view_t dst = { .buffer = p,
                            .rank = 4,
                            .offset = which * 128,
                            .extent = { 4, 300, 3, 128 },
                            .stride = { 300 * 1024, 1024, 256, 1 } };
        ref_copy(t, dst, src);
        dst.offset += 3 * 256;
        dst.extent[2] = 1;
        ref_fill(t, dst, 0x8000);
    }
    p = ref_tape_param(t, "mirror", HEFT_DTYPE_BF16, 3, extent);
    heft_view_t back = ref_view(t, (uint32_t)up);
    back.offset = 3 * 300 * 384 + 299 * 384;
    back.stride[0] = -back.stride[0];
    back.stride[1] = -back.stride[1];
    ref_copy(t, ref_view(t, p), back);
    ref_case_finish(&c);
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        ref_params_t params;
        ref_params_init(&params, &c, 0);
        uint64_t digests[2];
        heft_exec_target_t target = { .params = params.data, .digests_out = digests };
        heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
        opts.n_threads = n_threads;
        heft_exec_t *exec = NULL;
        EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &opts, &exec, &err), HEFT_OK);
        EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
        ref_params_check(&params, &c, 0);
        for (uint32_t i = 0; i < params.n; i++) {
            assert_int_equal(digests[i], heft_digest(params.data[i], params.n_bytes[i]));
        }
        heft_exec_destroy(exec);
        ref_params_fini(&params);
    }
    ref_case_fini(&c);
}

/* A parameter that an exception leaves alone keeps its bytes and needs no pointer. */
static void untouched_parameters_are_left_alone(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_exception_t exception = {
        .kind = HEFT_EXCEPTION_UNTOUCHED, .pattern = "cache", .reason = "not a weight", .where = ""
    };
    ref_case_t c = { .exceptions = &exception, .n_exceptions = 1 };
    int s = ref_case_source(&c, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    heft_tape_t *t = ref_case_tape(&c);
    (void)ref_tape_param(t, "cache", HEFT_DTYPE_F32, 1, (int64_t[]){ 4 });
    uint32_t p = ref_tape_param(t, "w", HEFT_DTYPE_F32, 1, (int64_t[]){ 8 });
    ref_copy(t, ref_view(t, p), ref_view(t, (uint32_t)s));
    ref_case_finish(&c);
    ref_params_t params;
    ref_params_init(&params, &c, 0);
    void *data[2] = { NULL, params.data[1] };
    uint64_t digests[2] = { 1, 1 };
    heft_exec_target_t target = { .params = data, .digests_out = digests };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
    ref_params_check(&params, &c, 0);
    assert_int_equal(digests[0], 0);
    heft_exec_destroy(exec);
    ref_params_fini(&params);
    ref_case_fini(&c);
}

static heft_plan_t *plan_of_a_tail(int64_t n, int64_t tail)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 1, .extent = { n } };
    const heft_exception_t exception = { .kind = HEFT_EXCEPTION_UNTOUCHED,
                                         .pattern = "p",
                                         .reason = "only its end is written",
                                         .where = "",
                                         .n_dims = 1,
                                         .end = { n - tail } };
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_t *plan = NULL;
    heft_tape_t *t = NULL;
    uint32_t w;
    opts.exceptions = &exception;
    opts.n_exceptions = 1;
    opts.partial = 1; /* of the source too */
    EXPECT_STATUS(heft_tape_create(&t, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_add_buffer(t, HEFT_BUFFER_SOURCE, "w", HEFT_DTYPE_U8, &shape, &w, &err),
                  HEFT_OK);
    const uint32_t p = ref_tape_param(t, "p", HEFT_DTYPE_U8, 1, &n);
    ref_copy(t, ref_narrow(ref_view(t, p), 0, n - tail, tail),
             ref_narrow(ref_view(t, w), 0, n - tail, tail));
    const heft_tape_t *tapes[] = { t };
    EXPECT_STATUS(heft_plan_create(tapes, 1, 0, &opts, &plan, NULL, &err), HEFT_OK);
    heft_tape_destroy(t);
    return plan;
}

/* Two tensors of 5 GiB that are never touched but at their ends. */
static void beyond_4gib_offsets(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    enum { TAIL = 300 };
    const int64_t n = INT64_C(5) << 30;
    uint8_t *memory = mmap(NULL, 2 * (size_t)n, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        print_message("skipped: no 10 GiB of addresses\n");
        skip();
    }
    uint8_t *from = memory;
    uint8_t *to = memory + n;
    for (int64_t i = 0; i < TAIL; i++) {
        from[n - TAIL + i] = (uint8_t)(i + 1);
    }
    to[n - TAIL - 1] = 0x77;
    heft_plan_t *plan = plan_of_a_tail(n, TAIL);
    void *params[] = { to };
    const void *sources[] = { from };
    uint64_t digest = 0;
    const heft_exec_target_t target = { .params = params, .digests_out = &digest };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(plan, &target, 1, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    assert_memory_equal(to + n - TAIL, from + n - TAIL, TAIL);
    assert_int_equal(to[n - TAIL - 1], 0x77);
    assert_int_equal(to[(n - TAIL) & UINT32_MAX], 0);          /* nothing wrapped */
    assert_true(digest == heft_digest(from + n - TAIL, TAIL)); /* zeros before it do not count */
    heft_exec_destroy(exec);
    heft_plan_destroy(plan);
    (void)munmap(memory, 2 * (size_t)n);
}

static void wrong_calls_are_refused_by_name(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    fused_case(&c);
    ref_params_t params;
    ref_params_init(&params, &c, 0);
    heft_exec_target_t target = { .rank_index = 2, .params = params.data };
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank index 2, the plan has 2 ranks");
    EXPECT_STATUS(heft_exec_create(NULL, &target, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_exec_create(c.plan, NULL, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    target.rank_index = 0;
    void *holes[2] = { params.data[0], NULL };
    target.params = holes;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"qkv\"");
    target.params = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    target.params = params.data;
    target.reserved = 7;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, NULL, &exec, &err), HEFT_ERR_ARGUMENT);
    target.reserved = 0;
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = 100000;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &opts, &exec, &err), HEFT_ERR_LIMIT);
    opts.n_threads = 1;
    opts.sender = 1;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &opts, &exec, &err), HEFT_ERR_ARGUMENT);
    opts = (heft_exec_opts_t){ .size = 4 };
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &opts, &exec, &err), HEFT_ERR_ARGUMENT);
    struct {
        heft_exec_opts_t known;
        uint64_t tail;
    } longer = { .known = { .size = sizeof longer }, .tail = 1 };
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &longer.known, &exec, &err),
                  HEFT_ERR_UNSUPPORTED);
    assert_null(exec);
    longer.tail = 0;
    EXPECT_STATUS(heft_exec_create(c.plan, &target, 1, &longer.known, &exec, &err), HEFT_OK);
    const void *sources[4] = { c.source_data[0], c.source_data[1], NULL, c.source_data[3] };
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"q\"");
    EXPECT_STATUS(heft_exec_run(exec, NULL, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
    ref_params_check(&params, &c, 0);
    heft_exec_destroy(exec);
    heft_exec_destroy(NULL);
    ref_params_fini(&params);
    ref_case_fini(&c);
}

static void no_targets_is_a_run_of_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    fused_case(&c);
    heft_exec_t *exec = NULL;
    EXPECT_STATUS(heft_exec_create(c.plan, NULL, 0, NULL, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, NULL, &err), HEFT_OK);
    heft_exec_destroy(exec);
    ref_case_fini(&c);
}

static void create_survives_each_allocation_failing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    fused_case(&c);
    ref_params_t params;
    ref_params_init(&params, &c, 0);
    uint64_t digests[2];
    heft_exec_target_t target = { .params = params.data, .digests_out = digests };
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = 2;
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft_exec_t *exec = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_exec_create(c.plan, &target, 1, &opts, &exec, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            heft_exec_destroy(exec);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(exec);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_true(k > 5);
    assert_int_equal(heft__alloc_live(), live);
    ref_params_fini(&params);
    ref_case_fini(&c);
}

static void digest_sees_every_byte_and_its_place(void **state)
{
    (void)state;
    uint8_t data[300] = { 0 };
    assert_int_equal(heft_digest(data, sizeof data), 0);
    assert_int_equal(heft_digest(NULL, 0), 0);
    data[7] = 1;
    uint64_t at_7 = heft_digest(data, sizeof data);
    data[7] = 0;
    data[8] = 1;
    uint64_t at_8 = heft_digest(data, sizeof data);
    assert_int_not_equal(at_7, at_8);
    data[7] = 1;
    assert_int_equal(heft_digest(data, sizeof data), at_7 ^ at_8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_run_feeds_all_ranks_and_replicas),
        cmocka_unit_test(sources_may_change_from_run_to_run),
        cmocka_unit_test(odd_dtypes_and_shapes_are_exact),
        cmocka_unit_test(large_runs_report_progress_and_can_be_canceled),
        cmocka_unit_test(interleaved_lanes_are_exact),
        cmocka_unit_test(untouched_parameters_are_left_alone),
        cmocka_unit_test(beyond_4gib_offsets),
        cmocka_unit_test(wrong_calls_are_refused_by_name),
        cmocka_unit_test(no_targets_is_a_run_of_nothing),
        cmocka_unit_test(create_survives_each_allocation_failing),
        cmocka_unit_test(digest_sees_every_byte_and_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

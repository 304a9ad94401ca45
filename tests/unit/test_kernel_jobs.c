/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs over one source: every share of the work does its own part and no more, for any mixture. */
#include "heft_test.h"

#include "kernel/kernel.h"

/* A job with its own destination, and what that must be in the end. */
typedef struct target {
    heft__copy_plan_t copy;
    heft__transform_plan_t transform;
    int64_t bytes;
    uint8_t *dst;
    uint8_t *want;
} target_t;

typedef struct set {
    uint32_t n;
    target_t *targets;
    heft__job_t *jobs;
} set_t;

static uint8_t *must_alloc(int64_t bytes)
{
    uint8_t *p = malloc((size_t)bytes);
    assert_non_null(p);
    memset(p, 0xa5, (size_t)bytes);
    return p;
}

static set_t make_set(uint32_t room)
{
    set_t set = { .targets = calloc(room, sizeof *set.targets),
                  .jobs = calloc(room, sizeof *set.jobs) };
    assert_non_null(set.targets);
    assert_non_null(set.jobs);
    return set;
}

static void free_set(set_t *set)
{
    for (uint32_t j = 0; j < set->n; j++) {
        free(set->targets[j].dst);
        free(set->targets[j].want);
    }
    free(set->targets);
    free(set->jobs);
}

static target_t *add_target(set_t *set, int64_t bytes, const uint8_t *src)
{
    target_t *t = &set->targets[set->n];
    t->bytes = bytes;
    t->dst = must_alloc(bytes);
    t->want = must_alloc(bytes);
    set->jobs[set->n++] = (heft__job_t){ .dst = t->dst, .src = { src }, .param_bytes = bytes };
    return t;
}

/* The whole of dst, contiguous, from this view of src; strides in elements. */
static void add_copy(set_t *set, const uint8_t *src, uint32_t elem, int64_t n0, int64_t n1,
                     int64_t s0, int64_t s1)
{
    heft_error_t err = HEFT_ERROR_INIT;
    target_t *t = add_target(set, n0 * n1 * elem, src);
    heft__copy_t copy = { .elem_bytes = elem,
                          .rank = 2,
                          .extent = { n0, n1 },
                          .dst_stride = { n1, 1 },
                          .src_stride = { s0, s1 } };
    EXPECT_STATUS(heft__copy_prepare(&copy, &t->copy, &err), HEFT_OK);
    set->jobs[set->n - 1].copy = &t->copy;
    for (int64_t i = 0; i < n0; i++) {
        for (int64_t j = 0; j < n1; j++) {
            memcpy(t->want + (i * n1 + j) * elem, src + (i * s0 + j * s1) * elem, elem);
        }
    }
}

/* f32 to bf16, the same way. */
static void add_cast(set_t *set, const uint8_t *src, int64_t n0, int64_t n1, int64_t s0, int64_t s1)
{
    heft_error_t err = HEFT_ERROR_INIT;
    target_t *t = add_target(set, n0 * n1 * 2, src);
    heft__transform_t cast = { .dst_dtype = HEFT_DTYPE_BF16,
                               .n_srcs = 1,
                               .n_ops = 1,
                               .rank = 2,
                               .src_dtype = { HEFT_DTYPE_F32 },
                               .extent = { n0, n1 },
                               .dst_stride = { n1, 1 },
                               .src_stride = { { s0, s1 } },
                               .ops = { { .code = HEFT_OP_LOAD } } };
    EXPECT_STATUS(heft__transform_prepare(&cast, &t->transform, &err), HEFT_OK);
    set->jobs[set->n - 1].transform = &t->transform;
    for (int64_t i = 0; i < n0; i++) {
        for (int64_t j = 0; j < n1; j++) {
            uint64_t v = heft__get_le32(src + (i * s0 + j * s1) * 4);
            v = heft__cast_bits(HEFT_DTYPE_BF16, HEFT_DTYPE_F32, v);
            memcpy(t->want + (i * n1 + j) * 2, &v, 2);
        }
    }
}

static void reset(set_t *set)
{
    for (uint32_t j = 0; j < set->n; j++) {
        memset(set->targets[j].dst, 0xa5, (size_t)set->targets[j].bytes);
    }
}

static void check_set(set_t *set, uint32_t n_parts)
{
    uint64_t *digests = calloc(set->n, sizeof *digests);
    assert_non_null(digests);
    reset(set);
    for (uint32_t part = n_parts; part-- > 0;) {
        heft__jobs_run(set->jobs, set->n, part, n_parts, digests);
    }
    for (uint32_t j = 0; j < set->n; j++) {
        target_t *t = &set->targets[j];
        assert_memory_equal(t->dst, t->want, (size_t)t->bytes);
        assert_int_equal(digests[j], heft__crc64(t->want, t->bytes));
    }
    free(digests);
}

/* Parts must not do each other's work: after all but one, that one's bytes are still missing. */
static void check_shares(set_t *set, uint32_t n_parts)
{
    int64_t written = 0;
    int64_t total = 0;
    for (uint32_t part = 0; part < n_parts; part++) {
        reset(set);
        heft__jobs_run(set->jobs, set->n, part, n_parts, NULL);
        for (uint32_t j = 0; j < set->n; j++) {
            const target_t *t = &set->targets[j];
            for (int64_t i = 0; i < t->bytes; i++) {
                written += t->dst[i] != 0xa5;
                assert_true(t->dst[i] == 0xa5 || t->dst[i] == t->want[i]);
            }
        }
    }
    for (uint32_t j = 0; j < set->n; j++) {
        for (int64_t i = 0; i < set->targets[j].bytes; i++) {
            total += set->targets[j].want[i] != 0xa5;
        }
    }
    assert_int_equal(written, total);
}

static uint8_t *make_source(int64_t bytes)
{
    uint8_t *src = must_alloc(bytes);
    uint64_t random = 5;
    for (int64_t i = 0; i < bytes; i++) {
        src[i] = (uint8_t)heft_test_random(&random);
    }
    return src;
}

static void a_mixture_over_one_source_is_shared_out_exactly(void **state)
{
    (void)state;
    enum { ROWS = 150, COLS = 320 }; /* f32 */
    uint8_t *src = make_source(ROWS * COLS * 4);
    set_t set = make_set(16);
    for (int64_t k = 0; k < 4; k++) { /* column slices */
        add_copy(&set, src + k * 80 * 4, 4, ROWS, 80, COLS, 1);
    }
    add_copy(&set, src, 4, 1, ROWS * COLS, 0, 1);                         /* all of it */
    add_copy(&set, src, 4, COLS, ROWS, 1, COLS);                          /* transposed */
    add_copy(&set, src + (ROWS - 1) * COLS * 4, 4, ROWS, COLS, -COLS, 1); /* rows backwards */
    add_copy(&set, src + 4, 4, ROWS * COLS / 2, 1, 2, 0);                 /* every second element */
    add_cast(&set, src, ROWS, COLS, COLS, 1);
    add_cast(&set, src, COLS, ROWS, 1, COLS);
    add_copy(&set, src, 4, 7, COLS, 0, 1); /* one row seven times */
    static const uint32_t parts[] = { 1, 2, 3, 7, 50, 1000 };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        check_set(&set, parts[p]);
    }
    check_shares(&set, 5);
    free_set(&set);
    free(src);
}

static void more_jobs_than_a_group_holds_are_all_run(void **state)
{
    (void)state;
    enum { LAYERS = 700, ROWS = 9, RUN = 40 };
    uint8_t *src = make_source(LAYERS * ROWS * RUN);
    set_t set = make_set(LAYERS);
    for (int64_t l = 0; l < LAYERS; l++) {
        add_copy(&set, src + l * RUN, 1, ROWS, RUN, LAYERS * RUN, 1);
    }
    check_set(&set, 1);
    check_set(&set, 4);
    free_set(&set);
    free(src);
}

static void any_order_and_distant_sources_do(void **state)
{
    (void)state;
    uint8_t *a = make_source(50000);
    uint8_t *b = make_source(50000);
    set_t set = make_set(8);
    add_copy(&set, b + 20000, 2, 100, 50, 100, 1);
    add_copy(&set, a, 1, 200, 100, 200, 1);
    add_copy(&set, b, 2, 100, 50, 100, 1);
    add_copy(&set, a + 100, 1, 200, 100, 200, 1);
    add_copy(&set, b + 3, 1, 1, 1, 1, 1);
    for (uint32_t parts = 1; parts < 6; parts++) {
        check_set(&set, parts);
    }
    free_set(&set);
    free(a);
    free(b);
}

static void fills_are_shared_out(void **state)
{
    (void)state;
    static const uint8_t value[2] = { 0x12, 0x34 };
    set_t set = make_set(4);
    add_copy(&set, value, 2, 300, 100, 0, 0);
    add_copy(&set, value, 2, 100, 100, 0, 0);
    check_set(&set, 1);
    check_set(&set, 3);
    check_shares(&set, 4);
    /* a share of a fill is a share, not all or nothing */
    reset(&set);
    heft__jobs_run(set.jobs, set.n, 0, 4, NULL);
    int64_t written = 0;
    for (int64_t i = 0; i < set.targets[0].bytes; i++) {
        written += set.targets[0].dst[i] != 0xa5;
    }
    assert_in_range(written, 16000, 24000);
    free_set(&set);
}

static void empty_jobs_and_empty_sets_do_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__copy_t none = { .elem_bytes = 2, .rank = 1 };
    heft__copy_plan_t plan;
    EXPECT_STATUS(heft__copy_prepare(&none, &plan, &err), HEFT_OK);
    heft__job_t job = { .copy = &plan, .param_bytes = 10 };
    uint64_t digest = 5;
    heft__jobs_run(&job, 1, 0, 1, &digest);
    heft__jobs_run(NULL, 0, 0, 1, NULL);
    assert_int_equal(digest, 5);
}

static void nothing_is_allocated(void **state)
{
    (void)state;
    uint8_t *src = make_source(100000);
    set_t set = make_set(4);
    add_copy(&set, src, 2, 100, 100, 1, 100);
    add_copy(&set, src, 2, 100, 50, 100, 1);
    add_cast(&set, src, 50, 100, 1, 50);
    int64_t before = heft__alloc_total();
    check_set(&set, 2);
    assert_int_equal(heft__alloc_total(), before);
    free_set(&set);
    free(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixture_over_one_source_is_shared_out_exactly),
        cmocka_unit_test(more_jobs_than_a_group_holds_are_all_run),
        cmocka_unit_test(any_order_and_distant_sources_do),
        cmocka_unit_test(fills_are_shared_out),
        cmocka_unit_test(empty_jobs_and_empty_sets_do_nothing),
        cmocka_unit_test(nothing_is_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mesh leaves of a tensor. Random meshes are judged by lists of indices: each cut takes
 * elements of a list one by one, and the boxes must be that list, in its order.
 */
#include "heft_test.h"

#include "heft/cuts.h"

enum { MAX_EXTENT = 40, MAX_BOXES = 256 };

static heft_status_t cut_row(int64_t extent, const heft_cut_t *cuts, uint32_t n_cuts,
                             heft_cut_box_t *boxes, uint32_t *n_boxes, heft_error_t *err)
{
    const heft_shape_t shape = { .rank = 1, .extent = { extent } };
    heft_shape_t local;
    return heft_shape_cut(&shape, cuts, n_cuts, &local, boxes, MAX_BOXES, n_boxes, err);
}

static void expect_part(int64_t extent, uint32_t rule, uint32_t n, uint32_t part, int64_t begin,
                        int64_t end)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cut_box_t boxes[MAX_BOXES];
    uint32_t n_boxes;
    const heft_cut_t cut = { .rule = rule, .n_parts = n, .part = part };
    EXPECT_STATUS(cut_row(extent, &cut, 1, boxes, &n_boxes, &err), HEFT_OK);
    assert_int_equal(n_boxes, begin < end ? 1 : 0);
    if (n_boxes > 0) {
        assert_int_equal(boxes[0].begin[0], begin);
        assert_int_equal(boxes[0].end[0], end);
        assert_int_equal(boxes[0].local[0], 0);
    }
}

static void ten_in_three_parts(void **state)
{
    (void)state;
    expect_part(10, HEFT_CUT_CEIL, 3, 0, 0, 4);
    expect_part(10, HEFT_CUT_CEIL, 3, 1, 4, 8);
    expect_part(10, HEFT_CUT_CEIL, 3, 2, 8, 10);
    expect_part(10, HEFT_CUT_LAST, 3, 0, 0, 3);
    expect_part(10, HEFT_CUT_LAST, 3, 1, 3, 6);
    expect_part(10, HEFT_CUT_LAST, 3, 2, 6, 10);
    expect_part(9, HEFT_CUT_EVEN, 3, 1, 3, 6);
    expect_part(4, HEFT_CUT_CEIL, 3, 2, 4, 4); /* 2, 2 and nothing */
    expect_part(2, HEFT_CUT_LAST, 3, 1, 0, 0);
    expect_part(2, HEFT_CUT_LAST, 3, 2, 0, 2);
    expect_part(INT64_C(1) << 61, HEFT_CUT_CEIL, UINT32_MAX, UINT32_MAX - 1, INT64_C(1) << 61,
                INT64_C(1) << 61);
}

/* FSDP over rows of a tensor-parallel shard: rank (dp 1, tp 0) of 2 x 2 has rows 2 and 3 of 8. */
static void a_shard_of_a_shard_from_right_to_left(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cut_box_t boxes[MAX_BOXES];
    uint32_t n;
    const heft_cut_t cuts[] = {
        { .rule = HEFT_CUT_CEIL, .n_parts = 2, .part = 1, .n_blocks = 2 },
        { .rule = HEFT_CUT_CEIL, .n_parts = 2, .part = 0 },
    };
    EXPECT_STATUS(cut_row(8, cuts, 2, boxes, &n, &err), HEFT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(boxes[0].begin[0], 2);
    assert_int_equal(boxes[0].end[0], 4);
    EXPECT_STATUS(cut_row(8, cuts, 1, boxes, &n, &err), HEFT_OK); /* without tp: 2, 3, 6, 7 */
    assert_int_equal(n, 2);
    assert_int_equal(boxes[1].begin[0], 6);
    assert_int_equal(boxes[1].local[0], 2);
}

/* ---- random meshes ---- */

typedef struct row {
    int64_t at[MAX_EXTENT];
    int64_t n;
} row_t;

/* Sizes of n parts, written down as the header has them. */
static int64_t size_of(uint32_t rule, int64_t extent, int64_t n, int64_t i)
{
    if (rule == HEFT_CUT_LAST) {
        return i == n - 1 ? extent - (n - 1) * (extent / n) : extent / n;
    }
    const int64_t size = (extent + n - 1) / n;
    const int64_t left = extent - i * size;
    return left <= 0 ? 0 : left < size ? left : size;
}

static int64_t begin_of(uint32_t rule, int64_t extent, int64_t n, int64_t i)
{
    int64_t begin = 0;
    for (int64_t k = 0; k < i; k++) {
        begin += size_of(rule, extent, n, k);
    }
    return begin;
}

static void cut_reference(row_t *row, const heft_cut_t *cut)
{
    row_t out = { .n = 0 };
    const int64_t blocks = cut->n_blocks > 1 ? cut->n_blocks : 1;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = begin_of(cut->rule, row->n, blocks, b);
        const int64_t n = size_of(cut->rule, row->n, blocks, b);
        const int64_t part = begin_of(cut->rule, n, cut->n_parts, cut->part);
        for (int64_t k = 0; k < size_of(cut->rule, n, cut->n_parts, cut->part); k++) {
            out.at[out.n++] = row->at[first + part + k];
        }
    }
    *row = out;
}

static heft_cut_t random_cut(uint64_t *rng, int32_t rank)
{
    heft_cut_t cut = { .dim = (int32_t)heft_test_random_in(rng, 0, rank - 1) };
    cut.rule = (uint32_t)heft_test_random_in(rng, HEFT_CUT_CEIL, HEFT_CUT_LAST);
    cut.n_parts = (uint32_t)heft_test_random_in(rng, 1, 4);
    cut.part = (uint32_t)heft_test_random_in(rng, 0, cut.n_parts - 1);
    cut.n_blocks = (uint32_t)heft_test_random_in(rng, 0, 4);
    return cut;
}

/* Every element of what is left lies in one box, and comes from where the rows say. */
static void judge(const row_t *rows, const heft_shape_t *local, const heft_cut_box_t *boxes,
                  uint32_t n_boxes)
{
    int64_t n_elems = 1;
    int64_t n_seen = 0;
    for (int d = 0; d < local->rank; d++) {
        assert_int_equal(local->extent[d], rows[d].n);
        n_elems *= rows[d].n;
    }
    for (uint32_t b = 0; b < n_boxes; b++) {
        int64_t n = 1;
        for (int d = 0; d < local->rank; d++) {
            for (int64_t k = boxes[b].begin[d]; k < boxes[b].end[d]; k++) {
                const int64_t at = boxes[b].local[d] + k - boxes[b].begin[d];
                assert_in_range(at, 0, rows[d].n - 1);
                assert_int_equal(rows[d].at[at], k);
            }
            n *= boxes[b].end[d] - boxes[b].begin[d];
        }
        assert_true(n > 0);
        n_seen += n;
    }
    assert_int_equal(n_seen, n_elems); /* boxes differ in their local begins: disjoint */
    for (uint32_t b = 1; b < n_boxes; b++) {
        assert_true(memcmp(boxes[b].local, boxes[b - 1].local, sizeof boxes[b].local) != 0);
    }
}

static void random_meshes_leave_what_lists_of_indices_say(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    const int64_t cases = heft_test_cases(20000);
    for (int64_t c = 0; c < cases; c++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_shape_t shape = { .rank = (int32_t)heft_test_random_in(&rng, 1, 3) };
        row_t rows[3] = { 0 };
        for (int d = 0; d < shape.rank; d++) {
            rows[d].n = shape.extent[d] = heft_test_random_in(&rng, 0, MAX_EXTENT / shape.rank);
            for (int64_t k = 0; k < rows[d].n; k++) {
                rows[d].at[k] = k;
            }
        }
        heft_cut_t cuts[4];
        const uint32_t n_cuts = (uint32_t)heft_test_random_in(&rng, 0, 4);
        for (uint32_t i = 0; i < n_cuts; i++) {
            cuts[i] = random_cut(&rng, shape.rank);
            cut_reference(&rows[cuts[i].dim], &cuts[i]);
        }
        static heft_cut_box_t boxes[4096];
        heft_shape_t local;
        uint32_t n_boxes;
        EXPECT_STATUS(heft_shape_cut(&shape, cuts, n_cuts, &local, boxes, 4096, &n_boxes, &err),
                      HEFT_OK);
        judge(rows, &local, boxes, n_boxes);
    }
}

static void what_is_no_cut_is_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cut_box_t boxes[MAX_BOXES];
    uint32_t n = 77;
    const struct {
        heft_cut_t cut;
        heft_status_t status;
        const char *part;
    } rows[] = {
        { { .n_parts = 3, .dim = 1 }, HEFT_ERR_ARGUMENT, "has 1 dimensions" },
        { { .n_parts = 3, .dim = -1 }, HEFT_ERR_ARGUMENT, "dimension -1" },
        { { .n_parts = 3, .part = 3 }, HEFT_ERR_ARGUMENT, "position 3 of 3" },
        { { .n_parts = 0 }, HEFT_ERR_ARGUMENT, "position 0 of 0" },
        { { .n_parts = 3, .rule = 3 }, HEFT_ERR_ARGUMENT, "rule 3" },
        { { .n_parts = 3, .reserved = 1 }, HEFT_ERR_ARGUMENT, "reserved 1" },
        { { .n_parts = 3 }, HEFT_ERR_SHAPE, "10 do not divide into 3 equal parts" },
        { { .n_parts = 1, .n_blocks = 3 }, HEFT_ERR_SHAPE, "10 do not divide into 3" },
        { { .n_parts = 1, .n_blocks = 65537 }, HEFT_ERR_LIMIT, "65537 blocks" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        EXPECT_STATUS(cut_row(10, &rows[i].cut, 1, boxes, &n, &err), rows[i].status);
        EXPECT_MESSAGE(rows[i].part);
        assert_int_equal(n, 77);
    }
}

static void too_many_boxes_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = 2, .extent = { 4096, 4096 } };
    heft_shape_t local;
    uint32_t n = 77;
    const heft_cut_t cuts[] = {
        { .dim = 0, .n_parts = 2, .n_blocks = 512 },
        { .dim = 1, .n_parts = 2, .n_blocks = 512 },
    };
    EXPECT_STATUS(heft_shape_cut(&shape, cuts, 2, &local, NULL, 0, &n, &err), HEFT_ERR_LIMIT);
    assert_int_equal(n, 77);
    EXPECT_STATUS(heft_shape_cut(&shape, cuts, 1, &local, NULL, 0, &n, &err), HEFT_OK);
    assert_int_equal(n, 512); /* counted, none written */
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const heft_cut_t cuts[] = {
        { .rule = HEFT_CUT_CEIL, .n_parts = 2, .part = 1, .n_blocks = 8 },
        { .rule = HEFT_CUT_CEIL, .n_parts = 2, .part = 0, .n_blocks = 3 },
    };
    const int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_cut_box_t boxes[MAX_BOXES];
        uint32_t n;
        heft__alloc_fail_at(k);
        const heft_status_t status = cut_row(40, cuts, 2, boxes, &n, &err);
        heft__alloc_fail_at(-1);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            assert_true(k > 0);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_in_three_parts),
        cmocka_unit_test(a_shard_of_a_shard_from_right_to_left),
        cmocka_unit_test(random_meshes_leave_what_lists_of_indices_say),
        cmocka_unit_test(what_is_no_cut_is_refused),
        cmocka_unit_test(too_many_boxes_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Cover: counts, cells and places, by hand. */
#include "heft_test.h"

#include "plan/cover.h"

typedef struct many {
    heft__claim_t *claims;
    int64_t (*extent)[3];
    int64_t (*stride)[3];
    size_t n;
} many_t;

static void many_init(many_t *m, size_t cap)
{
    m->claims = calloc(cap, sizeof *m->claims);
    m->extent = calloc(cap, sizeof *m->extent);
    m->stride = calloc(cap, sizeof *m->stride);
    m->n = 0;
    assert_true(m->claims != NULL && m->extent != NULL && m->stride != NULL);
}

static void many_fini(many_t *m)
{
    free(m->claims);
    free(m->extent);
    free(m->stride);
}

static void add(many_t *m, int64_t offset, int32_t n_dims, const int64_t *extent,
                const int64_t *stride)
{
    memcpy(m->extent[m->n], extent, (size_t)n_dims * sizeof *extent);
    memcpy(m->stride[m->n], stride, (size_t)n_dims * sizeof *stride);
    m->claims[m->n] = (heft__claim_t){ .offset = offset,
                                       .extent = m->extent[m->n],
                                       .stride = m->stride[m->n],
                                       .n_dims = n_dims,
                                       .owner = (uint32_t)m->n };
    m->n++;
}

#define DIMS(...) ((const int64_t[]){ __VA_ARGS__ })

static heft__cover_count_t scan(int64_t n_elems, const many_t *m, heft__cell_visitor_t visit,
                                void *arg)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__cover_count_t count;
    heft__cover_t *cover = heft__cover_create();
    assert_non_null(cover);
    EXPECT_STATUS(heft__cover_scan(cover, n_elems, m->claims, m->n, visit, arg, &count, &err),
                  HEFT_OK);
    heft__cover_destroy(cover);
    return count;
}

static void nothing_claims_nothing(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 1);
    heft__cover_count_t count = scan(12, &m, NULL, NULL);
    assert_int_equal(count.n_covered, 0);
    assert_int_equal(scan(0, &m, NULL, NULL).n_covered, 0);
    many_fini(&m);
}

static void a_broadcast_claim_counts_each_element_once(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 1);
    add(&m, 4, 3, DIMS(7, 2, 4), DIMS(0, 0, 1));
    heft__cover_count_t count = scan(12, &m, NULL, NULL);
    assert_int_equal(count.n_covered, 4);
    assert_int_equal(count.n_overlap, 0);
    many_fini(&m);
}

static heft_status_t largest_cell(void *arg, const heft__cell_t *cell)
{
    heft__cell_t *largest = arg;
    if (cell->n_owners > largest->n_owners) {
        *largest = *cell;
        largest->owners = NULL;
    }
    return HEFT_OK;
}

static void equal_claims_share_one_cell(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 3);
    add(&m, 0, 2, DIMS(2, 3), DIMS(6, 1));    /* columns 0..3 of [2,6] */
    add(&m, 0, 2, DIMS(3, 2), DIMS(1, 6));    /* the same, transposed */
    add(&m, 11, 2, DIMS(2, 3), DIMS(-6, -1)); /* columns 3..6, backwards */
    heft__cell_t largest = { 0 };
    heft__cover_count_t count = scan(12, &m, largest_cell, &largest);
    assert_int_equal(count.n_covered, 12);
    assert_int_equal(count.n_overlap, 6);
    assert_int_equal(largest.n_owners, 2);
    assert_int_equal(largest.n_elems, 6);
    many_fini(&m);
}

static void interleaved_halves_are_disjoint(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 2);
    /* [3, 4 blocks, 2 halves, 128]: even and odd blocks of columns */
    add(&m, 0, 3, DIMS(3, 4, 128), DIMS(1024, 256, 1));
    add(&m, 128, 3, DIMS(3, 4, 128), DIMS(1024, 256, 1));
    heft__cover_count_t count = scan(3072, &m, NULL, NULL);
    assert_int_equal(count.n_covered, 3072);
    assert_int_equal(count.n_overlap, 0);
    many_fini(&m);
}

static heft_status_t count_cells(void *arg, const heft__cell_t *cell)
{
    (void)cell;
    ++*(size_t *)arg;
    return HEFT_OK;
}

/* A scanned tensor [d, layers, experts] that every (layer, expert) of 8 ranks reads by its own
 * strided column: 12,000 readers whose intervals all meet, and no two share an element. */
static void interleaved_readers_cost_no_pairs(void **state)
{
    (void)state;
    enum { LAYERS = 30, EXPERTS = 50, RANKS = 8, ROWS = 64 };
    many_t m;
    many_init(&m, (size_t)LAYERS * EXPERTS * RANKS);
    for (int64_t r = 0; r < RANKS; r++) {
        for (int64_t l = 0; l < LAYERS; l++) {
            for (int64_t e = 0; e < EXPERTS; e++) {
                add(&m, r * (ROWS / RANKS) * LAYERS * EXPERTS + l * EXPERTS + e, 1,
                    DIMS(ROWS / RANKS), DIMS((int64_t)LAYERS * EXPERTS));
            }
        }
    }
    size_t n_cells = 0;
    heft__cover_count_t count = scan((int64_t)ROWS * LAYERS * EXPERTS, &m, count_cells, &n_cells);
    assert_int_equal(count.n_covered, ROWS * LAYERS * EXPERTS);
    assert_int_equal(count.n_overlap, 0);
    assert_int_equal(n_cells, m.n);
    many_fini(&m);
}

static void cost_does_not_depend_on_extents(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 3);
    int64_t rows = 150000000;
    int64_t columns = 5000000;
    add(&m, 0, 2, DIMS(rows, columns / 2), DIMS(columns, 1));
    add(&m, columns / 2, 2, DIMS(rows, columns / 2), DIMS(columns, 1));
    heft__cover_count_t count = scan(rows * columns, &m, NULL, NULL);
    assert_int_equal(count.n_covered, rows * columns);
    assert_int_equal(count.n_overlap, 0);
    many_fini(&m);
}

static void a_claim_outside_the_tensor_is_a_bug_with_numbers(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 1);
    add(&m, 8, 2, DIMS(2, 3), DIMS(3, 1));
    heft_error_t err = HEFT_ERROR_INIT;
    heft__cover_count_t count;
    heft__cover_t *cover = heft__cover_create();
    EXPECT_STATUS(heft__cover_scan(cover, 12, m.claims, m.n, NULL, NULL, &count, &err),
                  HEFT_ERR_INTERNAL);
    EXPECT_MESSAGE("element 8");
    EXPECT_MESSAGE("12 elements");
    heft__cover_destroy(cover);
    many_fini(&m);
}

static void strides_that_do_not_nest_are_bounded(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 1);
    add(&m, 0, 2, DIMS(3000000, 3), DIMS(2, 3));
    heft_error_t err = HEFT_ERROR_INIT;
    heft__cover_count_t count;
    heft__cover_t *cover = heft__cover_create();
    EXPECT_STATUS(heft__cover_scan(cover, 6000006, m.claims, m.n, NULL, NULL, &count, &err),
                  HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("4194304 runs");
    heft__cover_destroy(cover);
    many_fini(&m);
}

static void locate(const char *dims, const many_t *m, heft__spot_t *hole, heft__spot_t *overlap)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { 0 };
    while (*dims != '\0') {
        char *end;
        shape.extent[shape.rank++] = strtoll(dims, &end, 10);
        dims = *end == ',' ? end + 1 : end;
    }
    heft__cover_t *cover = heft__cover_create();
    EXPECT_STATUS(heft__cover_locate(cover, &shape, m->claims, m->n, hole, overlap, &err), HEFT_OK);
    heft__cover_destroy(cover);
}

static void rows_left_over_are_one_box(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 2);
    add(&m, 0, 2, DIMS(4, 2), DIMS(4, 1)); /* rows 0..4 in two halves */
    add(&m, 2, 2, DIMS(4, 2), DIMS(4, 1));
    heft__spot_t hole;
    locate("6,4", &m, &hole, NULL);
    assert_int_equal(hole.n_elems, 8);
    assert_int_equal(hole.n_boxes, 1);
    assert_int_equal(hole.begin[0], 4);
    assert_int_equal(hole.end[0], 6);
    assert_int_equal(hole.begin[1], 0);
    assert_int_equal(hole.end[1], 4);
    many_fini(&m);
}

static void overlaps_name_their_owners(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 2);
    add(&m, 0, 2, DIMS(4, 4), DIMS(4, 1));  /* rows 0..4 */
    add(&m, 12, 2, DIMS(3, 4), DIMS(4, 1)); /* rows 3..6 */
    heft__spot_t hole;
    heft__spot_t overlap;
    locate("6,4", &m, &hole, &overlap);
    assert_int_equal(hole.n_elems, 0);
    assert_int_equal(overlap.n_elems, 4);
    assert_int_equal(overlap.begin[0], 3);
    assert_int_equal(overlap.end[0], 4);
    assert_int_equal(overlap.owners[0] + overlap.owners[1], 1);
    many_fini(&m);
}

static void a_hole_in_columns_is_counted_in_boxes(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 1);
    add(&m, 0, 3, DIMS(3, 2, 2), DIMS(8, 4, 1)); /* columns 0..2 and 4..6 of [3,8] */
    heft__spot_t hole;
    locate("3,8", &m, &hole, NULL);
    assert_int_equal(hole.n_elems, 12);
    assert_int_equal(hole.n_boxes, 2);
    assert_int_equal(hole.begin[1], 2);
    assert_int_equal(hole.end[1], 4);
    assert_int_equal(hole.end[0], 3);
    many_fini(&m);
}

static void cover_survives_every_failed_allocation(void **state)
{
    (void)state;
    many_t m;
    many_init(&m, 4);
    add(&m, 0, 2, DIMS(4, 3), DIMS(6, 1));
    add(&m, 2, 2, DIMS(4, 3), DIMS(6, 1));
    add(&m, 1, 2, DIMS(3, 3), DIMS(4, 3)); /* does not nest */
    const heft_shape_t shape = { .rank = 2, .extent = { 4, 6 } };
    int64_t live = heft__alloc_live();
    heft_status_t status = HEFT_ERR_NOMEM;
    for (long k = 0; status != HEFT_OK; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__cover_count_t count;
        heft__spot_t hole;
        heft__alloc_fail_at(k);
        heft__cover_t *cover = heft__cover_create();
        status = cover == NULL
                     ? HEFT_ERR_NOMEM
                     : heft__cover_scan(cover, 24, m.claims, m.n, NULL, NULL, &count, &err);
        if (status == HEFT_OK) {
            status = heft__cover_locate(cover, &shape, m.claims, m.n, &hole, NULL, &err);
        }
        heft__cover_destroy(cover);
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        assert_int_equal(heft__alloc_live(), live);
    }
    many_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_claims_nothing),
        cmocka_unit_test(a_broadcast_claim_counts_each_element_once),
        cmocka_unit_test(equal_claims_share_one_cell),
        cmocka_unit_test(interleaved_halves_are_disjoint),
        cmocka_unit_test(interleaved_readers_cost_no_pairs),
        cmocka_unit_test(cost_does_not_depend_on_extents),
        cmocka_unit_test(a_claim_outside_the_tensor_is_a_bug_with_numbers),
        cmocka_unit_test(strides_that_do_not_nest_are_bounded),
        cmocka_unit_test(rows_left_over_are_one_box),
        cmocka_unit_test(overlaps_name_their_owners),
        cmocka_unit_test(a_hole_in_columns_is_counted_in_boxes),
        cmocka_unit_test(cover_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

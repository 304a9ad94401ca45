/* SPDX-License-Identifier: Apache-2.0 */
/* Region algebra: normal form, messages, limits, failures. Exactness is prop_region's business. */
#include "heft_test.h"
#include "tensor/tensor.h"

static heft_view_t view1(int64_t offset, int64_t e0, int64_t s0)
{
    return (heft_view_t){ .rank = 1, .offset = offset, .extent = { e0 }, .stride = { s0 } };
}

static heft_view_t view2(int64_t offset, int64_t e0, int64_t s0, int64_t e1, int64_t s1)
{
    return (heft_view_t){ .rank = 2, .offset = offset, .extent = { e0, e1 }, .stride = { s0, s1 } };
}

static heft__region_t region_of(heft_view_t view)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_t region = { .rank = -1 };
    EXPECT_STATUS(heft__region_from_view(&view, &region, &err), HEFT_OK);
    return region;
}

static void assert_same(const heft__region_t *a, const heft__region_t *b)
{
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->is_empty, b->is_empty);
    assert_int_equal(a->offset, b->offset);
    for (int k = 0; k < a->rank; k++) {
        assert_int_equal(a->extent[k], b->extent[k]);
        assert_int_equal(a->stride[k], b->stride[k]);
    }
}

static void a_region_has_one_normal_form(void **state)
{
    (void)state;
    heft__region_t whole = region_of(view2(0, 3, 4, 4, 1));
    assert_int_equal(whole.rank, 1);
    assert_int_equal(whole.extent[0], 12);
    heft__region_t same[] = { region_of(view2(0, 4, 1, 3, 4)), region_of(view2(11, 3, -4, 4, -1)),
                              region_of(view1(0, 12, 1)), heft__region_whole(12) };
    for (size_t i = 0; i < 4; i++) {
        assert_same(&same[i], &whole);
    }
    heft__region_t rows = region_of(view2(5, 3, 10, 4, 2));
    assert_int_equal(heft__region_count(&rows), 12);
    assert_int_equal(heft__region_last(&rows), 31);
    heft__region_t point = region_of(view2(7, 1, 1000, 1, -5));
    assert_int_equal(point.rank, 0);
    assert_int_equal(point.offset, 7);
    assert_int_equal(heft__region_count(&point), 1);
    assert_int_equal(heft__region_last(&point), 7);
    heft__region_t none = region_of(view2(7, 0, 1, 3, 1));
    assert_true(none.is_empty);
    assert_int_equal(heft__region_count(&none), 0);
    assert_true(heft__region_whole(0).is_empty);
}

static void two_indices_of_one_element_are_named(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_t region = { .rank = -1 };
    heft_view_t view = view2(0, 4, 2, 3, 1);
    EXPECT_STATUS(heft__region_from_view(&view, &region, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("(0,2) and (1,0)");
    view = view2(0, 4, 3, 4, 0);
    EXPECT_STATUS(heft__region_from_view(&view, &region, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("dimension 1 has stride 0 and extent 4");
    assert_int_equal(region.rank, -1);
    view = view2(0, 2, 3, 2, 2); /* 0 2 3 5: not nested, and yet distinct */
    EXPECT_STATUS(heft__region_from_view(&view, &region, &err), HEFT_OK);
    assert_int_equal(heft__region_count(&region), 4);
}

static void a_source_view_counts_each_element_once(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_list_t list = { 0 };
    heft_view_t windows = view2(10, 98, 1, 3, 1); /* unfold */
    EXPECT_STATUS(heft__region_from_source_view(&windows, &list, &err), HEFT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.items[0].offset, 10);
    assert_int_equal(list.items[0].extent[0], 100);
    heft__region_list_reset(&list);
    heft_view_t repeated = view2(10, 50, 0, 3, 2);
    EXPECT_STATUS(heft__region_from_source_view(&repeated, &list, &err), HEFT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(heft__region_list_count(&list), 3);
    heft__region_list_reset(&list);
    heft_view_t none = view1(0, 0, 1);
    EXPECT_STATUS(heft__region_from_source_view(&none, &list, &err), HEFT_OK);
    assert_int_equal(list.n, 0);
    heft__region_list_fini(&list);
}

static void large_extents_cost_nothing(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t row = (int64_t)1 << 30;
    /* columns [1000, 2^29) of 2^31 rows, against rows [5, 2^30) and columns [0, 2^28) */
    heft__region_t a = region_of(view2(1000, (int64_t)1 << 31, row, (row / 2) - 1000, 1));
    heft__region_t b = region_of(view2(5 * row, row - 5, row, row / 4, 1));
    heft__region_list_t list = { 0 };
    int64_t total = heft__alloc_total();
    EXPECT_STATUS(heft__region_intersect(&a, &b, &list, &err), HEFT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(heft__region_list_count(&list), (row - 5) * (row / 4 - 1000));
    EXPECT_STATUS(heft__region_subtract(&a, &b, &list, &err), HEFT_OK);
    assert_int_equal(heft__region_list_count(&list), heft__region_count(&a));
    assert_true(list.n <= 5);
    assert_true(heft__alloc_total() - total < 20);
    heft__region_list_fini(&list);
}

static void regions_of_reshapes_meet_exactly(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    /* 24 million elements as [6000, 4000] and as [4000, 6000], columns of both */
    heft__region_t a = region_of(view2(0, 6000, 4000, 1000, 1));
    heft__region_t b = region_of(view2(500, 4000, 6000, 1500, 1));
    heft__region_list_t list = { 0 };
    EXPECT_STATUS(heft__region_intersect(&a, &b, &list, &err), HEFT_OK);
    /* every 12000 elements: a has 0..999, 4000..4999, 8000..8999; b has 500..1999, 6500..7999 */
    assert_int_equal(list.n, 1);
    assert_int_equal(list.items[0].offset, 500);
    assert_int_equal(heft__region_list_count(&list), 2000 * 500);
    heft__region_list_fini(&list);
}

static void hopeless_strides_are_refused_with_numbers(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_t a = region_of(view2(0, 900000, 1000003, 2, 5));
    heft__region_t b = region_of(view2(0, 900000, 1000000, 2, 5));
    heft__region_list_t list = { 0 };
    EXPECT_STATUS(heft__region_intersect(&a, &b, &list, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("65536");
    assert_int_equal(list.n, 0);
    EXPECT_STATUS(heft__region_subtract(&a, &b, &list, &err), HEFT_ERR_LIMIT);
    bool meet = false;
    EXPECT_STATUS(heft__region_overlaps(&a, &b, &meet, &err), HEFT_ERR_LIMIT);
    /* out of reach of one another: no need to look closer */
    b.offset = heft__region_last(&a) + 1;
    EXPECT_STATUS(heft__region_overlaps(&a, &b, &meet, &err), HEFT_OK);
    assert_false(meet);
    heft__region_list_fini(&list);
}

static void coalescing_finds_runs_steps_and_tiles(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_list_t list = { 0 };
    /* 4 x 4 tiles of a 40 x 40 matrix, in an order that jumps about */
    for (int64_t i = 0; i < 100; i++) {
        int64_t t = i * 37 % 100;
        heft__region_t tile = region_of(view2(t / 10 * 160 + t % 10 * 4, 4, 40, 4, 1));
        EXPECT_STATUS(heft__region_list_add(&list, &tile, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft__region_list_coalesce(&list, &err), HEFT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.items[0].rank, 1);
    assert_int_equal(list.items[0].extent[0], 1600);
    heft__region_list_reset(&list);
    /* single elements 3 apart */
    for (int64_t i = 0; i < 50; i++) {
        heft__region_t point = region_of(view1(3 * (i * 7 % 50), 1, 1));
        EXPECT_STATUS(heft__region_list_add(&list, &point, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft__region_list_coalesce(&list, &err), HEFT_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.items[0].stride[0], 3);
    assert_int_equal(list.items[0].extent[0], 50);
    heft__region_list_fini(&list);
}

static void a_step_more_is_taken_in_at_both_ends(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_list_t list = { 0 };
    /* rows 2..5 of pairs 100 apart, then rows 1 and 6, then 8, which stays alone */
    heft__region_t rows[] = { region_of(view2(200, 4, 100, 2, 1)), region_of(view1(100, 2, 1)),
                              region_of(view1(600, 2, 1)), region_of(view1(800, 2, 1)) };
    for (size_t i = 0; i < 4; i++) {
        EXPECT_STATUS(heft__region_list_add(&list, &rows[i], &err), HEFT_OK);
    }
    EXPECT_STATUS(heft__region_list_coalesce(&list, &err), HEFT_OK);
    assert_true(list.n <= 2);
    assert_int_equal(heft__region_list_count(&list), 14);
    heft__region_list_fini(&list);
}

static void regions_are_shown_as_index_boxes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = 3, .extent = { 4, 1, 6 } };
    heft__region_t rows = region_of(view1(6, 12, 1)); /* rows 1 and 2 */
    heft__index_box_t boxes[4];
    uint64_t n = 0;
    EXPECT_STATUS(heft__region_to_boxes(&rows, &shape, boxes, 4, &n, &err), HEFT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(boxes[0].begin[0], 1);
    assert_int_equal(boxes[0].end[0], 3);
    assert_int_equal(boxes[0].begin[1], 0);
    assert_int_equal(boxes[0].end[1], 1);
    assert_int_equal(boxes[0].begin[2], 0);
    assert_int_equal(boxes[0].end[2], 6);
    heft__region_t tail = region_of(view1(4, 4, 1)); /* (0,0,4..5), (1,0,0..1) */
    EXPECT_STATUS(heft__region_to_boxes(&tail, &shape, boxes, 1, &n, &err), HEFT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(boxes[0].begin[0], 0);
    assert_int_equal(boxes[0].begin[2], 4);
    assert_int_equal(boxes[0].end[2], 6);
    heft_shape_t scalar = { .rank = 0 };
    heft__region_t one = heft__region_whole(1);
    EXPECT_STATUS(heft__region_to_boxes(&one, &scalar, boxes, 4, &n, &err), HEFT_OK);
    assert_int_equal(n, 1);
    heft__region_t none = heft__region_whole(0);
    EXPECT_STATUS(heft__region_to_boxes(&none, &shape, boxes, 4, &n, &err), HEFT_OK);
    assert_int_equal(n, 0);
}

static void many_odd_boxes_are_only_counted(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = 2, .extent = { (int64_t)1 << 20, (int64_t)1 << 20 } };
    heft__region_t odd = region_of(view1(1, (int64_t)1 << 39, 2));
    heft__index_box_t box;
    uint64_t n = 0;
    EXPECT_STATUS(heft__region_to_boxes(&odd, &shape, &box, 1, &n, &err), HEFT_OK);
    assert_int_equal(n, (int64_t)1 << 19); /* one for each odd column */
    assert_int_equal(box.begin[0], 0);
    assert_int_equal(box.end[0], (int64_t)1 << 20);
    assert_int_equal(box.begin[1], 1);
    assert_int_equal(box.end[1], 2);
}

/* ---- every allocation failing in turn ---- */

static heft_status_t all_operations(heft__region_list_t *list, heft_error_t *err)
{
    heft_view_t windows = view2(0, 20, 3, 5, 2);
    heft_shape_t shape = { .rank = 2, .extent = { 10, 12 } };
    heft__region_t a = region_of(view2(1, 5, 20, 7, 2));
    heft__region_t b = region_of(view2(0, 4, 30, 8, 3));
    heft__region_t whole = heft__region_whole(120);
    heft__index_box_t boxes[4];
    uint64_t n;
    bool meet;
    heft_status_t status = heft__region_from_source_view(&windows, list, err);
    if (status == HEFT_OK) {
        status = heft__region_intersect(&a, &b, list, err);
    }
    if (status == HEFT_OK) {
        status = heft__region_subtract(&whole, &b, list, err);
    }
    if (status == HEFT_OK) {
        status = heft__region_overlaps(&a, &b, &meet, err);
    }
    if (status == HEFT_OK) {
        status = heft__region_list_subtract(list, &a, err);
    }
    if (status == HEFT_OK) {
        status = heft__region_to_boxes(&b, &shape, boxes, 4, &n, err);
    }
    return status;
}

static void operations_survive_every_failed_allocation(void **state)
{
    (void)state;
    int64_t live = heft__alloc_live();
    long k = 0;
    for (;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__region_list_t list = { 0 };
        heft__alloc_fail_at(k);
        heft_status_t status = all_operations(&list, &err);
        heft__alloc_fail_at(-1);
        heft__region_list_fini(&list);
        assert_int_equal(heft__alloc_live(), live);
        if (status == HEFT_OK) {
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
    }
    assert_true(k > 10);
}

static void a_failure_leaves_the_list_as_it_was(void **state)
{
    (void)state;
    heft__region_t a = heft__region_whole(1000);
    heft__region_t b = region_of(view2(1, 10, 100, 7, 3));
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__region_list_t list = { 0 };
        EXPECT_STATUS(heft__region_list_add(&list, &a, &err), HEFT_OK);
        heft__alloc_fail_at(k);
        heft_status_t status = heft__region_list_subtract(&list, &b, &err);
        heft__alloc_fail_at(-1);
        if (status != HEFT_OK) {
            assert_int_equal(list.n, 1);
            assert_same(&list.items[0], &a);
        } else {
            assert_int_equal(heft__region_list_count(&list), 930);
        }
        heft__region_list_fini(&list);
        if (status == HEFT_OK) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_region_has_one_normal_form),
        cmocka_unit_test(two_indices_of_one_element_are_named),
        cmocka_unit_test(a_source_view_counts_each_element_once),
        cmocka_unit_test(large_extents_cost_nothing),
        cmocka_unit_test(regions_of_reshapes_meet_exactly),
        cmocka_unit_test(hopeless_strides_are_refused_with_numbers),
        cmocka_unit_test(coalescing_finds_runs_steps_and_tiles),
        cmocka_unit_test(a_step_more_is_taken_in_at_both_ends),
        cmocka_unit_test(regions_are_shown_as_index_boxes),
        cmocka_unit_test(many_odd_boxes_are_only_counted),
        cmocka_unit_test(operations_survive_every_failed_allocation),
        cmocka_unit_test(a_failure_leaves_the_list_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

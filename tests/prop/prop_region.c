/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region algebra against bitmaps: every operation, on random strided views of a small buffer, whose
 * strides nest, do not nest, are negative or repeat.
 */
#include "heft_test.h"
#include "tensor/tensor.h"

enum { N = 240 }; /* many divisors */

typedef struct bits {
    unsigned char at[N];
} bits_t;

static void mark_region(const heft__region_t *region, bits_t *bits, int *n_twice)
{
    if (region->is_empty) {
        return;
    }
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (;;) {
        int64_t e = region->offset;
        for (int k = 0; k < region->rank; k++) {
            e += index[k] * region->stride[k];
        }
        assert_in_range(e, 0, N - 1);
        *n_twice += bits->at[e];
        bits->at[e] = 1;
        int k = region->rank - 1;
        while (k >= 0 && ++index[k] == region->extent[k]) {
            index[k--] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

/* Mark every element of a list; fails if two regions share one. */
static bits_t mark_list(const heft__region_list_t *list, size_t first)
{
    bits_t bits = { { 0 } };
    int n_twice = 0;
    for (size_t i = first; i < list->n; i++) {
        mark_region(&list->items[i], &bits, &n_twice);
    }
    assert_int_equal(n_twice, 0);
    return bits;
}

static void check_normal(const heft__region_t *region)
{
    for (int k = 0; k < region->rank; k++) {
        assert_true(region->extent[k] >= 2);
        assert_true(region->stride[k] > 0);
        if (k > 0) {
            assert_true(region->stride[k - 1] >= region->stride[k]);
            assert_int_not_equal(region->stride[k - 1], region->stride[k] * region->extent[k]);
        }
    }
}

static bool fits(const heft_view_t *view)
{
    int64_t lo = view->offset;
    int64_t hi = view->offset;
    for (int k = 0; k < view->rank; k++) {
        int64_t span = (view->extent[k] - 1) * view->stride[k];
        lo += span < 0 ? span : 0;
        hi += span > 0 ? span : 0;
    }
    return lo >= 0 && hi < N;
}

/* A view inside the buffer; mostly with strides of some row-major shape, sometimes wild. */
static heft_view_t random_view(uint64_t *rng)
{
    static const int64_t good[] = {
        1, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 30, 40, 48, 60, 80
    };
    for (;;) {
        heft_view_t view = { .rank = (int32_t)heft_test_random_in(rng, 0, 4) };
        bool wild = heft_test_random_in(rng, 0, 3) == 0;
        view.offset = heft_test_random_in(rng, 0, N - 1);
        for (int k = 0; k < view.rank; k++) {
            view.extent[k] = heft_test_random_in(rng, 1, wild ? 5 : 7);
            view.stride[k] =
                wild ? heft_test_random_in(rng, -13, 13) : good[heft_test_random_in(rng, 0, 17)];
            if (!wild && heft_test_random_in(rng, 0, 5) == 0) {
                view.stride[k] = -view.stride[k];
            }
        }
        if (fits(&view)) {
            return view;
        }
    }
}

static bits_t mark_view(const heft_view_t *view, int *n_twice)
{
    bits_t bits = { { 0 } };
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (;;) {
        int64_t e = view->offset;
        for (int k = 0; k < view->rank; k++) {
            e += index[k] * view->stride[k];
        }
        *n_twice += bits.at[e];
        bits.at[e] = 1;
        int k = view->rank - 1;
        while (k >= 0 && ++index[k] == view->extent[k]) {
            index[k--] = 0;
        }
        if (k < 0) {
            return bits;
        }
    }
}

static void view_regions_are_exact(uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t view = random_view(rng);
    int n_twice = 0;
    bits_t expected = mark_view(&view, &n_twice);
    heft__region_t region;
    heft_status_t status = heft__region_from_view(&view, &region, &err);
    if (n_twice > 0) {
        assert_int_equal(status, HEFT_ERR_ARGUMENT);
    } else {
        EXPECT_STATUS(status, HEFT_OK);
        check_normal(&region);
        bits_t got = { { 0 } };
        mark_region(&region, &got, &n_twice);
        assert_int_equal(n_twice, 0);
        assert_memory_equal(&got, &expected, sizeof got);
    }
    heft__region_list_t list = { 0 };
    EXPECT_STATUS(heft__region_from_source_view(&view, &list, &err), HEFT_OK);
    bits_t got = mark_list(&list, 0);
    assert_memory_equal(&got, &expected, sizeof got);
    heft__region_list_fini(&list);
}

static heft__region_t random_region(uint64_t *rng)
{
    for (;;) {
        heft_view_t view = random_view(rng);
        heft__region_t region;
        if (heft__region_from_view(&view, &region, NULL) == HEFT_OK) {
            return region;
        }
    }
}

static void pairs_are_exact(uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_t a = random_region(rng);
    heft__region_t b = random_region(rng);
    bits_t bits_a = { { 0 } };
    bits_t bits_b = { { 0 } };
    bits_t both = { { 0 } };
    bits_t only_a = { { 0 } };
    int n_twice = 0;
    bool meet = false;
    mark_region(&a, &bits_a, &n_twice);
    mark_region(&b, &bits_b, &n_twice);
    for (int i = 0; i < N; i++) {
        both.at[i] = bits_a.at[i] & bits_b.at[i];
        only_a.at[i] = bits_a.at[i] & !bits_b.at[i];
        meet = meet || both.at[i] != 0;
    }
    bool got_meet = !meet;
    EXPECT_STATUS(heft__region_overlaps(&a, &b, &got_meet, &err), HEFT_OK);
    assert_int_equal(got_meet, meet);
    heft__region_list_t list = { 0 };
    EXPECT_STATUS(heft__region_list_add(&list, &b, &err), HEFT_OK);
    EXPECT_STATUS(heft__region_intersect(&a, &b, &list, &err), HEFT_OK);
    bits_t got = mark_list(&list, 1);
    assert_memory_equal(&got, &both, sizeof got);
    for (size_t i = 1; i < list.n; i++) {
        check_normal(&list.items[i]);
    }
    size_t n = list.n;
    EXPECT_STATUS(heft__region_subtract(&a, &b, &list, &err), HEFT_OK);
    got = mark_list(&list, n);
    assert_memory_equal(&got, &only_a, sizeof got);
    for (size_t i = n; i < list.n; i++) {
        check_normal(&list.items[i]);
    }
    heft__region_list_fini(&list);
}

/* Cutting regions out one after another leaves what the bitmap has left; coalescing changes nothing
 * but the number of regions. */
static void lists_are_exact(uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_list_t list = { 0 };
    heft__region_t whole = heft__region_whole(N);
    EXPECT_STATUS(heft__region_list_add(&list, &whole, &err), HEFT_OK);
    bits_t expected;
    memset(&expected, 1, sizeof expected);
    int64_t n_cuts = heft_test_random_in(rng, 1, 8);
    for (int64_t i = 0; i < n_cuts; i++) {
        heft__region_t cut = random_region(rng);
        bits_t bits = { { 0 } };
        int n_twice = 0;
        mark_region(&cut, &bits, &n_twice);
        for (int j = 0; j < N; j++) {
            expected.at[j] = expected.at[j] & !bits.at[j];
        }
        EXPECT_STATUS(heft__region_list_subtract(&list, &cut, &err), HEFT_OK);
    }
    bits_t got = mark_list(&list, 0);
    assert_memory_equal(&got, &expected, sizeof got);
    size_t n = list.n;
    EXPECT_STATUS(heft__region_list_coalesce(&list, &err), HEFT_OK);
    assert_true(list.n <= n);
    got = mark_list(&list, 0);
    assert_memory_equal(&got, &expected, sizeof got);
    for (size_t i = 0; i < list.n; i++) {
        check_normal(&list.items[i]);
        assert_true(i == 0 || list.items[i - 1].offset < list.items[i].offset);
    }
    heft__region_list_fini(&list);
}

static heft_shape_t random_shape(uint64_t *rng)
{
    heft_shape_t shape = { .rank = 0 };
    int64_t left = N;
    while (left > 1 && shape.rank < 5) {
        int64_t e = heft_test_random_in(rng, 1, 12);
        if (left % e == 0) {
            shape.extent[shape.rank++] = e;
            left /= e;
        }
    }
    shape.extent[shape.rank++] = left;
    return shape;
}

static void boxes_are_exact(uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__region_t region = random_region(rng);
    heft_shape_t shape = random_shape(rng);
    bits_t expected = { { 0 } };
    int n_twice = 0;
    mark_region(&region, &expected, &n_twice);
    heft__index_box_t boxes[N];
    uint64_t n = 0;
    EXPECT_STATUS(heft__region_to_boxes(&region, &shape, boxes, N, &n, &err), HEFT_OK);
    assert_in_range(n, 1, N);
    heft__region_list_t list = { 0 };
    for (uint64_t i = 0; i < n; i++) {
        heft_view_t view = heft_view_contiguous(0, &shape);
        for (int k = 0; k < shape.rank; k++) {
            view.offset += boxes[i].begin[k] * view.stride[k];
            view.extent[k] = boxes[i].end[k] - boxes[i].begin[k];
            assert_true(boxes[i].begin[k] >= 0 && boxes[i].begin[k] < boxes[i].end[k] &&
                        boxes[i].end[k] <= shape.extent[k]);
        }
        heft__region_t one;
        EXPECT_STATUS(heft__region_from_view(&view, &one, &err), HEFT_OK);
        assert_true(i > 0 || one.offset == region.offset);
        EXPECT_STATUS(heft__region_list_add(&list, &one, &err), HEFT_OK);
    }
    bits_t got = mark_list(&list, 0);
    assert_memory_equal(&got, &expected, sizeof got);
    heft__region_list_fini(&list);
}

static void run(void (*property)(uint64_t *rng), int64_t normal)
{
    int64_t live = heft__alloc_live();
    uint64_t seed = heft_test_seed();
    int64_t n = heft_test_cases(normal);
    for (int64_t i = 0; i < n; i++) {
        uint64_t rng = seed + (uint64_t)i;
        property(&rng);
    }
    assert_int_equal(heft__alloc_live(), live);
}

static void regions_of_views_match_bitmaps(void **state)
{
    (void)state;
    run(view_regions_are_exact, 10000);
}

static void intersection_and_difference_match_bitmaps(void **state)
{
    (void)state;
    run(pairs_are_exact, 10000);
}

static void repeated_subtraction_matches_bitmaps(void **state)
{
    (void)state;
    run(lists_are_exact, 1500);
}

static void index_boxes_match_bitmaps(void **state)
{
    (void)state;
    run(boxes_are_exact, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_of_views_match_bitmaps),
        cmocka_unit_test(intersection_and_difference_match_bitmaps),
        cmocka_unit_test(repeated_subtraction_matches_bitmaps),
        cmocka_unit_test(index_boxes_match_bitmaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

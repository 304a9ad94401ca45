/* SPDX-License-Identifier: Apache-2.0 */
/* Cover against a count of claims per element: random strided claims on random small tensors, with
 * strides that nest and some that do not, broadcast and negative ones, equal claims and none. */
#include "heft_test.h"

#include "plan/cover.h"

enum { MAX_CLAIMS = 8, MAX_ELEMS = 4096, MAX_RANK = 4 };

typedef struct cover_case {
    heft_shape_t shape;
    int64_t n_elems;
    int64_t scale[5];
    heft__claim_t claims[MAX_CLAIMS];
    int64_t extent[MAX_CLAIMS][MAX_RANK];
    int64_t stride[MAX_CLAIMS][MAX_RANK];
    size_t n_claims;
    int count[MAX_ELEMS]; /* claims of each element */
} cover_case_t;

static void make_shape(uint64_t *seed, cover_case_t *c)
{
    c->shape = (heft_shape_t){ .rank = (int32_t)heft_test_random_in(seed, 1, 5) };
    c->n_elems = 1;
    for (int32_t i = c->shape.rank - 1; i >= 0; i--) {
        c->shape.extent[i] = heft_test_random_in(seed, 1, 4);
        c->scale[i] = c->n_elems;
        c->n_elems *= c->shape.extent[i];
    }
    if (heft_test_random_in(seed, 0, 3) == 0) { /* the strides need not divide the whole */
        c->n_elems += heft_test_random_in(seed, 1, 3);
        c->shape = (heft_shape_t){ .rank = 1, .extent = { c->n_elems } };
    }
}

static void count_claim(cover_case_t *c, const heft__claim_t *claim)
{
    static bool seen[MAX_ELEMS];
    int64_t n = 1;
    memset(seen, 0, sizeof seen);
    for (int32_t d = 0; d < claim->n_dims; d++) {
        n *= claim->extent[d];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        int64_t element = claim->offset;
        for (int32_t d = claim->n_dims - 1; d >= 0; d--) {
            element += rest % claim->extent[d] * claim->stride[d];
            rest /= claim->extent[d];
        }
        c->count[element] += seen[element] ? 0 : 1;
        seen[element] = true;
    }
}

static void make_claim(uint64_t *seed, cover_case_t *c, int32_t n_scales)
{
    int64_t *extent = c->extent[c->n_claims];
    int64_t *stride = c->stride[c->n_claims];
    int32_t n_dims = (int32_t)heft_test_random_in(seed, 0, MAX_RANK);
    int64_t low = 0;
    int64_t high = 0;
    for (int32_t d = 0; d < n_dims; d++) {
        extent[d] = heft_test_random_in(seed, 1, 4);
        stride[d] = c->scale[heft_test_random_in(seed, 0, n_scales - 1)];
        if (heft_test_random_in(seed, 0, 9) == 0) {
            stride[d] = heft_test_random_in(seed, 0, 7);
        }
        if (heft_test_random_in(seed, 0, 4) == 0) {
            stride[d] = -stride[d];
        }
        int64_t span = (extent[d] - 1) * stride[d];
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    if (high - low >= c->n_elems) {
        return;
    }
    c->claims[c->n_claims] =
        (heft__claim_t){ .offset =
                             heft_test_random_in(seed, 0, c->n_elems - 1 - (high - low)) - low,
                         .extent = extent,
                         .stride = stride,
                         .n_dims = n_dims,
                         .owner = (uint32_t)c->n_claims };
    count_claim(c, &c->claims[c->n_claims++]);
}

static void make_case(uint64_t *seed, cover_case_t *c)
{
    make_shape(seed, c);
    int32_t n_scales = c->shape.rank;
    memset(c->count, 0, sizeof c->count);
    c->n_claims = 0;
    for (int64_t n = heft_test_random_in(seed, 0, MAX_CLAIMS - 2); n > 0; n--) {
        make_claim(seed, c, n_scales);
        if (c->n_claims > 0 && c->n_claims < MAX_CLAIMS && heft_test_random_in(seed, 0, 7) == 0) {
            c->claims[c->n_claims] = c->claims[c->n_claims - 1]; /* the same again, other owner */
            c->claims[c->n_claims].owner = (uint32_t)c->n_claims;
            count_claim(c, &c->claims[c->n_claims++]);
            n--;
        }
    }
}

typedef struct cell_sum {
    int64_t n_elems;
    int64_t n_claimed; /* elements times claims */
} cell_sum_t;

static heft_status_t add_cell(void *arg, const heft__cell_t *cell)
{
    cell_sum_t *sum = arg;
    assert_true(cell->n_owners > 0);
    sum->n_elems += cell->n_elems;
    sum->n_claimed += cell->n_elems * cell->n_owners;
    return HEFT_OK;
}

static void check_scan(heft__cover_t *cover, const cover_case_t *c)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__cover_count_t count;
    cell_sum_t sum = { 0 };
    int64_t n_covered = 0;
    int64_t n_overlap = 0;
    int64_t n_claimed = 0;
    for (int64_t i = 0; i < c->n_elems; i++) {
        n_covered += c->count[i] > 0;
        n_overlap += c->count[i] > 1;
        n_claimed += c->count[i];
    }
    EXPECT_STATUS(
        heft__cover_scan(cover, c->n_elems, c->claims, c->n_claims, add_cell, &sum, &count, &err),
        HEFT_OK);
    assert_int_equal(count.n_covered, n_covered);
    assert_int_equal(count.n_overlap, n_overlap);
    assert_int_equal(sum.n_elems, n_covered);
    assert_int_equal(sum.n_claimed, n_claimed);
}

static bool is_of_kind(const cover_case_t *c, int64_t element, bool is_hole)
{
    return is_hole ? c->count[element] == 0 : c->count[element] > 1;
}

/* The count is right, and the box given begins at the first element and holds no other kind. */
static void check_spot(const cover_case_t *c, const heft__spot_t *spot, bool is_hole)
{
    int64_t first = -1;
    int64_t n = 0;
    for (int64_t i = c->n_elems - 1; i >= 0; i--) {
        if (is_of_kind(c, i, is_hole)) {
            first = i;
            n++;
        }
    }
    assert_int_equal(spot->n_elems, n);
    assert_true((spot->n_boxes > 0) == (n > 0));
    int64_t n_box = n > 0 ? 1 : 0;
    for (int32_t d = 0; d < c->shape.rank; d++) {
        n_box *= spot->end[d] - spot->begin[d];
    }
    for (int64_t i = 0; i < n_box; i++) {
        int64_t rest = i;
        int64_t element = 0;
        int64_t unit = 1;
        for (int32_t d = c->shape.rank - 1; d >= 0; d--) {
            int64_t extent = spot->end[d] - spot->begin[d];
            element += (spot->begin[d] + rest % extent) * unit;
            unit *= c->shape.extent[d];
            rest /= extent;
        }
        assert_true(is_of_kind(c, element, is_hole));
        assert_true(i > 0 || element == first);
    }
}

static void cover_counts_every_element_as_the_oracle_does(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    int64_t n_cases = heft_test_cases(20000);
    static cover_case_t c;
    heft__cover_t *cover = heft__cover_create();
    assert_non_null(cover);
    for (int64_t i = 0; i < n_cases; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft__spot_t hole;
        heft__spot_t overlap;
        make_case(&seed, &c);
        check_scan(cover, &c);
        EXPECT_STATUS(
            heft__cover_locate(cover, &c.shape, c.claims, c.n_claims, &hole, &overlap, &err),
            HEFT_OK);
        check_spot(&c, &hole, true);
        check_spot(&c, &overlap, false);
    }
    heft__cover_destroy(cover);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cover_counts_every_element_as_the_oracle_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

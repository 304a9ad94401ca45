/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided live memory. The judge goes element by element over a block with guard bytes.
 * HEFT_TEST_SEED sets the seed.
 */
#include "heft_test.h"
#include "sync/home.h"

#include <inttypes.h>
#include <sys/mman.h>

typedef struct block {
    uint8_t *bytes; /* owned; element 0 of the parameter is at `at` */
    int64_t size;
    int64_t at;
} block_t;

static heft_tensor_info_t info_of(heft_dtype_t dtype, int32_t rank, const int64_t *extent)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info = { .name = "w", .dtype = dtype, .shape = { .rank = rank } };
    for (int32_t d = 0; d < rank; d++) {
        info.shape.extent[d] = extent[d];
    }
    EXPECT_STATUS(heft_shape_count(&info.shape, &info.n_elems, &err), HEFT_OK);
    info.n_bytes = info.n_elems * heft_dtype_get_unit_bytes(dtype);
    return info;
}

/* Calls for every element in row-major order. */
static void expect_elements(const block_t *block, const heft_tensor_info_t *info,
                            const int64_t *stride, const uint8_t *contiguous)
{
    const int64_t unit = heft_dtype_get_unit_bytes(info->dtype);
    uint8_t *owner = calloc((size_t)block->size, 1);
    for (int64_t flat = 0; flat < info->n_elems; flat++) {
        int64_t left = flat;
        int64_t at = block->at;
        for (int32_t d = info->shape.rank - 1; d >= 0; d--) {
            at += left % info->shape.extent[d] * stride[d] * unit;
            left /= info->shape.extent[d];
        }
        assert_memory_equal(block->bytes + at, contiguous + flat * unit, (size_t)unit);
        memset(owner + at, 1, (size_t)unit);
    }
    for (int64_t i = 0; i < block->size; i++) {
        if (owner[i] == 0) {
            assert_int_equal(block->bytes[i], 0xcc); /* gaps and guards are as they were */
        }
    }
    free(owner);
}

static void write_and_compare(const heft_tensor_info_t *info, const int64_t *stride, int64_t before,
                              int64_t after, uint64_t *seed)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t guard = 40;
    block_t block = { .size = before + after + 2 * guard, .at = before + guard };
    heft__home_t home;
    block.bytes = malloc((size_t)block.size);
    uint8_t *from = malloc((size_t)info->n_bytes + 1);
    for (int n_parts = 1; n_parts <= 5; n_parts += 2) {
        memset(block.bytes, 0xcc, (size_t)block.size);
        for (int64_t i = 0; i < info->n_bytes; i++) {
            from[i] = (uint8_t)heft_test_random(seed);
        }
        EXPECT_STATUS(heft__home_init(info, block.bytes + block.at, stride, &home, &err), HEFT_OK);
        assert_int_equal(home.begin, -before);
        assert_int_equal(home.end, after);
        for (int k = 0; k < n_parts; k++) { /* any cut, as threads make them */
            heft__home_write(&home, from, info->n_bytes * k / n_parts,
                             info->n_bytes * (k + 1) / n_parts);
        }
        expect_elements(&block, info, stride, from);
        assert_true(heft__home_digest(&home, NULL) == heft__crc64(from, info->n_bytes));
        uint8_t *back = calloc((size_t)info->n_bytes + 1, 1);
        heft__home_read(&home, back);
        assert_memory_equal(back, from, (size_t)info->n_bytes);
        free(back);
    }
    free(from);
    free(block.bytes);
}

static void gap_bytes_never_change(void **state)
{
    (void)state;
    uint64_t seed = 1;
    const int64_t extent[2] = { 4, 3 };
    const int64_t stride[2] = { 6, 1 };
    const heft_tensor_info_t info = info_of(HEFT_DTYPE_F32, 2, extent);
    write_and_compare(&info, stride, 0, 84, &seed); /* fp32 [4, 6] cut to 3 columns */
}

static void transposed_and_backwards(void **state)
{
    (void)state;
    uint64_t seed = 2;
    const int64_t extent[2] = { 300, 700 };
    const heft_tensor_info_t info = info_of(HEFT_DTYPE_BF16, 2, extent);
    const int64_t transposed[2] = { 1, 300 };
    write_and_compare(&info, transposed, 0, 420000, &seed);
    const int64_t backwards[2] = { -700, -1 };
    write_and_compare(&info, backwards, 419998, 2, &seed);
    const int64_t one_row[1] = { 100001 };
    const heft_tensor_info_t vector = info_of(HEFT_DTYPE_U8, 1, one_row);
    const int64_t apart[1] = { 3 };
    write_and_compare(&vector, apart, 0, 300001, &seed);
}

/* A random order of dimensions, each with a random gap and direction. */
static void random_layouts_agree_with_the_judge(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    const heft_dtype_t dtypes[] = { HEFT_DTYPE_U8, HEFT_DTYPE_BF16, HEFT_DTYPE_F32,
                                    HEFT_DTYPE_F64 };
    for (int k = 0; k < 300; k++) {
        const int32_t rank = 1 + (int32_t)(heft_test_random(&seed) % 4);
        const heft_dtype_t dtype = dtypes[heft_test_random(&seed) % 4];
        const int64_t unit = heft_dtype_get_unit_bytes(dtype);
        int64_t extent[4];
        int64_t stride[4];
        int32_t order[4] = { 0, 1, 2, 3 };
        int64_t step = 1 + (int64_t)(heft_test_random(&seed) % 3);
        int64_t before = 0;
        int64_t after = unit;
        for (int32_t d = 0; d < rank; d++) {
            const int32_t other = (int32_t)(heft_test_random(&seed) % (uint64_t)rank);
            const int32_t kept = order[d];
            order[d] = order[other];
            order[other] = kept;
            extent[d] = 1 + (int64_t)(heft_test_random(&seed) % 9);
        }
        for (int32_t n = 0; n < rank; n++) {
            const int32_t d = order[n];
            const bool is_back = heft_test_random(&seed) % 4 == 0;
            stride[d] = is_back ? -step : step;
            *(is_back ? &before : &after) += (extent[d] - 1) * step * unit;
            step *= extent[d];
            step += (int64_t)(heft_test_random(&seed) % 3);
        }
        const heft_tensor_info_t info = info_of(dtype, rank, extent);
        write_and_compare(&info, stride, before, after, &seed);
    }
}

/* A digest with a mask is that of the bytes with zeros where they are kept, for any cut. */
static void masked_bytes_count_as_zeros(void **state)
{
    (void)state;
    uint64_t seed = heft_test_seed();
    enum { N = 5000 };
    uint8_t bytes[N];
    uint8_t zeroed[N];
    for (int round = 0; round < 200; round++) {
        heft__span_t spans[40];
        heft__mask_t mask = { .kept = spans };
        int64_t at = (int64_t)(heft_test_random(&seed) % 100);
        for (int i = 0; i < N; i++) {
            zeroed[i] = bytes[i] = (uint8_t)heft_test_random(&seed);
        }
        while (mask.n < 40 && at < N) {
            const int64_t end = heft__min_i64(at + 1 + (int64_t)(heft_test_random(&seed) % 90), N);
            memset(zeroed + at, 0, (size_t)(end - at));
            spans[mask.n++] = (heft__span_t){ .begin = at, .end = end };
            at = end + 1 + (int64_t)(heft_test_random(&seed) % 200);
        }
        const uint64_t want = heft__crc64(zeroed, N);
        assert_true(heft__mask_crc64(&mask, 0, bytes, 0, N) == want);
        const int64_t cut = (int64_t)(heft_test_random(&seed) % N);
        uint64_t crc = heft__mask_crc64(&mask, 0, bytes, 0, cut);
        crc = heft__mask_crc64(&mask, crc, bytes + cut, cut, N - cut);
        assert_true(crc == want);
        heft__mask_copy(&mask, zeroed, bytes);
        assert_memory_equal(zeroed, bytes, N);
    }
}

/* Two rows 5 GiB apart, in memory that is never touched but there. */
static void beyond_4gib_offsets(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const int64_t row = (INT64_C(5) << 30) + 7;
    const int64_t extent[2] = { 2, 100 };
    const int64_t stride[2] = { row, 1 };
    const heft_tensor_info_t info = info_of(HEFT_DTYPE_U8, 2, extent);
    const size_t n = (size_t)row + 200;
    uint8_t *live =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (live == MAP_FAILED) {
        print_message("skipped: no 5 GiB of addresses\n");
        skip();
    }
    uint8_t from[200];
    uint8_t back[200];
    for (int i = 0; i < 200; i++) {
        from[i] = (uint8_t)(i + 1);
    }
    heft__home_t home;
    EXPECT_STATUS(heft__home_init(&info, live, stride, &home, &err), HEFT_OK);
    heft__home_write(&home, from, 0, 150); /* as two threads would */
    heft__home_write(&home, from, 150, 200);
    assert_memory_equal(live, from, 100);
    assert_memory_equal(live + row, from + 100, 100);
    assert_int_equal(live[row & UINT32_MAX], 0); /* nothing wrapped */
    assert_int_equal(live[row - 1] + live[row + 100] + live[100], 0);
    heft__home_read(&home, back);
    assert_memory_equal(back, from, 200);
    assert_true(heft__home_digest(&home, NULL) == heft__crc64(from, 200));
    (void)munmap(live, n);
}

static void overlapping_elements_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint8_t bytes[64];
    heft__home_t home;
    const int64_t extent[2] = { 3, 4 };
    const int64_t overlapping[2] = { 3, 1 };
    const int64_t repeated[2] = { 4, 0 };
    const heft_tensor_info_t info = info_of(HEFT_DTYPE_F32, 2, extent);
    EXPECT_STATUS(heft__home_init(&info, bytes, overlapping, &home, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft__home_init(&info, bytes, repeated, &home, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft__home_init(&info, NULL, NULL, &home, &err), HEFT_ERR_ARGUMENT);
    const int64_t huge[2] = { INT64_MAX / 2, 1 };
    EXPECT_STATUS(heft__home_init(&info, bytes, huge, &home, &err), HEFT_ERR_OVERFLOW);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gap_bytes_never_change),
        cmocka_unit_test(transposed_and_backwards),
        cmocka_unit_test(random_layouts_agree_with_the_judge),
        cmocka_unit_test(masked_bytes_count_as_zeros),
        cmocka_unit_test(beyond_4gib_offsets),
        cmocka_unit_test(overlapping_elements_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

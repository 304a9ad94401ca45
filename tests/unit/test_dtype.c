/* SPDX-License-Identifier: Apache-2.0 */
/* The dtype table, shapes, storage units. */
#include "heft_test.h"
#include "heft/tensor.h"

static void every_dtype_is_found_by_its_name_in_both_cases(void **state)
{
    (void)state;
    static const struct {
        heft_dtype_t dtype;
        const char *upper;
        const char *lower;
        uint32_t bits;
    } rows[] = {
        { HEFT_DTYPE_BOOL, "BOOL", "bool", 8 },
        { HEFT_DTYPE_U8, "U8", "u8", 8 },
        { HEFT_DTYPE_I64, "I64", "i64", 64 },
        { HEFT_DTYPE_F16, "F16", "f16", 16 },
        { HEFT_DTYPE_BF16, "BF16", "bf16", 16 },
        { HEFT_DTYPE_F64, "F64", "f64", 64 },
        { HEFT_DTYPE_F8_E4M3, "F8_E4M3", "f8_e4m3", 8 },
        { HEFT_DTYPE_F4, "F4", "f4", 4 },
        { HEFT_DTYPE_F6_E3M2, "F6_E3M2", "f6_e3m2", 6 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(heft_dtype_from_name(rows[i].upper), rows[i].dtype);
        assert_int_equal(heft_dtype_from_name(rows[i].lower), rows[i].dtype);
        assert_string_equal(heft_dtype_get_name(rows[i].dtype), rows[i].upper);
        assert_int_equal(heft_dtype_get_bits(rows[i].dtype), rows[i].bits);
        assert_int_equal(heft_dtype_get_unit_bytes(rows[i].dtype),
                         rows[i].bits >= 8 ? rows[i].bits / 8 : 1);
    }
}

static void a_value_that_is_no_dtype_is_none(void **state)
{
    (void)state;
    assert_int_equal(heft_dtype_from_name("bfloat16"), HEFT_DTYPE_NONE);
    assert_int_equal(heft_dtype_from_name(""), HEFT_DTYPE_NONE);
    assert_int_equal(heft_dtype_from_name("bF16"), HEFT_DTYPE_NONE);
    assert_string_equal(heft_dtype_get_name((heft_dtype_t)99), "NONE");
    assert_int_equal(heft_dtype_get_bits(HEFT_DTYPE_NONE), 0);
    assert_false(heft_dtype_is_float(HEFT_DTYPE_I32));
    assert_false(heft_dtype_is_float(HEFT_DTYPE_F4));
    assert_true(heft_dtype_is_float(HEFT_DTYPE_F8_E8M0));
}

static void shape_count_is_checked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t n = -1;
    heft_shape_t shape = { .rank = 0 };
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_OK);
    assert_int_equal(n, 1);
    shape = (heft_shape_t){ .rank = 3, .extent = { 2, 0, 4 } };
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_OK);
    assert_int_equal(n, 0);
    n = -1;
    shape = (heft_shape_t){ .rank = 2, .extent = { INT64_MAX, 2 } };
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_ERR_OVERFLOW);
    EXPECT_MESSAGE("dimension 1");
    shape = (heft_shape_t){ .rank = 1, .extent = { -1 } };
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_ERR_ARGUMENT);
    shape.rank = HEFT_MAX_DIMS + 1;
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_ERR_ARGUMENT);
    shape.rank = -1;
    EXPECT_STATUS(heft_shape_count(&shape, &n, &err), HEFT_ERR_ARGUMENT);
    assert_int_equal(n, -1);
}

static void packed_rows_are_counted_in_bytes(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t out = { .rank = -7 };
    heft_shape_t shape = { .rank = 2, .extent = { 3, 8 } };
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F4, &out, &err), HEFT_OK);
    assert_int_equal(out.extent[0], 3);
    assert_int_equal(out.extent[1], 4);
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F6_E2M3, &out, &err), HEFT_OK);
    assert_int_equal(out.extent[1], 6);
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F32, &out, &err), HEFT_OK);
    assert_int_equal(out.extent[1], 8);
    shape.extent[1] = 7;
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F4, &out, &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("28 bits");
    shape.rank = 0;
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F4, &out, &err), HEFT_ERR_SHAPE);
    EXPECT_STATUS(heft_shape_to_storage(&shape, (heft_dtype_t)77, &out, &err), HEFT_ERR_ARGUMENT);
    shape = (heft_shape_t){ .rank = 1, .extent = { INT64_MAX } };
    EXPECT_STATUS(heft_shape_to_storage(&shape, HEFT_DTYPE_F4, &out, &err), HEFT_ERR_OVERFLOW);
}

static void contiguous_views_are_row_major(void **state)
{
    (void)state;
    heft_shape_t shape = { .rank = 3, .extent = { 2, 3, 4 } };
    heft_view_t view = heft_view_contiguous(5, &shape);
    assert_int_equal(view.buffer, 5);
    assert_int_equal(view.rank, 3);
    assert_int_equal(view.offset, 0);
    assert_int_equal(view.stride[0], 12);
    assert_int_equal(view.stride[1], 4);
    assert_int_equal(view.stride[2], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_is_found_by_its_name_in_both_cases),
        cmocka_unit_test(a_value_that_is_no_dtype_is_none),
        cmocka_unit_test(shape_count_is_checked),
        cmocka_unit_test(packed_rows_are_counted_in_bytes),
        cmocka_unit_test(contiguous_views_are_row_major),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

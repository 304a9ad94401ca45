/* SPDX-License-Identifier: Apache-2.0 */
/* CPU levels: the choice, the wish, and the names. */
#include "heft_test.h"

#include "kernel/kernel.h"

static void the_wish_is_followed_downwards(void **state)
{
    (void)state;
    assert_int_equal(setenv("HEFT_CPU", "scalar", 1), 0);
    assert_int_equal(heft__cpu_get_level(), HEFT__CPU_SCALAR);
}

static void levels_have_names(void **state)
{
    (void)state;
    assert_string_equal(heft__cpu_level_name(HEFT__CPU_SCALAR), "scalar");
    assert_string_equal(heft__cpu_level_name(HEFT__CPU_AVX2), "avx2");
    assert_string_equal(heft__cpu_level_name(HEFT__CPU_AVX2_WIDE), "avx2-wide");
    assert_string_equal(heft__cpu_level_name(HEFT__CPU_AVX512), "avx512");
    assert_string_equal(heft__cpu_level_name((heft__cpu_level_t)99), "unknown");
}

static void a_level_that_is_none_is_refused(void **state)
{
    (void)state;
    heft__cpu_level_t level = heft__cpu_get_level();
    assert_false(heft__cpu_use_level((heft__cpu_level_t)99));
    assert_false(heft__cpu_use_level((heft__cpu_level_t)-1));
    assert_int_equal(heft__cpu_get_level(), level);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wish_is_followed_downwards), /* first: the choice is made once */
        cmocka_unit_test(levels_have_names),
        cmocka_unit_test(a_level_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

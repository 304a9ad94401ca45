/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of experts: forms, what is refused and how, and the function of recipes. */
#include <unistd.h>

#include "heft/experts.h"
#include "recipe_bench.h"

static heft_status_t check(const char *json, const heft_expert_table_opts_t *opts, char **text_out,
                           heft_expert_table_info_t *info, heft_error_t *err)
{
    return heft_expert_table_check(json, strlen(json), opts, info, text_out, err);
}

static void one_table_has_one_text(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "[[0,1,2,0],[2,1,0,0]]",
        " [ [0, 1, 2, 0],\n[2, 1, 0, 0] ] ",
        "{\"physical_to_logical_map\": [[0,1,2,0],[2,1,0,0]]}",
        "[[[0,1],[2,0]],[[2,1],[0,0]]]",
        "{\"physical_to_logical_map\": [[[0,1],[2,0]],[[2],[1],[0],[0]]]}",
    };
    char digest[72] = "";
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_expert_table_info_t info;
        char *text = NULL;
        EXPECT_STATUS(check(forms[i], NULL, &text, &info, &err), HEFT_OK);
        assert_string_equal(text, "[[0,1,2,0],[2,1,0,0]]");
        assert_int_equal(info.n_layers, 2);
        assert_int_equal(info.n_slots, 4);
        assert_int_equal(info.n_experts, 3);
        assert_int_equal(strlen(info.digest), 64);
        assert_true(i == 0 || strcmp(digest, info.digest) == 0);
        memcpy(digest, info.digest, sizeof digest);
        heft_string_free(text);
    }
}

#define OPTS(...)                                             \
    {                                                         \
        .size = sizeof(heft_expert_table_opts_t), __VA_ARGS__ \
    }

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        heft_expert_table_opts_t opts;
        heft_status_t status;
        const char *message;
    } cases[] = {
        { "[[0,1]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "line 1 column 6" },
        { "{\"a\": [[0]]}", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "a list is wanted" },
        { "[]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "a list is wanted" },
        { "[[]]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "a list is wanted" },
        { "[[0],{}]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "layer 1 is no list" },
        { "[[0,\"1\"]]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "layer 0 slot 1 is no integer" },
        { "[[[0],1]]", OPTS(.n_layers = 0), HEFT_ERR_FORMAT, "layer 0 rank 1 is no list" },
        { "[[0,1],[1]]", OPTS(.n_layers = 0), HEFT_ERR_SHAPE, "layer 1 has 1 slots, expected 2" },
        { "[[0,1]]", OPTS(.n_slots = 4), HEFT_ERR_SHAPE, "layer 0 has 2 slots, expected 4" },
        { "[[0,1]]", OPTS(.n_layers = 48), HEFT_ERR_SHAPE, "1 layers, the model has 48" },
        { "[[0,1,0]]", OPTS(.n_ranks = 2), HEFT_ERR_SHAPE, "3 slots do not divide by 2 ranks" },
        { "[[[0],[1]]]", OPTS(.n_ranks = 1), HEFT_ERR_SHAPE, "lists of 2 ranks, there are 1" },
        { "[[0,1,8]]", OPTS(.n_experts = 8), HEFT_ERR_ARGUMENT,
          "layer 0 slot 2 names expert 8, there are 8 (0 to 7)" },
        { "[[0,-1]]", OPTS(.n_experts = 8), HEFT_ERR_ARGUMENT, "layer 0 slot 1 names expert -1" },
        { "[[0,1],[1,1]]", OPTS(.n_experts = 2), HEFT_ERR_ARGUMENT,
          "layer 1: expert 0 of 2 is in none of its 2 slots" },
        { "[[0,1,2,0],[0,1,9,2]]", OPTS(.n_layers = 0), HEFT_ERR_ARGUMENT,
          "layer 0: expert 3 is in none of its 4 slots, and layer 1 slot 2 names expert 9" },
        { "[[0,1,1]]", OPTS(.once = 1), HEFT_ERR_ARGUMENT,
          "layer 0: expert 1 is in slots 1 and 2" },
        { "[[2147483647]]", OPTS(.n_layers = 0), HEFT_ERR_LIMIT, "experts, at most" },
        { "[[0]]", OPTS(.reserved = { 1 }), HEFT_ERR_ARGUMENT, "reserved" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_expert_table_info_t info;
        char *text = NULL;
        EXPECT_STATUS(check(cases[i].json, &cases[i].opts, &text, &info, &err), cases[i].status);
        EXPECT_MESSAGE(cases[i].message);
        assert_null(text);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_expert_table_info_t info;
        char *text = NULL;
        heft__alloc_fail_at(k);
        const heft_status_t status = check("[[0,1,1],[1,0,0]]", NULL, &text, &info, &err);
        heft__alloc_fail_at(-1);
        heft_string_free(text);
        assert_int_equal(heft__alloc_live(), 0);
        if (status == HEFT_OK) {
            assert_true(k > 2);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(text);
    }
}

static const char slots[] =
    "let table, layers = 1, experts = 3\n"
    "let map = expert_table(table, layers, experts)\n"
    "\"e.{e}\" [] -> \"slot.{p}\" [] for p:{len(map[0])} when map[0][p] == e";

static void recipes_take_tables_that_fit(void **state)
{
    rb_t *b = *state;
    rb_source(b, "e.0", HEFT_DTYPE_F32, "", NULL);
    rb_source(b, "e.1", HEFT_DTYPE_F32, "", NULL);
    rb_source(b, "e.2", HEFT_DTYPE_F32, "", NULL);
    rb_set(b, "table", "[[2, 0, 1, 0]]");
    rb_run(b, slots, 0);
    assert_true(rb_has_param(b, "slot.3"));
    rb_set(b, "table", "[[2, 0, 2, 0]]");
    rb_refuses(b, slots, 0, HEFT_ERR_ARGUMENT, "layer 0: expert 1 of 3 is in none of its 4 slots");
    rb_set(b, "table", "[[2, 0, 1, 3]]");
    rb_refuses(b, slots, 0, HEFT_ERR_ARGUMENT, "layer 0 slot 3 names expert 3, there are 3");
    rb_set(b, "table", "[[2, 0, 1], [0, 1, 2]]");
    rb_refuses(b, slots, 0, HEFT_ERR_SHAPE, "2 layers, the model has 1 with experts");
    rb_set(b, "table", "[[[2, 0], [1, 0]]]");
    rb_refuses(b, slots, 0, HEFT_ERR_FORMAT, "the slots of a layer in one list, not by ranks");
    rb_set(b, "table", "[[2, 0, 1]]");
    rb_set(b, "experts", "0");
    rb_refuses(b, slots, 0, HEFT_ERR_ARGUMENT, "expert_table() for 0 experts");
    rb_refuses(b, "let t = expert_table([[0]], 1)\n\"e\" [] -> \"e\" []", 0, HEFT_ERR_SYNTAX,
               "a third argument");
}

static void a_file_may_be_an_engines_own(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_bindings_t *bindings = NULL;
    char path[] = "/tmp/heft-table-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "{\"physical_to_logical_map\": [[[1], [0]]]}\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    EXPECT_STATUS(heft_bindings_create(&bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_load(bindings, "table", path, &err), HEFT_OK);
    char *encoded = NULL;
    EXPECT_STATUS(heft_bindings_encode(bindings, &encoded, &err), HEFT_OK);
    assert_non_null(strstr(encoded, "[[1,0]]"));
    heft_string_free(encoded);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, "{\"a\": 1}", 8, 0), 8);
    EXPECT_STATUS(heft_bindings_load(bindings, "table", path, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("expert table: a list is wanted");
    heft_bindings_destroy(bindings);
    (void)close(fd);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_table_has_one_text),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test_setup_teardown(recipes_take_tables_that_fit, rb_setup, rb_teardown),
        cmocka_unit_test(a_file_may_be_an_engines_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Layers and slots of KV caches: the engine's map, the positional rule, sizes, groups, positions.
 */
#include "heft/cache.h"
#include "heft_test.h"

static heft_cache_map_t *decode(const char *text)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cache_map_t *map = NULL;
    EXPECT_STATUS(heft_cache_map_decode(text, text != NULL ? strlen(text) : 0, 0, &map, &err),
                  HEFT_OK);
    return map;
}

/* "0:0 1:1 3:30", then the names skipped. */
static void expect_map(const heft_cache_map_t *map, const char *want, const char *skipped)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char text[1024] = "";
    char names[256] = "";
    for (uint32_t i = 0; i < heft_cache_map_get_n(map); i++) {
        int64_t layer = -1;
        int64_t slot = -1;
        int64_t found = -1;
        size_t n = strlen(text);
        EXPECT_STATUS(heft_cache_map_query(map, i, &layer, &slot, &err), HEFT_OK);
        (void)snprintf(text + n, sizeof text - n, "%s%lld:%lld", i > 0 ? " " : "", (long long)layer,
                       (long long)slot);
        EXPECT_STATUS(heft_cache_map_find(map, layer, &found, &err), HEFT_OK);
        assert_int_equal(found, slot);
    }
    for (uint32_t i = 0; i < heft_cache_map_get_n_skipped(map); i++) {
        size_t n = strlen(names);
        (void)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "",
                       heft_cache_map_get_skipped(map, i));
    }
    assert_string_equal(text, want);
    assert_string_equal(names, skipped);
    assert_null(heft_cache_map_get_skipped(map, heft_cache_map_get_n_skipped(map)));
}

static void names_give_their_layers(void **state)
{
    (void)state;
    static const struct {
        const char *json, *want, *skipped;
    } cases[] = {
        { "{\"layer.0\":0,\"layer.1\":1,\"layer.2\":2,\"layer.3\":30,\"layer.7\":31}",
          "0:0 1:1 2:2 3:30 7:31", "" },
        { "[[\"layer.0\",0],[\"layer.1\",1],[\"layer.2\",2],[\"layer.3\",30],[\"layer.7\",31]]",
          "0:0 1:1 2:2 3:30 7:31", "" },
        { "[[\"model.layers.0.linear_attn\",0],[\"model.layers.3.self_attn\",30],[\"lm_head\",5],"
          "[\"block 12 attn\",9],[7,3]]",
          "0:0 3:30 7:3 12:9", "lm_head" },
        { "{\"0\":0,\"3\":30}", "0:0 3:30", "" },
        { "{\"model.layers.3.experts.7\":1,\"layers_5\":2,\"block_12\":4}", "3:1 5:2", "block_12" },
        { "{\"multilayer.4\":1,\"layers\":2,\"layers.x\":3,\"layer.6b\":4,\"\":5}", "4:1",
          "layers, layers.x, layer.6b, " },
        { "{\"layers.1.k\":9,\"layers.1.v\":9,\"layers.2.k\":9}", "1:9 2:9", "" },
        { "{}", "", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_cache_map_t *map = decode(cases[i].json);
        assert_int_equal(heft_cache_map_is_positional(map), 0);
        expect_map(map, cases[i].want, cases[i].skipped);
        heft_cache_map_destroy(map);
    }
}

static void no_map_is_positional_unless_the_model_is_hybrid(void **state)
{
    (void)state;
    static const char *const none[] = { NULL, "null" };
    for (size_t i = 0; i < 2; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        int64_t slot = -1;
        heft_cache_map_t *map = decode(none[i]);
        expect_map(map, "", "");
        assert_int_equal(heft_cache_map_is_positional(map), 1);
        EXPECT_STATUS(heft_cache_map_find(map, 11, &slot, &err), HEFT_OK);
        assert_int_equal(slot, 11);
        heft_cache_map_destroy(map);
        map = NULL;
        EXPECT_STATUS(heft_cache_map_decode(none[i], i * 4, 1, &map, &err), HEFT_ERR_ARGUMENT);
        EXPECT_MESSAGE("hybrid");
        assert_null(map);
    }
}

static void maps_that_say_two_things_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *part;
    } cases[] = {
        { "\"layer.0\"", "array of pairs" },
        { "3", "array of pairs" },
        { "[1, 2]", "item 0 is no pair" },
        { "[[1, 2, 3]]", "item 0 is no pair" },
        { "[[1, 2], [1.5, 3]]", "item 1 is no pair" },
        { "[[-1, 2]]", "item 0 is no pair" },
        { "[[true, 2]]", "item 0 is no pair" },
        { "{\"stage 1 block 7\":0}", "\"stage 1 block 7\" has 2 candidates" },
        { "{\"layers.1.layers.2\":0}", "2 candidates" },
        { "[[\"layer.3\",30],[3,31]]", "layer 3 has the slots 30 and 31" },
        { "{\"layer.3\":-1}", "slot of \"layer.3\"" },
        { "{\"layer.3\":true}", "slot of \"layer.3\"" },
        { "{\"layer.3\":\"1\"}", "slot of \"layer.3\"" },
        { "[[3,1.0]]", "slot of layer 3" },
        { "{\"layer.99999999999\":1}", "is beyond 2147483647" },
        { "{\"layer.3\":1,\"layer.3\":1}", "duplicate" },
        { "{\"layer.3\":1", "line 1" },
        { "", "line" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_cache_map_t *map = NULL;
        EXPECT_STATUS(heft_cache_map_decode(cases[i].json, strlen(cases[i].json), 0, &map, &err),
                      HEFT_ERR_FORMAT);
        EXPECT_MESSAGE(cases[i].part);
        assert_null(map);
    }
    assert_int_equal(heft__alloc_live(), 0);
}

static void the_last_layer_of_a_cycle_stands_behind_all_others(void **state)
{
    (void)state;
    static const int qwen[] = { 0,  1,  2,  30, 3,  4,  5,  31, 6,  7,  8,  32, 9,  10,
                                11, 33, 12, 13, 14, 34, 15, 16, 17, 35, 18, 19, 20, 36,
                                21, 22, 23, 37, 24, 25, 26, 38, 27, 28, 29, 39 };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cache_map_t *map = NULL;
    bool seen[40] = { false };
    EXPECT_STATUS(heft_cache_map_create(40, 4, &map, &err), HEFT_OK);
    assert_int_equal(heft_cache_map_get_n(map), 40);
    for (int i = 0; i < 40; i++) {
        int64_t slot = -1;
        EXPECT_STATUS(heft_cache_map_find(map, i, &slot, &err), HEFT_OK);
        assert_int_equal(slot, qwen[i]);
        assert_false(seen[slot]);
        seen[slot] = true;
    }
    heft_cache_map_destroy(map);
    EXPECT_STATUS(heft_cache_map_create(8, 4, &map, &err), HEFT_OK);
    expect_map(map, "0:0 1:1 2:2 3:6 4:3 5:4 6:5 7:7", "");
    heft_cache_map_destroy(map);
    EXPECT_STATUS(heft_cache_map_create(9, 4, &map, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("9 layers in cycles of 4");
    EXPECT_STATUS(heft_cache_map_create(INT64_MAX, 1, &map, &err), HEFT_ERR_ARGUMENT);
}

static void a_layer_that_is_missing_is_never_taken_by_position(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t slot = 77;
    heft_cache_map_t *map = decode("[[0,0],[1,1],[2,2],[7,31]]");
    EXPECT_STATUS(heft_cache_map_find(map, 3, &slot, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("layer 3 is not in the cache map: it has 0-2, 7");
    EXPECT_STATUS(heft_cache_map_find(map, -1, &slot, &err), HEFT_ERR_NOT_FOUND);
    assert_int_equal(slot, 77);
    heft_cache_map_destroy(map);
    map = decode("{}");
    EXPECT_STATUS(heft_cache_map_find(map, 0, &slot, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("no layers");
    heft_cache_map_destroy(map);
}

static void caches_have_their_sizes_and_groups(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_gdn_cache_t cache;
    EXPECT_STATUS(heft_gdn_cache_query(4, 16, 32, 128, 128, &cache, &err), HEFT_OK);
    assert_int_equal(cache.conv.rank, 2);
    assert_int_equal(cache.conv.extent[0], 3);
    assert_int_equal(cache.conv.extent[1], 8192);
    assert_int_equal(cache.state.rank, 3);
    assert_int_equal(cache.state.extent[0], 32);
    assert_int_equal(cache.state.extent[1], 128);
    assert_int_equal(cache.state.extent[2], 128);
    assert_int_equal(cache.n_bytes, 2146304);
    EXPECT_STATUS(heft_gdn_cache_query(1, 16, 32, 128, 128, &cache, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_gdn_cache_query(4, INT64_MAX / 2, 32, 128, 128, &cache, &err),
                  HEFT_ERR_OVERFLOW);
    static const struct {
        int64_t n_layers, cycle, attention, other, size;
    } rows[] = { { 40, 4, 10, 30, 10 }, { 48, 4, 12, 36, 12 }, { 8, 4, 2, 6, 2 } };
    for (size_t i = 0; i < 3; i++) {
        heft_cache_groups_t g;
        EXPECT_STATUS(heft_cache_groups_query(rows[i].n_layers, rows[i].cycle, &g, &err), HEFT_OK);
        assert_int_equal(g.n_attention, rows[i].attention);
        assert_int_equal(g.n_other, rows[i].other);
        assert_int_equal(g.size, rows[i].size);
        assert_int_equal(g.n_attention_groups, 1);
        assert_int_equal(g.n_other_groups, 3);
    }
    heft_cache_groups_t g;
    EXPECT_STATUS(heft_cache_groups_query(10, 2, &g, &err), HEFT_OK);
    assert_int_equal(g.size, 5); /* equal kinds */
    EXPECT_STATUS(heft_cache_groups_query(15, 3, &g, &err), HEFT_OK);
    assert_int_equal(g.size, 5); /* 10 is twice 5 */
    EXPECT_STATUS(heft_cache_groups_query(9, 4, &g, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_cache_groups_query(4, 1, &g, &err), HEFT_ERR_ARGUMENT);
}

static void positions_are_views_of_what_is_given(void **state)
{
    (void)state;
    static const struct {
        heft_shape_t in;
        int32_t rank; /* 0: refused */
        int64_t extent[3];
        int64_t stride[3];
    } cases[] = {
        { { .rank = 1, .extent = { 5 } }, 2, { 5, 1 }, { 1, 1 } },
        { { .rank = 2, .extent = { 3, 5 } }, 3, { 5, 1, 3 }, { 1, 1, 5 } },
        { { .rank = 3, .extent = { 3, 2, 5 } }, 3, { 2, 5, 3 }, { 5, 1, 10 } },
        { { .rank = 0 }, 0, { 0 }, { 0 } },
        { { .rank = 2, .extent = { 2, 5 } }, 0, { 0 }, { 0 } },
        { { .rank = 3, .extent = { 2, 3, 5 } }, 0, { 0 }, { 0 } },
        { { .rank = 4, .extent = { 3, 1, 1, 1 } }, 0, { 0 }, { 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_view_t view;
        if (cases[i].rank == 0) {
            EXPECT_STATUS(heft_positions_view(&cases[i].in, &view, &err), HEFT_ERR_SHAPE);
            continue;
        }
        EXPECT_STATUS(heft_positions_view(&cases[i].in, &view, &err), HEFT_OK);
        assert_int_equal(view.rank, cases[i].rank);
        for (int k = 0; k < view.rank; k++) {
            assert_int_equal(view.extent[k], cases[i].extent[k]);
            assert_int_equal(view.stride[k], cases[i].stride[k]);
        }
    }
}

static void cache_maps_survive_every_failing_allocation(void **state)
{
    (void)state;
    static const char json[] = "{\"layers.0\":0,\"layers.1\":1,\"lm_head\":2,\"embed\":3}";
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_cache_map_t *map = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_cache_map_decode(json, sizeof json - 1, 0, &map, &err);
        heft__alloc_fail_at(-1);
        heft_cache_map_destroy(map);
        assert_int_equal(heft__alloc_live(), 0);
        if (status == HEFT_OK) {
            assert_true(k > 3);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_give_their_layers),
        cmocka_unit_test(no_map_is_positional_unless_the_model_is_hybrid),
        cmocka_unit_test(maps_that_say_two_things_are_refused),
        cmocka_unit_test(the_last_layer_of_a_cycle_stands_behind_all_others),
        cmocka_unit_test(a_layer_that_is_missing_is_never_taken_by_position),
        cmocka_unit_test(caches_have_their_sizes_and_groups),
        cmocka_unit_test(positions_are_views_of_what_is_given),
        cmocka_unit_test(cache_maps_survive_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

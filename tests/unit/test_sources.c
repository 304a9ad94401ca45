/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of a round as members see them: got from a coordinator, put together, kept put. */
#include "heft_test.h"

#include "heft/sync.h"
#include "sync/sources.h"

typedef struct env {
    heft_coordinator_t *coordinator;
    heft__member_t *member;
} env_t;

static int set_up(void **state)
{
    static env_t e;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_coordinator_opts_t opts = HEFT_COORDINATOR_OPTS_INIT;
    static const char *const transports[] = { "shm" };
    e = (env_t){ .member = NULL };
    EXPECT_STATUS(heft_coordinator_start(&opts, &e.coordinator, &err), HEFT_OK);
    const heft__member_config_t config = { .access = { .url = heft_coordinator_get_url(
                                                           e.coordinator) },
                                           .role = HEFT__ROLE_SOURCE,
                                           .n_transports = 1,
                                           .transports = transports };
    EXPECT_STATUS(heft__member_create(&config, &e.member, &err), HEFT_OK);
    *state = &e;
    return 0;
}

static int tear_down(void **state)
{
    env_t *e = *state;
    heft__member_destroy(e->member);
    heft_coordinator_stop(e->coordinator);
    return 0;
}

/* Copy `replica` of rows [begin, end) of w, which has 10 of 4. */
static heft_manifest_t *rows_of_copy(int64_t begin, int64_t end, uint32_t replica)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    const heft_shape_t shape = { .rank = 2, .extent = { end - begin, 4 } };
    const heft_part_t part = { .tensor = "w",
                               .shape = { .rank = 2, .extent = { 10, 4 } },
                               .begin = { begin },
                               .replica = replica };
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "w.own", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_set_part(manifest, "w.own", &part, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    return manifest;
}

static heft_manifest_t *rows(int64_t begin, int64_t end)
{
    return rows_of_copy(begin, end, 0);
}

static void put_manifest(const env_t *e, heft_manifest_t *manifest, heft__source_t *source)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft_manifest_encode(manifest, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__member_put_object(e->member, text, source->manifest, &err), HEFT_OK);
    heft_string_free(text);
    heft_manifest_destroy(manifest);
}

static void put_list(const env_t *e, const heft__source_t *sources, uint32_t n,
                     char digest[HEFT__DIGEST_SIZE])
{
    heft_error_t err = HEFT_ERROR_INIT;
    char *text = NULL;
    EXPECT_STATUS(heft__source_list_encode(sources, n, &text, &err), HEFT_OK);
    EXPECT_STATUS(heft__member_put_object(e->member, text, digest, &err), HEFT_OK);
    heft__free(text);
}

static void two_halves_are_one_model(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__source_t list[] = { { .replica = 0, .rank = 3 }, { .replica = 2, .rank = 0 } };
    heft__sources_t sources = { .n = 0 };
    heft_tensor_info_t info;
    char digest[HEFT__DIGEST_SIZE];
    uint32_t r = 9;
    uint32_t tensor = 9;
    put_manifest(e, rows(4, 10), &list[0]);
    put_manifest(e, rows(0, 4), &list[1]);
    put_list(e, list, 2, digest);
    EXPECT_STATUS(heft__sources_load(e->member, digest, &sources, &err), HEFT_OK);
    assert_string_equal(sources.digest, digest);
    assert_int_equal(sources.n, 2);
    assert_non_null(sources.placement);
    EXPECT_STATUS(heft_manifest_query(sources.whole, 0, &info, &err), HEFT_OK);
    assert_string_equal(info.name, "w");
    assert_int_equal(info.shape.extent[0], 10);
    assert_int_equal(heft__sources_find(&sources, 2, 0), 1);
    assert_int_equal(heft__sources_find(&sources, 0, 3), 0);
    assert_int_equal(heft__sources_find(&sources, 0, 0), UINT32_MAX);
    EXPECT_STATUS(heft__sources_locate(&sources, "rank-1.w.own", &r, &tensor, &err), HEFT_OK);
    assert_int_equal(r, 1);
    assert_int_equal(tensor, 0);
    static const char *const none[] = { "w", "rank-2.w.own", "rank-1", "rank-0.w", "rank-x.w.own" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        EXPECT_STATUS(heft__sources_locate(&sources, none[i], &r, &tensor, &err),
                      HEFT_ERR_NOT_FOUND);
    }
    heft__sources_fini(&sources);
    heft__sources_fini(&sources); /* nothing is left */
}

/* Who sends row r. */
static uint32_t sender_of(const heft__sources_t *sources, int64_t row)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shard_t cut;
    for (uint32_t i = 0; i < heft_placement_get_n_cuts(sources->placement); i++) {
        EXPECT_STATUS(heft_placement_query_cut(sources->placement, i, &cut, &err), HEFT_OK);
        if (row >= cut.begin[0] && row < cut.end[0]) {
            return cut.rank;
        }
    }
    return UINT32_MAX;
}

static void a_receiver_is_served_from_its_own_host(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__source_t list[] = { { .rank = 0 }, { .rank = 1 } };
    char hosts[3][HEFT__HOST_SIZE];
    char digest[HEFT__DIGEST_SIZE];
    heft__sources_t sources = { .n = 0 };
    heft__sources_t view;
    for (size_t i = 0; i < 3; i++) {
        static const char *const names[] = { "a", "b", "c" };
        heft__host_label(names[i], hosts[i]);
        if (i < 2) {
            memcpy(list[i].host, hosts[i], sizeof list[i].host);
            put_manifest(e, rows_of_copy(0, 10, (uint32_t)i), &list[i]);
        }
    }
    put_list(e, list, 2, digest);
    EXPECT_STATUS(heft__sources_load(e->member, digest, &sources, &err), HEFT_OK);
    assert_true(sources.has_hosts);
    assert_string_equal(heft__sources_near(&sources, hosts[1]), hosts[1]);
    assert_string_equal(heft__sources_near(&sources, hosts[2]), "");
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT_STATUS(heft__sources_toward(&sources, hosts[i], &view, &err), HEFT_OK);
        assert_int_equal(sender_of(&view, 0), i);
        assert_int_equal(sender_of(&view, 9), i);
    }
    EXPECT_STATUS(heft__sources_toward(&sources, hosts[0], &view, &err), HEFT_OK);
    assert_int_equal(sources.n_views, 2); /* made once */
    EXPECT_STATUS(heft__sources_face(&sources, hosts[1], &err), HEFT_OK);
    assert_int_equal(sender_of(&sources, 0), 1);
    assert_string_equal(sources.faced, hosts[1]);
    heft__sources_fini(&sources);
    list[1].host[0] = '\0';
    put_list(e, list, 2, digest);
    EXPECT_STATUS(heft__sources_load(e->member, digest, &sources, &err), HEFT_ERR_FORMAT);
    EXPECT_MESSAGE("replica 0 rank 1 has none");
}

static void what_does_not_fit_is_refused(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__source_t list[] = { { .rank = 0 }, { .rank = 1 } };
    heft__sources_t sources = { .n = 0 };
    char digest[HEFT__DIGEST_SIZE];
    put_manifest(e, rows(0, 4), &list[0]);
    put_manifest(e, rows(5, 10), &list[1]);
    put_list(e, list, 2, digest);
    EXPECT_STATUS(heft__sources_load(e->member, digest, &sources, &err), HEFT_ERR_PROOF);
    EXPECT_MESSAGE("no source holds [4..5, 0..4)");
    memset(list[1].manifest, '0', sizeof list[1].manifest - 1); /* nobody has put it */
    put_list(e, list, 2, digest);
    EXPECT_STATUS(heft__sources_load(e->member, digest, &sources, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_STATUS(heft__sources_load(e->member, list[0].manifest, &sources, &err), HEFT_ERR_FORMAT);
    assert_int_equal(sources.n, 0);
}

static void one_source_reads_as_ever(void **state)
{
    const env_t *e = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    const heft_shape_t shape = { .rank = 1, .extent = { 4 } };
    uint32_t r = 9;
    uint32_t tensor = 9;
    EXPECT_STATUS(heft_manifest_create("source", &manifest, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_add(manifest, "rank-7.w", HEFT_DTYPE_F32, &shape, &err), HEFT_OK);
    EXPECT_STATUS(heft_manifest_finish(manifest, &err), HEFT_OK);
    for (long k = 0;; k++) {
        heft__sources_t sources = { .n = 0 };
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft__sources_init_one(manifest, &sources, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            assert_null(sources.placement);
            assert_string_equal(heft_manifest_get_digest(sources.whole),
                                heft_manifest_get_digest(manifest));
            EXPECT_STATUS(heft__sources_locate(&sources, "rank-7.w", &r, &tensor, &err), HEFT_OK);
            assert_int_equal(r, 0);
            EXPECT_STATUS(heft__sources_bind(&sources, e->member, &err), HEFT_OK);
        }
        heft__sources_fini(&sources);
        if (status == HEFT_OK) {
            break;
        }
        assert_int_equal(heft__alloc_live(), live);
        EXPECT_STATUS(status, HEFT_ERR_NOMEM);
    }
    heft_manifest_destroy(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_halves_are_one_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_receiver_is_served_from_its_own_host, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_source_reads_as_ever, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* There and back; see recipe_trip.h. */
#include "recipe_trip.h"

#include "heft/exec.h"
#include "ranks_agree.h"

#define MAX_RANKS 16

typedef struct trip {
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;
    const heft_manifest_t *manifest;
    char *root;
    char source_dir[300];
    char out_dir[300];
    char back_dir[300];
    uint32_t n_ranks;
    heft_tape_t *tapes[MAX_RANKS];
    heft_exception_t *exceptions;
    uint32_t n_exceptions;
    heft_plan_t *plan;
    heft_checkpoint_t *source;
    heft_checkpoint_t *ranks[MAX_RANKS];
} trip_t;

/* Every element another bit pattern, going on through the checkpoint; 0 is for padding. In dtypes
 * of 16 bits the patterns that are not finite are skipped, in narrower ones they come again. */
static void fill(uint8_t *data, const heft_tensor_info_t *info, uint64_t *counter)
{
    uint32_t bytes = heft_dtype_get_unit_bytes(info->dtype);
    for (int64_t i = 0; i < info->n_elems; i++) {
        uint64_t value = ++*counter;
        value = bytes == 1 ? value % 100 + 1 : bytes == 2 ? value % 0x7c00 + 1 : value;
        memcpy(data + (size_t)i * bytes, &value, bytes);
    }
}

static void write_source(trip_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_writer_t *writer = NULL;
    uint64_t counter = 0;
    EXPECT_STATUS(heft_checkpoint_writer_create(t->source_dir, t->manifest, 0, &writer, &err),
                  HEFT_OK);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(t->manifest); i++) {
        heft_tensor_info_t info;
        void *data = NULL;
        EXPECT_STATUS(heft_manifest_query(t->manifest, i, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, i, &data, &err), HEFT_OK);
        fill(data, &info, &counter);
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, i, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    EXPECT_STATUS(heft_checkpoint_open(t->source_dir, "source", &t->source, &err), HEFT_OK);
}

static void make_plan(trip_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    EXPECT_STATUS(heft_recipe_count_ranks(t->recipe, t->bindings, &t->n_ranks, &err), HEFT_OK);
    assert_true(t->n_ranks <= MAX_RANKS);
    char why[512];
    if (!ranks_agree(t->recipe, t->bindings, t->manifest, NULL, why)) {
        fail_msg("%s", why);
    }
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        EXPECT_STATUS(
            heft_recipe_compile(t->recipe, t->bindings, r, t->manifest, NULL, &t->tapes[r], &err),
            HEFT_OK);
    }
    EXPECT_STATUS(heft_recipe_resolve_exceptions(t->recipe, t->bindings, t->manifest, NULL,
                                                 &t->exceptions, &t->n_exceptions, &err),
                  HEFT_OK);
    opts.exceptions = t->exceptions;
    opts.n_exceptions = t->n_exceptions;
    EXPECT_STATUS(heft_plan_create((const heft_tape_t *const *)t->tapes, t->n_ranks, 0, &opts,
                                   &t->plan, NULL, &err),
                  HEFT_OK);
}

static void convert(trip_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_convert(t->plan, t->source, t->out_dir, NULL, &err), HEFT_OK);
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        char path[320];
        (void)snprintf(path, sizeof path, t->n_ranks > 1 ? "%s/rank-%u" : "%s", t->out_dir, r);
        EXPECT_STATUS(heft_checkpoint_open(path, "destination", &t->ranks[r], &err), HEFT_OK);
    }
}

/* An ignored source that no parameter holds is not written back. */
static bool is_left_out(const trip_t *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_exceptions; i++) {
        if (t->exceptions[i].kind == HEFT_EXCEPTION_UNUSED &&
            heft_name_matches(t->exceptions[i].pattern, name)) {
            return true;
        }
    }
    return false;
}

static void compare(const trip_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *back = NULL;
    uint32_t n_back = 0;
    EXPECT_STATUS(heft_checkpoint_open(t->back_dir, "source", &back, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(back);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(t->manifest); i++) {
        heft_tensor_info_t want;
        heft_tensor_info_t got;
        uint32_t at = 0;
        EXPECT_STATUS(heft_manifest_query(t->manifest, i, &want, &err), HEFT_OK);
        if (heft_manifest_find(manifest, want.name, &at, &err) != HEFT_OK) {
            assert_true(is_left_out(t, want.name));
            continue;
        }
        n_back++;
        EXPECT_STATUS(heft_manifest_query(manifest, at, &got, &err), HEFT_OK);
        assert_int_equal(got.dtype, want.dtype);
        assert_memory_equal(&got.shape, &want.shape, sizeof got.shape);
        assert_memory_equal(heft_checkpoint_get_data(back, at),
                            heft_checkpoint_get_data(t->source, i), (size_t)want.n_bytes);
    }
    assert_int_equal(heft_manifest_get_n_tensors(manifest), n_back);
    heft_checkpoint_close(back);
}

static void tear_down(trip_t *t)
{
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        heft_checkpoint_close(t->ranks[r]);
        heft_tape_destroy(t->tapes[r]);
    }
    heft_checkpoint_close(t->source);
    heft_plan_destroy(t->plan);
    heft_exceptions_free(t->exceptions);
    heft_test_rmdir(t->root);
}

heft_status_t trip_back(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                        const heft_manifest_t *source, heft_error_t *err)
{
    trip_t t = { .recipe = recipe, .bindings = bindings, .manifest = source };
    t.root = heft_test_mkdir();
    (void)snprintf(t.source_dir, sizeof t.source_dir, "%s/source", t.root);
    (void)snprintf(t.out_dir, sizeof t.out_dir, "%s/out", t.root);
    (void)snprintf(t.back_dir, sizeof t.back_dir, "%s/back", t.root);
    write_source(&t);
    make_plan(&t);
    convert(&t);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.exceptions = t.exceptions;
    opts.n_exceptions = t.n_exceptions;
    heft_status_t status = heft_convert_reverse(t.plan, (const heft_checkpoint_t *const *)t.ranks,
                                                t.n_ranks, t.back_dir, &opts, err);
    if (status == HEFT_OK) {
        compare(&t);
    }
    tear_down(&t);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions of random checkpoints: what convert writes is what the interpreter makes, verify
 * agrees with it and finds any single changed element, and going back gives the source bit for bit
 * wherever the plan holds every source element.
 */
#include "ref_reshard.h"

#include "heft/exec.h"

#include <unistd.h>

typedef struct folders {
    char *root;
    char source[300];
    char out[300];
    char back[300];
} folders_t;

static void folders_init(folders_t *f)
{
    f->root = heft_test_mkdir();
    (void)snprintf(f->source, sizeof f->source, "%s/source", f->root);
    (void)snprintf(f->out, sizeof f->out, "%s/deep/out", f->root);
    (void)snprintf(f->back, sizeof f->back, "%s/back", f->root);
}

static void rank_path(const folders_t *f, int n_ranks, int rank, char path[320])
{
    if (n_ranks == 1) {
        (void)snprintf(path, 320, "%s", f->out);
    } else {
        (void)snprintf(path, 320, "%s/rank-%d", f->out, rank);
    }
}

static void check_rank(const ref_case_t *c, int rank, const heft_checkpoint_t *got)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(got);
    assert_int_equal(heft_manifest_get_n_tensors(manifest), c->n_params[rank]);
    for (uint32_t p = 0; p < c->n_params[rank]; p++) {
        heft_tensor_info_t want;
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_plan_query_param(c->plan, (uint32_t)rank, p, &want, &err), HEFT_OK);
        EXPECT_STATUS(heft_manifest_query(manifest, p, &info, &err), HEFT_OK);
        assert_string_equal(info.name, want.name);
        assert_int_equal(info.dtype, want.dtype);
        assert_int_equal(info.n_bytes, want.n_bytes);
        assert_memory_equal(heft_checkpoint_get_data(got, p), c->expected[rank][p],
                            (size_t)want.n_bytes);
    }
}

static void convert_case(const ref_case_t *c, const folders_t *f, uint64_t *rng,
                         heft_checkpoint_t **source, heft_checkpoint_t **ranks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    ref_write_sources(c, f->source);
    EXPECT_STATUS(heft_checkpoint_open(f->source, "source", source, &err), HEFT_OK);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.n_threads = (uint32_t)heft_test_random_in(rng, 0, 2);
    opts.max_shard_bytes = heft_test_random_in(rng, 0, 1) > 0 ? 4096 : 0;
    opts.memory_bytes = heft_test_random_in(rng, 0, 1) > 0 ? HEFT_CONVERT_MIN_MEMORY_BYTES : 0;
    opts.one_by_one = heft_test_random_in(rng, 0, 3) == 0;
    EXPECT_STATUS(heft_convert(c->plan, *source, f->out, &opts, &err), HEFT_OK);
    for (int r = 0; r < c->n_ranks; r++) {
        char path[320];
        rank_path(f, c->n_ranks, r, path);
        EXPECT_STATUS(heft_checkpoint_open(path, "destination", &ranks[r], &err), HEFT_OK);
        check_rank(c, r, ranks[r]);
        heft_mismatch_t mismatch;
        EXPECT_STATUS(heft_verify(c->plan, (uint32_t)r, *source, ranks[r], &mismatch, &err),
                      HEFT_OK);
        assert_null(mismatch.param);
        assert_int_equal(mismatch.n_differ, 0);
    }
}

/* Change one element of one parameter; verify must point at it. */
static void check_finding(const ref_case_t *c, const folders_t *f, uint64_t *rng,
                          const heft_checkpoint_t *source)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int r = (int)heft_test_random_in(rng, 0, c->n_ranks - 1);
    uint32_t p = (uint32_t)heft_test_random_in(rng, 0, c->n_params[r] - 1);
    heft_tensor_info_t info;
    EXPECT_STATUS(heft_plan_query_param(c->plan, (uint32_t)r, p, &info, &err), HEFT_OK);
    char path[320];
    char out[300];
    rank_path(f, c->n_ranks, r, path);
    (void)snprintf(out, sizeof out, "%s/changed", f->root);
    heft_checkpoint_t *good = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    EXPECT_STATUS(heft_checkpoint_open(path, "destination", &good, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(good);
    EXPECT_STATUS(heft_checkpoint_writer_create(out, manifest, 0, &writer, &err), HEFT_OK);
    int64_t unit = (int64_t)heft_dtype_get_unit_bytes(info.dtype);
    int64_t elem = heft_test_random_in(rng, 0, info.n_elems - 1);
    for (uint32_t i = 0; i < c->n_params[r]; i++) {
        heft_tensor_info_t t;
        void *data = NULL;
        EXPECT_STATUS(heft_manifest_query(manifest, i, &t, &err), HEFT_OK);
        EXPECT_STATUS(heft_checkpoint_writer_map(writer, i, &data, &err), HEFT_OK);
        memcpy(data, heft_checkpoint_get_data(good, i), (size_t)t.n_bytes);
        if (i == p) {
            ((uint8_t *)data)[elem * unit] ^= 0x10;
        }
        EXPECT_STATUS(heft_checkpoint_writer_done(writer, i, &err), HEFT_OK);
    }
    EXPECT_STATUS(heft_checkpoint_writer_commit(writer, &err), HEFT_OK);
    heft_checkpoint_writer_destroy(writer);
    heft_checkpoint_close(good);
    heft_checkpoint_t *changed = NULL;
    EXPECT_STATUS(heft_checkpoint_open(out, "destination", &changed, &err), HEFT_OK);
    heft_mismatch_t m;
    EXPECT_STATUS(heft_verify(c->plan, (uint32_t)r, source, changed, &m, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(m.param, info.name);
    assert_int_equal(m.n_differ, 1);
    assert_int_equal(m.n_params, 1);
    int64_t flat = 0;
    for (int k = 0; k < m.n_dims; k++) {
        flat = flat * info.shape.extent[k] + m.index[k];
    }
    assert_int_equal(flat, elem);
    assert_int_equal(m.expected_bits ^ m.actual_bits, 0x10);
    EXPECT_MESSAGE(info.name);
    heft_checkpoint_close(changed);
}

static void random_conversions_are_exact_and_verified(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = 0; i < heft_test_cases(25); i++) {
        ref_case_t c;
        const ref_opts_t opts = { .n_ranks = 0 };
        ref_case_init(&c, &rng, &opts);
        folders_t f;
        folders_init(&f);
        heft_checkpoint_t *source = NULL;
        heft_checkpoint_t *ranks[REF_MAX_RANKS] = { NULL };
        convert_case(&c, &f, &rng, &source, ranks);
        check_finding(&c, &f, &rng, source);
        for (int r = 0; r < c.n_ranks; r++) {
            heft_checkpoint_close(ranks[r]);
        }
        heft_checkpoint_close(source);
        heft_test_rmdir(f.root);
        ref_case_fini(&c);
    }
}

/* Whether some parameter element holds each source element, found by the interpreter: sources whose
 * elements are numbered, so that every number must turn up. */
static bool is_whole(const ref_case_t *c)
{
    bool whole = true;
    for (int s = 0; whole && s < c->n_sources; s++) {
        uint8_t *seen = calloc((size_t)c->sources[s].n_elems + 1, 1);
        assert_non_null(seen);
        for (int r = 0; r < c->n_ranks; r++) {
            uint64_t n = 0;
            const heft_piece_t *pieces = heft_plan_get_pieces(c->plan, (uint32_t)r, &n);
            for (uint64_t i = 0; i < n; i++) {
                int64_t count = 1;
                for (int k = 0; k < pieces[i].rank; k++) {
                    count *= pieces[i].extent[k];
                }
                bool is_here = pieces[i].n_srcs == 1 && pieces[i].srcs[0].source == (uint32_t)s;
                for (int64_t e = 0; is_here && e < count; e++) {
                    int64_t rest = e;
                    int64_t flat = pieces[i].srcs[0].offset;
                    for (int k = pieces[i].rank - 1; k >= 0; k--) {
                        flat += rest % pieces[i].extent[k] * pieces[i].srcs[0].stride[k];
                        rest /= pieces[i].extent[k];
                    }
                    seen[flat] = 1;
                }
            }
        }
        for (int64_t e = 0; e < c->sources[s].n_elems; e++) {
            whole = whole && seen[e] != 0;
        }
        free(seen);
    }
    return whole;
}

static void check_back(const ref_case_t *c, const char *dir)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_t *back = NULL;
    EXPECT_STATUS(heft_checkpoint_open(dir, "source", &back, &err), HEFT_OK);
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(back);
    assert_int_equal(heft_manifest_get_n_tensors(manifest), c->n_sources);
    for (int s = 0; s < c->n_sources; s++) {
        heft_tensor_info_t info;
        EXPECT_STATUS(heft_manifest_query(manifest, (uint32_t)s, &info, &err), HEFT_OK);
        assert_string_equal(info.name, c->sources[s].name);
        assert_int_equal(info.dtype, c->sources[s].dtype);
        assert_int_equal(info.shape.rank, c->sources[s].logical.rank);
        assert_memory_equal(heft_checkpoint_get_data(back, (uint32_t)s), c->sources[s].data,
                            (size_t)c->sources[s].n_bytes);
    }
    heft_checkpoint_close(back);
}

static void going_back_gives_the_source(void **state)
{
    (void)state;
    uint64_t rng = heft_test_seed();
    const int64_t n = heft_test_cases(60);
    int n_whole = 0;
    for (int64_t i = 0; i < n; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        ref_case_t c;
        const ref_opts_t opts = { .copies_only = true,
                                  .whole_parts = true,
                                  .n_sources = (int)heft_test_random_in(&rng, 1, 2) };
        ref_case_init(&c, &rng, &opts);
        folders_t f;
        folders_init(&f);
        heft_checkpoint_t *source = NULL;
        heft_checkpoint_t *ranks[REF_MAX_RANKS] = { NULL };
        convert_case(&c, &f, &rng, &source, ranks);
        heft_convert_opts_t back = HEFT_CONVERT_OPTS_INIT;
        back.n_threads = (uint32_t)heft_test_random_in(&rng, 0, 2);
        bool whole = is_whole(&c);
        n_whole += whole;
        EXPECT_STATUS(heft_convert_reverse(c.plan, (const heft_checkpoint_t *const *)ranks,
                                           (uint32_t)c.n_ranks, f.back, &back, &err),
                      whole ? HEFT_OK : HEFT_ERR_PROOF);
        if (whole) {
            check_back(&c, f.back);
        } else {
            assert_int_equal(access(f.back, F_OK), -1);
        }
        for (int r = 0; r < c.n_ranks; r++) {
            heft_checkpoint_close(ranks[r]);
        }
        heft_checkpoint_close(source);
        heft_test_rmdir(f.root);
        ref_case_fini(&c);
    }
    assert_true(n_whole > n / 12); /* the property was put to the test */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_conversions_are_exact_and_verified),
        cmocka_unit_test(going_back_gives_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

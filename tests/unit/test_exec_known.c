/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known kernels in runs: tensors large enough for several units, slices for ranks, replicas,
 * threads, digests, no allocation, conversion to files and verifying them; what is refused.
 */
#include "ref_reshard.h"

#include "exec/exec.h"
#include "tape/tape.h"

/* Values as weights have them: normal numbers, small ones, some zero. */
static void fill_weights(ref_case_t *c, int source, uint64_t seed)
{
    ref_source_t *s = &c->sources[source];
    for (int64_t i = 0; i < s->n_elems; i++) {
        uint64_t r = heft_test_random(&seed);
        float v = ((float)(r & 0xffff) - 32768) / 32768 / (float)(1u << (r >> 16 & 15));
        v = (r >> 20 & 31) == 0 ? 0 : v;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        uint64_t out = heft__cast_bits(s->dtype, HEFT_DTYPE_F32, bits);
        uint32_t unit = heft_dtype_get_unit_bytes(s->dtype);
        memcpy(s->data + i * unit, &out, unit);
    }
}

static uint32_t add_temp(heft_tape_t *tape, heft_dtype_t dtype, int rank, const int64_t *extent)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = rank };
    memcpy(shape.extent, extent, (size_t)rank * sizeof *extent);
    uint32_t id;
    EXPECT_STATUS(heft_tape_add_buffer(tape, HEFT_BUFFER_TEMP, "", dtype, &shape, &id, &err),
                  HEFT_OK);
    return id;
}

/* Codes and scales of x, in temporaries. */
static void quantise(heft_tape_t *tape, const heft_view_t *x, const int64_t *block,
                     heft__scale_rule_t rule, heft_view_t dsts[2])
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__known_t known = { .code = HEFT__KNOWN_FP8_QUANTISE, .rule = rule, .n_dims = x->rank };
    int64_t n_blocks[HEFT_MAX_DIMS];
    char op[HEFT__KNOWN_TEXT_BYTES];
    for (int k = 0; k < x->rank; k++) {
        known.block[k] = block[k];
        n_blocks[k] = (x->extent[k] + block[k] - 1) / block[k];
    }
    dsts[0] = ref_view(tape, add_temp(tape, HEFT_DTYPE_F8_E4M3, x->rank, x->extent));
    dsts[1] = ref_view(tape, add_temp(tape, HEFT_DTYPE_F32, x->rank, n_blocks));
    heft__known_print(&known, op);
    EXPECT_STATUS(heft_tape_opaque(tape, op, dsts, 2, x, 1, "q:1", &err), HEFT_OK);
}

static void keep(heft_tape_t *tape, const char *name, heft_dtype_t dtype, heft_view_t from)
{
    uint32_t id = ref_tape_param(tape, name, dtype, from.rank, from.extent);
    ref_copy(tape, ref_view(tape, id), from);
}

/* Run for all ranks, the first one twice, and compare with the interpreter. */
static void run_and_check(const ref_case_t *c, uint32_t n_threads)
{
    heft_error_t err = HEFT_ERROR_INIT;
    ref_params_t params[REF_MAX_RANKS + 1];
    heft_exec_target_t targets[REF_MAX_RANKS + 1];
    uint64_t digests[REF_MAX_RANKS + 1][REF_MAX_PARAMS];
    int n = c->n_ranks + 1;
    for (int t = 0; t < n; t++) {
        ref_params_init(&params[t], c, t % c->n_ranks);
        targets[t] = (heft_exec_target_t){ .rank_index = (uint32_t)(t % c->n_ranks),
                                           .params = params[t].data,
                                           .digests_out = digests[t] };
    }
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    opts.n_threads = n_threads;
    heft_exec_t *exec = NULL;
    int64_t before = heft__alloc_live_bytes();
    EXPECT_STATUS(heft_exec_create(c->plan, targets, (uint32_t)n, &opts, &exec, &err), HEFT_OK);
    /* memory is bounded by rows of blocks, not by the tensors */
    assert_true(heft__alloc_live_bytes() - before < (int64_t)n_threads * (8 << 20));
    int64_t n_allocs = heft__alloc_total();
    EXPECT_STATUS(heft_exec_run(exec, c->source_data, &err), HEFT_OK);
    assert_int_equal(heft__alloc_total(), n_allocs);
    for (int t = 0; t < n; t++) {
        ref_params_check(&params[t], c, t % c->n_ranks);
        for (uint32_t p = 0; p < params[t].n; p++) {
            assert_int_equal(digests[t][p], heft_digest(params[t].data[p], params[t].n_bytes[p]));
        }
        ref_params_fini(&params[t]);
    }
    heft_exec_destroy(exec);
}

/* Two ranks keep halves of rows and of columns, cut without regard to blocks; the kernel is run
 * over the whole tensor. */
static void slices_of_one_quantised_tensor(void **state)
{
    (void)state;
    static const struct {
        heft_dtype_t dtype;
        int64_t extent[2];
        int64_t block[2];
        heft__scale_rule_t rule;
    } cases[] = {
        { HEFT_DTYPE_BF16, { 900, 1000 }, { 128, 128 }, HEFT__SCALE_DEEPSEEK },
        { HEFT_DTYPE_BF16, { 520, 1216 }, { 1, 1216 }, HEFT__SCALE_TRANSFORMERS },
        { HEFT_DTYPE_F32, { 300, 1100 }, { 1, 128 }, HEFT__SCALE_UE8M0 },
        { HEFT_DTYPE_F16, { 333, 777 }, { 100, 50 }, HEFT__SCALE_DEEPGEMM },
        { HEFT_DTYPE_F32, { 1030, 1100 }, { 1030, 1100 }, HEFT__SCALE_DEEPSEEK }, /* one block */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ref_case_t c = { 0 };
        const int64_t *e = cases[i].extent;
        int w = ref_case_source(&c, "w", cases[i].dtype, 2, e);
        fill_weights(&c, w, 7 + i);
        for (int r = 0; r < 2; r++) {
            heft_tape_t *tape = ref_case_tape(&c);
            heft_view_t x = ref_view(tape, (uint32_t)w);
            heft_view_t q[2];
            quantise(tape, &x, cases[i].block, cases[i].rule, q);
            keep(tape, "rows", HEFT_DTYPE_F8_E4M3,
                 ref_narrow(q[0], 0, r * (e[0] / 2), e[0] - e[0] / 2));
            keep(tape, "turned", HEFT_DTYPE_F8_E4M3,
                 ref_swap(ref_narrow(q[0], 1, r * (e[1] / 2), e[1] / 2), 0, 1));
            keep(tape, "rows.scale", HEFT_DTYPE_F32, q[1]);
            keep(tape, "scale.bf16", HEFT_DTYPE_BF16, ref_swap(q[1], 0, 1)); /* a cast after it */
        }
        ref_case_finish(&c);
        run_and_check(&c, 1);
        run_and_check(&c, 3);
        ref_case_fini(&c);
    }
}

/* Layer l of [in, layers, out] turned and fused with another tensor, padded with zeros. */
static void what_is_read_may_be_put_together(void **state)
{
    (void)state;
    ref_case_t c = { 0 };
    int scanned = ref_case_source(&c, "a", HEFT_DTYPE_BF16, 3, (int64_t[]){ 300, 2, 400 });
    int up = ref_case_source(&c, "b", HEFT_DTYPE_F32, 2, (int64_t[]){ 400, 300 });
    fill_weights(&c, scanned, 1);
    fill_weights(&c, up, 2);
    heft_tape_t *tape = ref_case_tape(&c);
    const int64_t block[] = { 128, 128 };
    heft_view_t q[2];
    for (int layer = 0; layer < 2; layer++) {
        heft_view_t fused =
            ref_view(tape, add_temp(tape, HEFT_DTYPE_BF16, 2, (int64_t[]){ 900, 320 }));
        heft_view_t gate = ref_view(tape, (uint32_t)scanned);
        gate.rank = 2;
        gate.offset = layer * 400;
        gate.extent[1] = 400;
        gate.stride[1] = 1;
        ref_copy(tape, ref_narrow(ref_narrow(fused, 0, 0, 400), 1, 0, 300), ref_swap(gate, 0, 1));
        ref_copy(tape, ref_narrow(ref_narrow(fused, 0, 400, 400), 1, 0, 300),
                 ref_view(tape, (uint32_t)up)); /* with a cast */
        ref_fill(tape, ref_narrow(ref_narrow(fused, 0, 0, 800), 1, 300, 20), 0);
        ref_fill(tape, ref_narrow(fused, 0, 800, 100), 0x3f80);
        quantise(tape, &fused, block, HEFT__SCALE_DEEPSEEK, q);
        keep(tape, layer == 0 ? "w0" : "w1", HEFT_DTYPE_F8_E4M3, q[0]);
        keep(tape, layer == 0 ? "s0" : "s1", HEFT_DTYPE_F32, q[1]);
    }
    ref_case_finish(&c);
    run_and_check(&c, 2);
    ref_case_fini(&c);
}

/* Experts [e, o, i] in blocks of their own, whatever their number of rows. */
static void experts_have_blocks_of_their_own(void **state)
{
    (void)state;
    ref_case_t c = { 0 };
    int w = ref_case_source(&c, "w", HEFT_DTYPE_BF16, 3, (int64_t[]){ 5, 200, 600 });
    fill_weights(&c, w, 3);
    heft_tape_t *tape = ref_case_tape(&c);
    heft_view_t x = ref_view(tape, (uint32_t)w);
    heft_view_t q[2];
    quantise(tape, &x, (int64_t[]){ 1, 128, 128 }, HEFT__SCALE_DEEPSEEK, q);
    keep(tape, "blocks", HEFT_DTYPE_F8_E4M3, q[0]);
    keep(tape, "blocks.s", HEFT_DTYPE_F32, q[1]);
    quantise(tape, &x, (int64_t[]){ 1, 200, 600 }, HEFT__SCALE_DEEPSEEK, q);
    keep(tape, "whole", HEFT_DTYPE_F8_E4M3, q[0]);
    keep(tape, "whole.s", HEFT_DTYPE_F32, q[1]);
    ref_case_finish(&c);
    run_and_check(&c, 2);
    ref_case_fini(&c);
}

/* GPT-OSS experts: blocks and scales to floats, then turned. */
static void packed_experts_are_unpacked(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    for (int i = 0; i < 2; i++) {
        heft_dtype_t dtype = i == 0 ? HEFT_DTYPE_BF16 : HEFT_DTYPE_F32;
        ref_case_t c = { 0 };
        int b = ref_case_source(&c, "blocks", HEFT_DTYPE_U8, 4, (int64_t[]){ 3, 300, 40, 16 });
        int s = ref_case_source(&c, "scales", HEFT_DTYPE_U8, 3, (int64_t[]){ 3, 300, 40 });
        heft_tape_t *tape = ref_case_tape(&c);
        heft_view_t srcs[2] = { ref_view(tape, (uint32_t)b), ref_view(tape, (uint32_t)s) };
        heft_view_t out = ref_view(tape, add_temp(tape, dtype, 3, (int64_t[]){ 3, 300, 1280 }));
        EXPECT_STATUS(heft_tape_opaque(tape, "heft.mxfp4_unpack/1", &out, 1, srcs, 2, "", &err),
                      HEFT_OK);
        keep(tape, "as_stored", dtype, ref_narrow(out, 0, 0, 1));
        keep(tape, "turned", dtype, ref_swap(ref_narrow(out, 1, 150, 150), 1, 2));
        ref_case_finish(&c);
        run_and_check(&c, 2);
        ref_case_fini(&c);
    }
}

/* Words as bytes, bytes as words, floats as integers: strided, in several units, and cast after. */
static void bits_are_taken_as_another_dtype(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_dtype_t dtypes[][2] = { { HEFT_DTYPE_I32, HEFT_DTYPE_U8 },
                                       { HEFT_DTYPE_U8, HEFT_DTYPE_I64 },
                                       { HEFT_DTYPE_F8_E8M0, HEFT_DTYPE_U8 },
                                       { HEFT_DTYPE_BF16, HEFT_DTYPE_F32 },
                                       { HEFT_DTYPE_F64, HEFT_DTYPE_I16 } };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        heft_dtype_t from = dtypes[i][0];
        heft_dtype_t to = dtypes[i][1];
        int64_t n = 1200 * heft_dtype_get_unit_bytes(from) / heft_dtype_get_unit_bytes(to);
        ref_case_t c = { 0 };
        int x = ref_case_source(&c, "x", from, 2, (int64_t[]){ 1200, 1600 });
        heft_tape_t *tape = ref_case_tape(&c);
        heft_view_t all = ref_view(tape, (uint32_t)x);
        heft_view_t turned = ref_swap(ref_narrow(all, 1, 400, 1200), 0, 1);
        heft_view_t out = ref_view(tape, add_temp(tape, to, 2, (int64_t[]){ 1200, n }));
        EXPECT_STATUS(heft_tape_opaque(tape, "heft.bits/1", &out, 1, &turned, 1, "", &err),
                      HEFT_OK);
        keep(tape, "some_rows", to, ref_narrow(out, 0, 3, 700));
        keep(tape, "turned_back", to, ref_swap(out, 0, 1));
        ref_case_finish(&c);
        run_and_check(&c, 2);
        ref_case_fini(&c);
    }
}

/* ---- files ---- */

static void small_case(ref_case_t *c, int n_ranks)
{
    *c = (ref_case_t){ 0 };
    int w = ref_case_source(c, "w", HEFT_DTYPE_BF16, 2, (int64_t[]){ 60, 40 });
    fill_weights(c, w, 9);
    for (int r = 0; r < n_ranks; r++) {
        heft_tape_t *tape = ref_case_tape(c);
        heft_view_t x = ref_narrow(ref_view(tape, (uint32_t)w), 0, r * 30, n_ranks == 1 ? 60 : 30);
        heft_view_t q[2];
        quantise(tape, &x, (int64_t[]){ 16, 16 }, HEFT__SCALE_DEEPSEEK, q);
        keep(tape, "w", HEFT_DTYPE_F8_E4M3, q[0]);
        keep(tape, "w.scale", HEFT_DTYPE_F32, q[1]);
    }
    ref_case_finish(c);
}

static heft_checkpoint_t *open_folder(const char *dir, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char path[512];
    heft_checkpoint_t *checkpoint = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    EXPECT_STATUS(heft_checkpoint_open(path, "source", &checkpoint, &err), HEFT_OK);
    return checkpoint;
}

static void conversion_and_verification(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    small_case(&c, 2);
    char *dir = heft_test_mkdir();
    char path[512];
    (void)snprintf(path, sizeof path, "%s/in", dir);
    ref_write_sources(&c, path);
    heft_checkpoint_t *source = open_folder(dir, "in");
    (void)snprintf(path, sizeof path, "%s/out", dir);
    EXPECT_STATUS(heft_convert(c.plan, source, path, NULL, &err), HEFT_OK);
    heft_checkpoint_t *ranks[2] = { open_folder(dir, "out/rank-0"),
                                    open_folder(dir, "out/rank-1") };
    heft_mismatch_t mismatch;
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t p = 0; p < 2; p++) {
            heft_tensor_info_t info;
            EXPECT_STATUS(heft_plan_query_param(c.plan, r, p, &info, &err), HEFT_OK);
            assert_memory_equal(heft_checkpoint_get_data(ranks[r], p), c.expected[r][p],
                                (size_t)info.n_bytes);
        }
        EXPECT_STATUS(heft_verify(c.plan, r, source, ranks[r], &mismatch, &err), HEFT_OK);
        assert_int_equal(mismatch.n_elems, 30 * 40 + 2 * 3);
    }
    /* the other rank's codes are not these */
    EXPECT_STATUS(heft_verify(c.plan, 0, source, ranks[1], &mismatch, &err), HEFT_ERR_MISMATCH);
    EXPECT_MESSAGE("heft.fp8_quantise/1(block=16x16,scale=deepseek) of source \"w\"");
    assert_string_equal(mismatch.source, "w");
    assert_int_equal(mismatch.source_index, -1);
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    const heft_checkpoint_t *back[2] = { ranks[0], ranks[1] };
    (void)snprintf(path, sizeof path, "%s/back", dir);
    EXPECT_STATUS(heft_convert_reverse(c.plan, back, 2, path, &opts, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("parameter \"w\" is computed, not copied");
    for (int r = 0; r < 2; r++) {
        heft_checkpoint_close(ranks[r]);
    }
    heft_checkpoint_close(source);
    heft_test_rmdir(dir);
    ref_case_fini(&c);
}

/* ---- what is refused ---- */

static heft_status_t try_run(const ref_case_t *c, const void *const *sources, heft_error_t *err)
{
    ref_params_t params;
    ref_params_init(&params, c, 0);
    heft_exec_target_t target = { .rank_index = 0, .params = params.data };
    heft_exec_t *exec = NULL;
    heft_status_t status = heft_exec_create(c->plan, &target, 1, NULL, &exec, err);
    if (status == HEFT_OK) {
        status = heft_exec_run(exec, sources, err);
    }
    heft_exec_destroy(exec);
    ref_params_fini(&params);
    return status;
}

static void sources_of_kernels_must_be_there(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c;
    small_case(&c, 1);
    const void *none[1] = { NULL };
    EXPECT_STATUS(try_run(&c, none, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("source \"w\" is NULL");
    ref_case_fini(&c);
}

static void kernels_after_other_operations_are_refused(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    ref_case_t c = { 0 };
    int b = ref_case_source(&c, "blocks", HEFT_DTYPE_U8, 3, (int64_t[]){ 4, 2, 16 });
    int s = ref_case_source(&c, "scales", HEFT_DTYPE_U8, 2, (int64_t[]){ 4, 2 });
    heft_tape_t *tape = ref_case_tape(&c);
    heft_view_t srcs[2] = { ref_view(tape, (uint32_t)b), ref_view(tape, (uint32_t)s) };
    heft_view_t out = ref_view(tape, add_temp(tape, HEFT_DTYPE_BF16, 2, (int64_t[]){ 4, 64 }));
    EXPECT_STATUS(heft_tape_opaque(tape, "heft.mxfp4_unpack/1", &out, 1, srcs, 2, "", &err),
                  HEFT_OK);
    heft_view_t q[2];
    quantise(tape, &out, (int64_t[]){ 2, 32 }, HEFT__SCALE_DEEPSEEK, q);
    keep(tape, "w", HEFT_DTYPE_F8_E4M3, q[0]);
    keep(tape, "w.scale", HEFT_DTYPE_F32, q[1]);
    ref_case_finish(&c);
    EXPECT_STATUS(try_run(&c, c.source_data, &err), HEFT_ERR_UNSUPPORTED);
    EXPECT_MESSAGE("reads what another operation leaves; convert in two steps");
    ref_case_fini(&c);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    ref_case_t c;
    small_case(&c, 1);
    ref_params_t params;
    ref_params_init(&params, &c, 0);
    heft_exec_target_t target = { .rank_index = 0, .params = params.data };
    int64_t live = heft__alloc_live();
    for (long k = 0;; k++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_exec_t *exec = NULL;
        heft__alloc_fail_at(k);
        heft_status_t status = heft_exec_create(c.plan, &target, 1, NULL, &exec, &err);
        heft__alloc_fail_at(-1);
        if (status == HEFT_OK) {
            EXPECT_STATUS(heft_exec_run(exec, c.source_data, &err), HEFT_OK);
            heft_exec_destroy(exec);
            assert_true(k > 5);
            break;
        }
        assert_int_equal(status, HEFT_ERR_NOMEM);
        assert_null(exec);
        assert_int_equal(heft__alloc_live(), live);
    }
    ref_params_check(&params, &c, 0);
    ref_params_fini(&params);
    ref_case_fini(&c);
}

/* ---- cutting to a range ---- */

typedef struct hits {
    int64_t n;
    int64_t *count; /* of each index, flat */
    const int64_t *extent;
    int rank;
    int64_t n_boxes;
} hits_t;

static heft_status_t hit(void *arg, const int64_t *begin, const int64_t *end, heft_error_t *err)
{
    (void)err;
    hits_t *hits = arg;
    int64_t index[HEFT_MAX_DIMS];
    memcpy(index, begin, (size_t)hits->rank * sizeof *index);
    hits->n_boxes++;
    for (;;) {
        int64_t flat = 0;
        for (int k = 0; k < hits->rank; k++) {
            assert_true(index[k] >= begin[k] && index[k] < end[k]);
            flat = flat * hits->extent[k] + index[k];
        }
        hits->count[flat]++;
        int k = hits->rank;
        while (k-- > 0) {
            if (++index[k] < end[k]) {
                break;
            }
            index[k] = begin[k];
        }
        if (k < 0) {
            return HEFT_OK;
        }
    }
}

static void a_range_of_a_map_is_cut_out_exactly(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    uint64_t rng = heft_test_seed();
    for (int64_t c = 0; c < heft_test_cases(20000); c++) {
        int rank = (int)heft_test_random_in(&rng, 0, 4);
        int64_t extent[4];
        int64_t stride[4];
        int64_t n = 1;
        for (int k = 0; k < rank; k++) {
            extent[k] = heft_test_random_in(&rng, 1, 5);
            stride[k] = heft_test_random_in(&rng, -12, 12);
            n *= extent[k];
        }
        int64_t offset = heft_test_random_in(&rng, -20, 20);
        int64_t lo = heft_test_random_in(&rng, -40, 40);
        int64_t hi = lo + heft_test_random_in(&rng, 0, 40);
        int64_t count[625] = { 0 };
        hits_t hits = { .n = n, .count = count, .extent = extent, .rank = rank };
        EXPECT_STATUS(heft__clip(rank, extent, offset, stride, lo, hi, hit, &hits, &err), HEFT_OK);
        for (int64_t flat = 0; flat < n; flat++) {
            int64_t at = offset;
            int64_t rest = flat;
            for (int k = rank; k-- > 0;) {
                at += rest % extent[k] * stride[k];
                rest /= extent[k];
            }
            assert_int_equal(count[flat], at >= lo && at < hi);
        }
    }
    /* whole rows of a slice of columns: one box; a part of a row at each end: two more */
    int64_t count[100 * 64] = { 0 };
    const int64_t extent[2] = { 100, 64 };
    const int64_t stride[2] = { 256, 1 };
    hits_t hits = { .count = count, .extent = extent, .rank = 2 };
    EXPECT_STATUS(heft__clip(2, extent, 128, stride, 256 * 3, 256 * 40, hit, &hits, &err), HEFT_OK);
    assert_int_equal(hits.n_boxes, 1);
    EXPECT_STATUS(
        heft__clip(2, extent, 128, stride, 256 * 3 + 150, 256 * 40 + 150, hit, &hits, &err),
        HEFT_OK);
    assert_int_equal(hits.n_boxes, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_of_one_quantised_tensor),
        cmocka_unit_test(what_is_read_may_be_put_together),
        cmocka_unit_test(experts_have_blocks_of_their_own),
        cmocka_unit_test(packed_experts_are_unpacked),
        cmocka_unit_test(bits_are_taken_as_another_dtype),
        cmocka_unit_test(conversion_and_verification),
        cmocka_unit_test(sources_of_kernels_must_be_there),
        cmocka_unit_test(kernels_after_other_operations_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_range_of_a_map_is_cut_out_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

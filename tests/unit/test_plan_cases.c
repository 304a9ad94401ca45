/* SPDX-License-Identifier: Apache-2.0 */
/* Field failures in small: what the plan refuses, with the names and numbers it must give, and the
 * pieces it makes when the mapping is right. Names of tensors are those of the models concerned. */
#include "plan_fixture.h"

static uint64_t n_pieces_of(const fx_t *fx, uint32_t rank_index, const char *param)
{
    uint64_t n;
    (void)heft_plan_get_param_pieces(fx->plan, rank_index, fx_find_param(fx, rank_index, param),
                                     &n);
    return n;
}

/* The only piece of a parameter. */
static const heft_piece_t *piece_of(const fx_t *fx, uint32_t rank_index, const char *param)
{
    uint64_t n;
    const heft_piece_t *piece =
        heft_plan_get_param_pieces(fx->plan, rank_index, fx_find_param(fx, rank_index, param), &n);
    assert_int_equal(n, 1);
    return piece;
}

static const char *source_name(const fx_t *fx, const heft_piece_t *piece, uint32_t s)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tensor_info_t info;
    EXPECT_STATUS(heft_plan_query_source(fx->plan, piece->srcs[s].source, &info, &err), HEFT_OK);
    return info.name;
}

static void misspelt_names_are_shown_beside_each_other(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t s0 = fx_source(&fx, "layers.0.w", "2,2");
    heft_view_t s1 = fx_source(&fx, "layers.1.w", "2,2");
    (void)fx_source(&fx, "layer.2.w", "2,2");
    (void)fx_buffer(&fx, HEFT_BUFFER_SOURCE, "rngs.params.count", HEFT_DTYPE_U32, "");
    fx_copy(&fx, fx_param(&fx, "layers.0.w", "2,2"), s0, "r:1");
    fx_copy(&fx, fx_param(&fx, "layers.1.w", "2,2"), s1, "r:1");
    (void)fx_param(&fx, "layers.2.w", "2,2");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "rngs.*", "not a weight");
    heft_error_t err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("2 errors");
    EXPECT_MESSAGE("2 pieces, 16 of 24 bytes planned");
    assert_null(fx.plan);
    assert_int_equal(heft_report_get_n_errors(fx.report), 2);
    const heft_finding_t *unused = fx_finding(&fx, HEFT_FINDING_UNUSED, "layer.2.w");
    assert_string_equal(unused->text, "source \"layer.2.w\": all 4 elements unused; nearest "
                                      "uncovered parameter \"layers.2.w\" rank 0");
    assert_int_equal(unused->n_elems, 4);
    assert_int_equal(unused->rank, -1);
    const heft_finding_t *uncovered = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "layers.2.w");
    assert_string_equal(uncovered->text, "parameter \"layers.2.w\" rank 0: all 4 elements "
                                         "uncovered; nearest unused source \"layer.2.w\"");
    const heft_finding_t *listed = fx_finding(&fx, HEFT_FINDING_EXCEPTION, "rngs.*");
    assert_int_equal(listed->is_error, 0);
    assert_string_equal(listed->text, "ignored: 1 source, 1 element by \"rngs.*\": not a weight");
    fx_fini(&fx);
}

static void write_experts(fx_t *fx, int first)
{
    char name[64];
    heft_view_t views[4];
    for (int e = 0; e < 4; e++) {
        (void)snprintf(name, sizeof name, "experts.%d.down_proj.weight", e);
        views[e] = fx_source(fx, name, "2,2");
    }
    heft_view_t p = fx_param(fx, "experts.w2", "2,2,2");
    for (int e = 0; e < 2; e++) {
        fx_copy(fx, fx_select(p, 0, e), views[first + e], "r:7");
    }
}

static void owned_by_another_rank_is_not_unknown(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    write_experts(&fx, 0);
    (void)fx_source(&fx, "mpl.down_proj.weight", "2,2");
    fx_except(&fx, HEFT_EXCEPTION_ELSEWHERE, "experts.2.*", "rank 1 owns it");
    fx_except(&fx, HEFT_EXCEPTION_ELSEWHERE, "experts.3.*", "rank 1 owns it");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 1);
    (void)fx_finding(&fx, HEFT_FINDING_UNUSED, "mpl.down_proj.weight");
    fx_fini(&fx);
}

static void elsewhere_is_checked_when_the_owner_is_in_the_plan(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    write_experts(&fx, 0);
    fx_next(&fx);
    write_experts(&fx, 2);
    fx_except(&fx, HEFT_EXCEPTION_ELSEWHERE, "experts.2.*", "rank 1 owns it");
    (void)fx_plan(&fx, HEFT_OK);
    const heft_finding_t *note = fx_finding(&fx, HEFT_FINDING_EXCEPTION, "experts.2.*");
    FX_EXPECT_TEXT(note, "experts.2.down_proj.weight");
    FX_EXPECT_TEXT(note, "read by rank 1");
    fx_fini(&fx);

    fx_init(&fx);
    write_experts(&fx, 0);
    fx_next(&fx);
    write_experts(&fx, 1); /* nobody takes expert 3 */
    fx_except(&fx, HEFT_EXCEPTION_ELSEWHERE, "experts.3.*", "rank 1 owns it");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    (void)fx_finding(&fx, HEFT_FINDING_UNUSED, "experts.3.down_proj.weight");
    (void)fx_finding(&fx, HEFT_FINDING_STALE, "experts.3.*");
    fx_fini(&fx);
}

static void a_longer_token_is_another_tensor(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t experts = fx_source(&fx, "mlp.experts.down_proj", "2,4,3");
    heft_view_t shared = fx_source(&fx, "mlp.shared_experts.down_proj.weight", "4,3");
    fx_copy(&fx, fx_param(&fx, "mlp.experts.0.down_proj", "4,3"), fx_select(experts, 0, 0), "");
    fx_copy(&fx, fx_param(&fx, "mlp.experts.1.down_proj", "4,3"), fx_select(experts, 0, 1), "");
    fx_copy(&fx, fx_param(&fx, "mlp.shared_experts.down_proj.weight", "4,3"), shared, "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 3);
    assert_int_equal(fx_info(&fx).n_bytes, 36 * 2);
    /* an exception for `experts` does not excuse `shared_experts` */
    fx_fini(&fx);
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    (void)fx_source(&fx, "mlp.shared_experts.w", "2");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "mlp.experts.*", "sent by another path");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    FX_EXPECT_TEXT(
        fx_finding(&fx, HEFT_FINDING_UNUSED, "mlp.shared_experts.w"),
        "unused; nothing reads it: leave it out of the source, or declare it unused with "
        "a reason");
    (void)fx_finding(&fx, HEFT_FINDING_STALE, "mlp.experts.*");
    fx_fini(&fx);
}

static void a_plan_that_moves_nothing_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx); /* no pieces */
    (void)fx_source(&fx, "s", "4");
    (void)fx_param(&fx, "p", "4");
    heft_error_t err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("0 pieces, 0 of 8 bytes planned");
    assert_string_equal(fx_finding(&fx, HEFT_FINDING_EMPTY, "")->text,
                        "the plan moves nothing: 0 pieces, 0 bytes planned, 8 bytes expected");
    fx_fini(&fx);

    fx_init(&fx); /* one piece of shape [0,4] */
    fx_copy(&fx, fx_param(&fx, "p", "0,4"), fx_source(&fx, "s", "0,4"), "");
    err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("0 pieces, 0 of 0 bytes planned");
    (void)fx_finding(&fx, HEFT_FINDING_EMPTY, "");
    fx_fini(&fx);

    fx_init(&fx); /* half of the bytes */
    fx_copy(&fx, fx_narrow(fx_param(&fx, "p", "16"), 0, 0, 8), fx_source(&fx, "s", "8"), "");
    err = fx_plan(&fx, HEFT_ERR_PROOF);
    EXPECT_MESSAGE("1 piece, 16 of 32 bytes planned");
    EXPECT_MESSAGE("8 of 16 elements uncovered, at [8..16)");
    fx_fini(&fx);

    fx_init(&fx); /* everything excused */
    (void)fx_source(&fx, "s", "4");
    (void)fx_param(&fx, "p", "4");
    fx_except(&fx, HEFT_EXCEPTION_FROZEN, "p", "the draft never changes");
    fx_except(&fx, HEFT_EXCEPTION_UNUSED, "s", "not needed");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    (void)fx_finding(&fx, HEFT_FINDING_EMPTY, "");
    fx_fini(&fx);
}

static void an_empty_side_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2"), fx_source(&fx, "s", "2"), "");
    fx_next(&fx); /* rank 3: nothing at all */
    fx.first_rank = 2;
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_EMPTY, "");
    assert_int_equal(finding->rank, 3);
    FX_EXPECT_TEXT(finding, "rank 3 has no parameters");
    fx_fini(&fx);
    fx_init(&fx);
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(fx_count(&fx, HEFT_FINDING_EMPTY), 3); /* no source, no parameter, no byte */
    fx_fini(&fx);
}

static void half_of_a_fused_pair_is_refused_by_rows(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t q_a = fx_source(&fx, "q_a_proj.weight", "4,4");
    heft_view_t p = fx_param(&fx, "fused_qkv_a.weight", "6,4");
    fx_copy(&fx, fx_narrow(p, 0, 0, 4), q_a, "");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(heft_report_get_n_errors(fx.report), 1);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "fused_qkv_a.weight");
    assert_int_equal(finding->n_elems, 8);
    assert_int_equal(finding->n_dims, 2);
    assert_int_equal(finding->n_regions, 1);
    assert_int_equal(finding->begin[0], 4);
    assert_int_equal(finding->end[0], 6);
    assert_int_equal(finding->begin[1], 0);
    assert_int_equal(finding->end[1], 4);
    assert_string_equal(finding->text, "parameter \"fused_qkv_a.weight\" rank 0: 8 of 24 elements "
                                       "uncovered, at [4..6, 0..4)");
    fx_fini(&fx);
}

static void a_stacked_source_without_a_rule_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t s = fx_source(&fx, "experts.w1", "2,3,4");
    heft_view_t p0 = fx_param(&fx, "experts.0.w1", "3,4");
    heft_view_t p1 = fx_param(&fx, "experts.1.w1", "3,4");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNCOVERED, "experts.0.w1")->n_elems, 12);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNCOVERED, "experts.1.w1")->n_elems, 12);
    assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNUSED, "experts.w1")->n_elems, 24);
    FX_EXPECT_TEXT(fx_finding(&fx, HEFT_FINDING_UNCOVERED, "experts.0.w1"),
                   "nearest unused source \"experts.w1\"");
    fx_copy(&fx, p0, fx_select(s, 0, 0), "r:1");
    fx_copy(&fx, p1, fx_select(s, 0, 1), "r:1");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 2);
    assert_int_equal(piece_of(&fx, 0, "experts.0.w1")->extent[0], 12);
    assert_int_equal(piece_of(&fx, 0, "experts.1.w1")->srcs[0].offset, 12);
    fx_fini(&fx);
}

/* ---- tied embeddings ---- */

static void write_embedding(fx_t *fx, bool tied, bool has_head, int64_t rank, int64_t tp)
{
    heft_view_t embed = fx_source(fx, "embed.weight", "10,4");
    heft_view_t head = { 0 };
    if (has_head) {
        head = fx_source(fx, "lm_head.weight", "10,4");
    }
    int64_t rows = 10 / tp;
    const char *shape = tp == 1 ? "10,4" : "5,4";
    heft_view_t p = fx_param(fx, "embed.weight", shape);
    heft_view_t h = fx_param(fx, "lm_head.weight", shape);
    fx_copy(fx, p, fx_narrow(embed, 0, rank * rows, (rank + 1) * rows), "embed");
    if (tied) {
        fx_copy(fx, h, fx_narrow(embed, 0, rank * rows, (rank + 1) * rows), "tie");
    }
    if (has_head) {
        fx_copy(fx, h, fx_narrow(head, 0, rank * rows, (rank + 1) * rows), "head");
    }
}

static void tied_or_not_and_head_or_not(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        bool tied = (i & 1) != 0;
        bool has_head = (i & 2) != 0;
        int64_t tp = (i & 4) != 0 ? 2 : 1;
        fx_t fx;
        fx_init(&fx);
        for (int64_t r = 0; r < tp; r++) {
            if (r > 0) {
                fx_next(&fx);
            }
            write_embedding(&fx, tied, has_head, r, tp);
        }
        bool is_right = tied != has_head;
        (void)fx_plan(&fx, is_right ? HEFT_OK : HEFT_ERR_PROOF);
        if (is_right) {
            for (uint32_t r = 0; r < tp; r++) {
                const heft_piece_t *piece = piece_of(&fx, r, "lm_head.weight");
                assert_int_equal(piece->extent[0], 40 / tp);
                assert_int_equal(piece->srcs[0].offset, r * 20);
                assert_string_equal(source_name(&fx, piece, 0),
                                    tied ? "embed.weight" : "lm_head.weight");
            }
        } else if (tied) { /* written twice, from two tensors */
            const heft_finding_t *twice =
                fx_finding(&fx, HEFT_FINDING_OVERWRITTEN, "lm_head.weight");
            assert_int_equal(twice->n_elems, 40 / tp);
            FX_EXPECT_TEXT(twice, "written by tie from \"embed.weight\" and then by head from "
                                  "\"lm_head.weight\", at [0..");
        } else {
            assert_int_equal(fx_finding(&fx, HEFT_FINDING_UNCOVERED, "lm_head.weight")->n_elems,
                             40 / tp);
        }
        fx_fini(&fx);
    }
}

/* ---- attention heads, experts, ranks ---- */

/* A trainer shard is a write `global <- shard`, so a fused tensor of N shards is a temporary. */
static void pieces_follow_the_overlap_of_shards_and_heads(void **state)
{
    (void)state;
    fx_t fx;
    char name[32];
    fx_init(&fx);
    heft_view_t fused = fx_buffer(&fx, HEFT_BUFFER_TEMP, "qkv", HEFT_DTYPE_BF16, "24,2");
    for (int64_t r = 0; r < 8; r++) {
        (void)snprintf(name, sizeof name, "shard.%d", (int)r);
        fx_copy(&fx, fx_narrow(fused, 0, 3 * r, 3 * r + 3), fx_source(&fx, name, "3,2"), "");
    }
    fx_copy(&fx, fx_param(&fx, "q_proj", "16,2"), fx_narrow(fused, 0, 0, 16), "q");
    fx_copy(&fx, fx_param(&fx, "k_proj", "4,2"), fx_narrow(fused, 0, 16, 20), "k");
    fx_copy(&fx, fx_param(&fx, "v_proj", "4,2"), fx_narrow(fused, 0, 20, 24), "v");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 10);
    uint64_t n;
    const heft_piece_t *k =
        heft_plan_get_param_pieces(fx.plan, 0, fx_find_param(&fx, 0, "k_proj"), &n);
    assert_int_equal(n, 2); /* rank 5: rows 16..17, rank 6: rows 18..19 */
    assert_string_equal(source_name(&fx, &k[0], 0), "shard.5");
    assert_int_equal(k[0].extent[0], 4);
    assert_int_equal(k[0].srcs[0].offset, 2);
    assert_string_equal(source_name(&fx, &k[1], 0), "shard.6");
    assert_int_equal(k[1].extent[0], 4);
    fx_fini(&fx);

    fx_init(&fx); /* per KV head: Q Q K V, 2 rows each */
    fused = fx_buffer(&fx, HEFT_BUFFER_TEMP, "qkv", HEFT_DTYPE_BF16, "16,2");
    for (int64_t r = 0; r < 4; r++) {
        (void)snprintf(name, sizeof name, "shard.%d", (int)r);
        fx_copy(&fx, fx_narrow(fused, 0, 4 * r, 4 * r + 4), fx_source(&fx, name, "4,2"), "");
    }
    heft_view_t q = fx_param(&fx, "q_proj", "8,2");
    heft_view_t kp = fx_param(&fx, "k_proj", "4,2");
    heft_view_t v = fx_param(&fx, "v_proj", "4,2");
    for (int64_t g = 0; g < 2; g++) {
        fx_copy(&fx, fx_narrow(q, 0, 4 * g, 4 * g + 4), fx_narrow(fused, 0, 8 * g, 8 * g + 4), "");
        fx_copy(&fx, fx_narrow(kp, 0, 2 * g, 2 * g + 2), fx_narrow(fused, 0, 8 * g + 4, 8 * g + 6),
                "");
        fx_copy(&fx, fx_narrow(v, 0, 2 * g, 2 * g + 2), fx_narrow(fused, 0, 8 * g + 6, 8 * g + 8),
                "");
    }
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 6);
    fx_fini(&fx);
}

static void an_expert_held_by_one_rank_only_is_covered(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "experts.2.w", "2,2"), fx_source(&fx, "experts.2.w", "2,2"), "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 1);
    fx_fini(&fx);
}

static void four_experts_of_one_parameter_are_four_pieces_in_any_order(void **state)
{
    (void)state;
    char digest[65] = "";
    for (int order = 0; order < 24; order++) {
        int left[] = { 0, 1, 2, 3 };
        int n_left = 4;
        int rest = order;
        fx_t fx;
        fx_init(&fx);
        heft_view_t p = fx_param(&fx, "experts.w13", "4,2,3");
        while (n_left > 0) {
            int pick = rest % n_left;
            rest /= n_left;
            int e = left[pick];
            left[pick] = left[--n_left];
            char name[32];
            (void)snprintf(name, sizeof name, "experts.%d.w13", e);
            fx_copy(&fx, fx_select(p, 0, e), fx_source(&fx, name, "2,3"), name);
        }
        (void)fx_plan(&fx, HEFT_OK);
        uint64_t n;
        const heft_piece_t *pieces = heft_plan_get_pieces(fx.plan, 0, &n);
        assert_int_equal(n, 4);
        for (int64_t e = 0; e < 4; e++) {
            assert_int_equal(pieces[e].dst_offset, 6 * e);
            assert_int_equal(pieces[e].extent[0], 6);
            assert_int_equal(pieces[e].srcs[0].source, e);
        }
        assert_true(order == 0 || strcmp(digest, fx_info(&fx).digest) == 0);
        (void)snprintf(digest, sizeof digest, "%s", fx_info(&fx).digest);
        fx_fini(&fx);
    }
}

static void untouched_is_for_whole_parameters(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t p = fx_param(&fx, "experts.w13", "4,2,2");
    fx_copy(&fx, fx_select(p, 0, 1), fx_source(&fx, "experts.1.w13", "2,2"), "");
    fx_copy(&fx, fx_select(p, 0, 3), fx_source(&fx, "experts.3.w13", "2,2"), "");
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "experts.w13", "experts 0 and 2 stay");
    (void)fx_plan(&fx, HEFT_ERR_PROOF);
    const heft_finding_t *finding = fx_finding(&fx, HEFT_FINDING_UNCOVERED, "experts.w13");
    assert_int_equal(finding->n_elems, 8);
    assert_int_equal(finding->n_regions, 2);
    FX_EXPECT_TEXT(finding, "first of 2 boxes [0..1, 0..2, 0..2)");
    FX_EXPECT_TEXT(finding, "its exception covers only a parameter that nothing writes");
    fx_fini(&fx);

    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "2,2"), fx_source(&fx, "model.layers.0.w", "2,2"), "");
    (void)fx_buffer(&fx, HEFT_BUFFER_PARAM, "c", HEFT_DTYPE_F32, "1");
    fx_except(&fx, HEFT_EXCEPTION_UNTOUCHED, "c", "a runtime constant");
    (void)fx_plan(&fx, HEFT_OK);
    const heft_finding_t *note = fx_finding(&fx, HEFT_FINDING_EXCEPTION, "c");
    assert_int_equal(note->n_elems, 1);
    assert_string_equal(heft_report_get_summary(fx.report),
                        "proven: 0 errors, 1 note; 1 piece, 8 of 8 bytes planned");
    assert_int_equal(n_pieces_of(&fx, 0, "c"), 0);
    fx_fini(&fx);
}

static void one_stream_feeds_two_models_of_a_rank(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_view_t w = fx_source(&fx, "model.layers.0.w", "2,2");
    heft_view_t m = fx_source(&fx, "mtp.layers.0.w", "2,2");
    heft_view_t e = fx_source(&fx, "embed.weight", "2,2");
    fx_copy(&fx, fx_param(&fx, "target.layers.0.w", "2,2"), w, "");
    fx_copy(&fx, fx_param(&fx, "target.embed", "2,2"), e, "");
    heft_view_t draft = fx_param(&fx, "draft.layers.0.w", "2,2");
    fx_copy(&fx, fx_param(&fx, "draft.embed", "2,2"), e, "");
    (void)fx_plan(&fx, HEFT_ERR_PROOF); /* the draft is not covered */
    (void)fx_finding(&fx, HEFT_FINDING_UNCOVERED, "draft.layers.0.w");
    (void)fx_finding(&fx, HEFT_FINDING_UNUSED, "mtp.layers.0.w");
    fx_copy(&fx, draft, m, "");
    (void)fx_plan(&fx, HEFT_OK);
    assert_int_equal(fx_info(&fx).n_pieces, 4);
    assert_int_equal(fx_info(&fx).n_groups, 3); /* both embeddings travel together */
    fx_fini(&fx);
}

static void a_destination_that_repeats_an_element_is_refused(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    heft_error_t err = HEFT_ERROR_INIT;
    heft_view_t s = fx_source(&fx, "s", "2,3");
    heft_view_t p = fx_param(&fx, "p", "3");
    p.rank = 2;
    p.extent[1] = p.extent[0];
    p.stride[1] = p.stride[0];
    p.extent[0] = 2;
    p.stride[0] = 0;
    EXPECT_STATUS(heft_tape_copy(fx.tape, &p, &s, "", &err), HEFT_ERR_ARGUMENT);
    fx_fini(&fx);
}

static void a_large_contiguous_parameter_is_one_piece_of_one_dimension(void **state)
{
    (void)state;
    fx_t fx;
    fx_init(&fx);
    fx_copy(&fx, fx_param(&fx, "p", "150000,5000"), fx_source(&fx, "s", "150000,5000"), "");
    (void)fx_plan(&fx, HEFT_OK);
    const heft_piece_t *piece = piece_of(&fx, 0, "p");
    assert_int_equal(piece->rank, 1);
    assert_int_equal(piece->extent[0], 750000000);
    assert_int_equal(fx_info(&fx).n_bytes, 1500000000);
    fx_fini(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misspelt_names_are_shown_beside_each_other),
        cmocka_unit_test(owned_by_another_rank_is_not_unknown),
        cmocka_unit_test(elsewhere_is_checked_when_the_owner_is_in_the_plan),
        cmocka_unit_test(a_longer_token_is_another_tensor),
        cmocka_unit_test(a_plan_that_moves_nothing_is_refused),
        cmocka_unit_test(an_empty_side_is_refused),
        cmocka_unit_test(half_of_a_fused_pair_is_refused_by_rows),
        cmocka_unit_test(a_stacked_source_without_a_rule_is_refused),
        cmocka_unit_test(tied_or_not_and_head_or_not),
        cmocka_unit_test(pieces_follow_the_overlap_of_shards_and_heads),
        cmocka_unit_test(an_expert_held_by_one_rank_only_is_covered),
        cmocka_unit_test(four_experts_of_one_parameter_are_four_pieces_in_any_order),
        cmocka_unit_test(untouched_is_for_whole_parameters),
        cmocka_unit_test(one_stream_feeds_two_models_of_a_rank),
        cmocka_unit_test(a_large_contiguous_parameter_is_one_piece_of_one_dimension),
        cmocka_unit_test(a_destination_that_repeats_an_element_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

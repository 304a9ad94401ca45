/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof: every element of every parameter is written exactly once, every source element is
 * used, and whatever is not is listed as an exception. It looks at the plan's pieces alone and
 * counts elements, not bytes or calls.
 */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

heft_status_t heft__proof_spot_claims(heft__proof_t *proof, const heft_shape_t *shape,
                                      size_t n_claims, heft__spot_t *spot, heft_error_t *err)
{
    *spot = (heft__spot_t){ 0 };
    int64_t lowest = INT64_MAX;
    for (size_t i = 0; i < n_claims; i++) {
        const heft__claim_t *claim = &proof->claims[i];
        heft__region_t region = { .rank = claim->n_dims, .offset = claim->offset };
        size_t bytes = (size_t)claim->n_dims * sizeof region.extent[0];
        memcpy(region.extent, claim->extent, bytes);
        memcpy(region.stride, claim->stride, bytes);
        heft__index_box_t box;
        uint64_t n_boxes = 0;
        heft_status_t status = heft__region_to_boxes(&region, shape, &box, 1, &n_boxes, err);
        if (status != HEFT_OK) {
            return status;
        }
        spot->n_boxes += (int64_t)n_boxes;
        if (claim->offset < lowest) {
            lowest = claim->offset;
            spot->owners[0] = claim->owner;
            memcpy(spot->begin, box.begin, sizeof spot->begin);
            memcpy(spot->end, box.end, sizeof spot->end);
        }
    }
    return HEFT_OK;
}

void heft__proof_put_spot(heft__proof_t *proof, const heft_shape_t *shape, const heft__spot_t *spot)
{
    if (spot->n_boxes > 1) {
        heft__text_printf(&proof->text, ", first of %lld boxes ", (long long)spot->n_boxes);
    } else {
        heft__text_put(&proof->text, ", at ");
    }
    heft__report_put_range(&proof->text, shape->rank, spot->begin, spot->end);
}

heft_status_t heft__proof_add(heft__proof_t *proof, heft_finding_kind_t kind, bool is_error,
                              int32_t rank, const heft_tensor_info_t *tensor, int64_t n_elems,
                              const heft__spot_t *spot, heft_error_t *err)
{
    const heft__text_t *text = &proof->text;
    if (text->failed) {
        return heft__error_nomem(err, text->len + 1);
    }
    return heft__report_add(proof->report, kind, is_error, rank, tensor->name, n_elems, spot,
                            tensor->shape.rank, text->data, err);
}

/* Claims of the parameter's pieces, owner: number of the piece within the rank. */
static heft_status_t load_param(heft__proof_t *proof, const heft__plan_rank_t *rank, uint32_t param,
                                bool constants_only, size_t *n_out, heft_error_t *err)
{
    uint64_t end = rank->first_piece[param + 1];
    size_t n = 0;
    heft_status_t status =
        HEFT__GROW(proof->claims, proof->cap_claims, (size_t)(end - rank->first_piece[param]), err);
    for (uint64_t i = rank->first_piece[param]; i < end && status == HEFT_OK; i++) {
        const heft_piece_t *piece = &rank->pieces[i];
        if (!constants_only || piece->n_srcs == 0) {
            proof->claims[n++] = (heft__claim_t){ .offset = piece->dst_offset,
                                                  .extent = piece->extent,
                                                  .stride = piece->dst_stride,
                                                  .n_dims = piece->rank,
                                                  .owner = (uint32_t)i };
        }
    }
    *n_out = n;
    return status;
}

/* ---- parameters ---- */

static const uint32_t param_kinds =
    1u << HEFT_EXCEPTION_UNTOUCHED | 1u << HEFT_EXCEPTION_DERIVED | 1u << HEFT_EXCEPTION_FROZEN;

/* A source that nothing reads, with a name much like this one. */
static const char *nearest_source(const heft__proof_t *proof, const char *name)
{
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    const char *nearest = NULL;
    for (uint32_t s = 0; s < proof->plan->n_sources; s++) {
        const heft_tensor_info_t *info = &proof->plan->sources[s];
        if (info->n_elems > 0 && proof->unused[s] == info->n_elems &&
            heft__proof_nearer(name, info->name, &limit)) {
            nearest = info->name;
        }
    }
    return nearest;
}

/* A parameter at hand. */
typedef struct subject {
    const heft__plan_rank_t *rank;
    const heft_tensor_info_t *info;
    uint32_t param;
    uint32_t slot;
    int32_t shown; /* rank in messages */
} subject_t;

static void put_subject(heft__proof_t *proof, const subject_t *s)
{
    heft__text_reset(&proof->text);
    heft__text_printf(&proof->text, "parameter \"%s\" rank %d: ", s->info->name, (int)s->shown);
}

static heft_status_t report_uncovered(heft__proof_t *proof, const subject_t *s, heft_error_t *err)
{
    int64_t n = proof->uncovered[s->slot];
    heft__text_t *text = &proof->text;
    heft__spot_t spot = { 0 };
    put_subject(proof, s);
    if (!heft__report_has_room(proof->report, HEFT_FINDING_UNCOVERED, true)) {
        return heft__proof_add(proof, HEFT_FINDING_UNCOVERED, true, s->shown, s->info, n, NULL,
                               err);
    }
    size_t n_claims;
    heft_status_t status = load_param(proof, s->rank, s->param, false, &n_claims, err);
    if (status == HEFT_OK && proof->boxed[s->slot] > 0) {
        status = heft__excuses_add_boxes(proof, param_kinds, s->info, &n_claims, err);
    }
    if (status == HEFT_OK) {
        status = heft__cover_locate(proof->cover, &s->info->shape, proof->claims, n_claims, &spot,
                                    NULL, err);
    }
    if (status != HEFT_OK) {
        return heft__plan_name_error(err, status, "parameter", s->info->name);
    }
    if (n == s->info->n_elems) {
        heft__text_printf(text, "all %lld elements uncovered", (long long)n);
    } else {
        heft__text_printf(text, "%lld of %lld elements uncovered", (long long)n,
                          (long long)s->info->n_elems);
        heft__proof_put_spot(proof, &s->info->shape, &spot);
    }
    if (proof->excused[s->slot]) {
        heft__text_put(text, "; its exception covers only a parameter that nothing writes (with a "
                             "box, a part of one)");
    }
    const char *nearest = nearest_source(proof, s->info->name);
    if (nearest != NULL) {
        heft__text_printf(text, "; nearest unused source \"%s\"", nearest);
    }
    return heft__proof_add(proof, HEFT_FINDING_UNCOVERED, true, s->shown, s->info, n, &spot, err);
}

static heft_status_t report_overlap(heft__proof_t *proof, const subject_t *s, int64_t n,
                                    heft_error_t *err)
{
    size_t n_claims;
    heft__spot_t spot;
    heft_status_t status = load_param(proof, s->rank, s->param, false, &n_claims, err);
    if (status == HEFT_OK) {
        status = heft__cover_locate(proof->cover, &s->info->shape, proof->claims, n_claims, NULL,
                                    &spot, err);
    }
    if (status != HEFT_OK) {
        return heft__plan_name_error(err, status, "parameter", s->info->name);
    }
    put_subject(proof, s);
    heft__text_printf(&proof->text, "%lld of %lld elements in more than one piece (%s, %s)",
                      (long long)n, (long long)s->info->n_elems, s->rank->notes[spot.owners[0]],
                      s->rank->notes[spot.owners[1]]);
    heft__proof_put_spot(proof, &s->info->shape, &spot);
    return heft__proof_add(proof, HEFT_FINDING_OVERLAP, true, s->shown, s->info, n, &spot, err);
}

/* Padding: said once for each parameter that has some. */
static heft_status_t report_constants(heft__proof_t *proof, const subject_t *s, heft_error_t *err)
{
    size_t n_claims = 0;
    heft__cover_count_t count = { 0 };
    heft__spot_t spot = { 0 };
    heft_status_t status = load_param(proof, s->rank, s->param, true, &n_claims, err);
    if (status == HEFT_OK && n_claims > 0) {
        status = heft__cover_scan(proof->cover, s->info->n_elems, proof->claims, n_claims, NULL,
                                  NULL, &count, err);
    }
    if (status != HEFT_OK || count.n_covered == 0) {
        return status;
    }
    put_subject(proof, s);
    if (heft__report_has_room(proof->report, HEFT_FINDING_CONSTANT, false)) {
        heft__text_printf(&proof->text, "%lld of %lld elements constant",
                          (long long)count.n_covered, (long long)s->info->n_elems);
        status = heft__proof_spot_claims(proof, &s->info->shape, n_claims, &spot, err);
        heft__proof_put_spot(proof, &s->info->shape, &spot);
    }
    return status != HEFT_OK ? status
                             : heft__proof_add(proof, HEFT_FINDING_CONSTANT, false, s->shown,
                                               s->info, count.n_covered, &spot, err);
}

/* Exceptions for the whole first: a parameter that one excuses needs no boxes. */
static heft_status_t excuse_param(heft__proof_t *proof, const subject_t *s, size_t n_claims,
                                  heft_error_t *err)
{
    int64_t *n = &proof->uncovered[s->slot];
    const int64_t before = *n;
    bool is_whole = before == s->info->n_elems;
    proof->excused[s->slot] =
        heft__excuses_apply(proof, param_kinds, s->info->name, is_whole ? before : 0, -1);
    if (proof->excused[s->slot] && is_whole) {
        return HEFT_OK;
    }
    heft_status_t status = heft__excuses_apply_boxes(proof, param_kinds, s->info, n_claims, n, err);
    proof->boxed[s->slot] = before - *n;
    proof->plan->n_kept[s->slot] = is_whole ? 0 : before - *n;
    return status;
}

static heft_status_t prove_param(heft__proof_t *proof, const subject_t *s, int64_t *n_overlap_out,
                                 heft_error_t *err)
{
    size_t n_claims;
    heft__cover_count_t count;
    heft_status_t status = load_param(proof, s->rank, s->param, false, &n_claims, err);
    if (status == HEFT_OK) {
        status = heft__cover_scan(proof->cover, s->info->n_elems, proof->claims, n_claims, NULL,
                                  NULL, &count, err);
    }
    if (status != HEFT_OK) {
        return heft__plan_name_error(err, status, "parameter", s->info->name);
    }
    proof->uncovered[s->slot] = s->info->n_elems - count.n_covered;
    *n_overlap_out = count.n_overlap;
    return excuse_param(proof, s, n_claims, err);
}

static heft_status_t add_param(heft__proof_t *proof, const subject_t *s, heft_error_t *err)
{
    int64_t n_overlap = 0;
    heft_status_t status = prove_param(proof, s, &n_overlap, err);
    if (status == HEFT_OK && n_overlap > 0) {
        status = report_overlap(proof, s, n_overlap, err);
    }
    if (status == HEFT_OK) {
        status = report_constants(proof, s, err);
    }
    return status;
}

/* Whether nothing needs to write the parameter. */
static bool is_excused(const heft__proof_t *proof, const subject_t *s)
{
    return proof->excused[s->slot] && proof->uncovered[s->slot] == s->info->n_elems;
}

typedef heft_status_t (*subject_visitor_t)(heft__proof_t *proof, const subject_t *s,
                                           heft_error_t *err);

static heft_status_t each_param(heft__proof_t *proof, subject_visitor_t visit, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        for (uint32_t p = 0; p < plan->ranks[r].n_params; p++) {
            const subject_t s = { .rank = &plan->ranks[r],
                                  .info = &plan->ranks[r].params[p],
                                  .param = p,
                                  .slot = plan->ranks[r].first_slot + p,
                                  .shown = heft__proof_rank(proof, r) };
            heft_status_t status = visit(proof, &s, err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

/* After the sources: what they leave unused helps to say what is missing. */
static heft_status_t add_uncovered(heft__proof_t *proof, const subject_t *s, heft_error_t *err)
{
    int64_t n = proof->uncovered[s->slot];
    if (!is_excused(proof, s)) {
        const int64_t unit = heft_dtype_get_unit_bytes(s->info->dtype);
        heft__sum(&proof->n_expected, s->info->n_bytes - proof->boxed[s->slot] * unit);
    }
    return n > 0 && !is_excused(proof, s) ? report_uncovered(proof, s, err) : HEFT_OK;
}

/* ---- the plan as a whole ---- */

static heft_status_t add_opaques(heft__proof_t *proof, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint32_t k = 0; k < rank->n_opaques; k++) {
            const heft_opaque_t *op = &rank->opaques[k];
            if (op->group == HEFT_GROUP_NONE || heft__known_claims(op->op)) {
                continue;
            }
            const heft_group_info_t *group = &plan->groups[op->group].info;
            const heft_plan_member_t *first = plan->groups[op->group].members;
            const heft_tensor_info_t *info = &plan->ranks[first->rank_index].params[first->param];
            heft__text_reset(&proof->text);
            heft__text_printf(&proof->text,
                              "group %u (\"%s\"%s): operation \"%s\" of rank %d (%s) needs %u "
                              "source tensors whole",
                              (unsigned)op->group, info->name, group->n_params > 1 ? ", .." : "",
                              op->op, (int)heft__proof_rank(proof, r), op->note,
                              (unsigned)op->n_sources);
            heft_status_t status =
                heft__proof_add(proof, HEFT_FINDING_OPAQUE, false, heft__proof_rank(proof, r), info,
                                info->n_elems, NULL, err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

static heft_status_t add_empty(heft__proof_t *proof, int32_t rank, const char *what,
                               heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    const heft_tensor_info_t nothing = { .name = "" };
    heft__text_reset(&proof->text);
    heft__text_printf(&proof->text, "%s: %llu pieces, %lld bytes planned, %lld bytes expected",
                      what, (unsigned long long)plan->n_pieces, (long long)plan->n_bytes,
                      (long long)proof->n_expected);
    return heft__proof_add(proof, HEFT_FINDING_EMPTY, true, rank, &nothing, 0, NULL, err);
}

static heft_status_t add_empties(heft__proof_t *proof, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    heft_status_t status = HEFT_OK;
    if (plan->n_sources == 0) {
        status = add_empty(proof, -1, "there are no source tensors", err);
    }
    for (uint32_t r = 0; r < plan->n_ranks && status == HEFT_OK; r++) {
        if (plan->ranks[r].n_params == 0) {
            char what[64];
            int32_t rank = heft__proof_rank(proof, r);
            (void)snprintf(what, sizeof what, "rank %d has no parameters", (int)rank);
            status = add_empty(proof, rank, what, err);
        }
    }
    if (status == HEFT_OK && plan->n_bytes == 0) {
        status = add_empty(proof, -1, "the plan moves nothing", err);
    }
    return status;
}

heft_status_t heft__proof_init(heft__proof_t *proof, heft_plan_t *plan,
                               const heft_plan_opts_t *opts, heft_error_t *err)
{
    *proof = (heft__proof_t){ .plan = plan, .opts = opts };
    heft__text_init(&proof->text);
    proof->cover = heft__cover_create();
    proof->excuses = heft__calloc((size_t)opts->n_exceptions + 1, sizeof *proof->excuses);
    if (proof->cover == NULL || proof->excuses == NULL) {
        return heft__error_nomem(err, opts->n_exceptions * sizeof *proof->excuses);
    }
    for (uint32_t i = 0; i < opts->n_exceptions; i++) {
        proof->excuses[i] = (heft__excuse_t){ .exception = &opts->exceptions[i], .owner = -1 };
    }
    return heft__report_create(&proof->report, err);
}

void heft__proof_fini(heft__proof_t *proof)
{
    heft__cover_destroy(proof->cover);
    heft__readers_destroy(proof->readers);
    heft__free(proof->excuses);
    heft__free(proof->claims);
    heft__free(proof->checks);
    heft__free(proof->uncovered);
    heft__free(proof->excused);
    heft__free(proof->boxed);
    heft__free(proof->unused);
    heft__text_fini(&proof->text);
}

heft_status_t heft__proof_load(heft__proof_t *proof, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    proof->uncovered = heft__calloc((size_t)plan->n_slots + 1, sizeof *proof->uncovered);
    proof->excused = heft__calloc((size_t)plan->n_slots + 1, sizeof *proof->excused);
    proof->boxed = heft__calloc((size_t)plan->n_slots + 1, sizeof *proof->boxed);
    proof->unused = heft__calloc((size_t)plan->n_sources + 1, sizeof *proof->unused);
    proof->plan->n_kept =
        heft__arena_calloc(&proof->plan->arena, plan->n_slots, sizeof *plan->n_kept);
    if (proof->uncovered == NULL || proof->excused == NULL || proof->boxed == NULL ||
        proof->unused == NULL || plan->n_kept == NULL) {
        return heft__error_nomem(err, plan->n_slots * sizeof *proof->uncovered);
    }
    if (proof->names != NULL) {
        proof->plan->is_left_out = heft__arena_calloc(&proof->plan->arena, plan->n_sources, 1);
        if (proof->plan->is_left_out == NULL) {
            return heft__error_nomem(err, plan->n_sources);
        }
    }
    return heft__readers_create(plan, &proof->readers, err);
}

heft_status_t heft__proof_run(heft__proof_t *proof, heft_error_t *err)
{
    heft_status_t status = each_param(proof, add_param, err);
    if (status == HEFT_OK) {
        status = each_param(proof, add_uncovered, err);
    }
    if (status == HEFT_OK) {
        status = heft__proof_add_unused(proof, err);
    }
    if (status == HEFT_OK) {
        status = heft__excuses_report(proof, err);
    }
    if (status == HEFT_OK) {
        status = add_opaques(proof, err);
    }
    if (status == HEFT_OK) {
        status = heft__proof_add_costs(proof, err);
    }
    if (status == HEFT_OK) {
        status = add_empties(proof, err);
    }
    if (status == HEFT_OK) {
        const heft_plan_t *plan = proof->plan;
        int64_t n_planned = plan->n_bytes;
        heft__sum(&n_planned, plan->n_constant_bytes);
        status =
            heft__report_finish(proof->report, plan->n_pieces, n_planned, proof->n_expected, err);
    }
    return status;
}

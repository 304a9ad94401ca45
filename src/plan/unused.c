/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Source elements that nothing uses. A trained tensor that no parameter needs is as suspect as a
 * parameter that nothing writes: often the two belong together, so each is shown beside the name
 * nearest to it on the other side.
 */
#include "plan/plan.h"

#include <string.h>

/* The first rank that reads the source, or -1. */
static int32_t first_reader(const heft__proof_t *proof, uint32_t source)
{
    const heft_plan_t *plan = proof->plan;
    const heft__readers_t *readers = proof->readers;
    if (readers->first[source] == readers->first[source + 1]) {
        return -1;
    }
    uint32_t node = UINT32_MAX;
    for (uint64_t i = readers->first[source]; i < readers->first[source + 1]; i++) {
        uint32_t owner = readers->claims[i].owner;
        bool is_param = owner < plan->n_slots; /* and no known kernel */
        if (readers->kinds[i] == HEFT__READER_PIECE && is_param && owner < node) {
            node = owner;
        }
    }
    uint32_t r = 0;
    while (r + 1 < plan->n_ranks && node >= plan->ranks[r + 1].first_slot) {
        r++;
    }
    return node == UINT32_MAX ? -1 : heft__proof_rank(proof, r);
}

/*
 * `elsewhere` names a tensor of another rank. With that rank in the plan the claim is checked: used
 * by some rank, it is excused; used by none, it is not.
 */
static bool apply_excuses(heft__proof_t *proof, uint32_t source)
{
    const heft_tensor_info_t *info = &proof->plan->sources[source];
    int64_t unused = proof->unused[source];
    bool is_unused =
        heft__excuses_apply(proof, 1u << HEFT_EXCEPTION_UNUSED, info->name, unused, -1);
    if (is_unused && unused == info->n_elems && proof->plan->is_left_out != NULL) {
        proof->plan->is_left_out[source] = 1;
    }
    /* of a chain only those are here that were right in their recipe */
    bool is_alone = proof->plan->n_ranks == 1 || proof->opts->partial != 0 || proof->names != NULL;
    int64_t n = is_alone ? unused : info->n_elems - unused;
    bool is_elsewhere = heft__excuses_apply(proof, 1u << HEFT_EXCEPTION_ELSEWHERE, info->name, n,
                                            is_alone ? -1 : first_reader(proof, source));
    return is_unused || (is_elsewhere && is_alone);
}

/* Boxes of what may be unused, as the padding of a vocabulary. */
static heft_status_t apply_boxes(heft__proof_t *proof, uint32_t source, heft_error_t *err)
{
    const heft_tensor_info_t *info = &proof->plan->sources[source];
    size_t n_claims = 0;
    heft_status_t status = heft__readers_gather(proof->readers, source, true, &proof->claims,
                                                &proof->cap_claims, &n_claims, err);
    return status == HEFT_OK ? heft__excuses_apply_boxes(proof, 1u << HEFT_EXCEPTION_UNUSED, info,
                                                         n_claims, &proof->unused[source], err)
                             : status;
}

/* The uncovered parameter with the name nearest to this one, or NULL. */
static const char *nearest_param(const heft__proof_t *proof, const char *name, int32_t *rank_out)
{
    const heft_plan_t *plan = proof->plan;
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    const char *nearest = NULL;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        for (uint32_t p = 0; p < plan->ranks[r].n_params; p++) {
            uint32_t slot = plan->ranks[r].first_slot + p;
            const char *param = plan->ranks[r].params[p].name;
            if (proof->uncovered[slot] > 0 && proof->excused[slot] == 0 &&
                heft__proof_nearer(name, param, &limit)) {
                nearest = param;
                *rank_out = heft__proof_rank(proof, r);
            }
        }
    }
    return nearest;
}

static void put_nearest(heft__proof_t *proof, const char *name)
{
    int32_t rank = 0;
    const char *nearest = nearest_param(proof, name, &rank);
    if (nearest != NULL) {
        heft__text_printf(&proof->text, "; nearest uncovered parameter \"%s\" rank %d", nearest,
                          (int)rank);
    } else if (proof->report->total[HEFT_FINDING_OVERWRITTEN][1].n == 0) {
        /* else a rule may read it, and another one write over what that made */
        heft__text_put(&proof->text,
                       proof->has_rules
                           ? "; no rule reads it: add one, or ignore it with a reason"
                           : "; nothing reads it: leave it out of the source, or declare it unused "
                             "with a reason");
    }
}

static heft_status_t report_unused(heft__proof_t *proof, uint32_t source, heft_error_t *err)
{
    const heft_tensor_info_t *info = &proof->plan->sources[source];
    int64_t n = proof->unused[source];
    heft__text_t *text = &proof->text;
    heft__spot_t spot = { 0 };
    heft__text_reset(text);
    if (!heft__report_has_room(proof->report, HEFT_FINDING_UNUSED, true)) {
        return heft__proof_add(proof, HEFT_FINDING_UNUSED, true, -1, info, n, NULL, err);
    }
    size_t n_claims;
    heft_status_t status = heft__readers_gather(proof->readers, source, true, &proof->claims,
                                                &proof->cap_claims, &n_claims, err);
    if (status == HEFT_OK) {
        status = heft__excuses_add_boxes(proof, 1u << HEFT_EXCEPTION_UNUSED, info, &n_claims, err);
    }
    if (status == HEFT_OK) {
        status = heft__cover_locate(proof->cover, &info->shape, proof->claims, n_claims, &spot,
                                    NULL, err);
    }
    if (status != HEFT_OK) {
        return heft__plan_name_error(err, status, "source", info->name);
    }
    heft__text_printf(text, "source \"%s\": ", info->name);
    if (n == info->n_elems) {
        heft__text_printf(text, "all %lld elements unused", (long long)n);
        put_nearest(proof, info->name);
    } else {
        heft__text_printf(text, "%lld of %lld elements unused", (long long)n,
                          (long long)info->n_elems);
        heft__proof_put_spot(proof, &info->shape, &spot);
    }
    return heft__proof_add(proof, HEFT_FINDING_UNUSED, true, -1, info, n, &spot, err);
}

/* With ranks missing from the plan, what they may need is one note. */
static heft_status_t report_partial(heft__proof_t *proof, int64_t n_sources, int64_t n_elems,
                                    heft_error_t *err)
{
    const heft_tensor_info_t nothing = { .name = "" };
    heft__text_reset(&proof->text);
    heft__text_printf(&proof->text,
                      "%lld of %u source tensors, %lld elements, are left to ranks outside this "
                      "plan",
                      (long long)n_sources, (unsigned)proof->plan->n_sources, (long long)n_elems);
    return heft__proof_add(proof, HEFT_FINDING_UNUSED, false, -1, &nothing, n_elems, NULL, err);
}

heft_status_t heft__proof_add_unused(heft__proof_t *proof, heft_error_t *err)
{
    bool has_boxes = false;
    for (uint32_t i = 0; i < proof->opts->n_exceptions; i++) {
        has_boxes = has_boxes || proof->opts->exceptions[i].n_dims > 0;
    }
    int64_t n_sources = 0;
    int64_t n_elems = 0;
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; s < proof->plan->n_sources && status == HEFT_OK; s++) {
        if (apply_excuses(proof, s)) {
            continue;
        }
        status = has_boxes ? apply_boxes(proof, s, err) : HEFT_OK;
        if (status != HEFT_OK || proof->unused[s] == 0) {
            continue;
        }
        if (proof->opts->partial != 0) {
            n_sources++;
            heft__sum(&n_elems, proof->unused[s]);
        } else {
            status = report_unused(proof, s, err);
        }
    }
    if (status == HEFT_OK && n_sources > 0) {
        status = report_partial(proof, n_sources, n_elems, err);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warnings: what is right and slow. One finding for each kind and plan, with the price: groups that
 * go through the engine's loader whole, and parameters that fall into many small pieces. What would
 * change a byte is never a warning.
 */
#include "plan/plan.h"

/* A parameter is in small pieces where it has at least so many, of fewer bytes on average. */
#define SMALL_MIN_PIECES 256
#define SMALL_BYTES 1024

static bool has_foreign_operation(const heft_plan_t *plan, uint32_t group)
{
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint32_t k = 0; k < rank->n_opaques; k++) {
            if (rank->opaques[k].group == group && !heft__known_claims(rank->opaques[k].op)) {
                return true;
            }
        }
    }
    return false;
}

static heft_status_t add(heft__proof_t *proof, int32_t rank, const heft_tensor_info_t *first,
                         int64_t n_elems, heft_error_t *err)
{
    return heft__proof_add(proof, HEFT_FINDING_SLOW, false, rank, first, n_elems, NULL, err);
}

/* Groups that the engine's loader writes. */
static heft_status_t add_opaque_groups(heft__proof_t *proof, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    const heft_plan_member_t *first = NULL;
    int64_t n_groups = 0;
    int64_t n_params = 0;
    int64_t n_bytes = 0;
    int64_t n_elems = 0;
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const heft__plan_group_t *group = &plan->groups[g];
        if (group->info.is_opaque == 0 || !has_foreign_operation(plan, g)) {
            continue;
        }
        first = first == NULL ? group->members : first;
        n_groups++;
        n_params += group->info.n_params;
        heft__sum(&n_bytes, group->info.source_bytes);
        for (uint32_t i = 0; i < group->info.n_params; i++) {
            const heft_plan_member_t *m = &group->members[i];
            heft__sum(&n_elems, plan->ranks[m->rank_index].params[m->param].n_elems);
        }
    }
    if (first == NULL) {
        return HEFT_OK;
    }
    const heft_tensor_info_t *info = &plan->ranks[first->rank_index].params[first->param];
    heft__text_reset(&proof->text);
    heft__text_printf(
        &proof->text,
        "\"%s\"%s: %lld group%s of %lld parameter%s through the engine's loader: %lld "
        "bytes of sources are staged whole for it, and it is called in every round",
        info->name, n_params > 1 ? ", .." : "", (long long)n_groups, n_groups == 1 ? "" : "s",
        (long long)n_params, n_params == 1 ? "" : "s", (long long)n_bytes);
    return add(proof, heft__proof_rank(proof, first->rank_index), info, n_elems, err);
}

/* Parameters in pieces so small that the copies cost more than the bytes. */
static heft_status_t add_small_pieces(heft__proof_t *proof, heft_error_t *err)
{
    const heft_plan_t *plan = proof->plan;
    const heft_tensor_info_t *first = NULL;
    int32_t first_rank = 0;
    int64_t n_params = 0;
    int64_t n_pieces = 0;
    int64_t n_bytes = 0;
    int64_t n_elems = 0;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint32_t p = 0; p < rank->n_params; p++) {
            const heft_tensor_info_t *info = &rank->params[p];
            int64_t n = (int64_t)(rank->first_piece[p + 1] - rank->first_piece[p]);
            if (n < SMALL_MIN_PIECES || info->n_bytes / n >= SMALL_BYTES) {
                continue;
            }
            if (first == NULL) {
                first = info;
                first_rank = heft__proof_rank(proof, r);
            }
            n_params++;
            n_pieces += n;
            heft__sum(&n_bytes, info->n_bytes);
            heft__sum(&n_elems, info->n_elems);
        }
    }
    if (first == NULL) {
        return HEFT_OK;
    }
    heft__text_reset(&proof->text);
    heft__text_printf(
        &proof->text,
        "\"%s\"%s: %lld parameter%s in %lld pieces of %lld bytes on average, each a "
        "copy of its own: strides that do not divide one another, or a table of small "
        "rows; right, and slow",
        first->name, n_params > 1 ? ", .." : "", (long long)n_params, n_params == 1 ? "" : "s",
        (long long)n_pieces, (long long)(n_bytes / n_pieces));
    return add(proof, first_rank, first, n_elems, err);
}

heft_status_t heft__proof_add_costs(heft__proof_t *proof, heft_error_t *err)
{
    heft_status_t status = add_opaque_groups(proof, err);
    return status == HEFT_OK ? add_small_pieces(proof, err) : status;
}

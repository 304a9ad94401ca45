/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says about itself. Nothing here allocates. */
#include "plan/plan.h"

void heft_plan_query(const heft_plan_t *plan, heft_plan_info_t *info_out)
{
    *info_out = (heft_plan_info_t){ .n_ranks = plan->n_ranks,
                                    .first_rank = plan->first_rank,
                                    .n_sources = plan->n_sources,
                                    .n_groups = plan->n_groups,
                                    .n_pieces = plan->n_pieces,
                                    .n_bytes = plan->n_bytes,
                                    .n_constant_bytes = plan->n_constant_bytes,
                                    .digest = plan->digest };
}

static const heft__plan_rank_t *get_rank(const heft_plan_t *plan, uint32_t rank_index)
{
    return rank_index < plan->n_ranks ? &plan->ranks[rank_index] : NULL;
}

const char *heft_plan_get_rank_digest(const heft_plan_t *plan, uint32_t rank_index)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    return rank != NULL ? rank->digest : NULL;
}

const char *heft__plan_get_whole_digest(const heft_plan_t *plan, uint32_t rank_index)
{
    const heft__plan_rank_t *rank = &plan->ranks[rank_index];
    return rank->whole_digest[0] != '\0' ? rank->whole_digest : rank->digest;
}

uint32_t heft_plan_get_n_params(const heft_plan_t *plan, uint32_t rank_index)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    return rank != NULL ? rank->n_params : 0;
}

heft_status_t heft_plan_query_param(const heft_plan_t *plan, uint32_t rank_index, uint32_t i,
                                    heft_tensor_info_t *info_out, heft_error_t *err)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    if (rank == NULL || i >= rank->n_params) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "parameter %u of rank index %u: has %u",
                               (unsigned)i, (unsigned)rank_index,
                               rank != NULL ? (unsigned)rank->n_params : 0);
    }
    *info_out = rank->params[i];
    return HEFT_OK;
}

heft_status_t heft_plan_query_source(const heft_plan_t *plan, uint32_t i,
                                     heft_tensor_info_t *info_out, heft_error_t *err)
{
    if (i >= plan->n_sources) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "source %u of %u", (unsigned)i,
                               (unsigned)plan->n_sources);
    }
    *info_out = plan->sources[i];
    return HEFT_OK;
}

const heft_piece_t *heft_plan_get_pieces(const heft_plan_t *plan, uint32_t rank_index,
                                         uint64_t *n_out)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    *n_out = rank != NULL ? rank->n_pieces : 0;
    return rank != NULL ? rank->pieces : NULL;
}

const heft_piece_t *heft_plan_get_param_pieces(const heft_plan_t *plan, uint32_t rank_index,
                                               uint32_t param, uint64_t *n_out)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    *n_out = 0;
    if (rank == NULL || param >= rank->n_params) {
        return NULL;
    }
    *n_out = rank->first_piece[param + 1] - rank->first_piece[param];
    return rank->pieces + rank->first_piece[param];
}

const heft_piece_t *heft_plan_get_checks(const heft_plan_t *plan, uint32_t rank_index,
                                         uint64_t *n_out)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    *n_out = rank != NULL ? rank->n_checks : 0;
    return *n_out > 0 ? rank->checks : NULL;
}

const heft_piece_t *heft_plan_get_param_checks(const heft_plan_t *plan, uint32_t rank_index,
                                               uint32_t param, uint64_t *n_out)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    *n_out = 0;
    if (rank == NULL || param >= rank->n_params || rank->n_checks == 0) {
        return NULL;
    }
    *n_out = rank->first_check[param + 1] - rank->first_check[param];
    return rank->checks + rank->first_check[param];
}

heft_status_t heft_plan_query_group(const heft_plan_t *plan, uint32_t group,
                                    heft_group_info_t *info_out, heft_error_t *err)
{
    if (group >= plan->n_groups) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "group %u of %u", (unsigned)group,
                               (unsigned)plan->n_groups);
    }
    *info_out = plan->groups[group].info;
    return HEFT_OK;
}

const heft_plan_member_t *heft_plan_get_group_params(const heft_plan_t *plan, uint32_t group,
                                                     uint32_t *n_out)
{
    *n_out = group < plan->n_groups ? plan->groups[group].info.n_params : 0;
    return group < plan->n_groups ? plan->groups[group].members : NULL;
}

const uint32_t *heft_plan_get_group_sources(const heft_plan_t *plan, uint32_t group,
                                            uint32_t *n_out)
{
    *n_out = group < plan->n_groups ? plan->groups[group].info.n_sources : 0;
    return group < plan->n_groups ? plan->groups[group].sources : NULL;
}

uint32_t heft__plan_get_together(const heft_plan_t *plan, uint32_t rank_index, uint32_t param)
{
    const heft__plan_rank_t *rank = &plan->ranks[rank_index];
    return plan->together[rank->first_slot + param] - rank->first_slot;
}

int64_t heft_plan_get_n_kept(const heft_plan_t *plan, uint32_t rank_index, uint32_t param)
{
    if (rank_index >= plan->n_ranks || param >= plan->ranks[rank_index].n_params) {
        return 0;
    }
    return plan->n_kept[plan->ranks[rank_index].first_slot + param];
}

uint32_t heft_plan_get_param_group(const heft_plan_t *plan, uint32_t rank_index, uint32_t param)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    if (rank == NULL || param >= rank->n_params) {
        return HEFT_GROUP_NONE;
    }
    return plan->group_of[rank->first_slot + param];
}

const heft_opaque_t *heft_plan_get_opaques(const heft_plan_t *plan, uint32_t rank_index,
                                           uint32_t *n_out)
{
    const heft__plan_rank_t *rank = get_rank(plan, rank_index);
    *n_out = rank != NULL ? rank->n_opaques : 0;
    return rank != NULL ? rank->opaques : NULL;
}

const char *heft_plan_get_piece_note(const heft_plan_t *plan, const heft_piece_t *piece)
{
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        if (piece >= rank->pieces && piece < rank->pieces + rank->n_pieces) {
            return rank->notes[piece - rank->pieces];
        }
        if (piece >= rank->checks && piece < rank->checks + rank->n_checks) {
            return rank->check_notes[piece - rank->checks];
        }
    }
    return ""; /* of an operation's input, or of no plan of ours */
}

int heft_plan_leaves_out(const heft_plan_t *plan, uint32_t source)
{
    return source < plan->n_sources && plan->is_left_out != NULL && plan->is_left_out[source] != 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind the sources of a piece: tensors, known kernels, the engine's loader. */
#include "plan/plan.h"

bool heft__piece_is_computed(const heft_piece_t *piece)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        if (piece->srcs[s].opaque != 0) {
            return true;
        }
    }
    return false;
}

const heft_opaque_t *heft__piece_operation(const heft_plan_t *plan, uint32_t rank_index,
                                           const heft_piece_t *piece, uint32_t s)
{
    uint32_t n = 0;
    const heft_opaque_t *ops = heft_plan_get_opaques(plan, rank_index, &n);
    uint32_t k = piece->srcs[s].opaque;
    return k > 0 && k <= n ? &ops[k - 1] : NULL;
}

bool heft__operation_is_plain(const heft_opaque_t *op)
{
    bool is_plain = heft__known_claims(op->op);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        bool reads = false;
        for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
            is_plain = is_plain && !heft__piece_is_computed(&op->inputs[i].pieces[p]);
            reads = reads || op->inputs[i].pieces[p].n_srcs > 0;
        }
        is_plain = is_plain && reads;
    }
    return is_plain;
}

/* A known kernel that reads what the loader leaves is the loader's, too. Operations read earlier
 * ones alone, so this ends. */
static bool operation_needs_loader(const heft_plan_t *plan, uint32_t rank_index,
                                   const heft_opaque_t *op)
{
    if (!heft__known_claims(op->op)) {
        return true;
    }
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
            if (heft__piece_needs_loader(plan, rank_index, &op->inputs[i].pieces[p])) {
                return true;
            }
        }
    }
    return false;
}

bool heft__piece_needs_loader(const heft_plan_t *plan, uint32_t rank_index,
                              const heft_piece_t *piece)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const heft_opaque_t *op = heft__piece_operation(plan, rank_index, piece, s);
        if (op != NULL && operation_needs_loader(plan, rank_index, op)) {
            return true;
        }
    }
    return false;
}

void heft__piece_each_source(const heft_plan_t *plan, uint32_t rank_index,
                             const heft_piece_t *piece, heft__source_fn_t fn, void *arg)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        if (piece->srcs[s].opaque == 0) {
            fn(arg, piece->srcs[s].source);
            continue;
        }
        const heft_opaque_t *op = heft__piece_operation(plan, rank_index, piece, s);
        for (uint32_t i = 0; op != NULL && i < op->n_sources; i++) {
            fn(arg, op->sources[i]);
        }
    }
}

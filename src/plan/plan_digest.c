/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of a plan. A rank's digest covers what that rank does and nothing else: the source
 * tensors it reads (by name, dtype, shape), its parameters, pieces and operations; so it is the
 * same in every plan that holds the rank. The plan's digest covers all sources, the rank digests,
 * and the groups. Every list is preceded by its length, so different plans never make the same
 * bytes.
 */
#include "plan/plan.h"

#include <string.h>

static void put_i64(heft__sha256_t *h, int64_t value)
{
    heft__sha256_update_u64(h, (uint64_t)value);
}

/* n numbers at once: the hash is fed in blocks rather than in words. */
static void put_list(heft__sha256_t *h, const int64_t *values, int32_t n)
{
    uint8_t bytes[8 * HEFT_MAX_DIMS];
    for (int32_t i = 0; i < n; i++) {
        heft__put_le64(bytes + 8 * i, (uint64_t)values[i]);
    }
    heft__sha256_update(h, bytes, 8 * (size_t)n);
}

static void put_tensor(heft__sha256_t *h, const heft_tensor_info_t *info)
{
    heft__sha256_update_text(h, info->name);
    heft__sha256_update_u64(h, info->dtype);
    put_i64(h, info->shape.rank);
    put_list(h, info->shape.extent, info->shape.rank);
}

static void put_ops(heft__sha256_t *h, const heft_op_t *ops, uint32_t n_ops)
{
    for (uint32_t i = 0; i < n_ops; i++) {
        uint64_t imm;
        memcpy(&imm, &ops[i].imm, sizeof imm);
        heft__sha256_update_u64(h, (uint64_t)ops[i].code | (uint64_t)ops[i].dtype << 8 |
                                       (uint64_t)ops[i].arg << 16);
        heft__sha256_update_u64(h, imm);
        heft__sha256_update_u64(h, ops[i].imm_bits);
    }
}

/* number_of: source of the plan -> its number among those the rank reads. */
static void put_pieces(heft__sha256_t *h, const heft_piece_t *pieces, uint64_t n,
                       const uint32_t *number_of)
{
    heft__sha256_update_u64(h, n);
    for (uint64_t i = 0; i < n; i++) {
        const heft_piece_t *piece = &pieces[i];
        const int64_t head[] = { piece->param, piece->rank, piece->n_srcs, piece->n_ops,
                                 piece->dst_offset };
        put_list(h, head, (int32_t)(sizeof head / sizeof head[0]));
        put_list(h, piece->extent, piece->rank);
        put_list(h, piece->dst_stride, piece->rank);
        for (uint32_t s = 0; s < piece->n_srcs; s++) {
            const heft_piece_src_t *src = &piece->srcs[s];
            uint32_t number = src->opaque > 0 ? src->source : number_of[src->source];
            const int64_t from[] = { number, src->opaque, src->offset };
            put_list(h, from, (int32_t)(sizeof from / sizeof from[0]));
            put_list(h, src->stride, piece->rank);
        }
        put_ops(h, piece->ops, piece->n_ops);
    }
}

static void put_opaque(heft__sha256_t *h, const heft_opaque_t *op, const uint32_t *number_of)
{
    heft__sha256_update_text(h, op->op);
    heft__sha256_update_u64(h, op->n_inputs);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        const heft_opaque_input_t *input = &op->inputs[i];
        heft__sha256_update_u64(h, input->dtype);
        put_i64(h, input->shape.rank);
        put_list(h, input->shape.extent, input->shape.rank);
        put_pieces(h, input->pieces, input->n_pieces, number_of);
    }
    heft__sha256_update_u64(h, op->n_outputs);
    for (uint32_t i = 0; i < op->n_outputs; i++) {
        const heft_opaque_output_t *output = &op->outputs[i];
        const int64_t head[] = { output->dtype, output->view.buffer, output->buffer_elems,
                                 output->view.rank, output->view.offset };
        put_list(h, head, (int32_t)(sizeof head / sizeof head[0]));
        put_list(h, output->view.extent, output->view.rank);
        put_list(h, output->view.stride, output->view.rank);
    }
    heft__sha256_update_u64(h, op->n_sources);
    for (uint32_t i = 0; i < op->n_sources; i++) {
        heft__sha256_update_u64(h, number_of[op->sources[i]]);
    }
}

static void mark_pieces(const heft_piece_t *pieces, uint64_t n, uint32_t *number_of)
{
    for (uint64_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < pieces[i].n_srcs; s++) {
            if (pieces[i].srcs[s].opaque == 0) {
                number_of[pieces[i].srcs[s].source] = 1;
            }
        }
    }
}

/* number_of: scratch, n_sources, all zero; put back to zero. */
static void digest_rank(const heft_plan_t *plan, heft__plan_rank_t *rank, uint32_t *number_of)
{
    heft__sha256_t h;
    uint8_t digest[32];
    heft__sha256_init(&h);
    heft__sha256_update_text(&h, "heft rank 1");
    mark_pieces(rank->pieces, rank->n_pieces, number_of);
    mark_pieces(rank->input_pieces, rank->n_input_pieces, number_of);
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        for (uint32_t i = 0; i < rank->opaques[k].n_sources; i++) {
            number_of[rank->opaques[k].sources[i]] = 1;
        }
    }
    uint32_t n = 0;
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        n += number_of[s];
    }
    heft__sha256_update_u64(&h, n);
    n = 0;
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        if (number_of[s] != 0) {
            number_of[s] = n++;
            put_tensor(&h, &plan->sources[s]);
        }
    }
    heft__sha256_update_u64(&h, rank->n_params);
    for (uint32_t p = 0; p < rank->n_params; p++) {
        put_tensor(&h, &rank->params[p]);
    }
    put_pieces(&h, rank->pieces, rank->n_pieces, number_of);
    heft__sha256_update_u64(&h, rank->n_opaques);
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        put_opaque(&h, &rank->opaques[k], number_of);
    }
    memset(number_of, 0, plan->n_sources * sizeof *number_of);
    heft__sha256_final(&h, digest);
    heft__hex(digest, sizeof digest, rank->digest);
}

heft_status_t heft__plan_make_digests(heft_plan_t *plan, heft_error_t *err)
{
    uint32_t *number_of = heft__calloc((size_t)plan->n_sources + 1, sizeof *number_of);
    if (number_of == NULL) {
        return heft__error_nomem(err, plan->n_sources * sizeof *number_of);
    }
    heft__sha256_t h;
    uint8_t digest[32];
    heft__sha256_init(&h);
    heft__sha256_update_text(&h, "heft plan 1");
    heft__sha256_update_u64(&h, plan->n_sources);
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        put_tensor(&h, &plan->sources[s]);
    }
    heft__sha256_update_u64(&h, plan->first_rank);
    heft__sha256_update_u64(&h, plan->n_ranks);
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        digest_rank(plan, &plan->ranks[r], number_of);
        heft__sha256_update_text(&h, plan->ranks[r].digest);
    }
    heft__free(number_of);
    heft__sha256_update_u64(&h, plan->n_groups);
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        heft__sha256_update_u64(&h, plan->group_of[slot]);
    }
    heft__sha256_final(&h, digest);
    heft__hex(digest, sizeof digest, plan->digest);
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who reads which elements of each source: the pieces and checks of parameters, and operations. An
 * operation uses what its inputs read, but ties everything that reads one of its source tensors,
 * since it is delivered those as wholes; a known kernel, which heft runs itself, ties what its
 * inputs read.
 */
#include "plan/plan.h"

#include <string.h>

static const int64_t one = 1;

static void mark_used(const heft_plan_t *plan, heft__readers_t *readers)
{
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        uint8_t *used = readers->used_ops + rank->first_opaque;
        for (uint64_t i = 0; i < rank->n_pieces && rank->n_opaques > 0; i++) {
            for (uint32_t s = 0; s < rank->pieces[i].n_srcs; s++) {
                if (rank->pieces[i].srcs[s].opaque > 0) {
                    used[rank->pieces[i].srcs[s].opaque - 1] = 1;
                }
            }
        }
        /* an operation reads only what earlier ones left */
        for (uint32_t k = rank->n_opaques; k-- > 0;) {
            const heft_opaque_t *op = &rank->opaques[k];
            for (uint32_t i = 0; i < op->n_inputs && used[k]; i++) {
                for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
                    const heft_piece_t *piece = &op->inputs[i].pieces[p];
                    for (uint32_t s = 0; s < piece->n_srcs; s++) {
                        if (piece->srcs[s].opaque > 0) {
                            used[piece->srcs[s].opaque - 1] = 1;
                        }
                    }
                }
            }
        }
    }
}

/* Either counts (claims == NULL: first[source + 1] grows) or fills at next[source]. */
typedef struct filler {
    const heft_plan_t *plan;
    heft__readers_t *readers;
    uint64_t *next; /* NULL while counting */
} filler_t;

static void put(filler_t *f, uint32_t source, const heft__claim_t *claim, heft__reader_kind_t kind)
{
    if (f->next == NULL) {
        f->readers->first[source + 1]++;
        return;
    }
    uint64_t at = f->next[source]++;
    f->readers->claims[at] = *claim;
    f->readers->kinds[at] = (uint8_t)kind;
}

static void put_piece(filler_t *f, const heft_piece_t *piece, uint32_t node,
                      heft__reader_kind_t kind)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const heft_piece_src_t *src = &piece->srcs[s];
        if (src->opaque == 0) {
            const heft__claim_t claim = { .offset = src->offset,
                                          .extent = piece->extent,
                                          .stride = src->stride,
                                          .n_dims = piece->rank,
                                          .owner = node };
            put(f, src->source, &claim, kind);
        }
    }
}

static void put_opaque(filler_t *f, const heft_opaque_t *op, uint32_t node)
{
    bool is_known = heft__known_claims(op->op);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
            put_piece(f, &op->inputs[i].pieces[p], node,
                      is_known ? HEFT__READER_PIECE : HEFT__READER_INPUT);
        }
    }
    for (uint32_t i = 0; i < op->n_sources && !is_known; i++) {
        const heft__claim_t claim = { .offset = 0,
                                      .extent = &f->plan->sources[op->sources[i]].n_elems,
                                      .stride = &one,
                                      .n_dims = 1,
                                      .owner = node };
        put(f, op->sources[i], &claim, HEFT__READER_WHOLE);
    }
}

static void put_all(filler_t *f)
{
    const heft_plan_t *plan = f->plan;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint64_t i = 0; i < rank->n_pieces; i++) {
            put_piece(f, &rank->pieces[i], rank->first_slot + rank->pieces[i].param,
                      HEFT__READER_PIECE);
        }
        for (uint64_t i = 0; i < rank->n_checks; i++) {
            put_piece(f, &rank->checks[i], rank->first_slot + rank->checks[i].param,
                      HEFT__READER_PIECE);
        }
        for (uint32_t k = 0; k < rank->n_opaques; k++) {
            if (f->readers->used_ops[rank->first_opaque + k]) {
                put_opaque(f, &rank->opaques[k], plan->n_slots + rank->first_opaque + k);
            }
        }
    }
}

static heft_status_t fill(const heft_plan_t *plan, heft__readers_t *readers, heft_error_t *err)
{
    filler_t f = { .plan = plan, .readers = readers };
    put_all(&f);
    for (uint32_t s = 0; s < plan->n_sources; s++) {
        readers->first[s + 1] += readers->first[s];
    }
    uint64_t n = readers->first[plan->n_sources];
    readers->claims = heft__calloc(n + 1, sizeof *readers->claims);
    readers->kinds = heft__calloc(n + 1, 1);
    f.next = heft__calloc((size_t)plan->n_sources + 1, sizeof *f.next);
    if (readers->claims == NULL || readers->kinds == NULL || f.next == NULL) {
        heft__free(f.next);
        return heft__error_nomem(err, n * sizeof *readers->claims);
    }
    memcpy(f.next, readers->first, plan->n_sources * sizeof *f.next);
    put_all(&f);
    heft__free(f.next);
    return HEFT_OK;
}

heft_status_t heft__readers_create(const heft_plan_t *plan, heft__readers_t **readers_out,
                                   heft_error_t *err)
{
    heft__readers_t *readers = heft__calloc(1, sizeof *readers);
    if (readers == NULL) {
        return heft__error_nomem(err, sizeof *readers);
    }
    heft_status_t status = HEFT_OK;
    readers->first = heft__calloc((size_t)plan->n_sources + 1, sizeof *readers->first);
    readers->used_ops = heft__calloc((size_t)plan->n_opaques + 1, 1);
    if (readers->first == NULL || readers->used_ops == NULL) {
        status = heft__error_nomem(err, plan->n_sources * sizeof *readers->first);
    } else {
        mark_used(plan, readers);
        status = fill(plan, readers, err);
    }
    if (status != HEFT_OK) {
        heft__readers_destroy(readers);
        return status;
    }
    *readers_out = readers;
    return HEFT_OK;
}

void heft__readers_destroy(heft__readers_t *readers)
{
    if (readers != NULL) {
        heft__free(readers->claims);
        heft__free(readers->kinds);
        heft__free(readers->first);
        heft__free(readers->used_ops);
        heft__free(readers);
    }
}

heft_status_t heft__readers_gather(const heft__readers_t *readers, uint32_t source, bool is_use,
                                   heft__claim_t **claims, size_t *cap, size_t *n_out,
                                   heft_error_t *err)
{
    uint64_t end = readers->first[source + 1];
    size_t n = 0;
    heft_status_t status = HEFT__GROW(*claims, *cap, (size_t)(end - readers->first[source]), err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint64_t i = readers->first[source]; i < end; i++) {
        heft__reader_kind_t other = is_use ? HEFT__READER_WHOLE : HEFT__READER_INPUT;
        if (readers->kinds[i] != other) {
            (*claims)[n++] = readers->claims[i];
        }
    }
    *n_out = n;
    return HEFT_OK;
}

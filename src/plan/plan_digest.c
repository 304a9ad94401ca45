/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of a plan. A rank's digest covers what that rank does and nothing else: the source
 * tensors it reads (by name, dtype, shape), its parameters, pieces, operations and checks; so it is
 * the same in every plan that holds the rank. The plan's digest covers all sources, the rank
 * digests, and the groups.
 *
 * Numbers are written as LEB128 (signed ones zigzag first), texts and lists after their length, so
 * different plans never make the same bytes. A source is hashed once and stands in the others by
 * its own digest: with names of 60 bytes and 8 ranks that is a quarter of the work.
 */
#include "plan/digest_sink.h"

typedef struct digester {
    const heft_plan_t *plan;
    uint8_t (*source_digests)[DIGEST_BYTES];
    uint32_t *number_of; /* source of the plan -> its number among those the rank reads */
    sink_t sink;
} digester_t;

static void put_src(void *digester, const heft_piece_src_t *src)
{
    digester_t *d = digester;
    put_u64(&d->sink, src->opaque);
    put_u64(&d->sink, src->opaque > 0 ? src->source : d->number_of[src->source]);
}

static void put_pieces(digester_t *d, const heft_piece_t *pieces, uint64_t n)
{
    put_u64(&d->sink, n);
    for (uint64_t i = 0; i < n; i++) {
        put_u64(&d->sink, pieces[i].param);
        put_piece(&d->sink, &pieces[i], put_src, d);
    }
}

static void put_opaque(digester_t *d, const heft_opaque_t *op)
{
    sink_t *sink = &d->sink;
    put_text(sink, op->op);
    put_u64(sink, op->n_inputs);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        const heft_opaque_input_t *input = &op->inputs[i];
        put_shape(sink, input->dtype, &input->shape);
        put_pieces(d, input->pieces, input->n_pieces);
    }
    put_u64(sink, op->n_outputs);
    for (uint32_t i = 0; i < op->n_outputs; i++) {
        const heft_opaque_output_t *output = &op->outputs[i];
        put_u64(sink, output->dtype);
        put_u64(sink, output->view.buffer);
        put_output(sink, output);
    }
    put_u64(sink, op->n_sources);
    for (uint32_t i = 0; i < op->n_sources; i++) {
        put_u64(sink, d->number_of[op->sources[i]]);
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

/* The sources a rank reads get the value 1, the others 0. */
static void mark_sources(const heft_plan_t *plan, const heft__plan_rank_t *rank,
                         uint32_t *number_of)
{
    memset(number_of, 0, plan->n_sources * sizeof *number_of);
    mark_pieces(rank->pieces, rank->n_pieces, number_of);
    mark_pieces(rank->checks, rank->n_checks, number_of);
    mark_pieces(rank->input_pieces, rank->n_input_pieces, number_of);
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        for (uint32_t i = 0; i < rank->opaques[k].n_sources; i++) {
            number_of[rank->opaques[k].sources[i]] = 1;
        }
    }
}

static void digest_sources(digester_t *d)
{
    for (uint32_t s = 0; s < d->plan->n_sources; s++) {
        begin(&d->sink, "heft source 1");
        put_tensor(&d->sink, &d->plan->sources[s]);
        finish(&d->sink, d->source_digests[s]);
    }
}

static void digest_rank(digester_t *d, heft__plan_rank_t *rank)
{
    uint8_t digest[DIGEST_BYTES];
    sink_t *sink = &d->sink;
    uint32_t n = 0;
    begin(sink, "heft rank 1");
    mark_sources(d->plan, rank, d->number_of);
    for (uint32_t s = 0; s < d->plan->n_sources; s++) {
        if (d->number_of[s] != 0) {
            d->number_of[s] = n++;
            put_u64(sink, DIGEST_BYTES);
            put_bytes(sink, d->source_digests[s], DIGEST_BYTES);
        }
    }
    put_u64(sink, 0);
    put_u64(sink, rank->n_params);
    for (uint32_t p = 0; p < rank->n_params; p++) {
        put_tensor(sink, &rank->params[p]);
    }
    put_pieces(d, rank->pieces, rank->n_pieces);
    put_u64(sink, rank->n_opaques);
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        put_opaque(d, &rank->opaques[k]);
    }
    if (rank->n_checks > 0) {
        put_pieces(d, rank->checks, rank->n_checks);
    }
    finish(sink, digest);
    heft__hex(digest, sizeof digest, rank->digest);
}

static void digest_plan(digester_t *d, heft_plan_t *plan)
{
    uint8_t digest[DIGEST_BYTES];
    sink_t *sink = &d->sink;
    begin(sink, "heft plan 1");
    put_u64(sink, plan->n_sources);
    put_bytes(sink, d->source_digests, plan->n_sources * sizeof *d->source_digests);
    put_u64(sink, plan->first_rank);
    put_u64(sink, plan->n_ranks);
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        put_text(sink, plan->ranks[r].digest);
    }
    put_u64(sink, plan->n_groups);
    put_u64(sink, plan->n_slots);
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        put_u64(sink, plan->group_of[slot]);
    }
    finish(sink, digest);
    heft__hex(digest, sizeof digest, plan->digest);
}

heft_status_t heft__plan_make_digests(heft_plan_t *plan, heft_error_t *err)
{
    size_t n = (size_t)plan->n_sources + 1;
    digester_t *d = heft__calloc(1, sizeof *d);
    uint32_t *number_of = heft__calloc(n, sizeof *number_of);
    uint8_t(*source_digests)[DIGEST_BYTES] = heft__calloc(n, sizeof *source_digests);
    heft_status_t status = HEFT_OK;
    if (d == NULL || number_of == NULL || source_digests == NULL) {
        status = heft__error_nomem(err, n * sizeof *source_digests);
    } else {
        d->plan = plan;
        d->number_of = number_of;
        d->source_digests = source_digests;
        digest_sources(d);
        for (uint32_t r = 0; r < plan->n_ranks; r++) {
            digest_rank(d, &plan->ranks[r]);
        }
        digest_plan(d, plan);
    }
    heft__free(source_digests);
    heft__free(number_of);
    heft__free(d);
    return status;
}

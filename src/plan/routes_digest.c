/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of routes. That of one route covers what one sender writes in one rank, and nothing else:
 * parameters, pieces and checks, with the tensors and known kernels they read, numbered as they
 * come up. So it is the same in every plan that has them, whichever other senders' pieces that plan
 * knows. The digest of all covers the plan's, and every route.
 */
#include "plan/digest_sink.h"
#include "plan/routes.h"

typedef struct numbers {
    uint32_t *of;   /* one more than the number of each thing that came up; 0: it did not */
    uint32_t *list; /* those that did */
    uint32_t n;
} numbers_t;

typedef struct digester {
    const heft_plan_t *plan;
    const heft__plan_rank_t *rank;
    numbers_t sources;
    numbers_t ops;
    uint8_t (*source_digests)[DIGEST_BYTES]; /* made as they are needed */
    uint8_t *has_digest;
    sink_t sink;
    sink_t inner; /* for a source */
} digester_t;

static bool numbers_init(numbers_t *numbers, size_t n)
{
    numbers->of = heft__calloc(n + 1, sizeof *numbers->of);
    numbers->list = heft__calloc(n + 1, sizeof *numbers->list);
    return numbers->of != NULL && numbers->list != NULL;
}

static void numbers_fini(numbers_t *numbers)
{
    heft__free(numbers->of);
    heft__free(numbers->list);
}

static void numbers_reset(numbers_t *numbers)
{
    for (uint32_t i = 0; i < numbers->n; i++) {
        numbers->of[numbers->list[i]] = 0;
    }
    numbers->n = 0;
}

/* The number of a thing; *is_new_out: it comes up for the first time. */
static uint32_t number(numbers_t *numbers, uint32_t thing, bool *is_new_out)
{
    *is_new_out = numbers->of[thing] == 0;
    if (*is_new_out) {
        numbers->list[numbers->n++] = thing;
        numbers->of[thing] = numbers->n;
    }
    return numbers->of[thing] - 1;
}

static void put_source(digester_t *d, uint32_t source)
{
    bool is_new;
    put_u64(&d->sink, number(&d->sources, source, &is_new));
    if (!is_new) {
        return;
    }
    if (d->has_digest[source] == 0) {
        begin(&d->inner, "heft source 1");
        put_tensor(&d->inner, &d->plan->sources[source]);
        finish(&d->inner, d->source_digests[source]);
        d->has_digest[source] = 1;
    }
    put_bytes(&d->sink, d->source_digests[source], DIGEST_BYTES);
}

static void put_op(digester_t *d, uint32_t op);

static void put_src(void *digester, const heft_piece_src_t *src)
{
    digester_t *d = digester;
    put_u64(&d->sink, src->opaque > 0);
    if (src->opaque > 0) {
        put_op(d, src->opaque - 1);
        put_u64(&d->sink, src->source);
    } else {
        put_source(d, src->source);
    }
}

/* Operations read earlier ones alone, so this ends. */
static void put_op(digester_t *d, uint32_t k)
{
    const heft_opaque_t *op = &d->rank->opaques[k];
    sink_t *sink = &d->sink;
    bool is_new;
    put_u64(sink, number(&d->ops, k, &is_new));
    if (!is_new) {
        return;
    }
    put_text(sink, op->op);
    put_u64(sink, op->n_inputs);
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        const heft_opaque_input_t *input = &op->inputs[i];
        put_shape(sink, input->dtype, &input->shape);
        put_u64(sink, input->n_pieces);
        for (uint64_t p = 0; p < input->n_pieces; p++) {
            put_piece(sink, &input->pieces[p], put_src, d);
        }
    }
    put_u64(sink, op->n_outputs);
    for (uint32_t i = 0; i < op->n_outputs; i++) {
        put_u64(sink, op->outputs[i].dtype);
        put_output(sink, &op->outputs[i]);
    }
}

/* Checks of the rank that are the sender's; they stand by parameter. */
static void put_checks(digester_t *d, const heft__rank_routes_t *from, uint32_t sender)
{
    for (uint64_t i = 0; i < d->rank->n_checks; i++) {
        if (from->check_sender[i] == sender) {
            put_u64(&d->sink, 1);
            put_text(&d->sink, d->rank->params[d->rank->checks[i].param].name);
            put_piece(&d->sink, &d->rank->checks[i], put_src, d);
        }
    }
    put_u64(&d->sink, 0);
}

static void digest_route(digester_t *d, const heft__rank_routes_t *from, uint32_t t)
{
    heft__route_total_t *total = &from->totals[t];
    const uint32_t sender = from->total_senders[t];
    uint8_t digest[DIGEST_BYTES];
    numbers_reset(&d->sources);
    numbers_reset(&d->ops);
    begin(&d->sink, "heft route 1");
    put_u64(&d->sink, total->info.n_params);
    for (uint32_t i = 0; i < total->info.n_params; i++) {
        const uint32_t p = from->params[total->first_param + i];
        const size_t first = from->first_route[p];
        const size_t n = from->first_route[p + 1] - first;
        const heft__route_t *route =
            &from->routes[first + heft__find_number(from->senders + first, n, sender)];
        put_tensor(&d->sink, &d->rank->params[p]);
        put_u64(&d->sink, route->n_pieces);
        for (uint64_t k = 0; k < route->n_pieces; k++) {
            const heft_piece_t *piece = &d->rank->pieces[from->order[route->first + k]];
            put_piece(&d->sink, piece, put_src, d);
        }
    }
    put_checks(d, from, sender);
    put_i64(&d->sink, total->info.n_load_bytes);
    finish(&d->sink, digest);
    heft__hex(digest, sizeof digest, total->digest);
    total->info.digest = total->digest;
}

static void digest_all(digester_t *d, heft_routes_t *routes)
{
    uint8_t digest[DIGEST_BYTES];
    for (uint32_t r = 0; r < d->plan->n_ranks; r++) {
        d->rank = &d->plan->ranks[r];
        for (uint32_t t = 0; t < routes->ranks[r].n_totals; t++) {
            digest_route(d, &routes->ranks[r], t);
        }
    }
    begin(&d->sink, "heft routes 1");
    put_text(&d->sink, d->plan->digest);
    put_u64(&d->sink, routes->n_senders);
    put_u64(&d->sink, d->plan->n_ranks);
    for (uint32_t r = 0; r < d->plan->n_ranks; r++) {
        const heft__rank_routes_t *rank = &routes->ranks[r];
        put_u64(&d->sink, rank->n_totals);
        for (uint32_t t = 0; t < rank->n_totals; t++) {
            put_u64(&d->sink, rank->total_senders[t]);
            put_text(&d->sink, rank->totals[t].digest);
        }
    }
    finish(&d->sink, digest);
    heft__hex(digest, sizeof digest, routes->digest);
}

heft_status_t heft__routes_make_digests(heft_routes_t *routes, heft_error_t *err)
{
    const heft_plan_t *plan = routes->plan;
    const size_t n = (size_t)plan->n_sources + 1;
    uint32_t n_ops = 0;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        n_ops = plan->ranks[r].n_opaques > n_ops ? plan->ranks[r].n_opaques : n_ops;
    }
    digester_t *d = heft__calloc(1, sizeof *d);
    uint8_t(*source_digests)[DIGEST_BYTES] = heft__calloc(n, sizeof *source_digests);
    uint8_t *has_digest = heft__calloc(n, 1);
    heft_status_t status = HEFT_OK;
    if (d == NULL || source_digests == NULL || has_digest == NULL ||
        !numbers_init(&d->sources, n) || !numbers_init(&d->ops, n_ops)) {
        status = heft__error_nomem(err, n * sizeof *source_digests);
    } else {
        d->plan = plan;
        d->source_digests = source_digests;
        d->has_digest = has_digest;
        digest_all(d, routes);
    }
    if (d != NULL) {
        numbers_fini(&d->sources);
        numbers_fini(&d->ops);
    }
    heft__free(source_digests);
    heft__free(has_digest);
    heft__free(d);
    return status;
}

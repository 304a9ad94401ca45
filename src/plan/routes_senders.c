/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose work each piece of a rank is: the sender of the tensors that it reads, directly or through
 * known kernels. Constants are dealt last, when it is known who sends the rank anything. A known
 * kernel that needs several senders is the receiver's work, where routes gather; whatever else
 * would need two is counted, and told with its first case.
 */
#include "plan/routes.h"

#include <stdio.h>
#include <string.h>

/* What some pieces read. */
typedef struct seen {
    uint32_t sender; /* HEFT__SENDER_ANY: nothing yet */
    bool is_loaded;  /* something that the loader leaves */
    bool is_mixed;   /* tensors of two senders */
    uint32_t source; /* the first; and the first of another sender */
    uint32_t other;
    const char *op;   /* the kernel in which they meet; NULL: the piece itself */
    bool can_gather;  /* the kernel's inputs are whole pieces of one sender each */
    bool is_gathered; /* the receiver runs it */
} seen_t;

struct heft__sender_finder {
    const heft_plan_t *plan;
    const uint32_t *senders;
    const heft_routes_opts_t *opts;
    seen_t *ops;                 /* of the rank at hand */
    uint8_t *is_refused;         /* by parameter, of the rank at hand */
    heft_route_load_t *gathered; /* of the rank at hand */
    size_t n_gathered, cap_gathered;
    uint64_t n_refused;
    heft_error_t first;
};

heft_status_t heft__sender_finder_create(const heft_plan_t *plan, const uint32_t *senders,
                                         const heft_routes_opts_t *opts,
                                         heft__sender_finder_t **finder_out, heft_error_t *err)
{
    heft__sender_finder_t *f = heft__calloc(1, sizeof *f);
    if (f == NULL) {
        return heft__error_nomem(err, sizeof *f);
    }
    size_t n_ops = 0;
    size_t n_params = 0;
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        n_ops = rank->n_opaques > n_ops ? rank->n_opaques : n_ops;
        n_params = rank->n_params > n_params ? rank->n_params : n_params;
    }
    f->ops = heft__calloc(n_ops + 1, sizeof *f->ops);
    f->is_refused = heft__calloc(n_params + 1, 1);
    if (f->ops == NULL || f->is_refused == NULL) {
        heft__sender_finder_destroy(f);
        return heft__error_nomem(err, n_ops * sizeof *f->ops);
    }
    f->plan = plan;
    f->senders = senders;
    f->opts = opts;
    *finder_out = f;
    return HEFT_OK;
}

void heft__sender_finder_destroy(heft__sender_finder_t *finder)
{
    if (finder != NULL) {
        heft__free(finder->ops);
        heft__free(finder->is_refused);
        heft__free(finder->gathered);
        heft__free(finder);
    }
}

/* The sender that stands for all others in the plan of a part. */
static bool is_behind(const heft__sender_finder_t *f, uint32_t sender)
{
    return f->opts->others != NULL && sender == heft_placement_get_n_ranks(f->opts->others);
}

/* ---- what is read ---- */

static void see_source(const heft__sender_finder_t *f, seen_t *seen, uint32_t source)
{
    const uint32_t sender = f->senders[source];
    if (seen->sender == HEFT__SENDER_ANY) {
        seen->sender = sender;
        seen->source = source;
    } else if (seen->sender != sender && !seen->is_mixed) {
        seen->is_mixed = true;
        seen->other = source;
    }
}

static void see_op(const heft__sender_finder_t *f, seen_t *seen, const seen_t *op)
{
    seen->is_loaded = seen->is_loaded || op->is_loaded;
    if (op->is_mixed && !seen->is_mixed) {
        *seen = *op;
    } else if (op->sender != HEFT__SENDER_ANY) {
        see_source(f, seen, op->source);
    }
}

static void see_piece(const heft__sender_finder_t *f, seen_t *seen, const heft_piece_t *piece)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        if (piece->srcs[s].opaque == 0) {
            see_source(f, seen, piece->srcs[s].source);
        } else {
            see_op(f, seen, &f->ops[piece->srcs[s].opaque - 1]);
        }
    }
}

/* Operations read what earlier ones leave. */
static void see_ops(const heft__sender_finder_t *f, const heft__plan_rank_t *rank)
{
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        const heft_opaque_t *op = &rank->opaques[k];
        seen_t seen = { .sender = HEFT__SENDER_ANY, .is_loaded = !heft__known_claims(op->op) };
        bool can_gather = f->opts->gathers != 0 && heft__operation_is_plain(op);
        for (uint32_t i = 0; i < op->n_inputs; i++) {
            for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
                seen_t alone = { .sender = HEFT__SENDER_ANY };
                see_piece(f, &alone, &op->inputs[i].pieces[p]);
                can_gather = can_gather && !alone.is_mixed;
                see_piece(f, &seen, &op->inputs[i].pieces[p]);
            }
        }
        seen.can_gather = can_gather;
        seen.op = seen.is_mixed && seen.op == NULL ? op->op : seen.op;
        f->ops[k] = seen;
    }
}

/* ---- refusing ---- */

typedef struct sender_name {
    char text[48];
} sender_name_t;

static sender_name_t name_of(const heft__sender_finder_t *f, uint32_t sender)
{
    sender_name_t name;
    if (is_behind(f, sender)) {
        (void)snprintf(name.text, sizeof name.text, "another sender");
    } else if (f->opts->names != NULL && f->opts->names[sender] != NULL) {
        (void)snprintf(name.text, sizeof name.text, "%s", f->opts->names[sender]);
    } else {
        (void)snprintf(name.text, sizeof name.text, "sender %u", (unsigned)sender);
    }
    return name;
}

/* Each parameter counts once. */
static bool is_first_refusal(heft__sender_finder_t *f, uint32_t param)
{
    const bool is_new = f->is_refused[param] == 0;
    f->n_refused += is_new;
    f->is_refused[param] = 1;
    return is_new && f->n_refused == 1;
}

static void refuse(heft__sender_finder_t *f, const heft__plan_rank_t *rank, uint32_t param,
                   const seen_t *seen)
{
    if (!is_first_refusal(f, param)) {
        return;
    }
    const char *what = seen->op != NULL ? seen->op : "one element";
    (void)heft__error_set(
        &f->first, HEFT_ERR_UNSUPPORTED,
        "parameter \"%.70s\": %.*s needs \"%.36s\" of %.24s with \"%.36s\" of "
        "%.24s",
        rank->params[param].name, (int)strcspn(what, "("), what,
        f->plan->sources[seen->source].name, name_of(f, f->senders[seen->source]).text,
        f->plan->sources[seen->other].name, name_of(f, f->senders[seen->other]).text);
}

static void refuse_check(heft__sender_finder_t *f, const heft__plan_rank_t *rank, uint32_t param,
                         uint32_t writer, const seen_t *seen)
{
    if (!is_first_refusal(f, param)) {
        return;
    }
    (void)heft__error_set(&f->first, HEFT_ERR_UNSUPPORTED,
                          "parameter \"%.80s\": what %.30s writes is to be equal to \"%.50s\" of "
                          "%.30s",
                          rank->params[param].name, name_of(f, writer).text,
                          f->plan->sources[seen->source].name, name_of(f, seen->sender).text);
}

heft_status_t heft__sender_finder_check(const heft__sender_finder_t *finder, heft_error_t *err)
{
    if (finder->n_refused == 0) {
        return HEFT_OK;
    }
    if (finder->n_refused == 1) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "%s", finder->first.message);
    }
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "%.200s, and %llu more parameters",
                           finder->first.message, (unsigned long long)finder->n_refused - 1);
}

/* ---- pieces ---- */

/* Whether the receiver runs the kernel that a piece reads. In the plan of a part, where one sender
 * stands for all others, the cuts behind it say whether these are several. */
static heft_status_t judge_kernel(heft__sender_finder_t *f, const heft__plan_rank_t *rank,
                                  const heft_piece_t *piece, bool *is_gathered_out,
                                  heft_error_t *err)
{
    const bool reads = piece->n_srcs == 1 && piece->srcs[0].opaque != 0;
    seen_t *op = reads ? &f->ops[piece->srcs[0].opaque - 1] : NULL;
    heft_status_t status = HEFT_OK;
    *is_gathered_out = false;
    if (op == NULL || !op->can_gather) {
        return HEFT_OK;
    }
    if (!op->is_gathered && op->is_mixed) {
        op->is_gathered = true;
    } else if (!op->is_gathered && is_behind(f, op->sender)) {
        status = heft__operation_is_split(f->opts->others, f->plan,
                                          &rank->opaques[piece->srcs[0].opaque - 1], false,
                                          &op->is_gathered, err);
    }
    *is_gathered_out = op->is_gathered;
    return status;
}

static heft_status_t find_pieces(heft__sender_finder_t *f, const heft__plan_rank_t *rank,
                                 heft__rank_routes_t *routes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint64_t i = 0; i < rank->n_pieces && status == HEFT_OK; i++) {
        seen_t seen = { .sender = HEFT__SENDER_ANY };
        bool is_gathered = false;
        see_piece(f, &seen, &rank->pieces[i]);
        status = judge_kernel(f, rank, &rank->pieces[i], &is_gathered, err);
        if (seen.is_mixed && !seen.is_loaded && !is_gathered) {
            refuse(f, rank, rank->pieces[i].param, &seen);
        }
        routes->piece_sender[i] = seen.is_loaded || is_gathered ? HEFT_SENDER_NONE : seen.sender;
    }
    return status;
}

/* What a piece of a kernel's input brings: it reads one sender's tensors, or is a constant, which
 * is then sent with what the inputs' own routes say of it. */
static heft_status_t add_gathered(heft__sender_finder_t *f, uint32_t rank_index,
                                  const heft_opaque_input_t *input, const heft_piece_t *piece,
                                  heft_error_t *err)
{
    seen_t seen = { .sender = HEFT__SENDER_ANY };
    see_piece(f, &seen, piece);
    if (seen.sender == HEFT__SENDER_ANY || is_behind(f, seen.sender)) {
        return HEFT_OK;
    }
    heft_status_t status = HEFT__GROW(f->gathered, f->cap_gathered, f->n_gathered + 1, err);
    if (status == HEFT_OK) {
        f->gathered[f->n_gathered++] = (heft_route_load_t){
            .rank_index = rank_index,
            .sender = seen.sender,
            .n_bytes = heft__piece_count(piece) * heft_dtype_get_unit_bytes(input->dtype),
        };
    }
    return status;
}

static heft_status_t list_gathered(heft__sender_finder_t *f, uint32_t rank_index, heft_error_t *err)
{
    const heft__plan_rank_t *rank = &f->plan->ranks[rank_index];
    heft_status_t status = HEFT_OK;
    f->n_gathered = 0;
    for (uint32_t k = 0; k < rank->n_opaques; k++) {
        const heft_opaque_t *op = &rank->opaques[k];
        for (uint32_t i = 0; f->ops[k].is_gathered && i < op->n_inputs; i++) {
            for (uint64_t p = 0; p < op->inputs[i].n_pieces && status == HEFT_OK; p++) {
                status = add_gathered(f, rank_index, &op->inputs[i], &op->inputs[i].pieces[p], err);
            }
        }
    }
    return status;
}

const heft_route_load_t *heft__sender_finder_get_gathered(const heft__sender_finder_t *finder,
                                                          uint64_t *n_out)
{
    *n_out = finder->n_gathered;
    return finder->gathered;
}

/* The lowest sender of what is dealt already among n pieces, or HEFT__SENDER_ANY. */
static uint32_t lowest(const uint32_t *piece_sender, uint64_t n)
{
    uint32_t low = HEFT__SENDER_ANY;
    for (uint64_t i = 0; i < n; i++) {
        low = piece_sender[i] < low ? piece_sender[i] : low;
    }
    return low;
}

/* In the plan of a part one sender stands for all others: the lowest of those that it means in n
 * pieces, where that is lower than `low`. */
static heft_status_t look_behind(const heft__sender_finder_t *f, uint32_t rank_index,
                                 const heft__rank_routes_t *routes, uint64_t first, uint64_t n,
                                 uint32_t *low, heft_error_t *err)
{
    const heft__plan_rank_t *rank = &f->plan->ranks[rank_index];
    heft_status_t status = HEFT_OK;
    for (uint64_t i = first; i < first + n && status == HEFT_OK && f->opts->others != NULL; i++) {
        if (is_behind(f, routes->piece_sender[i])) {
            status =
                heft__lowest_holder(f->opts->others, f->plan, rank, &rank->pieces[i], low, err);
        }
    }
    return status;
}

/* Who sends constants of a rank where nobody writes anything else of the parameter. */
static heft_status_t find_fallback(const heft__sender_finder_t *f, uint32_t rank_index,
                                   const heft__rank_routes_t *routes, uint32_t *sender_out,
                                   heft_error_t *err)
{
    const heft__plan_rank_t *rank = &f->plan->ranks[rank_index];
    for (uint32_t p = 0; p < rank->n_params; p++) {
        const uint64_t first = rank->first_piece[p];
        const uint64_t n = rank->first_piece[p + 1] - first;
        uint32_t low = lowest(routes->piece_sender + first, n);
        if (low != HEFT__SENDER_ANY) {
            heft_status_t status = look_behind(f, rank_index, routes, first, n, &low, err);
            *sender_out = low;
            return status;
        }
    }
    uint32_t low = HEFT__SENDER_ANY;
    for (uint64_t i = 0; i < f->opts->n_loads; i++) {
        const heft_route_load_t *load = &f->opts->loads[i];
        low = load->rank_index == rank_index && load->sender < low ? load->sender : low;
    }
    *sender_out = low != HEFT__SENDER_ANY ? low : 0;
    return HEFT_OK;
}

static heft_status_t deal_constants(const heft__sender_finder_t *f, uint32_t rank_index,
                                    heft__rank_routes_t *routes, heft_error_t *err)
{
    const heft__plan_rank_t *rank = &f->plan->ranks[rank_index];
    uint32_t fallback = 0;
    heft_status_t status = find_fallback(f, rank_index, routes, &fallback, err);
    for (uint32_t p = 0; p < rank->n_params && status == HEFT_OK; p++) {
        uint32_t *senders = routes->piece_sender + rank->first_piece[p];
        const uint64_t n = rank->first_piece[p + 1] - rank->first_piece[p];
        uint64_t k = 0;
        while (k < n && senders[k] != HEFT__SENDER_ANY) {
            k++;
        }
        if (k == n) {
            continue;
        }
        uint32_t low = lowest(senders, n);
        if (low != HEFT__SENDER_ANY) {
            status = look_behind(f, rank_index, routes, rank->first_piece[p], n, &low, err);
        }
        for (; k < n && status == HEFT_OK; k++) {
            if (senders[k] == HEFT__SENDER_ANY) {
                senders[k] = low != HEFT__SENDER_ANY ? low : fallback;
            }
        }
    }
    return status;
}

/* ---- checks ---- */

static heft_status_t region_of(const heft_piece_t *piece, heft__region_t *region_out,
                               heft_error_t *err)
{
    heft_view_t view = { .rank = piece->rank, .offset = piece->dst_offset };
    memcpy(view.extent, piece->extent, sizeof view.extent);
    memcpy(view.stride, piece->dst_stride, sizeof view.stride);
    return heft__region_from_view(&view, region_out, err);
}

/* *writer_out: another sender that writes elements which the check compares, or sender. */
static heft_status_t find_other_writer(const heft__plan_rank_t *rank,
                                       const heft__rank_routes_t *routes, const heft_piece_t *check,
                                       uint32_t sender, uint32_t *writer_out, heft_error_t *err)
{
    heft__region_t mine;
    heft_status_t status = region_of(check, &mine, err);
    *writer_out = sender;
    for (uint64_t i = rank->first_piece[check->param];
         i < rank->first_piece[check->param + 1] && status == HEFT_OK && *writer_out == sender;
         i++) {
        heft__region_t its;
        bool meets = false;
        if (routes->piece_sender[i] != sender && routes->piece_sender[i] != HEFT_SENDER_NONE) {
            status = region_of(&rank->pieces[i], &its, err);
            status = status == HEFT_OK ? heft__region_overlaps(&mine, &its, &meets, err) : status;
        }
        *writer_out = meets ? routes->piece_sender[i] : sender;
    }
    return status;
}

static heft_status_t find_checks(heft__sender_finder_t *f, const heft__plan_rank_t *rank,
                                 heft__rank_routes_t *routes, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint64_t i = 0; i < rank->n_checks && status == HEFT_OK; i++) {
        const heft_piece_t *check = &rank->checks[i];
        seen_t seen = { .sender = HEFT__SENDER_ANY };
        uint32_t writer = 0;
        see_piece(f, &seen, check);
        routes->check_sender[i] = seen.sender;
        if (seen.is_mixed) {
            refuse(f, rank, check->param, &seen);
            continue;
        }
        status = find_other_writer(rank, routes, check, seen.sender, &writer, err);
        if (status == HEFT_OK && writer != seen.sender) {
            refuse_check(f, rank, check->param, writer, &seen);
        }
    }
    return status;
}

heft_status_t heft__sender_finder_run(heft__sender_finder_t *finder, uint32_t rank_index,
                                      heft__rank_routes_t *routes, heft_error_t *err)
{
    const heft__plan_rank_t *rank = &finder->plan->ranks[rank_index];
    memset(finder->is_refused, 0, rank->n_params);
    see_ops(finder, rank);
    heft_status_t status = find_pieces(finder, rank, routes, err);
    if (status == HEFT_OK) {
        status = list_gathered(finder, rank_index, err);
    }
    if (status == HEFT_OK) {
        status = deal_constants(finder, rank_index, routes, err);
    }
    return status == HEFT_OK ? find_checks(finder, rank, routes, err) : status;
}

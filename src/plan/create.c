/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a plan: sources, ranks one by one (fold, copy, judge the overwrites, keep checks, drop the
 * fold), readers, groups, proof, digests. The plan is handed out only when the proof has no errors;
 * the report always is, once the proof has run.
 */
#include "plan/plan.h"

#include <string.h>

heft_status_t heft__plan_name_error(heft_error_t *err, heft_status_t status, const char *what,
                                    const char *name)
{
    if (err == NULL) {
        return status;
    }
    char message[sizeof err->message];
    memcpy(message, err->message, sizeof message);
    return heft__error_set(err, status, "%s \"%s\": %s", what, name, message);
}

void heft_plan_destroy(heft_plan_t *plan)
{
    if (plan != NULL) {
        heft__arena_fini(&plan->arena);
        heft__free(plan);
    }
}

/* ---- options ---- */

/* A box is that of elements which may stay as they are. */
static heft_status_t check_box(const heft_exception_t *e, heft_error_t *err)
{
    bool may = e->kind == HEFT_EXCEPTION_UNUSED || e->kind == HEFT_EXCEPTION_UNTOUCHED ||
               e->kind == HEFT_EXCEPTION_DERIVED || e->kind == HEFT_EXCEPTION_FROZEN;
    bool is_good = e->n_dims >= 0 && e->n_dims <= HEFT_MAX_DIMS;
    for (int32_t k = 0; k < e->n_dims && is_good; k++) {
        is_good = e->begin[k] >= 0 && e->begin[k] < e->end[k];
    }
    if (!is_good || (e->n_dims > 0 && !may)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "exception \"%s\": %s", e->pattern,
                               is_good ? "this kind is of whole tensors, and has no box"
                                       : "its box needs 0 <= begin < end in 12 dimensions at most");
    }
    return HEFT_OK;
}

static heft_status_t check_exception(const heft_exception_t *e, uint32_t i, heft_error_t *err)
{
    if (e->kind < HEFT_EXCEPTION_UNUSED || e->kind > HEFT_EXCEPTION_TOGETHER ||
        e->pattern == NULL || e->pattern[0] == '\0' || e->reason == NULL || e->reason[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "exception %u \"%s\": needs a kind, a pattern and a reason",
                               (unsigned)i, e->pattern != NULL ? e->pattern : "");
    }
    heft_status_t status = check_box(e, err);
    return status == HEFT_OK && e->kind == HEFT_EXCEPTION_TOGETHER
               ? heft__together_check(e->pattern, err)
               : status;
}

static heft_status_t load_opts(const heft_plan_opts_t *from, heft_plan_opts_t *to,
                               heft_error_t *err)
{
    *to = (heft_plan_opts_t)HEFT_PLAN_OPTS_INIT;
    heft_status_t status = heft__opts_load(from, to, sizeof *to, "plan options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(to->reserved, sizeof to->reserved, "plan options", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (to->partial > 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "plan options: partial is %d, not 0 or 1",
                               (int)to->partial);
    }
    for (uint32_t i = 0; i < to->n_exceptions && status == HEFT_OK; i++) {
        status = check_exception(&to->exceptions[i], i, err);
    }
    return status;
}

/* ---- building ---- */

typedef struct maker {
    heft_plan_t *plan;
    heft__plan_builder_t builder;
    heft__proof_t proof;
} maker_t;

static heft_status_t begin(maker_t *m, uint32_t n_ranks, uint32_t first_rank,
                           const heft_plan_opts_t *opts, heft_error_t *err)
{
    heft_plan_t *plan = heft__calloc(1, sizeof *plan);
    if (plan == NULL) {
        return heft__error_nomem(err, sizeof *plan);
    }
    heft__arena_init(&plan->arena, 4096);
    m->plan = plan;
    m->builder = (heft__plan_builder_t){ .plan = plan, .max_pieces = opts->max_pieces_per_param };
    heft__map_init(&m->builder.sources);
    heft__map_init(&m->builder.notes);
    plan->n_ranks = n_ranks;
    plan->first_rank = first_rank;
    plan->ranks = heft__arena_calloc(&plan->arena, n_ranks, sizeof *plan->ranks);
    if (plan->ranks == NULL) {
        return heft__error_nomem(err, n_ranks * sizeof *plan->ranks);
    }
    return heft__proof_init(&m->proof, plan, opts, err);
}

static heft_status_t add_rank(maker_t *m, uint32_t r, const heft_tape_t *tape, heft_error_t *err)
{
    heft__fold_t *fold;
    const uint32_t *buffers;
    heft_status_t status = heft__plan_add_rank(&m->builder, r, tape, &fold, &buffers, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__proof_add_overwrites(&m->proof, r, tape, fold, buffers, err);
    if (status == HEFT_OK && m->proof.n_checks > 0) {
        status = heft__plan_add_checks(&m->builder, r, tape, fold, m->proof.checks,
                                       m->proof.n_checks, err);
    }
    heft__fold_destroy(fold);
    return status;
}

static void sum_bytes(heft_plan_t *plan)
{
    for (uint32_t r = 0; r < plan->n_ranks; r++) {
        const heft__plan_rank_t *rank = &plan->ranks[r];
        for (uint64_t i = 0; i < rank->n_pieces; i++) {
            const heft_piece_t *piece = &rank->pieces[i];
            int64_t bytes = heft__piece_count(piece) *
                            heft_dtype_get_unit_bytes(rank->params[piece->param].dtype);
            heft__sum(piece->n_srcs > 0 ? &plan->n_bytes : &plan->n_constant_bytes, bytes);
        }
    }
}

static heft_status_t prove(maker_t *m, heft_error_t *err)
{
    heft_plan_t *plan = m->plan;
    heft__proof_t *proof = &m->proof;
    heft_status_t status = heft__proof_load(proof, err);
    if (status == HEFT_OK) {
        status = heft__plan_make_groups(plan, proof->readers, proof->cover, proof->excuses,
                                        proof->opts->n_exceptions, proof->unused, err);
    }
    sum_bytes(plan);
    if (status == HEFT_OK) {
        status = heft__proof_run(proof, err);
    }
    if (status == HEFT_OK && heft_report_get_n_errors(proof->report) == 0) {
        status = heft__plan_make_digests(plan, err);
    }
    return status;
}

static heft_status_t make(maker_t *m, const heft_tape_t *const *tapes, heft_error_t *err)
{
    heft_status_t status = heft__plan_add_sources(&m->builder, tapes, err);
    for (uint32_t r = 0; r < m->plan->n_ranks && status == HEFT_OK; r++) {
        status = add_rank(m, r, tapes[r], err);
    }
    return status == HEFT_OK ? prove(m, err) : status;
}

/* Recipes give their tapes their name; a loader's has none. */
static bool is_of_recipe(const heft_tape_t *tape)
{
    while (tape->second != NULL) {
        tape = tape->second;
    }
    return tape->title != NULL;
}

heft_status_t heft__plan_create_one(const heft_tape_t *const *tapes, uint32_t n_tapes,
                                    uint32_t first_rank, const heft_plan_opts_t *opts,
                                    const heft__map_t *const *names, heft_plan_t **plan_out,
                                    heft_report_t **report_out, heft_error_t *err)
{
    maker_t m = { 0 };
    heft_status_t status = begin(&m, n_tapes, first_rank, opts, err);
    m.proof.names = names;
    m.proof.has_rules = is_of_recipe(tapes[0]);
    if (status == HEFT_OK) {
        status = make(&m, tapes, err);
    }
    heft_report_t *report = m.proof.report;
    bool is_complete = status == HEFT_OK;
    if (is_complete && heft_report_get_n_errors(report) > 0) {
        status =
            heft__error_set(err, HEFT_ERR_PROOF, "%s; first: %s", heft_report_get_summary(report),
                            heft_report_get_finding(report, 0)->text);
    }
    if (status == HEFT_OK) {
        *plan_out = m.plan;
    } else {
        heft_plan_destroy(m.plan);
    }
    if (is_complete) {
        *report_out = report;
    } else {
        heft_report_destroy(report);
    }
    heft__plan_builder_fini(&m.builder);
    heft__proof_fini(&m.proof);
    return status;
}

/* How many recipes stand behind a tape: 1, but for a chain. */
static int32_t count_stages(const heft_tape_t *tape)
{
    int32_t n = 1;
    for (; tape->second != NULL; tape = tape->second) {
        n += tape->is_placed ? 0 : 1;
    }
    return n;
}

/* Tapes and their ranks, for either kind of plan. */
static heft_status_t check_tapes(const heft_tape_t *const *tapes, uint32_t n_tapes,
                                 uint32_t first_rank, const void *plan_out, heft_error_t *err)
{
    if (tapes == NULL || n_tapes == 0 || plan_out == NULL || first_rank > INT32_MAX ||
        n_tapes > INT32_MAX - first_rank) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "plan of %u tapes from rank %u on",
                               (unsigned)n_tapes, (unsigned)first_rank);
    }
    for (uint32_t r = 0; r < n_tapes; r++) {
        if (tapes[r] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "tape %u of %u is NULL", (unsigned)r,
                                   (unsigned)n_tapes);
        }
    }
    return HEFT_OK;
}

/* ---- parts ---- */

/* What the proof would have made: every parameter is by itself, and in no group. */
static heft_status_t finish_part(heft_plan_t *plan, heft_error_t *err)
{
    const size_t n = (size_t)plan->n_slots + 1;
    plan->group_of = heft__arena_calloc(&plan->arena, n, sizeof *plan->group_of);
    plan->together = heft__arena_calloc(&plan->arena, n, sizeof *plan->together);
    plan->n_kept = heft__arena_calloc(&plan->arena, n, sizeof *plan->n_kept);
    if (plan->group_of == NULL || plan->together == NULL || plan->n_kept == NULL) {
        return heft__error_nomem(err, n * sizeof *plan->n_kept);
    }
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        plan->group_of[slot] = HEFT_GROUP_NONE;
        plan->together[slot] = slot;
    }
    sum_bytes(plan);
    return heft__plan_make_digests(plan, err);
}

heft_status_t heft_plan_create_part(const heft_tape_t *const *parts, uint32_t n_parts,
                                    uint32_t first_rank, const heft_plan_opts_t *opts,
                                    heft_plan_t **plan_out, heft_error_t *err)
{
    heft_plan_opts_t loaded;
    heft_status_t status = load_opts(opts, &loaded, err);
    if (status == HEFT_OK) {
        status = check_tapes(parts, n_parts, first_rank, plan_out, err);
    }
    for (uint32_t i = 0; status == HEFT_OK && i < loaded.n_exceptions; i++) {
        if (loaded.exceptions[i].stage > 0 && loaded.exceptions[i].kind == HEFT_EXCEPTION_EQUAL) {
            status = heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                     "exception %u \"%s\" of recipe %d of a chain: what is checked "
                                     "there shows in whole plans alone",
                                     (unsigned)i, loaded.exceptions[i].pattern,
                                     (int)loaded.exceptions[i].stage);
        }
    }
    if (status != HEFT_OK) {
        return status;
    }
    maker_t m = { 0 };
    status = begin(&m, n_parts, first_rank, &loaded, err);
    if (status == HEFT_OK) {
        status = heft__plan_add_sources(&m.builder, parts, err);
    }
    for (uint32_t r = 0; r < n_parts && status == HEFT_OK; r++) {
        status = add_rank(&m, r, parts[r], err);
    }
    if (status == HEFT_OK) {
        status = finish_part(m.plan, err);
    }
    if (status == HEFT_OK) {
        *plan_out = m.plan;
    } else {
        heft_plan_destroy(m.plan);
    }
    heft_report_destroy(m.proof.report);
    heft__plan_builder_fini(&m.builder);
    heft__proof_fini(&m.proof);
    return status;
}

/* ---- plans ---- */

heft_status_t heft_plan_create(const heft_tape_t *const *tapes, uint32_t n_tapes,
                               uint32_t first_rank, const heft_plan_opts_t *opts,
                               heft_plan_t **plan_out, heft_report_t **report_out,
                               heft_error_t *err)
{
    heft_plan_opts_t loaded;
    heft_status_t status = load_opts(opts, &loaded, err);
    if (status == HEFT_OK) {
        status = check_tapes(tapes, n_tapes, first_rank, plan_out, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    int32_t n_stages = count_stages(tapes[0]);
    for (uint32_t i = 0; i < loaded.n_exceptions; i++) {
        if (loaded.exceptions[i].stage < 0 || loaded.exceptions[i].stage >= n_stages) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "exception %u \"%s\" is of recipe %d of a chain of %d",
                                   (unsigned)i, loaded.exceptions[i].pattern,
                                   (int)loaded.exceptions[i].stage, (int)n_stages);
        }
    }
    return heft__plan_prove(tapes, n_tapes, first_rank, &loaded, plan_out, report_out, err);
}

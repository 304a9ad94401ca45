/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts: made from a manifest and a recipe, or what a loader was traced to do, by folding and
 * proving every rank, and made again from themselves. Equal destinations of several ranks are kept
 * once. The digest is over the content, not over the JSON, so that nothing depends on how a file is
 * indented.
 */
#include "exec/contract_impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "recipe/recipe.h"

const char *heft__exception_kind_name(heft_exception_kind_t kind)
{
    static const char *const names[] = { "unused",    "untouched", "derived", "frozen",
                                         "elsewhere", "equal",     "together" };
    size_t i = (size_t)kind - HEFT_EXCEPTION_UNUSED;
    return i < sizeof names / sizeof names[0] ? names[i] : NULL;
}

/* ---- finishing ---- */

int heft__exception_compare_boxes(const heft_exception_t *a, const heft_exception_t *b)
{
    if (a->n_dims != b->n_dims) {
        return a->n_dims < b->n_dims ? -1 : 1;
    }
    for (int32_t k = 0; k < a->n_dims; k++) {
        if (a->begin[k] != b->begin[k]) {
            return a->begin[k] < b->begin[k] ? -1 : 1;
        }
        if (a->end[k] != b->end[k]) {
            return a->end[k] < b->end[k] ? -1 : 1;
        }
    }
    return 0;
}

static int by_exception(const void *a, const void *b)
{
    const heft_exception_t *x = a;
    const heft_exception_t *y = b;
    if (x->kind != y->kind) {
        return x->kind < y->kind ? -1 : 1;
    }
    int order = strcmp(x->pattern, y->pattern);
    order = order != 0 ? order : heft__exception_compare_boxes(x, y);
    order = order != 0 ? order : strcmp(x->reason, y->reason);
    return order != 0 ? order : x->is_optional - y->is_optional;
}

/* Of a traced loader the plans stand for the tapes: two traces whose threads took turns otherwise
 * are one contract. */
static void hash_loader(heft__sha256_t *hash, const heft_contract_t *c)
{
    heft__sha256_update_u64(hash, c->first_rank);
    heft__sha256_update_u64(hash, c->is_partial);
    heft__sha256_update_u64(hash, c->n_attrs);
    for (uint32_t i = 0; i < c->n_attrs; i++) {
        heft__sha256_update_text(hash, c->attrs[i].key);
        heft__sha256_update_text(hash, c->attrs[i].value);
    }
}

static void hash_box(heft__sha256_t *hash, const heft_exception_t *e)
{
    heft__sha256_update_u64(hash, (uint64_t)e->n_dims);
    for (int32_t k = 0; k < e->n_dims; k++) {
        heft__sha256_update_u64(hash, (uint64_t)e->begin[k]);
        heft__sha256_update_u64(hash, (uint64_t)e->end[k]);
    }
}

static void hash_mapping(heft__sha256_t *hash, const heft_contract_t *c)
{
    if (c->recipe_name != NULL) {
        heft__sha256_update_text(hash, c->recipe_name);
        heft__sha256_update_text(hash, c->recipe_text);
        heft__sha256_update_text(hash, c->bindings);
    } else {
        hash_loader(hash, c);
    }
    heft__sha256_update_text(hash, c->plan);
    heft__sha256_update_u64(hash, c->n_ranks);
    heft__sha256_update_u64(hash, c->n_destinations);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        heft__sha256_update_text(hash, c->ranks[r].plan);
        heft__sha256_update_u64(hash, c->ranks[r].destination);
    }
    for (uint32_t i = 0; i < c->n_destinations; i++) {
        heft__sha256_update_text(hash, heft_manifest_get_digest(c->destinations[i]));
    }
    heft__sha256_update_u64(hash, c->n_exceptions);
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        heft__sha256_update_u64(hash, c->exceptions[i].kind);
        heft__sha256_update_text(hash, c->exceptions[i].pattern);
        heft__sha256_update_text(hash, c->exceptions[i].reason);
        heft__sha256_update_u64(hash, c->exceptions[i].is_optional != 0);
        if (heft__contract_get_format(c) > 1) {
            hash_box(hash, &c->exceptions[i]);
        }
    }
}

int heft__contract_get_format(const heft_contract_t *contract)
{
    bool is_new = contract->has_mapping && contract->recipe_name == NULL;
    for (uint32_t i = 0; i < contract->n_exceptions; i++) {
        is_new = is_new || contract->exceptions[i].n_dims > 0 ||
                 contract->exceptions[i].kind == HEFT_EXCEPTION_TOGETHER;
    }
    return is_new ? HEFT__CONTRACT_FORMAT : 1;
}

void heft__contract_finish(heft_contract_t *contract)
{
    heft__sha256_t hash;
    uint8_t digest[32];
    if (contract->n_exceptions > 1) {
        qsort(contract->exceptions, contract->n_exceptions, sizeof *contract->exceptions,
              by_exception);
    }
    heft__sha256_init(&hash);
    const int format = heft__contract_get_format(contract);
    heft__sha256_update_text(&hash, format == 1 ? "heft contract 1" : "heft contract 2");
    heft__sha256_update_text(&hash, heft_manifest_get_digest(contract->manifest));
    heft__sha256_update_u64(&hash,
                            contract->has_mapping ? (contract->recipe_name != NULL ? 1 : 2) : 0);
    if (contract->has_mapping) {
        hash_mapping(&hash, contract);
    }
    heft__sha256_final(&hash, digest);
    heft__hex(digest, sizeof digest, contract->digest);
}

/* ---- making ---- */

typedef struct maker {
    heft_contract_t *contract;
    const heft_contract_opts_t *opts;
    const heft_bindings_t *bindings;
    heft_tape_t **tapes;
    uint32_t n_ranks;
    heft_exception_t *exceptions;
    uint32_t n_exceptions;
    heft_plan_t *plan;
    heft_report_t *report;
    heft_error_t *err;
} maker_t;

static const heft_manifest_t *destination_of(const maker_t *m, uint32_t rank)
{
    return m->opts->n_destinations > 0 ? m->opts->destinations[rank] : NULL;
}

static heft_status_t check_ranks(maker_t *m)
{
    heft_status_t status =
        heft_recipe_count_ranks(m->opts->recipe, m->bindings, &m->n_ranks, m->err);
    if (status == HEFT_OK && m->opts->n_destinations > 0 && m->opts->n_destinations != m->n_ranks) {
        return heft__error_set(m->err, HEFT_ERR_ARGUMENT,
                               "contract: %u destinations are given, the recipe has %u ranks",
                               m->opts->n_destinations, m->n_ranks);
    }
    return status;
}

static heft_status_t compile_ranks(maker_t *m)
{
    heft__compiler_t *compiler = NULL;
    heft_status_t status = heft__compiler_create(m->opts->recipe, m->bindings,
                                                 m->contract->manifest, &compiler, m->err);
    for (uint32_t r = 0; r < m->n_ranks && status == HEFT_OK; r++) {
        status = heft__compiler_run(compiler, r, destination_of(m, r), false, m->opts->issues,
                                    &m->tapes[r], m->err);
    }
    heft__compiler_destroy(compiler);
    return status;
}

static heft_status_t make_plan(maker_t *m)
{
    const heft_contract_opts_t *opts = m->opts;
    const heft_manifest_t *source = m->contract->manifest;
    m->tapes = heft__calloc((size_t)m->n_ranks + 1, sizeof(heft_tape_t *));
    if (m->tapes == NULL) {
        return heft__error_nomem(m->err, m->n_ranks * sizeof(heft_tape_t *));
    }
    heft_status_t status = compile_ranks(m);
    if (status == HEFT_OK) {
        status =
            heft_recipe_resolve_exceptions(opts->recipe, m->bindings, source, destination_of(m, 0),
                                           &m->exceptions, &m->n_exceptions, m->err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_plan_opts_t plan_opts = HEFT_PLAN_OPTS_INIT;
    plan_opts.exceptions = m->exceptions;
    plan_opts.n_exceptions = m->n_exceptions;
    return heft_plan_create((const heft_tape_t *const *)m->tapes, m->n_ranks, 0, &plan_opts,
                            &m->plan, &m->report, m->err);
}

static char *keep(heft_contract_t *c, const char *text)
{
    return heft__arena_strndup(&c->arena, text, strlen(text));
}

/* Recipe and bindings as texts. */
static heft_status_t keep_inputs(maker_t *m)
{
    heft_contract_t *c = m->contract;
    const char *name = heft_recipe_get_name(m->opts->recipe);
    const char *slash = strrchr(name, '/');
    const char *text = heft_recipe_get_text(m->opts->recipe);
    char *bindings = NULL;
    json_t *probe = json_string(text);
    name = slash != NULL ? slash + 1 : name;
    if (probe == NULL) {
        return heft__error_set(m->err, HEFT_ERR_FORMAT,
                               "contract: recipe \"%.80s\" is no UTF-8, or there is no memory",
                               name);
    }
    json_decref(probe);
    heft_status_t status =
        heft__bindings_encode_read(m->bindings, m->opts->recipe, &bindings, m->err);
    if (status != HEFT_OK) {
        return status;
    }
    c->recipe_name = keep(c, name);
    c->recipe_text = keep(c, text);
    c->bindings = keep(c, bindings);
    heft__free(bindings);
    return c->recipe_name != NULL && c->recipe_text != NULL && c->bindings != NULL
               ? HEFT_OK
               : heft__error_nomem(m->err, strlen(text));
}

static heft_status_t keep_exceptions(heft_contract_t *c, const heft_exception_t *exceptions,
                                     uint32_t n, heft_error_t *err)
{
    c->exceptions = heft__arena_calloc(&c->arena, n, sizeof *c->exceptions);
    for (uint32_t i = 0; i < n && c->exceptions != NULL; i++) {
        heft_exception_t *to = &c->exceptions[i];
        *to = exceptions[i];
        if (to->pattern == NULL || to->reason == NULL || !heft__text_is_clean(to->pattern) ||
            !heft__text_is_clean(to->reason)) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "contract: exception %u needs a pattern and a reason, UTF-8 "
                                   "without control characters",
                                   i);
        }
        to->pattern = keep(c, to->pattern);
        to->reason = keep(c, to->reason);
        to->where = "";
        if (to->pattern == NULL || to->reason == NULL) {
            return heft__error_nomem(err, 0);
        }
    }
    c->n_exceptions = n;
    return c->exceptions != NULL ? HEFT_OK : heft__error_nomem(err, n * sizeof *c->exceptions);
}

uint32_t heft__contract_keep_destination(heft_contract_t *contract, const heft_manifest_t *manifest)
{
    const char *digest = heft_manifest_get_digest(manifest);
    for (uint32_t i = 0; i < contract->n_destinations; i++) {
        if (strcmp(heft_manifest_get_digest(contract->destinations[i]), digest) == 0) {
            return i;
        }
    }
    contract->destinations[contract->n_destinations] = manifest;
    return contract->n_destinations++;
}

/* The digests of the plan, of which the ranks are there. */
static void keep_digests(heft_contract_t *c, const heft_plan_t *plan)
{
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    memcpy(c->plan, info.digest, sizeof c->plan);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        memcpy(c->ranks[r].plan, heft_plan_get_rank_digest(plan, r), sizeof c->ranks[r].plan);
    }
}

static heft_status_t keep_ranks(maker_t *m)
{
    heft_contract_t *c = m->contract;
    c->ranks = heft__arena_calloc(&c->arena, m->n_ranks, sizeof *c->ranks);
    c->destinations = heft__arena_calloc(&c->arena, m->n_ranks, sizeof(heft_manifest_t *));
    if (c->ranks == NULL || c->destinations == NULL) {
        return heft__error_nomem(m->err, m->n_ranks * sizeof *c->ranks);
    }
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        if (destination_of(m, r) != NULL) {
            c->ranks[r].destination = heft__contract_keep_destination(c, destination_of(m, r));
        }
    }
    c->n_ranks = m->n_ranks;
    keep_digests(c, m->plan);
    return HEFT_OK;
}

static heft_status_t make_mapping(maker_t *m)
{
    heft_status_t status = check_ranks(m);
    status = status == HEFT_OK ? make_plan(m) : status;
    m->contract->has_mapping = true;
    status = status == HEFT_OK ? keep_inputs(m) : status;
    status = status == HEFT_OK
                 ? keep_exceptions(m->contract, m->exceptions, m->n_exceptions, m->err)
                 : status;
    return status == HEFT_OK ? keep_ranks(m) : status;
}

static void maker_fini(maker_t *m)
{
    for (uint32_t r = 0; m->tapes != NULL && r < m->n_ranks; r++) {
        heft_tape_destroy(m->tapes[r]);
    }
    heft__free(m->tapes);
    heft_exceptions_free(m->exceptions);
    heft_plan_destroy(m->plan);
    heft_report_destroy(m->report);
}

/* A traced loader: what it holds makes the plan. */
static heft_status_t add_loader(heft_contract_t *contract, const heft_contract_opts_t *opts,
                                heft_report_t **report_out, heft_error_t *err)
{
    heft_plan_t *plan = NULL;
    heft_status_t status = heft__contract_take_tapes(contract, opts, err);
    if (status == HEFT_OK) {
        status = keep_exceptions(contract, opts->exceptions, opts->n_exceptions, err);
    }
    if (status == HEFT_OK) {
        status = heft__contract_make_plan(contract, &plan, report_out, err);
    }
    if (status == HEFT_OK) {
        keep_digests(contract, plan);
    }
    heft_plan_destroy(plan);
    return status;
}

/* Bindings may be left out: an empty set takes their place. */
static heft_status_t add_mapping(heft_contract_t *contract, const heft_contract_opts_t *opts,
                                 heft_report_t **report_out, heft_error_t *err)
{
    maker_t m = { .contract = contract, .opts = opts, .bindings = opts->bindings, .err = err };
    heft_bindings_t *none = NULL;
    heft_status_t status = m.bindings == NULL ? heft_bindings_create(&none, err) : HEFT_OK;
    if (status == HEFT_OK) {
        m.bindings = none != NULL ? none : opts->bindings;
        status = make_mapping(&m);
    }
    if (report_out != NULL && (status == HEFT_OK || status == HEFT_ERR_PROOF)) {
        *report_out = m.report;
        m.report = NULL;
    }
    maker_fini(&m);
    heft_bindings_destroy(none);
    return status;
}

heft_status_t heft__contract_create_empty(heft_contract_t **contract_out, heft_error_t *err)
{
    heft_contract_t *contract = heft__calloc(1, sizeof *contract);
    if (contract == NULL) {
        return heft__error_nomem(err, sizeof *contract);
    }
    heft__arena_init(&contract->arena, 4096);
    *contract_out = contract;
    return HEFT_OK;
}

static heft_status_t misuse(heft_error_t *err, const char *what)
{
    return heft__error_set(err, HEFT_ERR_ARGUMENT, "contract: %s", what);
}

static heft_status_t check_lists(const heft_contract_opts_t *o, heft_error_t *err)
{
    bool is_whole = (o->n_tapes == 0 || o->tapes != NULL) &&
                    (o->n_exceptions == 0 || o->exceptions != NULL) &&
                    (o->n_attrs == 0 || o->attrs != NULL);
    for (uint32_t i = 0; i < o->n_tapes && is_whole; i++) {
        is_whole = o->tapes[i] != NULL;
    }
    if (!is_whole) {
        return misuse(err, "a list or a tape is NULL that is said to be there");
    }
    if (o->n_destinations > 0 && o->destinations == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "contract: no list of %u destinations",
                               o->n_destinations);
    }
    return HEFT_OK;
}

/* What does not go together. */
static heft_status_t check_kind(const heft_contract_opts_t *o, heft_error_t *err)
{
    const bool has_tapes = o->n_tapes > 0;
    const bool has_loader = o->n_exceptions + o->n_attrs > 0 || o->first_rank > 0 || o->partial > 0;
    if (o->recipe != NULL && has_tapes) {
        return misuse(err, "a recipe and tapes are given, a mapping is one of the two");
    }
    if (o->recipe == NULL && o->bindings != NULL) {
        return misuse(err, "bindings are given without a recipe");
    }
    if (o->recipe == NULL && !has_tapes && o->n_destinations > 0) {
        return misuse(err, "destinations are given without a recipe or tapes");
    }
    if (!has_tapes && has_loader) {
        return misuse(err, "exceptions, attributes, a first rank or `partial` without tapes");
    }
    if (o->partial > 1) {
        return misuse(err, "`partial` is neither 0 nor 1");
    }
    if (has_tapes && o->n_destinations > 0 && o->n_destinations != o->n_tapes) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "contract: %u destinations are given, and %u tapes",
                               o->n_destinations, o->n_tapes);
    }
    return HEFT_OK;
}

static heft_status_t load_opts(const heft_manifest_t *manifest, const heft_contract_opts_t *from,
                               heft_contract_opts_t *to, heft_error_t *err)
{
    *to = (heft_contract_opts_t)HEFT_CONTRACT_OPTS_INIT;
    heft_status_t status = heft__opts_load(from, to, sizeof *to, "heft_contract_opts_t", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(&to->reserved, sizeof to->reserved,
                                           "heft_contract_opts_t", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(to->reserved_too, sizeof to->reserved_too,
                                           "heft_contract_opts_t", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = check_kind(to, err);
    status = status == HEFT_OK ? check_lists(to, err) : status;
    if (status != HEFT_OK) {
        return status;
    }
    bool is_finished = manifest != NULL && heft__manifest_is_finished(manifest);
    for (uint32_t i = 0; i < to->n_destinations && is_finished; i++) {
        is_finished =
            to->destinations[i] != NULL && heft__manifest_is_finished(to->destinations[i]);
    }
    return is_finished ? HEFT_OK
                       : heft__error_set(err, HEFT_ERR_STATE,
                                         "contract: a manifest is missing or not finished");
}

heft_status_t heft_contract_create(const heft_manifest_t *manifest,
                                   const heft_contract_opts_t *opts, heft_contract_t **contract_out,
                                   heft_report_t **report_out, heft_error_t *err)
{
    heft_contract_opts_t o;
    heft_contract_t *contract = NULL;
    heft_report_t *report = NULL;
    heft_status_t status = load_opts(manifest, opts, &o, err);
    if (status == HEFT_OK) {
        status = heft__contract_create_empty(&contract, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    contract->manifest = manifest;
    if (o.recipe != NULL) {
        status = add_mapping(contract, &o, &report, err);
    } else if (o.n_tapes > 0) {
        status = add_loader(contract, &o, &report, err);
    }
    if (report_out != NULL && report != NULL) {
        *report_out = report;
    } else {
        heft_report_destroy(report);
    }
    if (status != HEFT_OK) {
        heft_contract_destroy(contract);
        return status;
    }
    heft__contract_finish(contract);
    *contract_out = contract;
    return HEFT_OK;
}

void heft_contract_destroy(heft_contract_t *contract)
{
    if (contract == NULL) {
        return;
    }
    for (uint32_t i = 0; i < contract->n_owned; i++) {
        heft_manifest_destroy(contract->owned[i]);
    }
    for (uint32_t i = 0; i < contract->n_tapes; i++) {
        heft_tape_destroy(contract->tapes[i]);
    }
    heft__arena_fini(&contract->arena);
    heft__free(contract);
}

/* ---- getters ---- */

const char *heft_contract_get_digest(const heft_contract_t *contract)
{
    return contract->digest;
}

const heft_manifest_t *heft_contract_get_manifest(const heft_contract_t *contract)
{
    return contract->manifest;
}

int heft_contract_has_mapping(const heft_contract_t *contract)
{
    return contract->has_mapping ? 1 : 0;
}

int heft_contract_is_traced(const heft_contract_t *contract)
{
    return contract->n_tapes > 0 ? 1 : 0;
}

const heft_tape_t *heft_contract_get_tape(const heft_contract_t *contract, uint32_t i)
{
    return i < contract->n_ranks && contract->n_tapes > 0 ? contract->tapes[contract->ranks[i].tape]
                                                          : NULL;
}

uint32_t heft_contract_get_first_rank(const heft_contract_t *contract)
{
    return contract->first_rank;
}

int heft_contract_is_partial(const heft_contract_t *contract)
{
    return contract->is_partial ? 1 : 0;
}

uint32_t heft_contract_get_n_attrs(const heft_contract_t *contract)
{
    return contract->n_attrs;
}

const heft_contract_attr_t *heft_contract_get_attr(const heft_contract_t *contract, uint32_t i)
{
    return i < contract->n_attrs ? &contract->attrs[i] : NULL;
}

const char *heft_contract_get_recipe_name(const heft_contract_t *contract)
{
    return contract->recipe_name;
}

const char *heft_contract_get_recipe_text(const heft_contract_t *contract)
{
    return contract->recipe_text;
}

const char *heft_contract_get_bindings(const heft_contract_t *contract)
{
    return contract->bindings;
}

const char *heft_contract_get_plan_digest(const heft_contract_t *contract)
{
    return contract->has_mapping ? contract->plan : NULL;
}

uint32_t heft_contract_get_n_ranks(const heft_contract_t *contract)
{
    return contract->n_ranks;
}

const char *heft_contract_get_rank_digest(const heft_contract_t *contract, uint32_t rank)
{
    return rank < contract->n_ranks ? contract->ranks[rank].plan : NULL;
}

const heft_manifest_t *heft_contract_get_destination(const heft_contract_t *contract, uint32_t rank)
{
    return rank < contract->n_ranks && contract->n_destinations > 0
               ? contract->destinations[contract->ranks[rank].destination]
               : NULL;
}

uint32_t heft_contract_get_n_exceptions(const heft_contract_t *contract)
{
    return contract->n_exceptions;
}

const heft_exception_t *heft_contract_get_exception(const heft_contract_t *contract, uint32_t i)
{
    return i < contract->n_exceptions ? &contract->exceptions[i] : NULL;
}

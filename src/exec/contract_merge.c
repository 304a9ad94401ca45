/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several contracts of some ranks each, traced where they run, as the one of all: only together can
 * they be held to use every source element, and exceptions of one rank be held against what the
 * others do.
 */
#include "exec/contract_impl.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"

typedef struct merger {
    const heft_contract_t **parts; /* by first rank */
    uint32_t n_parts;
    uint32_t n_ranks;
    const heft_tape_t **tapes;
    const heft_manifest_t **destinations;
    heft_exception_t *exceptions;
    uint32_t n_exceptions;
    heft_contract_attr_t *attrs;
    uint32_t n_attrs;
    heft__arena_t texts;
    heft_error_t *err;
} merger_t;

static int by_first_rank(const void *a, const void *b)
{
    const heft_contract_t *x = *(const heft_contract_t *const *)a;
    const heft_contract_t *y = *(const heft_contract_t *const *)b;
    return (x->first_rank > y->first_rank) - (x->first_rank < y->first_rank);
}

/* ---- what must agree ---- */

static heft_status_t refuse_manifest(const merger_t *m, const heft_contract_t *part)
{
    heft_drift_t *drift = NULL;
    heft_status_t status = heft_drift_create(m->parts[0]->manifest, part->manifest, &drift, m->err);
    if (status != HEFT_OK) {
        return status;
    }
    const heft_drift_finding_t *first = heft_drift_get(drift, 0);
    status = heft__error_set(m->err, HEFT_ERR_MISMATCH,
                             "contract: ranks from %u and from %u have different sources: %.150s",
                             m->parts[0]->first_rank, part->first_rank,
                             first != NULL ? first->text : "attributes");
    heft_drift_destroy(drift);
    return status;
}

static heft_status_t check_parts(merger_t *m)
{
    uint32_t next = m->parts[0]->first_rank;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        const heft_contract_t *part = m->parts[i];
        if (part->n_tapes == 0) {
            return heft__error_set(m->err, HEFT_ERR_ARGUMENT,
                                   "contract: one to merge is of no traced loader");
        }
        if (strcmp(heft_manifest_get_digest(part->manifest),
                   heft_manifest_get_digest(m->parts[0]->manifest)) != 0) {
            return refuse_manifest(m, part);
        }
        if (part->first_rank != next) {
            return heft__error_set(m->err, HEFT_ERR_ARGUMENT, "contract: rank %u is %s",
                                   part->first_rank < next ? part->first_rank : next,
                                   part->first_rank < next ? "in two contracts" : "in none");
        }
        next += part->n_ranks;
    }
    m->n_ranks = next - m->parts[0]->first_rank;
    return HEFT_OK;
}

/* ---- what is joined ---- */

static bool has_exception(const merger_t *m, const heft_exception_t *e)
{
    for (uint32_t i = 0; i < m->n_exceptions; i++) {
        const heft_exception_t *known = &m->exceptions[i];
        if (known->kind == e->kind && strcmp(known->pattern, e->pattern) == 0 &&
            heft__exception_compare_boxes(known, e) == 0) {
            return true;
        }
    }
    return false;
}

/* An entry of several ranks is one, with the reason that the first gives. */
static void join_exceptions(merger_t *m, const heft_contract_t *part)
{
    for (uint32_t i = 0; i < part->n_exceptions; i++) {
        if (!has_exception(m, &part->exceptions[i])) {
            m->exceptions[m->n_exceptions++] = part->exceptions[i];
        }
    }
}

static const char *value_of(const heft_contract_t *part, const char *key)
{
    for (uint32_t i = 0; i < part->n_attrs; i++) {
        if (strcmp(part->attrs[i].key, key) == 0) {
            return part->attrs[i].value;
        }
    }
    return NULL;
}

static bool is_common(const merger_t *m, const heft_contract_attr_t *attr)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        const char *value = value_of(m->parts[i], attr->key);
        if (value == NULL || strcmp(value, attr->value) != 0) {
            return false;
        }
    }
    return true;
}

/* Of all ranks as it is; of some with their first rank before it: "rank-2.tp_rank". */
static heft_status_t join_attrs(merger_t *m, const heft_contract_t *part)
{
    for (uint32_t i = 0; i < part->n_attrs; i++) {
        heft_contract_attr_t attr = part->attrs[i];
        if (is_common(m, &attr)) {
            if (part != m->parts[0]) {
                continue;
            }
        } else {
            heft__text_t key;
            heft__text_init(&key);
            heft__text_printf(&key, "rank-%u.%s", part->first_rank, attr.key);
            attr.key = key.failed ? NULL : heft__arena_strndup(&m->texts, key.data, key.len);
            heft__text_fini(&key);
            if (attr.key == NULL) {
                return heft__error_nomem(m->err, 0);
            }
        }
        m->attrs[m->n_attrs++] = attr;
    }
    return HEFT_OK;
}

static heft_status_t join(merger_t *m)
{
    size_t n_exceptions = 1;
    size_t n_attrs = 1;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        n_exceptions += m->parts[i]->n_exceptions;
        n_attrs += m->parts[i]->n_attrs;
    }
    m->tapes = heft__calloc((size_t)m->n_ranks + 1, sizeof(heft_tape_t *));
    m->destinations = heft__calloc((size_t)m->n_ranks + 1, sizeof(heft_manifest_t *));
    m->exceptions = heft__calloc(n_exceptions, sizeof *m->exceptions);
    m->attrs = heft__calloc(n_attrs, sizeof *m->attrs);
    if (m->tapes == NULL || m->destinations == NULL || m->exceptions == NULL || m->attrs == NULL) {
        return heft__error_nomem(m->err, n_exceptions * sizeof *m->exceptions);
    }
    uint32_t r = 0;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < m->n_parts && status == HEFT_OK; i++) {
        for (uint32_t k = 0; k < m->parts[i]->n_ranks; k++, r++) {
            m->tapes[r] = heft_contract_get_tape(m->parts[i], k);
            m->destinations[r] = heft_contract_get_destination(m->parts[i], k);
        }
        join_exceptions(m, m->parts[i]);
        status = join_attrs(m, m->parts[i]);
    }
    return status;
}

static heft_status_t create(const merger_t *m, int partial, heft_contract_t **contract_out,
                            heft_report_t **report_out)
{
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    opts.tapes = m->tapes;
    opts.n_tapes = m->n_ranks;
    opts.first_rank = m->parts[0]->first_rank;
    opts.destinations = m->destinations;
    opts.n_destinations = m->n_ranks;
    opts.exceptions = m->exceptions;
    opts.n_exceptions = m->n_exceptions;
    opts.attrs = m->attrs;
    opts.n_attrs = m->n_attrs;
    opts.partial = partial != 0 ? 1 : 0;
    return heft_contract_create(m->parts[0]->manifest, &opts, contract_out, report_out, m->err);
}

heft_status_t heft_contract_merge(const heft_contract_t *const *contracts, uint32_t n_contracts,
                                  int partial, heft_contract_t **contract_out,
                                  heft_report_t **report_out, heft_error_t *err)
{
    if (contracts == NULL || n_contracts == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "contract: none to merge");
    }
    merger_t m = { .n_parts = n_contracts, .err = err };
    heft__arena_init(&m.texts, 1024);
    heft_status_t status = HEFT_OK;
    m.parts = heft__calloc(n_contracts, sizeof(heft_contract_t *));
    if (m.parts == NULL) {
        status = heft__error_nomem(err, n_contracts * sizeof(heft_contract_t *));
    } else {
        memcpy(m.parts, contracts, n_contracts * sizeof(heft_contract_t *));
        qsort(m.parts, n_contracts, sizeof(heft_contract_t *), by_first_rank);
        status = check_parts(&m);
    }
    status = status == HEFT_OK ? join(&m) : status;
    status = status == HEFT_OK ? create(&m, partial, contract_out, report_out) : status;
    heft__free(m.parts);
    heft__free(m.tapes);
    heft__free(m.destinations);
    heft__free(m.exceptions);
    heft__free(m.attrs);
    heft__arena_fini(&m.texts);
    return status;
}

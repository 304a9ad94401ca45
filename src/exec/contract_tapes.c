/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of traced loaders. Tapes are taken against the manifests of the contract: a source or
 * parameter that only the tape has is refused, one that only the manifest has is added, so that the
 * proof sees what no loader reads or writes. Their normal form is kept, equal ones once, and so are
 * destinations.
 */
#include "exec/contract_impl.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "tape/tape.h"

/* ---- names of a tape and of manifests ---- */

/* A tensor of a manifest as a buffer of a tape. */
static heft_status_t make_info(const heft_tensor_info_t *tensor, heft_buffer_kind_t kind,
                               heft_buffer_info_t *info, heft_error_t *err)
{
    *info = (heft_buffer_info_t){ .name = tensor->name, .kind = kind, .dtype = tensor->dtype };
    heft_status_t status = heft_shape_to_storage(&tensor->shape, tensor->dtype, &info->shape, err);
    return status == HEFT_OK ? heft_shape_count(&info->shape, &info->n_elems, err) : status;
}

static bool is_alike(const heft_buffer_info_t *a, const heft_buffer_info_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

static void put_info(heft__text_t *text, const heft_buffer_info_t *info)
{
    heft__text_printf(text, "%s [", heft_dtype_get_name(info->dtype));
    for (int32_t k = 0; k < info->shape.rank; k++) {
        heft__text_printf(text, k > 0 ? ", %lld" : "%lld", (long long)info->shape.extent[k]);
    }
    heft__text_put(text, "]");
}

static heft_status_t refuse_shape(uint32_t rank, const char *what, const heft_buffer_info_t *traced,
                                  const heft_buffer_info_t *listed, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    put_info(&text, traced);
    heft__text_put(&text, " in the tape, ");
    put_info(&text, listed);
    heft_status_t status = text.failed
                               ? heft__error_nomem(err, 0)
                               : heft__error_set(err, HEFT_ERR_SHAPE,
                                                 "contract: rank %u: %s \"%s\": %s in the manifest",
                                                 rank, what, traced->name, text.data);
    heft__text_fini(&text);
    return status;
}

typedef struct taker {
    heft_contract_t *contract;
    const heft_contract_opts_t *opts;
    heft_buffer_info_t *missing; /* what one tape leaves out */
    size_t n_missing;
    size_t cap_missing;
    heft_error_t *err;
} taker_t;

static const char *kind_name(heft_buffer_kind_t kind)
{
    return kind == HEFT_BUFFER_SOURCE ? "source" : "parameter";
}

/* What the manifest lists and the tape leaves out; where both have it they must agree. */
static heft_status_t add_missing(taker_t *t, uint32_t rank, const heft_tape_t *tape,
                                 heft_buffer_kind_t kind, const heft_manifest_t *manifest)
{
    heft_status_t status = HEFT_OK;
    uint32_t n = heft_manifest_get_n_tensors(manifest);
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        heft_buffer_info_t info;
        uint32_t buffer = 0;
        status = make_info(heft__manifest_get(manifest, i), kind, &info, t->err);
        if (status != HEFT_OK) {
            return status;
        }
        if (heft_tape_find_buffer(tape, kind, info.name, &buffer, NULL) == HEFT_OK) {
            if (!is_alike(&tape->buffers[buffer], &info)) {
                return refuse_shape(rank, kind_name(kind), &tape->buffers[buffer], &info, t->err);
            }
            continue;
        }
        void *items = t->missing;
        if (!heft__grow(&items, &t->cap_missing, t->n_missing + 1, sizeof *t->missing)) {
            return heft__error_nomem(t->err, sizeof *t->missing);
        }
        t->missing = items;
        t->missing[t->n_missing++] = info;
    }
    return status;
}

/* What only the tape has. */
static heft_status_t check_names(const taker_t *t, uint32_t rank, const heft_tape_t *tape,
                                 heft_buffer_kind_t kind, const heft_manifest_t *manifest)
{
    for (size_t b = 0; b < tape->n_buffers; b++) {
        uint32_t index;
        heft_error_t why = HEFT_ERROR_INIT;
        if (tape->buffers[b].kind == kind &&
            heft_manifest_find(manifest, tape->buffers[b].name, &index, &why) != HEFT_OK) {
            return heft__error_set(t->err, HEFT_ERR_NAME, "contract: rank %u: %s of the tape: %s",
                                   rank, kind_name(kind), why.message);
        }
    }
    return HEFT_OK;
}

/* ---- destinations ---- */

static heft_status_t make_destination(const heft_tape_t *tape, heft_manifest_t **manifest_out,
                                      heft_error_t *err)
{
    heft_manifest_t *manifest = NULL;
    heft_status_t status = heft_manifest_create("destination", &manifest, err);
    for (size_t b = 0; b < tape->n_buffers && status == HEFT_OK; b++) {
        const heft_buffer_info_t *info = &tape->buffers[b];
        if (info->kind == HEFT_BUFFER_PARAM) {
            heft_shape_t shape;
            heft__shape_to_logical(&info->shape, info->dtype, &shape);
            status = heft_manifest_add(manifest, info->name, info->dtype, &shape, err);
        }
    }
    status = status == HEFT_OK ? heft_manifest_finish(manifest, err) : status;
    if (status != HEFT_OK) {
        heft_manifest_destroy(manifest);
        return status;
    }
    *manifest_out = manifest;
    return HEFT_OK;
}

/* The manifest of this rank, and its place among the distinct ones. */
static heft_status_t keep_destination(taker_t *t, uint32_t i, const heft_tape_t *tape)
{
    heft_contract_t *c = t->contract;
    heft_manifest_t *made = NULL;
    const heft_manifest_t *manifest = t->opts->n_destinations > 0 ? t->opts->destinations[i] : NULL;
    if (manifest == NULL) {
        heft_status_t status = make_destination(tape, &made, t->err);
        if (status != HEFT_OK) {
            return status;
        }
        c->owned[c->n_owned++] = made;
        manifest = made;
    }
    c->ranks[i].destination = heft__contract_keep_destination(c, manifest);
    return HEFT_OK;
}

/* ---- tapes ---- */

uint32_t heft__contract_keep_tape(heft_contract_t *contract, heft_tape_t *tape,
                                  const char digest[HEFT_TAPE_DIGEST_BYTES])
{
    for (uint32_t i = 0; i < contract->n_tapes; i++) {
        if (strcmp(contract->tape_digests[i], digest) == 0) {
            heft_tape_destroy(tape);
            return i;
        }
    }
    memcpy(contract->tape_digests[contract->n_tapes], digest, HEFT_TAPE_DIGEST_BYTES);
    contract->tapes[contract->n_tapes] = tape;
    return contract->n_tapes++;
}

/* The normal form of a tape that fits the manifests. */
static heft_status_t keep_normal(taker_t *t, uint32_t i, const heft_tape_t *tape)
{
    heft_tape_t *normal = NULL;
    char digest[HEFT_TAPE_DIGEST_BYTES];
    heft_status_t status = heft__tape_normalise(tape, t->missing, t->n_missing, &normal, t->err);
    if (status == HEFT_OK) {
        status = heft__tape_make_digest(normal, digest, t->err);
    }
    if (status != HEFT_OK) {
        heft_tape_destroy(normal);
        return status;
    }
    t->contract->ranks[i].tape = heft__contract_keep_tape(t->contract, normal, digest);
    return HEFT_OK;
}

static heft_status_t take_tape(taker_t *t, uint32_t i)
{
    heft_contract_t *c = t->contract;
    const heft_tape_t *tape = t->opts->tapes[i];
    const uint32_t rank = c->first_rank + i;
    heft_status_t status = keep_destination(t, i, tape);
    if (status != HEFT_OK) {
        return status;
    }
    const heft_manifest_t *destination = c->destinations[c->ranks[i].destination];
    t->n_missing = 0;
    status = check_names(t, rank, tape, HEFT_BUFFER_SOURCE, c->manifest);
    status =
        status == HEFT_OK ? check_names(t, rank, tape, HEFT_BUFFER_PARAM, destination) : status;
    status =
        status == HEFT_OK ? add_missing(t, rank, tape, HEFT_BUFFER_SOURCE, c->manifest) : status;
    status =
        status == HEFT_OK ? add_missing(t, rank, tape, HEFT_BUFFER_PARAM, destination) : status;
    return status == HEFT_OK ? keep_normal(t, i, tape) : status;
}

/* ---- attributes ---- */

static int by_key(const void *a, const void *b)
{
    return strcmp(((const heft_contract_attr_t *)a)->key, ((const heft_contract_attr_t *)b)->key);
}

heft_status_t heft__contract_keep_attrs(heft_contract_t *contract,
                                        const heft_contract_attr_t *attrs, uint32_t n,
                                        heft_error_t *err)
{
    contract->attrs = heft__arena_calloc(&contract->arena, n, sizeof *contract->attrs);
    if (contract->attrs == NULL) {
        return heft__error_nomem(err, n * sizeof *contract->attrs);
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *key = attrs[i].key;
        const char *value = attrs[i].value;
        if (key == NULL || key[0] == '\0' || value == NULL || !heft__text_is_clean(key) ||
            !heft__text_is_clean(value)) {
            return heft__error_set(
                err, HEFT_ERR_FORMAT,
                "contract: attribute %u \"%.80s\" needs a key and a value, UTF-8 "
                "without control characters",
                i, key != NULL ? key : "");
        }
        contract->attrs[i].key = heft__arena_strndup(&contract->arena, key, strlen(key));
        contract->attrs[i].value = heft__arena_strndup(&contract->arena, value, strlen(value));
        if (contract->attrs[i].key == NULL || contract->attrs[i].value == NULL) {
            return heft__error_nomem(err, strlen(value));
        }
    }
    if (n > 1) {
        qsort(contract->attrs, n, sizeof *contract->attrs, by_key);
    }
    contract->n_attrs = n;
    for (uint32_t i = 1; i < n; i++) {
        if (strcmp(contract->attrs[i - 1].key, contract->attrs[i].key) == 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "contract: attribute \"%.80s\" twice",
                                   contract->attrs[i].key);
        }
    }
    return HEFT_OK;
}

/* ---- all ---- */

static heft_status_t make_room(heft_contract_t *c, uint32_t n, heft_error_t *err)
{
    c->ranks = heft__arena_calloc(&c->arena, n, sizeof *c->ranks);
    c->destinations = heft__arena_calloc(&c->arena, n, sizeof(heft_manifest_t *));
    c->owned = heft__arena_calloc(&c->arena, n, sizeof(heft_manifest_t *));
    if (c->ranks == NULL || c->destinations == NULL || c->owned == NULL) {
        return heft__error_nomem(err, n * sizeof *c->ranks);
    }
    return heft__contract_make_tape_room(c, n, err);
}

heft_status_t heft__contract_make_tape_room(heft_contract_t *contract, uint32_t n,
                                            heft_error_t *err)
{
    contract->tapes = heft__arena_calloc(&contract->arena, n, sizeof(heft_tape_t *));
    contract->tape_digests =
        heft__arena_calloc(&contract->arena, n, sizeof *contract->tape_digests);
    return contract->tapes != NULL && contract->tape_digests != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n * sizeof *contract->tape_digests);
}

heft_status_t heft__contract_take_tapes(heft_contract_t *contract, const heft_contract_opts_t *opts,
                                        heft_error_t *err)
{
    taker_t t = { .contract = contract, .opts = opts, .err = err };
    contract->has_mapping = true;
    contract->first_rank = opts->first_rank;
    contract->is_partial = opts->partial != 0;
    heft_status_t status = make_room(contract, opts->n_tapes, err);
    status = status == HEFT_OK
                 ? heft__contract_keep_attrs(contract, opts->attrs, opts->n_attrs, err)
                 : status;
    for (uint32_t i = 0; i < opts->n_tapes && status == HEFT_OK; i++) {
        status = take_tape(&t, i);
        contract->n_ranks++;
    }
    heft__free(t.missing);
    return status;
}

static heft_status_t add_all(heft_tape_t *tape, const heft_manifest_t *manifest,
                             heft_buffer_kind_t kind, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest) && status == HEFT_OK; i++) {
        heft_buffer_info_t info;
        uint32_t buffer;
        status = make_info(heft__manifest_get(manifest, i), kind, &info, err);
        status = status == HEFT_OK ? heft__tape_add_storage(tape, &info, &buffer, err) : status;
    }
    return status;
}

heft_status_t heft__contract_make_names(const heft_contract_t *contract, uint32_t destination,
                                        heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = NULL;
    heft_status_t status = heft_tape_create(&tape, err);
    status =
        status == HEFT_OK ? add_all(tape, contract->manifest, HEFT_BUFFER_SOURCE, err) : status;
    status = status == HEFT_OK
                 ? add_all(tape, contract->destinations[destination], HEFT_BUFFER_PARAM, err)
                 : status;
    if (status != HEFT_OK) {
        heft_tape_destroy(tape);
        return status;
    }
    *tape_out = tape;
    return HEFT_OK;
}

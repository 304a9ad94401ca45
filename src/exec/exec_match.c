/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan and a checkpoint, matched by name, dtype and shape, before a byte moves. A message names
 * the first tensor that does not fit and says how many more there are.
 */
#include "exec/exec.h"

#include <stdio.h>
#include <string.h>

heft_shape_t heft__shape_from_storage(const heft_shape_t *storage, heft_dtype_t dtype)
{
    heft_shape_t shape = *storage;
    uint32_t bits = heft_dtype_get_bits(dtype);
    if (shape.rank > 0 && bits % 8 != 0) {
        int64_t bytes = shape.extent[shape.rank - 1];
        /* rows of packed dtypes are whole bytes, so this is exact */
        shape.extent[shape.rank - 1] = bytes / bits * 8 + bytes % bits * 8 / bits;
    }
    return shape;
}

bool heft__param_is_written(const heft_plan_t *plan, uint32_t rank_index, uint32_t param)
{
    heft_tensor_info_t info;
    uint64_t n = 0;
    (void)heft_plan_get_param_pieces(plan, rank_index, param, &n);
    return n > 0 || (heft_plan_query_param(plan, rank_index, param, &info, NULL) == HEFT_OK &&
                     info.n_elems == 0);
}

heft_status_t heft__refuse_opaque(const heft_plan_t *plan, uint32_t first_rank_index,
                                  uint32_t n_ranks, const char *what, heft_error_t *err)
{
    for (uint32_t r = first_rank_index; r < first_rank_index + n_ranks; r++) {
        uint64_t n = 0;
        const heft_piece_t *pieces = heft_plan_get_pieces(plan, r, &n);
        for (uint64_t i = 0; i < n; i++) {
            if (!heft__piece_needs_loader(plan, r, &pieces[i])) {
                continue;
            }
            heft_tensor_info_t param;
            heft_status_t status = heft_plan_query_param(plan, r, pieces[i].param, &param, err);
            return status != HEFT_OK
                       ? status
                       : heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                         "cannot %s parameter \"%s\": only the engine's loader can "
                                         "write it",
                                         what, param.name);
        }
    }
    return HEFT_OK;
}

/* "[2, 3]" */
static void shape_text(const heft_shape_t *shape, char *text, size_t bytes)
{
    size_t used = 0;
    text[used++] = '[';
    for (int k = 0; k < shape->rank && used < bytes; k++) {
        int n = snprintf(text + used, bytes - used, "%s%lld", k > 0 ? ", " : "",
                         (long long)shape->extent[k]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used < bytes) {
        (void)snprintf(text + used, bytes - used, "]");
    }
}

static bool is_same_shape(const heft_shape_t *a, const heft_shape_t *b)
{
    if (a->rank != b->rank) {
        return false;
    }
    for (int k = 0; k < a->rank; k++) {
        if (a->extent[k] != b->extent[k]) {
            return false;
        }
    }
    return true;
}

/* want is in storage units, got is logical. */
static heft_status_t check_tensor(const char *what, const heft_tensor_info_t *want,
                                  const heft_tensor_info_t *got, heft_error_t *err)
{
    heft_shape_t shape = heft__shape_from_storage(&want->shape, want->dtype);
    if (want->dtype == got->dtype && is_same_shape(&shape, &got->shape)) {
        return HEFT_OK;
    }
    char want_text[80];
    char got_text[80];
    shape_text(&shape, want_text, sizeof want_text);
    shape_text(&got->shape, got_text, sizeof got_text);
    return heft__error_set(err, HEFT_ERR_SHAPE, "%s \"%s\": %s %s in the plan, %s %s in the file",
                           what, want->name, heft_dtype_get_name(want->dtype), want_text,
                           heft_dtype_get_name(got->dtype), got_text);
}

/* Tensors that are wanted and not there. */
typedef struct missing {
    const char *what;
    uint32_t n;
    heft_error_t first; /* the manifest's message, which names the nearest */
    char name[160];
} missing_t;

static heft_status_t match_one(const heft_manifest_t *manifest, const heft_tensor_info_t *want,
                               missing_t *missing, uint32_t *index_out, heft_error_t *err)
{
    uint32_t index;
    heft_error_t local = HEFT_ERROR_INIT;
    heft_status_t status = heft_manifest_find(manifest, want->name, &index, &local);
    if (status == HEFT_ERR_NOT_FOUND) {
        if (missing->n++ == 0) {
            missing->first = local;
            (void)snprintf(missing->name, sizeof missing->name, "%s", want->name);
        }
        return HEFT_OK;
    }
    if (status != HEFT_OK) {
        if (err != NULL) {
            *err = local;
        }
        return status;
    }
    heft_tensor_info_t got;
    status = heft_manifest_query(manifest, index, &got, err);
    if (status == HEFT_OK) {
        status = check_tensor(missing->what, want, &got, err);
    }
    if (status == HEFT_OK) {
        *index_out = index;
    }
    return status;
}

static heft_status_t report_missing(const missing_t *missing, heft_error_t *err)
{
    if (missing->n == 0) {
        return HEFT_OK;
    }
    if (missing->n == 1) {
        return heft__error_set(err, HEFT_ERR_NAME, "%s missing: %s", missing->what,
                               missing->first.message);
    }
    return heft__error_set(err, HEFT_ERR_NAME, "%u %ss missing, the first is \"%s\"", missing->n,
                           missing->what, missing->name);
}

static void mark_source(void *arg, uint32_t source)
{
    uint8_t *used = arg;
    used[source] = 1;
}

static void mark_pieces(const heft_plan_t *plan, uint32_t r, const heft_piece_t *pieces, uint64_t n,
                        uint8_t *used)
{
    for (uint64_t i = 0; i < n; i++) {
        heft__piece_each_source(plan, r, &pieces[i], mark_source, used);
    }
}

static void mark_used(const heft_plan_t *plan, uint32_t first_rank_index, uint32_t n_ranks,
                      uint8_t *used)
{
    for (uint32_t r = first_rank_index; r < first_rank_index + n_ranks; r++) {
        uint64_t n = 0;
        const heft_piece_t *pieces = heft_plan_get_pieces(plan, r, &n);
        mark_pieces(plan, r, pieces, n, used);
        pieces = heft_plan_get_checks(plan, r, &n);
        mark_pieces(plan, r, pieces, n, used);
    }
}

/* A tensor that the plan never saw would be dropped without a word. Both lists are in bytewise name
 * order. */
static heft_status_t refuse_unknown(const heft_plan_t *plan, uint32_t n_sources,
                                    const heft_manifest_t *manifest, heft_error_t *err)
{
    uint32_t s = 0;
    heft_tensor_info_t known = { .name = "" };
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest); i++) {
        heft_tensor_info_t have;
        heft_status_t status = heft_manifest_query(manifest, i, &have, err);
        while (status == HEFT_OK && s < n_sources && strcmp(known.name, have.name) < 0) {
            status = heft_plan_query_source(plan, s++, &known, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        if (strcmp(known.name, have.name) != 0) {
            return heft__error_set(err, HEFT_ERR_NAME,
                                   "tensor \"%s\" in the file is no source of the plan", have.name);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__match_sources(const heft_plan_t *plan, uint32_t first_rank_index,
                                  uint32_t n_ranks, const heft_manifest_t *manifest,
                                  uint32_t *index_out, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    uint8_t *used = heft__calloc((size_t)info.n_sources + 1, 1);
    if (used == NULL) {
        return heft__error_nomem(err, info.n_sources);
    }
    mark_used(plan, first_rank_index, n_ranks, used);
    missing_t missing = { .what = "source tensor" };
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; status == HEFT_OK && s < info.n_sources; s++) {
        heft_tensor_info_t want;
        index_out[s] = HEFT__NO_TENSOR;
        if (used[s] == 0) {
            continue;
        }
        status = heft_plan_query_source(plan, s, &want, err);
        if (status == HEFT_OK) {
            status = match_one(manifest, &want, &missing, &index_out[s], err);
        }
    }
    heft__free(used);
    if (status == HEFT_OK) {
        status = report_missing(&missing, err);
    }
    return status == HEFT_OK ? refuse_unknown(plan, info.n_sources, manifest, err) : status;
}

/* A tensor of the checkpoint that is no parameter; both lists are in bytewise name order, and every
 * parameter that was found is in index. */
static heft_status_t refuse_extra(const heft_manifest_t *manifest, const uint32_t *index,
                                  uint32_t n_params, heft_error_t *err)
{
    uint32_t next = 0;
    uint32_t n_extra = 0;
    heft_tensor_info_t first = { .name = NULL };
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest); i++) {
        while (next < n_params && (index[next] == HEFT__NO_TENSOR || index[next] < i)) {
            next++;
        }
        if (next < n_params && index[next] == i) {
            continue;
        }
        heft_tensor_info_t info;
        heft_status_t status = heft_manifest_query(manifest, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (n_extra++ == 0) {
            first = info;
        }
    }
    if (n_extra == 0) {
        return HEFT_OK;
    }
    return heft__error_set(err, HEFT_ERR_NAME,
                           "%u tensors in the file are no parameters of the plan, the first is "
                           "\"%s\"",
                           n_extra, first.name);
}

heft_status_t heft__match_params(const heft_plan_t *plan, uint32_t rank_index,
                                 const heft_checkpoint_t *checkpoint, uint32_t *index_out,
                                 heft_error_t *err)
{
    const heft_manifest_t *manifest = heft_checkpoint_get_manifest(checkpoint);
    uint32_t n = heft_plan_get_n_params(plan, rank_index);
    missing_t missing = { .what = "parameter" };
    missing_t untouched = { .what = "parameter" };
    for (uint32_t p = 0; p < n; p++) {
        heft_tensor_info_t want;
        index_out[p] = HEFT__NO_TENSOR;
        heft_status_t status = heft_plan_query_param(plan, rank_index, p, &want, err);
        missing_t *list = heft__param_is_written(plan, rank_index, p) ? &missing : &untouched;
        if (status == HEFT_OK) {
            status = match_one(manifest, &want, list, &index_out[p], err);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    heft_status_t status = report_missing(&missing, err);
    return status != HEFT_OK ? status : refuse_extra(manifest, index_out, n, err);
}

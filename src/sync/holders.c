/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a placed plan back to entries of manifests, and what placement has dealt to whom. */
#include "sync/holders.h"

#include <stdio.h>
#include <string.h>

/* ---- sources of a plan ---- */

/* The whole tensor that an entry is, or is a box of. */
static heft_status_t find_tensor(const heft__sources_t *sources, const heft__holder_t *holder,
                                 uint32_t *tensor_out, heft_error_t *err)
{
    const heft_manifest_t *manifest = sources->manifests[holder->sender];
    heft_tensor_info_t info;
    heft_part_t part;
    heft_status_t status = heft_manifest_query(manifest, holder->entry, &info, err);
    if (status != HEFT_OK) {
        return status;
    }
    const bool is_part = heft_manifest_query_part(manifest, holder->entry, &part, NULL) == HEFT_OK;
    return heft_manifest_find(sources->whole, is_part ? part.tensor : info.name, tensor_out, err);
}

heft_status_t heft__holders_create(const heft_plan_t *plan, const heft__sources_t *sources,
                                   heft__holder_t **holders_out, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    heft__holder_t *holders = heft__calloc((size_t)info.n_sources + 1, sizeof *holders);
    heft_status_t status =
        holders != NULL ? HEFT_OK : heft__error_nomem(err, info.n_sources * sizeof *holders);
    for (uint32_t s = 0; s < info.n_sources && status == HEFT_OK; s++) {
        heft_tensor_info_t tensor;
        status = heft_plan_query_source(plan, s, &tensor, err);
        if (status == HEFT_OK) {
            status = heft__sources_locate(sources, tensor.name, &holders[s].sender,
                                          &holders[s].entry, err);
        }
        if (status == HEFT_OK) {
            status = find_tensor(sources, &holders[s], &holders[s].tensor, err);
        }
    }
    if (status != HEFT_OK) {
        heft__free(holders);
        return status;
    }
    *holders_out = holders;
    return HEFT_OK;
}

/* ---- what was dealt to a source ---- */

static bool is_empty(const heft_shard_t *cut, int rank)
{
    for (int d = 0; d < rank; d++) {
        if (cut->begin[d] >= cut->end[d]) {
            return true;
        }
    }
    return false;
}

/* The box of an entry within its whole tensor; false: it is of another one. */
static bool get_box(const heft_manifest_t *manifest, uint32_t entry, const char *tensor,
                    heft_shard_t *box)
{
    heft_tensor_info_t info;
    heft_part_t part;
    if (heft_manifest_query(manifest, entry, &info, NULL) != HEFT_OK) {
        return false;
    }
    const bool is_part = heft_manifest_query_part(manifest, entry, &part, NULL) == HEFT_OK;
    if (strcmp(is_part ? part.tensor : info.name, tensor) != 0) {
        return false;
    }
    for (int d = 0; d < info.shape.rank; d++) {
        box->begin[d] = is_part ? part.begin[d] : 0;
        box->end[d] = box->begin[d] + info.shape.extent[d];
    }
    return true;
}

static bool contains(const heft_shard_t *box, const heft_shard_t *cut, int rank)
{
    for (int d = 0; d < rank; d++) {
        if (cut->begin[d] < box->begin[d] || cut->end[d] > box->end[d]) {
            return false;
        }
    }
    return true;
}

/* The entry of a source that holds a cut whole; cuts lie between the borders of all boxes, so
 * whoever holds an element of one holds all of it. UINT32_MAX: none. */
static uint32_t find_entry(const heft_manifest_t *manifest, const heft_shard_t *cut, int rank)
{
    for (uint32_t e = 0; e < heft_manifest_get_n_tensors(manifest); e++) {
        heft_shard_t box;
        if (get_box(manifest, e, cut->tensor, &box) && contains(&box, cut, rank)) {
            return e;
        }
    }
    return UINT32_MAX;
}

/* Cut i, if it is this source's and holds anything. */
static heft_status_t get_cut(const heft__sources_t *sources, uint32_t number, uint32_t i,
                             heft_shard_t *cut, int *rank_out, bool *is_own_out, heft_error_t *err)
{
    heft_tensor_info_t info;
    uint32_t tensor = 0;
    heft_status_t status = heft_placement_query_cut(sources->placement, i, cut, err);
    *is_own_out = false;
    if (status != HEFT_OK || cut->rank != number) {
        return status;
    }
    status = heft_manifest_find(sources->whole, cut->tensor, &tensor, err);
    if (status == HEFT_OK) {
        status = heft_manifest_query(sources->whole, tensor, &info, err);
    }
    if (status == HEFT_OK) {
        *rank_out = info.shape.rank;
        *is_own_out = !is_empty(cut, info.shape.rank);
    }
    return status;
}

heft_status_t heft__holders_mark_chosen(const heft__sources_t *sources, uint32_t number,
                                        bool *chosen, heft_error_t *err)
{
    const heft_manifest_t *manifest = sources->manifests[number];
    const uint32_t n = heft_manifest_get_n_tensors(manifest);
    for (uint32_t e = 0; e < n; e++) {
        chosen[e] = sources->placement == NULL;
    }
    const uint32_t n_cuts =
        sources->placement != NULL ? heft_placement_get_n_cuts(sources->placement) : 0;
    for (uint32_t i = 0; i < n_cuts; i++) {
        heft_shard_t cut;
        int rank = 0;
        bool is_own = false;
        heft_status_t status = get_cut(sources, number, i, &cut, &rank, &is_own, err);
        if (status != HEFT_OK) {
            return status;
        }
        uint32_t entry = 0;
        if (is_own) {
            status =
                heft_manifest_find(manifest, cut.name != NULL ? cut.name : cut.tensor, &entry, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        if (is_own) {
            chosen[entry] = true;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__holders_is_needed(const heft__sources_t *sources, uint32_t number,
                                      bool *needed_out, heft_error_t *err)
{
    const uint32_t n_cuts =
        sources->placement != NULL ? heft_placement_get_n_cuts(sources->placement) : 0;
    *needed_out = sources->placement == NULL;
    for (uint32_t i = 0; i < n_cuts && !*needed_out; i++) {
        heft_shard_t cut;
        int rank = 0;
        bool is_own = false;
        heft_status_t status = get_cut(sources, number, i, &cut, &rank, &is_own, err);
        if (status != HEFT_OK) {
            return status;
        }
        bool has_other = false;
        for (uint32_t s = 0; is_own && s < sources->n && !has_other; s++) {
            has_other = s != number && find_entry(sources->manifests[s], &cut, rank) != UINT32_MAX;
        }
        *needed_out = is_own && !has_other;
    }
    return HEFT_OK;
}

/* ---- names ---- */

void heft__source_label(const heft__sources_t *sources, uint32_t number,
                        char out[HEFT__SOURCE_LABEL_SIZE])
{
    (void)snprintf(out, HEFT__SOURCE_LABEL_SIZE, "source %u.%u", sources->sources[number].replica,
                   sources->sources[number].rank);
}

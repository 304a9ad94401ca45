/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A placement that the tensors of ranks say themselves: rank-0.NAME, rank-1.NAME, .. are the parts
 * of NAME along one dimension, one after the other, as FSDP keeps them.
 */
#include "plan/placement.h"

#include <stdlib.h>
#include <string.h>

#include "heft/names.h"
#include "format/format.h"

typedef struct part {
    uint32_t whole; /* index in the names */
    uint32_t rank;
    heft_tensor_info_t info; /* its name is the whole tensor's */
} part_t;

typedef struct inference {
    int32_t dim;
    part_t *parts; /* by whole tensor, then rank */
    uint32_t n_parts;
    uint32_t n_wholes;
    heft__map_t wholes; /* name -> number */
    heft_shard_t *shards;
    heft_manifest_t *manifest;
    heft_error_t *err;
} inference_t;

static heft_status_t take_parts(inference_t *f, const heft_manifest_t *ranks)
{
    for (uint32_t i = 0; i < f->n_parts; i++) {
        part_t *part = &f->parts[i];
        heft_status_t status = heft_manifest_query(ranks, i, &part->info, f->err);
        if (status != HEFT_OK) {
            return status;
        }
        const char *name = part->info.name;
        if (heft_name_split_rank(name, &part->rank, &part->info.name) == 0) {
            return heft__error_set(f->err, HEFT_ERR_NAME,
                                   "\"%.120s\" is no rank's tensor: names like rank-0.NAME, as of "
                                   "a folder of ranks, are wanted",
                                   name);
        }
        const size_t len = strlen(part->info.name);
        part->whole = heft__map_get(&f->wholes, part->info.name, len);
        if (part->whole == HEFT__MAP_NONE) {
            part->whole = f->n_wholes++;
            if (heft__map_put(&f->wholes, part->info.name, len, part->whole) != HEFT_OK) {
                return heft__error_nomem(f->err, len);
            }
        }
    }
    return HEFT_OK;
}

static int by_whole(const void *x, const void *y)
{
    const part_t *a = x;
    const part_t *b = y;
    if (a->whole != b->whole) {
        return a->whole < b->whole ? -1 : 1;
    }
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* What the parts of one tensor must have in common. */
static heft_status_t check_alike(const inference_t *f, const part_t *first, const part_t *part)
{
    bool is_alike =
        first->info.dtype == part->info.dtype && first->info.shape.rank == part->info.shape.rank;
    for (int d = 0; is_alike && d < first->info.shape.rank; d++) {
        is_alike = d == f->dim || first->info.shape.extent[d] == part->info.shape.extent[d];
    }
    return is_alike ? HEFT_OK
                    : heft__error_set(f->err, HEFT_ERR_SHAPE,
                                      "\"%.100s\": ranks %u and %u hold parts that differ in dtype "
                                      "or in more than dimension %d",
                                      first->info.name, (unsigned)first->rank, (unsigned)part->rank,
                                      (int)f->dim);
}

/* The tensor of parts [begin, end): its shape, and a box for each part. One that has not so many
 * dimensions is held whole by each. */
static heft_status_t put_together(inference_t *f, uint32_t begin, uint32_t end)
{
    const part_t *first = &f->parts[begin];
    heft_shape_t shape = first->info.shape;
    const bool is_cut = f->dim < shape.rank;
    int64_t at = 0;
    for (uint32_t i = begin; i < end; i++) {
        const part_t *part = &f->parts[i];
        heft_status_t status = check_alike(f, first, part);
        if (status != HEFT_OK) {
            return status;
        }
        heft_shard_t *shard = &f->shards[i];
        *shard = (heft_shard_t){ .tensor = part->info.name, .rank = part->rank };
        memcpy(shard->end, part->info.shape.extent, sizeof shard->end);
        if (is_cut) {
            shard->begin[f->dim] = at;
            if (!heft__add(at, part->info.shape.extent[f->dim], &at)) {
                return heft__error_set(f->err, HEFT_ERR_OVERFLOW,
                                       "\"%.100s\": the parts have more than 2^63 rows",
                                       part->info.name);
            }
            shard->end[f->dim] = at;
        }
    }
    if (is_cut) {
        shape.extent[f->dim] = at;
    }
    return heft_manifest_add(f->manifest, first->info.name, first->info.dtype, &shape, f->err);
}

static heft_status_t infer(inference_t *f, const heft_manifest_t *ranks)
{
    f->parts = heft__calloc((size_t)f->n_parts + 1, sizeof *f->parts);
    f->shards = heft__calloc((size_t)f->n_parts + 1, sizeof *f->shards);
    if (f->parts == NULL || f->shards == NULL) {
        return heft__error_nomem(f->err, f->n_parts * sizeof *f->parts);
    }
    heft_status_t status = take_parts(f, ranks);
    if (status == HEFT_OK) {
        status = heft_manifest_create("source", &f->manifest, f->err);
    }
    qsort(f->parts, f->n_parts, sizeof *f->parts, by_whole);
    for (uint32_t begin = 0, end; begin < f->n_parts && status == HEFT_OK; begin = end) {
        for (end = begin + 1; end < f->n_parts && f->parts[end].whole == f->parts[begin].whole;) {
            end++;
        }
        status = put_together(f, begin, end);
    }
    return status == HEFT_OK ? heft_manifest_finish(f->manifest, f->err) : status;
}

heft_status_t heft_placement_infer(const heft_manifest_t *ranks, int32_t dim,
                                   const heft_placement_opts_t *opts,
                                   heft_placement_t **placement_out, heft_manifest_t **tensors_out,
                                   heft_error_t *err)
{
    if (ranks == NULL || dim < 0 || dim >= HEFT_MAX_DIMS || placement_out == NULL ||
        tensors_out == NULL || !heft__manifest_is_finished(ranks)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "placement: a finished manifest, a dimension from 0 to %d and two "
                               "outputs are needed",
                               HEFT_MAX_DIMS - 1);
    }
    inference_t f = { .dim = dim, .n_parts = heft_manifest_get_n_tensors(ranks), .err = err };
    heft__map_init(&f.wholes);
    heft_status_t status = infer(&f, ranks);
    if (status == HEFT_OK) {
        status = heft_placement_create(f.manifest, f.shards, f.n_parts, opts, placement_out, err);
    }
    if (status == HEFT_OK) {
        *tensors_out = f.manifest;
        f.manifest = NULL;
    }
    heft_manifest_destroy(f.manifest);
    heft__map_fini(&f.wholes);
    heft__free(f.parts);
    heft__free(f.shards);
    return status;
}

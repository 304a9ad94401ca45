/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements as objects: tensors and boxes taken in and checked; and a tape whose whole tensors
 * become temporaries that are put together from the boxes, so that folding reads the boxes
 * directly. Who sends what is decided in placement_choice.c.
 */
#include "plan/placement.h"

#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "plan/plan.h"

#define MIN_CUT_BYTES (INT64_C(1) << 20)

/* ---- taking in ---- */

static heft_status_t load_opts(const heft_placement_opts_t *from, heft_placement_opts_t *to,
                               heft_error_t *err)
{
    *to = (heft_placement_opts_t)HEFT_PLACEMENT_OPTS_INIT;
    heft_status_t status = heft__opts_load(from, to, sizeof *to, "placement options", err);
    if (status == HEFT_OK && to->min_cut_bytes < 0) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT, "placement: cuts of %lld bytes",
                                 (long long)to->min_cut_bytes);
    }
    to->min_cut_bytes = to->min_cut_bytes > 0 ? to->min_cut_bytes : MIN_CUT_BYTES;
    return status;
}

static heft_status_t keep_tensors(heft_placement_t *p, const heft_manifest_t *manifest,
                                  heft_error_t *err)
{
    p->n_tensors = heft_manifest_get_n_tensors(manifest);
    p->tensors = heft__arena_calloc(&p->arena, (size_t)p->n_tensors + 1, sizeof *p->tensors);
    p->shapes = heft__arena_calloc(&p->arena, (size_t)p->n_tensors + 1, sizeof *p->shapes);
    if (p->tensors == NULL || p->shapes == NULL) {
        return heft__error_nomem(err, p->n_tensors * sizeof *p->tensors);
    }
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        heft_tensor_info_t *info = &p->tensors[t];
        heft_status_t status = heft_manifest_query(manifest, t, info, err);
        if (status == HEFT_OK) {
            status = heft_shape_to_storage(&info->shape, info->dtype, &p->shapes[t], err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        info->name = heft__arena_strndup(&p->arena, info->name, strlen(info->name));
        if (info->name == NULL) {
            return heft__error_nomem(err, 0);
        }
    }
    return HEFT_OK;
}

static heft_status_t beyond(const heft_shard_t *shard, int dim, int64_t extent, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_SHAPE,
                           "placement: tensor \"%.100s\" rank %u: [%lld..%lld) in dimension %d, "
                           "which has %lld",
                           shard->tensor, (unsigned)shard->rank, (long long)shard->begin[dim],
                           (long long)shard->end[dim], dim, (long long)extent);
}

/* A box in elements, checked, in storage units. */
static heft_status_t take_box(const heft_placement_t *p, uint32_t tensor, const heft_shard_t *shard,
                              heft__bounds_t *box, heft_error_t *err)
{
    const heft_tensor_info_t *info = &p->tensors[tensor];
    const int rank = info->shape.rank;
    const int64_t bits = heft_dtype_get_bits(info->dtype);
    for (int d = 0; d < rank; d++) {
        int64_t begin = shard->begin[d];
        int64_t end = shard->end[d];
        const bool is_packed = d == rank - 1 && bits < 8;
        if (begin < 0 || begin > end || end > info->shape.extent[d] ||
            (is_packed && (begin * bits % 8 != 0 || end * bits % 8 != 0))) {
            return beyond(shard, d, info->shape.extent[d], err);
        }
        box->begin[d] = is_packed ? begin * bits / 8 : begin;
        box->end[d] = is_packed ? end * bits / 8 : end;
    }
    return HEFT_OK;
}

static int by_tensor(const void *x, const void *y)
{
    const heft__held_t *a = x;
    const heft__held_t *b = y;
    if (a->tensor != b->tensor) {
        return a->tensor < b->tensor ? -1 : 1;
    }
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    const int order = memcmp(a->box.begin, b->box.begin, sizeof a->box.begin); /* any will do */
    return order != 0 ? order : strcmp(a->name, b->name);
}

static int by_own_name(const void *x, const void *y)
{
    const heft__held_t *a = *(heft__held_t *const *)x;
    const heft__held_t *b = *(heft__held_t *const *)y;
    if (a->rank != b->rank) {
        return a->rank < b->rank ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

/* Names are sources' names, so one of a rank is one box. */
static heft_status_t check_own_names(heft_placement_t *p, heft_error_t *err)
{
    heft__held_t **order = heft__calloc((size_t)p->n_shards + 1, sizeof(heft__held_t *));
    if (order == NULL) {
        return heft__error_nomem(err, p->n_shards * sizeof(heft__held_t *));
    }
    for (uint32_t i = 0; i < p->n_shards; i++) {
        order[i] = &p->shards[i];
    }
    qsort(order, p->n_shards, sizeof(heft__held_t *), by_own_name);
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 1; i < p->n_shards && status == HEFT_OK; i++) {
        if (by_own_name(&order[i - 1], &order[i]) == 0) {
            status = heft__error_set(err, HEFT_ERR_EXISTS,
                                     "placement: rank %u holds two boxes of \"%.100s\"",
                                     (unsigned)order[i]->rank, order[i]->name);
        }
    }
    heft__free(order);
    return status;
}

static heft_status_t keep_name(heft_placement_t *p, const heft_shard_t *shard, heft__held_t *held,
                               heft_error_t *err)
{
    held->name = p->tensors[held->tensor].name;
    if (shard->name == NULL || strcmp(shard->name, held->name) == 0) {
        return HEFT_OK;
    }
    if (shard->name[0] == '\0' || !heft__text_is_clean(shard->name)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "placement: rank %u holds a box of \"%.100s\" under a name that is "
                               "none: \"%.60s\"",
                               (unsigned)shard->rank, shard->tensor, shard->name);
    }
    held->name = heft__arena_strndup(&p->arena, shard->name, strlen(shard->name));
    return held->name != NULL ? HEFT_OK : heft__error_nomem(err, strlen(shard->name) + 1);
}

static void index_shards(heft_placement_t *p)
{
    for (uint32_t i = 0; i < p->n_shards; i++) {
        p->first_shard[p->shards[i].tensor + 1] = i + 1;
    }
    for (uint32_t t = 0; t < p->n_tensors; t++) { /* those that nobody holds */
        if (p->first_shard[t + 1] < p->first_shard[t]) {
            p->first_shard[t + 1] = p->first_shard[t];
        }
    }
}

static heft_status_t keep_shards(heft_placement_t *p, const heft_manifest_t *manifest,
                                 const heft_shard_t *shards, const uint32_t *replicas, uint32_t n,
                                 heft_error_t *err)
{
    p->shards = heft__arena_calloc(&p->arena, (size_t)n + 1, sizeof *p->shards);
    p->first_shard =
        heft__arena_calloc(&p->arena, (size_t)p->n_tensors + 1, sizeof *p->first_shard);
    if (p->shards == NULL || p->first_shard == NULL) {
        return heft__error_nomem(err, n * sizeof *p->shards);
    }
    for (uint32_t i = 0; i < n; i++) {
        heft__held_t *held = &p->shards[i];
        if (shards[i].tensor == NULL || shards[i].rank >= HEFT__MAX_SHARDS ||
            shards[i].reserved != 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "placement: shard %u has no tensor, or rank %u is beyond %u",
                                   (unsigned)i, (unsigned)shards[i].rank, HEFT__MAX_SHARDS - 1);
        }
        held->rank = shards[i].rank;
        if (heft_manifest_find(manifest, shards[i].tensor, &held->tensor, NULL) != HEFT_OK) {
            return heft__error_set(err, HEFT_ERR_NAME,
                                   "placement: rank %u holds \"%.100s\", which is no tensor",
                                   (unsigned)held->rank, shards[i].tensor);
        }
        held->replica = replicas != NULL ? replicas[i] : 0;
        heft_status_t status = take_box(p, held->tensor, &shards[i], &held->box, err);
        if (status == HEFT_OK) {
            status = keep_name(p, &shards[i], held, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        p->n_ranks = held->rank >= p->n_ranks ? held->rank + 1 : p->n_ranks;
    }
    p->n_shards = n;
    qsort(p->shards, n, sizeof *p->shards, by_tensor);
    index_shards(p);
    return check_own_names(p, err);
}

/* Hosts by numbers below that of ranks: the lowest rank of each. */
static heft_status_t keep_hosts(heft_placement_t *p, const heft_placement_opts_t *opts,
                                heft_error_t *err)
{
    if (opts->hosts == NULL) {
        return HEFT_OK;
    }
    p->host_of = heft__arena_calloc(&p->arena, (size_t)p->n_ranks + 1, sizeof *p->host_of);
    if (p->host_of == NULL) {
        return heft__error_nomem(err, p->n_ranks * sizeof *p->host_of);
    }
    const uint32_t n = opts->n_hosts < p->n_ranks ? opts->n_hosts : p->n_ranks;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        const bool is_neighbour = r > 0 && r < n && opts->hosts[r - 1] == opts->hosts[r];
        uint32_t first = is_neighbour ? p->host_of[r - 1] : 0;
        while (r < n && opts->hosts[first] != opts->hosts[r]) {
            first++;
        }
        p->host_of[r] = r < n ? first : r;
        if (r < n && opts->to_host > 0 && opts->hosts[r] == opts->to_host - 1) {
            p->to_host = first + 1;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__placement_make(const heft_manifest_t *tensors, const heft_shard_t *shards,
                                   const uint32_t *replicas, uint32_t n_shards,
                                   const heft_placement_opts_t *opts, uint32_t n_ranks,
                                   heft__disputes_t *disputes, heft_placement_t **placement_out,
                                   heft_error_t *err)
{
    heft_placement_opts_t loaded;
    heft_status_t status = load_opts(opts, &loaded, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_placement_t *p = heft__calloc(1, sizeof *p);
    if (p == NULL) {
        return heft__error_nomem(err, sizeof *p);
    }
    heft__arena_init(&p->arena, 4096);
    p->min_cut_bytes = loaded.min_cut_bytes;
    p->n_ranks = n_ranks;
    status = keep_tensors(p, tensors, err);
    if (status == HEFT_OK) {
        status = keep_shards(p, tensors, shards, replicas, n_shards, err);
    }
    if (status == HEFT_OK) {
        status = keep_hosts(p, &loaded, err);
    }
    if (status == HEFT_OK) {
        status = heft__placement_choose(p, disputes, err);
    }
    if (status != HEFT_OK) {
        heft_placement_destroy(p);
        return status;
    }
    *placement_out = p;
    return HEFT_OK;
}

heft_status_t heft_placement_create(const heft_manifest_t *tensors, const heft_shard_t *shards,
                                    uint32_t n_shards, const heft_placement_opts_t *opts,
                                    heft_placement_t **placement_out, heft_error_t *err)
{
    if (tensors == NULL || (shards == NULL && n_shards > 0) || n_shards > HEFT__MAX_SHARDS ||
        placement_out == NULL || !heft__manifest_is_finished(tensors)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "placement: a finished manifest, at most %u shards and an output "
                               "are needed",
                               HEFT__MAX_SHARDS);
    }
    return heft__placement_make(tensors, shards, NULL, n_shards, opts, 0, NULL, placement_out, err);
}

void heft_placement_destroy(heft_placement_t *placement)
{
    if (placement != NULL) {
        heft__free(placement->cuts);
        heft__arena_fini(&placement->arena);
        heft__free(placement);
    }
}

uint32_t heft_placement_get_n_ranks(const heft_placement_t *placement)
{
    return placement->n_ranks;
}

int64_t heft_placement_get_load(const heft_placement_t *placement, uint32_t rank)
{
    return rank < placement->n_ranks ? placement->load[rank] : 0;
}

uint32_t heft_placement_get_n_cuts(const heft_placement_t *placement)
{
    return (uint32_t)placement->n_cuts;
}

heft_status_t heft_placement_query_cut(const heft_placement_t *placement, uint32_t i,
                                       heft_shard_t *cut_out, heft_error_t *err)
{
    if (i >= placement->n_cuts) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "cut %u of %zu", (unsigned)i,
                               placement->n_cuts);
    }
    const heft__cut_t *cut = &placement->cuts[i];
    const heft__held_t *held = &placement->shards[cut->shard];
    const heft_tensor_info_t *info = &placement->tensors[held->tensor];
    const int64_t bits = heft_dtype_get_bits(info->dtype);
    *cut_out = (heft_shard_t){ .tensor = info->name, .rank = held->rank, .name = held->name };
    for (int d = 0; d < info->shape.rank; d++) {
        const int64_t unit = d == info->shape.rank - 1 && bits < 8 ? 8 / bits : 1;
        cut_out->begin[d] = cut->box.begin[d] * unit;
        cut_out->end[d] = cut->box.end[d] * unit;
    }
    return HEFT_OK;
}

void heft__placement_digest(const heft_placement_t *p, char out[65])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    heft__sha256_update_text(&sha, "heft placement 1");
    heft__sha256_update_u64(&sha, p->n_ranks);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        heft__sha256_update_text(&sha, p->tensors[t].name);
    }
    for (size_t i = 0; i < p->n_cuts; i++) {
        const heft__cut_t *cut = &p->cuts[i];
        const heft__held_t *held = &p->shards[cut->shard];
        heft__sha256_update_u64(&sha, held->tensor);
        heft__sha256_update_u64(&sha, held->rank);
        heft__sha256_update_text(&sha, held->name);
        for (int d = 0; d < p->shapes[held->tensor].rank; d++) {
            heft__sha256_update_u64(&sha, (uint64_t)cut->box.begin[d]);
            heft__sha256_update_u64(&sha, (uint64_t)cut->box.end[d]);
        }
    }
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, out);
}

/* ---- the tape ---- */

heft_status_t heft__placement_add_buffer(heft_tape_t *tape, heft_buffer_kind_t kind,
                                         const char *name, heft_dtype_t dtype,
                                         const heft_shape_t *storage, uint32_t *buffer_out,
                                         heft_error_t *err)
{
    heft_buffer_info_t info = {
        .name = name, .kind = kind, .dtype = dtype, .shape = *storage, .n_elems = 1
    };
    for (int d = 0; d < storage->rank; d++) {
        info.n_elems *=
            storage->extent[d]; /* no more than the whole tensor's, which were counted */
    }
    return heft__tape_add_storage(tape, &info, buffer_out, err);
}

heft_status_t heft__placement_add_shard(heft_tape_t *tape, const heft_placement_t *p, uint32_t s,
                                        uint32_t *buffer_out, heft_error_t *err)
{
    const heft__held_t *held = &p->shards[s];
    heft_shape_t shape = p->shapes[held->tensor];
    heft__text_t name;
    heft__text_init(&name);
    heft__text_printf(&name, "rank-%u.%s", (unsigned)held->rank, held->name);
    for (int d = 0; d < shape.rank; d++) {
        shape.extent[d] = held->box.end[d] - held->box.begin[d];
    }
    heft_status_t status =
        name.failed
            ? heft__error_nomem(err, name.len)
            : heft__placement_add_buffer(tape, HEFT_BUFFER_SOURCE, name.data,
                                         p->tensors[held->tensor].dtype, &shape, buffer_out, err);
    heft__text_fini(&name);
    return status;
}

heft_view_t heft__placement_view(uint32_t buffer, const heft__bounds_t *box,
                                 const heft__bounds_t *whole, int rank)
{
    heft_view_t view = { .buffer = buffer, .rank = rank };
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        view.extent[d] = box->end[d] - box->begin[d];
        view.stride[d] = stride;
        view.offset += (box->begin[d] - whole->begin[d]) * stride;
        stride *= whole->end[d] - whole->begin[d];
    }
    return view;
}

/* Shards to whole tensors, all of them or those that somebody reads. */
typedef struct gathering {
    const heft_placement_t *p;
    heft_tape_t *tape;
    uint32_t *shard;  /* buffers; HEFT__MAP_NONE: not there */
    uint32_t *tensor; /* likewise */
    heft_error_t *err;
} gathering_t;

static heft_status_t put_together(gathering_t *g)
{
    const heft_placement_t *p = g->p;
    for (size_t i = 0; i < p->n_cuts; i++) {
        const heft__cut_t *cut = &p->cuts[i];
        const heft__held_t *held = &p->shards[cut->shard];
        const heft_shape_t *shape = &p->shapes[held->tensor];
        if (g->tensor[held->tensor] == HEFT__MAP_NONE) {
            continue;
        }
        heft__bounds_t whole = { .begin = { 0 } };
        memcpy(whole.end, shape->extent, sizeof whole.end);
        const heft_view_t dst =
            heft__placement_view(g->tensor[held->tensor], &cut->box, &whole, shape->rank);
        const heft_view_t src =
            heft__placement_view(g->shard[cut->shard], &cut->box, &held->box, shape->rank);
        heft_status_t status = heft_tape_copy(g->tape, &dst, &src, "", g->err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* Which tensors and which shards there are: all, or the tensors that `reader` reads and the shards
 * that have cuts of them. */
static heft_status_t choose(gathering_t *g, const heft_tape_t *reader)
{
    const heft_placement_t *p = g->p;
    const uint8_t fill = reader != NULL ? 0xff : 0;
    memset(g->tensor, fill, p->n_tensors * sizeof *g->tensor);
    memset(g->shard, fill, p->n_shards * sizeof *g->shard);
    if (reader == NULL) {
        return HEFT_OK;
    }
    bool *is_read = heft__calloc(reader->n_buffers + 1, sizeof *is_read);
    if (is_read == NULL) {
        return heft__error_nomem(g->err, reader->n_buffers);
    }
    heft__tape_mark_read(reader, is_read);
    for (uint32_t b = 0; b < reader->n_buffers; b++) {
        const uint32_t t = is_read[b] && reader->buffers[b].kind == HEFT_BUFFER_SOURCE
                               ? heft__placement_find(p, reader->buffers[b].name)
                               : UINT32_MAX;
        if (t != UINT32_MAX) {
            g->tensor[t] = 0;
        }
    }
    heft__free(is_read);
    for (size_t i = 0; i < p->n_cuts; i++) {
        const uint32_t s = p->cuts[i].shard;
        if (g->tensor[p->shards[s].tensor] == 0) {
            g->shard[s] = 0;
        }
    }
    return HEFT_OK;
}

static heft_status_t gather(gathering_t *g)
{
    const heft_placement_t *p = g->p;
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; s < p->n_shards && status == HEFT_OK; s++) {
        if (g->shard[s] == 0) {
            status = heft__placement_add_shard(g->tape, p, s, &g->shard[s], g->err);
        }
    }
    for (uint32_t t = 0; t < p->n_tensors && status == HEFT_OK; t++) {
        if (g->tensor[t] == 0) {
            status = heft__placement_add_buffer(g->tape, HEFT_BUFFER_PARAM, p->tensors[t].name,
                                                p->tensors[t].dtype, &p->shapes[t], &g->tensor[t],
                                                g->err);
        }
    }
    return status == HEFT_OK ? put_together(g) : status;
}

static heft_status_t make_first(const heft_placement_t *p, const heft_tape_t *reader,
                                heft_tape_t **tape_out, heft_error_t *err)
{
    gathering_t g = { .p = p,
                      .shard = heft__calloc((size_t)p->n_shards + 1, sizeof *g.shard),
                      .tensor = heft__calloc((size_t)p->n_tensors + 1, sizeof *g.tensor),
                      .err = err };
    heft_status_t status = g.shard != NULL && g.tensor != NULL
                               ? heft_tape_create(&g.tape, err)
                               : heft__error_nomem(err, p->n_shards * sizeof *g.shard);
    if (status == HEFT_OK) {
        status = choose(&g, reader);
    }
    if (status == HEFT_OK) {
        status = gather(&g);
    }
    heft__free(g.shard);
    heft__free(g.tensor);
    if (status != HEFT_OK) {
        heft_tape_destroy(g.tape);
        return status;
    }
    *tape_out = g.tape;
    return HEFT_OK;
}

static heft_status_t apply(const heft_placement_t *placement, heft_tape_t *tape, bool is_narrow,
                           heft_tape_t **placed_out, heft_error_t *err)
{
    heft_tape_t **firsts = heft__calloc(1, sizeof(heft_tape_t *));
    heft_status_t status = firsts != NULL
                               ? make_first(placement, is_narrow ? tape : NULL, &firsts[0], err)
                               : heft__error_nomem(err, sizeof(heft_tape_t *));
    if (status == HEFT_OK) {
        status = heft__tape_join(firsts, 1, tape, is_narrow, placed_out, err);
    }
    if (status != HEFT_OK) {
        if (firsts != NULL) {
            heft_tape_destroy(firsts[0]);
        }
        heft__free(firsts);
        return status;
    }
    (*placed_out)->is_placed = true;
    return HEFT_OK;
}

heft_status_t heft_placement_apply(const heft_placement_t *placement, heft_tape_t *tape,
                                   heft_tape_t **placed_out, heft_error_t *err)
{
    if (placement == NULL || tape == NULL || placed_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "no placement, tape or output");
    }
    return apply(placement, tape, false, placed_out, err);
}

heft_status_t heft__placement_apply_read(const heft_placement_t *placement, heft_tape_t *tape,
                                         heft_tape_t **placed_out, heft_error_t *err)
{
    return apply(placement, tape, true, placed_out, err);
}

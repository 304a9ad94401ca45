/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a tape that concerns one rank of a placement. Writes that what it sends never reaches
 * are left out before anything is folded; where it does reach a parameter, all that is written
 * there stays, so that it is seen which elements remain its own. What others send comes from one
 * stand-in for each tensor, cut no further than the rank's own boxes are.
 *
 * All parameters stay, so that they keep their numbers.
 */
#include "plan/placement.h"

#include <string.h>

enum { MAX_BOXES = 4096 };

typedef struct parting {
    const heft_placement_t *p;
    uint32_t rank;
    const heft_tape_t *tape;
    uint32_t *tensor;       /* by buffer: of a source that is read, else NO_TENSOR */
    uint8_t *is_own;        /* by buffer: something that the rank sends gets there */
    uint8_t *is_sourced;    /* by buffer: something that anybody sends gets there */
    uint8_t *has_constants; /* by buffer: constants get there */
    uint8_t *is_needed;     /* by buffer */
    uint8_t *wanted;        /* by write */
    uint32_t *ids;          /* by buffer: in the part */
    heft_tape_t *part;
    heft__bounds_t *boxes; /* what is left for others of one tensor */
    size_t n_boxes, cap_boxes;
    heft_error_t *err;
} parting_t;

#define NO_TENSOR UINT32_MAX

/* ---- tensors and cuts ---- */

uint32_t heft__placement_find(const heft_placement_t *p, const char *name)
{
    uint32_t low = 0;
    uint32_t high = p->n_tensors;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (strcmp(p->tensors[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < p->n_tensors && strcmp(p->tensors[low].name, name) == 0 ? low : NO_TENSOR;
}

size_t heft__placement_first_cut(const heft_placement_t *p, uint32_t tensor)
{
    size_t low = 0;
    size_t high = p->n_cuts;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (p->shards[p->cuts[middle].shard].tensor < tensor) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_cut_of(const heft_placement_t *p, size_t i, uint32_t tensor)
{
    return i < p->n_cuts && p->shards[p->cuts[i].shard].tensor == tensor;
}

static bool sends(const heft_placement_t *p, uint32_t rank, uint32_t tensor)
{
    for (size_t i = heft__placement_first_cut(p, tensor); is_cut_of(p, i, tensor); i++) {
        if (p->shards[p->cuts[i].shard].rank == rank) {
            return true;
        }
    }
    return false;
}

/* ---- which writes ---- */

/* A source that a write reads: found once. */
static heft_status_t see_source(parting_t *m, uint32_t buffer)
{
    const heft_buffer_info_t *info = &m->tape->buffers[buffer];
    if (info->kind != HEFT_BUFFER_SOURCE || m->tensor[buffer] != NO_TENSOR) {
        return HEFT_OK;
    }
    const uint32_t t = heft__placement_find(m->p, info->name);
    if (t == NO_TENSOR || m->p->tensors[t].dtype != info->dtype) {
        return heft__error_set(m->err, HEFT_ERR_NAME,
                               "placement: the tape reads \"%.120s\", which is no tensor of it, or "
                               "another one",
                               info->name);
    }
    m->tensor[buffer] = t;
    m->is_own[buffer] = sends(m->p, m->rank, t);
    m->is_sourced[buffer] = 1;
    return HEFT_OK;
}

static heft_status_t mark_forward(parting_t *m)
{
    for (size_t w = 0; w < m->tape->n_writes; w++) {
        const heft__write_t *write = &m->tape->writes[w];
        uint8_t is_own = 0;
        uint8_t is_sourced = 0;
        uint8_t has_constants = write->n_srcs == 0;
        for (uint32_t i = 0; i < write->n_srcs; i++) {
            heft_status_t status = see_source(m, write->srcs[i].buffer);
            if (status != HEFT_OK) {
                return status;
            }
            is_own |= m->is_own[write->srcs[i].buffer];
            is_sourced |= m->is_sourced[write->srcs[i].buffer];
            has_constants |= m->has_constants[write->srcs[i].buffer];
        }
        if (write->kind == HEFT_WRITE_OPAQUE) {
            is_sourced = 0; /* perhaps nobody sends it: a loader's work, or the receiver's */
        }
        for (uint32_t i = 0; i < write->n_dsts; i++) {
            m->is_own[write->dsts[i].buffer] |= is_own;
            m->is_sourced[write->dsts[i].buffer] |= is_sourced;
            m->has_constants[write->dsts[i].buffer] |= has_constants;
        }
    }
    return HEFT_OK;
}

static bool is_param(const parting_t *m, uint32_t b)
{
    return m->tape->buffers[b].kind == HEFT_BUFFER_PARAM;
}

/* The first parameter, by name, of which surely somebody sends something; NULL: there is none. */
static const char *find_sure(const parting_t *m)
{
    const char *sure = NULL;
    for (uint32_t b = 0; b < m->tape->n_buffers; b++) {
        const char *name = m->tape->buffers[b].name;
        if (is_param(m, b) && m->is_sourced[b] != 0 && m->has_constants[b] == 0 &&
            (sure == NULL || strcmp(name, sure) < 0)) {
            sure = name;
        }
    }
    return sure;
}

/* A parameter that comes to constants alone goes to the lowest sender of the first one that does
 * not. Which do shows only once the tape is folded (a rank may hold nothing but the padding of a
 * tensor); so everybody looks at the parameters up to one that surely does not, and whoever sends
 * any of these at all that may. */
static void need_constants(parting_t *m)
{
    const char *sure = find_sure(m);
    bool has_constants = false;
    bool is_first = false;
    for (uint32_t b = 0; b < m->tape->n_buffers; b++) {
        has_constants = has_constants || (is_param(m, b) && m->has_constants[b] != 0);
    }
    for (uint32_t b = 0; b < m->tape->n_buffers && has_constants; b++) {
        if (is_param(m, b) && (sure == NULL || strcmp(m->tape->buffers[b].name, sure) <= 0)) {
            m->is_needed[b] = 1;
            is_first = is_first || m->is_own[b] != 0 || sure == NULL;
        }
    }
    for (uint32_t b = 0; b < m->tape->n_buffers && is_first; b++) {
        m->is_needed[b] |= is_param(m, b) ? m->has_constants[b] : 0;
    }
}

static void mark_backward(parting_t *m)
{
    for (uint32_t b = 0; b < m->tape->n_buffers; b++) {
        m->is_needed[b] = m->tape->buffers[b].kind == HEFT_BUFFER_PARAM && m->is_own[b] != 0;
    }
    need_constants(m);
    for (size_t w = m->tape->n_writes; w-- > 0;) {
        const heft__write_t *write = &m->tape->writes[w];
        for (uint32_t i = 0; i < write->n_dsts && m->wanted[w] == 0; i++) {
            m->wanted[w] = m->is_needed[write->dsts[i].buffer];
        }
        for (uint32_t i = 0; i < write->n_srcs && m->wanted[w] != 0; i++) {
            m->is_needed[write->srcs[i].buffer] = 1;
        }
        for (uint32_t i = 0; i < write->n_dsts && m->wanted[w] != 0; i++) {
            m->is_needed[write->dsts[i].buffer] = 1; /* an operation's other results */
        }
    }
}

/* ---- tensors of the part ---- */

static heft_status_t put_box(parting_t *m, const heft__bounds_t *box)
{
    if (m->n_boxes == MAX_BOXES) {
        return heft__error_set(m->err, HEFT_ERR_LIMIT,
                               "placement: rank %u holds a tensor in too many boxes",
                               (unsigned)m->rank);
    }
    heft_status_t status = HEFT__GROW(m->boxes, m->cap_boxes, m->n_boxes + 1, m->err);
    if (status == HEFT_OK) {
        m->boxes[m->n_boxes++] = *box;
    }
    return status;
}

/* Take a cut, which lies in one or more of the boxes, off them. */
static heft_status_t take_off(parting_t *m, const heft__bounds_t *cut, int rank)
{
    heft_status_t status = HEFT_OK;
    const size_t n = m->n_boxes;
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        heft__bounds_t box = m->boxes[i];
        bool meets = true;
        for (int d = 0; d < rank; d++) {
            meets = meets && cut->begin[d] < box.end[d] && box.begin[d] < cut->end[d];
        }
        if (!meets) {
            continue;
        }
        for (int d = 0; d < rank && status == HEFT_OK; d++) {
            heft__bounds_t side = box;
            side.end[d] = cut->begin[d];
            if (side.begin[d] < side.end[d]) {
                status = put_box(m, &side);
                box.begin[d] = cut->begin[d];
            }
            side = box;
            side.begin[d] = cut->end[d];
            if (status == HEFT_OK && side.begin[d] < side.end[d]) {
                status = put_box(m, &side);
                box.end[d] = cut->end[d];
            }
        }
        m->boxes[i].end[0] = m->boxes[i].begin[0]; /* empty */
    }
    return status;
}

static heft_status_t add_stand_in(parting_t *m, uint32_t t, uint32_t *buffer_out)
{
    heft__text_t name;
    heft__text_init(&name);
    heft__text_printf(&name, "rank-%u.%s", (unsigned)m->p->n_ranks, m->p->tensors[t].name);
    heft_status_t status = name.failed
                               ? heft__error_nomem(m->err, name.len)
                               : heft__placement_add_buffer(m->part, HEFT_BUFFER_SOURCE, name.data,
                                                            m->p->tensors[t].dtype,
                                                            &m->p->shapes[t], buffer_out, m->err);
    heft__text_fini(&name);
    return status;
}

/* A shard's source, which is there already where another cut of it was seen. */
static heft_status_t find_shard(parting_t *m, uint32_t shard, uint32_t *buffer_out)
{
    const heft__held_t *held = &m->p->shards[shard];
    heft__text_t name;
    heft__text_init(&name);
    heft__text_printf(&name, "rank-%u.%s", (unsigned)held->rank, held->name);
    heft_status_t status = name.failed ? heft__error_nomem(m->err, name.len) : HEFT_OK;
    if (status == HEFT_OK) {
        *buffer_out = heft__map_get(&m->part->sources, name.data, name.len);
        if (*buffer_out == HEFT__MAP_NONE) {
            status = heft__placement_add_shard(m->part, m->p, shard, buffer_out, m->err);
        }
    }
    heft__text_fini(&name);
    return status;
}

static heft_status_t copy_own(parting_t *m, uint32_t whole, const heft__bounds_t *bounds,
                              uint32_t t, size_t n_cuts)
{
    const heft_placement_t *p = m->p;
    const int rank = p->shapes[t].rank;
    const size_t first = heft__placement_first_cut(p, t);
    uint32_t last = UINT32_MAX;
    uint32_t buffer = 0;
    heft_status_t status = HEFT_OK;
    for (size_t i = first; i < first + n_cuts && status == HEFT_OK; i++) {
        const heft__cut_t *cut = &p->cuts[i];
        const heft__held_t *held = &p->shards[cut->shard];
        if (held->rank != m->rank) {
            continue;
        }
        if (cut->shard != last) {
            status = find_shard(m, cut->shard, &buffer);
            last = cut->shard;
        }
        if (status == HEFT_OK) {
            const heft_view_t dst = heft__placement_view(whole, &cut->box, bounds, rank);
            const heft_view_t src = heft__placement_view(buffer, &cut->box, &held->box, rank);
            status = heft_tape_copy(m->part, &dst, &src, "", m->err);
        }
        if (status == HEFT_OK) {
            status = take_off(m, &cut->box, rank);
        }
    }
    return status;
}

static bool is_empty_box(const heft__bounds_t *box, int rank)
{
    for (int d = 0; d < rank; d++) {
        if (box->begin[d] >= box->end[d]) {
            return true;
        }
    }
    return false;
}

/* A tensor of which the rank sends something: a temporary of its cuts, and of the rest. */
static heft_status_t add_tensor(parting_t *m, uint32_t t, uint32_t *id_out)
{
    const heft_shape_t *shape = &m->p->shapes[t];
    const size_t first = heft__placement_first_cut(m->p, t);
    heft__bounds_t bounds = { .begin = { 0 } };
    size_t n_cuts = 0;
    memcpy(bounds.end, shape->extent, sizeof bounds.end);
    while (is_cut_of(m->p, first + n_cuts, t)) {
        n_cuts++;
    }
    m->n_boxes = 0;
    heft_status_t status = put_box(m, &bounds);
    if (status == HEFT_OK) {
        status = heft__placement_add_buffer(m->part, HEFT_BUFFER_TEMP, m->p->tensors[t].name,
                                            m->p->tensors[t].dtype, shape, id_out, m->err);
    }
    if (status == HEFT_OK) {
        status = copy_own(m, *id_out, &bounds, t, n_cuts);
    }
    uint32_t others = HEFT__MAP_NONE;
    for (size_t i = 0; i < m->n_boxes && status == HEFT_OK && shape->rank > 0; i++) {
        if (is_empty_box(&m->boxes[i], shape->rank)) {
            continue;
        }
        if (others == HEFT__MAP_NONE) {
            status = add_stand_in(m, t, &others);
        }
        if (status == HEFT_OK) {
            const heft_view_t dst =
                heft__placement_view(*id_out, &m->boxes[i], &bounds, shape->rank);
            const heft_view_t src =
                heft__placement_view(others, &m->boxes[i], &bounds, shape->rank);
            status = heft_tape_copy(m->part, &dst, &src, "", m->err);
        }
    }
    return status;
}

static heft_status_t add_buffers(parting_t *m)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t b = 0; b < m->tape->n_buffers && status == HEFT_OK; b++) {
        const heft_buffer_info_t *info = &m->tape->buffers[b];
        const bool is_source = info->kind == HEFT_BUFFER_SOURCE;
        if (info->kind != HEFT_BUFFER_PARAM && m->is_needed[b] == 0) {
            continue;
        }
        if (is_source && m->is_own[b] != 0) {
            status = add_tensor(m, m->tensor[b], &m->ids[b]);
        } else if (is_source) {
            status = add_stand_in(m, m->tensor[b], &m->ids[b]);
        } else {
            status = heft__tape_add_storage(m->part, info, &m->ids[b], m->err);
        }
    }
    return status;
}

/* ---- all ---- */

static heft_status_t parting_init(parting_t *m)
{
    const size_t n = m->tape->n_buffers + 1;
    m->tensor = heft__calloc(n, sizeof *m->tensor);
    m->is_own = heft__calloc(n, 1);
    m->is_sourced = heft__calloc(n, 1);
    m->has_constants = heft__calloc(n, 1);
    m->is_needed = heft__calloc(n, 1);
    m->wanted = heft__calloc(m->tape->n_writes + 1, 1);
    m->ids = heft__calloc(n, sizeof *m->ids);
    if (m->tensor == NULL || m->is_own == NULL || m->is_sourced == NULL ||
        m->has_constants == NULL || m->is_needed == NULL || m->wanted == NULL || m->ids == NULL) {
        return heft__error_nomem(m->err, n * sizeof *m->tensor);
    }
    memset(m->tensor, 0xff, n * sizeof *m->tensor);
    return heft_tape_create(&m->part, m->err);
}

static void parting_fini(parting_t *m)
{
    heft__free(m->tensor);
    heft__free(m->is_own);
    heft__free(m->is_sourced);
    heft__free(m->has_constants);
    heft__free(m->is_needed);
    heft__free(m->wanted);
    heft__free(m->ids);
    heft__free(m->boxes);
}

heft_status_t heft_placement_apply_part(const heft_placement_t *placement, uint32_t rank,
                                        const heft_tape_t *tape, heft_tape_t **part_out,
                                        heft_error_t *err)
{
    if (placement == NULL || tape == NULL || part_out == NULL || rank >= placement->n_ranks) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "no placement, tape or output, or rank %u of %u", (unsigned)rank,
                               placement != NULL ? (unsigned)placement->n_ranks : 0);
    }
    parting_t m = { .p = placement, .rank = rank, .tape = tape, .err = err };
    heft_status_t status = parting_init(&m);
    if (status == HEFT_OK) {
        status = mark_forward(&m);
    }
    if (status == HEFT_OK) {
        mark_backward(&m);
        status = add_buffers(&m);
    }
    if (status == HEFT_OK) {
        status = heft__tape_play(m.part, tape, m.ids, m.wanted, err);
    }
    parting_fini(&m);
    if (status != HEFT_OK) {
        heft_tape_destroy(m.part);
        return status;
    }
    *part_out = m.part;
    return HEFT_OK;
}

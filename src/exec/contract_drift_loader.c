/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between two traced loaders. Tapes are not compared: one loader may be written down
 * in many ways. Both are folded to plans, and every parameter whose pieces are not those of the
 * other is compared element by element, by joining the pieces of the one with those of the other.
 */
#include "exec/contract_drift.h"

#include <string.h>

#include "format/format.h"
#include "plan/plan.h"

/* ---- what they were traced under ---- */

static void put_attr(heft__text_t *text, const char *when, const heft_contract_attr_t *attr)
{
    if (attr == NULL) {
        heft__text_printf(text, "%s not given", when);
    } else {
        heft__text_printf(text, "%s \"%s\"", when, attr->value);
    }
}

static heft_status_t add_attr(const heft__contract_comparer_t *c, const char *key,
                              const heft_contract_attr_t *was, const heft_contract_attr_t *is)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "loader attribute \"%s\": ", key);
    put_attr(&text, "was", was);
    put_attr(&text, ", is", is);
    return heft__drift_add(c->drift, HEFT_DRIFT_ATTRIBUTE, key, "", &text, c->err);
}

static heft_status_t compare_attrs(const heft__contract_comparer_t *c)
{
    const heft_contract_t *a = c->first;
    const heft_contract_t *b = c->second;
    heft_status_t status = HEFT_OK;
    uint32_t i = 0;
    uint32_t k = 0;
    while ((i < a->n_attrs || k < b->n_attrs) && status == HEFT_OK) {
        const heft_contract_attr_t *was = i < a->n_attrs ? &a->attrs[i] : NULL;
        const heft_contract_attr_t *is = k < b->n_attrs ? &b->attrs[k] : NULL;
        const int order = was == NULL ? 1 : is == NULL ? -1 : strcmp(was->key, is->key);
        if (was != NULL && order < 0) {
            status = add_attr(c, was->key, was, NULL);
        } else if (is != NULL && order > 0) {
            status = add_attr(c, is->key, NULL, is);
        } else if (was != NULL && is != NULL && strcmp(was->value, is->value) != 0) {
            status = add_attr(c, was->key, was, is);
        }
        i += order <= 0;
        k += order >= 0;
    }
    return status;
}

heft_status_t heft__contract_compare_loaders(const heft__contract_comparer_t *c)
{
    const heft_contract_t *a = c->first;
    const heft_contract_t *b = c->second;
    heft_status_t status = compare_attrs(c);
    if (status == HEFT_OK && (a->first_rank != b->first_rank || a->is_partial != b->is_partial)) {
        heft__text_t text;
        heft__text_init(&text);
        heft__text_printf(&text, "ranks: were %s from %u on, are %s from %u on",
                          a->is_partial ? "some" : "all", a->first_rank,
                          b->is_partial ? "some" : "all", b->first_rank);
        status = heft__drift_add(c->drift, HEFT_DRIFT_RANKS, "ranks", "", &text, c->err);
    }
    return status;
}

/* ---- what fills a parameter ---- */

/* Pieces of one parameter on one side, without those that the other side has as well. */
typedef struct side {
    const heft_plan_t *plan;
    const heft__plan_rank_t *rank;
    const heft_tensor_info_t *info;
    const heft_piece_t *pieces;
    uint64_t n_pieces;
    const heft_piece_t **own;
    size_t n_own;
} side_t;

static const char *source_name(const side_t *side, const heft_piece_src_t *src)
{
    return src->opaque > 0 ? side->rank->opaques[src->opaque - 1].op
                           : side->plan->sources[src->source].name;
}

/* The same program over the same tensors. */
static bool is_alike(const side_t *a, const heft_piece_t *x, const side_t *b, const heft_piece_t *y)
{
    if (x->n_srcs != y->n_srcs || x->n_ops != y->n_ops ||
        (x->n_ops > 0 && memcmp(x->ops, y->ops, x->n_ops * sizeof *x->ops) != 0)) {
        return false;
    }
    for (uint32_t s = 0; s < x->n_srcs; s++) {
        if ((x->srcs[s].opaque > 0) != (y->srcs[s].opaque > 0) ||
            strcmp(source_name(a, &x->srcs[s]), source_name(b, &y->srcs[s])) != 0) {
            return false;
        }
    }
    return true;
}

static bool is_equal(const side_t *a, const heft_piece_t *x, const side_t *b, const heft_piece_t *y)
{
    const size_t bytes = (size_t)x->rank * sizeof x->extent[0];
    if (x->rank != y->rank || x->dst_offset != y->dst_offset || !is_alike(a, x, b, y) ||
        memcmp(x->extent, y->extent, bytes) != 0 ||
        memcmp(x->dst_stride, y->dst_stride, bytes) != 0) {
        return false;
    }
    for (uint32_t s = 0; s < x->n_srcs; s++) {
        if (x->srcs[s].offset != y->srcs[s].offset ||
            memcmp(x->srcs[s].stride, y->srcs[s].stride, bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* Both are in the order of their offsets, which are distinct. */
static void drop_equal(side_t *a, side_t *b)
{
    uint64_t i = 0;
    uint64_t k = 0;
    while (i < a->n_pieces || k < b->n_pieces) {
        const heft_piece_t *x = i < a->n_pieces ? &a->pieces[i] : NULL;
        const heft_piece_t *y = k < b->n_pieces ? &b->pieces[k] : NULL;
        bool is_first = y == NULL || (x != NULL && x->dst_offset <= y->dst_offset);
        bool is_second = x == NULL || (y != NULL && y->dst_offset <= x->dst_offset);
        if (!(is_first && is_second && is_equal(a, x, b, y))) {
            if (is_first) {
                a->own[a->n_own++] = x;
            }
            if (is_second) {
                b->own[b->n_own++] = y;
            }
        }
        i += is_first;
        k += is_second;
    }
}

/* ---- where the two differ ---- */

/* The difference with the lowest element. */
typedef struct difference {
    bool is_there;
    const side_t *a;
    const side_t *b;
    const heft_piece_t *x;
    const heft_piece_t *y;
    int64_t n_joint;             /* elements that both write */
    const heft_piece_t *beyond;  /* the first of a that writes more than b */
    const heft_piece_t *first_x; /* of the difference found; NULL: not written */
    const heft_piece_t *first_y;
    heft__box_t box; /* maps: destination, sources of x, sources of y */
} difference_t;

static void piece_to_box(const heft_piece_t *piece, heft__box_t *box)
{
    *box = (heft__box_t){ .rank = piece->rank, .n_maps = 1 + (int32_t)piece->n_srcs };
    box->offset[0] = piece->dst_offset;
    for (int32_t k = 0; k < piece->rank; k++) {
        box->dim[k].extent = piece->extent[k];
        box->dim[k].stride[0] = piece->dst_stride[k];
    }
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        box->offset[1 + s] = piece->srcs[s].offset;
        for (int32_t k = 0; k < piece->rank; k++) {
            box->dim[k].stride[1 + s] = piece->srcs[s].stride[k];
        }
    }
}

static bool reads_the_same(const difference_t *d, const heft__box_t *box)
{
    if (!is_alike(d->a, d->x, d->b, d->y)) {
        return false;
    }
    const uint32_t n = d->x->n_srcs;
    for (uint32_t s = 1; s <= n; s++) {
        if (box->offset[s] != box->offset[s + n]) {
            return false;
        }
        for (int32_t k = 0; k < box->rank; k++) {
            if (box->dim[k].extent > 1 && box->dim[k].stride[s] != box->dim[k].stride[s + n]) {
                return false;
            }
        }
    }
    return true;
}

static heft_status_t see_joint(void *arg, const heft__box_t *box, heft_error_t *err)
{
    difference_t *d = arg;
    int64_t n = 1;
    (void)err;
    for (int32_t k = 0; k < box->rank; k++) {
        n *= box->dim[k].extent;
    }
    d->n_joint += n;
    if (reads_the_same(d, box)) {
        return HEFT_OK;
    }
    heft__box_t normal = *box;
    heft__box_normalize(&normal, 0);
    if (!d->is_there || normal.offset[0] < d->box.offset[0]) {
        d->is_there = true;
        d->box = normal;
        d->first_x = d->x;
        d->first_y = d->y;
    }
    return HEFT_OK;
}

/* The last element that a piece writes; its first is dst_offset. */
static int64_t last_of(const heft_piece_t *piece)
{
    int64_t last = piece->dst_offset;
    for (int32_t k = 0; k < piece->rank; k++) {
        last += (piece->extent[k] - 1) * piece->dst_stride[k];
    }
    return last;
}

/* Pieces are in the order of their first elements: what is found first is mostly the lowest. */
static bool is_lowest(const difference_t *d, const heft_piece_t *next)
{
    return d->is_there && d->box.offset[0] <= next->dst_offset;
}

/* Pairs that are joined at most; beyond, what stands first in both is shown. */
enum { MAX_PAIRS = 1 << 22 };

static int64_t count_own(const side_t *side)
{
    int64_t n = 0;
    for (size_t i = 0; i < side->n_own; i++) {
        n += heft__piece_count(side->own[i]);
    }
    return n;
}

/* Nothing was found where both write: they are cut otherwise and do the same, or one writes more,
 * or there were too many pairs. */
static void conclude(difference_t *d, bool is_complete)
{
    const side_t *a = d->a;
    const side_t *b = d->b;
    if (d->is_there || (is_complete && d->n_joint == count_own(a) && d->n_joint == count_own(b))) {
        return;
    }
    d->is_there = true;
    if (is_complete && d->beyond != NULL) {
        d->first_x = d->beyond;
        piece_to_box(d->beyond, &d->box);
    } else if (is_complete) {
        d->first_y = b->own[0];
        piece_to_box(b->own[0], &d->box);
    } else {
        d->first_x = a->own[0];
        d->first_y = b->own[0];
        piece_to_box(a->own[0], &d->box);
        for (uint32_t s = 0; s < b->own[0]->n_srcs; s++) {
            d->box.offset[1 + a->own[0]->n_srcs + s] = b->own[0]->srcs[s].offset;
        }
    }
}

static heft_status_t find_difference(const side_t *a, const side_t *b, difference_t *d,
                                     heft_error_t *err)
{
    heft__box_work_t work = { 0 };
    heft_status_t status = HEFT_OK;
    int64_t n_pairs = 0;
    *d = (difference_t){ .a = a, .b = b };
    for (size_t i = 0; i < a->n_own && !is_lowest(d, a->own[i]) && status == HEFT_OK; i++) {
        heft__box_t x;
        d->x = a->own[i];
        piece_to_box(d->x, &x);
        const int64_t last = last_of(d->x);
        const int64_t before = d->n_joint;
        for (size_t k = 0; k < b->n_own && b->own[k]->dst_offset <= last && status == HEFT_OK;
             k++) {
            heft__box_t y;
            d->y = b->own[k];
            if (last_of(d->y) < d->x->dst_offset || n_pairs++ >= MAX_PAIRS) {
                continue;
            }
            piece_to_box(d->y, &y);
            status = heft__box_join(&work, &x, &y, see_joint, d, err);
        }
        if (d->beyond == NULL && d->n_joint - before < heft__piece_count(d->x)) {
            d->beyond = d->x;
        }
    }
    heft__box_work_fini(&work);
    if (status == HEFT_OK) {
        conclude(d, n_pairs <= MAX_PAIRS);
    }
    return status;
}

/* ---- saying it ---- */

static void put_index(heft__text_t *text, const heft_shape_t *shape, int64_t element)
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    for (int32_t k = shape->rank; k-- > 0;) {
        index[k] = shape->extent[k] > 0 ? element % shape->extent[k] : 0;
        element = shape->extent[k] > 0 ? element / shape->extent[k] : 0;
    }
    heft__text_put(text, "[");
    for (int32_t k = 0; k < shape->rank; k++) {
        heft__text_printf(text, k > 0 ? ", %lld" : "%lld", (long long)index[k]);
    }
    heft__text_put(text, "]");
}

/* What a piece puts there; its sources' maps begin at map m of the box. */
static void put_value(heft__text_t *text, const side_t *side, const heft_piece_t *piece,
                      const heft__box_t *box, uint32_t m)
{
    if (piece == NULL) {
        heft__text_put(text, "not written");
        return;
    }
    if (piece->n_srcs == 0) {
        heft__text_printf(text, "constant 0x%llx",
                          (unsigned long long)(piece->n_ops > 0 ? piece->ops[0].imm_bits : 0));
        return;
    }
    heft__text_put(text, piece->n_ops > 0 ? "a program over " : "");
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const heft_piece_src_t *src = &piece->srcs[s];
        heft__text_printf(text, s > 0 ? ", %s\"%s\"" : "%s\"%s\"",
                          src->opaque > 0 ? "operation " : "", source_name(side, src));
        if (src->opaque == 0) {
            put_index(text, &side->plan->sources[src->source].shape, box->offset[m + s]);
        }
    }
}

static heft_status_t put_place(heft__text_t *text, const heft_shape_t *shape,
                               const heft__box_t *box, heft_error_t *err)
{
    heft__region_t region = { .rank = box->rank, .offset = box->offset[0] };
    heft__index_box_t place;
    uint64_t n_boxes = 0;
    if (box->rank > HEFT_MAX_DIMS) {
        put_index(text, shape, box->offset[0]);
        return HEFT_OK;
    }
    for (int32_t k = 0; k < box->rank; k++) {
        region.extent[k] = box->dim[k].extent;
        region.stride[k] = box->dim[k].stride[0];
    }
    heft_status_t status = heft__region_to_boxes(&region, shape, &place, 1, &n_boxes, err);
    if (status == HEFT_OK) {
        heft__report_put_range(text, shape->rank, place.begin, place.end);
    }
    return status;
}

static heft_status_t add_param(const heft__contract_comparer_t *c, uint32_t rank, const side_t *a,
                               const side_t *b, const difference_t *d)
{
    heft__text_t text;
    const heft_piece_t *x = d->first_x;
    heft__text_init(&text);
    heft__text_printf(&text, "parameter \"%s\" rank %u: is filled otherwise, first at ",
                      a->info->name, c->first->first_rank + rank);
    heft_status_t status = put_place(&text, &a->info->shape, &d->box, c->err);
    heft__text_put(&text, ": was ");
    put_value(&text, a, x, &d->box, 1);
    heft__text_put(&text, ", is ");
    put_value(&text, b, d->first_y, &d->box, 1 + (x != NULL ? x->n_srcs : 0));
    if (status != HEFT_OK) {
        heft__text_fini(&text);
        return status;
    }
    return heft__drift_add(c->drift, HEFT_DRIFT_PLAN, a->info->name, "", &text, c->err);
}

/* ---- all parameters of all ranks ---- */

static side_t side_of(const heft_plan_t *plan, uint32_t rank, uint32_t param)
{
    const heft__plan_rank_t *r = &plan->ranks[rank];
    return (side_t){ .plan = plan,
                     .rank = r,
                     .info = &r->params[param],
                     .pieces = r->pieces + r->first_piece[param],
                     .n_pieces = r->first_piece[param + 1] - r->first_piece[param] };
}

static heft_status_t compare_param(const heft__contract_comparer_t *c, uint32_t rank, side_t *a,
                                   side_t *b, bool *differs)
{
    a->own = heft__calloc(a->n_pieces + b->n_pieces + 1, sizeof(heft_piece_t *));
    if (a->own == NULL) {
        return heft__error_nomem(c->err, (a->n_pieces + b->n_pieces) * sizeof(heft_piece_t *));
    }
    b->own = a->own + a->n_pieces;
    drop_equal(a, b);
    heft_status_t status = HEFT_OK;
    *differs = a->n_own + b->n_own > 0;
    if (*differs) {
        difference_t difference;
        status = find_difference(a, b, &difference, c->err);
        *differs = status == HEFT_OK && difference.is_there;
        status = *differs ? add_param(c, rank, a, b, &difference) : status;
    }
    heft__free(a->own);
    return status;
}

/* What fills a parameter can be compared where an element of the one is an element of the other. */
static bool is_same_shape(const heft_tensor_info_t *a, const heft_tensor_info_t *b)
{
    return a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

/* Parameters that both have, in one shape; anything else is a finding of the destinations. */
static heft_status_t compare_rank(const heft__contract_comparer_t *c, const heft_plan_t *first,
                                  const heft_plan_t *second, uint32_t rank, heft__map_t *said)
{
    const heft__plan_rank_t *x = &first->ranks[rank];
    const heft__plan_rank_t *y = &second->ranks[rank];
    heft_status_t status = HEFT_OK;
    uint32_t i = 0;
    uint32_t k = 0;
    while (i < x->n_params && k < y->n_params && status == HEFT_OK) {
        int order = strcmp(x->params[i].name, y->params[k].name);
        if (order == 0 && is_same_shape(&x->params[i], &y->params[k]) &&
            heft__map_get(said, x->params[i].name, strlen(x->params[i].name)) == HEFT__MAP_NONE) {
            side_t a = side_of(first, rank, i);
            side_t b = side_of(second, rank, k);
            bool differs = false;
            status = compare_param(c, rank, &a, &b, &differs);
            if (status == HEFT_OK && differs &&
                heft__map_put(said, a.info->name, strlen(a.info->name), rank) == HEFT_ERR_NOMEM) {
                status = heft__error_nomem(c->err, strlen(a.info->name));
            }
        }
        i += order <= 0;
        k += order >= 0;
    }
    return status;
}

/* Nothing of the above explains it: operations, checks, groups, what is read and not used. */
static heft_status_t add_rest(const heft__contract_comparer_t *c, const char *what)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text,
                      "plan %s: was %.16s.., is %.16s.., and no parameter is filled otherwise: "
                      "operations, checks, sources or groups differ",
                      what, c->first->plan, c->second->plan);
    return heft__drift_add(c->drift, HEFT_DRIFT_PLAN, "plan", "", &text, c->err);
}

static heft_status_t compare_made(const heft__contract_comparer_t *c, const heft_plan_t *first,
                                  const heft_plan_t *second)
{
    const uint32_t before = heft_drift_get_n(c->drift);
    heft_status_t status = HEFT_OK;
    heft__map_t said;
    heft__map_init(&said);
    for (uint32_t r = 0; r < first->n_ranks && r < second->n_ranks && status == HEFT_OK; r++) {
        if (strcmp(first->ranks[r].digest, second->ranks[r].digest) != 0) {
            status = compare_rank(c, first, second, r, &said);
        }
    }
    heft__map_fini(&said);
    return status == HEFT_OK && before == 0 && heft_drift_get_n(c->drift) == 0
               ? add_rest(c, "of the loaders")
               : status;
}

/* One side is refused by this heft: then that is what is to be said. */
static heft_status_t add_refusal(const heft__contract_comparer_t *c, const char *which,
                                 const heft_error_t *cause)
{
    heft__text_t text;
    heft__text_init(&text);
    heft__text_printf(&text, "the %s contract is refused, so plans are not compared: %s", which,
                      cause->message);
    return heft__drift_add(c->drift, HEFT_DRIFT_PLAN, "plan", "", &text, c->err);
}

heft_status_t heft__contract_compare_plans(const heft__contract_comparer_t *c)
{
    if (strcmp(c->first->plan, c->second->plan) == 0) {
        return HEFT_OK;
    }
    heft_plan_t *plans[2] = { NULL, NULL };
    const heft_contract_t *contracts[2] = { c->first, c->second };
    const char *which[2] = { "first", "second" };
    heft_status_t status = HEFT_OK;
    bool is_made = true;
    for (int i = 0; i < 2 && status == HEFT_OK && is_made; i++) {
        heft_error_t cause = HEFT_ERROR_INIT;
        status = heft__contract_make_plan(contracts[i], &plans[i], NULL, &cause);
        is_made = status == HEFT_OK;
        if (status == HEFT_ERR_NOMEM) {
            status = heft__error_set(c->err, status, "%s", cause.message);
        } else if (!is_made) {
            status = add_refusal(c, which[i], &cause);
        }
    }
    if (status == HEFT_OK && is_made) {
        status = compare_made(c, plans[0], plans[1]);
    }
    heft_plan_destroy(plans[0]);
    heft_plan_destroy(plans[1]);
    return status;
}

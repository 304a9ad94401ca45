/* SPDX-License-Identifier: Apache-2.0 */
/* Who is behind a tensor, or behind a stand-in for it in the plan of a part: the cuts of it that a
 * piece reads. */
#include "plan/placement.h"
#include "plan/routes.h"

#include <string.h>

/* A box of a tensor as a region of its elements. */
static heft_status_t region_of_cut(const heft_placement_t *p, const heft__cut_t *cut,
                                   uint32_t tensor, heft__region_t *region_out, heft_error_t *err)
{
    const heft_shape_t *shape = &p->shapes[tensor];
    heft__bounds_t whole = { .begin = { 0 } };
    memcpy(whole.end, shape->extent, sizeof whole.end);
    const heft_view_t view = heft__placement_view(0, &cut->box, &whole, shape->rank);
    return heft__region_from_view(&view, region_out, err);
}

/* A source may be read more than once; as a set of elements that is no matter. */
static heft_status_t region_of_source(const heft_piece_t *piece, const heft_piece_src_t *src,
                                      heft__region_list_t *list, heft_error_t *err)
{
    heft_view_t view = { .rank = piece->rank, .offset = src->offset };
    memcpy(view.extent, piece->extent, sizeof view.extent);
    memcpy(view.stride, src->stride, sizeof view.stride);
    return heft__region_from_source_view(&view, list, err);
}

/* Who holds what is read: the lowest and the highest of them. Those between are not looked at. */
typedef struct span {
    uint32_t low;
    uint32_t high;
} span_t;

static heft_status_t look_at_cuts(const heft_placement_t *p, uint32_t tensor,
                                  const heft__region_list_t *read, span_t *span, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = heft__placement_first_cut(p, tensor);
         i < p->n_cuts && p->shards[p->cuts[i].shard].tensor == tensor && status == HEFT_OK; i++) {
        const uint32_t rank = p->shards[p->cuts[i].shard].rank;
        heft__region_t cut;
        bool meets = false;
        if (rank >= span->low && rank <= span->high) {
            continue;
        }
        status = region_of_cut(p, &p->cuts[i], tensor, &cut, err);
        for (size_t k = 0; k < read->n && status == HEFT_OK && !meets; k++) {
            status = heft__region_overlaps(&read->items[k], &cut, &meets, err);
        }
        if (status == HEFT_OK && meets) {
            span->low = rank < span->low ? rank : span->low;
            span->high = rank > span->high ? rank : span->high;
        }
    }
    return status;
}

static heft_status_t look_at_source(const heft_placement_t *p, const char *name,
                                    const heft_piece_t *piece, const heft_piece_src_t *src,
                                    span_t *span, heft_error_t *err)
{
    const uint32_t tensor = name != NULL ? heft__placement_find(p, name) : UINT32_MAX;
    heft__region_list_t read = { 0 };
    if (tensor == UINT32_MAX) {
        return HEFT_OK; /* the rank's own */
    }
    heft_status_t status = region_of_source(piece, src, &read, err);
    if (status == HEFT_OK) {
        status = look_at_cuts(p, tensor, &read, span, err);
    }
    heft__region_list_fini(&read);
    return status;
}

/* The tensor that a stand-in stands for, or NULL. */
static const char *name_behind(const char *source)
{
    const char *point = strchr(source, '.');
    return point != NULL ? point + 1 : NULL;
}

/* Operations read earlier ones alone, so this ends. */
heft_status_t heft__lowest_holder(const heft_placement_t *placement, const heft_plan_t *plan,
                                  const heft__plan_rank_t *rank, const heft_piece_t *piece,
                                  uint32_t *low, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; s < piece->n_srcs && status == HEFT_OK; s++) {
        const heft_piece_src_t *src = &piece->srcs[s];
        if (src->opaque == 0) {
            span_t span = { .low = *low, .high = UINT32_MAX };
            status = look_at_source(placement, name_behind(plan->sources[src->source].name), piece,
                                    src, &span, err);
            *low = span.low;
            continue;
        }
        const heft_opaque_t *op = &rank->opaques[src->opaque - 1];
        for (uint32_t i = 0; i < op->n_inputs; i++) {
            for (uint64_t k = 0; k < op->inputs[i].n_pieces && status == HEFT_OK; k++) {
                status =
                    heft__lowest_holder(placement, plan, rank, &op->inputs[i].pieces[k], low, err);
            }
        }
    }
    return status;
}

heft_status_t heft__operation_is_split(const heft_placement_t *placement, const heft_plan_t *plan,
                                       const heft_opaque_t *op, bool is_whole, bool *is_split_out,
                                       heft_error_t *err)
{
    span_t span = { .low = UINT32_MAX, .high = 0 };
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        for (uint64_t k = 0; k < op->inputs[i].n_pieces; k++) {
            const heft_piece_t *piece = &op->inputs[i].pieces[k];
            for (uint32_t s = 0; s < piece->n_srcs && status == HEFT_OK && span.low >= span.high;
                 s++) {
                const char *name = plan->sources[piece->srcs[s].source].name;
                status = look_at_source(placement, is_whole ? name : name_behind(name), piece,
                                        &piece->srcs[s], &span, err);
            }
        }
    }
    *is_split_out = status == HEFT_OK && span.low < span.high;
    return status;
}

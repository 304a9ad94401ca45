/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor: dtypes, shapes, strided views, and exact algebra on the elements of a flat buffer.
 *
 * Two levels. A *region* is a set of distinct elements of one buffer: what a view touches. A *box*
 * is a block of indices with several affine maps at once, such as "where an element goes" and
 * "where it comes from": what a copy is. Intersecting and subtracting regions is the one-map case
 * of joining and splitting boxes. Results are exact whatever the strides; costs depend on ranks and
 * on how strides nest, never on extents (docs/internals/tensor.md). Buffers have at most 2^61
 * elements, so that sums of a few offsets and spans cannot overflow.
 */
#ifndef HEFT_TENSOR_TENSOR_H
#define HEFT_TENSOR_TENSOR_H

#include "base/base.h"
#include "heft/tensor.h"

/* ---- scales of quantised blocks: how one follows from the largest magnitude of its block, and a
 * code from both (docs/formats/known-kernels.md); values are part of file formats ---- */

typedef enum heft__scale_rule {
    HEFT__SCALE_DEEPSEEK = 1,
    HEFT__SCALE_DEEPGEMM = 2,
    HEFT__SCALE_TRANSFORMERS = 3,
    HEFT__SCALE_UE8M0 = 4
} heft__scale_rule_t;

/* The shape whose storage shape this is; of rank 1 at least where the dtype is packed. */
void heft__shape_to_logical(const heft_shape_t *storage, heft_dtype_t dtype, heft_shape_t *out);

/* ---- regions ---- */

/*
 * Distinct elements { offset + sum(i_k * stride[k]) : 0 <= i_k < extent[k] } of one flat buffer.
 * Normal form: strides > 0 and descending, extents >= 2, neighbours that are one run merged, offset
 * the smallest element. Rank 0 is one element, or none where is_empty.
 */
typedef struct heft__region {
    int32_t rank;
    bool is_empty;
    int64_t offset;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
} heft__region_t;

/* A growable list; {0} is an empty one, fini frees it. */
typedef struct heft__region_list {
    heft__region_t *items;
    size_t n;
    size_t cap;
} heft__region_list_t;

/* One operation makes at most so many parts and no more; beyond: HEFT_ERR_LIMIT with the numbers.
 */
#define HEFT__REGION_MAX_PARTS 65536

void heft__region_list_fini(heft__region_list_t *list);
void heft__region_list_reset(heft__region_list_t *list);
/* Append a copy; an empty region is left out. */
heft_status_t heft__region_list_add(heft__region_list_t *list, const heft__region_t *region,
                                    heft_error_t *err);

/* The elements [0, n_elems) of a buffer. */
heft__region_t heft__region_whole(int64_t n_elems);
/* The elements a destination view touches. HEFT_ERR_ARGUMENT when two indices are one element; both
 * are named. */
heft_status_t heft__region_from_view(const heft_view_t *view, heft__region_t *region_out,
                                     heft_error_t *err);
/* The elements a source view touches, each once however often the view repeats it: disjoint regions
 * are appended to list. */
heft_status_t heft__region_from_source_view(const heft_view_t *view, heft__region_list_t *list,
                                            heft_error_t *err);
int64_t heft__region_count(const heft__region_t *region);
/* The largest element; the smallest is region->offset. Not for an empty region. */
int64_t heft__region_last(const heft__region_t *region);
heft_status_t heft__region_overlaps(const heft__region_t *a, const heft__region_t *b,
                                    bool *overlaps_out, heft_error_t *err);
/* Append a AND b, or a AND NOT b, to list: disjoint regions, coalesced among themselves. list may
 * hold other regions. On failure list holds what it held before. */
heft_status_t heft__region_intersect(const heft__region_t *a, const heft__region_t *b,
                                     heft__region_list_t *list, heft_error_t *err);
heft_status_t heft__region_subtract(const heft__region_t *a, const heft__region_t *b,
                                    heft__region_list_t *list, heft_error_t *err);
/* list AND NOT b, in place. On failure list is unchanged. */
heft_status_t heft__region_list_subtract(heft__region_list_t *list, const heft__region_t *b,
                                         heft_error_t *err);
/* Elements in all; the regions are taken to be disjoint. */
int64_t heft__region_list_count(const heft__region_list_t *list);
/* Fewer regions with the same elements, sorted by offset; the regions must be disjoint. */
heft_status_t heft__region_list_coalesce(heft__region_list_t *list, heft_error_t *err);

/* Indices [begin, end) of a contiguous row-major tensor. */
typedef struct heft__index_box {
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
} heft__index_box_t;

/*
 * A region as index boxes of a contiguous row-major tensor of this shape, for messages. The first
 * max_boxes of them are written, lowest element first; *n_boxes_out is how many there are in all.
 * The region must lie inside the shape.
 */
heft_status_t heft__region_to_boxes(const heft__region_t *region, const heft_shape_t *shape,
                                    heft__index_box_t *boxes, uint64_t max_boxes,
                                    uint64_t *n_boxes_out, heft_error_t *err);

/* ---- boxes: several affine maps over one block of indices ---- */

#define HEFT__BOX_DIMS 26
#define HEFT__BOX_MAPS 18

typedef struct heft__dim {
    int64_t extent;
    int64_t stride[HEFT__BOX_MAPS];
} heft__dim_t;

/* Index i has the values offset[m] + sum(i_k * dim[k].stride[m]), one for each map m. */
typedef struct heft__box {
    int32_t rank;
    int32_t n_maps;
    int64_t offset[HEFT__BOX_MAPS];
    heft__dim_t dim[HEFT__BOX_DIMS];
} heft__box_t;

/* Called with each box of a result; a status other than HEFT_OK ends the operation with it. It must
 * not use the operation's work. */
typedef heft_status_t (*heft__box_sink_t)(void *arg, const heft__box_t *box, heft_error_t *err);

/* Working memory that is kept between operations: {0} before the first, fini after the last. */
typedef struct heft__box_work {
    int64_t *data;
    size_t cap;
    size_t n;
} heft__box_work_t;

void heft__box_work_fini(heft__box_work_t *work);

/* A region that is not empty, as a box with one map. */
void heft__box_from_region(const heft__region_t *region, heft__box_t *box_out);

/*
 * Normal form for map m: extent-1 dimensions dropped, strides of map m >= 0 (dimensions flipped
 * where needed), dimensions ordered by descending stride of map m, neighbours merged when they are
 * one run on every map.
 */
void heft__box_normalize(heft__box_t *box, int m);

/* Call sink with box, cut into boxes of at most max_rank dimensions (those of least extent are
 * taken apart). */
heft_status_t heft__box_limit_rank(const heft__box_t *box, int max_rank, heft__box_sink_t sink,
                                   void *arg, heft_error_t *err);

/*
 * All pairs of an index of a and an index of b with equal values on map 0 of both. The maps of a
 * result are: map 0, then the further maps of a, then the further maps of b. Map 0 of b must be
 * injective; map 0 of a need not be. Boxes of the result share no pair. Values of map 0 must be
 * >= 0.
 */
heft_status_t heft__box_join(heft__box_work_t *work, const heft__box_t *a, const heft__box_t *b,
                             heft__box_sink_t sink, void *arg, heft_error_t *err);

/*
 * The part of a whose values on map 0 are not among those of b (any number of maps; map 0 of both
 * injective), with the maps of a. *is_disjoint_out: nothing was removed, and sink was not called.
 */
heft_status_t heft__box_subtract(heft__box_work_t *work, const heft__box_t *a, const heft__box_t *b,
                                 heft__box_sink_t sink, void *arg, bool *is_disjoint_out,
                                 heft_error_t *err);

/* ---- strips: boxes in compact storage, and merging many of them into few ---- */

/*
 * A box of rank r with n maps, in values: r extents, then for each map its offset and r strides. A
 * tag says what must be equal for two strips to be merged (sources and program of a copy).
 */
typedef struct heft__strip {
    uint32_t tag;
    uint32_t note; /* carried along: the smallest of those merged */
    uint16_t rank;
    uint16_t n_maps;
    int64_t *v;
} heft__strip_t;

static inline size_t heft__strip_len(int rank, int n_maps)
{
    return (size_t)rank + (size_t)n_maps * (1 + (size_t)rank);
}

static inline int64_t *heft__strip_map(const heft__strip_t *strip, int m)
{
    return strip->v + strip->rank + (size_t)m * (1 + (size_t)strip->rank);
}

/* A strip with this box's numbers in the arena; the box must be in normal form. NULL v: no memory.
 */
heft__strip_t heft__strip_from_box(heft__arena_t *arena, const heft__box_t *box);
void heft__strip_to_box(const heft__strip_t *strip, heft__box_t *box_out);

/*
 * Merge strips that together are one box: along a dimension they share, or as steps of a new one.
 * Map 0 of all strips together must be injective. The result is in strips[0 .. *n), sorted by the
 * offset of map 0, with values in the arena; strips stay in normal form for map 0.
 */
heft_status_t heft__strips_coalesce(heft__arena_t *arena, heft__strip_t *strips, size_t *n,
                                    heft_error_t *err);

#endif

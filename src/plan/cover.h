/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cover: who claims which elements of one tensor, exactly.
 *
 * A claim is a strided set of elements with an owner. The scan cuts the tensor into cells that are
 * claimed by the same owners everywhere; from the cells follow what is covered, what is covered
 * twice, what is not covered, and which owners meet. Nothing here uses fold or its regions, so that
 * the proof does not rest on the code it judges.
 */
#ifndef HEFT_PLAN_COVER_H
#define HEFT_PLAN_COVER_H

#include "tensor/tensor.h"

/* Element offset + sum(i[k] * stride[k]) for every i in extent. Strides may be 0 or negative. */
typedef struct heft__claim {
    int64_t offset;
    const int64_t *extent; /* n_dims of each; borrowed */
    const int64_t *stride;
    int32_t n_dims;
    uint32_t owner;
} heft__claim_t;

/* Elements claimed by the same owners. */
typedef struct heft__cell {
    const uint32_t *owners; /* borrowed until the visitor returns */
    uint32_t n_owners;
    int64_t n_elems;
} heft__cell_t;

typedef heft_status_t (*heft__cell_visitor_t)(void *arg, const heft__cell_t *cell);

typedef struct heft__cover_count {
    int64_t n_covered; /* distinct elements with at least one claim */
    int64_t n_overlap; /* those with more than one */
} heft__cover_count_t;

/* Elements of one kind as boxes of the tensor's indices; the box with the first element is given.
 */
typedef struct heft__spot {
    int64_t n_elems;
    int64_t n_boxes;
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
    uint32_t owners[2]; /* of the first box of an overlap */
} heft__spot_t;

/* Scratch, kept from call to call. Confined. */
typedef struct heft__cover heft__cover_t;

heft__cover_t *heft__cover_create(void);
void heft__cover_destroy(heft__cover_t *cover);

/*
 * Count, and give every cell with a claim to visit (may be NULL). n_elems: of the tensor. Linear in
 * the number of claims, but for sorting, when the claims are disjoint or equal.
 * HEFT_ERR_INTERNAL: a claim outside the tensor. HEFT_ERR_LIMIT: strides that do not nest and too
 * many runs, or too many cells.
 */
heft_status_t heft__cover_scan(heft__cover_t *cover, int64_t n_elems, const heft__claim_t *claims,
                               size_t n_claims, heft__cell_visitor_t visit, void *arg,
                               heft__cover_count_t *count_out, heft_error_t *err);

/* Where: the elements without a claim, and those with several. Either output may be NULL. */
heft_status_t heft__cover_locate(heft__cover_t *cover, const heft_shape_t *shape,
                                 const heft__claim_t *claims, size_t n_claims,
                                 heft__spot_t *hole_out, heft__spot_t *overlap_out,
                                 heft_error_t *err);

/* ---- inside: atoms.c ---- */

#define HEFT__COVER_MAX_DIGITS 32

/* A mixed-radix numbering of the elements of a tensor, outermost digit first. */
typedef struct heft__cover_digits {
    int32_t n;
    int64_t scale[HEFT__COVER_MAX_DIGITS]; /* elements that one step of a digit is worth */
    int64_t radix[HEFT__COVER_MAX_DIGITS];
} heft__cover_digits_t;

/* A claim in normal form: positive strides, descending, extents > 1, no element twice. */
typedef struct heft__atom {
    int64_t first; /* lowest and highest element */
    int64_t last;
    int64_t count;
    uint32_t owner;
    int32_t n_dims;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
} heft__atom_t;

/* Boxes of digits, 2n numbers each: low[0..n), high[0..n). */
typedef struct heft__cover_boxes {
    heft__cover_digits_t digits;
    int64_t *bounds;
    uint32_t *tags; /* which set each box belongs to */
    size_t n;
    size_t cap_bounds;
    size_t cap_tags;
} heft__cover_boxes_t;

/* Normal form. *nested_out is false when the strides do not nest (an element may occur twice); the
 * dims are sorted even so. An empty claim has count 0. */
heft_status_t heft__atom_from_claim(const heft__claim_t *claim, int64_t n_elems,
                                    heft__atom_t *atom_out, bool *nested_out, heft_error_t *err);

/* False when the scales (in any order, repeats allowed, 1 among them) do not divide one another.
 * The outermost radix is rounded up, so the digits may number more than n_elems > 0 elements. */
bool heft__cover_digits_from_scales(int64_t *scales, size_t n, int64_t n_elems,
                                    heft__cover_digits_t *digits_out);

/* Append the boxes that make up an atom, whose strides must all be scales. */
heft_status_t heft__cover_boxes_add(heft__cover_boxes_t *boxes, const heft__atom_t *atom,
                                    uint32_t tag, heft_error_t *err);

/* Elements that the digits number. */
static inline int64_t heft__cover_digits_count(const heft__cover_digits_t *digits)
{
    return digits->scale[0] * digits->radix[0];
}

static inline const int64_t *heft__cover_low(const heft__cover_boxes_t *boxes, size_t box)
{
    return boxes->bounds + box * 2 * (size_t)boxes->digits.n;
}

static inline const int64_t *heft__cover_high(const heft__cover_boxes_t *boxes, size_t box)
{
    return heft__cover_low(boxes, box) + boxes->digits.n;
}

/* ---- inside: cells.c ---- */

/* A cell as a box of digits, and the boxes that meet in it. */
typedef struct heft__cover_box_cell {
    const int64_t *low;
    const int64_t *high;
    const uint32_t *boxes;
    uint32_t n_boxes; /* 0: a hole */
    int64_t n_elems;
} heft__cover_box_cell_t;

typedef heft_status_t (*heft__cover_visitor_t)(void *arg, const heft__cover_box_cell_t *cell);

typedef struct heft__cover_cells {
    uint32_t *list; /* stack of box numbers */
    size_t cap_list;
    int64_t *cuts; /* stack of cut points */
    size_t cap_cuts;
} heft__cover_cells_t;

void heft__cover_cells_fini(heft__cover_cells_t *cells);

/* Every cell of the whole tensor; holes only when want_holes. Without holes the bounds of a cell
 * with one box may be looser than the cell, but n_elems is exact. */
heft_status_t heft__cover_cells_walk(heft__cover_cells_t *cells, const heft__cover_boxes_t *boxes,
                                     bool want_holes, heft__cover_visitor_t visit, void *arg,
                                     heft_error_t *err);

/* ---- inside: cover.c, for locate.c ---- */

/* Atoms order[first .. first + n), equal as sets. */
typedef struct heft__claim_set {
    uint32_t first;
    uint32_t n;
} heft__claim_set_t;

struct heft__cover {
    heft__atom_t *atoms;
    size_t n_atoms;
    size_t cap_atoms;
    uint32_t *order;
    size_t cap_order;
    heft__claim_set_t *sets;
    size_t n_sets;
    size_t cap_sets;
    uint32_t *owners; /* of the sorted atoms, then room for the owners of one cell */
    size_t cap_owners;
    int64_t *scales;
    size_t cap_scales;
    int64_t *runs;
    size_t cap_runs;
    heft__cover_boxes_t boxes;
    heft__cover_cells_t cells;
};

/* Claims to sets, so that the strides within each cluster (or within the whole tensor) nest. */
heft_status_t heft__cover_load_nested(heft__cover_t *cover, int64_t n_elems,
                                      const heft__claim_t *claims, size_t n_claims, bool whole,
                                      heft_error_t *err);
/* The digits of sets [first, end); false in *nest_out when strides of different sets do not nest.
 */
heft_status_t heft__cover_find_digits(heft__cover_t *cover, int64_t n_elems, size_t first,
                                      size_t end, bool *nest_out, heft_error_t *err);
/* The boxes of sets [first, end), tagged by set. */
heft_status_t heft__cover_load_boxes(heft__cover_t *cover, size_t first, size_t end,
                                     heft_error_t *err);
/* The owners of the sets that meet in a cell are put behind those of the sorted atoms
 * (owners + n_atoms). The boxes of one set are disjoint, so no claim counts twice. */
uint32_t heft__cover_gather_owners(heft__cover_t *cover, const heft__cover_box_cell_t *cell);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cover of one tensor by claims.
 *
 * Claims are brought to normal form and sorted by interval. Equal ones form a set; sets whose
 * intervals meet no other set are cells as they are, which settles nearly every tensor in one pass.
 * Clusters of sets that meet become boxes in common digits (atoms.c) and are cut into cells
 * (cells.c). Where strides do not nest, the sets are taken apart into contiguous runs first: slow,
 * bounded, exact.
 */
#include "plan/cover.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 1 << 22 };

heft__cover_t *heft__cover_create(void)
{
    return heft__calloc(1, sizeof(heft__cover_t));
}

void heft__cover_destroy(heft__cover_t *cover)
{
    if (cover == NULL) {
        return;
    }
    heft__free(cover->atoms);
    heft__free(cover->order);
    heft__free(cover->sets);
    heft__free(cover->owners);
    heft__free(cover->scales);
    heft__free(cover->runs);
    heft__free(cover->boxes.bounds);
    heft__free(cover->boxes.tags);
    heft__cover_cells_fini(&cover->cells);
    heft__free(cover);
}

/* ---- atoms and sets ---- */

static int compare_dims(const heft__atom_t *a, const heft__atom_t *b)
{
    if (a->n_dims != b->n_dims) {
        return a->n_dims < b->n_dims ? -1 : 1;
    }
    size_t bytes = (size_t)a->n_dims * sizeof a->extent[0];
    int c = memcmp(a->stride, b->stride, bytes);
    return c != 0 ? c : memcmp(a->extent, b->extent, bytes);
}

/* Equal sets are neighbours; the order of owners decides among them, so results do not depend on
 * the sort. */
static int compare_atoms(const void *x, const void *y, void *arg)
{
    const heft__atom_t *atoms = arg;
    uint32_t i = *(const uint32_t *)x;
    uint32_t j = *(const uint32_t *)y;
    const heft__atom_t *a = &atoms[i];
    const heft__atom_t *b = &atoms[j];
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    if (a->last != b->last) {
        return a->last < b->last ? -1 : 1;
    }
    int c = compare_dims(a, b);
    return c != 0 ? c : i < j ? -1 : i > j;
}

static bool is_same_set(const heft__atom_t *a, const heft__atom_t *b)
{
    return a->first == b->first && a->last == b->last && compare_dims(a, b) == 0;
}

/* Sort the atoms into sets of equal ones. */
static heft_status_t make_sets(heft__cover_t *cover, heft_error_t *err)
{
    size_t n = cover->n_atoms;
    cover->n_sets = 0;
    heft_status_t status = HEFT__GROW(cover->order, cover->cap_order, n, err);
    if (status == HEFT_OK) {
        status = HEFT__GROW(cover->sets, cover->cap_sets, n, err);
    }
    if (status == HEFT_OK) {
        status = HEFT__GROW(cover->owners, cover->cap_owners, 2 * n, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    bool sorted = true;
    for (size_t i = 0; i < n; i++) {
        cover->order[i] = (uint32_t)i;
        sorted = sorted && (i == 0 || cover->atoms[i - 1].last < cover->atoms[i].first);
    }
    if (!sorted) {
        qsort_r(cover->order, n, sizeof *cover->order, compare_atoms, cover->atoms);
    }
    for (size_t i = 0; i < n; i++) {
        const heft__atom_t *atom = &cover->atoms[cover->order[i]];
        cover->owners[i] = atom->owner;
        if (i > 0 && is_same_set(&cover->atoms[cover->order[i - 1]], atom)) {
            cover->sets[cover->n_sets - 1].n++;
        } else {
            cover->sets[cover->n_sets++] = (heft__claim_set_t){ .first = (uint32_t)i, .n = 1 };
        }
    }
    return HEFT_OK;
}

static const heft__atom_t *atom_of(const heft__cover_t *cover, size_t set)
{
    return &cover->atoms[cover->order[cover->sets[set].first]];
}

/* ---- runs, for strides that do not nest ---- */

static int compare_runs(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Replace an atom by the contiguous runs it is made of, each element once. */
static heft_status_t add_runs(heft__cover_t *cover, const heft__atom_t *atom, heft_error_t *err)
{
    int32_t n_dims = atom->n_dims;
    int64_t run = 1;
    if (n_dims > 0 && atom->stride[n_dims - 1] == 1) {
        run = atom->extent[--n_dims];
    }
    int64_t n = 1;
    for (int32_t i = 0; i < n_dims; i++) {
        if (!heft__mul(n, atom->extent[i], &n) || n > MAX_RUNS) {
            return heft__error_set(err, HEFT_ERR_LIMIT,
                                   "its strides do not nest, and make more than %d runs",
                                   (int)MAX_RUNS);
        }
    }
    heft_status_t status = HEFT__GROW(cover->runs, cover->cap_runs, (size_t)n, err);
    for (int64_t i = 0; i < n && status == HEFT_OK; i++) {
        int64_t rest = i;
        cover->runs[i] = atom->first;
        for (int32_t d = n_dims - 1; d >= 0; d--) {
            cover->runs[i] += rest % atom->extent[d] * atom->stride[d];
            rest /= atom->extent[d];
        }
    }
    if (status == HEFT_OK) {
        qsort(cover->runs, (size_t)n, sizeof *cover->runs, compare_runs);
    }
    for (int64_t i = 0; i < n && status == HEFT_OK;) {
        int64_t first = cover->runs[i];
        int64_t end = first + run;
        for (i++; i < n && cover->runs[i] <= end; i++) {
            end = cover->runs[i] + run;
        }
        status = HEFT__GROW(cover->atoms, cover->cap_atoms, cover->n_atoms + 1, err);
        if (status == HEFT_OK && cover->n_atoms >= MAX_RUNS) {
            status = heft__error_set(err, HEFT_ERR_LIMIT, "it is made of more than %d runs",
                                     (int)MAX_RUNS);
        }
        if (status == HEFT_OK) {
            heft__atom_t *to = &cover->atoms[cover->n_atoms++];
            *to = (heft__atom_t){ .first = first,
                                  .last = end - 1,
                                  .count = end - first,
                                  .owner = atom->owner,
                                  .n_dims = end - first > 1 ? 1 : 0,
                                  .extent = { end - first },
                                  .stride = { 1 } };
        }
    }
    return status;
}

/* Fill cover->atoms, as runs where asked or where one of the claims does not nest. */
static heft_status_t load(heft__cover_t *cover, int64_t n_elems, const heft__claim_t *claims,
                          size_t n_claims, bool as_runs, heft_error_t *err)
{
    cover->n_atoms = 0;
    if (n_claims >= UINT32_MAX / 4) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "%zu pieces", n_claims);
    }
    heft_status_t status = HEFT__GROW(cover->atoms, cover->cap_atoms, n_claims, err);
    for (size_t i = 0; i < n_claims && status == HEFT_OK; i++) {
        heft__atom_t atom;
        bool nested;
        status = heft__atom_from_claim(&claims[i], n_elems, &atom, &nested, err);
        if (status != HEFT_OK || atom.count == 0) {
            continue;
        }
        if (as_runs) {
            status = add_runs(cover, &atom, err);
        } else if (nested) {
            cover->atoms[cover->n_atoms++] = atom;
        } else {
            return load(cover, n_elems, claims, n_claims, true, err);
        }
    }
    return status;
}

/* ---- digits of a cluster of sets ---- */

heft_status_t heft__cover_find_digits(heft__cover_t *cover, int64_t n_elems, size_t first,
                                      size_t end, bool *nest_out, heft_error_t *err)
{
    size_t n_scales = 1;
    heft_status_t status = HEFT__GROW(cover->scales, cover->cap_scales, 1, err);
    if (status != HEFT_OK) {
        return status;
    }
    cover->scales[0] = 1;
    for (size_t set = first; set < end; set++) {
        const heft__atom_t *atom = atom_of(cover, set);
        status = HEFT__GROW(cover->scales, cover->cap_scales, n_scales + HEFT_MAX_DIMS, err);
        if (status != HEFT_OK) {
            return status;
        }
        for (int32_t i = 0; i < atom->n_dims; i++) {
            size_t k = 0;
            size_t n_known = n_scales < HEFT__COVER_MAX_DIGITS ? n_scales : HEFT__COVER_MAX_DIGITS;
            while (k < n_known && cover->scales[k] != atom->stride[i]) {
                k++;
            }
            if (k == n_known) {
                cover->scales[n_scales++] = atom->stride[i];
            }
        }
    }
    *nest_out =
        heft__cover_digits_from_scales(cover->scales, n_scales, n_elems, &cover->boxes.digits);
    return HEFT_OK;
}

heft_status_t heft__cover_load_boxes(heft__cover_t *cover, size_t first, size_t end,
                                     heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    cover->boxes.n = 0;
    for (size_t set = first; set < end && status == HEFT_OK; set++) {
        status = heft__cover_boxes_add(&cover->boxes, atom_of(cover, set), (uint32_t)set, err);
    }
    return status;
}

/* The end of the cluster of sets whose intervals meet, from set `first` on. */
static size_t cluster_end(const heft__cover_t *cover, size_t first)
{
    int64_t last = atom_of(cover, first)->last;
    size_t end = first + 1;
    for (; end < cover->n_sets && atom_of(cover, end)->first <= last; end++) {
        last = heft__max_i64(last, atom_of(cover, end)->last);
    }
    return end;
}

heft_status_t heft__cover_load_nested(heft__cover_t *cover, int64_t n_elems,
                                      const heft__claim_t *claims, size_t n_claims, bool whole,
                                      heft_error_t *err)
{
    bool nest = false;
    for (int attempt = 0; attempt < 2 && !nest; attempt++) {
        heft_status_t status = load(cover, n_elems, claims, n_claims, attempt > 0, err);
        if (status == HEFT_OK) {
            status = make_sets(cover, err);
        }
        nest = true;
        size_t end;
        for (size_t first = 0; status == HEFT_OK && nest && first < cover->n_sets; first = end) {
            end = whole ? cover->n_sets : cluster_end(cover, first);
            if (whole || end > first + 1) {
                status = heft__cover_find_digits(cover, n_elems, first, end, &nest, err);
            }
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    return nest ? HEFT_OK : HEFT_BUG(err, "runs do not nest");
}

/* ---- scan ---- */

typedef struct scan {
    heft__cover_t *cover;
    heft__cell_visitor_t visit;
    void *arg;
    heft__cover_count_t count;
} scan_t;

static heft_status_t add_cell(scan_t *scan, const uint32_t *owners, uint32_t n, int64_t n_elems)
{
    scan->count.n_covered += n_elems;
    scan->count.n_overlap += n > 1 ? n_elems : 0;
    const heft__cell_t cell = { .owners = owners, .n_owners = n, .n_elems = n_elems };
    return scan->visit != NULL ? scan->visit(scan->arg, &cell) : HEFT_OK;
}

uint32_t heft__cover_gather_owners(heft__cover_t *cover, const heft__cover_box_cell_t *cell)
{
    uint32_t *owners = cover->owners + cover->n_atoms;
    uint32_t n = 0;
    for (uint32_t i = 0; i < cell->n_boxes; i++) {
        const heft__claim_set_t *set = &cover->sets[cover->boxes.tags[cell->boxes[i]]];
        memcpy(owners + n, cover->owners + set->first, set->n * sizeof *owners);
        n += set->n;
    }
    return n;
}

static heft_status_t scan_cell(void *arg, const heft__cover_box_cell_t *cell)
{
    scan_t *scan = arg;
    uint32_t n = heft__cover_gather_owners(scan->cover, cell);
    return add_cell(scan, scan->cover->owners + scan->cover->n_atoms, n, cell->n_elems);
}

static heft_status_t scan_cluster(scan_t *scan, int64_t n_elems, size_t first, size_t end,
                                  heft_error_t *err)
{
    heft__cover_t *cover = scan->cover;
    const heft__claim_set_t *set = &cover->sets[first];
    if (end == first + 1) {
        return add_cell(scan, cover->owners + set->first, set->n, atom_of(cover, first)->count);
    }
    bool nest;
    heft_status_t status = heft__cover_find_digits(cover, n_elems, first, end, &nest, err);
    if (status == HEFT_OK) {
        status = heft__cover_load_boxes(cover, first, end, err);
    }
    if (status == HEFT_OK) {
        status = heft__cover_cells_walk(&cover->cells, &cover->boxes, false, scan_cell, scan, err);
    }
    return status;
}

heft_status_t heft__cover_scan(heft__cover_t *cover, int64_t n_elems, const heft__claim_t *claims,
                               size_t n_claims, heft__cell_visitor_t visit, void *arg,
                               heft__cover_count_t *count_out, heft_error_t *err)
{
    scan_t scan = { .cover = cover, .visit = visit, .arg = arg };
    heft_status_t status = heft__cover_load_nested(cover, n_elems, claims, n_claims, false, err);
    size_t end;
    for (size_t first = 0; status == HEFT_OK && first < cover->n_sets; first = end) {
        end = cluster_end(cover, first);
        status = scan_cluster(&scan, n_elems, first, end, err);
    }
    if (status == HEFT_OK) {
        *count_out = scan.count;
    }
    return status;
}

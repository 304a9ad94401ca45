/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From strided sets to boxes in a common mixed-radix numbering of the elements.
 *
 * When all strides of a family of sets divide one another (and the number of elements), they are
 * the scales of digits in which every set is a union of few boxes: one dimension of stride t is an
 * interval of the number that the digits from t up to the next larger stride spell. A set whose
 * offset makes a digit wrap is first cut in two there.
 */
#include "plan/cover.h"

#include <stdlib.h>
#include <string.h>

static void sort_dims(heft__atom_t *atom)
{
    for (int32_t i = 1; i < atom->n_dims; i++) {
        int64_t extent = atom->extent[i];
        int64_t stride = atom->stride[i];
        int32_t j = i;
        for (; j > 0 && atom->stride[j - 1] < stride; j--) {
            atom->extent[j] = atom->extent[j - 1];
            atom->stride[j] = atom->stride[j - 1];
        }
        atom->extent[j] = extent;
        atom->stride[j] = stride;
    }
}

/* Join neighbours that are contiguous, so that equal sets have equal forms. */
static void merge_dims(heft__atom_t *atom)
{
    int32_t n = 0;
    for (int32_t i = 0; i < atom->n_dims; i++) {
        int64_t next;
        if (n > 0 && heft__mul(atom->extent[i], atom->stride[i], &next) &&
            atom->stride[n - 1] == next) {
            atom->extent[n - 1] *= atom->extent[i];
            atom->stride[n - 1] = atom->stride[i];
        } else {
            atom->extent[n] = atom->extent[i];
            atom->stride[n++] = atom->stride[i];
        }
    }
    atom->n_dims = n;
}

static bool is_nested(const heft__atom_t *atom)
{
    int64_t span = 0; /* of the inner dims; within the tensor, so it cannot overflow */
    for (int32_t i = atom->n_dims - 1; i >= 0; i--) {
        if (atom->stride[i] <= span) {
            return false;
        }
        span += (atom->extent[i] - 1) * atom->stride[i];
    }
    return true;
}

/* False when an element lies outside the tensor. */
static bool add_dims(const heft__claim_t *claim, int64_t n_elems, heft__atom_t *atom)
{
    int64_t first = claim->offset;
    int64_t last = claim->offset;
    for (int32_t i = 0; i < claim->n_dims; i++) {
        int64_t extent = claim->extent[i];
        int64_t stride = claim->stride[i];
        if (extent == 1 || stride == 0) {
            continue;
        }
        int64_t span;
        int64_t *end = stride < 0 ? &first : &last;
        if (!heft__mul(extent - 1, stride, &span) || !heft__add(*end, span, end) || first < 0 ||
            last >= n_elems) {
            return false;
        }
        atom->extent[atom->n_dims] = extent;
        atom->stride[atom->n_dims++] = stride < 0 ? -stride : stride;
    }
    atom->first = first;
    atom->last = last;
    return first >= 0 && last < n_elems;
}

heft_status_t heft__atom_from_claim(const heft__claim_t *claim, int64_t n_elems, heft__atom_t *atom,
                                    bool *nested_out, heft_error_t *err)
{
    *atom = (heft__atom_t){ .count = 1, .owner = claim->owner };
    *nested_out = true;
    for (int32_t i = 0; i < claim->n_dims; i++) {
        atom->count = claim->extent[i] > 0 ? atom->count : 0;
    }
    if (atom->count == 0) {
        return HEFT_OK;
    }
    if (!add_dims(claim, n_elems, atom)) {
        return heft__error_set(err, HEFT_ERR_INTERNAL,
                               "a piece from element %lld on leaves its tensor of %lld elements",
                               (long long)claim->offset, (long long)n_elems);
    }
    sort_dims(atom);
    *nested_out = is_nested(atom);
    if (*nested_out) {
        merge_dims(atom);
        for (int32_t i = 0; i < atom->n_dims; i++) {
            atom->count *= atom->extent[i];
        }
    }
    return HEFT_OK;
}

static int compare_down(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

bool heft__cover_digits_from_scales(int64_t *scales, size_t n, int64_t n_elems,
                                    heft__cover_digits_t *digits)
{
    qsort(scales, n, sizeof *scales, compare_down);
    int32_t n_digits = 0;
    int64_t above = 0; /* of the outermost digit: nothing, its radix is rounded up */
    for (size_t i = 0; i < n; i++) {
        if (scales[i] == above) {
            continue;
        }
        if (scales[i] <= 0 || above % scales[i] != 0 || n_digits == HEFT__COVER_MAX_DIGITS) {
            return false;
        }
        digits->scale[n_digits] = scales[i];
        digits->radix[n_digits++] = above > 0 ? above / scales[i] : (n_elems - 1) / scales[i] + 1;
        above = scales[i];
    }
    digits->n = n_digits;
    return above == 1;
}

typedef struct placer {
    heft__cover_boxes_t *boxes;
    const heft__atom_t *atom;
    uint32_t tag;
    int32_t end_digit[HEFT_MAX_DIMS]; /* digits of dim i are [end_digit[i - 1], end_digit[i]) */
    int64_t begin[HEFT_MAX_DIMS];     /* its interval in the number those digits spell */
    int64_t low[HEFT__COVER_MAX_DIGITS];
    int64_t high[HEFT__COVER_MAX_DIGITS];
} placer_t;

static bool push_box(placer_t *p)
{
    heft__cover_boxes_t *boxes = p->boxes;
    size_t n_digits = (size_t)boxes->digits.n;
    void *bounds = boxes->bounds;
    void *tags = boxes->tags;
    bool ok = heft__grow(&bounds, &boxes->cap_bounds, (boxes->n + 1) * 2 * n_digits,
                         sizeof *boxes->bounds);
    boxes->bounds = bounds;
    ok = ok && heft__grow(&tags, &boxes->cap_tags, boxes->n + 1, sizeof *boxes->tags);
    boxes->tags = tags;
    if (!ok) {
        return false;
    }
    int64_t *to = boxes->bounds + boxes->n * 2 * n_digits;
    memcpy(to, p->low, n_digits * sizeof *to);
    memcpy(to + n_digits, p->high, n_digits * sizeof *to);
    boxes->tags[boxes->n++] = p->tag;
    return true;
}

static bool place(placer_t *p, int32_t dim, int32_t digit, int64_t begin, int64_t end);

static bool place_next(placer_t *p, int32_t dim)
{
    if (dim < p->atom->n_dims) {
        int32_t digit = dim > 0 ? p->end_digit[dim - 1] : 0;
        return place(p, dim, digit, p->begin[dim], p->begin[dim] + p->atom->extent[dim]);
    }
    return push_box(p);
}

/* [begin, end) of the number spelled by the digits from `digit` to the last one of dim. */
static bool place(placer_t *p, int32_t dim, int32_t digit, int64_t begin, int64_t end)
{
    const heft__cover_digits_t *digits = &p->boxes->digits;
    if (digit == p->end_digit[dim]) {
        return place_next(p, dim + 1);
    }
    int64_t unit = digits->scale[digit] / p->atom->stride[dim];
    int64_t low = begin / unit;
    int64_t high = end / unit;
    int64_t head = begin % unit;
    int64_t tail = end % unit;
    if (low == high) {
        p->low[digit] = low;
        p->high[digit] = low + 1;
        return place(p, dim, digit + 1, head, tail);
    }
    if (head > 0) {
        p->low[digit] = low;
        p->high[digit] = low + 1;
        if (!place(p, dim, digit + 1, head, unit)) {
            return false;
        }
        low++;
    }
    if (low < high) {
        p->low[digit] = low;
        p->high[digit] = high;
        if (!place(p, dim, digit + 1, 0, unit)) {
            return false;
        }
    }
    if (tail > 0) {
        p->low[digit] = high;
        p->high[digit] = high + 1;
        return place(p, dim, digit + 1, 0, tail);
    }
    return true;
}

static void take_dim(heft__atom_t *atom, int32_t dim, int64_t from, int64_t extent)
{
    atom->first += from * atom->stride[dim];
    atom->extent[dim] = extent;
    if (extent == 1) {
        for (int32_t i = dim; i + 1 < atom->n_dims; i++) {
            atom->extent[i] = atom->extent[i + 1];
            atom->stride[i] = atom->stride[i + 1];
        }
        atom->n_dims--;
    }
}

/* The first dim that carries into the dim outside it, and where; -1: none. Sets the intervals. */
static int32_t find_carry(placer_t *p, int64_t n_elems, int64_t *at_out)
{
    const heft__atom_t *atom = p->atom;
    int64_t cap = n_elems;
    int32_t digit = 0;
    for (int32_t i = 0; i < atom->n_dims; i++) {
        p->begin[i] = atom->first % cap / atom->stride[i];
        int64_t room = cap / atom->stride[i] - p->begin[i];
        if (atom->extent[i] > room) {
            *at_out = room;
            return i;
        }
        while (p->boxes->digits.scale[digit] != atom->stride[i]) {
            digit++;
        }
        p->end_digit[i] = ++digit;
        cap = atom->stride[i];
    }
    /* digits below the last stride are fixed by the offset */
    for (; digit < p->boxes->digits.n; digit++) {
        p->low[digit] = atom->first / p->boxes->digits.scale[digit] % p->boxes->digits.radix[digit];
        p->high[digit] = p->low[digit] + 1;
    }
    return -1;
}

static bool add_atom(heft__cover_boxes_t *boxes, const heft__atom_t *atom, uint32_t tag)
{
    placer_t p = { .boxes = boxes, .atom = atom, .tag = tag };
    int64_t at = 0;
    int32_t dim = find_carry(&p, heft__cover_digits_count(&boxes->digits), &at);
    if (dim < 0) {
        return place_next(&p, 0);
    }
    heft__atom_t part = *atom;
    take_dim(&part, dim, 0, at);
    if (!add_atom(boxes, &part, tag)) {
        return false;
    }
    part = *atom;
    take_dim(&part, dim, at, atom->extent[dim] - at);
    return add_atom(boxes, &part, tag);
}

heft_status_t heft__cover_boxes_add(heft__cover_boxes_t *boxes, const heft__atom_t *atom,
                                    uint32_t tag, heft_error_t *err)
{
    if (!add_atom(boxes, atom, tag)) {
        return heft__error_nomem(err, (boxes->n + 1) * sizeof(int64_t));
    }
    return HEFT_OK;
}

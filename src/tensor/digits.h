/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digits: boxes whose map 0 is written in a common mixed-radix numbering. Private to tensor.
 *
 * Radices r[0] = 1 < r[1] < .. form a chain, each a multiple of the one before. Digit t of a value
 * v is floor((v - origin) / r[t]) modulo r[t+1] / r[t]; the last digit has no bound. In a digit box
 * every digit runs over a range, independent of the others, so that two digit boxes meet exactly
 * where all their ranges meet.
 */
#ifndef HEFT_TENSOR_DIGITS_H
#define HEFT_TENSOR_DIGITS_H

#include "tensor/tensor.h"

typedef struct heft__radices {
    int n;
    int64_t origin;
    int64_t r[HEFT__BOX_DIMS];
} heft__radices_t;

/*
 * A set of digit boxes in a box_work: n_parts records of `len` values from `first` on. A record is
 * lo[n], ext[n], then offset[n_maps - 1] (values of maps 1.. where every digit is lo), then
 * stride[n][n_maps - 1]. Map 0 itself is the digits.
 */
typedef struct heft__digit_set {
    size_t first;
    size_t len;
    size_t n_parts;
    int n_digits;
    int n_maps;
} heft__digit_set_t;

typedef struct heft__digit_part {
    const int64_t *lo;
    const int64_t *ext;
    const int64_t *offset;
    const int64_t *stride;
} heft__digit_part_t;

static inline heft__digit_part_t heft__digit_part_get(const heft__box_work_t *work,
                                                      const heft__digit_set_t *set, size_t i)
{
    const int64_t *p = work->data + set->first + i * set->len;
    size_t n = (size_t)set->n_digits;
    return (heft__digit_part_t){
        .lo = p, .ext = p + n, .offset = p + 2 * n, .stride = p + 2 * n + (size_t)(set->n_maps - 1)
    };
}

/* How finely the dimensions of one box must be taken apart for its strides to fit the radices: by
 * stepping through every step[k]-th index. */
typedef struct heft__steps {
    int64_t step[HEFT__BOX_DIMS];
} heft__steps_t;

/*
 * Choose radices for the strides of map 0 of a and b, and the steps that make them fit. Where
 * strides do not divide one another a dimension is taken apart, the cheapest one; with is_b_fixed
 * never one of b.
 */
void heft__radices_choose(const heft__box_t *a, const heft__box_t *b, int64_t origin,
                          bool is_b_fixed, heft__radices_t *radices_out, heft__steps_t *a_out,
                          heft__steps_t *b_out);

/* Append the digit boxes of box to work. Dimensions with stride 0 on map 0 are left out. */
heft_status_t heft__digits_make(heft__box_work_t *work, const heft__radices_t *radices,
                                const heft__box_t *box, const heft__steps_t *steps,
                                heft__digit_set_t *set_out, heft_error_t *err);

/* Two sets are compared part by part, at most so many pairs: beyond, HEFT_ERR_LIMIT. */
#define HEFT__JOIN_MAX_PAIRS (1 << 24)

/* Room for n more values in work. */
bool heft__box_work_reserve(heft__box_work_t *work, size_t n);

#endif

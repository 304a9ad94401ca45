/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise comparison, bit for bit: blocks that memcmp finds equal cost one pass; only the
 * others are counted element by element. And which piece writes an element.
 */
#include "exec/exec.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10 };

uint64_t heft__load_bits(const void *data, int64_t index, uint32_t elem_bytes)
{
    const uint8_t *p = (const uint8_t *)data + index * (int64_t)elem_bytes;
    uint64_t bits = 0;
    for (uint32_t i = 0; i < elem_bytes; i++) {
        bits |= (uint64_t)p[i] << (8 * i);
    }
    return bits;
}

static int64_t count_block(const uint8_t *a, const uint8_t *b, int64_t n_elems, uint32_t elem_bytes,
                           int64_t *first_out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_elems; i++) {
        if (memcmp(a + i * elem_bytes, b + i * elem_bytes, elem_bytes) != 0) {
            if (n++ == 0) {
                *first_out = i;
            }
        }
    }
    return n;
}

int64_t heft__count_differences(const void *a, const void *b, int64_t n_elems, uint32_t elem_bytes,
                                int64_t *first_out)
{
    const uint8_t *x = a;
    const uint8_t *y = b;
    int64_t block = BLOCK_BYTES / elem_bytes;
    int64_t n = 0;
    for (int64_t i = 0; i < n_elems; i += block) {
        int64_t len = heft__min_i64(block, n_elems - i);
        const uint8_t *xi = x + i * elem_bytes;
        const uint8_t *yi = y + i * elem_bytes;
        if (memcmp(xi, yi, (size_t)(len * elem_bytes)) == 0) {
            continue;
        }
        int64_t first = 0;
        int64_t found = count_block(xi, yi, len, elem_bytes, &first);
        if (n == 0 && found > 0) {
            *first_out = i + first;
        }
        n += found;
    }
    return n;
}

/* One row: n elements with their strides in bytes; the first that differs, or n. */
static int64_t compare_row(const uint8_t *a, int64_t a_step, const uint8_t *b, int64_t b_step,
                           int64_t n, uint32_t elem_bytes)
{
    bool is_run = a_step == elem_bytes && b_step == elem_bytes;
    if (is_run && memcmp(a, b, (size_t)n * elem_bytes) == 0) {
        return n;
    }
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(a + i * a_step, b + i * b_step, elem_bytes) != 0) {
            return i;
        }
    }
    return n;
}

bool heft__views_agree(const void *a, const int64_t *a_stride, const void *b,
                       const int64_t *b_stride, int rank, const int64_t *extent,
                       uint32_t elem_bytes, int64_t index_out[HEFT_MAX_DIMS])
{
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    int64_t eb = (int64_t)elem_bytes;
    int last = rank - 1;
    int64_t n = rank > 0 ? extent[last] : 1;
    int64_t a_step = rank > 0 ? a_stride[last] * eb : eb;
    int64_t b_step = rank > 0 ? b_stride[last] * eb : eb;
    for (int k = 0; k < rank; k++) {
        if (extent[k] == 0) {
            return true;
        }
    }
    const uint8_t *x = a;
    const uint8_t *y = b;
    for (;;) {
        int64_t same = compare_row(x, a_step, y, b_step, n, elem_bytes);
        if (same < n) {
            memcpy(index_out, index, sizeof index);
            if (rank > 0) {
                index_out[last] = same;
            }
            return false;
        }
        int k = last - 1;
        for (; k >= 0 && ++index[k] == extent[k]; k--) {
            x -= (extent[k] - 1) * a_stride[k] * eb;
            y -= (extent[k] - 1) * b_stride[k] * eb;
            index[k] = 0;
        }
        if (k < 0) {
            return true;
        }
        x += a_stride[k] * eb;
        y += b_stride[k] * eb;
    }
}

/* ---- the place of an element ---- */

typedef struct locate {
    const heft_piece_t *piece;
    int64_t index[HEFT_MAX_DIMS];
} locate_t;

/* Largest and smallest offset that dimensions k and up can add. */
static void reach(const heft_piece_t *piece, int k, int64_t *low_out, int64_t *high_out)
{
    int64_t low = 0;
    int64_t high = 0;
    for (; k < piece->rank; k++) {
        int64_t span = (piece->extent[k] - 1) * piece->dst_stride[k];
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    *low_out = low;
    *high_out = high;
}

/* The index of the piece that writes destination element `rest` (relative to its offset). A
 * destination view is injective, so there is at most one; whatever the strides, each dimension
 * tries only those steps that the ones after it can complete. */
static bool locate(locate_t *found, int k, int64_t rest)
{
    const heft_piece_t *piece = found->piece;
    int64_t low;
    int64_t high;
    reach(piece, k, &low, &high);
    if (rest < low || rest > high) {
        return false;
    }
    if (k == piece->rank) {
        return rest == 0;
    }
    int64_t stride = piece->dst_stride[k];
    reach(piece, k + 1, &low, &high);
    /* rest - i * stride must lie in [low, high] */
    int64_t first = 0;
    int64_t last = piece->extent[k] - 1;
    if (stride > 0) {
        first = heft__max_i64(0, (rest - high + stride - 1) / stride);
        last = heft__min_i64(last, (rest - low) / stride);
    } else if (stride < 0) {
        first = heft__max_i64(0, (low - rest - stride - 1) / -stride);
        last = heft__min_i64(last, (high - rest) / -stride);
    }
    for (int64_t i = heft__max_i64(first, 0); i <= last; i++) {
        found->index[k] = i;
        if (locate(found, k + 1, rest - i * stride)) {
            return true;
        }
    }
    return false;
}

const heft_piece_t *heft__piece_find(const heft_piece_t *pieces, uint64_t n, int64_t flat,
                                     int64_t index_out[HEFT_MAX_DIMS])
{
    for (uint64_t i = 0; i < n; i++) {
        locate_t found = { .piece = &pieces[i] };
        if (heft__piece_count(&pieces[i]) > 0 && locate(&found, 0, flat - pieces[i].dst_offset)) {
            memcpy(index_out, found.index, sizeof found.index);
            return &pieces[i];
        }
    }
    return NULL;
}

void heft__index_unravel(int64_t flat, const heft_shape_t *shape, int64_t *index_out)
{
    for (int k = shape->rank - 1; k >= 0; k--) {
        index_out[k] = flat % shape->extent[k];
        flat /= shape->extent[k];
    }
}

void heft__index_text(int64_t flat, const heft_shape_t *shape, char text[HEFT__INDEX_TEXT_BYTES])
{
    int64_t index[HEFT_MAX_DIMS];
    heft__index_unravel(flat, shape, index);
    size_t used = 0;
    text[used++] = '[';
    for (int k = 0; k < shape->rank; k++) {
        int n = snprintf(text + used, HEFT__INDEX_TEXT_BYTES - used, "%s%lld", k > 0 ? ", " : "",
                         (long long)index[k]);
        used += n > 0 ? (size_t)n : 0;
    }
    (void)snprintf(text + used, HEFT__INDEX_TEXT_BYTES - used, "]");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a piece whose elements lie in a range, as boxes of indices. Dimensions are taken by
 * descending stride. Along one of them the indices that lie inside with all that belongs to them
 * are neighbours, and make one box; those at the two ends of them are looked into one by one. Where
 * strides nest there is one at each end.
 */
#include "exec/exec.h"

typedef struct clipper {
    int rank;
    const int64_t *extent;
    const int64_t *stride;
    int64_t lo;
    int64_t hi;
    heft__clip_fn_t fn;
    void *arg;
    int order[HEFT_MAX_DIMS];         /* dimensions by descending |stride| */
    int64_t least[HEFT_MAX_DIMS + 1]; /* of the dimensions from order[d] on: what they reach down */
    int64_t most[HEFT_MAX_DIMS + 1];  /* and up */
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
} clipper_t;

static int64_t magnitude(int64_t v)
{
    return v < 0 ? -v : v;
}

static void init_order(clipper_t *c)
{
    for (int k = 0; k < c->rank; k++) {
        int at = k;
        while (at > 0 && magnitude(c->stride[c->order[at - 1]]) < magnitude(c->stride[k])) {
            c->order[at] = c->order[at - 1];
            at--;
        }
        c->order[at] = k;
    }
    c->least[c->rank] = 0;
    c->most[c->rank] = 0;
    for (int d = c->rank; d > 0; d--) {
        int k = c->order[d - 1];
        int64_t span = (c->extent[k] - 1) * c->stride[k];
        c->least[d - 1] = c->least[d] + heft__min_i64(span, 0);
        c->most[d - 1] = c->most[d] + heft__max_i64(span, 0);
    }
}

typedef enum place { BEFORE, AFTER, PARTLY, INSIDE } place_t;

/* Where all that belongs to dimensions from d on lies, when the others stand at `at`. */
static place_t place_of(const clipper_t *c, int d, int64_t at)
{
    int64_t first = at + c->least[d];
    int64_t last = at + c->most[d];
    if (last < c->lo || first >= c->hi) {
        return last < c->lo ? BEFORE : AFTER;
    }
    return first >= c->lo && last < c->hi ? INSIDE : PARTLY;
}

static heft_status_t clip_from(clipper_t *c, int d, int64_t at, heft_error_t *err);

static heft_status_t emit(clipper_t *c, int d, heft_error_t *err)
{
    for (; d < c->rank; d++) {
        c->begin[c->order[d]] = 0;
        c->end[c->order[d]] = c->extent[c->order[d]];
    }
    return c->fn(c->arg, c->begin, c->end, err);
}

/* The first index from i on whose place is not `place`, which is that of i. */
static int64_t skip(const clipper_t *c, int d, int64_t at, int64_t i, place_t place)
{
    int64_t n = c->extent[c->order[d]];
    int64_t stride = c->stride[c->order[d]];
    int64_t low = i;
    int64_t high = n;
    while (low < high) { /* once left, a place other than PARTLY does not come back */
        int64_t middle = low + (high - low) / 2;
        if (place_of(c, d + 1, at + middle * stride) == place) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static heft_status_t clip_from(clipper_t *c, int d, int64_t at, heft_error_t *err)
{
    place_t place = place_of(c, d, at);
    if (place != PARTLY) {
        return place == INSIDE ? emit(c, d, err) : HEFT_OK;
    }
    int k = c->order[d]; /* there is one: a single element is never partly inside */
    heft_status_t status = HEFT_OK;
    for (int64_t i = 0; status == HEFT_OK && i < c->extent[k];) {
        int64_t here = at + i * c->stride[k];
        c->begin[k] = i;
        place = place_of(c, d + 1, here);
        c->end[k] = place == PARTLY ? i + 1 : skip(c, d, at, i, place);
        i = c->end[k];
        if (place == INSIDE) {
            status = emit(c, d + 1, err);
        } else if (place == PARTLY) {
            status = clip_from(c, d + 1, here, err);
        }
    }
    return status;
}

heft_status_t heft__clip(int rank, const int64_t *extent, int64_t offset, const int64_t *stride,
                         int64_t lo, int64_t hi, heft__clip_fn_t fn, void *arg, heft_error_t *err)
{
    clipper_t c = {
        .rank = rank, .extent = extent, .stride = stride, .lo = lo, .hi = hi, .fn = fn, .arg = arg
    };
    for (int k = 0; k < rank; k++) {
        if (extent[k] <= 0) {
            return HEFT_OK;
        }
    }
    init_order(&c);
    return clip_from(&c, 0, offset, err);
}

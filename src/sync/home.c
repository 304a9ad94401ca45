/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strided parameter is copied by the kernels' prepared copies. Its digest needs the bytes in
 * row-major order, so blocks of at most BLOCK_BYTES are gathered on the stack, one after the other.
 */
#include "sync/home.h"

enum { BLOCK_BYTES = 64 << 10 };

/* ---- preparing ---- */

static void contiguous_strides(const heft_shape_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape->extent[d]; /* bounded by the tensor's elements */
    }
}

static bool is_contiguous(const heft_shape_t *shape, const int64_t *stride)
{
    int64_t plain[HEFT_MAX_DIMS];
    contiguous_strides(shape, plain);
    for (int32_t d = 0; d < shape->rank; d++) {
        if (shape->extent[d] > 1 && stride[d] != plain[d]) {
            return false;
        }
    }
    return true;
}

/* Elements are apart, and the bytes touched can be counted. */
static heft_status_t measure_span(heft__home_t *home, heft_error_t *err)
{
    heft_view_t view = { .rank = home->shape.rank };
    int64_t low = 0;
    int64_t high = 0;
    for (int32_t d = 0; d < home->shape.rank; d++) {
        int64_t reach;
        int64_t *end = home->stride[d] < 0 ? &low : &high;
        view.extent[d] = home->shape.extent[d];
        view.stride[d] = home->stride[d];
        if (!heft__mul(home->shape.extent[d] - 1, home->stride[d], &reach) ||
            !heft__add(*end, reach, end) || *end > INT64_MAX / 32 || *end < -(INT64_MAX / 32)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW,
                                   "dimension %d: extent %lld at stride %lld is out of range", d,
                                   (long long)home->shape.extent[d], (long long)home->stride[d]);
        }
    }
    view.offset = -low;
    heft__region_t region;
    heft_status_t status = heft__region_from_view(&view, &region, err);
    home->begin = low * home->unit_bytes;
    home->end = (high + 1) * home->unit_bytes;
    return status;
}

/* Between this memory and contiguous bytes, of the indices [0, extent). */
static heft__copy_t describe(const heft__home_t *home, int32_t first, int64_t n_first, bool out)
{
    heft__copy_t copy = { .elem_bytes = home->unit_bytes, .rank = home->shape.rank - first };
    heft_shape_t part = { .rank = copy.rank };
    int64_t plain[HEFT_MAX_DIMS];
    for (int32_t d = first; d < home->shape.rank; d++) {
        part.extent[d - first] = d == first ? n_first : home->shape.extent[d];
    }
    contiguous_strides(&part, plain);
    for (int32_t d = 0; d < copy.rank; d++) {
        copy.extent[d] = part.extent[d];
        copy.dst_stride[d] = out ? plain[d] : home->stride[first + d];
        copy.src_stride[d] = out ? home->stride[first + d] : plain[d];
    }
    return copy;
}

static heft_status_t prepare_blocks(heft__home_t *home, heft_error_t *err)
{
    int64_t inner = home->unit_bytes; /* bytes of the dimensions inside of cut */
    home->cut = home->shape.rank - 1;
    while (home->cut > 0 && inner * home->shape.extent[home->cut] <= BLOCK_BYTES) {
        inner *= home->shape.extent[home->cut--];
    }
    const int64_t extent = home->shape.extent[home->cut];
    home->step = heft__min_i64(extent, BLOCK_BYTES / inner);
    home->block_bytes = home->step * inner;
    const heft__copy_t block = describe(home, home->cut, home->step, true);
    heft_status_t status = heft__copy_prepare(&block, &home->block, err);
    if (status == HEFT_OK && extent % home->step != 0) {
        const heft__copy_t rest = describe(home, home->cut, extent % home->step, true);
        status = heft__copy_prepare(&rest, &home->rest, err);
    }
    return status;
}

static heft_status_t prepare_strided(heft__home_t *home, heft_error_t *err)
{
    const int64_t n_first = home->shape.extent[0];
    heft_status_t status = measure_span(home, err);
    if (status == HEFT_OK) {
        const heft__copy_t scatter = describe(home, 0, n_first, false);
        status = heft__copy_prepare(&scatter, &home->scatter, err);
    }
    if (status == HEFT_OK) {
        const heft__copy_t gather = describe(home, 0, n_first, true);
        status = heft__copy_prepare(&gather, &home->gather, err);
    }
    return status == HEFT_OK ? prepare_blocks(home, err) : status;
}

heft_status_t heft__home_init(const heft_tensor_info_t *info, void *data, const int64_t *stride,
                              heft__home_t *home_out, heft_error_t *err)
{
    heft__home_t home = { .data = data, .bytes = info->n_bytes, .end = info->n_bytes };
    heft_status_t status = heft_shape_to_storage(&info->shape, info->dtype, &home.shape, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (data == NULL && home.bytes > 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "its data is NULL");
    }
    home.unit_bytes = heft_dtype_get_unit_bytes(info->dtype);
    contiguous_strides(&home.shape, home.stride);
    for (int32_t d = 0; stride != NULL && d < home.shape.rank; d++) {
        home.stride[d] = stride[d];
    }
    home.is_strided = home.bytes > 0 && !is_contiguous(&home.shape, home.stride);
    if (home.is_strided) {
        status = prepare_strided(&home, err);
    }
    if (status == HEFT_OK) {
        *home_out = home;
    }
    return status;
}

/* ---- running ---- */

void heft__home_write(const heft__home_t *home, const uint8_t *from, int64_t begin, int64_t end)
{
    if (begin >= end) {
        return;
    }
    if (!home->is_strided) {
        heft__memcpy(home->data + begin, from + begin, end - begin);
        return;
    }
    /* a slab belongs to the range in which it begins */
    const int64_t n_slabs = home->scatter.extent[0];
    const int64_t slab_bytes = home->bytes / n_slabs;
    const int64_t first = (begin + slab_bytes - 1) / slab_bytes;
    heft__copy_run_slabs(&home->scatter, home->data, from, first,
                         (end + slab_bytes - 1) / slab_bytes);
}

void heft__home_read(const heft__home_t *home, uint8_t *to)
{
    if (home->is_strided) {
        heft__copy_run(&home->gather, to, home->data);
    } else if (home->bytes > 0) {
        heft__memcpy(to, home->data, home->bytes);
    }
}

/* The blocks of one index of the dimensions outside of cut; *at is their place in row-major order.
 */
static uint64_t digest_row(const heft__home_t *home, const heft__mask_t *mask, const uint8_t *data,
                           int64_t *at, uint64_t crc)
{
    uint8_t block[BLOCK_BYTES];
    const int64_t extent = home->shape.extent[home->cut];
    const int64_t step_bytes = home->stride[home->cut] * home->unit_bytes;
    for (int64_t i = 0; i < extent; i += home->step) {
        const bool is_whole = extent - i >= home->step;
        const int64_t bytes =
            is_whole ? home->block_bytes : home->block_bytes / home->step * (extent - i);
        heft__copy_run(is_whole ? &home->block : &home->rest, block, data + i * step_bytes);
        crc = heft__mask_crc64(mask, crc, block, *at, bytes);
        *at += bytes;
    }
    return crc;
}

uint64_t heft__home_digest(const heft__home_t *home, const heft__mask_t *mask)
{
    if (!home->is_strided) {
        return heft__mask_crc64(mask, 0, home->data, 0, home->bytes);
    }
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    uint64_t crc = 0;
    int64_t at = 0;
    const uint8_t *data = home->data;
    for (;;) {
        crc = digest_row(home, mask, data, &at, crc);
        int32_t d = home->cut - 1;
        for (; d >= 0; d--) {
            const int64_t step = home->stride[d] * home->unit_bytes;
            if (++index[d] < home->shape.extent[d]) {
                data += step;
                break;
            }
            data -= step * (home->shape.extent[d] - 1);
            index[d] = 0;
        }
        if (d < 0) {
            return crc;
        }
    }
}

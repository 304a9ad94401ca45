/* SPDX-License-Identifier: Apache-2.0 */
/* The dtype table and shapes. */
#include "tensor/tensor.h"

#include <string.h>

typedef struct dtype_row {
    heft_dtype_t dtype;
    uint32_t bits;
    const char *name;
} dtype_row_t;

static const dtype_row_t rows[] = {
#define DTYPE_ROW(n, v, b, t) { .dtype = HEFT_DTYPE_##n, .bits = (b), .name = (t) },
    HEFT_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

static const dtype_row_t *find_row(heft_dtype_t dtype)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].dtype == dtype) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *heft_dtype_get_name(heft_dtype_t dtype)
{
    const dtype_row_t *row = find_row(dtype);
    return row != NULL ? row->name : "NONE";
}

static bool names_match(const char *name, const char *lower)
{
    size_t n = strlen(name);
    if (strlen(lower) != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        char low = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
        if (lower[i] != low) {
            return false;
        }
    }
    return true;
}

heft_dtype_t heft_dtype_from_name(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0 || names_match(rows[i].name, name)) {
            return rows[i].dtype;
        }
    }
    return HEFT_DTYPE_NONE;
}

uint32_t heft_dtype_get_bits(heft_dtype_t dtype)
{
    const dtype_row_t *row = find_row(dtype);
    return row != NULL ? row->bits : 0;
}

uint32_t heft_dtype_get_unit_bytes(heft_dtype_t dtype)
{
    uint32_t bits = heft_dtype_get_bits(dtype);
    return bits >= 8 ? bits / 8 : 1;
}

int heft_dtype_is_float(heft_dtype_t dtype)
{
    return dtype >= HEFT_DTYPE_F16 && dtype <= HEFT_DTYPE_F8_E8M0;
}

heft_status_t heft_shape_count(const heft_shape_t *shape, int64_t *count_out, heft_error_t *err)
{
    if (shape->rank < 0 || shape->rank > HEFT_MAX_DIMS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "shape of rank %d, at most %d",
                               (int)shape->rank, HEFT_MAX_DIMS);
    }
    int64_t count = 1;
    bool is_empty = false;
    for (int k = 0; k < shape->rank; k++) {
        int64_t n = shape->extent[k];
        if (n < 0) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "extent %lld in dimension %d",
                                   (long long)n, k);
        }
        is_empty = is_empty || n == 0;
        if (n != 0 && !heft__mul(count, n, &count)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW,
                                   "shape overflows 2^63 elements in dimension %d", k);
        }
    }
    *count_out = is_empty ? 0 : count;
    return HEFT_OK;
}

heft_status_t heft_shape_to_storage(const heft_shape_t *shape, heft_dtype_t dtype,
                                    heft_shape_t *storage_out, heft_error_t *err)
{
    uint32_t bits = heft_dtype_get_bits(dtype);
    if (bits == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "no dtype: %d", (int)dtype);
    }
    heft_shape_t storage = *shape;
    if (bits < 8) {
        int64_t row_bits;
        if (shape->rank == 0) {
            return heft__error_set(err, HEFT_ERR_SHAPE, "a packed %s tensor of rank 0",
                                   heft_dtype_get_name(dtype));
        }
        int64_t row = shape->extent[shape->rank - 1];
        if (!heft__mul(row, bits, &row_bits)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "row of %lld elements overflows",
                                   (long long)row);
        }
        if (row_bits % 8 != 0) {
            return heft__error_set(
                err, HEFT_ERR_SHAPE,
                "a row of %lld %s elements is %lld bits: no whole number of bytes", (long long)row,
                heft_dtype_get_name(dtype), (long long)row_bits);
        }
        storage.extent[shape->rank - 1] = row_bits / 8;
    }
    *storage_out = storage;
    return HEFT_OK;
}

void heft__shape_to_logical(const heft_shape_t *storage, heft_dtype_t dtype, heft_shape_t *out)
{
    const int64_t bits = heft_dtype_get_bits(dtype);
    *out = *storage;
    if (bits > 0 && bits < 8 && storage->rank > 0) {
        out->extent[storage->rank - 1] = storage->extent[storage->rank - 1] * 8 / bits;
    }
}

heft_view_t heft_view_contiguous(uint32_t buffer, const heft_shape_t *storage)
{
    heft_view_t view = { .buffer = buffer, .rank = storage->rank, .offset = 0 };
    int64_t stride = 1;
    for (int k = storage->rank - 1; k >= 0; k--) {
        view.extent[k] = storage->extent[k];
        view.stride[k] = stride;
        stride *= storage->extent[k] > 0 ? storage->extent[k] : 1;
    }
    return view;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dtypes, shapes and strided views.
 *
 * Shapes are written outermost dimension first. Strides and view offsets count elements, as in
 * DLPack; buffer and file offsets count bytes. A packed dtype (fewer than 8 bits an element) has no
 * addressable elements: its tensors are handled in *storage units* of one byte, the last extent
 * counted in bytes (heft_shape_to_storage).
 */
#ifndef HEFT_TENSOR_H
#define HEFT_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "heft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HEFT_MAX_DIMS 12

/* X(name, value, bits, text): text is the safetensors spelling; values are part of file formats and
 * never reused. */
#define HEFT_DTYPE_MAP(X)        \
    X(BOOL, 1, 8, "BOOL")        \
    X(U8, 2, 8, "U8")            \
    X(I8, 3, 8, "I8")            \
    X(U16, 4, 16, "U16")         \
    X(I16, 5, 16, "I16")         \
    X(U32, 6, 32, "U32")         \
    X(I32, 7, 32, "I32")         \
    X(U64, 8, 64, "U64")         \
    X(I64, 9, 64, "I64")         \
    X(F16, 10, 16, "F16")        \
    X(BF16, 11, 16, "BF16")      \
    X(F32, 12, 32, "F32")        \
    X(F64, 13, 64, "F64")        \
    X(F8_E4M3, 14, 8, "F8_E4M3") \
    X(F8_E5M2, 15, 8, "F8_E5M2") \
    X(F8_E8M0, 16, 8, "F8_E8M0") \
    X(F4, 17, 4, "F4")           \
    X(F6_E2M3, 18, 6, "F6_E2M3") \
    X(F6_E3M2, 19, 6, "F6_E3M2")

typedef enum heft_dtype {
    HEFT_DTYPE_NONE = 0,
#define HEFT_DTYPE_ENUM(name, value, bits, text) HEFT_DTYPE_##name = (value),
    HEFT_DTYPE_MAP(HEFT_DTYPE_ENUM)
#undef HEFT_DTYPE_ENUM
} heft_dtype_t;

typedef struct heft_shape {
    int32_t rank; /* 0 (a scalar: one element) to HEFT_MAX_DIMS */
    int32_t reserved;
    int64_t extent[HEFT_MAX_DIMS]; /* outermost first, each >= 0 */
} heft_shape_t;

/**
 * A strided window on a flat buffer: element (i0, .., in-1) lies at offset + sum(ik * stride[k]),
 * in elements. Strides are signed; 0 broadcasts. A rank of 0 is one element. A view is a plain
 * value and owns nothing.
 */
typedef struct heft_view {
    uint32_t buffer; /* id in the tape that the view belongs to */
    int32_t rank;
    int64_t offset;
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
} heft_view_t;

/** The safetensors spelling of a dtype, such as "BF16"; "NONE" for a value that is none. Never
 * NULL. */
HEFT_API const char *heft_dtype_get_name(heft_dtype_t dtype);

/** The dtype with this safetensors spelling, or its lower-case short form ("bf16", "f8_e4m3");
 * HEFT_DTYPE_NONE if none. */
HEFT_API heft_dtype_t heft_dtype_from_name(const char *name);

/** Bits of one element; 0 for a value that is no dtype. */
HEFT_API uint32_t heft_dtype_get_bits(heft_dtype_t dtype);

/** Bytes of one storage unit: bits / 8, or 1 for packed dtypes. */
HEFT_API uint32_t heft_dtype_get_unit_bytes(heft_dtype_t dtype);

/** 1 for f16, bf16, f32, f64 and the 8-bit floats; 0 for the others (packed floats are opaque bytes
 * to heft). */
HEFT_API int heft_dtype_is_float(heft_dtype_t dtype);

/** Product of the extents. HEFT_ERR_OVERFLOW beyond 2^63-1, HEFT_ERR_ARGUMENT for a bad rank or a
 * negative extent. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_shape_count(const heft_shape_t *shape,
                                                        int64_t *count_out, heft_error_t *err);

/**
 * The shape in storage units: equal to the shape, but for packed dtypes the last extent becomes its
 * bytes. HEFT_ERR_SHAPE when a row of a packed tensor is no whole number of bytes, or it has rank
 * 0.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_shape_to_storage(const heft_shape_t *shape,
                                                             heft_dtype_t dtype,
                                                             heft_shape_t *storage_out,
                                                             heft_error_t *err);

/** The contiguous (row-major) view of a whole buffer of this storage shape. Cannot fail for a shape
 * that passed heft_shape_count. */
HEFT_API heft_view_t heft_view_contiguous(uint32_t buffer, const heft_shape_t *storage);

#ifdef __cplusplus
}
#endif

#endif

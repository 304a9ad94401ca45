/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes into digests of plans and routes. Private to the files that make them. */
#ifndef HEFT_PLAN_DIGEST_SINK_H
#define HEFT_PLAN_DIGEST_SINK_H

#include "plan/plan.h"

#include <string.h>

enum { DIGEST_BYTES = 32 };

/* SHA-256 fed in blocks rather than in words. */
typedef struct sink {
    heft__sha256_t hash;
    size_t n;
    uint8_t data[4096];
} sink_t;

static inline void finish(sink_t *sink, uint8_t digest[DIGEST_BYTES])
{
    heft__sha256_update(&sink->hash, sink->data, sink->n);
    heft__sha256_final(&sink->hash, digest);
}

/* Room for n bytes, if the buffer can hold so many: whole blocks go to the hash, which takes them
 * without copying. */
static inline void make_room(sink_t *sink, size_t n)
{
    if (sink->n + n > sizeof sink->data) {
        size_t whole = sink->n / 64 * 64;
        heft__sha256_update(&sink->hash, sink->data, whole);
        sink->n -= whole;
        memmove(sink->data, sink->data + whole, sink->n);
    }
}

static inline void put_bytes(sink_t *sink, const void *bytes, size_t n)
{
    make_room(sink, n);
    if (sink->n + n > sizeof sink->data) {
        heft__sha256_update(&sink->hash, sink->data, sink->n);
        heft__sha256_update(&sink->hash, bytes, n);
        sink->n = 0;
        return;
    }
    memcpy(sink->data + sink->n, bytes, n);
    sink->n += n;
}

static inline void put_u64(sink_t *sink, uint64_t value)
{
    make_room(sink, 10);
    for (; value > 0x7f; value >>= 7) {
        sink->data[sink->n++] = (uint8_t)(value | 0x80);
    }
    sink->data[sink->n++] = (uint8_t)value;
}

static inline void put_i64(sink_t *sink, int64_t value)
{
    put_u64(sink, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));
}

static inline void put_list(sink_t *sink, const int64_t *values, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        put_i64(sink, values[i]);
    }
}

static inline void put_text(sink_t *sink, const char *text)
{
    size_t n = strlen(text);
    put_u64(sink, n);
    put_bytes(sink, text, n);
}

static inline void begin(sink_t *sink, const char *what)
{
    sink->n = 0;
    heft__sha256_init(&sink->hash);
    put_text(sink, what);
}

static inline void put_shape(sink_t *sink, heft_dtype_t dtype, const heft_shape_t *shape)
{
    put_u64(sink, dtype);
    put_u64(sink, (uint64_t)shape->rank);
    put_list(sink, shape->extent, shape->rank);
}

static inline void put_tensor(sink_t *sink, const heft_tensor_info_t *info)
{
    put_text(sink, info->name);
    put_shape(sink, info->dtype, &info->shape);
}

static inline void put_ops(sink_t *sink, const heft_op_t *ops, uint32_t n_ops)
{
    for (uint32_t i = 0; i < n_ops; i++) {
        uint64_t imm;
        memcpy(&imm, &ops[i].imm, sizeof imm);
        put_u64(sink, ops[i].code);
        put_u64(sink, ops[i].dtype);
        put_u64(sink, ops[i].arg);
        put_u64(sink, imm);
        put_u64(sink, ops[i].imm_bits);
    }
}

/* What a source of a piece is; plans and routes number them in their own ways. */
typedef void put_src_fn(void *digester, const heft_piece_src_t *src);

static inline void put_piece(sink_t *sink, const heft_piece_t *piece, put_src_fn *put_src,
                             void *digester)
{
    put_u64(sink, (uint64_t)piece->rank);
    put_u64(sink, piece->n_srcs);
    put_u64(sink, piece->n_ops);
    put_i64(sink, piece->dst_offset);
    put_list(sink, piece->extent, piece->rank);
    put_list(sink, piece->dst_stride, piece->rank);
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        put_src(digester, &piece->srcs[s]);
        put_i64(sink, piece->srcs[s].offset);
        put_list(sink, piece->srcs[s].stride, piece->rank);
    }
    put_ops(sink, piece->ops, piece->n_ops);
}

/* Where in its buffer an output lies. */
static inline void put_output(sink_t *sink, const heft_opaque_output_t *output)
{
    put_i64(sink, output->buffer_elems);
    put_u64(sink, (uint64_t)output->view.rank);
    put_i64(sink, output->view.offset);
    put_list(sink, output->view.extent, output->view.rank);
    put_list(sink, output->view.stride, output->view.rank);
}

#endif

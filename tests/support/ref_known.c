/* SPDX-License-Identifier: Apache-2.0 */
#include "ref_known.h"

#include "heft_test.h"
#include "kernel/kernel.h"

#include <math.h>

static float from_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint32_t to_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* ---- one element ---- */

static float clamped(float amax)
{
    return amax < 1e-4F ? 1e-4F : amax;
}

float ref_known_scale(heft__scale_rule_t rule, float amax)
{
    int exponent;
    float fraction;
    switch (rule) {
    case HEFT__SCALE_DEEPSEEK:
        return amax == 0 ? 1 : amax / 448;
    case HEFT__SCALE_DEEPGEMM:
        return clamped(amax) / 448;
    case HEFT__SCALE_TRANSFORMERS:
        return amax == 0 ? 1 : 1 / (1 / amax * 448);
    case HEFT__SCALE_UE8M0:
        if (!isfinite(amax)) {
            return amax;
        }
        fraction = frexpf(clamped(amax) / 448, &exponent);
        return ldexpf(1, fraction == 0.5F ? exponent - 1 : exponent);
    }
    return NAN;
}

uint8_t ref_known_code(heft__scale_rule_t rule, float amax, float x)
{
    float scale = ref_known_scale(rule, amax);
    float v = rule == HEFT__SCALE_DEEPSEEK       ? x / scale
              : rule != HEFT__SCALE_TRANSFORMERS ? x * (1 / scale)
              : amax == 0                        ? x
                                                 : x * (1 / amax * 448);
    return isnan(v) ? 0x7f
                    : (uint8_t)heft__cast_bits(HEFT_DTYPE_F8_E4M3, HEFT_DTYPE_F32, to_bits(v));
}

/* ---- tensors ---- */

typedef struct tensor {
    const heft__tape_view_t *view;
    heft_dtype_t dtype;
    uint8_t *data;
} tensor_t;

static uint8_t *at(const tensor_t *t, const int64_t *index)
{
    int64_t flat = t->view->offset;
    for (int k = 0; k < t->view->rank; k++) {
        flat += index[k] * t->view->stride[k];
    }
    return t->data + flat * heft_dtype_get_unit_bytes(t->dtype);
}

static float get(const tensor_t *t, const int64_t *index)
{
    uint64_t bits = 0;
    memcpy(&bits, at(t, index), heft_dtype_get_unit_bytes(t->dtype));
    return from_bits((uint32_t)heft__cast_bits(HEFT_DTYPE_F32, t->dtype, bits));
}

static bool next(int64_t *index, const int64_t *begin, const int64_t *end, int rank)
{
    for (int k = rank; k-- > 0;) {
        if (++index[k] < end[k]) {
            return true;
        }
        index[k] = begin[k];
    }
    return false;
}

static void quantise_block(const heft__known_t *known, const tensor_t *x, const tensor_t *q,
                           const tensor_t *s, const int64_t *block)
{
    int rank = x->view->rank;
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
    int64_t index[HEFT_MAX_DIMS];
    for (int k = 0; k < rank; k++) {
        begin[k] = block[k] * known->block[k];
        end[k] = known->block[k] < x->view->extent[k] - begin[k] ? begin[k] + known->block[k]
                                                                 : x->view->extent[k];
        index[k] = begin[k];
    }
    float amax = 0;
    do {
        float v = fabsf(get(x, index));
        amax = isnan(v) || isnan(amax) ? from_bits(0x7fc00000) : v > amax ? v : amax;
    } while (next(index, begin, end, rank));
    do {
        *at(q, index) = ref_known_code(known->rule, amax, get(x, index));
    } while (next(index, begin, end, rank));
    float scale = ref_known_scale(known->rule, amax);
    uint64_t bits = isnan(scale) ? 0x7fc00000 : to_bits(scale);
    bits = heft__cast_bits(s->dtype, HEFT_DTYPE_F32, bits);
    memcpy(at(s, block), &bits, heft_dtype_get_unit_bytes(s->dtype));
}

static void unpack(const tensor_t *blocks, const tensor_t *scales, const tensor_t *out)
{
    static const float values[8] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };
    int64_t zero[HEFT_MAX_DIMS] = { 0 };
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    int rank = out->view->rank;
    do {
        int64_t from[HEFT_MAX_DIMS];
        memcpy(from, index, sizeof from);
        from[rank - 1] = index[rank - 1] / 32;
        int exponent = *at(scales, from);
        from[rank] = index[rank - 1] % 32 / 2;
        unsigned byte = *at(blocks, from);
        unsigned nibble = index[rank - 1] % 2 == 0 ? byte & 15 : byte >> 4;
        float v = ldexpf(values[nibble & 7], exponent - 127);
        uint64_t bits = exponent == 255 ? 0x7fc00000 : to_bits(nibble > 7 ? -v : v);
        bits = heft__cast_bits(out->dtype, HEFT_DTYPE_F32, bits);
        memcpy(at(out, index), &bits, heft_dtype_get_unit_bytes(out->dtype));
    } while (next(index, zero, out->view->extent, rank));
}

/* Byte after byte, both in row-major order. */
static void take_bits(const tensor_t *in, const tensor_t *out)
{
    int64_t zero[HEFT_MAX_DIMS] = { 0 };
    int64_t from[HEFT_MAX_DIMS] = { 0 };
    int64_t to[HEFT_MAX_DIMS] = { 0 };
    uint32_t from_byte = 0;
    uint32_t to_byte = 0;
    bool more = true;
    while (more) {
        at(out, to)[to_byte++] = at(in, from)[from_byte++];
        if (from_byte == heft_dtype_get_unit_bytes(in->dtype)) {
            from_byte = 0;
            more = next(from, zero, in->view->extent, in->view->rank);
        }
        if (to_byte == heft_dtype_get_unit_bytes(out->dtype)) {
            to_byte = 0;
            (void)next(to, zero, out->view->extent, out->view->rank);
        }
    }
}

static tensor_t tensor_of(const heft_tape_t *tape, uint8_t *const *data,
                          const heft__tape_view_t *view)
{
    return (tensor_t){ view, tape->buffers[view->buffer].dtype, data[view->buffer] };
}

void ref_known(const heft_tape_t *tape, uint8_t *const *data, const heft__write_t *write)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__known_t known;
    EXPECT_STATUS(heft__known_parse(write->op, &known, &err), HEFT_OK);
    const tensor_t in = tensor_of(tape, data, &write->srcs[0]);
    const tensor_t out = tensor_of(tape, data, &write->dsts[0]);
    if (known.code == HEFT__KNOWN_MXFP4_UNPACK) {
        const tensor_t scales = tensor_of(tape, data, &write->srcs[1]);
        unpack(&in, &scales, &out);
        return;
    }
    if (known.code == HEFT__KNOWN_BITS) {
        take_bits(&in, &out);
        return;
    }
    const tensor_t scale = tensor_of(tape, data, &write->dsts[1]);
    int64_t zero[HEFT_MAX_DIMS] = { 0 };
    int64_t block[HEFT_MAX_DIMS] = { 0 };
    do {
        quantise_block(&known, &in, &out, &scale, block);
    } while (next(block, zero, scale.view->extent, known.n_dims));
}

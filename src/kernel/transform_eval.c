/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise programs, one element at a time: the judge of the block interpreter.
 *
 * Arithmetic in f16 and bf16 is done in f32 and rounded after every operation; -exp is computed in
 * f64 and rounded once, so that it does not depend on the C library's expf. A result that is not a
 * number is the one canonical quiet NaN: which operand's payload survives differs between CPUs.
 */
#include "kernel/arith.h"
#include "kernel/transform.h"

#include <math.h>
#include <string.h>

static float to_float(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return v;
}

static uint64_t from_float(float v)
{
    uint32_t bits = HEFT__NAN_F32;
    if (v == v) {
        memcpy(&bits, &v, sizeof bits);
    }
    return bits;
}

static double to_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint64_t from_double(double v)
{
    uint64_t bits = HEFT__NAN_F64;
    if (v == v) {
        memcpy(&bits, &v, sizeof bits);
    }
    return bits;
}

uint64_t heft__transform_imm_bits(double imm, heft_dtype_t dtype)
{
    uint64_t bits;
    memcpy(&bits, &imm, sizeof bits);
    return heft__cast_bits(dtype, HEFT_DTYPE_F64, bits);
}

static uint64_t arith_f64(heft_op_code_t code, uint64_t a, uint64_t b)
{
    double x = to_double(a);
    double y = to_double(b);
    switch (code) {
    case HEFT_OP_ADD_IMM:
        return from_double(x + y);
    case HEFT_OP_DIV_IMM:
        return from_double(x / y);
    case HEFT_OP_NEG_EXP:
        return from_double(-exp(x));
    case HEFT_OP_MUL_IMM:
    case HEFT_OP_MUL:
    case HEFT_OP_LOAD:
    case HEFT_OP_CONST:
    case HEFT_OP_CAST:
    case HEFT_OP_BITS:
        break;
    }
    return from_double(x * y);
}

static uint64_t arith_f32(heft_op_code_t code, uint64_t a, uint64_t b)
{
    float x = to_float(a);
    float y = to_float(b);
    switch (code) {
    case HEFT_OP_ADD_IMM:
        return from_float(x + y);
    case HEFT_OP_DIV_IMM:
        return from_float(x / y);
    case HEFT_OP_NEG_EXP:
        return from_float((float)-exp((double)x));
    case HEFT_OP_MUL_IMM:
    case HEFT_OP_MUL:
    case HEFT_OP_LOAD:
    case HEFT_OP_CONST:
    case HEFT_OP_CAST:
    case HEFT_OP_BITS:
        break;
    }
    return from_float(x * y);
}

/* a op b in dtype; a and b have dtype. */
static uint64_t arith(heft_op_code_t code, heft_dtype_t dtype, uint64_t a, uint64_t b)
{
    if (dtype == HEFT_DTYPE_F64) {
        return arith_f64(code, a, b);
    }
    a = heft__cast_bits(HEFT_DTYPE_F32, dtype, a);
    b = heft__cast_bits(HEFT_DTYPE_F32, dtype, b);
    return heft__cast_bits(dtype, HEFT_DTYPE_F32, arith_f32(code, a, b));
}

uint64_t heft__transform_eval(const heft_op_t *ops, uint32_t n_ops, const heft_dtype_t *src_dtype,
                              const uint64_t *src_bits, heft_dtype_t *dtype_out)
{
    uint64_t value[HEFT_MAX_OPS] = { 0 };
    heft_dtype_t type[HEFT_MAX_OPS] = { HEFT_DTYPE_NONE };
    int top = -1;
    for (uint32_t k = 0; k < n_ops; k++) {
        const heft_op_t *op = &ops[k];
        heft_op_code_t code = (heft_op_code_t)op->code;
        heft_dtype_t dtype = (heft_dtype_t)op->dtype;
        if (code == HEFT_OP_LOAD) {
            value[++top] = src_bits[op->arg];
            type[top] = src_dtype[op->arg];
            continue;
        }
        if (code == HEFT_OP_CONST) {
            value[++top] = op->imm_bits;
            type[top] = dtype;
            continue;
        }
        if (code == HEFT_OP_BITS) {
            uint32_t n = 8 * heft_dtype_get_unit_bytes(dtype);
            value[top] =
                value[top] >> (8 * op->arg) & (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1);
            type[top] = dtype;
            continue;
        }
        uint64_t b = heft__transform_imm_bits(op->imm, dtype);
        if (code == HEFT_OP_MUL) {
            b = heft__cast_bits(dtype, type[top], value[top]);
            top--;
        }
        value[top] = heft__cast_bits(dtype, type[top], value[top]);
        type[top] = dtype;
        if (code != HEFT_OP_CAST) {
            value[top] = arith(code, dtype, value[top], b);
        }
    }
    *dtype_out = type[0];
    return value[0];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of element-wise programs: compiled at each level, one loop for each operation and kind
 * of operand, for the compiler to vectorise. Private to this folder.
 *
 * A result that is not a number is the one canonical quiet NaN, because which operand's payload
 * survives differs between CPUs and with the order in which the compiler puts the operands.
 */
#ifndef HEFT_KERNEL_ARITH_H
#define HEFT_KERNEL_ARITH_H

#include "kernel/kernel_ops.h"

#include <math.h>
#include <string.h>

#define HEFT__NAN_F32 UINT32_C(0x7fc00000)
#define HEFT__NAN_F64 UINT64_C(0x7ff8000000000000)

/* x op one value y for all elements. */
#define HEFT__ARITH_LOOP(type, expr)                       \
    for (int64_t i = 0; i < n; i++) {                      \
        type x;                                            \
        memcpy(&x, a + i * (int64_t)sizeof x, sizeof x);   \
        type r = (expr);                                   \
        r = r == r ? r : not_a_number;                     \
        memcpy(out + i * (int64_t)sizeof r, &r, sizeof r); \
    }

#define HEFT__ARITH_PAIRS(type, op)                        \
    for (int64_t i = 0; i < n; i++) {                      \
        type x;                                            \
        type z;                                            \
        memcpy(&x, a + i * (int64_t)sizeof x, sizeof x);   \
        memcpy(&z, b + i * (int64_t)sizeof z, sizeof z);   \
        type r = x op z;                                   \
        r = r == r ? r : not_a_number;                     \
        memcpy(out + i * (int64_t)sizeof r, &r, sizeof r); \
    }

/* The loops of one dtype: -exp(x) is computed in f64. */
#define HEFT__ARITH_BODY(type)                        \
    type y;                                           \
    memcpy(&y, b, sizeof y);                          \
    if (code == HEFT_OP_NEG_EXP) {                    \
        HEFT__ARITH_LOOP(type, (type)-exp((double)x)) \
    } else if (code == HEFT_OP_ADD_IMM) {             \
        HEFT__ARITH_LOOP(type, x + y)                 \
    } else if (code == HEFT_OP_DIV_IMM) {             \
        HEFT__ARITH_LOOP(type, x / y)                 \
    } else if (is_uniform) {                          \
        HEFT__ARITH_LOOP(type, x *y)                  \
    } else {                                          \
        HEFT__ARITH_PAIRS(type, *)                    \
    }

static inline void heft__arith_f32_loop(heft_op_code_t code, uint8_t *restrict out,
                                        const uint8_t *restrict a, const uint8_t *restrict b,
                                        bool is_uniform, int64_t n)
{
    const uint32_t nan_bits = HEFT__NAN_F32;
    float not_a_number;
    memcpy(&not_a_number, &nan_bits, sizeof not_a_number);
    HEFT__ARITH_BODY(float)
}

static inline void heft__arith_f64_loop(heft_op_code_t code, uint8_t *restrict out,
                                        const uint8_t *restrict a, const uint8_t *restrict b,
                                        bool is_uniform, int64_t n)
{
    const uint64_t nan_bits = HEFT__NAN_F64;
    double not_a_number;
    memcpy(&not_a_number, &nan_bits, sizeof not_a_number);
    HEFT__ARITH_BODY(double)
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise programs. Equal programs are equal bytes: fields that an operation does not use are
 * zero. Nothing that could change a bit is simplified: only casts to the dtype a value already has
 * are dropped, and a constant is cast at once where that is a matter of moving bits.
 */
#include "tape/program.h"

#include <string.h>

bool heft__program_is_element(heft_dtype_t dtype, uint64_t bits)
{
    uint32_t bytes = heft_dtype_get_unit_bytes(dtype);
    return bytes == 8 || bits >> (8 * bytes) == 0;
}

/* ---- appending in canonical form ---- */

static heft_status_t push_op(heft__program_t *program, const heft_op_t *op, heft_error_t *err)
{
    if (program->n_ops == HEFT_MAX_OPS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "more than %d operations in one program",
                               HEFT_MAX_OPS);
    }
    program->ops[program->n_ops++] = *op;
    return HEFT_OK;
}

/* A constant cast by moving bits: zero, and bf16 to f32 and back where nothing is lost. */
static bool cast_constant(heft_op_t *op, heft_dtype_t to)
{
    bool has_zero = op->dtype != HEFT_DTYPE_F8_E8M0 && to != HEFT_DTYPE_F8_E8M0;
    if (op->imm_bits == 0 && has_zero) {
        op->dtype = (uint8_t)to;
        return true;
    }
    if (op->dtype == HEFT_DTYPE_BF16 && to == HEFT_DTYPE_F32) {
        op->imm_bits <<= 16;
        op->dtype = (uint8_t)to;
        return true;
    }
    if (op->dtype == HEFT_DTYPE_F32 && to == HEFT_DTYPE_BF16 && (op->imm_bits & 0xffff) == 0) {
        op->imm_bits >>= 16;
        op->dtype = (uint8_t)to;
        return true;
    }
    return false;
}

static heft_status_t push_cast(heft__program_t *program, heft_dtype_t to, heft_error_t *err)
{
    heft_op_t *top = program->n_ops > 0 ? &program->ops[program->n_ops - 1] : NULL;
    if (top != NULL && top->code == HEFT_OP_CONST && cast_constant(top, to)) {
        return HEFT_OK;
    }
    const heft_op_t cast = { .code = HEFT_OP_CAST, .dtype = (uint8_t)to };
    return push_op(program, &cast, err);
}

static uint64_t take_bits(uint64_t bits, heft_dtype_t to, uint32_t first_byte)
{
    uint32_t n = 8 * heft_dtype_get_unit_bytes(to);
    bits >>= 8 * first_byte;
    return n == 64 ? bits : bits & ((UINT64_C(1) << n) - 1);
}

static heft_status_t push_bits(heft__program_t *program, const heft_op_t *op, heft_error_t *err)
{
    heft_op_t *top = program->n_ops > 0 ? &program->ops[program->n_ops - 1] : NULL;
    if (top != NULL && top->code == HEFT_OP_CONST) {
        top->imm_bits = take_bits(top->imm_bits, (heft_dtype_t)op->dtype, op->arg);
        top->dtype = op->dtype;
        return HEFT_OK;
    }
    const heft_op_t bits = { .code = HEFT_OP_BITS, .dtype = op->dtype, .arg = op->arg };
    return push_op(program, &bits, err);
}

/* ---- checking ---- */

typedef struct checker {
    heft__program_t *program;
    const heft_dtype_t *src_dtypes;
    uint32_t n_srcs;
    uint32_t depth;
    heft_dtype_t stack[HEFT_MAX_OPS];
} checker_t;

static bool is_packed(heft_dtype_t dtype)
{
    return heft_dtype_get_bits(dtype) < 8;
}

static bool can_compute(heft_dtype_t dtype)
{
    return dtype == HEFT_DTYPE_F16 || dtype == HEFT_DTYPE_BF16 || dtype == HEFT_DTYPE_F32 ||
           dtype == HEFT_DTYPE_F64;
}

static heft_status_t refuse_packed(heft_dtype_t dtype, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                           "a value of packed dtype %s can only be copied as it is",
                           heft_dtype_get_name(dtype));
}

static heft_status_t check_load(checker_t *c, const heft_op_t *op, heft_error_t *err)
{
    if (op->arg >= c->n_srcs) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program loads source %u of %u",
                               (unsigned)op->arg, (unsigned)c->n_srcs);
    }
    const heft_op_t load = { .code = HEFT_OP_LOAD, .arg = op->arg };
    c->stack[c->depth++] = c->src_dtypes[op->arg];
    return push_op(c->program, &load, err);
}

static heft_status_t check_const(checker_t *c, const heft_op_t *op, heft_error_t *err)
{
    heft_dtype_t dtype = (heft_dtype_t)op->dtype;
    if (heft_dtype_get_bits(dtype) == 0 || !heft__program_is_element(dtype, op->imm_bits)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "constant 0x%llx is no element of dtype %s",
                               (unsigned long long)op->imm_bits, heft_dtype_get_name(dtype));
    }
    const heft_op_t constant = { .code = HEFT_OP_CONST,
                                 .dtype = op->dtype,
                                 .imm_bits = op->imm_bits };
    c->stack[c->depth++] = dtype;
    return push_op(c->program, &constant, err);
}

static heft_status_t check_cast(checker_t *c, heft_dtype_t to, heft_error_t *err)
{
    heft_dtype_t from = c->stack[c->depth - 1];
    if (heft_dtype_get_bits(to) == 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "cast to dtype %d: no such dtype", (int)to);
    }
    if (from == to) {
        return HEFT_OK;
    }
    if (is_packed(from) || is_packed(to)) {
        return refuse_packed(is_packed(from) ? from : to, err);
    }
    c->stack[c->depth - 1] = to;
    return push_cast(c->program, to, err);
}

static heft_status_t check_bits(checker_t *c, const heft_op_t *op, heft_error_t *err)
{
    heft_dtype_t from = c->stack[c->depth - 1];
    heft_dtype_t to = (heft_dtype_t)op->dtype;
    if (heft_dtype_get_bits(to) == 0 || is_packed(from) || is_packed(to) || to == HEFT_DTYPE_BOOL) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "bits of %s seen as %s",
                               heft_dtype_get_name(from), heft_dtype_get_name(to));
    }
    if (op->arg + heft_dtype_get_unit_bytes(to) > heft_dtype_get_unit_bytes(from)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "bits of %s seen as %s from byte %u: it has %u bytes",
                               heft_dtype_get_name(from), heft_dtype_get_name(to),
                               (unsigned)op->arg, (unsigned)heft_dtype_get_unit_bytes(from));
    }
    if (from == to) {
        return HEFT_OK;
    }
    c->stack[c->depth - 1] = to;
    return push_bits(c->program, op, err);
}

static heft_status_t check_arithmetic(checker_t *c, const heft_op_t *op, heft_error_t *err)
{
    heft_dtype_t dtype = (heft_dtype_t)op->dtype;
    uint32_t n_pops = op->code == HEFT_OP_MUL ? 2 : 1;
    if (!can_compute(dtype)) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "arithmetic in dtype %s",
                               heft_dtype_get_name(dtype));
    }
    for (uint32_t i = 1; i <= n_pops; i++) {
        if (is_packed(c->stack[c->depth - i])) {
            return refuse_packed(c->stack[c->depth - i], err);
        }
    }
    bool has_imm =
        op->code == HEFT_OP_ADD_IMM || op->code == HEFT_OP_MUL_IMM || op->code == HEFT_OP_DIV_IMM;
    const heft_op_t done = { .code = op->code, .dtype = op->dtype, .imm = has_imm ? op->imm : 0 };
    c->depth -= n_pops - 1;
    c->stack[c->depth - 1] = dtype;
    return push_op(c->program, &done, err);
}

static heft_status_t check_op(checker_t *c, const heft_op_t *op, heft_error_t *err)
{
    uint32_t need = op->code == HEFT_OP_MUL ? 2 : 1;
    if (op->code == HEFT_OP_LOAD) {
        return check_load(c, op, err);
    }
    if (op->code == HEFT_OP_CONST) {
        return check_const(c, op, err);
    }
    if (op->code < HEFT_OP_CAST || op->code > HEFT_OP_BITS) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "operation code %u: no such operation",
                               (unsigned)op->code);
    }
    if (c->depth < need) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "operation code %u needs %u values, the stack has %u",
                               (unsigned)op->code, (unsigned)need, (unsigned)c->depth);
    }
    return op->code == HEFT_OP_CAST   ? check_cast(c, (heft_dtype_t)op->dtype, err)
           : op->code == HEFT_OP_BITS ? check_bits(c, op, err)
                                      : check_arithmetic(c, op, err);
}

heft_status_t heft__program_check(const heft_op_t *ops, uint32_t n_ops,
                                  const heft_dtype_t *src_dtypes, uint32_t n_srcs,
                                  heft_dtype_t result, heft__program_t *program_out,
                                  heft_error_t *err)
{
    heft__program_t program = { .n_ops = 0 };
    checker_t c = { .program = &program, .src_dtypes = src_dtypes, .n_srcs = n_srcs };
    if (n_ops > HEFT_MAX_OPS) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "%u operations in one program, at most %d",
                               (unsigned)n_ops, HEFT_MAX_OPS);
    }
    for (uint32_t i = 0; i < n_ops; i++) {
        heft_status_t status = check_op(&c, &ops[i], err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (c.depth != 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "program leaves %u values, not one",
                               (unsigned)c.depth);
    }
    heft_status_t status = check_cast(&c, result, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (program.n_ops == 1 && program.ops[0].code == HEFT_OP_LOAD && program.ops[0].arg == 0) {
        program.n_ops = 0;
    }
    *program_out = program;
    return HEFT_OK;
}

/* ---- composing ---- */

static heft_status_t push_part(heft__program_t *program, const heft__program_part_t *part,
                               heft_error_t *err)
{
    if (part->n_ops == 0) {
        const heft_op_t load = { .code = HEFT_OP_LOAD, .arg = part->arg[0] };
        return push_op(program, &load, err);
    }
    for (uint32_t i = 0; i < part->n_ops; i++) {
        heft_op_t op = part->ops[i];
        if (op.code == HEFT_OP_LOAD) {
            op.arg = part->arg[op.arg];
        }
        heft_status_t status = push_op(program, &op, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__program_compose(const heft_op_t *ops, uint32_t n_ops,
                                    const heft__program_part_t *parts, heft__program_t *program_out,
                                    heft_error_t *err)
{
    heft__program_t program = { .n_ops = 0 };
    heft_status_t status = HEFT_OK;
    if (n_ops == 0) {
        status = push_part(&program, &parts[0], err);
    }
    for (uint32_t i = 0; i < n_ops && status == HEFT_OK; i++) {
        if (ops[i].code == HEFT_OP_LOAD) {
            status = push_part(&program, &parts[ops[i].arg], err);
        } else if (ops[i].code == HEFT_OP_CAST) {
            status = push_cast(&program, (heft_dtype_t)ops[i].dtype, err);
        } else if (ops[i].code == HEFT_OP_BITS) {
            status = push_bits(&program, &ops[i], err);
        } else {
            status = push_op(&program, &ops[i], err);
        }
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (program.n_ops == 1 && program.ops[0].code == HEFT_OP_LOAD && program.ops[0].arg == 0) {
        program.n_ops = 0;
    }
    *program_out = program;
    return HEFT_OK;
}

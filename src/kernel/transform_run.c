/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter of element-wise programs: each operation runs over a block of elements at a time.
 *
 * Lines follow the primary source. Where the destination is contiguous along the line, the result
 * goes straight there; otherwise a tile of lines is computed into a small dense buffer and moved to
 * the destination as a copy (a transpose, mostly). Arithmetic runs in the default floating-point
 * environment whatever the caller's is.
 */
#include "kernel/cast.h"
#include "kernel/transform.h"

#include <fenv.h>
#include <string.h>

#define BLOCK 256
#define BOUNCE_BYTES 4096

typedef struct slot {
    const uint8_t *data; /* elements in a row: own, or the source itself */
    uint64_t *own;
    heft_dtype_t dtype;
    bool is_uniform; /* data is one element that stands for all */
} slot_t;

typedef struct machine {
    uint64_t buffer[HEFT_MAX_OPS + 1][BLOCK];
    slot_t slot[HEFT_MAX_OPS];
    uint64_t *spare;
    const heft__kernel_ops_t *ops;
    uint64_t imm[HEFT_MAX_OPS]; /* rounded to the operation's dtype, little-endian */
} machine_t;

typedef struct run {
    heft__sink_t sink;
    const heft__transform_plan_t *plan;
    machine_t machine;
    int64_t extent[HEFT_MAX_DIMS];
    const uint8_t *src[HEFT_MAX_SOURCES];
} run_t;

/* What was computed into the spare buffer becomes the slot's. */
static void take_spare(machine_t *m, slot_t *slot, heft_dtype_t dtype)
{
    uint64_t *own = slot->own;
    slot->own = m->spare;
    slot->data = (const uint8_t *)slot->own;
    slot->dtype = dtype;
    m->spare = own;
}

static void load_slot(const machine_t *m, slot_t *slot, const uint8_t *src, int64_t step,
                      heft_dtype_t dtype, int64_t n)
{
    uint32_t bytes = heft_dtype_get_unit_bytes(dtype);
    slot->dtype = dtype;
    slot->data = src;
    slot->is_uniform = step == 0;
    if (step != 0 && step != (int64_t)bytes) {
        heft__elems_move(m->ops, slot->own, bytes, src, step, n, bytes);
        slot->data = (const uint8_t *)slot->own;
    }
}

static void cast_slot(machine_t *m, slot_t *slot, heft_dtype_t dtype, int64_t n)
{
    if (slot->dtype != dtype) {
        int64_t count = slot->is_uniform ? 1 : n;
        heft__cast_block(m->ops, dtype, m->spare, slot->dtype, slot->data, count, false, 0);
        take_spare(m, slot, dtype);
    }
}

/* slot <- some bytes of each of its elements, as dtype. */
static void bits_slot(machine_t *m, slot_t *slot, heft_dtype_t dtype, uint32_t first_byte,
                      int64_t n)
{
    uint32_t from = heft_dtype_get_unit_bytes(slot->dtype);
    uint32_t to = heft_dtype_get_unit_bytes(dtype);
    int64_t count = slot->is_uniform ? 1 : n;
    heft__elems_move(m->ops, m->spare, to, slot->data + first_byte, from, count, to);
    take_spare(m, slot, dtype);
}

/* slot <- slot op other, in dtype; both have it. */
static void arith_slot(machine_t *m, slot_t *slot, heft_op_code_t code, heft_dtype_t dtype,
                       const uint8_t *other, bool other_is_uniform, int64_t n)
{
    const heft__kernel_ops_t *ops = m->ops;
    uint8_t *out = (uint8_t *)m->spare;
    n = slot->is_uniform ? 1 : n;
    if (dtype == HEFT_DTYPE_F64) {
        ops->arith_f64(code, out, slot->data, other, other_is_uniform, n);
    } else if (dtype == HEFT_DTYPE_F32) {
        ops->arith_f32(code, out, slot->data, other, other_is_uniform, n);
    } else {
        float a[BLOCK];
        float b[BLOCK];
        float r[BLOCK];
        int64_t n_other = other_is_uniform ? 1 : n;
        heft__cast_block(ops, HEFT_DTYPE_F32, a, dtype, slot->data, n, false, 0);
        heft__cast_block(ops, HEFT_DTYPE_F32, b, dtype, other, n_other, false, 0);
        ops->arith_f32(code, (uint8_t *)r, (const uint8_t *)a, (const uint8_t *)b, other_is_uniform,
                       n);
        heft__cast_block(ops, dtype, out, HEFT_DTYPE_F32, r, n, false, 0);
    }
    take_spare(m, slot, dtype);
}

/* a <- a * b; the one that stands for all elements, if any, goes second. */
static void multiply_slots(machine_t *m, slot_t *a, slot_t *b, heft_dtype_t dtype, int64_t n)
{
    cast_slot(m, a, dtype, n);
    cast_slot(m, b, dtype, n);
    if (a->is_uniform && !b->is_uniform) {
        slot_t swap = *a;
        *a = *b;
        *b = swap;
    }
    arith_slot(m, a, HEFT_OP_MUL, dtype, b->data, b->is_uniform, n);
}

/* Run the program over n elements; the result stays in slot 0, one for each element. */
static const uint8_t *run_block(run_t *run, const uint8_t *const *src, const int64_t *step,
                                int64_t n)
{
    machine_t *m = &run->machine;
    int top = -1;
    for (uint32_t k = 0; k < run->plan->n_ops; k++) {
        const heft_op_t *op = &run->plan->ops[k];
        heft_dtype_t dtype = (heft_dtype_t)op->dtype;
        slot_t *slot = top >= 0 ? &m->slot[top] : NULL;
        switch ((heft_op_code_t)op->code) {
        case HEFT_OP_LOAD:
            load_slot(m, &m->slot[++top], src[op->arg], step[op->arg],
                      run->plan->src_dtype[op->arg], n);
            break;
        case HEFT_OP_CONST:
            load_slot(m, &m->slot[++top], (const uint8_t *)&m->imm[k], 0, dtype, n);
            break;
        case HEFT_OP_CAST:
            cast_slot(m, slot, dtype, n);
            break;
        case HEFT_OP_BITS:
            bits_slot(m, slot, dtype, op->arg, n);
            break;
        case HEFT_OP_MUL:
            multiply_slots(m, slot - 1, slot, dtype, n);
            top--;
            break;
        case HEFT_OP_ADD_IMM:
        case HEFT_OP_MUL_IMM:
        case HEFT_OP_DIV_IMM:
        case HEFT_OP_NEG_EXP:
            cast_slot(m, slot, dtype, n);
            arith_slot(m, slot, (heft_op_code_t)op->code, dtype, (const uint8_t *)&m->imm[k], true,
                       n);
            break;
        }
    }
    slot_t *result = &m->slot[0];
    if (result->is_uniform) {
        uint32_t bytes = run->plan->elem_bytes;
        heft__elems_move(m->ops, m->spare, bytes, result->data, 0, n, bytes);
        take_spare(m, result, result->dtype);
    }
    return result->data;
}

/* A program that is no more than a cast, along a line without gaps. */
static void cast_line(run_t *run, uint8_t *dst, const uint8_t *src, int64_t n, bool is_final)
{
    const heft__transform_plan_t *plan = run->plan;
    heft__sink_t *sink = &run->sink;
    uint32_t out = plan->elem_bytes;
    uint32_t in = heft_dtype_get_unit_bytes(plan->src_dtype[0]);
    if (!is_final) {
        heft__cast_block(sink->ops, plan->dst_dtype, dst, plan->src_dtype[0], src, n, false,
                         n * in);
        return;
    }
    if (!sink->has_digest && heft__cast_is_direct(plan->dst_dtype, plan->src_dtype[0])) {
        bool nt = sink->nt && n * out >= HEFT__NT_MIN_RUN;
        heft__cast_block(sink->ops, plan->dst_dtype, dst, plan->src_dtype[0], src, n, nt,
                         HEFT__AHEAD);
        return;
    }
    _Alignas(64) uint8_t bounce[BOUNCE_BYTES];
    int64_t most = BOUNCE_BYTES / out;
    for (int64_t i = 0; i < n; i += most) {
        int64_t some = heft__min_i64(most, n - i);
        heft__cast_block(sink->ops, plan->dst_dtype, bounce, plan->src_dtype[0], src + i * in, some,
                         false, HEFT__AHEAD);
        heft__sink_put(sink, dst + i * out, bounce, some * out, 0);
    }
}

/* A line of codes with one scale. */
static void dequantise_line(run_t *run, uint8_t *dst, const uint8_t *src, const uint8_t *scale,
                            int64_t n, bool is_final)
{
    heft__sink_t *sink = &run->sink;
    float factor;
    memcpy(&factor, scale, sizeof factor);
    if (!is_final || (!sink->nt && !sink->has_digest)) {
        sink->ops->dequantise_bf16((uint16_t *)(void *)dst, src, n, factor);
        return;
    }
    _Alignas(64) uint16_t bounce[BOUNCE_BYTES / 2];
    for (int64_t i = 0; i < n; i += BOUNCE_BYTES / 2) {
        int64_t some = heft__min_i64(BOUNCE_BYTES / 2, n - i);
        sink->ops->dequantise_bf16(bounce, src + i, some, factor);
        heft__sink_put(sink, dst + 2 * i, (const uint8_t *)bounce, 2 * some, 0);
    }
}

/* One line of n elements to contiguous memory. is_final: with digest and stores as asked; else into
 * a tile. */
static void run_line(run_t *run, uint8_t *dst, const uint8_t *const *src, const int64_t *step,
                     int64_t n, bool is_final)
{
    const heft__transform_plan_t *plan = run->plan;
    uint32_t elem = plan->elem_bytes;
    if (plan->is_cast && step[0] == (int64_t)heft_dtype_get_unit_bytes(plan->src_dtype[0])) {
        cast_line(run, dst, src[0], n, is_final);
        return;
    }
    if (plan->is_dequantise && step[0] == 1 && step[1] == 0) {
        dequantise_line(run, dst, src[0], src[1], n, is_final);
        return;
    }
    const uint8_t *at[HEFT_MAX_SOURCES] = { NULL };
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t some = heft__min_i64(BLOCK, n - i);
        for (uint32_t s = 0; s < plan->n_srcs; s++) {
            at[s] = src[s] + i * step[s];
        }
        const uint8_t *result = run_block(run, at, step, some);
        if (is_final) {
            heft__sink_put(&run->sink, dst + i * elem, result, some * elem, 0);
        } else {
            memcpy(dst + i * elem, result, (size_t)(some * elem));
        }
    }
}

/* The loop along which the destination advances least. */
static int find_dst_loop(const heft__transform_plan_t *plan)
{
    int best = plan->n_loops - 1;
    for (int k = 0; k < plan->n_loops; k++) {
        best = plan->dst_step[k] < plan->dst_step[best] ? k : best;
    }
    return best;
}

/* A tile of lines (loop u) of n elements (loop v), to a destination contiguous along neither. */
static void scatter_tile(run_t *run, uint8_t *dst, const uint8_t *tile, int u, int v,
                         int64_t n_lines, int64_t n)
{
    const heft__transform_plan_t *plan = run->plan;
    uint32_t elem = plan->elem_bytes;
    for (int64_t l = 0; l < n_lines; l++) {
        const uint8_t *from = tile + l * HEFT__TILE_STEP;
        uint8_t *to = dst + l * plan->dst_step[u];
        if (!run->sink.has_digest) {
            heft__elems_move(run->sink.ops, to, plan->dst_step[v], from, elem, n, elem);
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            heft__sink_put(&run->sink, to + i * plan->dst_step[v], from + i * elem, elem, 0);
        }
    }
}

/* Loops u (lines) and v (along a line) by tiles; u == v: single lines. */
static void run_tiles(run_t *run, uint8_t *dst, const uint8_t *const *src, const int64_t *step,
                      int u, int v)
{
    const heft__transform_plan_t *plan = run->plan;
    _Alignas(64) uint8_t tile[HEFT__TILE_ROWS * HEFT__TILE_STEP];
    uint32_t elem = plan->elem_bytes;
    int64_t n_lines = u == v ? 1 : run->extent[u];
    int64_t most_lines = heft__tile_rows(elem);
    int64_t most = HEFT__TILE_BYTES / elem;
    const uint8_t *at[HEFT_MAX_SOURCES] = { NULL };
    for (int64_t i = 0; i < n_lines; i += most_lines) {
        int64_t lines = heft__min_i64(most_lines, n_lines - i);
        for (int64_t j = 0; j < run->extent[v]; j += most) {
            int64_t n = heft__min_i64(most, run->extent[v] - j);
            for (int64_t l = 0; l < lines; l++) {
                for (uint32_t s = 0; s < plan->n_srcs; s++) {
                    at[s] = src[s] + j * step[s] + (u == v ? 0 : (i + l) * plan->src_step[s][u]);
                }
                run_line(run, tile + l * HEFT__TILE_STEP, at, step, n, false);
            }
            uint8_t *to = dst + j * plan->dst_step[v] + (u == v ? 0 : i * plan->dst_step[u]);
            if (u != v && plan->dst_step[u] == (int64_t)elem) {
                heft__sink_put_tile(&run->sink, to, plan->dst_step[v], tile, lines, n, elem);
            } else {
                scatter_tile(run, to, tile, u, v, lines, n);
            }
        }
    }
}

static void run_inner(run_t *run, uint8_t *dst, const uint8_t *const *src, int u, int v)
{
    const heft__transform_plan_t *plan = run->plan;
    int64_t step[HEFT_MAX_SOURCES] = { 0 };
    for (uint32_t s = 0; s < plan->n_srcs; s++) {
        step[s] = plan->src_step[s][v];
    }
    if (plan->dst_step[v] == (int64_t)plan->elem_bytes) {
        run_line(run, dst, src, step, run->extent[v], true);
    } else {
        run_tiles(run, dst, src, step, u, v);
    }
}

static void walk(run_t *run, uint8_t *dst)
{
    const heft__transform_plan_t *plan = run->plan;
    int v = plan->n_loops - 1;
    int u = find_dst_loop(plan);
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    const uint8_t *src[HEFT_MAX_SOURCES];
    memcpy(src, run->src, sizeof src);
    for (;;) {
        run_inner(run, dst, src, u, v);
        int k = v;
        while (--k >= 0) {
            if (k == u) {
                continue;
            }
            index[k]++;
            bool wraps = index[k] == run->extent[k];
            int64_t move = wraps ? 1 - index[k] : 1;
            dst += move * plan->dst_step[k];
            for (uint32_t s = 0; s < plan->n_srcs; s++) {
                src[s] += move * plan->src_step[s][k];
            }
            if (!wraps) {
                break;
            }
            index[k] = 0;
        }
        if (k < 0) {
            return;
        }
    }
}

static void init_machine(machine_t *m, const heft__kernel_ops_t *ops,
                         const heft__transform_plan_t *plan)
{
    m->ops = ops;
    for (int k = 0; k < HEFT_MAX_OPS; k++) {
        m->slot[k] = (slot_t){ .own = m->buffer[k] };
    }
    m->spare = m->buffer[HEFT_MAX_OPS];
    for (uint32_t k = 0; k < plan->n_ops; k++) {
        const heft_op_t *op = &plan->ops[k];
        bool has_imm = op->code == HEFT_OP_ADD_IMM || op->code == HEFT_OP_MUL_IMM ||
                       op->code == HEFT_OP_DIV_IMM;
        uint64_t bits =
            has_imm ? heft__transform_imm_bits(op->imm, (heft_dtype_t)op->dtype) : op->imm_bits;
        heft__put_le64((uint8_t *)&m->imm[k], bits);
    }
}

/* Does every line go through cast_line, without the machine? */
static bool is_simple_cast(const heft__transform_plan_t *plan)
{
    int v = plan->n_loops - 1;
    return plan->is_cast &&
           plan->src_step[0][v] == (int64_t)heft_dtype_get_unit_bytes(plan->src_dtype[0]);
}

uint64_t heft__transform_part_run(const heft__kernel_ops_t *ops, const heft__transform_part_t *part)
{
    const heft__transform_plan_t *plan = part->plan;
    if (plan->bytes == 0 || part->begin >= part->end) {
        return 0;
    }
    run_t run;
    run.plan = plan;
    run.sink =
        (heft__sink_t){ .ops = ops,
                        .nt = part->nt,
                        .has_digest = part->has_digest,
                        .param_end = part->has_digest ? part->dst + part->digest_end : NULL };
    if (!is_simple_cast(plan)) {
        init_machine(&run.machine, ops, plan);
    }
    memcpy(run.extent, plan->extent, sizeof run.extent);
    run.extent[0] = part->end - part->begin;
    for (uint32_t s = 0; s < plan->n_srcs; s++) {
        run.src[s] = (const uint8_t *)part->srcs[s] + plan->src_offset[s] +
                     part->begin * plan->src_step[s][0];
    }
    fenv_t env;
    if (plan->needs_env) {
        (void)fegetenv(&env);
        (void)fesetenv(FE_DFL_ENV);
    }
    walk(&run, part->dst + plan->dst_offset + part->begin * plan->dst_step[0]);
    if (plan->needs_env) {
        (void)fesetenv(&env);
    }
    return run.sink.digest;
}

void heft__transform_run_slabs(const heft__transform_plan_t *plan, void *dst,
                               const void *const *srcs, int64_t begin, int64_t end)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__transform_part_t part = { .plan = plan,
                                    .dst = dst,
                                    .srcs = srcs,
                                    .begin = begin,
                                    .end = end,
                                    .nt = plan->bytes >= HEFT__NT_MIN_BYTES };
    (void)heft__transform_part_run(ops, &part);
    ops->fence();
}

void heft__transform_run(const heft__transform_plan_t *plan, void *dst, const void *const *srcs)
{
    heft__transform_run_slabs(plan, dst, srcs, 0, plan->extent[0]);
}

uint64_t heft__transform_run_crc64(const heft__transform_plan_t *plan, void *dst,
                                   const void *const *srcs, int64_t dst_offset, int64_t param_bytes)
{
    const heft__kernel_ops_t *ops = heft__ops();
    heft__transform_part_t part = { .plan = plan,
                                    .dst = dst,
                                    .srcs = srcs,
                                    .end = plan->extent[0],
                                    .nt = plan->bytes >= HEFT__NT_MIN_BYTES,
                                    .has_digest = true,
                                    .digest_end = param_bytes - dst_offset };
    uint64_t digest = heft__transform_part_run(ops, &part);
    ops->fence();
    return digest;
}

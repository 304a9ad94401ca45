/* SPDX-License-Identifier: Apache-2.0 */
/* Plain and slow on purpose: every rule is written out for one element at a time. */
#include "ref_tape.h"

#include <stdlib.h>
#include <string.h>

static void *must(void *ptr)
{
    if (ptr == NULL) {
        abort();
    }
    return ptr;
}

bool ref_next_index(int64_t *index, const int64_t *extent, int rank)
{
    for (int k = rank - 1; k >= 0; k--) {
        if (++index[k] < extent[k]) {
            return true;
        }
        index[k] = 0;
    }
    return false;
}

int64_t ref_element(const heft__tape_view_t *view, const int64_t *index)
{
    int64_t e = view->offset;
    for (int k = 0; k < view->rank; k++) {
        e += index[k] * view->stride[k];
    }
    return e;
}

static bool has_elements(const heft__tape_view_t *view)
{
    for (int k = 0; k < view->rank; k++) {
        if (view->extent[k] == 0) {
            return false;
        }
    }
    return true;
}

/* ---- values ---- */

static bool equal_values(const ref_value_t *a, const ref_value_t *b)
{
    return a->code == b->code && a->dtype == b->dtype && a->buffer == b->buffer &&
           a->opaque_write == b->opaque_write && a->element == b->element && a->bits == b->bits &&
           a->args[0] == b->args[0] && a->args[1] == b->args[1];
}

static size_t hash_value(const ref_value_t *v)
{
    uint64_t h = v->code;
    uint64_t parts[] = { v->dtype, v->buffer,  v->opaque_write, (uint64_t)v->element,
                         v->bits,  v->args[0], v->args[1] };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        h = (h ^ parts[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (size_t)h;
}

static void grow_slots(ref_run_t *run)
{
    free(run->slots);
    run->n_slots = run->n_slots == 0 ? 256 : 2 * run->n_slots;
    run->slots = must(calloc(run->n_slots, sizeof *run->slots));
    for (uint32_t i = 1; i < run->n_values; i++) {
        size_t s = hash_value(&run->values[i]) & (run->n_slots - 1);
        while (run->slots[s] != 0) {
            s = (s + 1) & (run->n_slots - 1);
        }
        run->slots[s] = i;
    }
}

static uint32_t intern(ref_run_t *run, const ref_value_t *value)
{
    if (2 * run->n_values >= run->n_slots) {
        grow_slots(run);
    }
    size_t s = hash_value(value) & (run->n_slots - 1);
    for (; run->slots[s] != 0; s = (s + 1) & (run->n_slots - 1)) {
        if (equal_values(&run->values[run->slots[s]], value)) {
            return run->slots[s];
        }
    }
    if (run->n_values == run->cap_values) {
        run->cap_values *= 2;
        run->values = must(realloc(run->values, run->cap_values * sizeof *run->values));
    }
    run->values[run->n_values] = *value;
    run->slots[s] = (uint32_t)run->n_values;
    return (uint32_t)run->n_values++;
}

static uint32_t load_value(ref_run_t *run, uint32_t buffer, uint32_t opaque_write, int64_t element)
{
    const ref_value_t v = {
        .code = HEFT_OP_LOAD, .buffer = buffer, .opaque_write = opaque_write, .element = element
    };
    return intern(run, &v);
}

static uint32_t const_value(ref_run_t *run, uint8_t dtype, uint64_t bits)
{
    const ref_value_t v = { .code = HEFT_OP_CONST, .dtype = dtype, .bits = bits };
    return intern(run, &v);
}

/* A cast of a constant that only moves bits is done. */
static uint32_t cast_value(ref_run_t *run, uint8_t dtype, uint32_t arg)
{
    const ref_value_t *a = &run->values[arg];
    if (a->code == HEFT_OP_CONST) {
        if (a->bits == 0 && a->dtype != HEFT_DTYPE_F8_E8M0 && dtype != HEFT_DTYPE_F8_E8M0) {
            return const_value(run, dtype, 0);
        }
        if (a->dtype == HEFT_DTYPE_BF16 && dtype == HEFT_DTYPE_F32) {
            return const_value(run, dtype, a->bits * 65536);
        }
        if (a->dtype == HEFT_DTYPE_F32 && dtype == HEFT_DTYPE_BF16 && a->bits % 65536 == 0) {
            return const_value(run, dtype, a->bits / 65536);
        }
    }
    const ref_value_t v = { .code = HEFT_OP_CAST, .dtype = dtype, .args = { arg, 0 } };
    return intern(run, &v);
}

/* A program over values; n_ops 0 is the one argument. */
static uint32_t eval(ref_run_t *run, const heft_op_t *ops, uint32_t n_ops, const uint32_t *args)
{
    uint32_t stack[HEFT_MAX_OPS + 1];
    int n = 0;
    if (n_ops == 0) {
        return args[0];
    }
    for (uint32_t i = 0; i < n_ops; i++) {
        const heft_op_t *op = &ops[i];
        ref_value_t v = { .code = op->code, .dtype = op->dtype };
        memcpy(&v.bits, &op->imm, sizeof v.bits);
        if (op->code == HEFT_OP_LOAD) {
            stack[n++] = args[op->arg];
            continue;
        }
        if (op->code == HEFT_OP_CONST) {
            stack[n++] = const_value(run, op->dtype, op->imm_bits);
            continue;
        }
        if (op->code == HEFT_OP_CAST) {
            stack[n - 1] = cast_value(run, op->dtype, stack[n - 1]);
            continue;
        }
        if (op->code == HEFT_OP_BITS && run->values[stack[n - 1]].code == HEFT_OP_CONST) {
            uint64_t bits = run->values[stack[n - 1]].bits;
            for (uint32_t k = 0; k < op->arg; k++) {
                bits /= 256;
            }
            uint32_t width = heft_dtype_get_unit_bytes((heft_dtype_t)op->dtype);
            stack[n - 1] =
                const_value(run, op->dtype, width == 8 ? bits : bits % (UINT64_C(1) << 8 * width));
            continue;
        }
        if (op->code == HEFT_OP_BITS) {
            v.bits = op->arg;
        }
        if (op->code == HEFT_OP_MUL) {
            v.args[1] = stack[--n];
        }
        v.args[0] = stack[n - 1];
        stack[n - 1] = intern(run, &v);
    }
    if (n != 1) {
        abort();
    }
    return stack[0];
}

bool ref_is_constant(const ref_run_t *run, uint32_t value)
{
    return ref_count_loads(run, value) == 0;
}

size_t ref_count_loads(const ref_run_t *run, uint32_t value)
{
    const ref_value_t *v = &run->values[value];
    if (value == REF_UNDEFINED || v->code == HEFT_OP_CONST) {
        return 0;
    }
    if (v->code == HEFT_OP_LOAD) {
        return 1;
    }
    return ref_count_loads(run, v->args[0]) + ref_count_loads(run, v->args[1]);
}

static bool has_load(const ref_run_t *run, uint32_t load, uint32_t value)
{
    const ref_value_t *v = &run->values[value];
    if (value == REF_UNDEFINED || v->code == HEFT_OP_CONST || value == load) {
        return value == load;
    }
    return v->code != HEFT_OP_LOAD &&
           (has_load(run, load, v->args[0]) || has_load(run, load, v->args[1]));
}

bool ref_is_kept(const ref_run_t *run, uint32_t a, uint32_t b)
{
    const ref_value_t *v = &run->values[a];
    if (a == REF_UNDEFINED || v->code == HEFT_OP_CONST) {
        return true;
    }
    if (v->code == HEFT_OP_LOAD) {
        return has_load(run, a, b);
    }
    return ref_is_kept(run, v->args[0], b) && ref_is_kept(run, v->args[1], b);
}

/* ---- running ---- */

static uint32_t read_element(ref_run_t *run, const heft_tape_t *tape, uint32_t write,
                             const heft__tape_view_t *src, const int64_t *index)
{
    int64_t e = ref_element(src, index);
    if (tape->buffers[src->buffer].kind == HEFT_BUFFER_SOURCE) {
        return load_value(run, src->buffer, HEFT__NO_WRITE, e);
    }
    uint32_t value = run->buffers[src->buffer][e];
    if (value == REF_UNDEFINED && !run->failed) {
        run->failed = true;
        run->failed_write = write;
        run->failed_buffer = src->buffer;
    }
    return value;
}

static void write_element(ref_run_t *run, const heft_tape_t *tape, uint32_t write, uint32_t buffer,
                          int64_t e, uint32_t value)
{
    uint32_t old = run->buffers[buffer][e];
    if (old != REF_UNDEFINED && tape->buffers[buffer].kind == HEFT_BUFFER_PARAM) {
        if (run->n_overwrites == run->cap_overwrites) {
            run->cap_overwrites = 2 * run->cap_overwrites + 64;
            run->overwrites =
                must(realloc(run->overwrites, run->cap_overwrites * sizeof *run->overwrites));
        }
        run->overwrites[run->n_overwrites++] =
            (ref_overwrite_t){ .buffer = buffer,
                               .earlier_write = run->writers[buffer][e],
                               .later_write = write,
                               .earlier = old,
                               .later = value,
                               .element = e };
    }
    run->buffers[buffer][e] = value;
    run->writers[buffer][e] = write;
}

/* All values first, then all writes: a write in place reads what was there before it. */
static void run_map(ref_run_t *run, const heft_tape_t *tape, uint32_t w, const heft__write_t *write)
{
    const heft__tape_view_t *dst = &write->dsts[0];
    if (!has_elements(dst)) {
        return;
    }
    size_t n = 0;
    size_t cap = 64;
    uint32_t *values = must(malloc(cap * sizeof *values));
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    do {
        uint32_t args[HEFT_MAX_SOURCES] = { 0 };
        for (uint32_t j = 0; j < write->n_srcs; j++) {
            args[j] = read_element(run, tape, w, &write->srcs[j], index);
        }
        if (n == cap) {
            cap *= 2;
            values = must(realloc(values, cap * sizeof *values));
        }
        values[n++] = run->failed ? REF_UNDEFINED : eval(run, write->ops, write->n_ops, args);
    } while (ref_next_index(index, dst->extent, dst->rank));
    n = 0;
    do {
        write_element(run, tape, w, dst->buffer, ref_element(dst, index), values[n++]);
    } while (ref_next_index(index, dst->extent, dst->rank));
    free(values);
}

static void run_input(ref_run_t *run, const heft_tape_t *tape, uint32_t w,
                      const heft__tape_view_t *src, uint32_t j)
{
    ref_input_t input = { .write = w, .input = j };
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    size_t cap = 64;
    input.values = must(malloc(cap * sizeof *input.values));
    if (has_elements(src)) {
        do {
            if (input.n == cap) {
                cap *= 2;
                input.values = must(realloc(input.values, cap * sizeof *input.values));
            }
            input.values[input.n++] = read_element(run, tape, w, src, index);
        } while (ref_next_index(index, src->extent, src->rank));
    }
    if (run->n_inputs == run->cap_inputs) {
        run->cap_inputs = 2 * run->cap_inputs + 8;
        run->inputs = must(realloc(run->inputs, run->cap_inputs * sizeof *run->inputs));
    }
    run->inputs[run->n_inputs++] = input;
}

static void run_opaque(ref_run_t *run, const heft_tape_t *tape, uint32_t w,
                       const heft__write_t *write)
{
    for (uint32_t j = 0; j < write->n_srcs; j++) {
        run_input(run, tape, w, &write->srcs[j], j);
    }
    for (uint32_t j = 0; j < write->n_dsts; j++) {
        const heft__tape_view_t *dst = &write->dsts[j];
        int64_t index[HEFT_MAX_DIMS] = { 0 };
        do {
            if (has_elements(dst)) {
                int64_t e = ref_element(dst, index);
                write_element(run, tape, w, dst->buffer, e, load_value(run, dst->buffer, w, e));
            }
        } while (has_elements(dst) && ref_next_index(index, dst->extent, dst->rank));
    }
}

void ref_run_init(ref_run_t *run, const heft_tape_t *tape)
{
    *run = (ref_run_t){ .n_values = 1, .cap_values = 256, .n_buffers = tape->n_buffers };
    run->values = must(calloc(run->cap_values, sizeof *run->values));
    run->buffers = must(calloc(tape->n_buffers + 1, sizeof *run->buffers));
    run->writers = must(calloc(tape->n_buffers + 1, sizeof *run->writers));
    for (size_t b = 0; b < tape->n_buffers; b++) {
        size_t n = (size_t)tape->buffers[b].n_elems + 1;
        run->buffers[b] = must(calloc(n, sizeof **run->buffers));
        run->writers[b] = must(calloc(n, sizeof **run->writers));
    }
    for (uint32_t w = 0; w < tape->n_writes && !run->failed; w++) {
        const heft__write_t *write = &tape->writes[w];
        if (write->kind == HEFT_WRITE_OPAQUE) {
            run_opaque(run, tape, w, write);
        } else {
            run_map(run, tape, w, write);
        }
    }
}

void ref_run_fini(ref_run_t *run)
{
    for (size_t b = 0; b < run->n_buffers; b++) {
        free(run->buffers[b]);
        free(run->writers[b]);
    }
    free(run->buffers);
    free(run->writers);
    free(run->values);
    free(run->slots);
    free(run->overwrites);
    for (size_t i = 0; i < run->n_inputs; i++) {
        free(run->inputs[i].values);
    }
    free(run->inputs);
}

uint32_t ref_eval_piece(ref_run_t *run, const heft__fold_piece_t *piece, const int64_t *index)
{
    uint32_t args[HEFT_MAX_SOURCES] = { 0 };
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        int64_t e = piece->srcs[s].offset;
        for (int k = 0; k < piece->rank; k++) {
            e += index[k] * piece->srcs[s].stride[k];
        }
        args[s] = load_value(run, piece->srcs[s].buffer, piece->srcs[s].opaque_write, e);
    }
    return eval(run, piece->ops, piece->n_ops, args);
}

void ref_run_bytes(const heft_tape_t *tape, unsigned char **buffers)
{
    for (size_t w = 0; w < tape->n_writes; w++) {
        const heft__write_t *write = &tape->writes[w];
        const heft__tape_view_t *dst = &write->dsts[0];
        size_t size = heft_dtype_get_unit_bytes(tape->buffers[dst->buffer].dtype);
        if (!has_elements(dst)) {
            continue;
        }
        size_t n = 0;
        size_t cap = 64;
        unsigned char *data = must(malloc(cap));
        int64_t index[HEFT_MAX_DIMS] = { 0 };
        do {
            if (n + size > cap) {
                cap *= 2;
                data = must(realloc(data, cap));
            }
            if (write->n_srcs == 0) {
                for (size_t i = 0; i < size; i++) {
                    data[n + i] = (unsigned char)(write->ops[0].imm_bits >> (8 * i));
                }
            } else {
                int64_t e = ref_element(&write->srcs[0], index);
                memcpy(data + n, buffers[write->srcs[0].buffer] + (size_t)e * size, size);
            }
            n += size;
        } while (ref_next_index(index, dst->extent, dst->rank));
        n = 0;
        do {
            memcpy(buffers[dst->buffer] + (size_t)ref_element(dst, index) * size, data + n, size);
            n += size;
        } while (ref_next_index(index, dst->extent, dst->rank));
        free(data);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a unit of a known kernel: rows of blocks come from the sources, codes and scales (or
 * values) go to every parameter that reads them, with their digests. Nothing is allocated: copies
 * are prepared on the stack for the part of each piece that lies in the unit.
 */
#include "exec/exec_impl.h"

#include <string.h>

typedef struct unit {
    heft_exec_t *exec;
    const heft__known_job_t *job;
    uint8_t *input;
    uint8_t *output;
    uint32_t *amax;
    uint8_t *scales;
    int64_t batch;
    int64_t row_begin; /* within the batch */
    int64_t row_end;
    int64_t bytes; /* written so far */
} unit_t;

/* ---- a part of a piece ---- */

/* A piece without what lies outside [begin, end) of each dimension. */
typedef struct part {
    heft_piece_t piece;
    heft_piece_src_t srcs[HEFT_MAX_SOURCES];
} part_t;

static void take_part(part_t *part, const heft_piece_t *piece, const int64_t *begin,
                      const int64_t *end)
{
    part->piece = *piece;
    memcpy(part->srcs, piece->srcs, piece->n_srcs * sizeof part->srcs[0]);
    part->piece.srcs = part->srcs;
    for (int k = 0; k < piece->rank; k++) {
        part->piece.extent[k] = end[k] - begin[k];
        part->piece.dst_offset += begin[k] * piece->dst_stride[k];
        for (uint32_t s = 0; s < piece->n_srcs; s++) {
            part->srcs[s].offset += begin[k] * piece->srcs[s].stride[k];
        }
    }
}

static const uint8_t *element(const void *base, int64_t offset, heft_dtype_t dtype)
{
    return (const uint8_t *)base + offset * heft_dtype_get_unit_bytes(dtype);
}

/* What a prepared part writes to, and its digest. */
typedef struct place {
    uint8_t *dst;
    int64_t dst_offset; /* within the parameter, in bytes */
    int64_t param_bytes;
    size_t acc;
} place_t;

/* Parts were tried when the run was built: preparing one does not fail. */
static heft_status_t run_copy(unit_t *unit, const heft__copy_t *copy, const place_t *place,
                              const void *src, heft_error_t *err)
{
    heft__copy_plan_t plan;
    heft_status_t status = heft__copy_prepare(copy, &plan, err);
    if (status == HEFT_OK && place->acc == HEFT__NO_ACC) {
        heft__copy_run(&plan, place->dst, src);
    } else if (status == HEFT_OK) {
        heft__exec_add_digest(
            unit->exec, place->acc,
            heft__copy_run_crc64(&plan, place->dst, src, place->dst_offset, place->param_bytes));
    }
    return status;
}

static heft_status_t run_transform(unit_t *unit, const heft__transform_t *t, const place_t *place,
                                   const void *const *srcs, heft_error_t *err)
{
    heft__transform_plan_t plan;
    heft_status_t status = heft__transform_prepare(t, &plan, err);
    if (status == HEFT_OK && place->acc == HEFT__NO_ACC) {
        heft__transform_run(&plan, place->dst, srcs);
    } else if (status == HEFT_OK) {
        heft__exec_add_digest(unit->exec, place->acc,
                              heft__transform_run_crc64(&plan, place->dst, srcs, place->dst_offset,
                                                        place->param_bytes));
    }
    return status;
}

/* ---- input ---- */

typedef struct filling {
    unit_t *unit;
    const heft_piece_t *piece;
    heft_dtype_t dtype;
    uint8_t *memory; /* element lo of the input */
    int64_t lo;
} filling_t;

static heft_status_t fill_part(void *arg, const int64_t *begin, const int64_t *end,
                               heft_error_t *err)
{
    const filling_t *f = arg;
    const heft_exec_t *exec = f->unit->exec;
    uint32_t elem = heft_dtype_get_unit_bytes(f->dtype);
    part_t part;
    take_part(&part, f->piece, begin, end);
    const place_t place = { .dst = f->memory + (part.piece.dst_offset - f->lo) * elem,
                            .acc = HEFT__NO_ACC };
    heft_dtype_t dtypes[HEFT_MAX_SOURCES] = { HEFT_DTYPE_NONE };
    const void *srcs[HEFT_MAX_SOURCES] = { NULL };
    for (uint32_t s = 0; s < part.piece.n_srcs; s++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_source(exec->plan, part.srcs[s].source, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        dtypes[s] = info.dtype;
        srcs[s] =
            element(exec->known.sources[part.srcs[s].source], part.srcs[s].offset, info.dtype);
    }
    if (part.piece.n_srcs > 0 && part.piece.n_ops > 0) {
        heft__transform_t t = heft__piece_transform(&part.piece, f->dtype, dtypes);
        return run_transform(f->unit, &t, &place, srcs, err);
    }
    uint8_t constant[8];
    heft__copy_t copy = heft__piece_copy(&part.piece, elem);
    if (part.piece.n_srcs == 0) {
        heft__put_le64(constant, heft__piece_constant(&part.piece, f->dtype));
        srcs[0] = constant;
    }
    return run_copy(f->unit, &copy, &place, srcs[0], err);
}

/* Elements [lo, hi) of an input to memory. */
static heft_status_t fill(unit_t *unit, uint32_t i, int64_t lo, int64_t hi, uint8_t *memory,
                          heft_error_t *err)
{
    const heft_opaque_input_t *input = &unit->job->op->inputs[i];
    heft_status_t status = HEFT_OK;
    for (uint64_t p = 0; status == HEFT_OK && p < input->n_pieces; p++) {
        const heft_piece_t *piece = &input->pieces[p];
        filling_t f = {
            .unit = unit, .piece = piece, .dtype = input->dtype, .memory = memory, .lo = lo
        };
        status = heft__clip(piece->rank, piece->extent, piece->dst_offset, piece->dst_stride, lo,
                            hi, fill_part, &f, err);
    }
    return status;
}

/*
 * Rows that lie in one source as they are, some distance apart, are read there: most weights are
 * quantised as they stand, and a copy would cost as much as the rest. NULL: no such luck.
 */
static const void *find_rows(const unit_t *unit, int64_t first_row, int64_t *step_out)
{
    const heft_opaque_input_t *input = &unit->job->op->inputs[0];
    const heft_piece_t *piece = input->pieces;
    int64_t n_cols = unit->job->grid.n_cols;
    if (input->n_pieces != 1 || piece->n_srcs != 1 || piece->n_ops != 0 || piece->rank > 2) {
        return NULL;
    }
    const heft_piece_src_t *src = &piece->srcs[0];
    int64_t elem = heft_dtype_get_unit_bytes(input->dtype);
    int64_t step = n_cols; /* from row to row, in elements */
    if (piece->rank == 2 && piece->extent[1] == n_cols && src->stride[1] == 1) {
        step = src->stride[0];
    } else if (piece->rank > 1 || (piece->rank == 1 && src->stride[0] != 1)) {
        return NULL;
    }
    *step_out = step * elem;
    return element(unit->exec->known.sources[src->source], src->offset + first_row * step,
                   input->dtype);
}

/* ---- output ---- */

typedef struct emission {
    unit_t *unit;
    const heft__known_copy_t *copy;
    heft_dtype_t dtype;    /* of the output */
    const uint8_t *memory; /* element lo of the output */
    int64_t lo;
} emission_t;

static heft_status_t emit_part(void *arg, const int64_t *begin, const int64_t *end,
                               heft_error_t *err)
{
    const emission_t *e = arg;
    uint32_t elem = heft_dtype_get_unit_bytes(e->copy->dtype);
    part_t part;
    take_part(&part, e->copy->piece, begin, end);
    int64_t offset = part.piece.dst_offset * elem;
    const place_t place = { .dst = e->copy->dst + offset,
                            .dst_offset = offset,
                            .param_bytes = e->copy->param_bytes,
                            .acc = e->copy->acc };
    const void *src = element(e->memory, part.srcs[0].offset - e->lo, e->dtype);
    e->unit->bytes += heft__piece_count(&part.piece) * elem;
    if (part.piece.n_ops > 0) {
        heft__transform_t t = heft__piece_transform(&part.piece, e->copy->dtype, &e->dtype);
        return run_transform(e->unit, &t, &place, &src, err);
    }
    heft__copy_t copy = heft__piece_copy(&part.piece, elem);
    return run_copy(e->unit, &copy, &place, src, err);
}

/* Elements [lo, hi) of output k, which are in memory, to all who read them. */
static heft_status_t emit(unit_t *unit, uint32_t k, int64_t lo, int64_t hi, const void *memory,
                          heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; status == HEFT_OK && i < unit->job->n_copies; i++) {
        const heft__known_copy_t *copy = &unit->job->copies[i];
        const heft_piece_src_t *src = &copy->piece->srcs[0];
        emission_t e = { .unit = unit,
                         .copy = copy,
                         .dtype = unit->job->op->outputs[k].dtype,
                         .memory = memory,
                         .lo = lo };
        if (src->source == k) {
            status = heft__clip(copy->piece->rank, copy->piece->extent, src->offset, src->stride,
                                lo, hi, emit_part, &e, err);
        }
    }
    return status;
}

/* ---- the kernels ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* A stretch of rows of a unit's input, where it can be read. */
typedef struct rows {
    const uint8_t *data;
    int64_t step;
    int64_t begin; /* within the batch */
    int64_t end;
} rows_t;

static heft_status_t get_rows(unit_t *unit, int64_t begin, int64_t end, rows_t *rows_out,
                              heft_error_t *err)
{
    const heft__known_grid_t *g = &unit->job->grid;
    int64_t first = unit->batch * g->n_rows + begin;
    *rows_out = (rows_t){ .begin = begin, .end = end };
    rows_out->data = find_rows(unit, first, &rows_out->step);
    if (rows_out->data != NULL) {
        return HEFT_OK;
    }
    rows_out->data = unit->input;
    rows_out->step = g->n_cols * heft_dtype_get_unit_bytes(unit->job->op->inputs[0].dtype);
    return fill(unit, 0, first * g->n_cols, (first + end - begin) * g->n_cols, unit->input, err);
}

/* Calls for each row of blocks in it: its rows, and its place among the unit's blocks. */
static void each_block_row(const unit_t *unit, const heft__quantise_t *q, const rows_t *rows,
                           uint8_t *codes)
{
    const heft__known_grid_t *g = &unit->job->grid;
    int64_t n_cols = ceil_div(g->n_cols, g->block_cols);
    for (int64_t r = rows->begin; r < rows->end;) {
        int64_t b = (r - unit->row_begin) / g->block_rows;
        int64_t end = heft__min_i64(unit->row_begin + (b + 1) * g->block_rows, rows->end);
        const uint8_t *src = rows->data + (r - rows->begin) * rows->step;
        uint32_t *amax = unit->amax + b * n_cols;
        if (codes == NULL) {
            heft__quantise_scan(q, src, rows->step, end - r, amax);
        } else {
            heft__quantise_rows(q, amax, src, rows->step, end - r,
                                codes + (r - rows->begin) * g->n_cols);
        }
        r = end;
    }
}

static heft_status_t emit_codes(unit_t *unit, const heft__quantise_t *q, const rows_t *rows,
                                heft_error_t *err)
{
    const heft__known_grid_t *g = &unit->job->grid;
    int64_t first = unit->batch * g->n_rows;
    each_block_row(unit, q, rows, unit->output);
    return emit(unit, 0, (first + rows->begin) * g->n_cols, (first + rows->end) * g->n_cols,
                unit->output, err);
}

static heft_status_t emit_scales(unit_t *unit, const heft__quantise_t *q, int64_t n_blocks,
                                 heft_error_t *err)
{
    const heft__known_grid_t *g = &unit->job->grid;
    uint32_t bytes = heft_dtype_get_unit_bytes(q->scale_dtype);
    for (int64_t b = 0; b < n_blocks; b++) {
        heft__quantise_factor_t factor;
        uint8_t bits[8];
        heft__put_le64(bits, heft__quantise_scale(q, unit->amax[b], &factor));
        memcpy(unit->scales + b * bytes, bits, bytes);
    }
    int64_t first =
        unit->batch * ceil_div(g->n_rows, g->block_rows) + unit->row_begin / g->block_rows;
    int64_t lo = first * ceil_div(g->n_cols, g->block_cols);
    return emit(unit, 1, lo, lo + n_blocks, unit->scales, err);
}

static heft_status_t quantise(unit_t *unit, heft_error_t *err)
{
    const heft__known_job_t *job = unit->job;
    const heft__known_grid_t *g = &job->grid;
    const heft__quantise_t q = { .src_dtype = job->op->inputs[0].dtype,
                                 .scale_dtype = job->op->outputs[1].dtype,
                                 .rule = job->known.rule,
                                 .n_cols = g->n_cols,
                                 .block_cols = g->block_cols };
    int64_t n_blocks = ceil_div(unit->row_end - unit->row_begin, g->block_rows) *
                       ceil_div(g->n_cols, g->block_cols);
    bool is_whole = unit->row_end - unit->row_begin <= job->chunk_rows;
    heft_status_t status = HEFT_OK;
    rows_t rows;
    memset(unit->amax, 0, (size_t)n_blocks * sizeof *unit->amax);
    for (int64_t r = unit->row_begin; status == HEFT_OK && r < unit->row_end; r = rows.end) {
        int64_t end = heft__min_i64(r + job->chunk_rows, unit->row_end);
        status = get_rows(unit, r, end, &rows, err);
        if (status == HEFT_OK) {
            each_block_row(unit, &q, &rows, NULL);
        }
    }
    for (int64_t r = unit->row_begin; status == HEFT_OK && r < unit->row_end; r = rows.end) {
        int64_t end = heft__min_i64(r + job->chunk_rows, unit->row_end);
        if (!is_whole) {
            status = get_rows(unit, r, end, &rows, err);
        }
        if (status == HEFT_OK) {
            status = emit_codes(unit, &q, &rows, err);
        }
    }
    return status == HEFT_OK ? emit_scales(unit, &q, n_blocks, err) : status;
}

static heft_status_t unpack(unit_t *unit, heft_error_t *err)
{
    int64_t n = unit->row_end - unit->row_begin;
    int64_t n_cols = unit->job->grid.n_cols;
    uint8_t *scales = unit->input + 16 * n;
    heft_status_t status =
        fill(unit, 0, 16 * unit->row_begin, 16 * unit->row_end, unit->input, err);
    if (status == HEFT_OK) {
        status = fill(unit, 1, unit->row_begin, unit->row_end, scales, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft__mxfp4_unpack(unit->job->op->outputs[0].dtype, unit->output, unit->input, scales, n);
    return emit(unit, 0, n_cols * unit->row_begin, n_cols * unit->row_end, unit->output, err);
}

/* Bytes stay as they are: the input is brought together where the output is looked for. */
static heft_status_t take_bits(unit_t *unit, heft_error_t *err)
{
    int64_t from = heft_dtype_get_unit_bytes(unit->job->op->inputs[0].dtype);
    int64_t to = heft_dtype_get_unit_bytes(unit->job->op->outputs[0].dtype);
    int64_t row = heft__max_i64(from, to);
    heft_status_t status = fill(unit, 0, unit->row_begin * (row / from),
                                unit->row_end * (row / from), unit->output, err);
    return status == HEFT_OK ? emit(unit, 0, unit->row_begin * (row / to),
                                    unit->row_end * (row / to), unit->output, err)
                             : status;
}

/* ---- units ---- */

static const heft__known_job_t *find_job(const heft__known_jobs_t *jobs, uint64_t unit)
{
    size_t low = 0;
    size_t high = jobs->n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (jobs->items[middle].unit_begin <= unit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &jobs->items[low];
}

static bool share_out(unit_t *unit, uint8_t *memory)
{
    heft__known_layout_t layout;
    bool fits = heft__known_layout(unit->job, &layout);
    memory += (64 - (uintptr_t)memory % 64) % 64;
    unit->input = memory + layout.input;
    unit->output = memory + layout.output;
    unit->amax = (uint32_t *)(void *)(memory + layout.amax);
    unit->scales = memory + layout.scales;
    return fits;
}

heft_status_t heft__known_run_unit(heft_exec_t *exec, uint64_t index, uint32_t thread,
                                   int64_t *bytes_out, heft_error_t *err)
{
    const heft__known_job_t *job = find_job(&exec->known, index);
    uint64_t k = index - job->unit_begin;
    int64_t begin = (int64_t)(k % job->batch_units) * job->unit_rows;
    unit_t unit = { .exec = exec,
                    .job = job,
                    .batch = (int64_t)(k / job->batch_units),
                    .row_begin = begin,
                    .row_end = heft__min_i64(begin + job->unit_rows, job->grid.n_rows) };
    if (!share_out(&unit, exec->known.scratch + (size_t)thread * exec->known.scratch_bytes)) {
        return HEFT_BUG(err, "the memory of a known kernel has no size");
    }
    heft_status_t status;
    switch (job->known.code) {
    case HEFT__KNOWN_MXFP4_UNPACK:
        status = unpack(&unit, err);
        break;
    case HEFT__KNOWN_BITS:
        status = take_bits(&unit, err);
        break;
    case HEFT__KNOWN_FP8_QUANTISE:
    default:
        status = quantise(&unit, err);
    }
    *bytes_out = unit.bytes;
    if (status == HEFT_OK) {
        heft__exec_whole_note_known(exec, job);
    }
    return status;
}

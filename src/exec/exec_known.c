/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known kernels of a run: which there are, what is copied from them, and into which units their
 * work is cut.
 *
 * A unit is some rows of blocks. Their input is brought together in the thread's memory (or read
 * where it lies), the kernel runs on it, and what it leaves is copied to all parameters that read
 * it; so memory is bounded by a few rows of blocks for each thread, whatever the tensor's size. A
 * block that is larger than that is read twice, piece by piece.
 */
#include "exec/exec_impl.h"

#define CHUNK_BYTES (INT64_C(1) << 20)
#define MAX_BLOCK_BYTES                                                      \
    (INT64_C(4) << 20) /* rows of blocks up to here are kept in memory whole \
                        */

/* ---- collecting ---- */

static heft_status_t refuse(const heft_opaque_t *op, const char *why, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "%s (%s): %s", op->op, op->note, why);
}

static heft_status_t check_inputs(const heft_opaque_t *op, heft_error_t *err)
{
    for (uint32_t i = 0; i < op->n_inputs; i++) {
        for (uint64_t p = 0; p < op->inputs[i].n_pieces; p++) {
            if (heft__piece_is_computed(&op->inputs[i].pieces[p])) {
                return refuse(op, "reads what another operation leaves; convert in two steps", err);
            }
        }
    }
    return HEFT_OK;
}

static heft_status_t check_operands(const heft_opaque_t *op, heft__known_job_t *job,
                                    heft_error_t *err)
{
    heft__known_operand_t dsts[HEFT_MAX_SOURCES];
    heft__known_operand_t srcs[HEFT_MAX_SOURCES];
    for (uint32_t i = 0; i < op->n_outputs && i < HEFT_MAX_SOURCES; i++) {
        dsts[i] = (heft__known_operand_t){ .dtype = op->outputs[i].dtype,
                                           .rank = op->outputs[i].view.rank,
                                           .extent = op->outputs[i].view.extent };
    }
    for (uint32_t i = 0; i < op->n_inputs && i < HEFT_MAX_SOURCES; i++) {
        srcs[i] = (heft__known_operand_t){ .dtype = op->inputs[i].dtype,
                                           .rank = op->inputs[i].shape.rank,
                                           .extent = op->inputs[i].shape.extent };
    }
    heft_status_t status = heft__known_parse(op->op, &job->known, err);
    return status == HEFT_OK ? heft__known_check(&job->known, dsts, op->n_outputs, srcs,
                                                 op->n_inputs, &job->grid, err)
                             : status;
}

static heft_status_t find_job(heft_exec_t *exec, uint32_t rank_index, const heft_opaque_t *op,
                              heft__known_job_t **job_out, heft_error_t *err)
{
    heft__known_jobs_t *jobs = &exec->known;
    for (size_t i = jobs->n; i > 0; i--) { /* most often the last */
        if (jobs->items[i - 1].op == op) {
            *job_out = &jobs->items[i - 1];
            return HEFT_OK;
        }
    }
    heft__known_job_t job = { .op = op, .rank_index = rank_index };
    heft_status_t status = check_inputs(op, err);
    if (status == HEFT_OK) {
        status = check_operands(op, &job, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    void *items = jobs->items;
    if (!heft__grow(&items, &jobs->cap, jobs->n + 1, sizeof *jobs->items)) {
        return heft__error_nomem(err, (jobs->n + 1) * sizeof *jobs->items);
    }
    jobs->items = items;
    jobs->items[jobs->n] = job;
    *job_out = &jobs->items[jobs->n++];
    return HEFT_OK;
}

/* What runs later without being able to fail is tried here. */
static heft_status_t try_copy(const heft__known_job_t *job, const heft__known_copy_t *copy,
                              heft_error_t *err)
{
    const heft_piece_t *piece = copy->piece;
    if (piece->n_ops == 0) {
        heft__copy_plan_t plan;
        heft__copy_t c = heft__piece_copy(piece, heft_dtype_get_unit_bytes(copy->dtype));
        return heft__copy_prepare(&c, &plan, err);
    }
    heft__transform_plan_t plan;
    heft_dtype_t from = job->op->outputs[piece->srcs[0].source].dtype;
    heft__transform_t t = heft__piece_transform(piece, copy->dtype, &from);
    return heft__transform_prepare(&t, &plan, err);
}

heft_status_t heft__known_add(heft_exec_t *exec, uint32_t rank_index, const heft_piece_t *piece,
                              const heft__known_copy_t *copy, heft_error_t *err)
{
    const heft_opaque_t *op = NULL;
    for (uint32_t s = 0; s < piece->n_srcs && op == NULL; s++) {
        op = heft__piece_operation(exec->plan, rank_index, piece, s);
    }
    if (op == NULL) {
        return HEFT_BUG(err, "a computed piece without an operation");
    }
    if (piece->n_srcs != 1) {
        return refuse(op, "its result meets another tensor in one map; convert in two steps", err);
    }
    heft__known_job_t *job = NULL;
    heft_status_t status = find_job(exec, rank_index, op, &job, err);
    if (status == HEFT_OK) {
        status = try_copy(job, copy, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    void *items = job->copies;
    if (!heft__grow(&items, &job->cap_copies, job->n_copies + 1, sizeof *job->copies)) {
        return heft__error_nomem(err, (job->n_copies + 1) * sizeof *job->copies);
    }
    job->copies = items;
    job->copies[job->n_copies++] = *copy;
    job->bytes += heft__piece_count(piece) * heft_dtype_get_unit_bytes(copy->dtype);
    return HEFT_OK;
}

/* ---- cutting ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Bytes of all inputs or outputs for each row of the grid. */
static int64_t input_row_bytes(const heft__known_job_t *job)
{
    if (job->known.code == HEFT__KNOWN_BITS) {
        return 0; /* what is read goes to the output's place */
    }
    return job->known.code == HEFT__KNOWN_MXFP4_UNPACK
               ? 17
               : job->grid.n_cols * heft_dtype_get_unit_bytes(job->op->inputs[0].dtype);
}

static int64_t output_row_bytes(const heft__known_job_t *job)
{
    if (job->known.code == HEFT__KNOWN_BITS) {
        return heft__max_i64(heft_dtype_get_unit_bytes(job->op->inputs[0].dtype),
                             heft_dtype_get_unit_bytes(job->op->outputs[0].dtype));
    }
    return job->grid.n_cols * heft_dtype_get_unit_bytes(job->op->outputs[0].dtype);
}

static void cut(heft__known_job_t *job)
{
    const heft__known_grid_t *g = &job->grid;
    int64_t row_bytes = heft__max_i64(input_row_bytes(job), output_row_bytes(job));
    int64_t rows = heft__max_i64(CHUNK_BYTES / row_bytes, 1);
    if (g->block_rows <= rows || g->block_rows <= MAX_BLOCK_BYTES / row_bytes) {
        rows = heft__max_i64(rows / g->block_rows, 1) * g->block_rows;
        job->unit_rows = heft__min_i64(rows, g->n_rows);
        job->chunk_rows = job->unit_rows;
    } else {
        job->unit_rows = g->block_rows;
        job->chunk_rows = rows;
    }
    job->batch_units = (uint64_t)ceil_div(g->n_rows, job->unit_rows);
    job->n_units = job->batch_units * (uint64_t)g->n_batches;
}

/* *at <- where n items of item_bytes begin; *end <- the next multiple of 64 behind them. */
static bool place(int64_t n, int64_t item_bytes, int64_t *at, int64_t *end)
{
    int64_t bytes;
    *at = *end;
    return heft__mul(n, item_bytes, &bytes) && heft__add(bytes, 63, &bytes) &&
           heft__add(*end, bytes - bytes % 64, end);
}

bool heft__known_layout(const heft__known_job_t *job, heft__known_layout_t *layout_out)
{
    const heft__known_grid_t *g = &job->grid;
    bool is_quantise = job->known.code == HEFT__KNOWN_FP8_QUANTISE;
    int64_t n_blocks = 0;
    bool fits = !is_quantise || heft__mul(ceil_div(job->unit_rows, g->block_rows),
                                          ceil_div(g->n_cols, g->block_cols), &n_blocks);
    *layout_out = (heft__known_layout_t){ 0 };
    return fits &&
           place(job->chunk_rows, input_row_bytes(job), &layout_out->input, &layout_out->bytes) &&
           place(job->chunk_rows, output_row_bytes(job), &layout_out->output, &layout_out->bytes) &&
           place(n_blocks, 4, &layout_out->amax, &layout_out->bytes) &&
           place(n_blocks, 4, &layout_out->scales, &layout_out->bytes);
}

heft_status_t heft__known_finish(heft_exec_t *exec, heft_error_t *err)
{
    heft__known_jobs_t *jobs = &exec->known;
    int64_t most = 0;
    for (size_t i = 0; i < jobs->n; i++) {
        heft__known_job_t *job = &jobs->items[i];
        heft__known_layout_t layout;
        cut(job);
        job->unit_begin = jobs->n_units;
        jobs->n_units += job->n_units;
        if (!heft__known_layout(job, &layout)) {
            return heft__error_set(err, HEFT_ERR_OVERFLOW, "%s: a row overflows", job->op->op);
        }
        most = heft__max_i64(most, layout.bytes);
    }
    size_t total;
    if (most == 0) {
        return HEFT_OK;
    }
    jobs->scratch_bytes = (size_t)most;
    bool fits = heft__size_mul(jobs->scratch_bytes, heft__pool_get_n_threads(exec->pool), &total) &&
                heft__size_add(total, 64, &total);
    jobs->scratch = fits ? heft__malloc(total) : NULL;
    return jobs->scratch != NULL ? HEFT_OK : heft__error_nomem(err, jobs->scratch_bytes);
}

void heft__known_fini(heft_exec_t *exec)
{
    for (size_t i = 0; i < exec->known.n; i++) {
        heft__free(exec->known.items[i].copies);
    }
    heft__free(exec->known.items);
    heft__free(exec->known.scratch);
}

/* ---- sources ---- */

/* What an operation needs as a whole may be another sender's: only what is read must be here. */
static heft_status_t bind_piece(const heft_exec_t *exec, const heft_piece_t *piece,
                                const void *const *sources, heft_error_t *err)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const uint32_t source = piece->srcs[s].source;
        if (sources != NULL && sources[source] != NULL) {
            continue;
        }
        heft_tensor_info_t tensor;
        heft_status_t status = heft_plan_query_source(exec->plan, source, &tensor, err);
        return status != HEFT_OK
                   ? status
                   : heft__error_set(err, HEFT_ERR_ARGUMENT, "source \"%s\" is NULL", tensor.name);
    }
    return HEFT_OK;
}

heft_status_t heft__known_bind(heft_exec_t *exec, const void *const *sources, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    exec->known.sources = sources;
    for (size_t i = 0; i < exec->known.n; i++) {
        const heft_opaque_t *op = exec->known.items[i].op;
        for (uint32_t k = 0; k < op->n_inputs; k++) {
            for (uint64_t p = 0; p < op->inputs[k].n_pieces && status == HEFT_OK; p++) {
                status = bind_piece(exec, &op->inputs[k].pieces[p], sources, err);
            }
        }
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifying a destination checkpoint: each parameter is made anew from the source by the plan, in
 * scratch memory as large as the largest parameter, and compared with the file bit for bit.
 * Elements that no piece writes are copied from the file first, so that they never differ; they are
 * not counted as compared. The first difference is traced back to the piece and so to the source
 * element that should be there. A parameter that agrees is then held against the plan's checks.
 */
#include "exec/exec.h"

#include <string.h>

typedef struct verification {
    const heft_plan_t *plan;
    uint32_t rank_index;
    const heft_checkpoint_t *source;
    const heft_checkpoint_t *destination;
    heft_plan_info_t info;
    uint32_t n_params;
    uint32_t *source_tensor;
    const void **sources;
    uint64_t *n_readers; /* readings of a source that are still to come */
    uint32_t *param_tensor;
    void **params; /* scratch where the current parameter is, else NULL */
    void *scratch;
    heft__pool_t *pool;
    heft__progress_t progress;
    heft_mismatch_t mismatch;
    uint32_t first_param;  /* that differs */
    int64_t first_index;   /* flat */
    const char *operation; /* that computes it; NULL: none */
} verification_t;

/* ---- setting up ---- */

static void count_reading(void *arg, uint32_t source)
{
    verification_t *v = arg;
    v->n_readers[source]++;
}

static void count_pieces(verification_t *v, const heft_piece_t *pieces, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        heft__piece_each_source(v->plan, v->rank_index, &pieces[i], count_reading, v);
    }
}

/* One count for each reading. */
static void count_readers(verification_t *v)
{
    for (uint32_t p = 0; p < v->n_params; p++) {
        uint64_t n = 0;
        const heft_piece_t *pieces = heft_plan_get_param_pieces(v->plan, v->rank_index, p, &n);
        count_pieces(v, pieces, n);
        pieces = heft_plan_get_param_checks(v->plan, v->rank_index, p, &n);
        count_pieces(v, pieces, n);
    }
}

static heft_status_t make_scratch(verification_t *v, heft_error_t *err)
{
    int64_t max_bytes = 1;
    for (uint32_t p = 0; p < v->n_params; p++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_param(v->plan, v->rank_index, p, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (heft__param_is_written(v->plan, v->rank_index, p)) {
            max_bytes = heft__max_i64(max_bytes, info.n_bytes);
        }
    }
    v->scratch = heft__malloc((size_t)max_bytes);
    return v->scratch != NULL ? HEFT_OK : heft__error_nomem(err, (size_t)max_bytes);
}

static heft_status_t set_up(verification_t *v, heft_error_t *err)
{
    size_t n_sources = (size_t)v->info.n_sources + 1;
    size_t n_params = (size_t)v->n_params + 1;
    v->source_tensor = heft__calloc(n_sources, sizeof *v->source_tensor);
    v->sources = heft__calloc(n_sources, sizeof *v->sources);
    v->n_readers = heft__calloc(n_sources, sizeof *v->n_readers);
    v->param_tensor = heft__calloc(n_params, sizeof *v->param_tensor);
    v->params = heft__calloc(n_params, sizeof *v->params);
    if (v->source_tensor == NULL || v->sources == NULL || v->n_readers == NULL ||
        v->param_tensor == NULL || v->params == NULL) {
        return heft__error_nomem(err, (n_sources + n_params) * sizeof *v->sources);
    }
    heft_status_t status = heft__refuse_opaque(v->plan, v->rank_index, 1, "verify", err);
    if (status == HEFT_OK) {
        status =
            heft__match_sources(v->plan, v->rank_index, 1, heft_checkpoint_get_manifest(v->source),
                                v->source_tensor, err);
    }
    if (status == HEFT_OK) {
        status = heft__match_params(v->plan, v->rank_index, v->destination, v->param_tensor, err);
    }
    if (status == HEFT_OK) {
        status = heft__pool_create(1, &v->pool, err);
    }
    if (status == HEFT_OK) {
        status = make_scratch(v, err);
    }
    for (uint32_t s = 0; status == HEFT_OK && s < v->info.n_sources; s++) {
        if (v->source_tensor[s] != HEFT__NO_TENSOR) {
            v->sources[s] = heft_checkpoint_get_data(v->source, v->source_tensor[s]);
        }
    }
    return status;
}

static void tear_down(verification_t *v)
{
    heft__pool_destroy(v->pool);
    heft__free(v->scratch);
    heft__free(v->params);
    heft__free(v->param_tensor);
    heft__free(v->n_readers);
    heft__free(v->sources);
    heft__free(v->source_tensor);
}

/* ---- the place of a difference ---- */

/* pieces: those that made the expected value of the first element that differs. */
static heft_status_t trace(verification_t *v, const heft_tensor_info_t *info,
                           const heft_piece_t *pieces, uint64_t n, heft_error_t *err)
{
    heft_mismatch_t *m = &v->mismatch;
    m->param = info->name;
    m->n_dims = info->shape.rank;
    heft__index_unravel(v->first_index, &info->shape, m->index);
    m->source_index = -1;
    int64_t index[HEFT_MAX_DIMS];
    const heft_piece_t *piece = heft__piece_find(pieces, n, v->first_index, index);
    if (piece == NULL) {
        return HEFT_BUG(err, "an element differs that no piece writes");
    }
    if (piece->n_srcs == 0) {
        return HEFT_OK;
    }
    const heft_piece_src_t *src = &piece->srcs[0];
    const heft_opaque_t *op = heft__piece_operation(v->plan, v->rank_index, piece, 0);
    uint32_t index_of_source = op == NULL ? src->source : op->n_sources > 0 ? op->sources[0] : 0;
    heft_tensor_info_t source;
    heft_status_t status = heft_plan_query_source(v->plan, index_of_source, &source, err);
    if (status != HEFT_OK) {
        return status;
    }
    m->source = source.name;
    v->operation = op != NULL ? op->op : NULL;
    if (op != NULL) {
        return HEFT_OK; /* of a block: no one element */
    }
    m->source_index = src->offset;
    for (int k = 0; k < piece->rank; k++) {
        m->source_index += index[k] * src->stride[k];
    }
    return HEFT_OK;
}

/* ---- comparing ---- */

/* Run pieces of parameter p into the scratch memory. */
static heft_status_t make_expected(verification_t *v, uint32_t p, const heft_piece_t *pieces,
                                   uint64_t n, heft__progress_t *progress, heft_error_t *err)
{
    heft_exec_target_t target = { .rank_index = v->rank_index, .params = v->params };
    heft_exec_t *exec = NULL;
    v->params[p] = v->scratch;
    heft_status_t status =
        heft__exec_build_pieces(v->plan, &target, p, pieces, n, v->pool, progress, &exec, err);
    if (status == HEFT_OK) {
        status = heft_exec_run(exec, v->sources, err);
    }
    heft_exec_destroy(exec);
    v->params[p] = NULL;
    return status;
}

/* A parameter while it is compared. */
typedef struct subject {
    uint32_t param;
    heft_tensor_info_t info;
    const void *actual;
} subject_t;

/* What pieces have made in the scratch memory against the file. */
static heft_status_t compare(verification_t *v, const subject_t *subject,
                             const heft_piece_t *pieces, uint64_t n, bool *same_out,
                             heft_error_t *err)
{
    uint32_t elem_bytes = heft_dtype_get_unit_bytes(subject->info.dtype);
    int64_t first = 0;
    int64_t n_differ = heft__count_differences(v->scratch, subject->actual, subject->info.n_elems,
                                               elem_bytes, &first);
    *same_out = n_differ == 0;
    heft_mismatch_t *m = &v->mismatch;
    m->n_differ += n_differ;
    if (n_differ == 0 || m->n_params++ > 0) {
        return HEFT_OK;
    }
    v->first_param = subject->param;
    v->first_index = first;
    m->expected_bits = heft__load_bits(v->scratch, first, elem_bytes);
    m->actual_bits = heft__load_bits(subject->actual, first, elem_bytes);
    return trace(v, &subject->info, pieces, n, err);
}

/* The scratch memory equals the file; a check written over it must leave it so. */
static heft_status_t verify_checks(verification_t *v, const subject_t *subject, heft_error_t *err)
{
    uint64_t n = 0;
    const heft_piece_t *checks =
        heft_plan_get_param_checks(v->plan, v->rank_index, subject->param, &n);
    heft__progress_t silent = { 0 };
    heft_status_t status = HEFT_OK;
    bool is_same = true;
    for (uint64_t i = 0; status == HEFT_OK && is_same && i < n; i++) {
        status = make_expected(v, subject->param, &checks[i], 1, &silent, err);
        if (status == HEFT_OK) {
            status = compare(v, subject, &checks[i], 1, &is_same, err);
        }
    }
    return status;
}

static void end_reading(void *arg, uint32_t source)
{
    verification_t *v = arg;
    if (--v->n_readers[source] == 0) {
        heft_checkpoint_release(v->source, v->source_tensor[source]);
    }
}

static void release_pieces(verification_t *v, const heft_piece_t *pieces, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        heft__piece_each_source(v->plan, v->rank_index, &pieces[i], end_reading, v);
    }
}

static void release_read(verification_t *v, uint32_t p)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(v->plan, v->rank_index, p, &n);
    release_pieces(v, pieces, n);
    pieces = heft_plan_get_param_checks(v->plan, v->rank_index, p, &n);
    release_pieces(v, pieces, n);
    heft_checkpoint_release(v->destination, v->param_tensor[p]);
}

static heft_status_t verify_param(verification_t *v, uint32_t p, heft_error_t *err)
{
    subject_t subject = { .param = p };
    heft_status_t status = heft_plan_query_param(v->plan, v->rank_index, p, &subject.info, err);
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(v->plan, v->rank_index, p, &n);
    if (status != HEFT_OK || n == 0) {
        return status;
    }
    subject.actual = heft_checkpoint_get_data(v->destination, v->param_tensor[p]);
    /* a proven plan writes all of them, or none, but for those that keep what they hold */
    const int64_t n_kept = heft_plan_get_n_kept(v->plan, v->rank_index, p);
    v->mismatch.n_elems += subject.info.n_elems - n_kept;
    if (n_kept > 0) {
        memcpy(v->scratch, subject.actual, (size_t)subject.info.n_bytes);
    }
    bool is_same = false;
    status = make_expected(v, p, pieces, n, &v->progress, err);
    if (status == HEFT_OK) {
        status = compare(v, &subject, pieces, n, &is_same, err);
    }
    if (status == HEFT_OK && is_same) {
        status = verify_checks(v, &subject, err);
    }
    if (status == HEFT_OK) {
        release_read(v, p);
    }
    return status;
}

static heft_status_t conclude(const verification_t *v, heft_error_t *err)
{
    const heft_mismatch_t *m = &v->mismatch;
    if (m->n_params == 0) {
        return HEFT_OK;
    }
    heft_tensor_info_t info;
    heft_status_t status =
        heft_plan_query_param(v->plan, v->rank_index, v->first_param, &info, err);
    if (status != HEFT_OK) {
        return status;
    }
    char at[HEFT__INDEX_TEXT_BYTES];
    heft__index_text(v->first_index, &info.shape, at);
    if (m->source == NULL) {
        return heft__error_set(err, HEFT_ERR_MISMATCH,
                               "parameter \"%s\" %s: expected the constant 0x%llx, found 0x%llx; "
                               "%lld elements differ in %u parameters",
                               m->param, at, (unsigned long long)m->expected_bits,
                               (unsigned long long)m->actual_bits, (long long)m->n_differ,
                               m->n_params);
    }
    if (v->operation != NULL) {
        return heft__error_set(err, HEFT_ERR_MISMATCH,
                               "parameter \"%s\" %s: expected 0x%llx (%s of source \"%s\"), "
                               "found 0x%llx; %lld elements differ in %u parameters",
                               m->param, at, (unsigned long long)m->expected_bits, v->operation,
                               m->source, (unsigned long long)m->actual_bits,
                               (long long)m->n_differ, m->n_params);
    }
    return heft__error_set(err, HEFT_ERR_MISMATCH,
                           "parameter \"%s\" %s: expected 0x%llx (source \"%s\" element %lld), "
                           "found 0x%llx; %lld elements differ in %u parameters",
                           m->param, at, (unsigned long long)m->expected_bits, m->source,
                           (long long)m->source_index, (unsigned long long)m->actual_bits,
                           (long long)m->n_differ, m->n_params);
}

static heft_status_t verify_all(verification_t *v, heft_error_t *err)
{
    count_readers(v);
    heft_status_t status = HEFT_OK;
    for (uint32_t p = 0; status == HEFT_OK && p < v->n_params; p++) {
        status = verify_param(v, p, err);
    }
    return status;
}

heft_status_t heft_verify(const heft_plan_t *plan, uint32_t rank_index,
                          const heft_checkpoint_t *source, const heft_checkpoint_t *destination,
                          heft_mismatch_t *mismatch_out, heft_error_t *err)
{
    if (plan == NULL || source == NULL || destination == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is NULL",
                               plan == NULL     ? "plan"
                               : source == NULL ? "source"
                                                : "destination");
    }
    verification_t v = {
        .plan = plan, .rank_index = rank_index, .source = source, .destination = destination
    };
    heft_plan_query(plan, &v.info);
    if (rank_index >= v.info.n_ranks) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "rank index %u, the plan has %u ranks",
                               rank_index, v.info.n_ranks);
    }
    v.n_params = heft_plan_get_n_params(plan, rank_index);
    v.mismatch.rank = v.info.first_rank + rank_index;
    heft_status_t status = set_up(&v, err);
    if (status == HEFT_OK) {
        status = verify_all(&v, err);
    }
    if (status == HEFT_OK) {
        status = conclude(&v, err);
    }
    if (mismatch_out != NULL && (status == HEFT_OK || status == HEFT_ERR_MISMATCH)) {
        *mismatch_out = v.mismatch;
    }
    tear_down(&v);
    return status;
}

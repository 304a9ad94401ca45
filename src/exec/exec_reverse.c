/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan of copies backwards: from the checkpoints of all its ranks to the source
 * checkpoint. Before anything is written it is settled that every piece is a copy, that padding
 * holds the plan's constants, and that every source element is held by some parameter; a source
 * that the caller's exceptions let be unused, and that nothing holds, is left out.
 *
 * Then source by source, pieces (and checks, which are copies of a second source into the same
 * elements) in (rank, parameter, offset) order, with the set of elements written so far: a piece
 * that finds none of its elements written is one bulk copy with both sides exchanged; one that
 * finds all of them written is a repeat and compared; what is left (pieces that overlap in part,
 * views that read an element twice) goes element by element.
 */
#include "exec/exec.h"
#include "format/format.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct link {
    uint32_t rank_index;
    uint32_t param;
    const heft_piece_t *piece;
} link_t;

/* A source that an exception lets be unused and that no parameter holds. */
#define LEFT_OUT UINT32_MAX

typedef struct reversal {
    const heft_plan_t *plan;
    const heft_checkpoint_t *const *ranks;
    heft_plan_info_t info;
    heft_convert_opts_t opts;
    heft__pool_t *pool;
    heft__progress_t progress;
    heft_manifest_t *manifest;
    heft_checkpoint_writer_t *writer;
    size_t *param_base;      /* of each rank in the two arrays below */
    uint32_t *param_tensor;  /* in the rank's checkpoint */
    uint32_t *source_tensor; /* in the checkpoint written, or LEFT_OUT */
    uint64_t *n_left;        /* pieces that have yet to be read */
    link_t *links;           /* by source, then rank, piece or check, (parameter, offset) */
    size_t *first_link;      /* n_sources + 1 */
    heft__elems_t written;
    int64_t touched_bytes;  /* of pages since they were last dropped */
    uint32_t writing;       /* tensor at hand in the checkpoint written, or LEFT_OUT */
    uint32_t first_unsaved; /* sources from here on may not be on disk yet */
    int64_t unsaved_bytes;
} reversal_t;

/* One source tensor while it is written. */
typedef struct target {
    const heft_tensor_info_t *info;
    uint8_t *data;
    uint32_t elem_bytes;
} target_t;

/* ---- setting up ---- */

typedef heft_status_t (*piece_fn_t)(reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                                    heft_error_t *err);

/* Pieces, then checks: backwards, a value that two sources share goes to both. */
static heft_status_t for_each_piece(reversal_t *r, piece_fn_t fn, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t k = 0; k < r->info.n_ranks; k++) {
        uint64_t n = 0;
        const heft_piece_t *pieces = heft_plan_get_pieces(r->plan, k, &n);
        for (uint64_t i = 0; status == HEFT_OK && i < n; i++) {
            status = fn(r, k, &pieces[i], err);
        }
        pieces = heft_plan_get_checks(r->plan, k, &n);
        for (uint64_t i = 0; status == HEFT_OK && i < n; i++) {
            status = fn(r, k, &pieces[i], err);
        }
    }
    return status;
}

/* One operation, as people write it; false: it changes nothing. */
static bool write_op(const heft_op_t *op, const char *from, char *out, size_t size)
{
    switch ((heft_op_code_t)op->code) {
    case HEFT_OP_LOAD:
        return false;
    case HEFT_OP_CONST:
        (void)snprintf(out, size, "a constant");
        return true;
    case HEFT_OP_CAST:
        (void)snprintf(out, size, "%s to %s", from, heft_dtype_get_name((heft_dtype_t)op->dtype));
        return true;
    case HEFT_OP_ADD_IMM:
        (void)snprintf(out, size, "+ %g", op->imm);
        return true;
    case HEFT_OP_MUL_IMM:
        (void)snprintf(out, size, "* %g", op->imm);
        return true;
    case HEFT_OP_DIV_IMM:
        (void)snprintf(out, size, "/ %g", op->imm);
        return true;
    case HEFT_OP_NEG_EXP:
        (void)snprintf(out, size, "-exp");
        return true;
    case HEFT_OP_MUL:
        (void)snprintf(out, size, "a product");
        return true;
    case HEFT_OP_BITS:
        (void)snprintf(out, size, "bits as %s", heft_dtype_get_name((heft_dtype_t)op->dtype));
        return true;
    }
    return false;
}

/* What it is that has no way back: " (f32 to bf16)", " (* 2, f32 to bf16)"; "" where it is no
 * arithmetic. */
static void describe_ops(const reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                         char *out, size_t size)
{
    heft_tensor_info_t source;
    uint32_t n_opaques = 0;
    const heft_opaque_t *opaques = heft_plan_get_opaques(r->plan, rank_index, &n_opaques);
    const uint32_t opaque = piece->n_srcs > 0 ? piece->srcs[0].opaque : 0;
    const char *from = "?";
    size_t len = 0;
    out[0] = '\0';
    if (opaque > 0 && opaque <= n_opaques) {
        (void)snprintf(out, size, " (%s)", opaques[opaque - 1].op);
        return;
    }
    if (piece->n_srcs > 0 &&
        heft_plan_query_source(r->plan, piece->srcs[0].source, &source, NULL) == HEFT_OK) {
        from = heft_dtype_get_name(source.dtype);
    }
    for (uint32_t i = 0; i < piece->n_ops; i++) {
        char op[48];
        if (!write_op(&piece->ops[i], from, op, sizeof op) || len + strlen(op) + 4 >= size) {
            continue;
        }
        len += (size_t)snprintf(out + len, size - len, "%s%s", len > 0 ? ", " : " (", op);
        from = piece->ops[i].code == HEFT_OP_CAST
                   ? heft_dtype_get_name((heft_dtype_t)piece->ops[i].dtype)
                   : from;
    }
    (void)snprintf(out + len, size - len, "%s", len > 0 ? ")" : "");
}

/* Also counts: pieces of each parameter, links of each source (one place ahead). */
static heft_status_t check_piece(reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                                 heft_error_t *err)
{
    heft_tensor_info_t info;
    heft_status_t status = heft_plan_query_param(r->plan, rank_index, piece->param, &info, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (piece->n_srcs > 1 || (piece->n_srcs == 1 && piece->n_ops != 0) ||
        heft__piece_is_computed(piece)) {
        char ops[80];
        describe_ops(r, rank_index, piece, ops, sizeof ops);
        return heft__error_set(
            err, HEFT_ERR_UNSUPPORTED,
            "cannot convert back: parameter \"%.80s\" is computed, not copied%s%s%s", info.name,
            heft_plan_get_piece_note(r->plan, piece)[0] ? ": " : "",
            heft_plan_get_piece_note(r->plan, piece), ops);
    }
    r->n_left[r->param_base[rank_index] + piece->param]++;
    r->progress.total += heft__piece_count(piece) * (int64_t)heft_dtype_get_unit_bytes(info.dtype);
    if (piece->n_srcs == 1) {
        r->first_link[piece->srcs[0].source + 1]++;
    }
    return HEFT_OK;
}

static heft_status_t place_link(reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                                heft_error_t *err)
{
    (void)err;
    if (piece->n_srcs == 1) {
        link_t *link = &r->links[r->first_link[piece->srcs[0].source]++];
        *link = (link_t){ .rank_index = rank_index, .param = piece->param, .piece = piece };
    }
    return HEFT_OK;
}

/* A counting sort: stable, so links stay in (rank, parameter, offset) order. */
static heft_status_t sort_links(reversal_t *r, heft_error_t *err)
{
    heft_status_t status = for_each_piece(r, check_piece, err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t s = 0; s < r->info.n_sources; s++) {
        r->first_link[s + 1] += r->first_link[s];
    }
    size_t n = r->first_link[r->info.n_sources];
    r->links = heft__calloc(n + 1, sizeof *r->links);
    if (r->links == NULL) {
        return heft__error_nomem(err, n * sizeof *r->links);
    }
    status = for_each_piece(r, place_link, err);
    for (uint32_t s = r->info.n_sources; s > 0; s--) {
        r->first_link[s] =
            r->first_link[s - 1]; /* placing has moved each to the next one's begin */
    }
    r->first_link[0] = 0;
    return status;
}

static heft_status_t match_ranks(reversal_t *r, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t k = 0; status == HEFT_OK && k < r->info.n_ranks; k++) {
        status =
            heft__match_params(r->plan, k, r->ranks[k], r->param_tensor + r->param_base[k], err);
    }
    return status;
}

static heft_status_t allocate(reversal_t *r, heft_error_t *err)
{
    size_t n_params = 0;
    r->param_base = heft__calloc((size_t)r->info.n_ranks + 1, sizeof *r->param_base);
    r->first_link = heft__calloc((size_t)r->info.n_sources + 2, sizeof *r->first_link);
    r->source_tensor = heft__calloc((size_t)r->info.n_sources + 1, sizeof *r->source_tensor);
    for (uint32_t k = 0; r->param_base != NULL && k < r->info.n_ranks; k++) {
        r->param_base[k] = n_params;
        n_params += heft_plan_get_n_params(r->plan, k);
    }
    r->param_tensor = heft__calloc(n_params + 1, sizeof *r->param_tensor);
    r->n_left = heft__calloc(n_params + 1, sizeof *r->n_left);
    if (r->param_base == NULL || r->first_link == NULL || r->param_tensor == NULL ||
        r->n_left == NULL || r->source_tensor == NULL) {
        return heft__error_nomem(err, (n_params + r->info.n_sources) * sizeof *r->n_left);
    }
    return HEFT_OK;
}

static heft_status_t make_manifest(reversal_t *r, heft_error_t *err)
{
    heft_status_t status = heft_manifest_create("source", &r->manifest, err);
    for (uint32_t s = 0; status == HEFT_OK && s < r->info.n_sources; s++) {
        if (r->source_tensor[s] == LEFT_OUT) {
            continue;
        }
        heft_tensor_info_t info;
        status = heft_plan_query_source(r->plan, s, &info, err);
        if (status == HEFT_OK) {
            heft_shape_t shape = heft__shape_from_storage(&info.shape, info.dtype);
            status = heft_manifest_add(r->manifest, info.name, info.dtype, &shape, err);
        }
    }
    if (status == HEFT_OK && r->opts.names != NULL) {
        status = heft__manifest_copy_natives(r->opts.names, r->manifest, err);
    }
    return status == HEFT_OK ? heft_manifest_finish(r->manifest, err) : status;
}

static void tear_down(reversal_t *r)
{
    heft_checkpoint_writer_destroy(r->writer);
    heft_manifest_destroy(r->manifest);
    heft__pool_destroy(r->pool);
    heft__elems_fini(&r->written);
    heft__free(r->links);
    heft__free(r->n_left);
    heft__free(r->source_tensor);
    heft__free(r->param_tensor);
    heft__free(r->first_link);
    heft__free(r->param_base);
}

/* ---- what must hold before anything is written ---- */

static heft__runs_t source_runs(const heft_piece_t *piece)
{
    const heft_piece_src_t *src = &piece->srcs[0];
    return heft__runs_from(src->offset, piece->rank, piece->extent, src->stride);
}

static heft_status_t report_gap(const reversal_t *r, const heft_tensor_info_t *info,
                                heft_error_t *err)
{
    int64_t begin = 0;
    int64_t end = 0;
    int64_t n = heft__elems_find_gap(&r->written, &begin, &end);
    if (n == 0) {
        return HEFT_OK;
    }
    char first[HEFT__INDEX_TEXT_BYTES];
    char last[HEFT__INDEX_TEXT_BYTES];
    heft__index_text(begin, &info->shape, first);
    heft__index_text(end - 1, &info->shape, last);
    return heft__error_set(err, HEFT_ERR_PROOF,
                           "cannot convert back: source \"%s\": no parameter holds %lld of %lld "
                           "elements, first %s to %s",
                           info->name, (long long)n, (long long)info->n_elems, first, last);
}

static bool is_left_out(const reversal_t *r, uint32_t source, const heft_tensor_info_t *info)
{
    bool is_held = info->n_elems == 0 || r->first_link[source] < r->first_link[source + 1];
    for (uint32_t i = 0; !is_held && i < r->opts.n_exceptions; i++) {
        const heft_exception_t *exception = &r->opts.exceptions[i];
        if (exception->kind == HEFT_EXCEPTION_UNUSED &&
            heft_name_matches(exception->pattern, info->name)) {
            return true;
        }
    }
    return !is_held && heft_plan_leaves_out(r->plan, source) != 0;
}

/* Also places the sources in the checkpoint to write: both are in bytewise name order. */
static heft_status_t check_complete(reversal_t *r, heft_error_t *err)
{
    uint32_t n_tensors = 0;
    for (uint32_t s = 0; s < r->info.n_sources; s++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_source(r->plan, s, &info, err);
        if (status == HEFT_OK) {
            status = heft__elems_reset(&r->written, info.n_elems, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        r->source_tensor[s] = is_left_out(r, s, &info) ? LEFT_OUT : n_tensors++;
        if (r->source_tensor[s] == LEFT_OUT) {
            continue;
        }
        for (size_t i = r->first_link[s]; i < r->first_link[s + 1]; i++) {
            heft__runs_t runs = source_runs(r->links[i].piece);
            heft__elems_add(&r->written, &runs);
        }
        status = report_gap(r, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static const uint8_t *param_data(const reversal_t *r, uint32_t rank_index, uint32_t param)
{
    uint32_t tensor = r->param_tensor[r->param_base[rank_index] + param];
    return heft_checkpoint_get_data(r->ranks[rank_index], tensor);
}

/* One piece of a parameter has been read: release the parameter after the last. */
static heft_status_t piece_done(reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                                uint32_t elem_bytes, heft_error_t *err)
{
    size_t i = r->param_base[rank_index] + piece->param;
    if (--r->n_left[i] == 0) {
        heft_checkpoint_release(r->ranks[rank_index], r->param_tensor[i]);
    }
    int64_t n_bytes = heft__piece_count(piece) * (int64_t)elem_bytes;
    r->touched_bytes += 2 * n_bytes;
    if (r->touched_bytes > r->opts.memory_bytes / 2) {
        r->touched_bytes = 0;
        heft_checkpoint_release(r->ranks[rank_index], r->param_tensor[i]);
        if (r->writing != LEFT_OUT) {
            heft__checkpoint_writer_drop(r->writer, r->writing);
        }
    }
    r->progress.done += n_bytes;
    if (!heft__progress_report(&r->progress, 0)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "canceled by the progress function");
    }
    return HEFT_OK;
}

/* Text of the parameter's element at this index of the piece, and its bits. */
static uint64_t param_element(const reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                              const int64_t *index, const heft_tensor_info_t *info,
                              char at[HEFT__INDEX_TEXT_BYTES])
{
    int64_t flat = piece->dst_offset;
    for (int k = 0; k < piece->rank; k++) {
        flat += index[k] * piece->dst_stride[k];
    }
    heft__index_text(flat, &info->shape, at);
    return heft__load_bits(param_data(r, rank_index, piece->param), flat,
                           heft_dtype_get_unit_bytes(info->dtype));
}

static heft_status_t check_constant(reversal_t *r, uint32_t rank_index, const heft_piece_t *piece,
                                    heft_error_t *err)
{
    if (piece->n_srcs != 0) {
        return HEFT_OK;
    }
    heft_tensor_info_t info;
    heft_status_t status = heft_plan_query_param(r->plan, rank_index, piece->param, &info, err);
    if (status != HEFT_OK) {
        return status;
    }
    uint32_t elem_bytes = heft_dtype_get_unit_bytes(info.dtype);
    uint64_t bits = heft__piece_constant(piece, info.dtype);
    uint8_t constant[8];
    heft__put_le64(constant, bits);
    const int64_t no_stride[HEFT_MAX_DIMS] = { 0 };
    int64_t index[HEFT_MAX_DIMS];
    const uint8_t *base = param_data(r, rank_index, piece->param) + piece->dst_offset * elem_bytes;
    if (!heft__views_agree(base, piece->dst_stride, constant, no_stride, piece->rank, piece->extent,
                           elem_bytes, index)) {
        char at[HEFT__INDEX_TEXT_BYTES];
        uint64_t found = param_element(r, rank_index, piece, index, &info, at);
        return heft__error_set(err, HEFT_ERR_MISMATCH,
                               "rank %u parameter \"%s\" %s: padding must be 0x%llx, found 0x%llx",
                               r->info.first_rank + rank_index, info.name, at,
                               (unsigned long long)heft__load_bits(constant, 0, elem_bytes),
                               (unsigned long long)found);
    }
    return piece_done(r, rank_index, piece, elem_bytes, err);
}

/* ---- writing one source ---- */

typedef struct bulk {
    heft__copy_plan_t copy;
    uint8_t *dst;
    const uint8_t *src;
    uint32_t n_parts;
    _Atomic uint32_t next;
} bulk_t;

static void run_bulk(void *arg, uint32_t thread)
{
    (void)thread;
    bulk_t *bulk = arg;
    int64_t n = bulk->copy.extent[0];
    for (;;) {
        /* relaxed: parts are disjoint, and the pool's lock orders them before the end */
        uint32_t part = atomic_fetch_add_explicit(&bulk->next, 1, memory_order_relaxed);
        if (part >= bulk->n_parts) {
            return;
        }
        int64_t step = n / bulk->n_parts;
        int64_t begin = step * part;
        int64_t end = part + 1 == bulk->n_parts ? n : begin + step;
        heft__copy_run_slabs(&bulk->copy, bulk->dst, bulk->src, begin, end);
    }
}

/* The piece with both sides exchanged; repeats are read at index 0. */
static heft_status_t copy_back(reversal_t *r, const target_t *target, const link_t *link,
                               heft_error_t *err)
{
    const heft_piece_t *piece = link->piece;
    const heft_piece_src_t *src = &piece->srcs[0];
    heft__copy_t copy = { .elem_bytes = target->elem_bytes, .rank = piece->rank };
    for (int k = 0; k < piece->rank; k++) {
        copy.extent[k] = src->stride[k] == 0 ? 1 : piece->extent[k];
        copy.dst_stride[k] = src->stride[k];
        copy.src_stride[k] = piece->dst_stride[k];
    }
    bulk_t bulk = { .dst = target->data + src->offset * target->elem_bytes };
    bulk.src =
        param_data(r, link->rank_index, link->param) + piece->dst_offset * target->elem_bytes;
    heft_status_t status = heft__copy_prepare(&copy, &bulk.copy, err);
    if (status != HEFT_OK || bulk.copy.bytes == 0) {
        return status;
    }
    int64_t n = bulk.copy.bytes / HEFT__EXEC_UNIT_BYTES + 1;
    bulk.n_parts = (uint32_t)heft__min_i64(heft__min_i64(n, bulk.copy.extent[0]), INT32_MAX);
    heft__pool_run(r->pool, run_bulk, &bulk);
    return HEFT_OK;
}

static heft_status_t refuse_repeat(const reversal_t *r, const target_t *target, const link_t *link,
                                   const int64_t *index, heft_error_t *err)
{
    heft_tensor_info_t info;
    heft_status_t status =
        heft_plan_query_param(r->plan, link->rank_index, link->param, &info, err);
    if (status != HEFT_OK) {
        return status;
    }
    int64_t source_elem = link->piece->srcs[0].offset;
    for (int k = 0; k < link->piece->rank; k++) {
        source_elem += index[k] * link->piece->srcs[0].stride[k];
    }
    char at[HEFT__INDEX_TEXT_BYTES];
    uint64_t found = param_element(r, link->rank_index, link->piece, index, &info, at);
    uint64_t first = heft__load_bits(target->data, source_elem, target->elem_bytes);
    return heft__error_set(err, HEFT_ERR_MISMATCH,
                           "rank %u parameter \"%s\" %s: 0x%llx, but the first copy of source "
                           "\"%s\" element %lld is 0x%llx",
                           r->info.first_rank + link->rank_index, info.name, at,
                           (unsigned long long)found, target->info->name, (long long)source_elem,
                           (unsigned long long)first);
}

static heft_status_t compare_back(const reversal_t *r, const target_t *target, const link_t *link,
                                  heft_error_t *err)
{
    const heft_piece_t *piece = link->piece;
    int64_t index[HEFT_MAX_DIMS];
    const uint8_t *param = param_data(r, link->rank_index, link->param);
    if (heft__views_agree(param + piece->dst_offset * target->elem_bytes, piece->dst_stride,
                          target->data + piece->srcs[0].offset * target->elem_bytes,
                          piece->srcs[0].stride, piece->rank, piece->extent, target->elem_bytes,
                          index)) {
        return HEFT_OK;
    }
    return refuse_repeat(r, target, link, index, err);
}

/* Element by element, in row-major order of the piece. */
static heft_status_t merge_back(reversal_t *r, const target_t *target, const link_t *link,
                                heft_error_t *err)
{
    const heft_piece_t *piece = link->piece;
    const uint8_t *param = param_data(r, link->rank_index, link->param);
    int64_t eb = (int64_t)target->elem_bytes;
    int64_t n = heft__piece_count(piece);
    heft_shape_t shape = { .rank = piece->rank };
    memcpy(shape.extent, piece->extent, sizeof shape.extent);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[HEFT_MAX_DIMS];
        heft__index_unravel(i, &shape, index);
        int64_t from = piece->dst_offset;
        int64_t to = piece->srcs[0].offset;
        for (int k = 0; k < piece->rank; k++) {
            from += index[k] * piece->dst_stride[k];
            to += index[k] * piece->srcs[0].stride[k];
        }
        if (!heft__elems_has(&r->written, to)) {
            const heft__runs_t one = { .offset = to, .run_elems = 1 };
            heft__elems_add(&r->written, &one);
            memcpy(target->data + to * eb, param + from * eb, (size_t)eb);
        } else if (memcmp(target->data + to * eb, param + from * eb, (size_t)eb) != 0) {
            return refuse_repeat(r, target, link, index, err);
        }
    }
    return HEFT_OK;
}

static heft_status_t follow_link(reversal_t *r, const target_t *target, const link_t *link,
                                 heft_error_t *err)
{
    heft__runs_t runs = source_runs(link->piece);
    heft__elems_state_t state = heft__elems_test(&r->written, &runs);
    heft_status_t status;
    if (state == HEFT__ELEMS_ALL) {
        status = compare_back(r, target, link, err);
    } else if (state == HEFT__ELEMS_NONE && runs.is_nested) {
        status = copy_back(r, target, link, err);
        heft__elems_add(&r->written, &runs);
        bool has_repeats = false;
        for (int k = 0; k < link->piece->rank; k++) {
            has_repeats =
                has_repeats || (link->piece->srcs[0].stride[k] == 0 && link->piece->extent[k] > 1);
        }
        if (status == HEFT_OK && has_repeats) {
            status = compare_back(r, target, link, err);
        }
    } else {
        status = merge_back(r, target, link, err);
    }
    return status == HEFT_OK ? piece_done(r, link->rank_index, link->piece, target->elem_bytes, err)
                             : status;
}

/* Output that is not on disk yet cannot be reclaimed: no more of it than the bound allows. */
static heft_status_t save(reversal_t *r, uint32_t s, int64_t n_bytes, heft_error_t *err)
{
    r->unsaved_bytes += n_bytes;
    if (r->unsaved_bytes <= r->opts.memory_bytes / 2) {
        return HEFT_OK;
    }
    heft_status_t status = HEFT_OK;
    for (; status == HEFT_OK && r->first_unsaved <= s; r->first_unsaved++) {
        uint32_t tensor = r->source_tensor[r->first_unsaved];
        status =
            tensor != LEFT_OUT ? heft__checkpoint_writer_wait(r->writer, tensor, err) : HEFT_OK;
    }
    r->unsaved_bytes = 0;
    return status;
}

static heft_status_t write_source(reversal_t *r, uint32_t s, heft_error_t *err)
{
    heft_tensor_info_t info;
    heft_status_t status = heft_plan_query_source(r->plan, s, &info, err);
    if (status == HEFT_OK) {
        status = heft__elems_reset(&r->written, info.n_elems, err);
    }
    void *data = NULL;
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_map(r->writer, r->source_tensor[s], &data, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    target_t target = { .info = &info, .data = data };
    target.elem_bytes = heft_dtype_get_unit_bytes(info.dtype);
    r->writing = r->source_tensor[s];
    for (size_t i = r->first_link[s]; status == HEFT_OK && i < r->first_link[s + 1]; i++) {
        status = follow_link(r, &target, &r->links[i], err);
    }
    r->writing = LEFT_OUT;
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_done(r->writer, r->source_tensor[s], err);
    }
    return status == HEFT_OK ? save(r, s, info.n_bytes, err) : status;
}

static heft_status_t reverse(reversal_t *r, const char *dir, heft_error_t *err)
{
    heft_status_t status = heft__refuse_opaque(r->plan, 0, r->info.n_ranks, "convert back", err);
    if (status == HEFT_OK) {
        status = allocate(r, err);
    }
    if (status == HEFT_OK) {
        status = sort_links(r, err);
    }
    if (status == HEFT_OK) {
        status = match_ranks(r, err);
    }
    if (status == HEFT_OK) {
        status = check_complete(r, err);
    }
    if (status == HEFT_OK) {
        status = for_each_piece(r, check_constant, err);
    }
    if (status == HEFT_OK) {
        status = heft__pool_create(r->opts.n_threads, &r->pool, err);
    }
    if (status == HEFT_OK) {
        status = make_manifest(r, err);
    }
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_create(dir, r->manifest, r->opts.max_shard_bytes,
                                               &r->writer, err);
    }
    for (uint32_t s = 0; status == HEFT_OK && s < r->info.n_sources; s++) {
        status = r->source_tensor[s] != LEFT_OUT ? write_source(r, s, err) : HEFT_OK;
    }
    return status == HEFT_OK ? heft_checkpoint_writer_commit(r->writer, err) : status;
}

heft_status_t heft_convert_reverse(const heft_plan_t *plan, const heft_checkpoint_t *const *ranks,
                                   uint32_t n_ranks, const char *dir,
                                   const heft_convert_opts_t *opts, heft_error_t *err)
{
    if (plan == NULL || ranks == NULL || dir == NULL || dir[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is missing",
                               plan == NULL    ? "plan"
                               : ranks == NULL ? "ranks"
                                               : "dir");
    }
    reversal_t r = { .plan = plan, .ranks = ranks, .writing = LEFT_OUT };
    heft_plan_query(plan, &r.info);
    if (n_ranks != r.info.n_ranks) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%u checkpoints given, the plan has %u ranks", n_ranks,
                               r.info.n_ranks);
    }
    for (uint32_t k = 0; k < n_ranks; k++) {
        if (ranks[k] == NULL) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT, "checkpoint %u of %u is NULL", k,
                                   n_ranks);
        }
    }
    heft_status_t status = heft__convert_opts_load(opts, &r.opts, err);
    if (status != HEFT_OK) {
        return status;
    }
    r.progress = (heft__progress_t){ .fn = r.opts.progress, .arg = r.opts.progress_arg };
    status = reverse(&r, dir, err);
    tear_down(&r);
    return status;
}

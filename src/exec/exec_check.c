/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of a plan: values that a later write replaced and that must agree with it, an exception
 * says. When a run has written the parameters, every check is computed anew, block by block, and
 * compared with what the destination holds, bit for bit.
 *
 * A block is at most 256 KiB of destination bytes: some steps of one dimension with all that is
 * inside it. Copies of long runs are compared where they are; anything else is computed into a
 * scratch block of the thread first. Blocks are units that threads take in order, and every unit
 * before one that fails is finished, so which difference is the first does not depend on threads.
 */
#include "exec/exec.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES = 256 << 10, MIN_RUN_BYTES = 256, ORIGIN_BYTES = 256 };

/* One kernel call: a block of the usual size, or the last one along its dimension. */
typedef struct kernel {
    const heft__copy_plan_t *copy;
    const heft__transform_plan_t *transform;
} kernel_t;

typedef struct check {
    const heft_piece_t *piece;
    uint32_t rank_index;
    heft_tensor_info_t param;
    const uint8_t *data; /* the parameter in the destination */
    uint32_t elem_bytes;
    heft_dtype_t src_dtype[HEFT_MAX_SOURCES];
    bool is_direct;
    int split;       /* the dimension that is cut */
    int64_t n_steps; /* of it, in a block */
    int64_t n_cuts;  /* blocks along it */
    kernel_t whole;  /* unless direct */
    kernel_t last;
    uint64_t unit_begin;
} check_t;

struct heft__checks {
    heft__arena_t arena;
    const heft_plan_t *plan;
    check_t *items;
    size_t n;
    size_t cap;
    uint64_t n_units;
    uint8_t *scratch; /* a block for each thread; NULL while all are direct */
    uint32_t n_threads;
    const void *const *sources; /* of the run at hand */
    _Atomic uint64_t next_unit;
    _Atomic uint64_t failed_unit; /* the lowest, or UINT64_MAX */
};

/* Part of a check: its first index, and extents of the dimensions from split on. */
typedef struct block {
    const check_t *check;
    int64_t index[HEFT_MAX_DIMS];
    int64_t extent[HEFT_MAX_DIMS];
    int rank;
    bool is_last;
    const uint8_t *dst;
    const void *src[HEFT_MAX_SOURCES];
} block_t;

/* ---- preparing ---- */

heft_status_t heft__checks_create(const heft_plan_t *plan, uint32_t n_threads,
                                  heft__checks_t **checks_out, heft_error_t *err)
{
    heft__checks_t *checks = heft__calloc(1, sizeof *checks);
    if (checks == NULL) {
        return heft__error_nomem(err, sizeof *checks);
    }
    heft__arena_init(&checks->arena, 1024);
    checks->plan = plan;
    checks->n_threads = n_threads;
    *checks_out = checks;
    return HEFT_OK;
}

void heft__checks_destroy(heft__checks_t *checks)
{
    if (checks == NULL) {
        return;
    }
    heft__free(checks->scratch);
    heft__free(checks->items);
    heft__arena_fini(&checks->arena);
    heft__free(checks);
}

/* Cut the outermost dimension whose steps fit into a block. */
static void choose_split(check_t *check)
{
    const heft_piece_t *piece = check->piece;
    int64_t limit = BLOCK_BYTES / (int64_t)check->elem_bytes;
    int64_t inner = 1; /* elements of one step of dimension split */
    check->split = piece->rank > 0 ? piece->rank - 1 : 0;
    while (check->split > 0 && inner <= limit / piece->extent[check->split]) {
        inner *= piece->extent[check->split--];
    }
    int64_t n = piece->rank > 0 ? piece->extent[check->split] : 1;
    check->n_steps = heft__min_i64(n, heft__max_i64(limit / inner, 1));
    check->n_cuts = (n + check->n_steps - 1) / check->n_steps;
}

static bool is_direct(const check_t *check)
{
    const heft_piece_t *piece = check->piece;
    int k = piece->rank - 1;
    if (piece->n_ops != 0 || piece->n_srcs != 1) {
        return false;
    }
    return k < 0 || (piece->dst_stride[k] == 1 && piece->srcs[0].stride[k] == 1 &&
                     piece->extent[k] >= MIN_RUN_BYTES / (int64_t)check->elem_bytes);
}

static int block_rank(const check_t *check)
{
    return check->piece->rank - check->split;
}

/* Row-major strides of a block. */
static void dense_strides(const check_t *check, int64_t stride[HEFT_MAX_DIMS])
{
    int64_t n = 1;
    for (int k = block_rank(check) - 1; k >= 0; k--) {
        stride[k] = n;
        n *= k == 0 ? 1 : check->piece->extent[check->split + k];
    }
}

static heft_status_t prepare_copy(heft__checks_t *checks, const check_t *check, int64_t n_steps,
                                  kernel_t *kernel, heft_error_t *err)
{
    const heft_piece_t *piece = check->piece;
    heft__copy_t copy = { .elem_bytes = check->elem_bytes, .rank = block_rank(check) };
    dense_strides(check, copy.dst_stride);
    for (int k = 0; k < copy.rank; k++) {
        copy.extent[k] = k == 0 ? n_steps : piece->extent[check->split + k];
        copy.src_stride[k] = piece->srcs[0].stride[check->split + k];
    }
    heft__copy_plan_t *plan = heft__arena_alloc(&checks->arena, sizeof *plan);
    if (plan == NULL) {
        return heft__error_nomem(err, sizeof *plan);
    }
    kernel->copy = plan;
    return heft__copy_prepare(&copy, plan, err);
}

static heft_status_t prepare_transform(heft__checks_t *checks, const check_t *check,
                                       int64_t n_steps, kernel_t *kernel, heft_error_t *err)
{
    const heft_piece_t *piece = check->piece;
    heft__transform_t t = { .dst_dtype = check->param.dtype,
                            .n_srcs = piece->n_srcs,
                            .n_ops = piece->n_ops,
                            .rank = block_rank(check) };
    memcpy(t.ops, piece->ops, piece->n_ops * sizeof t.ops[0]);
    dense_strides(check, t.dst_stride);
    for (int k = 0; k < t.rank; k++) {
        t.extent[k] = k == 0 ? n_steps : piece->extent[check->split + k];
        for (uint32_t s = 0; s < piece->n_srcs; s++) {
            t.src_stride[s][k] = piece->srcs[s].stride[check->split + k];
        }
    }
    memcpy(t.src_dtype, check->src_dtype, sizeof t.src_dtype);
    heft__transform_plan_t *plan = heft__arena_alloc(&checks->arena, sizeof *plan);
    if (plan == NULL) {
        return heft__error_nomem(err, sizeof *plan);
    }
    kernel->transform = plan;
    return heft__transform_prepare(&t, plan, err);
}

static heft_status_t prepare(heft__checks_t *checks, check_t *check, heft_error_t *err)
{
    const heft_piece_t *piece = check->piece;
    choose_split(check);
    check->is_direct = is_direct(check);
    if (check->is_direct) {
        return HEFT_OK;
    }
    bool is_copy = piece->n_ops == 0;
    int64_t n = piece->rank > 0 ? piece->extent[check->split] : 1;
    int64_t rest = n - (check->n_cuts - 1) * check->n_steps;
    heft_status_t status =
        is_copy ? prepare_copy(checks, check, check->n_steps, &check->whole, err)
                : prepare_transform(checks, check, check->n_steps, &check->whole, err);
    check->last = check->whole;
    if (status == HEFT_OK && rest != check->n_steps) {
        status = is_copy ? prepare_copy(checks, check, rest, &check->last, err)
                         : prepare_transform(checks, check, rest, &check->last, err);
    }
    size_t bytes;
    if (status == HEFT_OK && checks->scratch == NULL) {
        bool fits = heft__size_mul(checks->n_threads, BLOCK_BYTES, &bytes);
        checks->scratch = fits ? heft__malloc(bytes) : NULL;
        status = checks->scratch != NULL ? HEFT_OK : heft__error_nomem(err, BLOCK_BYTES);
    }
    return status;
}

static heft_status_t add(heft__checks_t *checks, const heft_piece_t *piece, uint32_t rank_index,
                         const heft_tensor_info_t *param, const void *data, heft_error_t *err)
{
    void *items = checks->items;
    if (!heft__grow(&items, &checks->cap, checks->n + 1, sizeof *checks->items)) {
        return heft__error_nomem(err, (checks->n + 1) * sizeof *checks->items);
    }
    checks->items = items;
    check_t *check = &checks->items[checks->n];
    *check = (check_t){ .piece = piece,
                        .rank_index = rank_index,
                        .param = *param,
                        .data = data,
                        .elem_bytes = heft_dtype_get_unit_bytes(param->dtype),
                        .unit_begin = checks->n_units };
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; status == HEFT_OK && s < piece->n_srcs; s++) {
        heft_tensor_info_t source;
        status = heft_plan_query_source(checks->plan, piece->srcs[s].source, &source, err);
        check->src_dtype[s] = status == HEFT_OK ? source.dtype : HEFT_DTYPE_NONE;
    }
    if (status == HEFT_OK) {
        status = prepare(checks, check, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    uint64_t n_units = (uint64_t)check->n_cuts;
    for (int k = 0; k < check->split; k++) {
        n_units *= (uint64_t)piece->extent[k]; /* no more than there are elements */
    }
    checks->n_units += n_units;
    checks->n++;
    return HEFT_OK;
}

/* share NULL, or without routes: every check. */
static bool is_of_share(const heft__checks_t *checks, const heft__share_t *share,
                        uint32_t rank_index, const heft_piece_t *check)
{
    uint64_t n = 0;
    const heft_piece_t *first = heft_plan_get_checks(checks->plan, rank_index, &n);
    return share == NULL || share->routes == NULL ||
           heft__routes_get_check_sender(share->routes, rank_index, (uint64_t)(check - first)) ==
               share->sender;
}

heft_status_t heft__checks_add(heft__checks_t *checks, uint32_t rank_index, uint32_t param,
                               const heft__share_t *share, const void *data, heft_error_t *err)
{
    heft_tensor_info_t info;
    heft_status_t status = heft_plan_query_param(checks->plan, rank_index, param, &info, err);
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_checks(checks->plan, rank_index, param, &n);
    for (uint64_t i = 0; status == HEFT_OK && i < n; i++) {
        if (is_of_share(checks, share, rank_index, &pieces[i])) {
            status = add(checks, &pieces[i], rank_index, &info, data, err);
        }
    }
    return status;
}

/* ---- running ---- */

static const check_t *find_check(const heft__checks_t *checks, uint64_t unit)
{
    size_t low = 0;
    size_t high = checks->n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (checks->items[mid].unit_begin <= unit) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return &checks->items[low];
}

static int64_t at_index(int64_t offset, const int64_t *stride, const int64_t *index, int rank)
{
    for (int k = 0; k < rank; k++) {
        offset += index[k] * stride[k];
    }
    return offset;
}

static void find_block(const heft__checks_t *checks, uint64_t unit, block_t *block)
{
    const check_t *check = find_check(checks, unit);
    const heft_piece_t *piece = check->piece;
    int64_t rest = (int64_t)(unit - check->unit_begin);
    *block = (block_t){ .check = check, .rank = block_rank(check) };
    int64_t cut = rest % check->n_cuts;
    rest /= check->n_cuts;
    for (int k = check->split - 1; k >= 0; k--) {
        block->index[k] = rest % piece->extent[k];
        rest /= piece->extent[k];
    }
    block->is_last = cut + 1 == check->n_cuts;
    if (block->rank > 0) {
        block->index[check->split] = cut * check->n_steps;
        block->extent[0] =
            heft__min_i64(check->n_steps, piece->extent[check->split] - cut * check->n_steps);
    }
    for (int k = 1; k < block->rank; k++) {
        block->extent[k] = piece->extent[check->split + k];
    }
    block->dst =
        check->data + at_index(piece->dst_offset, piece->dst_stride, block->index, piece->rank) *
                          (int64_t)check->elem_bytes;
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        const heft_piece_src_t *src = &piece->srcs[s];
        const uint8_t *base = checks->sources[src->source];
        block->src[s] = base + at_index(src->offset, src->stride, block->index, piece->rank) *
                                   (int64_t)heft_dtype_get_unit_bytes(check->src_dtype[s]);
    }
}

/* What the check gives: the source itself, or a scratch block. */
static const void *compute(const heft__checks_t *checks, const block_t *block, uint32_t thread,
                           int64_t stride[HEFT_MAX_DIMS])
{
    const check_t *check = block->check;
    if (check->is_direct) {
        memcpy(stride, check->piece->srcs[0].stride + check->split,
               (size_t)block->rank * sizeof stride[0]);
        return block->src[0];
    }
    uint8_t *scratch = checks->scratch + (size_t)thread * BLOCK_BYTES;
    const kernel_t *kernel = block->is_last ? &check->last : &check->whole;
    dense_strides(check, stride);
    if (kernel->copy != NULL) {
        heft__copy_run(kernel->copy, scratch, block->src[0]);
    } else {
        heft__transform_run(kernel->transform, scratch, block->src);
    }
    return scratch;
}

/* Whether a block agrees; if not, index is the piece's first that does not, and bits its value. */
static bool agrees(const heft__checks_t *checks, uint64_t unit, uint32_t thread, block_t *block,
                   uint64_t *bits_out)
{
    find_block(checks, unit, block);
    const check_t *check = block->check;
    int64_t stride[HEFT_MAX_DIMS] = { 0 };
    int64_t index[HEFT_MAX_DIMS] = { 0 };
    const uint8_t *value = compute(checks, block, thread, stride);
    if (heft__views_agree(block->dst, check->piece->dst_stride + check->split, value, stride,
                          block->rank, block->extent, check->elem_bytes, index)) {
        return true;
    }
    *bits_out = heft__load_bits(value, at_index(0, stride, index, block->rank), check->elem_bytes);
    for (int k = 0; k < block->rank; k++) {
        block->index[check->split + k] += index[k];
    }
    return false;
}

/* Counters are relaxed: the pool's lock orders them before the end of the run. */
static void run_units(void *arg, uint32_t thread)
{
    heft__checks_t *checks = arg;
    while (atomic_load_explicit(&checks->failed_unit, memory_order_relaxed) == UINT64_MAX) {
        uint64_t unit = atomic_fetch_add_explicit(&checks->next_unit, 1, memory_order_relaxed);
        block_t block;
        uint64_t bits;
        if (unit >= checks->n_units) {
            return;
        }
        if (agrees(checks, unit, thread, &block, &bits)) {
            continue;
        }
        uint64_t lowest = atomic_load_explicit(&checks->failed_unit, memory_order_relaxed);
        while (unit < lowest &&
               !atomic_compare_exchange_weak_explicit(&checks->failed_unit, &lowest, unit,
                                                      memory_order_relaxed, memory_order_relaxed)) {
        }
    }
}

/* Where the value in the destination comes from. Nothing is allocated in a run, here as little. */
static heft_status_t put_origin(const heft__checks_t *checks, const check_t *check, int64_t flat,
                                char text[ORIGIN_BYTES], heft_error_t *err)
{
    uint64_t n = 0;
    const heft_piece_t *pieces =
        heft_plan_get_param_pieces(checks->plan, check->rank_index, check->piece->param, &n);
    int64_t index[HEFT_MAX_DIMS];
    const heft_piece_t *piece = heft__piece_find(pieces, n, flat, index);
    if (piece == NULL) {
        return HEFT_BUG(err, "a check of an element that no piece writes");
    }
    if (piece->n_srcs == 0) {
        (void)snprintf(text, ORIGIN_BYTES, "a constant");
        return HEFT_OK;
    }
    heft_tensor_info_t source;
    heft_status_t status =
        heft_plan_query_source(checks->plan, piece->srcs[0].source, &source, err);
    if (status == HEFT_OK) {
        (void)snprintf(
            text, ORIGIN_BYTES, "source \"%s\" element %lld", source.name,
            (long long)at_index(piece->srcs[0].offset, piece->srcs[0].stride, index, piece->rank));
    }
    return status;
}

static heft_status_t refuse(const heft__checks_t *checks, const block_t *block, uint64_t bits,
                            heft_error_t *err)
{
    char origin[ORIGIN_BYTES] = "";
    const check_t *check = block->check;
    const heft_piece_t *piece = check->piece;
    const heft_piece_src_t *src = &piece->srcs[0];
    int64_t flat = at_index(piece->dst_offset, piece->dst_stride, block->index, piece->rank);
    heft_plan_info_t info;
    heft_tensor_info_t source;
    heft_plan_query(checks->plan, &info);
    heft_status_t status = heft_plan_query_source(checks->plan, src->source, &source, err);
    if (status == HEFT_OK) {
        status = put_origin(checks, check, flat, origin, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    char at[HEFT__INDEX_TEXT_BYTES];
    heft__index_text(flat, &check->param.shape, at);
    return heft__error_set(
        err, HEFT_ERR_MISMATCH,
        "parameter \"%s\" rank %u %s must be equal: 0x%llx (source \"%s\" element %lld), 0x%llx "
        "(%s)",
        check->param.name, info.first_rank + check->rank_index, at, (unsigned long long)bits,
        source.name, (long long)at_index(src->offset, src->stride, block->index, piece->rank),
        (unsigned long long)heft__load_bits(check->data, flat, check->elem_bytes), origin);
}

static heft_status_t find_null(const heft__checks_t *checks, heft_error_t *err)
{
    for (size_t i = 0; i < checks->n; i++) {
        const heft_piece_t *piece = checks->items[i].piece;
        for (uint32_t s = 0; s < piece->n_srcs; s++) {
            if (checks->sources != NULL && checks->sources[piece->srcs[s].source] != NULL) {
                continue;
            }
            heft_tensor_info_t source;
            heft_status_t status =
                heft_plan_query_source(checks->plan, piece->srcs[s].source, &source, err);
            return status != HEFT_OK ? status
                                     : heft__error_set(err, HEFT_ERR_ARGUMENT,
                                                       "source \"%s\" is NULL", source.name);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__checks_bind(heft__checks_t *checks, const void *const *sources,
                                heft_error_t *err)
{
    if (checks == NULL) {
        return HEFT_OK;
    }
    checks->sources = sources;
    return find_null(checks, err);
}

heft_status_t heft__checks_run(heft__checks_t *checks, heft__pool_t *pool, heft_error_t *err)
{
    if (checks == NULL) {
        return HEFT_OK;
    }
    atomic_store_explicit(&checks->next_unit, 0, memory_order_relaxed);
    atomic_store_explicit(&checks->failed_unit, UINT64_MAX, memory_order_relaxed);
    heft__pool_run(pool, run_units, checks);
    uint64_t failed = atomic_load_explicit(&checks->failed_unit, memory_order_relaxed);
    block_t block;
    uint64_t bits = 0;
    if (failed == UINT64_MAX) {
        return HEFT_OK;
    }
    if (agrees(checks, failed, 0, &block, &bits)) {
        return heft__error_set(err, HEFT_ERR_MISMATCH,
                               "parameter \"%s\" or its sources changed while they were compared",
                               block.check->param.name);
    }
    return refuse(checks, &block, bits, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overwrites: elements whose earlier value, read from a source, was written again. As in a loader
 * the later write wins, but nobody asked for the earlier one to be dropped, and the same value
 * twice is a rule too many. Zeroing first and updating in place are how a value comes about.
 *
 * What an exception `equal` excuses is not forgotten: the earlier value becomes a check.
 */
#include "plan/plan.h"

#include <stdlib.h>

static bool loses(const heft__fold_overwrite_t *overwrite)
{
    return !overwrite->was_constant && (overwrite->is_same || !overwrite->is_update);
}

static int compare_buffers(const void *x, const void *y, void *arg)
{
    const heft__fold_overwrite_t *overwrites = arg;
    uint32_t i = *(const uint32_t *)x;
    uint32_t j = *(const uint32_t *)y;
    uint32_t a = overwrites[i].buffer;
    uint32_t b = overwrites[j].buffer;
    if (a != b) {
        return a < b ? -1 : 1;
    }
    int64_t first = overwrites[i].region.offset;
    int64_t second = overwrites[j].region.offset;
    return first != second ? (first < second ? -1 : 1) : (i < j ? -1 : i > j);
}

/* Those that lose something, by buffer and offset; *n_out of them, owned by the caller. */
static heft_status_t sort_losing(const heft__fold_t *fold, uint32_t **order_out, size_t *n_out,
                                 heft_error_t *err)
{
    uint32_t *order = heft__calloc(fold->n_overwrites + 1, sizeof *order);
    size_t n = 0;
    if (order == NULL || fold->n_overwrites > UINT32_MAX) {
        heft__free(order);
        return heft__error_nomem(err, fold->n_overwrites * sizeof *order);
    }
    for (uint64_t i = 0; i < fold->n_overwrites; i++) {
        if (loses(&fold->overwrites[i])) {
            order[n++] = (uint32_t)i;
        }
    }
    qsort_r(order, n, sizeof *order, compare_buffers, fold->overwrites);
    *order_out = order;
    *n_out = n;
    return HEFT_OK;
}

/* Overwrites order[0 .. n) as claims with their index as owner. */
static heft_status_t load_claims(heft__proof_t *proof, const heft__fold_t *fold,
                                 const uint32_t *order, size_t n, heft_error_t *err)
{
    heft_status_t status = HEFT__GROW(proof->claims, proof->cap_claims, n, err);
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        const heft__region_t *region = &fold->overwrites[order[i]].region;
        proof->claims[i] = (heft__claim_t){ .offset = region->offset,
                                            .extent = region->extent,
                                            .stride = region->stride,
                                            .n_dims = region->rank,
                                            .owner = order[i] };
    }
    return status;
}

static const char *note_of(const heft_tape_t *tape, uint32_t write)
{
    const char *note = tape->writes[write].note;
    return note[0] != '\0' ? note : "a write without a note";
}

static bool writes_element(const heft__fold_piece_t *piece, int64_t element)
{
    int64_t rest = element - piece->dst_offset;
    for (int32_t k = 0; k < piece->rank && rest > 0; k++) {
        if (piece->dst_stride[k] > 0) {
            rest -= heft__min_i64(rest / piece->dst_stride[k], piece->extent[k] - 1) *
                    piece->dst_stride[k];
        }
    }
    return rest == 0;
}

/* The piece that stayed at the first element of an overwrite; NULL where a third write took it. */
static const heft__fold_piece_t *find_later(const heft__fold_t *fold,
                                            const heft__fold_overwrite_t *overwrite)
{
    uint64_t n;
    const heft__fold_piece_t *pieces = heft__fold_get_pieces(fold, overwrite->buffer, &n);
    for (uint64_t i = 0; i < n; i++) {
        if (pieces[i].write == overwrite->later_write &&
            writes_element(&pieces[i], overwrite->region.offset)) {
            return &pieces[i];
        }
    }
    return NULL;
}

static void put_sources(heft__text_t *text, const heft_tape_t *tape,
                        const heft__fold_piece_t *piece)
{
    heft__text_put(text, piece->n_srcs == 0 ? " as a constant" : " from");
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        heft__text_put(text, s > 0 ? ", " : " ");
        if (piece->srcs[s].opaque_write != HEFT__NO_WRITE) {
            heft__text_put(text, "an operation");
        } else {
            heft__text_printf(text, "\"%s\"", tape->buffers[piece->srcs[s].buffer].name);
        }
    }
}

/* "by r:3 from "a" and then by r:9 from "b"" */
static void put_writes(heft__text_t *text, const heft_tape_t *tape, const heft__fold_t *fold,
                       const heft__fold_overwrite_t *overwrite)
{
    const heft__fold_piece_t *earlier = overwrite->earlier;
    const heft__fold_piece_t *later = overwrite->is_same ? NULL : find_later(fold, overwrite);
    heft__text_printf(text, "by %s", note_of(tape, overwrite->earlier_write));
    if (earlier != NULL && later != NULL) {
        put_sources(text, tape, earlier);
        heft__text_printf(text, " and then by %s", note_of(tape, overwrite->later_write));
        put_sources(text, tape, later);
    } else {
        heft__text_printf(text, " and then, from %s, by %s",
                          overwrite->is_same ? "the same sources" : "other sources",
                          note_of(tape, overwrite->later_write));
    }
}

/* The parameter whose lost writes are order[0 .. n). */
typedef struct overwritten {
    const heft_tape_t *tape;
    const heft__fold_t *fold;
    uint32_t buffer; /* its id in the tape */
    uint32_t param;
    int32_t rank;
    const heft_tensor_info_t *info;
    const uint32_t *order;
    size_t n;
} overwritten_t;

static heft_status_t report_param(heft__proof_t *proof, const overwritten_t *o, int64_t n_elems,
                                  heft_error_t *err)
{
    heft__text_t *text = &proof->text;
    heft__spot_t spot = { 0 };
    heft__text_reset(text);
    if (heft__report_has_room(proof->report, HEFT_FINDING_OVERWRITTEN, true)) {
        heft_status_t status = heft__proof_spot_claims(proof, &o->info->shape, o->n, &spot, err);
        if (status != HEFT_OK) {
            return status;
        }
        heft__text_printf(text, "parameter \"%s\" rank %d: %lld of %lld elements written ",
                          o->info->name, (int)o->rank, (long long)n_elems,
                          (long long)o->info->n_elems);
        put_writes(text, o->tape, o->fold, &o->fold->overwrites[spot.owners[0]]);
        heft__proof_put_spot(proof, &o->info->shape, &spot);
    }
    return heft__proof_add(proof, HEFT_FINDING_OVERWRITTEN, true, o->rank, o->info, n_elems, &spot,
                           err);
}

static bool reads_operation(const heft__fold_piece_t *piece)
{
    for (uint32_t s = 0; s < piece->n_srcs; s++) {
        if (piece->srcs[s].opaque_write != HEFT__NO_WRITE) {
            return true;
        }
    }
    return false;
}

/* Whether an operation makes one of the values that would have to be compared. */
static bool has_operation(const overwritten_t *o)
{
    uint64_t n_pieces;
    const heft__fold_piece_t *pieces = heft__fold_get_pieces(o->fold, o->buffer, &n_pieces);
    for (uint64_t i = 0; i < n_pieces; i++) {
        if (reads_operation(&pieces[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < o->n; i++) {
        const heft__fold_piece_t *earlier = o->fold->overwrites[o->order[i]].earlier;
        if (earlier != NULL && reads_operation(earlier)) {
            return true;
        }
    }
    return false;
}

/* Checks for what is excused; the same value twice needs none. */
static heft_status_t add_checks(heft__proof_t *proof, const overwritten_t *o, int64_t n_elems,
                                heft_error_t *err)
{
    if (has_operation(o)) {
        heft__text_reset(&proof->text);
        heft__text_printf(&proof->text,
                          "parameter \"%s\" rank %d: %lld of %lld elements written twice, and an "
                          "exception \"equal\" cannot compare what an operation writes",
                          o->info->name, (int)o->rank, (long long)n_elems,
                          (long long)o->info->n_elems);
        return heft__proof_add(proof, HEFT_FINDING_OVERWRITTEN, true, o->rank, o->info, n_elems,
                               NULL, err);
    }
    heft_status_t status =
        HEFT__GROW(proof->checks, proof->cap_checks, proof->n_checks + o->n, err);
    for (size_t i = 0; i < o->n && status == HEFT_OK; i++) {
        if (o->fold->overwrites[o->order[i]].earlier != NULL) {
            proof->checks[proof->n_checks++] =
                (heft__check_ref_t){ .param = o->param, .overwrite = o->order[i] };
        }
    }
    return status;
}

static heft_status_t judge_param(heft__proof_t *proof, const overwritten_t *o, heft_error_t *err)
{
    heft__cover_count_t count = { 0 };
    heft_status_t status = HEFT_OK;
    if (o->n > 0) {
        status = load_claims(proof, o->fold, o->order, o->n, err);
        if (status == HEFT_OK) {
            status = heft__cover_scan(proof->cover, o->info->n_elems, proof->claims, o->n, NULL,
                                      NULL, &count, err);
        }
    }
    if (status != HEFT_OK) {
        return heft__plan_name_error(err, status, "parameter", o->info->name);
    }
    bool excused =
        heft__excuses_apply(proof, 1u << HEFT_EXCEPTION_EQUAL, o->info->name, count.n_covered, -1);
    if (o->n == 0) {
        return HEFT_OK;
    }
    return excused ? add_checks(proof, o, count.n_covered, err)
                   : report_param(proof, o, count.n_covered, err);
}

heft_status_t heft__proof_add_overwrites(heft__proof_t *proof, uint32_t rank_index,
                                         const heft_tape_t *tape, const heft__fold_t *fold,
                                         const uint32_t *buffers, heft_error_t *err)
{
    const heft__plan_rank_t *rank = &proof->plan->ranks[rank_index];
    uint32_t *order = NULL;
    size_t n = 0;
    proof->n_checks = 0;
    heft_status_t status = sort_losing(fold, &order, &n, err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t p = 0; p < rank->n_params && status == HEFT_OK; p++) {
        overwritten_t o = { .tape = tape,
                            .fold = fold,
                            .buffer = buffers[p],
                            .param = p,
                            .rank = heft__proof_rank(proof, rank_index),
                            .info = &rank->params[p] };
        size_t low = 0;
        for (size_t high = n; low < high;) {
            size_t middle = low + (high - low) / 2;
            if (fold->overwrites[order[middle]].buffer < buffers[p]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        o.order = order + low;
        while (low + o.n < n && fold->overwrites[order[low + o.n]].buffer == buffers[p]) {
            o.n++;
        }
        status = judge_param(proof, &o, err);
    }
    heft__free(order);
    return status;
}

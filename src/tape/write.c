/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording writes. Everything about a write is checked here, so that fold can rely on it: views
 * inside their buffers, destinations injective and no source, equal extents, sound programs. A
 * write that is refused leaves the tape as it was.
 */
#include "tape/program.h"

#include <stdio.h>
#include <string.h>

/* One call: the tape, and what its messages begin with. */
typedef struct call {
    heft_tape_t *tape;
    const char *note;
    heft_error_t *err;
} call_t;

static heft_status_t refuse(const call_t *call, heft_status_t status, const char *fmt, ...)
    HEFT_PRINTF(3, 4);

static heft_status_t refuse(const call_t *call, heft_status_t status, const char *fmt, ...)
{
    heft_error_t why = HEFT_ERROR_INIT;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(why.message, sizeof why.message, fmt, args);
    va_end(args);
    bool has_note = call->note != NULL && call->note[0] != '\0';
    return heft__error_set(call->err, status, "write %zu%s%s%s: %s", call->tape->n_writes,
                           has_note ? " (" : "", has_note ? call->note : "", has_note ? ")" : "",
                           why.message);
}

static heft_status_t nomem(const call_t *call, size_t bytes)
{
    return heft__error_nomem(call->err, bytes);
}

/* ---- views ---- */

/* The least and largest element a view touches; false on overflow. */
static bool get_bounds(const heft_view_t *view, int64_t *first, int64_t *last)
{
    *first = view->offset;
    *last = view->offset;
    for (int k = 0; k < view->rank; k++) {
        int64_t span = 0;
        if (view->extent[k] > 1 && !heft__mul(view->extent[k] - 1, view->stride[k], &span)) {
            return false;
        }
        if (!heft__add(*(span < 0 ? first : last), span, span < 0 ? first : last)) {
            return false;
        }
    }
    return true;
}

static heft_status_t check_view(const call_t *call, const heft_view_t *view, const char *role)
{
    const heft_tape_t *tape = call->tape;
    if (view->buffer >= tape->n_buffers) {
        return refuse(call, HEFT_ERR_ARGUMENT, "%s view of buffer %u, the tape has %zu", role,
                      (unsigned)view->buffer, tape->n_buffers);
    }
    const heft_buffer_info_t *buffer = &tape->buffers[view->buffer];
    const heft__label_t label = heft__tape_label(tape, view->buffer);
    if (view->rank < 0 || view->rank > HEFT_MAX_DIMS) {
        return refuse(call, HEFT_ERR_ARGUMENT, "%s view of %s has rank %d, at most %d", role,
                      label.text, (int)view->rank, HEFT_MAX_DIMS);
    }
    int64_t count = 1;
    for (int k = 0; k < view->rank; k++) {
        if (view->extent[k] < 0 || !heft__mul(count, view->extent[k], &count)) {
            return refuse(call, HEFT_ERR_ARGUMENT, "%s view of %s: extent %lld in dimension %d",
                          role, label.text, (long long)view->extent[k], k);
        }
    }
    if (count == 0) {
        return HEFT_OK; /* touches nothing, wherever it stands */
    }
    int64_t first;
    int64_t last;
    if (!get_bounds(view, &first, &last)) {
        return refuse(call, HEFT_ERR_OVERFLOW, "%s view of %s overflows 2^63 elements", role,
                      label.text);
    }
    if (first < 0 || last >= buffer->n_elems) {
        return refuse(call, HEFT_ERR_ARGUMENT,
                      "%s view of %s reaches elements %lld to %lld, it has %lld", role, label.text,
                      (long long)first, (long long)last, (long long)buffer->n_elems);
    }
    return HEFT_OK;
}

static heft_status_t check_dst(const call_t *call, const heft_view_t *dst,
                               heft__region_t *region_out)
{
    heft_status_t status = check_view(call, dst, "destination");
    if (status != HEFT_OK) {
        return status;
    }
    const heft_buffer_info_t *buffer = &call->tape->buffers[dst->buffer];
    if (buffer->kind == HEFT_BUFFER_SOURCE) {
        return refuse(call, HEFT_ERR_ARGUMENT, "writes to %s",
                      heft__tape_label(call->tape, dst->buffer).text);
    }
    heft_error_t why = HEFT_ERROR_INIT;
    status = heft__region_from_view(dst, region_out, &why);
    if (status == HEFT_ERR_NOMEM) {
        return nomem(call, 0);
    }
    return status == HEFT_OK ? HEFT_OK
                             : refuse(call, status, "%s: %s",
                                      heft__tape_label(call->tape, dst->buffer).text, why.message);
}

static heft_status_t check_src(const call_t *call, const heft_view_t *dst, const heft_view_t *src)
{
    heft_status_t status = check_view(call, src, "source");
    if (status != HEFT_OK) {
        return status;
    }
    const heft__label_t to = heft__tape_label(call->tape, dst->buffer);
    const heft__label_t from = heft__tape_label(call->tape, src->buffer);
    if (dst->rank != src->rank) {
        return refuse(call, HEFT_ERR_ARGUMENT, "view of %s has rank %d, of %s %d", to.text,
                      (int)dst->rank, from.text, (int)src->rank);
    }
    for (int k = 0; k < dst->rank; k++) {
        if (dst->extent[k] != src->extent[k]) {
            return refuse(call, HEFT_ERR_ARGUMENT, "dimension %d: extent %lld in %s, %lld in %s", k,
                          (long long)dst->extent[k], to.text, (long long)src->extent[k], from.text);
        }
    }
    return HEFT_OK;
}

/* ---- storing ---- */

static heft__tape_view_t *store_views(const call_t *call, const heft_view_t *views, uint32_t n)
{
    heft__arena_t *arena = &call->tape->arena;
    heft__tape_view_t *out = heft__arena_alloc(arena, n * sizeof *out);
    for (uint32_t i = 0; i < n && out != NULL; i++) {
        size_t rank = (size_t)views[i].rank;
        int64_t *v = heft__arena_alloc(arena, 2 * rank * sizeof *v);
        if (v == NULL) {
            return NULL;
        }
        memcpy(v, views[i].extent, rank * sizeof *v);
        memcpy(v + rank, views[i].stride, rank * sizeof *v);
        out[i] = (heft__tape_view_t){ .buffer = views[i].buffer,
                                      .rank = views[i].rank,
                                      .offset = views[i].offset,
                                      .extent = v,
                                      .stride = v + rank };
    }
    return out;
}

/* The note, one copy for all writes that have it. */
static const char *store_note(const call_t *call)
{
    heft_tape_t *tape = call->tape;
    if (call->note == NULL || call->note[0] == '\0') {
        return "";
    }
    if (tape->n_writes > 0 && strcmp(tape->writes[tape->n_writes - 1].note, call->note) == 0) {
        return tape->writes[tape->n_writes - 1].note;
    }
    size_t len = strlen(call->note);
    uint32_t first = heft__map_get(&tape->notes, call->note, len);
    if (first != HEFT__MAP_NONE) {
        return tape->writes[first].note;
    }
    char *note = heft__arena_strndup(&tape->arena, call->note, len);
    if (note == NULL ||
        heft__map_put(&tape->notes, note, len, (uint32_t)tape->n_writes) != HEFT_OK) {
        return NULL;
    }
    return note;
}

/* Complete the write with note and views, and append it. */
static heft_status_t append(const call_t *call, heft__write_t *write, const heft_view_t *dsts,
                            const heft_view_t *srcs, const heft__program_t *program)
{
    heft_tape_t *tape = call->tape;
    if (tape->n_writes >= UINT32_MAX - 1) {
        return refuse(call, HEFT_ERR_LIMIT, "too many writes in one tape");
    }
    void *items = tape->writes;
    if (!heft__grow(&items, &tape->cap_writes, tape->n_writes + 1, sizeof *tape->writes)) {
        return nomem(call, sizeof *tape->writes);
    }
    tape->writes = items;
    write->n_ops = program != NULL ? program->n_ops : 0;
    write->dsts = store_views(call, dsts, write->n_dsts);
    write->srcs = store_views(call, srcs, write->n_srcs);
    heft_op_t *ops = heft__arena_alloc(&tape->arena, write->n_ops * sizeof *ops);
    if (write->dsts == NULL || write->srcs == NULL || ops == NULL) {
        return nomem(call, sizeof *write);
    }
    if (write->n_ops > 0) {
        memcpy(ops, program->ops, write->n_ops * sizeof *ops);
    }
    write->ops = ops;
    /* last, since it remembers the number of this write */
    write->note = store_note(call);
    if (write->note == NULL) {
        return nomem(call, sizeof *write);
    }
    tape->writes[tape->n_writes++] = *write;
    return HEFT_OK;
}

/* ---- the kinds of writes ---- */

static heft_status_t record_map(const call_t *call, heft__write_t *write, const heft_view_t *dst,
                                const heft_view_t *srcs, const heft_op_t *ops, uint32_t n_ops)
{
    heft__region_t region;
    heft_dtype_t dtypes[HEFT_MAX_SOURCES] = { HEFT_DTYPE_NONE };
    heft_status_t status = check_dst(call, dst, &region);
    for (uint32_t j = 0; j < write->n_srcs && status == HEFT_OK; j++) {
        status = check_src(call, dst, &srcs[j]);
        if (status == HEFT_OK) {
            dtypes[j] = call->tape->buffers[srcs[j].buffer].dtype;
        }
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_error_t why = HEFT_ERROR_INIT;
    heft__program_t program;
    const heft_buffer_info_t *buffer = &call->tape->buffers[dst->buffer];
    status = heft__program_check(ops, n_ops, dtypes, write->n_srcs, buffer->dtype, &program, &why);
    if (status != HEFT_OK) {
        return refuse(call, status, "%s: %s", heft__tape_label(call->tape, dst->buffer).text,
                      why.message);
    }
    write->n_dsts = 1;
    write->op = "";
    return append(call, write, dst, srcs, &program);
}

heft_status_t heft_tape_copy(heft_tape_t *tape, const heft_view_t *dst, const heft_view_t *src,
                             const char *note, heft_error_t *err)
{
    const call_t call = { .tape = tape, .note = note, .err = err };
    heft__write_t write = { .kind = HEFT_WRITE_COPY, .n_srcs = 1 };
    const heft_op_t load = { .code = HEFT_OP_LOAD, .arg = 0 };
    return record_map(&call, &write, dst, src, &load, 1);
}

heft_status_t heft_tape_fill(heft_tape_t *tape, const heft_view_t *dst, uint64_t bits,
                             const char *note, heft_error_t *err)
{
    const call_t call = { .tape = tape, .note = note, .err = err };
    heft__write_t write = { .kind = HEFT_WRITE_FILL, .n_srcs = 0 };
    heft_status_t status = check_view(&call, dst, "destination");
    if (status != HEFT_OK) {
        return status;
    }
    const heft_op_t constant = { .code = HEFT_OP_CONST,
                                 .dtype = (uint8_t)tape->buffers[dst->buffer].dtype,
                                 .imm_bits = bits };
    return record_map(&call, &write, dst, NULL, &constant, 1);
}

heft_status_t heft_tape_map(heft_tape_t *tape, const heft_view_t *dst, const heft_view_t *srcs,
                            uint32_t n_srcs, const heft_op_t *ops, uint32_t n_ops, const char *note,
                            heft_error_t *err)
{
    const call_t call = { .tape = tape, .note = note, .err = err };
    heft__write_t write = { .kind = HEFT_WRITE_MAP, .n_srcs = n_srcs };
    if (n_srcs > HEFT_MAX_SOURCES) {
        return refuse(&call, HEFT_ERR_LIMIT, "%u source views, at most %d", (unsigned)n_srcs,
                      HEFT_MAX_SOURCES);
    }
    return record_map(&call, &write, dst, srcs, ops, n_ops);
}

/* Destinations of one opaque write must not share elements. */
static heft_status_t check_apart(const call_t *call, const heft_view_t *dsts,
                                 const heft__region_t *regions, uint32_t n)
{
    for (uint32_t j = 0; j + 1 < n; j++) {
        bool meet = false;
        if (dsts[j].buffer != dsts[n - 1].buffer) {
            continue;
        }
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = heft__region_overlaps(&regions[j], &regions[n - 1], &meet, &why);
        if (status != HEFT_OK) {
            return refuse(call, status, "%s", why.message);
        }
        if (meet) {
            return refuse(call, HEFT_ERR_ARGUMENT, "destinations %u and %u share elements of %s",
                          (unsigned)j, (unsigned)(n - 1),
                          heft__tape_label(call->tape, dsts[j].buffer).text);
        }
    }
    return HEFT_OK;
}

static heft_status_t check_opaque_dsts(const call_t *call, const heft_view_t *dsts, uint32_t n_dsts)
{
    heft__region_t *regions = heft__calloc(n_dsts, sizeof *regions);
    if (regions == NULL) {
        return nomem(call, n_dsts * sizeof *regions);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n_dsts && status == HEFT_OK; i++) {
        status = check_dst(call, &dsts[i], &regions[i]);
        if (status == HEFT_OK) {
            status = check_apart(call, dsts, regions, i + 1);
        }
    }
    heft__free(regions);
    return status;
}

/* Outputs are whole buffers in order, so that whoever runs the kernel need not look at views. */
static bool is_whole(const heft_tape_t *tape, const heft_view_t *view)
{
    int64_t count = 1;
    for (int k = view->rank; k > 0; k--) {
        if (view->extent[k - 1] != 1 && view->stride[k - 1] != count) {
            return false;
        }
        count *= view->extent[k - 1];
    }
    return view->offset == 0 && count == tape->buffers[view->buffer].n_elems;
}

static heft__known_operand_t operand_of(const heft_tape_t *tape, const heft_view_t *view)
{
    return (heft__known_operand_t){ .dtype = tape->buffers[view->buffer].dtype,
                                    .rank = view->rank,
                                    .extent = view->extent };
}

static heft_status_t check_known(const call_t *call, const char *op, const heft_view_t *dsts,
                                 uint32_t n_dsts, const heft_view_t *srcs, uint32_t n_srcs)
{
    heft__known_operand_t to[HEFT_MAX_SOURCES];
    heft__known_operand_t from[HEFT_MAX_SOURCES];
    heft__known_t known;
    heft_error_t why = HEFT_ERROR_INIT;
    heft_status_t status = heft__known_parse(op, &known, &why);
    for (uint32_t i = 0; i < n_dsts && i < HEFT_MAX_SOURCES; i++) {
        to[i] = operand_of(call->tape, &dsts[i]);
        if (status == HEFT_OK && !is_whole(call->tape, &dsts[i])) {
            status =
                heft__error_set(&why, HEFT_ERR_ARGUMENT,
                                "output %u is a part of %s: write a whole temporary and copy",
                                (unsigned)i, heft__tape_label(call->tape, dsts[i].buffer).text);
        }
    }
    for (uint32_t i = 0; i < n_srcs && i < HEFT_MAX_SOURCES; i++) {
        from[i] = operand_of(call->tape, &srcs[i]);
    }
    if (status == HEFT_OK) {
        status = heft__known_check(&known, to, n_dsts, from, n_srcs, NULL, &why);
    }
    return status == HEFT_OK ? HEFT_OK : refuse(call, status, "%s", why.message);
}

heft_status_t heft_tape_opaque(heft_tape_t *tape, const char *op, const heft_view_t *dsts,
                               uint32_t n_dsts, const heft_view_t *srcs, uint32_t n_srcs,
                               const char *note, heft_error_t *err)
{
    const call_t call = { .tape = tape, .note = note, .err = err };
    heft__write_t write = { .kind = HEFT_WRITE_OPAQUE, .n_dsts = n_dsts, .n_srcs = n_srcs };
    if (op == NULL || op[0] == '\0' || n_dsts == 0) {
        return refuse(&call, HEFT_ERR_ARGUMENT,
                      "an opaque write needs a name and a destination, it has %s and %u",
                      op == NULL || op[0] == '\0' ? "none" : op, (unsigned)n_dsts);
    }
    heft_status_t status = check_opaque_dsts(&call, dsts, n_dsts);
    for (uint32_t i = 0; i < n_srcs && status == HEFT_OK; i++) {
        status = check_view(&call, &srcs[i], "source");
    }
    if (status == HEFT_OK && heft__known_claims(op)) {
        status = check_known(&call, op, dsts, n_dsts, srcs, n_srcs);
    }
    if (status != HEFT_OK) {
        return status;
    }
    write.op = heft__arena_strndup(&tape->arena, op, strlen(op));
    if (write.op == NULL) {
        return nomem(&call, strlen(op) + 1);
    }
    return append(&call, &write, dsts, srcs, NULL);
}

heft_status_t heft__tape_repeat(heft_tape_t *tape, const heft__write_t *write, const uint32_t *ids,
                                heft_error_t *err)
{
    const call_t call = { .tape = tape, .note = write->note, .err = err };
    const uint32_t n = write->n_dsts + write->n_srcs;
    heft__write_t copy = {
        .kind = write->kind, .n_dsts = write->n_dsts, .n_srcs = write->n_srcs, .op = ""
    };
    heft__program_t program = { .n_ops = write->n_ops };
    heft_view_t *views = heft__calloc((size_t)n + 1, sizeof *views);
    if (views == NULL) {
        return nomem(&call, n * sizeof *views);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool is_dst = i < write->n_dsts;
        views[i] =
            heft__tape_view_expand(is_dst ? &write->dsts[i] : &write->srcs[i - write->n_dsts]);
        views[i].buffer = ids[views[i].buffer];
    }
    memcpy(program.ops, write->ops, write->n_ops * sizeof *write->ops);
    if (write->op[0] != '\0') {
        copy.op = heft__arena_strndup(&tape->arena, write->op, strlen(write->op));
    }
    heft_status_t status = copy.op != NULL ? HEFT_OK : nomem(&call, strlen(write->op) + 1);
    if (status == HEFT_OK) {
        status =
            append(&call, &copy, views, views + write->n_dsts, write->n_ops > 0 ? &program : NULL);
    }
    heft__free(views);
    return status;
}

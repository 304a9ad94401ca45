/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a tape. A line is read from left to right without going back; whatever it names by
 * number is checked against the counts, and everything else about the write by the tape that
 * records it.
 */
#include "format/tape_line.h"

#include <string.h>

/* ---- writing ---- */

static void put_numbers(heft__text_t *out, const char *open, const int64_t *v, int32_t n)
{
    heft__text_put(out, open);
    for (int32_t k = 0; k < n; k++) {
        heft__text_printf(out, k > 0 ? ",%lld" : "%lld", (long long)v[k]);
    }
}

static bool is_row_major(const heft__tape_view_t *view)
{
    int64_t run = 1;
    for (int32_t k = view->rank; k-- > 0;) {
        if (view->stride[k] != run) {
            return false;
        }
        run *= view->extent[k];
    }
    return true;
}

static void put_view(heft__text_t *out, const heft__tape_words_t *words,
                     const heft__tape_view_t *view, bool has_extents)
{
    uint32_t number = view->buffer;
    char kind = 's';
    if (number >= words->n_sources + words->n_params) {
        kind = 't';
        number -= words->n_sources + words->n_params;
    } else if (number >= words->n_sources) {
        kind = 'p';
        number -= words->n_sources;
    }
    heft__text_printf(out, "%c%u", kind, number);
    if (view->offset != 0) {
        heft__text_printf(out, "+%lld", (long long)view->offset);
    }
    if (has_extents) {
        put_numbers(out, "[", view->extent, view->rank);
        heft__text_put(out, "]");
    }
    if (!is_row_major(view)) {
        put_numbers(out, "*", view->stride, view->rank);
    }
}

static const struct {
    heft_op_code_t code;
    const char *name;
} op_names[] = {
    { HEFT_OP_LOAD, "load" },      { HEFT_OP_CONST, "const" }, { HEFT_OP_CAST, "cast" },
    { HEFT_OP_ADD_IMM, "add" },    { HEFT_OP_MUL_IMM, "mul" }, { HEFT_OP_DIV_IMM, "div" },
    { HEFT_OP_NEG_EXP, "negexp" }, { HEFT_OP_MUL, "product" }, { HEFT_OP_BITS, "bits" },
};
enum { N_OP_NAMES = sizeof op_names / sizeof op_names[0] };

static bool has_imm(heft_op_code_t code)
{
    return code == HEFT_OP_ADD_IMM || code == HEFT_OP_MUL_IMM || code == HEFT_OP_DIV_IMM;
}

static void put_op(heft__text_t *out, const heft_op_t *op)
{
    const char *name = "";
    for (size_t i = 0; i < N_OP_NAMES; i++) {
        name = (uint8_t)op_names[i].code == op->code ? op_names[i].name : name;
    }
    heft__text_printf(out, " %s.", name);
    if (op->code == HEFT_OP_LOAD) {
        heft__text_printf(out, "%u", (unsigned)op->arg);
        return;
    }
    uint64_t bits = op->imm_bits;
    heft__text_put(out, heft_dtype_get_name((heft_dtype_t)op->dtype));
    if (has_imm((heft_op_code_t)op->code)) {
        memcpy(&bits, &op->imm, sizeof bits);
    } else if (op->code == HEFT_OP_BITS) {
        bits = op->arg;
    } else if (op->code != HEFT_OP_CONST) {
        return;
    }
    heft__text_printf(out, ".%llx", (unsigned long long)bits);
}

/* A copy says no program: it loads its source, and casts where dtypes differ. */
static bool is_copy(const heft__write_t *write)
{
    return write->n_srcs == 1 &&
           (write->n_ops == 0 || (write->n_ops == 2 && write->ops[0].code == HEFT_OP_LOAD &&
                                  write->ops[1].code == HEFT_OP_CAST));
}

static bool is_fill(const heft__write_t *write)
{
    return write->n_srcs == 0 && write->n_ops == 1 && write->ops[0].code == HEFT_OP_CONST;
}

static void put_srcs(heft__text_t *out, const heft__tape_words_t *words, const heft__write_t *write,
                     bool has_extents)
{
    heft__text_put(out, " <");
    for (uint32_t i = 0; i < write->n_srcs; i++) {
        heft__text_put(out, " ");
        put_view(out, words, &write->srcs[i], has_extents);
    }
}

void heft__tape_line_put(heft__text_t *out, const heft__tape_words_t *words,
                         const heft__write_t *write, uint32_t op)
{
    for (uint32_t i = 0; i < write->n_dsts; i++) {
        heft__text_put(out, i > 0 ? " " : "");
        put_view(out, words, &write->dsts[i], true);
    }
    if (write->kind == HEFT_WRITE_OPAQUE) {
        heft__text_printf(out, " !%u", op);
        put_srcs(out, words, write, true);
        return;
    }
    if (is_fill(write)) {
        heft__text_printf(out, " = %llx", (unsigned long long)write->ops[0].imm_bits);
        return;
    }
    put_srcs(out, words, write, false);
    if (is_copy(write)) {
        return;
    }
    heft__text_put(out, " :");
    for (uint32_t i = 0; i < write->n_ops; i++) {
        put_op(out, &write->ops[i]);
    }
    heft__text_put(out, write->n_ops == 0 ? " load.0" : "");
}

void heft__tape_line_put_note(heft__text_t *out, uint32_t note)
{
    heft__text_printf(out, " #%u", note);
}

/* ---- reading ---- */

typedef struct line {
    const char *begin;
    const char *at;
    const heft__tape_words_t *words;
    heft__tape_scratch_t *scratch;
    heft_tape_t *tape;
    heft_error_t *err;
    uint32_t n_dsts;
    uint32_t n_srcs;
} line_t;

static heft_status_t expected(const line_t *l, const char *what)
{
    return heft__error_set(l->err, HEFT_ERR_FORMAT, "byte %zu of \"%.100s\": %s expected",
                           (size_t)(l->at - l->begin), l->begin, what);
}

static bool skip(line_t *l, const char *text)
{
    size_t n = strlen(text);
    if (strncmp(l->at, text, n) != 0) {
        return false;
    }
    l->at += n;
    return true;
}

/* Decimal digits without a leading zero. */
static bool read_u63(line_t *l, int64_t *out)
{
    int64_t value = 0;
    const char *p = l->at;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (!heft__mul(value, 10, &value) || !heft__add(value, *p - '0', &value)) {
            return false;
        }
    }
    if (p == l->at || (*l->at == '0' && p > l->at + 1)) {
        return false;
    }
    l->at = p;
    *out = value;
    return true;
}

static bool read_i63(line_t *l, int64_t *out)
{
    bool is_negative = skip(l, "-");
    if (!read_u63(l, out) || (is_negative && *out == 0)) {
        return false;
    }
    *out = is_negative ? -*out : *out;
    return true;
}

/* A number below n. */
static bool read_index(line_t *l, uint32_t n, uint32_t *out)
{
    int64_t value;
    if (!read_u63(l, &value) || value >= (int64_t)n) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool read_hex(line_t *l, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t value = 0;
    const char *p = l->at;
    const char *digit;
    for (; *p != '\0' && (digit = strchr(digits, *p)) != NULL && p - l->at < 16; p++) {
        value = value << 4 | (uint64_t)(digit - digits);
    }
    if (p == l->at || (*l->at == '0' && p > l->at + 1)) {
        return false;
    }
    l->at = p;
    *out = value;
    return true;
}

static heft_status_t read_buffer(line_t *l, heft_view_t *view)
{
    const heft__tape_words_t *words = l->words;
    uint32_t first = 0;
    uint32_t n = words->n_sources;
    if (*l->at == 'p') {
        first = words->n_sources;
        n = words->n_params;
    } else if (*l->at == 't') {
        first = words->n_sources + words->n_params;
        n = words->n_temps;
    } else if (*l->at != 's') {
        return expected(l, "a view, which begins with s, p or t,");
    }
    l->at++;
    if (!read_index(l, n, &view->buffer)) {
        return expected(l, "the number of a buffer that is there");
    }
    view->buffer += first;
    return HEFT_OK;
}

/* Up to HEFT_MAX_DIMS numbers with commas between. */
static bool read_extents(line_t *l, heft_view_t *view)
{
    view->rank = 0;
    if (skip(l, "]")) {
        return true;
    }
    do {
        if (view->rank == HEFT_MAX_DIMS || !read_u63(l, &view->extent[view->rank])) {
            return false;
        }
        view->rank++;
    } while (skip(l, ","));
    return skip(l, "]");
}

static bool read_strides(line_t *l, heft_view_t *view)
{
    for (int32_t k = 0; k < view->rank; k++) {
        if ((k > 0 && !skip(l, ",")) || !read_i63(l, &view->stride[k])) {
            return false;
        }
    }
    return true;
}

/* False when the extents are no shape. */
static bool fill_strides(heft_view_t *view)
{
    int64_t run = 1;
    for (int32_t k = view->rank; k-- > 0;) {
        view->stride[k] = run;
        if (!heft__mul(run, view->extent[k], &run)) {
            return false;
        }
    }
    return true;
}

/* like: whose extents it has; NULL: it gives its own. */
static heft_status_t read_view(line_t *l, const heft_view_t *like, heft_view_t *view)
{
    *view = (heft_view_t){ .rank = 0 };
    heft_status_t status = read_buffer(l, view);
    if (status != HEFT_OK) {
        return status;
    }
    if (skip(l, "+") && (!read_u63(l, &view->offset) || view->offset == 0)) {
        return expected(l, "an offset in elements");
    }
    if (like != NULL) {
        view->rank = like->rank;
        memcpy(view->extent, like->extent, sizeof view->extent);
    } else if (!skip(l, "[") || !read_extents(l, view)) {
        return expected(l, "[, extents (12 at most) and ]");
    }
    if (!fill_strides(view)) {
        return expected(l, "extents whose product is below 2^63");
    }
    if (skip(l, "*") && !read_strides(l, view)) {
        return expected(l, "a stride for each extent");
    }
    return HEFT_OK;
}

static bool is_at_view(const char *at)
{
    return *at == 's' || *at == 'p' || *at == 't';
}

static heft_status_t add_view(line_t *l, const heft_view_t *like, heft_view_t **views, size_t *cap,
                              uint32_t *n)
{
    heft_view_t view;
    void *items = *views;
    heft_status_t status = read_view(l, like, &view);
    if (status != HEFT_OK) {
        return status;
    }
    if (!heft__grow(&items, cap, (size_t)*n + 1, sizeof view)) {
        return heft__error_nomem(l->err, sizeof view);
    }
    *views = items;
    (*views)[(*n)++] = view;
    return HEFT_OK;
}

static heft_status_t read_dsts(line_t *l)
{
    heft__tape_scratch_t *s = l->scratch;
    heft_status_t status;
    do {
        status = add_view(l, NULL, &s->dsts, &s->cap_dsts, &l->n_dsts);
    } while (status == HEFT_OK && skip(l, " ") && is_at_view(l->at));
    return status;
}

/* Views up to the end, or what may follow them. */
static heft_status_t read_srcs(line_t *l, const heft_view_t *like)
{
    if (!skip(l, "<")) {
        return expected(l, "<");
    }
    heft__tape_scratch_t *s = l->scratch;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && *l->at == ' ' && is_at_view(l->at + 1)) {
        l->at++;
        status = add_view(l, like, &s->srcs, &s->cap_srcs, &l->n_srcs);
    }
    return status;
}

static heft_status_t read_note(line_t *l, const char **note)
{
    uint32_t i = 0;
    *note = NULL;
    if (skip(l, " #")) {
        if (!read_index(l, l->words->n_notes, &i)) {
            return expected(l, "the number of a note that is there");
        }
        *note = l->words->notes[i];
    }
    return *l->at == '\0' ? HEFT_OK : expected(l, "the end");
}

/* A word of lower-case letters, up to a dot. */
static bool read_code(line_t *l, uint8_t *code)
{
    for (size_t i = 0; i < N_OP_NAMES; i++) {
        size_t n = strlen(op_names[i].name);
        if (strncmp(l->at, op_names[i].name, n) == 0 && l->at[n] == '.') {
            l->at += n + 1;
            *code = (uint8_t)op_names[i].code;
            return true;
        }
    }
    return false;
}

static bool read_dtype(line_t *l, uint8_t *out)
{
    char name[16];
    size_t n = strcspn(l->at, ". ");
    if (n == 0 || n >= sizeof name) {
        return false;
    }
    memcpy(name, l->at, n);
    name[n] = '\0';
    heft_dtype_t dtype = heft_dtype_from_name(name);
    if (dtype == HEFT_DTYPE_NONE || strcmp(heft_dtype_get_name(dtype), name) != 0) {
        return false;
    }
    l->at += n;
    *out = (uint8_t)dtype;
    return true;
}

static heft_status_t read_op(line_t *l, heft_op_t *op)
{
    uint32_t arg = 0;
    uint64_t bits = 0;
    *op = (heft_op_t){ .code = 0 };
    if (!read_code(l, &op->code)) {
        return expected(l, "an operation and a dot");
    }
    if (op->code == HEFT_OP_LOAD) {
        bool is_good = read_index(l, HEFT_MAX_SOURCES, &arg);
        op->arg = (uint16_t)arg;
        return is_good ? HEFT_OK : expected(l, "the number of a source");
    }
    if (!read_dtype(l, &op->dtype)) {
        return expected(l, "a dtype");
    }
    bool wants_imm = has_imm((heft_op_code_t)op->code);
    bool wants_byte = op->code == HEFT_OP_BITS;
    if (!wants_imm && !wants_byte && op->code != HEFT_OP_CONST) {
        return HEFT_OK;
    }
    if (!skip(l, ".") || !read_hex(l, &bits)) {
        return expected(l, "a dot and bits in hex digits");
    }
    if (wants_byte && bits > 7) {
        return expected(l, "a byte of an element: 0 to 7");
    }
    if (wants_imm) {
        memcpy(&op->imm, &bits, sizeof bits);
    } else if (wants_byte) {
        op->arg = (uint16_t)bits;
    } else {
        op->imm_bits = bits;
    }
    return HEFT_OK;
}

static heft_status_t read_map(line_t *l)
{
    heft_op_t ops[HEFT_MAX_OPS];
    uint32_t n_ops = 0;
    const char *note;
    if (l->n_srcs > HEFT_MAX_SOURCES) {
        return expected(l, "at most 4 sources");
    }
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && *l->at == ' ' && l->at[1] != '#') {
        if (n_ops == HEFT_MAX_OPS) {
            return expected(l, "at most 16 operations");
        }
        l->at++;
        status = read_op(l, &ops[n_ops++]);
    }
    status = status == HEFT_OK ? read_note(l, &note) : status;
    return status == HEFT_OK ? heft_tape_map(l->tape, l->scratch->dsts, l->scratch->srcs, l->n_srcs,
                                             ops, n_ops, note, l->err)
                             : status;
}

static heft_status_t read_opaque(line_t *l)
{
    uint32_t op = 0;
    const char *note;
    if (!read_index(l, l->words->n_ops, &op)) {
        return expected(l, "the number of an operation that is there");
    }
    if (!skip(l, " ")) {
        return expected(l, "a blank and <");
    }
    heft_status_t status = read_srcs(l, NULL);
    status = status == HEFT_OK ? read_note(l, &note) : status;
    return status == HEFT_OK
               ? heft_tape_opaque(l->tape, l->words->ops[op], l->scratch->dsts, l->n_dsts,
                                  l->scratch->srcs, l->n_srcs, note, l->err)
               : status;
}

static heft_status_t read_fill(line_t *l)
{
    uint64_t bits = 0;
    const char *note;
    if (!read_hex(l, &bits)) {
        return expected(l, "bits in hex digits");
    }
    heft_status_t status = read_note(l, &note);
    return status == HEFT_OK ? heft_tape_fill(l->tape, l->scratch->dsts, bits, note, l->err)
                             : status;
}

static heft_status_t read_copy_or_map(line_t *l)
{
    const char *note;
    heft_status_t status = read_srcs(l, &l->scratch->dsts[0]);
    if (status != HEFT_OK) {
        return status;
    }
    if (skip(l, " :")) {
        return read_map(l);
    }
    if (l->n_srcs != 1) {
        return expected(l, "one source, or : and a program");
    }
    status = read_note(l, &note);
    return status == HEFT_OK
               ? heft_tape_copy(l->tape, l->scratch->dsts, l->scratch->srcs, note, l->err)
               : status;
}

static heft_status_t read_write(line_t *l)
{
    heft_status_t status = read_dsts(l);
    if (status != HEFT_OK) {
        return status;
    }
    if (skip(l, "!")) {
        return read_opaque(l);
    }
    if (l->n_dsts > 1) {
        return expected(l, "one destination, or ! and an operation");
    }
    return skip(l, "= ") ? read_fill(l) : read_copy_or_map(l);
}

heft_status_t heft__tape_line_read(const char *line, const heft__tape_words_t *words,
                                   heft__tape_scratch_t *scratch, heft_tape_t *tape,
                                   heft_error_t *err)
{
    line_t l = {
        .begin = line, .at = line, .words = words, .scratch = scratch, .tape = tape, .err = err
    };
    return read_write(&l);
}

void heft__tape_scratch_fini(heft__tape_scratch_t *scratch)
{
    heft__free(scratch->dsts);
    heft__free(scratch->srcs);
    *scratch = (heft__tape_scratch_t){ .dsts = NULL };
}

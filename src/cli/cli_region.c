/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces for people.
 *
 * A piece's dimensions are in normal form (merged where contiguous), so one of them may run through
 * several axes of the tensor: it is walked from its innermost axis outwards, and must fill an axis
 * before it goes on to the next. What does not come out as a box is shown as a flat range.
 */
#include "cli/cli_region.h"

#include <inttypes.h>
#include <string.h>

/* ---- regions ---- */

/* Strides of a contiguous tensor. */
static void strides_of(const heft_shape_t *shape, int64_t *strides)
{
    int64_t stride = 1;
    for (int k = shape->rank - 1; k >= 0; k--) {
        strides[k] = stride;
        stride *= shape->extent[k] > 0 ? shape->extent[k] : 1;
    }
}

/* Axes of extent 1 share a stride with an inner one; the innermost is the one that moves. */
static int axis_of(const heft_shape_t *shape, const int64_t *strides, int64_t step)
{
    for (int k = 0; k < shape->rank; k++) {
        if (shape->extent[k] > 1 && strides[k] <= step) {
            return k;
        }
    }
    return -1;
}

/* One dimension of `n` elements at distance `step` (> 0). */
static bool walk(const heft_shape_t *shape, const int64_t *strides, int64_t n, int64_t step,
                 cli_region_t *r)
{
    int axis = axis_of(shape, strides, step);
    if (axis < 0 || step % strides[axis] != 0) {
        return false;
    }
    int64_t factor = step / strides[axis];
    while (n > 1) {
        if (axis < 0 || r->end[axis] - r->begin[axis] != 1) {
            return false; /* beyond the tensor, or an axis that another dimension has taken */
        }
        int64_t room = (shape->extent[axis] - 1 - r->begin[axis]) / factor + 1;
        int64_t here = n < room ? n : room;
        bool goes_on = n > here;
        if (goes_on &&
            (r->begin[axis] != 0 || shape->extent[axis] % factor != 0 || n % here != 0)) {
            return false;
        }
        r->step[axis] = factor;
        r->end[axis] = r->begin[axis] + (here - 1) * factor + 1;
        n /= here;
        factor = 1;
        axis--;
    }
    return true;
}

/* From one element on. */
static void begin_box(const heft_shape_t *shape, const int64_t *strides, cli_region_t *r)
{
    int64_t rest = r->flat_begin;
    for (int k = 0; k < shape->rank; k++) {
        r->begin[k] = strides[k] > 0 ? rest / strides[k] : 0;
        rest -= r->begin[k] * strides[k];
        r->end[k] = r->begin[k] + 1;
        r->step[k] = 1;
    }
}

void cli_region_find(const heft_shape_t *shape, int32_t rank, const int64_t *extent,
                     const int64_t *stride, int64_t offset, cli_region_t *region_out)
{
    cli_region_t r = { .is_box = true, .n_dims = shape->rank };
    int64_t strides[HEFT_MAX_DIMS];
    strides_of(shape, strides);
    r.flat_begin = offset;
    r.flat_end = offset + 1;
    for (int k = 0; k < rank; k++) {
        int64_t reach = (extent[k] - 1) * stride[k];
        r.flat_begin += reach < 0 ? reach : 0;
        r.flat_end += reach > 0 ? reach : 0;
    }
    int64_t n_elems = 1;
    begin_box(shape, strides, &r);
    for (int k = 0; k < rank; k++) {
        int64_t step = stride[k] < 0 ? -stride[k] : stride[k];
        n_elems *= step != 0 ? extent[k] : 1;
        r.is_box =
            r.is_box && (extent[k] <= 1 || step == 0 || walk(shape, strides, extent[k], step, &r));
    }
    if (!r.is_box && n_elems == r.flat_end - r.flat_begin) { /* all of it, in another order */
        begin_box(shape, strides, &r);
        r.is_box = walk(shape, strides, n_elems, 1, &r);
    }
    *region_out = r;
}

void cli_region_text(const cli_region_t *r, char *out, size_t n)
{
    if (!r->is_box) {
        (void)snprintf(out, n, "flat [%" PRId64 ":%" PRId64 "]", r->flat_begin, r->flat_end);
        return;
    }
    size_t at = (size_t)snprintf(out, n, "[");
    for (int k = 0; k < r->n_dims && at < n; k++) {
        const char *comma = k > 0 ? ", " : "";
        int printed = r->end[k] - r->begin[k] == 1
                          ? snprintf(out + at, n - at, "%s%" PRId64, comma, r->begin[k])
                          : snprintf(out + at, n - at, "%s%" PRId64 ":%" PRId64, comma, r->begin[k],
                                     r->end[k]);
        at += printed > 0 ? (size_t)printed : 0;
        if (r->step[k] > 1 && at < n) {
            printed = snprintf(out + at, n - at, ":%" PRId64, r->step[k]);
            at += printed > 0 ? (size_t)printed : 0;
        }
    }
    if (at < n) {
        (void)snprintf(out + at, n - at, "]");
    }
}

/* ---- what a piece does ---- */

static const char *geometry_of(const heft_piece_t *piece)
{
    const heft_piece_src_t *src = &piece->srcs[0];
    bool is_reversed = false;
    bool is_repeated = false;
    bool is_transposed = false;
    for (int k = 0; k < piece->rank; k++) {
        if (piece->extent[k] <= 1) {
            continue;
        }
        is_reversed = is_reversed || src->stride[k] < 0;
        is_repeated = is_repeated || src->stride[k] == 0;
        for (int j = 0; j < k; j++) {
            bool is_dst_down = piece->dst_stride[j] >= piece->dst_stride[k];
            bool is_src_down = src->stride[j] >= src->stride[k];
            is_transposed = is_transposed || (piece->extent[j] > 1 && is_dst_down != is_src_down &&
                                              src->stride[j] > 0 && src->stride[k] > 0);
        }
    }
    return is_repeated     ? "repeated"
           : is_reversed   ? "reversed"
           : is_transposed ? "transposed"
                           : "copied";
}

static void put_op(const heft_op_t *op, char *out, size_t n)
{
    const char *dtype = heft_dtype_get_name((heft_dtype_t)op->dtype);
    switch ((heft_op_code_t)op->code) {
    case HEFT_OP_LOAD:
        (void)snprintf(out, n, "load %u", op->arg);
        return;
    case HEFT_OP_CONST:
        (void)snprintf(out, n, "0x%" PRIx64, op->imm_bits);
        return;
    case HEFT_OP_CAST:
        (void)snprintf(out, n, "to %s", dtype);
        return;
    case HEFT_OP_ADD_IMM:
        (void)snprintf(out, n, "+ %g", op->imm);
        return;
    case HEFT_OP_MUL_IMM:
        (void)snprintf(out, n, "* %g", op->imm);
        return;
    case HEFT_OP_DIV_IMM:
        (void)snprintf(out, n, "/ %g", op->imm);
        return;
    case HEFT_OP_NEG_EXP:
        (void)snprintf(out, n, "-exp");
        return;
    case HEFT_OP_MUL:
        (void)snprintf(out, n, "multiply");
        return;
    case HEFT_OP_BITS:
        (void)snprintf(out, n, "byte %u seen as %s", op->arg, dtype);
        return;
    }
    (void)snprintf(out, n, "?");
}

static void describe_move(const heft_piece_t *piece, char *out, size_t n)
{
    if (piece->n_srcs == 0) {
        (void)snprintf(out, n, "filled");
        return;
    }
    size_t at = (size_t)snprintf(out, n, "%s", geometry_of(piece));
    for (uint32_t i = 0; i < piece->n_ops && at < n; i++) {
        if (piece->ops[i].code == HEFT_OP_LOAD && piece->n_srcs == 1) {
            continue;
        }
        char op[48];
        put_op(&piece->ops[i], op, sizeof op);
        int printed = snprintf(out + at, n - at, ", %s", op);
        at += printed > 0 ? (size_t)printed : 0;
    }
}

static uint64_t constant_bits(const heft_piece_t *piece)
{
    for (uint32_t i = 0; i < piece->n_ops; i++) {
        if (piece->ops[i].code == HEFT_OP_CONST) {
            return piece->ops[i].imm_bits;
        }
    }
    return 0;
}

static void describe_source(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece,
                            cli_piece_text_t *text)
{
    if (piece->n_srcs == 0) {
        (void)snprintf(text->constant, sizeof text->constant, "constant 0x%" PRIx64,
                       constant_bits(piece));
        text->source = text->constant;
        text->src[0] = '\0';
        return;
    }
    const heft_piece_src_t *src = &piece->srcs[0];
    heft_tensor_info_t info;
    cli_region_t region;
    if (src->opaque != 0) {
        uint32_t n_opaques = 0;
        const heft_opaque_t *opaques = heft_plan_get_opaques(plan, rank_index, &n_opaques);
        text->source = src->opaque <= n_opaques ? opaques[src->opaque - 1].op : "?";
        (void)snprintf(text->src, sizeof text->src, "output %u", src->source);
        return;
    }
    if (heft_plan_query_source(plan, src->source, &info, NULL) != HEFT_OK) {
        text->source = "?";
        text->src[0] = '\0';
        return;
    }
    text->source = info.name;
    cli_region_find(&info.shape, piece->rank, piece->extent, src->stride, src->offset, &region);
    cli_region_text(&region, text->src, sizeof text->src);
}

void cli_piece_describe(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece,
                        cli_piece_text_t *text_out)
{
    heft_tensor_info_t param = { .name = "?" };
    if (heft_plan_query_param(plan, rank_index, piece->param, &param, NULL) != HEFT_OK) {
        param.name = "?";
    }
    text_out->param = param.name;
    text_out->note = heft_plan_get_piece_note(plan, piece);
    cli_region_find(&param.shape, piece->rank, piece->extent, piece->dst_stride, piece->dst_offset,
                    &text_out->dst_region);
    cli_region_text(&text_out->dst_region, text_out->dst, sizeof text_out->dst);
    describe_move(piece, text_out->move, sizeof text_out->move);
    describe_source(plan, rank_index, piece, text_out);
}

/* ---- rows of a permuted parameter ---- */

/* One dimension goes over rows, or stays within a row. False: it does both. */
static bool goes_over_rows(const heft_piece_t *piece, int k, int64_t row_elems, bool *over_out)
{
    *over_out = piece->dst_stride[k] % row_elems == 0;
    return *over_out || (piece->extent[k] - 1) * piece->dst_stride[k] < row_elems;
}

/* Where in the source that row comes from which is `step` on in dimension dim; dim -1: the first.
 */
static void row_text(const heft_piece_t *piece, const heft_tensor_info_t *source, int64_t row_elems,
                     int dim, int64_t step, cli_row_text_t *out)
{
    int64_t extent[HEFT_MAX_DIMS];
    int64_t stride[HEFT_MAX_DIMS];
    int32_t rank = 0;
    const heft_piece_src_t *src = &piece->srcs[0];
    cli_region_t region;
    for (int k = 0; k < piece->rank; k++) {
        if (piece->dst_stride[k] % row_elems != 0) {
            extent[rank] = piece->extent[k];
            stride[rank++] = src->stride[k];
        }
    }
    const int64_t by = dim >= 0 ? step : 0;
    out->row = (piece->dst_offset + (dim >= 0 ? by * piece->dst_stride[dim] : 0)) / row_elems;
    cli_region_find(&source->shape, rank, extent, stride,
                    src->offset + (dim >= 0 ? by * src->stride[dim] : 0), &region);
    cli_region_text(&region, out->src, sizeof out->src);
}

uint32_t cli_piece_rows(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece,
                        cli_row_text_t *rows_out)
{
    heft_tensor_info_t param;
    heft_tensor_info_t source;
    if (piece->n_srcs != 1 || piece->srcs[0].opaque != 0 ||
        heft_plan_query_param(plan, rank_index, piece->param, &param, NULL) != HEFT_OK ||
        heft_plan_query_source(plan, piece->srcs[0].source, &source, NULL) != HEFT_OK ||
        param.shape.rank < 1 || param.n_elems == 0) {
        return 0;
    }
    const int64_t row_elems = param.n_elems / param.shape.extent[0];
    int dims[HEFT_MAX_DIMS];
    uint32_t n_dims = 0;
    for (int k = piece->rank - 1; k >= 0; k--) {
        bool is_over;
        if (piece->extent[k] <= 1) {
            continue;
        }
        if (!goes_over_rows(piece, k, row_elems, &is_over)) {
            return 0;
        }
        if (is_over) {
            dims[n_dims++] = k;
        }
    }
    if (n_dims < 2) {
        return 0; /* rows in their order, or every nth: the ranges say it */
    }
    uint32_t n = 0;
    row_text(piece, &source, row_elems, -1, 0, &rows_out[n++]);
    for (uint32_t i = 0; i < n_dims && n < CLI_MAX_ROWS; i++) {
        row_text(piece, &source, row_elems, dims[i], 1, &rows_out[n++]);
    }
    return n;
}

/* ---- JSON ---- */

static json_t *integers_json(const int64_t *values, int32_t n)
{
    json_t *array = json_array();
    for (int32_t k = 0; k < n; k++) {
        (void)json_array_append_new(array, json_integer(values[k]));
    }
    return array;
}

static json_t *sources_json(const heft_plan_t *plan, const heft_piece_t *piece)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < piece->n_srcs; i++) {
        const heft_piece_src_t *src = &piece->srcs[i];
        heft_tensor_info_t info = { .name = "" };
        if (src->opaque == 0 && heft_plan_query_source(plan, src->source, &info, NULL) != HEFT_OK) {
            info.name = "";
        }
        (void)json_array_append_new(array,
                                    json_pack("{s:s, s:i, s:I, s:o}", "source", info.name, "opaque",
                                              (int)src->opaque, "offset", (json_int_t)src->offset,
                                              "stride", integers_json(src->stride, piece->rank)));
    }
    return array;
}

json_t *cli_piece_json(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece)
{
    cli_piece_text_t text;
    cli_piece_describe(plan, rank_index, piece, &text);
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:o, s:o}", "param", text.param, "group",
        (int)piece->group, "dst", text.dst, "source", text.source, "src", text.src, "move",
        text.move, "note", text.note, "extent", integers_json(piece->extent, piece->rank),
        "dst_offset", (json_int_t)piece->dst_offset, "dst_stride",
        integers_json(piece->dst_stride, piece->rank), "srcs", sources_json(plan, piece));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of known kernels, and what their operands must be.
 *
 *   heft.fp8_quantise/1(block=1x128x128,scale=deepseek)
 *   heft.mxfp4_unpack/1
 *   heft.bits/1
 */
#include "tape/tape.h"

#include <stdio.h>
#include <string.h>

#define QUANTISE "heft.fp8_quantise/1"
#define UNPACK "heft.mxfp4_unpack/1"
#define BITS "heft.bits/1"

enum { MXFP4_BYTES = 16, MXFP4_VALUES = 32 };

typedef struct rule_name {
    const char *name;
    heft__scale_rule_t rule;
} rule_name_t;

static const rule_name_t rule_names[] = {
    { "deepseek", HEFT__SCALE_DEEPSEEK },
    { "deepgemm", HEFT__SCALE_DEEPGEMM },
    { "transformers", HEFT__SCALE_TRANSFORMERS },
    { "ue8m0", HEFT__SCALE_UE8M0 },
};

bool heft__known_claims(const char *op)
{
    return strncmp(op, HEFT__KNOWN_PREFIX, sizeof HEFT__KNOWN_PREFIX - 1) == 0;
}

heft__scale_rule_t heft__scale_rule_from_name(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof rule_names / sizeof rule_names[0]; i++) {
        if (strlen(rule_names[i].name) == len && memcmp(rule_names[i].name, name, len) == 0) {
            return rule_names[i].rule;
        }
    }
    return 0;
}

/* ---- texts ---- */

static heft_status_t bad_text(const char *op, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_ARGUMENT,
                           "known kernel \"%.100s\": expected " QUANTISE
                           "(block=AxB,scale=deepseek|deepgemm|transformers|ue8m0)",
                           op);
}

/* Moves on over `text`. */
static bool accept(const char **at, const char *text)
{
    size_t n = strlen(text);
    if (strncmp(*at, text, n) != 0) {
        return false;
    }
    *at += n;
    return true;
}

/* Digits without leading zeros, at least 1. */
static bool accept_extent(const char **at, int64_t *extent_out)
{
    int64_t v = 0;
    if (**at < '1' || **at > '9') {
        return false;
    }
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        if (!heft__mul(v, 10, &v) || !heft__add(v, **at - '0', &v)) {
            return false;
        }
    }
    *extent_out = v;
    return true;
}

static bool parse_quantise(const char *at, heft__known_t *known)
{
    known->code = HEFT__KNOWN_FP8_QUANTISE;
    if (!accept(&at, "(block=")) {
        return false;
    }
    do {
        if (known->n_dims == HEFT_MAX_DIMS || !accept_extent(&at, &known->block[known->n_dims++])) {
            return false;
        }
    } while (accept(&at, "x"));
    if (!accept(&at, ",scale=")) {
        return false;
    }
    size_t len = strcspn(at, ")");
    known->rule = heft__scale_rule_from_name(at, len);
    return known->rule != 0 && strcmp(at + len, ")") == 0;
}

heft_status_t heft__known_parse(const char *op, heft__known_t *known_out, heft_error_t *err)
{
    heft__known_t known = { 0 };
    const char *at = op;
    if (strcmp(op, UNPACK) == 0) {
        known.code = HEFT__KNOWN_MXFP4_UNPACK;
    } else if (strcmp(op, BITS) == 0) {
        known.code = HEFT__KNOWN_BITS;
    } else if (accept(&at, QUANTISE) && (*at == '(' || *at == '\0')) {
        if (!parse_quantise(at, &known)) {
            return bad_text(op, err);
        }
    } else {
        return heft__error_set(
            err, HEFT_ERR_UNSUPPORTED,
            "no known kernel \"%.100s\": this heft has " QUANTISE ", " UNPACK " and " BITS, op);
    }
    *known_out = known;
    return HEFT_OK;
}

void heft__known_print(const heft__known_t *known, char text[HEFT__KNOWN_TEXT_BYTES])
{
    if (known->code != HEFT__KNOWN_FP8_QUANTISE) {
        bool is_bits = known->code == HEFT__KNOWN_BITS;
        (void)snprintf(text, HEFT__KNOWN_TEXT_BYTES, "%s", is_bits ? BITS : UNPACK);
        return;
    }
    const char *rule = "";
    for (size_t i = 0; i < sizeof rule_names / sizeof rule_names[0]; i++) {
        rule = rule_names[i].rule == known->rule ? rule_names[i].name : rule;
    }
    size_t at = (size_t)snprintf(text, HEFT__KNOWN_TEXT_BYTES, "%s(block=", QUANTISE);
    for (int k = 0; k < known->n_dims; k++) {
        at += (size_t)snprintf(text + at, HEFT__KNOWN_TEXT_BYTES - at, "%s%lld", k > 0 ? "x" : "",
                               (long long)known->block[k]);
    }
    (void)snprintf(text + at, HEFT__KNOWN_TEXT_BYTES - at, ",scale=%s)", rule);
}

/* ---- operands ---- */

/* "F8_E4M3 [128, 256]" */
typedef struct operand_text {
    char data[160];
} operand_text_t;

static operand_text_t operand_text(heft_dtype_t dtype, int32_t rank, const int64_t *extent)
{
    operand_text_t text;
    size_t room = sizeof text.data;
    size_t at = (size_t)snprintf(text.data, room, "%s [", heft_dtype_get_name(dtype));
    for (int k = 0; k < rank && at < room; k++) {
        at += (size_t)snprintf(text.data + at, room - at, "%s%lld", k > 0 ? ", " : "",
                               (long long)extent[k]);
    }
    if (at < room) {
        (void)snprintf(text.data + at, room - at, "]");
    }
    return text;
}

static heft_status_t expect(const char *role, const heft__known_operand_t *operand,
                            heft_dtype_t dtype, int32_t rank, const int64_t *extent,
                            heft_error_t *err)
{
    bool is_same = operand->dtype == dtype && operand->rank == rank;
    for (int k = 0; k < rank && is_same; k++) {
        is_same = operand->extent[k] == extent[k];
    }
    return is_same
               ? HEFT_OK
               : heft__error_set(err, HEFT_ERR_ARGUMENT, "%s is %s, expected %s", role,
                                 operand_text(operand->dtype, operand->rank, operand->extent).data,
                                 operand_text(dtype, rank, extent).data);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/*
 * Neighbouring dimensions become one where blocks stay boxes: the inner one is whole, or the outer
 * one is cut to single indices and the inner one into whole blocks. At most a batch dimension, cut
 * to single indices, rows and columns may be left.
 */
static heft_status_t make_grid(const heft__known_t *known, const int64_t *extent,
                               heft__known_grid_t *grid, heft_error_t *err)
{
    int64_t e[HEFT_MAX_DIMS];
    int64_t b[HEFT_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < known->n_dims; k++) {
        int64_t block = heft__min_i64(known->block[k], extent[k]);
        bool is_whole = block == extent[k];
        bool joins = n > 0 && (is_whole || (b[n - 1] == 1 && extent[k] % block == 0));
        if (!joins) {
            e[n] = extent[k];
            b[n++] = block;
            continue;
        }
        b[n - 1] = is_whole ? b[n - 1] * extent[k] : block; /* at most the elements there are */
        e[n - 1] *= extent[k];
    }
    if (n > 3 || (n == 3 && b[0] != 1)) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "blocks of %s: at most two neighbouring dimensions may be cut into "
                               "blocks, those before them to single indices",
                               operand_text(HEFT_DTYPE_NONE, known->n_dims, known->block).data);
    }
    if (n == 1 && known->n_dims > 1) { /* rows as they were, so that work can be cut between them */
        int64_t row = extent[known->n_dims - 1];
        e[0] /= row;
        e[1] = row;
        b[1] = heft__min_i64(b[0], row);
        b[0] = heft__max_i64(b[0] / row, 1);
        n = 2;
    }
    *grid = (heft__known_grid_t){ .n_batches = n == 3 ? e[0] : 1,
                                  .n_rows = n >= 2 ? e[n - 2] : 1,
                                  .n_cols = e[n - 1],
                                  .block_rows = n >= 2 ? b[n - 2] : 1,
                                  .block_cols = b[n - 1] };
    return HEFT_OK;
}

static bool is_empty(const heft__known_operand_t *operand)
{
    for (int k = 0; k < operand->rank; k++) {
        if (operand->extent[k] == 0) {
            return true;
        }
    }
    return false;
}

static heft_status_t check_quantise(const heft__known_t *known, const heft__known_operand_t *dsts,
                                    const heft__known_operand_t *src, heft__known_grid_t *grid,
                                    heft_error_t *err)
{
    int64_t n_blocks[HEFT_MAX_DIMS];
    if (src->dtype != HEFT_DTYPE_F32 && src->dtype != HEFT_DTYPE_BF16 &&
        src->dtype != HEFT_DTYPE_F16) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "input is %s, expected F32, BF16 or F16",
                               heft_dtype_get_name(src->dtype));
    }
    if (src->rank != known->n_dims || is_empty(src)) {
        return heft__error_set(
            err, HEFT_ERR_ARGUMENT, "input is %s, expected %d dimensions and some elements",
            operand_text(src->dtype, src->rank, src->extent).data, (int)known->n_dims);
    }
    for (int k = 0; k < src->rank; k++) {
        n_blocks[k] = ceil_div(src->extent[k], known->block[k]);
    }
    bool is_e8m0 = dsts[1].dtype == HEFT_DTYPE_F8_E8M0 && known->rule == HEFT__SCALE_UE8M0;
    heft_status_t status =
        expect("quantised output", &dsts[0], HEFT_DTYPE_F8_E4M3, src->rank, src->extent, err);
    if (status == HEFT_OK) {
        status = expect("scale output", &dsts[1], is_e8m0 ? HEFT_DTYPE_F8_E8M0 : HEFT_DTYPE_F32,
                        src->rank, n_blocks, err);
    }
    return status == HEFT_OK ? make_grid(known, src->extent, grid, err) : status;
}

static heft_status_t check_unpack(const heft__known_operand_t *dst,
                                  const heft__known_operand_t *srcs, heft__known_grid_t *grid,
                                  heft_error_t *err)
{
    const heft__known_operand_t *blocks = &srcs[0];
    int32_t rank = blocks->rank;
    if (blocks->dtype != HEFT_DTYPE_U8 || rank < 2 || blocks->extent[rank - 1] != MXFP4_BYTES ||
        is_empty(blocks)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "blocks are %s, expected U8 [.., %d]",
                               operand_text(blocks->dtype, rank, blocks->extent).data, MXFP4_BYTES);
    }
    int64_t values[HEFT_MAX_DIMS] = { 0 };
    int64_t n = 1;
    for (int k = 0; k < rank - 1; k++) {
        values[k] = blocks->extent[k];
        n *= values[k];
    }
    heft_dtype_t dtype = dst->dtype == HEFT_DTYPE_F32 ? HEFT_DTYPE_F32 : HEFT_DTYPE_BF16;
    heft_status_t status = expect("scales", &srcs[1], HEFT_DTYPE_U8, rank - 1, values, err);
    values[rank - 2] *= MXFP4_VALUES;
    if (status == HEFT_OK) {
        status = expect("output", dst, dtype, rank - 1, values, err);
    }
    *grid = (heft__known_grid_t){ .n_batches = 1,
                                  .n_rows = n,
                                  .n_cols = MXFP4_VALUES,
                                  .block_rows = 1,
                                  .block_cols = MXFP4_VALUES };
    return status;
}

static int64_t operand_bytes(const heft__known_operand_t *operand)
{
    int64_t n = heft_dtype_get_unit_bytes(operand->dtype);
    for (int k = 0; k < operand->rank; k++) {
        if (!heft__mul(n, operand->extent[k], &n)) {
            return -1;
        }
    }
    return n;
}

static heft_status_t check_bits(const heft__known_operand_t *dst, const heft__known_operand_t *src,
                                heft__known_grid_t *grid, heft_error_t *err)
{
    int64_t n = operand_bytes(src);
    if (n <= 0 || operand_bytes(dst) != n) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "output is %s, expected as many bytes as the input, %s, has",
                               operand_text(dst->dtype, dst->rank, dst->extent).data,
                               operand_text(src->dtype, src->rank, src->extent).data);
    }
    int64_t row =
        heft__max_i64(heft_dtype_get_unit_bytes(src->dtype), heft_dtype_get_unit_bytes(dst->dtype));
    *grid = (heft__known_grid_t){
        .n_batches = 1, .n_rows = n / row, .n_cols = 1, .block_rows = 1, .block_cols = 1
    };
    return HEFT_OK;
}

heft_status_t heft__known_check(const heft__known_t *known, const heft__known_operand_t *dsts,
                                uint32_t n_dsts, const heft__known_operand_t *srcs, uint32_t n_srcs,
                                heft__known_grid_t *grid_out, heft_error_t *err)
{
    bool is_quantise = known->code == HEFT__KNOWN_FP8_QUANTISE;
    uint32_t wants_dsts = is_quantise ? 2 : 1;
    uint32_t wants_srcs = known->code == HEFT__KNOWN_MXFP4_UNPACK ? 2 : 1;
    if (n_dsts != wants_dsts || n_srcs != wants_srcs) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%u inputs and %u outputs, expected %u and %u", (unsigned)n_srcs,
                               (unsigned)n_dsts, (unsigned)wants_srcs, (unsigned)wants_dsts);
    }
    heft__known_grid_t grid;
    heft_status_t status;
    if (is_quantise) {
        status = check_quantise(known, dsts, &srcs[0], &grid, err);
    } else if (known->code == HEFT__KNOWN_BITS) {
        status = check_bits(&dsts[0], &srcs[0], &grid, err);
    } else {
        status = check_unpack(&dsts[0], srcs, &grid, err);
    }
    if (status == HEFT_OK && grid_out != NULL) {
        *grid_out = grid;
    }
    return status;
}

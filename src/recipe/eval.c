/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation: lets, the rank, `require`, and the expressions of rules.
 *
 * Integers are 64 bits and checked; `/` and `%` round towards minus infinity, so that a remainder
 * is never negative. Nothing converts by itself but an integer beside a decimal number.
 */
#include "recipe/compile.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FAIL(env, expr, status, ...) \
    heft__recipe_error((env)->recipe, (expr)->pos, (status), err, __VA_ARGS__)

static heft__value_t int_value(int64_t integer)
{
    return (heft__value_t){ .kind = VALUE_INT, .integer = integer };
}

static heft__value_t bool_value(bool truth)
{
    return (heft__value_t){ .kind = VALUE_BOOL, .integer = truth };
}

static double real_of(const heft__value_t *value)
{
    return value->kind == VALUE_REAL ? value->real : (double)value->integer;
}

static bool is_number(const heft__value_t *value)
{
    return value->kind == VALUE_INT || value->kind == VALUE_REAL;
}

/* " of config.KEY" or " of `let NAME`": what the reader of a message must change. */
static const char *origin(const heft__env_t *env, const heft__expr_t *expr, char out[96])
{
    const char *let = NULL;
    if (expr->kind == EXPR_LET) {
        let = env->recipe->lets[expr->index].name;
        const heft__expr_t *value = env->recipe->lets[expr->index].value;
        bool is_bound = heft__bindings_find(env->bindings, let) != NULL;
        expr = value != NULL && !is_bound ? value : expr;
    }
    if (expr->kind == EXPR_BINARY && expr->op == OP_OR && heft__expr_is_key(expr->left)) {
        expr = expr->left; /* its default would be of the right kind */
    }
    out[0] = '\0';
    if (expr->kind == EXPR_CONFIG || expr->kind == EXPR_ENV) {
        (void)snprintf(out, 96, " of %s.%.80s", expr->kind == EXPR_ENV ? "env" : "config",
                       expr->text);
    } else if (let != NULL) {
        (void)snprintf(out, 96, " of `let %.80s`", let);
    }
    return out;
}

heft_status_t heft__wrong_kind(const heft__env_t *env, const heft__expr_t *expr, const char *wanted,
                               const heft__value_t *got, heft_error_t *err)
{
    char text[64];
    char from[96];
    return FAIL(env, expr, HEFT_ERR_ARGUMENT, "%s wanted, got the %s %s%s", wanted,
                heft__value_kind_name(got->kind), heft__value_text(got, text),
                origin(env, expr, from));
}

/* ---- configuration and destination ---- */

bool heft__value_of_json(const json_t *json, heft__value_t *out)
{
    if (json_is_integer(json)) {
        *out = int_value(json_integer_value(json));
    } else if (json_is_real(json)) {
        *out = (heft__value_t){ .kind = VALUE_REAL, .real = json_real_value(json) };
    } else if (json_is_boolean(json)) {
        *out = bool_value(json_is_true(json));
    } else if (json_is_string(json)) {
        *out = (heft__value_t){ .kind = VALUE_WORD,
                                .word = { json_string_value(json), json_string_length(json) } };
    } else if (json_is_array(json)) {
        *out = (heft__value_t){ .kind = VALUE_LIST, .list = json };
    } else {
        return false;
    }
    return true;
}

/* The key nearest to the one that is missing in an object. */
static const char *nearest_key(json_t *object, const char *key)
{
    const char *best = NULL;
    uint32_t limit = (uint32_t)strlen(key) / 3 + 1;
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        uint32_t distance = heft__edit_distance(key, name, limit);
        if (distance <= limit && limit > 0) {
            best = name;
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return best;
}

/* VALUE_NONE when the key is absent or null. */
static heft_status_t get_config(const heft__env_t *env, const heft__expr_t *expr,
                                heft__value_t *out, const char **nearest_out, heft_error_t *err)
{
    json_t *at = env->bindings != NULL ? env->bindings->config : NULL;
    const char *path = expr->text;
    *out = (heft__value_t){ .kind = VALUE_NONE };
    *nearest_out = NULL;
    while (at != NULL) {
        char key[128];
        size_t len = strcspn(path, ".");
        if (!json_is_object(at) || len >= sizeof key) {
            return HEFT_OK;
        }
        memcpy(key, path, len);
        key[len] = '\0';
        json_t *next = json_object_get(at, key);
        if (next == NULL || json_is_null(next)) {
            *nearest_out = next == NULL ? nearest_key(at, key) : NULL;
            return HEFT_OK;
        }
        at = next;
        if (path[len] == '\0') {
            break;
        }
        path += len + 1;
    }
    if (at != NULL && !heft__value_of_json(at, out)) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "config.%s is an object, not a value",
                    expr->text);
    }
    return HEFT_OK;
}

static heft_status_t get_env(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                             heft_error_t *err)
{
    *out = (heft__value_t){ .kind = VALUE_NONE };
    const char *text = heft__bindings_get_env(env->bindings, expr->text);
    if (text != NULL && !heft__value_parse((heft__span_t){ text, strlen(text) }, out)) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "the environment's %s is %s, beyond 64 bits",
                    expr->text, text);
    }
    return HEFT_OK;
}

static heft_status_t no_key(const heft__env_t *env, const heft__expr_t *expr, const char *nearest,
                            heft_error_t *err)
{
    if (expr->kind == EXPR_ENV) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "the environment's %s is not set", expr->text);
    }
    if (expr->kind == EXPR_CONFIG && (env->bindings == NULL || env->bindings->config == NULL)) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT,
                    "config.%s is wanted and no configuration was given", expr->text);
    }
    return FAIL(env, expr, HEFT_ERR_ARGUMENT, "%s.%s is absent%s%s",
                expr->kind == EXPR_CONFIG   ? "config"
                : expr->kind == EXPR_SOURCE ? "source"
                                            : "dest",
                expr->text, nearest != NULL ? "; the nearest key is " : "",
                nearest != NULL ? nearest : "");
}

static heft_status_t get_key(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                             bool may_be_absent, heft_error_t *err)
{
    const char *nearest = NULL;
    heft_status_t status = expr->kind == EXPR_CONFIG ? get_config(env, expr, out, &nearest, err)
                           : expr->kind == EXPR_ENV  ? get_env(env, expr, out, err)
                                                     : heft__eval_dest(env, expr, out, err);
    return status != HEFT_OK || out->kind != VALUE_NONE || may_be_absent
               ? status
               : no_key(env, expr, nearest, err);
}

heft_status_t heft__eval_key(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                             heft_error_t *err)
{
    return get_key(env, expr, out, true, err);
}

/* ---- operators ---- */

static heft_status_t eval_logic(const heft__env_t *env, const heft__expr_t *expr,
                                heft__value_t *out, heft_error_t *err)
{
    const heft__expr_t *key = expr->left; /* config.KEY, perhaps with indices behind it */
    while (key->kind == EXPR_INDEX && !key->is_closed) {
        key = key->left;
    }
    bool is_key = heft__expr_is_key(key);
    if (expr->op == OP_OR && is_key && !key->is_closed) {
        heft_status_t status = get_key(env, key, out, true, err);
        if (status == HEFT_OK && out->kind == VALUE_NONE) {
            return heft__eval(env, expr->right, out, err);
        }
        return status != HEFT_OK || key == expr->left ? status
                                                      : heft__eval(env, expr->left, out, err);
    }
    bool left = false;
    heft_status_t status = heft__eval_bool(env, expr->left, &left, err);
    if (status != HEFT_OK) {
        return status;
    }
    *out = bool_value(left);
    if (left == (expr->op == OP_OR)) {
        return HEFT_OK;
    }
    bool right = false;
    status = heft__eval_bool(env, expr->right, &right, err);
    *out = bool_value(right);
    return status;
}

static heft_status_t compare_equal(const heft__env_t *env, const heft__expr_t *expr,
                                   const heft__value_t *a, const heft__value_t *b,
                                   heft__value_t *out, heft_error_t *err)
{
    bool equal;
    if (is_number(a) && is_number(b)) {
        equal = a->kind == VALUE_INT && b->kind == VALUE_INT ? a->integer == b->integer
                                                             : real_of(a) == real_of(b);
    } else if (a->kind != b->kind) {
        char left[64];
        char right[64];
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "the %s %s is compared with the %s %s",
                    heft__value_kind_name(a->kind), heft__value_text(a, left),
                    heft__value_kind_name(b->kind), heft__value_text(b, right));
    } else if (a->kind == VALUE_LIST) {
        return heft__wrong_kind(env, expr, "a value that can be compared", a, err);
    } else if (a->kind == VALUE_WORD) {
        equal = a->word.len == b->word.len && memcmp(a->word.data, b->word.data, a->word.len) == 0;
    } else {
        equal = a->integer == b->integer;
    }
    *out = bool_value(equal == (expr->op == OP_EQ));
    return HEFT_OK;
}

static bool compare_order(heft__op_t op, const heft__value_t *a, const heft__value_t *b)
{
    bool ints = a->kind == VALUE_INT && b->kind == VALUE_INT;
    bool less = ints ? a->integer < b->integer : real_of(a) < real_of(b);
    bool more = ints ? a->integer > b->integer : real_of(a) > real_of(b);
    return op == OP_LT ? less : op == OP_GT ? more : op == OP_LE ? !more : !less;
}

static bool floor_div(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return false;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return true;
}

/* False: overflow, or a division that is not defined. */
static bool int_arithmetic(heft__op_t op, int64_t a, int64_t b, int64_t *out)
{
    int64_t q = 0;
    int64_t r = 0;
    switch ((int)op) {
    case OP_ADD:
        return heft__add(a, b, out);
    case OP_SUB:
        return heft__sub(a, b, out);
    case OP_MUL:
        return heft__mul(a, b, out);
    case OP_DIV:
        return floor_div(a, b, out, &r);
    case OP_MOD:
        return floor_div(a, b, &q, out);
    case OP_MIN:
        *out = heft__min_i64(a, b);
        return true;
    case OP_MAX:
        *out = heft__max_i64(a, b);
        return true;
    case OP_CEIL_DIV:
        return floor_div(a, b, &q, &r) && heft__add(q, r != 0 ? 1 : 0, out);
    case OP_ROUND_UP:
        return floor_div(a, b, &q, &r) && heft__add(q, r != 0 ? 1 : 0, &q) && heft__mul(q, b, out);
    default:
        return false;
    }
}

static bool real_arithmetic(heft__op_t op, double a, double b, double *out)
{
    switch ((int)op) {
    case OP_ADD:
        *out = a + b;
        break;
    case OP_SUB:
        *out = a - b;
        break;
    case OP_MUL:
        *out = a * b;
        break;
    case OP_DIV:
        *out = a / b;
        break;
    case OP_MIN:
        *out = a < b ? a : b;
        break;
    case OP_MAX:
        *out = a > b ? a : b;
        break;
    default:
        return false;
    }
    return isfinite(*out) != 0;
}

static heft_status_t eval_arithmetic(const heft__env_t *env, const heft__expr_t *expr,
                                     const heft__value_t *a, const heft__value_t *b,
                                     heft__value_t *out, heft_error_t *err)
{
    char left[64];
    char right[64];
    if (!is_number(a) || !is_number(b)) {
        const heft__expr_t *side = is_number(a) ? expr->right : expr->left;
        return heft__wrong_kind(env, side, "a number", is_number(a) ? b : a, err);
    }
    if (expr->op >= OP_LT && expr->op <= OP_GE) {
        *out = bool_value(compare_order(expr->op, a, b));
        return HEFT_OK;
    }
    if (a->kind == VALUE_REAL || b->kind == VALUE_REAL) {
        out->kind = VALUE_REAL;
        if (real_arithmetic(expr->op, real_of(a), real_of(b), &out->real)) {
            return HEFT_OK;
        }
    } else {
        out->kind = VALUE_INT;
        if (int_arithmetic(expr->op, a->integer, b->integer, &out->integer)) {
            return HEFT_OK;
        }
    }
    bool by_zero =
        real_of(b) == 0 && expr->op != OP_ADD && expr->op != OP_SUB && expr->op != OP_MUL;
    return FAIL(env, expr, by_zero ? HEFT_ERR_ARGUMENT : HEFT_ERR_OVERFLOW, "%s of %s and %s",
                by_zero ? "division by zero" : "overflow, or no such operation,",
                heft__value_text(a, left), heft__value_text(b, right));
}

static heft_status_t eval_binary(const heft__env_t *env, const heft__expr_t *expr,
                                 heft__value_t *out, heft_error_t *err)
{
    if (expr->op == OP_OR || expr->op == OP_AND) {
        return eval_logic(env, expr, out, err);
    }
    heft__value_t a = { 0 };
    heft__value_t b = { 0 };
    heft_status_t status = heft__eval(env, expr->left, &a, err);
    if (status == HEFT_OK) {
        status = heft__eval(env, expr->right, &b, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    return expr->op == OP_EQ || expr->op == OP_NE ? compare_equal(env, expr, &a, &b, out, err)
                                                  : eval_arithmetic(env, expr, &a, &b, out, err);
}

static heft_status_t eval_unary(const heft__env_t *env, const heft__expr_t *expr,
                                heft__value_t *out, heft_error_t *err)
{
    if (expr->op == OP_NOT) {
        bool truth = false;
        heft_status_t status = heft__eval_bool(env, expr->left, &truth, err);
        *out = bool_value(!truth);
        return status;
    }
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(env, expr->left, &value, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (value.kind == VALUE_REAL) {
        *out = (heft__value_t){ .kind = VALUE_REAL, .real = -value.real };
        return HEFT_OK;
    }
    if (value.kind != VALUE_INT) {
        return heft__wrong_kind(env, expr->left, "a number", &value, err);
    }
    *out = int_value(0);
    return heft__sub(0, value.integer, &out->integer)
               ? HEFT_OK
               : FAIL(env, expr, HEFT_ERR_OVERFLOW, "overflow");
}

/* How many names match; of has(), whether one does. Asked once of all compilations that share them.
 */
static heft_status_t count_names(heft__names_t *names, const char *pattern, bool is_has,
                                 int64_t *n_out, heft_error_t *err)
{
    const heft__tail_key_t tail = heft__text_tail_key(pattern);
    int64_t n = 0;
    for (size_t i = 0; i < names->n_answers; i++) {
        if (names->answers[i].pattern == pattern && names->answers[i].is_has == is_has) {
            *n_out = names->answers[i].n;
            return HEFT_OK;
        }
    }
    for (uint32_t i = 0; i < names->n && (!is_has || n == 0); i++) {
        n += (names->keys[i] & tail.mask) == tail.key &&
             heft_name_matches(pattern, names->items[i].info.name) != 0;
    }
    heft_status_t status =
        HEFT__GROW(names->answers, names->cap_answers, names->n_answers + 1, err);
    if (status == HEFT_OK) {
        names->answers[names->n_answers++] =
            (heft__answer_t){ .pattern = pattern, .is_has = is_has, .n = n };
        *n_out = n;
    }
    return status;
}

/* has("pattern"), count("pattern"): over all names of the source, ignored ones too. */
static heft_status_t eval_names(const heft__env_t *env, const heft__expr_t *expr,
                                heft__value_t *out, heft_error_t *err)
{
    if (env->names == NULL) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT,
                    "%s() asks for the source, which is not known before `ranks`",
                    expr->op == OP_HAS ? "has" : "count");
    }
    int64_t n = 0;
    heft_status_t status = count_names(env->names, expr->left->text, expr->op == OP_HAS, &n, err);
    *out = expr->op == OP_HAS ? bool_value(n > 0) : int_value(n);
    return status;
}

/* To f32 and from there to bf16, each to nearest even, as frameworks make such a constant. */
static double round_bf16(double value)
{
    if (!(fabs(value) <= FLT_MAX)) {
        return INFINITY;
    }
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    memcpy(&single, &bits, sizeof single);
    return single;
}

static heft_status_t eval_real_call(const heft__env_t *env, const heft__expr_t *expr,
                                    heft__value_t *out, heft_error_t *err)
{
    double value = 0;
    heft_status_t status = heft__eval_real(env, expr->left, &value, err);
    if (status != HEFT_OK) {
        return status;
    }
    bool is_sqrt = expr->op == OP_SQRT;
    double result = !is_sqrt ? round_bf16(value) : value >= 0 ? sqrt(value) : NAN;
    if (!isfinite(result)) {
        return is_sqrt ? FAIL(env, expr, HEFT_ERR_ARGUMENT, "square root of %g", value)
                       : FAIL(env, expr, HEFT_ERR_OVERFLOW, "%g is beyond bf16", value);
    }
    *out = (heft__value_t){ .kind = VALUE_REAL, .real = result };
    return HEFT_OK;
}

static heft_status_t eval_call(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                               heft_error_t *err)
{
    if (expr->op == OP_HAS || expr->op == OP_COUNT) {
        return eval_names(env, expr, out, err);
    }
    if (expr->op >= OP_PADDED_SIZE && expr->op <= OP_FLAG) {
        return heft__eval_size_call(env, expr, out, err);
    }
    if (expr->op == OP_IF) { /* the other one need not have a value */
        bool holds = false;
        heft_status_t status = heft__eval_bool(env, expr->left, &holds, err);
        return status == HEFT_OK
                   ? heft__eval(env, holds ? expr->right->left : expr->right->right, out, err)
                   : status;
    }
    if (expr->op >= OP_SINGULAR) {
        return heft__eval_list_call(env, expr, out, err);
    }
    return expr->op == OP_SQRT || expr->op == OP_BF16 ? eval_real_call(env, expr, out, err)
                                                      : eval_binary(env, expr, out, err);
}

static heft_status_t eval_capture(const heft__env_t *env, const heft__expr_t *expr,
                                  heft__value_t *out, heft_error_t *err)
{
    heft__span_t text = env->captures[expr->index];
    *out = (heft__value_t){ .kind = VALUE_WORD, .word = text };
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') {
            return HEFT_OK;
        }
    }
    if (!heft__value_parse(text, out)) {
        return FAIL(env, expr, HEFT_ERR_OVERFLOW, "{%s} is %.*s, beyond 64 bits", expr->text,
                    (int)(text.len < 60 ? text.len : 60), text.data);
    }
    return HEFT_OK;
}

heft_status_t heft__eval(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *value_out,
                         heft_error_t *err)
{
    switch (expr->kind) {
    case EXPR_INT:
        *value_out = int_value(expr->integer);
        return HEFT_OK;
    case EXPR_REAL:
        *value_out = (heft__value_t){ .kind = VALUE_REAL, .real = expr->real };
        return HEFT_OK;
    case EXPR_BOOL:
        *value_out = bool_value(expr->integer != 0);
        return HEFT_OK;
    case EXPR_WORD:
        *value_out =
            (heft__value_t){ .kind = VALUE_WORD, .word = { expr->text, strlen(expr->text) } };
        return HEFT_OK;
    case EXPR_LET:
        *value_out = env->lets[expr->index];
        return value_out->kind != VALUE_FAILED ? HEFT_OK : HEFT__SAID;
    case EXPR_RANK:
        *value_out = int_value(env->rank);
        return HEFT_OK;
    case EXPR_CAPTURE:
        return eval_capture(env, expr, value_out, err);
    case EXPR_LOOP:
        *value_out = int_value(env->loop_index[expr->index]);
        return HEFT_OK;
    case EXPR_LIST:
        *value_out = (heft__value_t){ .kind = VALUE_LIST, .list = expr->list };
        return HEFT_OK;
    case EXPR_INDEX:
        return heft__eval_index(env, expr, value_out, err);
    case EXPR_AXIS:
        *value_out = int_value(env->axis_index[expr->index]);
        return HEFT_OK;
    case EXPR_CONFIG:
    case EXPR_DEST:
    case EXPR_SOURCE:
    case EXPR_ENV:
        return get_key(env, expr, value_out, false, err);
    case EXPR_UNARY:
        return eval_unary(env, expr, value_out, err);
    case EXPR_BINARY:
        return eval_binary(env, expr, value_out, err);
    case EXPR_CALL:
        return eval_call(env, expr, value_out, err);
    case EXPR_NAME:
    default:
        return HEFT_BUG(err, "an expression that was not resolved");
    }
}

heft_status_t heft__eval_int(const heft__env_t *env, const heft__expr_t *expr, int64_t *out,
                             heft_error_t *err)
{
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(env, expr, &value, err);
    if (status == HEFT_OK && value.kind != VALUE_INT) {
        return heft__wrong_kind(env, expr, "an integer", &value, err);
    }
    *out = value.integer;
    return status;
}

heft_status_t heft__eval_bool(const heft__env_t *env, const heft__expr_t *expr, bool *out,
                              heft_error_t *err)
{
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(env, expr, &value, err);
    if (status == HEFT_OK && value.kind != VALUE_BOOL) {
        return heft__wrong_kind(env, expr, "true or false", &value, err);
    }
    *out = value.integer != 0;
    return status;
}

heft_status_t heft__eval_real(const heft__env_t *env, const heft__expr_t *expr, double *out,
                              heft_error_t *err)
{
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(env, expr, &value, err);
    if (status == HEFT_OK && !is_number(&value)) {
        return heft__wrong_kind(env, expr, "a number", &value, err);
    }
    *out = status == HEFT_OK ? real_of(&value) : 0;
    return status;
}

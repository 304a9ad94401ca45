/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists: of the configuration, of a binding, or as they stand in the recipe. They are read where
 * they are and never copied; range(n) is a list that needs no memory.
 */
#include "recipe/compile.h"
#include "recipe/expert_table.h"

#include <stdio.h>
#include <string.h>

#define FAIL(env, expr, status, ...) \
    heft__recipe_error((env)->recipe, (expr)->pos, (status), err, __VA_ARGS__)

static int64_t length(const heft__value_t *list)
{
    return list->list != NULL ? (int64_t)json_array_size(list->list) : list->integer;
}

heft__value_t heft__list_length(const heft__value_t *list)
{
    return (heft__value_t){ .kind = VALUE_INT, .integer = length(list) };
}

static heft_status_t eval_list(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                               heft_error_t *err)
{
    heft_status_t status = heft__eval(env, expr, out, err);
    if (status == HEFT_OK && out->kind != VALUE_LIST) {
        status = heft__wrong_kind(env, expr, "a list", out, err);
    }
    return status;
}

/* How the list of an expression is called: config.layer_types, or "the list". */
static const char *list_name(const heft__expr_t *expr, char out[96])
{
    bool is_config = expr->kind == EXPR_CONFIG;
    if (!is_config && expr->kind != EXPR_LET && expr->kind != EXPR_DEST) {
        return "the list";
    }
    (void)snprintf(out, 96, "%s%.80s",
                   is_config                 ? "config."
                   : expr->kind == EXPR_DEST ? "dest."
                                             : "",
                   expr->text);
    return out;
}

/* Item i, which is there. False: it is null or an object. */
static bool get_item(const heft__value_t *list, int64_t i, heft__value_t *out)
{
    if (list->list == NULL) {
        *out = (heft__value_t){ .kind = VALUE_INT, .integer = i };
        return true;
    }
    return heft__value_of_json(json_array_get(list->list, (size_t)i), out);
}

heft_status_t heft__eval_index(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                               heft_error_t *err)
{
    char name[96];
    heft__value_t list = { 0 };
    int64_t i = 0;
    heft_status_t status = eval_list(env, expr->left, &list, err);
    if (status == HEFT_OK) {
        status = heft__eval_int(env, expr->right, &i, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    int64_t n = length(&list);
    if (n == 0) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "index %lld: %s is empty", (long long)i,
                    list_name(expr->left, name));
    }
    if (i < 0 || i >= n) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "index %lld: %s has %lld values, 0 to %lld",
                    (long long)i, list_name(expr->left, name), (long long)n, (long long)n - 1);
    }
    return get_item(&list, i, out)
               ? HEFT_OK
               : FAIL(env, expr, HEFT_ERR_ARGUMENT, "value %lld of %s is %s", (long long)i,
                      list_name(expr->left, name),
                      json_is_null(json_array_get(list.list, (size_t)i)) ? "null" : "an object");
}

static bool is_equal(const heft__value_t *a, const heft__value_t *b)
{
    if (a->kind != b->kind || a->kind == VALUE_LIST) {
        return false;
    }
    if (a->kind == VALUE_WORD) {
        return a->word.len == b->word.len && memcmp(a->word.data, b->word.data, a->word.len) == 0;
    }
    return a->kind == VALUE_REAL ? a->real == b->real : a->integer == b->integer;
}

/* Where the value stands first; -1: nowhere. */
static int64_t find(const heft__value_t *list, const heft__value_t *value)
{
    int64_t n = length(list);
    for (int64_t i = 0; i < n; i++) {
        heft__value_t item;
        if (get_item(list, i, &item) && is_equal(&item, value)) {
            return i;
        }
    }
    return -1;
}

static heft_status_t eval_search(const heft__env_t *env, const heft__expr_t *expr,
                                 heft__value_t *out, heft_error_t *err)
{
    heft__value_t list = { 0 };
    heft__value_t value = { 0 };
    heft_status_t status = eval_list(env, expr->left, &list, err);
    if (status == HEFT_OK) {
        status = heft__eval(env, expr->right, &value, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    int64_t at = find(&list, &value);
    if (expr->op == OP_CONTAINS) {
        *out = (heft__value_t){ .kind = VALUE_BOOL, .integer = at >= 0 };
        return HEFT_OK;
    }
    char name[96];
    char text[64];
    *out = (heft__value_t){ .kind = VALUE_INT, .integer = at };
    return at >= 0 ? HEFT_OK
                   : FAIL(env, expr, HEFT_ERR_ARGUMENT, "%s is none of the %lld values of %s",
                          heft__value_text(&value, text), (long long)length(&list),
                          list_name(expr->left, name));
}

/* layers: layer. One s is dropped and no more. */
static heft_status_t eval_singular(const heft__env_t *env, const heft__expr_t *expr,
                                   heft__value_t *out, heft_error_t *err)
{
    heft_status_t status = heft__eval(env, expr->left, out, err);
    if (status == HEFT_OK && out->kind != VALUE_WORD) {
        return heft__wrong_kind(env, expr, "a word", out, err);
    }
    if (status == HEFT_OK && out->word.len > 0 && out->word.data[out->word.len - 1] == 's') {
        out->word.len--;
    }
    return status == HEFT_OK && out->word.len == 0
               ? FAIL(env, expr, HEFT_ERR_ARGUMENT, "the singular is empty: no container")
               : status;
}

/* A count that a table is held against: 1 or more. */
static heft_status_t eval_count(const heft__env_t *env, const heft__expr_t *expr, const char *what,
                                uint32_t *out, heft_error_t *err)
{
    int64_t n = 0;
    heft_status_t status = heft__eval_int(env, expr, &n, err);
    if (status == HEFT_OK && (n < 1 || n > INT32_MAX)) {
        status =
            FAIL(env, expr, HEFT_ERR_ARGUMENT, "expert_table() for %lld %s", (long long)n, what);
    }
    *out = (uint32_t)n;
    return status;
}

/* expert_table(table, layers, experts): the table, once it is one that an engine can have. */
static heft_status_t eval_expert_table(const heft__env_t *env, const heft__expr_t *expr,
                                       heft__value_t *out, heft_error_t *err)
{
    heft_expert_table_opts_t opts = HEFT_EXPERT_TABLE_OPTS_INIT;
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = eval_list(env, expr->left, out, err);
    if (status == HEFT_OK) {
        status = eval_count(env, expr->right->left, "layers", &opts.n_layers, err);
    }
    if (status == HEFT_OK) {
        status = eval_count(env, expr->right->right, "experts", &opts.n_experts, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__expert_rows_check(out->list, &opts, &cause);
    return status == HEFT_OK ? HEFT_OK : FAIL(env, expr, status, "%s", cause.message);
}

/* len(list), range(n), contains(list, value), index(list, value), singular(word), expert_table(..)
 */
heft_status_t heft__eval_list_call(const heft__env_t *env, const heft__expr_t *expr,
                                   heft__value_t *out, heft_error_t *err)
{
    heft__value_t list = { 0 };
    heft_status_t status;
    switch ((int)expr->op) {
    case OP_LEN:
        status = eval_list(env, expr->left, &list, err);
        *out =
            (heft__value_t){ .kind = VALUE_INT, .integer = status == HEFT_OK ? length(&list) : 0 };
        return status;
    case OP_SINGULAR:
        return eval_singular(env, expr, out, err);
    case OP_EXPERT_TABLE:
        return eval_expert_table(env, expr, out, err);
    case OP_RANGE:
        *out = (heft__value_t){ .kind = VALUE_LIST };
        status = heft__eval_int(env, expr->left, &out->integer, err);
        return status == HEFT_OK && out->integer < 0
                   ? FAIL(env, expr, HEFT_ERR_ARGUMENT, "range(%lld)", (long long)out->integer)
                   : status;
    default:
        return eval_search(env, expr, out, err);
    }
}

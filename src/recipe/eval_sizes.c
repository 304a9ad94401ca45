/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of expressions that compute sizes by rule (sizes.c), and flags. */
#include "recipe/compile.h"

#include "heft/sizes.h"

#include <stdio.h>
#include <string.h>

#define FAIL(env, expr, status, ...) \
    heft__recipe_error((env)->recipe, (expr)->pos, (status), err, __VA_ARGS__)

/* padded_size(size, lanes, tp): the second and third argument are a pair. */
static heft_status_t eval_padded_size(const heft__env_t *env, const heft__expr_t *expr,
                                      int64_t *out, heft_error_t *err)
{
    int64_t size = 0;
    int64_t lanes = 0;
    int64_t tp = 0;
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft__eval_int(env, expr->left, &size, err);
    if (status == HEFT_OK) {
        status = heft__eval_int(env, expr->right->left, &lanes, err);
    }
    if (status == HEFT_OK) {
        status = heft__eval_int(env, expr->right->right, &tp, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_padded_size(size, lanes, tp, out, &cause);
    return status == HEFT_OK ? HEFT_OK : FAIL(env, expr, status, "%s", cause.message);
}

static heft_status_t eval_kv_repeat(const heft__env_t *env, const heft__expr_t *expr, int64_t *out,
                                    heft_error_t *err)
{
    int64_t heads = 0;
    int64_t kv_tp = 0;
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft__eval_int(env, expr->left, &heads, err);
    if (status == HEFT_OK) {
        status = heft__eval_int(env, expr->right, &kv_tp, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_kv_repeat(heads, kv_tp, out, &cause);
    return status == HEFT_OK ? HEFT_OK : FAIL(env, expr, status, "%s", cause.message);
}

/* rollout_tp(config.KEY, env.NAME): either may be absent. */
static heft_status_t eval_rollout_tp(const heft__env_t *env, const heft__expr_t *expr, int64_t *out,
                                     heft_error_t *err)
{
    heft__value_t configured = { 0 };
    char key[128];
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft__eval_key(env, expr->left, &configured, err);
    if (status == HEFT_OK && configured.kind != VALUE_NONE && configured.kind != VALUE_INT) {
        return heft__wrong_kind(env, expr->left, "an integer", &configured, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    (void)snprintf(key, sizeof key, "config.%s", expr->left->text);
    status = heft_rollout_tp(key, configured.kind == VALUE_INT ? &configured.integer : NULL,
                             expr->right->text,
                             heft__bindings_get_env(env->bindings, expr->right->text), out, &cause);
    return status == HEFT_OK ? HEFT_OK : FAIL(env, expr, status, "%s", cause.message);
}

/* flag(env.NAME): 0, 1, true or false; not set is false. */
static heft_status_t eval_flag(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                               heft_error_t *err)
{
    const char *name = expr->left->text;
    const char *text = heft__bindings_get_env(env->bindings, name);
    bool is_true = text != NULL && (strcmp(text, "1") == 0 || strcmp(text, "true") == 0);
    *out = (heft__value_t){ .kind = VALUE_BOOL, .integer = is_true };
    if (text == NULL || is_true || strcmp(text, "0") == 0 || strcmp(text, "false") == 0) {
        return HEFT_OK;
    }
    return FAIL(env, expr, HEFT_ERR_ARGUMENT,
                "the environment's %s is \"%s\": 0, 1, true or false wanted", name, text);
}

heft_status_t heft__eval_size_call(const heft__env_t *env, const heft__expr_t *expr,
                                   heft__value_t *out, heft_error_t *err)
{
    if (expr->op == OP_FLAG) {
        return eval_flag(env, expr, out, err);
    }
    *out = (heft__value_t){ .kind = VALUE_INT };
    return expr->op == OP_PADDED_SIZE ? eval_padded_size(env, expr, &out->integer, err)
           : expr->op == OP_KV_REPEAT ? eval_kv_repeat(env, expr, &out->integer, err)
                                      : eval_rollout_tp(env, expr, &out->integer, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is evaluated before the rules: lets and their bindings, `ranks`, `require`, in the order of
 * the text.
 */
#include "recipe/chain.h"

#include <stdio.h>
#include <string.h>

#define MAX_RANKS (1 << 20)

/* A binding that no let declares is a misspelling: refuse it, naming the nearest. */
static heft_status_t check_binding(const heft_recipe_t *recipe, const char *name, heft_error_t *err)
{
    const char *kind = heft__resolve_taken(recipe, NULL, name);
    if (kind != NULL && kind[0] == 'l') {
        return HEFT_OK;
    }
    if (kind != NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "recipe \"%s\": \"%s\" is the rank and cannot be bound",
                               recipe->name, name);
    }
    const char *best = NULL;
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    for (size_t k = 0; k < recipe->n_lets && limit > 0; k++) {
        uint32_t distance = heft__edit_distance(name, recipe->lets[k].name, limit);
        if (distance <= limit) {
            best = recipe->lets[k].name;
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return heft__error_set(err, HEFT_ERR_ARGUMENT, "recipe \"%s\" declares no `let %s`%s%s%s",
                           recipe->name, name, best != NULL ? "; nearest is \"" : "",
                           best != NULL ? best : "", best != NULL ? "\"" : "");
}

heft_status_t heft__env_init(heft__env_t *env, const heft_recipe_t *recipe,
                             const heft_bindings_t *bindings, heft_error_t *err)
{
    *env = (heft__env_t){ .recipe = recipe, .bindings = bindings, .n_ranks = 1 };
    size_t n = recipe->n_lets > 0 ? recipe->n_lets : 1;
    env->lets = heft__calloc(n, sizeof *env->lets);
    return env->lets != NULL ? HEFT_OK : heft__error_nomem(err, n * sizeof *env->lets);
}

void heft__env_fini(heft__env_t *env)
{
    heft__free(env->lets);
    env->lets = NULL;
}

static heft_status_t run_let(heft__env_t *env, const heft__step_t *step, heft_error_t *err)
{
    const heft__let_t *let = &env->recipe->lets[step->let];
    const heft__binding_t *binding = heft__bindings_find(env->bindings, let->name);
    heft__value_t *value = &env->lets[step->let];
    if (binding == NULL && let->value == NULL) {
        return heft__recipe_error(env->recipe, let->pos, HEFT_ERR_ARGUMENT, err,
                                  "`let %s` has no value: it must be bound (--let %s=VALUE)",
                                  let->name, let->name);
    }
    if (binding == NULL) {
        return heft__eval(env, let->value, value, err);
    }
    if (binding->list != NULL) {
        *value = (heft__value_t){ .kind = VALUE_LIST, .list = binding->list };
    } else {
        (void)heft__value_parse((heft__span_t){ binding->text, strlen(binding->text) }, value);
    }
    heft__value_t standard = { 0 };
    if (let->value == NULL || heft__eval(env, let->value, &standard, NULL) != HEFT_OK) {
        return HEFT_OK; /* nothing to compare with: a default that needs a key that is absent */
    }
    if (standard.kind == VALUE_REAL && value->kind == VALUE_INT) {
        *value = (heft__value_t){ .kind = VALUE_REAL, .real = (double)value->integer };
    }
    if (value->kind != standard.kind) {
        return heft__recipe_error(
            env->recipe, let->pos, HEFT_ERR_ARGUMENT, err,
            "`let %s` is bound to the %s \"%.60s\"; its default is of the kind "
            "\"%s\"",
            let->name, heft__value_kind_name(value->kind), binding->text,
            heft__value_kind_name(standard.kind));
    }
    return HEFT_OK;
}

static heft_status_t run_ranks(heft__env_t *env, const heft__step_t *step, heft_error_t *err)
{
    heft_status_t status = heft__eval_int(env, step->expr, &env->n_ranks, err);
    if (status == HEFT_OK && (env->n_ranks < 1 || env->n_ranks > MAX_RANKS)) {
        status =
            heft__recipe_error(env->recipe, step->pos, HEFT_ERR_ARGUMENT, err,
                               "%lld ranks: 1 to %d wanted", (long long)env->n_ranks, MAX_RANKS);
    }
    return status;
}

/* Whether an item stands in a list, between commas: "tp = 2" is not in "kv_tp = 2". */
static bool has_item(const char *list, const char *item)
{
    size_t n = strlen(item);
    for (const char *at = strstr(list, item); at != NULL; at = strstr(at + 1, item)) {
        if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ',')) {
            return true;
        }
    }
    return false;
}

void heft__list_values(const heft__env_t *env, const heft__expr_t *expr, char *out, size_t bytes)
{
    if (expr == NULL) {
        return;
    }
    heft__list_values(env, expr->left, out, bytes);
    heft__list_values(env, expr->right, out, bytes);
    const char *prefix = expr->kind == EXPR_CONFIG   ? "config."
                         : expr->kind == EXPR_DEST   ? "dest."
                         : expr->kind == EXPR_SOURCE ? "source."
                         : expr->kind == EXPR_ENV    ? "env."
                                                     : "";
    bool is_named = expr->kind == EXPR_LET || expr->kind == EXPR_RANK || heft__expr_is_key(expr) ||
                    expr->kind == EXPR_CAPTURE || expr->kind == EXPR_LOOP;
    heft__value_t value = { 0 };
    if (!is_named || heft__eval(env, expr, &value, NULL) != HEFT_OK) {
        return;
    }
    char item[136];
    char text[64];
    size_t len = strlen(out);
    bool is_list = value.kind == VALUE_LIST;
    value = is_list ? heft__list_length(&value) : value;
    (void)snprintf(item, sizeof item, "%s%s%.60s%s = %s", is_list ? "len(" : "", prefix, expr->text,
                   is_list ? ")" : "", heft__value_text(&value, text));
    if (!has_item(out, item) && len + 4 < bytes) {
        (void)snprintf(out + len, bytes - len, "%s%s", len == 0 ? "" : ", ", item);
    }
}

static heft_status_t run_require(const heft__env_t *env, const heft__step_t *step,
                                 heft_error_t *err)
{
    bool holds = false;
    heft_status_t status = heft__eval_bool(env, step->expr, &holds, err);
    if (status != HEFT_OK || holds) {
        return status;
    }
    char values[160] = "";
    heft__list_values(env, step->expr, values, sizeof values);
    return heft__recipe_error(env->recipe, step->pos, HEFT_ERR_ARGUMENT, err, "%s%s%s%s",
                              step->text, values[0] != '\0' ? " (" : "", values,
                              values[0] != '\0' ? ")" : "");
}

static heft_status_t run_step(heft__env_t *env, const heft__step_t *step, heft_error_t *err)
{
    heft_status_t status;
    switch (step->kind) {
    case STEP_LET:
        status = run_let(env, step, err);
        if (status != HEFT_OK) {
            env->lets[step->let].kind = VALUE_FAILED;
        }
        return status;
    case STEP_RANKS:
        status = run_ranks(env, step, err);
        if (status != HEFT_OK) {
            env->n_ranks = MAX_RANKS; /* so that no rank is beyond them */
        }
        return status;
    case STEP_REQUIRE:
    default:
        return run_require(env, step, err);
    }
}

heft_status_t heft__env_run(heft__env_t *env, bool until_ranks, heft__faults_t *faults)
{
    const heft_recipe_t *recipe = env->recipe;
    size_t n_bindings = env->bindings != NULL ? env->bindings->n : 0;
    size_t n_steps = until_ranks && recipe->rank_name == NULL ? 0 : recipe->n_steps;
    bool is_done = false;
    for (size_t i = 0; i < n_bindings + n_steps && !is_done; i++) {
        heft_error_t inner = HEFT_ERROR_INIT;
        heft_status_t status;
        if (i < n_bindings) {
            status = check_binding(recipe, env->bindings->items[i].name, &inner);
        } else {
            const heft__step_t *step = &recipe->steps[i - n_bindings];
            status = run_step(env, step, &inner);
            is_done = until_ranks && step->kind == STEP_RANKS;
        }
        if (!heft__faults_take(faults, status, &inner)) {
            return HEFT_ERR_NOMEM;
        }
    }
    return HEFT_OK;
}

heft_status_t heft_recipe_count_ranks(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                      uint32_t *n_ranks_out, heft_error_t *err)
{
    if (recipe->n_parts > 0) {
        return heft__chain_count_ranks(recipe, bindings, n_ranks_out, err);
    }
    heft__env_t env;
    heft__faults_t faults;
    heft__faults_init(&faults, recipe, NULL, false);
    heft_status_t status = heft__env_init(&env, recipe, bindings, err);
    if (status == HEFT_OK) {
        (void)heft__env_run(&env, true, &faults);
        status = heft__faults_status(&faults, err);
    }
    if (status == HEFT_OK) {
        *n_ranks_out = (uint32_t)env.n_ranks;
    }
    heft__env_fini(&env);
    return status;
}

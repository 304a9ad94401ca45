/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in expressions become lets, the rank, captures or axes. A let may use what stands before
 * it; rules may use every let.
 */
#include "recipe/syntax.h"

#include <string.h>

const char *heft__nearest(const char *name, const char *const *names, size_t n)
{
    const char *best = NULL;
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    for (size_t i = 0; i < n && limit > 0; i++) {
        uint32_t distance = heft__edit_distance(name, names[i], limit);
        if (distance <= limit) {
            best = names[i];
            limit = distance - (distance > 0 ? 1 : 0);
        }
    }
    return best;
}

const char *heft__resolve_taken(const heft_recipe_t *recipe, const heft__rule_t *rule,
                                const char *name)
{
    for (size_t i = 0; i < recipe->n_lets; i++) {
        if (strcmp(recipe->lets[i].name, name) == 0) {
            return "let";
        }
    }
    if (recipe->rank_name != NULL && strcmp(recipe->rank_name, name) == 0) {
        return "rank";
    }
    for (uint32_t i = 0; rule != NULL && i < rule->n_captures; i++) {
        if (strcmp(rule->captures[i], name) == 0) {
            return "capture";
        }
    }
    for (uint32_t i = 0; rule != NULL && i < rule->n_loops; i++) {
        if (strcmp(rule->loops[i].name, name) == 0) {
            return "loop";
        }
    }
    return NULL;
}

/* The nearest name that the scope knows. */
static const char *nearest_in(const heft__scope_t *scope, const char *name)
{
    const char *names[HEFT__MAX_CAPTURES + HEFT__MAX_PARTS + HEFT__MAX_AXES + 1 + 64];
    size_t n = 0;
    for (uint32_t i = 0; scope->rule != NULL && i < scope->rule->n_captures; i++) {
        names[n++] = scope->rule->captures[i];
    }
    for (uint32_t i = 0; scope->rule != NULL && i < scope->rule->n_loops; i++) {
        names[n++] = scope->rule->loops[i].name;
    }
    for (uint32_t i = 0; scope->rule != NULL && scope->with_axes && i < scope->rule->n_axes; i++) {
        names[n++] = scope->rule->axes[i];
    }
    if (scope->has_rank) {
        names[n++] = scope->recipe->rank_name;
    }
    for (size_t i = 0; i < scope->n_lets && n < sizeof names / sizeof names[0]; i++) {
        names[n++] = scope->recipe->lets[i].name;
    }
    return heft__nearest(name, names, n);
}

/* The longest name of a dtype whose letters all stand in the word, in order and from its first on:
 * bf16 in bfloat16. */
static const char *nearest_dtype(const char *word)
{
    static const char *const names[] = { "bf16",    "f16", "f32", "f64", "f8_e4m3",
                                         "f8_e5m2", "i8",  "i16", "i32", "i64",
                                         "u8",      "u16", "u32", "u64", "bool" };
    const char *best = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *letter = names[i];
        for (const char *w = word; *w != '\0' && word[0] == names[i][0]; w++) {
            letter += *letter != '\0' && *letter == *w ? 1 : 0;
        }
        if (*letter == '\0' && (best == NULL || strlen(names[i]) > strlen(best))) {
            best = names[i];
        }
    }
    return best != NULL ? best : heft__nearest(word, names, sizeof names / sizeof names[0]);
}

static heft_status_t unknown_name(const heft__scope_t *scope, const heft__expr_t *expr,
                                  heft_error_t *err)
{
    const heft_recipe_t *recipe = scope->recipe;
    const char *kind = heft__resolve_taken(recipe, NULL, expr->text);
    if (kind != NULL) {
        return heft__recipe_error(recipe, expr->pos, HEFT_ERR_SYNTAX, err,
                                  "`%s` is used before its %s", expr->text,
                                  kind[0] == 'l' ? "`let`" : "`ranks`");
    }
    const char *nearest = nearest_in(scope, expr->text);
    if (scope->is_dtype) {
        nearest = nearest != NULL ? nearest : nearest_dtype(expr->text);
        return heft__recipe_error(
            recipe, expr->pos, HEFT_ERR_SYNTAX, err, "no dtype or let \"%s\"%s%s", expr->text,
            nearest != NULL ? "; nearest: " : "", nearest != NULL ? nearest : "");
    }
    const char *what = scope->rule == NULL ? "let"
                       : !scope->with_axes ? "let or capture"
                                           : "let, capture or axis of the source";
    return heft__recipe_error(recipe, expr->pos, HEFT_ERR_SYNTAX, err, "`%s` is no %s%s%s%s",
                              expr->text, what, nearest != NULL ? "; nearest is `" : "",
                              nearest != NULL ? nearest : "", nearest != NULL ? "`" : "");
}

static bool resolve_loop(const heft__scope_t *scope, heft__expr_t *expr)
{
    const heft__rule_t *rule = scope->without_loops ? NULL : scope->rule;
    for (uint32_t i = 0; rule != NULL && i < rule->n_loops; i++) {
        if (strcmp(rule->loops[i].name, expr->text) == 0) {
            expr->kind = EXPR_LOOP;
            expr->index = (int32_t)i;
            return true;
        }
    }
    return false;
}

static heft_status_t resolve_name(const heft__scope_t *scope, heft__expr_t *expr, bool *per_match,
                                  heft_error_t *err)
{
    const heft_recipe_t *recipe = scope->recipe;
    const heft__rule_t *rule = scope->rule;
    if (resolve_loop(scope, expr)) {
        *per_match = true;
        return HEFT_OK;
    }
    for (uint32_t i = 0; rule != NULL && i < rule->n_captures; i++) {
        if (strcmp(rule->captures[i], expr->text) == 0) {
            if (rule->capture_is_many[i]) {
                return heft__recipe_error(recipe, expr->pos, HEFT_ERR_SYNTAX, err,
                                          "{%s*} holds whole tokens and has no value", expr->text);
            }
            expr->kind = EXPR_CAPTURE;
            expr->index = (int32_t)i;
            *per_match = true;
            return HEFT_OK;
        }
    }
    for (uint32_t i = 0; rule != NULL && scope->with_axes && i < rule->n_axes; i++) {
        if (strcmp(rule->axes[i], expr->text) == 0) {
            expr->kind = EXPR_AXIS;
            expr->index = (int32_t)i;
            *per_match = true;
            return HEFT_OK;
        }
    }
    for (size_t i = 0; i < scope->n_lets; i++) {
        if (strcmp(recipe->lets[i].name, expr->text) == 0) {
            expr->kind = EXPR_LET;
            expr->index = (int32_t)i;
            return HEFT_OK;
        }
    }
    if (scope->has_rank && strcmp(recipe->rank_name, expr->text) == 0) {
        expr->kind = EXPR_RANK;
        return HEFT_OK;
    }
    return unknown_name(scope, expr, err);
}

heft_status_t heft__resolve_expr(const heft__scope_t *scope, heft__expr_t *expr, bool *per_match,
                                 heft_error_t *err)
{
    if (expr->kind == EXPR_NAME) {
        return resolve_name(scope, expr, per_match, err);
    }
    bool asks_names = expr->kind == EXPR_CALL && (expr->op == OP_HAS || expr->op == OP_COUNT);
    if (asks_names && expr->left->kind != EXPR_WORD) {
        return heft__recipe_error(scope->recipe, expr->pos, HEFT_ERR_SYNTAX, err,
                                  "%s() takes a pattern in quotes",
                                  expr->op == OP_HAS ? "has" : "count");
    }
    if (expr->kind == EXPR_CALL && expr->op == OP_FLAG && expr->left->kind != EXPR_ENV) {
        return heft__recipe_error(scope->recipe, expr->pos, HEFT_ERR_SYNTAX, err,
                                  "flag() takes env.NAME");
    }
    if (expr->kind == EXPR_CALL && expr->op == OP_ROLLOUT_TP &&
        (expr->left->kind != EXPR_CONFIG || expr->right->kind != EXPR_ENV)) {
        return heft__recipe_error(scope->recipe, expr->pos, HEFT_ERR_SYNTAX, err,
                                  "rollout_tp() takes config.KEY and env.NAME");
    }
    heft_status_t status = HEFT_OK;
    if (expr->left != NULL) {
        status = heft__resolve_expr(scope, expr->left, per_match, err);
    }
    if (status == HEFT_OK && expr->right != NULL) {
        status = heft__resolve_expr(scope, expr->right, per_match, err);
    }
    return status;
}

/* Take what went wrong; false: one cannot go on. */
static bool take(heft__faults_t *faults, heft_status_t status, heft_error_t *inner)
{
    bool goes_on = heft__faults_take(faults, status, inner);
    heft__error_reset(inner);
    return goes_on;
}

static bool resolve_steps(heft_recipe_t *recipe, heft__faults_t *faults, heft_error_t *inner)
{
    bool has_rank = false;
    for (size_t i = 0; i < recipe->n_steps; i++) {
        const heft__step_t *step = &recipe->steps[i];
        bool per_match = false;
        if (step->expr != NULL) {
            heft__scope_t scope = { .recipe = recipe, .n_lets = step->let, .has_rank = has_rank };
            heft_status_t status = heft__resolve_expr(&scope, step->expr, &per_match, inner);
            if (!take(faults, status, inner)) {
                return false;
            }
        }
        has_rank = has_rank || step->kind == STEP_RANKS;
    }
    return true;
}

static heft_status_t check_rank_name(const heft_recipe_t *recipe, heft_error_t *err)
{
    for (size_t i = 0; recipe->rank_name != NULL && i < recipe->n_lets; i++) {
        if (strcmp(recipe->lets[i].name, recipe->rank_name) == 0) {
            return heft__recipe_error(recipe, recipe->lets[i].pos, HEFT_ERR_SYNTAX, err,
                                      "`%s` is the name of the rank", recipe->rank_name);
        }
    }
    return HEFT_OK;
}

static bool resolve_policy(const heft_recipe_t *recipe, heft__faults_t *faults, heft_error_t *inner)
{
    const heft__policy_t *policy = &recipe->policy;
    bool per_match = false;
    heft__scope_t scope = { .recipe = recipe,
                            .n_lets = recipe->n_lets,
                            .has_rank = recipe->rank_name != NULL };
    const heft__expr_t *done = NULL; /* patterns of one `except` share their `when` */
    for (size_t i = 0; i < policy->n_except; i++) {
        heft__expr_t *when = policy->except[i].when;
        if (when != NULL && when != done &&
            !take(faults, heft__resolve_expr(&scope, when, &per_match, inner), inner)) {
            return false;
        }
        done = when;
    }
    scope.is_dtype = true;
    return policy->dtype == NULL ||
           take(faults, heft__resolve_expr(&scope, policy->dtype, &per_match, inner), inner);
}

static bool resolve_exceptions(const heft_recipe_t *recipe, heft__faults_t *faults,
                               heft_error_t *inner)
{
    const heft__expr_t *done = NULL;
    heft__scope_t scope = { .recipe = recipe, .n_lets = recipe->n_lets };
    for (size_t i = 0; i < recipe->n_exceptions; i++) {
        bool per_match = false;
        heft__expr_t *when = recipe->exception_lines[i].when;
        if (when != NULL && when != done &&
            !take(faults, heft__resolve_expr(&scope, when, &per_match, inner), inner)) {
            return false;
        }
        done = when;
        const heft__template_t *made_of = recipe->exception_lines[i].made_of;
        for (uint32_t k = 0; made_of != NULL && k < made_of->n_pieces; k++) {
            heft__expr_t *expr = made_of->pieces[k].expr;
            if (expr != NULL &&
                !take(faults, heft__resolve_expr(&scope, expr, &per_match, inner), inner)) {
                return false;
            }
        }
    }
    return true;
}

static bool resolve_attrs(const heft_recipe_t *recipe, heft__faults_t *faults, heft_error_t *inner)
{
    heft__scope_t scope = { .recipe = recipe,
                            .n_lets = recipe->n_lets,
                            .has_rank = recipe->rank_name != NULL };
    for (size_t i = 0; i < recipe->n_attr_lines; i++) {
        bool per_match = false;
        const heft__attr_line_t *line = recipe->attr_lines[i];
        if (line->when != NULL &&
            !take(faults, heft__resolve_expr(&scope, line->when, &per_match, inner), inner)) {
            return false;
        }
        for (uint32_t k = 0; k < line->n_items; k++) {
            heft__expr_t *value = line->items[k].value;
            if (!take(faults, heft__resolve_expr(&scope, value, &per_match, inner), inner)) {
                return false;
            }
        }
    }
    return true;
}

heft_status_t heft__resolve(heft_recipe_t *recipe, heft__faults_t *faults)
{
    heft_error_t inner = HEFT_ERROR_INIT;
    bool goes_on =
        take(faults, check_rank_name(recipe, &inner), &inner) &&
        resolve_steps(recipe, faults, &inner) && resolve_policy(recipe, faults, &inner) &&
        resolve_exceptions(recipe, faults, &inner) && resolve_attrs(recipe, faults, &inner);
    for (size_t i = 0; goes_on && i < recipe->n_refusals; i++) {
        goes_on = take(faults, heft__resolve_rule(recipe, recipe->refusals[i], &inner), &inner);
    }
    for (size_t i = 0; goes_on && i < recipe->n_rules; i++) {
        goes_on = take(faults, heft__resolve_rule(recipe, recipe->rules[i], &inner), &inner);
    }
    return heft__faults_status(faults, NULL);
}

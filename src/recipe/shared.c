/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compiling many ranks of one recipe has in common: source names in tokens, which of them a
 * pattern matches, how often has() and count() are answered with yes, and what `when` comes to for
 * each match. Everything is kept with what it was made of (the text of a pattern with its values,
 * the values of lets), compared again for every rank, and made anew where that differs; so nothing
 * here needs to know what depends on the rank. What cannot be kept so is asked match by match.
 */
#include "recipe/shared.h"

#include <stdlib.h>
#include <string.h>

/* An expression whose lets differ for every rank is not worth keeping. */
#define MAX_MISSES 3

/* ---- life ---- */

static void verdicts_fini(heft__verdicts_t *v)
{
    heft__free(v->lets);
    heft__free(v->values);
    heft__free(v->order);
    *v = (heft__verdicts_t){ .of = NULL };
}

static void matches_fini(heft__matches_t *matches, size_t n)
{
    for (size_t i = 0; matches != NULL && i < n; i++) {
        heft__free(matches[i].text);
        heft__free(matches[i].names);
        heft__free(matches[i].captures);
        verdicts_fini(&matches[i].verdicts);
    }
    heft__free(matches);
}

heft_status_t heft__shared_init(heft__shared_t *shared, const heft_recipe_t *recipe,
                                const heft_manifest_t *source, heft_error_t *err)
{
    *shared = (heft__shared_t){ .recipe = recipe };
    shared->rules = heft__calloc(recipe->n_rules + 1, sizeof *shared->rules);
    shared->refusals = heft__calloc(recipe->n_refusals + 1, sizeof *shared->refusals);
    shared->ignores = heft__calloc(recipe->n_exceptions + 1, sizeof *shared->ignores);
    if (shared->rules == NULL || shared->refusals == NULL || shared->ignores == NULL) {
        return heft__error_nomem(err, recipe->n_rules * sizeof *shared->rules);
    }
    return heft__names_init(&shared->names, source, err);
}

void heft__shared_fini(heft__shared_t *shared)
{
    if (shared->recipe != NULL) {
        matches_fini(shared->rules, shared->recipe->n_rules);
        matches_fini(shared->refusals, shared->recipe->n_refusals);
        matches_fini(shared->ignores, shared->recipe->n_exceptions);
    }
    heft__names_fini(&shared->names);
    *shared = (heft__shared_t){ .recipe = NULL };
}

void heft__shared_begin(heft__shared_t *shared)
{
    for (uint32_t i = 0; i < shared->names.n && shared->n_runs > 0; i++) {
        heft__name_t *name = &shared->names.items[i];
        name->buffer = HEFT__NO_BUFFER;
        name->is_ignored = false;
        name->is_used = false;
        name->is_refused = false;
    }
    shared->n_runs++;
}

/* ---- matches ---- */

/* Whether these are the matches of this text already; if not, there are none now. */
static heft_status_t take_text(heft__matches_t *m, const char *text, bool *known_out,
                               heft_error_t *err)
{
    *known_out = m->text != NULL && strcmp(m->text, text) == 0;
    if (*known_out) {
        m->n_uses++;
        return HEFT_OK;
    }
    heft__free(m->text);
    verdicts_fini(&m->verdicts);
    m->n = 0;
    m->n_uses = 0;
    m->n_misses = 0;
    m->text = heft__strdup(text);
    return m->text != NULL ? HEFT_OK : heft__error_nomem(err, strlen(text) + 1);
}

static heft_status_t add_match(heft__matches_t *m, uint32_t name, const heft__span_t *captures,
                               heft_error_t *err)
{
    const uint32_t n = m->n_captures;
    heft_status_t status = HEFT__GROW(m->names, m->cap_names, m->n + 1, err);
    if (status == HEFT_OK) {
        status = HEFT__GROW(m->captures, m->cap_captures, (m->n + 1) * n + 1, err);
    }
    if (status == HEFT_OK) {
        for (uint32_t k = 0; k < n; k++) {
            m->captures[m->n * n + k] = captures[k];
        }
        m->names[m->n++] = name;
    }
    return status;
}

/* What is not complete is not known. */
static heft_status_t forget(heft__matches_t *m, heft_status_t status)
{
    if (status != HEFT_OK) {
        heft__free(m->text);
        m->text = NULL;
    }
    return status;
}

heft_status_t heft__shared_match(heft__shared_t *shared, heft__matches_t *m,
                                 const heft__pattern_t *pattern, uint32_t n_captures,
                                 heft_error_t *err)
{
    heft__span_t captures[HEFT__MAX_CAPTURES] = { { NULL, 0 } };
    const heft__names_t *names = &shared->names;
    const heft__tail_key_t tail = heft__pattern_tail_key(pattern);
    bool is_known = false;
    heft_status_t status = take_text(m, pattern->text, &is_known, err);
    m->n_captures = n_captures;
    for (uint32_t i = 0; i < names->n && status == HEFT_OK && !is_known; i++) {
        if ((names->keys[i] & tail.mask) == tail.key &&
            heft__pattern_match(pattern, &names->items[i], captures)) {
            status = add_match(m, i, captures, err);
        }
    }
    return forget(m, status);
}

heft_status_t heft__shared_match_exception(heft__shared_t *shared, size_t exception,
                                           const heft__text_t *text, const heft__matches_t **out,
                                           heft_error_t *err)
{
    const heft__span_t none[HEFT__MAX_CAPTURES] = { { NULL, 0 } };
    heft__matches_t *m = &shared->ignores[exception];
    bool is_known = false;
    m->n_captures = 0;
    heft_status_t status = take_text(m, text->data, &is_known, err);
    for (uint32_t i = 0; i < shared->names.n && status == HEFT_OK && !is_known; i++) {
        if (heft__exception_matches(shared->recipe, exception, text, &shared->names.items[i])) {
            status = add_match(m, i, none, err);
        }
    }
    *out = m;
    return forget(m, status);
}

/* ---- what an expression depends on ---- */

enum {
    ON_MATCH = 1, /* captures */
    ON_ROUND = 2, /* loops, axes */
    ON_RANK = 4   /* the rank itself, or its destination; what lets come to is compared */
};

static unsigned depends_on(const heft__expr_t *expr)
{
    unsigned on = 0;
    if (expr == NULL) {
        return 0;
    }
    if (expr->kind == EXPR_CAPTURE) {
        on = ON_MATCH;
    } else if (expr->kind == EXPR_LOOP || expr->kind == EXPR_AXIS) {
        on = ON_ROUND;
    } else if (expr->kind == EXPR_RANK || expr->kind == EXPR_DEST) {
        on = ON_RANK;
    }
    return on | depends_on(expr->left) | depends_on(expr->right);
}

/* A word or a list is borrowed from somewhere: it is not known how long. */
static bool is_plain(const heft__value_t *value)
{
    return value->kind == VALUE_INT || value->kind == VALUE_REAL || value->kind == VALUE_BOOL;
}

static bool is_same(const heft__value_t *a, const heft__value_t *b)
{
    return a->kind == b->kind &&
           (a->kind == VALUE_REAL ? a->real == b->real : a->integer == b->integer);
}

/* Whether the lets in it have the values they had (then: NULL: only whether they can be kept). */
static bool has_same_lets(const heft__expr_t *expr, const heft__value_t *now,
                          const heft__value_t *then)
{
    if (expr == NULL) {
        return true;
    }
    if (expr->kind == EXPR_LET &&
        (!is_plain(&now[expr->index]) ||
         (then != NULL && !is_same(&now[expr->index], &then[expr->index])))) {
        return false;
    }
    return has_same_lets(expr->left, now, then) && has_same_lets(expr->right, now, then);
}

/* ---- what `when` comes to ---- */

/* `when` as KEY == WANTED, where KEY alone depends on the match and WANTED alone on the rank; what
 * stands beside it does not depend on the match. */
typedef struct split {
    const heft__expr_t *key;
    const heft__expr_t *wanted; /* NULL: true */
} split_t;

static bool can_be_key(const heft__expr_t *expr)
{
    return depends_on(expr) == ON_MATCH;
}

static bool can_be_wanted(const heft__expr_t *expr)
{
    return (depends_on(expr) & (ON_MATCH | ON_ROUND)) == 0;
}

static bool holds(const heft__env_t *env, const heft__expr_t *expr)
{
    bool is_true = false;
    return heft__eval_bool(env, expr, &is_true, NULL) == HEFT_OK && is_true;
}

static bool split_when(const heft__env_t *env, const heft__expr_t *when, split_t *out)
{
    const bool is_binary = when->kind == EXPR_BINARY;
    if (is_binary && when->op == OP_EQ && can_be_key(when->left) && can_be_wanted(when->right)) {
        *out = (split_t){ when->left, when->right };
        return true;
    }
    if (is_binary && when->op == OP_EQ && can_be_key(when->right) && can_be_wanted(when->left)) {
        *out = (split_t){ when->right, when->left };
        return true;
    }
    if (is_binary && when->op == OP_AND && can_be_wanted(when->left)) {
        return holds(env, when->left) && split_when(env, when->right, out);
    }
    if (is_binary && when->op == OP_AND && can_be_wanted(when->right)) {
        return holds(env, when->right) && split_when(env, when->left, out);
    }
    *out = (split_t){ when, NULL };
    return can_be_key(when);
}

/* Ascending by value, then as matched. */
static int by_value(const void *x, const void *y)
{
    const heft__verdict_t *a = x;
    const heft__verdict_t *b = y;
    if (a->value != b->value) {
        return a->value < b->value ? -1 : 1;
    }
    return a->match < b->match ? -1 : a->match > b->match;
}

/* The key of every match. False: one has none, or another kind than is wanted. */
static bool eval_keys(heft__env_t *env, const heft__matches_t *m, const heft__expr_t *key,
                      heft__value_kind_t kind, heft__verdict_t *values)
{
    const heft__span_t *captures = env->captures;
    bool is_good = true;
    for (size_t k = 0; k < m->n && is_good; k++) {
        heft__value_t value = { 0 };
        env->captures = &m->captures[k * m->n_captures];
        is_good = heft__eval(env, key, &value, NULL) == HEFT_OK && value.kind == kind;
        values[k] = (heft__verdict_t){ .value = value.integer, .match = (uint32_t)k };
    }
    env->captures = captures;
    return is_good;
}

static bool make_verdicts(heft__env_t *env, heft__matches_t *m, const split_t *split)
{
    const size_t n_lets = env->recipe->n_lets;
    heft__verdicts_t *v = &m->verdicts;
    verdicts_fini(v);
    v->lets = heft__calloc(n_lets + 1, sizeof *v->lets);
    v->values = heft__calloc(m->n + 1, sizeof *v->values);
    v->order = heft__calloc(m->n + 1, sizeof *v->order);
    v->of = split->key;
    if (v->lets == NULL || v->values == NULL || v->order == NULL) {
        verdicts_fini(v);
        return false; /* it goes without */
    }
    memcpy(v->lets, env->lets, n_lets * sizeof *v->lets);
    v->is_good =
        eval_keys(env, m, split->key, split->wanted != NULL ? VALUE_INT : VALUE_BOOL, v->values);
    if (v->is_good) {
        qsort(v->values, m->n, sizeof *v->values, by_value);
        for (size_t k = 0; k < m->n; k++) {
            v->order[k] = v->values[k].match;
        }
    }
    return v->is_good;
}

static size_t first_not_below(const heft__verdict_t *values, size_t n, int64_t wanted)
{
    size_t low = 0;
    while (low < n) {
        const size_t middle = low + (n - low) / 2;
        if (values[middle].value < wanted) {
            low = middle + 1;
        } else {
            n = middle;
        }
    }
    return low;
}

static bool get_wanted(const heft__env_t *env, const split_t *split, int64_t *out)
{
    *out = 1;
    return split->wanted == NULL || heft__eval_int(env, split->wanted, out, NULL) == HEFT_OK;
}

bool heft__shared_pick(heft__env_t *env, heft__matches_t *m, const heft__expr_t *when,
                       const uint32_t **picked_out, size_t *n_out)
{
    split_t split;
    int64_t wanted = 0;
    const heft__verdicts_t *v = &m->verdicts;
    if (when == NULL || m->n_uses == 0 || !split_when(env, when, &split) ||
        !has_same_lets(split.key, env->lets, NULL) || !get_wanted(env, &split, &wanted)) {
        return false;
    }
    const bool is_made = v->of == split.key && has_same_lets(split.key, env->lets, v->lets);
    m->n_misses = is_made ? 0 : m->n_misses + 1;
    if (m->n_misses > MAX_MISSES || (is_made ? !v->is_good : !make_verdicts(env, m, &split))) {
        return false;
    }
    const size_t first = first_not_below(v->values, m->n, wanted);
    size_t end = first;
    while (end < m->n && v->values[end].value == wanted) {
        end++;
    }
    *picked_out = &v->order[first];
    *n_out = end - first;
    return true;
}

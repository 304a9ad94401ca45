/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recipe: statements, one after the other, and its life.
 */
#include "recipe/chain.h"

#include <stdio.h>
#include <string.h>

#define MAX_TEXT_BYTES (1u << 20)

static bool grow(heft__parser_t *p, void **items, size_t *cap, size_t need, size_t item_bytes)
{
    if (!heft__grow(items, cap, need, item_bytes)) {
        (void)heft__parse_nomem(p);
        return false;
    }
    return true;
}

static heft_status_t add_step(heft__parser_t *p, heft__step_t step)
{
    heft_recipe_t *recipe = p->recipe;
    void *items = recipe->steps;
    if (!grow(p, &items, &recipe->cap_steps, recipe->n_steps + 1, sizeof step)) {
        return HEFT_ERR_NOMEM;
    }
    recipe->steps = items;
    recipe->steps[recipe->n_steps++] = step;
    return HEFT_OK;
}

static heft_status_t add_let(heft__parser_t *p, heft__let_t let)
{
    heft_recipe_t *recipe = p->recipe;
    void *items = recipe->lets;
    if (!grow(p, &items, &recipe->cap_lets, recipe->n_lets + 1, sizeof let)) {
        return HEFT_ERR_NOMEM;
    }
    recipe->lets = items;
    recipe->lets[recipe->n_lets] = let;
    heft__step_t step = {
        .kind = STEP_LET, .pos = let.pos, .let = (uint32_t)recipe->n_lets, .expr = let.value
    };
    recipe->n_lets++;
    return add_step(p, step);
}

/* NAME [= EXPR], or NAME(NAME, ..) = EXPR */
static heft_status_t parse_one_let(heft__parser_t *p)
{
    static const char *const taken[] = { "config", "dest", "env", "true",
                                         "false",  "and",  "or",  "not" };
    heft_recipe_t *recipe = p->recipe;
    heft__let_t let = { .pos = p->at->pos };
    if (p->at->kind != TOKEN_NAME) {
        return heft__parse_expected(p, "a name");
    }
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        if (heft__parse_is_word(p, taken[i])) {
            return heft__parse_expected(p, "a name that the language does not use itself");
        }
    }
    let.name = heft__parse_dup(p, p->at->text);
    if (let.name == NULL) {
        return HEFT_ERR_NOMEM;
    }
    for (size_t i = 0; i < recipe->n_lets; i++) {
        if (strcmp(recipe->lets[i].name, let.name) == 0) {
            return heft__recipe_error(recipe, let.pos, HEFT_ERR_SYNTAX, p->err,
                                      "`let %s` stands on line %u already", let.name,
                                      (unsigned)recipe->lets[i].pos.line);
        }
    }
    p->at++;
    if (p->at->kind == TOKEN_LPAREN) {
        return heft__parse_function(p, let.name, let.pos);
    }
    heft_status_t status = HEFT_OK;
    if (heft__parse_accept(p, TOKEN_ASSIGN)) {
        status = heft__parse_expr(p, &let.value);
    }
    return status == HEFT_OK ? add_let(p, let) : status;
}

static heft_status_t parse_let(heft__parser_t *p)
{
    heft_status_t status;
    do {
        status = parse_one_let(p);
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

static heft_status_t parse_ranks(heft__parser_t *p, heft__pos_t pos)
{
    heft_recipe_t *recipe = p->recipe;
    heft__step_t step = { .kind = STEP_RANKS, .pos = pos, .let = (uint32_t)recipe->n_lets };
    if (recipe->rank_name != NULL) {
        return heft__recipe_error(recipe, pos, HEFT_ERR_SYNTAX, p->err, "a second `ranks`");
    }
    heft_status_t status = heft__parse_expr(p, &step.expr);
    if (status == HEFT_OK && !heft__parse_accept_word(p, "as")) {
        status = heft__parse_expected(p, "`as` and a name for the rank");
    }
    if (status == HEFT_OK && p->at->kind != TOKEN_NAME) {
        status = heft__parse_expected(p, "a name for the rank");
    }
    if (status != HEFT_OK) {
        return status;
    }
    step.text = heft__parse_dup(p, p->at->text);
    recipe->rank_name = step.text;
    p->at++;
    return step.text == NULL ? HEFT_ERR_NOMEM : add_step(p, step);
}

static heft_status_t parse_require(heft__parser_t *p, heft__pos_t pos)
{
    heft__step_t step = { .kind = STEP_REQUIRE, .pos = pos, .let = (uint32_t)p->recipe->n_lets };
    heft_status_t status = heft__parse_expr(p, &step.expr);
    const heft__token_t *text = p->at;
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_STRING, "a message in quotes");
    }
    if (status != HEFT_OK) {
        return status;
    }
    step.text = heft__parse_dup(p, text->text);
    return step.text == NULL ? HEFT_ERR_NOMEM : add_step(p, step);
}

/* bf16, or `source` (keep what the source has), or the name of a let. */
static heft_status_t parse_policy_dtype(heft__parser_t *p, heft__policy_t *policy)
{
    char name[32] = "";
    if (p->at->kind == TOKEN_NAME && p->at->text.len < sizeof name) {
        memcpy(name, p->at->text.data, p->at->text.len);
    }
    policy->fixed = heft_dtype_from_name(name);
    if (policy->fixed == HEFT_DTYPE_NONE && !heft__parse_is_word(p, "source")) {
        return heft__parse_size(p, &policy->dtype);
    }
    p->at++;
    return HEFT_OK;
}

/* [optional] "pattern" [, "pattern"] [when EXPR], after `except` */
static heft_status_t parse_except(heft__parser_t *p, heft__policy_t *policy)
{
    size_t first = policy->n_except;
    bool is_optional = heft__parse_accept_word(p, "optional");
    heft__expr_t *when = NULL;
    heft_status_t status;
    do {
        const heft__token_t *name = p->at;
        status = heft__parse_token(p, TOKEN_STRING, "a pattern in quotes");
        void *items = policy->except;
        if (status == HEFT_OK &&
            !grow(p, &items, &policy->cap_except, policy->n_except + 1, sizeof *policy->except)) {
            status = HEFT_ERR_NOMEM;
        }
        if (status == HEFT_OK) {
            heft__except_t *except = &((heft__except_t *)items)[policy->n_except];
            policy->except = items;
            *except = (heft__except_t){ .is_optional = is_optional };
            status = heft__parse_pattern(p, NULL, name->text, name->pos, &except->pattern);
            policy->n_except++;
        }
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    if (status == HEFT_OK && heft__parse_accept_word(p, "when")) {
        status = heft__parse_expr(p, &when);
    }
    for (size_t i = first; i < policy->n_except && status == HEFT_OK; i++) {
        policy->except[i].when = when;
    }
    return status;
}

static heft_status_t parse_dtype(heft__parser_t *p, heft__pos_t pos)
{
    heft__policy_t *policy = &p->recipe->policy;
    if (policy->is_set) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "a second `dtype`: line %u has one", (unsigned)policy->pos.line);
    }
    policy->is_set = true;
    policy->pos = pos;
    heft_status_t status = parse_policy_dtype(p, policy);
    while (status == HEFT_OK && heft__parse_accept_word(p, "except")) {
        status = parse_except(p, policy);
    }
    return status;
}

/* [optional] [shared] RULE, or [optional] EXCEPTION */
static heft_status_t parse_rule_line(heft__parser_t *p)
{
    heft_recipe_t *recipe = p->recipe;
    bool is_optional = false;
    bool is_shared = false;
    for (;;) {
        if (!is_optional && heft__parse_accept_word(p, "optional")) {
            is_optional = true;
        } else if (!is_shared && heft__parse_accept_word(p, "shared")) {
            is_shared = true;
        } else {
            break;
        }
    }
    if (!is_shared && heft__parse_accept_word(p, "attr")) {
        return heft__parse_attr(p, is_optional);
    }
    heft_exception_kind_t kind = heft__parse_exception_at(p);
    if (kind != 0 && !is_shared) {
        p->at++;
        return heft__parse_exception(p, kind, is_optional);
    }
    if (p->at->kind != TOKEN_STRING) {
        return heft__parse_expected(p, "a statement (let, ranks, require, dtype, ignore, a rule, "
                                       "...)");
    }
    heft__rule_t *rule = NULL;
    heft_status_t status = heft__parse_rule(p, &rule);
    void *items = recipe->rules;
    if (status != HEFT_OK ||
        !grow(p, &items, &recipe->cap_rules, recipe->n_rules + 1, sizeof(void *))) {
        return status != HEFT_OK ? status : HEFT_ERR_NOMEM;
    }
    rule->is_optional = is_optional;
    rule->is_shared = is_shared;
    recipe->rules = items;
    recipe->rules[recipe->n_rules++] = rule;
    return HEFT_OK;
}

static heft_status_t parse_refuse(heft__parser_t *p)
{
    heft_recipe_t *recipe = p->recipe;
    heft__rule_t *rule = NULL;
    heft_status_t status = heft__parse_refusal(p, &rule);
    void *items = recipe->refusals;
    if (status != HEFT_OK ||
        !grow(p, &items, &recipe->cap_refusals, recipe->n_refusals + 1, sizeof(void *))) {
        return status != HEFT_OK ? status : HEFT_ERR_NOMEM;
    }
    recipe->refusals = items;
    recipe->refusals[recipe->n_refusals++] = rule;
    return HEFT_OK;
}

static heft_status_t parse_statement(heft__parser_t *p)
{
    heft__pos_t pos = p->at->pos;
    heft_status_t status;
    if (heft__parse_accept_word(p, "let")) {
        status = parse_let(p);
    } else if (heft__parse_accept_word(p, "ranks")) {
        status = parse_ranks(p, pos);
    } else if (heft__parse_accept_word(p, "require")) {
        status = parse_require(p, pos);
    } else if (heft__parse_accept_word(p, "dtype")) {
        status = parse_dtype(p, pos);
    } else if (heft__parse_accept_word(p, "refuse")) {
        status = parse_refuse(p);
    } else if (heft__parse_accept_word(p, "names")) {
        status = heft__parse_names(p, pos);
    } else {
        status = parse_rule_line(p);
    }
    if (status == HEFT_OK && p->at->kind != TOKEN_END) {
        status = heft__parse_token(p, TOKEN_NEWLINE, "the end of the line");
    }
    return status;
}

/* ---- going on after an error ---- */

/* A let or a rank whose statement failed is still known by its name, so that what uses it is not
 * called wrong as well. */
static heft_status_t keep_names(heft__parser_t *p, const heft__token_t *from)
{
    heft_recipe_t *recipe = p->recipe;
    bool is_let = from->text.len == 3 && memcmp(from->text.data, "let", 3) == 0;
    heft__parser_t at = { .recipe = recipe, .at = from + 1, .err = p->err };
    if (from->kind != TOKEN_NAME) {
        return HEFT_OK;
    }
    for (; is_let && at.at < p->at; at.at++) {
        if (at.at->kind != TOKEN_NAME || at.at[1].kind != TOKEN_ASSIGN) {
            continue;
        }
        const char *name = heft__parse_dup(p, at.at->text);
        if (name == NULL) {
            return HEFT_ERR_NOMEM;
        }
        heft_status_t status = heft__resolve_taken(recipe, NULL, name) != NULL
                                   ? HEFT_OK
                                   : add_let(p, (heft__let_t){ .name = name, .pos = at.at->pos });
        if (status != HEFT_OK) {
            return status;
        }
    }
    bool is_ranks = from->text.len == 5 && memcmp(from->text.data, "ranks", 5) == 0;
    for (; is_ranks && recipe->rank_name == NULL && at.at < p->at; at.at++) {
        if (heft__parse_is_word(&at, "as") && at.at[1].kind == TOKEN_NAME) {
            recipe->rank_name = heft__parse_dup(p, at.at[1].text);
            return recipe->rank_name != NULL ? HEFT_OK : HEFT_ERR_NOMEM;
        }
    }
    return HEFT_OK;
}

/* Behind the statement that began at `from` and failed. */
static heft_status_t skip_statement(heft__parser_t *p, const heft__token_t *from,
                                    heft_status_t failed, heft__faults_t *faults)
{
    bool is_bad = false; /* it holds what is no token, and that has been said */
    for (const heft__token_t *at = from; at < p->at; at++) {
        is_bad = is_bad || at->kind == TOKEN_BAD;
    }
    while (p->at->kind != TOKEN_NEWLINE && p->at->kind != TOKEN_END) {
        is_bad = is_bad || p->at->kind == TOKEN_BAD;
        p->at++;
    }
    heft_status_t status = keep_names(p, from);
    bool is_fatal = failed == HEFT_ERR_NOMEM || status != HEFT_OK;
    if ((is_fatal || !is_bad) &&
        !heft__faults_take(faults, is_fatal ? HEFT_ERR_NOMEM : failed, p->err)) {
        return HEFT_ERR_NOMEM;
    }
    p->depth = 0;
    (void)heft__parse_accept(p, TOKEN_NEWLINE);
    return HEFT_OK;
}

static heft_status_t parse_tokens(heft_recipe_t *recipe, const heft__tokens_t *tokens,
                                  heft__faults_t *faults, heft_error_t *err)
{
    heft__parser_t p = { .recipe = recipe, .at = tokens->items, .err = err };
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && p.at->kind != TOKEN_END) {
        const heft__token_t *from = p.at;
        heft_status_t failed = parse_statement(&p);
        if (failed != HEFT_OK) {
            status = skip_statement(&p, from, failed, faults);
        }
    }
    return status;
}

static heft_status_t parse_all(heft_recipe_t *recipe, size_t n, heft_issues_t *issues,
                               heft_error_t *err)
{
    heft__faults_t faults;
    heft__tokens_t tokens = { 0 };
    heft_error_t inner = HEFT_ERROR_INIT;
    heft__faults_init(&faults, recipe, issues, true);
    heft_status_t status =
        heft__lex(recipe, (heft__span_t){ recipe->text, n },
                  (heft__pos_t){ .line = 1, .column = 1 }, &faults, &tokens, &inner);
    if (status == HEFT_OK) {
        status = parse_tokens(recipe, &tokens, &faults, &inner);
    } else {
        (void)heft__faults_take(&faults, status, &inner);
    }
    heft__tokens_fini(&tokens);
    if (status == HEFT_OK && recipe->n_rules == 0 && faults.n == 0) {
        status =
            heft__error_set(&inner, HEFT_ERR_SYNTAX,
                            "recipe \"%s\" has no rule: nothing would be converted", recipe->name);
        (void)heft__faults_take(&faults, status, &inner);
    }
    if (status == HEFT_OK) {
        (void)heft__resolve(recipe, &faults);
    }
    return heft__faults_status(&faults, err);
}

heft_status_t heft_recipe_parse(const char *name, const char *text, size_t n,
                                heft_recipe_t **recipe_out, heft_error_t *err)
{
    return heft_recipe_parse_all(name, text, n, NULL, recipe_out, err);
}

heft_status_t heft_recipe_parse_all(const char *name, const char *text, size_t n,
                                    heft_issues_t *issues, heft_recipe_t **recipe_out,
                                    heft_error_t *err)
{
    if (name == NULL || (text == NULL && n > 0) || recipe_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "recipe without a name, text or output");
    }
    if (n > MAX_TEXT_BYTES) {
        return heft__error_set(err, HEFT_ERR_LIMIT, "recipe \"%s\" has %zu bytes, at most %u", name,
                               n, MAX_TEXT_BYTES);
    }
    if (n > 0 && memchr(text, '\0', n) != NULL) {
        return heft__error_set(err, HEFT_ERR_SYNTAX, "recipe \"%s\" holds a zero byte", name);
    }
    heft_recipe_t *recipe = heft__calloc(1, sizeof *recipe);
    if (recipe == NULL) {
        return heft__error_nomem(err, sizeof *recipe);
    }
    heft__arena_init(&recipe->arena, 4096);
    recipe->name = heft__arena_strndup(&recipe->arena, name, strlen(name));
    recipe->text = heft__arena_strndup(&recipe->arena, text == NULL ? "" : text, n);
    heft_status_t status;
    if (recipe->name == NULL || recipe->text == NULL) {
        status = heft__error_nomem(err, n);
    } else if (heft__chain_is_chain(recipe->text, n)) {
        status = heft__chain_parse(recipe, n, issues, err);
    } else {
        status = parse_all(recipe, n, issues, err);
    }
    if (status != HEFT_OK) {
        heft_recipe_destroy(recipe);
        return status;
    }
    *recipe_out = recipe;
    return HEFT_OK;
}

void heft_recipe_destroy(heft_recipe_t *recipe)
{
    if (recipe == NULL) {
        return;
    }
    for (uint32_t p = 0; p < recipe->n_parts; p++) {
        heft_recipe_destroy(recipe->parts[p]);
    }
    json_decref(recipe->lists);
    heft__free(recipe->lets);
    heft__free(recipe->variables);
    heft__free(recipe->config_keys);
    heft__free(recipe->attr_lines);
    heft__free(recipe->functions);
    heft__free(recipe->steps);
    heft__free(recipe->rules);
    heft__free(recipe->refusals);
    heft__free(recipe->policy.except);
    heft__free(recipe->exceptions);
    heft__free(recipe->exception_lines);
    heft__arena_fini(&recipe->arena);
    heft__free(recipe);
}

const char *heft_recipe_get_text(const heft_recipe_t *recipe)
{
    return recipe->text;
}

const char *heft_recipe_get_name(const heft_recipe_t *recipe)
{
    return recipe->name;
}

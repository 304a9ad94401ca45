/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `let f(a, b) = EXPR`: a formula with a name. A call is replaced by the formula, with the
 * arguments where the parameters stand, while it is parsed; what comes afterwards never sees a
 * function. A formula uses its parameters, what stands before it, and nothing else, so that it
 * means the same wherever it is called.
 */
#include "recipe/syntax.h"

#include <string.h>

/* A formula in a formula in a formula multiplies: nodes of what one call becomes. */
#define MAX_NODES 4096

static heft__function_t *find(const heft_recipe_t *recipe, heft__span_t name)
{
    for (size_t i = 0; i < recipe->n_functions; i++) {
        heft__function_t *f = &recipe->functions[i];
        if (strlen(f->name) == name.len && memcmp(f->name, name.data, name.len) == 0) {
            return f;
        }
    }
    return NULL;
}

/* ---- declaring ---- */

static int32_t parameter(const heft__function_t *f, const char *name)
{
    for (uint32_t i = 0; i < f->n_params; i++) {
        if (strcmp(f->params[i], name) == 0) {
            return (int32_t)i;
        }
    }
    return HEFT__NONE;
}

static heft_status_t parse_params(heft__parser_t *p, heft__function_t *f)
{
    do {
        if (p->at->kind != TOKEN_NAME) {
            return heft__parse_expected(p, "the name of a parameter");
        }
        if (f->n_params == HEFT__MAX_PARTS) {
            return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_LIMIT, p->err,
                                      "more than %d parameters", HEFT__MAX_PARTS);
        }
        char *name = heft__parse_dup(p, p->at->text);
        if (name == NULL) {
            return HEFT_ERR_NOMEM;
        }
        const char *taken = heft__resolve_taken(p->recipe, NULL, name);
        if (taken != NULL || parameter(f, name) != HEFT__NONE) {
            return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_SYNTAX, p->err,
                                      "parameter `%s` has the name of a %s", name,
                                      taken != NULL ? taken : "parameter before it");
        }
        f->params[f->n_params++] = name;
        p->at++;
    } while (heft__parse_accept(p, TOKEN_COMMA));
    return heft__parse_token(p, TOKEN_RPAREN, "`,` or `)`");
}

/* Parameters get their numbers; other names must be known already. */
static heft_status_t bind(heft__parser_t *p, const heft__function_t *f, heft__expr_t *expr)
{
    if (expr == NULL) {
        return HEFT_OK;
    }
    if (expr->kind == EXPR_NAME) {
        expr->index = parameter(f, expr->text);
        if (expr->index == HEFT__NONE && heft__resolve_taken(p->recipe, NULL, expr->text) == NULL) {
            return heft__recipe_error(p->recipe, expr->pos, HEFT_ERR_SYNTAX, p->err,
                                      "`%s` is no parameter of `%s` and no let before it",
                                      expr->text, f->name);
        }
    }
    heft_status_t status = bind(p, f, expr->left);
    return status == HEFT_OK ? bind(p, f, expr->right) : status;
}

heft_status_t heft__parse_function(heft__parser_t *p, const char *name, heft__pos_t pos)
{
    heft_recipe_t *recipe = p->recipe;
    heft__function_t f = { .name = name, .pos = pos };
    const heft__function_t *other = find(recipe, (heft__span_t){ name, strlen(name) });
    if (other != NULL || heft__parse_has_function(name)) {
        return heft__recipe_error(recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "there is a function `%s` already", name);
    }
    heft_status_t status = heft__parse_token(p, TOKEN_LPAREN, "`(`");
    if (status == HEFT_OK) {
        status = parse_params(p, &f);
    }
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_ASSIGN, "`=` and a formula");
    }
    if (status == HEFT_OK) {
        status = heft__parse_expr(p, &f.body);
    }
    if (status == HEFT_OK) {
        status = bind(p, &f, f.body);
    }
    if (status != HEFT_OK) {
        return status;
    }
    void *items = recipe->functions;
    if (!heft__grow(&items, &recipe->cap_functions, recipe->n_functions + 1, sizeof f)) {
        return heft__parse_nomem(p);
    }
    recipe->functions = items;
    recipe->functions[recipe->n_functions++] = f;
    return HEFT_OK;
}

/* ---- calling ---- */

typedef struct call {
    heft__parser_t *p;
    const heft__function_t *function;
    heft__pos_t pos;
    heft__expr_t *args[HEFT__MAX_PARTS];
    uint32_t n_args;
    uint32_t n_nodes;
} call_t;

static heft_status_t parse_args(call_t *call)
{
    heft__parser_t *p = call->p;
    do {
        if (call->n_args == HEFT__MAX_PARTS) {
            return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_LIMIT, p->err,
                                      "more than %d arguments", HEFT__MAX_PARTS);
        }
        heft_status_t status = heft__parse_expr(p, &call->args[call->n_args]);
        if (status != HEFT_OK) {
            return status;
        }
        call->n_args++;
    } while (heft__parse_accept(p, TOKEN_COMMA));
    heft_status_t status = heft__parse_token(p, TOKEN_RPAREN, "`,` or `)`");
    if (status == HEFT_OK && call->n_args != call->function->n_params) {
        status = heft__recipe_error(
            p->recipe, call->pos, HEFT_ERR_SYNTAX, p->err, "`%s` takes %u argument%s, not %u",
            call->function->name, (unsigned)call->function->n_params,
            call->function->n_params == 1 ? "" : "s", (unsigned)call->n_args);
    }
    return status;
}

/* A copy of the tree; where `function` is not NULL, with arguments in place of its parameters. */
static heft_status_t copy(call_t *call, const heft__expr_t *from, bool is_body, heft__expr_t **out)
{
    if (is_body && from->kind == EXPR_NAME && from->index != HEFT__NONE) {
        heft_status_t status = copy(call, call->args[from->index], false, out);
        if (status == HEFT_OK) {
            (*out)->is_closed = true; /* an argument is one value, whatever follows it */
        }
        return status;
    }
    heft__parser_t *p = call->p;
    if (++call->n_nodes > MAX_NODES) {
        return heft__recipe_error(p->recipe, call->pos, HEFT_ERR_LIMIT, p->err,
                                  "`%s` is more than %d operations here", call->function->name,
                                  MAX_NODES);
    }
    heft__expr_t *expr = heft__arena_calloc(&p->recipe->arena, 1, sizeof *expr);
    if (expr == NULL) {
        return heft__parse_nomem(p);
    }
    *expr = *from;
    *out = expr;
    heft_status_t status = HEFT_OK;
    if (from->left != NULL) {
        status = copy(call, from->left, is_body, &expr->left);
    }
    if (status == HEFT_OK && from->right != NULL) {
        status = copy(call, from->right, is_body, &expr->right);
    }
    return status == HEFT_OK ? heft__parse_set_height(p, expr) : status;
}

bool heft__parse_is_call(const heft__parser_t *p)
{
    return p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_LPAREN &&
           find(p->recipe, p->at->text) != NULL;
}

heft_status_t heft__parse_call(heft__parser_t *p, heft__expr_t **out)
{
    call_t call = { .p = p, .function = find(p->recipe, p->at->text), .pos = p->at->pos };
    /* a call in an argument is parsed with a pointer to the functions, which do not grow meanwhile
     */
    p->at += 2;
    heft_status_t status = heft__parse_enter(p);
    if (status != HEFT_OK) {
        return status;
    }
    status = parse_args(&call);
    p->depth--;
    if (status == HEFT_OK) {
        status = copy(&call, call.function->body, true, out);
    }
    if (status == HEFT_OK) {
        (*out)->is_closed = true;
    }
    return status;
}

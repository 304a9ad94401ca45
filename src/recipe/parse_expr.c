/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expressions, and what all parsers share.
 *
 * Precedence, loosest first: or, and, not, comparison, + -, * / %, unary minus. `or` directly
 * after config.KEY or dest.KEY is the default for an absent key; elsewhere it is the logical or.
 */
#include "recipe/syntax.h"

#include <stdio.h>
#include <string.h>

/* ---- helpers of all parsers ---- */

heft_status_t heft__parse_nomem(heft__parser_t *p)
{
    return heft__error_set(p->err, HEFT_ERR_NOMEM, "out of memory while parsing \"%s\"",
                           p->recipe->name);
}

heft_status_t heft__parse_expected(heft__parser_t *p, const char *wanted)
{
    char found[64];
    return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_SYNTAX, p->err,
                              "%s expected, found %s", wanted, heft__token_text(p->at, found));
}

heft_status_t heft__parse_token(heft__parser_t *p, heft__token_kind_t kind, const char *wanted)
{
    return heft__parse_accept(p, kind) ? HEFT_OK : heft__parse_expected(p, wanted);
}

bool heft__parse_accept(heft__parser_t *p, heft__token_kind_t kind)
{
    if (p->at->kind != kind) {
        return false;
    }
    if (kind != TOKEN_END) {
        p->at++;
    }
    return true;
}

bool heft__parse_is_word(const heft__parser_t *p, const char *word)
{
    return p->at->kind == TOKEN_NAME && p->at->text.len == strlen(word) &&
           memcmp(p->at->text.data, word, p->at->text.len) == 0;
}

bool heft__parse_accept_word(heft__parser_t *p, const char *word)
{
    if (!heft__parse_is_word(p, word)) {
        return false;
    }
    p->at++;
    return true;
}

char *heft__parse_dup(heft__parser_t *p, heft__span_t text)
{
    char *copy = heft__arena_strndup(&p->recipe->arena, text.data, text.len);
    if (copy == NULL) {
        (void)heft__parse_nomem(p);
    }
    return copy;
}

heft_status_t heft__parse_enter(heft__parser_t *p)
{
    if (p->depth >= HEFT__MAX_DEPTH) {
        return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_SYNTAX, p->err,
                                  "nested deeper than %d", HEFT__MAX_DEPTH);
    }
    p->depth++;
    return HEFT_OK;
}

/* ---- expressions ---- */

static heft_status_t new_expr(heft__parser_t *p, heft__expr_kind_t kind, heft__expr_t **out)
{
    heft__expr_t *expr = heft__arena_calloc(&p->recipe->arena, 1, sizeof *expr);
    if (expr == NULL) {
        (void)heft__parse_nomem(p);
        return HEFT_ERR_NOMEM;
    }
    expr->kind = kind;
    expr->pos = p->at->pos;
    expr->index = HEFT__NONE;
    *out = expr;
    return HEFT_OK;
}

static heft_status_t parse_binary(heft__parser_t *p, int level, heft__expr_t **out);

/* The tree is walked recursively, so its height is bounded. */
heft_status_t heft__parse_set_height(heft__parser_t *p, heft__expr_t *expr)
{
    uint32_t left = expr->left != NULL ? expr->left->height : 0;
    uint32_t right = expr->right != NULL ? expr->right->height : 0;
    expr->height = 1 + (left > right ? left : right);
    return expr->height <= HEFT__MAX_HEIGHT ? HEFT_OK
                                            : heft__parse_expected(p, "a shorter expression");
}

/* `config` and `dest`: keys with dots between them, kept as one path. */
static heft_status_t parse_path(heft__parser_t *p, heft__expr_t *expr)
{
    p->at++;
    const char *begin = NULL;
    const char *end = NULL;
    while (heft__parse_accept(p, TOKEN_DOT)) {
        if (p->at->kind != TOKEN_NAME) {
            return heft__parse_expected(p, "a key");
        }
        begin = begin == NULL ? p->at->text.data : begin;
        end = p->at->text.data + p->at->text.len;
        p->at++;
    }
    if (begin == NULL) {
        return heft__parse_expected(p, "`.` and a key");
    }
    expr->text = heft__parse_dup(p, (heft__span_t){ begin, (size_t)(end - begin) });
    for (const char *c = begin; c < end; c++) {
        if (*c == ' ' || *c == '\t' || *c == '\n' || *c == '#') {
            return heft__recipe_error(p->recipe, expr->pos, HEFT_ERR_SYNTAX, p->err,
                                      "blanks inside a path of keys");
        }
    }
    return expr->text == NULL ? HEFT_ERR_NOMEM : HEFT_OK;
}

static const struct {
    const char *name;
    heft__op_t op;
    uint32_t n_args;
} functions[] = {
    { "min", OP_MIN, 2 },
    { "max", OP_MAX, 2 },
    { "ceil_div", OP_CEIL_DIV, 2 },
    { "sqrt", OP_SQRT, 1 },
    { "round_up", OP_ROUND_UP, 2 },
    { "has", OP_HAS, 1 },
    { "count", OP_COUNT, 1 },
    { "if", OP_IF, 3 },
    { "singular", OP_SINGULAR, 1 },
    { "len", OP_LEN, 1 },
    { "contains", OP_CONTAINS, 2 },
    { "index", OP_INDEX, 2 },
    { "expert_table", OP_EXPERT_TABLE, 3 },
    { "range", OP_RANGE, 1 },
    { "padded_size", OP_PADDED_SIZE, 3 },
    { "kv_repeat", OP_KV_REPEAT, 2 },
    { "rollout_tp", OP_ROLLOUT_TP, 2 },
    { "flag", OP_FLAG, 1 },
    { "bf16", OP_BF16, 1 },
};

bool heft__parse_has_function(const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static heft_status_t no_function(heft__parser_t *p, const heft__token_t *name)
{
    char known[200];
    size_t at = 0;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && at < sizeof known; i++) {
        int n =
            snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "", functions[i].name);
        at += n > 0 ? (size_t)n : 0;
    }
    return heft__recipe_error(
        p->recipe, name->pos, HEFT_ERR_SYNTAX, p->err, "no function \"%.*s\": there are %s",
        (int)(name->text.len < 40 ? name->text.len : 40), name->text.data, known);
}

/* The second argument, which is there, and a third become a pair. */
static heft_status_t parse_third(heft__parser_t *p, heft__expr_t *expr)
{
    heft__expr_t *pair = NULL;
    heft_status_t status = new_expr(p, EXPR_CALL, &pair);
    if (status != HEFT_OK) {
        return status;
    }
    pair->op = OP_PAIR;
    pair->left = expr->right;
    expr->right = pair;
    status = heft__parse_token(p, TOKEN_COMMA, "`,` and a third argument");
    if (status == HEFT_OK) {
        status = parse_binary(p, 0, &pair->right);
    }
    return status == HEFT_OK ? heft__parse_set_height(p, pair) : status;
}

static heft_status_t parse_call(heft__parser_t *p, heft__expr_t *expr)
{
    const heft__token_t *name = p->at;
    uint32_t n_args = 0;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (heft__parse_is_word(p, functions[i].name)) {
            expr->op = functions[i].op;
            n_args = functions[i].n_args;
        }
    }
    if (expr->op == OP_NONE) {
        return no_function(p, name);
    }
    expr->kind = EXPR_CALL;
    p->at += 2;
    heft_status_t status = parse_binary(p, 0, &expr->left);
    if (status == HEFT_OK && n_args > 1) {
        status = heft__parse_token(p, TOKEN_COMMA, "`,` and a second argument");
        if (status == HEFT_OK) {
            status = parse_binary(p, 0, &expr->right);
        }
    }
    if (status == HEFT_OK && n_args > 2) {
        status = parse_third(p, expr);
    }
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_RPAREN, "`)`");
    }
    return status == HEFT_OK ? heft__parse_set_height(p, expr) : status;
}

/* env.NAME; the recipe keeps a list of the variables that it reads. */
static heft_status_t parse_variable(heft__parser_t *p, heft__expr_t *expr)
{
    heft_recipe_t *recipe = p->recipe;
    void *items = recipe->variables;
    heft_status_t status = parse_path(p, expr);
    expr->kind = EXPR_ENV;
    if (status != HEFT_OK) {
        return status;
    }
    if (strchr(expr->text, '.') != NULL) {
        return heft__recipe_error(recipe, expr->pos, HEFT_ERR_SYNTAX, p->err,
                                  "env.%s: a variable of the environment is one name", expr->text);
    }
    if (!heft__grow(&items, &recipe->cap_variables, recipe->n_variables + 1, sizeof(char *))) {
        return heft__parse_nomem(p);
    }
    recipe->variables = items;
    recipe->variables[recipe->n_variables++] = expr->text;
    return HEFT_OK;
}

/* config.KEY; the recipe keeps a list of these, too. */
static heft_status_t parse_config(heft__parser_t *p, heft__expr_t *expr)
{
    heft_recipe_t *recipe = p->recipe;
    void *items = recipe->config_keys;
    expr->kind = EXPR_CONFIG;
    heft_status_t status = parse_path(p, expr);
    if (status != HEFT_OK) {
        return status;
    }
    if (!heft__grow(&items, &recipe->cap_config_keys, recipe->n_config_keys + 1, sizeof(char *))) {
        return heft__parse_nomem(p);
    }
    recipe->config_keys = items;
    recipe->config_keys[recipe->n_config_keys++] = expr->text;
    return HEFT_OK;
}

/* dest.KEY, dest("PATTERN").KEY, and the same of the source */
static heft_status_t parse_dest(heft__parser_t *p, heft__expr_t *expr)
{
    expr->kind = heft__parse_is_word(p, "dest") ? EXPR_DEST : EXPR_SOURCE;
    if (p->at[1].kind != TOKEN_LPAREN) {
        return parse_path(p, expr);
    }
    p->at += 2;
    if (p->at->kind != TOKEN_STRING) {
        return heft__parse_expected(p, "a pattern in quotes");
    }
    heft_status_t status = new_expr(p, EXPR_WORD, &expr->left);
    if (status != HEFT_OK) {
        return status;
    }
    expr->left->text = heft__parse_dup(p, p->at->text);
    if (expr->left->text == NULL) {
        return HEFT_ERR_NOMEM;
    }
    p->at++;
    if (p->at->kind != TOKEN_RPAREN) {
        return heft__parse_expected(p, "`)`");
    }
    return parse_path(p, expr); /* which steps over the parenthesis */
}

static heft_status_t parse_word(heft__parser_t *p, heft__expr_t *expr)
{
    if (heft__parse_is_word(p, "true") || heft__parse_is_word(p, "false")) {
        expr->kind = EXPR_BOOL;
        expr->integer = p->at->text.len == 4;
        p->at++;
        return HEFT_OK;
    }
    bool is_config = heft__parse_is_word(p, "config");
    if (is_config) {
        return parse_config(p, expr);
    }
    if (heft__parse_is_word(p, "dest") ||
        (heft__parse_is_word(p, "source") &&
         (p->at[1].kind == TOKEN_DOT || p->at[1].kind == TOKEN_LPAREN))) {
        return parse_dest(p, expr);
    }
    if (heft__parse_is_word(p, "env") && p->at[1].kind == TOKEN_DOT) {
        return parse_variable(p, expr);
    }
    if (p->at[1].kind == TOKEN_LPAREN) {
        return parse_call(p, expr);
    }
    expr->kind = EXPR_NAME;
    expr->text = heft__parse_dup(p, p->at->text);
    p->at++;
    return expr->text == NULL ? HEFT_ERR_NOMEM : HEFT_OK;
}

/* One value of a list, which must stand there: a number, a word, a truth value, another list. */
static heft_status_t parse_item(heft__parser_t *p, json_t *list);

/* The items of a list, behind its bracket. */
static heft_status_t parse_items(heft__parser_t *p, json_t *list)
{
    heft_status_t status = heft__parse_enter(p);
    if (status != HEFT_OK) {
        return status;
    }
    bool is_empty = heft__parse_accept(p, TOKEN_RBRACKET);
    do {
        status = is_empty ? HEFT_OK : parse_item(p, list);
    } while (status == HEFT_OK && !is_empty && heft__parse_accept(p, TOKEN_COMMA));
    p->depth--;
    return status != HEFT_OK || is_empty ? status
                                         : heft__parse_token(p, TOKEN_RBRACKET, "`,` or `]`");
}

static heft_status_t parse_item(heft__parser_t *p, json_t *list)
{
    bool is_minus = heft__parse_accept(p, TOKEN_MINUS);
    bool is_number = p->at->kind == TOKEN_INT || p->at->kind == TOKEN_REAL;
    bool is_true = heft__parse_is_word(p, "true");
    json_t *item = NULL;
    if (is_minus && !is_number) {
        return heft__parse_expected(p, "a number");
    }
    if (heft__parse_accept(p, TOKEN_LBRACKET)) {
        item = json_array();
        if (item == NULL || json_array_append_new(list, item) != 0) {
            return heft__parse_nomem(p);
        }
        return parse_items(p, item); /* borrowed from the list, which the recipe owns */
    }
    if (p->at->kind == TOKEN_INT) {
        item = json_integer(is_minus ? -p->at->integer : p->at->integer);
    } else if (p->at->kind == TOKEN_REAL) {
        item = json_real(is_minus ? -p->at->real : p->at->real);
    } else if (p->at->kind == TOKEN_STRING) {
        item = json_stringn_nocheck(p->at->text.data, p->at->text.len);
    } else if (is_true || heft__parse_is_word(p, "false")) {
        item = json_boolean(is_true);
    } else {
        return heft__parse_expected(p, "a number, a word in quotes, true, false or a list");
    }
    p->at++;
    return item != NULL && json_array_append_new(list, item) == 0 ? HEFT_OK : heft__parse_nomem(p);
}

static heft_status_t parse_list(heft__parser_t *p, heft__expr_t *expr)
{
    heft_recipe_t *recipe = p->recipe;
    expr->kind = EXPR_LIST;
    expr->list = json_array();
    if (recipe->lists == NULL) {
        recipe->lists = json_array();
    }
    if (expr->list == NULL || recipe->lists == NULL ||
        json_array_append_new(recipe->lists, expr->list) != 0) {
        return heft__parse_nomem(p);
    }
    p->at++;
    return parse_items(p, expr->list);
}

/* Is this config.KEY or dest.KEY, perhaps with indices behind it? */
static bool is_key(const heft__expr_t *expr)
{
    while (expr->kind == EXPR_INDEX) {
        expr = expr->left;
    }
    return heft__expr_is_key(expr);
}

static heft_status_t parse_value(heft__parser_t *p, heft__expr_t **out)
{
    heft__expr_t *expr = NULL;
    heft_status_t status;
    if (heft__parse_accept(p, TOKEN_LPAREN)) {
        status = parse_binary(p, 0, out);
        if (status == HEFT_OK && is_key(*out)) {
            (*out)->is_closed = true; /* in parentheses: a following `or` is the logical one */
        }
        return status == HEFT_OK ? heft__parse_token(p, TOKEN_RPAREN, "`)`") : status;
    }
    if (heft__parse_is_call(p)) {
        return heft__parse_call(p, out);
    }
    status = new_expr(p, EXPR_INT, &expr);
    if (status != HEFT_OK) {
        return status;
    }
    *out = expr;
    switch ((int)p->at->kind) {
    case TOKEN_INT:
        expr->integer = p->at->integer;
        break;
    case TOKEN_REAL:
        expr->kind = EXPR_REAL;
        expr->real = p->at->real;
        break;
    case TOKEN_STRING:
        expr->kind = EXPR_WORD;
        expr->text = heft__parse_dup(p, p->at->text);
        if (expr->text == NULL) {
            return HEFT_ERR_NOMEM;
        }
        break;
    case TOKEN_NAME:
        return parse_word(p, expr);
    case TOKEN_LBRACKET:
        return parse_list(p, expr);
    default:
        return heft__parse_expected(p, "a value");
    }
    p->at++;
    return HEFT_OK;
}

/* A value and the indices behind it. */
static heft_status_t parse_primary(heft__parser_t *p, heft__expr_t **out)
{
    heft_status_t status = parse_value(p, out);
    while (status == HEFT_OK && p->at->kind == TOKEN_LBRACKET) {
        heft__expr_t *expr = NULL;
        status = new_expr(p, EXPR_INDEX, &expr);
        if (status != HEFT_OK) {
            return status;
        }
        expr->left = *out;
        *out = expr;
        p->at++;
        status = parse_binary(p, 0, &expr->right);
        if (status == HEFT_OK) {
            status = heft__parse_token(p, TOKEN_RBRACKET, "`]`");
        }
        if (status == HEFT_OK) {
            status = heft__parse_set_height(p, expr);
        }
    }
    return status;
}

static heft_status_t parse_unary(heft__parser_t *p, heft__expr_t **out)
{
    bool is_not = heft__parse_is_word(p, "not");
    if (!is_not && p->at->kind != TOKEN_MINUS) {
        return parse_primary(p, out);
    }
    heft__expr_t *expr = NULL;
    heft_status_t status = new_expr(p, EXPR_UNARY, &expr);
    if (status != HEFT_OK) {
        return status;
    }
    expr->op = is_not ? OP_NOT : OP_NEG;
    p->at++;
    *out = expr;
    status = heft__parse_enter(p);
    if (status == HEFT_OK) {
        /* `not` covers a comparison, a minus only what follows it */
        status = is_not ? parse_binary(p, 2, &expr->left) : parse_unary(p, &expr->left);
        p->depth--;
    }
    return status == HEFT_OK ? heft__parse_set_height(p, expr) : status;
}

/* The operator at the current token, if it belongs to this level: 0 or, 1 and, 2 comparison, 3
 * sums, 4 products. */
static heft__op_t operator_at(const heft__parser_t *p, int level)
{
    static const struct {
        heft__token_kind_t kind;
        int level;
        heft__op_t op;
    } table[] = {
        { TOKEN_EQ, 2, OP_EQ },     { TOKEN_NE, 2, OP_NE },       { TOKEN_LT, 2, OP_LT },
        { TOKEN_LE, 2, OP_LE },     { TOKEN_GT, 2, OP_GT },       { TOKEN_GE, 2, OP_GE },
        { TOKEN_PLUS, 3, OP_ADD },  { TOKEN_MINUS, 3, OP_SUB },   { TOKEN_STAR, 4, OP_MUL },
        { TOKEN_SLASH, 4, OP_DIV }, { TOKEN_PERCENT, 4, OP_MOD },
    };
    if (level == 0) {
        return heft__parse_is_word(p, "or") ? OP_OR : OP_NONE;
    }
    if (level == 1) {
        return heft__parse_is_word(p, "and") ? OP_AND : OP_NONE;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].kind == p->at->kind && table[i].level == level) {
            return table[i].op;
        }
    }
    return OP_NONE;
}

static heft_status_t parse_level(heft__parser_t *p, int level, heft__expr_t **out)
{
    if (level == 5) {
        return parse_unary(p, out);
    }
    heft_status_t status = parse_level(p, level + 1, out);
    uint32_t n_chained = 0;
    while (status == HEFT_OK && operator_at(p, level) != OP_NONE) {
        heft__expr_t *expr = NULL;
        if (level == 2 && ++n_chained > 1) {
            return heft__parse_expected(p, "one comparison at a time (use `and`)");
        }
        status = new_expr(p, EXPR_BINARY, &expr);
        if (status != HEFT_OK) {
            return status;
        }
        expr->op = operator_at(p, level);
        expr->left = *out;
        *out = expr;
        p->at++;
        /* `or` leans to the right, so that config.a or config.b or 1 is a chain of defaults */
        status =
            level == 0 ? parse_binary(p, 0, &expr->right) : parse_level(p, level + 1, &expr->right);
        if (status == HEFT_OK) {
            status = heft__parse_set_height(p, expr);
        }
    }
    return status;
}

static heft_status_t parse_binary(heft__parser_t *p, int level, heft__expr_t **out)
{
    heft_status_t status = heft__parse_enter(p);
    if (status == HEFT_OK) {
        status = parse_level(p, level, out);
        p->depth--;
    }
    return status;
}

heft_status_t heft__parse_expr(heft__parser_t *p, heft__expr_t **expr_out)
{
    return parse_binary(p, 0, expr_out);
}

heft_status_t heft__parse_size(heft__parser_t *p, heft__expr_t **expr_out)
{
    if (heft__parse_accept(p, TOKEN_LBRACE)) {
        heft_status_t status = parse_binary(p, 0, expr_out);
        return status == HEFT_OK ? heft__parse_token(p, TOKEN_RBRACE, "`}`") : status;
    }
    if (p->at->kind != TOKEN_INT && p->at->kind != TOKEN_NAME) {
        return heft__parse_expected(p, "a number, a name, or {...}");
    }
    heft_status_t status = new_expr(p, p->at->kind == TOKEN_INT ? EXPR_INT : EXPR_NAME, expr_out);
    if (status != HEFT_OK) {
        return status;
    }
    (*expr_out)->integer = p->at->integer;
    if (p->at->kind == TOKEN_NAME) {
        (*expr_out)->text = heft__parse_dup(p, p->at->text);
        if ((*expr_out)->text == NULL) {
            return HEFT_ERR_NOMEM;
        }
    }
    p->at++;
    return HEFT_OK;
}

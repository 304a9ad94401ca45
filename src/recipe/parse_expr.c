/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expressions and axes.
 *
 * Precedence, loosest first: or, and, not, comparison, + -, * / %, unary minus. `or` directly
 * after config.KEY or dest.KEY is the default for an absent key; elsewhere it is the logical or.
 */
#include "recipe/syntax.h"

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

static heft_status_t enter(heft__parser_t *p)
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
static heft_status_t set_height(heft__parser_t *p, heft__expr_t *expr)
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
    { "min", OP_MIN, 2 },     { "max", OP_MAX, 2 },           { "ceil_div", OP_CEIL_DIV, 2 },
    { "sqrt", OP_SQRT, 1 },   { "round_up", OP_ROUND_UP, 2 }, { "has", OP_HAS, 1 },
    { "count", OP_COUNT, 1 },
};

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
        return heft__recipe_error(p->recipe, name->pos, HEFT_ERR_SYNTAX, p->err,
                                  "no function \"%.*s\": there are min, max, ceil_div, round_up, "
                                  "sqrt, has, count",
                                  (int)name->text.len, name->text.data);
    }
    expr->kind = EXPR_CALL;
    p->at += 2;
    heft_status_t status = parse_binary(p, 0, &expr->left);
    if (status == HEFT_OK && n_args == 2) {
        status = heft__parse_token(p, TOKEN_COMMA, "`,` and a second argument");
        if (status == HEFT_OK) {
            status = parse_binary(p, 0, &expr->right);
        }
    }
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_RPAREN, "`)`");
    }
    return status == HEFT_OK ? set_height(p, expr) : status;
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
    if (is_config || heft__parse_is_word(p, "dest")) {
        expr->kind = is_config ? EXPR_CONFIG : EXPR_DEST;
        return parse_path(p, expr);
    }
    if (p->at[1].kind == TOKEN_LPAREN) {
        return parse_call(p, expr);
    }
    expr->kind = EXPR_NAME;
    expr->text = heft__parse_dup(p, p->at->text);
    p->at++;
    return expr->text == NULL ? HEFT_ERR_NOMEM : HEFT_OK;
}

static heft_status_t parse_primary(heft__parser_t *p, heft__expr_t **out)
{
    heft__expr_t *expr = NULL;
    heft_status_t status;
    if (heft__parse_accept(p, TOKEN_LPAREN)) {
        status = parse_binary(p, 0, out);
        if (status == HEFT_OK && ((*out)->kind == EXPR_CONFIG || (*out)->kind == EXPR_DEST)) {
            (*out)->is_closed = true; /* in parentheses: a following `or` is the logical one */
        }
        return status == HEFT_OK ? heft__parse_token(p, TOKEN_RPAREN, "`)`") : status;
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
    default:
        return heft__parse_expected(p, "a value");
    }
    p->at++;
    return HEFT_OK;
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
    status = enter(p);
    if (status == HEFT_OK) {
        /* `not` covers a comparison, a minus only what follows it */
        status = is_not ? parse_binary(p, 2, &expr->left) : parse_unary(p, &expr->left);
        p->depth--;
    }
    return status == HEFT_OK ? set_height(p, expr) : status;
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
            status = set_height(p, expr);
        }
    }
    return status;
}

static heft_status_t parse_binary(heft__parser_t *p, int level, heft__expr_t **out)
{
    heft_status_t status = enter(p);
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

/* ---- axes ---- */

static heft_status_t new_axis(heft__parser_t *p, heft__axis_kind_t kind, heft__axis_t **out)
{
    heft__axis_t *axis = heft__arena_calloc(&p->recipe->arena, 1, sizeof *axis);
    if (axis == NULL) {
        (void)heft__parse_nomem(p);
        return HEFT_ERR_NOMEM;
    }
    axis->kind = kind;
    axis->pos = p->at->pos;
    axis->id = HEFT__NONE;
    axis->size_slot = HEFT__NONE;
    axis->offset_slot = HEFT__NONE;
    *out = axis;
    return HEFT_OK;
}

/* kids grow by doubling inside the arena; what is left behind goes with the recipe. */
static heft_status_t add_kid(heft__parser_t *p, heft__axis_t ***kids, uint32_t *n,
                             heft__axis_t *kid)
{
    if ((*n & (*n + 1)) == 0) { /* 0, 1, 3, 7, ...: full */
        heft__axis_t **more =
            heft__arena_calloc(&p->recipe->arena, 2 * (size_t)*n + 1, sizeof(void *));
        if (more == NULL) {
            return heft__parse_nomem(p);
        }
        if (*n > 0) {
            memcpy(more, *kids, *n * sizeof(void *));
        }
        *kids = more;
    }
    (*kids)[(*n)++] = kid;
    return HEFT_OK;
}

static heft_status_t parse_group(heft__parser_t *p, heft__axis_t *group)
{
    heft_status_t status = enter(p);
    while (status == HEFT_OK && !heft__parse_accept(p, TOKEN_RPAREN)) {
        heft__axis_t *kid = NULL;
        if (p->at->kind == TOKEN_COMMA) {
            return heft__parse_expected(p, "an axis or `)` (a group has no commas)");
        }
        status = heft__parse_axis(p, &kid);
        if (status == HEFT_OK) {
            status = add_kid(p, &group->kids, &group->n_kids, kid);
        }
    }
    p->depth--;
    return status;
}

/* INT or {EXPR} at the start of an axis: a digit; a lone 1: a unit axis. */
static heft_status_t parse_digit(heft__parser_t *p, heft__axis_t *axis)
{
    const heft__token_t *first = p->at;
    axis->kind = AXIS_DIGIT;
    heft_status_t status = heft__parse_size(p, &axis->offset);
    if (status != HEFT_OK) {
        return status;
    }
    if (p->at->kind == TOKEN_COLON) {
        p->at++;
        return heft__parse_size(p, &axis->size);
    }
    if (first->kind == TOKEN_INT && first->integer == 1) {
        axis->kind = AXIS_UNIT;
        axis->offset = NULL;
        return HEFT_OK;
    }
    return heft__recipe_error(p->recipe, first->pos, HEFT_ERR_SYNTAX, p->err,
                              "one position is written POSITION:EXTENT, such as 0:2; a lone 1 is a "
                              "unit axis");
}

static heft_status_t parse_base(heft__parser_t *p, heft__axis_t *axis)
{
    switch ((int)p->at->kind) {
    case TOKEN_LPAREN:
        axis->kind = AXIS_GROUP;
        p->at++;
        return parse_group(p, axis);
    case TOKEN_INT:
    case TOKEN_LBRACE:
        return parse_digit(p, axis);
    case TOKEN_NAME:
        axis->name = heft__parse_dup(p, p->at->text);
        if (axis->name == NULL) {
            return HEFT_ERR_NOMEM;
        }
        p->at++;
        return heft__parse_accept(p, TOKEN_COLON) ? heft__parse_size(p, &axis->size) : HEFT_OK;
    case TOKEN_ELLIPSIS:
        return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_SYNTAX, p->err,
                                  "`...` stands between commas, not inside a group");
    default:
        return heft__parse_expected(p, "an axis");
    }
}

heft_status_t heft__parse_axis(heft__parser_t *p, heft__axis_t **axis_out)
{
    heft__axis_t *axis = NULL;
    heft_status_t status = new_axis(p, AXIS_NAME, &axis);
    if (status == HEFT_OK) {
        status = parse_base(p, axis);
    }
    if (status != HEFT_OK || p->at->kind != TOKEN_AT) {
        *axis_out = axis;
        return status;
    }
    heft__axis_t *range = NULL;
    status = new_axis(p, AXIS_RANGE, &range);
    if (status != HEFT_OK) {
        return status;
    }
    range->pos = axis->pos;
    p->at++;
    status = heft__parse_size(p, &range->offset);
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_SLASH, "`/` and the whole extent");
    }
    if (status == HEFT_OK) {
        status = heft__parse_size(p, &range->size);
    }
    if (status == HEFT_OK) {
        status = add_kid(p, &range->kids, &range->n_kids, axis);
    }
    *axis_out = range;
    return status;
}

heft_status_t heft__parse_axes(heft__parser_t *p, heft__axes_t *axes_out)
{
    axes_out->pos = p->at->pos;
    heft_status_t status = heft__parse_token(p, TOKEN_LBRACKET, "`[` and axes (`[...]` for all)");
    if (status != HEFT_OK || heft__parse_accept(p, TOKEN_RBRACKET)) {
        return status;
    }
    do {
        heft__axis_t *dim = NULL;
        if (p->at->kind == TOKEN_ELLIPSIS) {
            status = new_axis(p, AXIS_REST, &dim);
            p->at++;
        } else {
            status = heft__parse_axis(p, &dim);
        }
        if (status == HEFT_OK) {
            status = add_kid(p, &axes_out->dims, &axes_out->n_dims, dim);
        }
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status == HEFT_OK ? heft__parse_token(p, TOKEN_RBRACKET, "`,` or `]`") : status;
}

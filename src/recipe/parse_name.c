/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names with holes: patterns on the source side, templates on the target side.
 *
 * Names are dot-separated tokens. A pattern token is literal text, `*`, {name*}, or
 * prefix{name}suffix; a template token is any mixture of text and {EXPR}, or {name*} alone. A
 * pattern with values of lets in it is kept as a template (patterns.c makes its tokens).
 */
#include "recipe/syntax.h"

#include <stdio.h>
#include <string.h>

static heft__pos_t pos_at(heft__pos_t pos, heft__span_t text, const char *at)
{
    pos.column += (uint32_t)(at - text.data);
    return pos;
}

/* The end of the token that starts at `at`: a dot outside braces, or the end of the text. */
static const char *token_end(const char *at, const char *end)
{
    int n_open = 0;
    for (; at < end && (*at != '.' || n_open > 0); at++) {
        n_open += *at == '{' ? 1 : 0;
        n_open -= *at == '}' ? 1 : 0;
    }
    return at;
}

static uint32_t count_tokens(heft__span_t text)
{
    uint32_t n = 1;
    const char *end = text.data + text.len;
    for (const char *at = token_end(text.data, end); at < end; at = token_end(at + 1, end)) {
        n++;
    }
    return n;
}

static bool is_identifier(heft__span_t s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) {
            return false;
        }
    }
    return s.len > 0;
}

static heft_status_t add_capture(heft__parser_t *p, heft__rule_t *rule, heft__span_t name,
                                 bool is_many, heft__pos_t pos, int32_t *index_out)
{
    if (!is_identifier(name)) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "a capture is a name in braces, such as {l} or {rest*}; found "
                                  "{%.*s%s}",
                                  (int)(name.len < 40 ? name.len : 40), name.data,
                                  is_many ? "*" : "");
    }
    for (uint32_t i = 0; i < rule->n_captures; i++) {
        if (strlen(rule->captures[i]) == name.len &&
            memcmp(rule->captures[i], name.data, name.len) == 0) {
            return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                      "capture {%s} occurs twice", rule->captures[i]);
        }
    }
    if (rule->n_captures == HEFT__MAX_CAPTURES) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_LIMIT, p->err,
                                  "more than %d captures in a rule", HEFT__MAX_CAPTURES);
    }
    char *copy = heft__parse_dup(p, name);
    if (copy == NULL) {
        return HEFT_ERR_NOMEM;
    }
    *index_out = (int32_t)rule->n_captures;
    rule->capture_is_many[rule->n_captures] = is_many;
    rule->captures[rule->n_captures++] = copy;
    return HEFT_OK;
}

/* The one pair of braces in a token, or neither brace; false for anything else. */
static bool find_braces(heft__span_t text, const char **open_out, const char **close_out)
{
    uint32_t n_braces = 0;
    *open_out = NULL;
    *close_out = NULL;
    for (const char *at = text.data; at < text.data + text.len; at++) {
        if (*at == '{' || *at == '}') {
            const char **out = *at == '{' ? open_out : close_out;
            *out = at;
            n_braces++;
        }
    }
    bool is_pair = *open_out != NULL && *close_out != NULL && *open_out < *close_out;
    return n_braces == 0 || (n_braces == 2 && is_pair);
}

/* prefix{name}suffix or {name*} */
static heft_status_t parse_capture(heft__parser_t *p, heft__rule_t *rule, heft__span_t text,
                                   const char *open, const char *close, heft__pos_t pos,
                                   heft__pattern_token_t *token)
{
    const char *end = text.data + text.len;
    heft__span_t name = { open + 1, (size_t)(close - open) - 1 };
    bool is_many = name.len > 0 && name.data[name.len - 1] == '*';
    name.len -= is_many ? 1 : 0;
    if (is_many && (open != text.data || close + 1 != end)) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "{%.*s*} stands for whole tokens and must be one by itself",
                                  (int)(name.len < 40 ? name.len : 40), name.data);
    }
    token->kind = is_many ? PIECE_MANY : PIECE_ONE;
    token->prefix.len = (size_t)(open - text.data);
    token->suffix = (heft__span_t){ close + 1, (size_t)(end - close) - 1 };
    return add_capture(p, rule, name, is_many, pos, &token->capture);
}

/* One token of a pattern; `pos` is where it starts. rule is NULL where braces are plain text. */
static heft_status_t parse_pattern_token(heft__parser_t *p, heft__rule_t *rule, heft__span_t text,
                                         heft__pos_t pos, heft__pattern_token_t *token)
{
    const char *open = NULL;
    const char *close = NULL;
    *token = (heft__pattern_token_t){ .kind = PIECE_TEXT, .prefix = text, .capture = HEFT__NONE };
    if (text.len == 1 && text.data[0] == '*') {
        token->kind = PIECE_MANY;
        return HEFT_OK;
    }
    if (rule != NULL && !find_braces(text, &open, &close)) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "one {capture} in a token at most, with both braces");
    }
    if (open != NULL) {
        return parse_capture(p, rule, text, open, close, pos, token);
    }
    if (memchr(text.data, '*', text.len) != NULL) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "`*` stands for whole tokens only, not inside \"%.*s\"",
                                  (int)(text.len < 60 ? text.len : 60), text.data);
    }
    return HEFT_OK;
}

static bool is_taken(const heft__parser_t *p, heft__span_t name)
{
    const heft_recipe_t *recipe = p->recipe;
    for (size_t i = 0; i < recipe->n_lets; i++) {
        if (strlen(recipe->lets[i].name) == name.len &&
            memcmp(recipe->lets[i].name, name.data, name.len) == 0) {
            return true;
        }
    }
    return recipe->rank_name != NULL && strlen(recipe->rank_name) == name.len &&
           memcmp(recipe->rank_name, name.data, name.len) == 0;
}

/* Does a pattern hold {LET} or {EXPR}, so that its tokens are known only with the values? */
static bool has_values(const heft__parser_t *p, heft__span_t text)
{
    const char *end = text.data + text.len;
    for (const char *at = memchr(text.data, '{', text.len); at != NULL;
         at = memchr(at, '{', (size_t)(end - at))) {
        const char *close = memchr(at, '}', (size_t)(end - at));
        if (close == NULL) {
            return false;
        }
        heft__span_t inside = { at + 1, (size_t)(close - at) - 1 };
        bool is_many = inside.len > 0 && inside.data[inside.len - 1] == '*';
        inside.len -= is_many ? 1 : 0;
        if (!is_many && inside.len > 0 && (!is_identifier(inside) || is_taken(p, inside))) {
            return true;
        }
        at = close;
    }
    return false;
}

/* A pattern with values in it: a template in which new names are captures. */
static heft_status_t parse_made_pattern(heft__parser_t *p, heft__rule_t *rule, heft__span_t text,
                                        heft__pos_t pos, heft__pattern_t *pattern)
{
    heft__template_t *template = heft__arena_calloc(&p->recipe->arena, 1, sizeof *template);
    if (template == NULL) {
        return heft__parse_nomem(p);
    }
    p->takes_star = true;
    heft_status_t status = heft__parse_template(p, text, pos, template);
    p->takes_star = false;
    for (uint32_t i = 0; i < template->n_pieces && status == HEFT_OK; i++) {
        heft__template_piece_t *piece = &template->pieces[i];
        const char *name =
            piece->kind == PIECE_EXPR && piece->expr->kind == EXPR_NAME ? piece->expr->text : NULL;
        heft__span_t span = piece->text;
        if (name != NULL) {
            span = (heft__span_t){ name, strlen(name) };
        }
        if (piece->kind == PIECE_MANY || (name != NULL && !is_taken(p, span))) {
            status = add_capture(p, rule, span, piece->kind == PIECE_MANY, pos, &piece->capture);
            piece->kind = piece->kind == PIECE_MANY ? PIECE_MANY : PIECE_ONE;
            piece->text = span;
        }
    }
    pattern->text = template->text;
    pattern->made_of = template;
    return status;
}

heft_status_t heft__parse_pattern(heft__parser_t *p, heft__rule_t *rule, heft__span_t text,
                                  heft__pos_t pos, heft__pattern_t *pattern_out)
{
    *pattern_out = (heft__pattern_t){ .pos = pos };
    if (text.len == 0) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err, "an empty name");
    }
    if (rule != NULL && has_values(p, text)) {
        return parse_made_pattern(p, rule, text, pos, pattern_out);
    }
    char *copy = heft__parse_dup(p, text);
    uint32_t n = count_tokens(text);
    heft__pattern_token_t *tokens = heft__arena_calloc(&p->recipe->arena, n, sizeof *tokens);
    if (copy == NULL || tokens == NULL) {
        return heft__parse_nomem(p);
    }
    pos.column++; /* the quote */
    heft__span_t all = { copy, text.len };
    const char *end = copy + text.len;
    const char *at = copy;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        const char *stop = token_end(at, end);
        status = parse_pattern_token(p, rule, (heft__span_t){ at, (size_t)(stop - at) },
                                     pos_at(pos, all, at), &tokens[i]);
        pattern_out->n_many += tokens[i].kind == PIECE_MANY ? 1 : 0;
        at = stop + 1;
    }
    pattern_out->text = copy;
    pattern_out->tokens = tokens;
    pattern_out->n_tokens = n;
    return status;
}

/* {EXPR} or {name*}: text between the braces. */
static heft_status_t parse_hole(heft__parser_t *p, heft__span_t inside, heft__pos_t pos,
                                heft__template_piece_t *piece)
{
    heft__span_t name = inside;
    if (name.len > 1 && name.data[name.len - 1] == '*') {
        name.len--;
        if (is_identifier(name)) {
            piece->kind = PIECE_MANY;
            piece->text = name;
            return HEFT_OK;
        }
    }
    heft__tokens_t tokens;
    heft_status_t status = heft__lex(p->recipe, inside, pos, NULL, &tokens, p->err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__parser_t sub = { .recipe = p->recipe, .at = tokens.items, .err = p->err };
    piece->kind = PIECE_EXPR;
    status = heft__parse_expr(&sub, &piece->expr);
    if (status == HEFT_OK && sub.at->kind != TOKEN_END) {
        status = heft__parse_expected(&sub, "`}`");
    }
    heft__tokens_fini(&tokens);
    return status;
}

static uint32_t count_pieces(heft__span_t text)
{
    uint32_t n = 1;
    for (size_t i = 0; i < text.len; i++) {
        n += text.data[i] == '{' || text.data[i] == '}' || text.data[i] == '.' ? 1 : 0;
    }
    return n;
}

/* A hole that starts at `at`; *stop_out is behind its closing brace. */
static heft_status_t parse_braces(heft__parser_t *p, const char *at, const char *end,
                                  heft__pos_t pos, heft__template_piece_t *piece,
                                  const char **stop_out)
{
    const char *close = memchr(at, '}', (size_t)(end - at));
    if (close == NULL) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err, "`{` without `}`");
    }
    *stop_out = close + 1;
    heft__pos_t inside_pos = { pos.line, pos.column + 1 };
    heft__span_t inside = { at + 1, (size_t)(close - at) - 1 };
    heft_status_t status = parse_hole(p, inside, inside_pos, piece);
    if (status == HEFT_OK && piece->kind == PIECE_MANY && (!piece->starts || close + 1 != end)) {
        status = heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                    "{%.*s*} stands for whole tokens and must be one by itself",
                                    (int)(piece->text.len < 40 ? piece->text.len : 40),
                                    piece->text.data);
    }
    return status;
}

/* Pieces of one token [at, end). */
static heft_status_t parse_template_token(heft__parser_t *p, heft__span_t all, heft__pos_t pos,
                                          const char *at, const char *end,
                                          heft__template_t *template)
{
    bool starts = true;
    do {
        heft__template_piece_t *piece = &template->pieces[template->n_pieces++];
        *piece = (heft__template_piece_t){ .kind = PIECE_TEXT, .capture = HEFT__NONE };
        piece->starts = starts;
        starts = false;
        const char *stop = at;
        if (at < end && *at == '{') {
            heft_status_t status = parse_braces(p, at, end, pos_at(pos, all, at), piece, &stop);
            if (status != HEFT_OK) {
                return status;
            }
            at = stop;
            continue;
        }
        bool is_star = p->takes_star && end - at == 1 && *at == '*' && piece->starts;
        stop += is_star ? 1 : 0;
        while (stop < end && *stop != '{' && *stop != '}' && *stop != '*') {
            stop++;
        }
        if (stop < end && *stop != '{') {
            return heft__recipe_error(p->recipe, pos_at(pos, all, stop), HEFT_ERR_SYNTAX, p->err,
                                      "stray `%c` in a name", *stop);
        }
        piece->text = (heft__span_t){ at, (size_t)(stop - at) };
        at = stop;
    } while (at < end);
    return HEFT_OK;
}

heft_status_t heft__parse_template(heft__parser_t *p, heft__span_t text, heft__pos_t pos,
                                   heft__template_t *template_out)
{
    *template_out = (heft__template_t){ .pos = pos };
    if (text.len == 0) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err, "an empty name");
    }
    char *copy = heft__parse_dup(p, text);
    template_out->pieces =
        heft__arena_calloc(&p->recipe->arena, count_pieces(text) + 1, sizeof *template_out->pieces);
    template_out->axes =
        heft__arena_calloc(&p->recipe->arena, HEFT__MAX_AXES, sizeof *template_out->axes);
    if (copy == NULL || template_out->pieces == NULL || template_out->axes == NULL) {
        return heft__parse_nomem(p);
    }
    template_out->text = copy;
    pos.column++; /* the quote */
    heft__span_t all = { copy, text.len };
    const char *end = copy + text.len;
    heft_status_t status = HEFT_OK;
    for (const char *at = copy;;) {
        const char *stop = token_end(at, end);
        status = parse_template_token(p, all, pos, at, stop, template_out);
        if (status != HEFT_OK || stop == end) {
            return status;
        }
        at = stop + 1;
    }
}

/* ---- heft_name_matches: a pattern of literal tokens and `*`, without allocating ---- */

static heft__span_t next_token(const char **at)
{
    const char *begin = *at;
    const char *dot = strchr(begin, '.');
    size_t n = dot != NULL ? (size_t)(dot - begin) : strlen(begin);
    *at = dot != NULL ? dot + 1 : NULL;
    return (heft__span_t){ begin, n };
}

int heft_name_matches(const char *pattern, const char *name)
{
    /* Where to go on after a mismatch: behind the last star, one name token later. */
    const char *star = NULL;
    bool has_star = false;
    const char *retry = NULL;
    while (name != NULL) {
        heft__span_t want = { "", 0 };
        const char *rest = pattern;
        const char *after = name;
        heft__span_t token = next_token(&after);
        if (rest != NULL) {
            want = next_token(&rest);
        }
        if (pattern != NULL && want.len == 1 && want.data[0] == '*') {
            has_star = true;
            star = rest;
            retry = name;
            pattern = rest;
        } else if (pattern != NULL && want.len == token.len &&
                   memcmp(want.data, token.data, token.len) == 0) {
            pattern = rest;
            name = after;
        } else if (has_star) {
            (void)next_token(&retry);
            name = retry;
            pattern = star;
        } else {
            return 0;
        }
    }
    while (pattern != NULL) {
        heft__span_t want = next_token(&pattern);
        if (want.len != 1 || want.data[0] != '*') {
            return 0;
        }
    }
    return 1;
}

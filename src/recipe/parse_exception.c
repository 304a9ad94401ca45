/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe lets be: ignored, untouched, derived, frozen, elsewhere, equal; and what it
 * declares together. Each with its reason. */
#include "recipe/syntax.h"

#include <stdio.h>
#include <string.h>

static heft_status_t add_exception(heft__parser_t *p, heft_exception_t exception,
                                   heft__exception_line_t line)
{
    heft_recipe_t *recipe = p->recipe;
    char where[96];
    size_t n = strlen(recipe->name);
    (void)snprintf(where, sizeof where, "%s:%u:%u", n > 60 ? recipe->name + (n - 60) : recipe->name,
                   (unsigned)line.pattern.pos.line, (unsigned)line.pattern.pos.column);
    exception.pattern = line.pattern.text;
    exception.where = heft__parse_dup(p, (heft__span_t){ where, strlen(where) });
    void *items = recipe->exceptions;
    void *lines = recipe->exception_lines;
    size_t need = recipe->n_exceptions + 1;
    if (exception.where == NULL ||
        !heft__grow(&items, &recipe->cap_exceptions, need, sizeof exception)) {
        return heft__parse_nomem(p);
    }
    recipe->exceptions = items;
    if (!heft__grow(&lines, &recipe->cap_exception_lines, need, sizeof line)) {
        return heft__parse_nomem(p);
    }
    recipe->exception_lines = lines;
    recipe->exceptions[recipe->n_exceptions] = exception;
    recipe->exception_lines[recipe->n_exceptions] = line;
    recipe->n_exceptions++;
    return HEFT_OK;
}

/* Just behind the token before the one to parse; there is one. */
static heft__pos_t end_of_previous(const heft__parser_t *p)
{
    const heft__token_t *previous = p->at - 1;
    heft__pos_t pos = previous->pos;
    pos.column += (uint32_t)previous->text.len + (previous->kind == TOKEN_STRING ? 2 : 0);
    return pos;
}

/* A pattern, perhaps with {EXPR} in it: a value, since an exception has no captures. */
static heft_status_t parse_exception_name(heft__parser_t *p, const heft__token_t *name,
                                          heft__exception_line_t *line)
{
    if (memchr(name->text.data, '{', name->text.len) == NULL) {
        return heft__parse_pattern(p, NULL, name->text, name->pos, &line->pattern);
    }
    line->made_of = heft__arena_calloc(&p->recipe->arena, 1, sizeof *line->made_of);
    if (line->made_of == NULL) {
        return heft__parse_nomem(p);
    }
    p->takes_star = true;
    heft_status_t status = heft__parse_template(p, name->text, name->pos, line->made_of);
    p->takes_star = false;
    line->pattern = (heft__pattern_t){ .text = line->made_of->text, .pos = name->pos };
    for (uint32_t i = 0; i < line->made_of->n_pieces && status == HEFT_OK; i++) {
        if (line->made_of->pieces[i].kind == PIECE_MANY) {
            status = heft__recipe_error(p->recipe, name->pos, HEFT_ERR_SYNTAX, p->err,
                                        "an exception has no captures: write `*`");
        }
    }
    return status;
}

/* "pattern" [, "pattern"]: an exception for each. */
static heft_status_t parse_names(heft__parser_t *p, heft_exception_kind_t kind, bool is_optional)
{
    heft_status_t status;
    do {
        const heft__token_t *name = p->at;
        heft_exception_t exception = { .kind = kind, .reason = "", .is_optional = is_optional };
        heft__exception_line_t line = { .is_optional = is_optional };
        status = heft__parse_token(p, TOKEN_STRING, "a pattern in quotes");
        if (status == HEFT_OK) {
            status = parse_exception_name(p, name, &line);
        }
        if (status == HEFT_OK) {
            status = add_exception(p, exception, line);
        }
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

/* "pattern" [, "pattern"]: one exception, with blanks between. `{l}` in them is no value: it stands
 * for a part of a token that is equal in all of them. */
static heft_status_t parse_together(heft__parser_t *p, bool is_optional)
{
    heft_exception_t exception = { .kind = HEFT_EXCEPTION_TOGETHER, .reason = "" };
    heft__exception_line_t line = { .is_optional = is_optional };
    heft__text_t text;
    heft_status_t status;
    exception.is_optional = is_optional;
    line.pattern.pos = p->at->pos;
    heft__text_init(&text);
    do {
        const heft__token_t *name = p->at;
        status = heft__parse_token(p, TOKEN_STRING, "a pattern in quotes");
        if (status == HEFT_OK &&
            (name->text.len == 0 || memchr(name->text.data, ' ', name->text.len) != NULL)) {
            status = heft__recipe_error(p->recipe, name->pos, HEFT_ERR_SYNTAX, p->err,
                                        "a pattern without blanks expected");
        }
        heft__text_put(&text, text.len > 0 ? " " : "");
        heft__text_put_n(&text, name->text.data, status == HEFT_OK ? name->text.len : 0);
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    if (status == HEFT_OK) {
        line.pattern.text =
            text.failed ? NULL : heft__parse_dup(p, (heft__span_t){ text.data, text.len });
        status =
            line.pattern.text != NULL ? add_exception(p, exception, line) : heft__parse_nomem(p);
    }
    heft__text_fini(&text);
    return status;
}

/* KIND "pattern" [, "pattern"] because "reason" [when EXPR] */
heft_status_t heft__parse_exception(heft__parser_t *p, heft_exception_kind_t kind, bool is_optional)
{
    heft_recipe_t *recipe = p->recipe;
    size_t first = recipe->n_exceptions;
    heft_status_t status = kind == HEFT_EXCEPTION_TOGETHER ? parse_together(p, is_optional)
                                                           : parse_names(p, kind, is_optional);
    if (status == HEFT_OK && !heft__parse_accept_word(p, "because")) {
        /* on the next line, found is no more than what happens to come next */
        char found[64];
        heft__pos_t pos = end_of_previous(p);
        bool is_next_line = p->at->pos.line != pos.line;
        status = heft__recipe_error(recipe, is_next_line ? pos : p->at->pos, HEFT_ERR_SYNTAX,
                                    p->err, "`because` and a reason expected, found %s",
                                    is_next_line ? "the end of the line"
                                                 : heft__token_text(p->at, found));
    }
    const heft__token_t *reason = p->at;
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_STRING, "a reason in quotes");
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (reason->text.len == 0) {
        return heft__recipe_error(recipe, reason->pos, HEFT_ERR_SYNTAX, p->err, "an empty reason");
    }
    const char *text = heft__parse_dup(p, reason->text);
    heft__expr_t *when = NULL;
    status = text == NULL ? HEFT_ERR_NOMEM : HEFT_OK;
    if (status == HEFT_OK && heft__parse_accept_word(p, "when")) {
        status = heft__parse_expr(p, &when);
    }
    for (size_t i = first; i < recipe->n_exceptions && status == HEFT_OK; i++) {
        recipe->exceptions[i].reason = text;
        recipe->exception_lines[i].when = when;
    }
    return status;
}

heft_exception_kind_t heft__parse_exception_at(const heft__parser_t *p)
{
    static const struct {
        const char *word;
        heft_exception_kind_t kind;
    } kinds[] = {
        { "ignore", HEFT_EXCEPTION_UNUSED },       { "untouched", HEFT_EXCEPTION_UNTOUCHED },
        { "derived", HEFT_EXCEPTION_DERIVED },     { "frozen", HEFT_EXCEPTION_FROZEN },
        { "elsewhere", HEFT_EXCEPTION_ELSEWHERE }, { "equal", HEFT_EXCEPTION_EQUAL },
        { "together", HEFT_EXCEPTION_TOGETHER },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (heft__parse_is_word(p, kinds[i].word)) {
            return kinds[i].kind;
        }
    }
    return (heft_exception_kind_t)0;
}

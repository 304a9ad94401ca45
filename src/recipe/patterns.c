/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns with values in them, "{container}.{singular(container)}_{s}.*": once the lets have their
 * values, the text is put together and its tokens are made. Captures stand in the text as a byte
 * that no name of a rule holds, and the number of the capture behind it.
 */
#include "recipe/compile.h"

#include <string.h>

#define ONE '\x01'
#define MANY '\x02'

#define FAIL(c, pos, status, ...) \
    heft__recipe_error((c)->recipe, (pos), (status), (c)->err, __VA_ARGS__)

/* A value in a pattern is text alone. */
static heft_status_t put_value(heft__compile_t *c, const heft__template_piece_t *piece)
{
    size_t from = c->text.len;
    heft_status_t status = heft__put_expr(c, piece->expr);
    for (size_t i = from; status == HEFT_OK && i < c->text.len; i++) {
        char byte = c->text.data[i];
        if ((unsigned char)byte < ' ' || byte == '{' || byte == '}' || byte == '*') {
            status = FAIL(c, piece->expr->pos, HEFT_ERR_ARGUMENT,
                          "\"%.60s\" cannot be a part of a name", c->text.data + from);
        }
    }
    return status;
}

/* The text with its values; a token of which nothing is left is left out. */
static heft_status_t put_text(heft__compile_t *c, const heft__template_t *template)
{
    heft__text_reset(&c->text);
    for (uint32_t i = 0; i < template->n_pieces; i++) {
        const heft__template_piece_t *piece = &template->pieces[i];
        bool ends_token = c->text.len > 0 && c->text.data[c->text.len - 1] != '.';
        if (piece->starts && ends_token) {
            heft__text_put(&c->text, ".");
        }
        if (piece->kind == PIECE_EXPR) {
            heft_status_t status = put_value(c, piece);
            if (status != HEFT_OK) {
                return status;
            }
        } else if (piece->kind == PIECE_TEXT) {
            heft__text_put_n(&c->text, piece->text.data, piece->text.len);
        } else {
            const char mark[2] = { piece->kind == PIECE_MANY ? MANY : ONE,
                                   (char)(piece->capture + 1) };
            heft__text_put_n(&c->text, mark, 2);
        }
    }
    bool is_open = c->text.len > 0 && c->text.data[c->text.len - 1] == '.';
    if (is_open) { /* the last token came to nothing */
        c->text.data[--c->text.len] = '\0';
    }
    return c->text.failed ? heft__error_nomem(c->err, c->text.len) : HEFT_OK;
}

static bool make_token(heft__span_t text, heft__pattern_token_t *token)
{
    *token = (heft__pattern_token_t){ .kind = PIECE_TEXT, .prefix = text, .capture = HEFT__NONE };
    if (text.len == 1 && text.data[0] == '*') {
        token->kind = PIECE_MANY;
        return true;
    }
    for (size_t i = 0; i + 1 < text.len; i++) {
        if (text.data[i] != ONE && text.data[i] != MANY) {
            continue;
        }
        if (token->capture != HEFT__NONE) {
            return false;
        }
        token->kind = text.data[i] == MANY ? PIECE_MANY : PIECE_ONE;
        token->capture = text.data[i + 1] - 1;
        token->prefix.len = i;
        token->suffix = (heft__span_t){ text.data + i + 2, text.len - i - 2 };
        i++;
    }
    return true;
}

/* How the pattern reads in a message, with its values. */
static const char *readable(heft__compile_t *c, const heft__rule_t *rule, const char *text)
{
    heft__text_reset(&c->text);
    for (; *text != '\0'; text++) {
        if (*text == ONE || *text == MANY) {
            heft__text_printf(&c->text, *text == MANY ? "{%s*}" : "{%s}",
                              rule->captures[text[1] - 1]);
            text++;
        } else {
            heft__text_put_n(&c->text, text, 1);
        }
    }
    return c->text.failed ? NULL : heft__arena_strndup(&c->arena, c->text.data, c->text.len);
}

heft_status_t heft__make_pattern(heft__compile_t *c, const heft__rule_t *rule,
                                 heft__pattern_t *pattern_out)
{
    const heft__pattern_t *pattern = &rule->sources[0].pattern;
    *pattern_out = *pattern;
    if (pattern->made_of == NULL) {
        return HEFT_OK;
    }
    heft_status_t status = put_text(c, pattern->made_of);
    if (status != HEFT_OK) {
        return status;
    }
    if (c->text.len == 0) {
        return FAIL(c, pattern->pos, HEFT_ERR_NAME, "\"%s\" makes an empty name", pattern->text);
    }
    char *text = heft__arena_strndup(&c->arena, c->text.data, c->text.len);
    uint32_t n = 1;
    for (size_t i = 0; i < c->text.len; i++) {
        n += c->text.data[i] == '.' ? 1 : 0;
    }
    heft__pattern_token_t *tokens = heft__arena_calloc(&c->arena, n, sizeof *tokens);
    if (text == NULL || tokens == NULL) {
        return heft__error_nomem(c->err, n * sizeof *tokens);
    }
    pattern_out->tokens = tokens;
    pattern_out->n_tokens = n;
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strcspn(text, ".");
        if (!make_token((heft__span_t){ text, len }, &tokens[i])) {
            return FAIL(c, pattern->pos, HEFT_ERR_SYNTAX, "one {capture} in a token at most");
        }
        pattern_out->n_many += tokens[i].kind == PIECE_MANY ? 1 : 0;
        text += len + 1;
    }
    pattern_out->text = readable(c, rule, tokens[0].prefix.data);
    return pattern_out->text != NULL ? HEFT_OK : heft__error_nomem(c->err, 0);
}

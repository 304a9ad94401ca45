/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to tokens.
 *
 * Newlines become tokens only where they end a statement: not inside brackets, not after a token
 * that wants more (a comma, an arrow, an operator), not before a word that continues a rule
 * (`where`, `for`, `when`, `->`, ...). The parser therefore never looks at lines.
 */
#include "format/format.h"
#include "recipe/syntax.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    const heft_recipe_t *recipe;
    const char *at;
    const char *end;
    heft__pos_t pos;
    uint32_t n_open; /* brackets */
    bool newline;    /* seen since the last token, outside brackets */
    heft__pos_t newline_pos;
    heft__tokens_t tokens;
    heft__faults_t *faults;
    heft_error_t *err;
} lexer_t;

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static heft_status_t push(lexer_t *lx, heft__token_t token)
{
    void *items = lx->tokens.items;
    if (!heft__grow(&items, &lx->tokens.cap, lx->tokens.n + 1, sizeof token)) {
        return heft__error_nomem(lx->err, sizeof token);
    }
    lx->tokens.items = items;
    lx->tokens.items[lx->tokens.n++] = token;
    return HEFT_OK;
}

static bool is_one_of(const heft__token_t *token, const char *const *words, size_t n)
{
    for (size_t i = 0; token->kind == TOKEN_NAME && i < n; i++) {
        if (token->text.len == strlen(words[i]) &&
            memcmp(token->text.data, words[i], token->text.len) == 0) {
            return true;
        }
    }
    return false;
}

/* Does a statement go on after this token, whatever comes? */
static bool wants_more(const heft__token_t *token)
{
    static const char *const words[] = { "and", "or", "not" };
    return is_one_of(token, words, sizeof words / sizeof words[0]) ||
           token->kind == TOKEN_NEWLINE || token->kind == TOKEN_ARROW ||
           token->kind == TOKEN_COMMA || (token->kind >= TOKEN_EQ && token->kind <= TOKEN_PERCENT);
}

/* Does a line that begins with this token continue the line before? */
static bool continues(const heft__token_t *token)
{
    static const char *const words[] = { "where", "for",     "when",   "by",
                                         "in",    "because", "except", "note" };
    return token->kind == TOKEN_ARROW || token->kind == TOKEN_COMMA ||
           is_one_of(token, words, sizeof words / sizeof words[0]);
}

static heft_status_t add(lexer_t *lx, const heft__token_t *token)
{
    bool first = lx->tokens.n == 0;
    if (lx->newline && !first && !wants_more(&lx->tokens.items[lx->tokens.n - 1]) &&
        !continues(token)) {
        heft__token_t line = { .kind = TOKEN_NEWLINE, .pos = lx->newline_pos };
        heft_status_t status = push(lx, line);
        if (status != HEFT_OK) {
            return status;
        }
    }
    lx->newline = false;
    return push(lx, *token);
}

static void skip_blank(lexer_t *lx)
{
    while (lx->at < lx->end) {
        char c = *lx->at;
        if (c == '\n') {
            if (lx->n_open == 0 && !lx->newline) {
                lx->newline = true;
                lx->newline_pos = lx->pos;
            }
            lx->pos.line++;
            lx->pos.column = 0;
        } else if (c == '#') {
            while (lx->at + 1 < lx->end && lx->at[1] != '\n') {
                lx->at++;
            }
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
        lx->at++;
        lx->pos.column++;
    }
}

static size_t run_length_at(const lexer_t *lx, size_t from, bool with_letters)
{
    size_t n = from;
    while (lx->at + n < lx->end &&
           (is_digit(lx->at[n]) || (with_letters && is_letter(lx->at[n])))) {
        n++;
    }
    return n - from;
}

static size_t run_length(const lexer_t *lx, bool with_letters)
{
    return run_length_at(lx, 0, with_letters);
}

/* Bytes of the UTF-8 character at p, or 0. */
static size_t character(const lexer_t *lx, const char *p)
{
    return heft__utf8_length(p, (size_t)(lx->end - p));
}

static heft_status_t lex_number(lexer_t *lx, heft__token_t *token)
{
    size_t n = run_length(lx, false);
    token->kind = TOKEN_INT;
    if (lx->at + n + 1 < lx->end && lx->at[n] == '.' && is_digit(lx->at[n + 1])) {
        token->kind = TOKEN_REAL;
        n++;
        while (lx->at + n < lx->end && is_digit(lx->at[n])) {
            n++;
        }
    }
    token->text = (heft__span_t){ lx->at, n };
    char digits[64];
    size_t all = n + run_length_at(lx, n, true);
    if (n >= sizeof digits || (lx->at + n < lx->end && is_letter(lx->at[n]))) {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "malformed number \"%.*s\"", (int)heft__min_i64((int64_t)all, 40),
                                  lx->at);
    }
    memcpy(digits, lx->at, n);
    digits[n] = '\0';
    errno = 0;
    if (token->kind == TOKEN_REAL) {
        token->real = strtod(digits, NULL);
    } else {
        token->integer = strtoll(digits, NULL, 10);
    }
    if (errno == ERANGE) {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "number %s is beyond 64 bits", digits);
    }
    return HEFT_OK;
}

static heft_status_t lex_string(lexer_t *lx, heft__token_t *token)
{
    const char *p = lx->at + 1;
    while (p < lx->end && *p != '"' && *p != '\n' && *p != '\r') {
        unsigned char c = (unsigned char)*p;
        size_t n = character(lx, p);
        if (n == 0 || c < ' ' || c == 0x7f) {
            return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                      "text with the byte 0x%02x, %s", c,
                                      n == 0 ? "which is no UTF-8" : "a control character");
        }
        p += n;
    }
    if (p == lx->end || *p != '"') {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "text without a closing quote on its line");
    }
    token->kind = TOKEN_STRING;
    token->text = (heft__span_t){ lx->at + 1, (size_t)(p - lx->at) - 1 };
    return HEFT_OK;
}

static const struct {
    const char *text;
    heft__token_kind_t kind;
} marks[] = {
    { "...", TOKEN_ELLIPSIS }, { "->", TOKEN_ARROW },  { "==", TOKEN_EQ },
    { "!=", TOKEN_NE },        { "<=", TOKEN_LE },     { ">=", TOKEN_GE },
    { "<", TOKEN_LT },         { ">", TOKEN_GT },      { "=", TOKEN_ASSIGN },
    { "+", TOKEN_PLUS },       { "-", TOKEN_MINUS },   { "*", TOKEN_STAR },
    { "/", TOKEN_SLASH },      { "%", TOKEN_PERCENT }, { ",", TOKEN_COMMA },
    { ":", TOKEN_COLON },      { "@", TOKEN_AT },      { ".", TOKEN_DOT },
    { "(", TOKEN_LPAREN },     { ")", TOKEN_RPAREN },  { "[", TOKEN_LBRACKET },
    { "]", TOKEN_RBRACKET },   { "{", TOKEN_LBRACE },  { "}", TOKEN_RBRACE },
};

static heft_status_t lex_mark(lexer_t *lx, heft__token_t *token)
{
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        size_t n = strlen(marks[i].text);
        if ((size_t)(lx->end - lx->at) >= n && memcmp(lx->at, marks[i].text, n) == 0) {
            token->kind = marks[i].kind;
            token->text = (heft__span_t){ lx->at, n };
            return HEFT_OK;
        }
    }
    unsigned char c = (unsigned char)*lx->at;
    if (c == '\'') {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "names stand in double quotes, not single ones");
    }
    if (c > ' ' && c < 0x7f) {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "stray character '%c'", c);
    }
    static const char mark[] = "\xef\xbb\xbf";
    size_t n = character(lx, lx->at);
    if (n == 3 && memcmp(lx->at, mark, 3) == 0) {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "a byte order mark: save the file as UTF-8 without one");
    }
    if (n > 1) {
        return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                                  "stray character %.*s outside text and comments (text stands in "
                                  "plain double quotes, axes are plain letters)",
                                  (int)n, lx->at);
    }
    return heft__recipe_error(lx->recipe, token->pos, HEFT_ERR_SYNTAX, lx->err,
                              "stray byte 0x%02x outside text and comments", c);
}

/* What is no token: its error is taken, and one goes on behind it. */
static heft_status_t skip_bad(lexer_t *lx, heft__token_t *token, heft_status_t status)
{
    heft_error_t none = HEFT_ERROR_INIT;
    if (lx->faults == NULL ||
        !heft__faults_take(lx->faults, status, lx->err != NULL ? lx->err : &none)) {
        return status;
    }
    size_t n = character(lx, lx->at);
    n = n > 0 ? n : 1;
    if (*lx->at == '"' || *lx->at == '\'') {
        while (lx->at + n < lx->end && lx->at[n] != '\n' && lx->at[n] != *lx->at) {
            n++;
        }
        n += lx->at + n < lx->end && lx->at[n] == *lx->at ? 1 : 0;
    } else if (is_digit(*lx->at)) {
        n = run_length(lx, true);
    }
    token->kind = TOKEN_BAD;
    token->text = (heft__span_t){ lx->at, n };
    return HEFT_OK;
}

static heft_status_t lex_one(lexer_t *lx)
{
    heft__token_t token = { .pos = lx->pos };
    heft_status_t status = HEFT_OK;
    if (is_letter(*lx->at)) {
        token.kind = TOKEN_NAME;
        token.text = (heft__span_t){ lx->at, run_length(lx, true) };
    } else if (is_digit(*lx->at)) {
        status = lex_number(lx, &token);
    } else if (*lx->at == '"') {
        status = lex_string(lx, &token);
    } else {
        status = lex_mark(lx, &token);
    }
    if (status != HEFT_OK) {
        status = skip_bad(lx, &token, status);
    }
    if (status != HEFT_OK) {
        return status;
    }
    size_t n = token.text.len + (token.kind == TOKEN_STRING ? 2 : 0);
    lx->at += n;
    lx->pos.column += (uint32_t)n;
    status = add(lx, &token);
    if (token.kind == TOKEN_LPAREN || token.kind == TOKEN_LBRACKET || token.kind == TOKEN_LBRACE) {
        lx->n_open++;
    } else if ((token.kind == TOKEN_RPAREN || token.kind == TOKEN_RBRACKET ||
                token.kind == TOKEN_RBRACE) &&
               lx->n_open > 0) {
        lx->n_open--;
    }
    return status;
}

heft_status_t heft__lex(const heft_recipe_t *recipe, heft__span_t text, heft__pos_t pos,
                        heft__faults_t *faults, heft__tokens_t *tokens_out, heft_error_t *err)
{
    lexer_t lx = { .recipe = recipe,
                   .at = text.data,
                   .end = text.data + text.len,
                   .pos = pos,
                   .faults = faults,
                   .err = err };
    heft_status_t status = HEFT_OK;
    for (skip_blank(&lx); lx.at < lx.end && status == HEFT_OK; skip_blank(&lx)) {
        status = lex_one(&lx);
    }
    if (status == HEFT_OK) {
        lx.newline = false;
        heft__token_t end = { .kind = TOKEN_END, .pos = lx.pos };
        status = add(&lx, &end);
    }
    if (status != HEFT_OK) {
        heft__tokens_fini(&lx.tokens);
        return status;
    }
    *tokens_out = lx.tokens;
    return HEFT_OK;
}

void heft__tokens_fini(heft__tokens_t *tokens)
{
    heft__free(tokens->items);
    *tokens = (heft__tokens_t){ 0 };
}

const char *heft__token_text(const heft__token_t *token, char out[64])
{
    int n = (int)(token->text.len < 40 ? token->text.len : 40);
    switch ((int)token->kind) {
    case TOKEN_END:
        (void)snprintf(out, 64, "the end of the text");
        break;
    case TOKEN_NEWLINE:
        (void)snprintf(out, 64, "the end of the line");
        break;
    case TOKEN_STRING:
        (void)snprintf(out, 64, "text \"%.*s\"", n, token->text.data);
        break;
    default:
        (void)snprintf(out, 64, "`%.*s`", n, token->text.data);
        break;
    }
    return out;
}

const char *heft__recipe_prefix(const heft_recipe_t *recipe, char out[72])
{
    /* A long path must not push the message out: its end tells the files apart. */
    size_t n = strlen(recipe->name);
    const char *name = n > 60 ? recipe->name + (n - 60) : recipe->name;
    (void)snprintf(out, 72, "%s%s:", n > 60 ? "..." : "", name);
    return out;
}

heft_status_t heft__recipe_error(const heft_recipe_t *recipe, heft__pos_t pos, heft_status_t status,
                                 heft_error_t *err, const char *fmt, ...)
{
    char message[512];
    va_list args;
    va_start(args, fmt);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm of clang 14 */
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    char prefix[72];
    return heft__error_set(err, status, "%s%u:%u: %s", heft__recipe_prefix(recipe, prefix),
                           (unsigned)pos.line, (unsigned)pos.column, message);
}

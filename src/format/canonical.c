/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One name: a key string taken apart into tokens, its canonical form, and the key string that a
 * canonical name stands for. What all names of a side share is the business of manifest_names.c.
 */
#include "format/manifest_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOKENS = 64, MAX_RANKS = 1 << 24 };

typedef enum token_kind {
    TOKEN_KEY,   /* ['text'] */
    TOKEN_INDEX, /* [3], [<flat index 3>] */
    TOKEN_ATTR   /* .text */
} token_kind_t;

typedef struct token {
    token_kind_t kind;
    size_t begin; /* in tokens_t.text */
    size_t len;
} token_t;

typedef struct tokens {
    heft__text_t text;
    token_t items[MAX_TOKENS];
    size_t n;
} tokens_t;

const char *heft_name_form_get_name(heft_name_form_t form)
{
    return form == HEFT_NAME_FORM_DOTTED   ? "dotted"
           : form == HEFT_NAME_FORM_KEYSTR ? "keystr"
                                           : "none";
}

const char *heft_layer_form_get_name(heft_layer_form_t form)
{
    return form == HEFT_LAYER_FORM_SCANNED    ? "scanned"
           : form == HEFT_LAYER_FORM_UNROLLED ? "unrolled"
                                              : "none";
}

/* ---- options ---- */

static bool is_plain_token(const char *text)
{
    return text[0] != '\0' && strpbrk(text, ".[]'\"\\") == NULL && heft__text_is_clean(text);
}

heft_status_t heft__name_opts_load(const heft_name_opts_t *opts, heft_name_opts_t *out,
                                   heft_error_t *err)
{
    static const uint8_t zeros[sizeof out->reserved] = { 0 };
    *out = (heft_name_opts_t)HEFT_NAME_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, out, sizeof *out, "heft_name_opts_t", err);
    if (status != HEFT_OK) {
        return status;
    }
    if (memcmp(out->reserved, zeros, sizeof zeros) != 0 || out->types_lost > 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_name_opts_t: types_lost is 0 or 1, reserved bytes are 0");
    }
    if (out->name_form != HEFT_NAME_FORM_DOTTED && out->name_form != HEFT_NAME_FORM_KEYSTR) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "name_form must be given: dotted or keystr");
    }
    bool has_layers =
        out->layer_form == HEFT_LAYER_FORM_SCANNED || out->layer_form == HEFT_LAYER_FORM_UNROLLED;
    if (has_layers != (out->name_form == HEFT_NAME_FORM_KEYSTR)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "names are %s and layer_form is %s: keystr names need scanned or "
                               "unrolled, dotted names take none",
                               heft_name_form_get_name(out->name_form),
                               heft_layer_form_get_name(out->layer_form));
    }
    out->container = out->container != NULL ? out->container : HEFT__CONTAINER;
    if (!is_plain_token(out->container)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "container \"%.80s\" is not one token",
                               out->container);
    }
    return HEFT_OK;
}

/* ---- key strings ---- */

static bool is_attr_byte(char c, bool is_first)
{
    unsigned char u = (unsigned char)c;
    return (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || u == '_' || u >= 0x80 ||
           (!is_first && u >= '0' && u <= '9');
}

/* .text */
static const char *scan_attr(tokens_t *tokens, const char *at)
{
    const char *begin = ++at;
    while (is_attr_byte(*at, at == begin)) {
        at++;
    }
    heft__text_put_n(&tokens->text, begin, (size_t)(at - begin));
    return at > begin ? at : NULL;
}

/* 'text' or "text", with \\ \' \" inside */
static const char *scan_quoted(tokens_t *tokens, const char *at)
{
    char quote = *at++;
    size_t before = tokens->text.len;
    for (; *at != quote; at++) {
        if (*at == '\\') {
            at++;
            if (*at != '\\' && *at != '\'' && *at != '"') {
                return NULL;
            }
        }
        if (*at == '\0') {
            return NULL;
        }
        heft__text_put_n(&tokens->text, at, 1);
    }
    bool is_empty = tokens->text.len == before && !tokens->text.failed;
    return is_empty || at[1] != ']' ? NULL : at + 2;
}

/* 3] or <flat index 3>] */
static const char *scan_index(tokens_t *tokens, const char *at)
{
    static const char flat[] = "<flat index ";
    bool is_flat = strncmp(at, flat, sizeof flat - 1) == 0;
    at += is_flat ? sizeof flat - 1 : 0;
    size_t n = strspn(at, "0123456789");
    heft__text_put_n(&tokens->text, at, n);
    at += n;
    if (n == 0 || (is_flat && *at != '>')) {
        return NULL;
    }
    at += is_flat ? 1 : 0;
    return *at == ']' ? at + 1 : NULL;
}

static heft_status_t not_keystr(const char *native, size_t at, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_NAME,
                           "name \"%.120s\" is no key string at byte %zu: ['key'], [3] or .attr "
                           "wanted (names with dots are of the form dotted)",
                           native, at);
}

static heft_status_t split(const char *native, tokens_t *tokens, heft_error_t *err)
{
    const char *at = native;
    tokens->n = 0;
    while (*at != '\0') {
        if (tokens->n == MAX_TOKENS) {
            return heft__error_set(err, HEFT_ERR_LIMIT, "name \"%.120s\" has more than %d tokens",
                                   native, (int)MAX_TOKENS);
        }
        token_t token = { .begin = tokens->text.len };
        const char *next = NULL;
        if (*at == '.') {
            token.kind = TOKEN_ATTR;
            next = scan_attr(tokens, at);
        } else if (*at == '[') {
            bool is_quoted = at[1] == '\'' || at[1] == '"';
            token.kind = is_quoted ? TOKEN_KEY : TOKEN_INDEX;
            next = is_quoted ? scan_quoted(tokens, at + 1) : scan_index(tokens, at + 1);
        }
        if (next == NULL) {
            return not_keystr(native, (size_t)(at - native), err);
        }
        token.len = tokens->text.len - token.begin;
        tokens->items[tokens->n++] = token;
        at = next;
    }
    if (tokens->n == 0) {
        return not_keystr(native, 0, err);
    }
    return tokens->text.failed ? heft__error_nomem(err, strlen(native)) : HEFT_OK;
}

static const char *text_of(const tokens_t *tokens, size_t i)
{
    return tokens->text.data + tokens->items[i].begin;
}

static bool is_token(const tokens_t *tokens, size_t i, const char *word)
{
    return tokens->items[i].len == strlen(word) &&
           memcmp(text_of(tokens, i), word, strlen(word)) == 0;
}

static bool is_digits(const tokens_t *tokens, size_t i)
{
    for (size_t k = 0; k < tokens->items[i].len; k++) {
        char c = text_of(tokens, i)[k];
        if (c < '0' || c > '9') {
            return false;
        }
    }
    return true;
}

static void join(const tokens_t *tokens, const heft_name_opts_t *opts, heft__text_t *out)
{
    size_t n = tokens->n;
    bool is_unrolled = opts->layer_form == HEFT_LAYER_FORM_UNROLLED;
    if (n > 1 && tokens->items[n - 1].kind == TOKEN_ATTR && is_token(tokens, n - 1, "value")) {
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        bool is_layer = is_unrolled && i > 0 && is_digits(tokens, i) &&
                        is_token(tokens, i - 1, opts->container);
        heft__text_put(out, i == 0 ? "" : is_layer ? "_" : ".");
        heft__text_put_n(out, text_of(tokens, i), tokens->items[i].len);
    }
}

heft_status_t heft__name_canonicalize(const char *native, const heft_name_opts_t *opts,
                                      heft__text_t *out, heft_error_t *err)
{
    heft__text_reset(out);
    if (opts->name_form == HEFT_NAME_FORM_DOTTED) {
        heft__text_put(out, native);
        return out->failed ? heft__error_nomem(err, strlen(native)) : HEFT_OK;
    }
    tokens_t tokens;
    heft__text_init(&tokens.text);
    heft_status_t status = split(native, &tokens, err);
    if (status == HEFT_OK) {
        join(&tokens, opts, out);
    }
    heft__text_fini(&tokens.text);
    return status == HEFT_OK && out->failed ? heft__error_nomem(err, strlen(native)) : status;
}

heft_status_t heft_name_canonicalize(const char *native, const heft_name_opts_t *opts,
                                     char **canonical_out, heft_error_t *err)
{
    heft_name_opts_t known;
    heft__text_t text;
    heft_status_t status = heft__name_opts_load(opts, &known, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (native == NULL || native[0] == '\0') {
        return heft__error_set(err, HEFT_ERR_NAME, "an empty name");
    }
    heft__text_init(&text);
    status = heft__name_canonicalize(native, &known, &text, err);
    char *taken = status == HEFT_OK ? heft__text_take(&text) : NULL;
    heft__text_fini(&text);
    if (status != HEFT_OK) {
        return status;
    }
    if (taken == NULL) {
        return heft__error_nomem(err, strlen(native));
    }
    *canonical_out = taken;
    return HEFT_OK;
}

/* ---- and back ---- */

/* As Python writes a string: in single quotes, unless it has some and no double ones. */
static void put_key(heft__text_t *out, const char *text, size_t n)
{
    bool has_single = memchr(text, '\'', n) != NULL;
    const char *quote = has_single && memchr(text, '"', n) == NULL ? "\"" : "'";
    heft__text_put(out, "[");
    heft__text_put(out, quote);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\' || text[i] == quote[0]) {
            heft__text_put(out, "\\");
        }
        heft__text_put_n(out, text + i, 1);
    }
    heft__text_put(out, quote);
    heft__text_put(out, "]");
}

static void put_keys(heft__text_t *out, const char *name)
{
    while (*name != '\0') {
        size_t n = strcspn(name, ".");
        put_key(out, name, n);
        name += n + (name[n] == '.' ? 1 : 0);
    }
}

void heft__name_rebuild(heft_name_form_t form, const char *root, const char *name,
                        const char *suffix, heft__text_t *out)
{
    heft__text_reset(out);
    if (form != HEFT_NAME_FORM_KEYSTR) {
        heft__text_put(out, name);
        return;
    }
    put_keys(out, root);
    put_keys(out, name);
    heft__text_put(out, suffix);
}

/* ---- names of ranks ---- */

int heft_name_split_rank(const char *name, uint32_t *rank_out, const char **rest_out)
{
    static const char prefix[] = "rank-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return 0;
    }
    const char *digits = name + sizeof prefix - 1;
    uint32_t rank = 0;
    size_t n = 0;
    for (; digits[n] >= '0' && digits[n] <= '9' && rank < MAX_RANKS; n++) {
        rank = rank * 10 + (uint32_t)(digits[n] - '0');
    }
    const bool is_written_so = n > 0 && (n == 1 || digits[0] != '0');
    if (!is_written_so || rank >= MAX_RANKS || digits[n] != '.' || digits[n + 1] == '\0') {
        return 0;
    }
    *rank_out = rank;
    *rest_out = digits + n + 1;
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of the source, split into tokens once, and matching patterns against them.
 *
 * A pattern is checked from its end first: checkpoint names share their beginnings, so most
 * mismatches show in the last tokens. A hash of the last two tokens turns nearly all names away
 * before their tokens are looked at (70 000 names and 20 rules: 1.4 million pairs). Between the
 * fixed head and tail, `*` takes as few tokens as it can, the leftmost first.
 */
#include "recipe/compile.h"

#include <string.h>

#define LAST_HALF UINT64_C(0x00000000ffffffff)
#define BEFORE_HALF UINT64_C(0xffffffff00000000)

static uint32_t hash_token(heft__span_t token)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < token.len; i++) {
        h = (h ^ (uint8_t)token.data[i]) * 16777619u;
    }
    return h;
}

static uint64_t key_of(const heft__name_t *name)
{
    uint64_t key = hash_token(name->tokens[name->n_tokens - 1]);
    if (name->n_tokens > 1) {
        key |= (uint64_t)hash_token(name->tokens[name->n_tokens - 2]) << 32;
    }
    return key;
}

heft__tail_key_t heft__pattern_tail_key(const heft__pattern_t *pattern)
{
    heft__tail_key_t out = { 0 };
    uint32_t n = pattern->n_tokens;
    if (pattern->tokens[n - 1].kind == PIECE_TEXT) {
        out.key = hash_token(pattern->tokens[n - 1].prefix);
        out.mask = LAST_HALF;
    }
    if (out.mask != 0 && n > 1 && pattern->tokens[n - 2].kind == PIECE_TEXT) {
        out.key |= (uint64_t)hash_token(pattern->tokens[n - 2].prefix) << 32;
        out.mask |= BEFORE_HALF;
    }
    return out;
}

/* The same of a text whose tokens are names or `*`. */
heft__tail_key_t heft__text_tail_key(const char *text)
{
    heft__tail_key_t out = { 0 };
    const size_t len = strlen(text);
    size_t from = len;
    while (from > 0 && text[from - 1] != '.') {
        from--;
    }
    if (strpbrk(text + from, "*{") != NULL) {
        return out;
    }
    out = (heft__tail_key_t){ hash_token((heft__span_t){ text + from, len - from }), LAST_HALF };
    const size_t end = from > 0 ? from - 1 : 0;
    for (from = end; from > 0 && text[from - 1] != '.';) {
        from--;
    }
    const heft__span_t before = { text + from, end - from };
    if (end > 0 && memchr(before.data, '*', before.len) == NULL &&
        memchr(before.data, '{', before.len) == NULL) {
        out.key |= (uint64_t)hash_token(before) << 32;
        out.mask |= BEFORE_HALF;
    }
    return out;
}

static heft_status_t split_name(heft__names_t *names, heft__name_t *name, heft_error_t *err)
{
    const char *text = name->info.name;
    uint32_t n = 1;
    for (const char *dot = strchr(text, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        n++;
    }
    name->tokens = heft__arena_alloc(&names->arena, n * sizeof *name->tokens);
    if (name->tokens == NULL) {
        return heft__error_nomem(err, n * sizeof *name->tokens);
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strcspn(text, ".");
        name->tokens[i] = (heft__span_t){ text, len };
        text += len + 1;
    }
    name->n_tokens = n;
    return HEFT_OK;
}

heft_status_t heft__names_init(heft__names_t *names, const heft_manifest_t *manifest,
                               heft_error_t *err)
{
    uint32_t n = heft_manifest_get_n_tensors(manifest);
    *names = (heft__names_t){ .n = n };
    heft__arena_init(&names->arena, 1u << 16);
    names->items = heft__calloc(n > 0 ? n : 1, sizeof *names->items);
    names->keys = heft__calloc(n > 0 ? n : 1, sizeof *names->keys);
    if (names->items == NULL || names->keys == NULL) {
        return heft__error_nomem(err, n * sizeof *names->items);
    }
    for (uint32_t i = 0; i < n; i++) {
        heft__name_t *name = &names->items[i];
        heft_status_t status = heft_manifest_query(manifest, i, &name->info, err);
        name->buffer = HEFT__NO_BUFFER;
        if (status == HEFT_OK) {
            status = split_name(names, name, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        names->keys[i] = key_of(name);
    }
    return HEFT_OK;
}

void heft__names_fini(heft__names_t *names)
{
    heft__arena_fini(&names->arena);
    heft__free(names->items);
    heft__free(names->keys);
    heft__free(names->answers);
    *names = (heft__names_t){ 0 };
}

heft__name_t *heft__names_find(const heft__names_t *names, const char *name)
{
    uint32_t begin = 0;
    uint32_t end = names->n;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        int order = strcmp(names->items[middle].info.name, name);
        if (order == 0) {
            return &names->items[middle];
        }
        if (order < 0) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return NULL;
}

const char *heft__names_nearest(const heft__names_t *names, const char *name, bool unused_only)
{
    const char *best = NULL;
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    for (uint32_t i = 0; i < names->n && limit > 0; i++) {
        const heft__name_t *item = &names->items[i];
        if (item->is_ignored || (unused_only && item->is_used)) {
            continue;
        }
        uint32_t distance = heft__edit_distance(name, item->info.name, limit);
        if (distance <= limit) {
            best = item->info.name;
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return best;
}

static bool match_token(const heft__pattern_token_t *want, heft__span_t token,
                        heft__span_t *captures)
{
    size_t fixed = want->prefix.len + want->suffix.len;
    if (want->kind == PIECE_TEXT) {
        return token.len == fixed && memcmp(token.data, want->prefix.data, fixed) == 0;
    }
    if (token.len <= fixed || memcmp(token.data, want->prefix.data, want->prefix.len) != 0 ||
        memcmp(token.data + token.len - want->suffix.len, want->suffix.data, want->suffix.len) !=
            0) {
        return false;
    }
    if (captures != NULL && want->capture != HEFT__NONE) {
        captures[want->capture] =
            (heft__span_t){ token.data + want->prefix.len, token.len - fixed };
    }
    return true;
}

/* Tokens [begin, end) as one capture. */
static void capture_many(const heft__pattern_token_t *want, const heft__span_t *tokens,
                         uint32_t begin, uint32_t end, heft__span_t *captures)
{
    if (captures == NULL || want->capture == HEFT__NONE) {
        return;
    }
    heft__span_t span = { "", 0 };
    if (end > begin) {
        span.data = tokens[begin].data;
        span.len = (size_t)(tokens[end - 1].data + tokens[end - 1].len - span.data);
    }
    captures[want->capture] = span;
}

static bool match_run(const heft__pattern_token_t *want, const heft__span_t *tokens, uint32_t n,
                      heft__span_t *captures)
{
    for (uint32_t i = n; i > 0; i--) {
        if (!match_token(&want[i - 1], tokens[i - 1], captures)) {
            return false;
        }
    }
    return true;
}

/* pattern->tokens[p] is a star; name tokens [t, end) are left for it and what lies before `tail`.
 */
static bool match_stars(const heft__pattern_t *pattern, uint32_t p, uint32_t tail,
                        const heft__name_t *name, uint32_t t, uint32_t end, heft__span_t *captures)
{
    const heft__pattern_token_t *tokens = pattern->tokens;
    while (p < tail) {
        uint32_t run = 0; /* fixed tokens between this star and the next */
        while (p + 1 + run < tail && tokens[p + 1 + run].kind != PIECE_MANY) {
            run++;
        }
        uint32_t at = t;
        if (p + 1 + run >= tail) {
            at = end; /* the last star takes the rest */
        } else {
            while (at + run <= end &&
                   !match_run(&tokens[p + 1], &name->tokens[at], run, captures)) {
                at++;
            }
            if (at + run > end) {
                return false;
            }
        }
        capture_many(&tokens[p], name->tokens, t, at, captures);
        t = at + run;
        p += 1 + run;
    }
    return true;
}

bool heft__pattern_match(const heft__pattern_t *pattern, const heft__name_t *name,
                         heft__span_t *captures)
{
    uint32_t n_fixed = pattern->n_tokens - pattern->n_many;
    if (name->n_tokens < n_fixed || (pattern->n_many == 0 && name->n_tokens != n_fixed)) {
        return false;
    }
    if (pattern->n_many == 0) {
        return match_run(pattern->tokens, name->tokens, n_fixed, captures);
    }
    uint32_t head = 0;
    while (pattern->tokens[head].kind != PIECE_MANY) {
        head++;
    }
    uint32_t tail = pattern->n_tokens;
    while (pattern->tokens[tail - 1].kind != PIECE_MANY) {
        tail--;
    }
    uint32_t n_tail = pattern->n_tokens - tail;
    uint32_t end = name->n_tokens - n_tail;
    return match_run(&pattern->tokens[tail], &name->tokens[end], n_tail, captures) &&
           match_run(pattern->tokens, name->tokens, head, captures) &&
           match_stars(pattern, head, tail, name, head, end, captures);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are declared one group, such as a weight and its scale. An exception lists
 * patterns; `{l}` in them stands for a part of one token, and what it stands for must be equal in
 * all: "layers.{l}.w layers.{l}.scale" makes one group of each layer. Ranks are joined by what they
 * read alone.
 */
#include "plan/plan.h"

#include <string.h>

/* Patterns come from files and peers: what one costs is bounded. */
enum { MAX_CAPTURES = 8, MAX_STARS = 8, MAX_STEPS = 100000 };

typedef struct span {
    const char *data;
    size_t len;
} span_t;

/* What `{l}` stood for so far. */
typedef struct captures {
    span_t name[MAX_CAPTURES];
    span_t value[MAX_CAPTURES];
    uint32_t n;
    uint32_t n_stars; /* of the pattern, while it is checked */
} captures_t;

static bool is_equal(span_t a, span_t b)
{
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/* The token at text, of which `left` bytes are there. */
static span_t token_of(span_t text)
{
    const char *dot = memchr(text.data, '.', text.len);
    return (span_t){ text.data, dot != NULL ? (size_t)(dot - text.data) : text.len };
}

static span_t behind(span_t text, span_t token)
{
    size_t n = token.len + (token.len < text.len ? 1 : 0);
    return (span_t){ text.data + n, text.len - n };
}

/* "prefix{name}suffix"; false: there is no capture. */
static bool split_token(span_t token, span_t *prefix, span_t *name, span_t *suffix)
{
    const char *open = memchr(token.data, '{', token.len);
    if (open == NULL) {
        return false;
    }
    const char *close = memchr(open, '}', token.len - (size_t)(open - token.data));
    if (close == NULL) {
        return false;
    }
    *prefix = (span_t){ token.data, (size_t)(open - token.data) };
    *name = (span_t){ open + 1, (size_t)(close - open - 1) };
    *suffix = (span_t){ close + 1, token.len - prefix->len - name->len - 2 };
    return true;
}

static bool capture(captures_t *captures, span_t name, span_t value)
{
    for (uint32_t i = 0; i < captures->n; i++) {
        if (is_equal(captures->name[i], name)) {
            return is_equal(captures->value[i], value);
        }
    }
    captures->name[captures->n] = name;
    captures->value[captures->n++] = value;
    return true;
}

static bool match_token(span_t pattern, span_t token, captures_t *captures)
{
    span_t prefix = { "", 0 };
    span_t name = { "", 0 };
    span_t suffix = { "", 0 };
    if (!split_token(pattern, &prefix, &name, &suffix)) {
        return is_equal(pattern, token);
    }
    if (token.len <= prefix.len + suffix.len || memcmp(token.data, prefix.data, prefix.len) != 0 ||
        memcmp(token.data + token.len - suffix.len, suffix.data, suffix.len) != 0) {
        return false;
    }
    const span_t value = { token.data + prefix.len, token.len - prefix.len - suffix.len };
    return capture(captures, name, value);
}

/* The depth is bounded by the stars of the pattern; *steps counts down, at 0 nothing matches. */
static bool match(span_t pattern, span_t name, captures_t *captures, uint32_t *steps)
{
    while (pattern.len > 0) {
        const span_t first = token_of(pattern);
        const span_t rest = behind(pattern, first);
        if (*steps == 0) {
            return false;
        }
        --*steps;
        if (first.len == 1 && first.data[0] == '*') {
            const captures_t before = *captures;
            for (;;) {
                if (match(rest, name, captures, steps)) {
                    return true;
                }
                *captures = before;
                if (name.len == 0 || *steps == 0) {
                    return false;
                }
                name = behind(name, token_of(name));
            }
        }
        if (name.len == 0 || !match_token(first, token_of(name), captures)) {
            return false;
        }
        name = behind(name, token_of(name));
        pattern = rest;
    }
    return name.len == 0;
}

/* The pattern at text, and what is left behind it; an empty one is the end. */
static span_t next_pattern(const char **text)
{
    const char *begin = *text + strspn(*text, " ");
    const size_t n = strcspn(begin, " ");
    *text = begin + n;
    return (span_t){ begin, n };
}

/* ---- whether they are sound ---- */

static heft_status_t check_pattern(span_t pattern, captures_t *found, heft_error_t *err)
{
    span_t left = pattern;
    while (left.len > 0) {
        span_t token = token_of(left);
        span_t prefix = { "", 0 };
        span_t name = { "", 0 };
        span_t suffix = { "", 0 };
        bool has_brace = memchr(token.data, '{', token.len) != NULL ||
                         memchr(token.data, '}', token.len) != NULL;
        bool is_split = split_token(token, &prefix, &name, &suffix);
        if (has_brace &&
            (!is_split || name.len == 0 || memchr(prefix.data, '}', prefix.len) ||
             memchr(suffix.data, '{', suffix.len) || memchr(suffix.data, '}', suffix.len))) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "together: \"%.*s\": a token may have one part in braces",
                                   (int)pattern.len, pattern.data);
        }
        found->n_stars += token.len == 1 && token.data[0] == '*';
        if (found->n_stars > MAX_STARS) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "together: \"%.*s\" has more than %d `*`", (int)pattern.len,
                                   pattern.data, (int)MAX_STARS);
        }
        if (is_split && found->n == MAX_CAPTURES) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "together: \"%.*s\" has more than %d parts in braces",
                                   (int)pattern.len, pattern.data, (int)MAX_CAPTURES);
        }
        if (is_split) {
            (void)capture(found, name, (span_t){ "", 0 });
        }
        left = behind(left, token);
    }
    return HEFT_OK;
}

static bool has_all(const captures_t *of, const captures_t *in)
{
    for (uint32_t i = 0; i < of->n; i++) {
        bool is_there = false;
        for (uint32_t k = 0; k < in->n; k++) {
            is_there = is_there || is_equal(of->name[i], in->name[k]);
        }
        if (!is_there) {
            return false;
        }
    }
    return true;
}

heft_status_t heft__together_check(const char *patterns, heft_error_t *err)
{
    captures_t first = { .n = 0 };
    const char *at = patterns;
    span_t pattern = next_pattern(&at);
    heft_status_t status = check_pattern(pattern, &first, err);
    for (pattern = next_pattern(&at); pattern.len > 0 && status == HEFT_OK;
         pattern = next_pattern(&at)) {
        captures_t found = { .n = 0 };
        status = check_pattern(pattern, &found, err);
        if (status == HEFT_OK && !(has_all(&first, &found) && has_all(&found, &first))) {
            return heft__error_set(
                err, HEFT_ERR_ARGUMENT,
                "together: \"%.120s\": every pattern must have the same parts in "
                "braces",
                patterns);
        }
    }
    return status;
}

/* ---- joining ---- */

typedef struct joiner {
    const heft_plan_t *plan;
    heft__excuse_t *excuse;
    heft__join_t join;
    uint32_t *parent;
    heft__map_t keys; /* of a rank: what the braces stand for -> the first such parameter's slot */
    heft__arena_t texts;
    heft__text_t key;
    captures_t order; /* as the first pattern names them */
    heft_error_t *err;
} joiner_t;

static void put_key(joiner_t *j, const captures_t *captures)
{
    heft__text_reset(&j->key);
    for (uint32_t i = 0; i < j->order.n; i++) {
        for (uint32_t k = 0; k < captures->n; k++) {
            if (is_equal(j->order.name[i], captures->name[k])) {
                heft__text_put_n(&j->key, captures->value[k].data, captures->value[k].len);
            }
        }
        heft__text_put(&j->key, ".");
    }
}

static heft_status_t take_param(joiner_t *j, const heft__plan_rank_t *rank, uint32_t param,
                                const captures_t *captures)
{
    heft__excuse_t *excuse = j->excuse;
    const heft_tensor_info_t *info = &rank->params[param];
    const uint32_t slot = rank->first_slot + param;
    put_key(j, captures);
    if (j->key.failed) {
        return heft__error_nomem(j->err, j->key.len);
    }
    const uint32_t first = heft__map_get(&j->keys, j->key.data, j->key.len);
    excuse->n_matched++;
    excuse->first = excuse->first == NULL ? info->name : excuse->first;
    if (first == slot) {
        return HEFT_OK; /* a second pattern matches it, too */
    }
    if (first != HEFT__MAP_NONE) {
        j->join(j->parent, first, slot);
        excuse->n_excused++;
        heft__sum(&excuse->n_elems, info->n_elems);
        return HEFT_OK;
    }
    char *text = heft__arena_strndup(&j->texts, j->key.data, j->key.len);
    return text != NULL && heft__map_put(&j->keys, text, j->key.len, slot) == HEFT_OK
               ? HEFT_OK
               : heft__error_nomem(j->err, j->key.len);
}

/* All patterns on one rank: keys do not go beyond it. */
static heft_status_t join_rank(joiner_t *j, const heft__plan_rank_t *rank, uint8_t *is_idle)
{
    const char *at = j->excuse->exception->pattern;
    heft_status_t status = HEFT_OK;
    uint32_t k = 0;
    for (span_t pattern = next_pattern(&at); pattern.len > 0; pattern = next_pattern(&at), k++) {
        for (uint32_t p = 0; p < rank->n_params && status == HEFT_OK; p++) {
            const char *name = rank->params[p].name;
            captures_t captures = { .n = 0 };
            uint32_t steps = MAX_STEPS;
            if (match(pattern, (span_t){ name, strlen(name) }, &captures, &steps)) {
                is_idle[k] = 0;
                status = take_param(j, rank, p, &captures);
            } else if (steps == 0) {
                status = heft__error_set(j->err, HEFT_ERR_LIMIT,
                                         "together: \"%.*s\" on \"%.80s\" takes more than %d steps",
                                         (int)pattern.len, pattern.data, name, (int)MAX_STEPS);
            }
        }
    }
    return status;
}

/* The first pattern that matches nothing, if there is one, is what is said of the exception. */
static void find_idle(heft__excuse_t *excuse, const uint8_t *is_idle)
{
    const char *at = excuse->exception->pattern;
    uint32_t k = 0;
    for (span_t pattern = next_pattern(&at); pattern.len > 0; pattern = next_pattern(&at), k++) {
        if (is_idle[k] != 0) {
            excuse->idle = pattern.data;
            excuse->idle_len = (uint32_t)pattern.len;
            excuse->n_excused = 0;
            return;
        }
    }
}

static heft_status_t join_all(joiner_t *j)
{
    const char *patterns = j->excuse->exception->pattern;
    const char *at = patterns;
    heft_status_t status = check_pattern(next_pattern(&at), &j->order, j->err);
    uint8_t *is_idle = heft__malloc(strlen(patterns) + 1);
    if (status == HEFT_OK && is_idle == NULL) {
        status = heft__error_nomem(j->err, strlen(patterns) + 1);
    }
    if (status != HEFT_OK) {
        heft__free(is_idle);
        return status;
    }
    memset(is_idle, 1, strlen(patterns) + 1);
    for (uint32_t r = 0; r < j->plan->n_ranks && status == HEFT_OK; r++) {
        heft__map_init(&j->keys);
        heft__arena_init(&j->texts, 1024);
        status = join_rank(j, &j->plan->ranks[r], is_idle);
        heft__map_fini(&j->keys);
        heft__arena_fini(&j->texts);
    }
    find_idle(j->excuse, is_idle);
    heft__free(is_idle);
    return status;
}

heft_status_t heft__plan_join_together(const heft_plan_t *plan, heft__excuse_t *excuse,
                                       heft__join_t join, uint32_t *parent, heft_error_t *err)
{
    joiner_t j = { .plan = plan, .excuse = excuse, .join = join, .parent = parent, .err = err };
    heft__text_init(&j.key);
    heft_status_t status = join_all(&j);
    heft__text_fini(&j.key);
    return status;
}

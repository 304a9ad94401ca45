/* SPDX-License-Identifier: Apache-2.0 */
/* Growable text. Appends after a failure do nothing, so a caller checks once, at the end. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

static char empty[1] = "";

void heft__text_init(heft__text_t *text)
{
    *text = (heft__text_t){ .data = empty, .len = 0, .cap = 0, .failed = false };
}

void heft__text_fini(heft__text_t *text)
{
    if (text->cap > 0) {
        heft__free(text->data);
    }
    heft__text_init(text);
}

void heft__text_reset(heft__text_t *text)
{
    text->len = 0;
    text->failed = false;
    if (text->cap > 0) {
        text->data[0] = '\0';
    }
}

static bool reserve(heft__text_t *text, size_t extra)
{
    size_t need;
    if (text->failed || !heft__size_add(text->len, extra, &need) ||
        !heft__size_add(need, 1, &need)) {
        text->failed = true;
        return false;
    }
    void *items = text->cap > 0 ? text->data : NULL;
    size_t cap = text->cap;
    if (!heft__grow(&items, &cap, need, 1)) {
        text->failed = true;
        return false;
    }
    text->data = items;
    text->cap = cap;
    return true;
}

void heft__text_put_n(heft__text_t *text, const char *s, size_t n)
{
    if (reserve(text, n)) {
        memcpy(text->data + text->len, s, n);
        text->len += n;
        text->data[text->len] = '\0';
    }
}

void heft__text_put(heft__text_t *text, const char *s)
{
    heft__text_put_n(text, s, strlen(s));
}

void heft__text_printf(heft__text_t *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        text->failed = true;
        return;
    }
    if (reserve(text, (size_t)n)) {
        va_start(args, fmt);
        (void)vsnprintf(text->data + text->len, (size_t)n + 1, fmt, args);
        va_end(args);
        text->len += (size_t)n;
    }
}

char *heft__text_take(heft__text_t *text)
{
    char *data = NULL;
    if (!text->failed) {
        data = text->cap > 0 ? text->data : heft__strdup("");
    } else if (text->cap > 0) {
        heft__free(text->data);
    }
    heft__text_init(text);
    return data;
}

/* ---- UTF-8 ---- */

size_t heft__utf8_length(const char *text, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)text;
    if (left == 0 || p[0] < 0x80) {
        return left > 0 ? 1 : 0;
    }
    size_t n = p[0] >= 0xf0 && p[0] < 0xf8   ? 4
               : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
               : p[0] >= 0xc0 && p[0] < 0xe0 ? 2
                                             : 0;
    if (n == 0 || n > left) {
        return 0;
    }
    uint32_t code = n == 4 ? p[0] & 7u : n == 3 ? p[0] & 15u : p[0] & 31u;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (p[i] & 0x3fu);
    }
    bool is_valid = code >= least[n] && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    return is_valid ? n : 0;
}

/* The rest of the text begins a character and ends inside it. */
static bool is_cut(const char *text)
{
    const unsigned char lead = (unsigned char)text[0];
    const bool begins_one = lead >= 0xc2 && lead <= 0xf4;
    const size_t whole = !begins_one ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    const size_t left = strlen(text);
    bool is = left < whole;
    for (size_t i = 1; i < left && is; i++) {
        is = ((unsigned char)text[i] & 0xc0) == 0x80;
    }
    return is;
}

void heft__text_tidy(char *text)
{
    while (*text != '\0') {
        const size_t n = heft__utf8_length(text, strnlen(text, 4));
        if (n == 0 && is_cut(text)) {
            *text = '\0';
            return;
        }
        if (n == 0 || (unsigned char)*text < 0x20) {
            *text = n == 0 ? '?' : ' ';
        }
        text += n > 0 ? n : 1;
    }
}

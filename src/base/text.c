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

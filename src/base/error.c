/* SPDX-License-Identifier: Apache-2.0 */
/* Filling heft_error_t. A message is cut at its end, never in the middle of the arguments nor of a
 * character, and is one line of UTF-8 whatever it quotes: it goes into JSON. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_message(heft_error_t *err, heft_status_t status, int sys_errno, const char *fmt,
                        va_list args) HEFT_PRINTF(4, 0);

static void set_message(heft_error_t *err, heft_status_t status, int sys_errno, const char *fmt,
                        va_list args)
{
    err->status = status;
    err->sys_errno = sys_errno;
    err->peer_rank = -1;
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    if (n < 0) {
        err->message[0] = '\0';
    } else if ((size_t)n >= sizeof err->message) {
        err->message[sizeof err->message - 4] = '\0';
        heft__text_tidy(err->message);
        memcpy(err->message + strlen(err->message), "...", 4);
        return;
    }
    heft__text_tidy(err->message);
}

void heft__error_fill(heft_error_t *err, heft_status_t status, const char *fmt, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        set_message(err, status, 0, fmt, args);
        va_end(args);
    }
}

void heft__error_fill_sys(heft_error_t *err, heft_status_t status, int sys_errno, const char *fmt,
                          ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, fmt);
        set_message(err, status, sys_errno, fmt, args);
        va_end(args);
        char text[96] = "";
        const char *s = strerror_r(sys_errno, text, sizeof text);
        size_t len = strlen(err->message);
        (void)snprintf(err->message + len, sizeof err->message - len, ": %s", s);
        heft__text_tidy(err->message);
    }
}

void heft__error_fill_nomem(heft_error_t *err, size_t bytes)
{
    heft__error_fill(err, HEFT_ERR_NOMEM, "out of memory: %zu bytes", bytes);
}

void heft__error_reset(heft_error_t *err)
{
    if (err != NULL) {
        *err = (heft_error_t)HEFT_ERROR_INIT;
    }
}

void heft__bug(heft_error_t *err, const char *file, int line, const char *what)
{
#ifndef NDEBUG
    (void)fprintf(stderr, "heft: broken invariant at %s:%d: %s\n", file, line, what);
    abort();
#endif
    heft__error_fill(err, HEFT_ERR_INTERNAL, "broken invariant at %s:%d: %s", file, line, what);
}

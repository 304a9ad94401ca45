/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines: a message with fields, rendered as text or as one JSON object. Needs no memory but the
 * stack, so that it can report the lack of it.
 */
#include "base/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 2048

static struct {
    heft_log_format_t format;
    heft_log_fn_t fn;
    void *arg;
} target;

int heft__log_max_level = HEFT_LOG_WARN;

static const char *const level_names[] = { "error", "warn", "info", "debug", "trace" };

heft_status_t heft_log_configure(heft_log_level_t level, heft_log_format_t format, heft_log_fn_t fn,
                                 void *arg, heft_error_t *err)
{
    if ((unsigned)level > HEFT_LOG_TRACE || (unsigned)format > HEFT_LOG_JSON) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "log level %d, format %d: 0 to %d, 0 to %d",
                               (int)level, (int)format, HEFT_LOG_TRACE, HEFT_LOG_JSON);
    }
    target.format = format;
    target.fn = fn;
    target.arg = arg;
    heft__log_max_level = (int)level;
    return HEFT_OK;
}

/* ---- rendering; a line that is too long is cut, never its closing ---- */

typedef struct line {
    char text[LINE_BYTES];
    size_t n;
    size_t limit;
} line_t;

static void put(line_t *line, const char *s)
{
    while (*s != '\0' && line->n < line->limit) {
        line->text[line->n++] = *s++;
    }
}

/* In quotes, escaped as JSON wants it; also fit for text. */
static void put_quoted(line_t *line, const char *s)
{
    put(line, "\"");
    for (; *s != '\0'; s++) {
        const unsigned char c = (unsigned char)*s;
        char code[8] = { *s, '\0' };
        if (c == '"' || c == '\\') {
            (void)snprintf(code, sizeof code, "\\%c", c);
        } else if (c < 0x20) {
            (void)snprintf(code, sizeof code, "\\u%04x", c);
        } else if (c >= 0x80) { /* may be no UTF-8, or be cut */
            code[0] = '?';
        }
        if (line->n + strlen(code) >= line->limit) { /* no half of an escape */
            break;
        }
        put(line, code);
    }
    if (line->n == line->limit) {
        line->n--;
    }
    put(line, "\"");
}

static bool is_plain(const char *s)
{
    return s[0] != '\0' && strpbrk(s, " =\"\\\n\t") == NULL;
}

static void put_value(line_t *line, const heft__logged_t *field, bool is_json)
{
    char number[32];
    switch (field->kind) {
    case HEFT__LOGGED_INT:
        (void)snprintf(number, sizeof number, "%" PRId64, field->number);
        put(line, number);
        break;
    case HEFT__LOGGED_REAL:
        (void)snprintf(number, sizeof number, "%.6g", field->real);
        put(line, number);
        break;
    case HEFT__LOGGED_TEXT:
        if (!is_json && is_plain(field->text)) {
            put(line, field->text);
        } else {
            put_quoted(line, field->text);
        }
        break;
    }
}

static void render_text(line_t *line, const char *head, const char *message,
                        const heft__logged_t *fields, size_t n_fields)
{
    put(line, head);
    put(line, message);
    for (size_t i = 0; i < n_fields; i++) {
        put(line, " ");
        put(line, fields[i].key);
        put(line, "=");
        put_value(line, &fields[i], false);
    }
}

static void render_json(line_t *line, heft_log_level_t level, const char *part, const char *message,
                        const heft__logged_t *fields, size_t n_fields)
{
    char time[32];
    heft__clock_utc_text(time);
    put(line, "{\"time\":");
    put_quoted(line, time);
    put(line, ",\"level\":");
    put_quoted(line, level_names[level]);
    put(line, ",\"part\":");
    put_quoted(line, part);
    put(line, ",\"message\":");
    put_quoted(line, message);
    for (size_t i = 0; i < n_fields; i++) {
        const size_t before = line->n;
        put(line, ",");
        put_quoted(line, fields[i].key);
        put(line, ":");
        put_value(line, &fields[i], true);
        if (line->n + 1 >= line->limit) { /* cut: drop the field, keep the object whole */
            line->n = before;
            break;
        }
    }
    line->limit = LINE_BYTES - 2;
    put(line, "}");
}

static void write_line(line_t *line)
{
    line->text[line->n] = '\n';
    size_t done = 0;
    while (done <= line->n) {
        const ssize_t n = write(STDERR_FILENO, line->text + done, line->n + 1 - done);
        if (n <= 0) {
            return; /* nobody is left to tell */
        }
        done += (size_t)n;
    }
}

void heft__log_event(heft_log_level_t level, const char *part, const char *message,
                     const heft__logged_t *fields, size_t n_fields)
{
    line_t line = { .n = 0, .limit = LINE_BYTES - 3 };
    char head[96];
    char time[32] = "";
    switch (target.format) {
    case HEFT_LOG_JSON:
        render_json(&line, level, part, message, fields, n_fields);
        break;
    case HEFT_LOG_TEXT:
        heft__clock_utc_text(time);
        (void)snprintf(head, sizeof head, "%s %s %s: ", time, level_names[level], part);
        render_text(&line, head, message, fields, n_fields);
        break;
    case HEFT_LOG_PLAIN:
        (void)snprintf(head, sizeof head, "heft: %s: %s: ", level_names[level], part);
        render_text(&line, head, message, fields, n_fields);
        break;
    }
    if (target.fn != NULL) {
        line.text[line.n] = '\0';
        target.fn(target.arg, level, line.text);
    } else {
        write_line(&line);
    }
}

void heft__log_emit(heft_log_level_t level, const char *part, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    heft__log_event(level, part, text, NULL, 0);
}

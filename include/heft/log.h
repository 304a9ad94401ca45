/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the library: what is worth knowing and has no caller to be returned to. Warnings and
 * errors only, on standard error, unless set otherwise.
 */
#ifndef HEFT_LOG_H
#define HEFT_LOG_H

#include "heft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum heft_log_level {
    HEFT_LOG_ERROR = 0,
    HEFT_LOG_WARN = 1,
    HEFT_LOG_INFO = 2, /* members that come and go, rounds and their phases */
    HEFT_LOG_DEBUG = 3,
    HEFT_LOG_TRACE = 4
} heft_log_level_t;

typedef enum heft_log_format {
    HEFT_LOG_PLAIN = 0, /* "heft: warn: sync: text key=value" */
    HEFT_LOG_TEXT = 1,  /* "2026-11-30T17:45:01.123Z warn sync: text key=value" */
    HEFT_LOG_JSON = 2   /* {"time": ..., "level": ..., "part": ..., "message": ..., key: value} */
} heft_log_format_t;

/** Takes one line, without a newline, from any thread. */
typedef void (*heft_log_fn_t)(void *arg, heft_log_level_t level, const char *line);

/**
 * What is logged from now on, in the whole process. fn NULL: lines go to standard error, each in
 * one write. Call it before the library's threads start. HEFT_ERR_ARGUMENT for a level or a format
 * that is none.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_log_configure(heft_log_level_t level,
                                                          heft_log_format_t format,
                                                          heft_log_fn_t fn, void *arg,
                                                          heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif

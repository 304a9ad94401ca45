/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statuses and errors.
 *
 * Everything that can fail returns a heft_status_t. 0 is success, positive values are progress,
 * negative values are errors. The class of a status names the remedy, so a caller can act on it
 * without knowing every value.
 */
#ifndef HEFT_STATUS_H
#define HEFT_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HEFT_API __attribute__((visibility("default")))
#define HEFT_MUST_CHECK __attribute__((warn_unused_result))
#define HEFT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define HEFT_API
#define HEFT_MUST_CHECK
#define HEFT_PRINTF(fmt, args)
#endif

/* What the caller should do about a status. */
typedef enum heft_remedy {
    HEFT_REMEDY_NONE = 0,   /* nothing: success or progress */
    HEFT_REMEDY_CALLER = 1, /* fix the call or its input */
    HEFT_REMEDY_RETRY = 2,  /* the same call may work later */
    HEFT_REMEDY_PEER = 3,   /* plan again without that peer */
    HEFT_REMEDY_DATA = 4,   /* discard this version of the data */
    HEFT_REMEDY_LOCAL = 5,  /* this host is broken or full */
    HEFT_REMEDY_BUG = 6     /* report it */
} heft_remedy_t;

/* X(name, value, remedy, text): values are never reused. */
#define HEFT_STATUS_MAP(X)                                                             \
    X(OK, 0, NONE, "success")                                                          \
    X(IN_PROGRESS, 1, NONE, "operation has not finished")                              \
    X(ERR_ARGUMENT, -1, CALLER, "invalid argument")                                    \
    X(ERR_UNSUPPORTED, -2, CALLER, "not supported")                                    \
    X(ERR_NOT_FOUND, -3, CALLER, "not found")                                          \
    X(ERR_EXISTS, -4, CALLER, "already exists")                                        \
    X(ERR_STATE, -5, CALLER, "not allowed in this state")                              \
    X(ERR_SYNTAX, -6, CALLER, "syntax error")                                          \
    X(ERR_LIMIT, -7, CALLER, "limit exceeded")                                         \
    X(ERR_OVERFLOW, -8, CALLER, "arithmetic overflow")                                 \
    X(ERR_NAME, -9, CALLER, "names of the two sides do not match")                     \
    X(ERR_SHAPE, -10, CALLER, "shape or dtype mismatch")                               \
    X(ERR_PROOF, -11, CALLER, "the mapping does not cover every element exactly once") \
    X(ERR_VERSION, -12, CALLER, "version refused")                                     \
    X(ERR_AUTH, -13, CALLER, "not authorised")                                         \
    X(ERR_NOMEM, -20, RETRY, "out of memory")                                          \
    X(ERR_BUSY, -21, RETRY, "busy")                                                    \
    X(ERR_TIMEOUT, -22, RETRY, "deadline passed")                                      \
    X(ERR_CANCELED, -23, RETRY, "canceled")                                            \
    X(ERR_PEER, -40, PEER, "peer lost")                                                \
    X(ERR_PROTOCOL, -41, PEER, "peer broke the protocol")                              \
    X(ERR_STALE, -42, PEER, "message from an earlier life or round")                   \
    X(ERR_DIGEST, -60, DATA, "content digest mismatch")                                \
    X(ERR_FORMAT, -61, DATA, "malformed file or message")                              \
    X(ERR_MISMATCH, -62, DATA, "contents differ")                                      \
    X(ERR_IO, -80, LOCAL, "input or output failed")                                    \
    X(ERR_NOSPACE, -81, LOCAL, "no space left")                                        \
    X(ERR_POISONED, -82, LOCAL, "poisoned until recovered")                            \
    X(ERR_INTERNAL, -100, BUG, "internal error")

typedef enum heft_status {
#define HEFT_STATUS_ENUM(name, value, remedy, text) HEFT_##name = (value),
    HEFT_STATUS_MAP(HEFT_STATUS_ENUM)
#undef HEFT_STATUS_ENUM
} heft_status_t;

/**
 * Details of one failure, in storage the caller owns. Every function that takes a heft_error_t *
 * accepts NULL. A function that fails fills it once; on success it is left untouched.
 */
typedef struct heft_error {
    heft_status_t status; /* the same value as the function returned */
    int32_t sys_errno;    /* 0 when no system call failed */
    int32_t peer_rank;    /* -1 when no peer is to blame */
    char message[244]; /* one line, lower case, names the thing and the numbers; NUL-terminated */
} heft_error_t;
_Static_assert(sizeof(heft_error_t) == 256, "heft_error_t is ABI");

#define HEFT_ERROR_INIT                                                   \
    {                                                                     \
        .status = HEFT_OK, .sys_errno = 0, .peer_rank = -1, .message = "" \
    }

/** The symbolic name of a status, such as "ERR_NOMEM"; "UNKNOWN" for a value that is none. Never
 * NULL. */
HEFT_API const char *heft_status_get_name(heft_status_t status);

/** One lower-case line about a status. Never NULL. */
HEFT_API const char *heft_status_get_text(heft_status_t status);

/** What to do about a status; HEFT_REMEDY_BUG for a value that is none. */
HEFT_API heft_remedy_t heft_status_get_remedy(heft_status_t status);

/** The version of the library, such as "0.1.0". */
HEFT_API const char *heft_version_get(void);

#ifdef __cplusplus
}
#endif

#endif

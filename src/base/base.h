/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Base: what every part stands on. Errors, checked arithmetic, the counted allocator, arenas,
 * clock, logging, SHA-256, growable text. Depends on libc alone (report.c of other parts may use
 * jansson; this part does not).
 */
#ifndef HEFT_BASE_H
#define HEFT_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "heft/config.h"
#include "heft/log.h"
#include "heft/status.h"

/* ---- errors ---- */

/* Fill err (NULL is fine). */
void heft__error_fill(heft_error_t *err, heft_status_t status, const char *fmt, ...)
    HEFT_PRINTF(3, 4);

/* The same with errno's number and its text appended. */
void heft__error_fill_sys(heft_error_t *err, heft_status_t status, int sys_errno, const char *fmt,
                          ...) HEFT_PRINTF(4, 5);

/* Fill err and have the status as value, so that a failure is one line: return heft__error_set(err,
 * ...). Macros, so that whoever reads or analyses the caller sees that it does not go on; status is
 * evaluated twice. */
#define heft__error_set(err, status, ...) (heft__error_fill((err), (status), __VA_ARGS__), (status))
#define heft__error_set_sys(err, status, sys_errno, ...) \
    (heft__error_fill_sys((err), (status), (sys_errno), __VA_ARGS__), (status))

/* The usual out-of-memory error. */
void heft__error_fill_nomem(heft_error_t *err, size_t bytes);
#define heft__error_nomem(err, bytes) (heft__error_fill_nomem((err), (bytes)), HEFT_ERR_NOMEM)

/* Reset to "no error". */
void heft__error_reset(heft_error_t *err);

/* A broken invariant of our own: aborts in debug builds; in release builds the caller returns this
 * status. */
void heft__bug(heft_error_t *err, const char *file, int line, const char *what);
#define HEFT_BUG(err, what) (heft__bug((err), __FILE__, __LINE__, (what)), HEFT_ERR_INTERNAL)

/* ---- checked arithmetic: false on overflow, *out untouched then ---- */

static inline bool heft__add(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool heft__sub(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_sub_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool heft__mul(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool heft__size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool heft__size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline int64_t heft__min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t heft__max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- allocation: counted, and every one can be made to fail ---- */

void *heft__malloc(size_t bytes);
void *heft__calloc(size_t count, size_t bytes);
void *heft__realloc(void *ptr, size_t bytes);
void heft__free(void *ptr);
char *heft__strdup(const char *text);
char *heft__strndup(const char *text, size_t n);

/* Make sure a growable array holds `need` items: *items and *cap are updated only on success.
 * item_bytes > 0. */
bool heft__grow(void **items, size_t *cap, size_t need, size_t item_bytes);

static inline void *heft__reserve(void *items, size_t *cap, size_t need, size_t item_bytes)
{
    (void)heft__grow(&items, cap, need, item_bytes);
    return items;
}

/* The same for an array of any type; false: no memory, and nothing has changed. cap and need are
 * evaluated twice. */
#define HEFT__RESERVE(items, cap, need) \
    ((items) = heft__reserve((items), &(cap), (need), sizeof *(items)), (cap) >= (need))
/* HEFT_OK, or HEFT_ERR_NOMEM with err filled. */
#define HEFT__GROW(items, cap, need, err)            \
    (HEFT__RESERVE((items), (cap), (need)) ? HEFT_OK \
                                           : heft__error_nomem((err), (need) * sizeof *(items)))

/* Give free heap pages back to the system, where the C library can. */
void heft__alloc_trim(void);

/* Test seam: the k-th allocation from now (0 = the next) returns NULL, once; a negative k turns it
 * off. Per thread. */
void heft__alloc_fail_at(long k);
/* Allocations that are alive in the process, their bytes, and how many were ever made. */
int64_t heft__alloc_live(void);
int64_t heft__alloc_live_bytes(void);
int64_t heft__alloc_total(void);

/* ---- arena: bump allocation in blocks, freed together ---- */

typedef struct heft__arena_block heft__arena_block_t;
typedef struct heft__arena {
    heft__arena_block_t *head;
    size_t block_bytes; /* size of the next block */
    size_t used_bytes;  /* handed out, alignment included */
} heft__arena_t;

void heft__arena_init(heft__arena_t *arena, size_t block_bytes);
void heft__arena_fini(heft__arena_t *arena);
/* 16-byte aligned, not zeroed; NULL when out of memory. bytes == 0 gives a valid unique pointer. */
void *heft__arena_alloc(heft__arena_t *arena, size_t bytes);
void *heft__arena_calloc(heft__arena_t *arena, size_t count, size_t bytes);
char *heft__arena_strndup(heft__arena_t *arena, const char *text, size_t n);

/* ---- text: a growable, always NUL-terminated string; a failed append is remembered (`failed`)
 * ---- */

typedef struct heft__text {
    char *data; /* never NULL after init: points to "" until something is appended */
    size_t len;
    size_t cap;
    bool failed;
} heft__text_t;

void heft__text_init(heft__text_t *text);
void heft__text_fini(heft__text_t *text);
void heft__text_reset(heft__text_t *text);
void heft__text_put(heft__text_t *text, const char *s);
void heft__text_put_n(heft__text_t *text, const char *s, size_t n);
void heft__text_printf(heft__text_t *text, const char *fmt, ...) HEFT_PRINTF(2, 3);
/* The string, owned by the caller (heft__free); text is empty afterwards. NULL if any append
 * failed. */
char *heft__text_take(heft__text_t *text);

/* Bytes of the UTF-8 character (no overlong form, no surrogate) at p, of which `left` bytes may be
 * read; 0: there is none. */
size_t heft__utf8_length(const char *p, size_t left);
/* Make a text one line of UTF-8, in place, as JSON and terminals want it: control characters become
 * blanks, bytes that are no character "?", and one that was cut at the end is left out. */
void heft__text_tidy(char *text);

/* ---- options ---- */

/*
 * Loads an options struct whose first member is its size over the defaults in *out, known bytes
 * long. NULL keeps the defaults, a shorter struct those of its missing tail. HEFT_ERR_ARGUMENT for
 * a size that no options have; HEFT_ERR_UNSUPPORTED for a longer struct whose tail is not zero.
 */
HEFT_MUST_CHECK heft_status_t heft__opts_load(const void *opts, void *out, size_t known,
                                              const char *what, heft_error_t *err);
/* HEFT_ERR_ARGUMENT unless all n reserved bytes are zero. */
HEFT_MUST_CHECK heft_status_t heft__opts_check_reserved(const void *reserved, size_t n,
                                                        const char *what, heft_error_t *err);

/* ---- settings: for readers inside the library; the words are those of heft/config.h ---- */

/* The table. */
const heft_knob_t *heft__knobs(uint32_t *n_out);

/* A config over any table: file is the text of a settings file (NULL: none), path its name in
 * messages; environment ends with NULL (NULL: none). */
HEFT_MUST_CHECK heft_status_t heft__config_create_over(const heft_knob_t *knobs, uint32_t n_knobs,
                                                       const char *path, const char *text, size_t n,
                                                       char *const *environment,
                                                       heft_config_t **config_out,
                                                       heft_error_t *err);
/* The value of a knob of the table; a name that is not there is a bug of ours. */
void heft__config_get(const heft_config_t *config, const char *name, heft_setting_t *out);
/* Log the warnings that look like a misspelling. */
void heft__config_log_warnings(const heft_config_t *config);
/* Check a number against the knob's bounds, as when it came in as text. */
HEFT_MUST_CHECK heft_status_t heft__knob_check(const heft_knob_t *knob, int64_t number,
                                               heft_error_t *err);
const heft_knob_t *heft__knob_find(const char *name);

/* Read a small regular file whole: NUL-terminated, owned by the caller (heft__free). is_private: it
 * must belong to this user (or root) and be closed to group and others. HEFT_ERR_IO,
 * HEFT_ERR_FORMAT (too large), HEFT_ERR_ARGUMENT (not private). what names it in messages. */
HEFT_MUST_CHECK heft_status_t heft__file_read(const char *path, const char *what, size_t max_bytes,
                                              bool is_private, char **text_out, size_t *n_out,
                                              heft_error_t *err);

/* ---- name table: open-addressing map from bytes to a uint32 value; keys are borrowed ---- */

typedef struct heft__map_slot {
    const char *key; /* NULL: empty */
    uint32_t key_len;
    uint32_t value;
    uint64_t hash;
} heft__map_slot_t;

typedef struct heft__map {
    heft__map_slot_t *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_used;
} heft__map_t;

#define HEFT__MAP_NONE UINT32_MAX

void heft__map_init(heft__map_t *map);
void heft__map_fini(heft__map_t *map);
/* The value, or HEFT__MAP_NONE. */
uint32_t heft__map_get(const heft__map_t *map, const char *key, size_t key_len);
/* HEFT_OK; HEFT_ERR_EXISTS (nothing changed, no message) when the key is there; HEFT_ERR_NOMEM. */
heft_status_t heft__map_put(heft__map_t *map, const char *key, size_t key_len, uint32_t value);

/* ---- hashes ---- */

typedef struct heft__sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64];
    size_t fill;
} heft__sha256_t;

void heft__sha256_init(heft__sha256_t *h);
void heft__sha256_update(heft__sha256_t *h, const void *data, size_t bytes);
void heft__sha256_update_u64(heft__sha256_t *h, uint64_t value); /* 8 bytes, little-endian */
void heft__sha256_update_text(heft__sha256_t *h,
                              const char *text); /* length first, then the bytes */
void heft__sha256_final(heft__sha256_t *h, uint8_t digest_out[32]);
void heft__hex(const uint8_t *bytes, size_t n, char *out); /* out holds 2n + 1 */
bool heft__hex_parse(const char *hex, uint8_t *bytes_out,
                     size_t n); /* exactly 2n lower- or upper-case digits */

/* 128 bits from the kernel. */
heft_status_t heft__random_bytes(void *out, size_t bytes, heft_error_t *err);

/* Levenshtein distance, for "nearest name" in messages; gives up (returns limit + 1) beyond limit.
 */
uint32_t heft__edit_distance(const char *a, const char *b, uint32_t limit);

/* ---- time ---- */

int64_t heft__clock_mono_ns(void);
/* ISO-8601 UTC with milliseconds, for records; out holds 32. */
void heft__clock_utc_text(char out[32]);

/* ---- threads: waits by heft__clock_mono_ns, and signals left to the program ---- */

/* A condition for heft__cond_wait_until. 0, or an errno code; ended by pthread_cond_destroy. */
int heft__cond_init(pthread_cond_t *cond);
/* Wait to be woken, with the lock held; false once the time has passed. May wake for no cause. */
bool heft__cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_mono_ns);
/* pthread_create, of a thread that gets no signals: those are for the program's own. */
int heft__thread_create(pthread_t *thread_out, void *(*run)(void *arg), void *arg);

/* ---- log: silent below warn unless heft_log_configure says otherwise ---- */

typedef enum heft__logged_kind {
    HEFT__LOGGED_TEXT = 0,
    HEFT__LOGGED_INT,
    HEFT__LOGGED_REAL
} heft__logged_kind_t;

/* What a message is about: a key of its own, so that nobody has to parse sentences. */
typedef struct heft__logged {
    const char *key;
    heft__logged_kind_t kind;
    const char *text;
    int64_t number;
    double real;
} heft__logged_t;

#define HEFT__LOG_TEXT(k, v)                               \
    {                                                      \
        .key = (k), .kind = HEFT__LOGGED_TEXT, .text = (v) \
    }
#define HEFT__LOG_INT(k, v)                                          \
    {                                                                \
        .key = (k), .kind = HEFT__LOGGED_INT, .number = (int64_t)(v) \
    }
#define HEFT__LOG_REAL(k, v)                                       \
    {                                                              \
        .key = (k), .kind = HEFT__LOGGED_REAL, .real = (double)(v) \
    }

extern int heft__log_max_level; /* levels above are not formatted */
void heft__log_emit(heft_log_level_t level, const char *part, const char *fmt, ...)
    HEFT_PRINTF(3, 4);
void heft__log_event(heft_log_level_t level, const char *part, const char *message,
                     const heft__logged_t *fields, size_t n_fields);

#define heft__log(level, part, ...)                       \
    do {                                                  \
        if ((int)(level) <= heft__log_max_level) {        \
            heft__log_emit((level), (part), __VA_ARGS__); \
        }                                                 \
    } while (0)

/* ---- integers at borders: little-endian ---- */

static inline void heft__put_le64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline uint64_t heft__get_le64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

static inline void heft__put_le32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline uint32_t heft__get_le32(const uint8_t *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        v |= (uint32_t)p[i] << (8 * i);
    }
    return v;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The property of fold, as a function over bytes: the bytes are decoded to a random tape, the tape
 * is folded, and the result is compared with the naive interpreter, element by element.
 *
 * The same function serves the property test, the fuzz target and the replay of its corpus.
 */
#ifndef FOLD_CASE_H
#define FOLD_CASE_H

#include "tape/tape.h"

typedef struct fold_case_stats {
    uint64_t n_cases;
    uint64_t n_writes;
    uint64_t n_pieces;
    uint64_t n_overwrites;
    uint64_t n_undefined; /* cases that end in a read of something undefined */
    uint64_t n_limits;    /* cases that end in a limit */
    uint64_t n_bytes_cases;
} fold_case_stats_t;

/* NULL when the property holds, else what is wrong (a static buffer); the tape is then printed to
 * stderr. stats may be NULL. */
const char *fold_case_check(const uint8_t *data, size_t n, fold_case_stats_t *stats);

/* The tape of these bytes; destroyed by the caller. */
heft_tape_t *fold_case_make_tape(const uint8_t *data, size_t n);

/* The same for a tape made otherwise. choice varies what a tape does not say: how soon indices are
 * tuned, which allocation fails. */
const char *fold_case_check_tape(const heft_tape_t *tape, uint64_t choice,
                                 fold_case_stats_t *stats);

#endif

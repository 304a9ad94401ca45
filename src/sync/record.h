/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record: what a coordinator must not forget, in one JSON file, replaced atomically and synced
 * (docs/formats/control.md, "State file").
 */
#ifndef HEFT_SYNC_RECORD_H
#define HEFT_SYNC_RECORD_H

#include "sync/round.h"
#include "sync/wire.h"

typedef struct heft__record_member {
    heft__role_t role;
    char job[HEFT__JOB_SIZE];
    uint32_t replica;
    uint32_t rank;
    char incarnation[HEFT__INCARNATION_SIZE];
    bool in_round;
    bool moves;
    bool feeds;
    bool in_place;
    int64_t poison; /* heft__poison_t */
} heft__record_member_t;

typedef struct heft__record {
    int64_t epoch;
    int64_t sequence;
    int64_t committed_version;
    char committed_digest[HEFT__DIGEST_SIZE]; /* "" at version 0 */
    int64_t before_version;                   /* what a revoke brings back */
    char before_digest[HEFT__DIGEST_SIZE];
    heft__round_id_t round; /* in flight; 0.0: none */
    bool in_doubt;          /* it ended unknown or partially committed */
    int64_t version;
    bool relays; /* destinations may forward to each other in it */
    char source_digest[HEFT__DIGEST_SIZE];
    heft__decision_t decision;
    heft__record_member_t *members; /* owned: every registered member */
    uint32_t n_members;
} heft__record_t;

void heft__record_fini(heft__record_t *record);
heft_status_t heft__record_encode(const heft__record_t *record, char **text_out, heft_error_t *err);
heft_status_t heft__record_decode(const char *text, size_t n, heft__record_t *out,
                                  heft_error_t *err);

/* HEFT_ERR_NOT_FOUND: no file. HEFT_ERR_FORMAT, HEFT_ERR_IO name it. */
heft_status_t heft__record_load(const char *path, heft__record_t *out, heft_error_t *err);
/*
 * Replace the file. On failure *maybe_out says whether the new content may become what a restart
 * reads (true only when the file was renamed and its folder could not be synced).
 */
heft_status_t heft__record_save(const char *path, const heft__record_t *record, bool *maybe_out,
                                heft_error_t *err);
/* Hold path.lock until the descriptor is closed. HEFT_ERR_BUSY: another coordinator has it. */
heft_status_t heft__record_lock(const char *path, int *fd_out, heft_error_t *err);

#endif

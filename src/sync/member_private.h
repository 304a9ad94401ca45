/* SPDX-License-Identifier: Apache-2.0 */
/* The member's own state; for member.c, member_link.c and member_objects.c alone. */
#ifndef HEFT_SYNC_MEMBER_PRIVATE_H
#define HEFT_SYNC_MEMBER_PRIVATE_H

#include <pthread.h>

#include "sync/member.h"

/* An object that a report may name. The coordinator forgets objects when it restarts. */
typedef struct heft__kept {
    char digest[HEFT__DIGEST_SIZE];
    char *text; /* owned; NULL: free */
} heft__kept_t;
enum { HEFT__N_KEPT = 4 };

struct heft__member {
    /* Set at creation, then constant. */
    heft__access_t access;     /* its texts are owned */
    heft__register_t identity; /* its epoch is the link's */
    char id[HEFT__ID_SIZE];
    uint32_t deadline_ms;
    void (*refresh)(void *arg, heft__report_t *report);
    void *refresh_arg;

    /* The link's thread alone. */
    uint32_t poll_ms;
    uint32_t contact_ms;
    bool is_registered;
    bool may_be_known; /* a registration has been sent, and was not refused */
    uint32_t backoff_ms;
    uint32_t try_ms; /* how long a reply is waited for */

    /* The owner's thread alone. */
    heft__http_t *owner_http;

    /* Guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    bool stop;
    heft__http_t *http; /* made and freed by the link's thread, aborted by others */
    bool is_polling;    /* a poll that may be broken off is in progress */
    uint64_t n_changes; /* urgent changes of the report */
    uint64_t n_sent;    /* of these, covered by the report sent last */
    uint64_t n_told;    /* of these, covered by a report that was answered */
    bool is_telling;    /* reports are to be answered at once */
    char *objects[HEFT__N_MEMBER_OBJECTS];
    char digests[HEFT__N_MEMBER_OBJECTS][HEFT__DIGEST_SIZE];
    heft__kept_t *named; /* what the list of sources names; n_named of them */
    uint32_t n_named;
    uint64_t n_binds_wanted; /* raised by set_object */
    uint64_t n_binds_done;
    heft__kept_t kept[HEFT__N_KEPT]; /* the last objects that the owner put */
    uint32_t next_kept;
    heft_error_t contact; /* status HEFT_OK: in contact */
    bool is_final;        /* contact is a refusal that trying again does not change */
    int64_t committed;
    heft__report_t report;
    bool is_refusing; /* an order of this round was out of order: said in place of phase and result
                       */
    heft__phase_t refused;
    heft__wire_error_t refusal;
    heft__order_t order; /* the latest */
    bool has_order;      /* not handed out yet */
    int64_t handed_out;  /* sequence of the last order that was, since registration */
    bool interrupt;
};

/* The link's thread. */
void *heft__member_link(void *arg);
/* PUT one object over any connection. */
HEFT_MUST_CHECK heft_status_t heft__member_put_over(heft__http_t *http, const char *text,
                                                    uint32_t deadline_ms, char *digest_out,
                                                    heft_error_t *err);
/* Wait for a change; false once the deadline has passed. */
bool heft__member_wait_locked(heft__member_t *member, int64_t deadline_mono_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Member: what publisher and subscriber have in common. One thread owns the connection to the
 * coordinator: it registers, binds, reports the member's whole state and takes orders in, and keeps
 * doing so while the owner works. The owner waits for orders, carries them out and changes the
 * report; an urgent change breaks off the poll in progress and is sent at once.
 *
 * Threads: locked. The owner's own requests (objects) go over a second connection that is confined
 * to the owner's thread.
 */
#ifndef HEFT_SYNC_MEMBER_H
#define HEFT_SYNC_MEMBER_H

#include "sync/http_client.h"
#include "sync/member_gate.h"
#include "sync/wire.h"
#include "transport/transport.h"

typedef struct heft__member heft__member_t;

typedef struct heft__member_config {
    heft__access_t access; /* copied */
    const char *job;       /* NULL: "heft" */
    heft__role_t role;
    bool in_place;
    uint32_t replica;
    uint32_t rank;
    uint32_t deadline_ms; /* of each request; 0: 30 s */
    const char *host;     /* the name that its host goes by; NULL: as the kernel tells */
    uint32_t n_transports;
    const char *const *transports;
    /* NULL, or called before each report is encoded, with the member's lock held: bring the report
     * up to date with what other threads have seen. Must be short and not call the member. */
    void (*refresh)(void *arg, heft__report_t *report);
    void *refresh_arg;
} heft__member_config_t;

typedef enum heft__member_object {
    HEFT__OBJECT_MANIFEST = 0,
    HEFT__OBJECT_CONTRACT = 1,
    HEFT__OBJECT_ENDPOINT = 2,
    HEFT__OBJECT_SOURCES = 3, /* the list of sources that the plan is made for */
    HEFT__OBJECT_MAPPING = 4, /* the text of a traced loader's contract */
    HEFT__N_MEMBER_OBJECTS = 5
} heft__member_object_t;

/* A new incarnation; talks to nobody yet. */
HEFT_MUST_CHECK heft_status_t heft__member_create(const heft__member_config_t *config,
                                                  heft__member_t **member_out, heft_error_t *err);
/* Stop the thread: no refresh is called any more. The member stays registered. NULL is fine. */
void heft__member_stop(heft__member_t *member);
/* Stops, leaves (when it can be done soon), frees. NULL is fine. */
void heft__member_destroy(heft__member_t *member);

/* 32 hex digits, and as bytes for transports. Borrowed. */
const char *heft__member_get_incarnation(const heft__member_t *member);
void heft__member_get_incarnation_bytes(const heft__member_t *member,
                                        uint8_t out[HEFT__INCARNATION_BYTES]);
/* "source.heft.0.0". Borrowed. */
const char *heft__member_get_id(const heft__member_t *member);
uint32_t heft__member_get_deadline_ms(const heft__member_t *member);
/* The label of its host. */
const char *heft__member_get_host(const heft__member_t *member);

/* A new connection to the coordinator, with the token as it is on disk now. */
HEFT_MUST_CHECK heft_status_t heft__member_connect(const heft__member_t *member,
                                                   heft__http_t **http_out, heft_error_t *err);

/* What the member binds; text is copied. After start: binds again. */
HEFT_MUST_CHECK heft_status_t heft__member_set_object(heft__member_t *member,
                                                      heft__member_object_t which, const char *text,
                                                      heft_error_t *err);

/* The same for several at once, so that no bind in between has some of them. NULL: as it is. named:
 * n_named objects that the list of sources names, where that is given. */
HEFT_MUST_CHECK heft_status_t
heft__member_set_objects(heft__member_t *member, const char *const texts[HEFT__N_MEMBER_OBJECTS],
                         const char *const *named, uint32_t n_named, heft_error_t *err);

/* Wait until what was set is bound, as long as any request may take. HEFT_ERR_TIMEOUT, or why there
 * is no contact; the thread goes on trying, unless the refusal is final. */
HEFT_MUST_CHECK heft_status_t heft__member_await_bound(heft__member_t *member, heft_error_t *err);

/* Start the thread and wait until the member is registered and bound. The thread goes on trying
 * after a failure, unless the refusal is final. */
HEFT_MUST_CHECK heft_status_t heft__member_start(heft__member_t *member, heft_error_t *err);

/* HEFT_OK while in contact; HEFT_ERR_PEER while it is being tried again; else the final refusal. */
HEFT_MUST_CHECK heft_status_t heft__member_get_contact(heft__member_t *member, heft_error_t *err);
/* The committed version the coordinator named at registration. */
int64_t heft__member_get_committed(heft__member_t *member);
void heft__member_set_committed(heft__member_t *member, int64_t version);

/* The report, for the owner to read and change; the lock is held in between. */
heft__report_t *heft__member_lock(heft__member_t *member);
void heft__member_unlock(heft__member_t *member, bool is_urgent);
/* Something that refresh looks at has changed: report soon. Any thread. */
void heft__member_wake(heft__member_t *member);

/* Wait until the coordinator has the report as it is now, or the deadline: before a stop, or before
 * something that must not be heard of first. */
void heft__member_tell(heft__member_t *member, int64_t deadline_mono_ns);

/* The latest order not handed out yet, moved to *order_out. HEFT_IN_PROGRESS: none until the
 * deadline, or heft__member_interrupt was called, or it is stopped: an interrupt ends one wait, and
 * that may be another one. */
HEFT_MUST_CHECK heft_status_t heft__member_await_order(heft__member_t *member,
                                                       int64_t deadline_mono_ns,
                                                       heft__order_t *order_out, heft_error_t *err);
/* await_order returns, now or at its next call. */
void heft__member_interrupt(heft__member_t *member);
/* The order in hand has come anew: take it up, and how much time is left by it. */
bool heft__member_take_renewal(heft__member_t *member, const heft__order_t *order,
                               int64_t *left_ms_out);
/* Does an order wait that makes work on this round pointless (its abort, its end, or another
 * round)? */
bool heft__member_is_called_off(heft__member_t *member, heft__round_id_t round);
/* Wait until that is so, or the deadline, or an interrupt; true if called off. */
bool heft__member_await_called_off(heft__member_t *member, heft__round_id_t round,
                                   int64_t deadline_mono_ns);

/* ---- objects, on the owner's thread ---- */

/* digest_out holds HEFT__DIGEST_SIZE. */
HEFT_MUST_CHECK heft_status_t heft__member_put_object(heft__member_t *member, const char *text,
                                                      char *digest_out, heft_error_t *err);
/* The text is owned by the caller (heft__free), NUL-terminated, and has been checked against the
 * digest. */
HEFT_MUST_CHECK heft_status_t heft__member_get_object(heft__member_t *member, const char *digest,
                                                      char **text_out, size_t *n_out,
                                                      heft_error_t *err);

/* ---- reports ---- */

/* What a failure is about, beside its message; each may be NULL. */
typedef struct heft__blame {
    const char *peer;   /* member id */
    const char *tensor; /* parameter or source tensor */
} heft__blame_t;
/* It ended: result and state; err and blame may be NULL. */
void heft__member_conclude(heft__member_t *member, heft__result_t result,
                           heft__member_state_t state, const heft_error_t *err,
                           const heft__blame_t *blame);
/*
 * The gate for this order, from where the member stands. HEFT__GATE_DO: the phase is taken up
 * (working; what belongs to an earlier round is cleared) and the caller carries it out. One that is
 * refused is reported as such until the next phase is taken up, and changes nothing else.
 */
heft__gate_t heft__member_judge(heft__member_t *member, const heft__order_t *order);

#endif

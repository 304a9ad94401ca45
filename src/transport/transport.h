/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport: how bytes get into a peer's staging memory.
 *
 * A receiver creates a *window* and publishes its endpoint (JSON text). A sender attaches to the
 * endpoint and gets a *remote*: a handle it keeps from round to round. For every round the receiver
 * arms the window with the round's token, the sender begins with the same token, writes (through
 * remote->ptr where there is one, else with put and flush) and ends. A window that is not armed for
 * the token refuses to begin.
 *
 * The fence: after heft__window_fence returns HEFT_OK, nothing that any sender does for an earlier
 * round can change window->ptr. See docs/internals/transport.md for what proves it.
 *
 * Deadlines are instants of heft__clock_mono_ns. No call waits beyond its deadline.
 */
#ifndef HEFT_TRANSPORT_TRANSPORT_H
#define HEFT_TRANSPORT_TRANSPORT_H

#include "base/base.h"

enum { HEFT__INCARNATION_BYTES = 16 };

/* Where memory is. Values appear in endpoints and are never reused. */
typedef enum heft__memory { HEFT__MEMORY_HOST = 1 } heft__memory_t;

/* A round, as transports see it: begin, arm and end carry it, so that one round's message is never
 * taken for another's. */
typedef struct heft__token {
    uint64_t epoch;
    uint64_t seq;
} heft__token_t;

/* CRC-32C: of crc's message followed by n_bytes of data. The checksum is the caller's, because
 * transports stand below the kernels. */
typedef uint32_t (*heft__crc32c_t)(uint32_t crc, const void *data, int64_t n_bytes);
/* The same, of src, while it is copied to dst. */
typedef uint32_t (*heft__crc32c_copy_t)(uint32_t crc, void *dst, const void *src, int64_t n_bytes);

/* What a receiver expects of a round whose bytes come in chunks (chunk.h): routes are ranges of the
 * window, upwards and apart. */
typedef struct heft__route {
    int64_t offset;
    int64_t bytes;
} heft__route_t;

/* Copy bytes [at, at + bytes) of a packed route: from base to packed, or from packed to base. */
typedef heft_status_t (*heft__pack_t)(void *arg, uint32_t route, uint8_t *base, int64_t at,
                                      uint8_t *packed, int64_t bytes, heft_error_t *err);

enum { HEFT__CHUNKS_UNDER_WAY = 8 };

typedef struct heft__expect {
    const heft__route_t *routes;
    uint32_t n_routes;
    uint32_t n_senders;
    int64_t chunk_bytes;
    heft__crc32c_t crc;
    /* NULL, or a receiver copies by it in the same pass; a damaged chunk is then in its place until
     * it is sent again. */
    heft__crc32c_copy_t crc_copy;
    /* The last n_packed routes are packed: their bytes go to places of their own in the window, not
     * before `offset` of the route. A sender needs pack, a receiver unpack. All are borrowed for as
     * long as the expectation holds. */
    uint32_t n_packed;
    /* NULL: headers number routes as they stand here. Or what they call the packed ones, ascending,
     * from the number of the others on: a sender need not know those of all others. */
    const uint64_t *numbers;
    heft__pack_t pack;
    heft__pack_t unpack;
    void *pack_arg;
    /* NULL, or what a route carries (NULL: it has no name), for what a receiver says of its chunks;
     * it asks once and keeps a copy. */
    const char *(*name_of)(const void *arg, uint32_t route);
    const void *name_arg;
} heft__expect_t;

typedef struct heft__transport heft__transport_t; /* locked */
typedef struct heft__window heft__window_t;       /* locked, but one thread arms and fences */
typedef struct heft__remote heft__remote_t;       /* confined */
typedef struct heft__transport_ops heft__transport_ops_t;

struct heft__transport {
    const heft__transport_ops_t *ops;
};

/* Each transport embeds these as its first member. */
struct heft__window {
    const heft__transport_ops_t *ops;
    uint8_t *ptr;       /* the memory; changes only inside a fence that replaces it */
    int64_t bytes;      /* usable bytes */
    int64_t page_bytes; /* of the pages that back it, as far as the system tells */
    heft__memory_t memory;
};

struct heft__remote {
    const heft__transport_ops_t *ops;
    uint8_t *ptr; /* NULL: not addressable from here, use put */
    int64_t bytes;
    heft__memory_t memory;
};

typedef struct heft__window_params {
    int64_t bytes;
    heft__memory_t memory;
    uint8_t incarnation[HEFT__INCARNATION_BYTES]; /* of the receiver */
    /* NULL, or called after a change of what heft__window_query tells: from any thread, without a
     * lock held; it must not call into the window. */
    void (*on_change)(void *arg);
    void *on_change_arg;
} heft__window_params_t;

typedef struct heft__attach_params {
    uint8_t incarnation[HEFT__INCARNATION_BYTES]; /* of the sender */
    int64_t bytes;                                /* the window must have at least these */
    int64_t deadline_mono_ns;
    /* NULL, or looked at now and then while the peer does not answer; true: HEFT_ERR_CANCELED */
    bool (*is_called_off)(void *arg);
    void *is_called_off_arg;
} heft__attach_params_t;

/* A sender that did not get to the end. */
typedef struct heft__window_sender {
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
    int32_t pid;
    char why[96]; /* of one that is lost; "": it is dead, that is certain */
} heft__window_sender_t;

/* What a window knows of its senders; the counts of done and lost are those since it was armed. */
typedef struct heft__window_state {
    uint32_t n_attached;
    uint32_t n_writing;           /* began and did not end yet */
    uint32_t n_done;              /* ended, everything written */
    uint32_t n_failed;            /* ended, stopped before everything was written */
    uint32_t n_lost;              /* died, or fell silent, between begin and end */
    heft__window_sender_t failed; /* one of each, where there are any */
    heft__window_sender_t lost;
} heft__window_state_t;

/* Append new operations at the end; a table's `size` says which it has. NULL: not supported. */
struct heft__transport_ops {
    size_t size;
    const char *name;
    heft_status_t (*window_create)(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err);
    void (*window_destroy)(heft__window_t *window);
    void (*window_encode)(const heft__window_t *window, heft__text_t *text);
    void (*window_arm)(heft__window_t *window, heft__token_t token);
    void (*window_query)(heft__window_t *window, heft__window_state_t *state_out);
    heft_status_t (*window_fence)(heft__window_t *window, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err);
    heft_status_t (*attach)(heft__transport_t *transport, const char *endpoint,
                            const heft__attach_params_t *params, heft__remote_t **remote_out,
                            heft_error_t *err);
    void (*close)(heft__remote_t *remote);
    heft_status_t (*begin)(heft__remote_t *remote, heft__token_t token, int64_t deadline_mono_ns,
                           heft_error_t *err);
    heft_status_t (*check)(heft__remote_t *remote, heft_error_t *err);
    heft_status_t (*end)(heft__remote_t *remote, heft__token_t token, bool completed,
                         heft_error_t *err);
    heft_status_t (*put)(heft__remote_t *remote, int64_t offset, const void *data, int64_t bytes,
                         heft_error_t *err);
    heft_status_t (*flush)(heft__remote_t *remote, int64_t deadline_mono_ns, heft_error_t *err);
    int (*get_fd)(const heft__remote_t *remote);
    heft_status_t (*window_expect)(heft__window_t *window, const heft__expect_t *expect,
                                   heft_error_t *err);
    heft_status_t (*send)(heft__remote_t *remote, const uint8_t *header, const void *data,
                          int64_t bytes, int64_t deadline_mono_ns, heft_error_t *err);
    heft_status_t (*post)(heft__remote_t *remote, uint32_t tag, bool has_place,
                          const uint8_t *header, const void *data, int64_t bytes,
                          int64_t deadline_mono_ns, heft_error_t *err);
    heft_status_t (*reap)(heft__remote_t *remote, uint32_t *tag_out, int64_t deadline_mono_ns,
                          heft_error_t *err);
    const char *(*describe)(const heft__remote_t *remote);
    void (*window_count_arrived)(heft__window_t *window, uint32_t first, uint32_t n,
                                 uint64_t *chunks_out);
};

/* The shared-memory transport: no state, nothing to configure. */
heft__transport_t *heft__transport_get_shm(void);

/* ---- receiver ---- */

/* Memory is allocated, prefaulted and ready to be attached. HEFT_ERR_NOSPACE names the bytes needed
 * and available. */
HEFT_MUST_CHECK heft_status_t heft__window_create(heft__transport_t *transport,
                                                  const heft__window_params_t *params,
                                                  heft__window_t **window_out, heft_error_t *err);
void heft__window_destroy(heft__window_t *window);
/* Append the endpoint, one JSON object. It changes when a fence replaced the memory. */
void heft__window_encode(const heft__window_t *window, heft__text_t *text);
/* What the rounds from now on consist of, for transports that send in chunks; others need not know.
 * expect is copied, what it takes for packing is not. The window must be quiet. HEFT_ERR_ARGUMENT.
 */
HEFT_MUST_CHECK heft_status_t heft__window_expect(heft__window_t *window,
                                                  const heft__expect_t *expect, heft_error_t *err);
/* From now on senders may begin with this token; counts restart. The window must be quiet. */
void heft__window_arm(heft__window_t *window, heft__token_t token);
void heft__window_query(heft__window_t *window, heft__window_state_t *state_out);
/* Of each of the n routes from `first` on: how many of its chunks, from its beginning, have arrived
 * and been judged right since the window was armed; they do not change any more in this round. 0
 * where the window expects no chunks, or they came another way. */
void heft__window_count_arrived(heft__window_t *window, uint32_t first, uint32_t n,
                                uint64_t *chunks_out);
/*
 * Disarm, ask writers to stop, wait for them until the deadline; where one is still not known to
 * have stopped, put fresh memory in place (*replaced_out) so that it writes to memory nobody reads.
 * HEFT_ERR_NOSPACE: no fresh memory; the window then has none (ptr NULL) and is still fenced; the
 * next fence tries again.
 */
HEFT_MUST_CHECK heft_status_t heft__window_fence(heft__window_t *window, int64_t deadline_mono_ns,
                                                 bool *replaced_out, heft_error_t *err);

/* ---- sender ---- */

/* The "transport" of an endpoint text, copied to name_out. HEFT_ERR_FORMAT. */
HEFT_MUST_CHECK heft_status_t heft__endpoint_get_transport(const char *endpoint, char *name_out,
                                                           size_t name_bytes, heft_error_t *err);
/* HEFT_ERR_PEER: nobody is there; HEFT_ERR_AUTH: another user; HEFT_ERR_STALE: another incarnation
 * answered; HEFT_ERR_PROTOCOL; HEFT_ERR_TIMEOUT; HEFT_ERR_CANCELED. */
HEFT_MUST_CHECK heft_status_t heft__remote_attach(heft__transport_t *transport,
                                                  const char *endpoint,
                                                  const heft__attach_params_t *params,
                                                  heft__remote_t **remote_out, heft_error_t *err);
void heft__remote_close(heft__remote_t *remote);
/* May write from here on. HEFT_ERR_STALE: the window is not armed for this token. */
HEFT_MUST_CHECK heft_status_t heft__remote_begin(heft__remote_t *remote, heft__token_t token,
                                                 int64_t deadline_mono_ns, heft_error_t *err);
/* Does not wait. HEFT_ERR_PEER: the receiver died. HEFT_ERR_CANCELED: it asks to stop. */
HEFT_MUST_CHECK heft_status_t heft__remote_check(heft__remote_t *remote, heft_error_t *err);
/* The caller has stopped writing, on every thread; completed: everything was written. */
HEFT_MUST_CHECK heft_status_t heft__remote_end(heft__remote_t *remote, heft__token_t token,
                                               bool completed, heft_error_t *err);
/* Start a copy; data are borrowed until the flush that follows. HEFT_ERR_ARGUMENT: outside the
 * window. */
HEFT_MUST_CHECK heft_status_t heft__remote_put(heft__remote_t *remote, int64_t offset,
                                               const void *data, int64_t bytes, heft_error_t *err);
/* One chunk, header first, and the receiver's verdict on it: HEFT_ERR_DIGEST asks for it once more.
 * Use heft__chunk_send (chunk.h). */
HEFT_MUST_CHECK heft_status_t heft__remote_send(heft__remote_t *remote, const uint8_t *header,
                                                const void *data, int64_t bytes,
                                                int64_t deadline_mono_ns, heft_error_t *err);
/* Chunks can be posted: several are under way at a time. */
bool heft__remote_can_post(const heft__remote_t *remote);
/* Start sending one chunk; the header is copied, data are borrowed until the chunk is reaped or
 * flushed. tag: any number, to know it by. has_place: it is not of a packed route, and may go by
 * itself to where its header says. At most HEFT__CHUNKS_UNDER_WAY at a time. */
HEFT_MUST_CHECK heft_status_t heft__remote_post(heft__remote_t *remote, uint32_t tag,
                                                bool has_place, const uint8_t *header,
                                                const void *data, int64_t bytes,
                                                int64_t deadline_mono_ns, heft_error_t *err);
/* Wait for the verdict on one of the chunks that were posted, in any order: it is what is returned,
 * with the chunk's tag. *tag_out is not written where something else failed. */
HEFT_MUST_CHECK heft_status_t heft__remote_reap(heft__remote_t *remote, uint32_t *tag_out,
                                                int64_t deadline_mono_ns, heft_error_t *err);
/* How bytes get there, for people: "shm", "ucx tcp/eth0". Borrowed. */
const char *heft__remote_describe(const heft__remote_t *remote);
/* Every put so far is in the receiver's memory, and every chunk judged. Whatever it returns, no
 * data are borrowed any more. HEFT_ERR_PEER: the receiver is gone; HEFT_ERR_TIMEOUT: what was under
 * way may still arrive. */
HEFT_MUST_CHECK heft_status_t heft__remote_flush(heft__remote_t *remote, int64_t deadline_mono_ns,
                                                 heft_error_t *err);
/* Readable when check has something to say; -1: none. Borrowed. */
int heft__remote_get_fd(const heft__remote_t *remote);

/* ---- sender of chunks: for remotes without ptr (chunk.h is the receiver's side) ---- */

/* Chunks that a route is sent in. */
uint64_t heft__route_count_chunks(const heft__route_t *route, int64_t chunk_bytes);

typedef struct heft__chunk_counts {
    int64_t chunks; /* sent, the first time */
    int64_t resent;
} heft__chunk_counts_t;

/* docs/formats/chunk.md has the bytes. */
typedef struct heft__chunk_header {
    uint32_t flags;
    heft__token_t token;
    uint64_t route;
    uint64_t index;  /* within the route */
    uint64_t offset; /* within the window */
    uint64_t length;
    uint32_t crc; /* of the bytes */
} heft__chunk_header_t;

/* Sends routes of one round to one remote, several chunks under way where the transport can have
 * them. Confined; on the stack. */
typedef struct heft__chunk_tx {
    heft__remote_t *remote;
    const heft__expect_t *expect;
    heft__token_t token;
    const uint8_t *base;
    uint8_t *scratch; /* room for HEFT__CHUNKS_UNDER_WAY chunks; NULL: nothing needs it */
    int64_t deadline_mono_ns;
    heft_status_t (*on_chunk)(void *arg, heft_error_t *err);
    void *arg;
    /* NULL, or asked where bytes [at, at + n) of a route that is not packed lie, and what their CRC
     * is; room: of a chunk, in scratch. NULL as the answer: at base. The owner's, after init. */
    heft_status_t (*fetch)(void *arg, uint32_t route, int64_t at, int64_t n, uint8_t *room,
                           const uint8_t **bytes_out, uint32_t *crc_out, heft_error_t *err);
    void *fetch_arg;
    bool can_post;
    heft__chunk_counts_t counts;
    struct {
        heft__chunk_header_t header;
        const uint8_t *data;
    } slots[HEFT__CHUNKS_UNDER_WAY];
    uint32_t free_slots[HEFT__CHUNKS_UNDER_WAY];
    uint32_t n_free;
} heft__chunk_tx_t;

/* All is borrowed until finish. on_chunk (NULL is fine) is called before each chunk; a status other
 * than HEFT_OK ends the sending with it. */
void heft__chunk_tx_init(heft__chunk_tx_t *tx, heft__remote_t *remote, const heft__expect_t *expect,
                         heft__token_t token, const uint8_t *base, uint8_t *scratch,
                         int64_t deadline_mono_ns,
                         heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg);
/* Route number `route`: bytes of base at the route's own offset. What arrived damaged is sent once
 * more. Chunks may still be under way when it returns. */
HEFT_MUST_CHECK heft_status_t heft__chunk_tx_send(heft__chunk_tx_t *tx, uint32_t route,
                                                  heft_error_t *err);
/* The same chunk by chunk, without waiting for room: sends chunk *next of the route, and counts
 * *next up. HEFT_IN_PROGRESS: as many are under way as may be. Where chunks cannot be posted it
 * waits for the verdict. */
HEFT_MUST_CHECK heft_status_t heft__chunk_tx_try(heft__chunk_tx_t *tx, uint32_t route,
                                                 uint64_t *next, heft_error_t *err);
/* Wait for room for a chunk; HEFT_IN_PROGRESS: there was none until then. */
HEFT_MUST_CHECK heft_status_t heft__chunk_tx_await_room(heft__chunk_tx_t *tx, int64_t until_mono_ns,
                                                        heft_error_t *err);
/* status: of the sends before. Where it is HEFT_OK, waits for the verdicts that are left; then
 * nothing of base is read any more, whatever is returned. */
HEFT_MUST_CHECK heft_status_t heft__chunk_tx_finish(heft__chunk_tx_t *tx, heft_status_t status,
                                                    heft_error_t *err);

/* One route that is not packed, from begin to end; adds to *counts. */
HEFT_MUST_CHECK heft_status_t
heft__chunk_send(heft__remote_t *remote, const heft__expect_t *expect, heft__token_t token,
                 uint32_t route, const uint8_t *base, int64_t deadline_mono_ns,
                 heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg,
                 heft__chunk_counts_t *counts, heft_error_t *err);

/* ---- ucx: between hosts ---- */

typedef struct heft__ucx heft__ucx_t; /* locked */

typedef struct heft__ucx_opts {
    bool allow_tcp;      /* also between processes that could share memory */
    uint32_t max_lanes;  /* networks that one chunk is spread over; 0: one */
    uint32_t silence_ms; /* a peer in a transfer that says nothing for so long is lost; 0: 15 s */
    const char *net_devices; /* as UCX names them; NULL or "": all */
    bool always_put;         /* for tests: one-sided puts also where UCX only imitates them */
} heft__ucx_opts_t;

/*
 * The engine for these options, made when it is first asked for: one context, one worker and one
 * thread for all windows and remotes. Release it after them. HEFT_ERR_UNSUPPORTED: this build, or
 * this host, has no OpenUCX. Not for use in a child after a fork.
 */
HEFT_MUST_CHECK heft_status_t heft__ucx_acquire(const heft__ucx_opts_t *opts, heft__ucx_t **ucx_out,
                                                heft_error_t *err);
void heft__ucx_release(heft__ucx_t *ucx);
heft__transport_t *heft__ucx_get_transport(heft__ucx_t *ucx);
/* This build has it. */
bool heft__ucx_is_built(void);
/* Of OpenUCX on this host; NULL: it is not there. Loads it. */
const char *heft__ucx_get_version(void);

/* ---- auto: shm and ucx over one memory ---- */

typedef struct heft__pair heft__pair_t; /* immutable */

/* ucx is borrowed; destroy after every window. Its windows can be reached by either. */
HEFT_MUST_CHECK heft_status_t heft__pair_create(heft__ucx_t *ucx, heft__pair_t **pair_out,
                                                heft_error_t *err);
void heft__pair_destroy(heft__pair_t *pair);
heft__transport_t *heft__pair_get_transport(heft__pair_t *pair);

/* The label of this host: 32 hexadecimal digits, the same for all processes on the same start of a
 * kernel and in one network namespace; "": it cannot be told. */
void heft__transport_host_label(char out[33]);

/*
 * Which of the n transports offered here attaches to an endpoint, and with which text (the
 * caller's, heft__free). Of an endpoint with several, the first that is offered and can reach it
 * from here. HEFT_ERR_UNSUPPORTED: none; both offers are named. HEFT_ERR_FORMAT.
 */
HEFT_MUST_CHECK heft_status_t heft__endpoint_choose(const char *endpoint,
                                                    heft__transport_t *const *offered, uint32_t n,
                                                    heft__transport_t **chosen_out, char **text_out,
                                                    heft_error_t *err);

/* ---- loop: in one process, with faults ---- */

typedef struct heft__loop heft__loop_t; /* locked */

typedef enum heft__loop_fault {
    HEFT__LOOP_NONE = 0,
    HEFT__LOOP_FAIL = 1,          /* the put fails: HEFT_ERR_IO */
    HEFT__LOOP_DROP = 2,          /* reported as done, never arrives */
    HEFT__LOOP_CORRUPT = 3,       /* one bit differs on arrival */
    HEFT__LOOP_HOLD = 4,          /* does not arrive before heft__loop_release */
    HEFT__LOOP_DIE = 5,           /* the receiver is dead from here on */
    HEFT__LOOP_CORRUPT_AGAIN = 6, /* one bit differs, and of the next one as well */
    HEFT__LOOP_REPEAT = 7,        /* arrives twice */
    HEFT__LOOP_STRAY = 8,         /* a chunk's header is that of the next chunk of its route */
    /* The bytes are changed in the receiver's memory, after they were checked on arrival: */
    HEFT__LOOP_SWAP_HALVES = 9,
    HEFT__LOOP_SWAP_ELEMENTS = 10, /* two neighbours, of two bytes each */
    HEFT__LOOP_ZERO = 11,
    HEFT__LOOP_DOUBLE = 12 /* the second half is overwritten with the first */
} heft__loop_fault_t;

/* Destroy after every window and remote. direct: senders get a pointer; faults need puts. */
HEFT_MUST_CHECK heft_status_t heft__loop_create(bool direct, heft__loop_t **loop_out,
                                                heft_error_t *err);
void heft__loop_destroy(heft__loop_t *loop);
heft__transport_t *heft__loop_get_transport(heft__loop_t *loop);
/* The put that comes after `after` others (0: the next one) suffers the fault, once. */
void heft__loop_set_fault(heft__loop_t *loop, heft__loop_fault_t fault, int64_t after);
/* Whether the fault set last was reached. */
bool heft__loop_was_reached(heft__loop_t *loop);
/* Let held puts go: how many landed, and how many a fence had shut out. */
void heft__loop_release(heft__loop_t *loop, uint32_t *n_landed_out, uint32_t *n_refused_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds: coordinator, publisher (source rank) and subscriber (destination rank).
 *
 * The coordinator is an HTTP/JSON service that referees rounds and never carries weight bytes.
 * Members pull their orders from it. A push brings every registered destination to one version, or
 * leaves the old one live everywhere.
 */
#ifndef HEFT_SYNC_H
#define HEFT_SYNC_H

#include "heft/contract.h"
#include "heft/exec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_coordinator heft_coordinator_t; /* locked */
typedef struct heft_publisher heft_publisher_t;     /* confined */
typedef struct heft_subscriber
    heft_subscriber_t; /* confined, except where a function says otherwise */

/* ---- coordinator ---- */

typedef struct heft_coordinator_opts {
    size_t size;
    const char *address; /* NULL: "127.0.0.1"; beyond loopback token_file, tls_cert and tls_key are
                            required, unless insecure */
    uint16_t port;       /* 0: from the kernel */
    uint16_t reserved[3];
    const char
        *state_file; /* NULL: epoch, sequence, decision and committed version live in memory only */
    /* Deadlines of phases in milliseconds; 0: the default of docs/guide/rounds.md. */
    uint32_t preflight_ms, prepare_ms, stage_ms, verify_ms, pause_ms, decide_ms, flip_ms, resume_ms,
        release_ms, abort_ms, contact_ms, poll_ms;
    const char *token_file; /* NULL: none; every request must carry the token in it */
    const char *tls_cert;   /* PEM files; both or none: serve https */
    const char *tls_key;
    uint32_t request_ms;      /* 0: 30 s: a request that has not arrived whole is broken off */
    uint32_t max_connections; /* 0: 8192 */
    uint8_t insecure;         /* 1: listen beyond loopback without token and TLS */
    uint8_t no_feed;          /* 1: who joins late waits for the next push, no peer feeds it */
    uint8_t reserved2[6];
    const char *round_log; /* NULL: none; else a file: one JSON line for each round is appended */
    const char *relay; /* "off", "on": destinations that hold the same forward to each other what
                          they receive; "auto": where it pays. NULL: the settings */
    uint32_t relay_fan_out; /* 0: 1: to how many one of them forwards */
    uint8_t reserved3[4];
} heft_coordinator_opts_t;
#define HEFT_COORDINATOR_OPTS_INIT              \
    {                                           \
        .size = sizeof(heft_coordinator_opts_t) \
    }

/**
 * Start serving on a thread of its own. Fields that are zero come from the environment, then from
 * the settings file, then from the defaults (heft/config.h). HEFT_ERR_IO when the address cannot be
 * bound (the message names it); HEFT_ERR_ARGUMENT when it is beyond loopback without token and TLS,
 * a token or key can be read by others, or a value is out of bounds.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_coordinator_start(const heft_coordinator_opts_t *opts,
                                                              heft_coordinator_t **coordinator_out,
                                                              heft_error_t *err);
/** "http://127.0.0.1:PORT" or "https://...", borrowed. */
HEFT_API const char *heft_coordinator_get_url(const heft_coordinator_t *coordinator);
/**
 * Take no new rounds, and wait until the one in flight has ended, deadline_ms at most.
 * HEFT_ERR_TIMEOUT: it goes on, or has ended in doubt; the message names it. Stop it all the same:
 * members keep what they serve, and a coordinator that starts on the same state file takes the
 * round up again.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_coordinator_drain(heft_coordinator_t *coordinator,
                                                              uint32_t deadline_ms,
                                                              heft_error_t *err);
/** Stop: answers what is in progress, then closes. Members see connection errors and keep their
 * live version. */
HEFT_API void heft_coordinator_stop(heft_coordinator_t *coordinator);

/**
 * The version of OpenUCX that the transport ucx uses on this host, such as "1.13.1"; "" where it
 * cannot be loaded, NULL where this build has no such transport. Loads it. Threads: any.
 */
HEFT_API const char *heft_ucx_get_version(void);

/* ---- publisher ---- */

/* Which rank of a trainer begins a round when it pushes. The others' pushes wait for the round of
 * their version, take part in it, and return its outcome. */
enum heft_begin {
    HEFT_BEGIN_FIRST = 0, /* rank 0 of replica 0 */
    HEFT_BEGIN_YES = 1,   /* this one */
    HEFT_BEGIN_NO = 2     /* another one, or whoever asks the coordinator for it */
};

/* Fields that are zero come from the environment, the settings file, then the defaults
 * (heft/config.h). */
typedef struct heft_publisher_opts {
    size_t size;
    const char *url; /* coordinator */
    const char *job; /* NULL: "heft" */
    uint32_t replica;
    uint32_t rank;
    uint32_t n_threads;       /* 0: 1: copying threads */
    uint32_t deadline_ms;     /* 0: 30 s: every call to the coordinator */
    uint64_t max_bytes_per_s; /* 0: as fast as it goes; else leave bandwidth to the trainer: payload
                                 bytes of all destinations together */
    const char *token_file;   /* NULL: none; read again for every connection */
    const char *ca_file; /* NULL: the system's; certificates that vouch for the coordinator's */
    uint8_t insecure;    /* 1: the token may go over plain HTTP beyond loopback */
    uint8_t begin;       /* enum heft_begin */
    uint8_t reserved[2];
    uint32_t n_ranks; /* source ranks of the job, all replicas together: who begins waits for them,
                         no longer than deadline_ms, and a round without one is refused. 0: not
                         said */
    const char
        *transport; /* how bytes get to destinations: "shm", "ucx" or "auto"; NULL: the settings */
    const char *ucx_devices; /* of OpenUCX: network devices, as it names them; NULL: all */
    uint32_t ucx_lanes;      /* networks that share the load; 0: 1 */
    uint32_t ucx_silence_ms; /* 0: 15 s: a silent receiver is lost; a sender after 8 times that */
    uint8_t ucx_allow_tcp;   /* 1: ucx may use tcp where both could share memory */
    uint8_t reserved_more[7];
    const char *host; /* which host it counts as being on when senders are chosen; NULL: the
                         settings, else as the kernel tells */
} heft_publisher_opts_t;
#define HEFT_PUBLISHER_OPTS_INIT              \
    {                                         \
        .size = sizeof(heft_publisher_opts_t) \
    }

/**
 * Register a source. manifest: what it holds; borrowed until destroy. data[i]: bytes of tensor i
 * (contiguous), kept valid and unchanged during pushes; between them the array may be given other
 * addresses. Several sources hold a model together: each says by parts (heft_manifest_set_part)
 * which boxes of which tensors it has; tensors without parts it has whole. HEFT_ERR_PEER when the
 * coordinator cannot be reached within the deadline.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_publisher_create(const heft_publisher_opts_t *opts,
                                                             const heft_manifest_t *manifest,
                                                             const void *const *data,
                                                             heft_publisher_t **publisher_out,
                                                             heft_error_t *err);
/** Leave and free. */
HEFT_API void heft_publisher_destroy(heft_publisher_t *publisher);

typedef struct heft_push_result {
    int64_t version; /* asked for */
    int64_t round_epoch, round_seq;
    uint32_t n_destinations;
    uint32_t n_pieces;
    int64_t n_bytes;   /* payload bytes moved to all destinations */
    double transfer_s; /* stage phase: sending */
    double verify_s;
    double pause_s; /* pause to resume, the longest member */
    double total_s;
    char state[24]; /* "committed", "aborted", ... */
} heft_push_result_t;

/**
 * Start a round for `version` and take part in it until it ends. Blocks, bounded by the
 * coordinator's phase deadlines. HEFT_OK only if committed. Otherwise the status and the message
 * say phase, member and cause: HEFT_ERR_VERSION (not newer), HEFT_ERR_BUSY (a round is in flight),
 * HEFT_ERR_PROOF / NAME / SHAPE (preflight), HEFT_ERR_PEER (a member died), HEFT_ERR_TIMEOUT,
 * HEFT_ERR_DIGEST. result_out may be NULL and is filled as far as the round got.
 *
 * Where the coordinator gives no news of the round within deadline_ms, the push gives up
 * (HEFT_ERR_PEER, HEFT_ERR_TIMEOUT): it cancels the round as far as it can be reached, and takes no
 * more part in it, so that an undecided round aborts. After any return the tensors are not read any
 * more.
 *
 * On a rank that does not begin rounds (heft_publisher_opts_t.begin): wait for the round of this
 * version, take part, and return what the rank that began it returns. HEFT_ERR_TIMEOUT: no such
 * round within deadline_ms. So all ranks of a trainer make the same calls.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_publisher_push(heft_publisher_t *publisher,
                                                           int64_t version,
                                                           heft_push_result_t *result_out,
                                                           heft_error_t *err);
/**
 * Cancel the push that is in progress, as on Ctrl-C; it returns within a few seconds. Before the
 * decision its round aborts, and it fails with HEFT_ERR_CANCELED; after it the round goes on to its
 * end, which is what it returns. Without one in progress the next push is canceled before it
 * begins. From any thread while the publisher exists, and from a signal handler.
 */
HEFT_API void heft_publisher_interrupt(heft_publisher_t *publisher);

/* ---- subscriber ---- */

/* A source tensor that is given to the engine's own loader: contiguous, in staging memory. The
 * loader may write to it, and may keep a view of it until `flipped` returns. */
typedef struct heft_input {
    const char *name;
    heft_dtype_t dtype;
    heft_shape_t shape; /* logical */
    void *data;         /* 256-byte aligned */
    int64_t n_bytes;
} heft_input_t;

/* Hooks run on the thread that calls heft_subscriber_poll. A hook that fails returns non-zero.
 * NULL: nothing to do. */
typedef struct heft_hooks {
    size_t size;
    void *arg;
    int (*pause)(void *arg); /* stop admission, drain: nobody reads parameters after this */
    int (*flipped)(void *arg,
                   int64_t version); /* live bytes are `version`: refresh what depends on them */
    int (*resume)(void *arg,
                  int64_t version); /* serve `version` (0: none yet, stay out of service) */
    /* Called before addresses are compared, at pause and at flip: write where parameters are now
     * into the array given at creation. Must not change anything else. */
    int (*locate)(void *arg);
    /* The engine's own loader, for parameters that only it can write. Called once for each version,
     * inside the flip: the parameters that heft writes are in place, those that the loader writes
     * hold what they held at creation, and inputs are all tensors that the loader needs, in name
     * order. A plan with such parameters is refused without this hook. */
    int (*load)(void *arg, const heft_input_t *inputs, uint32_t n_inputs);
    /* What the hook that has just failed has to say, for the round's result; NULL: nothing.
     * Borrowed until the next hook is called. */
    const char *(*explain)(void *arg);
} heft_hooks_t;
#define HEFT_HOOKS_INIT              \
    {                                \
        .size = sizeof(heft_hooks_t) \
    }

/* As for publishers. */
typedef struct heft_subscriber_opts {
    size_t size;
    const char *url;
    const char *job; /* NULL: "heft" */
    uint32_t replica;
    uint32_t rank;             /* destination rank: the rank of the recipe */
    uint32_t n_threads;        /* 0: 1 */
    uint32_t deadline_ms;      /* 0: 30 s */
    const heft_hooks_t *hooks; /* borrowed until destroy */
    const char *token_file;    /* as a publisher's */
    const char *ca_file;
    uint8_t insecure;
    uint8_t in_place; /* 1: no staging; the engine is paused while the new version arrives in a
                         buffer, part by part, and is written to the parameters at once. A round
                         that fails then leaves it out of service (docs/guide/rounds.md) */
    uint8_t reserved[6];
    int64_t buffer_bytes;  /* in_place: of the buffer; 0: 64 MiB. At least the largest parameter, at
                              most all of them */
    const char *transport; /* how bytes come here: "shm", "ucx" or "auto"; NULL: the settings */
    const char *ucx_devices; /* of OpenUCX: network devices, as it names them; NULL: all */
    uint32_t ucx_lanes;      /* networks that share the load; 0: 1 */
    uint32_t ucx_silence_ms; /* 0: 15 s: a silent receiver is lost; a sender after 8 times that */
    uint8_t ucx_allow_tcp;   /* 1: ucx may use tcp where both could share memory */
    uint8_t reserved_more[7];
    const char *host; /* which host it counts as being on when senders are chosen; NULL: the
                         settings, else as the kernel tells */
} heft_subscriber_opts_t;
#define HEFT_SUBSCRIBER_OPTS_INIT              \
    {                                          \
        .size = sizeof(heft_subscriber_opts_t) \
    }

/**
 * Register a destination rank. recipe and bindings say how parameters come from source tensors;
 * manifest lists the parameters; params[i] is the live memory of parameter i (contiguous, 64-byte
 * aligned), written only inside a flip. All borrowed until destroy. Staging memory is allocated and
 * prefaulted here. Before every pause and every flip the array must still hold the addresses given
 * here, and memory must be mapped behind them, or the round is refused with the parameter's name.
 * HEFT_ERR_NOSPACE names the bytes needed and available.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_subscriber_create(const heft_subscriber_opts_t *opts, const heft_recipe_t *recipe,
                       const heft_bindings_t *bindings, const heft_manifest_t *manifest,
                       void *const *params, heft_subscriber_t **subscriber_out, heft_error_t *err);

enum heft_param_flags {
    HEFT_PARAM_RECORDED = 1u << 0 /* the engine changes it after a flip (kernel layout, derived
                                     values): its digest is taken from live memory once `flipped`
                                     has returned, and what it is then is what it must stay */
};

/* Live memory of one parameter. */
typedef struct heft_param {
    void *data; /* of element 0; any alignment */
    /* In elements (of packed dtypes: bytes), outermost first, signed; NULL: contiguous. Bytes that
     * belong to no element are never written. */
    const int64_t *strides;
    uint32_t flags; /* enum heft_param_flags */
    uint32_t reserved;
} heft_param_t;

/**
 * Register a destination rank by a contract, which holds the mapping and the source's manifest, so
 * that the plan is made, and what does not fit is refused, here. manifest: what the engine really
 * holds; NULL: the contract's manifest of this rank. It must agree with the contract's, attributes
 * included. params[i] is parameter i of the manifest, in bytewise name order. All borrowed until
 * destroy. Before every pause and every flip the array must still hold the addresses and strides
 * given here (see heft_hooks_t.locate).
 *
 * HEFT_ERR_MISMATCH: the manifest differs from the contract's; the first difference is named with
 * both values. HEFT_ERR_UNSUPPORTED: the engine's loader is needed and there is no hook `load`
 * (operation and parameters are named), or the destination receives in place; or a parameter is
 * derived and there is no hook `flipped`. HEFT_ERR_ARGUMENT: the contract has no mapping, or two
 * indices of a parameter are one element. Otherwise as heft_subscriber_create.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_subscriber_create_contract(const heft_subscriber_opts_t *opts, const heft_contract_t *contract,
                                const heft_manifest_t *manifest, const heft_param_t *params,
                                heft_subscriber_t **subscriber_out, heft_error_t *err);
/**
 * The engine has another layout now (an expert map, a quantisation, larger tensors): take this
 * contract, manifest and memory in the place of the old ones, which are borrowed no longer, without
 * leaving the fleet. Staging grows where it must: what still writes to it is waited for, it is
 * given back, and made anew. Afterwards there is no live version: the engine serves nothing until a
 * round has brought it to one. On the thread that polls, between rounds: HEFT_ERR_BUSY inside of
 * one. What heft_subscriber_create_contract returns; then the old plan, memory and version are as
 * they were, but for HEFT_ERR_PEER and HEFT_ERR_TIMEOUT: the new ones stand, and the coordinator
 * hears of them once it can be reached.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_subscriber_renew(heft_subscriber_t *subscriber,
                                                             const heft_contract_t *contract,
                                                             const heft_manifest_t *manifest,
                                                             const heft_param_t *params,
                                                             heft_error_t *err);

/* Another layout, by a contract or by a recipe. */
typedef struct heft_renewal {
    size_t size;
    const heft_contract_t *contract; /* NULL: recipe and bindings */
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;
    const heft_manifest_t *manifest; /* NULL: the contract's */
    const heft_param_t *params;
    uint8_t keeps_version; /* 1: the engine has moved its weights itself, and what params hold is
                              the live version in the new layout */
    uint8_t reserved[7];
} heft_renewal_t;
#define HEFT_RENEWAL_INIT              \
    {                                  \
        .size = sizeof(heft_renewal_t) \
    }
/**
 * The same as heft_subscriber_renew, also for a destination by a recipe: other bindings, such as
 * another table of experts. Where a round has been here it is planned for the sources of that one,
 * so that what does not fit is refused here. With keeps_version the engine goes on serving its
 * version, for which it vouches: digests are taken from live memory here, so nothing may write to
 * it, and until the next round brings a version this one feeds nobody. HEFT_ERR_STATE: it is to
 * keep a version, and none is live. Everything that the renewal points to is borrowed until destroy
 * or the next one.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_subscriber_renew_as(heft_subscriber_t *subscriber,
                                                                const heft_renewal_t *renewal,
                                                                heft_error_t *err);
/** 1 inside a round: it cannot be renewed now. On the thread that polls; while that does not poll,
 * the answer stays what it is. */
HEFT_API int heft_subscriber_is_in_round(const heft_subscriber_t *subscriber);
HEFT_API void heft_subscriber_destroy(heft_subscriber_t *subscriber);

/**
 * Report to the coordinator, take the next order and carry it out; returns after one exchange or
 * timeout_ms. Call it in a loop. HEFT_OK also when nothing happened. HEFT_ERR_PEER: the coordinator
 * cannot be reached now (call again: the live version stays). HEFT_ERR_STALE: another process has
 * taken this rank's place. HEFT_ERR_POISONED: the parameters are not to be trusted and the engine
 * is out of service; go on polling, so that a round can write them anew (docs/guide/rounds.md).
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_subscriber_poll(heft_subscriber_t *subscriber,
                                                            uint32_t timeout_ms, heft_error_t *err);
/** The version the parameters hold; 0: none committed yet. Threads: any. */
HEFT_API int64_t heft_subscriber_get_version(const heft_subscriber_t *subscriber);
/** 1 while the engine may serve. Threads: any. */
HEFT_API int heft_subscriber_is_serving(const heft_subscriber_t *subscriber);
/**
 * The digest (heft_digest, over the elements in row-major order) that parameter i, in bytewise name
 * order, has at the live version, as derived from the sources; 0 without a version or for a bad
 * index. It changes together with the version, inside a flip. Of a parameter that the engine itself
 * writes or changes it is the one taken from live memory after `flipped`, and 0 until then.
 * Elements that rounds leave alone (an exception with a box) count as zeros.
 * Threads: any.
 */
HEFT_API uint64_t heft_subscriber_get_digest(const heft_subscriber_t *subscriber, uint32_t i);

/* ---- clients of the coordinator: url NULL, token and certificates come from the environment and
 * the settings file (heft/config.h) ---- */

typedef struct heft_client_opts {
    size_t size;
    const char *url;
    const char *token_file; /* as a publisher's */
    const char *ca_file;
    uint32_t deadline_ms; /* 0: 30 s */
    uint8_t insecure;
    uint8_t reserved[3];
} heft_client_opts_t;
#define HEFT_CLIENT_OPTS_INIT              \
    {                                      \
        .size = sizeof(heft_client_opts_t) \
    }

/**
 * One request: method GET, POST, PUT or DELETE, path ("/v1/status"), a JSON text (may be NULL).
 * *json_out (NULL is fine) is the reply's text, freed with heft_string_free. A 4xx or 5xx reply
 * gives its status and its message; HEFT_ERR_AUTH: the token is wrong or missing, or the
 * certificate is not vouched for; HEFT_ERR_PEER, HEFT_ERR_TIMEOUT.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_client_request(const heft_client_opts_t *opts,
                                                           const char *method, const char *path,
                                                           const char *json, char **json_out,
                                                           heft_error_t *err);
/** GET path ("/v1/status") and return the JSON text; freed with heft_string_free. HEFT_ERR_PEER,
 * HEFT_ERR_TIMEOUT. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_client_get(const char *url, const char *path,
                                                       uint32_t deadline_ms, char **json_out,
                                                       heft_error_t *err);
/** POST a JSON text (may be NULL) and return the reply's. A 4xx or 5xx reply gives its status and
 * its message. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_client_post(const char *url, const char *path,
                                                        const char *json, uint32_t deadline_ms,
                                                        char **json_out, heft_error_t *err);
/**
 * Wait until n destinations have registered: before a first push, because a round takes those that
 * are there. Looks at once (timeout_ms 0: only then), and then 20 times a second. opts.deadline_ms
 * is that of one look; 0: 10 s.
 *
 * progress (NULL: none) is called with how many are there and how many are wanted, while they are
 * too few; other than 0 ends the wait: HEFT_ERR_CANCELED. HEFT_ERR_TIMEOUT names those that are
 * there, and ranks that are missing below them. A coordinator that cannot be reached is waited for
 * as well; in the end HEFT_ERR_PEER or HEFT_ERR_TIMEOUT tells of it.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_client_await_destinations(const heft_client_opts_t *opts, uint32_t n, uint32_t timeout_ms,
                               heft_progress_t progress, void *progress_arg, heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif

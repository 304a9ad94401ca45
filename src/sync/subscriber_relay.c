/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination that forwards: while a version arrives in its staging, it passes on what has
 * arrived to others of its rank (its followers), whose staging has the same layout.
 *
 * A lane is one follower, with a thread of its own. It begins when the first sender writes here,
 * for by then everybody is armed. Where bytes come in chunks it sends each one once it has been
 * judged right; where senders write straight into staging nothing can be told before they have
 * ended, so then it sends all of it. What a lane reads does not change before its round is over:
 * the owner's thread ends the lanes before it gives staging to anything else.
 *
 * A relay is not trusted: followers compare what arrives with the digests of the sources.
 */
#include "sync/subscriber_private.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "kernel/kernel.h"

static const int64_t patience_ns = 2000000000; /* of who is asked to stop, until it hears why */

typedef struct lane {
    heft__relay_t *relay;
    char id[HEFT__ID_SIZE];
    char *endpoint; /* owned */
    pthread_t thread;
    bool has_thread;
    /* The thread's. */
    heft__remote_t *remote;
    bool *was_sent;    /* by entry */
    uint64_t *arrived; /* chunks, by route of our window */
    bool has_all;      /* every sender has ended */
    uint32_t entry;    /* that is being sent */
    uint64_t next;     /* chunk of it */
    bool is_there;     /* all of it has arrived */
    heft__chunk_tx_t tx;
    /* The outcome: for others once is_over is set, which the member's lock guards. */
    bool is_over;
    bool is_unknown; /* a put was issued, and it is not known whether it has ended */
    int64_t over_mono_ns;
    heft_error_t err;
} lane_t;

struct heft__relay {
    heft_subscriber_t *sub;
    heft__token_t token;
    int64_t deadline_mono_ns;
    atomic_bool stop;
    heft__route_t *routes; /* what followers expect: one for each entry */
    heft__expect_t expect;
    uint32_t n_arriving;    /* routes of our own window */
    uint32_t *first_packed; /* by entry, and one more: its packed ones among them */
    int64_t pause_ns;       /* between two looks at what has arrived */
    int64_t bytes;          /* of staging that counts */
    lane_t *lanes;
    uint32_t n_lanes;
};

/* ---- what has arrived ---- */

static heft_status_t look(lane_t *lane, heft_error_t *err)
{
    const heft__relay_t *relay = lane->relay;
    heft__window_state_t state;
    heft__window_query(relay->sub->window, &state);
    lane->has_all = state.n_done >= relay->sub->n_senders && state.n_writing == 0;
    if (atomic_load(&relay->stop)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "the round was called off");
    }
    if (state.n_lost > 0 || state.n_failed > 0) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "what was to be forwarded broke off");
    }
    if (heft__clock_mono_ns() >= relay->deadline_mono_ns) {
        return heft__error_set(err, HEFT_ERR_TIMEOUT, "not forwarded before the deadline");
    }
    return lane->remote != NULL ? heft__remote_check(lane->remote, err) : HEFT_OK;
}

static void rest(const heft__relay_t *relay)
{
    const struct timespec pause = { .tv_nsec = (long)relay->pause_ns };
    (void)nanosleep(&pause, NULL);
}

/* Somebody writes here, so every receiver of the round is armed. */
static heft_status_t await_begin(lane_t *lane, heft_error_t *err)
{
    heft__window_state_t state = { .n_writing = 0 };
    heft_status_t status = look(lane, err);
    for (;;) {
        heft__window_query(lane->relay->sub->window, &state);
        if (status != HEFT_OK || state.n_writing > 0 || state.n_done > 0) {
            return status;
        }
        rest(lane->relay);
        status = look(lane, err);
    }
}

static bool is_whole(const lane_t *lane, uint32_t entry)
{
    const heft__relay_t *relay = lane->relay;
    const uint32_t begin = relay->first_packed[entry];
    const uint32_t end = relay->first_packed[entry + 1];
    const heft__route_t *packed = relay->sub->packing.routes;
    if (lane->has_all || relay->routes[entry].bytes == 0) {
        return true;
    }
    const int64_t chunk_bytes = relay->expect.chunk_bytes;
    bool is = begin < end ||
              lane->arrived[entry] == heft__route_count_chunks(&relay->routes[entry], chunk_bytes);
    for (uint32_t i = begin; i < end && is; i++) {
        is = lane->arrived[i] == heft__route_count_chunks(&packed[i], chunk_bytes);
    }
    return is;
}

/* ---- sending ---- */

/* Before the next chunk of the entry that is being sent: it has arrived. */
static heft_status_t await_chunk(void *arg, heft_error_t *err)
{
    lane_t *lane = arg;
    heft__window_t *window = lane->relay->sub->window;
    heft_status_t status = look(lane, err);
    while (status == HEFT_OK && !lane->is_there && lane->arrived[lane->entry] <= lane->next) {
        heft__window_count_arrived(window, lane->entry, 1, &lane->arrived[lane->entry]);
        if (lane->arrived[lane->entry] <= lane->next) {
            rest(lane->relay);
        }
        status = look(lane, err);
        lane->is_there = lane->has_all;
    }
    lane->next++;
    return status;
}

/* To memory that can be addressed, a piece at a time. */
static heft_status_t copy_entry(lane_t *lane, uint32_t entry, heft_error_t *err)
{
    const heft__relay_t *relay = lane->relay;
    const heft__route_t *route = &relay->routes[entry];
    heft_status_t status = HEFT_OK;
    for (int64_t done = 0; done < route->bytes && status == HEFT_OK; done += HEFT__CHUNK_BYTES) {
        const int64_t at = route->offset + done;
        status = look(lane, err);
        if (status == HEFT_OK) {
            heft__memcpy(lane->remote->ptr + at, relay->sub->window->ptr + at,
                         heft__min_i64(HEFT__CHUNK_BYTES, route->bytes - done));
        }
    }
    return status;
}

static heft_status_t send_entry(lane_t *lane, uint32_t entry, bool is_there, heft_error_t *err)
{
    lane->was_sent[entry] = true;
    lane->entry = entry;
    lane->next = 0;
    lane->is_there = is_there;
    return lane->remote->ptr != NULL ? copy_entry(lane, entry, err)
                                     : heft__chunk_tx_send(&lane->tx, entry, err);
}

/* What can be sent now: entries that are whole, and in chunks also one that has begun to arrive. */
static heft_status_t send_some(lane_t *lane, bool *found_out, heft_error_t *err)
{
    const bool in_chunks = lane->remote->ptr == NULL;
    heft_status_t status = HEFT_OK;
    *found_out = false;
    for (uint32_t i = 0; i < lane->relay->expect.n_routes && status == HEFT_OK; i++) {
        if (lane->was_sent[i]) {
            continue;
        }
        const bool is_there = is_whole(lane, i);
        if (is_there || (in_chunks && lane->arrived[i] > 0)) {
            *found_out = true;
            status = send_entry(lane, i, is_there, err);
        }
    }
    return status;
}

static heft_status_t forward(lane_t *lane, heft_error_t *err)
{
    const heft__relay_t *relay = lane->relay;
    bool is_through = false;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && !is_through) {
        bool found = false;
        status = look(lane, err); /* first: what is counted afterwards may be more, never less */
        is_through = lane->has_all;
        heft__window_count_arrived(relay->sub->window, 0, relay->n_arriving, lane->arrived);
        if (status == HEFT_OK) {
            status = send_some(lane, &found, err);
        }
        if (status == HEFT_OK && !found && !is_through) {
            rest(relay);
        }
    }
    return heft__chunk_tx_finish(&lane->tx, status, err);
}

static heft_status_t serve(lane_t *lane, heft_error_t *err)
{
    heft__relay_t *relay = lane->relay;
    heft_status_t status = await_begin(lane, err);
    if (status == HEFT_OK) {
        status = heft__subscriber_attach(relay->sub, lane->endpoint, relay->deadline_mono_ns,
                                         &relay->stop, &lane->remote, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft__chunk_tx_init(&lane->tx, lane->remote, &relay->expect, relay->token,
                        relay->sub->window->ptr, NULL, relay->deadline_mono_ns, await_chunk, lane);
    status = heft__remote_begin(lane->remote, relay->token, relay->deadline_mono_ns, err);
    if (status == HEFT_OK) {
        status = forward(lane, err);
        status = heft__subscriber_end_sending(lane->remote, relay->token, relay->deadline_mono_ns,
                                              status, &lane->is_unknown, err);
    }
    return status;
}

static void *run(void *arg)
{
    lane_t *lane = arg;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = serve(lane, &err);
    heft__remote_close(lane->remote); /* after an unknown put this is what ends it */
    heft__member_t *member = lane->relay->sub->member;
    (void)heft__member_lock(member);
    lane->is_over = true;
    lane->over_mono_ns = heft__clock_mono_ns();
    lane->err = err;
    lane->err.status = status;
    heft__member_unlock(member, true); /* the report brings it along */
    heft__member_interrupt(member);    /* and a failure is the owner's to act on */
    return NULL;
}

/* ---- for others, with the member's lock held ---- */

bool heft__subscriber_has_forwarded(const heft_subscriber_t *sub, heft__counters_t *counters)
{
    const heft__relay_t *relay = sub->relay;
    for (uint32_t i = 0; relay != NULL && i < relay->n_lanes; i++) {
        if (!relay->lanes[i].is_over || relay->lanes[i].err.status != HEFT_OK) {
            return false;
        }
    }
    for (uint32_t i = 0; relay != NULL && i < relay->n_lanes; i++) {
        counters->forwarded += relay->bytes;
        counters->resent += relay->lanes[i].tx.counts.resent;
    }
    return true;
}

bool heft__subscriber_has_failed_to_forward(const heft_subscriber_t *sub, int64_t now,
                                            heft_error_t *why, bool *unknown_out,
                                            char blamed[HEFT__ID_SIZE])
{
    const heft__relay_t *relay = sub->relay;
    for (uint32_t i = 0; relay != NULL && i < relay->n_lanes; i++) {
        const lane_t *lane = &relay->lanes[i];
        const bool is_asked = lane->err.status == HEFT_ERR_CANCELED;
        if (!lane->is_over || lane->err.status == HEFT_OK ||
            (is_asked && now - lane->over_mono_ns < patience_ns)) {
            continue;
        }
        *why = lane->err;
        *unknown_out = lane->is_unknown;
        memcpy(blamed, lane->id, sizeof lane->id);
        return true;
    }
    return false;
}

/* ---- the owner's thread ---- */

static void fini(heft__relay_t *relay)
{
    for (uint32_t i = 0; relay->lanes != NULL && i < relay->n_lanes; i++) {
        heft__free(relay->lanes[i].endpoint);
        heft__free(relay->lanes[i].was_sent);
        heft__free(relay->lanes[i].arrived);
    }
    heft__free(relay->lanes);
    heft__free(relay->routes);
    heft__free(relay->first_packed);
    heft__free(relay);
}

void heft__subscriber_end_relay(heft_subscriber_t *sub)
{
    heft__relay_t *relay = sub->relay;
    if (relay == NULL) {
        return;
    }
    atomic_store(&relay->stop, true);
    for (uint32_t i = 0; i < relay->n_lanes; i++) {
        if (relay->lanes[i].has_thread) {
            (void)pthread_join(relay->lanes[i].thread, NULL);
        }
    }
    (void)heft__member_lock(sub->member);
    sub->relay = NULL;
    heft__member_unlock(sub->member, false);
    fini(relay);
}

/* Where the packed routes of each entry are among those of our window. */
static heft_status_t find_packed(heft__relay_t *relay, bool is_packed, heft_error_t *err)
{
    const heft__packing_t *packing = &relay->sub->packing;
    const uint32_t n = relay->expect.n_routes;
    const uint32_t n_routes = is_packed ? packing->expect.n_routes : n;
    relay->first_packed = heft__calloc((size_t)n + 1, sizeof *relay->first_packed);
    if (relay->first_packed == NULL) {
        return heft__error_nomem(err, n * sizeof *relay->first_packed);
    }
    uint32_t route = n;
    for (uint32_t i = 0; i < n; i++) {
        relay->first_packed[i] = route;
        while (route < n_routes && heft__packing_get_entry(packing, route) == i) {
            route++;
        }
    }
    relay->first_packed[n] = route;
    relay->n_arriving = n_routes;
    relay->pause_ns = 1000000 + (int64_t)n_routes * 100; /* a look costs a few ns for each */
    return HEFT_OK;
}

static heft_status_t add_lane(heft__relay_t *relay, const heft__peer_t *peer, heft_error_t *err)
{
    lane_t *lane = &relay->lanes[relay->n_lanes++];
    size_t n = 0;
    lane->relay = relay;
    memcpy(lane->id, peer->id, sizeof lane->id);
    lane->was_sent = heft__calloc((size_t)relay->expect.n_routes + 1, sizeof *lane->was_sent);
    lane->arrived = heft__calloc((size_t)relay->n_arriving + 1, sizeof *lane->arrived);
    if (lane->was_sent == NULL || lane->arrived == NULL) {
        return heft__error_nomem(err, relay->n_arriving * sizeof *lane->arrived);
    }
    return heft__member_get_object(relay->sub->member, peer->endpoint, &lane->endpoint, &n, err);
}

static heft_status_t make(heft__relay_t *relay, const heft__order_t *order, heft_error_t *err)
{
    const heft_subscriber_t *sub = relay->sub;
    heft_status_t status = heft__staging_expect(&sub->work.layout, sub->work.routes, 0,
                                                &relay->routes, &relay->expect, err);
    if (status == HEFT_OK) {
        status = find_packed(relay, !order->relayed && sub->packing.n_packed > 0, err);
    }
    if (status == HEFT_OK) {
        relay->lanes = heft__calloc(order->n_followers, sizeof *relay->lanes);
        status = relay->lanes != NULL
                     ? HEFT_OK
                     : heft__error_nomem(err, order->n_followers * sizeof *relay->lanes);
    }
    for (uint32_t i = 0; i < order->n_followers && status == HEFT_OK; i++) {
        status = add_lane(relay, &order->followers[i], err);
    }
    for (uint32_t i = 0; i < relay->expect.n_routes; i++) {
        relay->bytes += relay->routes[i].bytes; /* bounded by the bytes of staging */
    }
    return status;
}

heft_status_t heft__subscriber_make_relay(heft_subscriber_t *sub, const heft__order_t *order,
                                          int64_t deadline_mono_ns, heft__relay_t **relay_out,
                                          heft_error_t *err)
{
    *relay_out = NULL;
    if (order->n_followers == 0) {
        return HEFT_OK;
    }
    heft__relay_t *relay = heft__calloc(1, sizeof *relay);
    if (relay == NULL) {
        return heft__error_nomem(err, sizeof *relay);
    }
    relay->sub = sub;
    relay->token =
        (heft__token_t){ .epoch = (uint64_t)order->round.epoch, .seq = (uint64_t)order->round.seq };
    relay->deadline_mono_ns = deadline_mono_ns;
    heft_status_t status = make(relay, order, err);
    if (status != HEFT_OK) {
        fini(relay);
        return status;
    }
    *relay_out = relay;
    return HEFT_OK;
}

void heft__subscriber_start_relay(heft_subscriber_t *sub)
{
    heft__relay_t *relay = sub->relay;
    for (uint32_t i = 0; relay != NULL && i < relay->n_lanes; i++) {
        lane_t *lane = &relay->lanes[i];
        const int rc = pthread_create(&lane->thread, NULL, run, lane);
        lane->has_thread = rc == 0;
        if (rc != 0) {
            (void)heft__member_lock(sub->member);
            lane->is_over = true;
            (void)heft__error_set_sys(&lane->err, HEFT_ERR_NOMEM, rc, "forwarding thread");
            heft__member_unlock(sub->member, true);
            heft__member_interrupt(sub->member);
        }
    }
}

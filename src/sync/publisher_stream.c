/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that follow a run. Receivers whose memory cannot be addressed are sent a buffer of their
 * rank, which the families' runs fill in the order of the source. A thread of the stage sends each
 * receiver its entries: those first that need no buffer (direct.h), while the runs get ahead, then
 * the others in the order in which the runs finish them, as soon as one is whole. It
 * deals chunks in turns to all receivers that take one, each source beginning with another, so
 * that a slow one holds up nobody else and sources do not all send to the same. The stage's own
 * thread runs, looks around, and waits for the end; the sending thread says of failures only what
 * it meets itself.
 */
#include "sync/publisher_private.h"

#include "exec/exec.h"

#include <stdatomic.h>
#include <stdlib.h>

static const int64_t look_ns = 5000000;
static const int64_t turn_ns = 1000000; /* between looks for another receiver that takes chunks */

/* One receiver. */
typedef struct lane {
    heft__link_t *link;
    const heft__packing_t *packing;
    heft__chunk_tx_t tx;
    uint8_t *scratch;
    const heft__direct_t *direct;
    const void *const *data; /* by source of the plan */
    uint64_t *digests;       /* of what is direct; NULL: another receiver's of the rank */
    /* What comes next: an item of its rank, a route of the item's entry, a chunk of the route. */
    size_t item;
    size_t end_item;
    uint32_t route; /* UINT32_MAX: the first */
    uint64_t chunk;
    bool is_full; /* as many chunks are under way as may be */
} lane_t;

/* An entry of a rank, and when it is written. */
typedef struct item {
    bool is_direct; /* no run writes it */
    uint32_t ear;   /* whose run writes it */
    uint64_t unit;  /* the last that does */
    uint32_t family;
    uint32_t rank;
    uint32_t entry;
    size_t place; /* in is_whole */
} item_t;

/* What a run tells, and of whom. */
typedef struct ear {
    heft__stream_t *stream;
    heft_exec_t *exec;
    uint32_t family;
    uint32_t rank; /* of inputs; their plan has one rank */
    bool is_input;
    const size_t *places; /* by rank of the family: where its entries begin in is_whole */
} ear_t;

struct heft__stream {
    heft_publisher_t *pub;
    int64_t deadline_mono_ns;
    lane_t *lanes;
    uint32_t n_lanes;
    ear_t *ears;
    uint32_t n_ears;
    size_t *places; /* of all ranks of all families */
    item_t *items;  /* by rank, in the order in which they are sent */
    size_t n_items;

    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Guarded by lock. */
    bool *is_whole; /* by place */
    uint64_t n_whole;
    bool is_gathered; /* nothing more becomes whole */
    bool is_over;
    /* The thread's, until it is over. */
    heft_status_t status;
    heft_error_t err;
    const char *blamed;
};

static bool needs_chunks(const heft__link_t *link)
{
    return link->is_staged && link->remote->ptr == NULL;
}

/* ---- what is whole ---- */

/* heft__exec_param_fn_t */
static void on_param(void *arg, uint32_t rank_index, uint32_t param)
{
    const ear_t *ear = arg;
    heft__stream_t *stream = ear->stream;
    const heft__family_t *family = &stream->pub->fleet.families[ear->family];
    const size_t place = ear->is_input
                             ? ear->places[ear->rank] + family->layouts[ear->rank].n_params + param
                             : ear->places[rank_index] + param;
    (void)pthread_mutex_lock(&stream->lock);
    stream->is_whole[place] = true;
    stream->n_whole++;
    (void)pthread_cond_signal(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
}

static uint64_t count_whole(heft__stream_t *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    const uint64_t n = stream->n_whole;
    (void)pthread_mutex_unlock(&stream->lock);
    return n;
}

/* More than there were, or nothing more to come; looks up now and then all the same. */
static void await_more_whole(heft__stream_t *stream, uint64_t n_before)
{
    const int64_t deadline = heft__clock_mono_ns() + look_ns;
    (void)pthread_mutex_lock(&stream->lock);
    while (stream->n_whole == n_before && !stream->is_gathered &&
           heft__cond_wait_until(&stream->changed, &stream->lock, deadline)) {
    }
    (void)pthread_mutex_unlock(&stream->lock);
}

typedef enum readiness { NOT_YET, WHOLE, NEVER } readiness_t;

static readiness_t readiness_of(heft__stream_t *stream, const item_t *item)
{
    (void)pthread_mutex_lock(&stream->lock);
    const readiness_t readiness = item->is_direct || stream->is_whole[item->place] ? WHOLE
                                  : stream->is_gathered                            ? NEVER
                                                                                   : NOT_YET;
    (void)pthread_mutex_unlock(&stream->lock);
    return readiness;
}

/* ---- the thread ---- */

static heft_status_t before_chunk(void *arg, heft_error_t *err)
{
    heft__stream_t *stream = arg;
    return atomic_load_explicit(&stream->stop, memory_order_relaxed)
               ? heft__error_set(err, HEFT_ERR_CANCELED,
                                 "the stage ended before everything was sent")
               : HEFT_OK;
}

/* Of a heft__chunk_tx_t: routes that are not packed are entries. */
static heft_status_t fetch(void *arg, uint32_t route, int64_t at, int64_t n, uint8_t *room,
                           const uint8_t **bytes_out, uint32_t *crc_out, heft_error_t *err)
{
    const lane_t *lane = arg;
    uint64_t crc64 = 0;
    if (!heft__direct_has(lane->direct, route)) {
        *bytes_out = NULL;
        return HEFT_OK;
    }
    heft_status_t status =
        heft__direct_find(lane->direct, route, lane->data, at, n, room, bytes_out, err);
    if (status == HEFT_OK) {
        *crc_out = heft__direct_sum(*bytes_out, n, lane->digests != NULL ? &crc64 : NULL);
    }
    if (status == HEFT_OK && lane->digests != NULL) {
        const int64_t rest = lane->packing->routes[route].bytes - (at + n);
        lane->digests[route] ^= heft__crc64_shift(crc64, rest);
    }
    return status;
}

static void fail(heft__stream_t *stream, heft_status_t status, const lane_t *lane)
{
    stream->status = status;
    stream->blamed = lane->link->id;
}

/* The next chunk of the entry that the lane is at, if it takes one. False: it does not. */
static bool send_chunk(heft__stream_t *stream, lane_t *lane)
{
    const heft__expect_t *expect = &lane->packing->expect;
    heft_status_t status = heft__chunk_tx_try(&lane->tx, lane->route, &lane->chunk, &stream->err);
    lane->is_full = status == HEFT_IN_PROGRESS;
    if (status != HEFT_OK) {
        if (!lane->is_full) {
            fail(stream, status, lane);
        }
        return false;
    }
    const heft__route_t *route = &expect->routes[lane->route];
    if (lane->chunk == heft__route_count_chunks(route, expect->chunk_bytes)) {
        lane->chunk = 0;
        const uint32_t entry = stream->items[lane->item].entry;
        lane->route =
            heft__packing_next_route(lane->packing, stream->pub->fleet.number, entry, lane->route);
        lane->item += lane->route == UINT32_MAX;
    }
    return true;
}

/* One turn of a lane. False: it has nothing whole, or no room. */
static bool take_turn(heft__stream_t *stream, lane_t *lane)
{
    lane->is_full = false;
    while (lane->item < lane->end_item) {
        const item_t *item = &stream->items[lane->item];
        if (lane->route == UINT32_MAX) {
            const readiness_t readiness = readiness_of(stream, item);
            if (readiness == NOT_YET) {
                return false;
            }
            if (readiness == WHOLE) {
                lane->route = heft__packing_next_route(lane->packing, stream->pub->fleet.number,
                                                       item->entry, UINT32_MAX);
            }
        }
        if (lane->route != UINT32_MAX) {
            return send_chunk(stream, lane);
        }
        lane->item++;
    }
    return false;
}

/* Nobody takes a chunk at the moment: until one of those that were full does, or there is more to
 * send. */
static void await_turn(heft__stream_t *stream, uint32_t first, uint64_t n_whole)
{
    lane_t *full = NULL;
    for (uint32_t k = 0; k < stream->n_lanes && full == NULL; k++) {
        lane_t *lane = &stream->lanes[(first + k) % stream->n_lanes];
        full = lane->is_full ? lane : NULL;
    }
    if (full == NULL) {
        await_more_whole(stream, n_whole);
        return;
    }
    heft_status_t status =
        heft__chunk_tx_await_room(&full->tx, heft__clock_mono_ns() + turn_ns, &stream->err);
    if (status != HEFT_OK && status != HEFT_IN_PROGRESS) {
        fail(stream, status, full);
    }
}

static bool is_all_sent(const heft__stream_t *stream)
{
    uint32_t i = 0;
    while (i < stream->n_lanes && stream->lanes[i].item == stream->lanes[i].end_item) {
        i++;
    }
    return i == stream->n_lanes;
}

/* Each lane one chunk at a time. */
static void deal(heft__stream_t *stream)
{
    uint32_t first = stream->pub->fleet.number % stream->n_lanes;
    while (stream->status == HEFT_OK && !is_all_sent(stream)) {
        const uint64_t n_whole = count_whole(stream);
        bool was_sent = false;
        for (uint32_t k = 0; k < stream->n_lanes && stream->status == HEFT_OK; k++) {
            lane_t *lane = &stream->lanes[(first + k) % stream->n_lanes];
            was_sent = take_turn(stream, lane) || was_sent;
        }
        if (!was_sent && stream->status == HEFT_OK && !is_all_sent(stream)) {
            await_turn(stream, first++, n_whole);
        }
        if (stream->status == HEFT_OK) {
            stream->status = before_chunk(stream, &stream->err);
        }
    }
}

static void *send_all(void *arg)
{
    heft__stream_t *stream = arg;
    deal(stream);
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        lane_t *lane = &stream->lanes[i];
        const bool was_ok = stream->status == HEFT_OK;
        heft_status_t status = heft__chunk_tx_finish(&lane->tx, stream->status, &stream->err);
        if (was_ok && status != HEFT_OK) {
            fail(stream, status, lane);
        }
    }
    (void)pthread_mutex_lock(&stream->lock);
    stream->is_over = true;
    (void)pthread_cond_broadcast(&stream->changed);
    (void)pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- start ---- */

/* Digests of what is direct, by the first lane of a rank. */
static heft_status_t make_digests(heft__stream_t *stream, lane_t *lane, heft_error_t *err)
{
    const size_t n = (size_t)lane->direct->n_params + 1;
    for (const lane_t *other = stream->lanes; other < lane; other++) {
        if (other->direct == lane->direct) {
            return HEFT_OK;
        }
    }
    lane->digests = heft__calloc(n, sizeof *lane->digests);
    return lane->digests != NULL ? HEFT_OK : heft__error_nomem(err, n * sizeof *lane->digests);
}

static heft_status_t add_lane(heft__stream_t *stream, heft__link_t *link, heft__token_t token,
                              heft_error_t *err)
{
    heft__fleet_t *fleet = &stream->pub->fleet;
    const heft__family_t *family = &fleet->families[link->family];
    lane_t *lane = &stream->lanes[stream->n_lanes++];
    lane->link = link;
    lane->direct = &family->directs[link->rank];
    lane->data = family->reads.data;
    heft_status_t status = heft__fleet_get_packing(fleet, link, &lane->packing, err);
    if (status == HEFT_OK) {
        status =
            heft__packing_make_scratch(lane->packing, lane->direct->is_used, &lane->scratch, err);
    }
    if (status == HEFT_OK && lane->direct->is_used) {
        status = make_digests(stream, lane, err);
    }
    if (status == HEFT_OK) {
        heft__chunk_tx_init(&lane->tx, link->remote, &lane->packing->expect, token,
                            heft__fleet_get_bounce(family, link->rank), lane->scratch,
                            stream->deadline_mono_ns, before_chunk, stream);
        lane->tx.fetch = lane->direct->is_used ? fetch : NULL;
        lane->tx.fetch_arg = lane;
    }
    return status;
}

static heft_status_t add_lanes(heft__stream_t *stream, heft__token_t token, heft_error_t *err)
{
    heft__fleet_t *fleet = &stream->pub->fleet;
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < fleet->n_links && status == HEFT_OK; i++) {
        if (needs_chunks(&fleet->links[i])) {
            status = add_lane(stream, &fleet->links[i], token, err);
        }
    }
    return status;
}

static heft_status_t listen_to(heft__stream_t *stream, const ear_t *what, heft_error_t *err)
{
    if (what->exec == NULL) {
        return HEFT_OK;
    }
    ear_t *ear = &stream->ears[stream->n_ears];
    *ear = *what;
    heft_status_t status = heft__exec_set_on_param(ear->exec, on_param, ear, err);
    stream->n_ears += status == HEFT_OK;
    return status;
}

/* To the runs of a family, in the order in which they run. */
static heft_status_t listen_to_family(heft__stream_t *stream, uint32_t f, const size_t *places,
                                      heft_error_t *err)
{
    const heft__family_t *family = &stream->pub->fleet.families[f];
    ear_t ear = { .stream = stream, .exec = family->exec, .family = f, .places = places };
    heft_status_t status = listen_to(stream, &ear, err);
    ear.is_input = true;
    for (ear.rank = 0; ear.rank < family->n_ranks && status == HEFT_OK; ear.rank++) {
        ear.exec = family->input_execs[ear.rank];
        status = listen_to(stream, &ear, err);
    }
    return status;
}

/* What an ear hears of the entries [first, end) of a rank. */
static void add_items(heft__stream_t *stream, uint32_t e, uint32_t rank, uint32_t first,
                      uint32_t end)
{
    const ear_t *ear = &stream->ears[e];
    for (uint32_t i = first; i < end; i++) {
        item_t item = { .ear = e,
                        .family = ear->family,
                        .rank = rank,
                        .entry = i,
                        .place = ear->places[rank] + i };
        if (heft__exec_find_last_unit(ear->exec, ear->is_input ? 0 : rank, i - first, &item.unit)) {
            stream->items[stream->n_items++] = item;
        }
    }
}

/* Of one rank, from where they are. */
static void add_direct(heft__stream_t *stream, uint32_t f, uint32_t rank)
{
    const heft__direct_t *direct = &stream->pub->fleet.families[f].directs[rank];
    for (uint32_t i = 0; direct->is_used && i < direct->n_params; i++) {
        if (heft__direct_has(direct, i)) {
            stream->items[stream->n_items] = (item_t){
                .is_direct = true, .family = f, .rank = rank, .entry = i, .place = stream->n_items
            };
            stream->n_items++;
        }
    }
}

static int by_rank(const item_t *x, const item_t *y)
{
    return x->family != y->family ? (x->family > y->family) - (x->family < y->family)
                                  : (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_rank_and_time(const void *a, const void *b)
{
    const item_t *x = a;
    const item_t *y = b;
    const int order = by_rank(x, y);
    if (order != 0) {
        return order;
    }
    if (x->is_direct != y->is_direct) {
        return x->is_direct ? -1 : 1;
    }
    if (x->ear != y->ear) {
        return x->ear < y->ear ? -1 : 1;
    }
    if (x->unit != y->unit) {
        return x->unit < y->unit ? -1 : 1;
    }
    return (x->place > y->place) - (x->place < y->place);
}

/* Those of the lane's rank. */
static void find_items(const heft__stream_t *stream, lane_t *lane)
{
    const item_t wanted = { .family = lane->link->family, .rank = lane->link->rank };
    size_t first = 0;
    while (first < stream->n_items && by_rank(&stream->items[first], &wanted) < 0) {
        first++;
    }
    lane->item = lane->end_item = first;
    while (lane->end_item < stream->n_items &&
           by_rank(&stream->items[lane->end_item], &wanted) == 0) {
        lane->end_item++;
    }
    lane->route = UINT32_MAX;
}

/* Ranks all of whose receivers can be addressed have no buffer, and nothing to be sent. */
static void list_items(heft__stream_t *stream)
{
    const heft__fleet_t *fleet = &stream->pub->fleet;
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        for (uint32_t r = 0; r < fleet->families[f].n_ranks; r++) {
            add_direct(stream, f, r);
        }
    }
    for (uint32_t e = 0; e < stream->n_ears; e++) {
        const ear_t *ear = &stream->ears[e];
        const heft__family_t *family = &fleet->families[ear->family];
        for (uint32_t r = 0; r < family->n_ranks; r++) {
            const heft__staging_t *layout = &family->layouts[r];
            if (family->bounces[r] != NULL && !ear->is_input) {
                add_items(stream, e, r, 0, layout->n_params);
            } else if (family->bounces[r] != NULL && ear->rank == r) {
                add_items(stream, e, r, layout->n_params, layout->n_entries);
            }
        }
    }
    qsort(stream->items, stream->n_items, sizeof *stream->items, by_rank_and_time);
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        find_items(stream, &stream->lanes[i]);
    }
}

static heft_status_t listen(heft__stream_t *stream, heft_error_t *err)
{
    const heft__fleet_t *fleet = &stream->pub->fleet;
    heft_status_t status = HEFT_OK;
    size_t *places = stream->places;
    size_t n = 0;
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        const heft__family_t *family = &fleet->families[f];
        for (uint32_t r = 0; r < family->n_ranks; r++) {
            places[r] = n;
            n += family->layouts[r].n_entries;
        }
        status = listen_to_family(stream, f, places, err);
        places += family->n_ranks;
    }
    if (status == HEFT_OK) {
        list_items(stream);
    }
    return status;
}

static heft_status_t make(heft_publisher_t *pub, heft__stream_t **stream_out, heft_error_t *err)
{
    const heft__fleet_t *fleet = &pub->fleet;
    size_t n_entries = 1;
    size_t n_ranks = 1;
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        const heft__family_t *family = &fleet->families[f];
        n_ranks += family->n_ranks;
        for (uint32_t r = 0; r < family->n_ranks; r++) {
            n_entries += family->layouts[r].n_entries;
        }
    }
    heft__stream_t *stream = heft__calloc(1, sizeof *stream);
    if (stream == NULL) {
        return heft__error_nomem(err, sizeof *stream);
    }
    stream->pub = pub;
    stream->lanes = heft__calloc(fleet->n_links, sizeof *stream->lanes);
    stream->ears = heft__calloc(n_ranks + fleet->n_families, sizeof *stream->ears);
    stream->places = heft__calloc(n_ranks, sizeof *stream->places);
    stream->items = heft__calloc(n_entries, sizeof *stream->items);
    stream->is_whole = heft__calloc(n_entries, sizeof *stream->is_whole);
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)heft__cond_init(&stream->changed);
    *stream_out = stream;
    return stream->lanes != NULL && stream->ears != NULL && stream->places != NULL &&
                   stream->items != NULL && stream->is_whole != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n_entries * sizeof *stream->items);
}

static void destroy(heft__stream_t *stream)
{
    for (uint32_t i = 0; i < stream->n_ears; i++) {
        (void)!heft__exec_set_on_param(stream->ears[i].exec, NULL, NULL, NULL);
    }
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        heft__free(stream->lanes[i].scratch);
        heft__free(stream->lanes[i].digests);
    }
    (void)pthread_cond_destroy(&stream->changed);
    (void)pthread_mutex_destroy(&stream->lock);
    heft__free(stream->lanes);
    heft__free(stream->ears);
    heft__free(stream->places);
    heft__free(stream->items);
    heft__free(stream->is_whole);
    heft__free(stream);
}

static heft_status_t start_thread(heft__stream_t *stream, heft_error_t *err)
{
    const int rc = heft__thread_create(&stream->thread, send_all, stream);
    return rc == 0 ? HEFT_OK
                   : heft__error_set_sys(err, HEFT_ERR_BUSY, rc, "cannot start a sending thread");
}

heft_status_t heft__stream_start(heft_publisher_t *pub, const heft__order_t *order,
                                 int64_t deadline_mono_ns, heft__stream_t **stream_out,
                                 heft_error_t *err)
{
    const heft__token_t token = { .epoch = (uint64_t)order->round.epoch,
                                  .seq = (uint64_t)order->round.seq };
    heft__stream_t *stream = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        n += needs_chunks(&pub->fleet.links[i]);
    }
    *stream_out = NULL;
    if (n == 0) {
        return HEFT_OK;
    }
    heft_status_t status = make(pub, &stream, err);
    if (status == HEFT_OK) {
        stream->deadline_mono_ns = deadline_mono_ns;
        status = add_lanes(stream, token, err);
    }
    if (status == HEFT_OK) {
        status = listen(stream, err);
    }
    if (status == HEFT_OK) {
        status = start_thread(stream, err);
    }
    if (status != HEFT_OK && stream != NULL) {
        destroy(stream);
        return status;
    }
    *stream_out = stream;
    return status;
}

/* ---- end ---- */

/* Until the thread is over, looking around meanwhile. */
static heft_status_t await_thread(heft__stream_t *stream, heft_status_t status, heft_error_t *err)
{
    (void)pthread_mutex_lock(&stream->lock);
    stream->is_gathered = true;
    (void)pthread_cond_broadcast(&stream->changed);
    while (!stream->is_over) {
        (void)heft__cond_wait_until(&stream->changed, &stream->lock,
                                    heft__clock_mono_ns() + look_ns);
        (void)pthread_mutex_unlock(&stream->lock);
        if (status == HEFT_OK) {
            status = heft__publisher_look_around(stream->pub, err);
        }
        if (status != HEFT_OK) {
            atomic_store_explicit(&stream->stop, true, memory_order_relaxed);
        }
        (void)pthread_mutex_lock(&stream->lock);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    (void)pthread_join(stream->thread, NULL);
    return status;
}

/* Also after a failure: what was issued must be known to have ended. */
static heft_status_t flush(const heft__stream_t *stream, heft_status_t status, heft_error_t *err)
{
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        heft__link_t *link = stream->lanes[i].link;
        heft_error_t late = HEFT_ERROR_INIT;
        const heft_status_t flushed =
            heft__remote_flush(link->remote, stream->deadline_mono_ns, &late);
        if (flushed != HEFT_OK) {
            link->is_unknown = flushed != HEFT_ERR_PEER; /* the dead receive nothing */
            stream->pub->blame.peer = link->id;
        }
        if (flushed != HEFT_OK && status == HEFT_OK) {
            *err = late;
            status = flushed;
        }
    }
    return status;
}

/* Beside those that the runs have left. */
static void store_digests(const heft__stream_t *stream)
{
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        const lane_t *lane = &stream->lanes[i];
        const heft__family_t *family = &stream->pub->fleet.families[lane->link->family];
        for (uint32_t e = 0; lane->digests != NULL && e < lane->direct->n_params; e++) {
            if (heft__direct_has(lane->direct, e)) {
                family->digests[lane->link->rank][e] = lane->digests[e];
            }
        }
    }
}

heft_status_t heft__stream_finish(heft__stream_t *stream, heft_status_t status,
                                  heft__chunk_counts_t *counts, heft_error_t *err)
{
    if (stream == NULL) {
        return status;
    }
    const bool was_run = status == HEFT_OK;
    if (!was_run) {
        atomic_store_explicit(&stream->stop, true, memory_order_relaxed);
    }
    status = await_thread(stream, status, err);
    /* What the thread met says more than a round that was called off because of it. */
    const bool says_more = status == HEFT_OK || (was_run && status == HEFT_ERR_CANCELED &&
                                                 stream->status != HEFT_ERR_CANCELED);
    if (stream->status != HEFT_OK && says_more) {
        status = stream->status;
        *err = stream->err;
        stream->pub->blame.peer = stream->blamed;
    }
    status = flush(stream, status, err);
    for (uint32_t i = 0; i < stream->n_lanes; i++) {
        counts->chunks += stream->lanes[i].tx.counts.chunks;
        counts->resent += stream->lanes[i].tx.counts.resent;
    }
    store_digests(stream);
    destroy(stream);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source that sends in place: the flip of sync/in_place.h. Receivers are served in turn, a part
 * at a time, whichever is armed; one that fails does not hold up the others. A run is made for each
 * part: its memory is bounded by the part. Parts of which other sources have everything are passed
 * over.
 */
#include "sync/in_place.h"
#include "sync/part_run.h"
#include "sync/publisher_private.h"

#include <time.h>

typedef struct stream {
    heft__link_t *link;
    const heft__delivery_t *delivery;
    heft__digest_slots_t slots;
    uint32_t slot;  /* of this source among those that send here */
    uint32_t first; /* parameter that the next part begins with; n_params: digests */
    uint32_t end;   /* and the one after its last */
    uint32_t part;
    uint8_t *bounce; /* owned; for a receiver whose memory cannot be addressed */
    bool is_over;
} stream_t;

typedef struct sender {
    heft_publisher_t *pub;
    const heft__order_t *order;
    heft__part_runner_t *runner;
    void **params;     /* of the part in hand */
    uint64_t *digests; /* likewise */
    heft__chunk_counts_t counts;
    int64_t deadline_mono_ns;
} sender_t;

static bool is_at_digests(const stream_t *stream)
{
    return stream->first == stream->delivery->layout->n_params;
}

/* On to the next part of which this source has something: it is the one from `first` on, or a later
 * one; at last its digests. */
static void seek(const sender_t *s, stream_t *stream)
{
    const heft__staging_t *layout = stream->delivery->layout;
    const int64_t bytes = stream->link->remote->bytes;
    while (stream->first < layout->n_params) {
        bool sends = false;
        stream->end = heft__staging_part_end(layout, stream->first, bytes);
        (void)heft__delivery_count_part(stream->delivery, stream->first, stream->end,
                                        s->pub->fleet.number, &sends);
        if (sends) {
            return;
        }
        stream->first = stream->end;
        stream->part++;
    }
    stream->end = stream->first;
    stream->part += stream->slot / stream->slots.per_part;
}

static heft_status_t run_part(sender_t *s, const stream_t *stream, uint8_t *base, heft_error_t *err)
{
    heft__family_t *family = &s->pub->fleet.families[stream->link->family];
    const heft__staging_t *layout = stream->delivery->layout;
    const uint32_t rank = stream->link->rank;
    const heft__share_t share = { .routes = family->routes, .sender = s->pub->fleet.number };
    for (uint32_t i = stream->first; i < stream->end; i++) {
        s->params[i] = base + (layout->offsets[i] - layout->offsets[stream->first]);
    }
    heft_exec_target_t target = { .rank_index = rank,
                                  .params = s->params,
                                  .digests_out = s->digests };
    s->pub->stopped = (heft_error_t)HEFT_ERROR_INIT;
    heft_status_t status = heft__part_run(s->runner, family->plan, &target, stream->first,
                                          stream->end, &share, family->reads.data, err);
    if (status == HEFT_ERR_CANCELED && s->pub->stopped.status != HEFT_OK) {
        *err = s->pub->stopped;
        status = err->status;
    }
    for (uint32_t i = stream->first; i < stream->end; i++) {
        family->digests[rank][i] = s->digests[i];
        s->params[i] = NULL;
    }
    return status;
}

static void write_digests(const sender_t *s, const stream_t *stream, uint8_t *at)
{
    const uint64_t *digests =
        s->pub->fleet.families[stream->link->family].digests[stream->link->rank];
    for (uint32_t i = 0; i < stream->delivery->layout->n_params; i++) {
        for (int b = 0; b < 8; b++) {
            *at++ = (uint8_t)(digests[i] >> (8 * b));
        }
    }
}

/* Where this source's list lies in the buffer. */
static int64_t slot_offset(const stream_t *stream)
{
    return stream->slots.list_bytes * (stream->slot % stream->slots.per_part);
}

static heft_status_t send_chunks(sender_t *s, stream_t *stream, heft__token_t token,
                                 heft_error_t *err)
{
    const uint32_t number = s->pub->fleet.number;
    heft__packing_t packing;
    if (is_at_digests(stream)) {
        heft__route_t *routes = NULL;
        heft__expect_t expect;
        const uint32_t k = stream->slot / stream->slots.per_part;
        heft_status_t status = heft__digest_slots_expect(&stream->slots, k, &routes, &expect, err);
        if (status == HEFT_OK) {
            status = heft__chunk_send(stream->link->remote, &expect, token,
                                      stream->slot % stream->slots.per_part, stream->bounce,
                                      s->deadline_mono_ns, NULL, NULL, &s->counts, err);
        }
        heft__free(routes);
        return status;
    }
    heft_status_t status =
        heft__packing_init(stream->delivery, stream->first, stream->end, number, &packing, err);
    if (status == HEFT_OK) {
        status = heft__packing_send(&packing, number, stream->link->remote, token, stream->bounce,
                                    s->deadline_mono_ns, NULL, NULL, &s->counts, err);
        heft__packing_fini(&packing);
    }
    return status;
}

/* In chunks, where the receiver's memory cannot be addressed: what arrives damaged is sent again
 * before it is written to anything live. */
static heft_status_t put_part(sender_t *s, stream_t *stream, heft__token_t token, heft_error_t *err)
{
    heft_status_t status = send_chunks(s, stream, token, err);
    heft_error_t late = HEFT_ERROR_INIT;
    heft_status_t flushed = heft__remote_flush(stream->link->remote, s->deadline_mono_ns, &late);
    if (flushed != HEFT_OK) {
        stream->link->is_unknown = flushed != HEFT_ERR_PEER;
        if (status == HEFT_OK) {
            *err = late;
            status = flushed;
        }
    }
    return status;
}

/* What this source has of one part into the receiver's buffer. */
static heft_status_t fill(sender_t *s, stream_t *stream, heft__token_t token, heft_error_t *err)
{
    uint8_t *base = stream->bounce != NULL ? stream->bounce : stream->link->remote->ptr;
    heft_status_t status = HEFT_OK;
    if (is_at_digests(stream)) {
        write_digests(s, stream, base + slot_offset(stream));
    } else {
        status = run_part(s, stream, base, err);
    }
    return status == HEFT_OK && stream->bounce != NULL ? put_part(s, stream, token, err) : status;
}

/* The next part, if its receiver is armed for it; HEFT_IN_PROGRESS: not yet. */
static heft_status_t send_part(sender_t *s, stream_t *stream, heft_error_t *err)
{
    const bool is_last = is_at_digests(stream);
    const heft__token_t token = heft__part_token(s->order->round, stream->part);
    heft_status_t status =
        heft__remote_begin(stream->link->remote, token, s->deadline_mono_ns, err);
    if (status == HEFT_ERR_STALE) {
        return HEFT_IN_PROGRESS;
    }
    if (status != HEFT_OK) {
        return status;
    }
    stream->link->is_staged = true; /* it alone is looked at while this runs */
    status = fill(s, stream, token, err);
    stream->link->is_staged = false;
    if (!stream->link->is_unknown) {
        heft_error_t late = HEFT_ERROR_INIT;
        heft_status_t ended =
            heft__remote_end(stream->link->remote, token, status == HEFT_OK, &late);
        if (status == HEFT_OK && ended != HEFT_OK) {
            *err = late;
            status = ended;
        }
    }
    stream->first = stream->end;
    stream->part++;
    stream->is_over = is_last;
    if (!is_last) {
        seek(s, stream);
    }
    return status;
}

static heft_status_t open_stream(sender_t *s, const heft__peer_t *peer, stream_t *stream,
                                 heft_error_t *err)
{
    heft_status_t status =
        heft__fleet_open(&s->pub->fleet, peer, s->deadline_mono_ns, &stream->link, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (!stream->link->sends) {
        stream->is_over = true;
        return HEFT_OK;
    }
    int64_t bytes = 0;
    int64_t pieces = 0;
    const uint32_t number = s->pub->fleet.number;
    stream->delivery = &s->pub->fleet.families[stream->link->family].deliveries[stream->link->rank];
    stream->slots = heft__digest_slots(stream->delivery, stream->link->remote->bytes);
    stream->slot = heft__delivery_find_sender(stream->delivery, number);
    heft__delivery_count(stream->delivery, number, &bytes, &pieces);
    heft__part_runner_expect(s->runner, bytes);
    seek(s, stream);
    if (stream->link->remote->ptr == NULL) {
        stream->bounce = heft__malloc((size_t)stream->link->remote->bytes);
        if (stream->bounce == NULL) {
            return heft__error_nomem(err, (size_t)stream->link->remote->bytes);
        }
    }
    return HEFT_OK;
}

static void give_up(sender_t *s, stream_t *stream, heft_status_t status, const heft_error_t *why,
                    heft_status_t *first, heft_error_t *err)
{
    stream->is_over = true;
    if (*first == HEFT_OK) {
        *first = status;
        s->pub->blame.peer = stream->link != NULL ? stream->link->id : NULL;
        if (err != NULL) {
            *err = *why;
        }
    }
}

/* A look at every receiver; *moved_out: something was sent, *open_out: something is left. Each
 * source begins with another, so that they do not all send to the same one. */
static void serve_once(sender_t *s, stream_t *streams, uint32_t n, bool *moved_out, bool *open_out,
                       heft_status_t *first, heft_error_t *err)
{
    *moved_out = false;
    *open_out = false;
    for (uint32_t i = 0; i < n; i++) {
        stream_t *stream = &streams[(s->pub->fleet.number + i) % n];
        heft_error_t why = HEFT_ERROR_INIT;
        if (stream->is_over) {
            continue;
        }
        heft_status_t status = send_part(s, stream, &why);
        if (status == HEFT_IN_PROGRESS && heft__clock_mono_ns() >= s->deadline_mono_ns) {
            status = heft__error_set(&why, HEFT_ERR_TIMEOUT,
                                     "%s was not ready for part %u before the deadline",
                                     stream->link->id, stream->part);
        }
        if (status == HEFT_OK) {
            *moved_out = true;
            stream->link->was_sent = stream->is_over;
        } else if (status != HEFT_IN_PROGRESS) {
            give_up(s, stream, status, &why, first, err);
        }
        *open_out = *open_out || !stream->is_over;
    }
}

static heft_status_t serve(sender_t *s, stream_t *streams, uint32_t n, heft_error_t *err)
{
    heft_status_t first = HEFT_OK;
    for (uint32_t i = 0; i < n; i++) {
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = open_stream(s, &s->order->peers[i], &streams[i], &why);
        if (status != HEFT_OK) {
            give_up(s, &streams[i], status, &why, &first, err);
        }
    }
    for (bool open = n > 0, moved = false; open;) { /* the first look sees who is served at all */
        serve_once(s, streams, n, &moved, &open, &first, err);
        if (open && (heft__member_is_called_off(s->pub->member, s->pub->round) ||
                     heft__publisher_is_given_up(s->pub, s->pub->round))) {
            return first != HEFT_OK
                       ? first
                       : heft__error_set(err, HEFT_ERR_CANCELED, "the round was called off");
        }
        if (open && !moved) {
            const struct timespec pause = { .tv_nsec = 200000 };
            (void)nanosleep(&pause, NULL);
        }
    }
    return first;
}

static heft_status_t alloc_scratch(sender_t *s, heft_error_t *err)
{
    const heft__fleet_t *fleet = &s->pub->fleet;
    size_t n = 1;
    for (uint32_t f = 0; f < fleet->n_families; f++) {
        for (uint32_t r = 0; r < fleet->families[f].n_ranks; r++) {
            const size_t n_params = fleet->families[f].layouts[r].n_params;
            n = n_params > n ? n_params : n;
        }
    }
    s->params = heft__calloc(n, sizeof *s->params);
    s->digests = heft__calloc(n, sizeof *s->digests);
    return s->params != NULL && s->digests != NULL ? HEFT_OK
                                                   : heft__error_nomem(err, n * sizeof *s->params);
}

heft_status_t heft__publisher_send_in_place(heft_publisher_t *pub, const heft__order_t *order,
                                            heft_error_t *err)
{
    sender_t s = { .pub = pub, .order = order };
    pub->run_mono_ns = heft__clock_mono_ns();
    s.deadline_mono_ns = heft__clock_mono_ns() + heft__order_left_ns(order, INT64_MAX / 4);
    stream_t *streams = heft__calloc(order->n_peers > 0 ? order->n_peers : 1, sizeof *streams);
    heft_status_t status = streams != NULL
                               ? alloc_scratch(&s, err)
                               : heft__error_nomem(err, order->n_peers * sizeof *streams);
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        pub->fleet.links[i].is_staged = false;
        pub->fleet.links[i].is_unknown = false;
    }
    if (status == HEFT_OK) {
        status = heft__part_runner_create(pub->n_threads, pub->fleet.progress,
                                          pub->fleet.progress_arg, &s.runner, err);
    }
    if (status == HEFT_OK) {
        heft__fleet_bind(&pub->fleet, pub->data);
        status = serve(&s, streams, order->n_peers, err);
    }
    for (uint32_t i = 0; streams != NULL && i < order->n_peers; i++) {
        heft__free(streams[i].bounce);
    }
    heft__part_runner_destroy(s.runner);
    heft__free(s.params);
    heft__free(s.digests);
    heft__free(streams);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop transport: windows in this process, found by number, and puts that can be made to fail.
 * A fence raises the window's generation; a put that was held back before it is refused when it is
 * let go. Remotes hold a reference to a window's number only, so a window may go at any time.
 */
#include "transport/chunk.h"

#include <string.h>
#include <unistd.h>

#include <jansson.h>

typedef struct loop_remote loop_remote_t;

typedef struct loop_window {
    heft__window_t base;
    heft__loop_t *loop;
    struct loop_window *next;
    uint64_t id;
    uint64_t generation;
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
    void (*on_change)(void *arg);
    void *on_change_arg;
    bool is_armed;
    bool is_dead; /* HEFT__LOOP_DIE */
    heft__token_t token;
    heft__window_state_t state;
    heft__chunk_rx_t *rx; /* NULL: plain puts */
    heft__crc32c_t crc;
} loop_window_t;

/* Bytes on their way: a plain put, or a chunk. */
typedef struct parcel {
    const uint8_t *header; /* NULL: a plain put to offset */
    int64_t offset;
    const void *data;
    int64_t bytes;
} parcel_t;

/* One that waits for heft__loop_release. */
typedef struct held_put {
    struct held_put *next;
    uint64_t id;
    uint64_t generation;
    int64_t offset;
    int64_t bytes;
    bool has_header;
    uint8_t header[HEFT__CHUNK_HEADER_BYTES];
    uint8_t data[];
} held_put_t;

struct heft__loop {
    heft__transport_t base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool direct;
    uint64_t last_id;
    loop_window_t *windows;
    held_put_t *held;
    heft__loop_fault_t fault;
    int64_t fault_after;
    bool was_reached;
};

struct loop_remote {
    heft__remote_t base;
    heft__loop_t *loop;
    uint64_t id;
    uint64_t generation;
    bool is_writing;
    uint32_t n_held;
    heft__window_sender_t self;
};

static loop_window_t *find_locked(const heft__loop_t *loop, uint64_t id)
{
    loop_window_t *window = loop->windows;
    while (window != NULL && window->id != id) {
        window = window->next;
    }
    return window;
}

/* Called without the lock, by a sender's thread; the receiver outlives its rounds. */
static void call_on_change(void (*on_change)(void *arg), void *arg)
{
    if (on_change != NULL) {
        on_change(arg);
    }
}

static loop_window_t *alive_locked(const loop_remote_t *remote)
{
    loop_window_t *window = find_locked(remote->loop, remote->id);
    return window != NULL && !window->is_dead ? window : NULL;
}

static heft_status_t lost(const loop_remote_t *remote, heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_PEER, "loop: window %llu, the receiver, is gone",
                           (unsigned long long)remote->id);
}

/* ---- receiver ---- */

static const heft__transport_ops_t loop_ops;

static heft_status_t window_create(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err)
{
    heft__loop_t *loop = (heft__loop_t *)transport;
    loop_window_t *window = heft__calloc(1, sizeof *window);
    if (window == NULL) {
        return heft__error_nomem(err, sizeof *window);
    }
    uint8_t *ptr = heft__calloc(1, (size_t)params->bytes + 64);
    if (ptr == NULL) {
        heft__free(window);
        return heft__error_nomem(err, (size_t)params->bytes);
    }
    *window = (loop_window_t){ .base = { .ops = &loop_ops,
                                         .ptr = ptr,
                                         .bytes = params->bytes,
                                         .page_bytes = 4096,
                                         .memory = params->memory },
                               .loop = loop,
                               .on_change = params->on_change,
                               .on_change_arg = params->on_change_arg };
    memcpy(window->incarnation, params->incarnation, sizeof window->incarnation);
    (void)pthread_mutex_lock(&loop->lock);
    window->id = ++loop->last_id;
    window->next = loop->windows;
    loop->windows = window;
    (void)pthread_mutex_unlock(&loop->lock);
    *window_out = &window->base;
    return HEFT_OK;
}

static void window_destroy(heft__window_t *base)
{
    loop_window_t *window = (loop_window_t *)base;
    heft__loop_t *loop = window->loop;
    (void)pthread_mutex_lock(&loop->lock);
    loop_window_t **link = &loop->windows;
    while (*link != window) {
        link = &(*link)->next;
    }
    *link = window->next;
    (void)pthread_cond_broadcast(&loop->changed);
    (void)pthread_mutex_unlock(&loop->lock);
    heft__chunk_rx_destroy(window->rx);
    heft__free(window->base.ptr);
    heft__free(window);
}

static void window_encode(const heft__window_t *base, heft__text_t *text)
{
    const loop_window_t *window = (const loop_window_t *)base;
    char incarnation[2 * HEFT__INCARNATION_BYTES + 1];
    heft__hex(window->incarnation, HEFT__INCARNATION_BYTES, incarnation);
    heft__text_printf(text,
                      "{\"transport\":\"loop\",\"id\":%llu,\"bytes\":%lld,\"incarnation\":\"%s\"}",
                      (unsigned long long)window->id, (long long)base->bytes, incarnation);
}

static void window_arm(heft__window_t *base, heft__token_t token)
{
    loop_window_t *window = (loop_window_t *)base;
    (void)pthread_mutex_lock(&window->loop->lock);
    uint32_t n_attached = window->state.n_attached;
    window->is_armed = true;
    window->token = token;
    window->state = (heft__window_state_t){ .n_attached = n_attached };
    if (window->rx != NULL) {
        heft__chunk_rx_arm(window->rx, token);
    }
    (void)pthread_mutex_unlock(&window->loop->lock);
}

static heft_status_t window_expect(heft__window_t *base, const heft__expect_t *expect,
                                   heft_error_t *err)
{
    loop_window_t *window = (loop_window_t *)base;
    heft__chunk_rx_t *rx = NULL;
    if (window->loop->direct) {
        return HEFT_OK;
    }
    heft_status_t status = heft__chunk_rx_create(expect, base->bytes, &rx, err);
    if (status != HEFT_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&window->loop->lock);
    heft__chunk_rx_destroy(window->rx);
    window->rx = rx;
    window->crc = expect->crc;
    (void)pthread_mutex_unlock(&window->loop->lock);
    return HEFT_OK;
}

static void window_query(heft__window_t *base, heft__window_state_t *state_out)
{
    loop_window_t *window = (loop_window_t *)base;
    (void)pthread_mutex_lock(&window->loop->lock);
    *state_out = window->state;
    (void)pthread_mutex_unlock(&window->loop->lock);
}

static bool wait_changed_locked(heft__loop_t *loop, int64_t deadline_mono_ns)
{
    return heft__cond_wait_until(&loop->changed, &loop->lock, deadline_mono_ns);
}

/* Held puts need no fresh memory: the generation shuts them out. A direct writer that has not ended
 * does, as in shm; but here all is one process, so the fresh memory replaces the old one only once
 * the writer has ended, and until then the fence fails. */
static heft_status_t window_fence(heft__window_t *base, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err)
{
    loop_window_t *window = (loop_window_t *)base;
    heft__loop_t *loop = window->loop;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&loop->lock);
    window->is_armed = false;
    window->generation++;
    while (loop->direct && window->state.n_writing > 0 &&
           wait_changed_locked(loop, deadline_mono_ns)) {
    }
    if (loop->direct && window->state.n_writing > 0) {
        status = heft__error_set(err, HEFT_ERR_TIMEOUT, "loop: %u senders have not stopped",
                                 window->state.n_writing);
    }
    (void)pthread_mutex_unlock(&loop->lock);
    if (status == HEFT_OK) {
        *replaced_out = false;
    }
    return status;
}

/* ---- sender ---- */

static heft_status_t decode_endpoint(const char *text, uint64_t *id_out,
                                     uint8_t incarnation_out[HEFT__INCARNATION_BYTES],
                                     heft_error_t *err)
{
    json_error_t why;
    json_int_t id = 0;
    json_int_t bytes = 0;
    const char *transport = "";
    const char *incarnation = "";
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    bool ok =
        root != NULL &&
        json_unpack_ex(root, &why, JSON_STRICT, "{s:s, s:I, s:I, s:s}", "transport", &transport,
                       "id", &id, "bytes", &bytes, "incarnation", &incarnation) == 0 &&
        strcmp(transport, "loop") == 0 && id > 0 &&
        heft__hex_parse(incarnation, incarnation_out, HEFT__INCARNATION_BYTES);
    json_decref(root);
    if (!ok) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "loop endpoint: %s", text);
    }
    *id_out = (uint64_t)id;
    return HEFT_OK;
}

static heft_status_t check_window(const loop_remote_t *remote, const loop_window_t *window,
                                  const uint8_t incarnation[HEFT__INCARNATION_BYTES], int64_t bytes,
                                  heft_error_t *err)
{
    if (window == NULL) {
        return lost(remote, err);
    }
    if (memcmp(window->incarnation, incarnation, HEFT__INCARNATION_BYTES) != 0) {
        return heft__error_set(err, HEFT_ERR_STALE, "loop: another incarnation of window %llu",
                               (unsigned long long)remote->id);
    }
    if (window->base.bytes < bytes) {
        return heft__error_set(err, HEFT_ERR_SHAPE, "loop: %lld bytes of staging, %lld needed",
                               (long long)window->base.bytes, (long long)bytes);
    }
    return HEFT_OK;
}

static heft_status_t attach(heft__transport_t *transport, const char *endpoint,
                            const heft__attach_params_t *params, heft__remote_t **remote_out,
                            heft_error_t *err)
{
    heft__loop_t *loop = (heft__loop_t *)transport;
    loop_remote_t *remote = heft__calloc(1, sizeof *remote);
    if (remote == NULL) {
        return heft__error_nomem(err, sizeof *remote);
    }
    uint8_t incarnation[HEFT__INCARNATION_BYTES];
    remote->loop = loop;
    remote->self.pid = (int32_t)getpid();
    memcpy(remote->self.incarnation, params->incarnation, sizeof remote->self.incarnation);
    heft_status_t status = decode_endpoint(endpoint, &remote->id, incarnation, err);
    if (status == HEFT_OK) {
        (void)pthread_mutex_lock(&loop->lock);
        loop_window_t *window = alive_locked(remote);
        status = check_window(remote, window, incarnation, params->bytes, err);
        if (status == HEFT_OK) {
            window->state.n_attached++;
            remote->base = (heft__remote_t){ .ops = &loop_ops,
                                             .ptr = loop->direct ? window->base.ptr : NULL,
                                             .bytes = window->base.bytes,
                                             .memory = window->base.memory };
        }
        (void)pthread_mutex_unlock(&loop->lock);
    }
    if (status != HEFT_OK) {
        heft__free(remote);
        return status;
    }
    *remote_out = &remote->base;
    return HEFT_OK;
}

static void close_remote(heft__remote_t *base)
{
    loop_remote_t *remote = (loop_remote_t *)base;
    (void)pthread_mutex_lock(&remote->loop->lock);
    loop_window_t *window = find_locked(remote->loop, remote->id);
    void (*on_change)(void *) = window != NULL ? window->on_change : NULL;
    void *on_change_arg = window != NULL ? window->on_change_arg : NULL;
    if (window != NULL) {
        window->state.n_attached--;
        if (remote->is_writing) {
            window->state.n_writing--;
            window->state.n_lost++;
            window->state.lost = remote->self;
            (void)pthread_cond_broadcast(&remote->loop->changed);
        }
    }
    (void)pthread_mutex_unlock(&remote->loop->lock);
    call_on_change(on_change, on_change_arg);
    heft__free(remote);
}

static heft_status_t begin(heft__remote_t *base, heft__token_t token, int64_t deadline_mono_ns,
                           heft_error_t *err)
{
    (void)deadline_mono_ns; /* nothing to wait for */
    loop_remote_t *remote = (loop_remote_t *)base;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&remote->loop->lock);
    loop_window_t *window = alive_locked(remote);
    if (window == NULL) {
        status = lost(remote, err);
    } else if (!window->is_armed || window->token.epoch != token.epoch ||
               window->token.seq != token.seq) {
        status = heft__error_set(err, HEFT_ERR_STALE,
                                 "loop: the receiver is not armed for round %llu.%llu",
                                 (unsigned long long)token.epoch, (unsigned long long)token.seq);
    } else if (window->rx != NULL && heft__chunk_rx_begin(window->rx, err) != HEFT_OK) {
        status = HEFT_ERR_PROTOCOL;
    } else {
        window->state.n_writing++;
        remote->is_writing = true;
        remote->generation = window->generation;
        remote->n_held = 0;
    }
    (void)pthread_mutex_unlock(&remote->loop->lock);
    return status;
}

static heft_status_t check(heft__remote_t *base, heft_error_t *err)
{
    loop_remote_t *remote = (loop_remote_t *)base;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&remote->loop->lock);
    const loop_window_t *window = alive_locked(remote);
    if (window == NULL) {
        status = lost(remote, err);
    } else if (remote->is_writing && window->generation != remote->generation) {
        status = heft__error_set(err, HEFT_ERR_CANCELED, "loop: the receiver ended the round");
    }
    (void)pthread_mutex_unlock(&remote->loop->lock);
    return status;
}

/* The sender that ends last answers for what has not come. */
static heft_status_t check_arrived_locked(const loop_window_t *window, heft_error_t *err)
{
    if (window->rx == NULL) {
        return HEFT_OK;
    }
    if (heft__chunk_rx_has_failed(window->rx)) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "loop: the receiver has refused a chunk");
    }
    const bool is_last = window->state.n_writing == 0 && heft__chunk_rx_has_all_senders(window->rx);
    return is_last ? heft__chunk_rx_check_whole(window->rx, err) : HEFT_OK;
}

static heft_status_t end(heft__remote_t *base, heft__token_t token, bool completed,
                         heft_error_t *err)
{
    (void)token;
    loop_remote_t *remote = (loop_remote_t *)base;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&remote->loop->lock);
    loop_window_t *window = find_locked(remote->loop, remote->id);
    void (*on_change)(void *) = window != NULL ? window->on_change : NULL;
    void *on_change_arg = window != NULL ? window->on_change_arg : NULL;
    if (window == NULL) {
        status = lost(remote, err);
    } else if (remote->is_writing) {
        window->state.n_writing--;
        if (completed) { /* as it says: see whether it is so */
            status = check_arrived_locked(window, err);
        }
        if (completed && status == HEFT_OK) {
            window->state.n_done++;
        } else {
            window->state.n_failed++;
            window->state.failed = remote->self;
        }
        (void)pthread_cond_broadcast(&remote->loop->changed);
    }
    remote->is_writing = false;
    (void)pthread_mutex_unlock(&remote->loop->lock);
    call_on_change(on_change, on_change_arg);
    return status;
}

static heft__loop_fault_t take_fault_locked(heft__loop_t *loop)
{
    if (loop->fault == HEFT__LOOP_NONE || loop->fault_after-- > 0) {
        return HEFT__LOOP_NONE;
    }
    heft__loop_fault_t fault = loop->fault;
    loop->fault = fault == HEFT__LOOP_CORRUPT_AGAIN ? HEFT__LOOP_CORRUPT : HEFT__LOOP_NONE;
    loop->fault_after = 0;
    loop->was_reached = true;
    return fault;
}

static heft_status_t hold_locked(loop_remote_t *remote, const parcel_t *parcel, heft_error_t *err)
{
    held_put_t *put = heft__malloc(sizeof *put + (size_t)parcel->bytes);
    if (put == NULL) {
        return heft__error_nomem(err, (size_t)parcel->bytes);
    }
    *put = (held_put_t){ .next = remote->loop->held,
                         .id = remote->id,
                         .generation = remote->generation,
                         .offset = parcel->offset,
                         .bytes = parcel->bytes,
                         .has_header = parcel->header != NULL };
    memcpy(put->data, parcel->data, (size_t)parcel->bytes);
    if (parcel->header != NULL) {
        memcpy(put->header, parcel->header, sizeof put->header);
    }
    remote->loop->held = put;
    remote->n_held++;
    return HEFT_OK;
}

/* ---- arrival ---- */

static heft_status_t land_locked(const loop_window_t *window, const parcel_t *parcel,
                                 heft_error_t *err)
{
    if (parcel->header != NULL) {
        return heft__chunk_rx_take(window->rx, window->base.ptr, parcel->header, parcel->data,
                                   (size_t)parcel->bytes, err);
    }
    memcpy(window->base.ptr + parcel->offset, parcel->data, (size_t)parcel->bytes);
    return HEFT_OK;
}

static heft_status_t land_corrupt_locked(const loop_window_t *window, const parcel_t *parcel,
                                         heft_error_t *err)
{
    uint8_t *copy = heft__malloc((size_t)parcel->bytes + 1);
    if (copy == NULL) {
        return heft__error_nomem(err, (size_t)parcel->bytes + 1);
    }
    memcpy(copy, parcel->data, (size_t)parcel->bytes);
    copy[parcel->bytes / 2] ^= 0x10;
    parcel_t other = *parcel;
    other.data = copy;
    heft_status_t status = land_locked(window, &other, err);
    heft__free(copy);
    return status;
}

/* A chunk whose header is that of the next one of its route. */
static heft_status_t land_astray_locked(const loop_window_t *window, const parcel_t *parcel,
                                        heft_error_t *err)
{
    heft__chunk_header_t header;
    uint8_t bytes[HEFT__CHUNK_HEADER_BYTES];
    parcel_t other = *parcel;
    if (parcel->header != NULL &&
        heft__chunk_decode(parcel->header, sizeof bytes, window->crc, &header, NULL) == HEFT_OK) {
        header.index++;
        header.offset += header.length;
        heft__chunk_encode(&header, window->crc, bytes);
        other.header = bytes;
    }
    return land_locked(window, &other, err);
}

static void swap_bytes(uint8_t *a, uint8_t *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint8_t kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* The first neighbours, elements of two bytes, that differ. */
static bool swap_elements(uint8_t *at, int64_t n)
{
    int64_t i = 0;
    while (i + 4 <= n && memcmp(at + i, at + i + 2, 2) == 0) {
        i += 2;
    }
    if (i + 4 <= n) {
        swap_bytes(at + i, at + i + 2, 2);
    }
    return i + 4 <= n;
}

static bool zero(uint8_t *at, int64_t n)
{
    bool was_zero = true;
    for (int64_t i = 0; i < n; i++) {
        was_zero = was_zero && at[i] == 0;
        at[i] = 0;
    }
    return !was_zero;
}

/* What no checksum of the way can see: the bytes change once they are there. Says whether any did:
 * zeros that are swapped are no fault. */
static bool damage(uint8_t *at, int64_t n, heft__loop_fault_t fault)
{
    const int64_t half = n / 2;
    const bool halves_differ = memcmp(at, at + half, (size_t)half) != 0;
    switch ((int)fault) {
    case HEFT__LOOP_SWAP_HALVES:
        swap_bytes(at, at + half, half);
        return halves_differ;
    case HEFT__LOOP_SWAP_ELEMENTS:
        return swap_elements(at, n);
    case HEFT__LOOP_ZERO:
        return zero(at, n);
    case HEFT__LOOP_DOUBLE:
        memcpy(at + half, at, (size_t)half);
        return halves_differ;
    default:
        return true;
    }
}

static heft_status_t deliver_locked(loop_remote_t *remote, loop_window_t *window,
                                    const parcel_t *parcel, heft_error_t *err)
{
    heft_status_t status;
    const heft__loop_fault_t fault = take_fault_locked(remote->loop);
    switch ((int)fault) {
    case HEFT__LOOP_FAIL:
        return heft__error_set(err, HEFT_ERR_IO, "loop: put of %lld bytes at %lld failed",
                               (long long)parcel->bytes, (long long)parcel->offset);
    case HEFT__LOOP_DROP:
        return HEFT_OK;
    case HEFT__LOOP_HOLD:
        return hold_locked(remote, parcel, err);
    case HEFT__LOOP_DIE:
        window->is_dead = true;
        return lost(remote, err);
    case HEFT__LOOP_CORRUPT:
    case HEFT__LOOP_CORRUPT_AGAIN:
        return land_corrupt_locked(window, parcel, err);
    case HEFT__LOOP_REPEAT:
        status = land_locked(window, parcel, err);
        return status == HEFT_OK ? land_locked(window, parcel, err) : status;
    case HEFT__LOOP_STRAY:
        return land_astray_locked(window, parcel, err);
    default:
        break;
    }
    status = land_locked(window, parcel, err);
    if (status == HEFT_OK && !damage(window->base.ptr + parcel->offset, parcel->bytes, fault)) {
        remote->loop->fault = fault; /* the next put's, then */
        remote->loop->was_reached = false;
    }
    return status;
}

static heft_status_t transfer(heft__remote_t *base, const parcel_t *parcel, heft_error_t *err)
{
    loop_remote_t *remote = (loop_remote_t *)base;
    heft_status_t status;
    (void)pthread_mutex_lock(&remote->loop->lock);
    loop_window_t *window = alive_locked(remote);
    if (window == NULL) {
        status = lost(remote, err);
    } else if (!remote->is_writing || window->generation != remote->generation) {
        status =
            heft__error_set(err, HEFT_ERR_STALE, "loop: put of %lld bytes at %lld outside a round",
                            (long long)parcel->bytes, (long long)parcel->offset);
    } else if ((window->rx != NULL) != (parcel->header != NULL)) {
        status = heft__error_set(err, HEFT_ERR_PROTOCOL, "loop: the receiver expects %s",
                                 window->rx != NULL ? "chunks" : "plain puts");
    } else {
        status = deliver_locked(remote, window, parcel, err);
    }
    (void)pthread_mutex_unlock(&remote->loop->lock);
    return status;
}

static heft_status_t put(heft__remote_t *base, int64_t offset, const void *data, int64_t bytes,
                         heft_error_t *err)
{
    const parcel_t parcel = { .offset = offset, .data = data, .bytes = bytes };
    return transfer(base, &parcel, err);
}

/* The offset is for faults and messages: what counts is the header. */
static heft_status_t send_chunk(heft__remote_t *base, const uint8_t *header, const void *data,
                                int64_t bytes, int64_t deadline_mono_ns, heft_error_t *err)
{
    (void)deadline_mono_ns; /* nothing to wait for */
    const parcel_t parcel = { .header = header,
                              .offset = (int64_t)heft__get_le64(header + 40),
                              .data = data,
                              .bytes = bytes };
    return transfer(base, &parcel, err);
}

static uint32_t count_held_locked(const loop_remote_t *remote)
{
    uint32_t n = 0;
    for (const held_put_t *put = remote->loop->held; put != NULL; put = put->next) {
        n += put->id == remote->id && put->generation == remote->generation;
    }
    return n;
}

static heft_status_t flush(heft__remote_t *base, int64_t deadline_mono_ns, heft_error_t *err)
{
    loop_remote_t *remote = (loop_remote_t *)base;
    heft_status_t status = HEFT_OK;
    (void)pthread_mutex_lock(&remote->loop->lock);
    while (count_held_locked(remote) > 0 && status == HEFT_OK) {
        if (!wait_changed_locked(remote->loop, deadline_mono_ns)) {
            status = heft__error_set(err, HEFT_ERR_TIMEOUT,
                                     "loop: %u puts have not arrived before the deadline",
                                     count_held_locked(remote));
        }
    }
    (void)pthread_mutex_unlock(&remote->loop->lock);
    return status;
}

static void window_count_arrived(heft__window_t *base, uint32_t first, uint32_t n,
                                 uint64_t *chunks_out)
{
    const loop_window_t *window = (loop_window_t *)base;
    (void)pthread_mutex_lock(&window->loop->lock);
    for (uint32_t i = 0; i < n; i++) {
        chunks_out[i] =
            window->rx != NULL ? heft__chunk_rx_count_arrived(window->rx, first + i) : 0;
    }
    (void)pthread_mutex_unlock(&window->loop->lock);
}

static const heft__transport_ops_t loop_ops = {
    .size = sizeof(heft__transport_ops_t),
    .name = "loop",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .window_encode = window_encode,
    .window_arm = window_arm,
    .window_query = window_query,
    .window_fence = window_fence,
    .attach = attach,
    .close = close_remote,
    .begin = begin,
    .check = check,
    .end = end,
    .put = put,
    .flush = flush,
    .window_expect = window_expect,
    .send = send_chunk,
    .window_count_arrived = window_count_arrived,
};

/* ---- the hub ---- */

heft_status_t heft__loop_create(bool direct, heft__loop_t **loop_out, heft_error_t *err)
{
    heft__loop_t *loop = heft__calloc(1, sizeof *loop);
    if (loop == NULL) {
        return heft__error_nomem(err, sizeof *loop);
    }
    (void)pthread_mutex_init(&loop->lock, NULL);
    (void)heft__cond_init(&loop->changed);
    loop->base.ops = &loop_ops;
    loop->direct = direct;
    *loop_out = loop;
    return HEFT_OK;
}

static void drop_held_locked(heft__loop_t *loop, uint32_t *n_landed, uint32_t *n_refused)
{
    while (loop->held != NULL) {
        held_put_t *held = loop->held;
        loop->held = held->next;
        const loop_window_t *window = find_locked(loop, held->id);
        if (window != NULL && window->generation == held->generation && !window->is_dead) {
            const parcel_t parcel = { .header = held->has_header ? held->header : NULL,
                                      .offset = held->offset,
                                      .data = held->data,
                                      .bytes = held->bytes };
            *n_landed += land_locked(window, &parcel, NULL) == HEFT_OK;
        } else {
            ++*n_refused;
        }
        heft__free(held);
    }
    (void)pthread_cond_broadcast(&loop->changed);
}

void heft__loop_release(heft__loop_t *loop, uint32_t *n_landed_out, uint32_t *n_refused_out)
{
    *n_landed_out = 0;
    *n_refused_out = 0;
    (void)pthread_mutex_lock(&loop->lock);
    drop_held_locked(loop, n_landed_out, n_refused_out);
    (void)pthread_mutex_unlock(&loop->lock);
}

void heft__loop_destroy(heft__loop_t *loop)
{
    if (loop == NULL) {
        return;
    }
    uint32_t n_landed;
    uint32_t n_refused;
    heft__loop_release(loop, &n_landed, &n_refused);
    (void)pthread_cond_destroy(&loop->changed);
    (void)pthread_mutex_destroy(&loop->lock);
    heft__free(loop);
}

heft__transport_t *heft__loop_get_transport(heft__loop_t *loop)
{
    return &loop->base;
}

void heft__loop_set_fault(heft__loop_t *loop, heft__loop_fault_t fault, int64_t after)
{
    (void)pthread_mutex_lock(&loop->lock);
    loop->fault = fault;
    loop->fault_after = after;
    loop->was_reached = false;
    (void)pthread_mutex_unlock(&loop->lock);
}

bool heft__loop_was_reached(heft__loop_t *loop)
{
    (void)pthread_mutex_lock(&loop->lock);
    bool was_reached = loop->was_reached;
    (void)pthread_mutex_unlock(&loop->lock);
    return was_reached;
}

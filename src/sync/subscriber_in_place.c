/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination that receives in place: the flip of sync/in_place.h. It has no way back: whatever
 * fails after the first part is armed leaves parameters that are not to be served.
 */
#include "sync/in_place.h"
#include "sync/subscriber_private.h"

#include <string.h>

static const int64_t quiet_ns = 2000000000;
/* A source that is alive says itself why it stopped, and says it better: it is given the time to.
 */
static const int64_t hearsay_ns = 1000000000;
/* One that is gone comes back within this, if it only connects anew, or not at all. */
static const int64_t gone_ns = 5000000000;
static const int64_t look_ns = 10000000; /* a change that was missed costs no more than this */

/* Since when something looks like the end of it; 0: it does not. */
typedef struct signs {
    int64_t failed_mono_ns;
    int64_t gone_mono_ns;
} signs_t;

/* A flip in progress. */
typedef struct receiver {
    heft_subscriber_t *sub;
    const heft__order_t *order;
    int64_t deadline_mono_ns;
    uint32_t part; /* the next one */
    bool is_known; /* the coordinator has heard that the buffer is armed */
} receiver_t;

static bool is_sure(bool holds, int64_t for_ns, int64_t *since_mono_ns)
{
    const int64_t now = heft__clock_mono_ns();
    *since_mono_ns = !holds ? 0 : *since_mono_ns != 0 ? *since_mono_ns : now;
    return holds && now - *since_mono_ns >= for_ns;
}

/* What the window knows of this part, which so many sources send. HEFT_IN_PROGRESS: not all of it
 * is there. */
static heft_status_t look(heft_subscriber_t *sub, uint32_t n_senders, signs_t *signs,
                          heft_error_t *err)
{
    uint32_t n_all = 0;
    heft__window_state_t state;
    const heft__delivery_t delivery = heft__work_delivery(&sub->work);
    (void)heft__delivery_get_senders(&delivery, &n_all);
    heft__window_query(sub->window, &state);
    if (state.n_lost > 0) {
        (void)heft__subscriber_lost_error(sub, &state, err);
        return HEFT_ERR_PEER;
    }
    if (is_sure(state.n_failed > 0 && state.n_writing == 0, hearsay_ns, &signs->failed_mono_ns)) {
        (void)heft__subscriber_stopped_error(sub, &state, err);
        return HEFT_ERR_CANCELED;
    }
    if (is_sure(state.n_attached < n_all && state.n_done < n_senders, gone_ns,
                &signs->gone_mono_ns)) {
        return heft__error_set(err, HEFT_ERR_PEER, "%s source is not connected any more",
                               n_all > 1 ? "a" : "the");
    }
    return state.n_done >= n_senders && state.n_failed == 0 && state.n_writing == 0
               ? HEFT_OK
               : HEFT_IN_PROGRESS;
}

/* The coordinator orders the flip anew, with no time left, when it has lost the source. */
static bool is_in_vain(heft_subscriber_t *sub, const heft__order_t *order)
{
    int64_t left_ms = 0;
    return heft__member_take_renewal(sub->member, order, &left_ms) && left_ms == 0;
}

static heft_status_t await_part(const receiver_t *r, uint32_t n_senders, heft_error_t *err)
{
    heft_subscriber_t *sub = r->sub;
    signs_t signs = { 0, 0 };
    for (;;) {
        heft_status_t status = look(sub, n_senders, &signs, err);
        const int64_t now = heft__clock_mono_ns();
        if (status != HEFT_IN_PROGRESS) {
            return status;
        }
        if (is_in_vain(sub, r->order)) {
            return heft__error_set(err, HEFT_ERR_PEER,
                                   "the source is silent, and part %u of the new version is not "
                                   "here",
                                   r->part);
        }
        if (now >= r->deadline_mono_ns) {
            return heft__error_set(err, HEFT_ERR_TIMEOUT,
                                   "part %u of the new version did not arrive before the deadline",
                                   r->part);
        }
        const int64_t until = heft__min_i64(r->deadline_mono_ns, now + look_ns);
        (void)pthread_mutex_lock(&sub->lock);
        (void)heft__cond_wait_until(&sub->arrived_part, &sub->lock, until);
        (void)pthread_mutex_unlock(&sub->lock);
    }
}

/* The next part: be ready for it, and wait until all that send something of it have ended. Where
 * bytes come in chunks, the window knows which. */
static heft_status_t take_part(receiver_t *r, uint32_t n_senders, const heft__expect_t *expect,
                               heft_error_t *err)
{
    heft_subscriber_t *sub = r->sub;
    heft_status_t status = sub->window->ops->window_expect != NULL
                               ? heft__window_expect(sub->window, expect, err)
                               : HEFT_OK;
    if (status != HEFT_OK) {
        return status;
    }
    heft__window_arm(sub->window, heft__part_token(r->order->round, r->part));
    if (!r->is_known) {
        heft__member_wake(sub->member); /* it says so: the sources may start */
        r->is_known = true;
    }
    return await_part(r, n_senders, err);
}

/* Lists of shares, side by side. */
static void add_digests(heft_subscriber_t *sub, uint32_t n_lists)
{
    const uint8_t *at = sub->window->ptr;
    const uint32_t n_params = sub->work.layout.n_params;
    for (uint32_t k = 0; k < n_lists * n_params; k++, at += 8) {
        uint64_t digest = 0;
        for (int b = 7; b >= 0; b--) {
            digest = digest << 8 | at[b];
        }
        sub->work.expected[k % n_params] ^= digest;
    }
}

/* Parameters [first, end), from all that send something of them. */
static heft_status_t receive_part(receiver_t *r, uint32_t first, uint32_t end, heft_error_t *err)
{
    heft_subscriber_t *sub = r->sub;
    heft__packing_t packing;
    bool sends = false;
    const heft__delivery_t delivery = heft__work_delivery(&sub->work);
    const uint32_t n_senders = heft__delivery_count_part(&delivery, first, end, UINT32_MAX, &sends);
    if (n_senders == 0) {
        return HEFT_OK; /* no piece writes any of it */
    }
    heft_status_t status = heft__packing_init(&delivery, first, end, UINT32_MAX, &packing, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = take_part(r, n_senders, &packing.expect, err);
    if (status == HEFT_OK) {
        heft__staging_t moved = sub->work.layout;
        moved.sizes = sub->work.moved;
        heft__subscriber_keep_masked(sub, first, end, sub->window->ptr);
        heft__staging_copy_part(&moved, first, end, sub->window->ptr, sub->homes, sub->n_threads);
    }
    heft__packing_fini(&packing);
    return status;
}

static heft_status_t receive_digests(receiver_t *r, heft_error_t *err)
{
    heft__work_t *work = &r->sub->work;
    const heft__delivery_t delivery = heft__work_delivery(work);
    const heft__digest_slots_t slots = heft__digest_slots(&delivery, r->sub->window->bytes);
    heft_status_t status = HEFT_OK;
    memset(work->expected, 0, work->layout.n_entries * sizeof *work->expected);
    for (uint32_t k = 0; k < slots.n_parts && status == HEFT_OK; k++, r->part++) {
        const uint32_t n_lists = heft__digest_slots_count(&slots, k);
        heft__route_t *routes = NULL;
        heft__expect_t expect;
        status = heft__digest_slots_expect(&slots, k, &routes, &expect, err);
        if (status == HEFT_OK) {
            status = take_part(r, n_lists, &expect, err);
        }
        if (status == HEFT_OK) {
            add_digests(r->sub, n_lists);
        }
        heft__free(routes);
    }
    return status;
}

/* All parts, then the digests. */
static heft_status_t receive_parts(receiver_t *r, heft_error_t *err)
{
    const heft__staging_t *layout = &r->sub->work.layout;
    for (uint32_t first = 0; first < layout->n_params; r->part++) {
        const uint32_t end = heft__staging_part_end(layout, first, r->sub->window->bytes);
        heft_status_t status = receive_part(r, first, end, err);
        if (status != HEFT_OK) {
            return status;
        }
        first = end;
    }
    return receive_digests(r, err);
}

static void set_receiving(heft_subscriber_t *sub, bool is_receiving)
{
    (void)pthread_mutex_lock(&sub->lock);
    sub->is_receiving = is_receiving;
    (void)pthread_mutex_unlock(&sub->lock);
}

heft_status_t heft__subscriber_receive(heft_subscriber_t *sub, const heft__order_t *order,
                                       bool *stopped_out, heft_error_t *err)
{
    receiver_t r = { .sub = sub,
                     .order = order,
                     .deadline_mono_ns =
                         heft__clock_mono_ns() + heft__order_left_ns(order, INT64_MAX / 4) };
    *stopped_out = true;
    heft_status_t status = heft__subscriber_meet_senders(sub, order, err);
    set_receiving(sub, true);
    if (status == HEFT_OK) {
        status = receive_parts(&r, err);
    }
    set_receiving(sub, false);
    if (status == HEFT_OK) {
        return HEFT_OK;
    }
    bool replaced = false;
    heft_error_t late = HEFT_ERROR_INIT;
    heft_status_t fenced =
        heft__window_fence(sub->window, heft__clock_mono_ns() + quiet_ns, &replaced, &late);
    *stopped_out = fenced == HEFT_OK || fenced == HEFT_ERR_NOSPACE;
    if (replaced && heft__subscriber_export(sub, &late) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "subscriber", "%s: %s", heft__member_get_id(sub->member),
                  late.message);
    }
    return status;
}

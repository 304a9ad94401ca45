/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination that receives in place: the flip of sync/in_place.h. It has no way back: whatever
 * fails after the first part is armed leaves parameters that are not to be served.
 */
#include "sync/in_place.h"
#include "sync/subscriber_private.h"

#include <string.h>
#include <time.h>

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

static bool is_sure(bool holds, int64_t for_ns, int64_t *since_mono_ns)
{
    const int64_t now = heft__clock_mono_ns();
    *since_mono_ns = !holds ? 0 : *since_mono_ns != 0 ? *since_mono_ns : now;
    return holds && now - *since_mono_ns >= for_ns;
}

/* What the window knows of this part. HEFT_IN_PROGRESS: not all of it is there. */
static heft_status_t look(heft_subscriber_t *sub, signs_t *signs, heft_error_t *err)
{
    heft__window_state_t state;
    heft__window_query(sub->window, &state);
    if (state.n_lost > 0) {
        return heft__error_set(err, HEFT_ERR_PEER, "the source, process %d, died while sending",
                               (int)state.lost_pid);
    }
    if (is_sure(state.n_failed > 0 && state.n_writing == 0, hearsay_ns, &signs->failed_mono_ns)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "the source stopped before the end");
    }
    if (is_sure(state.n_attached == 0 && state.n_done == 0, gone_ns, &signs->gone_mono_ns)) {
        return heft__error_set(err, HEFT_ERR_PEER, "the source is not connected any more");
    }
    return state.n_done > 0 && state.n_failed == 0 && state.n_writing == 0 ? HEFT_OK
                                                                           : HEFT_IN_PROGRESS;
}

/* The coordinator orders the flip anew, with no time left, when it has lost the source. */
static bool is_in_vain(heft_subscriber_t *sub, const heft__order_t *order)
{
    int64_t left_ms = 0;
    return heft__member_take_renewal(sub->member, order, &left_ms) && left_ms == 0;
}

static heft_status_t await_part(heft_subscriber_t *sub, const heft__order_t *order, uint32_t part,
                                int64_t deadline_mono_ns, heft_error_t *err)
{
    signs_t signs = { 0, 0 };
    for (;;) {
        heft_status_t status = look(sub, &signs, err);
        const int64_t now = heft__clock_mono_ns();
        if (status != HEFT_IN_PROGRESS) {
            return status;
        }
        if (is_in_vain(sub, order)) {
            return heft__error_set(err, HEFT_ERR_PEER,
                                   "the source is silent, and part %u of the new version is not "
                                   "here",
                                   part);
        }
        if (now >= deadline_mono_ns) {
            return heft__error_set(err, HEFT_ERR_TIMEOUT,
                                   "part %u of the new version did not arrive before the deadline",
                                   part);
        }
        const int64_t until = heft__min_i64(deadline_mono_ns, now + look_ns);
        const struct timespec ts = { .tv_sec = (time_t)(until / 1000000000),
                                     .tv_nsec = (long)(until % 1000000000) };
        (void)pthread_mutex_lock(&sub->lock);
        (void)pthread_cond_timedwait(&sub->arrived_part, &sub->lock, &ts);
        (void)pthread_mutex_unlock(&sub->lock);
    }
}

static void read_digests(heft_subscriber_t *sub)
{
    const uint8_t *at = sub->window->ptr;
    for (uint32_t i = 0; i < sub->work.layout.n_params; i++, at += 8) {
        uint64_t digest = 0;
        for (int b = 7; b >= 0; b--) {
            digest = digest << 8 | at[b];
        }
        sub->work.expected[i] = digest;
    }
}

/* Ready for this part; where bytes come in chunks, the window knows which. */
static heft_status_t arm(heft_subscriber_t *sub, const heft__order_t *order, uint32_t part,
                         uint32_t first, uint32_t end, heft_error_t *err)
{
    if (sub->window->ops->window_expect != NULL) {
        heft__route_t route;
        heft__expect_t expect;
        heft__staging_expect_part(heft__staging_part_bytes(&sub->work.layout, first, end), &route,
                                  &expect);
        heft_status_t status = heft__window_expect(sub->window, &expect, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    heft__window_arm(sub->window, heft__part_token(order->round, part));
    if (part == 0) {
        heft__member_wake(sub->member); /* it says so: the source may start */
    }
    return HEFT_OK;
}

/* All parts, then the digests. */
static heft_status_t receive_parts(heft_subscriber_t *sub, const heft__order_t *order,
                                   int64_t deadline_mono_ns, heft_error_t *err)
{
    heft__staging_t moved = sub->work.layout;
    moved.sizes = sub->work.moved;
    uint32_t part = 0;
    uint32_t first = 0;
    while (first < sub->work.layout.n_params) {
        const uint32_t end = heft__staging_part_end(&sub->work.layout, first, sub->window->bytes);
        heft_status_t status = arm(sub, order, part, first, end, err);
        if (status == HEFT_OK) {
            status = await_part(sub, order, part, deadline_mono_ns, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        heft__subscriber_keep_masked(sub, first, end, sub->window->ptr);
        heft__staging_copy_part(&moved, first, end, sub->window->ptr, sub->homes, sub->n_threads);
        first = end;
        part++;
    }
    heft_status_t status = arm(sub, order, part, first, first, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = await_part(sub, order, part, deadline_mono_ns, err);
    if (status == HEFT_OK) {
        read_digests(sub);
    }
    return status;
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
    int64_t left_ns = INT64_MAX / 4;
    (void)heft__mul(order->left_ms, 1000000, &left_ns);
    const int64_t deadline = heft__clock_mono_ns() + heft__min_i64(left_ns, INT64_MAX / 4);
    *stopped_out = true;
    set_receiving(sub, true);
    heft_status_t status = receive_parts(sub, order, deadline, err);
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

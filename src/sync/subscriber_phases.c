/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a destination does in each phase. Every function leaves its outcome in the report; none
 * returns an error, because the coordinator is the one who acts on it.
 *
 * Order of trust: what arrived in staging counts only after verify; the live parameters are
 * written in flip alone; version and digests change together, after the last byte.
 */
#include "sync/subscriber_private.h"

#include <stdio.h>
#include <string.h>

#include "sync/findings.h"
#include "sync/holders.h"

static const int64_t told_ns = 1000000000; /* for the coordinator to hear of a failure */
static const int64_t quiet_ns =
    2000000000; /* a sender looks at its socket every few milliseconds */

static heft__member_state_t get_state(heft_subscriber_t *sub)
{
    heft__member_state_t state = heft__member_lock(sub->member)->state;
    heft__member_unlock(sub->member, false);
    return state;
}

static int64_t deadline_of(const heft__order_t *order, int64_t at_most_ns)
{
    return heft__clock_mono_ns() + heft__order_left_ns(order, at_most_ns);
}

/* ---- preflight ---- */

/* Staging has another place. In a round that fails the coordinator is to hear why before it hears
 * of that, which it would take for the cause. */
static void export_when_told(heft_subscriber_t *sub)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__member_tell(sub->member, heft__clock_mono_ns() + told_ns);
    if (heft__subscriber_export(sub, &err) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "subscriber", "%s: %s", heft__member_get_id(sub->member),
                  err.message);
    }
}

static void do_preflight(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft__problems_t problems = { 0 };
    heft_error_t err = HEFT_ERROR_INIT;
    bool has_moved = false;
    heft_status_t status = heft__subscriber_plan(sub, order, &problems, &has_moved, &err);
    if (status == HEFT_OK && has_moved) { /* this round was begun for the old endpoint */
        status = heft__error_set(&err, HEFT_ERR_STALE,
                                 "staging has a new place, of %lld bytes: push again",
                                 (long long)sub->window->bytes);
    }
    if (status != HEFT_OK && heft__problems_total(&problems) == 0) {
        (void)!heft__problems_add(&problems, heft__problem_kind_of(status), NULL, "%s",
                                  err.message);
    }
    heft__report_t *report = heft__member_lock(sub->member);
    heft__problems_fini(&report->problems);
    report->problems = problems;
    report->plan[0] = '\0';
    if (status == HEFT_OK) {
        memcpy(report->plan, sub->work.digest, sizeof report->plan);
    }
    heft__member_unlock(sub->member, false);
    heft__member_conclude(sub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          HEFT__STATE_IDLE, &err, NULL);
    if (has_moved && sub->window != NULL) {
        export_when_told(sub);
    }
}

/* ---- stage ---- */

bool heft__subscriber_is_fed_by(const heft__order_t *order)
{
    static const char prefix[] = "destination.";
    return order->n_peers > 0 && strncmp(order->peers[0].id, prefix, sizeof prefix - 1) == 0;
}

static uint32_t count_senders(const heft_subscriber_t *sub, const heft__order_t *order)
{
    const heft__delivery_t delivery = heft__work_delivery(&sub->work);
    uint32_t n = 1;
    if (!heft__subscriber_is_fed_by(order)) {
        (void)heft__delivery_get_senders(&delivery, &n);
    }
    return n;
}

static const char *name_of_entry(const void *arg, uint32_t route)
{
    return heft__delivery_get_name(arg, route);
}

/* From one that feeds: everything. */
static heft_status_t expect_feed(heft_subscriber_t *sub, heft_error_t *err)
{
    heft__route_t *routes = NULL;
    heft__expect_t expect;
    heft_status_t status =
        heft__staging_expect(&sub->work.layout, sub->work.routes, 0, &routes, &expect, err);
    if (status == HEFT_OK) {
        const heft__delivery_t delivery = heft__work_delivery(&sub->work);
        expect.name_of = name_of_entry;
        expect.name_arg = &delivery;
        status = heft__window_expect(sub->window, &expect, err);
    }
    heft__free(routes);
    return status;
}

/* Where bytes come in chunks, the window knows which. */
static heft_status_t expect_chunks(heft_subscriber_t *sub, const heft__order_t *order,
                                   heft_error_t *err)
{
    if (sub->window->ops->window_expect == NULL) {
        return HEFT_OK;
    }
    heft_status_t status = expect_feed(sub, err); /* also lets go of the last round's packing */
    if (status != HEFT_OK || heft__subscriber_is_fed_by(order)) {
        return status;
    }
    const heft__delivery_t delivery = heft__work_delivery(&sub->work);
    heft__packing_fini(&sub->packing);
    status = heft__packing_init(&delivery, 0, sub->work.layout.n_entries, UINT32_MAX, &sub->packing,
                                err);
    return status == HEFT_OK ? heft__window_expect(sub->window, &sub->packing.expect, err) : status;
}

static void do_stage(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__window_state_t state;
    memset(&state, 0, sizeof state);
    if (sub->window != NULL) {
        heft__window_query(sub->window, &state);
    }
    const bool is_ready = sub->window != NULL && sub->window->ptr != NULL && state.n_writing == 0;
    if (sub->work.plan == NULL || strcmp(order->plan, sub->work.digest) != 0) {
        (void)heft__error_set(&err, HEFT_ERR_STATE, "plan digest %.16s ordered, %.16s here",
                              order->plan, sub->work.plan != NULL ? sub->work.digest : "none");
    } else if (!is_ready) {
        (void)heft__error_set(&err, HEFT_ERR_STATE, "staging is not ready: %u earlier writers",
                              state.n_writing);
    }
    if (err.status != HEFT_OK || !is_ready) {
        heft__member_conclude(sub->member, HEFT__RESULT_FAILED, HEFT__STATE_IDLE, &err, NULL);
        return;
    }
    heft__relay_t *relay = NULL;
    sub->stage_until_ns = deadline_of(order, INT64_MAX / 2);
    if (heft__subscriber_meet_senders(sub, order, &err) != HEFT_OK ||
        expect_chunks(sub, order, &err) != HEFT_OK ||
        heft__subscriber_make_relay(sub, order, sub->stage_until_ns, &relay, &err) != HEFT_OK) {
        heft__member_conclude(sub->member, HEFT__RESULT_FAILED, HEFT__STATE_IDLE, &err, NULL);
        return;
    }
    heft__window_arm(sub->window, (heft__token_t){ .epoch = (uint64_t)order->round.epoch,
                                                   .seq = (uint64_t)order->round.seq });
    sub->is_fed = heft__subscriber_is_fed_by(order) && !order->relayed;
    heft__report_t *report = heft__member_lock(sub->member);
    memset(sub->relayed_by, 0, sizeof sub->relayed_by);
    if (order->relayed && order->n_peers > 0) {
        memcpy(sub->relayed_by, order->peers[0].id, sizeof sub->relayed_by);
    }
    sub->relay = relay;
    sub->is_armed = true;
    sub->failed_mono_ns = 0;
    sub->n_senders = count_senders(sub, order);
    report->state = HEFT__STATE_STAGING; /* still working: refresh says when it has arrived */
    heft__member_unlock(sub->member, true);
    heft__subscriber_start_relay(sub);
}

/* ---- verify ---- */

/* Shares of one sender. *sender_out: who it is; HEFT_ERR_NOT_FOUND: it sent nothing of our plan. */
static heft_status_t add_shares(heft_subscriber_t *sub, const char *digest, uint32_t *sender_out,
                                heft_error_t *err)
{
    const char *plan = sub->work.digest;
    heft__digest_set_t set = { .n_params = 0 };
    char *text = NULL;
    size_t n = 0;
    heft_status_t status = heft__member_get_object(sub->member, digest, &text, &n, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__digests_decode(text, n, plan, &set, err);
    heft__free(text);
    if (status == HEFT_OK && set.n_params != sub->work.layout.n_entries) {
        status = heft__error_set(err, HEFT_ERR_DIGEST, "%u digests for %u parameters and %u inputs",
                                 set.n_params, sub->n_params, sub->work.inputs.n);
    }
    for (uint32_t i = 0; status == HEFT_OK && i < set.n_params; i++) {
        sub->work.expected[i] ^= set.params[i];
    }
    *sender_out = set.sender;
    heft__free(set.params);
    return status;
}

/* Every sender has given its shares, and nobody else. */
static heft_status_t check_senders(const heft_subscriber_t *sub, const bool *has_given,
                                   heft_error_t *err)
{
    const heft__delivery_t delivery = heft__work_delivery(&sub->work);
    uint32_t n = 0;
    const uint32_t *senders = heft__delivery_get_senders(&delivery, &n);
    for (uint32_t s = 0, k = 0; s < sub->work.sources.n; s++) {
        const bool is_sender = k < n && senders[k] == s;
        k += is_sender;
        if (is_sender != has_given[s]) {
            char label[HEFT__SOURCE_LABEL_SIZE];
            heft__source_label(&sub->work.sources, s, label);
            return heft__error_set(err, HEFT_ERR_DIGEST, "%s %s digests for plan %.16s", label,
                                   is_sender ? "gives no" : "sends nothing and gives",
                                   sub->work.digest);
        }
    }
    return HEFT_OK;
}

/* The digests that the sources derived for our plan, shares combined. */
static heft_status_t collect_shares(heft_subscriber_t *sub, const heft__order_t *order,
                                    bool *has_given, uint32_t *n_found_out, heft_error_t *err)
{
    for (uint32_t k = 0; k < order->n_digests; k++) {
        uint32_t sender = 0;
        heft_status_t status = add_shares(sub, order->digests[k], &sender, err);
        if (status == HEFT_ERR_NOT_FOUND) {
            continue; /* that source sent nothing of this plan */
        }
        if (status == HEFT_OK && (sender >= sub->work.sources.n || has_given[sender])) {
            status =
                heft__error_set(err, HEFT_ERR_DIGEST, "digests of source %u of %u%s", sender,
                                sub->work.sources.n, sender < sub->work.sources.n ? ", twice" : "");
        }
        if (status != HEFT_OK) {
            return status;
        }
        has_given[sender] = true;
        ++*n_found_out;
    }
    return HEFT_OK;
}

static heft_status_t collect_expected(heft_subscriber_t *sub, const heft__order_t *order,
                                      heft_error_t *err)
{
    uint32_t n_found = 0;
    bool *has_given = heft__calloc(sub->work.sources.n, sizeof *has_given);
    if (has_given == NULL) {
        return heft__error_nomem(err, sub->work.sources.n);
    }
    memset(sub->work.expected, 0, sub->work.layout.n_entries * sizeof *sub->work.expected);
    heft_status_t status = collect_shares(sub, order, has_given, &n_found, err);
    if (status == HEFT_OK && n_found == 0) {
        status = heft__error_set(err, HEFT_ERR_DIGEST, "no source gives digests for plan %.16s",
                                 sub->work.digest);
    }
    if (status == HEFT_OK && !sub->is_fed) {
        status = check_senders(sub, has_given, err);
    }
    heft__free(has_given);
    for (uint32_t i = 0; i < sub->n_params; i++) {
        if (!sub->work.roles.is_direct[i]) {
            sub->work.expected[i] = 0; /* a share of what the loader writes is no digest of it */
        }
    }
    return status;
}

/* Index of the first entry whose bytes are not what they should be; n_entries: none. */
static uint32_t compare_staged(heft_subscriber_t *sub)
{
    const heft__staging_t *layout = &sub->work.layout;
    for (uint32_t i = 0; i < layout->n_entries; i++) {
        sub->work.staged[i] = sub->window->ptr + layout->offsets[i];
    }
    heft__digest_all(sub->work.staged, sub->work.moved, sub->work.masks, layout->n_entries,
                     sub->n_threads, sub->work.arrived);
    uint32_t i = 0;
    while (i < layout->n_entries && sub->work.arrived[i] == sub->work.expected[i]) {
        i++;
    }
    return i;
}

/* What has arrived, once it has been compared. */
static void note_arrival(heft_subscriber_t *sub, int64_t verify_ns)
{
    uint64_t n_pieces = 0;
    int64_t bytes = 0;
    (void)heft_plan_get_pieces(sub->work.plan, 0, &n_pieces);
    for (uint32_t i = 0; i < sub->work.layout.n_entries; i++) {
        bytes += sub->work.moved[i]; /* bounded by the bytes of staging */
    }
    bytes -= sub->work.kernels.n_bytes; /* made here */
    heft__report_t *report = heft__member_lock(sub->member);
    report->counters.bytes = bytes;
    report->counters.pieces = (int64_t)n_pieces;
    report->counters.verify_ns = verify_ns;
    heft__member_unlock(sub->member, false);
}

static void do_verify(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t start = heft__clock_mono_ns();
    uint32_t bad = sub->work.layout.n_entries;
    heft_status_t status = collect_expected(sub, order, &err);
    if (status == HEFT_OK) {
        status = heft__kernels_run(&sub->work.kernels, &sub->work.layout, &sub->work.inputs,
                                   sub->window->ptr, sub->n_threads, sub->work.expected, &err);
    }
    if (status == HEFT_OK) {
        bad = compare_staged(sub);
        if (bad < sub->work.layout.n_entries) {
            status = heft__subscriber_digest_error(sub, bad, "arrived", sub->work.arrived[bad],
                                                   sub->work.expected[bad], &err);
        }
    }
    note_arrival(sub, heft__clock_mono_ns() - start);
    heft__blame_t blame = { .peer = sub->relayed_by[0] != '\0' ? sub->relayed_by : NULL,
                            .tensor = bad < sub->n_params
                                          ? heft__subscriber_get_param_name(sub, bad)
                                      : bad < sub->work.layout.n_entries
                                          ? sub->work.inputs.items[bad - sub->n_params].name
                                          : NULL };
    heft__member_conclude(sub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          HEFT__STATE_STAGED, &err, &blame);
}

/* ---- pause, flip, resume ---- */

static void do_pause(heft_subscriber_t *sub)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = heft__subscriber_check_addresses(sub, &err);
    bool was_serving = heft_subscriber_is_serving(sub) != 0;
    if (status == HEFT_OK) {
        sub->pause_began_ns = heft__clock_mono_ns();
        heft__subscriber_set_serving(sub, false);
        if (sub->hooks.pause != NULL && sub->hooks.pause(sub->hooks.arg) != 0) {
            status = heft__subscriber_hook_error(sub, "pause", -1, &err);
            heft__subscriber_set_serving(sub, was_serving);
        }
    }
    const heft__member_state_t before = sub->in_place ? HEFT__STATE_IDLE : HEFT__STATE_STAGED;
    heft__member_conclude(sub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          status == HEFT_OK ? HEFT__STATE_PAUSED : before, &err, NULL);
}

static void publish_version(heft_subscriber_t *sub, const heft__order_t *order)
{
    (void)pthread_mutex_lock(&sub->lock);
    sub->version = order->version;
    memcpy(sub->live_plan, sub->work.digest, sizeof sub->live_plan);
    heft__free(sub->kept);
    sub->kept = NULL;
    for (uint32_t i = 0; i < sub->n_params; i++) { /* what is recorded comes later */
        sub->digests[i] = sub->work.roles.is_recorded[i] ? 0 : sub->work.expected[i];
    }
    (void)pthread_mutex_unlock(&sub->lock);
    heft__report_t *report = heft__member_lock(sub->member);
    report->live_version = order->version;
    memcpy(report->live_digest, order->source_digest, sizeof report->live_digest);
    heft__member_unlock(sub->member, false);
}

static void become_suspect(heft_subscriber_t *sub)
{
    heft__report_t *report = heft__member_lock(sub->member);
    const heft__round_id_t round = report->round;
    report->condition = HEFT__CONDITION_LIVE_SUSPECT;
    report->serving = false;
    heft__member_unlock(sub->member, false);
    (void)pthread_mutex_lock(&sub->lock);
    sub->is_suspect = true;
    sub->is_serving = false;
    sub->suspect_round = round;
    (void)pthread_mutex_unlock(&sub->lock);
}

/* Written anew as a whole, and compared. */
static void clear_suspicion(heft_subscriber_t *sub)
{
    (void)pthread_mutex_lock(&sub->lock);
    sub->is_suspect = false;
    (void)pthread_mutex_unlock(&sub->lock);
    heft__report_t *report = heft__member_lock(sub->member);
    report->condition = HEFT__CONDITION_OK;
    heft__member_unlock(sub->member, false);
}

static bool is_suspect(heft_subscriber_t *sub)
{
    (void)pthread_mutex_lock(&sub->lock);
    bool is = sub->is_suspect;
    (void)pthread_mutex_unlock(&sub->lock);
    return is;
}

/* What must hold before the first write. A flip that is tried again finds its staging as it was. */
static heft_status_t check_flip(heft_subscriber_t *sub, bool is_again, heft_error_t *err)
{
    heft_status_t status = heft__subscriber_check_addresses(sub, err);
    if (status == HEFT_OK && is_again) {
        const uint32_t bad = compare_staged(sub);
        if (bad < sub->work.layout.n_entries) {
            status = heft__subscriber_digest_error(sub, bad, "is staged", sub->work.arrived[bad],
                                                   sub->work.expected[bad], err);
        }
    }
    return status;
}

static void fail_flip(heft_subscriber_t *sub, heft__result_t result, const heft_error_t *err)
{
    become_suspect(sub);
    heft__member_conclude(sub->member, result, HEFT__STATE_PAUSED, err, NULL);
}

/* The new version into the live parameters: from staging, or as it arrives. */
static heft_status_t write_live(heft_subscriber_t *sub, const heft__order_t *order,
                                bool must_verify, bool *stopped_out, heft_error_t *err)
{
    if (sub->in_place) {
        heft_status_t status = heft__subscriber_receive(sub, order, stopped_out, err);
        if (status == HEFT_OK) {
            const int64_t start = heft__clock_mono_ns();
            status = heft__subscriber_check_live(sub, sub->work.roles.is_direct, sub->work.expected,
                                                 err);
            note_arrival(sub, heft__clock_mono_ns() - start);
        }
        if (status == HEFT_OK) {
            publish_version(sub, order);
        }
        return status;
    }
    heft__staging_t moved = sub->work.layout;
    moved.sizes = sub->work.moved;
    heft__subscriber_keep_masked(sub, 0, sub->n_params, sub->window->ptr);
    heft__staging_copy_out(&moved, sub->window->ptr, sub->homes, sub->n_threads);
    heft_status_t status = heft__subscriber_load(sub, order->version, err);
    if (status == HEFT_OK) {
        publish_version(sub, order);
    }
    return status == HEFT_OK && must_verify
               ? heft__subscriber_check_live(sub, sub->work.roles.is_direct, sub->work.expected,
                                             err)
               : status;
}

/* What the engine makes of the new version, and what of that is from now on expected. */
static heft_status_t finish_live(heft_subscriber_t *sub, const heft__order_t *order,
                                 heft_error_t *err)
{
    if (sub->hooks.flipped != NULL && sub->hooks.flipped(sub->hooks.arg, order->version) != 0) {
        return heft__subscriber_hook_error(sub, "flipped", order->version, err);
    }
    heft__subscriber_record(sub);
    return HEFT_OK;
}

/* A flip that broke off in this very round is not mended by another one. */
static bool is_beyond_repair(heft_subscriber_t *sub, const heft__order_t *order)
{
    return is_suspect(sub) && heft__round_id_equal(sub->suspect_round, order->round);
}

static void do_flip(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const bool is_again = !sub->in_place && heft__round_id_equal(sub->flip_round, order->round);
    const bool must_verify = is_again || is_suspect(sub);
    sub->flip_round = order->round;
    if (is_beyond_repair(sub, order)) {
        (void)heft__error_set(&err, HEFT_ERR_POISONED, "its flip broke off: it must be refilled");
        heft__member_conclude(sub->member, HEFT__RESULT_FAILED, HEFT__STATE_PAUSED, &err, NULL);
        return;
    }
    if (check_flip(sub, is_again, &err) != HEFT_OK) { /* nothing was written */
        heft__member_conclude(sub->member, HEFT__RESULT_REFUSED, HEFT__STATE_PAUSED, &err, NULL);
        return;
    }
    bool stopped = true;
    const int64_t start = heft__clock_mono_ns();
    if (write_live(sub, order, must_verify, &stopped, &err) != HEFT_OK) {
        fail_flip(sub, stopped ? HEFT__RESULT_FAILED : HEFT__RESULT_UNKNOWN, &err);
        return;
    }
    heft__report_t *report = heft__member_lock(sub->member);
    report->counters.flip_ns = heft__clock_mono_ns() - start;
    heft__member_unlock(sub->member, false);
    if (finish_live(sub, order, &err) != HEFT_OK) {
        fail_flip(sub, HEFT__RESULT_FAILED, &err);
        return;
    }
    if (must_verify) {
        clear_suspicion(sub);
    }
    heft__member_conclude(sub->member, HEFT__RESULT_OK, HEFT__STATE_FLIPPED, NULL, NULL);
}

/* Back in service with what is live; false: the hook failed and the engine is down. */
static bool return_to_service(heft_subscriber_t *sub, heft_error_t *err)
{
    int64_t version = heft_subscriber_get_version(sub);
    bool may_serve =
        version > 0 && !is_suspect(sub) && version >= heft__member_get_committed(sub->member);
    if (sub->hooks.resume != NULL &&
        sub->hooks.resume(sub->hooks.arg, may_serve ? version : 0) != 0) {
        (void)!heft__subscriber_hook_error(sub, "resume", version, err);
        return false;
    }
    heft__subscriber_set_serving(sub, may_serve);
    heft__report_t *report = heft__member_lock(sub->member);
    report->counters.pause_ns = heft__clock_mono_ns() - sub->pause_began_ns;
    heft__member_unlock(sub->member, false);
    return true;
}

static void do_resume(heft_subscriber_t *sub)
{
    heft_error_t err = HEFT_ERROR_INIT;
    bool ok = return_to_service(sub, &err);
    heft__member_conclude(sub->member, ok ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          ok ? HEFT__STATE_IDLE : HEFT__STATE_FLIPPED, &err, NULL);
}

/* ---- release, abort, live ---- */

static void disarm(heft_subscriber_t *sub)
{
    (void)heft__member_lock(sub->member);
    sub->is_armed = false;
    heft__member_unlock(sub->member, false);
}

/* Nothing of the round can write to staging any more, and nothing reads it. HEFT_ERR_NOSPACE is as
 * good: no staging. */
static heft_status_t fence(heft_subscriber_t *sub, const heft__order_t *order, heft_error_t *err)
{
    bool replaced = false;
    disarm(sub);
    heft__subscriber_end_relay(sub);
    if (sub->window == NULL) {
        return HEFT_OK;
    }
    heft_status_t status =
        heft__window_fence(sub->window, deadline_of(order, quiet_ns), &replaced, err);
    if (status == HEFT_ERR_NOSPACE) {
        heft__log(HEFT_LOG_WARN, "subscriber", "%s: no memory for new staging",
                  heft__member_get_id(sub->member));
        return HEFT_OK;
    }
    return status == HEFT_OK && replaced ? heft__subscriber_export(sub, err) : status;
}

/* Several senders, and one of them broke off: true once that is sure. The others may go on writing,
 * or begin to, so nothing is over before they are shut out. The same where it forwards. */
static bool has_broken_off_locked(heft_subscriber_t *sub, int64_t now, heft_error_t *why,
                                  const char **blamed_out)
{
    heft__window_state_t state;
    if (sub->n_senders < 2 && sub->relay == NULL) {
        return false; /* its end is the end of the transfer: refresh tells it */
    }
    heft__window_query(sub->window, &state);
    if (state.n_failed > 0 && sub->failed_mono_ns == 0) {
        sub->failed_mono_ns = now;
    }
    if (state.n_lost > 0) {
        *blamed_out = heft__subscriber_lost_error(sub, &state, why);
        return true;
    }
    if (state.n_failed > 0 && now - sub->failed_mono_ns >= quiet_ns) {
        *blamed_out = heft__subscriber_stopped_error(sub, &state, why);
        return true;
    }
    return false;
}

/* A transfer that must end now; why it must, and who is to blame (""). */
static bool has_to_end(heft_subscriber_t *sub, heft_error_t *why, bool *unknown_out,
                       char blamed[HEFT__ID_SIZE])
{
    const int64_t now = heft__clock_mono_ns();
    (void)heft__member_lock(sub->member);
    const char *sender = "";
    bool is_over = sub->is_armed && has_broken_off_locked(sub, now, why, &sender);
    if (is_over) {
        (void)snprintf(blamed, HEFT__ID_SIZE, "%s", sender);
    } else if (sub->is_armed) {
        is_over = heft__subscriber_has_failed_to_forward(sub, now, why, unknown_out, blamed);
    }
    if (sub->is_armed && !is_over && now > sub->stage_until_ns) {
        (void)heft__error_set(
            why, HEFT_ERR_TIMEOUT,
            "not everything arrived before the deadline: the transfer was fenced");
        is_over = true;
    }
    sub->is_armed = sub->is_armed && !is_over;
    heft__member_unlock(sub->member, false);
    return is_over;
}

void heft__subscriber_expire(heft_subscriber_t *sub)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_error_t why = HEFT_ERROR_INIT;
    bool replaced = false;
    bool is_unknown = false;
    char blamed[HEFT__ID_SIZE] = "";
    if (!has_to_end(sub, &why, &is_unknown, blamed)) {
        return;
    }
    heft__subscriber_end_relay(sub);
    heft_status_t status =
        heft__window_fence(sub->window, heft__clock_mono_ns() + quiet_ns, &replaced, &err);
    bool is_quiet = status == HEFT_OK || status == HEFT_ERR_NOSPACE;
    const heft__blame_t blame = { .peer = blamed[0] != '\0' ? blamed : NULL };
    heft__member_conclude(sub->member,
                          is_quiet && !is_unknown ? HEFT__RESULT_FAILED : HEFT__RESULT_UNKNOWN,
                          HEFT__STATE_STAGING, is_quiet ? &why : &err, &blame);
    if (status == HEFT_OK && replaced) {
        export_when_told(sub);
    }
}

static void do_release(heft_subscriber_t *sub)
{
    disarm(sub);
    heft__member_conclude(sub->member, HEFT__RESULT_OK, HEFT__STATE_IDLE, NULL, NULL);
}

static void do_abort(heft_subscriber_t *sub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__member_state_t state = get_state(sub);
    if (order->decision == HEFT__DECISION_REVOKE) { /* the version of before is the committed one */
        heft__member_set_committed(sub->member, heft_subscriber_get_version(sub));
    }
    if (state == HEFT__STATE_FLIPPED) { /* the flip stands */
        heft__member_conclude(sub->member, HEFT__RESULT_OK, state, NULL, NULL);
        return;
    }
    if (fence(sub, order, &err) != HEFT_OK) {
        heft__member_conclude(sub->member, HEFT__RESULT_UNKNOWN, state, &err, NULL);
        return;
    }
    if (state == HEFT__STATE_PAUSED && !return_to_service(sub, &err)) {
        heft__member_conclude(sub->member, HEFT__RESULT_FAILED, HEFT__STATE_IDLE, &err, NULL);
        return;
    }
    heft__member_conclude(sub->member, HEFT__RESULT_OK, HEFT__STATE_IDLE, NULL, NULL);
}

/* Parameters that are not what the live version says must not be served. */
static void leave_service(heft_subscriber_t *sub, const heft_error_t *why)
{
    const bool was_serving = heft_subscriber_is_serving(sub) != 0;
    heft__log(HEFT_LOG_ERROR, "subscriber", "%s: %s", heft__member_get_id(sub->member),
              why->message);
    become_suspect(sub);
    if (was_serving && sub->hooks.pause != NULL && sub->hooks.pause(sub->hooks.arg) != 0) {
        heft__log(HEFT_LOG_ERROR, "subscriber", "%s: the pause hook failed while leaving service",
                  heft__member_get_id(sub->member));
    }
}

static void do_live(heft_subscriber_t *sub)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_error_t why = HEFT_ERROR_INIT;
    char digest[HEFT__DIGEST_SIZE] = "";
    char *text = NULL;
    heft_status_t status = heft__subscriber_check_addresses(sub, &err);
    if (status == HEFT_OK && sub->work.plan == NULL) {
        status = heft__error_set(&err, HEFT_ERR_STATE,
                                 "no plan yet: no round has brought a version into this layout");
    }
    if (status == HEFT_OK) {
        heft__live_t live = { .version = heft_subscriber_get_version(sub),
                              .set = { .params = sub->measured, .n_params = sub->n_params },
                              .is_recorded =
                                  sub->kept != NULL ? sub->kept : sub->work.roles.is_vouched,
                              .recorded = sub->digests };
        memcpy(live.set.plan, sub->work.digest, sizeof live.set.plan);
        if (heft__subscriber_check_live(sub, sub->work.roles.is_watched, sub->digests, &why) !=
                HEFT_OK &&
            live.version > 0) {
            leave_service(sub, &why);
        }
        status = heft__live_encode(&live, &text, &err);
    }
    if (status == HEFT_OK) {
        status = heft__member_put_object(sub->member, text, digest, &err);
    }
    heft__free(text);
    heft__report_t *report = heft__member_lock(sub->member);
    memcpy(report->live, digest, sizeof report->live);
    heft__member_unlock(sub->member, false);
    heft__member_conclude(sub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          HEFT__STATE_IDLE, &err, NULL);
}

/* ---- orders ---- */

static void carry_out(heft_subscriber_t *sub, const heft__order_t *order)
{
    switch (order->target) {
    case HEFT__PHASE_PREFLIGHT:
        do_preflight(sub, order);
        break;
    case HEFT__PHASE_STAGE:
        do_stage(sub, order);
        break;
    case HEFT__PHASE_VERIFY:
        do_verify(sub, order);
        break;
    case HEFT__PHASE_PAUSE:
        do_pause(sub);
        break;
    case HEFT__PHASE_FLIP:
        do_flip(sub, order);
        break;
    case HEFT__PHASE_RESUME:
        do_resume(sub);
        break;
    case HEFT__PHASE_RELEASE:
        do_release(sub);
        break;
    case HEFT__PHASE_ABORT:
        do_abort(sub, order);
        break;
    case HEFT__PHASE_LIVE:
        do_live(sub);
        break;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PREPARE:
    case HEFT__PHASE_DECIDE:
    default:
        break; /* the gate lets none of these through */
    }
}

void heft__subscriber_obey(heft_subscriber_t *sub, const heft__order_t *order)
{
    if (heft__member_judge(sub->member, order) != HEFT__GATE_DO) {
        return;
    }
    if (heft__subscriber_is_feeder(sub, order)) {
        heft__subscriber_feed(sub, order);
    } else {
        heft__subscriber_end_feed(sub); /* of a round that was forgotten */
        heft__subscriber_end_relay(sub);
        carry_out(sub, order);
    }
}

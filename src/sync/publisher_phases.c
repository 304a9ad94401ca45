/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a source does in each phase. Sending is one run of the compiled plan for each family,
 * straight into the staging memory of all destinations, or into a buffer from which chunks follow
 * it (publisher_stream.c); it stops between pieces when a receiver is
 * lost or the round is called off. Once a run has returned, no thread of it writes any more, so a
 * transfer that failed has always stopped. Only a put whose completion is not known leaves an
 * unknown.
 */
#include "sync/publisher_private.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "format/format.h"

static const int64_t check_ns =
    1000000; /* look at receivers and orders at most every millisecond */

/* For what is asked of others and answered at once. */
static int64_t deadline_of(const heft_publisher_t *pub, const heft__order_t *order)
{
    const int64_t own_ns = (int64_t)pub->deadline_ms * 1000000;
    return heft__clock_mono_ns() + heft__order_left_ns(order, own_ns);
}

/* For bytes on their way, however many: the phase, a little less of it, so that this source can
 * still say who does not take them. */
static int64_t sending_deadline_of(const heft__order_t *order)
{
    static const int64_t to_say_ns = 2000000000;
    const int64_t left_ns = heft__order_left_ns(order, INT64_MAX / 4);
    return heft__clock_mono_ns() + left_ns - heft__min_i64(left_ns / 10, to_say_ns);
}

static void conclude(heft_publisher_t *pub, heft_status_t status, heft__member_state_t state,
                     const heft_error_t *err, const heft__blame_t *blame)
{
    heft__member_conclude(pub->member, status == HEFT_OK ? HEFT__RESULT_OK : HEFT__RESULT_FAILED,
                          state, err, blame);
}

/* ---- preflight ---- */

static heft_status_t put_plans(heft_publisher_t *pub, char digest_out[HEFT__DIGEST_SIZE],
                               heft_error_t *err)
{
    const heft__fleet_t *fleet = &pub->fleet;
    heft__plan_entry_t *entries = heft__calloc(fleet->n_links, sizeof *entries);
    char *text = NULL;
    if (entries == NULL) {
        return heft__error_nomem(err, fleet->n_links * sizeof *entries);
    }
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        memcpy(entries[i].member, fleet->links[i].id, sizeof entries[i].member);
        memcpy(entries[i].plan, heft__fleet_get_plan(fleet, &fleet->links[i]),
               sizeof entries[i].plan);
    }
    heft_status_t status = heft__plans_encode(entries, fleet->n_links, &text, err);
    if (status == HEFT_OK) {
        status = heft__member_put_object(pub->member, text, digest_out, err);
    }
    heft__free(text);
    heft__free(entries);
    return status;
}

/* Those at whose endpoint nobody listens; *n_out 0 and NULL: none, or no memory to name them. */
static char (*list_absent(const heft__fleet_t *fleet, uint32_t *n_out))[HEFT__ID_SIZE]
{
    char(*ids)[HEFT__ID_SIZE] = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        n += fleet->links[i].is_absent;
    }
    *n_out = 0;
    ids = n > 0 ? heft__calloc(n, sizeof *ids) : NULL;
    for (uint32_t i = 0; ids != NULL && i < fleet->n_links; i++) {
        if (fleet->links[i].is_absent) {
            memcpy(ids[(*n_out)++], fleet->links[i].id, sizeof *ids);
        }
    }
    return ids;
}

/* What is dealt to this source, on whichever host it is received; of copies that others send
 * nothing is read here. What identifies a version does not depend on who receives it. */
static heft_status_t choose_tensors(heft_publisher_t *pub, heft_error_t *err)
{
    const heft__fleet_t *fleet = &pub->fleet;
    bool *sent = heft__calloc((size_t)pub->n_tensors + 1, sizeof *sent);
    if (sent == NULL) {
        return heft__error_nomem(err, pub->n_tensors);
    }
    heft_status_t status =
        heft__holders_mark_chosen(&fleet->sources, fleet->number, pub->is_own, err);
    for (uint32_t i = 0; i < pub->n_tensors && status == HEFT_OK; i++) {
        pub->sizes_sent[i] = pub->is_own[i] ? pub->sizes[i] : 0;
    }
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        status = heft__holders_mark_chosen(&fleet->families[f].from, fleet->number, sent, err);
        for (uint32_t i = 0; i < pub->n_tensors && status == HEFT_OK; i++) {
            pub->sizes_sent[i] = sent[i] ? pub->sizes[i] : pub->sizes_sent[i];
        }
    }
    heft__free(sent);
    return status;
}

/* "destination.heft.0.0 by ucx tcp/eth0, ...". */
static void list_ways(const heft__fleet_t *fleet, char out[HEFT__WAYS_SIZE])
{
    static const size_t tail = 24; /* " and 4294967295 more" */
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        char text[HEFT__ID_SIZE + 96];
        if (link->remote == NULL) {
            continue;
        }
        const int len = snprintf(text, sizeof text, "%s%s by %s", n > 0 ? ", " : "", link->id,
                                 heft__remote_describe(link->remote));
        if (n + (size_t)len + tail > HEFT__WAYS_SIZE) {
            (void)snprintf(out + n, HEFT__WAYS_SIZE - n, " and up to %u more", fleet->n_links - i);
            return;
        }
        memcpy(out + n, text, (size_t)len + 1);
        n += (size_t)len;
    }
}

static void do_preflight(heft_publisher_t *pub, const heft__order_t *order)
{
    heft__problems_t problems = { 0 };
    heft_error_t err = HEFT_ERROR_INIT;
    char plans[HEFT__DIGEST_SIZE] = "";
    pub->fleet.round = order->round;
    heft_status_t status =
        heft__fleet_set(&pub->fleet, order->sources, order->peers, order->n_peers,
                        deadline_of(pub, order), &problems, &err);
    if (status == HEFT_OK) {
        status = choose_tensors(pub, &err);
    }
    if (status == HEFT_OK) {
        status = put_plans(pub, plans, &err);
    }
    uint32_t n_absent = 0;
    char(*absent)[HEFT__ID_SIZE] = list_absent(&pub->fleet, &n_absent);
    heft__report_t *report = heft__member_lock(pub->member);
    heft__report_set_absent(report, absent, n_absent);
    list_ways(&pub->fleet, report->ways);
    heft__problems_fini(&report->problems);
    report->problems = problems;
    memcpy(report->plans, plans, sizeof report->plans);
    heft__member_unlock(pub->member, false);
    const heft__blame_t blame = { .peer = pub->fleet.blamed[0] != '\0' ? pub->fleet.blamed : NULL };
    conclude(pub, status, HEFT__STATE_IDLE, &err, &blame);
}

/* ---- prepare ---- */

/* The caller's tensors may be read until heft__publisher_leave; or its push is over. */
static heft_status_t enter(heft_publisher_t *pub, const heft__order_t *order, heft_error_t *err)
{
    if (heft__publisher_enter(pub, order)) {
        return HEFT_OK;
    }
    char other[48] = "";
    (void)pthread_mutex_lock(&pub->lock);
    const int64_t version = pub->push_version;
    (void)pthread_mutex_unlock(&pub->lock);
    if (version != 0 && version != order->version) {
        (void)snprintf(other, sizeof other, ", but one of version %lld", (long long)version);
    } else if (version == 0) {
        (void)snprintf(other, sizeof other, " (waited for up to %g s)",
                       (double)pub->deadline_ms / 1000);
    }
    return heft__error_set(err, HEFT_ERR_STATE, "no push of version %lld is in progress here%s",
                           (long long)order->version, other);
}

static void do_prepare(heft_publisher_t *pub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    (void)!heft__publisher_await_push(pub, order); /* why not, says the next line */
    if (enter(pub, order, &err) != HEFT_OK) {
        conclude(pub, err.status, HEFT__STATE_IDLE, &err, NULL);
        return;
    }
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        pub->fleet.links[i].was_sent = false;
    }
    int64_t start = heft__clock_mono_ns();
    heft__digest_all(pub->data, pub->sizes_sent, NULL, pub->n_tensors, pub->n_threads,
                     pub->digests);
    heft__publisher_leave(pub);
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    heft__manifest_hash_meaning(pub->manifest, &sha); /* equal bytes elsewhere are another model */
    for (uint32_t i = 0; i < pub->n_tensors; i++) {
        heft__sha256_update_u64(&sha, pub->is_own[i] ? pub->digests[i] : 0);
    }
    heft__sha256_final(&sha, digest);
    heft__report_t *report = heft__member_lock(pub->member);
    heft__hex(digest, sizeof digest, report->source_digest);
    report->counters.prepare_ns = heft__clock_mono_ns() - start;
    heft__member_unlock(pub->member, false);
    conclude(pub, HEFT_OK, HEFT__STATE_PREPARED, NULL, NULL);
}

/* ---- stage ---- */

/* HEFT_OK while it makes sense to go on. */
heft_status_t heft__publisher_look_around(heft_publisher_t *pub, heft_error_t *err)
{
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        heft__link_t *link = &pub->fleet.links[i];
        if (!link->is_staged) {
            continue;
        }
        heft_status_t status = heft__remote_check(link->remote, err);
        if (status != HEFT_OK) {
            pub->blame.peer = link->id;
            return status;
        }
    }
    if (heft__member_is_called_off(pub->member, pub->round)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "the round was called off");
    }
    if (heft__publisher_is_given_up(pub, pub->round)) {
        return heft__error_set(err, HEFT_ERR_CANCELED, "its push was given up");
    }
    return HEFT_OK;
}

/* How long until done_bytes are no more than the rate allows; 0 without a limit. */
static int64_t rate_wait_ns(const heft_publisher_t *pub, int64_t done_bytes, int64_t now)
{
    if (pub->max_bytes_per_s == 0) {
        return 0;
    }
    double due_ns = (double)done_bytes * 1e9 / (double)pub->max_bytes_per_s;
    double wait_ns = due_ns - (double)(now - pub->run_mono_ns);
    return wait_ns > 0 ? (int64_t)heft__min_i64((int64_t)wait_ns, check_ns) : 0;
}

int heft__publisher_on_progress(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    heft_publisher_t *pub = arg;
    (void)total_bytes;
    for (;;) {
        int64_t now = heft__clock_mono_ns();
        if (now - pub->checked_mono_ns >= check_ns) {
            pub->checked_mono_ns = now;
            if (heft__publisher_look_around(pub, &pub->stopped) != HEFT_OK) {
                return 1;
            }
        }
        int64_t wait_ns = rate_wait_ns(pub, done_bytes, now);
        if (wait_ns == 0) {
            return 0;
        }
        const struct timespec pause = { .tv_nsec = (long)wait_ns };
        (void)nanosleep(&pause, NULL);
    }
}

static heft_status_t begin_links(heft_publisher_t *pub, const heft__order_t *order,
                                 heft_error_t *err)
{
    heft__token_t token = { .epoch = (uint64_t)order->round.epoch,
                            .seq = (uint64_t)order->round.seq };
    int64_t deadline = deadline_of(pub, order);
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        heft__link_t *link = &pub->fleet.links[i];
        if (!link->is_staged) {
            continue;
        }
        heft_status_t status = heft__remote_begin(link->remote, token, deadline, err);
        if (status != HEFT_OK) {
            pub->blame.peer = link->id;
            return status;
        }
        link->has_begun = true;
    }
    return HEFT_OK;
}

/* Tell every receiver that nothing more will come. One that is lost needs no telling; whether all
 * heard that everything was written is the caller's success. */
static heft_status_t end_links(heft_publisher_t *pub, const heft__order_t *order, bool completed,
                               heft_error_t *err)
{
    heft__token_t token = { .epoch = (uint64_t)order->round.epoch,
                            .seq = (uint64_t)order->round.seq };
    heft_status_t first = HEFT_OK;
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        heft__link_t *link = &pub->fleet.links[i];
        if (!link->has_begun || link->is_unknown) {
            continue; /* an end would say that nothing more can come */
        }
        heft_error_t why = HEFT_ERROR_INIT;
        heft_status_t status = heft__remote_end(link->remote, token, completed, &why);
        link->has_begun = false;
        if (status != HEFT_OK && first == HEFT_OK) {
            first = status;
            pub->blame.peer = link->id;
            *err = why;
        }
    }
    return first;
}

static heft_status_t run_one(heft_publisher_t *pub, heft_exec_t *exec, const heft__reads_t *reads,
                             heft_error_t *err)
{
    if (exec == NULL) {
        return HEFT_OK;
    }
    pub->run_mono_ns = heft__clock_mono_ns();
    heft_status_t status = heft_exec_run(exec, reads->data, err);
    if (status == HEFT_ERR_CANCELED && pub->stopped.status != HEFT_OK) {
        *err = pub->stopped;
        status = err->status;
    }
    return status;
}

static heft_status_t run_families(heft_publisher_t *pub, heft_error_t *err)
{
    heft__fleet_t *fleet = &pub->fleet;
    heft_status_t status = HEFT_OK;
    pub->stopped = (heft_error_t)HEFT_ERROR_INIT;
    for (uint32_t f = 0; f < fleet->n_families && status == HEFT_OK; f++) {
        const heft__family_t *family = &fleet->families[f];
        status = run_one(pub, family->exec, &family->reads, err);
        for (uint32_t r = 0; r < family->n_ranks && status == HEFT_OK; r++) {
            status = run_one(pub, family->input_execs[r], &family->input_reads[r], err);
        }
    }
    return status;
}

/* Replicas of a rank have the same digests. */
static bool is_first_of_rank(const heft__fleet_t *fleet, uint32_t i)
{
    const heft__link_t *link = &fleet->links[i];
    for (uint32_t k = 0; k < i; k++) {
        const heft__link_t *other = &fleet->links[k];
        if (other->was_sent && other->family == link->family && other->rank == link->rank) {
            return false;
        }
    }
    return true;
}

static heft_status_t put_digests(heft_publisher_t *pub, char digest_out[HEFT__DIGEST_SIZE],
                                 heft_error_t *err)
{
    const heft__fleet_t *fleet = &pub->fleet;
    heft__digest_set_t *sets = heft__calloc(fleet->n_links > 0 ? fleet->n_links : 1, sizeof *sets);
    if (sets == NULL) {
        return heft__error_nomem(err, fleet->n_links * sizeof *sets);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < fleet->n_links; i++) {
        const heft__link_t *link = &fleet->links[i];
        const heft__family_t *family = &fleet->families[link->family];
        if (link->was_sent && is_first_of_rank(fleet, i)) {
            memcpy(sets[n].plan, heft__fleet_get_plan(fleet, link), sizeof sets[n].plan);
            sets[n].params = family->digests[link->rank];
            sets[n].n_params = family->layouts[link->rank].n_entries;
            sets[n].sender = fleet->number;
            n++;
        }
    }
    char *text = NULL;
    heft_status_t status = heft__digests_encode(sets, n, &text, err);
    if (status == HEFT_OK) {
        status = heft__member_put_object(pub->member, text, digest_out, err);
    }
    heft__free(text);
    heft__free(sets);
    return status;
}

static void note_counters(heft_publisher_t *pub, const heft__chunk_counts_t *counts, int64_t start)
{
    heft__counters_t counters = { .chunks = counts->chunks, .resent = counts->resent };
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        const heft__link_t *link = &pub->fleet.links[i];
        if (link->is_staged) {
            int64_t bytes;
            int64_t pieces;
            heft__delivery_count(&pub->fleet.families[link->family].deliveries[link->rank],
                                 pub->fleet.number, &bytes, &pieces);
            counters.bytes += bytes;
            counters.pieces += pieces;
        }
    }
    heft__report_t *report = heft__member_lock(pub->member);
    report->counters.bytes = counters.bytes;
    report->counters.pieces = counters.pieces;
    report->counters.chunks = counters.chunks;
    report->counters.resent = counters.resent;
    report->counters.stage_ns = heft__clock_mono_ns() - start;
    heft__member_unlock(pub->member, false);
}

/* Links that failed are given up: the next round attaches them anew. */
static void drop_lost_links(heft_publisher_t *pub)
{
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        heft__link_t *link = &pub->fleet.links[i];
        if (link->remote != NULL && heft__remote_check(link->remote, NULL) == HEFT_ERR_PEER) {
            heft__fleet_drop(&pub->fleet, link);
        }
    }
}

static heft_status_t send_all(heft_publisher_t *pub, const heft__order_t *order,
                              heft__chunk_counts_t *counts, heft_error_t *err)
{
    heft__stream_t *stream = NULL; /* to receivers whose memory cannot be addressed */
    heft_status_t status = begin_links(pub, order, err);
    int64_t allocs = heft__alloc_total();
    heft__fleet_bind(&pub->fleet, pub->data);
    if (status == HEFT_OK) {
        status = heft__stream_start(pub, order, sending_deadline_of(order), &stream, err);
    }
    if (status == HEFT_OK) {
        status = run_families(pub, err);
    }
    status = heft__stream_finish(stream, status, counts, err);
    pub->stage_allocs = heft__alloc_total() - allocs;
    heft_error_t late = HEFT_ERROR_INIT;
    heft_status_t ended = end_links(pub, order, status == HEFT_OK, &late);
    if (status == HEFT_OK && ended != HEFT_OK) {
        *err = late;
        status = ended;
    }
    return status;
}

/* A receiver that asks to stop has a reason, such as another source that died, or one that it
 * forwards to: it is given the time to say so, because the first failure that is told counts as the
 * cause. */
static void let_receiver_speak(heft_publisher_t *pub, heft_status_t status)
{
    static const int64_t patience_ns = 2000000000;
    if (status == HEFT_ERR_CANCELED) {
        const int64_t deadline = heft__clock_mono_ns() + patience_ns;
        while (heft__clock_mono_ns() < deadline &&
               !heft__member_await_called_off(pub->member, pub->round, deadline)) {
        }
    }
}

static bool has_unknown(const heft_publisher_t *pub)
{
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        if (pub->fleet.links[i].is_unknown) {
            return true;
        }
    }
    return false;
}

static void do_stage(heft_publisher_t *pub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char digests[HEFT__DIGEST_SIZE] = "";
    heft__chunk_counts_t counts = { .chunks = 0 };
    int64_t start = heft__clock_mono_ns();
    pub->round = order->round;
    pub->fleet.round = order->round;
    pub->blame = (heft__blame_t){ .peer = NULL };
    heft__member_lock(pub->member)->state = HEFT__STATE_SENDING;
    heft__member_unlock(pub->member, false);
    heft_status_t status = heft__fleet_aim(&pub->fleet, order->peers, order->n_peers,
                                           deadline_of(pub, order), &pub->blame, &err);
    if (status == HEFT_OK) {
        status = enter(pub, order, &err);
    }
    if (status == HEFT_OK) {
        status = send_all(pub, order, &counts, &err);
        heft__publisher_leave(pub);
    }
    note_counters(pub, &counts, start);
    for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
        pub->fleet.links[i].was_sent = pub->fleet.links[i].is_staged && status == HEFT_OK;
    }
    if (status == HEFT_OK) {
        status = put_digests(pub, digests, &err);
    }
    heft__report_t *report = heft__member_lock(pub->member);
    memcpy(report->digests, digests, sizeof report->digests);
    heft__member_unlock(pub->member, false);
    if (has_unknown(pub)) {
        heft__member_conclude(pub->member, HEFT__RESULT_UNKNOWN, HEFT__STATE_SENDING, &err,
                              &pub->blame);
        return;
    }
    let_receiver_speak(pub, status);
    /* The message first: dropping a link takes its name along. */
    conclude(pub, status, status == HEFT_OK ? HEFT__STATE_SENT : HEFT__STATE_PREPARED, &err,
             &pub->blame);
    if (status != HEFT_OK) {
        drop_lost_links(pub);
    }
}

/* ---- verify ---- */

/* A trainer that wrote to its tensors before the push was over: what was sent is neither version.
 * Costs no time of its own: the destinations read as many bytes meanwhile. */
static void do_verify(heft_publisher_t *pub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__blame_t blame = { .peer = NULL };
    heft_tensor_info_t info = { .name = "?" };
    heft_status_t status = enter(pub, order, &err);
    if (status == HEFT_OK) {
        heft__digest_all(pub->data, pub->sizes_sent, NULL, pub->n_tensors, pub->n_threads,
                         pub->again);
        heft__publisher_leave(pub);
    }
    for (uint32_t i = 0; i < pub->n_tensors && status == HEFT_OK; i++) {
        if (pub->again[i] != pub->digests[i]) {
            (void)!heft_manifest_query(pub->manifest, i, &info, NULL);
            status = heft__error_set(&err, HEFT_ERR_DIGEST,
                                     "tensor \"%.120s\" was written to before the push was over",
                                     info.name);
            blame.tensor = info.name;
        }
    }
    conclude(pub, status, HEFT__STATE_SENT, &err, &blame);
}

/* ---- flip: to those that receive in place ---- */

/* The digests of all that was sent in this round, staged ones included. */
static void report_digests(heft_publisher_t *pub)
{
    char digests[HEFT__DIGEST_SIZE] = "";
    heft_error_t err = HEFT_ERROR_INIT;
    if (put_digests(pub, digests, &err) != HEFT_OK) {
        heft__log(HEFT_LOG_WARN, "publisher", "%s: %s", heft__member_get_id(pub->member),
                  err.message); /* a later live verification has nothing to compare with */
        return;
    }
    heft__report_t *report = heft__member_lock(pub->member);
    memcpy(report->digests, digests, sizeof report->digests);
    heft__member_unlock(pub->member, false);
}

static void do_flip(heft_publisher_t *pub, const heft__order_t *order)
{
    heft_error_t err = HEFT_ERROR_INIT;
    pub->round = order->round;
    pub->blame = (heft__blame_t){ .peer = NULL };
    heft__member_lock(pub->member)->state = HEFT__STATE_SENDING;
    heft__member_unlock(pub->member, false);
    heft_status_t status = enter(pub, order, &err);
    if (status == HEFT_OK) {
        status = heft__publisher_send_in_place(pub, order, &err);
        heft__publisher_leave(pub);
        report_digests(pub);
    }
    if (has_unknown(pub)) {
        heft__member_conclude(pub->member, HEFT__RESULT_UNKNOWN, HEFT__STATE_SENDING, &err,
                              &pub->blame);
        return;
    }
    conclude(pub, status, HEFT__STATE_SENT, &err, &pub->blame);
    if (status != HEFT_OK) {
        drop_lost_links(pub);
    }
}

/* ---- release, abort ---- */

static void let_go(heft_publisher_t *pub)
{
    conclude(pub, HEFT_OK, HEFT__STATE_IDLE, NULL, NULL);
}

/* After an unknown put only the end of its connection proves that it is over. */
static void do_abort(heft_publisher_t *pub)
{
    heft__member_state_t state = heft__member_lock(pub->member)->state;
    heft__member_unlock(pub->member, false);
    if (state == HEFT__STATE_SENDING) {
        for (uint32_t i = 0; i < pub->fleet.n_links; i++) {
            heft__fleet_drop(&pub->fleet, &pub->fleet.links[i]);
        }
    }
    let_go(pub);
}

void heft__publisher_obey(heft_publisher_t *pub, const heft__order_t *order)
{
    if (heft__member_judge(pub->member, order) != HEFT__GATE_DO) {
        return;
    }
    switch (order->target) {
    case HEFT__PHASE_PREFLIGHT:
        do_preflight(pub, order);
        break;
    case HEFT__PHASE_PREPARE:
        do_prepare(pub, order);
        break;
    case HEFT__PHASE_STAGE:
        do_stage(pub, order);
        break;
    case HEFT__PHASE_VERIFY:
        do_verify(pub, order);
        break;
    case HEFT__PHASE_FLIP:
        do_flip(pub, order);
        break;
    case HEFT__PHASE_RELEASE:
        let_go(pub);
        break;
    case HEFT__PHASE_ABORT:
        do_abort(pub);
        break;
    case HEFT__PHASE_NONE:
    case HEFT__PHASE_MANIFEST:
    case HEFT__PHASE_PAUSE:
    case HEFT__PHASE_DECIDE:
    case HEFT__PHASE_RESUME:
    case HEFT__PHASE_LIVE:
    default:
        break; /* the gate lets none of these through */
    }
}

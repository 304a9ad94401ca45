/* SPDX-License-Identifier: Apache-2.0 */
/* Members over HTTP; see http_fleet.h. Waits are on conditions, each with a deadline. */
#include "http_fleet.h"

#include <jansson.h>
#include <time.h>

#include "heft/model.h"

/* ---- a coordinator alone ---- */

env_t *env_start(const heft_coordinator_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    env_t *e = calloc(1, sizeof *e);
    assert_non_null(e);
    EXPECT_STATUS(heft_coordinator_start(opts, &e->c, &err), HEFT_OK);
    e->url = heft_coordinator_get_url(e->c);
    e->port = (uint16_t)strtoul(strrchr(e->url, ':') + 1, NULL, 10);
    return e;
}

void env_stop(env_t *e)
{
    heft_coordinator_stop(e->c);
    free(e);
    assert_int_equal(heft__alloc_live(), 0);
}

int env_set_up(void **state)
{
    *state = env_start(NULL);
    return 0;
}

int env_tear_down(void **state)
{
    env_stop(*state);
    return 0;
}

/* ---- members ---- */

static pthread_mutex_t digest_lock = PTHREAD_MUTEX_INITIALIZER;
static char source_digest[HEFT__DIGEST_SIZE] = SIM_DIGEST_NEW;

void fleet_set_source_digest(const char *digest)
{
    (void)pthread_mutex_lock(&digest_lock);
    (void)snprintf(source_digest, sizeof source_digest, "%s", digest);
    (void)pthread_mutex_unlock(&digest_lock);
}

static void deadline_in(struct timespec *ts, int64_t ns)
{
    (void)clock_gettime(CLOCK_REALTIME, ts);
    ts->tv_sec += (time_t)(ns / 1000000000);
    ts->tv_nsec += (long)(ns % 1000000000);
    if (ts->tv_nsec >= 1000000000) {
        ts->tv_sec++;
        ts->tv_nsec -= 1000000000;
    }
}

/* ---- requests ---- */

int fleet_request(const char *url, const char *method, const char *path, const char *body,
                  char **reply_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__http_t *http = NULL;
    char *reply = NULL;
    int code = 0;
    EXPECT_STATUS(heft__http_create(&(heft__access_t){ .url = url }, &http, &err), HEFT_OK);
    const size_t n = body != NULL ? strlen(body) : 0;
    heft_status_t status =
        heft__http_request(http, method, path, body, n, 30000, &code, &reply, NULL, &err);
    if (status != HEFT_OK && code == 0) {
        fail_msg("%s %s: %s", method, path, err.message);
    }
    if (reply_out != NULL) {
        *reply_out = status == HEFT_OK ? reply : heft__strdup(heft__http_get_error_body(http));
    } else {
        heft__free(reply);
    }
    heft__http_destroy(http);
    return code;
}

void fleet_await_source(const char *url)
{
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    bool is_there = false;
    while (!is_there) {
        char *status = NULL;
        if (heft__clock_mono_ns() > limit) {
            fail_msg("the source does not come back");
        }
        assert_int_equal(fleet_request(url, "GET", "/v1/status", NULL, &status), 200);
        is_there = strstr(status, "\"sources\":1") != NULL;
        heft__free(status);
    }
}

char *fleet_await_round(const char *url, const char *round)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/v1/rounds/%s?wait=10", round);
    const int64_t limit = heft__clock_mono_ns() + FLEET_WAIT_NS;
    char *reply = NULL;
    do { /* a large fleet on a busy machine takes longer than one request may wait */
        heft__free(reply);
        assert_int_equal(fleet_request(url, "GET", path, NULL, &reply), 200);
    } while (strstr(reply, "\"ended\":false") != NULL && heft__clock_mono_ns() < limit);
    return reply;
}

char *fleet_push(const char *url, int64_t version, const char *key)
{
    char body[256];
    (void)snprintf(body, sizeof body, "{\"version\":%lld,\"key\":\"%s\"}", (long long)version, key);
    char *reply = NULL;
    const int code = fleet_request(url, "POST", "/v1/rounds", body, &reply);
    if (code != 202 && code != 200) {
        fail_msg("begin: %d %s", code, reply);
    }
    json_t *root = json_loads(reply, 0, NULL);
    heft__free(reply);
    char *result = fleet_await_round(url, json_string_value(json_object_get(root, "round")));
    json_decref(root);
    return result;
}

/* ---- a member ---- */

static heft_status_t send_text(fleet_member_t *m, const char *method, const char *path,
                               const char *body, int *code_out, char **reply_out, heft_error_t *err)
{
    return heft__http_request(m->http, method, path, body, body != NULL ? strlen(body) : 0, 30000,
                              code_out, reply_out, NULL, err);
}

static bool put_object(fleet_member_t *m, const char *text, char *digest_out)
{
    char path[128];
    int code;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__object_digest(text, strlen(text), digest_out);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest_out);
    return send_text(m, "PUT", path, text, &code, NULL, &err) == HEFT_OK;
}

static bool put_manifest(fleet_member_t *m, char *digest_out)
{
    heft_manifest_t *manifest = NULL;
    char *text = NULL;
    const bool is_part = m->part[2] > 0;
    const heft_shape_t shape = { .rank = 1, .extent = { is_part ? m->part[1] : 4 } };
    const heft_part_t part = { .shape = { .rank = 1, .extent = { m->part[2] } },
                               .begin = { m->part[0] },
                               .replica = m->copy };
    const char *side = heft__role_text(m->sim.role);
    char name[32] = "w";
    if (m->sim.role == HEFT__ROLE_SOURCE && m->rank > 0 && !is_part) {
        (void)snprintf(name, sizeof name, "w.%u", (unsigned)m->rank);
    }
    bool ok = heft_manifest_create(side, &manifest, NULL) == HEFT_OK &&
              heft_manifest_add(manifest, name, HEFT_DTYPE_F32, &shape, NULL) == HEFT_OK &&
              (!is_part || heft_manifest_set_part(manifest, name, &part, NULL) == HEFT_OK) &&
              (m->made == NULL ||
               heft_manifest_set_attr(manifest, "framework", m->made, NULL) == HEFT_OK) &&
              heft_manifest_finish(manifest, NULL) == HEFT_OK &&
              heft_manifest_encode(manifest, &text, NULL) == HEFT_OK &&
              put_object(m, text, digest_out);
    heft_string_free(text);
    heft_manifest_destroy(manifest);
    return ok;
}

static bool put_contract(fleet_member_t *m, char *digest_out)
{
    char name[] = "test";
    char recipe[] = "\"w\" [a] -> \"w\" [a]";
    char bindings[] = "{}";
    const heft__contract_t contract = { .recipe_name = name,
                                        .recipe_text = recipe,
                                        .bindings = bindings,
                                        .rank = m->rank,
                                        .ranks = 1000 };
    char *text = NULL;
    const bool ok =
        heft__contract_encode(&contract, &text, NULL) == HEFT_OK && put_object(m, text, digest_out);
    heft__free(text);
    return ok;
}

static bool put_endpoint(fleet_member_t *m, char *digest_out)
{
    char text[256];
    (void)snprintf(text, sizeof text, "{\"transport\":\"shm\",\"path\":\"%s.%s\"}", m->id,
                   m->incarnation);
    return put_object(m, text, digest_out);
}

static bool register_member(fleet_member_t *m)
{
    heft__register_t reg = { .role = m->sim.role,
                             .job = "heft",
                             .replica = m->replica,
                             .rank = m->rank,
                             .epoch = m->epoch,
                             .n_transports = 1 };
    (void)snprintf(reg.transports[0], sizeof reg.transports[0], "%s",
                   m->transport != NULL ? m->transport : "shm");
    memcpy(reg.incarnation, m->incarnation, sizeof reg.incarnation);
    char *text = NULL;
    char *reply = NULL;
    int code;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__registered_t registered;
    bool ok = heft__register_encode(&reg, &text, &err) == HEFT_OK &&
              send_text(m, "POST", "/v1/members", text, &code, &reply, &err) == HEFT_OK &&
              heft__registered_decode(reply, strlen(reply), &registered, &err) == HEFT_OK;
    heft__free(text);
    heft__free(reply);
    if (!ok) {
        return false;
    }
    memcpy(m->id, registered.id, sizeof m->id);
    m->epoch = registered.epoch;
    m->sim.order = 0;
    heft__bind_t bind;
    memset(&bind, 0, sizeof bind);
    memcpy(bind.incarnation, m->incarnation, sizeof bind.incarnation);
    ok = put_manifest(m, bind.manifest);
    if (m->sim.role == HEFT__ROLE_DESTINATION) {
        ok = ok && put_contract(m, bind.contract) && put_endpoint(m, bind.endpoint);
    }
    char path[160];
    (void)snprintf(path, sizeof path, "/v1/members/%s/manifest", m->id);
    text = NULL;
    ok = ok && heft__bind_encode(&bind, &text, &err) == HEFT_OK &&
         send_text(m, "PUT", path, text, &code, NULL, &err) == HEFT_OK;
    heft__free(text);
    return ok;
}

/* The plan digest of a destination, which both sides work out alike. */
static void plan_of(const char *id, char *out)
{
    heft__object_digest(id, strlen(id), out);
}

static bool put_plans(fleet_member_t *m, const heft__order_t *order)
{
    heft__plan_entry_t *entries = heft__calloc(order->n_peers + 1, sizeof *entries);
    char *text = NULL;
    for (uint32_t i = 0; i < order->n_peers; i++) {
        memcpy(entries[i].member, order->peers[i].id, sizeof entries[i].member);
        plan_of(order->peers[i].id, entries[i].plan);
    }
    const bool ok = heft__plans_encode(entries, order->n_peers, &text, NULL) == HEFT_OK &&
                    put_object(m, text, m->extra.plans);
    heft__free(text);
    heft__free(entries);
    return ok;
}

static bool put_digests(fleet_member_t *m, const heft__order_t *order)
{
    uint64_t params[2] = { 0x1234, (uint64_t)order->version };
    heft__digest_set_t *sets = heft__calloc(order->n_peers + 1, sizeof *sets);
    char *text = NULL;
    for (uint32_t i = 0; i < order->n_peers; i++) {
        plan_of(order->peers[i].id, sets[i].plan);
        sets[i].params = params;
        sets[i].n_params = 2;
    }
    const bool ok = heft__digests_encode(sets, order->n_peers, &text, NULL) == HEFT_OK &&
                    put_object(m, text, m->extra.digests);
    heft__free(text);
    heft__free(sets);
    return ok;
}

static bool put_live(fleet_member_t *m)
{
    uint64_t params[2] = { 0x1234, (uint64_t)m->sim.live };
    heft__live_t live = { .version = m->sim.live };
    live.set.params = params;
    live.set.n_params = 2;
    plan_of(m->id, live.set.plan);
    char *text = NULL;
    const bool ok =
        heft__live_encode(&live, &text, NULL) == HEFT_OK && put_object(m, text, m->extra.live);
    heft__free(text);
    return ok;
}

static bool is_stopped(fleet_member_t *m)
{
    (void)pthread_mutex_lock(&m->lock);
    const bool stopped = m->stop || m->dead;
    (void)pthread_mutex_unlock(&m->lock);
    return stopped;
}

/* What a report says beside the state: made when the work is done. */
static void make_evidence(fleet_member_t *m, const heft__order_t *order)
{
    const bool source = m->sim.role == HEFT__ROLE_SOURCE;
    bool ok = true;
    if (order->target == HEFT__PHASE_PREFLIGHT && source) {
        ok = put_plans(m, order);
    } else if (order->target == HEFT__PHASE_PREFLIGHT) {
        plan_of(m->other_plan ? "another" : m->id, m->extra.plan);
    } else if (order->target == HEFT__PHASE_PREPARE) {
        (void)pthread_mutex_lock(&digest_lock);
        memcpy(m->extra.source_digest, source_digest, HEFT__DIGEST_SIZE);
        (void)pthread_mutex_unlock(&digest_lock);
    } else if (order->target == HEFT__PHASE_STAGE && source) {
        ok = put_digests(m, order);
    } else if (order->target == HEFT__PHASE_FLIP) {
        memcpy(m->extra.live_digest, order->source_digest, HEFT__DIGEST_SIZE);
    } else if (order->target == HEFT__PHASE_LIVE) {
        ok = put_live(m);
    }
    assert_true(ok || is_stopped(m));
}

static heft_status_t poll_once(fleet_member_t *m, uint32_t wait_ms, heft__order_t *order,
                               int *code_out)
{
    heft__report_t report;
    char path[160];
    char *text = NULL;
    char *reply = NULL;
    heft_error_t err = HEFT_ERROR_INIT;
    (void)pthread_mutex_lock(&m->lock);
    m->sim.sequence++;
    sim_report(&m->sim, 0, &report);
    memcpy(report.incarnation, m->incarnation, sizeof report.incarnation);
    report.epoch = m->epoch;
    report.wait_ms = wait_ms;
    memcpy(report.plan, m->extra.plan, HEFT__DIGEST_SIZE);
    memcpy(report.plans, m->extra.plans, HEFT__DIGEST_SIZE);
    memcpy(report.source_digest, m->extra.source_digest, HEFT__DIGEST_SIZE);
    memcpy(report.digests, m->extra.digests, HEFT__DIGEST_SIZE);
    memcpy(report.live, m->extra.live, HEFT__DIGEST_SIZE);
    report.movers = m->extra.movers;
    report.version = m->extra.version;
    if (report.live_version > 0) {
        memcpy(report.live_digest, m->extra.live_digest, HEFT__DIGEST_SIZE);
    }
    report.counters.bytes = 1000;
    report.counters.pieces = 3;
    (void)snprintf(path, sizeof path, "/v1/members/%s/poll", m->id);
    (void)pthread_mutex_unlock(&m->lock);
    heft_status_t status = heft__report_encode(&report, &text, &err);
    if (status == HEFT_OK) {
        status = send_text(m, "POST", path, text, code_out, &reply, &err);
    }
    if (status == HEFT_OK && *code_out == 200) {
        status = heft__order_decode(reply, strlen(reply), order, &err);
    }
    heft__free(text);
    heft__free(reply);
    return status;
}

/* Finish the work in hand, unless the test holds it; true when the state changed. */
static bool finish_work(fleet_member_t *m, const heft__order_t *order)
{
    (void)pthread_mutex_lock(&m->lock);
    while (m->hold_phase == order->target && !m->stop) {
        struct timespec ts;
        deadline_in(&ts, 20 * 1000000);
        if (pthread_cond_timedwait(&m->changed, &m->lock, &ts) != 0) {
            (void)pthread_mutex_unlock(&m->lock);
            return false; /* still working: say so */
        }
    }
    if (m->stop) { /* its connection is cut: nothing can be put any more */
        (void)pthread_mutex_unlock(&m->lock);
        return false;
    }
    const bool fails = m->fail_phase == order->target;
    if (fails) {
        m->fail_phase = HEFT__PHASE_NONE;
        sim_fail(&m->sim, m->fail_result);
    } else {
        (void)pthread_mutex_unlock(&m->lock);
        make_evidence(m, order);
        (void)pthread_mutex_lock(&m->lock);
        sim_work(&m->sim);
        m->n_works[order->target]++;
    }
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
    return true;
}

static bool is_listed(const heft__order_t *order, const char *digest)
{
    for (uint32_t i = 0; i < order->n_objects; i++) {
        if (strcmp(order->objects[i], digest) == 0) {
            return true;
        }
    }
    return false;
}

/* Get the list of sources: what it names must be among the order's objects. */
static void note_sources(fleet_member_t *m, const heft__order_t *order)
{
    char path[128];
    char *text = NULL;
    heft__source_t *sources = NULL;
    uint32_t n = 0;
    uint32_t n_listed = 0;
    int code;
    heft_error_t err = HEFT_ERROR_INIT;
    (void)snprintf(path, sizeof path, "/v1/objects/%s", order->sources);
    if (is_listed(order, order->sources) &&
        send_text(m, "GET", path, NULL, &code, &text, &err) == HEFT_OK &&
        heft__source_list_decode(text, strlen(text), &sources, &n, &err) == HEFT_OK) {
        for (uint32_t i = 0; i < n; i++) {
            n_listed += is_listed(order, sources[i].manifest);
        }
    }
    (void)pthread_mutex_lock(&m->lock);
    memcpy(m->sources, order->sources, sizeof m->sources);
    m->n_sources = n_listed == n ? n : 0;
    (void)pthread_mutex_unlock(&m->lock);
    heft__free(sources);
    heft__free(text);
}

static void take_order(fleet_member_t *m, const heft__order_t *order)
{
    heft__round_member_t as_slot;
    memset(&as_slot, 0, sizeof as_slot);
    as_slot.order_seq = order->sequence;
    as_slot.target = order->target;
    as_slot.order_round = order->round;
    (void)pthread_mutex_lock(&m->lock);
    sim_take(&m->sim, &as_slot, order->decision, order->version);
    if (order->movers > 0) {
        m->extra.movers = order->movers;
        m->extra.version = order->version;
        memcpy(m->extra.source_digest, order->source_digest, sizeof m->extra.source_digest);
    }
    m->n_orders[order->target]++;
    m->dead = m->die_phase == order->target;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
}

static bool is_working(fleet_member_t *m)
{
    (void)pthread_mutex_lock(&m->lock);
    const bool working = m->sim.result == HEFT__RESULT_WORKING;
    (void)pthread_mutex_unlock(&m->lock);
    return working;
}

static bool come_in(fleet_member_t *m)
{
    const bool ok = register_member(m);
    (void)pthread_mutex_lock(&m->lock);
    m->bound = ok;
    (void)pthread_cond_broadcast(&m->changed);
    if (!ok && !m->stop) {
        struct timespec ts; /* the coordinator is away: try again soon */
        deadline_in(&ts, 20 * 1000000);
        (void)pthread_cond_timedwait(&m->changed, &m->lock, &ts);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return ok;
}

static void *run_member(void *arg)
{
    fleet_member_t *m = arg;
    heft__order_t order;
    heft__order_init(&order);
    bool in = false;
    while (!is_stopped(m)) {
        if (!in) {
            in = come_in(m);
            continue;
        }
        heft__order_t fresh;
        heft__order_init(&fresh);
        int code = 0;
        const heft_status_t status = poll_once(m, is_working(m) ? 0 : 5000, &fresh, &code);
        if (status != HEFT_OK) {
            in = false;
            continue;
        }
        if (code == 200) {
            heft__order_fini(&order);
            order = fresh;
            if (order.target == HEFT__PHASE_PREFLIGHT) {
                note_sources(m, &order);
            }
            take_order(m, &order);
            if (is_working(m)) {
                continue; /* say first that it has begun */
            }
        }
        if (is_working(m) && !is_stopped(m)) {
            (void)finish_work(m, &order);
        }
    }
    heft__order_fini(&order);
    return NULL;
}

void fleet_member_start(fleet_member_t *m, const char *url, heft__role_t role, uint32_t replica,
                        uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    m->url = url;
    m->replica = replica;
    m->rank = rank;
    m->stop = false;
    m->dead = false;
    m->bound = false;
    sim_init(&m->sim, role, 0);
    heft__report_init(&m->extra);
    EXPECT_STATUS(heft__incarnation_create(m->incarnation, &err), HEFT_OK);
    EXPECT_STATUS(heft__http_create(&(heft__access_t){ .url = url }, &m->http, &err), HEFT_OK);
    assert_int_equal(pthread_mutex_init(&m->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&m->changed, NULL), 0);
    assert_int_equal(pthread_create(&m->thread, NULL, run_member, m), 0);
}

void fleet_member_stop(fleet_member_t *m)
{
    (void)pthread_mutex_lock(&m->lock);
    m->stop = true;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
    heft__http_abort(m->http);
    assert_int_equal(pthread_join(m->thread, NULL), 0);
    heft__http_destroy(m->http);
    (void)pthread_cond_destroy(&m->changed);
    (void)pthread_mutex_destroy(&m->lock);
}

void fleet_member_release(fleet_member_t *m)
{
    (void)pthread_mutex_lock(&m->lock);
    m->hold_phase = HEFT__PHASE_NONE;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
}

static void await(fleet_member_t *m, bool (*holds)(const fleet_member_t *m, int arg), int arg,
                  const char *what)
{
    struct timespec ts;
    deadline_in(&ts, FLEET_WAIT_NS);
    (void)pthread_mutex_lock(&m->lock);
    while (!holds(m, arg)) {
        if (pthread_cond_timedwait(&m->changed, &m->lock, &ts) != 0) {
            (void)pthread_mutex_unlock(&m->lock);
            fail_msg("waited 60 s for %s", what);
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
}

static bool is_bound(const fleet_member_t *m, int arg)
{
    (void)arg;
    return m->bound;
}

static bool has_order(const fleet_member_t *m, int arg)
{
    return m->n_orders[arg] > 0;
}

void fleet_await_bound(fleet_member_t *m)
{
    await(m, is_bound, 0, "a member to be bound");
}

void fleet_await_order(fleet_member_t *m, heft__phase_t target)
{
    await(m, has_order, (int)target, heft__phase_text(target));
}

sim_t fleet_member_get(fleet_member_t *m)
{
    (void)pthread_mutex_lock(&m->lock);
    const sim_t sim = m->sim;
    (void)pthread_mutex_unlock(&m->lock);
    return sim;
}

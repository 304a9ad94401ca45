/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: what people and monitors look at: status, metrics, page.
 */
#include "sync/coordinator.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void heft__serve_status_locked(heft_coordinator_t *c, heft__call_t *call)
{
    heft__call_json(call, 200, heft__coordinator_status_locked(c));
}

/* page.html, by EmbedText.cmake; the terminating NUL is not counted. */
extern const unsigned char heft__page[];
extern const size_t heft__page_bytes;

static void reply_text(heft__call_t *call, const char *type, heft__text_t *text)
{
    const size_t n = text->len;
    char *taken = heft__text_take(text);
    heft__text_fini(text);
    if (taken == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return;
    }
    heft__call_text(call, 200, type, taken, n);
}

static void put_metric(heft__text_t *text, const char *name, const char *type, const char *help,
                       double value)
{
    heft__text_printf(text, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name,
                      value);
}

static void put_head(heft__text_t *text, const char *name, const char *type, const char *help)
{
    heft__text_printf(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_phases(heft__text_t *text, const heft_coordinator_t *c)
{
    put_head(text, "heft_phase_seconds_total", "counter", "Time of ended rounds, by phase.");
    for (int p = HEFT__PHASE_MANIFEST; p < HEFT__N_PHASES; p++) {
        heft__text_printf(text, "heft_phase_seconds_total{phase=\"%s\"} %.17g\n",
                          heft__phase_text((heft__phase_t)p), (double)c->phase_ns[p] / 1e9);
    }
}

static double live_version_of(const heft__round_member_t *m, int64_t now)
{
    (void)now;
    return (double)m->live_version;
}

static double is_serving(const heft__round_member_t *m, int64_t now)
{
    (void)now;
    return m->serving;
}

static double is_sick(const heft__round_member_t *m, int64_t now)
{
    (void)now;
    return m->poison != HEFT__POISON_NONE || m->condition != HEFT__CONDITION_OK;
}

static double silence_of(const heft__round_member_t *m, int64_t now)
{
    return (double)heft__max_i64(now - m->contact_ns, 0) / 1e9;
}

/* Ids have no character that a label would have to escape. */
static void put_members(heft__text_t *text, const heft_coordinator_t *c)
{
    static const struct {
        const char *name, *help;
        double (*get)(const heft__round_member_t *m, int64_t now);
        bool destinations_only;
    } gauges[] = {
        { "heft_member_live_version", "Version that the member serves; 0: none.", live_version_of,
          true },
        { "heft_member_serving", "1 while the member serves.", is_serving, true },
        { "heft_member_poisoned", "1 while the member waits for recovery.", is_sick, false },
        { "heft_member_silent_seconds", "Since the member was last heard.", silence_of, false },
    };
    const int64_t now = heft__clock_mono_ns();
    for (size_t g = 0; g < sizeof gauges / sizeof gauges[0]; g++) {
        put_head(text, gauges[g].name, "gauge", gauges[g].help);
        for (uint32_t i = 0; i < c->round.n_members; i++) {
            const heft__round_member_t *m = &c->round.members[i];
            if (m->used && c->entries[i] != NULL &&
                (m->role == HEFT__ROLE_DESTINATION || !gauges[g].destinations_only)) {
                heft__text_printf(text, "%s{member=\"%s\"} %.17g\n", gauges[g].name,
                                  c->entries[i]->id, gauges[g].get(m, now));
            }
        }
    }
}

void heft__serve_metrics_locked(heft_coordinator_t *c, heft__call_t *call)
{
    const heft__round_t *r = &c->round;
    int32_t slot;
    const char *why;
    uint32_t n[3] = { 0, 0, 0 };
    uint32_t serving = 0;
    const int64_t now = heft__clock_mono_ns();
    for (uint32_t i = 0; i < r->n_members; i++) {
        n[r->members[i].used ? r->members[i].role : 0]++;
        serving += r->members[i].used && r->members[i].serving &&
                   now - r->members[i].contact_ns <= r->config.contact_ns;
    }
    heft__text_t text;
    heft__text_init(&text);
    put_metric(&text, "heft_committed_version", "gauge", "Last version decided.",
               (double)r->committed_version);
    put_metric(&text, "heft_epoch", "gauge", "Epoch of this coordinator.", (double)r->epoch);
    put_metric(&text, "heft_round_in_flight", "gauge", "1 while a round has work for members.",
               heft__round_is_busy(r));
    put_metric(&text, "heft_poisoned", "gauge", "1 while no round can begin before recovery.",
               heft__round_is_poisoned(r, &slot, &why));
    put_metric(&text, "heft_sources", "gauge", "Registered sources.", n[HEFT__ROLE_SOURCE]);
    put_metric(&text, "heft_destinations", "gauge", "Registered destinations.",
               n[HEFT__ROLE_DESTINATION]);
    put_metric(&text, "heft_destinations_serving", "gauge",
               "Destinations that serve and are in contact.", serving);
    heft__text_put(&text, "# HELP heft_rounds_total Rounds by outcome.\n"
                          "# TYPE heft_rounds_total counter\n");
    static const char *const outcomes[] = { "committed", "aborted", "passed", "in_doubt" };
    for (int i = 0; i < 4; i++) {
        heft__text_printf(&text, "heft_rounds_total{outcome=\"%s\"} %" PRIu64 "\n", outcomes[i],
                          c->n_rounds[i]);
    }
    put_head(&text, "heft_feeds_total", "counter", "Late joins from a peer, by outcome.");
    heft__text_printf(&text,
                      "heft_feeds_total{outcome=\"committed\"} %" PRIu64
                      "\nheft_feeds_total{outcome=\"failed\"} %" PRIu64 "\n",
                      c->n_feeds[0], c->n_feeds[1]);
    put_metric(&text, "heft_moved_bytes_total", "counter", "Payload bytes of committed rounds.",
               (double)c->bytes_moved);
    put_metric(&text, "heft_last_round_seconds", "gauge", "Duration of the last push.",
               (double)c->last_round_ns / 1e9);
    put_metric(&text, "heft_last_downtime_seconds", "gauge", "Pause to resume of the last push.",
               (double)c->last_downtime_ns / 1e9);
    put_metric(&text, "heft_objects", "gauge", "Objects in the store.", (double)c->objects.n_items);
    put_metric(&text, "heft_object_bytes", "gauge", "Bytes in the object store.",
               (double)c->objects.bytes);
    put_metric(&text, "heft_calls_waiting", "gauge", "HTTP requests that wait for a change.",
               c->n_waiting);
    put_metric(&text, "heft_http_requests_total", "counter", "HTTP requests handled.",
               (double)c->n_requests);
    put_metric(&text, "heft_http_errors_total", "counter", "HTTP requests refused.",
               (double)c->n_errors);
    put_metric(&text, "heft_round_log_errors_total", "counter", "Rounds that were not recorded.",
               (double)c->n_log_errors);
    put_metric(&text, "heft_committed_rounds_seconds_total", "counter", "Time of committed rounds.",
               (double)c->round_ns / 1e9);
    put_metric(&text, "heft_downtime_seconds_total", "counter",
               "Pause to resume of committed rounds.", (double)c->downtime_ns / 1e9);
    put_phases(&text, c);
    put_members(&text, c);
    reply_text(call, "text/plain; version=0.0.4; charset=utf-8", &text);
}

void heft__serve_page(heft_coordinator_t *c, heft__call_t *call)
{
    (void)c;
    char *text = heft__malloc(heft__page_bytes + 1);
    if (text == NULL) {
        heft__call_error(call, 500, HEFT_ERR_NOMEM, "out of memory");
        return;
    }
    memcpy(text, heft__page, heft__page_bytes + 1);
    heft__call_text(call, 200, "text/html; charset=utf-8", text, heft__page_bytes);
}

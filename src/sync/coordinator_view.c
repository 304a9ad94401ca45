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

void heft__serve_metrics_locked(heft_coordinator_t *c, heft__call_t *call)
{
    const heft__round_t *r = &c->round;
    int32_t slot;
    const char *why;
    uint32_t n[3] = { 0, 0, 0 };
    uint32_t serving = 0;
    for (uint32_t i = 0; i < r->n_members; i++) {
        n[r->members[i].used ? r->members[i].role : 0]++;
        serving += r->members[i].used && r->members[i].serving;
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
    put_metric(&text, "heft_destinations_serving", "gauge", "Destinations that serve.", serving);
    heft__text_put(&text, "# HELP heft_rounds_total Rounds by outcome.\n"
                          "# TYPE heft_rounds_total counter\n");
    static const char *const outcomes[] = { "committed", "aborted", "passed", "in_doubt" };
    for (int i = 0; i < 4; i++) {
        heft__text_printf(&text, "heft_rounds_total{outcome=\"%s\"} %" PRIu64 "\n", outcomes[i],
                          c->n_rounds[i]);
    }
    put_metric(&text, "heft_moved_bytes_total", "counter", "Payload bytes of committed rounds.",
               (double)c->bytes_moved);
    put_metric(&text, "heft_last_round_seconds", "gauge", "Duration of the last round.",
               (double)r->total_ns / 1e9);
    put_metric(&text, "heft_last_downtime_seconds", "gauge", "Pause to resume of the last round.",
               (double)r->downtime_ns / 1e9);
    put_metric(&text, "heft_objects", "gauge", "Objects in the store.", (double)c->objects.n_items);
    put_metric(&text, "heft_object_bytes", "gauge", "Bytes in the object store.",
               (double)c->objects.bytes);
    put_metric(&text, "heft_calls_waiting", "gauge", "HTTP requests that wait for a change.",
               c->n_waiting);
    put_metric(&text, "heft_http_requests_total", "counter", "HTTP requests handled.",
               (double)c->n_requests);
    put_metric(&text, "heft_http_errors_total", "counter", "HTTP requests refused.",
               (double)c->n_errors);
    reply_text(call, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static void put_escaped(heft__text_t *text, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"') {
            heft__text_printf(text, "&#%d;", *s);
        } else {
            heft__text_put_n(text, s, 1);
        }
    }
}

static void put_row(heft__text_t *text, const heft_coordinator_t *c, uint32_t slot, int64_t now)
{
    const heft__round_member_t *m = &c->round.members[slot];
    heft__text_put(text, "<tr><td>");
    put_escaped(text, c->entries[slot]->id);
    heft__text_printf(text,
                      "</td><td>%s</td><td>%s %s</td><td>%lld</td><td>%s</td><td>%s</td>"
                      "<td>%.1f</td></tr>\n",
                      heft__state_text(m->state), heft__phase_text(m->phase),
                      heft__result_text(m->result), (long long)m->live_version,
                      m->serving ? "yes" : "no",
                      m->poison != HEFT__POISON_NONE ? heft__poison_text(m->poison)
                      : m->excluded                  ? "excluded until it reports"
                                                     : heft__condition_text(m->condition),
                      (double)(now - m->contact_ns) / 1e9);
}

void heft__serve_page_locked(heft_coordinator_t *c, heft__call_t *call)
{
    const heft__round_t *r = &c->round;
    const int64_t now = heft__clock_mono_ns();
    int32_t slot;
    const char *why;
    char id[HEFT__ROUND_TEXT_SIZE];
    heft__round_id_format(r->id, id);
    heft__text_t text;
    heft__text_init(&text);
    heft__text_put(&text,
                   "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" "
                   "content=\"2\"><title>heft</title><style>body{font:14px sans-serif;margin:2em}"
                   "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}"
                   "</style><h1>heft</h1>\n");
    heft__text_printf(
        &text, "<p>committed version <b>%lld</b>, round %s: <b>%s</b>%s%s, epoch %lld</p>\n",
        (long long)r->committed_version, r->id.epoch > 0 ? id : "none",
        r->id.epoch > 0 ? heft__round_state_text(r) : "idle",
        heft__round_is_busy(r) ? ", phase " : "",
        heft__round_is_busy(r) ? heft__phase_text(r->phase) : "", (long long)r->epoch);
    if (heft__round_is_poisoned(r, &slot, &why)) {
        heft__text_printf(&text, "<p><b>poisoned</b>: %s</p>\n", why);
    }
    heft__text_put(&text, "<table><tr><th>member</th><th>state</th><th>last phase</th>"
                          "<th>live version</th><th>serving</th><th>condition</th>"
                          "<th>seconds since contact</th></tr>\n");
    for (uint32_t i = 0; i < r->n_members; i++) {
        if (c->entries[i] != NULL && r->members[i].used) {
            put_row(&text, c, i, now);
        }
    }
    heft__text_put(&text, "</table><p><a href=\"/v1/status\">status</a> "
                          "<a href=\"/metrics\">metrics</a></p>\n");
    reply_text(call, "text/html; charset=utf-8", &text);
}

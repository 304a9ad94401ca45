/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: the report, a member's whole state.
 */
#include <stddef.h>
#include <string.h>

#include "sync/wire_json.h"

#define AT(member) offsetof(heft__report_t, member)
#define HEX64(key, member)                                     \
    {                                                          \
        (key), HEFT__FIELD_HEX, false, AT(member), 0, 64, NULL \
    }
static const heft__field_t report_fields[] = {
    { "incarnation", HEFT__FIELD_HEX, true, AT(incarnation), 0, 32, NULL },
    { "epoch", HEFT__FIELD_INT, true, AT(epoch), 1, HEFT__WIRE_MAX_INT, NULL },
    { "sequence", HEFT__FIELD_INT, true, AT(sequence), 1, HEFT__WIRE_MAX_INT, NULL },
    { "order", HEFT__FIELD_INT, true, AT(order), 0, HEFT__WIRE_MAX_INT, NULL },
    { "wait_ms", HEFT__FIELD_U32, true, AT(wait_ms), 0, INT32_MAX, NULL },
    { "round", HEFT__FIELD_ROUND, false, AT(round), 0, 0, NULL },
    { "phase", HEFT__FIELD_ENUM, false, AT(phase), 0, 0, heft__phase_names },
    { "result", HEFT__FIELD_ENUM, false, AT(result), 0, 0, heft__result_names },
    { "state", HEFT__FIELD_ENUM, true, AT(state), 0, 0, heft__state_names },
    { "condition", HEFT__FIELD_ENUM, true, AT(condition), 0, 0, heft__condition_names },
    { "error", HEFT__FIELD_OBJECT, false, 0, 0, 0, NULL },
    { "live_version", HEFT__FIELD_INT, true, AT(live_version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "serving", HEFT__FIELD_BOOL, true, AT(serving), 0, 0, NULL },
    HEX64("live_digest", live_digest),
    HEX64("plan", plan),
    HEX64("plans", plans),
    HEX64("source_digest", source_digest),
    HEX64("digests", digests),
    HEX64("live", live),
    { "version", HEFT__FIELD_INT, false, AT(version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "movers", HEFT__FIELD_U32, false, AT(movers), 0, INT32_MAX, NULL },
    { "counters", HEFT__FIELD_OBJECT, false, 0, 0, 0, NULL },
    { "ways", HEFT__FIELD_TEXT, false, AT(ways), 0, HEFT__WAYS_SIZE, NULL },
    { "problems", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    { "absent", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef HEX64
#undef AT

#define AT(member) offsetof(heft__wire_error_t, member)
const heft__field_t heft__error_fields[] = {
    { "status", HEFT__FIELD_STATUS, true, AT(status), 0, 0, NULL },
    { "phase", HEFT__FIELD_ENUM, true, AT(phase), 0, 0, heft__phase_names },
    { "tensor", HEFT__FIELD_TEXT, false, AT(tensor), 0, 256, NULL },
    { "route", HEFT__FIELD_TEXT, false, AT(route), 0, 128, NULL },
    { "peer", HEFT__FIELD_TEXT, false, AT(peer), 0, HEFT__ID_SIZE, NULL },
    { "cause", HEFT__FIELD_TEXT, true, AT(cause), 0, 256, NULL },
    { "rank", HEFT__FIELD_RANK, false, AT(rank), 0, INT32_MAX, NULL },
    HEFT__FIELD_END
};
#undef AT

#define AT(member) offsetof(heft__counters_t, member)
#define COUNT(name)                                                          \
    {                                                                        \
#name, HEFT__FIELD_INT, false, AT(name), 0, HEFT__WIRE_MAX_INT, NULL \
    }
const heft__field_t heft__counter_fields[] = { COUNT(bytes),    COUNT(pieces),    COUNT(chunks),
                                               COUNT(resent),   COUNT(forwarded), COUNT(prepare_ns),
                                               COUNT(stage_ns), COUNT(verify_ns), COUNT(pause_ns),
                                               COUNT(flip_ns),  HEFT__FIELD_END };
#undef COUNT
#undef AT

typedef struct problem_message {
    heft__problem_kind_t kind;
    uint32_t total;
} problem_message_t;

static const heft__field_t problem_fields[] = {
    { "kind", HEFT__FIELD_ENUM, true, offsetof(problem_message_t, kind), 0, 0,
      heft__problem_names },
    { "total", HEFT__FIELD_U32, true, offsetof(problem_message_t, total), 1, INT32_MAX, NULL },
    { "items", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
    HEFT__FIELD_END
};

void heft__report_init(heft__report_t *report)
{
    memset(report, 0, sizeof *report);
    report->error.rank = -1;
}

void heft__report_fini(heft__report_t *report)
{
    heft__problems_fini(&report->problems);
    heft__report_set_absent(report, NULL, 0);
}

void heft__report_set_absent(heft__report_t *report, char (*absent)[HEFT__ID_SIZE], uint32_t n)
{
    heft__free(report->absent);
    report->absent = absent;
    report->n_absent = n;
}

/* ---- encode ---- */

json_t *heft__json_error(const heft__wire_error_t *error)
{
    json_t *object = json_object();
    if (object != NULL && heft__json_write(object, heft__error_fields, error, NULL) != HEFT_OK) {
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *heft__json_counters(const heft__counters_t *counters)
{
    json_t *object = json_object();
    if (object != NULL &&
        heft__json_write(object, heft__counter_fields, counters, NULL) != HEFT_OK) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *problem_json(heft__problem_kind_t kind, const heft__problem_t *problem)
{
    json_t *items = json_array();
    for (uint32_t i = 0; items != NULL && i < problem->n_items; i++) {
        if (json_array_append_new(items, heft__json_text(problem->items[i])) != 0) {
            json_decref(items);
            return NULL;
        }
    }
    return items == NULL ? NULL
                         : json_pack("{s:s,s:I,s:o}", "kind", heft__problem_text(kind), "total",
                                     (json_int_t)problem->total, "items", items);
}

json_t *heft__json_problems(const heft__problems_t *problems)
{
    json_t *list = json_array();
    for (int k = 0; list != NULL && k < HEFT__N_PROBLEM_KINDS; k++) {
        if (problems->kinds[k].total > 0 &&
            json_array_append_new(
                list, problem_json((heft__problem_kind_t)k, &problems->kinds[k])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *absent_json(const heft__report_t *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < report->n_absent; i++) {
        if (json_array_append_new(list, json_string(report->absent[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static bool counters_are_empty(const heft__counters_t *c)
{
    return (c->bytes | c->pieces | c->chunks | c->resent | c->forwarded | c->prepare_ns |
            c->stage_ns | c->verify_ns | c->pause_ns | c->flip_ns) == 0;
}

heft_status_t heft__report_encode(const heft__report_t *msg, char **text_out, heft_error_t *err)
{
    json_t *root = json_object();
    heft_status_t status =
        root == NULL ? heft__error_nomem(err, 0) : heft__json_write(root, report_fields, msg, err);
    bool ok = status == HEFT_OK;
    if (ok && msg->error.status != HEFT_OK) {
        ok = heft__json_put(root, "error", heft__json_error(&msg->error));
    }
    if (ok && !counters_are_empty(&msg->counters)) {
        ok = heft__json_put(root, "counters", heft__json_counters(&msg->counters));
    }
    if (ok && heft__problems_total(&msg->problems) > 0) {
        ok = heft__json_put(root, "problems", heft__json_problems(&msg->problems));
    }
    if (ok && msg->n_absent > 0) {
        ok = heft__json_put(root, "absent", absent_json(msg));
    }
    if (!ok) {
        json_decref(root);
        return status != HEFT_OK ? status : heft__error_nomem(err, 0);
    }
    return heft__json_finish(root, text_out, err);
}

/* ---- decode ---- */

static heft_status_t read_problem(json_t *item, heft__problems_t *out, heft_error_t *err)
{
    problem_message_t head;
    memset(&head, 0, sizeof head);
    if (!json_is_object(item)) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "report problems: not a list of objects");
    }
    heft_status_t status = heft__json_read(item, problem_fields, "report problems", &head, err);
    if (status != HEFT_OK) {
        return status;
    }
    json_t *items = json_object_get(item, "items");
    const size_t n = json_array_size(items);
    heft__problem_t *kind = &out->kinds[head.kind];
    if (kind->total > 0 || n == 0 || n > HEFT__MAX_PROBLEMS || n > head.total) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "report problems: kind \"%s\" has %zu items of %u, or twice",
                               heft__problem_text(head.kind), n, head.total);
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(items, i));
        if (text == NULL) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "report problems: kind \"%s\": item %zu is not a string",
                                   heft__problem_text(head.kind), i);
        }
        status = heft__problems_add(out, head.kind, err, "%s", text);
        if (status != HEFT_OK) {
            return status;
        }
    }
    kind->total = head.total;
    return HEFT_OK;
}

/* What the table cannot say: which fields go together. */
static heft_status_t check_report(const heft__report_t *r, bool has_error, heft_error_t *err)
{
    const char *wrong = NULL;
    const bool bad = r->result == HEFT__RESULT_REFUSED || r->result == HEFT__RESULT_FAILED ||
                     r->result == HEFT__RESULT_UNKNOWN;
    if ((r->phase == HEFT__PHASE_NONE) != (r->result == HEFT__RESULT_NONE)) {
        wrong = "phase and result go together";
    } else if (r->phase != HEFT__PHASE_NONE && r->round.epoch == 0) {
        wrong = "phase without round";
    } else if (bad != has_error) {
        wrong = "error goes with refused, failed and unknown";
    } else if (has_error && r->error.status >= HEFT_OK) {
        wrong = "error has a status that is none";
    } else if ((r->live_version == 0) != (r->live_digest[0] == '\0')) {
        wrong = "live_digest goes with live_version";
    } else if (r->serving && r->live_version == 0) {
        wrong = "serving without a live version";
    }
    return wrong == NULL ? HEFT_OK : heft__error_set(err, HEFT_ERR_FORMAT, "report: %s", wrong);
}

static heft_status_t read_report(json_t *root, heft__report_t *out, heft_error_t *err)
{
    heft_status_t status = heft__json_read(root, report_fields, "report", out, err);
    json_t *error = json_object_get(root, "error");
    if (status == HEFT_OK && error != NULL) {
        status = heft__json_read(error, heft__error_fields, "report error", &out->error, err);
    }
    json_t *counters = json_object_get(root, "counters");
    if (status == HEFT_OK && counters != NULL) {
        status =
            heft__json_read(counters, heft__counter_fields, "report counters", &out->counters, err);
    }
    json_t *problems = json_object_get(root, "problems");
    for (size_t i = 0; status == HEFT_OK && i < json_array_size(problems); i++) {
        status = read_problem(json_array_get(problems, i), &out->problems, err);
    }
    json_t *absent = json_object_get(root, "absent");
    if (status == HEFT_OK && absent != NULL) {
        status = heft__json_read_ids(absent, "report", "absent", &out->absent, &out->n_absent, err);
    }
    return status == HEFT_OK ? check_report(out, error != NULL, err) : status;
}

heft_status_t heft__report_decode(const char *text, size_t n, heft__report_t *out,
                                  heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "report", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__report_t report;
    heft__report_init(&report);
    status = read_report(root, &report, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__report_fini(&report);
        return status;
    }
    *out = report;
    return HEFT_OK;
}

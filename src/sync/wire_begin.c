/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: a caller's side: begin a round, read its result.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "sync/wire_json.h"

#define AT(member) offsetof(heft__begin_t, member)
static const heft__field_t begin_fields[] = {
    { "version", HEFT__FIELD_INT, true, AT(version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "key", HEFT__FIELD_TEXT, true, AT(key), 1, HEFT__KEY_SIZE, NULL },
    { "destinations", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    { "deadlines", HEFT__FIELD_OBJECT, false, 0, 0, 0, NULL },
    { "carries", HEFT__FIELD_ENUM, false, AT(carries), 0, 0, heft__carries_names },
    { "models", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef AT

#define LIMIT(name)                                                                          \
    {                                                                                        \
#name, HEFT__FIELD_U32, false, offsetof(heft__deadlines_t, name), 1, INT32_MAX, NULL \
    }
static const heft__field_t deadline_fields[] = {
    LIMIT(preflight_ms), LIMIT(prepare_ms), LIMIT(stage_ms), LIMIT(verify_ms),
    LIMIT(pause_ms),     LIMIT(decide_ms),  LIMIT(flip_ms),  LIMIT(resume_ms),
    LIMIT(release_ms),   LIMIT(abort_ms),   HEFT__FIELD_END
};
#undef LIMIT

#define AT(member) offsetof(heft__refusal_t, member)
static const heft__field_t refusal_fields[] = {
    { "number", HEFT__FIELD_ROUND, true, AT(number), 0, 0, NULL },
    { "version", HEFT__FIELD_INT, true, AT(version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "status", HEFT__FIELD_STATUS, true, AT(status), 0, 0, NULL },
    { "message", HEFT__FIELD_TEXT, true, AT(message), 0, sizeof((heft__refusal_t *)0)->message,
      NULL },
    HEFT__FIELD_END
};
#undef AT

heft_status_t heft__refusal_encode(const heft__refusal_t *refusal, char **text_out,
                                   heft_error_t *err)
{
    return heft__json_encode_flat(refusal_fields, refusal, text_out, err);
}

heft_status_t heft__refusal_read(json_t *object, heft__refusal_t *out, heft_error_t *err)
{
    heft__refusal_t refusal = { .version = 0 };
    heft_status_t status = heft__json_read(object, refusal_fields, "refusal", &refusal, err);
    if (status == HEFT_OK) {
        *out = refusal;
    }
    return status;
}

void heft__begin_fini(heft__begin_t *begin)
{
    heft__free(begin->destinations);
    heft__free(begin->models);
    memset(begin, 0, sizeof *begin);
}

static json_t *ids_json(char (*ids)[HEFT__ID_SIZE], uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_string(ids[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

heft_status_t heft__begin_encode(const heft__begin_t *msg, char **text_out, heft_error_t *err)
{
    json_t *root = json_object();
    json_t *deadlines = json_object();
    bool ok = root != NULL && deadlines != NULL &&
              heft__json_write(root, begin_fields, msg, err) == HEFT_OK &&
              heft__json_write(deadlines, deadline_fields, &msg->deadlines, err) == HEFT_OK;
    if (ok && msg->n_destinations > 0) {
        ok = heft__json_put(root, "destinations", ids_json(msg->destinations, msg->n_destinations));
    }
    if (ok && msg->n_models > 0) {
        ok = heft__json_put(root, "models", ids_json(msg->models, msg->n_models));
    }
    if (ok && json_object_size(deadlines) > 0) {
        ok = json_object_set(root, "deadlines", deadlines) == 0;
    }
    json_decref(deadlines);
    if (!ok) {
        json_decref(root);
        return heft__error_nomem(err, 0);
    }
    return heft__json_finish(root, text_out, err);
}

static heft_status_t read_begin(json_t *root, heft__begin_t *out, heft_error_t *err)
{
    if (json_object_get(root, "version") == NULL) {
        return heft__error_set(err, HEFT_ERR_VERSION,
                               "version_missing: a round needs a version of 1 or more");
    }
    heft_status_t status = heft__json_read(root, begin_fields, "begin", out, err);
    if (status == HEFT_OK && out->version == 0) {
        return heft__error_set(err, HEFT_ERR_VERSION,
                               "version_missing: version 0 stands for none; versions start at 1");
    }
    json_t *deadlines = json_object_get(root, "deadlines");
    if (status == HEFT_OK && deadlines != NULL) {
        status =
            heft__json_read(deadlines, deadline_fields, "begin deadlines", &out->deadlines, err);
    }
    json_t *ids = json_object_get(root, "destinations");
    if (status == HEFT_OK && ids != NULL) {
        status = heft__json_read_ids(ids, "begin", "destinations", &out->destinations,
                                     &out->n_destinations, err);
    }
    if (status == HEFT_OK && json_object_get(root, "carries") != NULL &&
        out->carries == HEFT__CARRIES_UNSAID) {
        status = heft__error_set(err, HEFT_ERR_FORMAT,
                                 "begin: key \"carries\" is none of base, merged, adapter");
    }
    json_t *models = json_object_get(root, "models");
    if (status == HEFT_OK && models != NULL) {
        status = heft__json_read_ids(models, "begin", "models", &out->models, &out->n_models, err);
    }
    return status;
}

heft_status_t heft__begin_decode(const char *text, size_t n, heft__begin_t *out, heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "begin", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__begin_t begin;
    memset(&begin, 0, sizeof begin);
    status = read_begin(root, &begin, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__begin_fini(&begin);
        return status;
    }
    *out = begin;
    return HEFT_OK;
}

/* ---- result ---- */

/* Text of a key into a bounded field; "" when it is absent or too long. */
static void copy_text(json_t *object, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));
    (void)snprintf(out, size, "%s", text != NULL ? text : "");
}

static double real_of(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : 0;
}

static void read_cause(json_t *cause, heft__outcome_t *out)
{
    char text[32];
    copy_text(cause, "member", out->cause_member, sizeof out->cause_member);
    copy_text(cause, "tensor", out->cause.tensor, sizeof out->cause.tensor);
    copy_text(cause, "route", out->cause.route, sizeof out->cause.route);
    copy_text(cause, "peer", out->cause.peer, sizeof out->cause.peer);
    copy_text(cause, "cause", out->cause.cause, sizeof out->cause.cause);
    copy_text(cause, "status", text, sizeof text);
    if (!heft__status_from_name(text, &out->cause.status) || out->cause.status >= HEFT_OK) {
        out->cause.status = HEFT_ERR_PROTOCOL;
    }
    copy_text(cause, "phase", text, sizeof text);
    for (const heft__name_t *name = heft__phase_names; name->text != NULL; name++) {
        if (strcmp(name->text, text) == 0) {
            out->cause.phase = (heft__phase_t)name->value;
        }
    }
    json_t *rank = json_object_get(cause, "rank");
    const json_int_t r = json_is_integer(rank) ? json_integer_value(rank) : -1;
    out->cause.rank = r >= 0 && r <= INT32_MAX ? (int32_t)r : -1;
}

static bool is_text(json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL && strcmp(value, text) == 0;
}

static void read_problems(json_t *list, heft__outcome_t *out)
{
    bool has_side = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *problem = json_array_get(list, i);
        const json_int_t total = json_integer_value(json_object_get(problem, "total"));
        if (total > 0 && total < INT32_MAX) {
            out->n_problems += (uint32_t)total;
        }
        const char *text = json_string_value(json_array_get(json_object_get(problem, "items"), 0));
        /* a side that is not as it should be explains much of what the others find */
        const bool is_side = is_text(problem, "kind", "side");
        const bool is_better = is_side && !has_side;
        has_side = has_side || is_side;
        if (text != NULL && (out->first_problem[0] == '\0' || is_better)) {
            char member[HEFT__ID_SIZE];
            copy_text(problem, "member", member, sizeof member);
            (void)snprintf(out->first_problem, sizeof out->first_problem, "%s: %s", member, text);
        }
    }
}

static void count_destinations(json_t *list, heft__outcome_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *member = json_array_get(list, i);
        const char *role = json_string_value(json_object_get(member, "role"));
        if (role != NULL && strcmp(role, "destination") == 0 &&
            json_is_true(json_object_get(member, "moves"))) {
            out->n_destinations++;
        }
    }
}

/* Who has been given an order for the present phase and has not said that it is done. */
static void find_awaited(json_t *list, heft__outcome_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *member = json_array_get(list, i);
        const bool is_done =
            is_text(member, "phase", out->phase) && is_text(member, "result", "ok");
        if (is_text(member, "order", out->phase) && !is_done && out->n_awaited++ == 0) {
            copy_text(member, "id", out->awaited, sizeof out->awaited);
        }
    }
}

/* Those that receive in place do it inside their flip. */
static void find_in_place(json_t *list, heft__outcome_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *member = json_array_get(list, i);
        json_t *flip_ns = json_object_get(json_object_get(member, "counters"), "flip_ns");
        const double s = (double)json_integer_value(flip_ns) / 1e9;
        if (json_is_true(json_object_get(member, "in_place")) && s > out->in_place_s) {
            out->in_place_s = s;
        }
    }
}

heft_status_t heft__outcome_decode(const char *text, size_t n, heft__outcome_t *out,
                                   heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "round result", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__outcome_t outcome;
    memset(&outcome, 0, sizeof outcome);
    heft__wire_error_reset(&outcome.cause);
    const char *round = json_string_value(json_object_get(root, "round"));
    json_t *ended = json_object_get(root, "ended");
    copy_text(root, "state", outcome.state, sizeof outcome.state);
    if (round == NULL || !heft__round_id_parse(round, &outcome.round) || !json_is_boolean(ended) ||
        outcome.state[0] == '\0') {
        json_decref(root);
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "round result: round, state or ended is missing or wrong");
    }
    outcome.ended = json_is_true(ended);
    outcome.version = json_integer_value(json_object_get(root, "version"));
    if (json_object_get(root, "cause") != NULL) {
        read_cause(json_object_get(root, "cause"), &outcome);
    }
    read_problems(json_object_get(root, "problems"), &outcome);
    count_destinations(json_object_get(root, "members"), &outcome);
    copy_text(root, "phase", outcome.phase, sizeof outcome.phase);
    find_awaited(json_object_get(root, "members"), &outcome);
    find_in_place(json_object_get(root, "members"), &outcome);
    outcome.bytes = json_integer_value(json_object_get(root, "bytes"));
    outcome.pieces = json_integer_value(json_object_get(root, "pieces"));
    json_t *seconds = json_object_get(root, "seconds");
    outcome.prepare_s = real_of(seconds, "prepare");
    outcome.stage_s = real_of(seconds, "stage");
    outcome.verify_s = real_of(seconds, "verify");
    outcome.pause_s = real_of(seconds, "downtime");
    outcome.total_s = real_of(seconds, "total");
    json_decref(root);
    *out = outcome;
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: names, identities, errors and problems; the messages are in wire_*.c.
 */
#include "sync/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sync/wire_json.h"

#define HEFT__NAMES(table, MAP, PREFIX) const heft__name_t table[] = { MAP(HEFT__X){ 0, NULL } }

#define HEFT__X(name, value, text) { (value), (text) },
HEFT__NAMES(heft__role_names, HEFT__ROLE_MAP, ROLE);
HEFT__NAMES(heft__phase_names, HEFT__PHASE_MAP, PHASE);
HEFT__NAMES(heft__result_names, HEFT__RESULT_MAP, RESULT);
HEFT__NAMES(heft__state_names, HEFT__STATE_MAP, STATE);
HEFT__NAMES(heft__condition_names, HEFT__CONDITION_MAP, CONDITION);
HEFT__NAMES(heft__decision_names, HEFT__DECISION_MAP, DECISION);
HEFT__NAMES(heft__carries_names, HEFT__CARRIES_MAP, CARRIES);
HEFT__NAMES(heft__problem_names, HEFT__PROBLEM_MAP, PROBLEM);
#undef HEFT__X

static const char *text_of(const heft__name_t *names, int value)
{
    for (; names->text != NULL; names++) {
        if (names->value == value) {
            return names->text;
        }
    }
    return "?";
}

const char *heft__role_text(heft__role_t role)
{
    return text_of(heft__role_names, (int)role);
}

const char *heft__phase_text(heft__phase_t phase)
{
    return text_of(heft__phase_names, (int)phase);
}

const char *heft__result_text(heft__result_t result)
{
    return text_of(heft__result_names, (int)result);
}

const char *heft__state_text(heft__member_state_t state)
{
    return text_of(heft__state_names, (int)state);
}

const char *heft__condition_text(heft__condition_t condition)
{
    return text_of(heft__condition_names, (int)condition);
}

const char *heft__decision_text(heft__decision_t decision)
{
    return text_of(heft__decision_names, (int)decision);
}

const char *heft__carries_text(heft__carries_t carries)
{
    return text_of(heft__carries_names, (int)carries);
}

const char *heft__problem_text(heft__problem_kind_t kind)
{
    return text_of(heft__problem_names, (int)kind);
}

/* ---- identities ---- */

void heft__round_id_format(heft__round_id_t id, char *out)
{
    (void)snprintf(out, HEFT__ROUND_TEXT_SIZE, "%lld.%lld", (long long)id.epoch, (long long)id.seq);
}

/* Digits without a leading zero, 1 to 2^53-1; the first character behind them, or NULL. */
static const char *parse_number(const char *text, int64_t *out)
{
    int64_t value = 0;
    if (*text < '1' || *text > '9') {
        return NULL;
    }
    for (; *text >= '0' && *text <= '9'; text++) {
        value = value * 10 + (*text - '0');
        if (value > HEFT__WIRE_MAX_INT) {
            return NULL;
        }
    }
    *out = value;
    return text;
}

bool heft__round_id_parse(const char *text, heft__round_id_t *out)
{
    heft__round_id_t id;
    text = parse_number(text, &id.epoch);
    if (text == NULL || *text != '.') {
        return false;
    }
    text = parse_number(text + 1, &id.seq);
    if (text == NULL || *text != '\0') {
        return false;
    }
    *out = id;
    return true;
}

heft_status_t heft__incarnation_create(char *out, heft_error_t *err)
{
    uint8_t bytes[16];
    heft_status_t status = heft__random_bytes(bytes, sizeof bytes, err);
    if (status == HEFT_OK) {
        heft__hex(bytes, sizeof bytes, out);
    }
    return status;
}

bool heft__is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return false;
        }
    }
    return text[n] == '\0';
}

bool heft__is_job(const char *text)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t n = strlen(text);
    return n > 0 && n < HEFT__JOB_SIZE && strspn(text, allowed) == n;
}

void heft__member_id_format(heft__role_t role, const char *job, uint32_t replica, uint32_t rank,
                            char *out)
{
    (void)snprintf(out, HEFT__ID_SIZE, "%s.%s.%u.%u", heft__role_text(role), job, replica, rank);
}

static bool read_number(const char *text, char stop, uint32_t *out)
{
    if (*text < '0' || *text > '9') {
        return false;
    }
    char *end = NULL;
    const unsigned long value = strtoul(text, &end, 10);
    *out = (uint32_t)value;
    return *end == stop && value <= UINT32_MAX;
}

bool heft__member_id_numbers(const char *id, uint32_t *replica_out, uint32_t *rank_out)
{
    const char *rank = strrchr(id, '.');
    if (rank == NULL) {
        return false;
    }
    const char *replica = rank;
    while (replica > id && replica[-1] != '.') {
        replica--;
    }
    return read_number(replica, '.', replica_out) && read_number(rank + 1, '\0', rank_out);
}

void heft__object_digest(const void *data, size_t n, char *out)
{
    heft__sha256_t hash;
    uint8_t digest[32];
    heft__sha256_init(&hash);
    heft__sha256_update(&hash, data, n);
    heft__sha256_final(&hash, digest);
    heft__hex(digest, sizeof digest, out);
}

/* ---- errors and problems ---- */

void heft__wire_error_reset(heft__wire_error_t *error)
{
    *error = (heft__wire_error_t){ .status = HEFT_OK, .rank = -1 };
}

void heft__wire_error_set(heft__wire_error_t *error, heft__phase_t phase, const heft_error_t *err)
{
    heft__wire_error_reset(error);
    error->status = err->status;
    error->phase = phase;
    (void)snprintf(error->cause, sizeof error->cause, "%s", err->message);
}

void heft__problems_fini(heft__problems_t *problems)
{
    for (size_t k = 0; k < HEFT__N_PROBLEM_KINDS; k++) {
        heft__problem_t *problem = &problems->kinds[k];
        for (uint32_t i = 0; i < problem->n_items; i++) {
            heft__free(problem->items[i]);
        }
    }
    memset(problems, 0, sizeof *problems);
}

uint32_t heft__problems_total(const heft__problems_t *problems)
{
    uint32_t total = 0;
    for (size_t k = 0; k < HEFT__N_PROBLEM_KINDS; k++) {
        total += problems->kinds[k].total;
    }
    return total;
}

heft_status_t heft__problems_add(heft__problems_t *problems, heft__problem_kind_t kind,
                                 heft_error_t *err, const char *fmt, ...)
{
    if ((unsigned)kind >= HEFT__N_PROBLEM_KINDS) {
        return HEFT_BUG(err, "problem kind out of range");
    }
    heft__problem_t *problem = &problems->kinds[kind];
    if (problem->n_items < HEFT__MAX_PROBLEMS) {
        char text[500];
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        char *copy = heft__strdup(text);
        if (copy == NULL) {
            return heft__error_nomem(err, sizeof text);
        }
        problem->items[problem->n_items++] = copy;
    }
    problem->total++;
    return HEFT_OK;
}

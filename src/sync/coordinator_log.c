/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinator: what it tells on its own: log lines as rounds and members change, and the file with
 * one JSON line for each round. The file is written by the ticker, without the lock.
 */
#include "sync/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_MODE 0640

/* ---- log lines ---- */

void heft__coordinator_log_member_locked(const heft_coordinator_t *c, uint32_t slot,
                                         const char *message)
{
    if (heft__log_max_level < HEFT_LOG_INFO || c->entries[slot] == NULL) {
        return;
    }
    const heft__round_member_t *m = &c->round.members[slot];
    const heft__logged_t fields[] = {
        HEFT__LOG_TEXT("member", c->entries[slot]->id),
        HEFT__LOG_TEXT("incarnation", c->entries[slot]->identity.incarnation),
        HEFT__LOG_INT("live_version", m->live_version),
        HEFT__LOG_TEXT("condition", heft__condition_text(m->condition)),
    };
    heft__log_event(HEFT_LOG_INFO, "coordinator", message, fields,
                    sizeof fields / sizeof fields[0]);
}

static void log_end(const heft_coordinator_t *c, const char *id)
{
    const heft__round_t *r = &c->round;
    const bool is_good = r->outcome == HEFT__ROUND_COMMITTED || r->outcome == HEFT__ROUND_IDLE;
    const heft_log_level_t level = is_good ? HEFT_LOG_INFO : HEFT_LOG_WARN;
    const bool has_cause = r->cause.status != HEFT_OK;
    const char *reporter = r->cause_slot >= 0 && c->entries[r->cause_slot] != NULL
                               ? c->entries[r->cause_slot]->id
                               : "coordinator";
    /* a source says that its receiver is gone: that one is to be looked after */
    const char *member = r->cause.peer[0] != '\0' ? r->cause.peer : reporter;
    const heft__logged_t fields[] = {
        HEFT__LOG_TEXT("round", id),
        HEFT__LOG_TEXT("kind", heft__round_kind_text(r->kind)),
        HEFT__LOG_INT("version", r->version),
        HEFT__LOG_TEXT("state", heft__round_state_text(r)),
        HEFT__LOG_REAL("downtime_s", (double)r->downtime_ns / 1e9),
        HEFT__LOG_TEXT("member", member),
        HEFT__LOG_TEXT("reported_by", reporter),
        HEFT__LOG_TEXT("phase", heft__phase_text(r->cause.phase)),
        HEFT__LOG_TEXT("cause", r->cause.cause),
    };
    if ((int)level <= heft__log_max_level) {
        heft__log_event(level, "coordinator", "round ended", fields, has_cause ? 9 : 5);
    }
}

static void log_phase(const heft_coordinator_t *c, const char *id)
{
    const heft__round_t *r = &c->round;
    const heft__logged_t fields[] = {
        HEFT__LOG_TEXT("round", id),
        HEFT__LOG_INT("version", r->version),
        HEFT__LOG_TEXT("state", heft__round_state_text(r)),
        HEFT__LOG_TEXT("phase", heft__phase_text(r->phase)),
    };
    if (heft__log_max_level >= HEFT_LOG_INFO) {
        heft__log_event(HEFT_LOG_INFO, "coordinator", "round phase", fields, 4);
    }
}

void heft__coordinator_note_locked(heft_coordinator_t *c)
{
    const heft__round_t *r = &c->round;
    char id[HEFT__ROUND_TEXT_SIZE];
    const bool is_new = !heft__round_id_equal(r->id, c->noted.id);
    if (r->id.epoch == 0 || (!is_new && r->state == c->noted.state && r->phase == c->noted.phase)) {
        return;
    }
    heft__round_id_format(r->id, id);
    const bool was_open = is_new || c->noted.is_open;
    c->noted.id = r->id;
    c->noted.state = r->state;
    c->noted.phase = r->phase;
    c->noted.is_open = heft__coordinator_is_open_locked(c, r->id);
    if (c->noted.is_open) {
        log_phase(c, id);
    } else if (was_open) {
        log_end(c, id);
    }
}

/* ---- the file of rounds ---- */

void heft__coordinator_queue_result_locked(heft_coordinator_t *c, const char *json)
{
    if (c->round_log == NULL) {
        return;
    }
    const size_t before = c->round_lines.len;
    heft__text_put(&c->round_lines, json);
    heft__text_put(&c->round_lines, "\n");
    if (c->round_lines.failed) { /* no half a line */
        c->round_lines.len = before;
        c->round_lines.failed = false;
        c->n_log_errors++;
        heft__log(HEFT_LOG_ERROR, "coordinator", "%s: out of memory: a round is not recorded",
                  c->round_log);
    }
}

static heft_status_t append(const char *path, const char *text, size_t n, heft_error_t *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, FILE_MODE);
    if (fd < 0) {
        return heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot write %s", path);
    }
    size_t done = 0;
    while (done < n) {
        const ssize_t wrote = write(fd, text + done, n - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            const int sys = errno;
            (void)close(fd);
            return heft__error_set_sys(err, HEFT_ERR_IO, sys, "cannot write %s", path);
        }
        done += (size_t)wrote;
    }
    return close(fd) == 0 ? HEFT_OK
                          : heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot write %s", path);
}

/* The file is opened anew each time, so that it can be rotated under our feet. */
void heft__coordinator_write_results(heft_coordinator_t *c)
{
    const size_t n = c->round_lines.len;
    if (n == 0) {
        return;
    }
    char *text = heft__text_take(&c->round_lines);
    heft_error_t err = HEFT_ERROR_INIT;
    (void)pthread_mutex_unlock(&c->lock);
    const heft_status_t status = append(c->round_log, text, n, &err);
    heft__free(text);
    (void)pthread_mutex_lock(&c->lock);
    if (status != HEFT_OK) {
        c->n_log_errors++;
        heft__log(HEFT_LOG_ERROR, "coordinator", "%s: a round is not recorded", err.message);
    }
}

heft_status_t heft__coordinator_open_round_log(heft_coordinator_t *c, const char *path,
                                               heft_error_t *err)
{
    heft__text_init(&c->round_lines);
    if (path == NULL) {
        return HEFT_OK;
    }
    c->round_log = heft__strdup(path);
    if (c->round_log == NULL) {
        return heft__error_nomem(err, strlen(path) + 1);
    }
    return append(path, "", 0, err); /* a path that cannot be written is said now */
}

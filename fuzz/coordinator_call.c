/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to a coordinator, without the HTTP around them: "METHOD PATH\n" and the body, several
 * separated by a zero byte. A refusal (4xx) has one line that is JSON, and leaves the status as it
 * was; only claims of a recover are taken one by one.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sync/coordinator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static heft_coordinator_t *coordinator(void)
{
    static heft_coordinator_t *c;
    static int n_used;
    if (++n_used % 500 == 0) { /* a fresh one now and then */
        heft_coordinator_stop(c);
        c = NULL;
    }
    if (c == NULL) {
        check(heft_coordinator_start(NULL, &c, NULL) == HEFT_OK);
        heft__log_max_level = -1;
    }
    return c;
}

/* The status but for the ages of contacts. */
static char *state_of(heft_coordinator_t *c)
{
    json_t *root = heft__coordinator_status_locked(c);
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(root, "members"), i, member)
    {
        (void)json_object_del(member, "silent_ms");
        (void)json_object_del(member, "contact");
    }
    char *text = json_dumps(root, JSON_SORT_KEYS);
    json_decref(root);
    check(text != NULL);
    return text;
}

static void check_reply(const heft__call_t *call)
{
    if (call->code < 400 || call->code == 503) {
        return;
    }
    json_t *root = json_loadb(call->reply, call->n_reply, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    check(json_is_string(json_object_get(error, "status")));
    check(message != NULL && message[0] != '\0' && strchr(message, '\n') == NULL);
    check(call->code < 500);
    json_decref(root);
}

static void run_call(heft_coordinator_t *c, heft__call_t *call)
{
    (void)pthread_mutex_lock(&c->lock);
    char *before = state_of(c);
    heft__coordinator_handle(c, call);
    char *after = state_of(c);
    (void)pthread_mutex_unlock(&c->lock);
    if (call->waits == HEFT__WAIT_NONE) {
        check_reply(call);
        if (call->code >= 400 && strcmp(call->path, "/v1/recover") != 0) {
            check(strcmp(before, after) == 0);
        }
    }
    free(before);
    free(after);
    heft__free(call->reply);
}

/* text is changed: "METHOD PATH\nBODY". */
static void run_text(heft_coordinator_t *c, char *text)
{
    char *line_end = strchr(text, '\n');
    char *space = strchr(text, ' ');
    if (line_end == NULL || space == NULL || space > line_end) {
        return;
    }
    *line_end = '\0';
    *space = '\0';
    heft__call_t call;
    memset(&call, 0, sizeof call);
    call.method = text;
    call.path = space + 1;
    call.body = line_end + 1;
    call.n_body = strlen(call.body);
    char *argument = strchr(space + 1, '?');
    if (argument != NULL) {
        *argument++ = '\0';
        call.wait = strncmp(argument, "wait=", 5) == 0 ? argument + 5 : NULL;
        call.incarnation = strncmp(argument, "incarnation=", 12) == 0 ? argument + 12 : NULL;
    }
    if (heft__coordinator_has_route(&call)) {
        run_call(c, &call);
    } else {
        check(call.code == 404 || call.code == 405);
        check_reply(&call);
        heft__free(call.reply);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_coordinator_t *c = coordinator();
    char *text = malloc(size + 1);
    check(text != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    for (size_t at = 0; at < size;) {
        const size_t n = strlen(text + at);
        run_text(c, text + at);
        at += n + 1;
    }
    free(text);
    return 0;
}

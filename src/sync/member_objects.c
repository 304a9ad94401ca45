/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: texts stored at the coordinator under their SHA-256, put and fetched by the owner. */
#include "sync/member_private.h"

#include <stdio.h>
#include <string.h>

static heft_status_t own_connection(heft__member_t *member, heft_error_t *err)
{
    return member->owner_http != NULL ? HEFT_OK
                                      : heft__member_connect(member, &member->owner_http, err);
}

/* A token that has been changed: the next connection reads it anew. */
static void drop_if_refused(heft__member_t *member, heft_status_t status)
{
    if (status == HEFT_ERR_AUTH) {
        heft__http_destroy(member->owner_http);
        member->owner_http = NULL;
    }
}

heft_status_t heft__member_put_over(heft__http_t *http, const char *text, uint32_t deadline_ms,
                                    char *digest_out, heft_error_t *err)
{
    char digest[HEFT__DIGEST_SIZE];
    char path[32 + HEFT__DIGEST_SIZE];
    int code;
    const heft__http_ask_t ask = { .method = "PUT",
                                   .path = path,
                                   .body = text,
                                   .body_bytes = strlen(text),
                                   .deadline_ms = deadline_ms };
    heft__object_digest(text, ask.body_bytes, digest);
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest);
    heft_status_t status = heft__http_ask(http, &ask, &code, NULL, NULL, err);
    if (status == HEFT_OK) {
        memcpy(digest_out, digest, sizeof digest);
    }
    return status;
}

/* A round names three objects at most, so the last four are enough. */
static heft_status_t keep(heft__member_t *member, const char *text, const char *digest,
                          heft_error_t *err)
{
    char *copy = heft__strdup(text);
    if (copy == NULL) {
        return heft__error_nomem(err, strlen(text) + 1);
    }
    (void)pthread_mutex_lock(&member->lock);
    heft__kept_t *slot = &member->kept[member->next_kept++ % HEFT__N_KEPT];
    heft__free(slot->text);
    slot->text = copy;
    memcpy(slot->digest, digest, sizeof slot->digest);
    (void)pthread_mutex_unlock(&member->lock);
    return HEFT_OK;
}

heft_status_t heft__member_put_object(heft__member_t *member, const char *text, char *digest_out,
                                      heft_error_t *err)
{
    heft_status_t status = own_connection(member, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__member_put_over(member->owner_http, text, member->deadline_ms, digest_out, err);
    drop_if_refused(member, status);
    return status == HEFT_OK ? keep(member, text, digest_out, err) : status;
}

heft_status_t heft__member_get_object(heft__member_t *member, const char *digest, char **text_out,
                                      size_t *n_out, heft_error_t *err)
{
    heft_status_t status = own_connection(member, err);
    if (status != HEFT_OK) {
        return status;
    }
    char path[32 + HEFT__DIGEST_SIZE];
    char *text = NULL;
    size_t n = 0;
    int code;
    (void)snprintf(path, sizeof path, "/v1/objects/%s", digest);
    const heft__http_ask_t ask = { .method = "GET",
                                   .path = path,
                                   .deadline_ms = member->deadline_ms };
    status = heft__http_ask(member->owner_http, &ask, &code, &text, &n, err);
    drop_if_refused(member, status);
    if (status != HEFT_OK) {
        return status;
    }
    char actual[HEFT__DIGEST_SIZE];
    heft__object_digest(text, n, actual);
    if (strcmp(actual, digest) != 0) {
        heft__free(text);
        return heft__error_set(err, HEFT_ERR_DIGEST, "object %s: its bytes have digest %s", digest,
                               actual);
    }
    *text_out = text;
    *n_out = n;
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transport a sender takes to a window. Of a window that can be reached by several it is the
 * first that is offered here and that can reach: shm needs the same start of the kernel and the
 * same network namespace. What was chosen stays: a link that fails fails the round, and is not
 * tried another way.
 */
#include "transport/host_identity.h"
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

/* Where `endpoint` can be reached from here, and why not. */
static bool can_reach(const char *name, const json_t *root, const char **why_out)
{
    heft__host_identity_t here;
    heft__host_identity_t there;
    if (strcmp(name, "shm") != 0) {
        return true;
    }
    heft__host_identity_read(&here);
    *why_out = "shm does not reach another host or network namespace; see option transport";
    return heft__host_identity_decode(json_object_get(root, "host"), "endpoint", &there, NULL) ==
               HEFT_OK &&
           heft__host_identity_has_sockets(&here, &there);
}

static heft__transport_t *find(heft__transport_t *const *offered, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(offered[i]->ops->name, name) == 0) {
            return offered[i];
        }
    }
    return NULL;
}

static void list_names(heft__transport_t *const *offered, uint32_t n, char *out, size_t size)
{
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n && len + 20 < size; i++) {
        const char *name = offered[i]->ops->name;
        const size_t name_len = strlen(name) < 16 ? strlen(name) : 16;
        memcpy(out + len, i > 0 ? ", " : "", i > 0 ? 2 : 0);
        len += i > 0 ? 2 : 0;
        memcpy(out + len, name, name_len);
        len += name_len;
        out[len] = '\0';
    }
}

static int append_text(const char *data, size_t n, void *arg)
{
    heft__text_put_n(arg, data, n);
    return 0;
}

static heft_status_t take_endpoint(const json_t *endpoint, char **text_out, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    if (json_dump_callback(endpoint, append_text, &text, JSON_COMPACT) != 0) {
        text.failed = true;
    }
    *text_out = heft__text_take(&text);
    heft__text_fini(&text);
    return *text_out != NULL ? HEFT_OK : heft__error_nomem(err, text.cap);
}

static heft_status_t choose_of(const json_t *root, heft__transport_t *const *offered, uint32_t n,
                               heft__transport_t **chosen_out, char **text_out, heft_error_t *err)
{
    const json_t *list = json_object_get(root, "endpoints");
    const char *why = "none of them is offered here";
    char there[64] = "";
    char here[64];
    size_t len = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *endpoint = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(endpoint, "transport"));
        if (name == NULL || strlen(name) > 15) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "endpoint %zu of several has no name", i);
        }
        heft__transport_t *transport = find(offered, n, name);
        if (transport != NULL && can_reach(name, root, &why)) {
            *chosen_out = transport;
            return take_endpoint(endpoint, text_out, err);
        }
        if (len + strlen(name) + 3 < sizeof there) {
            len +=
                (size_t)snprintf(there + len, sizeof there - len, "%s%s", i > 0 ? ", " : "", name);
        }
    }
    list_names(offered, n, here, sizeof here);
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                           "no common transport: it offers %s, this one %s (%s)", there, here, why);
}

heft_status_t heft__endpoint_choose(const char *endpoint, heft__transport_t *const *offered,
                                    uint32_t n, heft__transport_t **chosen_out, char **text_out,
                                    heft_error_t *err)
{
    char name[16];
    char here[64];
    heft_status_t status = heft__endpoint_get_transport(endpoint, name, sizeof name, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (strcmp(name, "auto") == 0) {
        json_t *root = json_loads(endpoint, JSON_REJECT_DUPLICATES, NULL);
        status = choose_of(root, offered, n, chosen_out, text_out, err);
        json_decref(root);
        return status;
    }
    heft__transport_t *transport = find(offered, n, name);
    if (transport == NULL) {
        list_names(offered, n, here, sizeof here);
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "no common transport: it offers %s, this one %s", name, here);
    }
    *text_out = heft__strdup(endpoint);
    if (*text_out == NULL) {
        return heft__error_nomem(err, strlen(endpoint));
    }
    *chosen_out = transport;
    return HEFT_OK;
}

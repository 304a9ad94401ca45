/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of transport.h: each checks that the transport's table has the operation, and what
 * every transport would have to check, then hands over.
 */
#include "transport/transport.h"

#include <string.h>

#include <jansson.h>

#define HAS_OP(ops, field)                                                           \
    (offsetof(heft__transport_ops_t, field) + sizeof((ops)->field) <= (ops)->size && \
     (ops)->field != NULL)

static heft_status_t unsupported(const heft__transport_ops_t *ops, const char *what,
                                 heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_UNSUPPORTED, "transport %s cannot %s", ops->name, what);
}

heft_status_t heft__window_create(heft__transport_t *transport, const heft__window_params_t *params,
                                  heft__window_t **window_out, heft_error_t *err)
{
    if (!HAS_OP(transport->ops, window_create)) {
        return unsupported(transport->ops, "export memory", err);
    }
    if (params->bytes < 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "window of %lld bytes",
                               (long long)params->bytes);
    }
    if (params->memory != HEFT__MEMORY_HOST) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "transport %s: memory kind %d, only host memory (%d) is supported",
                               transport->ops->name, (int)params->memory, (int)HEFT__MEMORY_HOST);
    }
    return transport->ops->window_create(transport, params, window_out, err);
}

void heft__window_destroy(heft__window_t *window)
{
    if (window != NULL) {
        window->ops->window_destroy(window);
    }
}

void heft__window_encode(const heft__window_t *window, heft__text_t *text)
{
    window->ops->window_encode(window, text);
}

heft_status_t heft__window_expect(heft__window_t *window, const heft__expect_t *expect,
                                  heft_error_t *err)
{
    if (!HAS_OP(window->ops, window_expect)) {
        return HEFT_OK; /* senders write for themselves: there is nothing to compare with */
    }
    return window->ops->window_expect(window, expect, err);
}

void heft__window_count_arrived(heft__window_t *window, uint32_t first, uint32_t n,
                                uint64_t *chunks_out)
{
    if (HAS_OP(window->ops, window_count_arrived)) {
        window->ops->window_count_arrived(window, first, n, chunks_out);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        chunks_out[i] = 0;
    }
}

void heft__window_arm(heft__window_t *window, heft__token_t token)
{
    window->ops->window_arm(window, token);
}

void heft__window_query(heft__window_t *window, heft__window_state_t *state_out)
{
    window->ops->window_query(window, state_out);
}

heft_status_t heft__window_fence(heft__window_t *window, int64_t deadline_mono_ns,
                                 bool *replaced_out, heft_error_t *err)
{
    return window->ops->window_fence(window, deadline_mono_ns, replaced_out, err);
}

heft_status_t heft__endpoint_get_transport(const char *endpoint, char *name_out, size_t name_bytes,
                                           heft_error_t *err)
{
    json_t *root = json_loads(endpoint, JSON_REJECT_DUPLICATES, NULL);
    const char *name = json_string_value(json_object_get(root, "transport"));
    heft_status_t status = HEFT_OK;
    if (name == NULL || strlen(name) >= name_bytes) {
        status = heft__error_set(err, HEFT_ERR_FORMAT,
                                 "endpoint is no object with a \"transport\" name");
    } else {
        memcpy(name_out, name, strlen(name) + 1);
    }
    json_decref(root);
    return status;
}

heft_status_t heft__remote_attach(heft__transport_t *transport, const char *endpoint,
                                  const heft__attach_params_t *params, heft__remote_t **remote_out,
                                  heft_error_t *err)
{
    if (!HAS_OP(transport->ops, attach)) {
        return unsupported(transport->ops, "attach", err);
    }
    return transport->ops->attach(transport, endpoint, params, remote_out, err);
}

void heft__remote_close(heft__remote_t *remote)
{
    if (remote != NULL) {
        remote->ops->close(remote);
    }
}

heft_status_t heft__remote_begin(heft__remote_t *remote, heft__token_t token,
                                 int64_t deadline_mono_ns, heft_error_t *err)
{
    return remote->ops->begin(remote, token, deadline_mono_ns, err);
}

heft_status_t heft__remote_check(heft__remote_t *remote, heft_error_t *err)
{
    return remote->ops->check(remote, err);
}

heft_status_t heft__remote_end(heft__remote_t *remote, heft__token_t token, bool completed,
                               heft_error_t *err)
{
    return remote->ops->end(remote, token, completed, err);
}

heft_status_t heft__remote_put(heft__remote_t *remote, int64_t offset, const void *data,
                               int64_t bytes, heft_error_t *err)
{
    if (!HAS_OP(remote->ops, put)) {
        return unsupported(remote->ops, "put", err);
    }
    int64_t end;
    if (offset < 0 || bytes < 0 || !heft__add(offset, bytes, &end) || end > remote->bytes) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "put of %lld bytes at %lld is outside a window of %lld bytes",
                               (long long)bytes, (long long)offset, (long long)remote->bytes);
    }
    return remote->ops->put(remote, offset, data, bytes, err);
}

heft_status_t heft__remote_send(heft__remote_t *remote, const uint8_t *header, const void *data,
                                int64_t bytes, int64_t deadline_mono_ns, heft_error_t *err)
{
    if (!HAS_OP(remote->ops, send)) {
        return unsupported(remote->ops, "send chunks", err);
    }
    return remote->ops->send(remote, header, data, bytes, deadline_mono_ns, err);
}

bool heft__remote_can_post(const heft__remote_t *remote)
{
    return HAS_OP(remote->ops, post) && HAS_OP(remote->ops, reap);
}

heft_status_t heft__remote_post(heft__remote_t *remote, uint32_t tag, bool has_place,
                                const uint8_t *header, const void *data, int64_t bytes,
                                int64_t deadline_mono_ns, heft_error_t *err)
{
    if (!HAS_OP(remote->ops, post)) {
        return unsupported(remote->ops, "have several chunks under way", err);
    }
    return remote->ops->post(remote, tag, has_place, header, data, bytes, deadline_mono_ns, err);
}

heft_status_t heft__remote_reap(heft__remote_t *remote, uint32_t *tag_out, int64_t deadline_mono_ns,
                                heft_error_t *err)
{
    if (!HAS_OP(remote->ops, reap)) {
        return unsupported(remote->ops, "have several chunks under way", err);
    }
    return remote->ops->reap(remote, tag_out, deadline_mono_ns, err);
}

const char *heft__remote_describe(const heft__remote_t *remote)
{
    return HAS_OP(remote->ops, describe) ? remote->ops->describe(remote) : remote->ops->name;
}

heft_status_t heft__remote_flush(heft__remote_t *remote, int64_t deadline_mono_ns,
                                 heft_error_t *err)
{
    if (!HAS_OP(remote->ops, flush)) {
        return HEFT_OK; /* puts of such a transport are complete when they return */
    }
    return remote->ops->flush(remote, deadline_mono_ns, err);
}

int heft__remote_get_fd(const heft__remote_t *remote)
{
    return HAS_OP(remote->ops, get_fd) ? remote->ops->get_fd(remote) : -1;
}

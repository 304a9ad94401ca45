/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `auto`: shm and ucx over one memory. The shm window owns the memory, the ucx window
 * registers it; senders come by either (endpoint_choose.c).
 */
#include "transport/shm_window.h"
#include "transport/ucx_window.h"

struct heft__pair {
    heft__transport_t base;
    heft__ucx_t *ucx; /* borrowed */
};

typedef struct pair_window {
    heft__window_t base;
    heft__window_t *shm;
    heft__window_t *ucx;
} pair_window_t;

static const heft__transport_ops_t pair_ops;

static void retire(void *arg, heft__segment_t *segment)
{
    pair_window_t *window = arg;
    const bool is_quiet = heft__ucx_window_await_quiet(window->ucx, 0);
    heft__ucx_window_retire(window->ucx);
    if (is_quiet) {
        heft__segment_fini(segment);
    } else {
        heft__ucx_window_strand(window->ucx, segment);
    }
}

static heft_status_t adopt(void *arg, const heft__window_t *shm, heft_error_t *err)
{
    return heft__ucx_window_adopt(((pair_window_t *)arg)->ucx, shm->ptr, shm->page_bytes, err);
}

static void take_memory(pair_window_t *window)
{
    window->base.ptr = window->shm->ptr;
    window->base.page_bytes = window->shm->page_bytes;
}

static heft_status_t window_create(heft__transport_t *transport,
                                   const heft__window_params_t *params, heft__window_t **window_out,
                                   heft_error_t *err)
{
    heft__ucx_t *ucx = ((heft__pair_t *)transport)->ucx;
    pair_window_t *window = heft__calloc(1, sizeof *window);
    if (window == NULL) {
        return heft__error_nomem(err, sizeof *window);
    }
    window->base =
        (heft__window_t){ .ops = &pair_ops, .bytes = params->bytes, .memory = params->memory };
    heft_status_t status =
        heft__window_create(heft__transport_get_shm(), params, &window->shm, err);
    if (status == HEFT_OK) {
        status = heft__ucx_window_create_over(ucx, params, window->shm->ptr,
                                              window->shm->page_bytes, &window->ucx, err);
    }
    if (status != HEFT_OK) {
        heft__window_destroy(window->shm);
        heft__free(window);
        return status;
    }
    heft__ucx_window_share(window->ucx);
    const heft__shm_sharer_t sharer = { .arg = window, .retire = retire, .adopt = adopt };
    heft__shm_window_share(window->shm, &sharer);
    take_memory(window);
    *window_out = &window->base;
    return HEFT_OK;
}

static void window_destroy(heft__window_t *base)
{
    pair_window_t *window = (pair_window_t *)base;
    heft__window_destroy(window->shm); /* retires the memory for both */
    heft__window_destroy(window->ucx);
    heft__free(window);
}

static void window_encode(const heft__window_t *base, heft__text_t *text)
{
    const pair_window_t *window = (const pair_window_t *)base;
    heft__host_identity_t host;
    heft__host_identity_read(&host);
    heft__text_put(text, "{\"transport\":\"auto\",\"host\":");
    heft__host_identity_encode(&host, text);
    heft__text_put(text, ",\"endpoints\":[");
    heft__window_encode(window->shm, text);
    heft__text_put(text, ",");
    heft__window_encode(window->ucx, text);
    heft__text_put(text, "]}");
}

static void window_arm(heft__window_t *base, heft__token_t token)
{
    const pair_window_t *window = (const pair_window_t *)base;
    heft__window_arm(window->shm, token);
    heft__window_arm(window->ucx, token);
}

static void window_query(heft__window_t *base, heft__window_state_t *state_out)
{
    const pair_window_t *window = (const pair_window_t *)base;
    heft__window_state_t ucx;
    heft__window_query(window->shm, state_out);
    heft__window_query(window->ucx, &ucx);
    state_out->n_attached += ucx.n_attached;
    state_out->n_writing += ucx.n_writing;
    state_out->n_done += ucx.n_done;
    if (state_out->n_failed == 0) {
        state_out->failed = ucx.failed;
    }
    if (state_out->n_lost == 0) {
        state_out->lost = ucx.lost;
    }
    state_out->n_failed += ucx.n_failed;
    state_out->n_lost += ucx.n_lost;
}

static heft_status_t window_expect(heft__window_t *base, const heft__expect_t *expect,
                                   heft_error_t *err)
{
    return heft__window_expect(((const pair_window_t *)base)->ucx, expect, err);
}

/* What comes by shm is seen when it is whole. */
static void window_count_arrived(heft__window_t *base, uint32_t first, uint32_t n,
                                 uint64_t *chunks_out)
{
    heft__window_count_arrived(((const pair_window_t *)base)->ucx, first, n, chunks_out);
}

/* Both are asked to stop before either is waited for. */
static heft_status_t window_fence(heft__window_t *base, int64_t deadline_mono_ns,
                                  bool *replaced_out, heft_error_t *err)
{
    pair_window_t *window = (pair_window_t *)base;
    heft__shm_window_cancel(window->shm);
    heft__ucx_window_cancel(window->ucx);
    const bool is_quiet = heft__ucx_window_await_quiet(window->ucx, deadline_mono_ns);
    heft_status_t status =
        heft__shm_window_fence(window->shm, deadline_mono_ns, !is_quiet, replaced_out, err);
    take_memory(window);
    return status;
}

static const heft__transport_ops_t pair_ops = {
    .size = sizeof(heft__transport_ops_t),
    .name = "auto",
    .window_create = window_create,
    .window_destroy = window_destroy,
    .window_encode = window_encode,
    .window_arm = window_arm,
    .window_query = window_query,
    .window_fence = window_fence,
    .window_expect = window_expect,
    .window_count_arrived = window_count_arrived,
};

heft_status_t heft__pair_create(heft__ucx_t *ucx, heft__pair_t **pair_out, heft_error_t *err)
{
    heft__pair_t *pair = heft__calloc(1, sizeof *pair);
    if (pair == NULL) {
        return heft__error_nomem(err, sizeof *pair);
    }
    *pair = (heft__pair_t){ .base = { .ops = &pair_ops }, .ucx = ucx };
    *pair_out = pair;
    return HEFT_OK;
}

void heft__pair_destroy(heft__pair_t *pair)
{
    heft__free(pair);
}

heft__transport_t *heft__pair_get_transport(heft__pair_t *pair)
{
    return &pair->base;
}

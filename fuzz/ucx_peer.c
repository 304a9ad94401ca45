/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another host can send to ucx: frames, and endpoint texts. A frame that is accepted must
 * encode to the same bytes; an endpoint that is accepted must be in bounds and survive its own
 * encoding.
 */
#include "transport/ucx_endpoint.h"
#include "transport/ucx_frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_endpoint(const heft__ucx_endpoint_t *endpoint)
{
    heft__ucx_endpoint_t again;
    heft__text_t text;
    heft__text_init(&text);
    heft__ucx_endpoint_encode(endpoint, &text);
    if (endpoint->worker_bytes == 0 || endpoint->worker_bytes > HEFT__UCX_ADDRESS_MAX ||
        endpoint->key_bytes == 0 || endpoint->key_bytes > HEFT__UCX_KEY_MAX ||
        endpoint->bytes < 0 || endpoint->pid <= 0 || text.failed ||
        heft__ucx_endpoint_decode(text.data, text.len, &again, NULL) != HEFT_OK ||
        again.base != endpoint->base || again.window != endpoint->window ||
        memcmp(again.worker, endpoint->worker, endpoint->worker_bytes) != 0) {
        abort();
    }
    heft__text_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft__ucx_frame_t frame;
    if (heft__ucx_frame_decode(data, size, &frame, NULL) == HEFT_OK) {
        uint8_t back[HEFT__UCX_FRAME_BYTES];
        heft__ucx_frame_encode(&frame, back);
        if (memcmp(back, data, sizeof back) != 0) {
            abort();
        }
    }
    heft__ucx_endpoint_t *endpoint = malloc(sizeof *endpoint);
    if (endpoint != NULL &&
        heft__ucx_endpoint_decode((const char *)data, size, endpoint, NULL) == HEFT_OK) {
        check_endpoint(endpoint);
    }
    free(endpoint);
    return 0;
}

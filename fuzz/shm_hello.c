/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another process can send to shm: frames of the control socket, and endpoint texts. A frame
 * that is accepted must encode to the same bytes; an endpoint that is accepted must be in bounds.
 */
#include "transport/shm_frame.h"
#include "transport/shm_remote.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft__shm_frame_t frame;
    if (heft__shm_frame_decode(data, size, &frame, NULL) == HEFT_OK) {
        uint8_t back[HEFT__SHM_FRAME_BYTES];
        heft__shm_frame_encode(&frame, back);
        if (size != sizeof back || memcmp(back, data, size) != 0) {
            abort();
        }
    }
    heft__shm_endpoint_t endpoint;
    if (heft__shm_endpoint_decode((const char *)data, size, &endpoint, NULL) == HEFT_OK &&
        (strlen(endpoint.socket) != 37 || endpoint.pid <= 0 || endpoint.bytes < 0)) {
        abort();
    }
    return 0;
}

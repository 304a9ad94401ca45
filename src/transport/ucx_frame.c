/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx_frame.h"

#include <string.h>

#define MAGIC 0x58554648u /* "HFUX" */

void heft__ucx_frame_encode(const heft__ucx_frame_t *frame, uint8_t out[HEFT__UCX_FRAME_BYTES])
{
    heft__put_le32(out, MAGIC);
    out[4] = HEFT__UCX_VERSION;
    out[5] = 0;
    out[6] = (uint8_t)frame->kind;
    out[7] = 0;
    heft__put_le32(out + 8, (uint32_t)frame->status);
    heft__put_le32(out + 12, frame->pid);
    heft__put_le64(out + 16, frame->peer);
    heft__put_le64(out + 24, frame->a);
    heft__put_le64(out + 32, frame->b);
    memcpy(out + 40, frame->from, HEFT__INCARNATION_BYTES);
    memcpy(out + 56, frame->to, HEFT__INCARNATION_BYTES);
}

/* A status is a negative value in REFUSED, may be one in END, ENDED and VERDICT, and is 0
 * elsewhere.
 */
static bool status_fits(uint32_t kind, int32_t status)
{
    const bool is_known = strcmp(heft_status_get_name((heft_status_t)status), "UNKNOWN") != 0;
    switch (kind) {
    case HEFT__UCX_REFUSED:
        return is_known && status < 0;
    case HEFT__UCX_END:
    case HEFT__UCX_ENDED:
    case HEFT__UCX_VERDICT:
        return is_known && status <= 0;
    default:
        return status == 0;
    }
}

static bool is_about_chunk(uint32_t kind)
{
    return kind == HEFT__UCX_CHUNK || kind == HEFT__UCX_PLACED;
}

heft_status_t heft__ucx_frame_decode(const uint8_t *bytes, size_t n, heft__ucx_frame_t *frame_out,
                                     heft_error_t *err)
{
    if (n < HEFT__UCX_FRAME_BYTES || heft__get_le32(bytes) != MAGIC) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "ucx: %zu bytes that are no frame", n);
    }
    const uint32_t version = bytes[4] | (uint32_t)bytes[5] << 8;
    if (version != HEFT__UCX_VERSION) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "ucx protocol version %u from the peer, %d here", version,
                               HEFT__UCX_VERSION);
    }
    const uint32_t kind = bytes[6] | (uint32_t)bytes[7] << 8;
    const int32_t status = (int32_t)heft__get_le32(bytes + 8);
    const size_t expected = is_about_chunk(kind) ? HEFT__UCX_HEADER_BYTES : HEFT__UCX_FRAME_BYTES;
    if (kind < HEFT__UCX_HELLO || kind > HEFT__UCX_DATA || !status_fits(kind, status) ||
        n != expected) {
        return heft__error_set(err, HEFT_ERR_PROTOCOL, "ucx frame: kind %u, status %d, %zu bytes",
                               kind, (int)status, n);
    }
    *frame_out = (heft__ucx_frame_t){ .kind = (heft__ucx_kind_t)kind,
                                      .status = (heft_status_t)status,
                                      .pid = heft__get_le32(bytes + 12),
                                      .peer = heft__get_le64(bytes + 16),
                                      .a = heft__get_le64(bytes + 24),
                                      .b = heft__get_le64(bytes + 32) };
    memcpy(frame_out->from, bytes + 40, HEFT__INCARNATION_BYTES);
    memcpy(frame_out->to, bytes + 56, HEFT__INCARNATION_BYTES);
    return HEFT_OK;
}

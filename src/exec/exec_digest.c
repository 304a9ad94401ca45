/* SPDX-License-Identifier: Apache-2.0 */
/* The digest of a whole parameter: the CRC-64 that runs compute from the source side piece by
 * piece, here in one pass over the result. */
#include "exec/exec.h"

uint64_t heft_digest(const void *data, int64_t n_bytes)
{
    return data == NULL || n_bytes <= 0 ? 0 : heft__crc64(data, n_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, random bytes, edit distance: small services of the host. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int64_t heft__clock_mono_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void heft__clock_utc_text(char out[32])
{
    struct timespec ts;
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + n, 32 - n, ".%03dZ", (int)(ts.tv_nsec / 1000000));
}

heft_status_t heft__random_bytes(void *out, size_t bytes, heft_error_t *err)
{
    char *p = out;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return heft__error_set_sys(err, HEFT_ERR_IO, errno, "getrandom: %zu bytes", bytes);
        }
        p += n;
        bytes -= (size_t)n;
    }
    return HEFT_OK;
}

uint32_t heft__edit_distance(const char *a, const char *b, uint32_t limit)
{
    enum { MAX_LEN = 255 };
    size_t na = strlen(a);
    size_t nb = strlen(b);
    size_t gap = na > nb ? na - nb : nb - na;
    if (na > MAX_LEN || nb > MAX_LEN || gap > limit) {
        return limit + 1;
    }
    uint32_t row[MAX_LEN + 1];
    for (size_t j = 0; j <= nb; j++) {
        row[j] = (uint32_t)j;
    }
    for (size_t i = 1; i <= na; i++) {
        uint32_t diag = row[0];
        uint32_t best = row[0] = (uint32_t)i;
        for (size_t j = 1; j <= nb; j++) {
            uint32_t swap = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            uint32_t edit = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = swap < edit ? swap : edit;
            best = row[j] < best ? row[j] : best;
        }
        if (best > limit) {
            return limit + 1;
        }
    }
    return row[nb] > limit ? limit + 1 : row[nb];
}

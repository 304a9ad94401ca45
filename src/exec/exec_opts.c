/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of runs and conversions, by the usual rules: NULL is all defaults, a shorter struct keeps
 * the defaults of its missing tail, a longer one must be zero beyond what is known here, reserved
 * bytes must be zero. Also the progress that several runs share.
 */
#include "exec/exec.h"

#include <string.h>

static heft_status_t load(const void *opts, void *out, size_t known, const char *what,
                          heft_error_t *err)
{
    size_t size;
    memcpy(&size, opts, sizeof size);
    if (size < sizeof size) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "%s: size is %zu, use the INIT macro", what,
                               size);
    }
    const uint8_t *bytes = opts;
    for (size_t i = known; i < size; i++) {
        if (bytes[i] != 0) {
            return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                                   "%s: byte %zu is set, this library knows %zu bytes", what, i,
                                   known);
        }
    }
    memcpy(out, opts, size < known ? size : known);
    memcpy(out, &known, sizeof known);
    return HEFT_OK;
}

heft_status_t heft__exec_opts_load(const heft_exec_opts_t *opts, heft_exec_opts_t *out,
                                   heft_error_t *err)
{
    *out = (heft_exec_opts_t)HEFT_EXEC_OPTS_INIT;
    if (opts != NULL) {
        heft_status_t status = load(opts, out, sizeof *out, "heft_exec_opts_t", err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (out->reserved != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "heft_exec_opts_t: reserved is %u, not 0",
                               out->reserved);
    }
    if (out->n_threads == 0) {
        out->n_threads = 1;
    }
    return HEFT_OK;
}

heft_status_t heft__convert_opts_load(const heft_convert_opts_t *opts, heft_convert_opts_t *out,
                                      heft_error_t *err)
{
    *out = (heft_convert_opts_t)HEFT_CONVERT_OPTS_INIT;
    if (opts != NULL) {
        heft_status_t status = load(opts, out, sizeof *out, "heft_convert_opts_t", err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (out->reserved[0] != 0 || out->reserved[1] != 0 || out->reserved[2] != 0 ||
        out->reserved_2 != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_opts_t: a reserved byte is not 0");
    }
    if (out->reverse > 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_opts_t: reverse is %u, not 0 or 1", out->reverse);
    }
    if (out->max_shard_bytes < 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_opts_t: max_shard_bytes is %lld",
                               (long long)out->max_shard_bytes);
    }
    if (out->n_threads == 0) {
        out->n_threads = 1;
    }
    return HEFT_OK;
}

bool heft__progress_report(heft__progress_t *progress, int64_t extra)
{
    int64_t done = progress->done + extra;
    if (progress->fn == NULL ||
        (done - progress->reported < HEFT__EXEC_UNIT_BYTES && done != progress->total)) {
        return true;
    }
    progress->reported = done;
    return progress->fn(progress->arg, done, progress->total) == 0;
}

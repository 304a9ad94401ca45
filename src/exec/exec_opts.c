/* SPDX-License-Identifier: Apache-2.0 */
/* Options of runs and conversions, and the progress that several runs share. */
#include "exec/exec.h"

heft_status_t heft__exec_opts_load(const heft_exec_opts_t *opts, heft_exec_opts_t *out,
                                   heft_error_t *err)
{
    *out = (heft_exec_opts_t)HEFT_EXEC_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, out, sizeof *out, "heft_exec_opts_t", err);
    if (status == HEFT_OK && out->routes == NULL && out->sender != 0) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT, "heft_exec_opts_t: sender %u of no routes",
                                 out->sender);
    }
    if (status != HEFT_OK) {
        return status;
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
    heft_status_t status = heft__opts_load(opts, out, sizeof *out, "heft_convert_opts_t", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(out->reserved, sizeof out->reserved,
                                           "heft_convert_opts_t", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(&out->reserved_2, sizeof out->reserved_2,
                                           "heft_convert_opts_t", err);
    }
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(out->reserved_3, sizeof out->reserved_3,
                                           "heft_convert_opts_t", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (out->reverse > 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_opts_t: reverse is %u, not 0 or 1", out->reverse);
    }
    if (out->one_by_one > 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "heft_convert_opts_t: one_by_one is %u, not 0 or 1",
                               out->one_by_one);
    }
    if (out->memory_bytes == 0) {
        out->memory_bytes = INT64_C(1) << 30;
    }
    if (out->memory_bytes < HEFT_CONVERT_MIN_MEMORY_BYTES) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "memory of %lld bytes: at least %d",
                               (long long)out->memory_bytes, HEFT_CONVERT_MIN_MEMORY_BYTES);
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

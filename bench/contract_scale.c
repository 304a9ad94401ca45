/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the contract of a traced loader costs: one rank of 8 of two large mixture-of-experts models,
 * made (taken against the manifest, folded, proven), written, read, planned again, and compared
 * with that of the next rank, which fills every parameter otherwise. Every copy goes through a
 * temporary.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heft/contract.h"
#include "synth_model.h"
#include "tape/tape.h"

enum { TP = 8 };

static void check(heft_status_t status, const char *what, const heft_error_t *err)
{
    if (status != HEFT_OK) {
        (void)fprintf(stderr, "contract_scale: %s: %s\n", what, err->message);
        exit(1);
    }
}

/* Seconds since the last call. */
static double lap(int64_t *at)
{
    const int64_t now = heft__clock_mono_ns();
    const double seconds = (double)(now - *at) * 1e-9;
    *at = now;
    return seconds;
}

static heft_manifest_t *make_source(const heft_tape_t *tape)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    check(heft_manifest_create("source", &manifest, &err), "manifest", &err);
    for (size_t b = 0; b < tape->n_buffers; b++) {
        const heft_buffer_info_t *info = &tape->buffers[b];
        if (info->kind == HEFT_BUFFER_SOURCE) {
            check(heft_manifest_add(manifest, info->name, info->dtype, &info->shape, &err),
                  "manifest", &err);
        }
    }
    check(heft_manifest_finish(manifest, &err), "manifest", &err);
    return manifest;
}

static heft_contract_t *make(const synth_model_t *model, uint32_t rank, heft_manifest_t **source,
                             uint32_t *n_writes)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    heft_contract_t *contract = NULL;
    check(synth_model_tape(model, TP, rank, &tape, &err), "tape", &err);
    *source = *source != NULL ? *source : make_source(tape);
    *n_writes = heft_tape_get_n_writes(tape);
    const heft_tape_t *tapes[] = { tape };
    heft_contract_opts_t opts = HEFT_CONTRACT_OPTS_INIT;
    opts.tapes = tapes;
    opts.n_tapes = 1;
    opts.partial = 1;
    check(heft_contract_create(*source, &opts, &contract, NULL, &err), "create", &err);
    heft_tape_destroy(tape);
    return contract;
}

static void run(const char *name, const synth_model_t *model)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *source = NULL;
    heft_contract_t *back = NULL;
    heft_drift_t *drift = NULL;
    heft_plan_t *plan = NULL;
    char *text = NULL;
    uint32_t n_writes = 0;
    heft_contract_t *other = make(model, 1, &source, &n_writes);
    int64_t at = heft__clock_mono_ns();
    heft_contract_t *contract = make(model, 0, &source, &n_writes);
    const double made = lap(&at);
    check(heft_contract_encode(contract, &text, &err), "encode", &err);
    const double written = lap(&at);
    check(heft_contract_decode(text, strlen(text), &back, &err), "decode", &err);
    const double read = lap(&at);
    check(heft_contract_plan(back, &plan, NULL, &err), "plan", &err);
    const double planned = lap(&at);
    check(heft_contract_compare(back, other, &drift, &err), "compare", &err);
    const double compared = lap(&at);
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    (void)printf(
        "%-16s %6u sources %6u writes %6.1f MB  made %.2f  written %.2f  read %.2f  planned "
        "%.2f  compared %.2f s (%u findings)  peak %.0f MiB\n",
        name, heft_manifest_get_n_tensors(source), n_writes, (double)strlen(text) * 1e-6, made,
        written, read, planned, compared, heft_drift_get_n(drift), (double)usage.ru_maxrss / 1024);
    (void)fflush(stdout);
    heft_drift_destroy(drift);
    heft_plan_destroy(plan);
    heft_string_free(text);
    heft_contract_destroy(back);
    heft_contract_destroy(contract);
    heft_contract_destroy(other);
    heft_manifest_destroy(source);
}

int main(void)
{
    const struct {
        const char *name;
        const synth_model_t *model;
    } rows[] = { { "94 x 128 experts", &synth_moe_235b }, { "61 x 384 experts", &synth_moe_1t } };
    int status = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const pid_t pid = fork(); /* so that the peak of memory is its own */
        if (pid == 0) {
            synth_model_t model = *rows[i].model;
            model.has_temps = true;
            run(rows[i].name, &model);
            exit(0);
        }
        int one = 1;
        status |= pid < 0 || waitpid(pid, &one, 0) != pid || one != 0;
    }
    return status;
}

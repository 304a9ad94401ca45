/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How plans grow with the model: fold, then the whole of heft_plan_create (fold, proof, groups,
 * digests), for a quarter, a half and all of the layers of two large mixture-of-experts models, one
 * rank of 8; and with -r N for N ranks in one plan. Each row runs in a process of its own, so that
 * the peak of its memory is its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heft/plan.h"
#include "synth_model.h"
#include "tape/tape.h"

enum { TP = 8 };

static void die(const char *what, const heft_error_t *err)
{
    (void)fprintf(stderr, "plan_scale: %s: %s\n", what, err->message);
    exit(1);
}

static double seconds(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-9;
}

static double peak_mib(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Of this process, for machines that are shared. */
static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* One row: the layers of model are those to plan. */
static void run(const char *name, const synth_model_t *model, uint32_t n_ranks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tapes[TP];
    heft__fold_t *fold;
    int64_t t0 = heft__clock_mono_ns();
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (synth_model_tape(model, TP, r, &tapes[r], &err) != HEFT_OK) {
            die("tape", &err);
        }
    }
    int64_t t1 = heft__clock_mono_ns();
    if (heft__fold_create(tapes[0], NULL, &fold, &err) != HEFT_OK) {
        die("fold", &err);
    }
    int64_t t2 = heft__clock_mono_ns();
    heft__fold_destroy(fold);
    double before = peak_mib();
    int64_t live = heft__alloc_live_bytes();
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.partial = n_ranks < TP;
    heft_plan_t *plan;
    double cpu = cpu_seconds();
    int64_t t3 = heft__clock_mono_ns();
    if (heft_plan_create((const heft_tape_t *const *)tapes, n_ranks, 0, &opts, &plan, NULL, &err) !=
        HEFT_OK) {
        die("plan", &err);
    }
    int64_t t4 = heft__clock_mono_ns();
    cpu = cpu_seconds() - cpu;
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    (void)printf("%-6s %6lld %5u %8u %8llu %8u %8.3f %8.3f %8.3f %8.3f %9.1f %9.1f %9.1f\n", name,
                 (long long)model->n_layers, (unsigned)n_ranks, (unsigned)info.n_sources,
                 (unsigned long long)info.n_pieces, (unsigned)info.n_groups, seconds(t0, t1),
                 seconds(t1, t2), seconds(t3, t4), cpu, before, peak_mib(),
                 (double)(heft__alloc_live_bytes() - live) / 1048576);
    heft_plan_destroy(plan);
    for (uint32_t r = 0; r < n_ranks; r++) {
        heft_tape_destroy(tapes[r]);
    }
}

/* False when the row failed. */
static int run_apart(const char *name, const synth_model_t *full, int64_t n_layers,
                     uint32_t n_ranks)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        synth_model_t model = *full;
        model.n_layers = n_layers;
        run(name, &model, n_ranks);
        exit(0);
    }
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    uint32_t n_ranks = 1;
    if (argc == 3 && strcmp(argv[1], "-r") == 0) {
        n_ranks = (uint32_t)strtoul(argv[2], NULL, 10);
    }
    if ((argc != 1 && argc != 3) || n_ranks < 1 || n_ranks > TP) {
        (void)fprintf(stderr, "usage: bench_plan_scale [-r RANKS]   (1 to %d)\n", (int)TP);
        return 2;
    }
    (void)printf("%-6s %6s %5s %8s %8s %8s %8s %8s %8s %8s %9s %9s %9s\n", "model", "layers",
                 "ranks", "sources", "pieces", "groups", "tape s", "fold s", "plan s", "cpu s",
                 "MiB first", "MiB peak", "MiB plan");
    const struct {
        const char *name;
        const synth_model_t *model;
    } rows[] = { { "235b", &synth_moe_235b }, { "1t", &synth_moe_1t } };
    int ok = 1;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int64_t part = 4; part >= 1; part /= 2) {
            ok = run_apart(rows[i].name, rows[i].model, rows[i].model->n_layers / part, n_ranks) &&
                 ok;
        }
    }
    return ok ? 0 : 1;
}

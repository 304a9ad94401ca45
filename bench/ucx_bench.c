/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput of heft's ucx transport beside a minimal ucp_put loop of our own, on the same path in
 * the same run: two processes, cold buffers of 1 GiB or more on both sides, rounds interleaved, the
 * median of the ratios, and the processor time of each side, which says more than the clock on a
 * machine with few cores. What heft does on top: headers, CRC-32C on both sides, verdicts.
 *
 *   bench_ucx_bench [GiB] [rounds]           UCX_TLS and UCX_NET_DEVICES choose the path
 */
#include "kernel/kernel.h"
#include "ucx_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, MAX_ROUNDS = 32 };

static double run_loop(ul_loop_t *p, const ul_target_t *to, const uint8_t *source, int64_t bytes)
{
    const double start = ul_now();
    ul_put_range(p, to, 0, source, bytes);
    ul_flush(p, to);
    return (double)bytes / (ul_now() - start) / 1e9;
}

/* ---- heft ---- */

static const heft__token_t token = { 1, 1 };

static void serve_heft(int64_t bytes, bool in_chunks, int out, int in)
{
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    heft__ucx_t *ucx = NULL;
    heft__window_t *window = NULL;
    const heft__window_params_t params = { .bytes = bytes, .memory = HEFT__MEMORY_HOST };
    const heft__route_t route = { .bytes = bytes };
    const heft__expect_t expect = { .routes = &route,
                                    .n_routes = 1,
                                    .n_senders = 1,
                                    .chunk_bytes = CHUNK,
                                    .crc = heft__crc32c,
                                    .crc_copy = heft__crc32c_copy };
    UL_CHECK(heft__ucx_acquire(&opts, &ucx, &ul_err));
    UL_CHECK(heft__window_create(heft__ucx_get_transport(ucx), &params, &window, &ul_err));
    if (in_chunks) {
        UL_CHECK(heft__window_expect(window, &expect, &ul_err));
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    const uint64_t n = text.len + 1;
    ul_put(out, &n, sizeof n);
    ul_put(out, text.data, n);
    for (;;) {
        char c;
        ul_get(in, &c, 1);
        heft__window_arm(window, token);
        ul_put(out, &c, 1);
    }
}

typedef struct ours {
    pid_t pid;
    int in, out;
    heft__remote_t *remote;
} ours_t;

static void start_pair(int64_t bytes, int what, pid_t *pid, int *in, int *out)
{
    int up[2];
    int down[2];
    if (pipe(up) != 0 || pipe(down) != 0) {
        exit(1);
    }
    *pid = fork();
    if (*pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(up[0]);
        (void)close(down[1]);
        if (what == 0) {
            ul_serve(bytes, up[1], down[0]);
        }
        serve_heft(bytes, what == 2, up[1], down[0]);
        exit(0);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    *in = up[0];
    *out = down[1];
}

static void attach(ours_t *o, heft__ucx_t *ucx)
{
    uint64_t n;
    ul_get(o->in, &n, sizeof n);
    char *text = malloc(n);
    ul_get(o->in, text, n);
    const heft__attach_params_t params = { .deadline_mono_ns = ul_in_s(60) };
    UL_CHECK(heft__remote_attach(heft__ucx_get_transport(ucx), text, &params, &o->remote, &ul_err));
    free(text);
}

static double run_heft(ours_t *o, const uint8_t *source, int64_t bytes, bool in_chunks)
{
    char c = 'a';
    const heft__route_t route = { .bytes = bytes };
    const heft__expect_t expect = { .routes = &route,
                                    .n_routes = 1,
                                    .n_senders = 1,
                                    .chunk_bytes = CHUNK,
                                    .crc = heft__crc32c,
                                    .crc_copy = heft__crc32c_copy };
    heft__chunk_counts_t counts = { 0, 0 };
    ul_put(o->out, &c, 1);
    ul_get(o->in, &c, 1);
    UL_CHECK(heft__remote_begin(o->remote, token, ul_in_s(600), &ul_err));
    const double start = ul_now();
    if (in_chunks) {
        UL_CHECK(heft__chunk_send(o->remote, &expect, token, 0, source, ul_in_s(600), NULL, NULL,
                                  &counts, &ul_err));
    } else {
        UL_CHECK(heft__remote_put(o->remote, 0, source, bytes, &ul_err));
    }
    UL_CHECK(heft__remote_flush(o->remote, ul_in_s(600), &ul_err));
    const double seconds = ul_now() - start;
    UL_CHECK(heft__remote_end(o->remote, token, true, &ul_err));
    return (double)bytes / seconds / 1e9;
}

/* ---- what a round cost ---- */

enum { LOOP, PUTS, CHUNKS, N_KINDS };

/* Seconds that a process has used so far. */
static double cpu_of(pid_t pid)
{
    clockid_t id;
    struct timespec ts = { 0 };
    if (clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &ts) != 0) {
        return 0;
    }
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ul_compare);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    const int64_t bytes = (argc > 1 ? strtoll(argv[1], NULL, 10) : 1) << 30;
    const int wanted = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 7;
    const int rounds = wanted < MAX_ROUNDS ? wanted : MAX_ROUNDS;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    ours_t puts;
    ours_t chunks;
    pid_t plain_pid;
    int plain_in;
    int plain_out;
    start_pair(bytes, 0, &plain_pid, &plain_in, &plain_out);
    start_pair(bytes, 1, &puts.pid, &puts.in, &puts.out);
    start_pair(bytes, 2, &chunks.pid, &chunks.in, &chunks.out);
    uint8_t *source = ul_take(bytes);

    ul_loop_t p = { .n_under_way = 0 };
    ul_target_t to;
    ul_start(&p);
    ul_connect(&p, plain_in, &to);
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    heft__ucx_t *ucx = NULL;
    UL_CHECK(heft__ucx_acquire(&opts, &ucx, &ul_err));
    attach(&puts, ucx);
    attach(&chunks, ucx);
    (void)printf("%s, %lld MiB\n", heft__remote_describe(puts.remote), (long long)(bytes >> 20));

    const pid_t receivers[N_KINDS] = { plain_pid, puts.pid, chunks.pid };
    static double rates[N_KINDS][MAX_ROUNDS];
    static double ratios[N_KINDS][MAX_ROUNDS];
    static double cpu[N_KINDS][2][MAX_ROUNDS];
    for (int i = -1; i < rounds; i++) { /* the first is not counted: pages, connections */
        const int at = i < 0 ? 0 : i;
        for (int kind = 0; kind < N_KINDS; kind++) {
            const double before[2] = { cpu_of(getpid()), cpu_of(receivers[kind]) };
            rates[kind][at] = kind == LOOP ? run_loop(&p, &to, source, bytes)
                                           : run_heft(kind == PUTS ? &puts : &chunks, source, bytes,
                                                      kind == CHUNKS);
            ratios[kind][at] = rates[kind][at] / rates[LOOP][at];
            cpu[kind][0][at] = (cpu_of(getpid()) - before[0]) / (double)bytes * 1e9;
            cpu[kind][1][at] = (cpu_of(receivers[kind]) - before[1]) / (double)bytes * 1e9;
        }
        (void)printf(
            "%sucp_put loop %5.2f GB/s   heft puts %5.2f (%.2f)   heft chunks %5.2f (%.2f)\n",
            i < 0 ? "(warm-up) " : "", rates[LOOP][at], rates[PUTS][at], ratios[PUTS][at],
            rates[CHUNKS][at], ratios[CHUNKS][at]);
    }
    static const char *const names[N_KINDS] = { "ucp_put loop", "heft puts", "heft chunks" };
    for (int kind = 0; kind < N_KINDS; kind++) {
        (void)printf("median: %-12s %5.2f GB/s, %.2f of the loop; processor for a GB: sender "
                     "%.3f s, receiver %.3f s\n",
                     names[kind], median(rates[kind], rounds), median(ratios[kind], rounds),
                     median(cpu[kind][0], rounds), median(cpu[kind][1], rounds));
    }
    heft__remote_close(puts.remote);
    heft__remote_close(chunks.remote);
    heft__ucx_release(ucx);
    (void)kill(plain_pid, SIGKILL);
    (void)kill(puts.pid, SIGKILL);
    (void)kill(chunks.pid, SIGKILL);
    return 0;
}

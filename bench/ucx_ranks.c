/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several source processes and as many engine processes: each source sends each engine its share of
 * the engine's window, in chunks by heft's ucx transport and in puts by a minimal loop with the
 * same pattern, rounds interleaved. The clock runs from the first order to the last answer.
 *
 *   bench_ucx_ranks [GiB of all engines] [rounds] [ranks] [PID of sources' host] [PID of engines']
 *
 * With the ids of two processes the sources run in the network of the first and the
 * engines in that of the other (bench/ranks_hosts.py makes such hosts).
 */
#include "kernel/kernel.h"
#include "ucx_loop.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, MAX_RANKS = 8, MAX_ROUNDS = 32, INFO_BYTES = 32768 };

/* A process of this program, and what it said of itself. */
typedef struct end {
    pid_t pid;
    int in; /* from it */
    int out;
    uint8_t info[INFO_BYTES];
    size_t info_bytes;
} end_t;

static int n_ranks = 4;
static int64_t share_bytes; /* from one source to one engine */
static heft__route_t routes[MAX_RANKS];
static end_t loops[MAX_RANKS];
static end_t engines[MAX_RANKS];
static end_t sources[MAX_RANKS];

static heft__expect_t expectation(void)
{
    return (heft__expect_t){ .routes = routes,
                             .n_routes = (uint32_t)n_ranks,
                             .n_senders = (uint32_t)n_ranks,
                             .chunk_bytes = CHUNK,
                             .crc = heft__crc32c,
                             .crc_copy = heft__crc32c_copy };
}

/* Into the network of another process, with a /sys that shows its devices: UCX looks there. */
static void move_to(const char *pid)
{
    char path[64];
    if (pid == NULL) {
        return;
    }
    (void)snprintf(path, sizeof path, "/proc/%.16s/ns/net", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0) {
        perror(path);
        exit(1);
    }
    (void)close(fd);
}

static heft__ucx_t *acquire(void)
{
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    heft__ucx_t *ucx = NULL;
    UL_CHECK(heft__ucx_acquire(&opts, &ucx, &ul_err));
    return ucx;
}

/* ---- engines ---- */

static void serve_engine(int out, int in)
{
    heft__window_t *window = NULL;
    const heft__window_params_t params = { .bytes = share_bytes * n_ranks,
                                           .memory = HEFT__MEMORY_HOST };
    const heft__expect_t expect = expectation();
    heft__text_t text;
    heft__text_init(&text);
    UL_CHECK(heft__window_create(heft__ucx_get_transport(acquire()), &params, &window, &ul_err));
    UL_CHECK(heft__window_expect(window, &expect, &ul_err));
    heft__window_encode(window, &text);
    ul_put(out, text.data, text.len + 1);
    for (;;) {
        uint64_t seq;
        ul_get(in, &seq, sizeof seq);
        heft__window_arm(window, (heft__token_t){ 1, seq });
        ul_put(out, &seq, sizeof seq);
    }
}

/* ---- sources ---- */

static void run_loop(ul_loop_t *p, const ul_target_t *to, int rank, const uint8_t *source)
{
    for (int k = 0; k < n_ranks; k++) { /* each begins with another engine */
        const int e = (rank + k) % n_ranks;
        ul_put_range(p, &to[e], share_bytes * rank, source + share_bytes * e, share_bytes);
    }
    for (int e = 0; e < n_ranks; e++) {
        ul_flush(p, &to[e]);
    }
}

static void run_heft(heft__remote_t *const *remotes, int rank, const uint8_t *source, uint64_t seq)
{
    const heft__expect_t expect = expectation();
    const heft__token_t token = { 1, seq };
    heft__chunk_tx_t tx[MAX_RANKS];
    for (int k = 0; k < n_ranks; k++) {
        const int e = (rank + k) % n_ranks;
        /* the route lies at share * rank of the window, and at share * e of the source */
        const uint8_t *base = source + share_bytes * e - share_bytes * rank;
        UL_CHECK(heft__remote_begin(remotes[e], token, ul_in_s(600), &ul_err));
        heft__chunk_tx_init(&tx[e], remotes[e], &expect, token, base, NULL, ul_in_s(600), NULL,
                            NULL);
        UL_CHECK(heft__chunk_tx_send(&tx[e], (uint32_t)rank, &ul_err));
    }
    for (int e = 0; e < n_ranks; e++) {
        UL_CHECK(heft__chunk_tx_finish(&tx[e], HEFT_OK, &ul_err));
        UL_CHECK(heft__remote_end(remotes[e], token, true, &ul_err));
    }
}

static void serve_source(int rank, int out, int in)
{
    ul_loop_t loop = { .n_under_way = 0 };
    ul_target_t targets[MAX_RANKS];
    heft__remote_t *remotes[MAX_RANKS];
    uint8_t *source = ul_take(share_bytes * n_ranks);
    heft__ucx_t *ucx = acquire();
    ul_start(&loop);
    for (int e = 0; e < n_ranks; e++) {
        int fds[2];
        if (pipe(fds) != 0) {
            exit(1);
        }
        ul_put(fds[1], loops[e].info, loops[e].info_bytes);
        ul_connect(&loop, fds[0], &targets[e]);
        const heft__attach_params_t params = { .deadline_mono_ns = ul_in_s(60) };
        UL_CHECK(heft__remote_attach(heft__ucx_get_transport(ucx), (const char *)engines[e].info,
                                     &params, &remotes[e], &ul_err));
    }
    if (rank == 0) {
        (void)printf("%d x %d by %s\n", n_ranks, n_ranks, heft__remote_describe(remotes[0]));
    }
    uint64_t seq = 0;
    for (;;) {
        ul_put(out, &seq, sizeof seq);
        ul_get(in, &seq, sizeof seq);
        if (seq == 0) {
            run_loop(&loop, targets, rank, source);
        } else {
            run_heft(remotes, rank, source, seq);
        }
    }
}

/* ---- the conductor ---- */

static void spawn(end_t *end, const char *host, void (*serve)(int rank, int out, int in), int rank)
{
    int up[2];
    int down[2];
    if (pipe(up) != 0 || pipe(down) != 0) {
        exit(1);
    }
    end->pid = fork();
    if (end->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(up[0]);
        (void)close(down[1]);
        move_to(host);
        serve(rank, up[1], down[0]);
        exit(0);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    end->in = up[0];
    end->out = down[1];
}

static void serve_loop_of(int rank, int out, int in)
{
    (void)rank;
    ul_serve(share_bytes * n_ranks, out, in);
}

static void serve_engine_of(int rank, int out, int in)
{
    (void)rank;
    serve_engine(out, in);
}

static void read_more(end_t *end, size_t n)
{
    if (n > sizeof end->info - end->info_bytes) {
        exit(1);
    }
    ul_get(end->in, end->info + end->info_bytes, n);
    end->info_bytes += n;
}

/* Two lengths and an address, then what has these lengths. */
static void read_loop_info(end_t *end)
{
    uint64_t head[3];
    read_more(end, sizeof head);
    memcpy(head, end->info, sizeof head);
    read_more(end, head[0]);
    read_more(end, head[1]);
}

/* A text. */
static void read_engine_info(end_t *end)
{
    do {
        read_more(end, 1);
    } while (end->info[end->info_bytes - 1] != '\0');
}

/* One round; 0: by the loop. GB/s of all together. */
static double run(uint64_t seq)
{
    uint64_t answer;
    for (int e = 0; e < n_ranks && seq > 0; e++) {
        ul_put(engines[e].out, &seq, sizeof seq);
        ul_get(engines[e].in, &answer, sizeof answer);
    }
    const double start = ul_now();
    for (int s = 0; s < n_ranks; s++) {
        ul_put(sources[s].out, &seq, sizeof seq);
    }
    for (int s = 0; s < n_ranks; s++) {
        ul_get(sources[s].in, &answer, sizeof answer);
    }
    return (double)(share_bytes * n_ranks * n_ranks) / (ul_now() - start) / 1e9;
}

int main(int argc, char **argv)
{
    const int64_t bytes = (argc > 1 ? strtoll(argv[1], NULL, 10) : 1) << 30;
    const int wanted = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
    const int rounds = wanted < MAX_ROUNDS ? wanted : MAX_ROUNDS;
    n_ranks = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 4;
    const char *const hosts[2] = { argc > 5 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL };
    if (n_ranks < 1 || n_ranks > MAX_RANKS) {
        (void)fprintf(stderr, "1 to %d ranks\n", MAX_RANKS);
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    share_bytes = bytes / n_ranks / n_ranks / CHUNK * CHUNK;
    for (int r = 0; r < n_ranks; r++) {
        routes[r] = (heft__route_t){ .offset = share_bytes * r, .bytes = share_bytes };
    }
    for (int r = 0; r < n_ranks; r++) {
        spawn(&loops[r], hosts[1], serve_loop_of, r);
        read_loop_info(&loops[r]);
        spawn(&engines[r], hosts[1], serve_engine_of, r);
        read_engine_info(&engines[r]);
    }
    for (int r = 0; r < n_ranks; r++) {
        spawn(&sources[r], hosts[0], serve_source, r);
    }
    for (int r = 0; r < n_ranks; r++) {
        uint64_t ready;
        ul_get(sources[r].in, &ready, sizeof ready);
    }
    double loop[MAX_ROUNDS];
    double ratio[MAX_ROUNDS];
    for (int i = -1; i < rounds; i++) { /* the first is not counted */
        const int at = i < 0 ? 0 : i;
        loop[at] = run(0);
        const double heft = run((uint64_t)i + 2);
        ratio[at] = heft / loop[at];
        (void)printf("%sucp_put loop %5.2f GB/s   heft chunks %5.2f (%.2f)\n",
                     i < 0 ? "(warm-up) " : "", loop[at], heft, ratio[at]);
    }
    qsort(loop, (size_t)rounds, sizeof *loop, ul_compare);
    qsort(ratio, (size_t)rounds, sizeof *ratio, ul_compare);
    (void)printf("median: loop %.2f GB/s, heft chunks %.2f of it\n", loop[rounds / 2],
                 ratio[rounds / 2]);
    return 0; /* the others end with this process */
}

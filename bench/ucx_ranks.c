/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several source processes and as many engine processes: each source sends each engine its share of
 * the engine's window, rounds interleaved, by
 *
 *   loop    puts of a minimal loop over UCX
 *   chunks  heft's ucx transport; not where UCX_TLS names no network, for there heft does not use
 * it shm     heft's shm transport, on one host: the kernels write into the mapped window and take
 * the digests in the same pass, as a push does
 *
 * all with the same pattern. The clock runs from the first order to the last answer. Receivers of
 * another way than the one at hand sleep in a read of a pipe.
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

enum { CHUNK = 1 << 20, UNIT = 8 << 20, MAX_RANKS = 8, MAX_ROUNDS = 32, INFO_BYTES = 32768 };

typedef enum way { LOOP, CHUNKS, SHM, N_WAYS } way_t;
static const char *const way_names[N_WAYS] = { "ucp_put loop", "heft chunks", "heft shm" };
static bool is_used[N_WAYS];

/* A process of this program, and what it said of itself. */
typedef struct end {
    pid_t pid;
    int in; /* from it */
    int out;
    uint8_t info[INFO_BYTES];
    size_t info_bytes;
} end_t;

/* To a source: one round. */
typedef struct order {
    uint64_t seq;
    way_t way;
} order_t;

static int n_ranks = 4;
static int64_t share_bytes; /* from one source to one engine */
static heft__route_t routes[MAX_RANKS];
static volatile uint64_t digests[MAX_RANKS]; /* of what a source wrote; nobody asks here */
static end_t receivers[N_WAYS][MAX_RANKS];
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

static heft__transport_t *transport_of(way_t way)
{
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    heft__ucx_t *ucx = NULL;
    if (way == SHM) {
        return heft__transport_get_shm();
    }
    UL_CHECK(heft__ucx_acquire(&opts, &ucx, &ul_err));
    return heft__ucx_get_transport(ucx);
}

/* ---- engines ---- */

static void serve_engine(way_t way, int out, int in)
{
    heft__window_t *window = NULL;
    const heft__window_params_t params = { .bytes = share_bytes * n_ranks,
                                           .memory = HEFT__MEMORY_HOST };
    const heft__expect_t expect = expectation();
    heft__text_t text;
    heft__text_init(&text);
    UL_CHECK(heft__window_create(transport_of(way), &params, &window, &ul_err));
    if (way == CHUNKS) {
        UL_CHECK(heft__window_expect(window, &expect, &ul_err));
    }
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

static void run_chunks(heft__remote_t *const *remotes, int rank, const uint8_t *source,
                       uint64_t seq)
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

/* The part of one engine, in units as a run cuts them. */
static uint64_t write_share(uint8_t *to, const uint8_t *from)
{
    uint64_t digest = 0;
    for (int64_t at = 0; at < share_bytes; at += UNIT) {
        const heft__copy_t copy = { .elem_bytes = 2,
                                    .rank = 1,
                                    .extent = { heft__min_i64(UNIT, share_bytes - at) / 2 },
                                    .dst_stride = { 1 },
                                    .src_stride = { 1 } };
        heft__copy_plan_t plan;
        UL_CHECK(heft__copy_prepare(&copy, &plan, &ul_err));
        digest ^= heft__copy_run_crc64(&plan, to + at, from + at, at, share_bytes);
    }
    return digest;
}

static void run_shm(heft__remote_t *const *remotes, int rank, const uint8_t *source, uint64_t seq)
{
    const heft__token_t token = { 1, seq };
    for (int k = 0; k < n_ranks; k++) {
        const int e = (rank + k) % n_ranks;
        UL_CHECK(heft__remote_begin(remotes[e], token, ul_in_s(600), &ul_err));
        digests[e] = write_share(remotes[e]->ptr + share_bytes * rank, source + share_bytes * e);
        UL_CHECK(heft__remote_flush(remotes[e], ul_in_s(600), &ul_err));
        UL_CHECK(heft__remote_end(remotes[e], token, true, &ul_err));
    }
}

static void connect_loop(ul_loop_t *loop, ul_target_t *targets)
{
    ul_start(loop);
    for (int e = 0; e < n_ranks; e++) {
        int fds[2];
        if (pipe(fds) != 0) {
            exit(1);
        }
        ul_put(fds[1], receivers[LOOP][e].info, receivers[LOOP][e].info_bytes);
        ul_connect(loop, fds[0], &targets[e]);
    }
}

static void attach(way_t way, int rank, heft__remote_t **remotes)
{
    heft__transport_t *transport = is_used[way] ? transport_of(way) : NULL;
    for (int e = 0; e < n_ranks && is_used[way]; e++) {
        const heft__attach_params_t params = { .deadline_mono_ns = ul_in_s(60) };
        UL_CHECK(heft__remote_attach(transport, (const char *)receivers[way][e].info, &params,
                                     &remotes[e], &ul_err));
    }
    if (rank == 0 && is_used[way]) {
        (void)printf("%d x %d by %s\n", n_ranks, n_ranks, heft__remote_describe(remotes[0]));
    }
}

static void serve_source(int rank, int out, int in)
{
    ul_loop_t loop = { .n_under_way = 0 };
    ul_target_t targets[MAX_RANKS];
    heft__remote_t *remotes[N_WAYS][MAX_RANKS];
    uint8_t *source = ul_take(share_bytes * n_ranks);
    connect_loop(&loop, targets);
    attach(CHUNKS, rank, remotes[CHUNKS]);
    attach(SHM, rank, remotes[SHM]);
    order_t order = { .seq = 0 };
    for (;;) {
        ul_put(out, &order.seq, sizeof order.seq);
        ul_get(in, &order, sizeof order);
        if (order.way == LOOP) {
            run_loop(&loop, targets, rank, source);
        } else if (order.way == CHUNKS) {
            run_chunks(remotes[CHUNKS], rank, source, order.seq);
        } else {
            run_shm(remotes[SHM], rank, source, order.seq);
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

static void serve_chunks_of(int rank, int out, int in)
{
    (void)rank;
    serve_engine(CHUNKS, out, in);
}

static void serve_shm_of(int rank, int out, int in)
{
    (void)rank;
    serve_engine(SHM, out, in);
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

static void start_receivers(const char *host)
{
    static void (*const serve[N_WAYS])(int rank, int out,
                                       int in) = { serve_loop_of, serve_chunks_of, serve_shm_of };
    for (int way = 0; way < N_WAYS; way++) {
        for (int r = 0; r < n_ranks && is_used[way]; r++) {
            spawn(&receivers[way][r], host, serve[way], r);
            if (way == LOOP) {
                read_loop_info(&receivers[way][r]);
            } else {
                read_engine_info(&receivers[way][r]);
            }
        }
    }
}

static void start_sources(const char *host)
{
    for (int r = 0; r < n_ranks; r++) {
        spawn(&sources[r], host, serve_source, r);
    }
    for (int r = 0; r < n_ranks; r++) {
        uint64_t ready;
        ul_get(sources[r].in, &ready, sizeof ready);
    }
}

/* The loop's receivers rest, or go on; heft's wait for their senders without being told. */
static void toggle_loops(void)
{
    char c = 'x';
    for (int e = 0; e < n_ranks; e++) {
        ul_put(receivers[LOOP][e].out, &c, 1);
        ul_get(receivers[LOOP][e].in, &c, 1);
    }
}

/* One round; GB/s of all together. */
static double run(way_t way, uint64_t seq)
{
    const order_t order = { .seq = seq, .way = way };
    uint64_t answer;
    for (int e = 0; e < n_ranks && way != LOOP; e++) {
        ul_put(receivers[way][e].out, &seq, sizeof seq);
        ul_get(receivers[way][e].in, &answer, sizeof answer);
    }
    const double start = ul_now();
    for (int s = 0; s < n_ranks; s++) {
        ul_put(sources[s].out, &order, sizeof order);
    }
    for (int s = 0; s < n_ranks; s++) {
        ul_get(sources[s].in, &answer, sizeof answer);
    }
    return (double)(share_bytes * n_ranks * n_ranks) / (ul_now() - start) / 1e9;
}

/* The loop, then the others while its receivers rest. */
static void run_round(int i, double rates[N_WAYS][MAX_ROUNDS], double ratios[N_WAYS][MAX_ROUNDS])
{
    const int at = i < 0 ? 0 : i;
    (void)printf("%s", i < 0 ? "(warm-up) " : "");
    for (int way = 0; way < N_WAYS; way++) {
        if (is_used[way]) {
            rates[way][at] = run((way_t)way, (uint64_t)i + 2);
            ratios[way][at] = rates[way][at] / rates[LOOP][at];
            (void)printf("%s %5.2f GB/s (%.2f)   ", way_names[way], rates[way][at],
                         ratios[way][at]);
        }
        if (way == LOOP) {
            toggle_loops();
        }
    }
    toggle_loops();
    (void)printf("\n");
}

int main(int argc, char **argv)
{
    static double rates[N_WAYS][MAX_ROUNDS];
    static double ratios[N_WAYS][MAX_ROUNDS];
    const int64_t bytes = (argc > 1 ? strtoll(argv[1], NULL, 10) : 1) << 30;
    const int wanted = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
    const int rounds = wanted < MAX_ROUNDS ? wanted : MAX_ROUNDS;
    n_ranks = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 4;
    const char *const hosts[2] = { argc > 5 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL };
    if (n_ranks < 1 || n_ranks > MAX_RANKS || rounds < 1) {
        (void)fprintf(stderr, "1 to %d ranks, 1 round or more\n", MAX_RANKS);
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    is_used[LOOP] = true;
    is_used[CHUNKS] = !ul_is_shared();
    is_used[SHM] = hosts[0] == NULL;
    share_bytes = bytes / n_ranks / n_ranks / CHUNK * CHUNK;
    for (int r = 0; r < n_ranks; r++) {
        routes[r] = (heft__route_t){ .offset = share_bytes * r, .bytes = share_bytes };
    }
    start_receivers(hosts[1]);
    start_sources(hosts[0]);
    for (int i = -1; i < rounds; i++) { /* the first is not counted */
        run_round(i, rates, ratios);
    }
    for (int way = 0; way < N_WAYS; way++) {
        if (is_used[way]) {
            qsort(rates[way], (size_t)rounds, sizeof rates[way][0], ul_compare);
            qsort(ratios[way], (size_t)rounds, sizeof ratios[way][0], ul_compare);
            (void)printf("median: %-12s %5.2f GB/s, %.2f of the loop\n", way_names[way],
                         rates[way][rounds / 2], ratios[way][rounds / 2]);
        }
    }
    return 0; /* the others end with this process */
}

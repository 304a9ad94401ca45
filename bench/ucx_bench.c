/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput of heft's ucx transport beside a minimal ucp_put loop of our own, on the same path in
 * the same run: two processes, cold buffers of 1 GiB or more on both sides, rounds interleaved, the
 * median of the ratios, and the processor time of each side, which says more than the clock on a
 * machine with few cores. What heft does on top: headers, CRC-32C on both sides, verdicts.
 *
 *   bench_ucx_bench [GiB] [rounds]           UCX_TLS and UCX_NET_DEVICES choose the path
 *
 * The loop puts 8 MiB at a time, 8 under way, from one thread that does nothing else, with the
 * settings that heft gives UCX; its receiver only makes progress.
 */
#include "kernel/kernel.h"
#include "transport/transport.h"
#include "transport/ucx_private.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 8 << 20, CHUNK = 1 << 20, UNDER_WAY = 8, MAX_ROUNDS = 32 };

static heft_error_t err;

#define CHECK(call)                                                           \
    do {                                                                      \
        if ((call) != HEFT_OK) {                                              \
            (void)fprintf(stderr, "ucx_bench: %s: %s\n", #call, err.message); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

static double now(void)
{
    return (double)heft__clock_mono_ns() * 1e-9;
}

static int64_t in_s(int64_t s)
{
    return heft__clock_mono_ns() + s * 1000000000;
}

static uint8_t *take(int64_t bytes)
{
    uint8_t *p =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        (void)fprintf(stderr, "ucx_bench: no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    (void)madvise(p, (size_t)bytes, MADV_HUGEPAGE);
    memset(p, 0x5a, (size_t)bytes);
    return p;
}

static void put_all(int fd, const void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = write(fd, (const char *)data + at, n - at);
        if (got <= 0) {
            exit(1);
        }
        at += (size_t)got;
    }
}

static void get_all(int fd, void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, (char *)data + at, n - at);
        if (got <= 0) {
            exit(0);
        }
        at += (size_t)got;
    }
}

/* ---- the loop: UCX and nothing else ---- */

typedef struct plain {
    const heft__ucx_api_t *api;
    ucp_context_h context;
    ucp_worker_h worker;
    int fd;
    int n_under_way;
} plain_t;

static void start_plain(plain_t *p)
{
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    ucp_config_t *config = NULL;
    CHECK(heft__ucx_api_load(&p->api, &err));
    CHECK(heft__ucx_config_read(p->api, &opts, &config, &err));
    const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                                  .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP };
    const ucp_worker_params_t worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE };
    if (p->api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &p->context) !=
            UCS_OK ||
        p->api->ucp_worker_create(p->context, &worker, &p->worker) != UCS_OK ||
        p->api->ucp_worker_get_efd(p->worker, &p->fd) != UCS_OK) {
        (void)fprintf(stderr, "ucx_bench: no worker\n");
        exit(1);
    }
    p->api->ucp_config_release(config);
}

static void serve_plain(int64_t bytes, int out, int in)
{
    plain_t p = { .n_under_way = 0 };
    start_plain(&p);
    uint8_t *memory = take(bytes);
    const ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                        UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                          .address = memory,
                                          .length = (size_t)bytes };
    ucp_mem_h memh;
    void *key;
    size_t key_bytes;
    ucp_address_t *address;
    size_t address_bytes;
    if (p.api->ucp_mem_map(p.context, &params, &memh) != UCS_OK ||
        p.api->ucp_rkey_pack(p.context, memh, &key, &key_bytes) != UCS_OK ||
        p.api->ucp_worker_get_address(p.worker, &address, &address_bytes) != UCS_OK) {
        exit(1);
    }
    const uint64_t head[3] = { address_bytes, key_bytes, (uint64_t)(uintptr_t)memory };
    put_all(out, head, sizeof head);
    put_all(out, address, address_bytes);
    put_all(out, key, key_bytes);
    struct pollfd fds[2] = { { .fd = in, .events = POLLIN }, { .fd = p.fd, .events = POLLIN } };
    while ((fds[0].revents & (POLLIN | POLLHUP)) == 0) {
        while (p.api->ucp_worker_progress(p.worker) != 0) {
        }
        if (p.api->ucp_worker_arm(p.worker) == UCS_OK) {
            (void)poll(fds, 2, 1000);
        }
    }
    exit(0);
}

static void on_done(void *request, ucs_status_t status, void *arg)
{
    plain_t *p = arg;
    p->n_under_way--;
    if (status != UCS_OK) {
        (void)fprintf(stderr, "ucx_bench: a put failed\n");
        exit(1);
    }
    p->api->ucp_request_free(request);
}

static void drain(plain_t *p, int most)
{
    while (p->n_under_way > most) {
        (void)p->api->ucp_worker_progress(p->worker);
    }
}

static double run_plain(plain_t *p, ucp_ep_h ep, ucp_rkey_h rkey, uint64_t base,
                        const uint8_t *source, int64_t bytes)
{
    const ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA,
                                        .cb.send = on_done,
                                        .user_data = p };
    const double start = now();
    for (int64_t at = 0; at < bytes; at += PIECE) {
        drain(p, UNDER_WAY - 1);
        p->n_under_way +=
            p->api->ucp_put_nbx(ep, source + at, PIECE, base + (uint64_t)at, rkey, &param) != NULL;
    }
    p->n_under_way += p->api->ucp_ep_flush_nbx(ep, &param) != NULL;
    drain(p, 0);
    return (double)bytes / (now() - start) / 1e9;
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
    CHECK(heft__ucx_acquire(&opts, &ucx, &err));
    CHECK(heft__window_create(heft__ucx_get_transport(ucx), &params, &window, &err));
    if (in_chunks) {
        CHECK(heft__window_expect(window, &expect, &err));
    }
    heft__text_t text;
    heft__text_init(&text);
    heft__window_encode(window, &text);
    const uint64_t n = text.len + 1;
    put_all(out, &n, sizeof n);
    put_all(out, text.data, n);
    for (;;) {
        char c;
        get_all(in, &c, 1);
        heft__window_arm(window, token);
        put_all(out, &c, 1);
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
            serve_plain(bytes, up[1], down[0]);
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
    get_all(o->in, &n, sizeof n);
    char *text = malloc(n);
    get_all(o->in, text, n);
    const heft__attach_params_t params = { .deadline_mono_ns = in_s(60) };
    CHECK(heft__remote_attach(heft__ucx_get_transport(ucx), text, &params, &o->remote, &err));
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
    put_all(o->out, &c, 1);
    get_all(o->in, &c, 1);
    CHECK(heft__remote_begin(o->remote, token, in_s(600), &err));
    const double start = now();
    if (in_chunks) {
        CHECK(heft__chunk_send(o->remote, &expect, token, 0, source, in_s(600), NULL, NULL, &counts,
                               &err));
    } else {
        CHECK(heft__remote_put(o->remote, 0, source, bytes, &err));
    }
    CHECK(heft__remote_flush(o->remote, in_s(600), &err));
    const double seconds = now() - start;
    CHECK(heft__remote_end(o->remote, token, true, &err));
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

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
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
    uint8_t *source = take(bytes);

    plain_t p = { .n_under_way = 0 };
    uint64_t head[3];
    uint8_t address[HEFT__UCX_ADDRESS_MAX];
    uint8_t key[HEFT__UCX_KEY_MAX];
    get_all(plain_in, head, sizeof head);
    get_all(plain_in, address, head[0]);
    get_all(plain_in, key, head[1]);
    start_plain(&p);
    const ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                   UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                     .address = (const ucp_address_t *)address,
                                     .err_mode = UCP_ERR_HANDLING_MODE_PEER };
    ucp_ep_h ep;
    ucp_rkey_h rkey;
    if (p.api->ucp_ep_create(p.worker, &params, &ep) != UCS_OK ||
        p.api->ucp_ep_rkey_unpack(ep, key, &rkey) != UCS_OK) {
        (void)fprintf(stderr, "ucx_bench: no way to the loop's receiver\n");
        return 1;
    }
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    heft__ucx_t *ucx = NULL;
    CHECK(heft__ucx_acquire(&opts, &ucx, &err));
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
            rates[kind][at] = kind == LOOP ? run_plain(&p, ep, rkey, head[2], source, bytes)
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

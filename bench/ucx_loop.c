/* SPDX-License-Identifier: Apache-2.0 */
/* The loop puts 8 MiB at a time, 8 under way, from one thread that does nothing else, and sleeps
 * where it has nothing to do; its receiver only makes progress. */
#include "ucx_loop.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

heft_error_t ul_err = HEFT_ERROR_INIT;

double ul_now(void)
{
    return (double)heft__clock_mono_ns() * 1e-9;
}

int64_t ul_in_s(int64_t s)
{
    return heft__clock_mono_ns() + s * 1000000000;
}

uint8_t *ul_take(int64_t bytes)
{
    uint8_t *p =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        (void)fprintf(stderr, "ucx bench: no memory for %lld bytes\n", (long long)bytes);
        exit(1);
    }
    (void)madvise(p, (size_t)bytes, MADV_HUGEPAGE);
    memset(p, 0x5a, (size_t)bytes);
    return p;
}

void ul_put(int fd, const void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = write(fd, (const char *)data + at, n - at);
        if (got <= 0) {
            exit(1);
        }
        at += (size_t)got;
    }
}

void ul_get(int fd, void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = read(fd, (char *)data + at, n - at);
        if (got <= 0) {
            exit(0);
        }
        at += (size_t)got;
    }
}

void ul_start(ul_loop_t *p)
{
    const heft__ucx_opts_t opts = { .allow_tcp = true };
    ucp_config_t *config = NULL;
    UL_CHECK(heft__ucx_api_load(&p->api, &ul_err));
    UL_CHECK(heft__ucx_config_read(p->api, &opts, &config, &ul_err));
    const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                                  .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP };
    const ucp_worker_params_t worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE };
    if (p->api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &p->context) !=
            UCS_OK ||
        p->api->ucp_worker_create(p->context, &worker, &p->worker) != UCS_OK ||
        p->api->ucp_worker_get_efd(p->worker, &p->fd) != UCS_OK) {
        (void)fprintf(stderr, "ucx bench: no worker\n");
        exit(1);
    }
    p->api->ucp_config_release(config);
}

bool ul_is_shared(void)
{
    const char *tls = getenv("UCX_TLS");
    return tls != NULL && strstr(tls, "tcp") == NULL;
}

/* Registered memory. UCX's own where memory is shared: a put is one copy then, made by the sender;
 * into other memory UCX 1.13 imitates it, in pieces of 8 KiB that both ends spin over. */
static uint8_t *map_memory(const ul_loop_t *p, int64_t bytes, ucp_mem_h *memh_out)
{
    ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                    .length = (size_t)bytes };
    if (ul_is_shared()) {
        params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS;
        params.flags = UCP_MEM_MAP_ALLOCATE;
    } else {
        params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        params.address = ul_take(bytes);
    }
    ucp_mem_attr_t attr = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };
    ucs_status_t (*query)(ucp_mem_h, ucp_mem_attr_t *) = NULL;
    void *const library = dlopen("libucp.so.0", RTLD_NOW); /* heft itself does without it */
    if (library != NULL) {
        *(void **)&query = dlsym(library, "ucp_mem_query");
    }
    if (query == NULL || p->api->ucp_mem_map(p->context, &params, memh_out) != UCS_OK ||
        query(*memh_out, &attr) != UCS_OK) {
        (void)fprintf(stderr, "ucx bench: UCX has no memory\n");
        exit(1);
    }
    memset(attr.address, 0, (size_t)bytes);
    return attr.address;
}

/* Asleep from a byte to the next, so that nothing here takes a core from another way. */
static void rest(int out, int in)
{
    char c;
    for (int i = 0; i < 2; i++) {
        ul_get(in, &c, 1); /* the end of the program that writes it ends this one */
        ul_put(out, &c, 1);
    }
}

void ul_serve(int64_t bytes, int out, int in)
{
    ul_loop_t p = { .n_under_way = 0 };
    ul_start(&p);
    ucp_mem_h memh;
    uint8_t *const memory = map_memory(&p, bytes, &memh);
    void *key;
    size_t key_bytes;
    ucp_address_t *address;
    size_t address_bytes;
    if (p.api->ucp_rkey_pack(p.context, memh, &key, &key_bytes) != UCS_OK ||
        p.api->ucp_worker_get_address(p.worker, &address, &address_bytes) != UCS_OK) {
        exit(1);
    }
    const uint64_t head[3] = { address_bytes, key_bytes, (uint64_t)(uintptr_t)memory };
    ul_put(out, head, sizeof head);
    ul_put(out, address, address_bytes);
    ul_put(out, key, key_bytes);
    struct pollfd fds[2] = { { .fd = in, .events = POLLIN }, { .fd = p.fd, .events = POLLIN } };
    for (;;) {
        while (p.api->ucp_worker_progress(p.worker) != 0) {
        }
        if (p.api->ucp_worker_arm(p.worker) == UCS_OK) {
            (void)poll(fds, 2, 1000);
        } else {
            (void)poll(fds, 1, 0);
        }
        if (fds[0].revents != 0) {
            rest(out, in);
        }
    }
}

static void on_done(void *request, ucs_status_t status, void *arg)
{
    ul_loop_t *p = arg;
    p->n_under_way--;
    if (status != UCS_OK) {
        (void)fprintf(stderr, "ucx bench: a put failed\n");
        exit(1);
    }
    p->api->ucp_request_free(request);
}

static void drain(ul_loop_t *p, int most)
{
    struct pollfd fd = { .fd = p->fd, .events = POLLIN };
    for (int idle = 0; p->n_under_way > most;) {
        idle = p->api->ucp_worker_progress(p->worker) != 0 ? 0 : idle + 1;
        if (idle > 1000 && p->api->ucp_worker_arm(p->worker) == UCS_OK) {
            (void)poll(&fd, 1, 100); /* somebody else may need the core */
        }
    }
}

void ul_connect(ul_loop_t *p, int fd, ul_target_t *to)
{
    uint64_t head[3];
    uint8_t address[HEFT__UCX_ADDRESS_MAX];
    uint8_t key[HEFT__UCX_KEY_MAX];
    ul_get(fd, head, sizeof head);
    ul_get(fd, address, head[0]);
    ul_get(fd, key, head[1]);
    to->base = head[2];
    const ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                   UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                     .address = (const ucp_address_t *)address,
                                     .err_mode = UCP_ERR_HANDLING_MODE_PEER };
    if (p->api->ucp_ep_create(p->worker, &params, &to->ep) != UCS_OK ||
        p->api->ucp_ep_rkey_unpack(to->ep, key, &to->rkey) != UCS_OK) {
        (void)fprintf(stderr, "ucx bench: no way to the loop's receiver\n");
        exit(1);
    }
}

static ucp_request_param_t param_of(ul_loop_t *p)
{
    return (ucp_request_param_t){ .op_attr_mask =
                                      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                  .cb.send = on_done,
                                  .user_data = p };
}

void ul_put_range(ul_loop_t *p, const ul_target_t *to, int64_t offset, const uint8_t *source,
                  int64_t bytes)
{
    const ucp_request_param_t param = param_of(p);
    for (int64_t at = 0; at < bytes; at += UL_PIECE) {
        drain(p, UL_UNDER_WAY - 1);
        p->n_under_way +=
            p->api->ucp_put_nbx(to->ep, source + at, (size_t)heft__min_i64(UL_PIECE, bytes - at),
                                to->base + (uint64_t)(offset + at), to->rkey, &param) != NULL;
    }
}

void ul_flush(ul_loop_t *p, const ul_target_t *to)
{
    const ucp_request_param_t param = param_of(p);
    p->n_under_way += p->api->ucp_ep_flush_nbx(to->ep, &param) != NULL;
    drain(p, 0);
}

int ul_compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest loop of ucp_put_nbx and ucp_ep_flush: 1 MiB a put, at most 16 in flight, then a
 * tagged message that tells the receiver. Transports by UCX_TLS and friends. OPTION "ucx": the
 * receiver's memory is UCX's (one-sided also over shared memory), else its own.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define PUT_BYTES (1u << 20)
#define IN_FLIGHT 16
#define TAG 7

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_mem_h memory;
static ucp_rkey_h rkey;
static uint64_t remote;

static void must(ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
        exit(1);
    }
}

static void wait_for(ucs_status_ptr_t request, const char *what)
{
    if (request == NULL) {
        return;
    }
    if (UCS_PTR_IS_ERR(request)) {
        must(UCS_PTR_STATUS(request), what);
    }
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        (void)ucp_worker_progress(worker);
    }
    ucp_request_free(request);
    must(status, what);
}

static void map_memory(peer_t *peer)
{
    const bool is_ucx = !peer->is_sender && strcmp(peer->option, "ucx") == 0;
    ucp_mem_map_params_t params = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                  UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                  UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                    .address = is_ucx ? NULL : peer->memory,
                                    .length = peer->n_bytes,
                                    .flags = is_ucx ? UCP_MEM_MAP_ALLOCATE : 0 };
    must(ucp_mem_map(context, &params, &memory), "ucp_mem_map");
    ucp_mem_attr_t attr = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };
    must(ucp_mem_query(memory, &attr), "ucp_mem_query");
    peer->memory = attr.address;
    memset(peer->memory, 1, peer->n_bytes);
}

/* info: worker address, remote key, address of the memory; hexadecimal, with points between. */
static void open_end(peer_t *peer)
{
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                            .features = UCP_FEATURE_RMA | UCP_FEATURE_TAG };
    must(ucp_init(&params, NULL, &context), "ucp_init");
    ucp_worker_params_t worker_params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                          .thread_mode = UCS_THREAD_MODE_SINGLE };
    must(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
    map_memory(peer);
    ucp_address_t *address;
    size_t address_bytes;
    must(ucp_worker_get_address(worker, &address, &address_bytes), "ucp_worker_get_address");
    void *key;
    size_t key_bytes;
    must(ucp_rkey_pack(context, memory, &key, &key_bytes), "ucp_rkey_pack");
    char *at = peer->info;
    const char *end = peer->info + sizeof peer->info;
    peer_put_hex(at, (size_t)(end - at), address, address_bytes);
    at += 2 * address_bytes;
    *at++ = '.';
    peer_put_hex(at, (size_t)(end - at), key, key_bytes);
    at += 2 * key_bytes;
    (void)snprintf(at, (size_t)(end - at), ".%llx", (unsigned long long)(uintptr_t)peer->memory);
    ucp_rkey_buffer_release(key);
    ucp_worker_release_address(worker, address);
}

static void connect_end(peer_t *peer, const char *info)
{
    uint8_t address[PEER_INFO_BYTES];
    uint8_t key[PEER_INFO_BYTES];
    (void)peer;
    const char *second = strchr(info, '.') + 1;
    (void)peer_get_hex(info, address, sizeof address);
    (void)peer_get_hex(second, key, sizeof key);
    remote = strtoull(strchr(second, '.') + 1, NULL, 16);
    ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                               .address = (const ucp_address_t *)address };
    must(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
    must(ucp_ep_rkey_unpack(ep, key, &rkey), "ucp_ep_rkey_unpack");
}

static void send_all(const peer_t *peer)
{
    const ucp_request_param_t param = { .op_attr_mask = 0 };
    ucs_status_ptr_t flying[IN_FLIGHT] = { NULL };
    size_t turn = 0;
    for (size_t at = 0; at < peer->n_bytes; at += PUT_BYTES) {
        const size_t left = peer->n_bytes - at;
        wait_for(flying[turn % IN_FLIGHT], "ucp_put_nbx");
        flying[turn++ % IN_FLIGHT] = ucp_put_nbx(
            ep, peer->memory + at, left < PUT_BYTES ? left : PUT_BYTES, remote + at, rkey, &param);
    }
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        wait_for(flying[i], "ucp_put_nbx");
    }
    wait_for(ucp_ep_flush_nbx(ep, &param), "ucp_ep_flush_nbx");
    const uint8_t told = 1;
    /* no flush after it: the receiver makes no progress any more once it has it */
    wait_for(ucp_tag_send_nbx(ep, &told, 1, TAG, &param), "ucp_tag_send_nbx");
}

static void go(peer_t *peer)
{
    if (peer->is_sender) {
        send_all(peer);
        return;
    }
    uint8_t told = 0;
    const ucp_request_param_t param = { .op_attr_mask = 0 };
    wait_for(ucp_tag_recv_nbx(worker, &told, 1, TAG, ~UINT64_C(0), &param), "ucp_tag_recv_nbx");
}

int main(int argc, char **argv)
{
    return peer_main(argc, argv,
                     &(peer_ops_t){ .open = open_end, .connect = connect_end, .go = go });
}

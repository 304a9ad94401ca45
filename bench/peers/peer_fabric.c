/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric: fi_write of 1 MiB, at most 16 in flight, each complete when delivered, then a message
 * that tells the receiver. OPTION is the provider, such as "tcp;ofi_rxm" or "shm".
 */
#include "peer.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_BYTES (1u << 20)
#define IN_FLIGHT 16
#define KEY 1

static struct fi_info *info_used;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_mr *mr;
static struct fid_av *av;
static fi_addr_t other;
static uint64_t remote;
static uint64_t remote_key;
static uint8_t told[64];

static void must(int rc, const char *what)
{
    if (rc != 0) {
        (void)fprintf(stderr, "%s: %s\n", what, fi_strerror(-rc));
        exit(1);
    }
}

static struct fi_info *find(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_info *found = NULL;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_RMA | FI_MSG;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    const bool is_net = strstr(provider, "tcp") != NULL || strstr(provider, "sockets") != NULL;
    hints->addr_format = is_net ? FI_SOCKADDR_IN : FI_FORMAT_UNSPEC;
    must(fi_getinfo(FI_VERSION(1, 15), is_net ? "127.0.0.1" : NULL, NULL, is_net ? FI_SOURCE : 0,
                    hints, &found),
         "fi_getinfo");
    fi_freeinfo(hints);
    return found;
}

static void open_end(peer_t *peer)
{
    struct fid_fabric *fabric;
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .size = 1024 };
    struct fi_av_attr av_attr = { .type = FI_AV_UNSPEC };
    info_used = find(peer->option[0] != '\0' ? peer->option : "tcp;ofi_rxm");
    must(fi_fabric(info_used->fabric_attr, &fabric, NULL), "fi_fabric");
    must(fi_domain(fabric, info_used, &domain, NULL), "fi_domain");
    must(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
    must(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    must(fi_endpoint(domain, info_used, &ep, NULL), "fi_endpoint");
    must(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    must(fi_enable(ep), "fi_enable");
    must(fi_mr_reg(domain, peer->memory, peer->n_bytes,
                   FI_WRITE | FI_REMOTE_WRITE | FI_SEND | FI_RECV, 0, KEY, 0, &mr, NULL),
         "fi_mr_reg");
    uint8_t name[256];
    size_t name_bytes = sizeof name;
    must(fi_getname(&ep->fid, name, &name_bytes), "fi_getname");
    peer_put_hex(peer->info, sizeof peer->info, name, name_bytes);
    const bool is_virtual = (info_used->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    const size_t at = 2 * name_bytes;
    (void)snprintf(peer->info + at, sizeof peer->info - at, ".%llx.%llx",
                   (unsigned long long)(is_virtual ? (uintptr_t)peer->memory : 0),
                   (unsigned long long)fi_mr_key(mr));
}

static void connect_end(peer_t *peer, const char *info)
{
    uint8_t name[PEER_INFO_BYTES];
    (void)peer;
    const char *second = strchr(info, '.') + 1;
    (void)peer_get_hex(info, name, sizeof name);
    remote = strtoull(second, NULL, 16);
    remote_key = strtoull(strchr(second, '.') + 1, NULL, 16);
    if (fi_av_insert(av, name, 1, &other, 0, NULL) != 1) {
        peer_die("fi_av_insert", 0);
    }
}

/* Wait for n completions; they also drive the providers, which have no threads. */
static void complete(size_t n)
{
    struct fi_cq_entry entry;
    while (n > 0) {
        const ssize_t got = fi_cq_read(cq, &entry, 1);
        if (got == 1) {
            n--;
        } else if (got != -FI_EAGAIN) {
            struct fi_cq_err_entry error = { .err = 0 };
            (void)fi_cq_readerr(cq, &error, 0);
            must(-error.err, "completion");
        }
    }
}

static void go(peer_t *peer)
{
    ssize_t rc;
    if (!peer->is_sender) {
        while ((rc = fi_recv(ep, told, sizeof told, NULL, FI_ADDR_UNSPEC, NULL)) == -FI_EAGAIN) {
            (void)fi_cq_read(cq, NULL, 0);
        }
        must((int)rc, "fi_recv");
        complete(1);
        return;
    }
    size_t flying = 0;
    for (size_t at = 0; at < peer->n_bytes;) {
        const size_t left = peer->n_bytes - at;
        const size_t n = left < WRITE_BYTES ? left : WRITE_BYTES;
        if (flying == IN_FLIGHT) {
            complete(1);
            flying--;
        }
        rc = fi_write(ep, peer->memory + at, n, fi_mr_desc(mr), other, remote + at, remote_key,
                      NULL);
        if (rc == -FI_EAGAIN) {
            (void)fi_cq_read(cq, NULL, 0);
            continue;
        }
        must((int)rc, "fi_write");
        flying++;
        at += n;
    }
    complete(flying);
    while ((rc = fi_send(ep, told, 1, NULL, other, NULL)) == -FI_EAGAIN) {
        (void)fi_cq_read(cq, NULL, 0);
    }
    must((int)rc, "fi_send");
    complete(1);
}

int main(int argc, char **argv)
{
    return peer_main(argc, argv,
                     &(peer_ops_t){ .open = open_end, .connect = connect_end, .go = go });
}

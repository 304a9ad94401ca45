/* SPDX-License-Identifier: Apache-2.0 */
/* Links as decoded, and where ranks stand on hosts. */
#ifndef HEFT_PLAN_PRICE_H
#define HEFT_PLAN_PRICE_H

#include "base/base.h"
#include "heft/price.h"

typedef struct heft__side_links {
    int64_t ranks_per_host;
    int64_t nics_per_host;
} heft__side_links_t;

struct heft_links {
    bool shared_hosts; /* source host i is destination host i */
    bool has_nic, has_memory, has_switch;
    heft__side_links_t source, destination;
    double nic_bytes_per_s, nic_latency_s, nic_message_s;          /* one NIC, one way */
    double memory_bytes_per_s, memory_latency_s, memory_message_s; /* one sender's writing */
    double memory_host_bytes_per_s; /* 0: no limit but that of each rank */
    int64_t switch_hosts;
    double switch_oversubscription, switch_latency_s;
    double copy_bytes_per_s, copy_run_s;
    double flip_bytes_per_s;
    double digest_bytes_per_s;
    double control_phase_s, control_member_s;
    int64_t chunk_bytes;
};

/* NICs that serve the same ranks of a host: a port. */
static inline int64_t heft__links_n_ports(const heft__side_links_t *side)
{
    return heft__min_i64(side->nics_per_host, side->ranks_per_host);
}

#endif

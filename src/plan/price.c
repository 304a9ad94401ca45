/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round costs. Every route adds what it is to the sums of the links on its way; a transfer
 * takes as long as the link that is busy longest, plus what the first chunk needs to get through.
 * Links work at the same time and none waits for another: chunks are small and routes many, so a
 * link with work left has a chunk for it. All sums are integers, so the order of routes does not
 * show. docs/internals/price.md has the formulas.
 */
#include "plan/price.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RANKS (1u << 20)
#define MAX_BYTES (INT64_MAX / 8) /* host memory counts a byte up to four times */
#define NO_HOST UINT32_MAX

typedef struct end {
    int64_t nic_bytes, shared_bytes, packed_bytes;
    uint64_t nic_messages, shared_messages, runs, packed_runs;
    uint32_t n_peers;
} end_t;

/* Of one side. */
typedef struct side {
    const heft__side_links_t *links;
    uint32_t n_ranks;
    uint32_t first_host;
    uint32_t n_hosts;
    uint32_t n_ports; /* of each host */
    end_t *ends;      /* by rank */
    int64_t *ports;   /* bytes, by host and port */
} side_t;

struct heft_price {
    const heft_links_t *links;
    heft_price_opts_t opts;
    side_t source, destination;
    uint32_t n_hosts, n_leaves;
    int64_t *up, *down; /* bytes, by group of hosts */
    int64_t *memory;    /* bytes, by host */
    double fill_s;
    heft_price_info_t info;
    heft_link_load_t *loads;
    size_t n_loads, cap_loads;
    bool is_finished;
};

const char *heft_link_kind_get_name(heft_link_kind_t kind)
{
    switch (kind) {
    case HEFT_LINK_COPY:
        return "copy";
    case HEFT_LINK_SHARED:
        return "shared";
    case HEFT_LINK_NIC_OUT:
        return "nic-out";
    case HEFT_LINK_NIC_IN:
        return "nic-in";
    case HEFT_LINK_LEAF_UP:
        return "leaf-up";
    case HEFT_LINK_LEAF_DOWN:
        return "leaf-down";
    case HEFT_LINK_HOST:
        return "host";
    case HEFT_LINK_PLACE:
        return "place";
    default:
        return "unknown";
    }
}

/* ---- life ---- */

static heft_status_t load_opts(const heft_price_opts_t *from, heft_price_opts_t *to,
                               heft_error_t *err)
{
    *to = (heft_price_opts_t)HEFT_PRICE_OPTS_INIT;
    heft_status_t status = heft__opts_load(from, to, sizeof *to, "price options", err);
    if (status == HEFT_OK) {
        status = heft__opts_check_reserved(to->reserved, sizeof to->reserved, "price options", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    to->n_replicas = to->n_replicas > 0 ? to->n_replicas : 1;
    if (to->n_senders < 1 || to->n_receivers < 1 || to->in_place > 1 ||
        to->n_receivers % to->n_replicas != 0) {
        return heft__error_set(
            err, HEFT_ERR_ARGUMENT, "price: %u senders, %u receivers in %u replicas, in_place %u",
            to->n_senders, to->n_receivers, to->n_replicas, (unsigned)to->in_place);
    }
    if (to->n_senders > MAX_RANKS || to->n_receivers > MAX_RANKS) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "price: %u senders and %u receivers, at most %u each", to->n_senders,
                               to->n_receivers, MAX_RANKS);
    }
    return HEFT_OK;
}

static heft_status_t side_init(side_t *side, const heft__side_links_t *links, uint32_t n_ranks,
                               uint32_t first_host, heft_error_t *err)
{
    const uint32_t per_host = (uint32_t)links->ranks_per_host;
    *side = (side_t){ .links = links,
                      .n_ranks = n_ranks,
                      .first_host = first_host,
                      .n_hosts = (n_ranks - 1) / per_host + 1,
                      .n_ports = (uint32_t)heft__links_n_ports(links) };
    const size_t n_ports = (size_t)side->n_hosts * side->n_ports;
    side->ends = heft__calloc(n_ranks, sizeof *side->ends);
    side->ports = heft__calloc(n_ports, sizeof *side->ports);
    return side->ends != NULL && side->ports != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n_ranks * sizeof *side->ends);
}

static heft_status_t price_init(heft_price_t *p, heft_error_t *err)
{
    const heft_links_t *links = p->links;
    heft_status_t status = side_init(&p->source, &links->source, p->opts.n_senders, 0, err);
    if (status != HEFT_OK) {
        return status;
    }
    const uint32_t first = links->shared_hosts ? 0 : p->source.n_hosts;
    status = side_init(&p->destination, &links->destination, p->opts.n_receivers, first, err);
    if (status != HEFT_OK) {
        return status;
    }
    p->n_hosts = first + p->destination.n_hosts;
    p->n_hosts = p->n_hosts < p->source.n_hosts ? p->source.n_hosts : p->n_hosts;
    p->n_leaves = links->has_switch ? (p->n_hosts - 1) / (uint32_t)links->switch_hosts + 1 : 0;
    p->up = heft__calloc((size_t)p->n_leaves + 1, sizeof *p->up);
    p->down = heft__calloc((size_t)p->n_leaves + 1, sizeof *p->down);
    p->memory = heft__calloc(p->n_hosts, sizeof *p->memory);
    return p->up != NULL && p->down != NULL && p->memory != NULL
               ? HEFT_OK
               : heft__error_nomem(err, p->n_hosts * sizeof *p->memory);
}

heft_status_t heft_price_create(const heft_links_t *links, const heft_price_opts_t *opts,
                                heft_price_t **price_out, heft_error_t *err)
{
    heft_price_opts_t loaded;
    heft_status_t status = load_opts(opts, &loaded, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (links == NULL || price_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "price: no links or no output");
    }
    heft_price_t *p = heft__calloc(1, sizeof *p);
    if (p == NULL) {
        return heft__error_nomem(err, sizeof *p);
    }
    p->links = links;
    p->opts = loaded;
    status = price_init(p, err);
    if (status != HEFT_OK) {
        heft_price_destroy(p);
        return status;
    }
    *price_out = p;
    return HEFT_OK;
}

void heft_price_destroy(heft_price_t *price)
{
    if (price != NULL) {
        heft__free(price->source.ends);
        heft__free(price->source.ports);
        heft__free(price->destination.ends);
        heft__free(price->destination.ports);
        heft__free(price->up);
        heft__free(price->down);
        heft__free(price->memory);
        heft__free(price->loads);
        heft__free(price);
    }
}

/* ---- adding ---- */

static uint32_t host_of(const side_t *side, uint32_t rank)
{
    return side->first_host + rank / (uint32_t)side->links->ranks_per_host;
}

uint32_t heft_price_get_host(const heft_price_t *price, int is_receiver, uint32_t rank)
{
    return host_of(is_receiver ? &price->destination : &price->source, rank);
}

static uint32_t port_of(const side_t *side, uint32_t rank)
{
    const uint32_t per_host = (uint32_t)side->links->ranks_per_host;
    return rank / per_host * side->n_ports +
           (uint32_t)((uint64_t)(rank % per_host) * side->n_ports / per_host);
}

static double copy_seconds(const heft_price_t *p, int64_t n_bytes)
{
    return (double)heft__min_i64(n_bytes, p->links->chunk_bytes) / p->links->copy_bytes_per_s;
}

static void add_nic(heft_price_t *p, const heft_price_route_t *route, uint64_t n_messages)
{
    const heft_links_t *links = p->links;
    const uint32_t from = host_of(&p->source, route->sender);
    const uint32_t to = host_of(&p->destination, route->receiver);
    end_t *sender = &p->source.ends[route->sender];
    end_t *receiver = &p->destination.ends[route->receiver];
    double fill_s = links->nic_latency_s + copy_seconds(p, route->n_bytes) +
                    copy_seconds(p, route->n_packed_bytes);
    sender->nic_bytes += route->n_bytes;
    sender->nic_messages += n_messages;
    receiver->nic_bytes += route->n_bytes;
    receiver->nic_messages += n_messages;
    receiver->packed_bytes += route->n_packed_bytes;
    receiver->packed_runs += route->n_packed_bytes > 0 ? route->n_runs : 0;
    p->source.ports[port_of(&p->source, route->sender)] += route->n_bytes;
    p->destination.ports[port_of(&p->destination, route->receiver)] += route->n_bytes;
    p->memory[from] += 3 * route->n_bytes; /* read, gathered, read by the NIC */
    p->memory[to] += route->n_bytes + 2 * route->n_packed_bytes;
    if (links->has_switch) {
        const uint32_t up = from / (uint32_t)links->switch_hosts;
        const uint32_t down = to / (uint32_t)links->switch_hosts;
        p->up[up] += up != down ? route->n_bytes : 0;
        p->down[down] += up != down ? route->n_bytes : 0;
        fill_s += up != down ? links->switch_latency_s : 0;
    }
    p->fill_s = fill_s > p->fill_s ? fill_s : p->fill_s;
}

static void add_shared(heft_price_t *p, const heft_price_route_t *route, uint64_t n_messages)
{
    end_t *sender = &p->source.ends[route->sender];
    end_t *receiver = &p->destination.ends[route->receiver];
    sender->shared_bytes += route->n_bytes;
    sender->shared_messages += n_messages;
    receiver->shared_bytes += route->n_bytes;
    receiver->shared_messages += n_messages;
    p->memory[host_of(&p->source, route->sender)] += 2 * route->n_bytes;
    p->fill_s = p->links->memory_latency_s > p->fill_s ? p->links->memory_latency_s : p->fill_s;
}

static heft_status_t check_route(const heft_price_t *p, const heft_price_route_t *route,
                                 heft_error_t *err)
{
    if (p->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "price: it is finished");
    }
    if (route->sender >= p->opts.n_senders || route->receiver >= p->opts.n_receivers) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "price: a route from rank %u of %u to rank %u of %u", route->sender,
                               p->opts.n_senders, route->receiver, p->opts.n_receivers);
    }
    if (route->n_bytes < 0 || route->n_packed_bytes < 0 || route->n_packed_bytes > route->n_bytes ||
        route->n_bytes > MAX_BYTES - p->info.n_bytes ||
        route->n_runs > (uint64_t)MAX_BYTES - p->info.n_runs) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "price: a route of %lld bytes, %lld of them packed, in %llu runs",
                               (long long)route->n_bytes, (long long)route->n_packed_bytes,
                               (unsigned long long)route->n_runs);
    }
    return HEFT_OK;
}

heft_status_t heft_price_add(heft_price_t *price, const heft_price_route_t *route,
                             heft_error_t *err)
{
    heft_status_t status = check_route(price, route, err);
    if (status != HEFT_OK || route->n_bytes == 0) {
        return status;
    }
    const heft_links_t *links = price->links;
    const bool is_shared =
        host_of(&price->source, route->sender) == host_of(&price->destination, route->receiver);
    if (!links->has_nic && !(is_shared && links->has_memory)) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "price: source rank %u and destination rank %u are on two hosts, "
                               "and the links have no \"nic\"",
                               route->sender, route->receiver);
    }
    const uint64_t n_messages = (uint64_t)((route->n_bytes - 1) / links->chunk_bytes) + 1;
    if (is_shared && links->has_memory) {
        add_shared(price, route, n_messages);
    } else {
        add_nic(price, route, n_messages);
    }
    price->source.ends[route->sender].runs += route->n_runs;
    price->source.ends[route->sender].n_peers++;
    price->destination.ends[route->receiver].runs += route->n_runs;
    price->destination.ends[route->receiver].n_peers++;
    price->info.n_bytes += route->n_bytes;
    price->info.n_runs += route->n_runs;
    price->info.n_messages += n_messages;
    price->info.n_routes++;
    return HEFT_OK;
}

/* ---- finishing ---- */

static heft_status_t add_load(heft_price_t *p, heft_link_kind_t kind, uint32_t index, uint32_t host,
                              int64_t n_bytes, double bytes_per_s, double extra_s,
                              heft_error_t *err)
{
    const double seconds = (double)n_bytes / bytes_per_s;
    const bool is_link = kind != HEFT_LINK_COPY && kind != HEFT_LINK_PLACE;
    if (n_bytes == 0) {
        return HEFT_OK;
    }
    if (!HEFT__RESERVE(p->loads, p->cap_loads, p->n_loads + 1)) {
        return heft__error_nomem(err, sizeof *p->loads);
    }
    p->loads[p->n_loads++] = (heft_link_load_t){ .kind = kind,
                                                 .index = index,
                                                 .host = host,
                                                 .n_bytes = n_bytes,
                                                 .bytes_per_s = bytes_per_s,
                                                 .busy_s = seconds + extra_s,
                                                 .bound_s = is_link ? seconds : 0 };
    return HEFT_OK;
}

/* What a sender's threads do besides bytes over the network at the speed of copying. */
static double sender_extra_s(const heft_price_t *p, const end_t *end)
{
    const heft_links_t *links = p->links;
    double seconds = (double)end->runs * links->copy_run_s +
                     (double)end->nic_messages * links->nic_message_s +
                     (double)end->shared_messages * links->memory_message_s;
    if (end->shared_bytes > 0) {
        const double bytes = (double)end->shared_bytes;
        seconds += bytes / links->memory_bytes_per_s - bytes / links->copy_bytes_per_s;
    }
    return seconds;
}

static heft_status_t load_ranks(heft_price_t *p, heft_error_t *err)
{
    const heft_links_t *links = p->links;
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; s < p->source.n_ranks && status == HEFT_OK; s++) {
        const end_t *end = &p->source.ends[s];
        const uint32_t host = host_of(&p->source, s);
        status = add_load(p, HEFT_LINK_COPY, s, host, end->nic_bytes + end->shared_bytes,
                          links->copy_bytes_per_s, sender_extra_s(p, end), err);
        if (status == HEFT_OK) {
            status =
                add_load(p, HEFT_LINK_SHARED, s, host, end->shared_bytes, links->memory_bytes_per_s,
                         (double)end->shared_messages * links->memory_message_s, err);
        }
    }
    for (uint32_t r = 0; r < p->destination.n_ranks && status == HEFT_OK; r++) {
        const end_t *end = &p->destination.ends[r];
        status =
            add_load(p, HEFT_LINK_PLACE, r, host_of(&p->destination, r), end->packed_bytes,
                     links->copy_bytes_per_s, (double)end->packed_runs * links->copy_run_s, err);
    }
    return status;
}

static double port_rate(const heft_price_t *p, const side_t *side)
{
    const int64_t n_nics = side->links->nics_per_host / (int64_t)side->n_ports; /* of one port */
    return p->links->nic_bytes_per_s * (double)n_nics;
}

static heft_status_t load_ports(heft_price_t *p, const side_t *side, heft_link_kind_t kind,
                                heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < side->n_hosts * side->n_ports && status == HEFT_OK; i++) {
        status = add_load(p, kind, i, side->first_host + i / side->n_ports, side->ports[i],
                          port_rate(p, side), 0, err);
    }
    return status;
}

/* A group's links upwards carry what its hosts' NICs could, divided by the oversubscription. */
static double leaf_rate(const heft_price_t *p, uint32_t leaf)
{
    const heft_links_t *links = p->links;
    const int64_t first = (int64_t)leaf * links->switch_hosts;
    const int64_t end = heft__min_i64(first + links->switch_hosts, p->n_hosts);
    int64_t n_nics = 0;
    for (int64_t host = first; host < end; host++) {
        const bool is_source = host < p->source.n_hosts;
        const bool is_destination = host >= p->destination.first_host &&
                                    host < p->destination.first_host + p->destination.n_hosts;
        n_nics += heft__max_i64(is_source ? links->source.nics_per_host : 0,
                                is_destination ? links->destination.nics_per_host : 0);
    }
    return links->nic_bytes_per_s * (double)n_nics / links->switch_oversubscription;
}

static heft_status_t load_hosts(heft_price_t *p, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t l = 0; l < p->n_leaves && status == HEFT_OK; l++) {
        status = add_load(p, HEFT_LINK_LEAF_UP, l, NO_HOST, p->up[l], leaf_rate(p, l), 0, err);
        if (status == HEFT_OK) {
            status =
                add_load(p, HEFT_LINK_LEAF_DOWN, l, NO_HOST, p->down[l], leaf_rate(p, l), 0, err);
        }
    }
    const double rate = p->links->memory_host_bytes_per_s;
    for (uint32_t h = 0; h < p->n_hosts && rate > 0 && status == HEFT_OK; h++) {
        status = add_load(p, HEFT_LINK_HOST, h, h, p->memory[h], rate, 0, err);
    }
    return status;
}

static int by_load(const void *x, const void *y)
{
    const heft_link_load_t *a = x;
    const heft_link_load_t *b = y;
    if (a->busy_s != b->busy_s) {
        return a->busy_s > b->busy_s ? -1 : 1;
    }
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Ports of a side that serve a rank that there is. */
static uint32_t n_ports_in_use(const side_t *side)
{
    return port_of(side, side->n_ranks - 1) + 1;
}

static void find_bounds(heft_price_t *p)
{
    heft_price_info_t *info = &p->info;
    double into_s = 0; /* links of receivers */
    double out_s = 0;  /* those whose load shrinks when one replica is served */
    int64_t nic_bytes = 0;
    int64_t shared_bytes = 0;
    for (size_t i = 0; i < p->n_loads; i++) {
        const heft_link_load_t *load = &p->loads[i];
        const bool is_out = load->kind == HEFT_LINK_NIC_OUT || load->kind == HEFT_LINK_SHARED ||
                            load->kind == HEFT_LINK_LEAF_UP;
        info->bound_s = larger(info->bound_s, load->bound_s);
        out_s = is_out ? larger(out_s, load->bound_s) : out_s;
        into_s = load->kind == HEFT_LINK_NIC_IN ? larger(into_s, load->bound_s) : into_s;
        nic_bytes += load->kind == HEFT_LINK_NIC_IN ? load->n_bytes : 0;
        shared_bytes += load->kind == HEFT_LINK_SHARED ? load->n_bytes : 0;
    }
    const double nic_rate = port_rate(p, &p->source) * n_ports_in_use(&p->source);
    const double shared_rate = p->links->memory_bytes_per_s * p->source.n_ranks;
    info->ideal_s = larger(into_s, nic_bytes > 0 ? (double)nic_bytes / nic_rate : 0);
    info->ideal_s =
        larger(info->ideal_s, shared_bytes > 0 ? (double)shared_bytes / shared_rate : 0);
    info->relayed_s = p->opts.n_replicas == 1 ? info->bound_s
                                              : larger(into_s, out_s / (double)p->opts.n_replicas);
}

/* The longest of a pass over each receiver's bytes; n_touched bytes of memory for each of them. */
static double pass_s(const heft_price_t *p, double bytes_per_s, int64_t n_touched)
{
    const side_t *side = &p->destination;
    const uint32_t per_host = (uint32_t)side->links->ranks_per_host;
    const double host_rate = p->links->memory_host_bytes_per_s;
    double seconds = 0;
    int64_t of_host = 0;
    for (uint32_t r = 0; r < side->n_ranks; r++) {
        const int64_t n_bytes = side->ends[r].nic_bytes + side->ends[r].shared_bytes;
        of_host = (r % per_host == 0 ? 0 : of_host) + n_bytes * n_touched;
        seconds = larger(seconds, (double)n_bytes / bytes_per_s);
        seconds = larger(seconds, host_rate > 0 ? (double)of_host / host_rate : 0);
    }
    return seconds;
}

static void find_phases(heft_price_t *p)
{
    heft_price_info_t *info = &p->info;
    const heft_links_t *links = p->links;
    const double control_s =
        links->control_phase_s +
        links->control_member_s * ((double)p->opts.n_senders + (double)p->opts.n_receivers);
    const double moving_s = p->n_loads > 0 ? p->loads[0].busy_s + p->fill_s : 0;
    const bool in_place = p->opts.in_place != 0;
    info->prepare_s = control_s;
    info->stage_s = control_s + (in_place ? 0 : moving_s);
    info->verify_s = control_s + pass_s(p, links->digest_bytes_per_s, 1);
    info->pause_s = control_s;
    info->flip_s = control_s + pass_s(p, links->flip_bytes_per_s, 2) + (in_place ? moving_s : 0);
    info->down_s = info->pause_s + info->flip_s + (in_place ? info->verify_s : 0);
    info->total_s = info->prepare_s + info->stage_s + info->verify_s + info->pause_s + info->flip_s;
}

static uint32_t n_at_work(const side_t *side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        n += side->ends[i].n_peers > 0;
    }
    return n;
}

heft_status_t heft_price_finish(heft_price_t *price, heft_error_t *err)
{
    if (price->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "price: it is finished");
    }
    price->n_loads = 0; /* after a failure */
    heft_status_t status = load_ranks(price, err);
    if (status == HEFT_OK) {
        status = load_ports(price, &price->source, HEFT_LINK_NIC_OUT, err);
    }
    if (status == HEFT_OK) {
        status = load_ports(price, &price->destination, HEFT_LINK_NIC_IN, err);
    }
    if (status == HEFT_OK) {
        status = load_hosts(price, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (price->n_loads > 1) {
        qsort(price->loads, price->n_loads, sizeof *price->loads, by_load);
    }
    price->info.busiest = price->n_loads > 0 ? 0 : UINT32_MAX;
    price->info.n_senders = n_at_work(&price->source);
    price->info.n_receivers = n_at_work(&price->destination);
    find_bounds(price);
    find_phases(price);
    price->is_finished = true;
    return HEFT_OK;
}

/* ---- asking ---- */

void heft_price_query(const heft_price_t *price, heft_price_info_t *info_out)
{
    *info_out = price->is_finished ? price->info : (heft_price_info_t){ .busiest = UINT32_MAX };
}

/* Seconds that depend on the side a rank is on. */
typedef void add_seconds_fn(const heft_price_t *p, const end_t *end, heft_price_rank_t *rank);

static heft_status_t query_rank(const heft_price_t *p, const side_t *side, uint32_t rank,
                                add_seconds_fn *add_seconds, heft_price_rank_t *rank_out,
                                heft_error_t *err)
{
    if (!p->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "price: it is not finished");
    }
    if (rank >= side->n_ranks) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "price: rank %u of %u", rank,
                               side->n_ranks);
    }
    const end_t *end = &side->ends[rank];
    *rank_out = (heft_price_rank_t){ .n_bytes = end->nic_bytes + end->shared_bytes,
                                     .n_messages = end->nic_messages + end->shared_messages,
                                     .n_runs = end->runs,
                                     .n_peers = end->n_peers };
    if (end->nic_bytes > 0) {
        rank_out->wire_s = (double)side->ports[port_of(side, rank)] / port_rate(p, side);
    }
    add_seconds(p, end, rank_out);
    return HEFT_OK;
}

static void add_sender_seconds(const heft_price_t *p, const end_t *end, heft_price_rank_t *rank)
{
    rank->copy_s = (double)rank->n_bytes / p->links->copy_bytes_per_s + sender_extra_s(p, end);
    if (end->shared_bytes > 0) {
        rank->wire_s =
            larger(rank->wire_s, (double)end->shared_bytes / p->links->memory_bytes_per_s);
    }
}

static void add_receiver_seconds(const heft_price_t *p, const end_t *end, heft_price_rank_t *rank)
{
    rank->copy_s = (double)end->packed_bytes / p->links->copy_bytes_per_s +
                   (double)end->packed_runs * p->links->copy_run_s;
    rank->verify_s = (double)rank->n_bytes / p->links->digest_bytes_per_s;
    rank->flip_s = (double)rank->n_bytes / p->links->flip_bytes_per_s;
}

heft_status_t heft_price_query_sender(const heft_price_t *price, uint32_t rank,
                                      heft_price_rank_t *rank_out, heft_error_t *err)
{
    return query_rank(price, &price->source, rank, add_sender_seconds, rank_out, err);
}

heft_status_t heft_price_query_receiver(const heft_price_t *price, uint32_t rank,
                                        heft_price_rank_t *rank_out, heft_error_t *err)
{
    return query_rank(price, &price->destination, rank, add_receiver_seconds, rank_out, err);
}

uint32_t heft_price_get_n_links(const heft_price_t *price)
{
    return price->is_finished ? (uint32_t)price->n_loads : 0;
}

heft_status_t heft_price_query_link(const heft_price_t *price, uint32_t i,
                                    heft_link_load_t *link_out, heft_error_t *err)
{
    if (i >= heft_price_get_n_links(price)) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "price: link %u of %u", i,
                               heft_price_get_n_links(price));
    }
    *link_out = price->loads[i];
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters are looked up in the routes of the plan, inputs in those of their own plan. */
#include "sync/delivery.h"

#include <stdio.h>

#include "kernel/kernel.h"
#include "sync/holders.h"

/* ---- routes ---- */

/* Bytes of what a source sends for the engine's loader. */
static int64_t count_loaded(const heft__inputs_t *inputs, uint32_t source)
{
    int64_t n_bytes = 0;
    for (uint32_t k = 0; k < inputs->n; k++) {
        heft_route_info_t route = { .n_bytes = 0 };
        if (!inputs->is_gathered[k]) {
            heft_routes_query_param(inputs->routes, source, 0, k, &route);
        }
        n_bytes += route.n_bytes; /* no more than all inputs, which lie in one staging */
    }
    return n_bytes;
}

/* What each source sends each rank for the engine's loader. */
static heft_status_t list_loads(const heft_plan_t *plan, const heft__sources_t *sources,
                                const heft__inputs_t *inputs, heft_route_load_t **loads_out,
                                uint64_t *n_out, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    const size_t most = (size_t)info.n_ranks * sources->n;
    heft_route_load_t *loads = heft__calloc(most + 1, sizeof *loads);
    uint64_t n = 0;
    if (loads == NULL) {
        return heft__error_nomem(err, most * sizeof *loads);
    }
    for (uint32_t r = 0; r < info.n_ranks; r++) {
        for (uint32_t s = 0; s < sources->n && inputs[r].n > inputs[r].n_gathered; s++) {
            const int64_t n_bytes = count_loaded(&inputs[r], s);
            if (n_bytes > 0) {
                loads[n++] =
                    (heft_route_load_t){ .rank_index = r, .sender = s, .n_bytes = n_bytes };
            }
        }
    }
    *loads_out = loads;
    *n_out = n;
    return HEFT_OK;
}

/* Labels of all sources, and pointers to them: one block. */
static const char **make_names(const heft__sources_t *sources)
{
    const size_t n = sources->n;
    const char **names = heft__calloc(n, sizeof *names + HEFT__SOURCE_LABEL_SIZE);
    for (uint32_t s = 0; names != NULL && s < n; s++) {
        char *label = (char *)(names + n) + (size_t)s * HEFT__SOURCE_LABEL_SIZE;
        heft__source_label(sources, s, label);
        names[s] = label;
    }
    return names;
}

heft_status_t heft__delivery_route(const heft_plan_t *plan, const heft__sources_t *sources,
                                   const heft__inputs_t *inputs, bool is_part,
                                   heft_routes_t **routes_out, heft_error_t *err)
{
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    heft_route_load_t *loads = NULL;
    const char **names = make_names(sources);
    heft_status_t status = names != NULL
                               ? list_loads(plan, sources, inputs, &loads, &opts.n_loads, err)
                               : heft__error_nomem(err, sources->n * sizeof *names);
    if (status == HEFT_OK) {
        opts.loads = loads;
        opts.names = names;
        opts.others = is_part ? sources->placement : NULL;
        opts.gathers = 1;
        status = heft_routes_create(plan, NULL, sources->n, &opts, routes_out, err);
    }
    heft__free(loads);
    heft__free(names);
    return status;
}

/* ---- who sends what ---- */

const uint32_t *heft__delivery_get_senders(const heft__delivery_t *d, uint32_t *n_out)
{
    return heft_routes_get_senders(d->routes, d->rank_index, n_out);
}

static uint32_t find(const uint32_t *list, uint32_t n, uint32_t value)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == value) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t heft__delivery_find_sender(const heft__delivery_t *d, uint32_t sender)
{
    uint32_t n = 0;
    const uint32_t *senders = heft__delivery_get_senders(d, &n);
    return find(senders, n, sender);
}

const uint32_t *heft__delivery_get_entry_senders(const heft__delivery_t *d, uint32_t entry,
                                                 uint32_t *n_out)
{
    const uint32_t n_params = d->layout->n_params;
    return entry < n_params
               ? heft_routes_get_param_senders(d->routes, d->rank_index, entry, n_out)
               : heft_routes_get_param_senders(d->inputs->routes, 0, entry - n_params, n_out);
}

const char *heft__delivery_get_name(const heft__delivery_t *d, uint32_t entry)
{
    heft_tensor_info_t info;
    const uint32_t n_params = d->layout->n_params;
    if (entry >= n_params) {
        return d->inputs->items[entry - n_params].name;
    }
    const bool is_known = d->plan != NULL && heft_plan_query_param(d->plan, d->rank_index, entry,
                                                                   &info, NULL) == HEFT_OK;
    return is_known ? info.name : NULL;
}

void heft__delivery_count(const heft__delivery_t *d, uint32_t sender, int64_t *bytes_out,
                          int64_t *pieces_out)
{
    heft_route_info_t info;
    heft_routes_query(d->routes, sender, d->rank_index, &info);
    *bytes_out = info.n_bytes + info.n_load_bytes;
    *pieces_out = (int64_t)info.n_pieces;
}

uint32_t heft__delivery_count_part(const heft__delivery_t *d, uint32_t first, uint32_t end,
                                   uint32_t sender, bool *sends_out)
{
    uint32_t n_senders = 0;
    uint32_t count = 0;
    const uint32_t *senders = heft__delivery_get_senders(d, &n_senders);
    *sends_out = false;
    for (uint32_t s = 0; s < n_senders; s++) {
        bool sends = false;
        for (uint32_t e = first; e < end && !sends; e++) {
            uint32_t n = 0;
            const uint32_t *list = heft__delivery_get_entry_senders(d, e, &n);
            sends = find(list, n, senders[s]) != UINT32_MAX;
        }
        count += sends;
        *sends_out = *sends_out || (sends && senders[s] == sender);
    }
    return count;
}

/* ---- packed routes ---- */

struct heft__packed {
    uint32_t entry;
    uint32_t sender;
    heft_route_region_t *regions; /* owned; NULL: it is another one's, and not needed here */
    uint32_t n_regions;
};

static heft_status_t make_regions(const heft__delivery_t *d, uint32_t sender, uint32_t entry,
                                  heft_route_region_t **regions_out, uint32_t *n_out,
                                  heft_error_t *err)
{
    const uint32_t n_params = d->layout->n_params;
    return entry < n_params ? heft_routes_make_regions(d->routes, sender, d->rank_index, entry,
                                                       regions_out, n_out, err)
                            : heft_routes_make_regions(d->inputs->routes, sender, 0,
                                                       entry - n_params, regions_out, n_out, err);
}

static int64_t bytes_of(const heft__delivery_t *d, uint32_t sender, uint32_t entry)
{
    heft_route_info_t info;
    const uint32_t n_params = d->layout->n_params;
    if (entry < n_params) {
        heft_routes_query_param(d->routes, sender, d->rank_index, entry, &info);
    } else {
        heft_routes_query_param(d->inputs->routes, sender, 0, entry - n_params, &info);
    }
    return info.n_bytes;
}

static const heft__packed_t *packed_of(const heft__packing_t *packing, uint32_t route)
{
    return &packing->packed[route - packing->n_entries];
}

static uint8_t *place_of(const heft__packing_t *packing, uint32_t route, uint8_t *base)
{
    return base + packing->routes[route].offset;
}

static heft_status_t pack(void *arg, uint32_t route, uint8_t *base, int64_t at, uint8_t *packed,
                          int64_t bytes, heft_error_t *err)
{
    const heft__packing_t *packing = arg;
    const heft__packed_t *p = packed_of(packing, route);
    return heft_route_pack(p->regions, p->n_regions, place_of(packing, route, base), at, packed,
                           bytes, err);
}

static heft_status_t unpack(void *arg, uint32_t route, uint8_t *base, int64_t at, uint8_t *packed,
                            int64_t bytes, heft_error_t *err)
{
    const heft__packing_t *packing = arg;
    const heft__packed_t *p = packed_of(packing, route);
    return heft_route_unpack(p->regions, p->n_regions, place_of(packing, route, base), at, packed,
                             bytes, err);
}

/* ---- expectations ---- */

static uint32_t count_packed(const heft__delivery_t *d, uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t e = first; e < end; e++) {
        uint32_t n = 0;
        (void)heft__delivery_get_entry_senders(d, e, &n);
        count += n > 1 ? n : 0;
    }
    return count;
}

/* One entry: a route of its own, and where several send it, packed ones from `next` on. A source
 * that knows its part alone has only its own of these, under the same number. */
static heft_status_t add_entry(heft__packing_t *packing, uint32_t entry, uint32_t sender,
                               uint32_t *next, heft_error_t *err)
{
    const heft__delivery_t *d = &packing->delivery;
    const int64_t offset = d->layout->offsets[entry] - d->layout->offsets[packing->first];
    uint32_t n = 0;
    const uint32_t *senders = heft__delivery_get_entry_senders(d, entry, &n);
    packing->routes[entry - packing->first] =
        (heft__route_t){ .offset = offset, .bytes = n == 1 ? d->layout->sizes[entry] : 0 };
    for (uint32_t s = 0; n > 1 && s < n; s++) {
        heft__packed_t *p = &packing->packed[*next];
        *p = (heft__packed_t){ .entry = entry, .sender = senders[s] };
        packing->numbers[*next] =
            packing->n_entries + (uint64_t)(entry - packing->first) * (d->n_sources + UINT64_C(1)) +
            senders[s];
        packing->routes[packing->n_entries + *next] =
            (heft__route_t){ .offset = offset, .bytes = bytes_of(d, senders[s], entry) };
        ++*next;
        if (sender != UINT32_MAX && sender != senders[s]) {
            continue;
        }
        heft_status_t status = make_regions(d, senders[s], entry, &p->regions, &p->n_regions, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

uint32_t heft__packing_get_entry(const heft__packing_t *packing, uint32_t route)
{
    return route < packing->n_entries ? packing->first + route : packed_of(packing, route)->entry;
}

static const char *name_of(const void *arg, uint32_t route)
{
    const heft__packing_t *packing = arg;
    return heft__delivery_get_name(&packing->delivery, heft__packing_get_entry(packing, route));
}

static heft_status_t alloc_routes(heft__packing_t *packing, heft_error_t *err)
{
    const size_t n = (size_t)packing->n_entries + packing->n_packed;
    packing->routes = heft__calloc(n + 1, sizeof *packing->routes);
    packing->packed = heft__calloc((size_t)packing->n_packed + 1, sizeof *packing->packed);
    packing->numbers = heft__calloc((size_t)packing->n_packed + 1, sizeof *packing->numbers);
    return packing->routes != NULL && packing->packed != NULL && packing->numbers != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n * sizeof *packing->routes);
}

static uint32_t count_senders(const heft__delivery_t *d, uint32_t first, uint32_t end)
{
    bool sends = false;
    uint32_t n = 0;
    if (first == 0 && end == d->layout->n_entries) {
        (void)heft__delivery_get_senders(d, &n);
        return n;
    }
    return heft__delivery_count_part(d, first, end, UINT32_MAX, &sends);
}

heft_status_t heft__packing_init(const heft__delivery_t *d, uint32_t first, uint32_t end,
                                 uint32_t sender, heft__packing_t *out, heft_error_t *err)
{
    uint32_t next = 0;
    *out = (heft__packing_t){ .delivery = *d,
                              .first = first,
                              .n_entries = end - first,
                              .n_packed = count_packed(d, first, end) };
    heft_status_t status = alloc_routes(out, err);
    for (uint32_t e = first; e < end && status == HEFT_OK; e++) {
        status = add_entry(out, e, sender, &next, err);
    }
    if (status != HEFT_OK) {
        heft__packing_fini(out);
        return status;
    }
    out->expect.routes = out->routes;
    out->expect.n_routes = out->n_entries + out->n_packed;
    out->expect.n_senders = count_senders(d, first, end);
    out->expect.chunk_bytes = HEFT__CHUNK_BYTES;
    out->expect.crc = heft__crc32c;
    out->expect.crc_copy = heft__crc32c_copy;
    out->expect.n_packed = out->n_packed;
    out->expect.numbers = out->numbers;
    out->expect.pack = pack;
    out->expect.unpack = unpack;
    out->expect.pack_arg = out;
    out->expect.name_of = name_of;
    out->expect.name_arg = out;
    return HEFT_OK;
}

void heft__packing_fini(heft__packing_t *packing)
{
    for (uint32_t i = 0; packing->packed != NULL && i < packing->n_packed; i++) {
        heft_route_regions_free(packing->packed[i].regions);
    }
    heft__free(packing->packed);
    heft__free(packing->numbers);
    heft__free(packing->routes);
    *packing = (heft__packing_t){ .n_entries = 0 };
}

/* All of the entry is this sender's. */
static bool is_sent_by(const heft__packing_t *packing, uint32_t entry, uint32_t sender)
{
    uint32_t n = 0;
    const uint32_t *senders = heft__delivery_get_entry_senders(&packing->delivery, entry, &n);
    return n == 1 && senders[0] == sender;
}

/* The first of the packed routes of an entry, or where it would be: they go by entry. */
static uint32_t find_packed(const heft__packing_t *packing, uint32_t entry)
{
    uint32_t low = 0;
    uint32_t high = packing->n_packed;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (packing->packed[mid].entry < entry) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

heft_status_t heft__packing_make_scratch(const heft__packing_t *packing, bool fetches,
                                         uint8_t **scratch_out, heft_error_t *err)
{
    const size_t bytes = (size_t)HEFT__CHUNKS_UNDER_WAY * HEFT__CHUNK_BYTES;
    const bool is_needed = fetches || packing->n_packed > 0;
    uint8_t *scratch = is_needed ? heft__malloc(bytes) : NULL;
    if (is_needed && scratch == NULL) {
        return heft__error_nomem(err, bytes);
    }
    *scratch_out = scratch;
    return HEFT_OK;
}

uint32_t heft__packing_next_route(const heft__packing_t *packing, uint32_t sender, uint32_t entry,
                                  uint32_t after)
{
    uint32_t p = find_packed(packing, entry);
    if (after == UINT32_MAX && is_sent_by(packing, entry, sender)) {
        return entry - packing->first;
    }
    if (after != UINT32_MAX && after >= packing->n_entries) {
        p = after - packing->n_entries + 1;
    }
    while (p < packing->n_packed && packing->packed[p].entry == entry &&
           packing->packed[p].sender != sender) {
        p++;
    }
    const bool is_found = p < packing->n_packed && packing->packed[p].entry == entry;
    return is_found ? packing->n_entries + p : UINT32_MAX;
}

static heft_status_t send_entry(const heft__packing_t *packing, uint32_t sender, uint32_t entry,
                                heft__chunk_tx_t *tx, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    uint32_t route = heft__packing_next_route(packing, sender, entry, UINT32_MAX);
    while (status == HEFT_OK && route != UINT32_MAX) {
        status = heft__chunk_tx_send(tx, route, err);
        route = heft__packing_next_route(packing, sender, entry, route);
    }
    return status;
}

heft_status_t heft__packing_send(const heft__packing_t *packing, uint32_t sender,
                                 heft__remote_t *remote, heft__token_t token, const uint8_t *base,
                                 int64_t deadline_mono_ns,
                                 heft_status_t (*on_chunk)(void *arg, heft_error_t *err), void *arg,
                                 heft__chunk_counts_t *counts, heft_error_t *err)
{
    heft__chunk_tx_t tx;
    uint8_t *scratch = NULL;
    heft_status_t status = heft__packing_make_scratch(packing, false, &scratch, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__chunk_tx_init(&tx, remote, &packing->expect, token, base, scratch, deadline_mono_ns,
                        on_chunk, arg);
    for (uint32_t i = 0; i < packing->n_entries && status == HEFT_OK; i++) {
        status = send_entry(packing, sender, packing->first + i, &tx, err);
    }
    status = heft__chunk_tx_finish(&tx, status, err);
    heft__free(scratch);
    counts->chunks += tx.counts.chunks;
    counts->resent += tx.counts.resent;
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Links by name or file; what a price comes to, as text and JSON. */
#include "cli/cli_price.h"

#include "cli/cli_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Rates that transfers reach, not those on the box: 97 % of a NIC. What copying, digests and flips
 * take is assumed: heft's own kernels run on the host; docs/guide/planning.md says what to measure.
 */
#define GPU_HOSTS                                                              \
    "\"source\": {\"ranks_per_host\": 8, \"nics_per_host\": 8}, "              \
    "\"destination\": {\"ranks_per_host\": 8, \"nics_per_host\": 8}, "         \
    "\"copy\": {\"bytes_per_s\": 1e12, \"run_s\": 1e-9}, "                     \
    "\"flip\": {\"bytes_per_s\": 1e12}, \"digest\": {\"bytes_per_s\": 1e12}, " \
    "\"control\": {\"phase_s\": 2e-3, \"member_s\": 2e-5}"
static const struct {
    const char *name;
    const char *text;
} presets[] = {
    { "rdma-400",
      "{\"format\": 1, \"nic\": {\"bytes_per_s\": 48.5e9, \"latency_s\": 5e-6, \"message_s\": "
      "2e-6}, " GPU_HOSTS "}" },
    { "rdma-200",
      "{\"format\": 1, \"nic\": {\"bytes_per_s\": 24.2e9, \"latency_s\": 5e-6, \"message_s\": "
      "2e-6}, " GPU_HOSTS "}" },
    { "tcp-100",
      "{\"format\": 1, \"source\": {\"ranks_per_host\": 8, \"nics_per_host\": 1}, "
      "\"destination\": {\"ranks_per_host\": 8, \"nics_per_host\": 1}, "
      "\"nic\": {\"bytes_per_s\": 11e9, \"latency_s\": 5e-5, \"message_s\": 2e-5}, "
      "\"copy\": {\"bytes_per_s\": 8e9, \"run_s\": 2e-8}, \"flip\": {\"bytes_per_s\": 8e9}, "
      "\"digest\": {\"bytes_per_s\": 1.2e10}, "
      "\"control\": {\"phase_s\": 2e-3, \"member_s\": 2e-5}}" },
};

int cli_links_load(const cli_args_t *args, heft_links_t **links_out)
{
    const char *name = cli_text(args, "links");
    const size_t length = strlen(name);
    heft_error_t err = HEFT_ERROR_INIT;
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, name);
    for (size_t i = 0; i < CLI_COUNT(presets); i++) {
        cli_nearest_try(&nearest, presets[i].name);
        if (strcmp(presets[i].name, name) == 0) {
            return heft_links_decode(presets[i].text, strlen(presets[i].text), links_out, &err) ==
                           HEFT_OK
                       ? CLI_OK
                       : cli_fail_status(args, &err);
        }
    }
    const bool is_path =
        strchr(name, '/') != NULL || (length > 5 && strcmp(name + length - 5, ".json") == 0);
    if (!is_path) {
        return nearest.best != NULL
                   ? cli_fail(args, CLI_USAGE, "no links \"%s\"; nearest: %s", name, nearest.best)
                   : cli_fail(args, CLI_USAGE,
                              "no links \"%s\"; there are rdma-400, rdma-200, tcp-100, or give a "
                              "file (.json)",
                              name);
    }
    char *text = NULL;
    size_t n = 0;
    int code = cli_read_text(args, name, &text, &n);
    if (code == CLI_OK && heft_links_decode(text, n, links_out, &err) != HEFT_OK) {
        code = cli_fail(args, cli_exit_of(&err), "%s: %s", name, err.message);
    }
    free(text);
    return code;
}

/* ---- loads ---- */

typedef heft_status_t (*query_t)(const heft_price_t *price, uint32_t rank,
                                 heft_price_rank_t *rank_out, heft_error_t *err);

static cli_load_t load_of(const heft_price_t *price, query_t query, uint32_t n_ranks)
{
    cli_load_t load = { .n_ranks = n_ranks };
    double sum = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        heft_price_rank_t rank = { .n_bytes = 0 };
        (void)query(price, r, &rank, NULL);
        sum += (double)rank.n_bytes;
        load.n_at_work += rank.n_peers > 0;
        if (rank.n_bytes > load.most_bytes) {
            load.most_bytes = rank.n_bytes;
            load.most_rank = r;
        }
    }
    load.mean_bytes = sum / n_ranks;
    return load;
}

cli_load_t cli_price_senders(const heft_price_t *price, uint32_t n_ranks)
{
    return load_of(price, heft_price_query_sender, n_ranks);
}

cli_load_t cli_price_receivers(const heft_price_t *price, uint32_t n_ranks)
{
    return load_of(price, heft_price_query_receiver, n_ranks);
}

/* ---- text ---- */

static void seconds_text(double seconds, char out[32])
{
    if (seconds >= 1) {
        (void)snprintf(out, 32, "%.2f s", seconds);
    } else if (seconds >= 1e-3) {
        (void)snprintf(out, 32, "%.2f ms", seconds * 1e3);
    } else {
        (void)snprintf(out, 32, "%.2f us", seconds * 1e6);
    }
}

static void print_seconds(const char *name, double seconds, const char *more)
{
    char text[32];
    seconds_text(seconds, text);
    (void)printf("%-15s %s%s\n", name, text, more);
}

static void print_side(const char *name, const cli_load_t *load, bool is_part)
{
    char most[32];
    char mean[32];
    cli_bytes_text(load->most_bytes, most);
    cli_bytes_text((int64_t)load->mean_bytes, mean);
    if (is_part) { /* a mean of ranks that are not all there would say nothing */
        (void)printf("%-15s %u of %u at work; most %s (rank %u)\n", name, load->n_at_work,
                     load->n_ranks, most, load->most_rank);
        return;
    }
    (void)printf("%-15s %u of %u at work; mean %s, most %s (rank %u), %.2f x\n", name,
                 load->n_at_work, load->n_ranks, mean, most, load->most_rank,
                 load->mean_bytes > 0 ? (double)load->most_bytes / load->mean_bytes : 1.0);
}

static void print_busiest(const heft_price_t *price, const heft_price_info_t *info)
{
    heft_link_load_t link;
    char bytes[32];
    char rate[32];
    char seconds[32];
    if (heft_price_query_link(price, info->busiest, &link, NULL) != HEFT_OK) {
        return;
    }
    cli_bytes_text(link.n_bytes, bytes);
    cli_bytes_text((int64_t)link.bytes_per_s, rate);
    seconds_text(link.busy_s, seconds);
    (void)printf("busiest         %s %u: %s at %s/s, %s\n", heft_link_kind_get_name(link.kind),
                 link.index, bytes, rate, seconds);
}

void cli_price_print(const heft_price_t *price, uint32_t n_senders, uint32_t n_receivers,
                     uint32_t n_replicas, bool is_part)
{
    heft_price_info_t info;
    heft_price_query(price, &info);
    const cli_load_t from = cli_price_senders(price, n_senders);
    const cli_load_t to = cli_price_receivers(price, n_receivers);
    const char *more = is_part ? "  at least" : "";
    char bytes[32];
    cli_bytes_text(info.n_bytes, bytes);
    (void)printf("sent            %s in %" PRIu64 " routes, %" PRIu64 " messages, %" PRIu64
                 " runs\n",
                 bytes, info.n_routes, info.n_messages, info.n_runs);
    print_side("senders", &from, is_part);
    print_side("receivers", &to, is_part);
    print_busiest(price, &info);
    print_seconds("prepare", info.prepare_s, "");
    print_seconds("stage", info.stage_s, more);
    print_seconds("verify", info.verify_s, "");
    print_seconds("pause", info.pause_s, "");
    print_seconds("flip", info.flip_s, info.stage_s < info.flip_s && is_part ? more : "");
    print_seconds("round", info.total_s, more);
    print_seconds("engine stands", info.down_s, "");
    print_seconds("bound", info.bound_s, is_part ? more : "  the busiest link, bytes alone");
    print_seconds("ideal", info.ideal_s,
                  is_part ? more : "  the same for the best choice of senders");
    if (n_replicas > 1 && !is_part) {
        print_seconds(
            "relayed", info.relayed_s,
            "  the bound if each replica hands on what it gets (heft coordinator --relay)");
    }
}

/* ---- JSON ---- */

static json_t *rank_json(const heft_price_rank_t *r, uint32_t rank)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:f}", "rank", (int)rank, "bytes",
                     (json_int_t)r->n_bytes, "messages", (json_int_t)r->n_messages, "runs",
                     (json_int_t)r->n_runs, "peers", (int)r->n_peers, "copy_s", r->copy_s, "wire_s",
                     r->wire_s, "verify_s", r->verify_s, "flip_s", r->flip_s);
}

static json_t *ranks_json(const heft_price_t *price, query_t query, uint32_t n_ranks)
{
    json_t *array = json_array();
    for (uint32_t r = 0; r < n_ranks; r++) {
        heft_price_rank_t rank;
        if (query(price, r, &rank, NULL) == HEFT_OK) {
            (void)json_array_append_new(array, rank_json(&rank, r));
        }
    }
    return array;
}

static json_t *link_json(const heft_link_load_t *link)
{
    json_t *host = link->host == UINT32_MAX ? json_null() : json_integer(link->host);
    return json_pack("{s:s, s:i, s:o, s:I, s:f, s:f, s:f}", "kind",
                     heft_link_kind_get_name(link->kind), "index", (int)link->index, "host", host,
                     "bytes", (json_int_t)link->n_bytes, "bytes_per_s", link->bytes_per_s, "busy_s",
                     link->busy_s, "bound_s", link->bound_s);
}

static json_t *links_json(const heft_price_t *price)
{
    json_t *array = json_array();
    heft_link_load_t link;
    for (uint32_t i = 0; heft_price_query_link(price, i, &link, NULL) == HEFT_OK; i++) {
        (void)json_array_append_new(array, link_json(&link));
    }
    return array;
}

static json_t *side_json(const cli_load_t *load, bool is_part)
{
    const double mean = load->mean_bytes;
    json_t *balance =
        is_part ? json_null() : json_real(mean > 0 ? (double)load->most_bytes / mean : 1);
    return json_pack("{s:i, s:i, s:I, s:i, s:f, s:o}", "ranks", (int)load->n_ranks, "at_work",
                     (int)load->n_at_work, "most_bytes", (json_int_t)load->most_bytes, "most_rank",
                     (int)load->most_rank, "mean_bytes", load->mean_bytes, "balance", balance);
}

json_t *cli_price_json(const heft_price_t *price, uint32_t n_senders, uint32_t n_receivers,
                       bool is_part, bool has_ranks)
{
    heft_price_info_t info;
    heft_link_load_t link;
    heft_price_query(price, &info);
    const cli_load_t from = cli_price_senders(price, n_senders);
    const cli_load_t to = cli_price_receivers(price, n_receivers);
    const bool has_busiest = heft_price_query_link(price, info.busiest, &link, NULL) == HEFT_OK;
    json_t *object = json_pack(
        "{s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
        "bytes", (json_int_t)info.n_bytes, "routes", (json_int_t)info.n_routes, "messages",
        (json_int_t)info.n_messages, "runs", (json_int_t)info.n_runs, "senders",
        side_json(&from, is_part), "receivers", side_json(&to, is_part), "prepare_s",
        info.prepare_s, "stage_s", info.stage_s, "verify_s", info.verify_s, "pause_s", info.pause_s,
        "flip_s", info.flip_s, "total_s", info.total_s, "down_s", info.down_s, "bound_s",
        info.bound_s, "ideal_s", info.ideal_s, "relayed_s", info.relayed_s, "busiest",
        has_busiest ? link_json(&link) : json_null());
    if (has_ranks) {
        (void)json_object_set_new(object, "sender_list",
                                  ranks_json(price, heft_price_query_sender, n_senders));
        (void)json_object_set_new(object, "receiver_list",
                                  ranks_json(price, heft_price_query_receiver, n_receivers));
        (void)json_object_set_new(object, "link_list", links_json(price));
    }
    return object;
}

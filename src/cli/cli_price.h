/* SPDX-License-Identifier: Apache-2.0 */
/* Prices as text and JSON, for `plan` and `simulate`. */
#ifndef HEFT_CLI_CLI_PRICE_H
#define HEFT_CLI_CLI_PRICE_H

#include "cli/cli.h"

#define CLI_OPT_LINKS(required)                                                                \
    {                                                                                          \
        .name = "links", .value = "LINKS", .kind = CLI_TEXT, .complete = CLI_COMPLETE_FILE,    \
        .is_required = (required),                                                             \
        .help = "How ranks stand on hosts and how fast everything between them is: a JSON "    \
                "file (docs/formats/links.md), or a bare name: rdma-400, rdma-200 (8 ranks a " \
                "host, a NIC each, weights in accelerator memory), tcp-100 (8 ranks a host, "  \
                "one NIC, weights in host memory)."                                            \
    }
#define CLI_OPT_IN_PLACE                                                             \
    {                                                                                \
        .name = "in-place", .kind = CLI_FLAG,                                        \
        .help = "Price a round in place: engines are paused for the whole transfer." \
    }

/* --links: a name or a file. Prints what is wrong. */
int cli_links_load(const cli_args_t *args, heft_links_t **links_out);

typedef struct cli_load {
    uint32_t n_ranks; /* of the side */
    uint32_t n_at_work;
    uint32_t most_rank;
    int64_t most_bytes;
    double mean_bytes; /* of all ranks */
} cli_load_t;
cli_load_t cli_price_senders(const heft_price_t *price, uint32_t n_ranks);
cli_load_t cli_price_receivers(const heft_price_t *price, uint32_t n_ranks);

/* Lines for people. is_part: not all routes are in it, so times are "at least". */
void cli_price_print(const heft_price_t *price, uint32_t n_senders, uint32_t n_receivers,
                     uint32_t n_replicas, bool is_part);
/* An object; has_ranks: with a list of each side's ranks and of all links. is_part: without
 * balance. */
json_t *cli_price_json(const heft_price_t *price, uint32_t n_senders, uint32_t n_receivers,
                       bool is_part, bool has_ranks);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* `heft plan`: what a recipe comes to: ranks, parameters, pieces, groups, bytes, digest. */
#include "cli/cli_job.h"
#include "cli/cli_price.h"
#include "cli/cli_region.h"

#include <inttypes.h>

typedef struct largest {
    uint32_t group;
    heft_group_info_t info;
} largest_t;

static largest_t find_largest(const heft_plan_t *plan, uint32_t n_groups)
{
    largest_t largest = { .group = HEFT_GROUP_NONE };
    for (uint32_t g = 0; g < n_groups; g++) {
        heft_group_info_t info;
        if (heft_plan_query_group(plan, g, &info, NULL) == HEFT_OK &&
            (largest.group == HEFT_GROUP_NONE || info.n_bytes > largest.info.n_bytes)) {
            largest = (largest_t){ .group = g, .info = info };
        }
    }
    return largest;
}

static uint64_t count_pieces(const heft_plan_t *plan, uint32_t rank_index)
{
    uint64_t n = 0;
    (void)heft_plan_get_pieces(plan, rank_index, &n);
    return n;
}

/* ---- price ---- */

/* What a round of this plan takes over the links of --links. */
typedef struct priced {
    heft_links_t *links;
    heft_routes_t *routes;
    heft_price_t *price; /* NULL without --links */
    uint32_t n_senders, n_receivers, n_replicas;
    int64_t n_gathered; /* bytes of inputs of kernels that a replica's ranks run */
    bool is_part;       /* of --rank: the other ranks are not in it */
} priced_t;

static void priced_fini(priced_t *priced)
{
    heft_price_destroy(priced->price);
    heft_routes_destroy(priced->routes);
    heft_links_destroy(priced->links);
}

/* Sources named rank-R.NAME are those of ranks; any other name, and there is one sender. */
static heft_status_t count_senders(const heft_plan_t *plan, uint32_t n_sources, uint32_t *n_out,
                                   heft_error_t *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_sources; i++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_source(plan, i, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        uint32_t rank = 0;
        const char *rest;
        if (heft_name_split_rank(info.name, &rank, &rest) == 0) {
            *n_out = 1;
            return HEFT_OK;
        }
        n = rank >= n ? rank + 1 : n;
    }
    *n_out = n;
    return HEFT_OK;
}

static int64_t count_gathered(const heft_routes_t *routes, uint32_t rank_index)
{
    uint32_t n = 0;
    int64_t n_bytes = 0;
    const uint32_t *senders = heft_routes_get_senders(routes, rank_index, &n);
    for (uint32_t i = 0; i < n; i++) {
        heft_route_info_t info;
        heft_routes_query(routes, senders[i], rank_index, &info);
        n_bytes += info.n_load_bytes;
    }
    return n_bytes;
}

static heft_status_t add_ranks(const cli_job_t *job, priced_t *priced, heft_error_t *err)
{
    heft_plan_info_t info;
    heft_plan_query(job->plan, &info);
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < info.n_ranks; r++) {
        priced->n_gathered += count_gathered(priced->routes, r);
    }
    for (uint32_t replica = 0; replica < priced->n_replicas; replica++) {
        for (uint32_t r = 0; r < info.n_ranks && status == HEFT_OK; r++) {
            status = heft_price_add_routes(priced->price, priced->routes, r,
                                           replica * job->n_ranks + info.first_rank + r, err);
        }
    }
    return status == HEFT_OK ? heft_price_finish(priced->price, err) : status;
}

static int price_plan(const cli_args_t *args, cli_job_t *job, priced_t *priced)
{
    heft_plan_info_t info;
    heft_plan_query(job->plan, &info);
    int code = cli_links_load(args, &priced->links);
    if (code != CLI_OK) {
        return code;
    }
    heft_price_opts_t opts = HEFT_PRICE_OPTS_INIT;
    heft_routes_opts_t routed = HEFT_ROUTES_OPTS_INIT;
    routed.gathers = 1;
    priced->n_replicas = (uint32_t)cli_number(args, "replicas", 1);
    priced->n_receivers = job->n_ranks * priced->n_replicas;
    priced->is_part = info.n_ranks < job->n_ranks;
    heft_status_t status = count_senders(job->plan, info.n_sources, &priced->n_senders, &job->err);
    opts.n_senders = priced->n_senders;
    opts.n_receivers = priced->n_receivers;
    opts.n_replicas = priced->n_replicas;
    opts.in_place = cli_has(args, "in-place");
    if (status == HEFT_OK) {
        status = heft_routes_create(job->plan, NULL, priced->n_senders, &routed, &priced->routes,
                                    &job->err);
    }
    if (status == HEFT_OK) {
        status = heft_price_create(priced->links, &opts, &priced->price, &job->err);
    }
    if (status == HEFT_OK) {
        status = add_ranks(job, priced, &job->err);
    }
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

/* ---- text ---- */

static void print_pieces(const heft_plan_t *plan, uint32_t rank_index, uint32_t rank)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_pieces(plan, rank_index, &n);
    for (uint64_t i = 0; i < n; i++) {
        cli_piece_text_t text;
        cli_piece_describe(plan, rank_index, &pieces[i], &text);
        (void)printf("rank %-3u %s %s <- %s %s  %s  %s\n", rank, text.param, text.dst, text.source,
                     text.src, text.move, text.note);
    }
}

static void print_text(const cli_args_t *args, const cli_job_t *job, const priced_t *priced)
{
    const heft_plan_t *plan = job->plan;
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    char bytes[32];
    cli_bytes_text(info.n_bytes, bytes);
    (void)printf("ranks           %u of %u\n", info.n_ranks, job->n_ranks);
    (void)printf("sources         %u\n", info.n_sources);
    (void)printf("pieces          %" PRIu64 "\n", info.n_pieces);
    (void)printf("bytes moved     %" PRId64 "  (%s)\n", info.n_bytes, bytes);
    (void)printf("constant bytes  %" PRId64 "\n", info.n_constant_bytes);
    (void)printf("groups          %u\n", info.n_groups);
    largest_t largest = find_largest(plan, info.n_groups);
    if (largest.group != HEFT_GROUP_NONE) {
        cli_bytes_text(largest.info.n_bytes, bytes);
        (void)printf("largest group   %u: %u parameters, %u sources, %" PRId64 " bytes  (%s)\n",
                     largest.group, largest.info.n_params, largest.info.n_sources,
                     largest.info.n_bytes, bytes);
    }
    (void)printf("digest          %s\n", info.digest);
    for (uint32_t r = 0; r < info.n_ranks; r++) {
        (void)printf("rank %-3u        %u parameters, %" PRIu64 " pieces, digest %s\n",
                     info.first_rank + r, heft_plan_get_n_params(plan, r), count_pieces(plan, r),
                     heft_plan_get_rank_digest(plan, r));
    }
    if (priced->price != NULL) {
        cli_price_print(priced->price, priced->n_senders, priced->n_receivers, priced->n_replicas,
                        priced->is_part);
    }
    if (priced->n_gathered > 0) {
        cli_bytes_text(priced->n_gathered, bytes);
        (void)printf(
            "kernel inputs   %s of several senders, kept beside parameters by ranks that run "
            "the kernels\n",
            bytes);
    }
    for (uint32_t r = 0; cli_has(args, "pieces") && r < info.n_ranks; r++) {
        print_pieces(plan, r, info.first_rank + r);
    }
}

/* ---- JSON ---- */

static json_t *pieces_json(const heft_plan_t *plan, uint32_t rank_index)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_pieces(plan, rank_index, &n);
    json_t *array = json_array();
    for (uint64_t i = 0; i < n; i++) {
        (void)json_array_append_new(array, cli_piece_json(plan, rank_index, &pieces[i]));
    }
    return array;
}

static json_t *rank_json(const cli_args_t *args, const heft_plan_t *plan, uint32_t rank_index,
                         uint32_t rank)
{
    json_t *object = json_pack("{s:i, s:i, s:I, s:s}", "rank", (int)rank, "params",
                               (int)heft_plan_get_n_params(plan, rank_index), "pieces",
                               (json_int_t)count_pieces(plan, rank_index), "digest",
                               heft_plan_get_rank_digest(plan, rank_index));
    if (cli_has(args, "pieces")) {
        (void)json_object_set_new(object, "piece_list", pieces_json(plan, rank_index));
    }
    return object;
}

static int print_as_json(const cli_args_t *args, const cli_job_t *job, const priced_t *priced)
{
    heft_plan_info_t info;
    heft_plan_query(job->plan, &info);
    largest_t largest = find_largest(job->plan, info.n_groups);
    json_t *ranks = json_array();
    for (uint32_t r = 0; r < info.n_ranks; r++) {
        (void)json_array_append_new(ranks, rank_json(args, job->plan, r, info.first_rank + r));
    }
    json_t *group = largest.group == HEFT_GROUP_NONE
                        ? json_null()
                        : json_pack("{s:I, s:I, s:I, s:I, s:I}", "group", (json_int_t)largest.group,
                                    "params", (json_int_t)largest.info.n_params, "sources",
                                    (json_int_t)largest.info.n_sources, "bytes",
                                    (json_int_t)largest.info.n_bytes, "source_bytes",
                                    (json_int_t)largest.info.source_bytes);
    json_t *object =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:o}", "digest", info.digest,
                  "recipe_ranks", (int)job->n_ranks, "first_rank", (int)info.first_rank, "sources",
                  (int)info.n_sources, "groups", (int)info.n_groups, "pieces",
                  (json_int_t)info.n_pieces, "bytes", (json_int_t)info.n_bytes, "constant_bytes",
                  (json_int_t)info.n_constant_bytes, "largest_group", group, "ranks", ranks);
    if (priced->price != NULL) {
        (void)json_object_set_new(object, "price",
                                  cli_price_json(priced->price, priced->n_senders,
                                                 priced->n_receivers, priced->is_part, true));
        (void)json_object_set_new(object, "kernel_input_bytes",
                                  json_integer((json_int_t)priced->n_gathered));
    }
    return cli_print_json(args, object);
}

/* The parameters of one rank as a manifest of the destination. */
static int print_manifest(const cli_args_t *args, cli_job_t *job)
{
    heft_manifest_t *manifest = NULL;
    char *text = NULL;
    if (job->n_tapes > 1) {
        return cli_fail(args, CLI_USAGE, "--manifest is of one rank of %u: --rank is needed",
                        job->n_ranks);
    }
    heft_status_t status = HEFT_OK;
    const heft_manifest_t *shown = NULL;
    if (job->is_traced) {
        const heft_contract_t *c = job->contract.contract;
        shown = heft_contract_get_destination(c, job->first_rank - heft_contract_get_first_rank(c));
    } else {
        status = heft_recipe_synthesize(job->recipe, job->bindings, job->first_rank,
                                        cli_job_tensors(job), NULL, &manifest, &job->err);
        shown = manifest;
    }
    if (status == HEFT_OK) {
        status = heft_manifest_encode(shown, &text, &job->err);
    }
    (void)fputs(text != NULL ? text : "", stdout);
    heft_string_free(text);
    heft_manifest_destroy(manifest);
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

static int run(const cli_args_t *args)
{
    cli_job_t job;
    cli_job_init(&job);
    job.destination = args->n_operands > 1 ? args->operands[1] : NULL;
    int code = cli_job_run(args, args->operands[0], false, &job);
    priced_t priced = { .price = NULL };
    if (code == CLI_OK && cli_has(args, "links")) {
        code = price_plan(args, &job, &priced);
    }
    if (code == CLI_OK && cli_has(args, "manifest")) {
        code = print_manifest(args, &job);
    } else if (code == CLI_OK && cli_has(args, "json")) {
        code = print_as_json(args, &job, &priced);
    } else if (code == CLI_OK) {
        print_text(args, &job, &priced);
    }
    priced_fini(&priced);
    cli_job_fini(&job);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "SRC",
      .help = "The source: a checkpoint, or its manifest (.json).",
      .complete = CLI_COMPLETE_FILE },
    { .name = "DST",
      .help =
          "The destination, whose layouts the recipe may read and must agree with: a checkpoint "
          "or a manifest (.json); with several ranks a folder with rank-0, rank-1, ...",
      .complete = CLI_COMPLETE_FILE,
      .is_optional = true },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false),
    CLI_OPT_LET,
    CLI_OPT_CONFIG,
    CLI_OPT_SHARDED,
    CLI_OPT_CONTRACT,
    CLI_OPT_RANK,
    { .name = "pieces", .kind = CLI_FLAG, .help = "List every piece, in destination order." },
    { .name = "manifest",
      .kind = CLI_FLAG,
      .help = "Print the parameters of one rank as a manifest: names, dtypes, shapes, layouts." },
    CLI_OPT_LINKS(false),
    { .name = "replicas",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 4096,
      .help = "With --links: N engines of these ranks. Default: 1." },
    CLI_OPT_IN_PLACE,
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_plan = {
    .name = "plan",
    .summary = "show what a recipe comes to: pieces, groups, bytes, digest",
    .description =
        "Compiles, folds and proves as `heft check` does, and prints the plan: ranks, parameters, "
        "pieces (strided copies straight from a source tensor to a parameter), groups (parameters "
        "that must be in one version together), bytes, and the digest that both sides compare.\n\n"
        "With --links also what a round would take: bytes, messages and seconds of every sender, "
        "receiver and link, and of each phase, without moving a byte.",
    .example = "heft plan MODEL --recipe hf-to-engine-dense --let tp=3\n"
               "heft plan MODEL --recipe my.heft --pieces --json\n"
               "heft plan MODEL --recipe hf-to-engine-dense --let tp=8 --links rdma-400",
    .exits = "0 1 2 3 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

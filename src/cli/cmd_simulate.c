/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `heft simulate`: fleets that nobody owns. The trainer's placement, then for one rank of the
 * engine after the other the recipe's tape, its plan over the boxes that the placement chose, and
 * its routes, which the price adds up. A rank's tape is pruned to what it reads, so that memory
 * holds one rank at a time. Replicas of an engine have the plans and routes of the first, unless
 * they are on hosts of the trainer: then the placement is that of the receiver's host.
 */
#include "cli/cli_price.h"
#include "cli/sim_fleet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { DEFAULT_SAMPLE = 64 };

#define PROGRESS_NS INT64_C(5000000000)

typedef struct sim {
    const cli_args_t *args;
    sim_model_t model;
    sim_trainer_t trainer;
    sim_engine_t engine;
    heft_links_t *links;
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    heft_shard_t *shards;
    uint32_t *hosts; /* of the trainer's ranks */
    heft_placement_t *placement;
    uint32_t to_host;    /* for which it is; one more than the number, 0: on none of these */
    uint32_t *first_cut; /* by tensor; one more at the end */
    heft_price_t *price;
    uint32_t n_planned;
    uint64_t n_pieces;
    uint32_t n_shards;
    double placement_s, plan_s;
    heft_error_t err;
} sim_t;

static double seconds_since(int64_t start_ns)
{
    return (double)(cli_mono_ns() - start_ns) * 1e-9;
}

static int64_t peak_bytes(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static int failed(const sim_t *sim)
{
    return cli_fail_status(sim->args, &sim->err);
}

/* ---- the two sides ---- */

static int load_recipe(sim_t *sim)
{
    const sim_engine_t *engine = &sim->engine;
    const char *wire = cli_text(sim->args, "wire");
    const struct {
        const char *name;
        int64_t value;
    } lets[] = { { "tp", engine->tp }, { "dp", engine->dp }, { "ep", engine->ep } };
    heft_status_t status = heft_recipe_load(sim->model.recipe, &sim->recipe, &sim->err);
    if (status == HEFT_OK) {
        status = heft_bindings_create(&sim->bindings, &sim->err);
    }
    if (status == HEFT_OK) {
        status = heft_bindings_set_config(sim->bindings, sim->model.config,
                                          strlen(sim->model.config), &sim->err);
    }
    const size_t n = sim->model.shape.family == SIM_DENSE ? 1 : CLI_COUNT(lets);
    for (size_t i = 0; i < n && status == HEFT_OK; i++) {
        char value[32];
        (void)snprintf(value, sizeof value, "%" PRId64, lets[i].value);
        status = heft_bindings_set(sim->bindings, lets[i].name, value, &sim->err);
    }
    if (status == HEFT_OK && wire != NULL) {
        status = heft_bindings_set(sim->bindings, "wire", wire, &sim->err);
    }
    if (status != HEFT_OK) {
        return failed(sim);
    }
    return n > 1 || (engine->dp == 1 && engine->ep == 1)
               ? CLI_OK
               : cli_fail(sim->args, CLI_USAGE,
                          "--engine: a dense model has neither dp nor ep: replicas is what it has");
}

/* Cuts come tensor by tensor, in the order of the manifest. */
static int index_cuts(sim_t *sim)
{
    const uint32_t n_cuts = heft_placement_get_n_cuts(sim->placement);
    uint32_t t = 0;
    sim->first_cut = calloc((size_t)sim->model.n_tensors + 1, sizeof *sim->first_cut);
    if (sim->first_cut == NULL) {
        return cli_out_of_memory(sim->args);
    }
    for (uint32_t i = 0; i < n_cuts; i++) {
        heft_shard_t shard;
        if (heft_placement_query_cut(sim->placement, i, &shard, &sim->err) != HEFT_OK) {
            return failed(sim);
        }
        while (t < sim->model.n_tensors && strcmp(sim->model.tensors[t].name, shard.tensor) != 0) {
            sim->first_cut[++t] = i;
        }
    }
    while (t < sim->model.n_tensors) {
        sim->first_cut[++t] = n_cuts;
    }
    return CLI_OK;
}

/* Which of the trainer's hosts a receiver is on, and one more; 0: none. */
static uint32_t host_of_receiver(const sim_t *sim, uint32_t receiver)
{
    const uint32_t host = heft_price_get_host(sim->price, 1, receiver);
    return host <= sim->hosts[sim->trainer.n_ranks - 1] ? host + 1 : 0;
}

/* The placement for receivers of a host, in the place of another one's. */
static int place_for(sim_t *sim, uint32_t to_host)
{
    if (sim->placement != NULL && sim->to_host == to_host) {
        return CLI_OK;
    }
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    const int64_t start_ns = cli_mono_ns();
    opts.hosts = sim->hosts;
    opts.n_hosts = sim->trainer.n_ranks;
    opts.to_host = to_host;
    heft_placement_destroy(sim->placement);
    free(sim->first_cut);
    sim->placement = NULL;
    sim->first_cut = NULL;
    sim->to_host = to_host;
    if (heft_placement_create(sim->model.manifest, sim->shards, sim->n_shards, &opts,
                              &sim->placement, &sim->err) != HEFT_OK) {
        return failed(sim);
    }
    const int code = index_cuts(sim);
    sim->placement_s += seconds_since(start_ns);
    return code;
}

static int place(sim_t *sim)
{
    const int64_t start_ns = cli_mono_ns();
    int code =
        sim_trainer_shards(sim->args, &sim->trainer, &sim->model, &sim->shards, &sim->n_shards);
    if (code != CLI_OK) {
        return code;
    }
    sim->hosts = calloc((size_t)sim->trainer.n_ranks + 1, sizeof *sim->hosts);
    if (sim->hosts == NULL) {
        return cli_out_of_memory(sim->args);
    }
    for (uint32_t r = 0; r < sim->trainer.n_ranks; r++) {
        sim->hosts[r] = heft_price_get_host(sim->price, 0, r);
    }
    sim->placement_s = seconds_since(start_ns);
    return place_for(sim, host_of_receiver(sim, 0));
}

/* ---- one rank ---- */

/* What the tape reads: a manifest, and the cuts of those tensors. */
typedef struct part {
    heft_manifest_t *manifest;
    heft_shard_t *shards;
    size_t n, cap;
} part_t;

static heft_status_t add_cuts(sim_t *sim, part_t *part, uint32_t tensor)
{
    const uint32_t first = sim->first_cut[tensor];
    const uint32_t n = sim->first_cut[tensor + 1] - first;
    if (part->n + n > part->cap) {
        part->cap = (part->n + n) * 2;
        heft_shard_t *grown = realloc(part->shards, part->cap * sizeof *grown);
        if (grown == NULL) {
            sim->err = (heft_error_t){ .status = HEFT_ERR_NOMEM, .message = "out of memory" };
            return HEFT_ERR_NOMEM;
        }
        part->shards = grown;
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        status = heft_placement_query_cut(sim->placement, first + i, &part->shards[part->n++],
                                          &sim->err);
    }
    return status;
}

static heft_status_t make_part(sim_t *sim, const heft_tape_t *tape, part_t *part)
{
    heft_status_t status = heft_manifest_create("source", &part->manifest, &sim->err);
    for (uint32_t b = 0; b < heft_tape_get_n_buffers(tape) && status == HEFT_OK; b++) {
        heft_buffer_info_t buffer;
        uint32_t tensor = 0;
        status = heft_tape_query_buffer(tape, b, &buffer, &sim->err);
        if (status != HEFT_OK || buffer.kind != HEFT_BUFFER_SOURCE) {
            continue;
        }
        status = heft_manifest_find(sim->model.manifest, buffer.name, &tensor, &sim->err);
        if (status == HEFT_OK) {
            status = heft_manifest_add(part->manifest, buffer.name, buffer.dtype,
                                       &sim->model.tensors[tensor].shape, &sim->err);
        }
        if (status == HEFT_OK) {
            status = add_cuts(sim, part, tensor);
        }
    }
    return status == HEFT_OK ? heft_manifest_finish(part->manifest, &sim->err) : status;
}

/* The tape over the boxes of ranks; takes nothing. */
static heft_status_t place_tape(sim_t *sim, heft_tape_t *whole, heft_tape_t **placed_out)
{
    part_t part = { .n = 0 };
    heft_tape_t *pruned = NULL;
    heft_placement_t *placement = NULL;
    heft_status_t status = heft_tape_prune(whole, &pruned, &sim->err);
    if (status == HEFT_OK) {
        status = make_part(sim, pruned, &part);
    }
    if (status == HEFT_OK) {
        status = heft_placement_create(part.manifest, part.shards, (uint32_t)part.n, NULL,
                                       &placement, &sim->err);
    }
    if (status == HEFT_OK) {
        status = heft_placement_apply(placement, pruned, placed_out, &sim->err);
    }
    if (status != HEFT_OK) {
        heft_tape_destroy(pruned);
    }
    heft_placement_destroy(placement);
    heft_manifest_destroy(part.manifest);
    free(part.shards);
    return status;
}

/* Of `n` engines from `first` on. */
static heft_status_t add_routes(sim_t *sim, const heft_plan_t *plan, uint32_t rank, uint32_t first,
                                uint32_t n)
{
    heft_routes_t *routes = NULL;
    heft_plan_info_t info;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.gathers = 1;
    heft_status_t status =
        heft_routes_create(plan, NULL, sim->trainer.n_ranks, &opts, &routes, &sim->err);
    for (uint32_t r = first; r < first + n && status == HEFT_OK; r++) {
        status =
            heft_price_add_routes(sim->price, routes, 0, r * sim->engine.n_ranks + rank, &sim->err);
    }
    heft_plan_query(plan, &info);
    sim->n_pieces += info.n_pieces;
    heft_routes_destroy(routes);
    return status;
}

static heft_status_t plan_rank(sim_t *sim, uint32_t rank, uint32_t first, uint32_t n)
{
    heft_tape_t *whole = NULL;
    heft_tape_t *placed = NULL;
    heft_plan_t *plan = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    opts.partial = 1;
    heft_status_t status = heft_recipe_compile(sim->recipe, sim->bindings, rank,
                                               sim->model.manifest, NULL, &whole, &sim->err);
    if (status == HEFT_OK) {
        status = place_tape(sim, whole, &placed);
    }
    heft_tape_destroy(whole);
    if (status == HEFT_OK) {
        status = heft_plan_create((const heft_tape_t *const *)&placed, 1, rank, &opts, &plan, NULL,
                                  &sim->err);
    }
    if (status == HEFT_OK) {
        status = add_routes(sim, plan, rank, first, n);
    }
    heft_plan_destroy(plan);
    heft_tape_destroy(placed);
    return status;
}

/* Whether some receiver is on a host of the trainer, so that engines differ. */
static bool has_shared_hosts(const sim_t *sim)
{
    return host_of_receiver(sim, 0) != 0; /* if any is, the first one is */
}

/* One rank of `n` engines from `first` on. */
static int plan_for(sim_t *sim, uint32_t rank, uint32_t first, uint32_t n)
{
    const int code = place_for(sim, host_of_receiver(sim, first * sim->engine.n_ranks + rank));
    if (code != CLI_OK) {
        return code;
    }
    return plan_rank(sim, rank, first, n) == HEFT_OK ? CLI_OK : failed(sim);
}

static int plan_ranks(sim_t *sim)
{
    const int64_t sample = cli_number(sim->args, "sample", DEFAULT_SAMPLE);
    const uint32_t n_ranks = sim->engine.n_ranks;
    const bool is_all = cli_has(sim->args, "all") || sample >= (int64_t)n_ranks;
    const int64_t start_ns = cli_mono_ns();
    const double placed_s = sim->placement_s;
    int64_t next_ns = start_ns + PROGRESS_NS;
    sim->n_planned = is_all ? n_ranks : (uint32_t)sample;
    const uint32_t n_engines = (uint32_t)sim->engine.replicas;
    const uint32_t n_apart = has_shared_hosts(sim) ? n_engines : 1;
    cli_catch_signals();
    int code = CLI_OK;
    for (uint32_t k = 0; k < sim->n_planned * n_apart && code == CLI_OK; k++) {
        const uint32_t i = k % sim->n_planned;
        code = plan_for(sim, (uint32_t)((uint64_t)i * n_ranks / sim->n_planned), k / sim->n_planned,
                        n_engines / n_apart);
        if (cli_mono_ns() >= next_ns) {
            (void)fprintf(stderr, "planned %u of %u ranks\n", k + 1, sim->n_planned * n_apart);
            next_ns = cli_mono_ns() + PROGRESS_NS;
        }
        if (cli_is_interrupted()) {
            return cli_fail(sim->args, CLI_CANCELED, "interrupted");
        }
    }
    sim->plan_s = seconds_since(start_ns) - (sim->placement_s - placed_s);
    if (code != CLI_OK) {
        return code;
    }
    return heft_price_finish(sim->price, &sim->err) == HEFT_OK ? CLI_OK : failed(sim);
}

/* ---- what it came to ---- */

static void print_text(const sim_t *sim)
{
    const sim_trainer_t *t = &sim->trainer;
    const sim_engine_t *e = &sim->engine;
    const uint32_t n_receivers = e->n_ranks * (uint32_t)e->replicas;
    const bool is_part = sim->n_planned < e->n_ranks;
    char bytes[32];
    cli_bytes_text(heft_manifest_get_n_bytes(sim->model.manifest), bytes);
    (void)printf("model           %s: %" PRId64 " layers, %u tensors, %s\n", sim->model.name,
                 sim->model.shape.layers, sim->model.n_tensors, bytes);
    (void)printf("trainer         %u ranks: pp %" PRId64 ", hsdp %" PRId64 ", fsdp %" PRId64
                 ", tp %" PRId64 ", ep %" PRId64 "; %u boxes\n",
                 t->n_ranks, t->pp, t->hsdp, t->fsdp, t->tp, t->ep, sim->n_shards);
    (void)printf("engine          %u ranks: %" PRId64 " x (tp %" PRId64 ", dp %" PRId64
                 ", ep %" PRId64 "), by %s\n",
                 n_receivers, e->replicas, e->tp, e->dp, e->ep, sim->model.recipe);
    cli_bytes_text(peak_bytes(), bytes);
    (void)printf("planned         %u of the %u ranks of an engine, %" PRIu64
                 " pieces: placement %.2f s, plans %.2f s, peak memory %s\n",
                 sim->n_planned, e->n_ranks, sim->n_pieces, sim->placement_s, sim->plan_s, bytes);
    if (is_part) {
        (void)printf("                a sample: the other ranks are not in what follows, so times "
                     "are \"at least\"; --all plans every rank\n");
    }
    cli_price_print(sim->price, t->n_ranks, n_receivers, (uint32_t)e->replicas, is_part);
}

static int print_as_json(const sim_t *sim)
{
    const sim_trainer_t *t = &sim->trainer;
    const sim_engine_t *e = &sim->engine;
    const uint32_t n_receivers = e->n_ranks * (uint32_t)e->replicas;
    json_t *model =
        json_pack("{s:s, s:I, s:i, s:I}", "name", sim->model.name, "layers",
                  (json_int_t)sim->model.shape.layers, "tensors", (int)sim->model.n_tensors,
                  "bytes", (json_int_t)heft_manifest_get_n_bytes(sim->model.manifest));
    json_t *trainer =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:i}", "ranks", (int)t->n_ranks, "pp",
                  (json_int_t)t->pp, "hsdp", (json_int_t)t->hsdp, "fsdp", (json_int_t)t->fsdp, "tp",
                  (json_int_t)t->tp, "ep", (json_int_t)t->ep, "boxes", (int)sim->n_shards);
    json_t *engine =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:s}", "ranks", (int)n_receivers, "replicas",
                  (json_int_t)e->replicas, "tp", (json_int_t)e->tp, "dp", (json_int_t)e->dp, "ep",
                  (json_int_t)e->ep, "recipe", sim->model.recipe);
    return cli_print_json(
        sim->args,
        json_pack("{s:o, s:o, s:o, s:i, s:i, s:b, s:I, s:f, s:f, s:I, s:o}", "model", model,
                  "trainer", trainer, "engine", engine, "planned_ranks", (int)sim->n_planned,
                  "engine_ranks", (int)e->n_ranks, "is_sample", sim->n_planned < e->n_ranks,
                  "pieces", (json_int_t)sim->n_pieces, "placement_s", sim->placement_s, "plan_s",
                  sim->plan_s, "peak_memory_bytes", (json_int_t)peak_bytes(), "price",
                  cli_price_json(sim->price, t->n_ranks, n_receivers, sim->n_planned < e->n_ranks,
                                 cli_has(sim->args, "ranks"))));
}

/* ---- the command ---- */

static int make_price(sim_t *sim)
{
    int code = cli_links_load(sim->args, &sim->links);
    if (code != CLI_OK) {
        return code;
    }
    heft_price_opts_t opts = HEFT_PRICE_OPTS_INIT;
    opts.n_senders = sim->trainer.n_ranks;
    opts.n_receivers = sim->engine.n_ranks * (uint32_t)sim->engine.replicas;
    opts.n_replicas = (uint32_t)sim->engine.replicas;
    opts.in_place = cli_has(sim->args, "in-place");
    return heft_price_create(sim->links, &opts, &sim->price, &sim->err) == HEFT_OK ? CLI_OK
                                                                                   : failed(sim);
}

static int prepare(sim_t *sim)
{
    const cli_args_t *args = sim->args;
    const char *name = cli_has(args, "dtype") ? cli_text(args, "dtype") : "bf16";
    const char *trainer = cli_text(args, "trainer");
    const char *engine = cli_text(args, "engine");
    const heft_dtype_t dtype = heft_dtype_from_name(name);
    if (heft_dtype_get_bits(dtype) < 8) {
        return cli_fail(args, CLI_USAGE, "--dtype: no dtype of whole bytes \"%s\"", name);
    }
    int code = sim_trainer_parse(args, trainer != NULL ? trainer : "", &sim->trainer);
    if (code == CLI_OK) {
        code = sim_engine_parse(args, engine != NULL ? engine : "", &sim->engine);
    }
    if (code == CLI_OK) {
        code = make_price(sim);
    }
    if (code == CLI_OK) {
        code = sim_model_load(args, args->operands[0], cli_number(args, "layers", 0), dtype,
                              &sim->model);
    }
    return code == CLI_OK ? load_recipe(sim) : code;
}

static int run(const cli_args_t *args)
{
    sim_t sim = { .args = args, .err = HEFT_ERROR_INIT };
    int code = prepare(&sim);
    code = code == CLI_OK ? place(&sim) : code;
    code = code == CLI_OK ? plan_ranks(&sim) : code;
    if (code == CLI_OK && cli_has(args, "json")) {
        code = print_as_json(&sim);
    } else if (code == CLI_OK) {
        print_text(&sim);
    }
    heft_price_destroy(sim.price);
    heft_links_destroy(sim.links);
    heft_placement_destroy(sim.placement);
    heft_bindings_destroy(sim.bindings);
    heft_recipe_destroy(sim.recipe);
    free(sim.first_cut);
    free(sim.shards);
    free(sim.hosts);
    sim_model_free(&sim.model);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "MODEL",
      .help = "A model by its sizes: tiny-dense, tiny-moe, tiny-mla, llama-8b, llama-70b, "
              "qwen3-30b, qwen3-235b, deepseek-v3, kimi-k2, glm-5; or the config.json of one (a "
              "path with a slash, or ending in .json). No weights are needed.",
      .complete = CLI_COMPLETE_FILE },
};

static const cli_option_t options[] = {
    CLI_OPT_LINKS(true),
    { .name = "trainer",
      .value = "DEGREES",
      .kind = CLI_TEXT,
      .help = "Degrees of the trainer's parallelism, such as fsdp=64,ep=8: fsdp, hsdp (replicas), "
              "tp, ep, pp, each 1 unless given. It has pp * hsdp * fsdp * tp ranks." },
    { .name = "engine",
      .value = "DEGREES",
      .kind = CLI_TEXT,
      .help = "Degrees of an engine's parallelism, and how many such engines there are: tp, dp, "
              "ep, replicas, each 1 unless given. An engine has tp * dp ranks." },
    { .name = "layers",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 4096,
      .help = "Another number of layers: a smaller model of the same kind." },
    { .name = "dtype",
      .value = "DTYPE",
      .kind = CLI_TEXT,
      .help = "Dtype of the weights, such as bf16, f32, f8_e4m3. Default: bf16." },
    { .name = "wire",
      .value = "DTYPE",
      .kind = CLI_TEXT,
      .choices = "source bf16 f16 f32",
      .help =
          "Dtype of the engine's floats; what it is cast to is what is sent. Default: source." },
    { .name = "sample",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 65536,
      .help = "Plan no more than N ranks of an engine, evenly spaced; the output says so, and "
              "leaves the others out. Default: 64." },
    { .name = "all", .kind = CLI_FLAG, .help = "Plan every rank of an engine." },
    CLI_OPT_IN_PLACE,
    { .name = "ranks",
      .kind = CLI_FLAG,
      .help = "With --json: what every rank and every link has to do." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_simulate = {
    .name = "simulate",
    .summary = "plan and price a fleet that nobody has to own",
    .description =
        "Makes the tensors of a model from its sizes alone, gives them to the ranks of a trainer, "
        "and runs the real planner for the ranks of engines: placement, recipe, fold, proof, "
        "routes. Then it says what a round would take over the links given: bytes of every rank, "
        "balance, seconds of each phase, and the bounds below which no transfer is.\n\n"
        "Replicas of an engine have equal plans, so they are planned once and counted each. "
        "Nothing "
        "else is inferred: ranks that are not planned are not in the figures.",
    .example = "heft simulate qwen3-235b --trainer fsdp=8 --engine tp=8 --links rdma-400\n"
               "heft simulate kimi-k2 --trainer fsdp=32,ep=32 --engine tp=8,ep=8,replicas=4 "
               "--links links.json",
    .exits = "0 1 2 3 4 130",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

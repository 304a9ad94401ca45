/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the members of a fleet of many trainer ranks pay to know who sends what, from the recipe on:
 * a model of 61 layers of 384 experts, held in 8 stages, experts dealt to the ranks of a stage, all
 * else cut in rows over them, all of it several times where there are more than 256 ranks; engines
 * of whole experts dealt to their ranks, attention in 8 tensor-parallel ranks.
 *
 * A source compiles every engine rank, proves all of them over whole tensors and plans its part. A
 * destination plans its rank, all of it. For small fleets the whole plan of all ranks is measured
 * as well, and its routes must have the digests of the part's. Each row is a process of its own;
 * seconds are of CPU.
 *
 *   bench_route_scale [SOURCES RANKS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "heft/placement.h"
#include "heft/routes.h"
#include "plan/plan.h"
#include "recipe/recipe.h"

enum { TP = 8, STAGES = 8, STAGE_RANKS = 32 };

/* Of a model of 1 T parameters, with the names of DeepSeek-V3. */
enum {
    LAYERS = 61,
    DENSE = 1,
    EXPERTS = 384,
    HIDDEN = 7168,
    INNER = 18432,
    EXPERT_INNER = 2048,
    VOCAB = 163840,
    HEADS = 64,
    Q_RANK = 1536,
    KV_RANK = 512,
    NOPE = 128,
    ROPE = 64,
    V_DIM = 128
};

static void check(const char *what, heft_status_t status, const heft_error_t *err)
{
    if (status != HEFT_OK) {
        (void)fprintf(stderr, "route_scale: %s: %s\n", what, err->message);
        exit(1);
    }
}

static double peak_mib(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* ---- who holds what ---- */

typedef struct trainer {
    uint32_t n_ranks;
    uint32_t n_stages;
    uint32_t stage_ranks;
    uint32_t n_replicas;
    heft_shard_t *shards;
    uint32_t n;
    uint32_t cap;
} trainer_t;

static trainer_t trainer_of(uint32_t n_ranks)
{
    trainer_t t = { .n_ranks = n_ranks, .n_stages = STAGES, .stage_ranks = STAGE_RANKS };
    if (n_ranks < STAGES * STAGE_RANKS) {
        t.n_stages = n_ranks < 64 ? 1 : 2;
        t.stage_ranks = n_ranks / t.n_stages;
    }
    t.n_replicas = n_ranks / (t.n_stages * t.stage_ranks);
    return t;
}

static void hold(trainer_t *t, const heft_tensor_info_t *info, uint32_t rank, int64_t begin,
                 int64_t end)
{
    if (t->n == t->cap) {
        t->cap = t->cap > 0 ? 2 * t->cap : 1 << 16;
        t->shards = realloc(t->shards, t->cap * sizeof *t->shards);
        if (t->shards == NULL) {
            exit(1);
        }
    }
    heft_shard_t *shard = &t->shards[t->n++];
    *shard = (heft_shard_t){ .tensor = info->name, .rank = rank };
    memcpy(shard->end, info->shape.extent, sizeof shard->end);
    shard->begin[0] = begin;
    shard->end[0] = end;
}

/* One tensor: an expert's lies whole on one rank of its stage, others in rows on all of them. */
static void lay(trainer_t *t, const heft_tensor_info_t *info)
{
    const char *layers = strstr(info->name, "layers.");
    const char *experts = strstr(info->name, ".experts.");
    const long layer = layers != NULL ? strtol(layers + 7, NULL, 10) : 0;
    const uint32_t stage = (uint32_t)(layer * t->n_stages / LAYERS);
    const int64_t rows = info->shape.extent[0];
    for (uint32_t r = 0; r < t->n_replicas; r++) {
        const uint32_t first = (r * t->n_stages + stage) * t->stage_ranks;
        if (experts != NULL) {
            const uint32_t expert = (uint32_t)strtol(experts + 9, NULL, 10);
            hold(t, info, first + expert % t->stage_ranks, 0, rows);
            continue;
        }
        const int64_t each = (rows + t->stage_ranks - 1) / t->stage_ranks;
        for (uint32_t k = 0; k < t->stage_ranks && k * each < rows; k++) {
            const int64_t end = (k + 1) * each;
            hold(t, info, first + k, k * each, end < rows ? end : rows);
        }
    }
}

/* ---- the model, and the recipe ---- */

static void tensor(heft_manifest_t *manifest, const char *prefix, const char *name, int64_t rows,
                   int64_t columns)
{
    char full[160];
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_shape_t shape = { .rank = columns > 0 ? 2 : 1, .extent = { rows, columns } };
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    check("manifest", heft_manifest_add(manifest, full, HEFT_DTYPE_BF16, &shape, &err), &err);
}

static void feed_forward(heft_manifest_t *manifest, const char *prefix, int64_t inner)
{
    tensor(manifest, prefix, "gate_proj.weight", inner, HIDDEN);
    tensor(manifest, prefix, "up_proj.weight", inner, HIDDEN);
    tensor(manifest, prefix, "down_proj.weight", HIDDEN, inner);
}

static void attention(heft_manifest_t *manifest, const char *prefix)
{
    tensor(manifest, prefix, "q_a_proj.weight", Q_RANK, HIDDEN);
    tensor(manifest, prefix, "q_a_layernorm.weight", Q_RANK, 0);
    tensor(manifest, prefix, "q_b_proj.weight", (int64_t)HEADS * (NOPE + ROPE), Q_RANK);
    tensor(manifest, prefix, "kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN);
    tensor(manifest, prefix, "kv_a_layernorm.weight", KV_RANK, 0);
    tensor(manifest, prefix, "kv_b_proj.weight", (int64_t)HEADS * (NOPE + V_DIM), KV_RANK);
    tensor(manifest, prefix, "o_proj.weight", HIDDEN, (int64_t)HEADS * V_DIM);
}

static void experts(heft_manifest_t *manifest, const char *prefix)
{
    char at[96];
    tensor(manifest, prefix, "mlp.gate.weight", EXPERTS, HIDDEN);
    tensor(manifest, prefix, "mlp.gate.e_score_correction_bias", EXPERTS, 0);
    (void)snprintf(at, sizeof at, "%smlp.shared_experts.", prefix);
    feed_forward(manifest, at, EXPERT_INNER);
    for (int e = 0; e < EXPERTS; e++) {
        (void)snprintf(at, sizeof at, "%smlp.experts.%d.", prefix, e);
        feed_forward(manifest, at, EXPERT_INNER);
    }
}

static heft_manifest_t *make_manifest(void)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *manifest = NULL;
    check("manifest", heft_manifest_create("source", &manifest, &err), &err);
    tensor(manifest, "", "model.embed_tokens.weight", VOCAB, HIDDEN);
    tensor(manifest, "", "model.norm.weight", HIDDEN, 0);
    tensor(manifest, "", "lm_head.weight", VOCAB, HIDDEN);
    for (int l = 0; l < LAYERS; l++) {
        char prefix[48];
        char at[64];
        (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        tensor(manifest, prefix, "input_layernorm.weight", HIDDEN, 0);
        tensor(manifest, prefix, "post_attention_layernorm.weight", HIDDEN, 0);
        (void)snprintf(at, sizeof at, "%sself_attn.", prefix);
        attention(manifest, at);
        (void)snprintf(at, sizeof at, "%smlp.", prefix);
        if (l < DENSE) {
            feed_forward(manifest, at, INNER);
        } else {
            experts(manifest, prefix);
        }
    }
    check("manifest", heft_manifest_finish(manifest, &err), &err);
    return manifest;
}

typedef struct job {
    heft_manifest_t *manifest;
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    uint32_t n_ranks;
} job_t;

static job_t make_job(uint32_t n_ranks)
{
    heft_error_t err = HEFT_ERROR_INIT;
    job_t job = { .manifest = make_manifest(), .n_ranks = n_ranks };
    char text[640];
    const int n = snprintf(
        text, sizeof text,
        "{\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"intermediate_size\":%d,"
        "\"vocab_size\":%d,\"kv_lora_rank\":%d,\"q_lora_rank\":%d,\"qk_nope_head_dim\":%d,"
        "\"qk_rope_head_dim\":%d,\"v_head_dim\":%d,\"n_routed_experts\":%d,"
        "\"n_shared_experts\":1,\"moe_intermediate_size\":%d,\"first_k_dense_replace\":%d}",
        LAYERS, HEADS, INNER, VOCAB, KV_RANK, Q_RANK, NOPE, ROPE, V_DIM, EXPERTS, EXPERT_INNER,
        DENSE);
    check("recipe", heft_recipe_load("hf-to-engine-deepseek-v3", &job.recipe, &err), &err);
    check("bindings", heft_bindings_create(&job.bindings, &err), &err);
    check("bindings", heft_bindings_set_config(job.bindings, text, (size_t)n, &err), &err);
    (void)snprintf(text, sizeof text, "%d", TP);
    check("bindings", heft_bindings_set(job.bindings, "tp", text, &err), &err);
    (void)snprintf(text, sizeof text, "%u", (unsigned)n_ranks / TP);
    check("bindings", heft_bindings_set(job.bindings, "dp", text, &err), &err);
    (void)snprintf(text, sizeof text, "%u", (unsigned)n_ranks);
    check("bindings", heft_bindings_set(job.bindings, "ep", text, &err), &err);
    return job;
}

static void destroy_job(job_t *job)
{
    heft_bindings_destroy(job->bindings);
    heft_recipe_destroy(job->recipe);
    heft_manifest_destroy(job->manifest);
}

/* ---- one member ---- */

typedef struct cost {
    double placement;
    double tapes;
    double proof; /* of all ranks over whole tensors; a destination's is in its plan */
    double parts; /* the part of every tape */
    double plan;
    double routes;
    uint64_t n_pieces;
    double peak;
} cost_t;

static heft_placement_t *place(const job_t *job, uint32_t n_sources, cost_t *cost)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_t *placement = NULL;
    const heft_manifest_t *manifest = job->manifest;
    trainer_t t = trainer_of(n_sources);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest); i++) {
        heft_tensor_info_t info;
        check("manifest", heft_manifest_query(manifest, i, &info, &err), &err);
        lay(&t, &info);
    }
    const double before = cpu_seconds();
    check("placement", heft_placement_create(manifest, t.shards, t.n, NULL, &placement, &err),
          &err);
    cost->placement = cpu_seconds() - before;
    free(t.shards);
    return placement;
}

static void prove(const job_t *job, heft_tape_t *const *tapes, cost_t *cost)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_exception_t *exceptions = NULL;
    heft_plan_t *plan = NULL;
    const double begin = cpu_seconds();
    check("exceptions",
          heft_recipe_resolve_exceptions(job->recipe, job->bindings, job->manifest, NULL,
                                         &exceptions, &opts.n_exceptions, &err),
          &err);
    opts.exceptions = exceptions;
    check("proof",
          heft_plan_create((const heft_tape_t *const *)tapes, job->n_ranks, 0, &opts, &plan, NULL,
                           &err),
          &err);
    heft_plan_destroy(plan);
    heft_exceptions_free(exceptions);
    cost->proof = cpu_seconds() - begin;
}

/* Tapes of all ranks; sources that nothing reads are on the first. */
static heft_tape_t **compile_all(const job_t *job, cost_t *cost)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft__compiler_t *compiler = NULL;
    heft_tape_t **tapes = calloc(job->n_ranks, sizeof(heft_tape_t *));
    const double begin = cpu_seconds();
    check("compiler",
          heft__compiler_create(job->recipe, job->bindings, job->manifest, &compiler, &err), &err);
    for (uint32_t r = 0; r < job->n_ranks; r++) {
        check("tape", heft__compiler_run(compiler, r, NULL, r > 0, NULL, &tapes[r], &err), &err);
    }
    heft__compiler_destroy(compiler);
    cost->tapes = cpu_seconds() - begin;
    return tapes;
}

/* The part of one source of every rank. */
static heft_routes_t *plan_source(const job_t *job, const heft_placement_t *placement,
                                  uint32_t sender, heft_plan_t **plan_out, cost_t *cost)
{
    const uint32_t n_ranks = job->n_ranks;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t **parts = calloc(n_ranks, sizeof(heft_tape_t *));
    heft_routes_t *routes = NULL;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    heft_plan_info_t info;
    heft_tape_t **tapes = compile_all(job, cost);
    prove(job, tapes, cost);
    const double t1 = cpu_seconds();
    for (uint32_t r = 0; r < n_ranks; r++) {
        check("part", heft_placement_apply_part(placement, sender, tapes[r], &parts[r], &err),
              &err);
        heft_tape_destroy(tapes[r]);
    }
    free(tapes);
    const double t2 = cpu_seconds();
    cost->parts = t2 - t1;
    check(
        "plan",
        heft_plan_create_part((const heft_tape_t *const *)parts, n_ranks, 0, NULL, plan_out, &err),
        &err);
    const double t3 = cpu_seconds();
    opts.others = placement;
    check("routes",
          heft_routes_create(*plan_out, NULL, heft_placement_get_n_ranks(placement), &opts, &routes,
                             &err),
          &err);
    cost->plan = t3 - t2;
    cost->routes = cpu_seconds() - t3;
    for (uint32_t r = 0; r < n_ranks; r++) {
        heft_tape_destroy(parts[r]);
    }
    free(parts);
    heft_plan_query(*plan_out, &info);
    cost->n_pieces = info.n_pieces;
    return routes;
}

/* Ranks [0, n) of a destination, or of a whole fleet, as they are. */
static heft_routes_t *plan_whole(const job_t *job, const heft_placement_t *placement, uint32_t n,
                                 heft_plan_t **plan_out, cost_t *cost)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t **placed = calloc(n, sizeof(heft_tape_t *));
    heft_routes_t *routes = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_info_t info;
    opts.partial = 1;
    for (uint32_t r = 0; r < n; r++) {
        heft_tape_t *tape = NULL;
        const double t0 = cpu_seconds();
        check("tape",
              heft_recipe_compile(job->recipe, job->bindings, r, job->manifest, NULL, &tape, &err),
              &err);
        const double t1 = cpu_seconds();
        check("apply",
              (n == 1 ? heft__placement_apply_read : heft_placement_apply)(placement, tape,
                                                                           &placed[r], &err),
              &err);
        cost->tapes += t1 - t0;
        cost->parts += cpu_seconds() - t1;
    }
    const double t2 = cpu_seconds();
    check("plan",
          heft_plan_create((const heft_tape_t *const *)placed, n, 0, &opts, plan_out, NULL, &err),
          &err);
    const double t3 = cpu_seconds();
    check("routes",
          heft_routes_create(*plan_out, NULL, heft_placement_get_n_ranks(placement), NULL, &routes,
                             &err),
          &err);
    cost->plan = t3 - t2;
    cost->routes = cpu_seconds() - t3;
    for (uint32_t r = 0; r < n; r++) {
        heft_tape_destroy(placed[r]);
    }
    free(placed);
    heft_plan_query(*plan_out, &info);
    cost->n_pieces = info.n_pieces;
    return routes;
}

/* ---- rows ---- */

static void print_row(uint32_t n_sources, uint32_t n_ranks, const char *who, const cost_t *c)
{
    (void)printf("%7u %6u  %-12s %9.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %10llu %9.1f\n",
                 n_sources, n_ranks, who, c->placement, c->tapes, c->proof, c->parts, c->plan,
                 c->routes, c->placement + c->tapes + c->proof + c->parts + c->plan + c->routes,
                 (unsigned long long)c->n_pieces, peak_mib());
    (void)fflush(stdout);
}

/* Digests of a part's routes are those of the whole plan. */
static void compare(const heft_routes_t *whole, const heft_routes_t *part, uint32_t sender)
{
    for (uint32_t r = 0; r < heft_routes_get_n_ranks(whole); r++) {
        heft_route_info_t a;
        heft_route_info_t b;
        heft_routes_query(whole, sender, r, &a);
        heft_routes_query(part, sender, r, &b);
        if ((a.digest == NULL) != (b.digest == NULL) ||
            (a.digest != NULL && strcmp(a.digest, b.digest) != 0)) {
            (void)fprintf(stderr, "route_scale: sender %u rank %u: digests differ\n",
                          (unsigned)sender, (unsigned)r);
            exit(1);
        }
    }
}

typedef enum who { SOURCE, DESTINATION, WHOLE } who_t;

static void run(who_t who, uint32_t n_sources, uint32_t n_ranks)
{
    static const char *const names[] = { "a source", "a rank", "all, whole" };
    cost_t cost = { 0 };
    job_t job = make_job(n_ranks);
    heft_plan_t *plan = NULL;
    heft_placement_t *placement = place(&job, n_sources, &cost);
    heft_routes_t *routes =
        who == SOURCE ? plan_source(&job, placement, n_sources / 2, &plan, &cost)
                      : plan_whole(&job, placement, who == WHOLE ? n_ranks : 1, &plan, &cost);
    print_row(n_sources, n_ranks, names[who], &cost);
    if (who == WHOLE) {
        heft_plan_t *part_plan = NULL;
        heft_routes_t *part = plan_source(&job, placement, n_sources / 2, &part_plan, &cost);
        compare(routes, part, n_sources / 2);
        heft_routes_destroy(part);
        heft_plan_destroy(part_plan);
    }
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
    heft_placement_destroy(placement);
    destroy_job(&job);
}

/* 0 when the row failed. */
static int run_apart(who_t who, uint32_t n_sources, uint32_t n_ranks)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        run(who, n_sources, n_ranks);
        exit(0);
    }
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    static const uint32_t rows[][2] = { { 8, 8 },      { 64, 32 },    { 256, 128 },
                                        { 1024, 128 }, { 4096, 128 }, { 256, 384 } };
    int ok = 1;
    if (argc != 1 && argc != 3) {
        (void)fprintf(stderr, "usage: bench_route_scale [SOURCES RANKS]\n");
        return 2;
    }
    (void)printf("%7s %6s  %-12s %9s %8s %8s %8s %8s %8s %8s %10s %9s\n", "sources", "ranks", "who",
                 "placement", "tapes s", "proof s", "parts s", "plan s", "routes s", "all s",
                 "pieces", "MiB peak");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint32_t n_sources = argc == 3 ? (uint32_t)strtoul(argv[1], NULL, 10) : rows[i][0];
        const uint32_t n_ranks = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : rows[i][1];
        ok = run_apart(SOURCE, n_sources, n_ranks) && ok;
        ok = run_apart(DESTINATION, n_sources, n_ranks) && ok;
        if (n_ranks <= 32) {
            ok = run_apart(WHOLE, n_sources, n_ranks) && ok;
        }
        if (argc == 3) {
            break;
        }
    }
    return ok ? 0 : 1;
}

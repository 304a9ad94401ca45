/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole push between processes: one trainer process (with the coordinator in it) and two engine
 * processes, tensor-parallel 2, a synthetic dense model under its Hugging Face names to fused
 * engine parameters by the shipped recipe. Prints, for each push, the transfer and the flip as
 * ratios to glibc memcpy of as many bytes measured right before it, downtime, and resident memory.
 *
 *   bench_push_bench [layers] [pushes] [threads]        (22 layers of hidden 2048: 2 GiB in bf16)
 *
 * Everything is allocated and touched before anything is timed. Transfer is the source's own time
 * for the stage phase, digests included; flip is the slowest engine's copy from staging to
 * parameters.
 */
#include "heft/sync.h"

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HIDDEN = 2048, HEADS = 32, KV_HEADS = 8, INTER = 5632, VOCAB = 32000, TP = 2, MAX = 512 };

#define CHECK(call)                                                            \
    do {                                                                       \
        if ((call) != HEFT_OK) {                                               \
            (void)fprintf(stderr, "push_bench: %s: %s\n", #call, err.message); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static heft_error_t err;

static double now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void *take(int64_t bytes)
{
    size_t size = ((size_t)bytes + 4095) / 4096 * 4096;
    uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        (void)fprintf(stderr, "push_bench: no memory for %zu bytes\n", size);
        exit(1);
    }
    (void)madvise(p, size, MADV_HUGEPAGE);
    uint64_t x = (uint64_t)bytes | 1;
    for (size_t i = 0; i < size; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(p + i, &x, sizeof x);
    }
    return p;
}

/* ---- the model ---- */

static void add(heft_manifest_t *m, const char *name, int64_t rows, int64_t columns)
{
    heft_shape_t shape = { .rank = columns > 0 ? 2 : 1, .extent = { rows, columns } };
    CHECK(heft_manifest_add(m, name, HEFT_DTYPE_BF16, &shape, &err));
}

static void add_layer(heft_manifest_t *m, int layer)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } tensors[] = {
        { "self_attn.q_proj.weight", HIDDEN, HIDDEN },
        { "self_attn.k_proj.weight", HIDDEN / HEADS * KV_HEADS, HIDDEN },
        { "self_attn.v_proj.weight", HIDDEN / HEADS * KV_HEADS, HIDDEN },
        { "self_attn.o_proj.weight", HIDDEN, HIDDEN },
        { "mlp.gate_proj.weight", INTER, HIDDEN },
        { "mlp.up_proj.weight", INTER, HIDDEN },
        { "mlp.down_proj.weight", HIDDEN, INTER },
        { "input_layernorm.weight", HIDDEN, 0 },
        { "post_attention_layernorm.weight", HIDDEN, 0 },
    };
    char name[128];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        (void)snprintf(name, sizeof name, "model.layers.%d.%s", layer, tensors[i].name);
        add(m, name, tensors[i].rows, tensors[i].columns);
    }
}

static heft_manifest_t *make_source(int layers)
{
    heft_manifest_t *m = NULL;
    CHECK(heft_manifest_create("source", &m, &err));
    add(m, "model.embed_tokens.weight", VOCAB, HIDDEN);
    add(m, "lm_head.weight", VOCAB, HIDDEN);
    add(m, "model.norm.weight", HIDDEN, 0);
    for (int i = 0; i < layers; i++) {
        add_layer(m, i);
    }
    CHECK(heft_manifest_finish(m, &err));
    return m;
}

static void make_recipe(int layers, heft_recipe_t **recipe, heft_bindings_t **bindings)
{
    char config[512];
    int n = snprintf(config, sizeof config,
                     "{\"hidden_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
                     "\"intermediate_size\":%d,\"vocab_size\":%d,\"num_hidden_layers\":%d}",
                     HIDDEN, HEADS, KV_HEADS, INTER, VOCAB, layers);
    CHECK(heft_recipe_load("hf-to-engine-dense", recipe, &err));
    CHECK(heft_bindings_create(bindings, &err));
    CHECK(heft_bindings_set_config(*bindings, config, (size_t)n, &err));
    CHECK(heft_bindings_set(*bindings, "tp", "2", &err));
}

/* What the recipe makes of the source for one rank, as that rank's manifest. */
static heft_manifest_t *make_params(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                    const heft_manifest_t *source, uint32_t rank)
{
    heft_tape_t *tape = NULL;
    heft_manifest_t *m = NULL;
    CHECK(heft_recipe_compile(recipe, bindings, rank, source, NULL, &tape, &err));
    CHECK(heft_manifest_create("destination", &m, &err));
    for (uint32_t b = 0; b < heft_tape_get_n_buffers(tape); b++) {
        heft_buffer_info_t info;
        CHECK(heft_tape_query_buffer(tape, b, &info, &err));
        if (info.kind == HEFT_BUFFER_PARAM) {
            CHECK(heft_manifest_add(m, info.name, info.dtype, &info.shape, &err));
        }
    }
    CHECK(heft_manifest_finish(m, &err));
    heft_tape_destroy(tape);
    return m;
}

static int64_t take_all(const heft_manifest_t *m, void **data)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(m); i++) {
        heft_tensor_info_t info;
        CHECK(heft_manifest_query(m, i, &info, &err));
        data[i] = take(info.n_bytes);
        total += info.n_bytes;
    }
    return total;
}

/* ---- an engine process: the url comes in on one pipe, a byte goes out when it is ready ---- */

static void run_engine(uint32_t rank, int layers, uint32_t n_threads, int in, int out)
{
    char url[128] = "";
    void *params[MAX];
    heft_recipe_t *recipe = NULL;
    heft_bindings_t *bindings = NULL;
    heft_subscriber_t *sub = NULL;
    if (read(in, url, sizeof url - 1) <= 0) {
        exit(1);
    }
    make_recipe(layers, &recipe, &bindings);
    heft_manifest_t *source = make_source(layers);
    heft_manifest_t *manifest = make_params(recipe, bindings, source, rank);
    (void)take_all(manifest, params);
    heft_subscriber_opts_t opts = HEFT_SUBSCRIBER_OPTS_INIT;
    opts.url = url;
    opts.rank = rank;
    opts.n_threads = n_threads;
    CHECK(heft_subscriber_create(&opts, recipe, bindings, manifest, params, &sub, &err));
    if (write(out, "r", 1) != 1) {
        exit(1);
    }
    struct pollfd end = { .fd = in, .events = POLLIN };
    while (poll(&end, 1, 0) == 0) {
        heft_status_t status = heft_subscriber_poll(sub, 100, &err);
        if (status != HEFT_OK && status != HEFT_ERR_PEER) {
            (void)fprintf(stderr, "push_bench: engine %u: %s\n", rank, err.message);
        }
    }
    heft_subscriber_destroy(sub);
    exit(0);
}

typedef struct engine {
    pid_t pid;
    int to, from;
} engine_t;

static engine_t start_engine(uint32_t rank, int layers, uint32_t n_threads)
{
    int to[2];
    int from[2];
    if (pipe(to) != 0 || pipe(from) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(to[1]);
        (void)close(from[0]);
        run_engine(rank, layers, n_threads, to[0], from[1]);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    return (engine_t){ .pid = pid, .to = to[1], .from = from[0] };
}

/* ---- figures ---- */

static double rss_mib(pid_t pid)
{
    char path[64];
    long total = 0;
    long pages = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%ld %ld", &total, &pages) != 2) {
        pages = 0;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* Largest value of one counter over the members of the last round, in seconds. */
static double counter(const char *url, const heft_push_result_t *result, const char *role,
                      const char *key)
{
    char path[96];
    char *text = NULL;
    double most = 0;
    (void)snprintf(path, sizeof path, "/v1/rounds/%lld.%lld", (long long)result->round_epoch,
                   (long long)result->round_seq);
    CHECK(heft_client_get(url, path, 10000, &text, &err));
    json_t *root = json_loads(text, 0, NULL);
    size_t i;
    json_t *member;
    json_array_foreach(json_object_get(root, "members"), i, member)
    {
        const json_t *value = json_object_get(json_object_get(member, "counters"), key);
        double seconds = (double)json_integer_value(value) * 1e-9;
        const char *is = json_string_value(json_object_get(member, "role"));
        if (is != NULL && strcmp(is, role) == 0 && seconds > most) {
            most = seconds;
        }
    }
    json_decref(root);
    heft_string_free(text);
    return most;
}

/* Seconds for glibc memcpy of `bytes`, through a buffer that is never cached. */
static double time_memcpy(void *dst, const void *src, int64_t block, int64_t bytes)
{
    double start = now();
    for (int64_t at = 0; at < bytes; at += block) {
        memcpy(dst, src, (size_t)(bytes - at < block ? bytes - at : block));
        __asm__ volatile("" ::: "memory");
    }
    return now() - start;
}

static void push_all(heft_publisher_t *pub, const char *url, int pushes, int64_t block, void *a,
                     void *b, const engine_t *engines)
{
    (void)printf("%4s %9s %9s %9s %7s %9s %7s %9s %9s %9s %9s\n", "push", "memcpy", "prepare",
                 "transfer", "ratio", "flip", "ratio", "downtime", "total", "trainer", "engine 0");
    for (int i = 1; i <= pushes; i++) {
        heft_push_result_t result;
        double warm = time_memcpy(b, a, block, block);
        CHECK(heft_publisher_push(pub, i, &result, &err));
        double copy = time_memcpy(b, a, block, result.n_bytes);
        copy = copy < warm * (double)result.n_bytes / (double)block
                   ? copy
                   : warm * (double)result.n_bytes / (double)block;
        double stage = counter(url, &result, "source", "stage_ns");
        double flip = counter(url, &result, "destination", "flip_ns");
        (void)printf("%4d %8.3fs %8.3fs %8.3fs %7.2f %8.3fs %7.2f %8.3fs %8.3fs %7.0f M %7.0f M\n",
                     i, copy, counter(url, &result, "source", "prepare_ns"), stage, copy / stage,
                     flip, copy / flip, result.pause_s, result.total_s, rss_mib(getpid()),
                     rss_mib(engines[0].pid));
        (void)fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int layers = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 22;
    int pushes = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 10;
    uint32_t n_threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    engine_t engines[TP];
    void *data[MAX];
    heft_coordinator_t *coordinator = NULL;
    heft_publisher_t *pub = NULL;
    for (uint32_t r = 0; r < TP; r++) {
        engines[r] = start_engine(r, layers, n_threads);
    }
    heft_coordinator_opts_t c = HEFT_COORDINATOR_OPTS_INIT;
    CHECK(heft_coordinator_start(&c, &coordinator, &err));
    const char *url = heft_coordinator_get_url(coordinator);
    heft_manifest_t *source = make_source(layers);
    int64_t bytes = take_all(source, data);
    int64_t block = INT64_C(1) << 30;
    void *a = take(block);
    void *b = take(block);
    for (int r = 0; r < TP; r++) {
        char ready;
        if (write(engines[r].to, url, strlen(url)) < 0 || read(engines[r].from, &ready, 1) != 1) {
            (void)fprintf(stderr, "push_bench: engine %d did not start\n", r);
            return 1;
        }
    }
    heft_publisher_opts_t p = HEFT_PUBLISHER_OPTS_INIT;
    p.url = url;
    p.n_threads = n_threads;
    CHECK(heft_publisher_create(&p, source, (const void *const *)data, &pub, &err));
    (void)printf("%d layers, %.2f GiB, 2 engines, %u threads\n", layers,
                 (double)bytes / (double)(1 << 30), n_threads);
    push_all(pub, url, pushes, block, a, b, engines);
    heft_publisher_destroy(pub);
    for (int r = 0; r < TP; r++) {
        (void)close(engines[r].to); /* all of them first: later engines hold earlier pipes */
    }
    for (int r = 0; r < TP; r++) {
        (void)waitpid(engines[r].pid, NULL, 0);
    }
    heft_coordinator_stop(coordinator);
    return 0;
}

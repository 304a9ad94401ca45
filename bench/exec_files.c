/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint through heft_convert, heft_verify and heft_convert_reverse: GB/s of destination
 * bytes by the wall's clock, and the largest anonymous memory seen on the way.
 *
 *   exec_files DIR dense|scanned [layers] [threads]
 *
 * DIR must not exist; it is left behind with the source and what was made of it. The page cache is
 * as it comes, so figures are of files that were just written.
 */
#include "exec_model.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

static double now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Anonymous memory of this process in MiB. */
static double anonymous_mib(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long kib = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "RssAnon:", 8) == 0) {
            kib = strtol(line + 8, NULL, 10);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return (double)kib / 1024;
}

static int watch(void *arg, int64_t done, int64_t total)
{
    (void)done;
    (void)total;
    double *peak = arg;
    double mib = anonymous_mib();
    *peak = mib > *peak ? mib : *peak;
    return 0;
}

static heft_checkpoint_t *open_dir(const char *dir, const char *name, const char *side)
{
    char path[4096];
    heft_checkpoint_t *checkpoint = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(heft_checkpoint_open(path, side, &checkpoint, &exec_model_err));
    return checkpoint;
}

/* Every source tensor, filled with words that are all different. */
static void write_source(const heft_plan_t *plan, const char *dir)
{
    char path[4096];
    heft_plan_info_t info;
    heft_manifest_t *manifest = NULL;
    heft_checkpoint_writer_t *writer = NULL;
    heft_plan_query(plan, &info);
    CHECK(heft_manifest_create("source", &manifest, &exec_model_err));
    for (uint32_t s = 0; s < info.n_sources; s++) {
        heft_tensor_info_t t;
        CHECK(heft_plan_query_source(plan, s, &t, &exec_model_err));
        CHECK(heft_manifest_add(manifest, t.name, t.dtype, &t.shape, &exec_model_err));
    }
    CHECK(heft_manifest_finish(manifest, &exec_model_err));
    (void)snprintf(path, sizeof path, "%s/source", dir);
    CHECK(heft_checkpoint_writer_create(path, manifest, 0, &writer, &exec_model_err));
    uint64_t word = 0;
    for (uint32_t s = 0; s < info.n_sources; s++) {
        heft_tensor_info_t t;
        void *data = NULL;
        CHECK(heft_manifest_query(manifest, s, &t, &exec_model_err));
        CHECK(heft_checkpoint_writer_map(writer, s, &data, &exec_model_err));
        for (int64_t i = 0; i + 8 <= t.n_bytes; i += 8) {
            word += 0x9e3779b97f4a7c15u;
            memcpy((char *)data + i, &word, sizeof word);
        }
        CHECK(heft_checkpoint_writer_done(writer, s, &exec_model_err));
    }
    CHECK(heft_checkpoint_writer_commit(writer, &exec_model_err));
    heft_checkpoint_writer_destroy(writer);
    heft_manifest_destroy(manifest);
}

int main(int argc, char **argv)
{
    int is_dense = argc > 2 && strcmp(argv[2], "dense") == 0;
    int is_scanned = argc > 2 && strcmp(argv[2], "scanned") == 0;
    int n_layers = argc > 3 ? (int)strtol(argv[3], NULL, 10) : is_scanned ? 4 : 11;
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    double peak = 0;
    opts.n_threads = argc > 4 ? (uint32_t)strtol(argv[4], NULL, 10) : 1;
    opts.progress = watch;
    opts.progress_arg = &peak;
    if (is_dense == is_scanned || n_layers < 1 || mkdir(argv[1], 0777) != 0) {
        (void)fprintf(stderr, "usage: exec_files NEW_DIR dense|scanned [layers] [threads]\n");
        return 2;
    }
    heft_plan_t *plan = exec_model_plan(is_scanned, n_layers);
    heft_plan_info_t info;
    heft_plan_query(plan, &info);
    double gb = (double)(info.n_bytes + info.n_constant_bytes) * 1e-9;
    write_source(plan, argv[1]);
    heft_checkpoint_t *source = open_dir(argv[1], "source", "source");
    char path[4096];
    double before = anonymous_mib();
    double begin = now();
    (void)snprintf(path, sizeof path, "%s/out", argv[1]);
    CHECK(heft_convert(plan, source, path, &opts, &exec_model_err));
    (void)printf("convert  %6.2f GB  %6.2f GB/s, %.1f MiB anonymous memory (%.1f before)\n", gb,
                 gb / (now() - begin), peak, before);
    heft_checkpoint_t *ranks[EXEC_MODEL_RANKS] = { open_dir(argv[1], "out/rank-0", "destination"),
                                                   open_dir(argv[1], "out/rank-1", "destination") };
    begin = now();
    for (uint32_t r = 0; r < EXEC_MODEL_RANKS; r++) {
        CHECK(heft_verify(plan, r, source, ranks[r], NULL, &exec_model_err));
    }
    (void)printf("verify   %6.2f GB  %6.2f GB/s\n", gb, gb / (now() - begin));
    peak = 0;
    begin = now();
    (void)snprintf(path, sizeof path, "%s/back", argv[1]);
    CHECK(heft_convert_reverse(plan, (const heft_checkpoint_t *const *)ranks, EXEC_MODEL_RANKS,
                               path, &opts, &exec_model_err));
    (void)printf("reverse  %6.2f GB  %6.2f GB/s, %.1f MiB anonymous memory\n", gb,
                 gb / (now() - begin), peak);
    for (uint32_t r = 0; r < EXEC_MODEL_RANKS; r++) {
        heft_checkpoint_close(ranks[r]);
    }
    heft_checkpoint_close(source);
    heft_plan_destroy(plan);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A training step on files, memcpy's speed, and a clean-up, for `heft demo`. */
#include "cli/demo_model.h"
#include "cli/cli_model.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 31);
}

/* w * (1 - 2^-6) or w * (1 + 2^-6): more than a bf16 rounding step, so no weight stands still. */
static float step(float w, uint64_t *state)
{
    float scale = (next_random(state) & 1) != 0 ? 1.0f - 0.015625f : 1.0f + 0.015625f;
    return w == 0.0f ? 0.0001f : w * scale;
}

static void train_bf16(uint16_t *dst, const uint16_t *src, int64_t n, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)src[i] << 16;
        float w;
        memcpy(&w, &bits, sizeof w);
        w = step(w, state);
        memcpy(&bits, &w, sizeof bits);
        dst[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static void train_f32(float *dst, const float *src, int64_t n, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        dst[i] = step(src[i], state);
    }
}

static heft_status_t train_tensor(const heft_checkpoint_t *source, uint32_t i,
                                  heft_checkpoint_writer_t *writer, heft_error_t *err)
{
    heft_tensor_info_t info;
    void *dst = NULL;
    heft_status_t status = heft_manifest_query(heft_checkpoint_get_manifest(source), i, &info, err);
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_map(writer, i, &dst, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    const void *src = heft_checkpoint_get_data(source, i);
    uint64_t state = i;
    if (info.dtype == HEFT_DTYPE_BF16) {
        train_bf16(dst, src, info.n_elems, &state);
    } else if (info.dtype == HEFT_DTYPE_F32) {
        train_f32(dst, src, info.n_elems, &state);
    } else if (info.n_bytes > 0) {
        memcpy(dst, src, (size_t)info.n_bytes);
    }
    return heft_checkpoint_writer_done(writer, i, err);
}

static int copy_config(const cli_args_t *args, const char *model, const char *dir)
{
    char from[1024];
    char to[1024];
    (void)snprintf(from, sizeof from, "%.1000s/config.json", model);
    (void)snprintf(to, sizeof to, "%.1000s/config.json", dir);
    json_t *config = json_load_file(from, 0, NULL);
    if (config == NULL) {
        return CLI_OK; /* a recipe that needs it will say so */
    }
    int failed = json_dump_file(config, to, JSON_INDENT(2));
    json_decref(config);
    return failed == 0 ? CLI_OK
                       : cli_fail(args, CLI_SYSTEM, "cannot write %s: %s", to, strerror(errno));
}

int demo_train_step(const cli_args_t *args, const char *model, const char *dir)
{
    cli_model_t source;
    int code = cli_model_open_checkpoint(args, model, "source", &source);
    if (code != CLI_OK) {
        return code;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft_checkpoint_writer_t *writer = NULL;
    heft_status_t status = heft_checkpoint_writer_create(dir, source.manifest, 0, &writer, &err);
    uint32_t n = heft_manifest_get_n_tensors(source.manifest);
    for (uint32_t i = 0; status == HEFT_OK && i < n; i++) {
        status = train_tensor(source.checkpoint, i, writer, &err);
    }
    if (status == HEFT_OK) {
        status = heft_checkpoint_writer_commit(writer, &err);
    }
    heft_checkpoint_writer_destroy(writer);
    cli_model_close(&source);
    return status == HEFT_OK ? copy_config(args, model, dir) : cli_fail_status(args, &err);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double demo_measure_memcpy(int64_t n_bytes)
{
    enum { N_RUNS = 5 };
    size_t n = (size_t)n_bytes;
    char *a = malloc(n);
    char *b = malloc(n);
    double seconds[N_RUNS];
    double rate = 0;
    if (a != NULL && b != NULL) {
        memset(a, 1, n);
        memset(b, 2, n);
        for (int i = 0; i < N_RUNS; i++) {
            int64_t start = cli_mono_ns();
            memcpy(b, a, n);
            __asm__ volatile("" : : "r"(b) : "memory");
            seconds[i] = (double)(cli_mono_ns() - start) / 1e9;
        }
        qsort(seconds, N_RUNS, sizeof seconds[0], compare_doubles);
        rate = (double)n / 1e9 / seconds[N_RUNS / 2];
    }
    free(a);
    free(b);
    return rate;
}

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

void demo_remove_tree(const char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

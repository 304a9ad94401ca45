/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a recipe: parse it, compile it against a small model for its first ranks, with and
 * without a destination. What compiles must compile again to a tape of the same size, and all ranks
 * by one compiler to what each gives alone.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "heft/recipe.h"
#include "ranks_agree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config[] =
    "{\"num_hidden_layers\": 2, \"hidden_size\": 6, \"num_attention_heads\": 2, \"a\": "
    "{\"b\": 3, \"c\": \"word\", \"d\": 0.5}, \"num_key_value_heads\": 2, \"vocab_size\": 6, "
    "\"intermediate_size\": 6, \"head_dim\": 3}";

typedef struct tensor {
    const char *name;
    heft_dtype_t dtype;
    heft_shape_t shape;
} tensor_t;

static const tensor_t tensors[] = {
    { "a", HEFT_DTYPE_F32, { .rank = 1, .extent = { 6 } } },
    { "b", HEFT_DTYPE_BF16, { .rank = 2, .extent = { 4, 6 } } },
    { "decoder.layers.w", HEFT_DTYPE_F32, { .rank = 3, .extent = { 2, 3, 4 } } },
    { "decoder.layers_0.w", HEFT_DTYPE_F32, { .rank = 2, .extent = { 6, 4 } } },
    { "decoder.layers_1.w", HEFT_DTYPE_F32, { .rank = 2, .extent = { 6, 4 } } },
    { "empty", HEFT_DTYPE_F32, { .rank = 2, .extent = { 0, 4 } } },
    { "model.embed_tokens.weight", HEFT_DTYPE_F32, { .rank = 2, .extent = { 6, 6 } } },
    { "model.layers.0.input_layernorm.weight", HEFT_DTYPE_F32, { .rank = 1, .extent = { 6 } } },
    { "model.layers.0.mlp.gate.weight", HEFT_DTYPE_F16, { .rank = 2, .extent = { 6, 6 } } },
    { "model.layers.0.self_attn.q_proj.weight", HEFT_DTYPE_F32, { .rank = 2, .extent = { 6, 6 } } },
    { "packed", HEFT_DTYPE_F4, { .rank = 2, .extent = { 3, 8 } } },
    { "rngs.count", HEFT_DTYPE_U32, { .rank = 0 } },
};

static heft_manifest_t *make_manifest(const char *side)
{
    heft_manifest_t *manifest = NULL;
    if (heft_manifest_create(side, &manifest, NULL) != HEFT_OK) {
        abort();
    }
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (heft_manifest_add(manifest, tensors[i].name, tensors[i].dtype, &tensors[i].shape,
                              NULL) != HEFT_OK) {
            abort();
        }
    }
    if (heft_manifest_finish(manifest, NULL) != HEFT_OK) {
        abort();
    }
    return manifest;
}

/* What is listed must say the same as the status: an error, in the order of the text. */
static heft_issues_t *new_issues(void)
{
    heft_issues_t *issues = NULL;
    if (heft_issues_create(&issues, NULL) != HEFT_OK) {
        abort();
    }
    return issues;
}

static void check_issues(heft_issues_t *issues, heft_status_t status)
{
    uint32_t n = heft_issues_get_n(issues);
    uint32_t n_errors = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_errors += heft_issues_get(issues, i)->status != HEFT_OK ? 1 : 0;
    }
    bool is_listed = heft_issues_get_n_errors(issues) > 0;
    if (n_errors > heft_issues_get_n_errors(issues) || (n_errors > 0) != is_listed ||
        (status != HEFT_OK && status != HEFT_ERR_NOMEM && status != HEFT_ERR_LIMIT && !is_listed) ||
        (status == HEFT_OK && is_listed)) {
        abort();
    }
    heft_issues_destroy(issues);
}

static void compile(const heft_recipe_t *recipe, const heft_bindings_t *bindings, uint32_t rank,
                    const heft_manifest_t *source, const heft_manifest_t *destination)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *one = NULL;
    heft_tape_t *two = NULL;
    heft_issues_t *issues = new_issues();
    heft_status_t status =
        heft_recipe_compile_all(recipe, bindings, rank, source, destination, issues, &one, &err);
    check_issues(issues, status);
    if ((status == HEFT_OK) != (one != NULL) || status == HEFT_ERR_INTERNAL ||
        (status != HEFT_OK && err.message[0] == '\0')) {
        abort();
    }
    if (status == HEFT_OK &&
        (heft_recipe_compile(recipe, bindings, rank, source, destination, &two, &err) != HEFT_OK ||
         heft_tape_get_n_buffers(one) != heft_tape_get_n_buffers(two) ||
         heft_tape_get_n_writes(one) != heft_tape_get_n_writes(two))) {
        abort();
    }
    heft_tape_destroy(one);
    heft_tape_destroy(two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static heft_manifest_t *source;
    static heft_manifest_t *destination;
    static heft_bindings_t *bindings;
    if (source == NULL) {
        source = make_manifest("source");
        destination = make_manifest("destination");
        if (heft_bindings_create(&bindings, NULL) != HEFT_OK ||
            heft_bindings_set_config(bindings, config, sizeof config - 1, NULL) != HEFT_OK) {
            abort();
        }
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_issues_t *issues = new_issues();
    heft_status_t status =
        heft_recipe_parse_all("fuzz", (const char *)data, size, issues, &recipe, &err);
    check_issues(issues, memchr(data, '\0', size) != NULL ? HEFT_ERR_LIMIT : status);
    if (status != HEFT_OK) {
        if (recipe != NULL || err.message[0] == '\0' || status == HEFT_ERR_INTERNAL) {
            abort();
        }
        return 0;
    }
    heft_exception_t *exceptions = NULL;
    uint32_t n_exceptions = 0;
    uint32_t n_ranks = 0;
    if (heft_recipe_count_ranks(recipe, bindings, &n_ranks, &err) == HEFT_OK) {
        compile(recipe, bindings, 0, source, NULL);
        compile(recipe, bindings, n_ranks - 1, source, destination);
        char why[512];
        if (!ranks_agree(recipe, bindings, source, destination, why)) {
            abort();
        }
    }
    if (heft_recipe_resolve_exceptions(recipe, bindings, source, NULL, &exceptions, &n_exceptions,
                                       &err) == HEFT_OK) {
        heft_exceptions_free(exceptions);
    }
    heft_recipe_destroy(recipe);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presets and config.json to a shape, a shape to the tensors of its checkpoint. Names and shapes
 * are what hf-to-engine-dense, -qwen3-moe and -deepseek-v3 read; those recipes check every count.
 */
#include "cli/sim_model.h"

#include "cli/cli_model.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct {
    const char *name;
    sim_shape_t shape;
} presets[] = {
    { "tiny-dense", { SIM_DENSE, 2, 64, 128, 256, 8, 4, 8, false, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
    { "tiny-moe", { SIM_QWEN_MOE, 2, 64, 128, 256, 8, 4, 8, true, 8, 32, 0, 0, 0, 0, 0, 0, 0 } },
    { "tiny-mla", { SIM_DEEPSEEK, 3, 64, 128, 256, 8, 8, 0, false, 8, 32, 1, 1, 32, 16, 8, 8, 8 } },
    { "llama-8b", { SIM_DENSE, 32, 4096, 14336, 128256, 32, 8, 128, false, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
    { "llama-70b", { SIM_DENSE, 80, 8192, 28672, 128256, 64, 8, 128, false, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
    { "qwen3-30b", { SIM_QWEN_MOE, 48, 2048, 6144, 151936, 32, 4, 128, true, 128, 768, 0, 0, 0, 0, 0, 0, 0 } },
    { "qwen3-235b", { SIM_QWEN_MOE, 94, 4096, 12288, 151936, 64, 4, 128, true, 128, 1536, 0, 0, 0, 0, 0, 0, 0 } },
    { "deepseek-v3", { SIM_DEEPSEEK, 61, 7168, 18432, 129280, 128, 128, 0, false, 256, 2048, 1, 3, 1536, 512, 128, 64, 128 } },
    { "kimi-k2", { SIM_DEEPSEEK, 61, 7168, 18432, 163840, 64, 64, 0, false, 384, 2048, 1, 1, 1536, 512, 128, 64, 128 } },
    { "glm-5", { SIM_DEEPSEEK, 78, 6144, 12288, 154880, 64, 64, 0, false, 256, 2048, 1, 3, 2048, 512, 192, 64, 256 } },
};
/* clang-format on */

const char *sim_model_list(void)
{
    return "tiny-dense, tiny-moe, tiny-mla, llama-8b, llama-70b, qwen3-30b, qwen3-235b, "
           "deepseek-v3, kimi-k2, glm-5";
}

/* ---- config.json ---- */

static const struct {
    const char *key;
    size_t offset;
    unsigned families; /* bits: those that need it */
} config_keys[] = {
    { "num_hidden_layers", offsetof(sim_shape_t, layers), 7 },
    { "hidden_size", offsetof(sim_shape_t, hidden), 7 },
    { "vocab_size", offsetof(sim_shape_t, vocab), 7 },
    { "num_attention_heads", offsetof(sim_shape_t, heads), 7 },
    { "intermediate_size", offsetof(sim_shape_t, inner), 7 },
    { "num_key_value_heads", offsetof(sim_shape_t, kv_heads), 3 },
    { "moe_intermediate_size", offsetof(sim_shape_t, expert_inner), 6 },
    { "num_experts", offsetof(sim_shape_t, experts), 2 },
    { "n_routed_experts", offsetof(sim_shape_t, experts), 4 },
    { "n_shared_experts", offsetof(sim_shape_t, shared_experts), 4 },
    { "first_k_dense_replace", offsetof(sim_shape_t, dense_layers), 4 },
    { "q_lora_rank", offsetof(sim_shape_t, q_rank), 4 },
    { "kv_lora_rank", offsetof(sim_shape_t, kv_rank), 4 },
    { "qk_nope_head_dim", offsetof(sim_shape_t, nope), 4 },
    { "qk_rope_head_dim", offsetof(sim_shape_t, rope), 4 },
    { "v_head_dim", offsetof(sim_shape_t, v_dim), 4 },
};

enum { MAX_SIZE = 1 << 24, MAX_LAYERS = 4096 };

static int read_key(const cli_args_t *args, const char *path, const json_t *root, const char *key,
                    int64_t least, int64_t *out)
{
    const json_t *value = json_object_get(root, key);
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > MAX_SIZE) {
        char *shown = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        const int code =
            cli_fail(args, CLI_DATA, "%s: \"%s\" is %.40s, no integer from %d to %d", path, key,
                     shown != NULL ? shown : "not there", (int)least, MAX_SIZE);
        free(shown);
        return code;
    }
    *out = json_integer_value(value);
    return CLI_OK;
}

static int read_config(const cli_args_t *args, const char *path, const json_t *root,
                       sim_shape_t *shape)
{
    static const char *const foreign[] = { "num_local_experts", "n_routed_experts",
                                           "moe_num_experts" };
    if (json_object_get(root, "kv_lora_rank") != NULL) {
        shape->family = SIM_DEEPSEEK;
    } else if (json_object_get(root, "num_experts") != NULL) {
        shape->family = SIM_QWEN_MOE;
    }
    for (size_t i = 0; i < CLI_COUNT(foreign) && shape->family == SIM_DENSE; i++) {
        if (json_object_get(root, foreign[i]) != NULL) {
            return cli_fail(args, CLI_DATA,
                            "%s: \"%s\" is of a family of experts that cannot be simulated", path,
                            foreign[i]);
        }
    }
    int code = CLI_OK;
    for (size_t i = 0; i < CLI_COUNT(config_keys) && code == CLI_OK; i++) {
        const bool may_be_none = strcmp(config_keys[i].key, "first_k_dense_replace") == 0;
        if ((config_keys[i].families & (1u << shape->family)) != 0) {
            code = read_key(args, path, root, config_keys[i].key, may_be_none ? 0 : 1,
                            (int64_t *)(void *)((char *)shape + config_keys[i].offset));
        }
    }
    if (code != CLI_OK || shape->family == SIM_DEEPSEEK) {
        return code;
    }
    const char *type = json_string_value(json_object_get(root, "model_type"));
    shape->has_qk_norm = type != NULL && strncmp(type, "qwen3", 5) == 0;
    const json_t *head_dim = json_object_get(root, "head_dim");
    if (head_dim != NULL && !json_is_null(head_dim)) { /* some configurations have a null */
        return read_key(args, path, root, "head_dim", 1, &shape->head_dim);
    }
    shape->head_dim = shape->hidden / shape->heads;
    return shape->head_dim > 0 ? CLI_OK
                               : cli_fail(args, CLI_DATA, "%s: more heads than hidden_size", path);
}

static int load_config(const cli_args_t *args, const char *path, sim_shape_t *shape)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    int code = cli_read_text(args, path, &text, &n);
    if (code != CLI_OK) {
        return code;
    }
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!json_is_object(root)) {
        json_decref(root);
        return cli_fail(args, CLI_DATA, "%s: no JSON object", path);
    }
    code = read_config(args, path, root, shape);
    json_decref(root);
    return code;
}

static int find_shape(const cli_args_t *args, const char *name, sim_shape_t *shape)
{
    const size_t n = strlen(name);
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, name);
    for (size_t i = 0; i < CLI_COUNT(presets); i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *shape = presets[i].shape;
            return CLI_OK;
        }
        cli_nearest_try(&nearest, presets[i].name);
    }
    if (strchr(name, '/') != NULL || (n > 5 && strcmp(name + n - 5, ".json") == 0)) {
        return load_config(args, name, shape);
    }
    if (nearest.best != NULL) {
        return cli_fail(args, CLI_USAGE, "no model \"%s\"; nearest: %s", name, nearest.best);
    }
    return cli_fail(args, CLI_USAGE, "no model \"%s\"; there are %s, or give a config.json", name,
                    sim_model_list());
}

/* What a recipe reads: config.json of this shape. */
static char *make_config(const sim_shape_t *shape)
{
    json_t *config = json_object();
    for (size_t i = 0; i < CLI_COUNT(config_keys); i++) {
        const int64_t *value =
            (const int64_t *)(const void *)((const char *)shape + config_keys[i].offset);
        if ((config_keys[i].families & (1u << shape->family)) != 0) {
            (void)json_object_set_new(config, config_keys[i].key, json_integer(*value));
        }
    }
    if (shape->family != SIM_DEEPSEEK) {
        (void)json_object_set_new(config, "head_dim", json_integer(shape->head_dim));
    }
    char *text = json_dumps(config, JSON_COMPACT);
    json_decref(config);
    return text;
}

/* ---- tensors ---- */

typedef struct builder {
    sim_model_t *model;
    heft_dtype_t dtype;
    char prefix[48];
    int64_t layer, expert;
    size_t cap;
    heft_status_t status;
    heft_error_t *err;
} builder_t;

static bool has_room(builder_t *b)
{
    sim_model_t *model = b->model;
    if (model->n_tensors < b->cap) {
        return true;
    }
    b->cap = b->cap == 0 ? 1024 : b->cap * 2;
    sim_tensor_t *grown = realloc(model->tensors, b->cap * sizeof *grown);
    model->tensors = grown != NULL ? grown : model->tensors;
    return grown != NULL;
}

static void add(builder_t *b, const char *name, heft_dtype_t dtype, sim_split_t split, int64_t rows,
                int64_t columns)
{
    sim_model_t *model = b->model;
    heft_shape_t shape = { .rank = columns > 0 ? 2 : 1, .extent = { rows, columns } };
    char full[160];
    if (b->status != HEFT_OK) {
        return;
    }
    (void)snprintf(full, sizeof full, "%s%s", b->prefix, name);
    if (!has_room(b)) {
        *b->err = (heft_error_t){ .status = HEFT_ERR_NOMEM, .message = "out of memory" };
        b->status = HEFT_ERR_NOMEM;
        return;
    }
    sim_tensor_t *tensor = &model->tensors[model->n_tensors];
    *tensor = (sim_tensor_t){ .name = strdup(full),
                              .shape = shape,
                              .dtype = dtype,
                              .split = split,
                              .layer = b->layer,
                              .expert = b->expert };
    model->n_tensors += tensor->name != NULL;
    b->status = tensor->name != NULL
                    ? heft_manifest_add(model->manifest, full, dtype, &shape, b->err)
                    : HEFT_ERR_NOMEM;
}

static void matrix(builder_t *b, const char *name, sim_split_t split, int64_t rows, int64_t columns)
{
    add(b, name, b->dtype, split, rows, columns);
}

static void vector(builder_t *b, const char *name, int64_t n)
{
    add(b, name, b->dtype, SIM_WHOLE, n, 0);
}

static void attention(builder_t *b, const sim_shape_t *s)
{
    const int64_t kv = s->kv_heads * s->head_dim;
    matrix(b, "self_attn.q_proj.weight", SIM_ROWS, s->heads * s->head_dim, s->hidden);
    matrix(b, "self_attn.k_proj.weight", SIM_ROWS, kv, s->hidden);
    matrix(b, "self_attn.v_proj.weight", SIM_ROWS, kv, s->hidden);
    matrix(b, "self_attn.o_proj.weight", SIM_COLUMNS, s->hidden, s->heads * s->head_dim);
    if (s->has_qk_norm) {
        vector(b, "self_attn.q_norm.weight", s->head_dim);
        vector(b, "self_attn.k_norm.weight", s->head_dim);
    }
}

static void latent_attention(builder_t *b, const sim_shape_t *s)
{
    matrix(b, "self_attn.q_a_proj.weight", SIM_WHOLE, s->q_rank, s->hidden);
    vector(b, "self_attn.q_a_layernorm.weight", s->q_rank);
    matrix(b, "self_attn.q_b_proj.weight", SIM_ROWS, s->heads * (s->nope + s->rope), s->q_rank);
    matrix(b, "self_attn.kv_a_proj_with_mqa.weight", SIM_WHOLE, s->kv_rank + s->rope, s->hidden);
    vector(b, "self_attn.kv_a_layernorm.weight", s->kv_rank);
    matrix(b, "self_attn.kv_b_proj.weight", SIM_ROWS, s->heads * (s->nope + s->v_dim), s->kv_rank);
    matrix(b, "self_attn.o_proj.weight", SIM_COLUMNS, s->hidden, s->heads * s->v_dim);
}

static void feed_forward(builder_t *b, const char *at, int64_t inner, int64_t hidden)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%sgate_proj.weight", at);
    matrix(b, name, SIM_ROWS, inner, hidden);
    (void)snprintf(name, sizeof name, "%sup_proj.weight", at);
    matrix(b, name, SIM_ROWS, inner, hidden);
    (void)snprintf(name, sizeof name, "%sdown_proj.weight", at);
    matrix(b, name, SIM_COLUMNS, hidden, inner);
}

static void experts(builder_t *b, const sim_shape_t *s)
{
    matrix(b, "mlp.gate.weight", SIM_WHOLE, s->experts, s->hidden);
    if (s->family == SIM_DEEPSEEK) {
        add(b, "mlp.gate.e_score_correction_bias", HEFT_DTYPE_F32, SIM_WHOLE, s->experts, 0);
        feed_forward(b, "mlp.shared_experts.", s->shared_experts * s->expert_inner, s->hidden);
    }
    for (int64_t e = 0; e < s->experts; e++) {
        char at[48];
        (void)snprintf(at, sizeof at, "mlp.experts.%lld.", (long long)e);
        b->expert = e;
        feed_forward(b, at, s->expert_inner, s->hidden);
    }
    b->expert = -1;
}

static void layer(builder_t *b, const sim_shape_t *s, int64_t l)
{
    (void)snprintf(b->prefix, sizeof b->prefix, "model.layers.%lld.", (long long)l);
    b->layer = l;
    vector(b, "input_layernorm.weight", s->hidden);
    if (s->family == SIM_DEEPSEEK) {
        latent_attention(b, s);
    } else {
        attention(b, s);
    }
    vector(b, "post_attention_layernorm.weight", s->hidden);
    if (s->experts > 0 && l >= s->dense_layers) {
        experts(b, s);
    } else {
        feed_forward(b, "mlp.", s->inner, s->hidden);
    }
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const sim_tensor_t *)x)->name, ((const sim_tensor_t *)y)->name);
}

static heft_status_t build(sim_model_t *model, heft_dtype_t dtype, heft_error_t *err)
{
    const sim_shape_t *s = &model->shape;
    builder_t b = { .model = model, .dtype = dtype, .layer = -1, .expert = -1, .err = err };
    b.status = heft_manifest_create("source", &model->manifest, err);
    matrix(&b, "model.embed_tokens.weight", SIM_ROWS, s->vocab, s->hidden);
    for (int64_t l = 0; l < s->layers && b.status == HEFT_OK; l++) {
        layer(&b, s, l);
    }
    b.prefix[0] = '\0';
    b.layer = s->layers;
    vector(&b, "model.norm.weight", s->hidden);
    matrix(&b, "lm_head.weight", SIM_ROWS, s->vocab, s->hidden);
    if (b.status == HEFT_OK) {
        b.status = heft_manifest_finish(model->manifest, err);
    }
    if (b.status == HEFT_OK) { /* into the order of the manifest */
        qsort(model->tensors, model->n_tensors, sizeof model->tensors[0], by_name);
    }
    return b.status;
}

int sim_model_load(const cli_args_t *args, const char *name, int64_t n_layers, heft_dtype_t dtype,
                   sim_model_t *model)
{
    static const char *const recipes[] = { "hf-to-engine-dense", "hf-to-engine-qwen3-moe",
                                           "hf-to-engine-deepseek-v3" };
    heft_error_t err = HEFT_ERROR_INIT;
    *model = (sim_model_t){ .n_tensors = 0 };
    (void)snprintf(model->name, sizeof model->name, "%s", name);
    int code = find_shape(args, name, &model->shape);
    if (code != CLI_OK) {
        return code;
    }
    model->shape.layers = n_layers > 0 ? n_layers : model->shape.layers;
    if (model->shape.layers > MAX_LAYERS) {
        return cli_fail(args, CLI_DATA, "%s: more than %d layers", name, MAX_LAYERS);
    }
    model->recipe = recipes[model->shape.family];
    model->config = make_config(&model->shape);
    if (model->config == NULL) {
        return cli_out_of_memory(args);
    }
    return build(model, dtype, &err) == HEFT_OK ? CLI_OK : cli_fail_status(args, &err);
}

void sim_model_free(sim_model_t *model)
{
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        free(model->tensors[i].name);
    }
    free(model->tensors);
    free(model->config);
    heft_manifest_destroy(model->manifest);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The recipes that come with heft, against the engine's layout written as plain index loops. */
#include "recipe_bench.h"

#include <sys/stat.h>
#include <unistd.h>

#define F32 HEFT_DTYPE_F32

typedef struct model {
    int heads;
    int kv_heads;
    int head_dim;
    int width;
    int inner;
    int vocab;
    int layers;
    bool has_bias; /* of q, k, v */
    bool has_norm; /* of q, k */
    bool tied;
    bool has_head;
} model_t;

static const model_t llama = { .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .width = 3,
                               .inner = 8,
                               .vocab = 10,
                               .layers = 2,
                               .has_head = true };
static const model_t smollm = { .heads = 9,
                                .kv_heads = 3,
                                .head_dim = 2,
                                .width = 18,
                                .inner = 6,
                                .vocab = 12,
                                .layers = 1,
                                .tied = true };
static const model_t qwen2 = { .heads = 8,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .width = 5,
                               .inner = 16,
                               .vocab = 70,
                               .layers = 1,
                               .has_bias = true,
                               .tied = true };
static const model_t qwen3 = { .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 3,
                               .width = 4,
                               .inner = 4,
                               .vocab = 64,
                               .layers = 1,
                               .has_norm = true,
                               .has_head = true };

static void add(rb_t *b, const char *name, int layer, int rows, int columns)
{
    char full[128];
    char shape[48];
    if (layer >= 0) {
        (void)snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    } else {
        (void)snprintf(full, sizeof full, "%s", name);
    }
    (void)snprintf(shape, sizeof shape, columns > 0 ? "%d,%d" : "%d", rows, columns);
    rb_source(b, full, F32, shape, NULL);
}

static void declare(rb_t *b, const model_t *m, int tp)
{
    char json[512];
    char number[16];
    rb_clear(b);
    (void)snprintf(json, sizeof json,
                   "{\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
                   "\"hidden_size\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, "
                   "\"num_hidden_layers\": %d, \"tie_word_embeddings\": %s, \"rope\": [1, null]}",
                   m->heads, m->kv_heads, m->head_dim, m->width, m->inner, m->vocab, m->layers,
                   m->tied ? "true" : "false");
    rb_config(b, json);
    (void)snprintf(number, sizeof number, "%d", tp);
    rb_set(b, "tp", number);
    add(b, "model.embed_tokens.weight", -1, m->vocab, m->width);
    add(b, "model.norm.weight", -1, m->width, 0);
    if (m->has_head) {
        add(b, "lm_head.weight", -1, m->vocab, m->width);
    }
    for (int l = 0; l < m->layers; l++) {
        add(b, "self_attn.q_proj.weight", l, m->heads * m->head_dim, m->width);
        add(b, "self_attn.k_proj.weight", l, m->kv_heads * m->head_dim, m->width);
        add(b, "self_attn.v_proj.weight", l, m->kv_heads * m->head_dim, m->width);
        if (m->has_bias) {
            add(b, "self_attn.q_proj.bias", l, m->heads * m->head_dim, 0);
            add(b, "self_attn.k_proj.bias", l, m->kv_heads * m->head_dim, 0);
            add(b, "self_attn.v_proj.bias", l, m->kv_heads * m->head_dim, 0);
        }
        if (m->has_norm) {
            add(b, "self_attn.q_norm.weight", l, m->head_dim, 0);
            add(b, "self_attn.k_norm.weight", l, m->head_dim, 0);
        }
        add(b, "self_attn.o_proj.weight", l, m->width, m->heads * m->head_dim);
        add(b, "mlp.gate_proj.weight", l, m->inner, m->width);
        add(b, "mlp.up_proj.weight", l, m->inner, m->width);
        add(b, "mlp.down_proj.weight", l, m->width, m->inner);
        add(b, "input_layernorm.weight", l, m->width, 0);
        add(b, "post_attention_layernorm.weight", l, m->width, 0);
    }
}

static heft_recipe_t *load(const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    EXPECT_STATUS(heft_recipe_load(name, &recipe, &err), HEFT_OK);
    return recipe;
}

/* ---- the engine's layout ---- */

typedef struct check {
    const rb_t *b;
    const model_t *m;
    int tp;
    int rank;
    int layer;
} check_t;

static const double *source(const check_t *c, const char *name)
{
    char full[128];
    (void)snprintf(full, sizeof full, "model.layers.%d.%s", c->layer, name);
    return rb_source_values(c->b, full);
}

static const double *param(const check_t *c, const char *name, int n)
{
    char full[128];
    int64_t got = 0;
    (void)snprintf(full, sizeof full, "model.layers.%d.%s", c->layer, name);
    const double *values = rb_values(c->b, full, &got);
    assert_int_equal(got, n);
    return values;
}

static void same(double got, double want)
{
    if (!(got == want)) {
        fail_msg("%g, expected %g", got, want);
    }
}

/* Rows of heads [first, first + n) of a projection, at row `at` of the fused parameter. */
static int check_heads(const check_t *c, const double *fused, int at, const char *name, int first,
                       int n, int columns)
{
    const double *from = source(c, name);
    for (int r = 0; r < n * c->m->head_dim; r++, at++) {
        for (int k = 0; k < columns; k++) {
            same(fused[at * columns + k], from[(first * c->m->head_dim + r) * columns + k]);
        }
    }
    return at;
}

static void check_qkv(const check_t *c, const char *what, int columns)
{
    const model_t *m = c->m;
    char name[3][64];
    char fused[64];
    int q = m->heads / c->tp;
    int kv = m->kv_heads >= c->tp ? m->kv_heads / c->tp : 1;
    int copies = m->kv_heads >= c->tp ? 1 : c->tp / m->kv_heads;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name[i], sizeof name[i], "self_attn.%c_proj.%s", "qkv"[i], what);
    }
    (void)snprintf(fused, sizeof fused, "self_attn.qkv_proj.%s", what);
    const double *to = param(c, fused, (q + 2 * kv) * m->head_dim * columns);
    int at = check_heads(c, to, 0, name[0], c->rank * q, q, columns);
    at = check_heads(c, to, at, name[1], c->rank / copies * kv, kv, columns);
    (void)check_heads(c, to, at, name[2], c->rank / copies * kv, kv, columns);
}

static void check_columns(const check_t *c, const char *name, int rows, int columns)
{
    int share = columns / c->tp;
    const double *from = source(c, name);
    const double *to = param(c, name, rows * share);
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < share; k++) {
            same(to[r * share + k], from[r * columns + c->rank * share + k]);
        }
    }
}

static void check_gate_up(const check_t *c)
{
    int share = c->m->inner / c->tp;
    int n = share * c->m->width;
    const double *to = param(c, "mlp.gate_up_proj.weight", 2 * n);
    const double *gate = source(c, "mlp.gate_proj.weight");
    const double *up = source(c, "mlp.up_proj.weight");
    for (int i = 0; i < n; i++) {
        same(to[i], gate[c->rank * n + i]);
        same(to[n + i], up[c->rank * n + i]);
    }
}

static void check_vocab(const check_t *c, const char *name, const char *from_name, int multiple)
{
    int padded = (c->m->vocab + multiple - 1) / multiple * multiple;
    int share = padded / c->tp;
    int64_t n = 0;
    const double *from = rb_source_values(c->b, from_name);
    const double *to = rb_values(c->b, name, &n);
    assert_int_equal(n, share * c->m->width);
    for (int r = 0; r < share; r++) {
        int row = c->rank * share + r;
        for (int k = 0; k < c->m->width; k++) {
            same(to[r * c->m->width + k], row < c->m->vocab ? from[row * c->m->width + k] : 0);
        }
    }
}

static void check_all(const check_t *c, int multiple)
{
    const model_t *m = c->m;
    check_vocab(c, "model.embed_tokens.weight", "model.embed_tokens.weight", multiple);
    check_vocab(c, "lm_head.weight", m->has_head ? "lm_head.weight" : "model.embed_tokens.weight",
                multiple);
    check_qkv(c, "weight", m->width);
    if (m->has_bias) {
        check_qkv(c, "bias", 1);
    }
    check_columns(c, "self_attn.o_proj.weight", m->width, m->heads * m->head_dim);
    check_columns(c, "mlp.down_proj.weight", m->width, m->inner);
    check_gate_up(c);
    const double *norm = param(c, "post_attention_layernorm.weight", m->width);
    same(norm[m->width - 1], source(c, "post_attention_layernorm.weight")[m->width - 1]);
    if (m->has_norm) {
        same(param(c, "self_attn.k_norm.weight", m->head_dim)[1],
             source(c, "self_attn.k_norm.weight")[1]);
    }
}

static void check_model(rb_t *b, const model_t *m, int tp, int multiple)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    uint32_t n_ranks = 0;
    char number[16];
    declare(b, m, tp);
    (void)snprintf(number, sizeof number, "%d", multiple);
    rb_set(b, "vocab_multiple", number);
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, b->bindings, &n_ranks, &err), HEFT_OK);
    assert_int_equal(n_ranks, tp);
    for (int rank = 0; rank < tp; rank++) {
        rb_run_recipe(b, recipe, (uint32_t)rank);
        for (int layer = 0; layer < m->layers; layer++) {
            check_t c = { .b = b, .m = m, .tp = tp, .rank = rank, .layer = layer };
            check_all(&c, multiple);
        }
    }
    heft_recipe_destroy(recipe);
}

static void dense_one_rank(void **state)
{
    check_model(*state, &llama, 1, 64);
    check_model(*state, &qwen3, 1, 64);
    check_model(*state, &qwen2, 1, 64);
}

static void dense_three_ranks_share_nine_heads(void **state)
{
    check_model(*state, &smollm, 3, 6);
    check_model(*state, &smollm, 1, 64);
}

static void dense_ranks_beyond_the_kv_heads_hold_copies(void **state)
{
    check_model(*state, &llama, 2, 64);
    check_model(*state, &llama, 4, 64);
    check_model(*state, &qwen2, 4, 64);
    check_model(*state, &qwen2, 8, 64);
    check_model(*state, &qwen3, 2, 64);
}

static heft_status_t compile(const rb_t *b, uint32_t rank, heft_tape_t **tape, heft_error_t *err)
{
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    heft_manifest_t *manifest = rb_source_manifest(b);
    heft_status_t status =
        heft_recipe_compile(recipe, b->bindings, rank, manifest, NULL, tape, err);
    heft_manifest_destroy(manifest);
    heft_recipe_destroy(recipe);
    return status;
}

static void dense_refuses_what_does_not_divide(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    declare(b, &llama, 3);
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("query heads do not divide by tp (heads = 4, tp = 3)");
    declare(b, &smollm, 3);
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("choose another vocab_multiple (padded_vocab = 64, tp = 3)");
    declare(b, &smollm, 9);
    rb_set(b, "vocab_multiple", "9");
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("intermediate size does not divide by tp (inner = 6, tp = 9)");
    declare(b, &llama, 1);
    EXPECT_STATUS(compile(b, 1, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("rank 1");
    assert_null(tape);
}

static void dense_notices_config_and_checkpoint_that_differ(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    model_t other = llama;
    declare(b, &llama, 1);
    rb_source(b, "model.layers.2.input_layernorm.weight", F32, "3", NULL);
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("differ in the number of layers (layers = 2)");
    /* as many layers as there must be, one of them by another number */
    declare(b, &llama, 1);
    for (size_t i = 0; i < b->n_sources; i++) {
        char *layer = strstr(b->sources[i].name, ".layers.1.");
        if (layer != NULL) {
            layer[8] = '2';
        }
    }
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_NAME);
    EXPECT_MESSAGE("a layer beyond the last that config.json has (l = 2, layers = 2) (and ");
    declare(b, &other, 1);
    rb_config(b, "{\"num_attention_heads\": 2, \"hidden_size\": 3, \"head_dim\": 2, "
                 "\"intermediate_size\": 8, \"vocab_size\": 10, \"num_hidden_layers\": 2}");
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_SHAPE);
    EXPECT_MESSAGE("\"model.layers.0.self_attn.q_proj.weight\"");
    rb_config(b, "{\"num_atention_heads\": 2}");
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("config.num_attention_heads is absent; the nearest key is num_atention_heads");
}

static uint32_t count_kind(const rb_t *b, heft_exception_kind_t kind)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    heft_manifest_t *source_manifest = rb_source_manifest(b);
    heft_exception_t *exceptions = NULL;
    uint32_t n = 0;
    uint32_t n_kind = 0;
    EXPECT_STATUS(heft_recipe_resolve_exceptions(recipe, b->bindings, source_manifest, NULL,
                                                 &exceptions, &n, &err),
                  HEFT_OK);
    for (uint32_t i = 0; i < n; i++) {
        n_kind += exceptions[i].kind == kind ? 1 : 0;
    }
    heft_exceptions_free(exceptions);
    heft_manifest_destroy(source_manifest);
    heft_recipe_destroy(recipe);
    return n_kind;
}

static void dense_tied_heads(void **state)
{
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    model_t m = llama;
    /* tied, both there: the head's own rows win, and must equal the embedding's */
    m.tied = true;
    check_model(b, &m, 2, 64);
    assert_int_equal(count_kind(b, HEFT_EXCEPTION_EQUAL), 1);
    /* tied, head absent: the embedding's rows */
    m.has_head = false;
    check_model(b, &m, 2, 64);
    assert_int_equal(count_kind(b, HEFT_EXCEPTION_EQUAL), 0);
    /* untied and absent: refused */
    m.tied = false;
    declare(b, &m, 1);
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_NAME);
    EXPECT_MESSAGE("\"lm_head.weight\" matches none");
    /* an engine that keeps one matrix */
    m = llama;
    m.tied = true;
    declare(b, &m, 1);
    rb_set(b, "head", "false");
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    rb_run_recipe(b, recipe, 0);
    assert_false(rb_has_param(b, "lm_head.weight"));
    assert_true(rb_has_param(b, "model.embed_tokens.weight"));
    assert_int_equal(count_kind(b, HEFT_EXCEPTION_UNUSED), 1);
    assert_int_equal(count_kind(b, HEFT_EXCEPTION_EQUAL), 0);
    heft_recipe_destroy(recipe);
}

static void dense_ignores_rotary_tables_and_casts_on_demand(void **state)
{
    rb_t *b = *state;
    declare(b, &llama, 1);
    rb_source(b, "model.layers.0.self_attn.rotary_emb.inv_freq", F32, "1", NULL);
    rb_set(b, "wire", "bf16");
    heft_recipe_t *recipe = load("hf-to-engine-dense");
    rb_run_recipe(b, recipe, 0);
    rb_expect(b, "model.norm.weight", HEFT_DTYPE_BF16, "3", NULL);
    assert_int_equal(rb_n_params(b), 3 + 2 * 6);
    assert_int_equal(count_kind(b, HEFT_EXCEPTION_UNUSED), 1);
    rb_set(b, "wire", "i32");
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *tape = NULL;
    EXPECT_STATUS(compile(b, 0, &tape, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("\"i32\" is no float dtype");
    heft_recipe_destroy(recipe);
}

static void identity_copies_everything(void **state)
{
    rb_t *b = *state;
    rb_source(b, "a.b", F32, "2,3", NULL);
    rb_source(b, "scalar", HEFT_DTYPE_I32, "", NULL);
    rb_source(b, "empty", F32, "0,4", NULL);
    heft_recipe_t *recipe = load("identity");
    assert_string_equal(heft_recipe_get_name(recipe), "identity.heft");
    rb_run_recipe(b, recipe, 0);
    rb_expect(b, "a.b", F32, "2,3", "1-6");
    rb_expect(b, "scalar", HEFT_DTYPE_I32, "", "7");
    rb_expect(b, "empty", F32, "0,4", "");
    heft_recipe_destroy(recipe);
}

/* ---- loading ---- */

static void recipes_are_found_by_name_and_by_path(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    char path[512];
    char *dir = heft_test_mkdir();
    const char *text = "\"a\" [] -> \"b\" []\n";
    heft_test_write_file(dir, "mine.heft", text, strlen(text));
    (void)snprintf(path, sizeof path, "%s/mine.heft", dir);
    EXPECT_STATUS(heft_recipe_load(path, &recipe, &err), HEFT_OK);
    assert_string_equal(heft_recipe_get_name(recipe), path);
    assert_string_equal(heft_recipe_get_text(recipe), text);
    heft_recipe_destroy(recipe);

    EXPECT_STATUS(heft_recipe_load("mine", &recipe, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("identity");
    EXPECT_MESSAGE("hf-to-engine-dense");
    (void)snprintf(path, sizeof path, "/nowhere:%s", dir);
    (void)setenv("HEFT_RECIPES", path, 1);
    EXPECT_STATUS(heft_recipe_load("mine", &recipe, &err), HEFT_OK);
    assert_string_equal(heft_recipe_get_name(recipe), "mine.heft");
    heft_recipe_destroy(recipe);
    recipe = load("identity");
    heft_recipe_destroy(recipe);
    (void)unsetenv("HEFT_RECIPES");

    EXPECT_STATUS(heft_recipe_load("./nothing.heft", &recipe, &err), HEFT_ERR_NOT_FOUND);
    EXPECT_MESSAGE("./nothing.heft");
    heft_test_rmdir(dir);
}

static void recipes_beside_the_library_are_found(void **state)
{
    (void)state;
    char dir[512];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 32);
    assert_true(n > 0);
    dir[n] = '\0';
    (void)snprintf(strrchr(dir, '/'), 32, "/recipes");
    (void)mkdir(dir, 0777);
    const char *text = "\"x\" [a] -> \"y\" [a]\n";
    heft_test_write_file(dir, "beside-test.heft", text, strlen(text));
    heft_recipe_t *recipe = load("beside-test");
    assert_string_equal(heft_recipe_get_name(recipe), "beside-test.heft");
    heft_recipe_destroy(recipe);
    heft_test_rmdir(strdup(dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(dense_one_rank),
        T(dense_three_ranks_share_nine_heads),
        T(dense_ranks_beyond_the_kv_heads_hold_copies),
        T(dense_refuses_what_does_not_divide),
        T(dense_notices_config_and_checkpoint_that_differ),
        T(dense_tied_heads),
        T(dense_ignores_rotary_tables_and_casts_on_demand),
        T(identity_copies_everything),
        T(recipes_are_found_by_name_and_by_path),
        T(recipes_beside_the_library_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

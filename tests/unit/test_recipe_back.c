/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes of copies run backwards: those that are shipped, and random ones. A random recipe splits
 * the dimensions of its sources into axes, moves, merges, pads and repeats them, takes some into
 * names, and fuses sources in halves or ranges.
 */
#include "recipe_trip.h"

#define F32 HEFT_DTYPE_F32
#define BF16 HEFT_DTYPE_BF16

/* ---- shipped recipes ---- */

static void there_and_back(rb_t *b, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_load(name, &recipe, &err), HEFT_OK);
    EXPECT_STATUS(trip_back(recipe, b->bindings, source, &err), HEFT_OK);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
}

/* A decoder of two layers: 4 heads of 4, hidden 12, inner 8, vocabulary 10. */
static void declare_dense(rb_t *b, int kv_heads, const char *tp, bool has_head, bool has_bias)
{
    static const struct {
        const char *leaf;
        const char *shape;
    } leaves[] = {
        { "self_attn.q_proj.weight", "16,12" },     { "self_attn.o_proj.weight", "12,16" },
        { "mlp.gate_proj.weight", "8,12" },         { "mlp.up_proj.weight", "8,12" },
        { "mlp.down_proj.weight", "12,8" },         { "input_layernorm.weight", "12" },
        { "post_attention_layernorm.weight", "12" }
    };
    char text[256];
    char shape[16];
    rb_clear(b);
    (void)snprintf(text, sizeof text,
                   "{\"num_attention_heads\": 4, \"num_key_value_heads\": %d, \"hidden_size\": 12, "
                   "\"head_dim\": 4, \"intermediate_size\": 8, \"vocab_size\": 10, "
                   "\"num_hidden_layers\": 2, \"tie_word_embeddings\": %s}",
                   kv_heads, has_head ? "false" : "true");
    rb_config(b, text);
    rb_set(b, "tp", tp);
    rb_source(b, "model.embed_tokens.weight", BF16, "10,12", NULL);
    rb_source(b, "model.norm.weight", F32, "12", NULL);
    if (has_head) {
        rb_source(b, "lm_head.weight", BF16, "10,12", NULL);
    }
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < sizeof leaves / sizeof leaves[0]; i++) {
            (void)snprintf(text, sizeof text, "model.layers.%d.%s", l, leaves[i].leaf);
            rb_source(b, text, BF16, leaves[i].shape, NULL);
        }
        static const char *const halves[] = { "k", "v" };
        for (int h = 0; h < 2; h++) {
            (void)snprintf(text, sizeof text, "model.layers.%d.self_attn.%s_proj.weight", l,
                           halves[h]);
            (void)snprintf(shape, sizeof shape, "%d,12", 4 * kv_heads);
            rb_source(b, text, BF16, shape, NULL);
            (void)snprintf(text, sizeof text, "model.layers.%d.self_attn.%s_proj.bias", l,
                           halves[h]);
            (void)snprintf(shape, sizeof shape, "%d", 4 * kv_heads);
            if (has_bias) {
                rb_source(b, text, F32, shape, NULL);
            }
        }
        (void)snprintf(text, sizeof text, "model.layers.%d.self_attn.q_proj.bias", l);
        if (has_bias) {
            rb_source(b, text, F32, "16", NULL);
        }
    }
}

static void shipped_recipes_of_copies_run_backwards(void **state)
{
    static const char *const tps[] = { "1", "2", "4" };
    rb_t *b = *state;
    for (size_t i = 0; i < 3; i++) {
        declare_dense(b, 2, tps[i], true, false);
        there_and_back(b, "hf-to-engine-dense");
        declare_dense(b, 1, tps[i], false, true); /* heads repeat, the head is the embedding */
        there_and_back(b, "hf-to-engine-dense");
    }
    declare_dense(b, 2, "1", true, true);
    heft_bindings_destroy(b->bindings);
    heft_error_t err = HEFT_ERROR_INIT;
    EXPECT_STATUS(heft_bindings_create(&b->bindings, &err), HEFT_OK);
    there_and_back(b, "identity");
}

static void what_cannot_run_backwards_says_why(void **state)
{
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "dtype bf16\n\"x\" [d] -> \"y\" [d]", HEFT_ERR_UNSUPPORTED,
          "parameter \"y\" is computed, not copied: t:2 (F32 to BF16)" },
        { "\"x\" [d] -> \"y\" [d] by scale(2) in f32", HEFT_ERR_UNSUPPORTED,
          "parameter \"y\" is computed, not copied: t:1 (* 2)" },
    };
    rb_t *b = *state;
    rb_source(b, "x", F32, "4", NULL);
    heft_manifest_t *source = rb_source_manifest(b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        EXPECT_STATUS(heft_recipe_parse("t", cases[i].text, strlen(cases[i].text), &recipe, &err),
                      HEFT_OK);
        EXPECT_STATUS(trip_back(recipe, NULL, source, &err), cases[i].status);
        EXPECT_MESSAGE(cases[i].part);
        heft_recipe_destroy(recipe);
    }
    heft_manifest_destroy(source);
}

/* ---- random recipes ---- */

typedef struct axis {
    char name[8];
    int extent;
    int padded;   /* 0: not */
    bool in_name; /* of the target */
    bool is_repeat;
} axis_t;

typedef struct random_rule {
    axis_t axes[12];
    int n_axes;
    int dims[4]; /* axes in each dimension of the source */
    int n_dims;
    int order[12]; /* of the axes in the target */
    int n_order;
    int groups[12]; /* axes in each dimension of the target */
    int n_groups;
    int n_halves; /* sources fused into the target by a digit at `half_at`, outermost of a group */
    int half_at;
} random_rule_t;

static int pick(uint64_t *rng, int lo, int hi)
{
    return (int)heft_test_random_in(rng, lo, hi);
}

static void random_axes(uint64_t *rng, random_rule_t *r)
{
    r->n_dims = pick(rng, 1, 3);
    for (int d = 0; d < r->n_dims; d++) {
        r->dims[d] = pick(rng, 1, 3);
        for (int k = 0; k < r->dims[d]; k++) {
            axis_t *axis = &r->axes[r->n_axes];
            *axis = (axis_t){ .extent = pick(rng, 1, 3) };
            (void)snprintf(axis->name, sizeof axis->name, "a%d", r->n_axes++);
            axis->in_name = pick(rng, 0, 7) == 0;
            axis->padded =
                !axis->in_name && pick(rng, 0, 4) == 0 ? axis->extent + pick(rng, 1, 2) : 0;
        }
    }
    for (int k = pick(rng, -2, 1); k > 0; k--) {
        axis_t *axis = &r->axes[r->n_axes];
        *axis = (axis_t){ .extent = pick(rng, 2, 3), .is_repeat = true };
        (void)snprintf(axis->name, sizeof axis->name, "a%d", r->n_axes++);
    }
}

static void random_target(uint64_t *rng, random_rule_t *r)
{
    for (int i = 0; i < r->n_axes; i++) {
        if (!r->axes[i].in_name) {
            r->order[r->n_order++] = i;
        }
    }
    for (int i = r->n_order - 1; i > 0; i--) {
        int k = pick(rng, 0, i);
        int swap = r->order[i];
        r->order[i] = r->order[k];
        r->order[k] = swap;
    }
    for (int left = r->n_order; left > 0;) {
        int n = pick(rng, 1, left < 3 ? left : 3);
        r->groups[r->n_groups++] = n;
        left -= n;
    }
    r->n_halves = r->n_groups > 0 ? pick(rng, 1, 3) : 1;
    r->half_at = r->n_groups > 0 ? pick(rng, 0, r->n_groups - 1) : 0;
}

static void put(char *text, const char *format, ...) HEFT_PRINTF(2, 3);
static void put(char *text, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + n, 4096 - n, format, args);
    va_end(args);
}

/* The rule for one half, and its source. */
static void write_rule(rb_t *b, const random_rule_t *r, int number, int half, char *text)
{
    char name[32];
    char shape[64] = "";
    (void)snprintf(name, sizeof name, "s%d.h%d", number, half);
    put(text, "\"%s\" [", name);
    int at = 0;
    for (int d = 0; d < r->n_dims; d++) {
        int extent = 1;
        put(text, "%s(", d > 0 ? ", " : "");
        for (int k = 0; k < r->dims[d]; k++, at++) {
            put(text, "%s%s:%d", k > 0 ? " " : "", r->axes[at].name, r->axes[at].extent);
            extent *= r->axes[at].extent;
        }
        put(text, ")");
        put(shape, "%s%d", d > 0 ? "," : "", extent);
    }
    put(text, "]");
    const char *join = " where ";
    for (int i = 0; i < r->n_axes; i++) {
        if (r->axes[i].padded > 0) {
            put(text, "%s%s pad %d", join, r->axes[i].name, r->axes[i].padded);
            join = ", ";
        }
    }
    put(text, " -> \"t%d", number);
    for (int i = 0; i < r->n_axes; i++) {
        if (r->axes[i].in_name) {
            put(text, ".{%s}", r->axes[i].name);
        }
    }
    put(text, "\" [");
    at = 0;
    for (int g = 0; g < r->n_groups; g++) {
        put(text, "%s(", g > 0 ? ", " : "");
        if (r->n_halves > 1 && g == r->half_at) {
            put(text, "%d:%d ", half, r->n_halves);
        }
        for (int k = 0; k < r->groups[g]; k++, at++) {
            const axis_t *axis = &r->axes[r->order[at]];
            put(text, k > 0 ? " %s" : "%s", axis->name);
            if (axis->is_repeat) {
                put(text, ":%d", axis->extent);
            }
        }
        put(text, ")");
    }
    put(text, "]\n");
    rb_source(b, name, number % 2 == 0 ? F32 : BF16, shape, NULL);
}

static void random_recipe(rb_t *b, uint64_t *rng, char *text)
{
    text[0] = '\0';
    rb_clear(b);
    int n_rules = pick(rng, 1, 3);
    for (int i = 0; i < n_rules; i++) {
        random_rule_t r = { .n_axes = 0 };
        random_axes(rng, &r);
        random_target(rng, &r);
        for (int half = 0; half < r.n_halves; half++) {
            write_rule(b, &r, i, half, text);
        }
    }
}

static void random_recipes_run_backwards(void **state)
{
    rb_t *b = *state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = heft_test_cases(60); i > 0; i--) {
        static char text[4096];
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        random_recipe(b, &rng, text);
        heft_status_t status = heft_recipe_parse("random", text, strlen(text), &recipe, &err);
        if (status == HEFT_OK) {
            heft_manifest_t *source = rb_source_manifest(b);
            status = trip_back(recipe, NULL, source, &err);
            heft_manifest_destroy(source);
        }
        if (status != HEFT_OK) {
            print_error("%s%s\n", text, err.message);
        }
        EXPECT_STATUS(status, HEFT_OK);
        heft_recipe_destroy(recipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(shipped_recipes_of_copies_run_backwards),
        T(what_cannot_run_backwards_says_why),
        T(random_recipes_run_backwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

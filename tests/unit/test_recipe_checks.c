/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped dense recipe on a tied checkpoint that holds both matrices: equal values run, unequal
 * ones are refused with the first element, both tensors and both values. */
#include "recipe_bench.h"

#include "heft/exec.h"

#define F32 HEFT_DTYPE_F32

enum { MAX_TENSORS = 64, RANKS = 2, VOCAB = 10, WIDTH = 8 };

typedef struct tied {
    heft_plan_t *plan;
    float *sources[MAX_TENSORS];
    float *embed;
    float *head;
    void *params[RANKS][MAX_TENSORS];
    heft_exec_target_t targets[RANKS];
    heft_exec_t *exec;
} tied_t;

static void declare(rb_t *b)
{
    rb_config(b, "{\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"hidden_size\": 8, "
                 "\"intermediate_size\": 8, \"vocab_size\": 10, \"num_hidden_layers\": 1, "
                 "\"tie_word_embeddings\": true}");
    rb_set(b, "tp", "2");
    rb_source(b, "model.embed_tokens.weight", F32, "10,8", NULL);
    rb_source(b, "lm_head.weight", F32, "10,8", NULL);
    rb_source(b, "model.norm.weight", F32, "8", NULL);
    static const char *const square[] = { "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj",
                                          "mlp.up_proj", "mlp.down_proj" };
    char name[80];
    for (size_t i = 0; i < sizeof square / sizeof square[0]; i++) {
        (void)snprintf(name, sizeof name, "model.layers.0.%s.weight", square[i]);
        rb_source(b, name, F32, "8,8", NULL);
    }
    rb_source(b, "model.layers.0.self_attn.k_proj.weight", F32, "4,8", NULL);
    rb_source(b, "model.layers.0.self_attn.v_proj.weight", F32, "4,8", NULL);
    rb_source(b, "model.layers.0.input_layernorm.weight", F32, "8", NULL);
    rb_source(b, "model.layers.0.post_attention_layernorm.weight", F32, "8", NULL);
}

static void make_plan(rb_t *b, tied_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_tape_t *tapes[RANKS] = { NULL };
    heft_exception_t *exceptions = NULL;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_load("hf-to-engine-dense", &recipe, &err), HEFT_OK);
    for (uint32_t r = 0; r < RANKS; r++) {
        EXPECT_STATUS(heft_recipe_compile(recipe, b->bindings, r, source, NULL, &tapes[r], &err),
                      HEFT_OK);
    }
    EXPECT_STATUS(heft_recipe_resolve_exceptions(recipe, b->bindings, source, NULL, &exceptions,
                                                 &opts.n_exceptions, &err),
                  HEFT_OK);
    opts.exceptions = exceptions;
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const *)tapes, RANKS, 0, &opts, &t->plan, NULL, &err),
        HEFT_OK);
    heft_exceptions_free(exceptions);
    heft_tape_destroy(tapes[0]);
    heft_tape_destroy(tapes[1]);
    heft_manifest_destroy(source);
    heft_recipe_destroy(recipe);
}

static void tied_init(rb_t *b, tied_t *t)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_info_t info;
    heft_tensor_info_t tensor;
    *t = (tied_t){ .plan = NULL };
    declare(b);
    make_plan(b, t);
    heft_plan_query(t->plan, &info);
    for (uint32_t s = 0; s < info.n_sources; s++) {
        EXPECT_STATUS(heft_plan_query_source(t->plan, s, &tensor, &err), HEFT_OK);
        t->sources[s] = malloc((size_t)tensor.n_bytes);
        assert_non_null(t->sources[s]);
        for (int64_t i = 0; i < tensor.n_elems; i++) {
            t->sources[s][i] = (float)rb_source_values(b, tensor.name)[i];
        }
        t->embed = strcmp(tensor.name, "model.embed_tokens.weight") == 0 ? t->sources[s] : t->embed;
        t->head = strcmp(tensor.name, "lm_head.weight") == 0 ? t->sources[s] : t->head;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t p = 0; p < heft_plan_get_n_params(t->plan, r); p++) {
            EXPECT_STATUS(heft_plan_query_param(t->plan, r, p, &tensor, &err), HEFT_OK);
            t->params[r][p] = malloc((size_t)tensor.n_bytes);
            assert_non_null(t->params[r][p]);
        }
        t->targets[r] = (heft_exec_target_t){ .rank_index = r, .params = t->params[r] };
    }
    EXPECT_STATUS(heft_exec_create(t->plan, t->targets, RANKS, NULL, &t->exec, &err), HEFT_OK);
}

static void tied_fini(tied_t *t)
{
    heft_exec_destroy(t->exec);
    heft_plan_destroy(t->plan);
    for (int i = 0; i < MAX_TENSORS; i++) {
        free(t->sources[i]);
        free(t->params[0][i]);
        free(t->params[1][i]);
    }
}

static void both_matrices_of_a_tied_model_must_be_equal(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tied_t t;
    tied_init(*state, &t);
    memcpy(t.head, t.embed, VOCAB * WIDTH * sizeof(float));
    EXPECT_STATUS(heft_exec_run(t.exec, (const void *const *)t.sources, &err), HEFT_OK);
    t.head[3 * WIDTH + 5] = 1.0F;
    t.head[3 * WIDTH + 6] = 1.0F;
    t.embed[3 * WIDTH + 5] = 2.0F;
    EXPECT_STATUS(heft_exec_run(t.exec, (const void *const *)t.sources, &err), HEFT_ERR_MISMATCH);
    assert_string_equal(err.message,
                        "parameter \"lm_head.weight\" rank 0 [3, 5] must be equal: 0x40000000 "
                        "(source \"model.embed_tokens.weight\" element 29), 0x3f800000 (source "
                        "\"lm_head.weight\" element 29)");
    memcpy(t.head, t.embed, VOCAB * WIDTH * sizeof(float));
    EXPECT_STATUS(heft_exec_run(t.exec, (const void *const *)t.sources, &err), HEFT_OK);
    tied_fini(&t);
}

/* Vocabulary rows are split: every row of the checkpoint is compared on the rank that holds it. */
static void every_row_of_the_head_is_compared_once(void **state)
{
    heft_error_t err = HEFT_ERROR_INIT;
    tied_t t;
    tied_init(*state, &t);
    memcpy(t.head, t.embed, VOCAB * WIDTH * sizeof(float));
    for (int i = 0; i < VOCAB * WIDTH; i++) {
        float kept = t.head[i];
        t.head[i] = -1.0F;
        EXPECT_STATUS(heft_exec_run(t.exec, (const void *const *)t.sources, &err),
                      HEFT_ERR_MISMATCH);
        t.head[i] = kept;
    }
    int64_t n_elems = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        uint64_t n = 0;
        const heft_piece_t *checks = heft_plan_get_checks(t.plan, r, &n);
        for (uint64_t i = 0; i < n; i++) {
            int64_t count = 1;
            for (int k = 0; k < checks[i].rank; k++) {
                count *= checks[i].extent[k];
            }
            n_elems += count;
        }
    }
    assert_int_equal(n_elems, VOCAB * WIDTH);
    tied_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_matrices_of_a_tied_model_must_be_equal, rb_setup,
                                        rb_teardown),
        cmocka_unit_test_setup_teardown(every_row_of_the_head_is_compared_once, rb_setup,
                                        rb_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

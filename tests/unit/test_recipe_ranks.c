/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks by one compiler: whatever of a recipe depends on the rank (conditions, sizes,
 * patterns, what is ignored, refused or required), every rank comes to the tape or the message that
 * it comes to alone. Recipes are put together at random from what may depend on it.
 */
#include "ranks_agree.h"
#include "recipe/recipe.h"
#include "recipe_bench.h"
#include "tape/tape.h"

enum { LAYERS = 3, EXPERTS = 6 };

static void declare(rb_t *b)
{
    rb_clear(b);
    for (int l = 0; l < LAYERS; l++) {
        char name[48];
        (void)snprintf(name, sizeof name, "m.%d.n", l);
        rb_source(b, name, HEFT_DTYPE_F32, "12", NULL);
        (void)snprintf(name, sizeof name, "m.%d.%s.w", l, l % 2 == 0 ? "even" : "odd");
        rb_source(b, name, HEFT_DTYPE_BF16, "12,4", NULL);
        for (int e = 0; e < EXPERTS; e++) {
            (void)snprintf(name, sizeof name, "m.%d.e.%d.w", l, e);
            rb_source(b, name, HEFT_DTYPE_BF16, "12,2", NULL);
        }
    }
}

static void expect_agree(const rb_t *b, const char *text)
{
    char why[512];
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    if (!ranks_agree(recipe, b->bindings, source, NULL, why)) {
        fail_msg("%s\n%s", text, why);
    }
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
}

/* Experts are bucketed by what depends on the match, ranks pick theirs. */
#define HEAD                                                             \
    "let ep = 3, flag = true, x = 2\nranks ep as r\nlet held = 6 / ep\n" \
    "let part = if(r % 2 == 0, \"even\", \"odd\")\n"                     \
    "let late = if(r == 1, \"word\", \"other\"), sum = r + 1, half = if(r == 2, 0, 1)\n"

static const char *const conditions[] = {
    "e / held == r",
    "r == e % ep",
    "flag and e / held == r",
    "e / held == r and flag and x == 2",
    "x == 3 and e / held == r",
    "e < r",
    "e == r or l == 0",
    "not (e == r)",
    "e / sum == 1",
    "has(\"m.*.n\") and e % 2 == r % 2",
    "e / half == r", /* no value on the last rank */
    "12 / e == r",   /* none for the first expert */
    "l == late",     /* of two kinds */
    "e == late",     /* likewise */
    "e < 3",         /* of no rank */
    "e == 7 + r",    /* of no expert */
    "count(\"m.*.n\") == l + r",
    "e + l == sum",
};

static const char *const lines[] = {
    "\"m.{l}.n\" [a] -> \"o.{l}.n\" [a]\n",
    "\"m.{l}.n\" [({r}:ep a)] -> \"o.{l}.part\" [a]\n",
    "\"m.{l}.n\" [({l}:{r + 2} a)] -> \"o.{l}.some\" [a]\n", /* not every layer */
    "\"m.{l}.{part}.w\" [a, b] -> \"o.{l}.{part}\" [b, a]\n",
    "optional \"m.{l}.{late}.w\" [a, b] -> \"o.{l}.late\" [b, a]\n",
    "\"m.{l}.n\" [a] -> \"o.{l}.{k}\" [a] for k:{r + 1}\n",
    "ignore \"m.{half}.n\" because \"x\"\n",
    "optional ignore \"m.{sum + 1}.*\" because \"x\"\n",
    "ignore \"m.2.n\" because \"x\" when sum == 2\n",
    "refuse \"m.{l}.n\" because \"left\" when l > r\n",
    "refuse any \"m.{l}.e.{e}.w\" because \"must not be\" when e == 5 and l + r == 3\n",
    "refuse any \"m.{l}.e.{e}.w\" because \"never\" when e > x + 6\n",
    "require count(\"m.*.e.*.w\") == 18 + half - 1 \"experts\"\n",
    "require r < 2 \"two ranks\"\n",
    "dtype f32 except \"m.{l}.e.*.w\"\n",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void add_expert_rule(char *text, size_t size, const char *when, uint64_t *rng)
{
    static const char *const forms[] = {
        "\"m.{l}.e.{e}.w\" [a, b] -> \"w.{l}.{e}\" [b, a] when %s\n",
        "\"m.{l}.e.{e}.w\" [a, b] -> \"w.{l}\" [{e %% held}:held, a, b] when %s\n",
        "optional \"m.{l}.e.{e}.w\" [({r}:ep a), b] -> \"v.{l}.{e}\" [a, b] when %s\n",
        "\"m.{l}.e.{e}.w\" [a, b] -> \"u.{l}.{e}.{k}\" [a, b] for k:2 when %s\n",
    };
    const size_t n = strlen(text);
    /* the forms are of this file, and take one text each */
    const char *form = forms[heft_test_random_in(rng, 0, COUNT(forms) - 1)];
    const char *gap = strstr(form, "%s");
    (void)snprintf(text + n, size - n, "%.*s%s%s", (int)(gap - form), form, when, gap + 2);
    for (char *at = strstr(text + n, "%%"); at != NULL; at = strstr(at, "%%")) {
        memmove(at, at + 1, strlen(at));
    }
}

static void every_condition_picks_what_it_picks_alone(void **state)
{
    rb_t *b = *state;
    uint64_t rng = 1;
    for (size_t i = 0; i < COUNT(conditions); i++) {
        for (int k = 0; k < 8; k++) {
            char text[1024] = HEAD;
            declare(b);
            add_expert_rule(text, sizeof text, conditions[i], &rng);
            expect_agree(b, text);
        }
    }
}

static void random_recipes_give_every_rank_what_it_has_alone(void **state)
{
    rb_t *b = *state;
    uint64_t rng = heft_test_seed();
    for (int64_t i = heft_test_cases(300); i > 0; i--) {
        char text[4096] = HEAD;
        declare(b);
        (void)strncat(text, lines[0], 200);
        for (int64_t n = heft_test_random_in(&rng, 1, 4); n > 0; n--) {
            (void)strncat(text, lines[heft_test_random_in(&rng, 0, COUNT(lines) - 1)], 200);
        }
        for (int64_t n = heft_test_random_in(&rng, 0, 2); n > 0; n--) {
            add_expert_rule(text, sizeof text,
                            conditions[heft_test_random_in(&rng, 0, COUNT(conditions) - 1)], &rng);
        }
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        if (heft_recipe_parse("t", text, strlen(text), &recipe, &err) == HEFT_OK) {
            heft_recipe_destroy(recipe);
            expect_agree(b, text);
        } else {
            EXPECT_MESSAGE("dtype"); /* said twice */
        }
    }
}

static void what_is_read_alone_has_no_other_sources(void **state)
{
    static const char text[] =
        HEAD "\"m.{l}.e.{e}.w\" [a, b] -> \"w.{l}.{e}\" [a, b] when e / held == r\n";
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    heft__compiler_t *compiler = NULL;
    declare(b);
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft__compiler_create(recipe, b->bindings, source, &compiler, &err), HEFT_OK);
    for (uint32_t r = 0; r < 3; r++) {
        heft_tape_t *tape = NULL;
        EXPECT_STATUS(heft__compiler_run(compiler, r, NULL, true, NULL, &tape, &err), HEFT_OK);
        assert_int_equal(heft_tape_get_n_writes(tape), LAYERS * 2);
        assert_int_equal(heft_tape_get_n_buffers(tape), LAYERS * 2 * 2);
        heft_tape_destroy(tape);
    }
    heft__compiler_destroy(compiler);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
}

static void a_compiler_survives_every_failed_allocation(void **state)
{
    static const char text[] =
        HEAD "\"m.{l}.e.{e}.w\" [a, b] -> \"w.{l}.{e}\" [a, b] when e / held == r\n"
             "refuse any \"m.{l}.n\" because \"never\" when l > 5\n"
             "ignore \"m.{half}.n\" because \"x\"\n";
    rb_t *b = *state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    int n_failed = 0;
    declare(b);
    heft_manifest_t *source = rb_source_manifest(b);
    EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_OK);
    for (long k = 0; k < 2000; k++) { /* what is kept for later ranks may be left out */
        heft__compiler_t *compiler = NULL;
        heft_tape_t *tapes[3] = { NULL };
        const int64_t live = heft__alloc_live();
        heft__alloc_fail_at(k);
        heft_status_t status = heft__compiler_create(recipe, b->bindings, source, &compiler, &err);
        for (uint32_t r = 0; r < 3 && status == HEFT_OK; r++) {
            status = heft__compiler_run(compiler, r, NULL, true, NULL, &tapes[r], &err);
        }
        heft__alloc_fail_at(-1);
        assert_true(status == HEFT_OK || status == HEFT_ERR_NOMEM);
        n_failed += status == HEFT_ERR_NOMEM;
        for (uint32_t r = 0; r < 3; r++) {
            assert_true(status != HEFT_OK || heft_tape_get_n_writes(tapes[r]) == LAYERS * 2);
            heft_tape_destroy(tapes[r]);
        }
        heft__compiler_destroy(compiler);
        assert_int_equal(heft__alloc_live(), live);
    }
    assert_true(n_failed > 20 && n_failed < 2000);
    heft_recipe_destroy(recipe);
    heft_manifest_destroy(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(every_condition_picks_what_it_picks_alone),
        T(random_recipes_give_every_rank_what_it_has_alone),
        T(what_is_read_alone_has_no_other_sources),
        T(a_compiler_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

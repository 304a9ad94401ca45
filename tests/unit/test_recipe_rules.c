/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of conversion gives its vectors; rules of copies alone run backwards. */
#include "recipe_rules.h"
#include "recipe_trip.h"

static rules_t rules;

static void every_vector_holds(void **state)
{
    rb_t *b = *state;
    size_t n = 0;
    size_t n_failed = 0;
    for (size_t i = 0; i < rules.n; i++) {
        const rule_set_t *rule = &rules.items[i];
        assert_true(rule->n_cases > 0);
        for (size_t k = 0; k < rule->n_cases; k++) {
            char why[256];
            n++;
            if (!rules_hold(b, rule->text, &rule->cases[k], why)) {
                print_error("%s, %s: %s\n", rule->name, rule->cases[k].name, why);
                n_failed++;
            }
        }
    }
    print_message("%zu rules, %zu vectors\n", rules.n, n);
    assert_int_equal(n_failed, 0);
    assert_true(rules.n >= 30 && n >= 100);
}

/* Each case of a rule of copies, for all ranks, there and back; one that computes is refused. */
static void rules_of_copies_run_backwards(void **state)
{
    rb_t *b = *state;
    size_t n = 0;
    for (size_t i = 0; i < rules.n; i++) {
        const rule_set_t *rule = &rules.items[i];
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        EXPECT_STATUS(heft_recipe_parse(rule->name, rule->text, strlen(rule->text), &recipe, &err),
                      HEFT_OK);
        for (size_t k = 0; k < rule->n_cases; k++) {
            bool has_trip = rule->goes_back || rule->is_computed;
            if (!has_trip || rules_case_refuses(&rule->cases[k])) {
                continue;
            }
            (void)rules_declare(b, &rule->cases[k]);
            heft_manifest_t *source = rb_source_manifest(b);
            heft_status_t status = trip_back(recipe, b->bindings, source, &err);
            heft_manifest_destroy(source);
            if (rule->goes_back) {
                EXPECT_STATUS(status, HEFT_OK);
            } else {
                EXPECT_STATUS(status, HEFT_ERR_UNSUPPORTED);
                EXPECT_MESSAGE("is computed, not copied");
            }
            n++;
        }
        heft_recipe_destroy(recipe);
    }
    print_message("%zu round trips\n", n);
    assert_true(n >= 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(every_vector_holds),
        T(rules_of_copies_run_backwards),
    };
    rules_load(&rules);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rules_free(&rules);
    return failed;
}

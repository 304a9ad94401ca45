/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of conversion and their vectors, tests/golden/recipe_rules.txt: recipes, each with
 * cases that say what goes in and what must come out.
 */
#ifndef RECIPE_RULES_H
#define RECIPE_RULES_H

#include "recipe_bench.h"

typedef struct rule_case {
    const char *name;
    char *lines[32];
    size_t n_lines;
} rule_case_t;

typedef struct rule_set {
    const char *name;
    char *text;       /* of the recipe */
    bool goes_back;   /* copies of everything */
    bool is_computed; /* not copies alone */
    rule_case_t cases[32];
    size_t n_cases;
} rule_set_t;

typedef struct rules {
    rule_set_t items[64];
    size_t n;
    char *data;
} rules_t;

void rules_load(rules_t *rules);
void rules_free(rules_t *rules);
const rule_set_t *rules_find(const rules_t *rules, const char *name);

/* Declare what goes into a case; the rank. */
uint32_t rules_declare(rb_t *b, const rule_case_t *c);
/* Does the case expect a refusal? */
bool rules_case_refuses(const rule_case_t *c);
/* Run a recipe on a case. False: it gives something else, and why says what. */
bool rules_hold(rb_t *b, const char *recipe, const rule_case_t *c, char why[256]);

#endif

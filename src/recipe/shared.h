/* SPDX-License-Identifier: Apache-2.0 */
/* What compilations of one recipe against one source share. Private to this part. */
#ifndef HEFT_RECIPE_SHARED_H
#define HEFT_RECIPE_SHARED_H

#include "recipe/compile.h"

typedef struct heft__verdict {
    int64_t value;
    uint32_t match;
} heft__verdict_t;

/* What an expression comes to for each match, under some values of lets. */
typedef struct heft__verdicts {
    const heft__expr_t *of; /* NULL: none */
    heft__value_t *lets;    /* all of them, as they were */
    heft__verdict_t *values;
    uint32_t *order; /* the matches, by value */
    bool is_good;    /* it has a value everywhere */
} heft__verdicts_t;

/* The names that a pattern matches, in their order. */
typedef struct heft__matches {
    char *text; /* of the pattern, with its values; NULL: not known */
    uint32_t *names;
    heft__span_t *captures; /* n_captures of each */
    size_t n, cap_names, cap_captures;
    uint32_t n_captures;
    uint32_t n_uses;   /* since they were found */
    uint32_t n_misses; /* in a row, of the verdicts */
    heft__verdicts_t verdicts;
} heft__matches_t;

struct heft__shared {
    const heft_recipe_t *recipe; /* no chain; NULL: not initialised */
    heft__names_t names;
    heft__matches_t *rules; /* of each, likewise below */
    heft__matches_t *refusals;
    heft__matches_t *ignores; /* of each exception */
    uint32_t n_runs;
};

/* recipe and source are borrowed until fini, which is fine after a failure. */
heft_status_t heft__shared_init(heft__shared_t *shared, const heft_recipe_t *recipe,
                                const heft_manifest_t *source, heft_error_t *err);
void heft__shared_fini(heft__shared_t *shared);
/* Names as no compilation has seen them. */
void heft__shared_begin(heft__shared_t *shared);
/* The matches of a pattern of n_captures, to m. */
heft_status_t heft__shared_match(heft__shared_t *shared, heft__matches_t *m,
                                 const heft__pattern_t *pattern, uint32_t n_captures,
                                 heft_error_t *err);
/* Those of exception i, whose pattern has this text. */
heft_status_t heft__shared_match_exception(heft__shared_t *shared, size_t exception,
                                           const heft__text_t *text, const heft__matches_t **out,
                                           heft_error_t *err);
/* The matches for which `when` holds, ascending. False: that is not known for all of them without
 * asking, so that `when` must be asked of each. */
bool heft__shared_pick(heft__env_t *env, heft__matches_t *m, const heft__expr_t *when,
                       const uint32_t **picked_out, size_t *n_out);
/* c->captures as match k left them. */
static inline void heft__take_captures(heft__compile_t *c, const heft__matches_t *m, size_t k)
{
    for (uint32_t i = 0; i < m->n_captures; i++) {
        c->captures[i] = m->captures[k * m->n_captures + i];
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of shared compilation is the compilation of one rank. */
#include "ranks_agree.h"

#include <stdio.h>
#include <string.h>

#include "heft/plan.h"
#include "recipe/recipe.h"

enum { MOST = 8 };

/* What came of one rank. */
typedef struct outcome {
    heft_status_t status;
    heft_error_t err;
    char *text;      /* of the tape */
    char digest[65]; /* of a plan of it; "": it has none */
} outcome_t;

static void take(outcome_t *o, heft_tape_t *tape)
{
    const heft_tape_t *const tapes[1] = { tape };
    heft_plan_t *plan = NULL;
    if (o->status != HEFT_OK) {
        return;
    }
    if (heft_tape_encode(tape, &o->text, NULL) != HEFT_OK) {
        o->text = NULL;
    }
    if (heft_plan_create_part(tapes, 1, 0, NULL, &plan, NULL) == HEFT_OK) {
        (void)snprintf(o->digest, sizeof o->digest, "%s", heft_plan_get_rank_digest(plan, 0));
    }
    heft_plan_destroy(plan);
    heft_tape_destroy(tape);
}

static void outcome_fini(outcome_t *o)
{
    heft_string_free(o->text);
}

static bool is_same(const outcome_t *a, const outcome_t *b, bool with_text)
{
    return a->status == b->status && strcmp(a->err.message, b->err.message) == 0 &&
           strcmp(a->digest, b->digest) == 0 &&
           (!with_text || (a->text == NULL) == (b->text == NULL)) &&
           (!with_text || a->text == NULL || strcmp(a->text, b->text) == 0);
}

static bool agrees(heft__compiler_t *compiler, const heft_recipe_t *recipe,
                   const heft_bindings_t *bindings, uint32_t rank, const heft_manifest_t *source,
                   const heft_manifest_t *destination, char why[512])
{
    heft_tape_t *tape = NULL;
    outcome_t alone = { .err = HEFT_ERROR_INIT };
    alone.status =
        heft_recipe_compile(recipe, bindings, rank, source, destination, &tape, &alone.err);
    take(&alone, tape);
    bool is_good = true;
    for (int takes_read_alone = 0; takes_read_alone < 2 && is_good; takes_read_alone++) {
        outcome_t shared = { .err = HEFT_ERROR_INIT };
        tape = NULL;
        shared.status = heft__compiler_run(compiler, rank, destination, takes_read_alone != 0, NULL,
                                           &tape, &shared.err);
        take(&shared, tape);
        is_good = is_same(&alone, &shared, takes_read_alone == 0);
        if (!is_good) {
            (void)snprintf(why, 512, "rank %u%s: \"%.150s\" %.16s alone, \"%.150s\" %.16s shared",
                           (unsigned)rank, takes_read_alone != 0 ? ", what is read" : "",
                           alone.err.message, alone.digest, shared.err.message, shared.digest);
        }
        outcome_fini(&shared);
    }
    outcome_fini(&alone);
    return is_good;
}

bool ranks_agree(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                 const heft_manifest_t *source, const heft_manifest_t *destination, char why[512])
{
    heft__compiler_t *compiler = NULL;
    uint32_t n_ranks = 1;
    if (heft_recipe_count_ranks(recipe, bindings, &n_ranks, NULL) != HEFT_OK) {
        n_ranks = 1;
    }
    if (heft__compiler_create(recipe, bindings, source, &compiler, NULL) != HEFT_OK) {
        (void)snprintf(why, 512, "no compiler");
        return false;
    }
    const uint32_t n = n_ranks < MOST ? n_ranks : MOST;
    bool is_good = true;
    for (uint32_t i = 0; i < 2 * n + 1 && is_good; i++) {
        uint32_t rank = i < n ? i : 2 * n - i; /* 0 1 2 3 (none) 3 2 1 0 */
        rank = rank + 1 == MOST ? n_ranks - 1 : rank;
        is_good = agrees(compiler, recipe, bindings, rank, source, destination, why);
    }
    heft__compiler_destroy(compiler);
    return is_good;
}

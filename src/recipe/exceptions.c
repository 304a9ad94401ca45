/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exceptions that hold in one case: `when` is evaluated, optional ignores that match nothing
 * are dropped, and so are those that match only what the source excludes already. Evaluated as for
 * rank 0, since an exception speaks for all ranks.
 */
#include "recipe/compile.h"

#include <string.h>

uint32_t heft_recipe_get_n_exceptions(const heft_recipe_t *recipe)
{
    return (uint32_t)recipe->n_exceptions;
}

const heft_exception_t *heft_recipe_get_exception(const heft_recipe_t *recipe, uint32_t i)
{
    return i < recipe->n_exceptions ? &recipe->exceptions[i] : NULL;
}

void heft_exceptions_free(heft_exception_t *exceptions)
{
    heft__free(exceptions);
}

static heft_status_t holds(const heft__env_t *env, size_t i, bool *holds_out, heft_error_t *err)
{
    const heft_exception_t *exception = &env->recipe->exceptions[i];
    const heft__exception_line_t *line = &env->recipe->exception_lines[i];
    *holds_out = true;
    if (line->when != NULL) {
        heft_status_t status = heft__eval_bool(env, line->when, holds_out, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    bool may_match_nothing =
        line->is_optional || heft__is_excluded(env->source, line->pattern.text);
    if (exception->kind == HEFT_EXCEPTION_UNUSED && may_match_nothing && *holds_out) {
        bool is_hit = false;
        for (uint32_t k = 0; k < env->names->n && !is_hit; k++) {
            is_hit = heft__pattern_match(&line->pattern, &env->names->items[k], NULL);
        }
        *holds_out = is_hit;
    }
    return HEFT_OK;
}

static heft_status_t collect(const heft__env_t *env, heft_exception_t *out, uint32_t *n_out,
                             heft_error_t *err)
{
    uint32_t n = 0;
    for (size_t i = 0; i < env->recipe->n_exceptions; i++) {
        bool is_on = false;
        heft_status_t status = holds(env, i, &is_on, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (is_on) {
            out[n++] = env->recipe->exceptions[i];
        }
    }
    *n_out = n;
    return HEFT_OK;
}

heft_status_t heft_recipe_resolve_exceptions(const heft_recipe_t *recipe,
                                             const heft_bindings_t *bindings,
                                             const heft_manifest_t *source,
                                             const heft_manifest_t *destination,
                                             heft_exception_t **exceptions_out, uint32_t *n_out,
                                             heft_error_t *err)
{
    heft__names_t names = { 0 };
    heft__env_t env;
    heft__faults_t faults;
    heft__faults_init(&faults, recipe, NULL, false);
    heft_exception_t *exceptions = heft__calloc(recipe->n_exceptions + 1, sizeof *exceptions);
    if (exceptions == NULL) {
        return heft__error_nomem(err, recipe->n_exceptions * sizeof *exceptions);
    }
    heft_status_t status = heft__env_init(&env, recipe, bindings, err);
    if (status == HEFT_OK) {
        status = heft__names_init(&names, source, err);
    }
    env.names = &names;
    env.destination = destination;
    env.source = source;
    if (status == HEFT_OK) {
        (void)heft__env_run(&env, false, &faults);
        status = heft__faults_status(&faults, err);
    }
    if (status == HEFT_OK) {
        status = collect(&env, exceptions, n_out, err);
    }
    heft__env_fini(&env);
    heft__names_fini(&names);
    if (status != HEFT_OK) {
        heft__free(exceptions);
        return status;
    }
    *exceptions_out = exceptions;
    return HEFT_OK;
}

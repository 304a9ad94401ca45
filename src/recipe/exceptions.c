/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exceptions that hold in one case: `when` is evaluated, optional ignores that match nothing
 * are dropped, and so are those that match only what the source excludes already. Evaluated as for
 * rank 0, since an exception speaks for all ranks.
 */
#include "recipe/chain.h"

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

heft_status_t heft__exception_put(const heft__env_t *env, size_t i, heft__text_t *text,
                                  heft_error_t *err)
{
    const heft__exception_line_t *line = &env->recipe->exception_lines[i];
    const heft__template_t *made_of = line->made_of;
    heft__text_reset(text);
    if (made_of == NULL) {
        heft__text_put(text, line->pattern.text);
    }
    for (uint32_t k = 0; made_of != NULL && k < made_of->n_pieces; k++) {
        const heft__template_piece_t *piece = &made_of->pieces[k];
        heft__text_put(text, piece->starts && k > 0 ? "." : "");
        if (piece->kind != PIECE_EXPR) {
            heft__text_put_n(text, piece->text.data, piece->text.len);
            continue;
        }
        heft__value_t value = { 0 };
        char shown[64];
        heft_status_t status = heft__eval(env, piece->expr, &value, err);
        if (status == HEFT_OK && value.kind != VALUE_INT && value.kind != VALUE_WORD) {
            status = heft__wrong_kind(env, piece->expr, "an integer or a word", &value, err);
        }
        if (status != HEFT_OK) {
            return status;
        }
        if (value.kind == VALUE_WORD) {
            heft__text_put_n(text, value.word.data, value.word.len);
        } else {
            heft__text_put(text, heft__value_text(&value, shown));
        }
    }
    return text->failed ? heft__error_nomem(err, text->len) : HEFT_OK;
}

bool heft__exception_matches(const heft_recipe_t *recipe, size_t i, const heft__text_t *text,
                             const heft__name_t *name)
{
    const heft__exception_line_t *line = &recipe->exception_lines[i];
    return line->made_of != NULL ? heft_name_matches(text->data, name->info.name) != 0
                                 : heft__pattern_match(&line->pattern, name, NULL);
}

/* What collect() works with. */
typedef struct found {
    heft__text_t text; /* of one pattern */
    heft__text_t all;  /* the texts of patterns with values, each with its zero byte */
    uint32_t *lines;   /* of the recipe, for each exception that holds */
    size_t *offsets;   /* of their texts in `all` */
    uint32_t n;
} found_t;

static heft_status_t holds(const heft__env_t *env, size_t i, found_t *found, bool *holds_out,
                           heft_error_t *err)
{
    const heft_exception_t *exception = &env->recipe->exceptions[i];
    const heft__exception_line_t *line = &env->recipe->exception_lines[i];
    *holds_out = true;
    if (line->when != NULL) {
        heft_status_t status = heft__eval_bool(env, line->when, holds_out, err);
        if (status != HEFT_OK || !*holds_out) {
            return status;
        }
    }
    heft_status_t status = heft__exception_put(env, i, &found->text, err);
    if (status == HEFT_OK && exception->kind == HEFT_EXCEPTION_UNUSED &&
        (line->is_optional || heft__is_excluded(env->source, found->text.data))) {
        bool is_hit = false;
        for (uint32_t k = 0; k < env->names->n && !is_hit; k++) {
            is_hit = heft__exception_matches(env->recipe, i, &found->text, &env->names->items[k]);
        }
        *holds_out = is_hit;
    }
    return status;
}

static heft_status_t collect(const heft__env_t *env, found_t *found, heft_error_t *err)
{
    for (size_t i = 0; i < env->recipe->n_exceptions; i++) {
        bool is_on = false;
        heft_status_t status = holds(env, i, found, &is_on, err);
        if (status != HEFT_OK) {
            return status;
        }
        if (!is_on) {
            continue;
        }
        found->lines[found->n] = (uint32_t)i;
        found->offsets[found->n++] = found->all.len;
        if (env->recipe->exception_lines[i].made_of != NULL) {
            heft__text_put_n(&found->all, found->text.data, found->text.len + 1);
        }
    }
    return found->all.failed ? heft__error_nomem(err, found->all.len) : HEFT_OK;
}

/* One block: the exceptions, and behind them the texts that the recipe does not have. */
static heft_exception_t *make_block(const heft_recipe_t *recipe, const found_t *found)
{
    heft_exception_t *out = heft__calloc(1, (found->n + (size_t)1) * sizeof *out + found->all.len);
    if (out == NULL) {
        return NULL;
    }
    char *texts = (char *)(out + found->n + 1);
    memcpy(texts, found->all.data, found->all.len);
    for (uint32_t k = 0; k < found->n; k++) {
        out[k] = recipe->exceptions[found->lines[k]];
        if (recipe->exception_lines[found->lines[k]].made_of != NULL) {
            out[k].pattern = texts + found->offsets[k];
        }
    }
    return out;
}

static heft_status_t find_exceptions(const heft__env_t *env, heft_exception_t **exceptions_out,
                                     uint32_t *n_out, heft_error_t *err)
{
    size_t n = env->recipe->n_exceptions + 1;
    found_t found = { .n = 0 };
    heft__text_init(&found.text);
    heft__text_init(&found.all);
    found.lines = heft__calloc(n, sizeof *found.lines);
    found.offsets = heft__calloc(n, sizeof *found.offsets);
    heft_status_t status = HEFT_OK;
    if (found.lines == NULL || found.offsets == NULL) {
        status = heft__error_nomem(err, n * sizeof *found.offsets);
    }
    if (status == HEFT_OK) {
        status = collect(env, &found, err);
    }
    heft_exception_t *block = status == HEFT_OK ? make_block(env->recipe, &found) : NULL;
    if (status == HEFT_OK && block == NULL) {
        status = heft__error_nomem(err, n * sizeof *block);
    }
    if (status == HEFT_OK) {
        *exceptions_out = block;
        *n_out = found.n;
    }
    heft__free(found.lines);
    heft__free(found.offsets);
    heft__text_fini(&found.text);
    heft__text_fini(&found.all);
    return status;
}

heft_status_t heft_recipe_resolve_exceptions(const heft_recipe_t *recipe,
                                             const heft_bindings_t *bindings,
                                             const heft_manifest_t *source,
                                             const heft_manifest_t *destination,
                                             heft_exception_t **exceptions_out, uint32_t *n_out,
                                             heft_error_t *err)
{
    if (recipe->n_parts > 0) {
        return heft__chain_resolve_exceptions(recipe, bindings, source, destination, exceptions_out,
                                              n_out, err);
    }
    heft__names_t names = { 0 };
    heft__env_t env;
    heft__faults_t faults;
    heft__faults_init(&faults, recipe, NULL, false);
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
        status = find_exceptions(&env, exceptions_out, n_out, err);
    }
    heft__env_fini(&env);
    heft__names_fini(&names);
    return status;
}

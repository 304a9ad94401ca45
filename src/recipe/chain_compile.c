/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chain compiled: each part against what the part before it makes, and the tapes joined. A part
 * before the last one may have ranks; together they are one source, whose names begin with the rank
 * as those of a folder of ranks do.
 */
#include "recipe/chain.h"

#include <string.h>

#include "tape/tape.h"

/* ---- what one part makes for the next ---- */

static heft_status_t add_rank_to(heft_manifest_t *to, const heft_manifest_t *from,
                                 const char *prefix, heft_error_t *err)
{
    heft_tensor_info_t info;
    heft__text_t name;
    heft_status_t status = HEFT_OK;
    heft__text_init(&name);
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(from) && status == HEFT_OK; i++) {
        const char *key;
        const char *value;
        status = heft_manifest_query(from, i, &info, err);
        heft__text_reset(&name);
        heft__text_printf(&name, "%s%s", prefix, status == HEFT_OK ? info.name : "");
        if (status == HEFT_OK) {
            status = name.failed ? heft__error_nomem(err, name.len)
                                 : heft_manifest_add(to, name.data, info.dtype, &info.shape, err);
        }
        for (uint32_t k = 0; status == HEFT_OK && heft_manifest_query_tensor_attr(
                                                      from, i, k, &key, &value, NULL) == HEFT_OK;
             k++) {
            status = heft_manifest_set_tensor_attr(to, name.data, key, value, err);
        }
    }
    heft__text_fini(&name);
    return status;
}

static heft_status_t merge_ranks(heft_manifest_t *const *ranks, uint32_t n, heft_manifest_t **out,
                                 heft_error_t *err)
{
    heft_manifest_t *all = NULL;
    heft_status_t status = heft_manifest_create("source", &all, err);
    for (uint32_t r = 0; r < n && status == HEFT_OK; r++) {
        char prefix[24];
        heft__rank_prefix(n, r, prefix);
        status = add_rank_to(all, ranks[r], prefix, err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(all, err);
    }
    if (status != HEFT_OK) {
        heft_manifest_destroy(all);
        return status;
    }
    *out = all;
    return HEFT_OK;
}

/* What one part before the last makes: its ranks' tapes, and their parameters as a source. */
typedef struct stage {
    heft_tape_t **tapes;
    uint32_t n;
    heft_manifest_t *made;
} stage_t;

static void stage_fini(stage_t *stage)
{
    for (uint32_t r = 0; stage->tapes != NULL && r < stage->n; r++) {
        heft_tape_destroy(stage->tapes[r]);
    }
    heft__free(stage->tapes);
    heft_manifest_destroy(stage->made);
}

static heft_status_t compile_ranks(const heft__chain_t *c, uint32_t p,
                                   const heft_manifest_t *source, heft_issues_t *issues,
                                   stage_t *stage, heft_manifest_t **ranks, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < stage->n && status == HEFT_OK; r++) {
        status = heft__compile_one(c->recipe->parts[p], &c->bindings[p], r, source, NULL, issues,
                                   &stage->tapes[r], &ranks[r], err);
    }
    if (status == HEFT_OK && stage->n > 1) {
        status = merge_ranks(ranks, stage->n, &stage->made, err);
    } else if (status == HEFT_OK) {
        stage->made = ranks[0];
        ranks[0] = NULL;
    }
    return status;
}

static heft_status_t run_stage(const heft__chain_t *c, uint32_t p, const heft_manifest_t *source,
                               heft_issues_t *issues, stage_t *stage, heft_error_t *err)
{
    *stage = (stage_t){ .n = 0 };
    heft_status_t status =
        heft_recipe_count_ranks(c->recipe->parts[p], &c->bindings[p], &stage->n, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft_manifest_t **ranks = heft__calloc(stage->n, sizeof(heft_manifest_t *));
    stage->tapes = heft__calloc(stage->n, sizeof(heft_tape_t *));
    status = ranks != NULL && stage->tapes != NULL
                 ? compile_ranks(c, p, source, issues, stage, ranks, err)
                 : heft__error_nomem(err, stage->n * sizeof(heft_tape_t *));
    for (uint32_t r = 0; ranks != NULL && r < stage->n; r++) {
        heft_manifest_destroy(ranks[r]);
    }
    heft__free(ranks);
    if (status != HEFT_OK) {
        stage_fini(stage);
        *stage = (stage_t){ .n = 0 };
    }
    return status;
}

/* ---- compiling ---- */

/* Part p and those behind it. */
static heft_status_t compile_from(const heft__chain_t *c, uint32_t p, uint32_t rank,
                                  const heft_manifest_t *source, const heft_manifest_t *destination,
                                  heft_issues_t *issues, heft_tape_t **tape_out,
                                  heft_manifest_t **manifest_out, heft_error_t *err)
{
    if (p + 1 == c->recipe->n_parts) {
        return heft__compile_one(c->recipe->parts[p], &c->bindings[p], rank, source, destination,
                                 issues, tape_out, manifest_out, err);
    }
    stage_t stage;
    heft_tape_t *second = NULL;
    heft_status_t status = run_stage(c, p, source, issues, &stage, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = compile_from(c, p + 1, rank, stage.made, destination, issues,
                          tape_out != NULL ? &second : NULL, manifest_out, err);
    if (status == HEFT_OK && tape_out != NULL) {
        status = heft__tape_join(stage.tapes, stage.n, second, false, tape_out, err);
        if (status == HEFT_OK) {
            stage.tapes = NULL; /* taken */
        } else {
            heft_tape_destroy(second);
        }
    }
    stage_fini(&stage);
    return status;
}

heft_status_t heft__chain_compile(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                  uint32_t rank, const heft_manifest_t *source,
                                  const heft_manifest_t *destination, heft_issues_t *issues,
                                  heft_tape_t **tape_out, heft_manifest_t **manifest_out,
                                  heft_error_t *err)
{
    heft__chain_t c;
    heft_error_t inner = HEFT_ERROR_INIT;
    const uint32_t n_said = heft__chain_n_said(issues);
    heft_status_t status = heft__chain_open(&c, recipe, bindings, &inner);
    if (status == HEFT_OK) {
        status =
            compile_from(&c, 0, rank, source, destination, issues, tape_out, manifest_out, &inner);
        heft__chain_close(&c);
    }
    return heft__chain_end(recipe, issues, n_said, status, &inner, err);
}

heft_status_t heft__chain_count_ranks(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                      uint32_t *n_ranks_out, heft_error_t *err)
{
    heft__chain_t c;
    const uint32_t last = recipe->n_parts - 1;
    heft_status_t status = heft__chain_open(&c, recipe, bindings, err);
    if (status == HEFT_OK) {
        status = heft_recipe_count_ranks(recipe->parts[last], &c.bindings[last], n_ranks_out, err);
        heft__chain_close(&c);
    }
    return status;
}

/* ---- exceptions ---- */

/* Append those of one part; texts that a part's recipe does not hold are kept in the list's own. */
typedef struct gathered {
    heft_exception_t *items; /* patterns: offsets into texts, until all are there */
    size_t n, cap;
    heft__text_t texts;
} gathered_t;

static heft_status_t gather_part(gathered_t *g, int32_t stage, const heft_exception_t *exceptions,
                                 uint32_t n, heft_error_t *err)
{
    if (!HEFT__RESERVE(g->items, g->cap, g->n + n + 1)) {
        return heft__error_nomem(err, (g->n + n) * sizeof *g->items);
    }
    for (uint32_t i = 0; i < n; i++) {
        g->items[g->n] = exceptions[i];
        g->items[g->n++].stage = stage;
        heft__text_put_n(&g->texts, exceptions[i].pattern, strlen(exceptions[i].pattern) + 1);
    }
    return g->texts.failed ? heft__error_nomem(err, g->texts.len) : HEFT_OK;
}

/* One block, as heft_exceptions_free takes it. */
static heft_exception_t *make_block(const gathered_t *g)
{
    heft_exception_t *out = heft__calloc(1, (g->n + 1) * sizeof *out + g->texts.len);
    if (out == NULL) {
        return NULL;
    }
    char *at = (char *)(out + g->n + 1);
    if (g->n > 0) {
        memcpy(out, g->items, g->n * sizeof *out);
        memcpy(at, g->texts.data, g->texts.len);
    }
    for (size_t i = 0; i < g->n; i++) {
        out[i].pattern = at;
        at += strlen(at) + 1;
    }
    return out;
}

static heft_status_t gather_from(const heft__chain_t *c, uint32_t p, const heft_manifest_t *source,
                                 const heft_manifest_t *destination, gathered_t *g,
                                 heft_error_t *err)
{
    const bool is_last = p + 1 == c->recipe->n_parts;
    heft_exception_t *exceptions = NULL;
    uint32_t n = 0;
    heft_status_t status =
        heft_recipe_resolve_exceptions(c->recipe->parts[p], &c->bindings[p], source,
                                       is_last ? destination : NULL, &exceptions, &n, err);
    if (status == HEFT_OK) {
        status = gather_part(g, (int32_t)p, exceptions, n, err);
    }
    heft_exceptions_free(exceptions);
    if (status != HEFT_OK || is_last) {
        return status;
    }
    stage_t stage;
    status = run_stage(c, p, source, NULL, &stage, err);
    if (status == HEFT_OK) {
        status = gather_from(c, p + 1, stage.made, destination, g, err);
        stage_fini(&stage);
    }
    return status;
}

heft_status_t heft__chain_resolve_exceptions(const heft_recipe_t *recipe,
                                             const heft_bindings_t *bindings,
                                             const heft_manifest_t *source,
                                             const heft_manifest_t *destination,
                                             heft_exception_t **exceptions_out, uint32_t *n_out,
                                             heft_error_t *err)
{
    heft__chain_t c;
    gathered_t g = { .n = 0 };
    heft_status_t status = heft__chain_open(&c, recipe, bindings, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__text_init(&g.texts);
    status = gather_from(&c, 0, source, destination, &g, err);
    heft_exception_t *block = status == HEFT_OK ? make_block(&g) : NULL;
    if (block != NULL) {
        *exceptions_out = block;
        *n_out = (uint32_t)g.n;
    } else if (status == HEFT_OK) {
        status = heft__error_nomem(err, g.n * sizeof *block);
    }
    heft__free(g.items);
    heft__text_fini(&g.texts);
    heft__chain_close(&c);
    return status;
}

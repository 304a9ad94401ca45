/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dest.KEY and source.KEY: what a manifest declares. A key of the whole side, else (with a dot, as
 * fused.layout) the value that all of its tensors with this attribute agree on; dest("PATTERN").KEY
 * asks some of them. dest.KEY falls back to the let of that name.
 */
#include "format/format.h"
#include "recipe/compile.h"

#include <string.h>

#define FAIL(env, expr, status, ...) \
    heft__recipe_error((env)->recipe, (expr)->pos, (status), err, __VA_ARGS__)

static const char *side_of(const heft__expr_t *expr)
{
    return expr->kind == EXPR_SOURCE ? "source" : "dest";
}

/* The value on which the tensors agree; NULL: none has the attribute. */
static heft_status_t find_agreed(const heft__env_t *env, const heft__expr_t *expr,
                                 const heft_manifest_t *manifest, const char **text_out,
                                 heft_error_t *err)
{
    const char *pattern = expr->left != NULL ? expr->left->text : NULL;
    heft_tensor_info_t first = { .name = NULL };
    heft_tensor_info_t info;
    bool is_hit = false;
    *text_out = NULL;
    for (uint32_t i = 0; heft_manifest_query(manifest, i, &info, NULL) == HEFT_OK; i++) {
        if (pattern != NULL && heft_name_matches(pattern, info.name) == 0) {
            continue;
        }
        is_hit = true;
        const char *text = heft_manifest_get_tensor_attr(manifest, i, expr->text);
        if (text == NULL) {
            continue;
        }
        if (*text_out != NULL && strcmp(*text_out, text) != 0) {
            return FAIL(env, expr, HEFT_ERR_ARGUMENT,
                        "%s.%s is not one value: \"%.60s\" has %s, \"%.60s\" has %s (ask for some "
                        "of them: dest(\"PATTERN\").%s)",
                        side_of(expr), expr->text, first.name, *text_out, info.name, text,
                        expr->text);
        }
        first = *text_out == NULL ? info : first;
        *text_out = text;
    }
    if (pattern != NULL && !is_hit) {
        return FAIL(env, expr, HEFT_ERR_NAME, "\"%s\" matches none of the %u tensors of the %s",
                    pattern, heft_manifest_get_n_tensors(manifest),
                    heft_manifest_get_side(manifest));
    }
    return HEFT_OK;
}

/* A misspelt key would be absent from every side, and `or` would hide it. A side's own attributes
 * may have any key, so that only what is near enough to be meant is refused there. */
static heft_status_t check_key(const heft__env_t *env, const heft__expr_t *expr, heft_error_t *err)
{
    const char *nearest = heft__tensor_attr_nearest(expr->text);
    bool is_meant = nearest != NULL && heft__edit_distance(expr->text, nearest, 2) <= 2;
    if (heft__tensor_attr_is_known(expr->text) || (!is_meant && expr->left == NULL)) {
        return HEFT_OK;
    }
    return FAIL(env, expr, HEFT_ERR_ARGUMENT, "tensors have no attribute %s%s%s", expr->text,
                nearest != NULL ? "; nearest: " : "", nearest != NULL ? nearest : "");
}

heft_status_t heft__eval_dest(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                              heft_error_t *err)
{
    const heft_manifest_t *manifest = expr->kind == EXPR_SOURCE ? env->source : env->destination;
    const char *text = NULL;
    *out = (heft__value_t){ .kind = VALUE_NONE };
    if (manifest != NULL && expr->left == NULL) {
        text = heft_manifest_get_attr(manifest, expr->text);
    }
    if (manifest != NULL && text == NULL && strchr(expr->text, '.') != NULL) {
        heft_status_t status = find_agreed(env, expr, manifest, &text, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (text == NULL && (expr->left != NULL || strchr(expr->text, '.') != NULL)) {
        heft_status_t status = check_key(env, expr, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (text != NULL && !heft__value_parse((heft__span_t){ text, strlen(text) }, out)) {
        return FAIL(env, expr, HEFT_ERR_ARGUMENT, "%s.%s: %s is beyond 64 bits", side_of(expr),
                    expr->text, text);
    }
    bool may_be_let = text == NULL && expr->kind == EXPR_DEST && expr->left == NULL;
    for (size_t i = 0; may_be_let && i < env->recipe->n_lets; i++) {
        if (strcmp(env->recipe->lets[i].name, expr->text) == 0) {
            *out = env->lets[i];
        }
    }
    return out->kind != VALUE_FAILED ? HEFT_OK : HEFT__SAID;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination: the parameters that a recipe makes, against those that an engine declares.
 *
 * Names, shapes and dtypes are compared on the way to the tape. How parameters are laid out
 * (`attr`) is put into a manifest of its own first, which checks that it fits the shapes; then the
 * two manifests are compared, key by key.
 */
#include "format/format.h"
#include "recipe/compile.h"

#include <stdio.h>
#include <string.h>

#define MAX_NEAREST 40 /* errors for which a nearest name is looked for: it takes long */

#define FAIL(c, pos, status, ...) \
    heft__recipe_error((c)->recipe, (pos), (status), (c)->err, __VA_ARGS__)

/* ---- forms of names ---- */

static heft_status_t check_form(heft__compile_t *c, int side, const heft_manifest_t *manifest)
{
    const heft__name_decl_t *decl = &c->recipe->name_decls[side];
    if (decl->form == HEFT_NAME_FORM_NONE || manifest == NULL) {
        return HEFT_OK;
    }
    heft_name_form_t form = heft_manifest_get_name_form(manifest);
    heft_layer_form_t layers = heft_manifest_get_layer_form(manifest);
    if (form == HEFT_NAME_FORM_NONE) {
        return decl->form == HEFT_NAME_FORM_DOTTED
                   ? HEFT_OK
                   : FAIL(c, decl->pos, HEFT_ERR_NAME,
                          "names of the %s are declared keystr, and its manifest has native names: "
                          "make them canonical first (heft_manifest_canonicalize)",
                          heft_manifest_get_side(manifest));
    }
    if (form != decl->form || layers != decl->layers) {
        return FAIL(c, decl->pos, HEFT_ERR_NAME,
                    "names of the %s are declared %s (layers %s), its manifest says %s (%s)",
                    heft_manifest_get_side(manifest), heft_name_form_get_name(decl->form),
                    heft_layer_form_get_name(decl->layers), heft_name_form_get_name(form),
                    heft_layer_form_get_name(layers));
    }
    return HEFT_OK;
}

heft_status_t heft__check_names(heft__compile_t *c)
{
    heft_status_t status = check_form(c, HEFT__SOURCE, c->env.source);
    return status == HEFT_OK ? check_form(c, HEFT__DESTINATION, c->env.destination) : status;
}

bool heft__is_excluded(const heft_manifest_t *source, const char *pattern)
{
    for (uint32_t i = 0; i < heft_manifest_get_n_excluded(source); i++) {
        if (heft_name_matches(pattern, heft_manifest_get_excluded(source, i, NULL)) != 0) {
            return true;
        }
    }
    return false;
}

/* ---- names, shapes, dtypes ---- */

static heft_status_t not_in_destination(const heft__compile_t *c, const heft__param_t *param,
                                        const heft_manifest_t *destination)
{
    const char *best = NULL;
    uint32_t limit = c->faults->n < MAX_NEAREST ? (uint32_t)strlen(param->name) / 3 + 1 : 0;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(destination) && limit > 0; i++) {
        heft_tensor_info_t info;
        if (heft_manifest_query(destination, i, &info, NULL) == HEFT_OK) {
            uint32_t distance = heft__edit_distance(param->name, info.name, limit);
            if (distance <= limit) {
                best = info.name;
                limit = distance > 0 ? distance - 1 : 0;
            }
        }
    }
    return FAIL(c, param->pos, HEFT_ERR_NAME, "parameter \"%s\" is not in the destination%s%s%s",
                param->name, best != NULL ? "; nearest is \"" : "", best != NULL ? best : "",
                best != NULL ? "\"" : "");
}

static heft_status_t check_param(const heft__compile_t *c, const heft__param_t *param,
                                 const heft_manifest_t *destination, bool *seen)
{
    uint32_t index;
    heft_tensor_info_t info;
    if (heft_manifest_find(destination, param->name, &index, NULL) != HEFT_OK) {
        return not_in_destination(c, param, destination);
    }
    heft_status_t status = heft_manifest_query(destination, index, &info, c->err);
    if (status != HEFT_OK) {
        return status;
    }
    seen[index] = true;
    if (info.dtype != param->dtype || !heft__same_shape(&info.shape, &param->shape)) {
        return heft__shapes_differ(c, param->pos, param->name, param->dtype, &param->shape,
                                   info.dtype, &info.shape, "in the destination");
    }
    return HEFT_OK;
}

heft_status_t heft__check_destination(heft__compile_t *c, const heft_manifest_t *destination)
{
    uint32_t n = heft_manifest_get_n_tensors(destination);
    bool *seen = heft__arena_calloc(&c->arena, n > 0 ? n : 1, sizeof *seen);
    if (seen == NULL) {
        return heft__error_nomem(c->err, n);
    }
    for (size_t i = 0; i < c->n_params; i++) {
        if (!heft__compile_take(c, check_param(c, &c->params[i], destination, seen))) {
            return HEFT__SAID;
        }
    }
    /* what no rule writes is for the proof to name, all of it at once, or to excuse */
    for (uint32_t i = 0; i < n; i++) {
        heft_tensor_info_t info;
        uint32_t buffer;
        if (seen[i]) {
            continue;
        }
        heft_status_t status = heft_manifest_query(destination, i, &info, c->err);
        if (status == HEFT_OK) {
            status = heft_tape_add_buffer(c->tape, HEFT_BUFFER_PARAM, info.name, info.dtype,
                                          &info.shape, &buffer, c->err);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* ---- how parameters are laid out ---- */

/* The value of an `attr` as the manifest keeps it; out holds 64. */
static heft_status_t eval_attr(heft__compile_t *c, const heft__attr_item_t *item, char out[64])
{
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(&c->env, item->value, &value, c->err);
    if (status != HEFT_OK) {
        return status;
    }
    if (value.kind == VALUE_INT) {
        (void)snprintf(out, 64, "%lld", (long long)value.integer);
        return HEFT_OK;
    }
    if (value.kind != VALUE_WORD || value.word.len > 60) {
        char text[64];
        return FAIL(c, item->pos, HEFT_ERR_ARGUMENT,
                    "%s takes an integer or a short word, got the %s %s", item->key,
                    heft__value_kind_name(value.kind), heft__value_text(&value, text));
    }
    (void)snprintf(out, 64, "%.*s", (int)value.word.len, value.word.data);
    return HEFT_OK;
}

static heft_status_t set_attrs(heft__compile_t *c, const heft__attr_line_t *line, const char *name,
                               heft_manifest_t *manifest)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < line->n_items && status == HEFT_OK; i++) {
        char value[64];
        heft_error_t cause = HEFT_ERROR_INIT;
        status = eval_attr(c, &line->items[i], value);
        if (status != HEFT_OK) {
            return status;
        }
        status = heft_manifest_set_tensor_attr(manifest, name, line->items[i].key, value, &cause);
        if (status != HEFT_OK) {
            return FAIL(c, line->items[i].pos, status, "%s", cause.message);
        }
    }
    return status;
}

static heft_status_t apply_attr(heft__compile_t *c, const heft__attr_line_t *line,
                                heft_manifest_t *manifest)
{
    bool is_on = true;
    bool is_hit = false;
    heft_status_t status = HEFT_OK;
    if (line->when != NULL) {
        status = heft__eval_bool(&c->env, line->when, &is_on, c->err);
    }
    for (size_t i = 0; i < c->n_params && status == HEFT_OK && is_on; i++) {
        if (heft_name_matches(line->pattern.text, c->params[i].name) != 0) {
            is_hit = true;
            status = set_attrs(c, line, c->params[i].name, manifest);
        }
    }
    if (status != HEFT_OK || is_hit || !is_on || line->is_optional) {
        return status;
    }
    return FAIL(c, line->pattern.pos, HEFT_ERR_NAME,
                "attr \"%s\" matches none of %zu parameters (write `optional attr` if that may be)",
                line->pattern.text, c->n_params);
}

static heft_status_t fill(heft__compile_t *c, heft_manifest_t *manifest)
{
    heft_error_t cause = HEFT_ERROR_INIT;
    heft_status_t status = heft_recipe_declare_names(c->recipe, manifest, c->err);
    for (size_t i = 0; i < c->n_params && status == HEFT_OK; i++) {
        status = heft_manifest_add(manifest, c->params[i].name, c->params[i].dtype,
                                   &c->params[i].shape, c->err);
    }
    for (size_t i = 0; i < c->recipe->n_attr_lines && status == HEFT_OK; i++) {
        status = apply_attr(c, c->recipe->attr_lines[i], manifest);
    }
    if (status != HEFT_OK) {
        return status;
    }
    status = heft_manifest_finish(manifest, &cause);
    if (status == HEFT_OK || status == HEFT_ERR_NOMEM) {
        return status == HEFT_OK ? status : heft__error_nomem(c->err, 0);
    }
    heft__pos_t pos = c->recipe->n_attr_lines > 0 ? c->recipe->attr_lines[0]->pattern.pos
                                                  : c->recipe->name_decls[HEFT__DESTINATION].pos;
    return FAIL(c, pos, status, "%s", cause.message);
}

heft_status_t heft__synthesize(heft__compile_t *c, heft_manifest_t **manifest_out)
{
    heft_manifest_t *manifest = NULL;
    heft_status_t status = heft_manifest_create("destination", &manifest, c->err);
    if (status == HEFT_OK) {
        status = fill(c, manifest);
    }
    if (status != HEFT_OK) {
        heft_manifest_destroy(manifest);
        return status;
    }
    *manifest_out = manifest;
    return HEFT_OK;
}

/* What is compared: not how a framework calls its tensor. */
static bool is_layout(const char *key)
{
    return strcmp(key, "native") != 0;
}

bool heft__has_layouts(const heft_manifest_t *manifest)
{
    const char *key;
    const char *value;
    for (uint32_t i = 0; i < heft_manifest_get_n_tensors(manifest); i++) {
        for (uint32_t k = 0;
             heft_manifest_query_tensor_attr(manifest, i, k, &key, &value, NULL) == HEFT_OK; k++) {
            if (is_layout(key)) {
                return true;
            }
        }
    }
    return false;
}

/* there: NULL where it is absent. */
static heft_status_t layouts_differ(const heft__compile_t *c, const heft__param_t *param,
                                    const char *key, const char *here, const char *there)
{
    return FAIL(c, param->pos, HEFT_ERR_SHAPE,
                "parameter \"%s\": %s is %s here, %s in the destination", param->name, key, here,
                there != NULL ? there : "absent");
}

static heft_status_t not_stated(const heft__compile_t *c, const heft__param_t *param,
                                const char *key, const char *there)
{
    return FAIL(c, param->pos, HEFT_ERR_SHAPE,
                "parameter \"%s\": %s is %s in the destination, and not stated here (say it with "
                "`attr`)",
                param->name, key, there);
}

/* Numbers from which others follow: compared where both sides give them. */
static bool is_given_by_both(const char *key)
{
    return strcmp(key, "qkv.heads") == 0 || strcmp(key, "qkv.kv_heads") == 0;
}

/* Where an engine cuts a parameter is its own business, unless the recipe says something of it. */
static bool is_compared(const heft_manifest_t *here, uint32_t i, const char *key)
{
    return is_layout(key) && !is_given_by_both(key) &&
           (strncmp(key, "cut.", 4) != 0 || heft_manifest_get_tensor_attr(here, i, key) != NULL);
}

static bool check_layout(heft__compile_t *c, const heft__param_t *param,
                         const heft_manifest_t *destination)
{
    uint32_t here = 0;
    uint32_t there = 0;
    const char *key;
    const char *value;
    if (heft_manifest_find(c->manifest, param->name, &here, NULL) != HEFT_OK ||
        heft_manifest_find(destination, param->name, &there, NULL) != HEFT_OK) {
        return true; /* said before */
    }
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(c->manifest, here, k, &key, &value, NULL) == HEFT_OK;
         k++) {
        const char *other = heft_manifest_get_tensor_attr(destination, there, key);
        bool is_equal = other != NULL ? strcmp(other, value) == 0 : is_given_by_both(key);
        if (!is_equal && !heft__compile_take(c, layouts_differ(c, param, key, value, other))) {
            return false;
        }
    }
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(destination, there, k, &key, &value, NULL) == HEFT_OK;
         k++) {
        if (is_compared(c->manifest, here, key) &&
            heft_manifest_get_tensor_attr(c->manifest, here, key) == NULL &&
            !heft__compile_take(c, not_stated(c, param, key, value))) {
            return false;
        }
    }
    return true;
}

void heft__check_layouts(heft__compile_t *c, const heft_manifest_t *destination)
{
    bool goes_on = !heft__manifest_is_of_files(destination);
    for (size_t i = 0; i < c->n_params && goes_on; i++) {
        goes_on = check_layout(c, &c->params[i], destination);
    }
}

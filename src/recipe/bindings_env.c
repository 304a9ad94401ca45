/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bindings: variables of the environment. A recipe reads only those that were taken into the
 * bindings, so that what it comes to depends on its bindings alone, wherever they travel.
 */
#include "recipe/compile.h"

#include <stdlib.h>
#include <string.h>

const char *heft__bindings_get_env(const heft_bindings_t *bindings, const char *name)
{
    return bindings != NULL ? json_string_value(json_object_get(bindings->env, name)) : NULL;
}

heft_status_t heft_bindings_set_env(heft_bindings_t *bindings, const char *name, const char *value,
                                    heft_error_t *err)
{
    if (!heft__is_let_name(name)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "\"%.60s\" is no name of a variable", name);
    }
    size_t n = strlen(value);
    if (n > 256 || strpbrk(value, "\n\r\"") != NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "the environment's %.80s: at most 256 bytes on one line without "
                               "quotes wanted",
                               name);
    }
    if (bindings->env == NULL) {
        bindings->env = json_object();
    }
    json_t *text = json_string(value);
    if (text == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "the environment's %.80s is no UTF-8", name);
    }
    return json_object_set_new(bindings->env, name, text) == 0 ? HEFT_OK
                                                               : heft__error_nomem(err, n);
}

heft_status_t heft_bindings_load_env(heft_bindings_t *bindings, const heft_recipe_t *recipe,
                                     heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < recipe->n_variables && status == HEFT_OK; i++) {
        const char *value = getenv(recipe->variables[i]);
        if (value != NULL) {
            status = heft_bindings_set_env(bindings, recipe->variables[i], value, err);
        }
    }
    return status;
}

heft_status_t heft__bindings_decode_env(heft_bindings_t *bindings, json_t *object,
                                        heft_error_t *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const char *text = json_string_value(value);
        if (text == NULL || strlen(text) != json_string_length(value)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "bindings: env \"%.60s\" is no text",
                                   name);
        }
        heft_error_t inner = HEFT_ERROR_INIT;
        heft_status_t status = heft_bindings_set_env(bindings, name, text, &inner);
        if (status != HEFT_OK) {
            return heft__error_set(err, status == HEFT_ERR_ARGUMENT ? HEFT_ERR_FORMAT : status,
                                   "bindings: %s", inner.message);
        }
    }
    return HEFT_OK;
}

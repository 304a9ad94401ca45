/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing contracts (docs/formats/contract.md). What people change has a line of its own: each line
 * of the recipe, each exception, each rank, each tensor, each write of a loader.
 */
#include "exec/contract_impl.h"

#include <string.h>

#include "format/format.h"

/* ---- writing ---- */

static void put_lines(heft__text_t *out, const char *text)
{
    heft__text_put(out, "      \"lines\": [\n");
    for (;;) {
        size_t n = strcspn(text, "\n");
        char *line = heft__strndup(text, n);
        out->failed = out->failed || line == NULL;
        heft__text_put(out, "        ");
        heft__text_put_json(out, line != NULL ? line : "");
        heft__text_put(out, text[n] == '\n' ? ",\n" : "\n      ]\n");
        heft__free(line);
        if (text[n] == '\0') {
            return;
        }
        text += n + 1;
    }
}

static void put_exception(heft__text_t *out, const heft_exception_t *e)
{
    heft__text_printf(out, "{\"kind\": \"%s\", \"pattern\": ", heft__exception_kind_name(e->kind));
    heft__text_put_json(out, e->pattern);
    for (int32_t k = 0; k < e->n_dims; k++) {
        heft__text_printf(out, "%s[%lld, %lld]", k > 0 ? ", " : ", \"box\": [",
                          (long long)e->begin[k], (long long)e->end[k]);
    }
    heft__text_put(out, e->n_dims > 0 ? "]" : "");
    heft__text_put(out, ", \"reason\": ");
    heft__text_put_json(out, e->reason);
    heft__text_put(out, e->is_optional != 0 ? ", \"optional\": true}" : "}");
}

static void put_recipe(heft__text_t *out, const heft_contract_t *c)
{
    heft__text_put(out, "    \"recipe\": {\n      \"name\": ");
    heft__text_put_json(out, c->recipe_name);
    heft__text_put(out, ",\n");
    put_lines(out, c->recipe_text);
    heft__text_printf(out, "    },\n    \"bindings\": %s,\n", c->bindings);
}

static void put_loader(heft__text_t *out, const heft_contract_t *c)
{
    heft__text_printf(out, "    \"loader\": {\n      \"first_rank\": %u,\n", c->first_rank);
    heft__text_put(out, c->is_partial ? "      \"partial\": true,\n" : "");
    heft__text_put(out, "      \"attributes\": {");
    for (uint32_t i = 0; i < c->n_attrs; i++) {
        heft__text_put(out, i > 0 ? ",\n        " : "\n        ");
        heft__text_put_json(out, c->attrs[i].key);
        heft__text_put(out, ": ");
        heft__text_put_json(out, c->attrs[i].value);
    }
    heft__text_put(out, c->n_attrs > 0 ? "\n      }\n    },\n" : "}\n    },\n");
}

static void put_mapping(heft__text_t *out, const heft_contract_t *c)
{
    heft__text_put(out, "  \"mapping\": {\n");
    if (c->recipe_name != NULL) {
        put_recipe(out, c);
    } else {
        put_loader(out, c);
    }
    heft__text_put(out, "    \"exceptions\": [");
    for (uint32_t i = 0; i < c->n_exceptions; i++) {
        heft__text_put(out, i > 0 ? ",\n      " : "\n      ");
        put_exception(out, &c->exceptions[i]);
    }
    heft__text_printf(out, "%s],\n    \"plan\": \"%s\",\n    \"ranks\": [",
                      c->n_exceptions > 0 ? "\n    " : "", c->plan);
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        heft__text_printf(out, "%s\n      {\"plan\": \"%s\"", r > 0 ? "," : "", c->ranks[r].plan);
        if (c->n_destinations > 0) {
            heft__text_printf(out, ", \"destination\": %u", c->ranks[r].destination);
        }
        if (c->n_tapes > 0) {
            heft__text_printf(out, ", \"tape\": %u", c->ranks[r].tape);
        }
        heft__text_put(out, "}");
    }
    heft__text_put(out, "\n    ]\n  },\n");
}

static heft_status_t put_manifest(heft__text_t *out, const heft_manifest_t *manifest,
                                  heft_error_t *err)
{
    char *text = NULL;
    heft_status_t status = heft_manifest_encode(manifest, &text, err);
    if (status == HEFT_OK) {
        heft__text_put_n(out, text, strlen(text) - 1); /* without the line's end */
    }
    heft__free(text);
    return status;
}

heft_status_t heft_contract_encode(const heft_contract_t *contract, char **text_out,
                                   heft_error_t *err)
{
    heft__text_t out;
    heft__text_init(&out);
    heft__text_printf(&out, "{\n  \"heft_contract\": %d,\n  \"digest\": \"%s\",\n",
                      heft__contract_get_format(contract), contract->digest);
    if (contract->has_mapping) {
        put_mapping(&out, contract);
    }
    heft__text_put(&out, "  \"manifest\": ");
    heft_status_t status = put_manifest(&out, contract->manifest, err);
    for (uint32_t i = 0; i < contract->n_destinations && status == HEFT_OK; i++) {
        heft__text_put(&out, i > 0 ? ",\n" : ",\n  \"destinations\": [\n");
        status = put_manifest(&out, contract->destinations[i], err);
    }
    heft__text_put(&out, contract->n_destinations > 0 ? "\n  ]" : "");
    for (uint32_t i = 0; i < contract->n_tapes && status == HEFT_OK; i++) {
        heft__text_put(&out, i > 0 ? ",\n" : ",\n  \"tapes\": [\n");
        status = heft__tape_put(&out, contract->tapes[i], false, err);
    }
    heft__text_put(&out, contract->n_tapes > 0 ? "\n  ]\n}\n" : "\n}\n");
    char *text = status == HEFT_OK ? heft__text_take(&out) : NULL;
    heft__text_fini(&out);
    if (text == NULL) {
        return status != HEFT_OK ? status : heft__error_nomem(err, 0);
    }
    *text_out = text;
    return HEFT_OK;
}

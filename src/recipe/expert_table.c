/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of experts: read from JSON into one array of layers by slots, then judged layer by layer.
 * The first thing that does not fit is told, with its layer and slot.
 */
#include "recipe/expert_table.h"

#include <string.h>

#define MAX_PLACES (1 << 24) /* layers times slots */

typedef struct table {
    uint32_t n_layers, n_slots, n_experts;
    bool is_counted; /* experts were not said: as many as the highest number of all asks for */
    int32_t *expert; /* of layer l, slot s: [l * n_slots + s] */
} table_t;

#define REFUSE(err, status, ...) \
    heft__error_set((err), HEFT_ERR_##status, "expert table: " __VA_ARGS__)

/* ---- reading ---- */

/* Slots of a layer: its own list, or those of its ranks one after the other. */
static size_t count_slots(const json_t *layer)
{
    if (!json_is_array(json_array_get(layer, 0))) {
        return json_array_size(layer);
    }
    size_t n = 0;
    for (size_t r = 0; r < json_array_size(layer); r++) {
        n += json_array_size(json_array_get(layer, r));
    }
    return n;
}

static heft_status_t read_slots(const json_t *list, size_t layer, size_t first, int32_t *out,
                                heft_error_t *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t value = json_integer_value(item);
        if (!json_is_integer(item)) {
            return REFUSE(err, FORMAT, "layer %zu slot %zu is no integer", layer, first + i);
        }
        if (value < 0 || value > INT32_MAX) {
            return REFUSE(err, ARGUMENT,
                          "layer %zu slot %zu names expert %lld: none has that "
                          "number",
                          layer, first + i, (long long)value);
        }
        out[i] = (int32_t)value;
    }
    return HEFT_OK;
}

static heft_status_t read_ranks(const json_t *ranks, const heft_expert_table_opts_t *opts,
                                size_t layer, int32_t *out, heft_error_t *err)
{
    const size_t n = json_array_size(ranks);
    const size_t share = json_array_size(json_array_get(ranks, 0));
    if (opts->n_ranks > 0 && n != opts->n_ranks) {
        return REFUSE(err, SHAPE, "layer %zu has lists of %zu ranks, there are %u", layer, n,
                      opts->n_ranks);
    }
    heft_status_t status = HEFT_OK;
    for (size_t r = 0; r < n && status == HEFT_OK; r++) {
        const json_t *list = json_array_get(ranks, r);
        if (!json_is_array(list)) {
            return REFUSE(err, FORMAT, "layer %zu rank %zu is no list", layer, r);
        }
        if (json_array_size(list) != share) {
            return REFUSE(err, SHAPE, "layer %zu: rank %zu has %zu slots, rank 0 has %zu", layer, r,
                          json_array_size(list), share);
        }
        status = read_slots(list, layer, r * share, out + r * share, err);
    }
    return status;
}

static heft_status_t read_layer(const json_t *layer, const heft_expert_table_opts_t *opts, size_t l,
                                table_t *t, heft_error_t *err)
{
    if (!json_is_array(layer)) {
        return REFUSE(err, FORMAT, "layer %zu is no list", l);
    }
    const size_t n = count_slots(layer);
    if (n != t->n_slots) {
        return REFUSE(err, SHAPE, "layer %zu has %zu slots, expected %u", l, n, t->n_slots);
    }
    int32_t *out = t->expert + l * t->n_slots;
    return json_is_array(json_array_get(layer, 0)) ? read_ranks(layer, opts, l, out, err)
                                                   : read_slots(layer, l, 0, out, err);
}

static heft_status_t read_sizes(const json_t *rows, const heft_expert_table_opts_t *opts,
                                table_t *t, heft_error_t *err)
{
    const size_t n_layers = json_array_size(rows);
    const size_t n_slots = opts->n_slots > 0 ? opts->n_slots : count_slots(json_array_get(rows, 0));
    if (!json_is_array(rows) || n_layers == 0 || n_slots == 0) {
        return REFUSE(err, FORMAT, "a list is wanted that has a list of slots for each layer");
    }
    if (opts->n_layers > 0 && n_layers != opts->n_layers) {
        return REFUSE(err, SHAPE, "%zu layers, the model has %u with experts", n_layers,
                      opts->n_layers);
    }
    if (n_layers > MAX_PLACES || n_slots > MAX_PLACES / n_layers) {
        return REFUSE(err, LIMIT, "%zu layers of %zu slots, at most %d places", n_layers, n_slots,
                      MAX_PLACES);
    }
    if (opts->n_ranks > 0 && n_slots % opts->n_ranks != 0) {
        return REFUSE(err, SHAPE, "%zu slots do not divide by %u ranks", n_slots, opts->n_ranks);
    }
    t->n_layers = (uint32_t)n_layers;
    t->n_slots = (uint32_t)n_slots;
    return HEFT_OK;
}

/* ---- judging ---- */

/* Where the highest number is. */
static size_t find_highest(const table_t *t)
{
    size_t at = 0;
    for (size_t i = 0; i < (size_t)t->n_layers * t->n_slots; i++) {
        at = t->expert[i] > t->expert[at] ? i : at;
    }
    return at;
}

/* Where nobody said how many experts there are, the slot that asks for so many may be what is
 * wrong. */
static heft_status_t missing_error(const table_t *t, uint32_t l, uint32_t e, heft_error_t *err)
{
    const size_t at = find_highest(t);
    if (!t->is_counted) {
        return REFUSE(err, ARGUMENT, "layer %u: expert %u of %u is in none of its %u slots", l, e,
                      t->n_experts, t->n_slots);
    }
    return REFUSE(err, ARGUMENT,
                  "layer %u: expert %u is in none of its %u slots, and layer %zu slot %zu names "
                  "expert %d",
                  l, e, t->n_slots, at / t->n_slots, at % t->n_slots, t->expert[at]);
}

/* seen: one more than the first slot of each expert; 0: none yet. */
static heft_status_t judge_layer(const table_t *t, uint32_t l, bool once, uint32_t *seen,
                                 heft_error_t *err)
{
    const int32_t *slots = t->expert + (size_t)l * t->n_slots;
    memset(seen, 0, t->n_experts * sizeof *seen);
    for (uint32_t s = 0; s < t->n_slots; s++) {
        const uint32_t e = (uint32_t)slots[s];
        if (e >= t->n_experts) {
            return REFUSE(err, ARGUMENT, "layer %u slot %u names expert %u, there are %u (0 to %u)",
                          l, s, e, t->n_experts, t->n_experts - 1);
        }
        if (once && seen[e] > 0) {
            return REFUSE(err, ARGUMENT,
                          "layer %u: expert %u is in slots %u and %u, and may be "
                          "in one",
                          l, e, seen[e] - 1, s);
        }
        seen[e] = seen[e] > 0 ? seen[e] : s + 1;
    }
    for (uint32_t e = 0; e < t->n_experts; e++) {
        if (seen[e] == 0) {
            return missing_error(t, l, e, err);
        }
    }
    return HEFT_OK;
}

static heft_status_t judge(table_t *t, const heft_expert_table_opts_t *opts, heft_error_t *err)
{
    t->is_counted = opts->n_experts == 0;
    t->n_experts = t->is_counted ? (uint32_t)t->expert[find_highest(t)] + 1 : opts->n_experts;
    if (t->n_experts > MAX_PLACES) {
        return REFUSE(err, LIMIT, "%u experts, at most %d", t->n_experts, MAX_PLACES);
    }
    uint32_t *seen = heft__calloc(t->n_experts, sizeof *seen);
    if (seen == NULL) {
        return heft__error_nomem(err, t->n_experts * sizeof *seen);
    }
    heft_status_t status = HEFT_OK;
    for (uint32_t l = 0; l < t->n_layers && status == HEFT_OK; l++) {
        status = judge_layer(t, l, opts->once != 0, seen, err);
    }
    heft__free(seen);
    return status;
}

static heft_status_t read_table(const json_t *rows, const heft_expert_table_opts_t *opts,
                                table_t *t, heft_error_t *err)
{
    heft_status_t status = read_sizes(rows, opts, t, err);
    if (status != HEFT_OK) {
        return status;
    }
    t->expert = heft__calloc((size_t)t->n_layers * t->n_slots, sizeof *t->expert);
    if (t->expert == NULL) {
        return heft__error_nomem(err, (size_t)t->n_layers * t->n_slots * sizeof *t->expert);
    }
    for (size_t l = 0; l < t->n_layers && status == HEFT_OK; l++) {
        status = read_layer(json_array_get(rows, l), opts, l, t, err);
    }
    return status == HEFT_OK ? judge(t, opts, err) : status;
}

heft_status_t heft__expert_rows_check(const json_t *rows, const heft_expert_table_opts_t *opts,
                                      heft_error_t *err)
{
    table_t table = { .n_layers = 0 };
    if (json_is_array(json_array_get(json_array_get(rows, 0), 0))) {
        return REFUSE(err, FORMAT, "a recipe takes the slots of a layer in one list, not by ranks");
    }
    heft_status_t status = read_table(rows, opts, &table, err);
    heft__free(table.expert);
    return status;
}

/* ---- whole texts ---- */

const json_t *heft__expert_rows_find(const json_t *root)
{
    const json_t *named = json_object_get(root, "physical_to_logical_map");
    return json_object_size(root) == 1 && named != NULL ? named : root;
}

static void put_table(const table_t *t, heft__text_t *text)
{
    for (uint32_t l = 0; l < t->n_layers; l++) {
        heft__text_put(text, l == 0 ? "[[" : ",[");
        for (uint32_t s = 0; s < t->n_slots; s++) {
            heft__text_printf(text, s == 0 ? "%d" : ",%d", t->expert[(size_t)l * t->n_slots + s]);
        }
        heft__text_put(text, "]");
    }
    heft__text_put(text, "]");
}

static void digest_of(const heft__text_t *text, char out[72])
{
    heft__sha256_t sha;
    uint8_t digest[32];
    heft__sha256_init(&sha);
    heft__sha256_update(&sha, text->data, text->len);
    heft__sha256_final(&sha, digest);
    heft__hex(digest, sizeof digest, out);
}

static heft_status_t give(const table_t *t, heft_expert_table_info_t *info_out, char **text_out,
                          heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    put_table(t, &text);
    char *taken = NULL;
    if (!text.failed) {
        *info_out = (heft_expert_table_info_t){ .n_layers = t->n_layers,
                                                .n_slots = t->n_slots,
                                                .n_experts = t->n_experts };
        digest_of(&text, info_out->digest);
        taken = text_out != NULL ? heft__text_take(&text) : NULL;
    }
    const bool is_failed = text.failed || (text_out != NULL && taken == NULL);
    heft__text_fini(&text);
    if (is_failed) {
        return heft__error_nomem(err, (size_t)t->n_layers * t->n_slots);
    }
    if (text_out != NULL) {
        *text_out = taken;
    }
    return HEFT_OK;
}

heft_status_t heft_expert_table_check(const char *json, size_t n,
                                      const heft_expert_table_opts_t *opts,
                                      heft_expert_table_info_t *info_out, char **text_out,
                                      heft_error_t *err)
{
    heft_expert_table_opts_t loaded = HEFT_EXPERT_TABLE_OPTS_INIT;
    heft_status_t status = heft__opts_load(opts, &loaded, sizeof loaded, "expert table", err);
    if (status == HEFT_OK) {
        status =
            heft__opts_check_reserved(loaded.reserved, sizeof loaded.reserved, "expert table", err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (json == NULL || info_out == NULL) {
        return REFUSE(err, ARGUMENT, "a text and room for what it says are required");
    }
    json_error_t why;
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        return json_error_code(&why) == json_error_out_of_memory
                   ? heft__error_nomem(err, n)
                   : REFUSE(err, FORMAT, "line %d column %d: %.120s", why.line, why.column,
                            why.text);
    }
    table_t table = { .n_layers = 0 };
    status = read_table(heft__expert_rows_find(root), &loaded, &table, err);
    if (status == HEFT_OK) {
        status = give(&table, info_out, text_out, err);
    }
    heft__free(table.expert);
    json_decref(root);
    return status;
}

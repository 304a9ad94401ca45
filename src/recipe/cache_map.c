/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's map of layer names to slots of KV caches. Entries are kept sorted by layer, one for
 * each; names without a layer are kept for whoever wants to see them.
 */
#include "heft/cache.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define MAX_NUMBER INT32_MAX
#define MAX_LAYERS (1 << 20)

typedef struct entry {
    int64_t layer;
    int64_t slot;
} entry_t;

struct heft_cache_map {
    heft__arena_t arena;
    entry_t *entries;
    size_t n, cap;
    const char **skipped;
    size_t n_skipped, cap_skipped;
    bool is_positional;
};

/* ---- the layer of a name ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

static bool is_word(char c)
{
    return is_letter(c) || is_digit(c) || c == '_';
}

/* The number at `at`, which is a digit; false beyond MAX_NUMBER. */
static bool parse_number(const char *at, int64_t *out)
{
    int64_t value = 0;
    for (; is_digit(*at); at++) {
        value = value * 10 + (*at - '0');
        if (value > MAX_NUMBER) {
            return false;
        }
    }
    *out = value;
    return true;
}

/* The digits behind `layer.`, `layers_`, ... at `at`, if that is a token; else NULL. */
static const char *behind_layer(const char *name, const char *at)
{
    bool begins = at == name || !(is_letter(at[-1]) || is_digit(at[-1]));
    if (!begins || strncmp(at, "layer", 5) != 0) {
        return NULL;
    }
    at += 5;
    at += *at == 's' ? 1 : 0;
    if ((*at != '.' && *at != '_') || !is_digit(at[1])) {
        return NULL;
    }
    const char *digits = at + 1;
    size_t n = strspn(digits, "0123456789");
    return is_letter(digits[n]) ? NULL : digits;
}

/* An integer with no letter, digit or underscore beside it; else NULL. */
static const char *standing_alone(const char *name, const char *at)
{
    bool begins = is_digit(*at) && (at == name || !is_word(at[-1]));
    return begins && !is_word(at[strspn(at, "0123456789")]) ? at : NULL;
}

/* The candidates of one kind: how many, and the first. */
static uint32_t find_candidates(const char *name,
                                const char *(*candidate)(const char *name, const char *at),
                                const char **first_out)
{
    uint32_t n = 0;
    for (const char *at = name; *at != '\0'; at++) {
        const char *digits = candidate(name, at);
        if (digits != NULL && n++ == 0) {
            *first_out = digits;
        }
    }
    return n;
}

/* Where the number of the layer stands in a name; NULL: the name has no layer. */
static heft_status_t find_layer(const char *name, const char **digits_out, heft_error_t *err)
{
    *digits_out = NULL;
    if (name[0] != '\0' && name[strspn(name, "0123456789")] == '\0') {
        *digits_out = name;
        return HEFT_OK;
    }
    uint32_t n = find_candidates(name, behind_layer, digits_out);
    if (n == 0) {
        n = find_candidates(name, standing_alone, digits_out);
    }
    return n <= 1 ? HEFT_OK
                  : heft__error_set(err, HEFT_ERR_FORMAT,
                                    "cache map: \"%.120s\" has %u candidates for its layer", name,
                                    (unsigned)n);
}

/* ---- entries ---- */

static heft_status_t add_entry(heft_cache_map_t *map, int64_t layer, int64_t slot,
                               heft_error_t *err)
{
    void *items = map->entries;
    if (!heft__grow(&items, &map->cap, map->n + 1, sizeof map->entries[0])) {
        return heft__error_nomem(err, (map->n + 1) * sizeof map->entries[0]);
    }
    map->entries = items;
    map->entries[map->n++] = (entry_t){ .layer = layer, .slot = slot };
    return HEFT_OK;
}

static heft_status_t add_skipped(heft_cache_map_t *map, const char *name, heft_error_t *err)
{
    void *items = map->skipped;
    const char *copy = heft__arena_strndup(&map->arena, name, strlen(name));
    if (copy == NULL ||
        !heft__grow(&items, &map->cap_skipped, map->n_skipped + 1, sizeof(char *))) {
        return heft__error_nomem(err, strlen(name));
    }
    map->skipped = items;
    map->skipped[map->n_skipped++] = copy;
    return HEFT_OK;
}

static bool is_index(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= MAX_NUMBER;
}

static heft_status_t add_name(heft_cache_map_t *map, const char *name, const json_t *slot,
                              heft_error_t *err)
{
    const char *digits = NULL;
    int64_t layer = 0;
    if (!is_index(slot)) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "cache map: the slot of \"%.120s\" is no integer from 0 to %d", name,
                               MAX_NUMBER);
    }
    heft_status_t status = find_layer(name, &digits, err);
    if (status != HEFT_OK) {
        return status;
    }
    if (digits == NULL) {
        return add_skipped(map, name, err);
    }
    if (!parse_number(digits, &layer)) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "cache map: the layer of \"%.120s\" is beyond %d", name, MAX_NUMBER);
    }
    return add_entry(map, layer, json_integer_value(slot), err);
}

static heft_status_t add_pair(heft_cache_map_t *map, const json_t *pair, size_t i,
                              heft_error_t *err)
{
    const json_t *key = json_array_get(pair, 0);
    const json_t *slot = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || (!is_index(key) && !json_is_string(key))) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "cache map: item %zu is no pair [layer or name, slot]", i);
    }
    if (json_is_string(key)) {
        return add_name(map, json_string_value(key), slot, err);
    }
    if (!is_index(slot)) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "cache map: the slot of layer %lld is no integer from 0 to %d",
                               (long long)json_integer_value(key), MAX_NUMBER);
    }
    return add_entry(map, json_integer_value(key), json_integer_value(slot), err);
}

static int by_layer(const void *a, const void *b)
{
    const entry_t *x = a;
    const entry_t *y = b;
    int order = (x->layer > y->layer) - (x->layer < y->layer);
    return order != 0 ? order : (x->slot > y->slot) - (x->slot < y->slot);
}

/* Sort; two names of one layer must have one slot. */
static heft_status_t finish(heft_cache_map_t *map, heft_error_t *err)
{
    size_t n = 0;
    if (map->n > 1) {
        qsort(map->entries, map->n, sizeof map->entries[0], by_layer);
    }
    for (size_t i = 0; i < map->n; i++) {
        const entry_t *last = n > 0 ? &map->entries[n - 1] : NULL;
        if (last == NULL || last->layer != map->entries[i].layer) {
            map->entries[n++] = map->entries[i];
        } else if (last->slot != map->entries[i].slot) {
            return heft__error_set(
                err, HEFT_ERR_FORMAT, "cache map: layer %lld has the slots %lld and %lld",
                (long long)last->layer, (long long)last->slot, (long long)map->entries[i].slot);
        }
    }
    map->n = n;
    return HEFT_OK;
}

/* ---- life ---- */

static heft_status_t new_map(heft_cache_map_t **map_out, heft_error_t *err)
{
    heft_cache_map_t *map = heft__calloc(1, sizeof *map);
    if (map == NULL) {
        return heft__error_nomem(err, sizeof *map);
    }
    heft__arena_init(&map->arena, 1024);
    *map_out = map;
    return HEFT_OK;
}

void heft_cache_map_destroy(heft_cache_map_t *map)
{
    if (map == NULL) {
        return;
    }
    heft__arena_fini(&map->arena);
    heft__free(map->entries);
    heft__free(map->skipped);
    heft__free(map);
}

static heft_status_t fill(heft_cache_map_t *map, json_t *root, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    const char *name;
    json_t *value;
    if (!json_is_object(root) && !json_is_array(root)) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "cache map: an object of slots, or an array of pairs, wanted");
    }
    json_object_foreach(root, name, value)
    {
        status = status == HEFT_OK ? add_name(map, name, value, err) : status;
    }
    for (size_t i = 0; i < json_array_size(root) && status == HEFT_OK; i++) {
        status = add_pair(map, json_array_get(root, i), i, err);
    }
    return status == HEFT_OK ? finish(map, err) : status;
}

static heft_status_t parse(const char *text, size_t n, json_t **root_out, heft_error_t *err)
{
    json_error_t error;
    *root_out = NULL;
    if (text == NULL) {
        return HEFT_OK;
    }
    *root_out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (*root_out != NULL) {
        return HEFT_OK;
    }
    return json_error_code(&error) == json_error_out_of_memory
               ? heft__error_nomem(err, n)
               : heft__error_set(err, HEFT_ERR_FORMAT, "cache map: line %d, byte %d: %s",
                                 error.line, error.position, error.text);
}

heft_status_t heft_cache_map_decode(const char *text, size_t n, int is_hybrid,
                                    heft_cache_map_t **map_out, heft_error_t *err)
{
    json_t *root;
    heft_cache_map_t *map = NULL;
    heft_status_t status = parse(text, n, &root, err);
    bool is_none = root == NULL || json_is_null(root);
    if (status == HEFT_OK && is_none && is_hybrid != 0) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT,
                                 "a hybrid model without a cache map: its layers have no slots of "
                                 "their own number");
    }
    if (status == HEFT_OK) {
        status = new_map(&map, err);
    }
    if (status == HEFT_OK) {
        map->is_positional = is_none;
        status = is_none ? HEFT_OK : fill(map, root, err);
    }
    json_decref(root);
    if (status != HEFT_OK) {
        heft_cache_map_destroy(map);
        return status;
    }
    *map_out = map;
    return HEFT_OK;
}

heft_status_t heft_cache_map_create(int64_t n_layers, int64_t cycle, heft_cache_map_t **map_out,
                                    heft_error_t *err)
{
    heft_cache_map_t *map = NULL;
    if (n_layers < 1 || n_layers > MAX_LAYERS || cycle < 1 || n_layers % cycle != 0) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "%lld layers in cycles of %lld: 1 to %d layers, a multiple of the "
                               "cycle, wanted",
                               (long long)n_layers, (long long)cycle, MAX_LAYERS);
    }
    heft_status_t status = new_map(&map, err);
    for (int64_t i = 0; i < n_layers && status == HEFT_OK; i++) {
        bool is_last = i % cycle == cycle - 1;
        int64_t slot = is_last ? n_layers - n_layers / cycle + i / cycle : i - i / cycle;
        status = add_entry(map, i, slot, err);
    }
    if (status != HEFT_OK) {
        heft_cache_map_destroy(map);
        return status;
    }
    *map_out = map;
    return HEFT_OK;
}

/* ---- asking ---- */

int heft_cache_map_is_positional(const heft_cache_map_t *map)
{
    return map->is_positional ? 1 : 0;
}

uint32_t heft_cache_map_get_n(const heft_cache_map_t *map)
{
    return (uint32_t)map->n;
}

heft_status_t heft_cache_map_query(const heft_cache_map_t *map, uint32_t i, int64_t *layer_out,
                                   int64_t *slot_out, heft_error_t *err)
{
    if (i >= map->n) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "entry %u of %zu", i, map->n);
    }
    *layer_out = map->entries[i].layer;
    *slot_out = map->entries[i].slot;
    return HEFT_OK;
}

uint32_t heft_cache_map_get_n_skipped(const heft_cache_map_t *map)
{
    return (uint32_t)map->n_skipped;
}

const char *heft_cache_map_get_skipped(const heft_cache_map_t *map, uint32_t i)
{
    return i < map->n_skipped ? map->skipped[i] : NULL;
}

/* "0-3, 7", as far as there is room. */
static void list_layers(const heft_cache_map_t *map, char *out, size_t bytes)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0, n; i < map->n; i += n) {
        char item[64];
        int64_t first = map->entries[i].layer;
        for (n = 1; i + n < map->n && map->entries[i + n].layer == first + (int64_t)n; n++) {
        }
        (void)snprintf(item, sizeof item, n > 1 ? "%lld-%lld" : "%lld", (long long)first,
                       (long long)first + (long long)n - 1);
        if (len + strlen(item) + 8 > bytes) {
            (void)snprintf(out + len, bytes - len, ", ...");
            return;
        }
        len += (size_t)snprintf(out + len, bytes - len, "%s%s", len > 0 ? ", " : "", item);
    }
}

heft_status_t heft_cache_map_find(const heft_cache_map_t *map, int64_t layer, int64_t *slot_out,
                                  heft_error_t *err)
{
    if (map->is_positional && layer >= 0) {
        *slot_out = layer;
        return HEFT_OK;
    }
    size_t lo = 0;
    size_t hi = map->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (map->entries[mid].layer < layer) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < map->n && map->entries[lo].layer == layer) {
        *slot_out = map->entries[lo].slot;
        return HEFT_OK;
    }
    char layers[128];
    list_layers(map, layers, sizeof layers);
    return heft__error_set(err, HEFT_ERR_NOT_FOUND, "layer %lld is not in the cache map: it has %s",
                           (long long)layer, map->n > 0 ? layers : "no layers");
}

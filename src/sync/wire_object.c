/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire: the contents of objects: contracts, plan digests, parameter digests, live digests.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "sync/wire_json.h"

/* ---- contract ---- */

typedef struct contract_message {
    uint32_t format;
    uint32_t rank;
    uint32_t ranks;
    uint32_t first_rank;
    char mapping[HEFT__DIGEST_SIZE];
} contract_message_t;

#define AT(member) offsetof(contract_message_t, member)
static const heft__field_t contract_fields[] = {
    { "format", HEFT__FIELD_U32, true, AT(format), 1, 1, NULL },
    { "recipe", HEFT__FIELD_OBJECT, false, 0, 0, 0, NULL },
    { "bindings", HEFT__FIELD_OBJECT, false, 0, 0, 0, NULL },
    { "mapping", HEFT__FIELD_HEX, false, AT(mapping), 0, 64, NULL },
    { "rank", HEFT__FIELD_U32, true, AT(rank), 0, INT32_MAX, NULL },
    { "ranks", HEFT__FIELD_U32, true, AT(ranks), 1, INT32_MAX, NULL },
    { "first_rank", HEFT__FIELD_U32, false, AT(first_rank), 0, INT32_MAX, NULL },
    HEFT__FIELD_END
};
#undef AT

static const heft__field_t recipe_fields[] = {
    { "name", HEFT__FIELD_ANY_TEXT, true, 0, 0, 0, NULL },
    { "text", HEFT__FIELD_ANY_TEXT, true, 0, 0, 0, NULL },
    HEFT__FIELD_END
};

void heft__contract_fini(heft__contract_t *contract)
{
    heft__free(contract->recipe_name);
    heft__free(contract->recipe_text);
    heft__free(contract->bindings);
    heft__free(contract->mapping);
    memset(contract, 0, sizeof *contract);
}

static heft_status_t encode_traced(const heft__contract_t *msg, char **text_out, heft_error_t *err)
{
    json_t *root = json_pack("{s:i,s:s,s:I,s:I,s:I}", "format", 1, "mapping", msg->mapping, "rank",
                             (json_int_t)msg->rank, "ranks", (json_int_t)msg->ranks, "first_rank",
                             (json_int_t)msg->first_rank);
    if (root == NULL) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "contract: its digest is not UTF-8, or out of memory");
    }
    return heft__json_finish(root, text_out, err);
}

heft_status_t heft__contract_encode(const heft__contract_t *msg, char **text_out, heft_error_t *err)
{
    if (msg->mapping != NULL) {
        return encode_traced(msg, text_out, err);
    }
    json_t *bindings;
    heft_status_t status =
        heft__json_parse(msg->bindings, strlen(msg->bindings), "bindings", &bindings, err);
    if (status != HEFT_OK) {
        return status;
    }
    json_t *root = json_pack("{s:i,s:{s:s,s:s},s:o,s:I,s:I}", "format", 1, "recipe", "name",
                             msg->recipe_name, "text", msg->recipe_text, "bindings", bindings,
                             "rank", (json_int_t)msg->rank, "ranks", (json_int_t)msg->ranks);
    if (root == NULL) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "contract: recipe name or text is not UTF-8, or out of memory");
    }
    return heft__json_finish(root, text_out, err);
}

static void compute_family(heft__contract_t *contract)
{
    heft__sha256_t hash;
    uint8_t digest[32];
    heft__sha256_init(&hash);
    heft__sha256_update_text(&hash, "heft contract family 1");
    if (contract->mapping != NULL) {
        heft__sha256_update_text(&hash, contract->mapping);
    } else {
        heft__sha256_update_text(&hash, contract->recipe_text);
        heft__sha256_update_text(&hash, contract->bindings);
    }
    heft__sha256_update_u64(&hash, contract->ranks);
    heft__sha256_final(&hash, digest);
    heft__hex(digest, sizeof digest, contract->family);
}

static heft_status_t read_recipe(json_t *root, heft__contract_t *out, heft_error_t *err)
{
    contract_message_t unused;
    json_t *recipe = json_object_get(root, "recipe");
    heft_status_t status = heft__json_read(recipe, recipe_fields, "contract recipe", &unused, err);
    if (status != HEFT_OK) {
        return status;
    }
    out->recipe_name = heft__strdup(json_string_value(json_object_get(recipe, "name")));
    out->recipe_text = heft__strdup(json_string_value(json_object_get(recipe, "text")));
    out->bindings = heft__json_sorted_text(json_object_get(root, "bindings"));
    return out->recipe_name != NULL && out->recipe_text != NULL && out->bindings != NULL
               ? HEFT_OK
               : heft__error_nomem(err, 0);
}

static heft_status_t read_mapping(json_t *root, const char *mapping, heft__contract_t *out,
                                  heft_error_t *err)
{
    const bool has_recipe = json_object_get(root, "recipe") != NULL;
    const bool has_bindings = json_object_get(root, "bindings") != NULL;
    if (mapping[0] != '\0' ? has_recipe || has_bindings : !has_recipe || !has_bindings) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "contract: recipe and bindings, or mapping: one of both");
    }
    if (mapping[0] == '\0') {
        return read_recipe(root, out, err);
    }
    out->mapping = heft__strdup(mapping);
    return out->mapping != NULL ? HEFT_OK : heft__error_nomem(err, HEFT__DIGEST_SIZE);
}

static heft_status_t read_contract(json_t *root, heft__contract_t *out, heft_error_t *err)
{
    contract_message_t head = { .format = 0 };
    heft_status_t status = heft__json_read(root, contract_fields, "contract", &head, err);
    if (status == HEFT_OK) {
        status = read_mapping(root, head.mapping, out, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    if (head.rank < head.first_rank || head.rank - head.first_rank >= head.ranks) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "contract: rank %u of %u ranks from %u",
                               head.rank, head.ranks, head.first_rank);
    }
    if (out->mapping == NULL && head.first_rank != 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT, "contract: a recipe's first_rank is %u, not 0",
                               head.first_rank);
    }
    out->rank = head.rank;
    out->ranks = head.ranks;
    out->first_rank = head.first_rank;
    compute_family(out);
    return HEFT_OK;
}

heft_status_t heft__contract_decode(const char *text, size_t n, heft__contract_t *out,
                                    heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, "contract", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    heft__contract_t contract;
    memset(&contract, 0, sizeof contract);
    status = read_contract(root, &contract, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__contract_fini(&contract);
        return status;
    }
    *out = contract;
    return HEFT_OK;
}

/* ---- {"format": 1, KEY: {...}} ---- */

static heft_status_t open_map(const char *text, size_t n, const char *what, const char *key,
                              json_t **root_out, heft_error_t *err)
{
    const heft__field_t fields[] = { { "format", HEFT__FIELD_U32, true, 0, 1, 1, NULL },
                                     { key, HEFT__FIELD_OBJECT, true, 0, 0, 0, NULL },
                                     HEFT__FIELD_END };
    uint32_t format = 0;
    json_t *root = NULL;
    heft_status_t status = heft__json_parse(text, n, what, &root, err);
    if (status == HEFT_OK) {
        status = heft__json_read(root, fields, what, &format, err);
        if (status != HEFT_OK) {
            json_decref(root);
        } else {
            *root_out = root;
        }
    }
    return status;
}

/* {"format": 1, KEY: map}; steals map, which may be NULL. */
static heft_status_t finish_map(const char *key, json_t *map, char **text_out, heft_error_t *err)
{
    json_t *root = map == NULL ? NULL : json_pack("{s:i,s:o}", "format", 1, key, map);
    return heft__json_finish(root, text_out, err);
}

heft_status_t heft__plans_encode(const heft__plan_entry_t *entries, uint32_t n, char **text_out,
                                 heft_error_t *err)
{
    json_t *map = json_object();
    for (uint32_t i = 0; map != NULL && i < n; i++) {
        if (!heft__json_put(map, entries[i].member, json_string(entries[i].plan))) {
            json_decref(map);
            map = NULL;
        }
    }
    return finish_map("plans", map, text_out, err);
}

static heft_status_t read_plans(json_t *map, heft__plan_entry_t *entries, heft_error_t *err)
{
    uint32_t i = 0;
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it), i++) {
        const char *id = json_object_iter_key(it);
        const char *plan = json_string_value(json_object_iter_value(it));
        char shown[64];
        if (strlen(id) >= HEFT__ID_SIZE || plan == NULL ||
            !heft__is_hex(plan, HEFT__DIGEST_SIZE - 1)) {
            return heft__error_set(err, HEFT_ERR_FORMAT, "plans: entry \"%s\" is not a digest",
                                   heft__json_show(id, shown));
        }
        memcpy(entries[i].member, id, strlen(id) + 1);
        memcpy(entries[i].plan, plan, HEFT__DIGEST_SIZE);
    }
    return HEFT_OK;
}

heft_status_t heft__plans_decode(const char *text, size_t n, heft__plan_entry_t **entries_out,
                                 uint32_t *n_out, heft_error_t *err)
{
    json_t *root = NULL;
    heft_status_t status = open_map(text, n, "plans", "plans", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    json_t *map = json_object_get(root, "plans");
    const size_t count = json_object_size(map);
    heft__plan_entry_t *entries = heft__calloc(count > 0 ? count : 1, sizeof *entries);
    status = entries == NULL ? heft__error_nomem(err, count * sizeof *entries)
                             : read_plans(map, entries, err);
    json_decref(root);
    if (status != HEFT_OK) {
        heft__free(entries);
        return status;
    }
    *entries_out = entries;
    *n_out = (uint32_t)count;
    return HEFT_OK;
}

/* ---- lists of 16-digit CRC-64 ---- */

static json_t *params_json(const uint64_t *params, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < n; i++) {
        char hex[17];
        (void)snprintf(hex, sizeof hex, "%016" PRIx64, params[i]);
        if (json_array_append_new(list, json_string(hex)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static uint64_t hex_value(const char *hex)
{
    uint64_t value = 0;
    for (; *hex != '\0'; hex++) {
        const int digit = *hex <= '9' ? *hex - '0' : *hex - 'a' + 10;
        value = value << 4 | (uint64_t)digit;
    }
    return value;
}

static heft_status_t read_params(json_t *list, const char *what, uint64_t **params_out,
                                 uint32_t *n_out, heft_error_t *err)
{
    const size_t n = json_array_size(list);
    uint64_t *params = heft__calloc(n > 0 ? n : 1, sizeof *params);
    if (params == NULL) {
        return heft__error_nomem(err, n * sizeof *params);
    }
    for (size_t i = 0; i < n; i++) {
        const char *hex = json_string_value(json_array_get(list, i));
        if (hex == NULL || !heft__is_hex(hex, 16)) {
            heft__free(params);
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "%s: parameter %zu is not 16 lower-case hex digits", what, i);
        }
        params[i] = hex_value(hex);
    }
    *params_out = params;
    *n_out = (uint32_t)n;
    return HEFT_OK;
}

/* What stands beside the map of digests. */
typedef struct digests_head {
    uint32_t format;
    uint32_t sender;
} digests_head_t;

static const heft__field_t digests_fields[] = {
    { "format", HEFT__FIELD_U32, true, offsetof(digests_head_t, format), 1, 1, NULL },
    { "sender", HEFT__FIELD_U32, false, offsetof(digests_head_t, sender), 0, UINT32_MAX - 1, NULL },
    { "params", HEFT__FIELD_OBJECT, true, 0, 0, 0, NULL },
    HEFT__FIELD_END
};

heft_status_t heft__digests_encode(const heft__digest_set_t *sets, uint32_t n, char **text_out,
                                   heft_error_t *err)
{
    json_t *map = json_object();
    for (uint32_t i = 0; map != NULL && i < n; i++) {
        if (!heft__json_put(map, sets[i].plan, params_json(sets[i].params, sets[i].n_params))) {
            json_decref(map);
            map = NULL;
        }
    }
    const digests_head_t head = { .format = 1, .sender = n > 0 ? sets[0].sender : 0 };
    json_t *root = map != NULL ? json_object() : NULL;
    if (root == NULL || heft__json_write(root, digests_fields, &head, err) != HEFT_OK ||
        !heft__json_put(root, "params", json_incref(map))) {
        json_decref(root);
        root = NULL;
    }
    json_decref(map);
    return heft__json_finish(root, text_out, err);
}

heft_status_t heft__digests_decode(const char *text, size_t n, const char *plan,
                                   heft__digest_set_t *out, heft_error_t *err)
{
    json_t *root = NULL;
    digests_head_t head = { .sender = 0 };
    heft__digest_set_t set;
    heft_status_t status = heft__json_parse(text, n, "parameter digests", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__json_read(root, digests_fields, "parameter digests", &head, err);
    if (status != HEFT_OK) {
        json_decref(root);
        return status;
    }
    memset(&set, 0, sizeof set);
    set.sender = head.sender;
    json_t *list = json_object_get(json_object_get(root, "params"), plan);
    if (list == NULL) {
        status = heft__error_set(err, HEFT_ERR_NOT_FOUND,
                                 "parameter digests: none for plan %.16s...", plan);
    } else if (!json_is_array(list)) {
        status = heft__error_set(err, HEFT_ERR_FORMAT, "parameter digests: plan %.16s...: no list",
                                 plan);
    } else {
        status = read_params(list, "parameter digests", &set.params, &set.n_params, err);
    }
    json_decref(root);
    if (status == HEFT_OK) {
        (void)snprintf(set.plan, sizeof set.plan, "%s", plan);
        *out = set;
    }
    return status;
}

/* ---- live digests ---- */

typedef struct live_message {
    uint32_t format;
    heft__live_t live;
} live_message_t;

#define AT(member) offsetof(live_message_t, member)
static const heft__field_t live_fields[] = {
    { "format", HEFT__FIELD_U32, true, AT(format), 1, 1, NULL },
    { "version", HEFT__FIELD_INT, true, AT(live.version), 0, HEFT__WIRE_MAX_INT, NULL },
    { "plan", HEFT__FIELD_HEX, true, AT(live.set.plan), 0, 64, NULL },
    { "params", HEFT__FIELD_LIST, true, 0, 0, 0, NULL },
    { "recorded", HEFT__FIELD_LIST, false, 0, 0, 0, NULL },
    HEFT__FIELD_END
};
#undef AT

void heft__live_fini(heft__live_t *live)
{
    heft__free(live->set.params);
    heft__free(live->is_recorded);
    heft__free(live->recorded);
    *live = (heft__live_t){ .version = 0 };
}

/* One entry for each parameter, "" where nothing was recorded. */
static json_t *recorded_json(const heft__live_t *live)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list != NULL && i < live->set.n_params; i++) {
        char hex[17] = "";
        if (live->is_recorded[i]) {
            (void)snprintf(hex, sizeof hex, "%016" PRIx64, live->recorded[i]);
        }
        if (json_array_append_new(list, json_string(hex)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static heft_status_t read_recorded(json_t *list, heft__live_t *live, heft_error_t *err)
{
    const size_t n = json_array_size(list);
    size_t n_recorded = 0;
    if (list == NULL) {
        return HEFT_OK;
    }
    live->is_recorded = heft__calloc(n + 1, sizeof *live->is_recorded);
    live->recorded = heft__calloc(n + 1, sizeof *live->recorded);
    if (live->is_recorded == NULL || live->recorded == NULL) {
        return heft__error_nomem(err, n * sizeof *live->recorded);
    }
    for (size_t i = 0; i < n; i++) {
        const char *hex = json_string_value(json_array_get(list, i));
        if (hex == NULL || (hex[0] != '\0' && !heft__is_hex(hex, 16))) {
            return heft__error_set(err, HEFT_ERR_FORMAT,
                                   "live digests: recorded %zu is neither empty nor 16 lower-case "
                                   "hex digits",
                                   i);
        }
        live->is_recorded[i] = hex[0] != '\0';
        live->recorded[i] = hex_value(hex);
        n_recorded += live->is_recorded[i];
    }
    if (n != live->set.n_params || n_recorded == 0) {
        return heft__error_set(err, HEFT_ERR_FORMAT,
                               "live digests: %zu recorded in a list of %zu for %u parameters",
                               n_recorded, n, live->set.n_params);
    }
    return HEFT_OK;
}

static bool has_recorded(const heft__live_t *live)
{
    for (uint32_t i = 0; live->is_recorded != NULL && i < live->set.n_params; i++) {
        if (live->is_recorded[i]) {
            return true;
        }
    }
    return false;
}

heft_status_t heft__live_encode(const heft__live_t *live, char **text_out, heft_error_t *err)
{
    const live_message_t msg = { .format = 1, .live = *live };
    json_t *root = json_object();
    if (root == NULL || heft__json_write(root, live_fields, &msg, err) != HEFT_OK ||
        !heft__json_put(root, "params", params_json(live->set.params, live->set.n_params)) ||
        (has_recorded(live) && !heft__json_put(root, "recorded", recorded_json(live)))) {
        json_decref(root);
        return heft__error_nomem(err, 0);
    }
    return heft__json_finish(root, text_out, err);
}

heft_status_t heft__live_decode(const char *text, size_t n, heft__live_t *out, heft_error_t *err)
{
    json_t *root = NULL;
    live_message_t msg;
    memset(&msg, 0, sizeof msg);
    heft_status_t status = heft__json_parse(text, n, "live digests", &root, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = heft__json_read(root, live_fields, "live digests", &msg, err);
    if (status == HEFT_OK) {
        status = read_params(json_object_get(root, "params"), "live digests", &msg.live.set.params,
                             &msg.live.set.n_params, err);
    }
    if (status == HEFT_OK) {
        status = read_recorded(json_object_get(root, "recorded"), &msg.live, err);
        if (status != HEFT_OK) {
            heft__live_fini(&msg.live);
        }
    }
    json_decref(root);
    if (status == HEFT_OK) {
        *out = msg.live;
    }
    return status;
}

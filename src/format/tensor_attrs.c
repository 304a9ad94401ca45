/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes of one tensor: how an engine has fused, padded, repeated or cut it. One table says
 * which there are and what their values look like; what must hold between them and the tensor's
 * shape is checked when the manifest is finished.
 *
 * They are kept flat, as (tensor, "object.member", text), which is what makes two sides comparable
 * one by one; the JSON form nests them.
 */
#include "format/manifest_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum attr_kind {
    ATTR_AXIS,  /* a dimension of the tensor; a negative one counts from the end */
    ATTR_COUNT, /* at least 1 */
    ATTR_SIZE,  /* at least 0 */
    ATTR_WORD,  /* one of some words */
    ATTR_TEXT   /* any */
} attr_kind_t;

static const struct {
    const char *key;
    const char *choices;
    attr_kind_t kind;
    bool is_required; /* where another member of its object is there */
} table[] = {
    { "cut.axis", NULL, ATTR_AXIS, true },
    { "cut.parts", NULL, ATTR_COUNT, true },
    { "fused.axis", NULL, ATTR_AXIS, true },
    { "fused.half", "gate_up up_gate", ATTR_WORD, true },
    { "fused.lane", NULL, ATTR_COUNT, false },
    { "fused.layout", "concat lane per_shard", ATTR_WORD, true },
    { "fused.shards", NULL, ATTR_COUNT, true },
    { "native", NULL, ATTR_TEXT, false },
    { "pad.axis", NULL, ATTR_AXIS, true },
    { "pad.lanes", NULL, ATTR_COUNT, false },
    { "pad.padded", NULL, ATTR_SIZE, true },
    { "pad.shards", NULL, ATTR_COUNT, true },
    { "pad.size", NULL, ATTR_SIZE, true },
    { "pad.tp", NULL, ATTR_COUNT, false },
    { "qkv.f", NULL, ATTR_COUNT, true },
    { "qkv.heads", NULL, ATTR_COUNT, false },
    { "qkv.kv_heads", NULL, ATTR_COUNT, false },
    { "qkv.t", NULL, ATTR_COUNT, true },
    { "repeat.axis", NULL, ATTR_AXIS, true },
    { "repeat.factor", NULL, ATTR_COUNT, true },
};

enum { N_KEYS = sizeof table / sizeof table[0], NO_KEY = -1, ABSENT = -1 };

static int find_key(const char *key)
{
    for (int i = 0; i < N_KEYS; i++) {
        if (strcmp(table[i].key, key) == 0) {
            return i;
        }
    }
    return NO_KEY;
}

heft__attr_form_t heft__tensor_attr_form(const char *key)
{
    int k = find_key(key);
    if (k == NO_KEY) {
        return ATTR_UNKNOWN;
    }
    return table[k].kind == ATTR_WORD || table[k].kind == ATTR_TEXT ? ATTR_STRING : ATTR_NUMBER;
}

bool heft__tensor_attr_is_known(const char *key)
{
    return find_key(key) != NO_KEY;
}

const char *heft__tensor_attr_nearest(const char *key)
{
    const char *nearest = NULL;
    uint32_t limit = (uint32_t)strlen(key) / 3 + 1;
    for (int i = 0; i < N_KEYS && limit > 0; i++) {
        uint32_t distance = heft__edit_distance(key, table[i].key, limit);
        if (distance <= limit) {
            nearest = table[i].key;
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return nearest;
}

static heft_status_t unknown_key(const char *tensor, const char *key, heft_error_t *err)
{
    const char *nearest = heft__tensor_attr_nearest(key);
    return heft__error_set(err, HEFT_ERR_ARGUMENT,
                           "tensor \"%.100s\": there is no attribute \"%.40s\"%s%s%s", tensor, key,
                           nearest != NULL ? "; nearest: \"" : "", nearest != NULL ? nearest : "",
                           nearest != NULL ? "\"" : "");
}

/* ---- setting ---- */

static bool is_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = choices; *at != '\0';) {
        size_t len = strcspn(at, " ");
        if (len == n && memcmp(at, word, n) == 0) {
            return true;
        }
        at += len + (at[len] == ' ' ? 1 : 0);
    }
    return false;
}

static bool parse_number(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool is_plain = text[0] == '-' || (text[0] >= '0' && text[0] <= '9');
    *out = value;
    return is_plain && errno == 0 && *end == '\0';
}

static heft_status_t check_number(const heft_tensor_info_t *t, int k, const char *value,
                                  char text_out[32], heft_error_t *err)
{
    int64_t number = 0;
    int64_t least = table[k].kind == ATTR_COUNT ? 1 : 0;
    if (!parse_number(value, &number)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "tensor \"%.100s\": %s is \"%.40s\", no integer", t->name,
                               table[k].key, value);
    }
    if (table[k].kind == ATTR_AXIS) {
        number += number < 0 ? t->shape.rank : 0;
        if (number < 0 || number >= t->shape.rank) {
            return heft__error_set(err, HEFT_ERR_ARGUMENT,
                                   "tensor \"%.100s\": %s is %.30s, the tensor has %d dimensions",
                                   t->name, table[k].key, value, (int)t->shape.rank);
        }
    } else if (number < least) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "tensor \"%.100s\": %s is %lld, at least %lld wanted", t->name,
                               table[k].key, (long long)number, (long long)least);
    }
    (void)snprintf(text_out, 32, "%lld", (long long)number);
    return HEFT_OK;
}

static heft_status_t append(heft_manifest_t *manifest, heft__tensor_attr_t attr, heft_error_t *err)
{
    void *items = manifest->tensor_attrs;
    size_t len = strlen(attr.value);
    attr.value = heft__arena_strndup(&manifest->arena, attr.value, len);
    attr.seq = manifest->n_tensor_attrs;
    if (attr.value == NULL ||
        !heft__grow(&items, &manifest->cap_tensor_attrs, attr.seq + 1, sizeof attr)) {
        return heft__error_nomem(err, len + sizeof attr);
    }
    manifest->tensor_attrs = items;
    manifest->tensor_attrs[manifest->n_tensor_attrs++] = attr;
    return HEFT_OK;
}

heft_status_t heft_manifest_set_tensor_attr(heft_manifest_t *manifest, const char *tensor,
                                            const char *key, const char *value, heft_error_t *err)
{
    if (manifest->is_finished) {
        return heft__error_set(err, HEFT_ERR_STATE, "the manifest is finished");
    }
    if (tensor == NULL || key == NULL || value == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "an attribute without tensor, key or value");
    }
    uint32_t index;
    heft_status_t status = heft_manifest_find(manifest, tensor, &index, err);
    if (status != HEFT_OK) {
        return status;
    }
    int k = find_key(key);
    if (k == NO_KEY) {
        return unknown_key(tensor, key, err);
    }
    const heft_tensor_info_t *t = &manifest->tensors[index];
    char number[32];
    if (heft__tensor_attr_form(key) == ATTR_NUMBER) {
        status = check_number(t, k, value, number, err);
        value = number;
    } else if (table[k].kind == ATTR_WORD && !is_choice(table[k].choices, value)) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT,
                                 "tensor \"%.100s\": %s is \"%.40s\", one of %s wanted", tensor,
                                 key, value, table[k].choices);
    } else if (value[0] == '\0' || !heft__text_is_clean(value)) {
        status = heft__error_set(err, HEFT_ERR_ARGUMENT,
                                 "tensor \"%.100s\": %s must be UTF-8 without control characters, "
                                 "not empty",
                                 tensor, key);
    }
    if (status != HEFT_OK) {
        return status;
    }
    return append(manifest,
                  (heft__tensor_attr_t){ .tensor = t->name, .key = table[k].key, .value = value },
                  err);
}

/* ---- finishing ---- */

static int by_tensor(const void *a, const void *b)
{
    const heft__tensor_attr_t *x = a;
    const heft__tensor_attr_t *y = b;
    int order = x->tensor == y->tensor ? 0 : strcmp(x->tensor, y->tensor);
    order = order != 0 ? order : strcmp(x->key, y->key);
    return order != 0 ? order : (x->seq > y->seq) - (x->seq < y->seq);
}

static void drop_replaced(heft_manifest_t *manifest)
{
    size_t n = 0;
    heft__tensor_attr_t *items = manifest->tensor_attrs;
    for (size_t i = 0; i < manifest->n_tensor_attrs; i++) {
        bool same = n > 0 && items[n - 1].tensor == items[i].tensor &&
                    strcmp(items[n - 1].key, items[i].key) == 0;
        n -= same ? 1 : 0;
        items[n++] = items[i];
    }
    manifest->n_tensor_attrs = n;
}

/* The attributes of one tensor that is being checked. */
typedef struct group {
    const heft_tensor_info_t *t;
    heft__tensor_attr_t *items;
    size_t n;
    heft_error_t *err;
} group_t;

static heft__tensor_attr_t *find_in(const group_t *g, const char *key)
{
    for (size_t i = 0; i < g->n; i++) {
        if (strcmp(g->items[i].key, key) == 0) {
            return &g->items[i];
        }
    }
    return NULL;
}

static int64_t number_in(const group_t *g, const char *key)
{
    const heft__tensor_attr_t *attr = find_in(g, key);
    int64_t value = ABSENT;
    bool is_there = attr != NULL && attr->value != NULL; /* a dropped one is not */
    return is_there && parse_number(attr->value, &value) ? value : ABSENT;
}

#define REFUSE(g, ...) heft__error_set((g)->err, HEFT_ERR_SHAPE, __VA_ARGS__)

/* Where one member of an object is given, the required ones are. */
static heft_status_t check_members(const group_t *g)
{
    for (int k = 0; k < N_KEYS; k++) {
        size_t object = strcspn(table[k].key, ".");
        if (!table[k].is_required || find_in(g, table[k].key) != NULL) {
            continue;
        }
        for (size_t i = 0; i < g->n; i++) {
            if (strncmp(g->items[i].key, table[k].key, object + 1) == 0) {
                return heft__error_set(g->err, HEFT_ERR_ARGUMENT,
                                       "tensor \"%.100s\": %s is there, %s is missing", g->t->name,
                                       g->items[i].key, table[k].key);
            }
        }
    }
    return HEFT_OK;
}

/* A width that is no multiple of the lane cannot interleave by lanes: per shard, then. */
static heft_status_t check_lane(const group_t *g, bool is_strict, int64_t extent, int64_t shards)
{
    heft__tensor_attr_t *layout = find_in(g, "fused.layout");
    heft__tensor_attr_t *lane = find_in(g, "fused.lane");
    bool is_lane = strcmp(layout->value, "lane") == 0;
    if (is_lane != (lane != NULL)) {
        return REFUSE(g, "tensor \"%.100s\": fused.layout is %s and fused.lane is %s", g->t->name,
                      layout->value, is_lane ? "missing" : lane->value);
    }
    int64_t width = extent / 2 / shards;
    if (!is_lane || width % number_in(g, "fused.lane") == 0) {
        return HEFT_OK;
    }
    if (is_strict) {
        return REFUSE(g,
                      "tensor \"%.90s\": fused.layout is lane, and the width %lld of one of %lld "
                      "shards is no multiple of the lane %s: it must say per_shard",
                      g->t->name, (long long)width, (long long)shards, lane->value);
    }
    layout->value = "per_shard";
    lane->value = NULL; /* dropped by the caller */
    return HEFT_OK;
}

static heft_status_t check_fused(const group_t *g, bool is_strict)
{
    int64_t axis = number_in(g, "fused.axis");
    if (axis == ABSENT) {
        return HEFT_OK;
    }
    int64_t shards = number_in(g, "fused.shards");
    int64_t extent = g->t->shape.extent[axis];
    if (extent % 2 != 0 || extent / 2 % shards != 0) {
        return REFUSE(
            g,
            "tensor \"%.100s\": the fused axis %lld has extent %lld, which does not divide "
            "into 2 halves of fused.shards = %lld",
            g->t->name, (long long)axis, (long long)extent, (long long)shards);
    }
    int64_t parts = number_in(g, "cut.parts");
    if (parts != ABSENT && number_in(g, "cut.axis") == axis && shards % parts != 0) {
        return REFUSE(g,
                      "tensor \"%.100s\": the fused axis %lld is cut into %lld boxes, of which "
                      "fused.shards = %lld is no multiple",
                      g->t->name, (long long)axis, (long long)parts, (long long)shards);
    }
    return check_lane(g, is_strict, extent, shards);
}

static heft_status_t check_pad(const group_t *g)
{
    int64_t axis = number_in(g, "pad.axis");
    if (axis == ABSENT) {
        return HEFT_OK;
    }
    int64_t size = number_in(g, "pad.size");
    int64_t padded = number_in(g, "pad.padded");
    int64_t shards = number_in(g, "pad.shards");
    int64_t extent = g->t->shape.extent[axis];
    bool is_fused = number_in(g, "fused.axis") == axis;
    if (padded < size || size % shards != 0 || padded % shards != 0) {
        return REFUSE(
            g,
            "tensor \"%.100s\": %lld cannot be padded to %lld in %lld shards: neither may "
            "shrink nor leave a rest",
            g->t->name, (long long)size, (long long)padded, (long long)shards);
    }
    if (extent % (is_fused ? 2 : 1) != 0 || extent / (is_fused ? 2 : 1) != padded) {
        return REFUSE(g, "tensor \"%.100s\": pad.padded is %lld, axis %lld has extent %lld%s",
                      g->t->name, (long long)padded, (long long)axis, (long long)extent,
                      is_fused ? " for both halves" : "");
    }
    return HEFT_OK;
}

/* A head is never split between groups, as far as it is said how many heads there are. */
static heft_status_t check_qkv(const group_t *g)
{
    int64_t t = number_in(g, "qkv.t");
    int64_t f = number_in(g, "qkv.f");
    int64_t heads = number_in(g, "qkv.heads");
    int64_t kv_heads = number_in(g, "qkv.kv_heads");
    int64_t copies;
    if (t == ABSENT) {
        return HEFT_OK;
    }
    if (heads != ABSENT && heads % t != 0) {
        return REFUSE(g, "tensor \"%.100s\": qkv.t = %lld groups would split %lld query heads",
                      g->t->name, (long long)t, (long long)heads);
    }
    if (kv_heads != ABSENT && (!heft__mul(kv_heads, f, &copies) || copies % t != 0)) {
        return REFUSE(g,
                      "tensor \"%.100s\": qkv.t = %lld groups would split %lld key/value heads, "
                      "qkv.f = %lld times each",
                      g->t->name, (long long)t, (long long)kv_heads, (long long)f);
    }
    return HEFT_OK;
}

static heft_status_t check_divides(const group_t *g, const char *axis_key, const char *count_key)
{
    int64_t axis = number_in(g, axis_key);
    int64_t count = number_in(g, count_key);
    if (axis != ABSENT && g->t->shape.extent[axis] % count != 0) {
        return REFUSE(
            g, "tensor \"%.100s\": %s is %lld, which does not divide extent %lld of axis %lld",
            g->t->name, count_key, (long long)count, (long long)g->t->shape.extent[axis],
            (long long)axis);
    }
    return HEFT_OK;
}

static heft_status_t check_group(const group_t *g, bool is_strict)
{
    heft_status_t status = check_members(g);
    if (status == HEFT_OK) {
        status = check_fused(g, is_strict);
    }
    if (status == HEFT_OK) {
        status = check_pad(g);
    }
    if (status == HEFT_OK) {
        status = check_qkv(g);
    }
    if (status == HEFT_OK) {
        status = check_divides(g, "repeat.axis", "repeat.factor");
    }
    return status == HEFT_OK ? check_divides(g, "cut.axis", "cut.parts") : status;
}

heft_status_t heft__tensor_attrs_finish(heft_manifest_t *manifest, heft_error_t *err)
{
    heft__tensor_attr_t *items = manifest->tensor_attrs;
    if (manifest->n_tensor_attrs == 0) {
        return HEFT_OK;
    }
    qsort(items, manifest->n_tensor_attrs, sizeof *items, by_tensor);
    drop_replaced(manifest);
    size_t kept = 0;
    for (size_t i = 0, n; i < manifest->n_tensor_attrs; i += n) {
        for (n = 1; i + n < manifest->n_tensor_attrs && items[i + n].tensor == items[i].tensor;) {
            n++;
        }
        uint32_t index;
        heft_status_t status = heft_manifest_find(manifest, items[i].tensor, &index, err);
        if (status != HEFT_OK) {
            return status;
        }
        heft_error_t cause = HEFT_ERROR_INIT;
        heft_tensor_info_t whole = manifest->tensors[index]; /* of which a part's attributes are */
        const heft_part_t *part = heft__part_of(manifest, whole.name);
        whole.shape = part != NULL ? part->shape : whole.shape;
        group_t g = { .t = &whole, .items = items + i, .n = n, .err = &cause };
        status = check_group(&g, manifest->is_strict);
        if (status != HEFT_OK && !heft__problems_take(manifest->problems, status, &cause)) {
            return heft__error_set(err, status, "%s", cause.message);
        }
        for (size_t k = 0; k < n; k++) {
            if (items[i + k].value != NULL) {
                items[kept++] = items[i + k];
            }
        }
    }
    manifest->n_tensor_attrs = kept;
    return HEFT_OK;
}

/* ---- reading ---- */

const heft__tensor_attr_t *heft__tensor_attrs_of(const heft_manifest_t *manifest, const char *name,
                                                 size_t *n_out)
{
    size_t lo = 0;
    size_t hi = manifest->n_tensor_attrs;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(manifest->tensor_attrs[mid].tensor, name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    size_t n = 0;
    while (lo + n < manifest->n_tensor_attrs &&
           strcmp(manifest->tensor_attrs[lo + n].tensor, name) == 0) {
        n++;
    }
    *n_out = n;
    return n > 0 ? &manifest->tensor_attrs[lo] : NULL;
}

uint32_t heft_manifest_get_n_tensor_attrs(const heft_manifest_t *manifest, uint32_t i)
{
    size_t n = 0;
    const heft_tensor_info_t *t = heft__manifest_get(manifest, i);
    if (t != NULL && manifest->is_finished) {
        (void)heft__tensor_attrs_of(manifest, t->name, &n);
    }
    return (uint32_t)n;
}

heft_status_t heft_manifest_query_tensor_attr(const heft_manifest_t *manifest, uint32_t i,
                                              uint32_t k, const char **key_out,
                                              const char **value_out, heft_error_t *err)
{
    uint32_t n = heft_manifest_get_n_tensor_attrs(manifest, i);
    if (k >= n) {
        return heft__error_set(err, HEFT_ERR_NOT_FOUND, "attribute %u of %u of tensor %u", k, n, i);
    }
    size_t n_items;
    const heft__tensor_attr_t *items =
        heft__tensor_attrs_of(manifest, manifest->tensors[i].name, &n_items);
    *key_out = items[k].key;
    *value_out = items[k].value;
    return HEFT_OK;
}

const char *heft_manifest_get_tensor_attr(const heft_manifest_t *manifest, uint32_t i,
                                          const char *key)
{
    const char *have;
    const char *value;
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(manifest, i, k, &have, &value, NULL) == HEFT_OK; k++) {
        if (strcmp(have, key) == 0) {
            return value;
        }
    }
    return NULL;
}

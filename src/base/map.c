/* SPDX-License-Identifier: Apache-2.0 */
/* Name table: open addressing with linear probing, load at most 2/3, hash FNV-1a 64. No deletion.
 */
#include "base/base.h"

#include <string.h>

static uint64_t hash_bytes(const char *key, size_t len)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (uint8_t)key[i]) * 1099511628211u;
    }
    return h ^ (h >> 29);
}

void heft__map_init(heft__map_t *map)
{
    *map = (heft__map_t){ 0 };
}

void heft__map_fini(heft__map_t *map)
{
    heft__free(map->slots);
    heft__map_init(map);
}

static heft__map_slot_t *find_slot(heft__map_slot_t *slots, size_t n_slots, uint64_t hash,
                                   const char *key, size_t len)
{
    size_t mask = n_slots - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        heft__map_slot_t *slot = &slots[i];
        if (slot->key == NULL ||
            (slot->hash == hash && slot->key_len == len && memcmp(slot->key, key, len) == 0)) {
            return slot;
        }
    }
}

uint32_t heft__map_get(const heft__map_t *map, const char *key, size_t key_len)
{
    if (map->n_slots == 0) {
        return HEFT__MAP_NONE;
    }
    const heft__map_slot_t *slot =
        find_slot(map->slots, map->n_slots, hash_bytes(key, key_len), key, key_len);
    return slot->key != NULL ? slot->value : HEFT__MAP_NONE;
}

static bool rehash(heft__map_t *map)
{
    size_t n_slots = map->n_slots == 0 ? 16 : map->n_slots * 2;
    heft__map_slot_t *slots = heft__calloc(n_slots, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->n_slots; i++) {
        const heft__map_slot_t *old = &map->slots[i];
        if (old->key != NULL) {
            *find_slot(slots, n_slots, old->hash, old->key, old->key_len) = *old;
        }
    }
    heft__free(map->slots);
    map->slots = slots;
    map->n_slots = n_slots;
    return true;
}

heft_status_t heft__map_put(heft__map_t *map, const char *key, size_t key_len, uint32_t value)
{
    if (key_len > UINT32_MAX) {
        return HEFT_ERR_LIMIT;
    }
    if ((map->n_used + 1) * 3 > map->n_slots * 2 && !rehash(map)) {
        return HEFT_ERR_NOMEM;
    }
    uint64_t hash = hash_bytes(key, key_len);
    heft__map_slot_t *slot = find_slot(map->slots, map->n_slots, hash, key, key_len);
    if (slot->key != NULL) {
        return HEFT_ERR_EXISTS;
    }
    *slot = (heft__map_slot_t){
        .key = key, .key_len = (uint32_t)key_len, .value = value, .hash = hash
    };
    map->n_used++;
    return HEFT_OK;
}

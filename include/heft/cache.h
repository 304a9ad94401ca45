/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers and the slots of KV caches. A hybrid model's engine groups its caches by the kind of
 * layer, so that the number of a layer and the slot of its cache differ; the engine's own map says
 * which is where. Caches are never weights: this is for whoever must find the cache of a layer.
 */
#ifndef HEFT_CACHE_H
#define HEFT_CACHE_H

#include "heft/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_cache_map heft_cache_map_t; /* immutable */

/**
 * Read an engine's map as JSON: an object {"name": slot}, or an array of pairs [name, slot]
 * (docs/formats/cache-map.md). text need not be NUL-terminated; NULL, or a JSON null: the engine
 * has none, which is positional (slot = layer) and refused where is_hybrid is 1. A name's layer is
 * the integer that it is; else the digits that it consists of; else the number behind a token
 * `layer` or `layers`; else its only integer that stands alone; else the entry is skipped.
 * HEFT_ERR_FORMAT names the entry: two candidates, two slots for one layer, a slot that is none.
 * HEFT_ERR_ARGUMENT: none given for a hybrid model.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_cache_map_decode(const char *text, size_t n,
                                                             int is_hybrid,
                                                             heft_cache_map_t **map_out,
                                                             heft_error_t *err);
/**
 * The map of an engine that puts the last layer of each cycle (full attention) behind all others:
 * layer i has slot i - i / cycle, the last of a cycle n_layers - n_layers / cycle + i / cycle.
 * HEFT_ERR_ARGUMENT: cycle does not divide n_layers; more than 2^20 layers.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_cache_map_create(int64_t n_layers, int64_t cycle,
                                                             heft_cache_map_t **map_out,
                                                             heft_error_t *err);
HEFT_API void heft_cache_map_destroy(heft_cache_map_t *map);

/** 1: no map was given, slot = layer; it has no entries. */
HEFT_API int heft_cache_map_is_positional(const heft_cache_map_t *map);
/** Layers in ascending order. HEFT_ERR_NOT_FOUND beyond the end. */
HEFT_API uint32_t heft_cache_map_get_n(const heft_cache_map_t *map);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_cache_map_query(const heft_cache_map_t *map, uint32_t i,
                                                            int64_t *layer_out, int64_t *slot_out,
                                                            heft_error_t *err);
/** Names without a layer, in the order of the text; NULL beyond the end. */
HEFT_API uint32_t heft_cache_map_get_n_skipped(const heft_cache_map_t *map);
HEFT_API const char *heft_cache_map_get_skipped(const heft_cache_map_t *map, uint32_t i);
/** The slot of a layer. HEFT_ERR_NOT_FOUND names the layers that there are: where there is a map, a
 * layer is never taken by its position. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_cache_map_find(const heft_cache_map_t *map,
                                                           int64_t layer, int64_t *slot_out,
                                                           heft_error_t *err);

/** The cache of one gated-delta-net layer: a window of the convolution in BF16, a state in F32. */
typedef struct heft_gdn_cache {
    heft_shape_t conv;  /* (kernel - 1, 2 * key heads * key width + value heads * value width) */
    heft_shape_t state; /* (value heads, key width, value width) */
    int64_t n_bytes;    /* of both */
} heft_gdn_cache_t;

/** HEFT_ERR_ARGUMENT: a size below 1 (kernel: below 2); HEFT_ERR_OVERFLOW. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_gdn_cache_query(int64_t kernel, int64_t key_heads,
                                                            int64_t value_heads, int64_t key_width,
                                                            int64_t value_width,
                                                            heft_gdn_cache_t *cache_out,
                                                            heft_error_t *err);

/** How an engine groups the caches of n_layers layers of which one in each cycle is attention. */
typedef struct heft_cache_groups {
    int64_t n_attention; /* layers */
    int64_t n_other;
    int64_t size; /* layers in a group: the larger kind if it is less than 1.5 times the smaller,
                   * else the smaller */
    int64_t n_attention_groups;
    int64_t n_other_groups;
} heft_cache_groups_t;

/** HEFT_ERR_ARGUMENT: cycle does not divide n_layers, or is below 2. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_cache_groups_query(int64_t n_layers, int64_t cycle,
                                                               heft_cache_groups_t *groups_out,
                                                               heft_error_t *err);

/**
 * Token positions as an engine takes them, as a view of the contiguous array it is given: (n) to
 * (n, 1), (3, n) to (n, 1, 3), (3, b, s) to (b, s, 3). HEFT_ERR_SHAPE: any other shape.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_positions_view(const heft_shape_t *positions,
                                                           heft_view_t *view_out,
                                                           heft_error_t *err);

#ifdef __cplusplus
}
#endif

#endif

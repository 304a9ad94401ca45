/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and groups of a hybrid model's caches, and the form of token positions. */
#include <stdio.h>

#include "base/base.h"
#include "heft/cache.h"

static heft_status_t too_big(heft_error_t *err)
{
    return heft__error_set(err, HEFT_ERR_OVERFLOW, "the cache's sizes are beyond 64 bits");
}

heft_status_t heft_gdn_cache_query(int64_t kernel, int64_t key_heads, int64_t value_heads,
                                   int64_t key_width, int64_t value_width,
                                   heft_gdn_cache_t *cache_out, heft_error_t *err)
{
    if (kernel < 2 || key_heads < 1 || value_heads < 1 || key_width < 1 || value_width < 1) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "gated delta net: kernel %lld (at least 2), %lld key and %lld value "
                               "heads of widths %lld and %lld (at least 1)",
                               (long long)kernel, (long long)key_heads, (long long)value_heads,
                               (long long)key_width, (long long)value_width);
    }
    int64_t keys;
    int64_t values;
    int64_t channels;
    if (!heft__mul(key_heads, key_width, &keys) || !heft__mul(keys, 2, &keys) ||
        !heft__mul(value_heads, value_width, &values) || !heft__add(keys, values, &channels)) {
        return too_big(err);
    }
    heft_gdn_cache_t cache = {
        .conv = { .rank = 2, .extent = { kernel - 1, channels } },
        .state = { .rank = 3, .extent = { value_heads, key_width, value_width } },
    };
    int64_t conv_bytes;
    int64_t state_bytes;
    if (!heft__mul(kernel - 1, channels, &conv_bytes) || !heft__mul(conv_bytes, 2, &conv_bytes) ||
        !heft__mul(values, key_width, &state_bytes) || !heft__mul(state_bytes, 4, &state_bytes) ||
        !heft__add(conv_bytes, state_bytes, &cache.n_bytes)) {
        return too_big(err);
    }
    *cache_out = cache;
    return HEFT_OK;
}

heft_status_t heft_cache_groups_query(int64_t n_layers, int64_t cycle,
                                      heft_cache_groups_t *groups_out, heft_error_t *err)
{
    if (n_layers < 1 || cycle < 2 || n_layers % cycle != 0) {
        return heft__error_set(
            err, HEFT_ERR_ARGUMENT,
            "%lld layers in cycles of %lld: a multiple of the cycle, which is at "
            "least 2, wanted",
            (long long)n_layers, (long long)cycle);
    }
    heft_cache_groups_t g = { .n_attention = n_layers / cycle };
    g.n_other = n_layers - g.n_attention;
    int64_t least = heft__min_i64(g.n_attention, g.n_other);
    int64_t most = heft__max_i64(g.n_attention, g.n_other);
    g.size = most - least < (least + 1) / 2 ? most : least; /* most < 1.5 * least */
    g.n_attention_groups = (g.n_attention - 1) / g.size + 1;
    g.n_other_groups = (g.n_other - 1) / g.size + 1;
    *groups_out = g;
    return HEFT_OK;
}

heft_status_t heft_positions_view(const heft_shape_t *positions, heft_view_t *view_out,
                                  heft_error_t *err)
{
    int64_t count;
    heft_status_t status = heft_shape_count(positions, &count, err);
    if (status != HEFT_OK) {
        return status;
    }
    const int64_t *n = positions->extent;
    heft_view_t view;
    if (positions->rank == 1) {
        view = (heft_view_t){ .rank = 2, .extent = { n[0], 1 }, .stride = { 1, 1 } };
    } else if (positions->rank == 2 && n[0] == 3) {
        view = (heft_view_t){ .rank = 3, .extent = { n[1], 1, 3 }, .stride = { 1, 1, n[1] } };
    } else if (positions->rank == 3 && n[0] == 3) {
        view = (heft_view_t){ .rank = 3,
                              .extent = { n[1], n[2], 3 },
                              .stride = { n[2], 1, n[1] * n[2] } };
    } else {
        return heft__error_set(err, HEFT_ERR_SHAPE,
                               "positions of rank %d, first extent %lld: (n), (3, n) or (3, batch, "
                               "sequence) wanted",
                               (int)positions->rank, positions->rank > 0 ? (long long)n[0] : 0LL);
    }
    *view_out = view;
    return HEFT_OK;
}

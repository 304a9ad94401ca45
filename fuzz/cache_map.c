/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's cache map from untrusted JSON: layers ascend, each is found again, with its slot. */
#include <stdint.h>
#include <stdlib.h>

#include "heft/cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int is_true)
{
    if (!is_true) {
        abort();
    }
}

static void check_map(const heft_cache_map_t *map)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t last = -1;
    int64_t slot = 0;
    for (uint32_t i = 0; i < heft_cache_map_get_n(map); i++) {
        int64_t layer = 0;
        int64_t found = 0;
        check(heft_cache_map_query(map, i, &layer, &slot, &err) == HEFT_OK);
        check(heft_cache_map_find(map, layer, &found, &err) == HEFT_OK && found == slot);
        check(layer > last && slot >= 0);
        last = layer;
    }
    check((heft_cache_map_find(map, last + 1, &slot, &err) == HEFT_OK) ==
          (heft_cache_map_is_positional(map) != 0));
    for (uint32_t i = 0; i < heft_cache_map_get_n_skipped(map); i++) {
        check(heft_cache_map_get_skipped(map, i) != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cache_map_t *map = NULL;
    heft_status_t status = heft_cache_map_decode((const char *)data, size, 0, &map, &err);
    if (status != HEFT_OK) {
        check(map == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    check_map(map);
    heft_cache_map_destroy(map);
    return 0;
}

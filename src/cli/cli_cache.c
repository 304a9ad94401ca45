/* SPDX-License-Identifier: Apache-2.0 */
/* `heft inspect --cache-map`: an engine's map of layers to slots of KV caches. */
#include "cli/cli_model.h"

#include <inttypes.h>
#include <stdlib.h>

static int print_map(const heft_cache_map_t *map)
{
    int64_t layer;
    int64_t slot;
    if (heft_cache_map_is_positional(map) != 0) {
        (void)printf("no map: the slot of a layer is its number\n");
        return CLI_OK;
    }
    (void)printf("%8s %8s\n", "layer", "slot");
    for (uint32_t i = 0; heft_cache_map_query(map, i, &layer, &slot, NULL) == HEFT_OK; i++) {
        (void)printf("%8" PRId64 " %8" PRId64 "\n", layer, slot);
    }
    for (uint32_t i = 0; i < heft_cache_map_get_n_skipped(map); i++) {
        (void)printf("skipped: \"%s\" has no layer\n", heft_cache_map_get_skipped(map, i));
    }
    return CLI_OK;
}

static int print_map_json(const cli_args_t *args, const heft_cache_map_t *map)
{
    json_t *layers = json_array();
    json_t *skipped = json_array();
    int64_t layer;
    int64_t slot;
    for (uint32_t i = 0; heft_cache_map_query(map, i, &layer, &slot, NULL) == HEFT_OK; i++) {
        (void)json_array_append_new(
            layers, json_pack("{s:I, s:I}", "layer", (json_int_t)layer, "slot", (json_int_t)slot));
    }
    for (uint32_t i = 0; i < heft_cache_map_get_n_skipped(map); i++) {
        (void)json_array_append_new(skipped, json_string(heft_cache_map_get_skipped(map, i)));
    }
    return cli_print_json(args, json_pack("{s:b, s:o, s:o}", "positional",
                                          heft_cache_map_is_positional(map), "layers", layers,
                                          "skipped", skipped));
}

int cli_inspect_cache(const cli_args_t *args)
{
    char *text = NULL;
    size_t n = 0;
    int code = cli_read_text(args, args->operands[0], &text, &n);
    if (code != CLI_OK) {
        return code;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    heft_cache_map_t *map = NULL;
    heft_status_t status =
        heft_cache_map_decode(text, n, cli_has(args, "hybrid") ? 1 : 0, &map, &err);
    free(text);
    if (status != HEFT_OK) {
        return cli_fail(args, cli_exit_of(&err), "%s: %s", args->operands[0], err.message);
    }
    code = cli_has(args, "json") ? print_map_json(args, map) : print_map(map);
    heft_cache_map_destroy(map);
    return code;
}

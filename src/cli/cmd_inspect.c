/* SPDX-License-Identifier: Apache-2.0 */
/* `heft inspect`: the tensors of a checkpoint or a manifest, and totals by dtype. */
#include "cli/cli_model.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

enum { N_DTYPES = 32 };

typedef struct totals {
    int64_t n_tensors[N_DTYPES]; /* by dtype value */
    int64_t n_elems[N_DTYPES];
    int64_t n_bytes[N_DTYPES];
    int64_t all_tensors;
    int64_t all_bytes;
} totals_t;

static void count(totals_t *totals, const heft_tensor_info_t *t)
{
    if ((size_t)t->dtype < N_DTYPES) {
        totals->n_tensors[t->dtype]++;
        totals->n_elems[t->dtype] += t->n_elems;
        totals->n_bytes[t->dtype] += t->n_bytes;
    }
    totals->all_tensors++;
    totals->all_bytes += t->n_bytes;
}

static void print_totals(const totals_t *totals)
{
    char bytes[32];
    for (int i = 0; i < N_DTYPES; i++) {
        if (totals->n_tensors[i] > 0) {
            cli_bytes_text(totals->n_bytes[i], bytes);
            (void)printf("%-8s %8" PRId64 " tensors %16" PRId64 " elements %16" PRId64
                         " bytes  %s\n",
                         heft_dtype_get_name((heft_dtype_t)i), totals->n_tensors[i],
                         totals->n_elems[i], totals->n_bytes[i], bytes);
        }
    }
    cli_bytes_text(totals->all_bytes, bytes);
    (void)printf("%-8s %8" PRId64 " tensors %42" PRId64 " bytes  %s\n", "all", totals->all_tensors,
                 totals->all_bytes, bytes);
}

static json_t *totals_json(const totals_t *totals)
{
    json_t *object = json_object();
    for (int i = 0; i < N_DTYPES; i++) {
        if (totals->n_tensors[i] > 0) {
            (void)json_object_set_new(object, heft_dtype_get_name((heft_dtype_t)i),
                                      json_pack("{s:I, s:I, s:I}", "n_tensors",
                                                (json_int_t)totals->n_tensors[i], "n_elems",
                                                (json_int_t)totals->n_elems[i], "n_bytes",
                                                (json_int_t)totals->n_bytes[i]));
        }
    }
    return object;
}

/* "  part of W [8, 4] from [0, 0], replica 1", for a tensor that is one. */
static void print_part(const heft_manifest_t *manifest, uint32_t i, const char *name)
{
    char text[2][320];
    heft_part_t part;
    if (heft_manifest_query_part(manifest, i, &part, NULL) != HEFT_OK) {
        return;
    }
    heft_shape_t begin = { .rank = part.shape.rank };
    memcpy(begin.extent, part.begin, sizeof begin.extent);
    cli_shape_text(&part.shape, text[0]);
    cli_shape_text(&begin, text[1]);
    (void)printf("  part of %s%s%s from %s", strcmp(part.tensor, name) != 0 ? part.tensor : "",
                 strcmp(part.tensor, name) != 0 ? " " : "", text[0], text[1]);
    if (part.replica > 0) {
        (void)printf(", replica %" PRIu32, part.replica);
    }
}

static json_t *part_json(const heft_part_t *part)
{
    heft_shape_t begin = { .rank = part->shape.rank };
    memcpy(begin.extent, part->begin, sizeof begin.extent);
    return json_pack("{s:s, s:o, s:o, s:I}", "tensor", part->tensor, "shape",
                     cli_shape_json(&part->shape), "begin", cli_shape_json(&begin), "replica",
                     (json_int_t)part->replica);
}

static void print_tensor(const heft_manifest_t *manifest, uint32_t i, const heft_tensor_info_t *t,
                         size_t width)
{
    char shape[320];
    cli_shape_text(&t->shape, shape);
    (void)printf("%-*s %-8s %-20s %14" PRId64, (int)width, t->name, heft_dtype_get_name(t->dtype),
                 shape, t->n_bytes);
    print_part(manifest, i, t->name);
    const char *key;
    const char *value;
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(manifest, i, k, &key, &value, NULL) == HEFT_OK; k++) {
        if (strcmp(key, "native") != 0) {
            (void)printf("  %s=%s", key, value);
        }
    }
    (void)printf("\n");
}

/* How the tensor is laid out, by key: {"fused.axis": "1", ..}. */
static json_t *layout_json(const heft_manifest_t *manifest, uint32_t i)
{
    const char *key;
    const char *value;
    json_t *layout = json_object();
    for (uint32_t k = 0;
         heft_manifest_query_tensor_attr(manifest, i, k, &key, &value, NULL) == HEFT_OK; k++) {
        if (strcmp(key, "native") != 0) {
            (void)json_object_set_new(layout, key, json_string(value));
        }
    }
    return layout;
}

static json_t *tensor_json(const heft_manifest_t *manifest, uint32_t i, const heft_tensor_info_t *t)
{
    char *native = NULL;
    json_t *object =
        json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", t->name, "dtype",
                  heft_dtype_get_name(t->dtype), "shape", cli_shape_json(&t->shape), "n_elems",
                  (json_int_t)t->n_elems, "n_bytes", (json_int_t)t->n_bytes);
    heft_part_t part;
    if (heft_manifest_query_part(manifest, i, &part, NULL) == HEFT_OK) {
        (void)json_object_set_new(object, "part", part_json(&part));
    }
    if (heft_manifest_get_n_tensor_attrs(manifest, i) > 0) {
        (void)json_object_set_new(object, "layout", layout_json(manifest, i));
    }
    if (heft_manifest_get_name_form(manifest) == HEFT_NAME_FORM_KEYSTR &&
        heft_manifest_get_native(manifest, t->name, &native, NULL) == HEFT_OK) {
        (void)json_object_set_new(object, "native", json_string(native));
        heft_string_free(native);
    }
    return object;
}

static json_t *attrs_json(const heft_manifest_t *manifest)
{
    const char *key;
    const char *value;
    json_t *attrs = json_object();
    for (uint32_t i = 0; heft_manifest_query_attr(manifest, i, &key, &value, NULL) == HEFT_OK;
         i++) {
        (void)json_object_set_new(attrs, key, json_string(value));
    }
    return attrs;
}

static json_t *excluded_json(const heft_manifest_t *manifest)
{
    const char *reason;
    json_t *array = json_array();
    for (uint32_t i = 0; i < heft_manifest_get_n_excluded(manifest); i++) {
        const char *name = heft_manifest_get_excluded(manifest, i, &reason);
        (void)json_array_append_new(array, json_pack("{s:s, s:s}", "name", name, "reason", reason));
    }
    return array;
}

static bool is_wanted(const char *pattern, const char *name)
{
    return pattern == NULL || fnmatch(pattern, name, 0) == 0;
}

static size_t name_width(const heft_manifest_t *manifest, const char *pattern)
{
    size_t width = 4;
    heft_tensor_info_t t;
    for (uint32_t i = 0; heft_manifest_query(manifest, i, &t, NULL) == HEFT_OK; i++) {
        size_t n = strlen(t.name);
        width = is_wanted(pattern, t.name) && n > width ? n : width;
    }
    return width < 100 ? width : 100;
}

static int print_text(const heft_manifest_t *manifest, const char *pattern)
{
    totals_t totals = { .all_tensors = 0 };
    size_t width = name_width(manifest, pattern);
    heft_tensor_info_t t;
    for (uint32_t i = 0; heft_manifest_query(manifest, i, &t, NULL) == HEFT_OK; i++) {
        if (is_wanted(pattern, t.name)) {
            count(&totals, &t);
            print_tensor(manifest, i, &t, width);
        }
    }
    if (pattern != NULL && totals.all_tensors == 0) {
        uint32_t n = heft_manifest_get_n_tensors(manifest);
        (void)fprintf(stderr, "heft inspect: no name of %u tensor%s matches \"%s\"\n", n,
                      n == 1 ? "" : "s", pattern);
    }
    const char *reason;
    for (uint32_t i = 0; i < heft_manifest_get_n_excluded(manifest); i++) {
        const char *name = heft_manifest_get_excluded(manifest, i, &reason);
        (void)printf("excluded: %s: %s\n", name, reason);
    }
    (void)printf("\n");
    print_totals(&totals);
    return CLI_OK;
}

static int print_as_json(const cli_args_t *args, const heft_manifest_t *manifest,
                         const char *pattern)
{
    totals_t totals = { .all_tensors = 0 };
    json_t *tensors = json_array();
    heft_tensor_info_t t;
    for (uint32_t i = 0; heft_manifest_query(manifest, i, &t, NULL) == HEFT_OK; i++) {
        if (is_wanted(pattern, t.name)) {
            count(&totals, &t);
            if (json_array_append_new(tensors, tensor_json(manifest, i, &t)) != 0) {
                json_decref(tensors);
                return cli_out_of_memory(args);
            }
        }
    }
    return cli_print_json(args, json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:o, s:o}", "side",
                                          heft_manifest_get_side(manifest), "attributes",
                                          attrs_json(manifest), "excluded", excluded_json(manifest),
                                          "digest", heft_manifest_get_digest(manifest), "n_tensors",
                                          (json_int_t)totals.all_tensors, "n_bytes",
                                          (json_int_t)totals.all_bytes, "dtypes",
                                          totals_json(&totals), "tensors", tensors));
}

static int run(const cli_args_t *args)
{
    if (cli_has(args, "cache-map")) {
        return cli_inspect_cache(args);
    }
    cli_model_t model = { .manifest = NULL };
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    const char *side = cli_text(args, "side");
    int code = cli_name_opts(args, &opts);
    if (code == CLI_OK) {
        code = cli_model_open(args, args->operands[0], side != NULL ? side : "source", &model);
    }
    if (code == CLI_OK) {
        code = cli_model_name(args, &model, &opts);
    }
    if (code != CLI_OK) {
        cli_model_close(&model);
        return code;
    }
    const char *pattern = cli_text(args, "filter");
    if (cli_has(args, "manifest")) {
        heft_error_t err = HEFT_ERROR_INIT;
        char *text = NULL;
        code = heft_manifest_encode(model.manifest, &text, &err) == HEFT_OK
                   ? CLI_OK
                   : cli_fail_status(args, &err);
        (void)fputs(text != NULL ? text : "", stdout);
        heft_string_free(text);
    } else if (cli_has(args, "json")) {
        code = print_as_json(args, model.manifest, pattern);
    } else {
        code = print_text(model.manifest, pattern);
    }
    cli_model_close(&model);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "PATH",
      .help = "A safetensors file, a checkpoint folder, or a manifest (.json); with --cache-map an "
              "engine's map.",
      .complete = CLI_COMPLETE_FILE },
};

static const cli_option_t options[] = {
    { .name = "filter",
      .value = "PATTERN",
      .kind = CLI_TEXT,
      .help = "Only tensors whose whole name matches: * stands for any text, ? for one character, "
              "[..] for one of several." },
    { .name = "manifest",
      .kind = CLI_FLAG,
      .help = "Print the manifest in its file form, for use where a manifest is accepted." },
    { .name = "side",
      .value = "SIDE",
      .kind = CLI_TEXT,
      .choices = "source destination",
      .help = "The side of a checkpoint: goes into its manifest, and says which root its names may "
              "have (base, model). Default: source." },
    CLI_OPT_NAME_FORM,
    CLI_OPT_LAYER_FORM,
    { .name = "cache-map",
      .kind = CLI_FLAG,
      .help =
          "PATH is an engine's JSON map of layer names to slots of KV caches: print the slot of "
          "each layer." },
    { .name = "hybrid",
      .kind = CLI_FLAG,
      .help = "With --cache-map: the model is hybrid, so that there must be a map." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_inspect = {
    .name = "inspect",
    .summary = "list the tensors of a checkpoint or a manifest",
    .description =
        "Lists every tensor with its dtype, shape and bytes, and totals for each dtype. Headers "
        "are "
        "checked strictly: overlapping or missing ranges, duplicate keys, unknown dtypes and an "
        "index that disagrees with its shards are errors. No data are read.",
    .example = "heft inspect MODEL --filter '*.layers.0.*'\n"
               "heft inspect MODEL --json | jq .n_bytes\n"
               "heft inspect TREE --name-form keystr --layer-form scanned --manifest > src.json\n"
               "heft inspect --cache-map MAP",
    .exits = "0 2 3 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

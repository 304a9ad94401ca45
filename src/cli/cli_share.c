/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's rows of every tensor of a checkpoint, declared as a source declares its parts: by the
 * text of the manifest, so that everything else that it says stays. */
#include "cli/cli_model.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

/* Rows are dealt as torch.chunk deals them: equal shares but for the last ones. */
static void deal(int64_t n, uint32_t rank, uint32_t n_ranks, int64_t *begin, int64_t *end)
{
    const int64_t share = n / n_ranks + (n % n_ranks != 0);
    *begin = (int64_t)rank * share < n ? (int64_t)rank * share : n;
    *end = *begin + share < n ? *begin + share : n;
}

/* What has no rows that begin with a byte is held by every rank, each as a copy. */
static bool has_rows(const heft_tensor_info_t *info)
{
    return info->shape.rank > 1 ||
           (info->shape.rank == 1 && heft_dtype_get_bits(info->dtype) % 8 == 0);
}

static int64_t put_part(const heft_tensor_info_t *info, uint32_t rank, uint32_t n_ranks,
                        json_t *entry)
{
    json_t *shape = json_object_get(entry, "shape");
    json_t *part = json_object();
    json_t *begin = json_array();
    int64_t first = 0;
    int64_t end = 0;
    (void)json_object_set_new(part, "shape", json_deep_copy(shape));
    for (int d = 0; d < info->shape.rank; d++) {
        (void)json_array_append_new(begin, json_integer(0));
    }
    if (has_rows(info)) {
        deal(info->shape.extent[0], rank, n_ranks, &first, &end);
        (void)json_array_set_new(begin, 0, json_integer(first));
        (void)json_array_set_new(shape, 0, json_integer(end - first));
    } else if (rank > 0) {
        (void)json_object_set_new(part, "replica", json_integer(rank));
    }
    (void)json_object_set_new(part, "begin", begin);
    (void)json_object_set_new(entry, "part", part);
    return info->shape.rank > 0 && info->shape.extent[0] > 0
               ? info->n_bytes / info->shape.extent[0] * first
               : 0;
}

static json_t *load(const heft_manifest_t *manifest, heft_error_t *err)
{
    char *text = NULL;
    if (heft_manifest_encode(manifest, &text, err) != HEFT_OK) {
        return NULL;
    }
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    heft_string_free(text);
    return root;
}

int cli_model_share(const cli_args_t *args, cli_model_t *model, uint32_t rank, uint32_t n_ranks,
                    int64_t *offsets)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_manifest_t *shared = NULL;
    json_t *root = load(model->manifest, &err);
    json_t *tensors = json_object_get(root, "tensors");
    static const char *const totals[] = { "digest", "n_tensors", "n_elems", "n_bytes" };
    for (size_t k = 0; k < sizeof totals / sizeof totals[0]; k++) {
        (void)json_object_del(root, totals[k]); /* they are those of the whole */
    }
    for (uint32_t i = 0; i < json_array_size(tensors); i++) {
        heft_tensor_info_t info;
        if (heft_manifest_query(model->manifest, i, &info, &err) != HEFT_OK) {
            break;
        }
        offsets[i] = put_part(&info, rank, n_ranks, json_array_get(tensors, i));
    }
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL) {
        return err.status != HEFT_OK ? cli_fail_status(args, &err) : cli_out_of_memory(args);
    }
    heft_status_t status = heft_manifest_decode(text, strlen(text), &shared, &err);
    free(text);
    if (status != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    heft_manifest_destroy(model->owned);
    model->owned = shared;
    model->manifest = shared;
    return CLI_OK;
}

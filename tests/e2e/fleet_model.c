/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet_model.h"

#include "heft_test.h"

#include <inttypes.h>

/* Source tensors in name order: rows and columns in multiples of width. */
typedef struct spec {
    const char *name;
    int64_t rows; /* 0: rank 1 */
    int64_t columns;
} spec_t;

static const spec_t sources[FM_SOURCES] = {
    { "down", 1, 3 }, { "embed", 2, 1 }, { "gate", 3, 1 }, { "k", 1, 1 },
    { "norm", 0, 1 }, { "q", 2, 1 },     { "up", 3, 1 },   { "v", 1, 1 },
};
enum { DOWN, EMBED, GATE, K, NORM, Q, UP, V };

static int64_t cols_of(const fm_model_t *model, int i)
{
    return sources[i].columns * model->width;
}

static int64_t rows_of(const fm_model_t *model, int i)
{
    return sources[i].rows > 0 ? sources[i].rows * model->width : 1;
}

static const char recipe_text[] =
    "let tp = 2, width = 0\n"
    "ranks tp as r\n"
    "let q = width, kv = width / 2\n"
    "\"q\" [({r}:tp h), d] -> \"qkv\" [h@0/{q + 2 * kv}, d]\n"
    "\"k\" [({r}:tp h), d] -> \"qkv\" [h@q/{q + 2 * kv}, d]\n"
    "\"v\" [({r}:tp h), d] -> \"qkv\" [h@{q + kv}/{q + 2 * kv}, d]\n"
    "\"gate\" [({r}:tp f), d] -> \"gate_up\" [(0:2 f), d]\n"
    "\"up\" [({r}:tp f), d] -> \"gate_up\" [(1:2 f), d]\n"
    "\"down\" [d, ({r}:tp f)] -> \"down\" [d, f]\n"
    "\"embed\" [v, d] where v pad {2 * width + 64} as ({r}:tp row) -> \"embed\" [row, d]\n"
    "\"norm\" [d] -> \"norm\" [d]\n";

void fm_model_init(fm_model_t *model, int64_t width)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char value[32];
    *model = (fm_model_t){ .width = width };
    (void)snprintf(value, sizeof value, "%" PRId64, width);
    EXPECT_STATUS(
        heft_recipe_parse("fleet", recipe_text, sizeof recipe_text - 1, &model->recipe, &err),
        HEFT_OK);
    EXPECT_STATUS(heft_bindings_create(&model->bindings, &err), HEFT_OK);
    EXPECT_STATUS(heft_bindings_set(model->bindings, "width", value, &err), HEFT_OK);
}

void fm_model_add_twin(fm_model_t *model)
{
    heft_error_t err = HEFT_ERROR_INIT;
    char text[sizeof recipe_text + 128];
    int n = snprintf(text, sizeof text,
                     "%s\"zz_twin\" [d] -> \"norm\" [d]\n"
                     "equal \"norm\" because \"the norm under its old name\"\n",
                     recipe_text);
    heft_recipe_destroy(model->recipe);
    EXPECT_STATUS(heft_recipe_parse("fleet", text, (size_t)n, &model->recipe, &err), HEFT_OK);
    model->has_twin = true;
}

void fm_model_fini(fm_model_t *model)
{
    heft_bindings_destroy(model->bindings);
    heft_recipe_destroy(model->recipe);
}

static void add_tensor(fm_side_t *side, const char *name, int64_t rows, int64_t columns)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_shape_t shape = { .rank = 2, .extent = { rows, columns } };
    if (rows == 0) {
        shape = (heft_shape_t){ .rank = 1, .extent = { columns } };
        rows = 1;
    }
    EXPECT_STATUS(heft_manifest_add(side->manifest, name, HEFT_DTYPE_BF16, &shape, &err), HEFT_OK);
    int64_t bytes = rows * columns * 2;
    size_t size = ((size_t)bytes + 63) / 64 * 64;
    side->bytes[side->n] = bytes;
    side->data[side->n] = aligned_alloc(64, size);
    assert_non_null(side->data[side->n]);
    memset(side->data[side->n], 0xee, size);
    side->n++;
}

void fm_source_init(const fm_model_t *model, fm_side_t *side)
{
    heft_error_t err = HEFT_ERROR_INIT;
    *side = (fm_side_t){ .n = 0 };
    EXPECT_STATUS(heft_manifest_create("source", &side->manifest, &err), HEFT_OK);
    for (int i = 0; i < FM_SOURCES; i++) {
        add_tensor(side, sources[i].name, sources[i].rows * model->width, cols_of(model, i));
    }
    if (model->has_twin) {
        add_tensor(side, "zz_twin", 0, model->width);
    }
    EXPECT_STATUS(heft_manifest_finish(side->manifest, &err), HEFT_OK);
}

void fm_params_init(const fm_model_t *model, fm_side_t *side)
{
    heft_error_t err = HEFT_ERROR_INIT;
    int64_t w = model->width;
    *side = (fm_side_t){ .n = 0 };
    EXPECT_STATUS(heft_manifest_create("destination", &side->manifest, &err), HEFT_OK);
    add_tensor(side, "down", w, 3 * w / 2);
    add_tensor(side, "embed", w + 32, w);
    add_tensor(side, "gate_up", 3 * w, w);
    add_tensor(side, "norm", 0, w);
    add_tensor(side, "qkv", 2 * w, w);
    EXPECT_STATUS(heft_manifest_finish(side->manifest, &err), HEFT_OK);
}

void fm_side_fini(fm_side_t *side)
{
    for (uint32_t i = 0; i < side->n; i++) {
        free(side->data[i]);
    }
    heft_manifest_destroy(side->manifest);
    *side = (fm_side_t){ .n = 0 };
}

static uint16_t element(int64_t version, int tensor, int64_t index)
{
    uint64_t z = (uint64_t)version * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 0xbf58476d1ce4e5b9u +
                 (uint64_t)index;
    z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
    return (uint16_t)(z >> 48);
}

void fm_source_fill(const fm_model_t *model, fm_side_t *side, int64_t version)
{
    for (int i = 0; i < FM_SOURCES; i++) {
        uint16_t *out = side->data[i];
        int64_t n = rows_of(model, i) * cols_of(model, i);
        for (int64_t k = 0; k < n; k++) {
            out[k] = element(version, i, k);
        }
    }
    if (model->has_twin) {
        memcpy(side->data[FM_SOURCES], side->data[NORM], (size_t)side->bytes[NORM]);
    }
}

/* Element (row, column) of a source. */
static uint16_t at(const fm_model_t *model, int64_t version, int tensor, int64_t row,
                   int64_t column)
{
    return element(version, tensor, row * cols_of(model, tensor) + column);
}

/* The oracle: one element of a parameter, straight from what the recipe says. */
static uint16_t expected(const fm_model_t *model, int64_t version, uint32_t rank, uint32_t param,
                         int64_t row, int64_t column)
{
    int64_t w = model->width;
    int64_t r = rank;
    switch (param) {
    case 0: /* down: columns of this rank */
        return at(model, version, DOWN, row, r * (3 * w / 2) + column);
    case 1: { /* embed: padded to 2w + 64 rows, then split */
        int64_t full = r * (w + 32) + row;
        return full < 2 * w ? at(model, version, EMBED, full, column) : 0;
    }
    case 2: { /* gate_up */
        int64_t half = 3 * w / 2;
        return row < half ? at(model, version, GATE, r * half + row, column)
                          : at(model, version, UP, r * half + row - half, column);
    }
    case 3: /* norm */
        return at(model, version, NORM, 0, column);
    default: /* qkv */
        if (row < w) {
            return at(model, version, Q, r * w + row, column);
        }
        return row < w + w / 2 ? at(model, version, K, r * (w / 2) + row - w, column)
                               : at(model, version, V, r * (w / 2) + row - w - w / 2, column);
    }
}

bool fm_params_equal(const fm_model_t *model, const fm_side_t *side, uint32_t rank, int64_t version)
{
    int64_t w = model->width;
    const int64_t columns[FM_PARAMS] = { 3 * w / 2, w, w, w, w };
    for (uint32_t p = 0; p < FM_PARAMS; p++) {
        const uint16_t *data = side->data[p];
        int64_t n = side->bytes[p] / 2;
        for (int64_t i = 0; i < n; i++) {
            uint16_t want = expected(model, version, rank, p, i / columns[p], i % columns[p]);
            if (data[i] != want) {
                print_message("rank %u, parameter %u, element %" PRId64 ": %04x, expected %04x\n",
                              rank, p, i, data[i], want);
                return false;
            }
        }
    }
    return true;
}

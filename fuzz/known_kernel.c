/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as the name of a known kernel, with small operands: what is read is written back as it
 * was, and what is accepted has a grid that covers its input.
 *
 * Bytes: rank and extents of the input, one byte each, then the text.
 */
#include <stdlib.h>
#include <string.h>

#include "tape/tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_grid(const heft__known_t *known, int32_t rank, const int64_t *extent)
{
    int64_t n_blocks[HEFT_MAX_DIMS];
    int64_t count = 1;
    int64_t n = 1;
    for (int k = 0; k < rank; k++) {
        int64_t block = k < known->n_dims ? known->block[k] : 1;
        n_blocks[k] = extent[k] / block + (extent[k] % block != 0);
        count *= extent[k];
        n *= n_blocks[k];
    }
    const heft__known_operand_t src = { HEFT_DTYPE_BF16, rank, extent };
    const heft__known_operand_t dsts[2] = { { HEFT_DTYPE_F8_E4M3, rank, extent },
                                            { HEFT_DTYPE_F32, rank, n_blocks } };
    heft__known_grid_t g;
    if (heft__known_check(known, dsts, 2, &src, 1, &g, NULL) != HEFT_OK) {
        return;
    }
    int64_t rows = g.n_rows / g.block_rows + (g.n_rows % g.block_rows != 0);
    int64_t cols = g.n_cols / g.block_cols + (g.n_cols % g.block_cols != 0);
    if (g.n_batches * g.n_rows * g.n_cols != count || g.n_batches * rows * cols != n) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t extent[HEFT_MAX_DIMS];
    if (size < 1 || size > 1024) {
        return 0;
    }
    int32_t rank = data[0] % (HEFT_MAX_DIMS + 1);
    if (size < (size_t)rank + 1) {
        return 0;
    }
    for (int k = 0; k < rank; k++) {
        extent[k] = data[1 + k] % 20;
    }
    size_t n = size - 1 - (size_t)rank;
    char *text = malloc(n + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data + 1 + rank, n);
    text[n] = '\0';
    heft__known_t known;
    char back[HEFT__KNOWN_TEXT_BYTES];
    if (heft__known_parse(text, &known, NULL) == HEFT_OK) {
        heft__known_print(&known, back);
        if (strcmp(text, back) != 0) {
            abort();
        }
        check_grid(&known, rank, extent);
    }
    free(text);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces for people: which box of a tensor a strided view is, and what a piece does to it. */
#ifndef HEFT_CLI_CLI_REGION_H
#define HEFT_CLI_CLI_REGION_H

#include "cli/cli.h"

/* A strided view of a contiguous tensor as a box of index ranges. */
typedef struct cli_region {
    bool is_box; /* false: only the flat range of elements is known */
    int32_t n_dims;
    int64_t begin[HEFT_MAX_DIMS]; /* [begin, end) in steps */
    int64_t end[HEFT_MAX_DIMS];
    int64_t step[HEFT_MAX_DIMS];
    int64_t flat_begin;
    int64_t flat_end;
} cli_region_t;

void cli_region_find(const heft_shape_t *shape, int32_t rank, const int64_t *extent,
                     const int64_t *stride, int64_t offset, cli_region_t *region_out);
/* "[0:4, 2:8:2]" or "flat [3:17]". */
void cli_region_text(const cli_region_t *region, char *out, size_t n);

typedef struct cli_piece_text {
    const char *param;
    const char *source; /* the first; "constant 0x0" for one */
    char constant[40];
    char dst[400];
    char src[400];
    char move[200];
    const char *note;
    cli_region_t dst_region;
} cli_piece_text_t;

void cli_piece_describe(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece,
                        cli_piece_text_t *text_out);
json_t *cli_piece_json(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece);

enum { CLI_MAX_ROWS = 6 };

typedef struct cli_row_text {
    int64_t row;   /* of the parameter: its index in axis 0 */
    char src[160]; /* where in the source it comes from */
} cli_row_text_t;

/* Of a piece whose rows come in another order than in the source: sample rows, at most
 * CLI_MAX_ROWS; 0: its ranges say it all. */
uint32_t cli_piece_rows(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece,
                        cli_row_text_t *rows_out);

#endif

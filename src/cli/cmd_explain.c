/* SPDX-License-Identifier: Apache-2.0 */
/* `heft explain`: where every element of one parameter comes from, as a table and a picture. */
#include "cli/cli_job.h"
#include "cli/cli_region.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 60, MAX_LETTERS = 52, MAX_LINES = 80 };

/* The picture: rows (axis 0) from left to right, a letter for each source tensor. */
typedef struct picture {
    const char *sources[MAX_LETTERS]; /* letter k stands for it */
    uint32_t n_sources;
    char cells[COLUMNS + 1];
    bool has_mixed;
    bool has_constant;
    bool has_beyond; /* more sources than letters */
} picture_t;

static char letter_of(picture_t *p, const heft_piece_t *piece, const char *source)
{
    if (piece->n_srcs == 0) {
        p->has_constant = true;
        return '.';
    }
    uint32_t k = 0;
    while (k < p->n_sources && strcmp(p->sources[k], source) != 0) {
        k++;
    }
    if (k == MAX_LETTERS) {
        p->has_beyond = true;
        return '*';
    }
    if (k == p->n_sources) {
        p->sources[p->n_sources++] = source;
    }
    return (char)(k < 26 ? 'A' + (int)k : 'a' + (int)k - 26);
}

static int64_t rows_of(const heft_tensor_info_t *param)
{
    return param->shape.rank > 0 ? param->shape.extent[0] : 1;
}

/* First and last row that a piece touches. */
static void rows_of_piece(const heft_tensor_info_t *param, const cli_region_t *r, int64_t *first,
                          int64_t *last)
{
    int64_t rows = rows_of(param);
    int64_t row_elems = rows > 0 && param->n_elems > 0 ? param->n_elems / rows : 1;
    *first = r->flat_begin / row_elems;
    *last = (r->flat_end - 1) / row_elems;
}

static void paint(picture_t *p, char letter, int64_t first, int64_t last, int64_t rows, int columns)
{
    int64_t from = first * columns / rows;
    int64_t to = ((last + 1) * columns + rows - 1) / rows;
    for (int64_t c = from; c < to && c < columns; c++) {
        char *cell = &p->cells[c];
        if (*cell == ' ' || *cell == '.') {
            *cell = letter;
        } else if (letter != *cell && letter != '.') {
            *cell = '+';
            p->has_mixed = true;
        }
    }
}

static int columns_of(int64_t rows)
{
    return rows >= COLUMNS || rows <= 0 ? COLUMNS : (int)(COLUMNS / rows * rows);
}

/* ---- text ---- */

static void print_picture(const picture_t *p, const heft_tensor_info_t *param)
{
    int64_t rows = rows_of(param);
    (void)printf("\nrows 0 to %" PRId64 "\n|%.*s|\n", rows > 0 ? rows - 1 : 0, columns_of(rows),
                 p->cells);
    for (uint32_t k = 0; k < p->n_sources; k++) {
        (void)printf("  %c  %s\n", k < 26 ? 'A' + (int)k : 'a' + (int)k - 26, p->sources[k]);
    }
    if (p->has_constant) {
        (void)printf("  .  constant\n");
    }
    if (p->has_mixed) {
        (void)printf("  +  several of them\n");
    }
    if (p->has_beyond) {
        (void)printf("  *  further sources\n");
    }
}

/* Rows that are permuted, such as those of heads: the first, and the first step in each direction.
 */
static void print_rows(const heft_plan_t *plan, uint32_t rank_index, const heft_piece_t *piece)
{
    cli_row_text_t rows[CLI_MAX_ROWS];
    const uint32_t n = cli_piece_rows(plan, rank_index, piece, rows);
    for (uint32_t i = 0; i < n; i++) {
        (void)printf("     row %-6" PRId64 " <- %s\n", rows[i].row, rows[i].src);
    }
}

static int print_text(const cli_job_t *job, uint32_t rank_index, uint32_t index)
{
    heft_tensor_info_t param;
    if (heft_plan_query_param(job->plan, rank_index, index, &param, NULL) != HEFT_OK) {
        return CLI_INTERNAL;
    }
    char shape[320];
    cli_shape_text(&param.shape, shape);
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(job->plan, rank_index, index, &n);
    (void)printf("%s  %s %s  rank %u of %u  group %" PRId64 "  %" PRIu64 " piece%s\n\n", param.name,
                 heft_dtype_get_name(param.dtype), shape, job->first_rank, job->n_ranks,
                 n > 0 ? (int64_t)pieces[0].group : -1, n, n == 1 ? "" : "s");
    picture_t picture = { .n_sources = 0 };
    memset(picture.cells, ' ', COLUMNS);
    int64_t rows = rows_of(&param);
    for (uint64_t i = 0; i < n; i++) {
        cli_piece_text_t text;
        int64_t first;
        int64_t last;
        cli_piece_describe(job->plan, rank_index, &pieces[i], &text);
        char letter = letter_of(&picture, &pieces[i], text.source);
        rows_of_piece(&param, &text.dst_region, &first, &last);
        if (rows > 0) {
            paint(&picture, letter, first, last, rows, columns_of(rows));
        }
        if (i < MAX_LINES) {
            (void)printf("%c  %-22s <- %s %s  %s  %s\n", letter, text.dst, text.source, text.src,
                         text.move, text.note);
            print_rows(job->plan, rank_index, &pieces[i]);
        } else if (i == MAX_LINES) {
            (void)printf("... and %" PRIu64 " more (--json lists all)\n", n - MAX_LINES);
        }
    }
    print_picture(&picture, &param);
    return CLI_OK;
}

/* ---- JSON ---- */

static int print_as_json(const cli_args_t *args, const cli_job_t *job, uint32_t rank_index,
                         uint32_t index)
{
    heft_tensor_info_t param;
    if (heft_plan_query_param(job->plan, rank_index, index, &param, NULL) != HEFT_OK) {
        return CLI_INTERNAL;
    }
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(job->plan, rank_index, index, &n);
    json_t *array = json_array();
    for (uint64_t i = 0; i < n; i++) {
        (void)json_array_append_new(array, cli_piece_json(job->plan, rank_index, &pieces[i]));
    }
    return cli_print_json(
        args, json_pack("{s:s, s:s, s:o, s:i, s:i, s:o}", "param", param.name, "dtype",
                        heft_dtype_get_name(param.dtype), "shape", cli_shape_json(&param.shape),
                        "rank", (int)job->first_rank, "ranks", (int)job->n_ranks, "pieces", array));
}

/* ---- run ---- */

static int find_param(const cli_args_t *args, const cli_job_t *job, const char *name,
                      uint32_t *index_out)
{
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, name);
    uint32_t n = heft_plan_get_n_params(job->plan, 0);
    heft_tensor_info_t info;
    for (uint32_t i = 0; heft_plan_query_param(job->plan, 0, i, &info, NULL) == HEFT_OK; i++) {
        if (strcmp(info.name, name) == 0) {
            *index_out = i;
            return CLI_OK;
        }
        cli_nearest_try(&nearest, info.name);
    }
    if (nearest.best != NULL) {
        return cli_fail(args, CLI_USAGE, "no parameter \"%s\" among the %u of rank %u; nearest: %s",
                        name, n, job->first_rank, nearest.best);
    }
    return cli_fail(args, CLI_USAGE, "no parameter \"%s\" among the %u of rank %u", name, n,
                    job->first_rank);
}

static int run(const cli_args_t *args)
{
    cli_job_t job;
    cli_job_init(&job);
    int code = cli_job_run(args, args->operands[1], false, &job);
    uint32_t index = 0;
    if (code == CLI_OK) {
        code = find_param(args, &job, args->operands[0], &index);
    }
    if (code == CLI_OK) {
        code = cli_has(args, "json") ? print_as_json(args, &job, 0, index)
                                     : print_text(&job, 0, index);
    }
    cli_job_fini(&job);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "PARAM", .help = "The parameter's name, as the recipe makes it." },
    { .name = "SRC",
      .help = "The source: a checkpoint, or its manifest (.json).",
      .complete = CLI_COMPLETE_FILE },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false), CLI_OPT_LET,  CLI_OPT_CONFIG, CLI_OPT_SHARDED,
    CLI_OPT_CONTRACT,      CLI_OPT_RANK, CLI_OPT_JSON,
};

const cli_command_t cli_cmd_explain = {
    .name = "explain",
    .summary = "show where every element of one parameter comes from",
    .description =
        "Prints the pieces of one parameter: the index range written, the source tensor and the "
        "range read, how it is moved (copied, transposed, reversed, repeated, filled, and any "
        "arithmetic), and the rule of the recipe that says so. Then a picture of the parameter's "
        "rows (axis 0), a letter for each source, '.' where a constant fills. Where rows come in "
        "another order, such as those of heads, some of them are listed: the first, and one step "
        "on in each direction.\n\n"
        "Ranges are half-open, with a step where it is not 1: 0:8:2 is 0, 2, 4, 6. Without --rank "
        "the first rank is shown.",
    .example = "heft explain model.layers.0.self_attn.qkv_proj.weight MODEL \\\n"
               "    --recipe hf-to-engine-dense --let tp=3 --rank 1",
    .exits = "0 1 2 3 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* `heft diff`: two checkpoints, tensor by tensor. */
#include "cli/cli_drift.h"

#include <inttypes.h>

typedef struct differ {
    json_t *tensors;  /* NULL: text */
    bool shows_equal; /* --all */
    int64_t n_equal;
    int64_t n_differ; /* tensors */
    int64_t n_elems_differ;
} differ_t;

static int64_t unravel(int64_t flat, const heft_shape_t *shape, int k)
{
    for (int d = shape->rank - 1; d > k; d--) {
        flat /= shape->extent[d];
    }
    return flat % shape->extent[k];
}

static void index_text(int64_t flat, const heft_tensor_info_t *t, char out[320])
{
    heft_shape_t index = { .rank = t->shape.rank };
    if (heft_dtype_get_bits(t->dtype) < 8) { /* counted in bytes of storage */
        index = (heft_shape_t){ .rank = 1, .extent = { flat } };
    } else {
        for (int k = 0; k < t->shape.rank; k++) {
            index.extent[k] = unravel(flat, &t->shape, k);
        }
    }
    cli_shape_text(&index, out);
}

static json_t *diff_json(const heft_tensor_info_t *t, const heft_tensor_diff_t *d)
{
    json_t *object =
        json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f}", "name", t->name, "dtype",
                  heft_dtype_get_name(t->dtype), "shape", cli_shape_json(&t->shape), "elements",
                  (json_int_t)d->n_elems, "differ", (json_int_t)d->n_differ, "nan",
                  (json_int_t)d->n_nan, "max_ulp", (json_int_t)d->max_ulp, "mean_ulp", d->mean_ulp);
    if (d->n_differ > 0) {
        char at[320];
        char a[24];
        char b[24];
        index_text(d->first, t, at);
        (void)snprintf(a, sizeof a, "0x%" PRIx64, d->first_a);
        (void)snprintf(b, sizeof b, "0x%" PRIx64, d->first_b);
        (void)json_object_set_new(object, "first",
                                  json_pack("{s:I, s:s, s:s, s:s}", "flat", (json_int_t)d->first,
                                            "index", at, "a", a, "b", b));
    }
    return object;
}

static void print_diff(const heft_tensor_info_t *t, const heft_tensor_diff_t *d)
{
    if (d->n_differ == 0) {
        (void)printf("equal    %s: %" PRId64 " elements\n", t->name, d->n_elems);
        return;
    }
    char at[320];
    index_text(d->first, t, at);
    (void)printf("differs  %s: %" PRId64 " of %" PRId64 " elements", t->name, d->n_differ,
                 d->n_elems);
    if (d->n_differ > d->n_nan && heft_dtype_get_bits(t->dtype) >= 8) {
        (void)printf(", at most %" PRIu64 " ULP, %.3g on average", d->max_ulp, d->mean_ulp);
    }
    if (d->n_nan > 0) {
        (void)printf(", %" PRId64 " with NaN", d->n_nan);
    }
    (void)printf("; first %s: 0x%" PRIx64 " and 0x%" PRIx64 "\n", at, d->first_a, d->first_b);
}

static int visit(void *arg, const heft_tensor_info_t *a, const heft_tensor_info_t *b,
                 const heft_tensor_diff_t *diff)
{
    differ_t *d = arg;
    (void)b;
    if (diff == NULL) {
        return 0; /* another dtype or shape: told by the drift */
    }
    d->n_equal += diff->n_differ == 0;
    d->n_differ += diff->n_differ > 0;
    d->n_elems_differ += diff->n_differ;
    if (diff->n_differ == 0 && !d->shows_equal) {
        return 0;
    }
    if (d->tensors != NULL) {
        (void)json_array_append_new(d->tensors, diff_json(a, diff));
    } else {
        print_diff(a, diff);
    }
    return 0;
}

static int report(const cli_args_t *args, const differ_t *d, const heft_drift_t *drift)
{
    uint32_t n_drift = heft_drift_get_n(drift);
    bool is_equal = d->n_differ == 0 && n_drift == 0;
    if (d->tensors != NULL) {
        json_t *object = json_pack(
            "{s:b, s:I, s:I, s:I, s:O, s:o}", "equal", is_equal, "tensors_equal",
            (json_int_t)d->n_equal, "tensors_differ", (json_int_t)d->n_differ, "elements_differ",
            (json_int_t)d->n_elems_differ, "tensors", d->tensors, "drift", cli_drift_json(drift));
        int printed = cli_print_json(args, object);
        return printed != CLI_OK ? printed : is_equal ? CLI_OK : CLI_DIFFERS;
    }
    cli_drift_print(stdout, drift, 1000);
    (void)printf("%" PRId64 " tensor%s equal, %" PRId64 " differ in %" PRId64
                 " elements, %u other difference%s\n",
                 d->n_equal, d->n_equal == 1 ? "" : "s", d->n_differ, d->n_elems_differ, n_drift,
                 n_drift == 1 ? "" : "s");
    return is_equal ? CLI_OK : CLI_DIFFERS;
}

static int diff_models(const cli_args_t *args, const cli_model_t *a, const cli_model_t *b)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    heft_status_t status = heft_drift_create(a->manifest, b->manifest, &drift, &err);
    if (status != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    differ_t d = { .tensors = cli_has(args, "json") ? json_array() : NULL,
                   .shows_equal = cli_has(args, "all") };
    cli_progress_t progress;
    cli_progress_init(&progress, "diff");
    heft_diff_opts_t opts = HEFT_DIFF_OPTS_INIT;
    opts.n_threads = (uint32_t)cli_number(args, "threads", 0);
    opts.progress = cli_progress_tick;
    opts.progress_arg = &progress;
    status = heft_diff_checkpoints(a->checkpoint, b->checkpoint, &opts, visit, &d, &err);
    cli_progress_end(&progress);
    int code = status == HEFT_OK ? report(args, &d, drift) : cli_fail_status(args, &err);
    json_decref(d.tensors);
    heft_drift_destroy(drift);
    return code;
}

static int run(const cli_args_t *args)
{
    cli_catch_signals();
    cli_model_t a = { .manifest = NULL };
    cli_model_t b = { .manifest = NULL };
    int code = cli_model_open_checkpoint(args, args->operands[0], "source", &a);
    if (code == CLI_OK) {
        code = cli_model_open_checkpoint(args, args->operands[1], "source", &b);
    }
    if (code == CLI_OK) {
        code = diff_models(args, &a, &b);
    }
    cli_model_close(&a);
    cli_model_close(&b);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "A", .help = "A checkpoint.", .complete = CLI_COMPLETE_FILE },
    { .name = "B", .help = "Another one.", .complete = CLI_COMPLETE_FILE },
};

static const cli_option_t options[] = {
    { .name = "all", .kind = CLI_FLAG, .help = "List equal tensors, too." },
    CLI_OPT_THREADS,
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_diff = {
    .name = "diff",
    .summary = "compare two checkpoints tensor by tensor",
    .description =
        "Compares the tensors of equal name, dtype and shape bit by bit. For each that differs: "
        "how "
        "many elements, how far apart they are at most and on average in units in the last place "
        "(the number of values between the two; for integers the difference), and the first that "
        "differs with its bits on both sides. +0 and -0 differ, and are 0 apart. Where either is "
        "NaN, an element is counted and has no distance. Names on one side only, with the nearest "
        "on the other, and other dtypes and shapes are listed after that.\n\n"
        "At most 64 MiB of each file are in memory at a time.",
    .example = "heft diff STEP-100 STEP-200\n"
               "heft diff A B --json",
    .exits = "0 1 2 3 4 130",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

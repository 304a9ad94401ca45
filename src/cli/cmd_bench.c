/* SPDX-License-Identifier: Apache-2.0 */
/* `heft bench`: the kernels against memcpy in the same run. */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

typedef struct bench_run {
    json_t *results; /* NULL: print text */
    bool has_failed;
} bench_run_t;

static json_t *result_json(const heft_bench_result_t *r)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:i}", "name", r->name, "text",
                     r->text, "gb_per_s", r->gb_per_s, "ratio", r->ratio, "ratio_min", r->ratio_min,
                     "ratio_max", r->ratio_max, "aim", r->aim, "bytes", (json_int_t)r->bytes,
                     "runs", (int)r->runs);
}

static void on_result(void *arg, const heft_bench_result_t *r)
{
    bench_run_t *bench = arg;
    if (bench->results != NULL) {
        bench->has_failed =
            json_array_append_new(bench->results, result_json(r)) != 0 || bench->has_failed;
        return;
    }
    (void)printf("%-24s %7.2f GB/s  %5.2f x memcpy (%.2f to %.2f)", r->name, r->gb_per_s, r->ratio,
                 r->ratio_min, r->ratio_max);
    if (r->aim > 0) {
        (void)printf("  aim %.2f%s", r->aim, r->ratio < r->aim ? " not met" : "");
    }
    (void)printf("\n    %s\n", r->text);
    (void)fflush(stdout);
}

static int refuse_name(const cli_args_t *args, const char *only)
{
    (void)cli_fail(args, CLI_USAGE, "--only: no benchmark \"%s\"; there are:", only);
    const char *name;
    for (uint32_t i = 0; (name = heft_bench_get_name(i)) != NULL; i++) {
        (void)fprintf(stderr, "    %s\n", name);
    }
    return CLI_USAGE;
}

static int run(const cli_args_t *args)
{
    heft_bench_opts_t opts = HEFT_BENCH_OPTS_INIT;
    opts.bytes = cli_number(args, "bytes", 0);
    opts.runs = (int32_t)cli_number(args, "runs", 0);
    opts.n_threads = (uint32_t)cli_number(args, "threads", 0);
    opts.only = cli_text(args, "only");
    bench_run_t bench = { .results = cli_has(args, "json") ? json_array() : NULL };
    heft_error_t err = HEFT_ERROR_INIT;
    heft_status_t status = heft_bench_run(&opts, on_result, &bench, &err);
    if (status != HEFT_OK) {
        json_decref(bench.results);
        if (status == HEFT_ERR_NOT_FOUND) {
            return refuse_name(args, opts.only);
        }
        return cli_fail(args, cli_exit_of(&err), "%s", err.message);
    }
    if (bench.has_failed) {
        json_decref(bench.results);
        return cli_out_of_memory(args);
    }
    return bench.results != NULL ? cli_print_json(args, bench.results) : CLI_OK;
}

static const cli_option_t options[] = {
    { .name = "bytes",
      .value = "N",
      .kind = CLI_BYTES,
      .min = 4 << 20,
      .max = INT64_C(1) << 40,
      .help = "Size of each working buffer. Default: 1 GiB." },
    { .name = "runs",
      .value = "N",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 1000,
      .help = "Rounds; the median is reported. Default: 5." },
    { .name = "only",
      .value = "NAME",
      .kind = CLI_TEXT,
      .help = "One benchmark only; a wrong name lists them." },
    CLI_OPT_THREADS,
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_bench = {
    .name = "bench",
    .summary = "measure the kernels against memcpy",
    .description =
        "Runs the copy, transpose, cast and digest kernels on warm buffers and prints for each the "
        "10^9 bytes per second and the ratio to memcpy of the same bytes in the same round.\n\n"
        "With --json: an array of objects with name, text, gb_per_s, ratio, ratio_min, ratio_max, "
        "aim, bytes and runs. An aim of 0 means that none is set.",
    .example = "heft bench\n"
               "heft bench --only scatter_256 --runs 15 --json",
    .exits = "0 2 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .run = run,
};

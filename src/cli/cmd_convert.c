/* SPDX-License-Identifier: Apache-2.0 */
/* `heft convert`: a checkpoint through a recipe, forwards or backwards. */
#include "cli/cli_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_group(void *arg, uint32_t group, uint32_t n_groups, const char *param)
{
    (void)arg;
    (void)fprintf(stderr, "heft convert: group %u of %u: %s\n", group, n_groups, param);
}

static heft_convert_opts_t options_of(const cli_args_t *args, cli_progress_t *progress)
{
    heft_convert_opts_t opts = HEFT_CONVERT_OPTS_INIT;
    opts.max_shard_bytes = cli_number(args, "max-shard-bytes", 0);
    opts.n_threads = (uint32_t)cli_number(args, "threads", 0);
    opts.memory_bytes = cli_number(args, "memory", 0);
    opts.one_by_one = cli_has(args, "one-by-one");
    opts.group_begin = print_group;
    opts.progress = cli_progress_tick;
    opts.progress_arg = progress;
    return opts;
}

static int report(const cli_args_t *args, const cli_job_t *job, const char *dst, double seconds)
{
    heft_plan_info_t info;
    heft_plan_query(job->plan, &info);
    int64_t n_bytes = info.n_bytes + info.n_constant_bytes;
    if (cli_has(args, "json")) {
        return cli_print_json(
            args, json_pack("{s:s, s:i, s:I, s:I, s:f, s:s}", "path", dst, "ranks",
                            (int)info.n_ranks, "bytes", (json_int_t)n_bytes, "pieces",
                            (json_int_t)info.n_pieces, "seconds", seconds, "digest", info.digest));
    }
    char bytes[32];
    cli_bytes_text(n_bytes, bytes);
    (void)printf("%s: %u rank%s, %s, %" PRIu64 " piece%s in %.2f s\n", dst, info.n_ranks,
                 info.n_ranks == 1 ? "" : "s", bytes, info.n_pieces, info.n_pieces == 1 ? "" : "s",
                 seconds);
    return CLI_OK;
}

/* Backwards: what is in the checkpoint written, and what of --like is not. */
static int report_back(const cli_args_t *args, const cli_job_t *job, const char *dst,
                       double seconds)
{
    cli_model_t back;
    int code = cli_model_open_checkpoint(args, dst, "source", &back);
    code = code == CLI_OK ? cli_job_name(args, job, &back, "source") : code;
    if (code != CLI_OK) {
        cli_model_close(&back);
        return code;
    }
    int64_t n_bytes = heft_manifest_get_n_bytes(back.manifest);
    uint32_t n_tensors = heft_manifest_get_n_tensors(back.manifest);
    uint32_t n_all = heft_manifest_get_n_tensors(job->source.manifest);
    if (n_tensors < n_all) {
        (void)fprintf(stderr, "heft convert: left out: %u source%s that the recipe ignores:",
                      n_all - n_tensors, n_all - n_tensors == 1 ? "" : "s");
    }
    json_t *left_out = json_array();
    heft_tensor_info_t t;
    uint32_t index;
    for (uint32_t i = 0; heft_manifest_query(job->source.manifest, i, &t, NULL) == HEFT_OK; i++) {
        if (heft_manifest_find(back.manifest, t.name, &index, NULL) != HEFT_OK) {
            (void)fprintf(stderr, "%s %s", json_array_size(left_out) > 0 ? "," : "", t.name);
            (void)json_array_append_new(left_out, json_string(t.name));
        }
    }
    (void)fputs(n_tensors < n_all ? "\n" : "", stderr);
    cli_model_close(&back);
    if (cli_has(args, "json")) {
        heft_plan_info_t info;
        heft_plan_query(job->plan, &info);
        return cli_print_json(
            args, json_pack("{s:s, s:i, s:I, s:I, s:f, s:s, s:i, s:o}", "path", dst, "ranks",
                            (int)info.n_ranks, "bytes", (json_int_t)n_bytes, "pieces",
                            (json_int_t)info.n_pieces, "seconds", seconds, "digest", info.digest,
                            "tensors", (int)n_tensors, "left_out", left_out));
    }
    json_decref(left_out);
    char bytes[32];
    cli_bytes_text(n_bytes, bytes);
    (void)printf("%s: 1 checkpoint, %u tensor%s, %s, from %u rank%s in %.2f s\n", dst, n_tensors,
                 n_tensors == 1 ? "" : "s", bytes, job->n_tapes, job->n_tapes == 1 ? "" : "s",
                 seconds);
    return CLI_OK;
}

static int run_job(const cli_args_t *args, const char *source, bool needs_data, cli_job_t *job)
{
    int code = cli_job_run(args, source, needs_data, job);
    return code == CLI_OK && cli_is_interrupted() ? cli_fail(args, CLI_CANCELED, "interrupted")
                                                  : code;
}

/* ---- forwards ---- */

/* What the recipe declares of the destination's names, as a manifest without tensors. */
static heft_status_t declare_names(cli_job_t *job, heft_manifest_t **names_out)
{
    heft_manifest_t *names = NULL;
    if (job->is_traced) {
        return HEFT_OK; /* a loader declares nothing */
    }
    heft_status_t status = heft_manifest_create("destination", &names, &job->err);
    if (status == HEFT_OK) {
        status = heft_recipe_declare_names(job->recipe, names, &job->err);
    }
    if (status == HEFT_OK) {
        status = heft_manifest_finish(names, &job->err);
    }
    if (status != HEFT_OK) {
        heft_manifest_destroy(names);
        return status;
    }
    *names_out = names;
    return HEFT_OK;
}

static int convert(const cli_args_t *args, cli_job_t *job, const char *src, const char *dst)
{
    int code = run_job(args, src, true, job);
    if (code != CLI_OK) {
        return code;
    }
    char *path = cli_has(args, "rank") ? cli_rank_path(job, dst, job->first_rank) : strdup(dst);
    if (path == NULL) {
        return cli_out_of_memory(args);
    }
    cli_progress_t progress;
    cli_progress_init(&progress, "convert");
    heft_convert_opts_t opts = options_of(args, &progress);
    heft_manifest_t *names = NULL;
    heft_status_t status = declare_names(job, &names);
    opts.names = names;
    if (status == HEFT_OK) {
        status = heft_convert(job->plan, job->source.checkpoint, path, &opts, &job->err);
    }
    heft_manifest_destroy(names);
    cli_progress_end(&progress);
    code = status == HEFT_OK
               ? report(args, job, path, (double)(cli_mono_ns() - progress.start_ns) / 1e9)
               : cli_fail_status(args, &job->err);
    free(path);
    return code;
}

/* ---- backwards ---- */

static int run_reverse(const cli_args_t *args, cli_job_t *job,
                       const heft_checkpoint_t *const *ranks, const char *dst)
{
    cli_progress_t progress;
    cli_progress_init(&progress, "convert --reverse");
    heft_convert_opts_t opts = options_of(args, &progress);
    opts.reverse = 1;
    opts.exceptions = job->is_traced ? job->recorded : job->exceptions;
    opts.n_exceptions =
        job->is_traced ? heft_contract_get_n_exceptions(job->contract.contract) : job->n_exceptions;
    opts.names = job->source.manifest;
    heft_status_t status =
        heft_convert_reverse(job->plan, ranks, job->n_tapes, dst, &opts, &job->err);
    cli_progress_end(&progress);
    return status == HEFT_OK
               ? report_back(args, job, dst, (double)(cli_mono_ns() - progress.start_ns) / 1e9)
               : cli_fail_status(args, &job->err);
}

static int reverse(const cli_args_t *args, cli_job_t *job, const char *src, const char *dst)
{
    int code = run_job(args, cli_text(args, "like"), false, job);
    if (code != CLI_OK) {
        return code;
    }
    code = cli_job_check_ranks(args, job, src);
    if (code != CLI_OK) {
        return code;
    }
    cli_model_t *models = calloc((size_t)job->n_tapes + 1, sizeof *models);
    const heft_checkpoint_t **ranks = calloc((size_t)job->n_tapes + 1, sizeof(void *));
    if (models == NULL || ranks == NULL) {
        code = cli_out_of_memory(args);
    }
    for (uint32_t i = 0; code == CLI_OK && ranks != NULL && models != NULL && i < job->n_tapes;
         i++) {
        char *path = cli_rank_path(job, src, job->first_rank + i);
        code = path != NULL ? cli_model_open_checkpoint(args, path, "destination", &models[i])
                            : cli_out_of_memory(args);
        code = code == CLI_OK ? cli_job_name(args, job, &models[i], "destination") : code;
        ranks[i] = models[i].checkpoint;
        free(path);
    }
    if (code == CLI_OK) {
        code = run_reverse(args, job, ranks, dst);
    }
    for (uint32_t i = 0; models != NULL && i < job->n_tapes; i++) {
        cli_model_close(&models[i]);
    }
    free(models);
    free(ranks);
    return code;
}

static int run(const cli_args_t *args)
{
    bool is_reverse = cli_has(args, "reverse");
    if (is_reverse != cli_has(args, "like")) {
        return cli_fail(args, CLI_USAGE, "--reverse and --like go together");
    }
    if (is_reverse && cli_has(args, "one-by-one")) {
        return cli_fail(args, CLI_USAGE, "--one-by-one cannot be given with --reverse");
    }
    if (is_reverse && cli_has(args, "rank")) {
        return cli_fail(args, CLI_USAGE, "--reverse needs all ranks: --rank cannot be given");
    }
    cli_catch_signals();
    cli_job_t job;
    cli_job_init(&job);
    int code = is_reverse ? reverse(args, &job, args->operands[0], args->operands[1])
                          : convert(args, &job, args->operands[0], args->operands[1]);
    cli_job_fini(&job);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "SRC",
      .help = "The source checkpoint. With --reverse: the engine's, with several ranks a folder "
              "with rank-0, rank-1, ...",
      .complete = CLI_COMPLETE_FILE },
    { .name = "DST",
      .help = "The folder to write; with several ranks, rank-0, rank-1, ... in it. A folder that "
              "holds a checkpoint already is refused.",
      .complete = CLI_COMPLETE_FOLDER },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false),
    CLI_OPT_LET,
    CLI_OPT_CONFIG,
    CLI_OPT_SHARDED,
    CLI_OPT_CONTRACT,
    CLI_OPT_RANK,
    { .name = "reverse",
      .kind = CLI_FLAG,
      .help = "Run the recipe backwards: from the engine's checkpoint to the source's names and "
              "shapes. The recipe must consist of copies; repeated elements must agree, padding "
              "must hold the recipe's constants." },
    { .name = "like",
      .value = "PATH",
      .kind = CLI_TEXT,
      .complete = CLI_COMPLETE_FILE,
      .help = "With --reverse: a checkpoint or manifest with the names and shapes to produce. Its "
              "data are not read." },
    { .name = "max-shard-bytes",
      .value = "N",
      .kind = CLI_BYTES,
      .min = 1,
      .max = INT64_MAX,
      .help = "Largest shard; a larger tensor gets one of its own. Default: 5G." },
    { .name = "memory",
      .value = "N",
      .kind = CLI_BYTES,
      .min = HEFT_CONVERT_MIN_MEMORY_BYTES,
      .max = INT64_MAX,
      .help =
          "Bound on memory: half for pages of files in the process, half for output that is not "
          "on disk yet. The plan comes on top. At least 1M. Default: 1 GiB." },
    { .name = "one-by-one",
      .kind = CLI_FLAG,
      .help = "Finish each group of parameters, bytes on disk, before the next one, and print its "
              "name when it begins, so that a failure names its parameter. Slow." },
    CLI_OPT_THREADS,
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_convert = {
    .name = "convert",
    .summary = "convert a checkpoint through a recipe, forwards or backwards",
    .description =
        "Proves the recipe as `heft check` does, then writes one checkpoint for each destination "
        "rank. Files get their final names only when everything is on disk, the index last; after "
        "a "
        "failure or an interrupt nothing is left. Space is reserved first, so that a full disk is "
        "found before the work. config.json is not copied. Memory does not grow with the "
        "checkpoint: see --memory.\n\n"
        "With --reverse one checkpoint is written, with the names and shapes of --like; the "
        "config.json beside --like is used. A tensor of --like that the recipe ignores is nowhere "
        "on the engine's side: it is left out, and a note on standard error names it.\n\n"
        "With --json: an object with path, ranks, bytes, pieces, seconds and digest; with "
        "--reverse "
        "also tensors and left_out.",
    .example = "heft convert MODEL OUT --recipe hf-to-engine-dense --let tp=3\n"
               "heft convert OUT BACK --recipe hf-to-engine-dense --let tp=3 \\\n"
               "    --reverse --like MODEL",
    .exits = "0 1 2 3 4 130",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* `heft verify`: a converted checkpoint against its source, element by element; with --live, what
 * the engines hold against what was published. */
#include "cli/cli_job.h"
#include "cli/cli_live.h"

#include <inttypes.h>
#include <stdlib.h>

static json_t *index_json(const heft_mismatch_t *m)
{
    json_t *array = json_array();
    for (int32_t k = 0; k < m->n_dims; k++) {
        (void)json_array_append_new(array, json_integer(m->index[k]));
    }
    return array;
}

static json_t *rank_json(const cli_job_t *job, uint32_t i, const heft_mismatch_t *m)
{
    json_t *object =
        json_pack("{s:i, s:b, s:I, s:i, s:I, s:i}", "rank", (int)(job->first_rank + i), "match",
                  m->param == NULL, "elements", (json_int_t)m->n_elems, "params",
                  (int)heft_plan_get_n_params(job->plan, i), "elements_differ",
                  (json_int_t)m->n_differ, "params_differ", (int)m->n_params);
    if (m->param != NULL) {
        char expected[24];
        char actual[24];
        (void)snprintf(expected, sizeof expected, "0x%" PRIx64, m->expected_bits);
        (void)snprintf(actual, sizeof actual, "0x%" PRIx64, m->actual_bits);
        json_t *source = m->source != NULL ? json_string(m->source) : json_null();
        (void)json_object_set_new(object, "first",
                                  json_pack("{s:s, s:o, s:o, s:I, s:s, s:s}", "param", m->param,
                                            "index", index_json(m), "source", source,
                                            "source_index", (json_int_t)m->source_index, "expected",
                                            expected, "actual", actual));
    }
    return object;
}

static void print_rank(const cli_job_t *job, uint32_t i, const heft_mismatch_t *m)
{
    uint32_t rank = job->first_rank + i;
    if (m->param == NULL) {
        (void)printf("rank %u: %u parameters, %" PRId64 " elements agree\n", rank,
                     heft_plan_get_n_params(job->plan, i), m->n_elems);
        return;
    }
    (void)printf("rank %u: %" PRId64 " of %" PRId64 " elements differ, in %u parameters\n", rank,
                 m->n_differ, m->n_elems, m->n_params);
    (void)printf("  first: %s[", m->param);
    for (int32_t k = 0; k < m->n_dims; k++) {
        (void)printf(k > 0 ? ", %" PRId64 : "%" PRId64, m->index[k]);
    }
    (void)printf("] is 0x%" PRIx64 ", expected 0x%" PRIx64, m->actual_bits, m->expected_bits);
    if (m->source != NULL) {
        (void)printf(" (element %" PRId64 " of %s)\n", m->source_index, m->source);
    } else {
        (void)printf(" (a constant)\n");
    }
}

static int verify_rank(const cli_args_t *args, cli_job_t *job, uint32_t i, json_t *ranks)
{
    char *path = cli_rank_path(job, args->operands[1], job->first_rank + i);
    if (path == NULL) {
        return cli_out_of_memory(args);
    }
    cli_model_t model;
    int code = cli_model_open_checkpoint(args, path, "destination", &model);
    free(path);
    code = code == CLI_OK ? cli_job_name(args, job, &model, "destination") : code;
    if (code != CLI_OK) {
        cli_model_close(&model);
        return code;
    }
    heft_mismatch_t mismatch = { .param = NULL };
    heft_status_t status =
        heft_verify(job->plan, i, job->source.checkpoint, model.checkpoint, &mismatch, &job->err);
    cli_model_close(&model);
    if (status != HEFT_OK && (status != HEFT_ERR_MISMATCH || mismatch.param == NULL)) {
        int failed = cli_fail_status(args, &job->err);
        return failed == CLI_DIFFERS ? CLI_DATA : failed; /* other names or shapes: no result */
    }
    if (ranks != NULL) {
        (void)json_array_append_new(ranks, rank_json(job, i, &mismatch));
    } else {
        print_rank(job, i, &mismatch);
    }
    return status == HEFT_OK ? CLI_OK : CLI_DIFFERS;
}

static int verify_files(const cli_args_t *args)
{
    if (args->n_operands != 2 || (!cli_has(args, "recipe") && !cli_has(args, "contract"))) {
        return cli_fail(args, CLI_USAGE,
                        "SRC, DST and --recipe (or --contract) are needed, or --live");
    }
    cli_job_t job;
    cli_job_init(&job);
    json_t *ranks = cli_has(args, "json") ? json_array() : NULL;
    int code = cli_job_run(args, args->operands[0], true, &job);
    code = code == CLI_OK ? cli_job_check_ranks(args, &job, args->operands[1]) : code;
    bool has_result = code == CLI_OK;
    for (uint32_t i = 0; has_result && i < job.n_tapes; i++) {
        int one = verify_rank(args, &job, i, ranks);
        code = one != CLI_OK ? one : code;
        has_result = one == CLI_OK || one == CLI_DIFFERS;
    }
    if (has_result && ranks != NULL) {
        int printed =
            cli_print_json(args, json_pack("{s:b, s:O}", "match", code == CLI_OK, "ranks", ranks));
        code = printed == CLI_OK ? code : printed;
    }
    json_decref(ranks);
    cli_job_fini(&job);
    return code;
}

static int run(const cli_args_t *args)
{
    if (!cli_has(args, "live")) {
        return verify_files(args);
    }
    if (args->n_operands > 0 || cli_has(args, "recipe") || cli_has(args, "contract")) {
        return cli_fail(args, CLI_USAGE, "--live takes neither SRC, DST, --recipe nor --contract");
    }
    if (cli_url(args) == NULL) {
        return cli_fail(args, CLI_USAGE, "--live needs --url URL");
    }
    return cli_verify_live(args);
}

static const cli_operand_t operands[] = {
    { .name = "SRC",
      .help = "The source checkpoint.",
      .complete = CLI_COMPLETE_FILE,
      .is_optional = true },
    { .name = "DST",
      .help = "The destination checkpoint; with several ranks a folder with rank-0, rank-1, ...",
      .complete = CLI_COMPLETE_FILE,
      .is_optional = true },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false),
    CLI_OPT_LET,
    CLI_OPT_CONFIG,
    CLI_OPT_SHARDED,
    CLI_OPT_CONTRACT,
    CLI_OPT_RANK,
    { .name = "live",
      .kind = CLI_FLAG,
      .help = "Let every idle destination digest the parameters it serves, and compare with the "
              "digests of the version it was given." },
    { .name = "deadline",
      .value = "SECONDS",
      .kind = CLI_NUMBER,
      .min = 1,
      .max = 86400,
      .help = "With --live: how long to wait. Default: 120." },
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_verify = {
    .name = "verify",
    .summary = "compare a destination with its source, element by element",
    .description =
        "Recomputes from SRC what the recipe makes of every element of DST and compares the bits. "
        "Prints the counts, or the first difference: the parameter, its index, the source element "
        "that should be there, and both bit patterns.\n\n"
        "With --live no files are read: the coordinator asks every destination for digests of the "
        "memory it serves, and they are compared with those of the version published.",
    .example = "heft verify MODEL OUT --recipe hf-to-engine-dense --let tp=3\n"
               "heft verify --live --url http://127.0.0.1:7070",
    .exits = "0 1 2 3 4 5",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .knobs = HEFT_KNOB_CLIENT,
    .run = run,
};

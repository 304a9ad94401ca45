/* SPDX-License-Identifier: Apache-2.0 */
/* `heft check`: compile, fold and prove every rank, with a destination also names, shapes, dtypes.
 * No data are read. */
#include "cli/cli_drift.h"
#include "cli/cli_job.h"

enum { MAX_LINES = 1000 };

static json_t *box_json(const int64_t *values, int32_t n)
{
    json_t *array = json_array();
    for (int32_t k = 0; k < n; k++) {
        (void)json_array_append_new(array, json_integer(values[k]));
    }
    return array;
}

static json_t *finding_json(const heft_finding_t *f)
{
    return json_pack("{s:s, s:b, s:i, s:s, s:I, s:i, s:o, s:o, s:s}", "kind",
                     heft_finding_kind_get_name(f->kind), "error", (int)f->is_error, "rank",
                     (int)f->rank, "name", f->name != NULL ? f->name : "", "elements",
                     (json_int_t)f->n_elems, "regions", (int)f->n_regions, "begin",
                     box_json(f->begin, f->n_dims), "end", box_json(f->end, f->n_dims), "text",
                     f->text);
}

static json_t *issue_json(const heft_issue_t *issue)
{
    return json_pack("{s:s, s:b, s:i, s:i, s:s, s:s}", "kind", "recipe", "error",
                     (int)(issue->status != HEFT_OK), "line", (int)issue->line, "column",
                     (int)issue->column, "status", heft_status_get_name(issue->status), "text",
                     issue->text);
}

/* Errors in all: of the proof, or of the recipe. */
static uint32_t count_errors(const cli_job_t *job)
{
    if (job->report != NULL) {
        return heft_report_get_n_errors(job->report);
    }
    uint32_t n = heft_issues_get_n_errors(job->issues);
    return n > 0 || job->err.status == HEFT_OK ? n : 1;
}

static int print_as_json(const cli_args_t *args, const cli_job_t *job, bool is_ok)
{
    json_t *findings = json_array();
    uint32_t n_issues = heft_issues_get_n(job->issues);
    for (uint32_t i = 0; i < n_issues; i++) {
        (void)json_array_append_new(findings, issue_json(heft_issues_get(job->issues, i)));
    }
    uint32_t n = job->report != NULL ? heft_report_get_n_findings(job->report) : 0;
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(findings,
                                    finding_json(heft_report_get_finding(job->report, i)));
    }
    const char *summary =
        job->report != NULL ? heft_report_get_summary(job->report) : job->err.message;
    return cli_print_json(args, json_pack("{s:b, s:i, s:i, s:i, s:s, s:s, s:o}", "ok", (int)is_ok,
                                          "first_rank", (int)job->first_rank, "ranks",
                                          (int)job->n_tapes, "errors", (int)count_errors(job),
                                          "status", heft_status_get_name(job->err.status),
                                          "summary", summary, "findings", findings));
}

/* CLI_OK and CLI_DIFFERS have a result to print; a refusal to compile is one. */
static int print_result(const cli_args_t *args, const cli_job_t *job, int code)
{
    if (cli_has(args, "json")) {
        int printed = print_as_json(args, job, code == CLI_OK);
        return printed == CLI_OK ? code : printed;
    }
    if (job->report != NULL) {
        (void)printf("%s\n", heft_report_get_summary(job->report));
        cli_print_findings(stdout, job->report, MAX_LINES);
    } else {
        (void)printf("refused: %s (%s)\n", job->err.message, heft_status_get_name(job->err.status));
    }
    cli_print_issues(stdout, job);
    return code;
}

/* ---- without a recipe: then and now ---- */

/* what: what was compared or made again, where that could be taken for more than it is; or NULL. */
static int print_drift(const cli_args_t *args, const heft_drift_t *drift, const char *what)
{
    uint32_t n = heft_drift_get_n(drift);
    int code = n == 0 ? CLI_OK : CLI_DIFFERS;
    if (cli_has(args, "json")) {
        int printed =
            cli_print_json(args, json_pack("{s:b, s:i, s:s*, s:o}", "ok", n == 0, "errors", (int)n,
                                           "compared", what, "drift", cli_drift_json(drift)));
        return printed != CLI_OK ? printed : code;
    }
    cli_drift_print(stdout, drift, MAX_LINES);
    if (n == 0) {
        (void)printf("no drift");
    } else {
        (void)printf("drift: %u finding%s", n, n == 1 ? "" : "s");
    }
    (void)printf(what != NULL ? " (%s)\n" : "\n", what);
    return code;
}

/* This heft does not take the recorded mapping: 1 (with a result) or 3. */
static int print_refusal(const cli_args_t *args, const heft_report_t *report,
                         const heft_error_t *err)
{
    int code = cli_exit_of(err);
    if (code == CLI_DIFFERS && cli_has(args, "json")) {
        json_t *findings = json_array();
        uint32_t n = report != NULL ? heft_report_get_n_findings(report) : 0;
        for (uint32_t i = 0; i < n; i++) {
            (void)json_array_append_new(findings, finding_json(heft_report_get_finding(report, i)));
        }
        int printed = cli_print_json(
            args, json_pack("{s:b, s:i, s:s, s:s, s:[], s:o}", "ok", 0, "errors",
                            report != NULL ? (int)heft_report_get_n_errors(report) : 1, "status",
                            heft_status_get_name(err->status), "summary", err->message, "drift",
                            "findings", findings));
        return printed == CLI_OK ? code : printed;
    }
    (void)cli_fail(args, code, "the recorded mapping is refused: %s (%s)", err->message,
                   heft_status_get_name(err->status));
    if (report != NULL) {
        cli_print_findings(stderr, report, MAX_LINES);
    }
    return code;
}

/* Make the mapping of a contract again. */
static int check_contract(const cli_args_t *args, const heft_contract_t *contract)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    heft_report_t *report = NULL;
    char what[80];
    if (heft_contract_has_mapping(contract) == 0) {
        return cli_fail(args, CLI_USAGE,
                        "the contract has no mapping to prove: give a second operand to compare "
                        "with, or --recipe");
    }
    heft_status_t status = heft_contract_check(contract, &drift, &report, &err);
    uint32_t n = heft_contract_get_n_ranks(contract);
    (void)snprintf(what, sizeof what, "the mapping made again, %u rank%s", n, n == 1 ? "" : "s");
    int code =
        status == HEFT_OK ? print_drift(args, drift, what) : print_refusal(args, report, &err);
    heft_drift_destroy(drift);
    heft_report_destroy(report);
    return code;
}

/* Names as the other side has them, where only one of the two declares how. */
static int name_alike(const cli_args_t *args, const cli_model_t *model, cli_model_t *other)
{
    heft_name_opts_t opts = HEFT_NAME_OPTS_INIT;
    opts.name_form = heft_manifest_get_name_form(model->manifest);
    opts.layer_form = heft_manifest_get_layer_form(model->manifest);
    opts.types_lost = opts.name_form == HEFT_NAME_FORM_KEYSTR ? 1 : 0;
    bool is_declared = heft_manifest_get_name_form(other->manifest) != HEFT_NAME_FORM_NONE;
    return is_declared ? CLI_OK : cli_model_name(args, other, &opts);
}

/* Of a contract the side that the other, a manifest or a checkpoint, is of. */
static void choose_side(cli_model_t *model, const cli_model_t *other)
{
    if (model->contract != NULL && other->contract == NULL) {
        const heft_manifest_t *alike =
            cli_contract_side(model->contract, heft_manifest_get_side(other->manifest));
        model->manifest = alike != NULL ? alike : model->manifest;
    }
}

static int compare_models(const cli_args_t *args, cli_model_t *a, cli_model_t *b)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    choose_side(a, b);
    choose_side(b, a);
    int code = name_alike(args, a, b);
    code = code == CLI_OK ? name_alike(args, b, a) : code;
    if (code != CLI_OK) {
        return code;
    }
    const char *what = a->contract == NULL && b->contract == NULL ? NULL : "manifests only";
    heft_status_t status;
    if (a->contract != NULL && b->contract != NULL) {
        what = heft_contract_has_mapping(a->contract) + heft_contract_has_mapping(b->contract) > 0
                   ? "manifests and mappings"
                   : NULL;
        status = heft_contract_compare(a->contract, b->contract, &drift, &err);
    } else {
        status = heft_drift_create(a->manifest, b->manifest, &drift, &err);
    }
    code = status == HEFT_OK ? print_drift(args, drift, what) : cli_fail_status(args, &err);
    heft_drift_destroy(drift);
    return code;
}

static int check_drift(const cli_args_t *args)
{
    static const char *const others[] = { "let", "config", "rank", "sharded" };
    for (size_t i = 0; i < CLI_COUNT(others); i++) {
        if (cli_has(args, others[i])) {
            return cli_fail(args, CLI_USAGE, "--%s needs --recipe", others[i]);
        }
    }
    cli_model_t a = { .manifest = NULL };
    cli_model_t b = { .manifest = NULL };
    int code = cli_model_open(args, args->operands[0], "source", &a);
    if (code == CLI_OK && args->n_operands < 2) {
        code = a.contract != NULL
                   ? check_contract(args, a.contract)
                   : cli_fail(args, CLI_USAGE,
                              "--recipe is needed, or a second operand to compare with");
    } else if (code == CLI_OK) {
        code = cli_model_open(args, args->operands[1], heft_manifest_get_side(a.manifest), &b);
        code = code == CLI_OK ? compare_models(args, &a, &b) : code;
    }
    cli_model_close(&a);
    cli_model_close(&b);
    return code;
}

static int run(const cli_args_t *args)
{
    if (!cli_has(args, "recipe")) {
        return check_drift(args);
    }
    cli_job_t job;
    cli_job_init(&job);
    int code = cli_job_open(args, args->operands[0], false, &job);
    if (code == CLI_OK) {
        code = cli_job_compile(args, args->n_operands > 1 ? args->operands[1] : NULL, &job);
        code = code == CLI_OK ? cli_job_plan(args, &job) : code;
        bool has_result = code == CLI_OK || (code == CLI_DIFFERS && job.err.status != HEFT_OK);
        if (has_result) {
            code = print_result(args, &job, code);
        } else if (job.err.status != HEFT_OK) {
            code = cli_fail_status(args, &job.err);
            cli_print_issues(stderr, &job);
        }
    }
    cli_job_fini(&job);
    return code;
}

static const cli_operand_t operands[] = {
    { .name = "SRC",
      .help = "The source: a checkpoint, its manifest or its contract (.json).",
      .complete = CLI_COMPLETE_FILE },
    { .name = "DST",
      .help = "The destination, to be compared both ways: a checkpoint or a manifest (.json); with "
              "several ranks a folder with rank-0, rank-1, ...",
      .complete = CLI_COMPLETE_FILE,
      .is_optional = true },
};

static const cli_option_t options[] = {
    CLI_OPT_RECIPE(false), CLI_OPT_LET, CLI_OPT_CONFIG, CLI_OPT_SHARDED, CLI_OPT_RANK, CLI_OPT_JSON,
};

const cli_command_t cli_cmd_check = {
    .name = "check",
    .summary = "prove a recipe or a contract, or find drift",
    .description =
        "Compiles the recipe for every destination rank, folds it to direct copies, and proves "
        "that "
        "every element of every parameter is written exactly once and every source element is "
        "used. "
        "What is wrong is listed by name and index range; notes say what is padding and which "
        "exceptions matched. No data are read.\n\n"
        "With DST, names, shapes, dtypes and layouts of the two sides must also agree both ways. "
        "With "
        "--rank, "
        "one rank alone is proven, and source elements it does not use are no error.\n\n"
        "Without --recipe, SRC and DST are one side then and now (manifests, contracts or "
        "checkpoints), and every difference is listed: names gone, added or renamed, dtypes, "
        "shapes, layouts, attributes; of two contracts also recipe, values, ranks, exceptions, "
        "plans. Status 1 where there is any.\n\n"
        "A contract alone is made again from what it holds, and must come to the same plans.",
    .example = "heft check MODEL --recipe hf-to-engine-dense --let tp=3\n"
               "heft check MODEL ENGINE --recipe my.heft --json\n"
               "heft check engine-0.9.json engine-now.json\n"
               "heft check contract.json",
    .exits = "0 1 2 3 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .operands = operands,
    .n_operands = CLI_COUNT(operands),
    .run = run,
};

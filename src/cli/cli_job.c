/* SPDX-License-Identifier: Apache-2.0 */
/* From a command line to a plan: recipe, bindings, source, tapes, proof. */
#include "cli/cli_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PRINTED_FINDINGS = 200, CLI_MAX_RECIPES = 8 };

void cli_job_init(cli_job_t *job)
{
    *job = (cli_job_t){ .err = HEFT_ERROR_INIT };
}

void cli_job_fini(cli_job_t *job)
{
    heft_report_destroy(job->report);
    heft_issues_destroy(job->issues);
    heft_plan_destroy(job->plan);
    for (uint32_t i = 0; job->tapes != NULL && i < job->n_tapes; i++) {
        heft_tape_destroy(job->tapes[i]);
    }
    for (uint32_t i = 0; job->destinations != NULL && i < job->n_tapes; i++) {
        cli_model_close(&job->destinations[i]);
    }
    free(job->tapes);
    free(job->traced);
    free(job->recorded);
    free(job->destinations);
    heft_placement_destroy(job->placement);
    heft_manifest_destroy(job->whole);
    heft_exceptions_free(job->exceptions);
    heft_bindings_destroy(job->bindings);
    heft_recipe_destroy(job->recipe);
    cli_model_close(&job->contract);
    cli_model_close(&job->source);
}

/* ---- recipe and bindings ---- */

static int set_let(const cli_args_t *args, cli_job_t *job, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || equals[1] == '\0') {
        return cli_fail(args, CLI_USAGE, "--let: \"%s\" is not NAME=VALUE", text);
    }
    char *name = strndup(text, (size_t)(equals - text));
    if (name == NULL) {
        return cli_out_of_memory(args);
    }
    heft_status_t status = equals[1] == '@'
                               ? heft_bindings_load(job->bindings, name, equals + 2, &job->err)
                               : heft_bindings_set(job->bindings, name, equals + 1, &job->err);
    free(name);
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

static int load_config(const cli_args_t *args, const char *folder, cli_job_t *job)
{
    const char *path = cli_text(args, "config");
    char *found = NULL;
    struct stat sb;
    if (path == NULL && folder != NULL && stat(folder, &sb) == 0 && S_ISDIR(sb.st_mode)) {
        size_t n = strlen(folder) + sizeof "/config.json";
        found = malloc(n);
        if (found == NULL) {
            return cli_out_of_memory(args);
        }
        (void)snprintf(found, n, "%s/config.json", folder);
        path = stat(found, &sb) == 0 ? found : NULL;
    }
    heft_status_t status =
        path != NULL ? heft_bindings_load_config(job->bindings, path, &job->err) : HEFT_OK;
    free(found);
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

/* The values before the rules are wrong: say all that is. */
static int refuse_values(const cli_args_t *args, cli_job_t *job)
{
    heft_tape_t *tape = NULL;
    if (job->source.manifest != NULL &&
        heft_recipe_compile_all(job->recipe, job->bindings, 0, cli_job_tensors(job), NULL,
                                job->issues, &tape, NULL) == HEFT_OK) {
        heft_tape_destroy(tape);
    }
    int code = cli_fail_status(args, &job->err);
    cli_print_issues(stderr, job);
    return code;
}

/* One recipe, or a chain of those that are given. */
static heft_status_t load_recipes(const cli_args_t *args, cli_job_t *job)
{
    heft_recipe_t *parts[CLI_MAX_RECIPES + 1] = { NULL };
    uint32_t n = 0;
    size_t cursor = 0;
    const char *name;
    heft_status_t status = HEFT_OK;
    while (status == HEFT_OK && n <= CLI_MAX_RECIPES &&
           (name = cli_next(args, "recipe", &cursor)) != NULL) {
        status = heft_recipe_load_all(name, job->issues, &parts[n], &job->err);
        n += status == HEFT_OK ? 1 : 0;
    }
    if (status == HEFT_OK && n == 1) {
        job->recipe = parts[0];
        return HEFT_OK;
    }
    if (status == HEFT_OK) {
        status = heft_recipe_chain((const heft_recipe_t *const *)parts, n, &job->recipe, &job->err);
    }
    for (uint32_t i = 0; i < n; i++) {
        heft_recipe_destroy(parts[i]);
    }
    return status;
}

int cli_job_load_recipe(const cli_args_t *args, const char *config_folder, cli_job_t *job)
{
    heft_status_t status = heft_issues_create(&job->issues, &job->err);
    if (status == HEFT_OK) {
        status = load_recipes(args, job);
    }
    if (status != HEFT_OK) {
        bool is_name = status == HEFT_ERR_NOT_FOUND && job->err.sys_errno == 0;
        int code = is_name ? CLI_USAGE : cli_exit_of(&job->err);
        code = cli_fail(args, code, "%s", job->err.message);
        cli_print_issues(stderr, job);
        return code;
    }
    status = heft_bindings_create(&job->bindings, &job->err);
    if (status == HEFT_OK) {
        status = heft_bindings_load_env(job->bindings, job->recipe, &job->err);
    }
    if (status != HEFT_OK) {
        return cli_fail_status(args, &job->err);
    }
    int code = load_config(args, config_folder, job);
    size_t cursor = 0;
    const char *let;
    while (code == CLI_OK && (let = cli_next(args, "let", &cursor)) != NULL) {
        code = set_let(args, job, let);
    }
    if (code != CLI_OK) {
        return code;
    }
    status = heft_recipe_count_ranks(job->recipe, job->bindings, &job->n_ranks, &job->err);
    return status == HEFT_OK ? CLI_OK : refuse_values(args, job);
}

/* --sharded: whole tensors from the parts of ranks. */
static int place(const cli_args_t *args, cli_job_t *job)
{
    if (!cli_has(args, "sharded")) {
        return CLI_OK;
    }
    if (cli_has(args, "contract")) { /* it has a manifest of its source, and whole tensors in it */
        return cli_fail(args, CLI_USAGE, "--sharded and --contract do not go together");
    }
    heft_status_t status =
        heft_placement_infer(job->source.manifest, (int32_t)cli_number(args, "sharded", 0), NULL,
                             &job->placement, &job->whole, &job->err);
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

const heft_manifest_t *cli_job_tensors(const cli_job_t *job)
{
    return job->whole != NULL ? job->whole : job->source.manifest;
}

int cli_job_open(const cli_args_t *args, const char *source, bool needs_data, cli_job_t *job)
{
    int code = needs_data ? cli_model_open_checkpoint(args, source, "source", &job->source)
                          : cli_model_open(args, source, "source", &job->source);
    if (code != CLI_OK) {
        return code;
    }
    if (!cli_has(args, "contract") && !cli_has(args, "recipe")) {
        return cli_fail(args, CLI_USAGE, "--recipe or --contract is needed");
    }
    code = place(args, job);
    if (code != CLI_OK) {
        return code;
    }
    code = cli_has(args, "contract") ? cli_job_load_contract(args, job)
                                     : cli_job_load_recipe(args, source, job);
    return code == CLI_OK ? cli_job_name(args, job, &job->source, "source") : code;
}

int cli_job_name(const cli_args_t *args, const cli_job_t *job, cli_model_t *model, const char *side)
{
    heft_name_opts_t opts;
    if (job->is_traced) {
        return CLI_OK; /* names are those of the contract */
    }
    (void)heft_recipe_query_names(job->recipe, side, &opts);
    return cli_model_name(args, model, &opts);
}

/* ---- tapes and plan ---- */

int cli_job_check_ranks(const cli_args_t *args, const cli_job_t *job, const char *dst)
{
    char path[4096];
    struct stat sb;
    uint32_t n = 0;
    do {
        (void)snprintf(path, sizeof path, "%s/rank-%u", dst, n);
    } while (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode) && ++n < UINT16_MAX);
    if (job->n_ranks == 1 && n > 0) {
        return cli_fail(args, CLI_USAGE,
                        "%s holds %srank-%u, but the recipe has 1 rank: is --let (tp) right?", dst,
                        n > 1 ? "rank-0 to " : "", n - 1);
    }
    const char *name = strrchr(dst, '/');
    name = name != NULL ? name + 1 : dst;
    if (job->n_ranks > 1 && n == 0 && strncmp(name, "rank-", 5) == 0) {
        return cli_fail(args, CLI_USAGE,
                        "the recipe has %u ranks: give the folder that holds %s, not %s",
                        job->n_ranks, name, dst);
    }
    return CLI_OK;
}

int cli_job_open_destinations(const cli_args_t *args, const char *dst, cli_job_t *job)
{
    job->destinations = calloc((size_t)job->n_tapes + 1, sizeof job->destinations[0]);
    if (job->destinations == NULL) {
        return cli_out_of_memory(args);
    }
    int code = cli_job_check_ranks(args, job, dst);
    for (uint32_t i = 0; i < job->n_tapes && code == CLI_OK; i++) {
        char *path = cli_rank_path(job, dst, job->first_rank + i);
        code = path != NULL ? cli_model_open(args, path, "destination", &job->destinations[i])
                            : cli_out_of_memory(args);
        code =
            code == CLI_OK ? cli_job_name(args, job, &job->destinations[i], "destination") : code;
        free(path);
    }
    return code;
}

static const heft_manifest_t *destination_of(const cli_job_t *job, uint32_t i)
{
    return job->destinations != NULL ? job->destinations[i].manifest : NULL;
}

static heft_status_t compile_rank(cli_job_t *job, uint32_t i)
{
    heft_tape_t *tape = NULL;
    heft_status_t status = heft_recipe_compile_all(job->recipe, job->bindings, job->first_rank + i,
                                                   cli_job_tensors(job), destination_of(job, i),
                                                   job->issues, &tape, &job->err);
    if (status == HEFT_OK && job->placement != NULL) {
        status = heft_placement_apply(job->placement, tape, &job->tapes[i], &job->err);
        if (status != HEFT_OK) {
            heft_tape_destroy(tape);
        }
    } else {
        job->tapes[i] = tape;
    }
    return status;
}

int cli_job_compile(const cli_args_t *args, const char *dst, cli_job_t *job)
{
    if (job->is_traced) {
        return cli_job_take_tapes(args, dst, job);
    }
    int64_t rank = cli_has(args, "rank") ? cli_number(args, "rank", 0) : -1;
    if (rank >= (int64_t)job->n_ranks) {
        return cli_fail(args, CLI_USAGE, "--rank %" PRId64 ": the recipe has %u rank%s, %s%u", rank,
                        job->n_ranks, job->n_ranks == 1 ? "" : "s",
                        job->n_ranks == 1 ? "" : "0 to ", job->n_ranks - 1);
    }
    job->first_rank = rank >= 0 ? (uint32_t)rank : 0;
    job->n_tapes = rank >= 0 ? 1 : job->n_ranks;
    job->tapes = calloc((size_t)job->n_tapes + 1, sizeof(heft_tape_t *));
    if (job->tapes == NULL) {
        return cli_out_of_memory(args);
    }
    int code = dst != NULL ? cli_job_open_destinations(args, dst, job) : CLI_OK;
    for (uint32_t i = 0; i < job->n_tapes && code == CLI_OK; i++) {
        code = compile_rank(job, i) == HEFT_OK ? CLI_OK : cli_exit_of(&job->err);
    }
    return code;
}

int cli_job_plan(const cli_args_t *args, cli_job_t *job)
{
    (void)args;
    if (job->is_traced) {
        return cli_job_plan_traced(job) == HEFT_OK ? CLI_OK : cli_exit_of(&job->err);
    }
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_status_t status = heft_recipe_resolve_exceptions(
        job->recipe, job->bindings, cli_job_tensors(job), destination_of(job, 0), &job->exceptions,
        &job->n_exceptions, &job->err);
    if (status == HEFT_OK) {
        opts.exceptions = job->exceptions;
        opts.n_exceptions = job->n_exceptions;
        opts.partial = job->n_tapes < job->n_ranks ? 1 : 0;
        status = heft_plan_create((const heft_tape_t *const *)job->tapes, job->n_tapes,
                                  job->first_rank, &opts, &job->plan, &job->report, &job->err);
    }
    return status == HEFT_OK ? CLI_OK : cli_exit_of(&job->err);
}

void cli_job_print_warnings(const cli_args_t *args, const cli_job_t *job)
{
    uint32_t n = heft_report_get_n_findings(job->report);
    for (uint32_t i = 0; i < n; i++) {
        const heft_finding_t *f = heft_report_get_finding(job->report, i);
        if (f->kind == HEFT_FINDING_SLOW) {
            (void)fprintf(stderr, "heft %s: warning: %s\n", args->command->name, f->text);
        }
    }
    cli_print_issues(stderr, job);
}

int cli_job_run(const cli_args_t *args, const char *source, bool needs_data, cli_job_t *job)
{
    int code = cli_job_open(args, source, needs_data, job);
    if (code != CLI_OK) {
        return code;
    }
    code = cli_job_compile(args, job->destination, job);
    code = code == CLI_OK ? cli_job_plan(args, job) : code;
    if (code == CLI_OK) {
        cli_job_print_warnings(args, job);
    }
    if (code != CLI_OK && job->err.status != HEFT_OK) {
        cli_job_print_refusal(args, job);
    }
    return code;
}

void cli_job_print_refusal(const cli_args_t *args, const cli_job_t *job)
{
    (void)cli_fail_status(args, &job->err);
    cli_print_issues(stderr, job);
    if (job->report != NULL) {
        cli_print_findings(stderr, job->report, MAX_PRINTED_FINDINGS);
    }
}

/* The summary, "TEXT (1 of 15 errors)", says it already; it may be cut. */
static bool is_said(const cli_job_t *job, const heft_issue_t *issue)
{
    const char *more = strstr(job->err.message, " (1 of ");
    const size_t n = more != NULL ? (size_t)(more - job->err.message) : strlen(job->err.message);
    return n > 0 && strncmp(job->err.message, issue->text, n) == 0;
}

/* A rule for which the source has nothing: of a tree of another kind that is true of nearly all. */
static bool is_idle(const heft_issue_t *issue)
{
    return issue->status == HEFT_ERR_NAME && strstr(issue->text, " matches none of ") != NULL;
}

enum { MIN_FOLDED = 4 };

/* How many rules are told in one line; 0: each has its own. */
static uint32_t fold_idle(FILE *out, const cli_job_t *job)
{
    uint32_t n = 0;
    uint32_t first = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < heft_issues_get_n(job->issues); i++) {
        const heft_issue_t *issue = heft_issues_get(job->issues, i);
        if (is_idle(issue) && !is_said(job, issue)) {
            first = n++ == 0 ? issue->line : first;
            last = issue->line;
        }
    }
    if (n < MIN_FOLDED) {
        return 0;
    }
    (void)fprintf(out,
                  "error  %u rules, from line %u to line %u, match nothing in the source: is it of "
                  "the kind that this recipe reads? (heft check --json lists them)\n",
                  n, first, last);
    return n;
}

void cli_print_issues(FILE *out, const cli_job_t *job)
{
    uint32_t n = job->issues != NULL ? heft_issues_get_n(job->issues) : 0;
    uint32_t n_errors = job->issues != NULL ? heft_issues_get_n_errors(job->issues) : 0;
    uint32_t n_said = 0;
    const uint32_t n_folded = n > 0 ? fold_idle(out, job) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const heft_issue_t *issue = heft_issues_get(job->issues, i);
        const bool is_error = issue->status != HEFT_OK;
        const bool is_first = is_error && n_said == 0 && is_said(job, issue);
        n_said += is_first;
        if (!is_first && !(n_folded > 0 && is_idle(issue))) {
            (void)fprintf(out, "%-5s  %s\n", is_error ? "error" : "note", issue->text);
            n_said += is_error;
        }
    }
    if (n_errors > n_said + n_folded) {
        (void)fprintf(out, "... and %u errors more\n", n_errors - n_said - n_folded);
    }
}

void cli_print_findings(FILE *out, const heft_report_t *report, uint32_t max_lines)
{
    uint32_t n = heft_report_get_n_findings(report);
    for (uint32_t i = 0; i < n && i < max_lines; i++) {
        const heft_finding_t *f = heft_report_get_finding(report, i);
        char rank[16] = "-";
        if (f->rank >= 0) {
            (void)snprintf(rank, sizeof rank, "%d", f->rank);
        }
        (void)fprintf(out, "%-5s  %-11s  rank %-3s  %s\n",
                      f->is_error                    ? "error"
                      : f->kind == HEFT_FINDING_SLOW ? "warn"
                                                     : "note",
                      heft_finding_kind_get_name(f->kind), rank, f->text);
    }
    if (n > max_lines) {
        (void)fprintf(out, "... and %u more\n", n - max_lines);
    }
}

char *cli_rank_path(const cli_job_t *job, const char *dir, uint32_t rank)
{
    if (job->n_ranks == 1) {
        return strdup(dir);
    }
    size_t n = strlen(dir) + 32;
    char *path = malloc(n);
    if (path != NULL) {
        (void)snprintf(path, n, "%s/rank-%u", dir, rank);
    }
    return path;
}

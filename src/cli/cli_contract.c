/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --contract: the mapping comes out of a file. That of a recipe is run as if the recipe and its
 * values had been given; of a traced loader the tapes are there already. The source must be the one
 * that the contract is of.
 */
#include "cli/cli_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The first of what differs, and how much there is. */
static int check_side(const cli_args_t *args, const char *which, const heft_manifest_t *recorded,
                      const heft_manifest_t *given)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_drift_t *drift = NULL;
    if (heft_drift_create(recorded, given, &drift, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    const uint32_t n = heft_drift_get_n(drift);
    int code = n == 0 ? CLI_OK
                      : cli_fail(args, CLI_DIFFERS,
                                 "the %s is not the one in the contract, %u difference%s: %s",
                                 which, n, n == 1 ? "" : "s", heft_drift_get(drift, 0)->text);
    heft_drift_destroy(drift);
    return code;
}

static int take_recipe(const cli_args_t *args, cli_job_t *job)
{
    const heft_contract_t *c = job->contract.contract;
    const char *text = heft_contract_get_recipe_text(c);
    const char *bindings = heft_contract_get_bindings(c);
    heft_status_t status = heft_recipe_parse(heft_contract_get_recipe_name(c), text, strlen(text),
                                             &job->recipe, &job->err);
    if (status == HEFT_OK) {
        status = heft_bindings_decode(bindings, strlen(bindings), &job->bindings, &job->err);
    }
    if (status == HEFT_OK) {
        status = heft_recipe_count_ranks(job->recipe, job->bindings, &job->n_ranks, &job->err);
    }
    return status == HEFT_OK ? CLI_OK : cli_fail_status(args, &job->err);
}

int cli_job_load_contract(const cli_args_t *args, cli_job_t *job)
{
    static const char *const others[] = { "recipe", "let", "config" };
    for (size_t i = 0; i < CLI_COUNT(others); i++) {
        if (cli_has(args, others[i])) {
            return cli_fail(args, CLI_USAGE, "--%s and --contract do not go together", others[i]);
        }
    }
    const char *path = cli_text(args, "contract");
    int code = cli_model_open(args, path, "source", &job->contract);
    if (code != CLI_OK) {
        return code;
    }
    const heft_contract_t *c = job->contract.contract;
    if (c == NULL || heft_contract_has_mapping(c) == 0) {
        return cli_fail(args, CLI_USAGE, "%s: %s", path,
                        c == NULL ? "this is no contract" : "the contract has no mapping");
    }
    if (heft_issues_create(&job->issues, &job->err) != HEFT_OK) {
        return cli_fail_status(args, &job->err);
    }
    job->is_traced = heft_contract_is_traced(c) != 0;
    job->n_ranks = heft_contract_get_n_ranks(c);
    code = job->is_traced ? CLI_OK : take_recipe(args, job);
    code = code == CLI_OK ? cli_job_name(args, job, &job->source, "source") : code;
    return code == CLI_OK
               ? check_side(args, "source", heft_contract_get_manifest(c), job->source.manifest)
               : code;
}

/* ---- traced loaders ---- */

static int check_destinations(const cli_args_t *args, const char *dst, cli_job_t *job)
{
    int code = cli_job_open_destinations(args, dst, job);
    const uint32_t first = heft_contract_get_first_rank(job->contract.contract);
    for (uint32_t i = 0; i < job->n_tapes && code == CLI_OK; i++) {
        const heft_manifest_t *recorded =
            heft_contract_get_destination(job->contract.contract, job->first_rank - first + i);
        char which[32];
        (void)snprintf(which, sizeof which, "destination of rank %u", job->first_rank + i);
        code = check_side(args, which, recorded, job->destinations[i].manifest);
    }
    return code;
}

int cli_job_take_tapes(const cli_args_t *args, const char *dst, cli_job_t *job)
{
    const heft_contract_t *c = job->contract.contract;
    const uint32_t first = heft_contract_get_first_rank(c);
    const int64_t rank = cli_has(args, "rank") ? cli_number(args, "rank", 0) : -1;
    if (rank >= 0 && (rank < (int64_t)first || rank - first >= (int64_t)job->n_ranks)) {
        return cli_fail(args, CLI_USAGE, "--rank %" PRId64 ": the contract has ranks %u to %u",
                        rank, first, first + job->n_ranks - 1);
    }
    job->first_rank = rank >= 0 ? (uint32_t)rank : first;
    job->n_tapes = rank >= 0 ? 1 : job->n_ranks;
    job->traced = calloc((size_t)job->n_tapes + 1, sizeof(heft_tape_t *));
    if (job->traced == NULL) {
        return cli_out_of_memory(args);
    }
    for (uint32_t i = 0; i < job->n_tapes; i++) {
        job->traced[i] = heft_contract_get_tape(c, job->first_rank - first + i);
    }
    return dst != NULL ? check_destinations(args, dst, job) : CLI_OK;
}

/* A file that was edited by hand, or another heft. */
static heft_status_t compare_plans(cli_job_t *job)
{
    const heft_contract_t *c = job->contract.contract;
    const uint32_t first = heft_contract_get_first_rank(c);
    for (uint32_t i = 0; i < job->n_tapes; i++) {
        const char *is = heft_plan_get_rank_digest(job->plan, i);
        const char *was = heft_contract_get_rank_digest(c, job->first_rank - first + i);
        if (strcmp(is, was) != 0) {
            job->err.status = HEFT_ERR_MISMATCH;
            (void)snprintf(job->err.message, sizeof job->err.message,
                           "the plan of rank %u is %.16s.., the contract records %.16s..",
                           job->first_rank + i, is, was);
            return HEFT_ERR_MISMATCH;
        }
    }
    return HEFT_OK;
}

heft_status_t cli_job_plan_traced(cli_job_t *job)
{
    const heft_contract_t *c = job->contract.contract;
    const uint32_t n = heft_contract_get_n_exceptions(c);
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    job->recorded = calloc((size_t)n + 1, sizeof *job->recorded);
    if (job->recorded == NULL) {
        job->err.status = HEFT_ERR_NOMEM;
        (void)snprintf(job->err.message, sizeof job->err.message, "out of memory");
        return HEFT_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        job->recorded[i] = *heft_contract_get_exception(c, i);
    }
    opts.exceptions = job->recorded;
    opts.n_exceptions = n;
    opts.partial = heft_contract_is_partial(c) != 0 || job->n_tapes < job->n_ranks ? 1 : 0;
    heft_status_t status = heft_plan_create(job->traced, job->n_tapes, job->first_rank, &opts,
                                            &job->plan, &job->report, &job->err);
    return status == HEFT_OK ? compare_plans(job) : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What check, plan, explain, convert, verify and serve share: a recipe with its bindings, compiled
 * against a source, and the plan. */
#ifndef HEFT_CLI_CLI_JOB_H
#define HEFT_CLI_CLI_JOB_H

#include "cli/cli_model.h"

typedef struct cli_job {
    heft_recipe_t *recipe;
    heft_bindings_t *bindings;
    cli_model_t contract; /* of --contract */
    bool is_traced;       /* it is of a traced loader: there is no recipe */
    cli_model_t source;
    heft_placement_t *placement;  /* of --sharded, or NULL */
    heft_manifest_t *whole;       /* then the tensors that the recipe sees */
    const char *destination;      /* what cli_job_run compiles against; NULL: nothing */
    uint32_t n_ranks;             /* of the recipe, or in the contract */
    uint32_t first_rank;          /* of the job: --rank, else 0 */
    uint32_t n_tapes;             /* ranks of the job */
    heft_tape_t **tapes;          /* compiled; NULL of a traced loader */
    const heft_tape_t **traced;   /* the contract's */
    heft_exception_t *recorded;   /* the contract's, of a traced loader */
    cli_model_t *destinations;    /* by tape, or NULL */
    heft_exception_t *exceptions; /* of the recipe, as planned with */
    uint32_t n_exceptions;
    heft_plan_t *plan;     /* NULL when the proof refused it */
    heft_report_t *report; /* NULL before planning */
    heft_issues_t *issues; /* of the recipe: all that is wrong, and notes */
    heft_error_t err;      /* of the step that failed */
} cli_job_t;

void cli_job_init(cli_job_t *job);
void cli_job_fini(cli_job_t *job);

/* --recipe, --let, --config (config_folder may be NULL: where config.json is looked for). Prints
 * what is wrong. */
int cli_job_load_recipe(const cli_args_t *args, const char *config_folder, cli_job_t *job);
#define CLI_OPT_CONTRACT                                                                      \
    {                                                                                         \
        .name = "contract", .value = "FILE", .kind = CLI_TEXT, .complete = CLI_COMPLETE_FILE, \
        .help = "In the place of --recipe: a contract with a mapping, of a recipe or of a "   \
                "traced loader. SRC must be the source that it records."                      \
    }
/* --contract (cli_contract.c): load it and hold it against the source, if that is open. Prints what
 * is wrong. */
int cli_job_load_contract(const cli_args_t *args, cli_job_t *job);
/* Of a traced loader: what cli_job_compile and cli_job_plan do of a recipe. */
int cli_job_take_tapes(const cli_args_t *args, const char *dst, cli_job_t *job);
heft_status_t cli_job_plan_traced(cli_job_t *job);
/* Open the source and load the recipe, or the contract. */
int cli_job_open(const cli_args_t *args, const char *source, bool needs_data, cli_job_t *job);
/* Make the names of a model canonical as the recipe declares them of this side. */
int cli_job_name(const cli_args_t *args, const cli_job_t *job, cli_model_t *model,
                 const char *side);
/* What the recipe sees of the source: its tensors, or the whole ones of which it holds the parts.
 */
const heft_manifest_t *cli_job_tensors(const cli_job_t *job);
/* Compile all ranks, or that of --rank, against the destination at `dst` if it is not NULL. A
 * refusal is kept in job->err and not printed. */
int cli_job_compile(const cli_args_t *args, const char *dst, cli_job_t *job);
/* Open the destinations of ranks [first_rank, first_rank + n_tapes) at `dst`. */
int cli_job_open_destinations(const cli_args_t *args, const char *dst, cli_job_t *job);
/* The step that failed: its message, what is wrong with the recipe, findings. */
void cli_job_print_refusal(const cli_args_t *args, const cli_job_t *job);
/* What is right and slow, and what the recipe notes. */
void cli_job_print_warnings(const cli_args_t *args, const cli_job_t *job);
/* CLI_USAGE where `dst` holds folders of ranks and the recipe has one rank, or is itself the folder
 * of one rank of several. */
int cli_job_check_ranks(const cli_args_t *args, const cli_job_t *job, const char *dst);
/* Fold and prove. CLI_DIFFERS with job->report when the proof refuses. */
int cli_job_plan(const cli_args_t *args, cli_job_t *job);
/* Open, compile, plan; prints every refusal, with its findings. */
int cli_job_run(const cli_args_t *args, const char *source, bool needs_data, cli_job_t *job);

/* What is wrong with the recipe where that is more than job->err says, and notes, a line each. */
void cli_print_issues(FILE *out, const cli_job_t *job);
/* Findings on a stream, errors first; at most max_lines of them. */
void cli_print_findings(FILE *out, const heft_report_t *report, uint32_t max_lines);

/* "DIR", or "DIR/rank-R" where the recipe has several ranks; owned by the caller (free). NULL: out
 * of memory. */
char *cli_rank_path(const cli_job_t *job, const char *dir, uint32_t rank);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `heft`: a program over include/heft.
 *
 * One table of options for each command drives parsing, help and completion. Results go to stdout,
 * everything else to stderr. A command returns its exit code.
 */
#ifndef HEFT_CLI_CLI_H
#define HEFT_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "heft/heft.h"

enum cli_exit {
    CLI_OK = 0,
    CLI_DIFFERS = 1, /* check or verify found differences, the proof refused */
    CLI_USAGE = 2,   /* the command line is wrong */
    CLI_DATA = 3,    /* input is malformed or not supported */
    CLI_SYSTEM = 4,  /* the system failed: files, memory, space */
    CLI_PEER = 5,    /* a peer or a round failed or timed out */
    CLI_INTERNAL = 70,
    CLI_CANCELED = 130
};

/* ---- option tables ---- */

typedef enum cli_kind {
    CLI_FLAG = 0,
    CLI_TEXT = 1,
    CLI_NUMBER = 2, /* a whole number from min to max */
    CLI_BYTES = 3   /* the same, with an optional suffix K, M, G, T (powers of 1000) */
} cli_kind_t;

/* What the shell completes a value with. */
typedef enum cli_complete {
    CLI_COMPLETE_NOTHING = 0,
    CLI_COMPLETE_FILE = 1,
    CLI_COMPLETE_FOLDER = 2,
    CLI_COMPLETE_COMMAND = 3
} cli_complete_t;

typedef struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* placeholder in help, NULL for a flag */
    const char *help;
    const char *choices; /* NULL, or "a b c": the only values */
    int64_t min, max;
    cli_kind_t kind;
    cli_complete_t complete;
    bool is_required;
    bool is_repeatable;
} cli_option_t;

typedef struct cli_operand {
    const char *name; /* "SRC" */
    const char *help;
    const char *choices;
    cli_complete_t complete;
    bool is_optional;
} cli_operand_t;

typedef struct cli_args cli_args_t;

typedef struct cli_command {
    const char *name;
    const char *summary;     /* one lower-case line */
    const char *description; /* paragraphs separated by blank lines; wrapped by help */
    const char *example;     /* lines as they are */
    const char *exits;       /* the exit codes this command uses, "0 1 2" */
    const cli_option_t *options;
    size_t n_options;
    const cli_operand_t *operands;
    size_t n_operands;
    uint32_t knobs; /* enum heft_knob_users: their knobs are options, too */
    bool needs_url; /* --url is required, unless environment or settings file have it */
    int (*run)(const cli_args_t *args);
} cli_command_t;

typedef struct cli_value {
    const cli_option_t *option;
    const char *text;
    int64_t number;
} cli_value_t;

struct cli_args {
    const cli_command_t *command;
    cli_value_t *values; /* in the order given */
    size_t n_values;
    const char **operands;
    size_t n_operands;
    heft_config_t *config; /* of commands with knobs: flags, environment, settings file */
    bool wants_help;
};

#define CLI_COUNT(array) (sizeof(array) / sizeof(array)[0])
#define CLI_OPT_JSON                                                          \
    {                                                                         \
        .name = "json", .kind = CLI_FLAG, .help = "Print the result as JSON." \
    }
#define CLI_OPT_RECIPE(required)                                                                \
    {                                                                                           \
        .name = "recipe", .value = "RECIPE", .kind = CLI_TEXT, .complete = CLI_COMPLETE_FILE,   \
        .is_required = (required), .is_repeatable = true,                                       \
        .help =                                                                                 \
            "The recipe: a path (with a slash, or ending in .heft), or a bare name, looked up " \
            "in the folders of $HEFT_RECIPES and then among the shipped ones. Repeated: a "     \
            "chain, each reading what the one before it makes; nothing between is written."     \
    }
#define CLI_OPT_LET                                                                             \
    {                                                                                           \
        .name = "let", .value = "NAME=VALUE", .kind = CLI_TEXT, .is_repeatable = true,          \
        .help = "Give a `let` of the recipe another value; @FILE: the JSON in a file. Can be "  \
                "repeated. In a chain every recipe that has the name takes it, RECIPE.NAME is " \
                "for one alone."                                                                \
    }
#define CLI_OPT_SHARDED                                                                        \
    {                                                                                          \
        .name = "sharded", .value = "DIM", .kind = CLI_NUMBER, .max = 11,                      \
        .help = "The source is a folder of ranks that hold parts of whole tensors along this " \
                "dimension, one after the other (FSDP: 0); the recipe sees the whole tensors." \
    }
#define CLI_OPT_CONFIG                                                                      \
    {                                                                                       \
        .name = "config", .value = "FILE", .kind = CLI_TEXT, .complete = CLI_COMPLETE_FILE, \
        .help = "JSON file for the recipe's config.* values. Default: config.json in the "  \
                "source folder, if it is there."                                            \
    }
#define CLI_OPT_RANK                                                              \
    {                                                                             \
        .name = "rank", .value = "R", .kind = CLI_NUMBER, .min = 0, .max = 65535, \
        .help = "One destination rank only, from 0."                              \
    }
#define CLI_OPT_THREADS                                                             \
    {                                                                               \
        .name = "threads", .value = "N", .kind = CLI_NUMBER, .min = 1, .max = 1024, \
        .help = "Copying threads. Default: 1."                                      \
    }
/* ---- parsing ---- */

/* Fill args from argv (command name excluded); borrows argv. Prints what is wrong. CLI_OK or
 * CLI_USAGE. Free with cli_args_fini. */
int cli_args_parse(cli_args_t *args, const cli_command_t *command, int argc, char **argv);
void cli_args_fini(cli_args_t *args);

bool cli_has(const cli_args_t *args, const char *option);
/* The value, or NULL. */
const char *cli_text(const cli_args_t *args, const char *option);
int64_t cli_number(const cli_args_t *args, const char *option, int64_t missing);
/* The values of a repeatable option, one after the other; *cursor starts at 0. NULL at the end. */
const char *cli_next(const cli_args_t *args, const char *option, size_t *cursor);
/* --url, or that of the environment or of the settings file, or NULL. */
const char *cli_url(const cli_args_t *args);

/* The options of a command: its own, then its knobs. */
size_t cli_n_options(const cli_command_t *command);
const cli_option_t *cli_option_at(const cli_command_t *command, size_t i);
/* Fill args->config from the flags given, the environment and the settings file. Prints what is
 * wrong; CLI_OK or an exit code. */
int cli_config_load(cli_args_t *args);
/* What is logged, from --log and --log-format (where the command has them) or the environment. */
int cli_log_set_up(const cli_args_t *args);

/* The candidate nearest to a word, or NULL when none is near. */
typedef struct cli_nearest {
    const char *word;
    const char *best;
    size_t best_distance;
} cli_nearest_t;
void cli_nearest_init(cli_nearest_t *nearest, const char *word);
void cli_nearest_try(cli_nearest_t *nearest, const char *candidate);

/* ---- commands ---- */

extern const cli_command_t *const cli_commands[]; /* ends with NULL */
const cli_command_t *cli_find_command(const char *name);
int cli_unknown_command(const char *name);
void cli_help_overview(FILE *out);
void cli_help_command(FILE *out, const cli_command_t *command);
void cli_completion_bash(FILE *out);

extern const cli_command_t cli_cmd_bench;
extern const cli_command_t cli_cmd_check;
extern const cli_command_t cli_cmd_completion;
extern const cli_command_t cli_cmd_config;
extern const cli_command_t cli_cmd_contract;
extern const cli_command_t cli_cmd_convert;
extern const cli_command_t cli_cmd_coordinator;
extern const cli_command_t cli_cmd_demo;
extern const cli_command_t cli_cmd_diff;
extern const cli_command_t cli_cmd_explain;
extern const cli_command_t cli_cmd_help;
extern const cli_command_t cli_cmd_inspect;
extern const cli_command_t cli_cmd_plan;
extern const cli_command_t cli_cmd_push;
extern const cli_command_t cli_cmd_recover;
extern const cli_command_t cli_cmd_remove;
extern const cli_command_t cli_cmd_serve;
extern const cli_command_t cli_cmd_simulate;
extern const cli_command_t cli_cmd_status;
extern const cli_command_t cli_cmd_verify;
extern const cli_command_t cli_cmd_version;

/* ---- output ---- */

/* "heft CMD: text" on stderr; returns code. */
int cli_fail(const cli_args_t *args, int code, const char *fmt, ...) HEFT_PRINTF(3, 4);
/* The message of err, and the exit code of its status. */
int cli_fail_status(const cli_args_t *args, const heft_error_t *err);
int cli_exit_of(const heft_error_t *err);
int cli_out_of_memory(const cli_args_t *args);

/* Print a JSON value on stdout and free it; NULL (out of memory) fails. Lines: one line each. */
int cli_print_json(const cli_args_t *args, json_t *value);
int cli_print_json_line(const cli_args_t *args, json_t *value);
json_t *cli_shape_json(const heft_shape_t *shape);
/* "[2, 3]"; out holds 320 bytes. */
void cli_shape_text(const heft_shape_t *shape, char out[320]);
/* "1.23 GB"; out holds 32 bytes. */
void cli_bytes_text(int64_t bytes, char out[32]);

/* Progress on stderr: a bar on a terminal, else a line now and then; nothing within the first
 * second. */
typedef struct cli_progress {
    const char *what;
    int64_t start_ns;
    int64_t next_ns;
    bool is_terminal;
    bool is_drawn;
} cli_progress_t;
void cli_progress_init(cli_progress_t *progress, const char *what);
int cli_progress_tick(void *progress, int64_t done_bytes, int64_t total_bytes);
void cli_progress_end(cli_progress_t *progress);
int64_t cli_mono_ns(void);

/* SIGINT and SIGTERM set a flag, which cli_progress_tick turns into a cancel. */
void cli_catch_signals(void);
/* A file that is mapped and is cut while it is read ends the command, with a line that names it. */
void cli_catch_bus_errors(const char *name);
bool cli_is_interrupted(void);
/* What the signals do beside that, until it is called with NULL; safe in a signal handler. */
void cli_on_interrupt(void (*call)(void *arg), void *arg);

#endif

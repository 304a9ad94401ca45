/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing a command line against a command's table. Nothing is guessed: an unknown option, a value
 * out of bounds, an option given twice, a missing or a surplus operand are errors that name the
 * nearest right thing.
 */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- nearest ---- */

enum { NEAREST_MAX = 250 };

static size_t edit_distance(const char *a, const char *b)
{
    size_t na = strlen(a);
    size_t nb = strlen(b);
    if (na > NEAREST_MAX || nb > NEAREST_MAX) {
        return NEAREST_MAX;
    }
    size_t row[NEAREST_MAX + 1];
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t swap = diag + (a[i - 1] != b[j - 1]);
            size_t edit = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diag = row[j];
            row[j] = swap < edit ? swap : edit;
        }
    }
    return row[nb];
}

void cli_nearest_init(cli_nearest_t *nearest, const char *word)
{
    *nearest = (cli_nearest_t){ .word = word, .best_distance = strlen(word) / 2 + 2 };
}

void cli_nearest_try(cli_nearest_t *nearest, const char *candidate)
{
    size_t distance = edit_distance(nearest->word, candidate);
    if (distance < nearest->best_distance) {
        nearest->best = candidate;
        nearest->best_distance = distance;
    }
}

/* ---- values ---- */

static bool parse_number(const char *text, bool with_suffix, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || (text[0] < '0' || text[0] > '9')) {
        return false;
    }
    static const char suffixes[] = "KMGT";
    const char *suffix = *end != '\0' && with_suffix ? strchr(suffixes, *end) : NULL;
    if (suffix != NULL) {
        for (const char *s = suffixes; s <= suffix; s++) {
            if (__builtin_mul_overflow(value, 1000LL, &value)) {
                return false;
            }
        }
        end++;
    }
    *out = value;
    return *end == '\0';
}

/* Whether `word` is among "a b c"; tries each with `nearest`. */
static bool is_choice(const char *choices, const char *word, char *buffer, size_t n,
                      cli_nearest_t *nearest)
{
    (void)snprintf(buffer, n, "%s", choices);
    char *rest = buffer;
    while (rest != NULL) {
        const char *choice = rest;
        rest = strchr(rest, ' ');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        if (strcmp(choice, word) == 0) {
            return true;
        }
        cli_nearest_try(nearest, choice);
    }
    return false;
}

static int check_choice(const cli_args_t *args, const char *what, const char *choices,
                        const char *word)
{
    if (choices == NULL || word == NULL) {
        return CLI_OK;
    }
    char buffer[256];
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, word);
    if (is_choice(choices, word, buffer, sizeof buffer, &nearest)) {
        return CLI_OK;
    }
    if (nearest.best != NULL) {
        return cli_fail(args, CLI_USAGE, "%s: no \"%s\"; nearest: %s", what, word, nearest.best);
    }
    return cli_fail(args, CLI_USAGE, "%s: no \"%s\"; one of: %s", what, word, choices);
}

static int check_value(const cli_args_t *args, const cli_option_t *option, cli_value_t *value)
{
    char what[80];
    (void)snprintf(what, sizeof what, "--%s", option->name);
    if (option->kind == CLI_NUMBER || option->kind == CLI_BYTES) {
        bool is_number = parse_number(value->text, option->kind == CLI_BYTES, &value->number);
        bool is_low = is_number && value->number < option->min;
        bool is_out = is_low || (is_number && value->number > option->max);
        if (is_out && option->kind == CLI_BYTES) { /* 4M is less than 4 MiB: say the number */
            return cli_fail(args, CLI_USAGE, "%s: %s is %" PRId64 ", %s than %" PRId64, what,
                            value->text, value->number, is_low ? "less" : "more",
                            is_low ? option->min : option->max);
        }
        if (!is_number || is_out) {
            return cli_fail(args, CLI_USAGE,
                            "%s: \"%s\" is not a whole number from %" PRId64 " to %" PRId64 "%s",
                            what, value->text, option->min, option->max,
                            option->kind == CLI_BYTES ? " (K, M, G, T may follow)" : "");
        }
    }
    if (value->text != NULL && value->text[0] == '\0') {
        return cli_fail(args, CLI_USAGE, "%s: an empty value", what);
    }
    return value->text != NULL ? check_choice(args, what, option->choices, value->text) : CLI_OK;
}

/* ---- options ---- */

static const cli_option_t *find_option(const cli_command_t *command, const char *name, size_t n)
{
    for (size_t i = 0; i < cli_n_options(command); i++) {
        const cli_option_t *option = cli_option_at(command, i);
        if (strlen(option->name) == n && strncmp(option->name, name, n) == 0) {
            return option;
        }
    }
    return NULL;
}

static int unknown_option(const cli_args_t *args, const char *name, size_t n)
{
    char word[NEAREST_MAX + 1];
    (void)snprintf(word, sizeof word, "%.*s", n < NEAREST_MAX ? (int)n : NEAREST_MAX, name);
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, word);
    for (size_t i = 0; i < cli_n_options(args->command); i++) {
        cli_nearest_try(&nearest, cli_option_at(args->command, i)->name);
    }
    cli_nearest_try(&nearest, "help");
    if (nearest.best != NULL) {
        return cli_fail(args, CLI_USAGE, "unknown option --%s; nearest: --%s", word, nearest.best);
    }
    return cli_fail(args, CLI_USAGE, "unknown option --%s; `heft help %s` lists them", word,
                    args->command->name);
}

static bool is_given(const cli_args_t *args, const cli_option_t *option)
{
    for (size_t i = 0; i < args->n_values; i++) {
        if (args->values[i].option == option) {
            return true;
        }
    }
    return false;
}

/* Of a repeatable option NAME=VALUE: whether the NAME was given before. */
static bool is_given_name(const cli_args_t *args, const cli_option_t *option, const char *text)
{
    size_t n = strcspn(text, "=");
    for (size_t i = 0; text[n] == '=' && i < args->n_values; i++) {
        const cli_value_t *value = &args->values[i];
        if (value->option == option && strncmp(value->text, text, n + 1) == 0) {
            return true;
        }
    }
    return false;
}

/* argv[*i] is "--name" or "--name=value"; *i moves on when the next word is its value. */
static int parse_option(cli_args_t *args, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    if (n == 4 && strncmp(name, "help", 4) == 0 && equals == NULL) {
        args->wants_help = true;
        return CLI_OK;
    }
    const cli_option_t *option = find_option(args->command, name, n);
    if (option == NULL) {
        return unknown_option(args, name, n);
    }
    if (!option->is_repeatable && is_given(args, option)) {
        return cli_fail(args, CLI_USAGE, "--%s given twice", option->name);
    }
    cli_value_t value = { .option = option };
    if (option->kind == CLI_FLAG) {
        if (equals != NULL) {
            return cli_fail(args, CLI_USAGE, "--%s takes no value", option->name);
        }
    } else if (equals != NULL) {
        value.text = equals + 1;
    } else if (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0) {
        value.text = argv[++*i];
    } else {
        return cli_fail(args, CLI_USAGE, "--%s needs a value: --%s %s", option->name, option->name,
                        option->value);
    }
    if (option->is_repeatable && value.text != NULL && is_given_name(args, option, value.text)) {
        return cli_fail(args, CLI_USAGE, "--%s %.*s given twice", option->name,
                        (int)strcspn(value.text, "="), value.text);
    }
    int code = check_value(args, option, &value);
    if (code == CLI_OK) {
        args->values[args->n_values++] = value;
    }
    return code;
}

static int check_operands(const cli_args_t *args)
{
    const cli_command_t *command = args->command;
    if (args->n_operands > command->n_operands) {
        return cli_fail(args, CLI_USAGE, "surplus operand \"%s\"",
                        args->operands[command->n_operands]);
    }
    for (size_t i = 0; i < command->n_operands; i++) {
        const cli_operand_t *operand = &command->operands[i];
        if (i >= args->n_operands) {
            if (!operand->is_optional) {
                return cli_fail(args, CLI_USAGE, "%s is missing; `heft help %s` says more",
                                operand->name, command->name);
            }
            continue;
        }
        int code = check_choice(args, operand->name, operand->choices, args->operands[i]);
        if (code != CLI_OK) {
            return code;
        }
    }
    return CLI_OK;
}

static int check_required(const cli_args_t *args)
{
    for (size_t i = 0; i < args->command->n_options; i++) {
        const cli_option_t *option = &args->command->options[i];
        if (option->is_required && !is_given(args, option)) {
            return cli_fail(args, CLI_USAGE, "--%s %s is missing; `heft help %s` says more",
                            option->name, option->value, args->command->name);
        }
    }
    if (args->command->needs_url && cli_url(args) == NULL) {
        return cli_fail(args, CLI_USAGE, "--url URL is missing; `heft help %s` says more",
                        args->command->name);
    }
    return CLI_OK;
}

int cli_args_parse(cli_args_t *args, const cli_command_t *command, int argc, char **argv)
{
    *args = (cli_args_t){ .command = command };
    args->values = calloc((size_t)argc + 1, sizeof args->values[0]);
    args->operands = calloc((size_t)argc + 1, sizeof args->operands[0]);
    if (args->values == NULL || args->operands == NULL) {
        return cli_out_of_memory(args);
    }
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        if (only_operands || argv[i][0] != '-' || argv[i][1] == '\0') {
            args->operands[args->n_operands++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_operands = true;
        } else if (strcmp(argv[i], "-h") == 0) {
            args->wants_help = true;
        } else if (argv[i][1] != '-') {
            return cli_fail(args, CLI_USAGE, "unknown option %s; options begin with --", argv[i]);
        } else {
            int code = parse_option(args, argc, argv, &i);
            if (code != CLI_OK) {
                return code;
            }
        }
    }
    if (args->wants_help) {
        return CLI_OK;
    }
    int code = check_operands(args);
    code = code == CLI_OK ? cli_config_load(args) : code;
    return code == CLI_OK ? check_required(args) : code;
}

void cli_args_fini(cli_args_t *args)
{
    heft_config_destroy(args->config);
    free(args->values);
    free(args->operands);
    *args = (cli_args_t){ .n_values = 0 };
}

/* ---- reading ---- */

const char *cli_next(const cli_args_t *args, const char *option, size_t *cursor)
{
    while (*cursor < args->n_values) {
        const cli_value_t *value = &args->values[(*cursor)++];
        if (strcmp(value->option->name, option) == 0) {
            return value->text;
        }
    }
    return NULL;
}

static const cli_value_t *find_value(const cli_args_t *args, const char *option)
{
    for (size_t i = args->n_values; i-- > 0;) {
        if (strcmp(args->values[i].option->name, option) == 0) {
            return &args->values[i];
        }
    }
    return NULL;
}

bool cli_has(const cli_args_t *args, const char *option)
{
    return find_value(args, option) != NULL;
}

const char *cli_text(const cli_args_t *args, const char *option)
{
    const cli_value_t *value = find_value(args, option);
    return value != NULL ? value->text : NULL;
}

int64_t cli_number(const cli_args_t *args, const char *option, int64_t missing)
{
    const cli_value_t *value = find_value(args, option);
    return value != NULL ? value->number : missing;
}

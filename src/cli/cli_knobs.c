/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knobs as options: rows of the library's table (heft/config.h) become rows of the command's, so
 * that parsing, help and completion treat both alike.
 */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_KNOBS = 96, HELP_BYTES = 512 };

static struct {
    cli_option_t options[MAX_KNOBS];
    char help[MAX_KNOBS][HELP_BYTES];
    uint32_t users[MAX_KNOBS];
    size_t n;
} table;

static cli_kind_t kind_of(heft_knob_kind_t kind)
{
    switch (kind) {
    case HEFT_KNOB_NUMBER:
        return CLI_NUMBER;
    case HEFT_KNOB_BYTES:
        return CLI_BYTES;
    case HEFT_KNOB_FLAG:
        return CLI_FLAG;
    case HEFT_KNOB_TEXT:
    case HEFT_KNOB_FILE:
        break;
    }
    return CLI_TEXT;
}

static void add_knob(const heft_knob_t *knob)
{
    const bool has_default = knob->fallback != NULL && knob->kind != HEFT_KNOB_FLAG;
    char *help = table.help[table.n];
    (void)snprintf(help, HELP_BYTES, "%s%s%s%s Variable: %s.", knob->help,
                   has_default ? " Default: " : "", has_default ? knob->fallback : "",
                   has_default ? "." : "", knob->variable);
    table.options[table.n] = (cli_option_t){
        .name = knob->name,
        .value = knob->value,
        .help = help,
        .min = knob->min,
        .max = knob->max,
        .choices = knob->choices,
        .kind = kind_of(knob->kind),
        .complete = knob->kind == HEFT_KNOB_FILE ? CLI_COMPLETE_FILE : CLI_COMPLETE_NOTHING,
    };
    table.users[table.n++] = knob->users;
}

/* The settings file can be named in every command that has knobs. */
static bool is_option(const heft_knob_t *knob)
{
    return knob->removed == NULL &&
           (knob->users != HEFT_KNOB_PROCESS || strcmp(knob->name, "settings") == 0);
}

static void fill_table(void)
{
    for (uint32_t i = 0; i < heft_config_get_n_knobs() && table.n < MAX_KNOBS; i++) {
        const heft_knob_t *knob = heft_config_get_knob(i);
        if (is_option(knob)) {
            add_knob(knob);
        }
    }
}

static bool is_used(const cli_command_t *command, size_t i)
{
    return command->knobs != 0 &&
           (table.users[i] == HEFT_KNOB_PROCESS || (table.users[i] & command->knobs) != 0);
}

size_t cli_n_options(const cli_command_t *command)
{
    if (table.n == 0) {
        fill_table();
    }
    size_t n = command->n_options;
    for (size_t i = 0; i < table.n; i++) {
        n += is_used(command, i);
    }
    return n;
}

const cli_option_t *cli_option_at(const cli_command_t *command, size_t i)
{
    if (i < command->n_options) {
        return &command->options[i];
    }
    size_t left = i - command->n_options;
    for (size_t k = 0; k < table.n; k++) {
        if (is_used(command, k) && left-- == 0) {
            return &table.options[k];
        }
    }
    return NULL; /* beyond cli_n_options */
}

static bool is_knob(const cli_option_t *option)
{
    return option >= table.options && option < table.options + MAX_KNOBS;
}

/* Options that were given, as flags. */
static int set_flags(cli_args_t *args)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (size_t i = 0; i < args->n_values; i++) {
        const cli_value_t *value = &args->values[i];
        const char *text = value->option->kind == CLI_FLAG ? "1" : value->text;
        if (is_knob(value->option) &&
            heft_config_set(args->config, value->option->name, text, &err) != HEFT_OK) {
            return cli_fail(args, CLI_USAGE, "--%s", err.message);
        }
    }
    return CLI_OK;
}

int cli_config_load(cli_args_t *args)
{
    heft_error_t err = HEFT_ERROR_INIT;
    if (args->command->knobs == 0) {
        return CLI_OK;
    }
    const char *file = cli_text(args, "settings");
    if (file != NULL && setenv("HEFT_SETTINGS", file, 1) != 0) { /* for the library's calls */
        return cli_out_of_memory(args);
    }
    if (heft_config_create(NULL, &args->config, &err) != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    return set_flags(args);
}

const char *cli_url(const cli_args_t *args)
{
    heft_setting_t setting;
    return args->config != NULL && heft_config_query(args->config, "url", &setting, NULL) == HEFT_OK
               ? setting.text
               : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `heft config`: every setting, its effective value, and where that comes from. */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

static const char *const origins[] = { "none", "default", "file", "environment", "flag" };

static void where_text(const heft_setting_t *setting, char *out, size_t size)
{
    if (setting->origin == HEFT_ORIGIN_FILE) {
        (void)snprintf(out, size, "%s:%" PRIu32, setting->where, setting->line);
    } else {
        (void)snprintf(out, size, "%s", setting->where);
    }
}

static json_t *setting_json(const heft_setting_t *setting)
{
    char where[4200];
    where_text(setting, where, sizeof where);
    return json_pack("{s:s, s:s?, s:s, s:s, s:s}", "name", setting->knob->name, "value",
                     setting->text, "origin", origins[setting->origin], "where", where, "variable",
                     setting->knob->variable);
}

static void print_setting(const heft_setting_t *setting)
{
    char where[4200];
    where_text(setting, where, sizeof where);
    (void)printf("%-16s %-24s %s\n", setting->knob->name,
                 setting->text != NULL ? setting->text : "-", where);
}

static int run(const cli_args_t *args)
{
    json_t *list = json_array();
    const bool is_json = cli_has(args, "json");
    heft_error_t err = HEFT_ERROR_INIT;
    for (uint32_t i = 0; i < heft_config_get_n_knobs(); i++) {
        const heft_knob_t *knob = heft_config_get_knob(i);
        heft_setting_t setting;
        if (knob->removed != NULL) {
            continue;
        }
        if (heft_config_query(args->config, knob->name, &setting, &err) != HEFT_OK) {
            json_decref(list);
            return cli_fail_status(args, &err);
        }
        if (is_json) {
            (void)json_array_append_new(list, setting_json(&setting));
        } else {
            print_setting(&setting);
        }
    }
    for (uint32_t i = 0; heft_config_get_warning(args->config, i) != NULL; i++) {
        (void)fprintf(stderr, "heft config: %s\n", heft_config_get_warning(args->config, i));
    }
    if (is_json) {
        return cli_print_json(args, list);
    }
    json_decref(list);
    return CLI_OK;
}

static const cli_option_t options[] = {
    CLI_OPT_JSON,
};

const cli_command_t cli_cmd_config = {
    .name = "config",
    .summary = "show every setting, its value, and where that comes from",
    .description =
        "A setting is given by an option, by a variable of the environment, by the settings file, "
        "or by its default; the first of these wins. Prints name, effective value and origin of "
        "each, for the options given here, this environment and this settings file, and checks all "
        "of them. The settings file has one `key = value` a line, with the names of the options; # "
        "begins a comment.",
    .example = "heft config --settings /etc/heft/settings\n"
               "HEFT_POLL_MS=500 heft config --json",
    .exits = "0 2 4",
    .options = options,
    .n_options = CLI_COUNT(options),
    .knobs = HEFT_KNOB_COORDINATOR | HEFT_KNOB_PUBLISHER | HEFT_KNOB_SUBSCRIBER | HEFT_KNOB_CLIENT,
    .run = run,
};

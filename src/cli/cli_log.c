/* SPDX-License-Identifier: Apache-2.0 */
/* --log and --log-format, or $HEFT_LOG and $HEFT_LOG_FORMAT, for every command. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

/* In the order of the enums. */
static const char *const levels[] = { "error", "warn", "info", "debug", "trace" };
static const char *const formats[] = { "plain", "text", "json" };

/* The place of the option's or the variable's word in a list; -1 with a message. */
static int choose(const cli_args_t *args, const char *option, const char *variable,
                  const char *const *words, int n_words, int missing)
{
    heft_setting_t setting = { 0 };
    if (args->config != NULL) {
        heft_error_t err = HEFT_ERROR_INIT;
        if (heft_config_query(args->config, option, &setting, &err) != HEFT_OK) {
            (void)cli_fail_status(args, &err);
            return -1;
        }
    }
    const char *word = args->config != NULL ? setting.text : getenv(variable);
    if (word == NULL || word[0] == '\0') {
        return missing;
    }
    cli_nearest_t nearest;
    cli_nearest_init(&nearest, word);
    for (int i = 0; i < n_words; i++) {
        if (strcmp(words[i], word) == 0) {
            return i;
        }
        cli_nearest_try(&nearest, words[i]);
    }
    (void)cli_fail(args, CLI_USAGE, "%s is \"%s\"; nearest: %s", variable, word,
                   nearest.best != NULL ? nearest.best : words[missing]);
    return -1;
}

int cli_log_set_up(const cli_args_t *args)
{
    const int level =
        choose(args, "log", "HEFT_LOG", levels, (int)CLI_COUNT(levels), HEFT_LOG_WARN);
    const int format = choose(args, "log-format", "HEFT_LOG_FORMAT", formats,
                              (int)CLI_COUNT(formats), HEFT_LOG_PLAIN);
    if (level < 0 || format < 0) {
        return CLI_USAGE;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    return heft_log_configure((heft_log_level_t)level, (heft_log_format_t)format, NULL, NULL,
                              &err) == HEFT_OK
               ? CLI_OK
               : cli_fail_status(args, &err);
}

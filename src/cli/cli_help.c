/* SPDX-License-Identifier: Apache-2.0 */
/* Help in the form of manual pages, and bash completion, both made from the option tables. */
#include "cli/cli.h"

#include <inttypes.h>
#include <string.h>

enum { WIDTH = 78 };

static const struct {
    int code;
    const char *text;
} exit_texts[] = {
    { CLI_OK, "success" },
    { CLI_DIFFERS, "check or verify found differences, or the proof refused the plan" },
    { CLI_USAGE, "the command line is wrong" },
    { CLI_DATA, "input is malformed or not supported" },
    { CLI_SYSTEM, "the system failed: a file, memory, space; or the target exists already" },
    { CLI_PEER, "a peer or a round failed or timed out" },
    { CLI_INTERNAL, "internal error: please report it" },
    { CLI_CANCELED, "interrupted by a signal" },
};

/* ---- text ---- */

/* Print text in lines of at most WIDTH columns; a blank line in it starts a paragraph. */
static void wrap(FILE *out, const char *text, int indent)
{
    int column = 0;
    const char *p = text;
    while (*p != '\0') {
        if (*p == '\n') {
            (void)fprintf(out, p[1] == '\n' ? "\n\n" : "\n");
            p += p[1] == '\n' ? 2 : 1;
            column = 0;
            continue;
        }
        int n = (int)strcspn(p, " \n");
        if (column > 0 && column + 1 + n > WIDTH) {
            (void)fputc('\n', out);
            column = 0;
        }
        if (column == 0) {
            (void)fprintf(out, "%*s", indent, "");
            column = indent;
        } else {
            (void)fputc(' ', out);
            column++;
        }
        (void)fprintf(out, "%.*s", n, p);
        column += n;
        p += n;
        p += *p == ' ' ? 1 : 0;
    }
    (void)fputc('\n', out);
}

static void print_lines(FILE *out, const char *text, int indent)
{
    while (*text != '\0') {
        int n = (int)strcspn(text, "\n");
        (void)fprintf(out, "%*s%.*s\n", indent, "", n, text);
        text += n;
        text += *text == '\n' ? 1 : 0;
    }
}

/* ---- pages ---- */

void cli_help_overview(FILE *out)
{
    (void)fputs("heft: move trained weights into running inference engines, and prove it\n\n"
                "Usage: heft COMMAND [OPERANDS] [OPTIONS]\n\nCommands:\n",
                out);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        (void)fprintf(out, "  %-12s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    }
    (void)fputs("\n`heft help COMMAND` or `heft COMMAND --help` says everything about one.\n"
                "Results go to standard output, progress and messages to standard error.\n"
                "Settings come from options, the environment (HEFT_URL, HEFT_RECIPES, ...) and a\n"
                "file (HEFT_SETTINGS): `heft config` shows them all.\n",
                out);
}

static void print_synopsis(FILE *out, const cli_command_t *command)
{
    (void)fprintf(out, "SYNOPSIS\n    heft %s", command->name);
    for (size_t i = 0; i < command->n_operands; i++) {
        (void)fprintf(out, command->operands[i].is_optional ? " [%s]" : " %s",
                      command->operands[i].name);
    }
    bool has_optional = false;
    if (command->needs_url) {
        (void)fputs(" --url URL", out);
    }
    for (size_t i = 0; i < cli_n_options(command); i++) {
        const cli_option_t *option = cli_option_at(command, i);
        if (option->is_required) {
            (void)fprintf(out, " --%s %s", option->name, option->value);
        }
        has_optional = has_optional || !option->is_required;
    }
    (void)fputs(has_optional ? " [OPTIONS]\n\n" : "\n\n", out);
}

static void print_option(FILE *out, const cli_option_t *option)
{
    (void)fprintf(out, "    --%s%s%s%s\n", option->name, option->value != NULL ? " " : "",
                  option->value != NULL ? option->value : "",
                  option->is_required ? "  (required)" : "");
    wrap(out, option->help, 8);
    if (option->kind == CLI_NUMBER || option->kind == CLI_BYTES) {
        (void)fprintf(out, "        From %" PRId64 " to %" PRId64 "%s.\n", option->min, option->max,
                      option->kind == CLI_BYTES ? "; K, M, G, T may follow" : "");
    }
    if (option->choices != NULL) {
        (void)fprintf(out, "        One of: %s.\n", option->choices);
    }
}

static void print_exits(FILE *out, const char *exits)
{
    (void)fputs("EXIT STATUS\n", out);
    for (size_t i = 0; i < CLI_COUNT(exit_texts); i++) {
        char word[16];
        (void)snprintf(word, sizeof word, " %d ", exit_texts[i].code);
        char all[64];
        (void)snprintf(all, sizeof all, " %s 70 ", exits);
        if (strstr(all, word) != NULL) {
            (void)fprintf(out, "    %-4d %s\n", exit_texts[i].code, exit_texts[i].text);
        }
    }
}

void cli_help_command(FILE *out, const cli_command_t *command)
{
    (void)fprintf(out, "NAME\n    heft %s - %s\n\n", command->name, command->summary);
    print_synopsis(out, command);
    (void)fputs("DESCRIPTION\n", out);
    wrap(out, command->description, 4);
    if (command->n_operands > 0) {
        (void)fputs("\nOPERANDS\n", out);
    }
    for (size_t i = 0; i < command->n_operands; i++) {
        (void)fprintf(out, "    %s\n", command->operands[i].name);
        wrap(out, command->operands[i].help, 8);
    }
    (void)fputs("\nOPTIONS\n", out);
    for (size_t i = 0; i < cli_n_options(command); i++) {
        print_option(out, cli_option_at(command, i));
    }
    (void)fputs("    --help\n        Print this page.\n\n", out);
    print_exits(out, command->exits);
    (void)fputs("\nEXAMPLE\n", out);
    print_lines(out, command->example, 4);
}

/* ---- completion ---- */

static const char *completion_of(cli_complete_t complete)
{
    switch (complete) {
    case CLI_COMPLETE_FILE:
        return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case CLI_COMPLETE_FOLDER:
        return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    case CLI_COMPLETE_COMMAND:
        return "COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))";
    case CLI_COMPLETE_NOTHING:
        break;
    }
    return "COMPREPLY=()";
}

static void put_values(FILE *out, const cli_command_t *command)
{
    (void)fprintf(out, "        %s)\n            case $prev in\n", command->name);
    for (size_t i = 0; i < cli_n_options(command); i++) {
        const cli_option_t *option = cli_option_at(command, i);
        if (option->kind == CLI_FLAG) {
            continue;
        }
        (void)fprintf(out, "                --%s) ", option->name);
        if (option->choices != NULL) {
            (void)fprintf(out, "COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))", option->choices);
        } else {
            (void)fputs(completion_of(option->complete), out);
        }
        (void)fputs("; return ;;\n", out);
    }
    (void)fputs("            esac\n            options=\"", out);
    for (size_t i = 0; i < cli_n_options(command); i++) {
        (void)fprintf(out, "--%s ", cli_option_at(command, i)->name);
    }
    (void)fputs("--help\"\n", out);
    if (command->n_operands > 0) {
        const cli_operand_t *operand = &command->operands[0];
        if (operand->choices != NULL) {
            (void)fprintf(out, "            COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))\n",
                          operand->choices);
        } else {
            (void)fprintf(out, "            %s\n", completion_of(operand->complete));
        }
    }
    (void)fputs("            ;;\n", out);
}

void cli_completion_bash(FILE *out)
{
    (void)fputs(
        "# bash completion for heft; made by `heft completion bash`\n"
        "_heft()\n{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options=\n"
        "    local commands=\"",
        out);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        (void)fprintf(out, i > 0 ? " %s" : "%s", cli_commands[i]->name);
    }
    (void)fputs("\"\n    COMPREPLY=()\n"
                "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$cur\"))\n"
                "        return\n    fi\n"
                "    case ${COMP_WORDS[1]} in\n",
                out);
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        put_values(out, cli_commands[i]);
    }
    (void)fputs("    esac\n"
                "    if [[ $cur == -* ]]; then\n"
                "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
                "    fi\n"
                "}\n"
                "complete -o filenames -F _heft heft\n",
                out);
}

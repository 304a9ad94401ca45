/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint, or the JSON file of a manifest or of a contract, whichever a path names. */
#include "cli/cli_model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <errno.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

int cli_read_text(const cli_args_t *args, const char *path, char **text_out, size_t *n_out)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return cli_fail(args, CLI_SYSTEM, "cannot open %s: %s", path, strerror(errno));
    }
    char *text = NULL;
    size_t n = 0;
    size_t cap = 0;
    for (;;) {
        if (n == cap) {
            cap = cap == 0 ? 65536 : cap * 2;
            char *grown = cap <= MAX_TEXT_BYTES ? realloc(text, cap) : NULL;
            if (grown == NULL) {
                break;
            }
            text = grown;
        }
        size_t got = fread(text + n, 1, cap - n, file);
        if (got == 0) {
            break;
        }
        n += got;
    }
    bool is_whole = feof(file) != 0 && ferror(file) == 0;
    (void)fclose(file);
    if (!is_whole) {
        free(text);
        return cli_fail(args, CLI_SYSTEM, "cannot read %s", path);
    }
    *text_out = text;
    *n_out = n;
    return CLI_OK;
}

static bool is_manifest_path(const char *path)
{
    struct stat sb;
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0 && stat(path, &sb) == 0 &&
           S_ISREG(sb.st_mode);
}

/* A contract says so in its first key; a manifest never has that one. */
static bool is_contract_text(const char *text, size_t n)
{
    static const char key[] = "\"heft_contract\"";
    size_t at = 0;
    while (at < n && strchr(" \t\r\n{", text[at]) != NULL) {
        at++;
    }
    return n - at >= sizeof key - 1 && memcmp(text + at, key, sizeof key - 1) == 0;
}

/* The contract, or the manifest, in a JSON text. */
static heft_status_t decode_text(const char *text, size_t n, cli_model_t *model, char **report,
                                 heft_error_t *err)
{
    return is_contract_text(text, n)
               ? heft_contract_decode(text, n, &model->contract, err)
               : heft_manifest_decode_report(text, n, &model->owned, report, err);
}

const heft_manifest_t *cli_contract_side(const heft_contract_t *contract, const char *side)
{
    const heft_manifest_t *manifest = heft_contract_get_manifest(contract);
    if (strcmp(heft_manifest_get_side(manifest), side) == 0) {
        return manifest;
    }
    manifest = heft_contract_get_destination(contract, 0);
    if (manifest == NULL || strcmp(heft_manifest_get_side(manifest), side) != 0) {
        return NULL;
    }
    for (uint32_t r = 1; r < heft_contract_get_n_ranks(contract); r++) {
        if (heft_contract_get_destination(contract, r) != manifest) {
            return NULL; /* equal ones are one */
        }
    }
    return manifest;
}

static int open_manifest(const cli_args_t *args, const char *path, const char *side,
                         cli_model_t *model)
{
    char *text = NULL;
    size_t n = 0;
    int code = cli_read_text(args, path, &text, &n);
    if (code != CLI_OK) {
        return code;
    }
    heft_error_t err = HEFT_ERROR_INIT;
    char *report = NULL;
    heft_status_t status = decode_text(text, n, model, &report, &err);
    free(text);
    if (status != HEFT_OK) {
        code = cli_fail(args, cli_exit_of(&err), "%s: %s (%s)", path, err.message,
                        heft_status_get_name(err.status));
        (void)fputs(report != NULL ? report : "", stderr);
        heft_string_free(report);
        return code;
    }
    model->manifest = model->owned;
    if (model->contract != NULL) {
        const heft_manifest_t *wanted = cli_contract_side(model->contract, side);
        model->manifest = wanted != NULL ? wanted : heft_contract_get_manifest(model->contract);
    }
    return CLI_OK;
}

int cli_model_open(const cli_args_t *args, const char *path, const char *side, cli_model_t *model)
{
    *model = (cli_model_t){ .manifest = NULL };
    if (is_manifest_path(path)) {
        return open_manifest(args, path, side, model);
    }
    heft_error_t err = HEFT_ERROR_INIT;
    char *report = NULL;
    heft_status_t status =
        heft_checkpoint_open_report(path, side, &model->checkpoint, &report, &err);
    if (status != HEFT_OK) {
        int code = cli_fail_status(args, &err);
        if (report != NULL) {
            (void)fputs(report, stderr);
        }
        heft_string_free(report);
        return code;
    }
    model->manifest = heft_checkpoint_get_manifest(model->checkpoint);
    return CLI_OK;
}

int cli_model_open_checkpoint(const cli_args_t *args, const char *path, const char *side,
                              cli_model_t *model)
{
    if (is_manifest_path(path)) {
        *model = (cli_model_t){ .manifest = NULL };
        return cli_fail(args, CLI_USAGE, "%s is a manifest; this needs a checkpoint", path);
    }
    return cli_model_open(args, path, side, model);
}

int cli_name_opts(const cli_args_t *args, heft_name_opts_t *opts)
{
    const char *form = cli_text(args, "name-form");
    const char *layers = cli_text(args, "layer-form");
    if (form == NULL && layers != NULL) {
        return cli_fail(args, CLI_USAGE, "--layer-form needs --name-form keystr");
    }
    if (form == NULL) {
        return CLI_OK;
    }
    bool is_keystr = strcmp(form, "keystr") == 0;
    if (is_keystr != (layers != NULL)) {
        return cli_fail(args, CLI_USAGE, "--name-form %s %s --layer-form", form,
                        is_keystr ? "needs" : "takes no");
    }
    opts->name_form = is_keystr ? HEFT_NAME_FORM_KEYSTR : HEFT_NAME_FORM_DOTTED;
    opts->types_lost = is_keystr ? 1 : 0; /* a file has names alone */
    opts->layer_form = layers == NULL                    ? HEFT_LAYER_FORM_NONE
                       : strcmp(layers, "unrolled") == 0 ? HEFT_LAYER_FORM_UNROLLED
                                                         : HEFT_LAYER_FORM_SCANNED;
    return CLI_OK;
}

int cli_model_name(const cli_args_t *args, cli_model_t *model, const heft_name_opts_t *opts)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_name_form_t have = heft_manifest_get_name_form(model->manifest);
    if (opts->name_form == HEFT_NAME_FORM_NONE) {
        return CLI_OK;
    }
    if (have != HEFT_NAME_FORM_NONE) {
        heft_layer_form_t layers = heft_manifest_get_layer_form(model->manifest);
        return have == opts->name_form && layers == opts->layer_form
                   ? CLI_OK
                   : cli_fail(args, CLI_DIFFERS,
                              "names are declared %s (layers %s), the manifest says %s (%s)",
                              heft_name_form_get_name(opts->name_form),
                              heft_layer_form_get_name(opts->layer_form),
                              heft_name_form_get_name(have), heft_layer_form_get_name(layers));
    }
    heft_manifest_t *named = NULL;
    heft_status_t status = model->checkpoint != NULL
                               ? heft_checkpoint_canonicalize(model->checkpoint, opts, &err)
                               : heft_manifest_canonicalize(model->manifest, opts, &named, &err);
    if (status != HEFT_OK) {
        return cli_fail_status(args, &err);
    }
    if (model->checkpoint == NULL) {
        heft_manifest_destroy(model->owned);
        model->owned = named;
    }
    model->manifest =
        model->checkpoint != NULL ? heft_checkpoint_get_manifest(model->checkpoint) : named;
    return CLI_OK;
}

void cli_model_close(cli_model_t *model)
{
    heft_checkpoint_close(model->checkpoint);
    heft_manifest_destroy(model->owned);
    heft_contract_destroy(model->contract);
    *model = (cli_model_t){ .manifest = NULL };
}

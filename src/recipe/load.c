/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes as files. A bare name is looked up in the folders of $HEFT_RECIPES (separated by colons),
 * then in a folder `recipes` beside the library (of a Python package), then in the installed
 * folder, then in the source tree; the first folder that has it wins.
 */
#include "recipe/recipe.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "recipe/compile.h"

#define MAX_READ_BYTES (64u << 20)
#define SUFFIX ".heft"

heft_status_t heft__recipe_read(const char *path, heft__text_t *text, heft_error_t *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return heft__error_set_sys(err, errno == ENOENT ? HEFT_ERR_NOT_FOUND : HEFT_ERR_IO, errno,
                                   "cannot open \"%s\"", path);
    }
    char block[8192];
    size_t n;
    while ((n = fread(block, 1, sizeof block, file)) > 0 && text->len <= MAX_READ_BYTES) {
        heft__text_put_n(text, block, n);
    }
    heft_status_t status = HEFT_OK;
    if (ferror(file) != 0) {
        status = heft__error_set_sys(err, HEFT_ERR_IO, errno, "cannot read \"%s\"", path);
    } else if (text->failed) {
        status = heft__error_nomem(err, text->len);
    } else if (text->len > MAX_READ_BYTES) {
        status = heft__error_set(err, HEFT_ERR_LIMIT, "\"%s\" is longer than %u bytes", path,
                                 MAX_READ_BYTES);
    }
    (void)fclose(file);
    return status;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text);
    size_t m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* The folder `recipes` beside the file that holds this code: the library, or what it is linked to.
 */
static void put_beside(heft__text_t *text)
{
    static const char here = 0;
    Dl_info info;
    const char *slash = NULL;
    if (dladdr(&here, &info) != 0 && info.dli_fname != NULL) {
        slash = strrchr(info.dli_fname, '/');
    }
    if (slash != NULL) {
        heft__text_put_n(text, info.dli_fname, (size_t)(slash + 1 - info.dli_fname));
    }
    heft__text_put(text, "recipes");
}

/* Folder i of those to look in, in text; false when there are no more. */
static bool recipe_dir(size_t i, heft__text_t *text)
{
    const char *env = getenv("HEFT_RECIPES");
    heft__text_reset(text);
    for (const char *at = env; at != NULL && at[0] != '\0';) {
        size_t n = strcspn(at, ":");
        if (n > 0 && i-- == 0) {
            heft__text_put_n(text, at, n);
            return true;
        }
        at += n + (at[n] == ':' ? 1 : 0);
    }
    if (i == 0) {
        put_beside(text);
        return true;
    }
    static const char *const fixed[] = { HEFT_RECIPES_INSTALLED, HEFT_RECIPES_SOURCE };
    if (i > sizeof fixed / sizeof fixed[0]) {
        return false;
    }
    heft__text_put(text, fixed[i - 1]);
    return true;
}

static void list_dir(const char *path, heft__text_t *names)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n > strlen(SUFFIX) && ends_with(entry->d_name, SUFFIX)) {
            n -= strlen(SUFFIX);
            char item[280];
            (void)snprintf(item, sizeof item, "%.*s", (int)n, entry->d_name);
            bool is_known = names->len > 0 && strstr(names->data, item) != NULL;
            if (!is_known) {
                heft__text_printf(names, "%s%s", names->len > 0 ? ", " : "", item);
            }
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

/* The name of the list "a, b, c" that is nearest; "": none is near. */
static void find_nearest(const char *name, const char *list, char *out, size_t size)
{
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    out[0] = '\0';
    for (const char *at = list; *at != '\0';) {
        const size_t n = strcspn(at, ",");
        char item[80];
        (void)snprintf(item, sizeof item, "%.*s", (int)n, at);
        const uint32_t distance = heft__edit_distance(name, item, limit);
        if (distance <= limit && (out[0] == '\0' || distance < limit)) {
            (void)snprintf(out, size, "%s", item);
            limit = distance;
        }
        at += n;
        at += strspn(at, ", ");
    }
}

static heft_status_t not_found(const char *name, heft_error_t *err)
{
    heft__text_t dir;
    heft__text_t names;
    heft__text_init(&dir);
    heft__text_init(&names);
    for (size_t i = 0; recipe_dir(i, &dir); i++) {
        list_dir(dir.data, &names);
    }
    heft__text_reset(&dir);
    heft__text_printf(&dir, "./%s" SUFFIX, name);
    heft_status_t status;
    if (!dir.failed && access(dir.data, F_OK) == 0) {
        status = heft__error_set(err, HEFT_ERR_NOT_FOUND,
                                 "no recipe \"%s\"; did you mean %s? A path has a slash or ends "
                                 "in " SUFFIX,
                                 name, dir.data);
    } else {
        char nearest[80];
        find_nearest(name, names.len > 0 ? names.data : "", nearest, sizeof nearest);
        status = heft__error_set(err, HEFT_ERR_NOT_FOUND, "no recipe \"%.80s\"%s%s; there are: %s",
                                 name, nearest[0] != '\0' ? "; nearest: " : "", nearest,
                                 names.len > 0 ? names.data : "none");
    }
    heft__text_fini(&dir);
    heft__text_fini(&names);
    return status;
}

static heft_status_t load_file(const char *path, const char *name, heft_issues_t *issues,
                               heft_recipe_t **recipe_out, heft_error_t *err)
{
    heft__text_t text;
    heft__text_init(&text);
    heft_status_t status = heft__recipe_read(path, &text, err);
    if (status == HEFT_OK) {
        status = heft_recipe_parse_all(name, text.data, text.len, issues, recipe_out, err);
    }
    heft__text_fini(&text);
    return status;
}

heft_status_t heft_recipe_load(const char *name_or_path, heft_recipe_t **recipe_out,
                               heft_error_t *err)
{
    return heft_recipe_load_all(name_or_path, NULL, recipe_out, err);
}

heft_status_t heft_recipe_load_all(const char *name_or_path, heft_issues_t *issues,
                                   heft_recipe_t **recipe_out, heft_error_t *err)
{
    if (strchr(name_or_path, '/') != NULL || ends_with(name_or_path, SUFFIX)) {
        return load_file(name_or_path, name_or_path, issues, recipe_out, err);
    }
    heft__text_t path;
    heft__text_init(&path);
    heft_status_t status = HEFT_ERR_NOT_FOUND;
    for (size_t i = 0; status == HEFT_ERR_NOT_FOUND && recipe_dir(i, &path); i++) {
        size_t dir_len = path.len;
        heft__text_printf(&path, "/%s" SUFFIX, name_or_path);
        status = path.failed
                     ? heft__error_nomem(err, dir_len)
                     : load_file(path.data, path.data + dir_len + 1, issues, recipe_out, err);
    }
    heft__text_fini(&path);
    if (status == HEFT_OK && err != NULL) {
        *err = (heft_error_t)HEFT_ERROR_INIT; /* of a folder that did not have it */
    }
    return status == HEFT_ERR_NOT_FOUND ? not_found(name_or_path, err) : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that is wrong with a recipe, not only the first of it.
 *
 * Every function of this part fills one heft_error_t and returns. Whoever can go on after a failure
 * (the next statement, the next rule, the next parameter) hands the error to heft__faults_take and
 * goes on. What fails only because of an earlier failure returns HEFT__SAID and is not counted.
 */
#include "recipe/syntax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LISTED 40

struct heft_issues {
    heft__arena_t arena;
    heft_issue_t *items;
    size_t n, cap;
    uint32_t n_errors; /* beyond those listed, too */
};

heft_status_t heft_issues_create(heft_issues_t **issues_out, heft_error_t *err)
{
    heft_issues_t *issues = heft__calloc(1, sizeof *issues);
    if (issues == NULL) {
        return heft__error_nomem(err, sizeof *issues);
    }
    heft__arena_init(&issues->arena, 1024);
    *issues_out = issues;
    return HEFT_OK;
}

void heft_issues_destroy(heft_issues_t *issues)
{
    if (issues != NULL) {
        heft__arena_fini(&issues->arena);
        heft__free(issues->items);
        heft__free(issues);
    }
}

uint32_t heft_issues_get_n(const heft_issues_t *issues)
{
    return (uint32_t)issues->n;
}

uint32_t heft_issues_get_n_errors(const heft_issues_t *issues)
{
    return issues->n_errors;
}

const heft_issue_t *heft_issues_get(const heft_issues_t *issues, uint32_t i)
{
    return i < issues->n ? &issues->items[i] : NULL;
}

/* Where a message of this recipe points to: 0:0 without a place. */
static heft__pos_t place_of(const heft_recipe_t *recipe, const char *message)
{
    char prefix[72];
    heft__recipe_prefix(recipe, prefix);
    size_t n = strlen(prefix);
    heft__pos_t pos = { 0, 0 };
    if (strncmp(message, prefix, n) == 0) {
        char *end = NULL;
        unsigned long line = strtoul(message + n, &end, 10);
        unsigned long column = *end == ':' ? strtoul(end + 1, NULL, 10) : 0;
        pos = (heft__pos_t){ (uint32_t)line, (uint32_t)column };
    }
    return pos;
}

static bool is_before(heft__pos_t a, heft__pos_t b)
{
    return a.line < b.line || (a.line == b.line && a.column < b.column);
}

/* Behind those of this pass that stand before it in the text. False: out of memory. */
static bool list_issue(heft__faults_t *faults, heft_status_t status, heft__pos_t pos,
                       const char *message)
{
    heft_issues_t *issues = faults->issues;
    uint32_t n_listed = 0;
    for (size_t i = 0; i < issues->n; i++) {
        if (strcmp(issues->items[i].text, message) == 0) {
            return true; /* another rank has said so */
        }
        n_listed += (issues->items[i].status == HEFT_OK) == (status == HEFT_OK) ? 1 : 0;
    }
    issues->n_errors += status != HEFT_OK ? 1 : 0;
    if (n_listed >= MAX_LISTED) {
        return true;
    }
    char *text = heft__arena_strndup(&issues->arena, message, strlen(message));
    if (text == NULL || !HEFT__RESERVE(issues->items, issues->cap, issues->n + 1)) {
        return false;
    }
    size_t at = issues->n++;
    for (; faults->is_sorted && at > faults->first_issue; at--) {
        const heft_issue_t *before = &issues->items[at - 1];
        if (!is_before(pos, (heft__pos_t){ before->line, before->column })) {
            break;
        }
        issues->items[at] = *before;
    }
    issues->items[at] =
        (heft_issue_t){ .status = status, .line = pos.line, .column = pos.column, .text = text };
    return true;
}

void heft__faults_init(heft__faults_t *faults, const heft_recipe_t *recipe, heft_issues_t *issues,
                       bool is_sorted)
{
    *faults = (heft__faults_t){ .recipe = recipe, .issues = issues, .is_sorted = is_sorted };
    heft__error_reset(&faults->first);
    faults->first_issue = issues != NULL ? issues->n : 0;
}

bool heft__faults_take(heft__faults_t *faults, heft_status_t status, const heft_error_t *error)
{
    if (status == HEFT_OK || status == HEFT__SAID) {
        return true;
    }
    if (status == HEFT_ERR_NOMEM || status == HEFT_ERR_INTERNAL) {
        faults->first = *error;
        faults->n = 1;
        return false;
    }
    heft__pos_t pos = place_of(faults->recipe, error->message);
    if (faults->n++ == 0 || (faults->is_sorted && is_before(pos, faults->first_pos))) {
        faults->first = *error;
        faults->first_pos = pos;
    }
    if (faults->issues != NULL && !list_issue(faults, status, pos, error->message)) {
        heft__error_fill_nomem(&faults->first, strlen(error->message));
        faults->n = 1;
        return false;
    }
    return true;
}

bool heft__faults_note(heft__faults_t *faults, const char *message)
{
    return faults->issues == NULL ||
           list_issue(faults, HEFT_OK, place_of(faults->recipe, message), message);
}

heft_status_t heft__faults_status(const heft__faults_t *faults, heft_error_t *err)
{
    if (faults->n == 0) {
        return HEFT_OK;
    }
    if (err == NULL) {
        return faults->first.status;
    }
    *err = faults->first;
    if (faults->n > 1) {
        char more[40];
        size_t n = strlen(err->message);
        size_t n_more =
            (size_t)snprintf(more, sizeof more, " (1 of %u errors)", (unsigned)faults->n);
        size_t at = n + n_more < sizeof err->message ? n : sizeof err->message - 1 - n_more;
        memcpy(err->message + at, more, n_more + 1);
    }
    return faults->first.status;
}

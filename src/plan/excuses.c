/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exceptions: what may stay uncovered or unused, with a reason. Each must excuse something: one
 * that matches nothing, or hides nothing, is an error, so that no stale line lies in wait for the
 * next missing name. Only one that says that it is optional may be idle.
 */
#include "plan/plan.h"

#include <string.h>

typedef struct kind_row {
    const char *name;
    const char *done; /* to those that it excuses */
    const char *thing;
    const char *state; /* of names with nothing to excuse */
} kind_row_t;

static const kind_row_t rows[] = {
    [HEFT_EXCEPTION_UNUSED] = { "unused", "ignored", "source", "used in full" },
    [HEFT_EXCEPTION_UNTOUCHED] = { "untouched", "untouched", "parameter", "written" },
    [HEFT_EXCEPTION_DERIVED] = { "derived", "derived", "parameter", "written" },
    [HEFT_EXCEPTION_FROZEN] = { "frozen", "frozen", "parameter", "written" },
    [HEFT_EXCEPTION_ELSEWHERE] = { "elsewhere", "used elsewhere", "source", "used in full" },
    [HEFT_EXCEPTION_EQUAL] = { "equal", "must be equal", "parameter", "written once" },
};

bool heft__names_match(const heft__map_t *names, const char *pattern, const char *name)
{
    return names != NULL ? heft__map_get(names, name, strlen(name)) != HEFT__MAP_NONE
                         : heft_name_matches(pattern, name) != 0;
}

bool heft__excuses_apply(heft__proof_t *proof, uint32_t kinds, const char *name, int64_t n_elems,
                         int32_t owner)
{
    bool matched = false;
    for (uint32_t i = 0; i < proof->opts->n_exceptions; i++) {
        heft__excuse_t *excuse = &proof->excuses[i];
        const heft_exception_t *exception = excuse->exception;
        const heft__map_t *names = proof->names != NULL ? proof->names[i] : NULL;
        if ((kinds >> exception->kind & 1) == 0 ||
            !heft__names_match(names, exception->pattern, name)) {
            continue;
        }
        matched = true;
        excuse->n_matched++;
        if (n_elems > 0) {
            heft__sum(&excuse->n_elems, n_elems);
            if (excuse->n_excused++ == 0) {
                excuse->first = name;
                excuse->owner = owner;
            }
        } else if (excuse->first == NULL) {
            excuse->first = name;
        }
    }
    return matched;
}

static void put_pattern(heft__text_t *text, const heft_exception_t *exception)
{
    heft__text_printf(text, "\"%s\"", exception->pattern);
    if (exception->where != NULL && exception->where[0] != '\0') {
        heft__text_printf(text, " (%s)", exception->where);
    }
}

static heft_status_t report_excused(heft__proof_t *proof, const heft__excuse_t *excuse,
                                    heft_error_t *err)
{
    const heft_exception_t *exception = excuse->exception;
    heft__text_t *text = &proof->text;
    const kind_row_t *row = &rows[exception->kind];
    heft__text_printf(text, "%s: %lld %s%s, %lld element%s by ", row->done,
                      (long long)excuse->n_excused, row->thing, excuse->n_excused == 1 ? "" : "s",
                      (long long)excuse->n_elems, excuse->n_elems == 1 ? "" : "s");
    put_pattern(text, exception);
    heft__text_printf(text, ": %s", exception->reason);
    if (excuse->owner >= 0) {
        heft__text_printf(text, " (\"%s\" is read by rank %d)", excuse->first, (int)excuse->owner);
    }
    const heft_tensor_info_t named = { .name = exception->pattern };
    return heft__proof_add(proof, HEFT_FINDING_EXCEPTION, false, -1, &named, excuse->n_elems, NULL,
                           err);
}

static heft_status_t report_stale(heft__proof_t *proof, const heft__excuse_t *excuse,
                                  heft_error_t *err)
{
    const heft_exception_t *exception = excuse->exception;
    const kind_row_t *row = &rows[exception->kind];
    heft__text_t *text = &proof->text;
    bool is_error = true;
    heft__text_printf(text, "exception %s ", row->name);
    put_pattern(text, exception);
    if (excuse->n_matched == 0) {
        /* a parameter may belong to a rank that is not here */
        is_error = proof->opts->partial == 0 || strcmp(row->thing, "parameter") != 0;
        heft__text_printf(text, " matches no %s", row->thing);
    } else {
        heft__text_printf(text, " hides nothing: %lld %s%s matched (\"%s\"%s), all %s",
                          (long long)excuse->n_matched, row->thing,
                          excuse->n_matched == 1 ? "" : "s", excuse->first,
                          excuse->n_matched > 1 ? ", .." : "", row->state);
    }
    const heft_tensor_info_t named = { .name = exception->pattern };
    return heft__proof_add(proof, HEFT_FINDING_STALE, is_error, -1, &named, 0, NULL, err);
}

heft_status_t heft__excuses_report(heft__proof_t *proof, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < proof->opts->n_exceptions && status == HEFT_OK; i++) {
        const heft__excuse_t *excuse = &proof->excuses[i];
        heft__text_reset(&proof->text);
        if (excuse->n_excused > 0) {
            status = report_excused(proof, excuse, err);
        } else if (excuse->exception->is_optional == 0) {
            status = report_stale(proof, excuse, err);
        }
    }
    return status;
}

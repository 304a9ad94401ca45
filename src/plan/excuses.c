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
    [HEFT_EXCEPTION_TOGETHER] = { "together", "together", "parameter", "alone" },
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
        if ((kinds >> exception->kind & 1) == 0 || exception->n_dims > 0 ||
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

/* ---- boxes ---- */

static bool lies_within(const heft_exception_t *exception, const heft_shape_t *shape)
{
    bool is_inside = exception->n_dims == shape->rank;
    for (int32_t k = 0; k < exception->n_dims && is_inside; k++) {
        is_inside = exception->end[k] <= shape->extent[k];
    }
    return is_inside;
}

static heft__claim_t claim_box(heft__excuse_t *excuse, const heft_shape_t *shape)
{
    const heft_exception_t *exception = excuse->exception;
    heft__claim_t claim = { .extent = excuse->extent,
                            .stride = excuse->stride,
                            .n_dims = shape->rank,
                            .owner = UINT32_MAX };
    int64_t run = 1;
    for (int32_t k = shape->rank; k-- > 0;) {
        excuse->extent[k] = exception->end[k] - exception->begin[k];
        excuse->stride[k] = run;
        claim.offset += exception->begin[k] * run;
        run *= shape->extent[k];
    }
    return claim;
}

/* The box of exception i on this tensor, if it has one there. */
static bool find_box(heft__proof_t *proof, uint32_t i, uint32_t kinds,
                     const heft_tensor_info_t *info, heft__claim_t *claim_out)
{
    heft__excuse_t *excuse = &proof->excuses[i];
    const heft_exception_t *exception = excuse->exception;
    if ((kinds >> exception->kind & 1) == 0 || exception->n_dims == 0 ||
        !heft_name_matches(exception->pattern, info->name)) {
        return false;
    }
    if (!lies_within(exception, &info->shape)) {
        excuse->misfit = excuse->misfit == NULL ? info : excuse->misfit;
        return false;
    }
    *claim_out = claim_box(excuse, &info->shape);
    return true;
}

heft_status_t heft__excuses_apply_boxes(heft__proof_t *proof, uint32_t kinds,
                                        const heft_tensor_info_t *info, size_t n_claims,
                                        int64_t *n_missing, heft_error_t *err)
{
    for (uint32_t i = 0; i < proof->opts->n_exceptions; i++) {
        heft__excuse_t *excuse = &proof->excuses[i];
        heft__cover_count_t count = { 0 };
        heft__claim_t claim;
        if (!find_box(proof, i, kinds, info, &claim)) {
            continue;
        }
        heft_status_t status = HEFT__GROW(proof->claims, proof->cap_claims, n_claims + 1, err);
        if (status != HEFT_OK) {
            return status;
        }
        proof->claims[n_claims++] = claim;
        status = heft__cover_scan(proof->cover, info->n_elems, proof->claims, n_claims, NULL, NULL,
                                  &count, err);
        if (status != HEFT_OK) {
            return heft__plan_name_error(err, status, excuse->exception->pattern, info->name);
        }
        const int64_t left = info->n_elems - count.n_covered;
        excuse->n_matched++;
        if (left < *n_missing) {
            heft__sum(&excuse->n_elems, *n_missing - left);
            excuse->first = excuse->n_excused++ == 0 ? info->name : excuse->first;
        } else if (excuse->first == NULL) {
            excuse->first = info->name;
        }
        *n_missing = left;
    }
    return HEFT_OK;
}

heft_status_t heft__excuses_add_boxes(heft__proof_t *proof, uint32_t kinds,
                                      const heft_tensor_info_t *info, size_t *n_claims,
                                      heft_error_t *err)
{
    for (uint32_t i = 0; i < proof->opts->n_exceptions; i++) {
        heft__claim_t claim;
        if (!find_box(proof, i, kinds, info, &claim)) {
            continue;
        }
        heft_status_t status = HEFT__GROW(proof->claims, proof->cap_claims, *n_claims + 1, err);
        if (status != HEFT_OK) {
            return status;
        }
        proof->claims[(*n_claims)++] = claim;
    }
    return HEFT_OK;
}

/* ---- what is said of them ---- */

static void put_pattern(heft__text_t *text, const heft_exception_t *exception)
{
    heft__text_printf(text, "\"%s\"", exception->pattern);
    if (exception->n_dims > 0) {
        heft__text_put(text, " ");
        heft__report_put_range(text, exception->n_dims, exception->begin, exception->end);
    }
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

/* A box that does not fit a tensor is a mistake, whatever it does to others. */
static heft_status_t report_misfit(heft__proof_t *proof, const heft__excuse_t *excuse,
                                   heft_error_t *err)
{
    const heft_exception_t *exception = excuse->exception;
    heft__text_t *text = &proof->text;
    heft__text_reset(text);
    heft__text_printf(text, "exception %s ", rows[exception->kind].name);
    put_pattern(text, exception);
    heft__text_printf(text, " does not lie in \"%s\", which is [", excuse->misfit->name);
    for (int32_t k = 0; k < excuse->misfit->shape.rank; k++) {
        heft__text_printf(text, k > 0 ? ", %lld" : "%lld",
                          (long long)excuse->misfit->shape.extent[k]);
    }
    heft__text_put(text, "]");
    const heft_tensor_info_t named = { .name = exception->pattern };
    return heft__proof_add(proof, HEFT_FINDING_STALE, true, -1, &named, 0, NULL, err);
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
    if (excuse->idle != NULL) {
        is_error = proof->opts->partial == 0;
        heft__text_printf(text, ": \"%.*s\" matches no parameter", (int)excuse->idle_len,
                          excuse->idle);
    } else if (excuse->n_matched == 0) {
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
        if (excuse->misfit != NULL) {
            status = report_misfit(proof, excuse, err);
        } else if (excuse->n_excused > 0) {
            status = report_excused(proof, excuse, err);
        } else if (excuse->exception->is_optional == 0) {
            status = report_stale(proof, excuse, err);
        }
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `refuse "PATTERN" because "MESSAGE"`: what it means that a source tensor is left over. It is
 * asked after the rules, of the tensors that no rule has used, and is said in place of "matches
 * nothing", which is what follows from it. `refuse any` is asked of those that a rule has used as
 * well: what must not be there at all. `note` is said of what a rule did match.
 */
#include "recipe/shared.h"

#include <stdio.h>

/* The first of the tensors (left over, or any) that a refusal is about, and how many there are. */
static heft_status_t find_refused(heft__compile_t *c, const heft__rule_t *refusal,
                                  heft__matches_t *m, uint32_t *first_out, uint32_t *n_out)
{
    const uint32_t *picked = NULL;
    size_t n = m->n;
    *n_out = 0;
    const bool is_picked = heft__shared_pick(&c->env, m, refusal->when, &picked, &n);
    for (size_t k = 0; k < n; k++) {
        const uint32_t match = is_picked ? picked[k] : (uint32_t)k;
        const uint32_t i = m->names[match];
        heft__name_t *name = &c->names->items[i];
        if ((name->is_used && !refusal->takes_used) || name->is_refused || name->is_ignored) {
            continue;
        }
        heft__take_captures(c, m, match);
        bool holds = true;
        heft_status_t status = refusal->when != NULL
                                   ? heft__eval_bool(&c->env, refusal->when, &holds, c->err)
                                   : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
        if (!holds) {
            continue;
        }
        name->is_refused = true;
        if ((*n_out)++ == 0) {
            *first_out = i;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__apply_refusal(heft__compile_t *c, size_t index)
{
    const heft__rule_t *refusal = c->recipe->refusals[index];
    heft__matches_t *matches = &c->shared->refusals[index];
    heft__pattern_t pattern;
    uint32_t first = 0;
    uint32_t n = 0;
    char values[160] = "";
    char more[32] = "";
    heft_status_t status = heft__make_pattern(c, refusal, &pattern);
    if (status == HEFT_OK) {
        status = heft__shared_match(c->shared, matches, &pattern, refusal->n_captures, c->err);
    }
    if (status == HEFT_OK) {
        status = find_refused(c, refusal, matches, &first, &n);
    }
    if (status != HEFT_OK || n == 0) {
        return status;
    }
    const heft__name_t *name = &c->names->items[first];
    (void)heft__pattern_match(&pattern, name, c->captures); /* for the values in the message */
    heft__list_values(&c->env, refusal->when, values, sizeof values);
    if (n > 1) {
        (void)snprintf(more, sizeof more, " (and %u more)", (unsigned)n - 1);
    }
    c->n_refused += n;
    return heft__recipe_error(c->recipe, refusal->pos, HEFT_ERR_NAME, c->err, "\"%s\": %s%s%s%s%s",
                              name->info.name, refusal->message, values[0] != '\0' ? " (" : "",
                              values, values[0] != '\0' ? ")" : "", more);
}

bool heft__note_match(heft__compile_t *c, const heft__rule_t *rule, const char *name)
{
    if (rule->remark == NULL) {
        return true;
    }
    heft_error_t note = HEFT_ERROR_INIT;
    (void)heft__recipe_error(c->recipe, rule->remark_pos, HEFT_OK, &note, "\"%s\": %s", name,
                             rule->remark);
    return heft__faults_note(c->faults, note.message);
}

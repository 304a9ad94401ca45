/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compile: rules times source names, in the order of the text and of the names, so that the tape
 * does not depend on anything else.
 */
#include "recipe/chain.h"

#include <stdio.h>
#include <string.h>

#include "recipe/recipe.h"
#include "recipe/shared.h"
#include "tape/tape.h"

#define MAX_NEAREST 40       /* errors for which a nearest name is looked for: it takes long */
#define MAX_ROUNDS (1 << 20) /* of the loops of a rule, for one match */

#define FAIL(c, pos, status, ...) \
    heft__recipe_error((c)->recipe, (pos), (status), (c)->err, __VA_ARGS__)

/* Take what went wrong, if anything; false: one cannot go on. */
static bool take(heft__compile_t *c, heft_status_t status)
{
    bool goes_on = heft__faults_take(c->faults, status, &c->inner);
    heft__error_reset(&c->inner);
    return goes_on;
}

bool heft__compile_take(heft__compile_t *c, heft_status_t status)
{
    return take(c, status);
}

/* ---- names of targets ---- */

heft_status_t heft__put_expr(heft__compile_t *c, const heft__expr_t *expr)
{
    if (expr->kind == EXPR_CAPTURE) { /* as it stands: "07" stays "07" */
        heft__span_t text = c->captures[expr->index];
        heft__text_put_n(&c->text, text.data, text.len);
        return HEFT_OK;
    }
    heft__value_t value = { 0 };
    heft_status_t status = heft__eval(&c->env, expr, &value, c->err);
    if (status != HEFT_OK) {
        return status;
    }
    if (value.kind == VALUE_WORD) {
        heft__text_put_n(&c->text, value.word.data, value.word.len);
        return HEFT_OK;
    }
    if (value.kind != VALUE_INT || value.integer < 0) {
        char text[64];
        return FAIL(c, expr->pos, HEFT_ERR_ARGUMENT,
                    "a name takes an integer from 0 or a word, got the %s %s",
                    heft__value_kind_name(value.kind), heft__value_text(&value, text));
    }
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value.integer);
    heft__text_put_n(&c->text, digits, (size_t)n);
    return HEFT_OK;
}

heft_status_t heft__make_name(heft__compile_t *c, const heft__template_t *template)
{
    heft__text_reset(&c->text);
    bool is_first = true;
    for (uint32_t i = 0; i < template->n_pieces; i++) {
        const heft__template_piece_t *piece = &template->pieces[i];
        heft__span_t text = piece->text;
        if (piece->kind == PIECE_MANY) {
            text = c->captures[piece->capture];
            if (text.len == 0) {
                continue; /* no tokens: no dot either */
            }
        }
        if (piece->starts && !is_first) {
            heft__text_put(&c->text, ".");
        }
        is_first = false;
        heft_status_t status = HEFT_OK;
        if (piece->kind == PIECE_EXPR) {
            status = heft__put_expr(c, piece->expr);
        } else {
            heft__text_put_n(&c->text, text.data, text.len);
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (c->text.failed) {
        return heft__error_nomem(c->err, c->text.len);
    }
    return c->text.len > 0 ? HEFT_OK
                           : FAIL(c, template->pos, HEFT_ERR_NAME, "\"%s\" makes an empty name",
                                  template->text);
}

/* ---- parameters ---- */

static void print_shape(const heft_shape_t *shape, char out[128])
{
    size_t at = 0;
    out[0] = '\0';
    for (int k = 0; k < shape->rank && at < 100; k++) {
        at += (size_t)snprintf(out + at, 128 - at, "%s%lld", k > 0 ? "," : "",
                               (long long)shape->extent[k]);
    }
}

bool heft__same_shape(const heft_shape_t *a, const heft_shape_t *b)
{
    bool same = a->rank == b->rank;
    for (int k = 0; same && k < a->rank; k++) {
        same = a->extent[k] == b->extent[k];
    }
    return same;
}

heft_status_t heft__shapes_differ(const heft__compile_t *c, heft__pos_t pos, const char *name,
                                  heft_dtype_t dtype, const heft_shape_t *shape,
                                  heft_dtype_t other_dtype, const heft_shape_t *other,
                                  const char *where)
{
    char here[128];
    char there[128];
    print_shape(shape, here);
    print_shape(other, there);
    return FAIL(c, pos, HEFT_ERR_SHAPE, "parameter \"%s\": %s [%s] here, %s [%s] %s", name,
                heft_dtype_get_name(dtype), here, heft_dtype_get_name(other_dtype), there, where);
}

static heft_status_t add_param(heft__compile_t *c, heft__param_t param)
{
    void *items = c->params;
    heft_status_t status = heft_tape_add_buffer(c->tape, HEFT_BUFFER_PARAM, c->text.data,
                                                param.dtype, &param.shape, &param.buffer, c->err);
    if (status != HEFT_OK) {
        return status;
    }
    param.name = heft__arena_strndup(&c->arena, c->text.data, c->text.len);
    if (param.name == NULL || !heft__grow(&items, &c->cap_params, c->n_params + 1, sizeof param)) {
        return heft__error_nomem(c->err, sizeof param);
    }
    c->params = items;
    c->params[c->n_params] = param;
    status = heft__map_put(&c->by_name, param.name, c->text.len, (uint32_t)c->n_params);
    c->n_params++;
    return status == HEFT_OK ? HEFT_OK : heft__error_nomem(c->err, sizeof param);
}

heft_status_t heft__param_get(heft__compile_t *c, heft__pos_t pos, heft_dtype_t dtype,
                              const heft_shape_t *shape, uint32_t *buffer_out)
{
    uint32_t index = heft__map_get(&c->by_name, c->text.data, c->text.len);
    if (index == HEFT__MAP_NONE) {
        heft__param_t param = { .dtype = dtype, .shape = *shape, .pos = pos };
        heft_status_t status = add_param(c, param);
        if (status == HEFT_OK) {
            *buffer_out = c->params[c->n_params - 1].buffer;
        }
        return status;
    }
    const heft__param_t *param = &c->params[index];
    if (param->dtype != dtype || !heft__same_shape(&param->shape, shape)) {
        char where[64];
        (void)snprintf(where, sizeof where, "by the rule on line %u", (unsigned)param->pos.line);
        return heft__shapes_differ(c, pos, param->name, dtype, shape, param->dtype, &param->shape,
                                   where);
    }
    *buffer_out = param->buffer;
    return HEFT_OK;
}

/* ---- dtype policy ---- */

heft_dtype_t heft__policy_dtype(const heft__compile_t *c, const heft__name_t *source)
{
    const heft__policy_t *policy = &c->recipe->policy;
    heft_dtype_t dtype = source->info.dtype;
    if (c->policy == HEFT_DTYPE_NONE || heft_dtype_is_float(dtype) == 0 ||
        heft_dtype_get_bits(dtype) < heft_dtype_get_bits(c->policy)) {
        return dtype;
    }
    for (size_t i = 0; i < policy->n_except; i++) {
        if (c->except_on[i] && heft__pattern_match(&policy->except[i].pattern, source, NULL)) {
            return dtype;
        }
    }
    return c->policy;
}

/* Which entries of `except` hold. */
static heft_status_t init_except(heft__compile_t *c)
{
    const heft__policy_t *policy = &c->recipe->policy;
    size_t n = policy->n_except > 0 ? policy->n_except : 1;
    c->except_on = heft__arena_calloc(&c->arena, n, sizeof *c->except_on);
    heft_status_t status = c->except_on != NULL ? HEFT_OK : heft__error_nomem(c->err, n);
    for (size_t i = 0; i < policy->n_except && status == HEFT_OK; i++) {
        c->except_on[i] = true;
        if (policy->except[i].when != NULL) {
            status = heft__eval_bool(&c->env, policy->except[i].when, &c->except_on[i], c->err);
        }
    }
    return status;
}

/* An entry of `except` that matches no tensor is a misspelling, unless it is marked. */
static bool check_except(heft__compile_t *c)
{
    const heft__policy_t *policy = &c->recipe->policy;
    bool goes_on = true;
    for (size_t i = 0; i < policy->n_except && c->policy != HEFT_DTYPE_NONE && goes_on; i++) {
        const heft__except_t *except = &policy->except[i];
        bool is_hit = except->is_optional || !c->except_on[i];
        for (uint32_t k = 0; k < c->names->n && !is_hit; k++) {
            is_hit = heft__pattern_match(&except->pattern, &c->names->items[k], NULL);
        }
        if (!is_hit) {
            goes_on = take(c, FAIL(c, except->pattern.pos, HEFT_ERR_NAME,
                                   "except \"%s\" matches none of %u source tensors (write `except "
                                   "optional` if that may be)",
                                   except->pattern.text, (unsigned)c->names->n));
        }
    }
    return goes_on;
}

static heft_status_t init_policy(heft__compile_t *c)
{
    const heft__policy_t *policy = &c->recipe->policy;
    c->policy = policy->fixed;
    heft_status_t status = init_except(c);
    if (status != HEFT_OK || policy->dtype == NULL) {
        return status;
    }
    heft__value_t value = { 0 };
    status = heft__eval(&c->env, policy->dtype, &value, c->err);
    if (status != HEFT_OK) {
        return status;
    }
    char name[32] = "";
    if (value.kind == VALUE_WORD && value.word.len < sizeof name) {
        memcpy(name, value.word.data, value.word.len);
    }
    c->policy = heft_dtype_from_name(name);
    if (strcmp(name, "source") == 0) {
        return HEFT_OK;
    }
    if (heft_dtype_is_float(c->policy) == 0) {
        static const char *const floats[] = { "source", "bf16", "f16", "f32", "f64" };
        char text[64];
        const char *nearest = heft__nearest(name, floats, sizeof floats / sizeof floats[0]);
        return FAIL(c, policy->pos, HEFT_ERR_ARGUMENT,
                    "%s is no float dtype (nor the word source)%s%s",
                    heft__value_text(&value, text), nearest != NULL ? "; nearest: " : "",
                    nearest != NULL ? nearest : "");
    }
    return HEFT_OK;
}

/* ---- rules ---- */

static heft_status_t eval_slots(heft__compile_t *c, const heft__rule_t *rule, bool per_match)
{
    for (uint32_t i = 0; i < rule->n_slots; i++) {
        if (rule->slots[i].per_match == per_match) {
            heft_status_t status =
                heft__eval_int(&c->env, rule->slots[i].expr, &c->slots[i], c->err);
            if (status != HEFT_OK) {
                return status;
            }
        }
    }
    return HEFT_OK;
}

/* The other sources of a match: names made from the captures. */
static heft_status_t find_sources(heft__compile_t *c, const heft__rule_t *rule,
                                  heft__name_t **sources)
{
    for (uint32_t i = 1; i < rule->n_sources; i++) {
        heft_status_t status = heft__make_name(c, &rule->sources[i].template);
        if (status != HEFT_OK) {
            return status;
        }
        sources[i] = heft__names_find(c->names, c->text.data);
        if (sources[i] == NULL || sources[i]->is_ignored) {
            return FAIL(c, rule->sources[i].template.pos, HEFT_ERR_NAME,
                        "\"%s\" is there, \"%s\" is %s", sources[0]->info.name, c->text.data,
                        sources[i] == NULL ? "missing" : "ignored");
        }
    }
    return HEFT_OK;
}

/* One source that the rule's pattern matches, and one round of its loops; *taken_out: `when` did
 * not turn it away. */
static heft_status_t compile_round(heft__compile_t *c, const heft__rule_t *rule,
                                   heft__name_t *source, bool *taken_out)
{
    heft__name_t *sources[HEFT__MAX_PARTS] = { source };
    heft_status_t status = HEFT_OK;
    *taken_out = true;
    if (rule->when_per_match) {
        status = heft__eval_bool(&c->env, rule->when, taken_out, c->err);
    }
    if (status != HEFT_OK || !*taken_out) {
        return status;
    }
    heft__match_t match = { .recipe = c->recipe,
                            .rule = rule,
                            .name = source->info.name,
                            .slots = c->slots,
                            .err = c->err };
    status = eval_slots(c, rule, true);
    if (status == HEFT_OK) {
        status = find_sources(c, rule, sources);
    }
    if (status == HEFT_OK) {
        status = heft__emit(c, &match, sources);
    }
    for (uint32_t i = 0; i < rule->n_sources && status == HEFT_OK; i++) {
        sources[i]->is_used = true;
    }
    return status;
}

/* How often the loops of a rule go round for one match, and how far each goes. */
static heft_status_t count_rounds(heft__compile_t *c, const heft__rule_t *rule, int64_t *extent_out,
                                  int64_t *n_out)
{
    *n_out = 1;
    for (uint32_t i = 0; i < rule->n_loops; i++) {
        const heft__loop_t *loop = &rule->loops[i];
        heft_status_t status = heft__eval_int(&c->env, loop->size, &extent_out[i], c->err);
        if (status != HEFT_OK) {
            return status;
        }
        if (extent_out[i] < 1 || !heft__mul(*n_out, extent_out[i], n_out) || *n_out > MAX_ROUNDS) {
            return FAIL(c, loop->pos, HEFT_ERR_ARGUMENT, "`for %s:%lld`: 1 to %d rounds wanted",
                        loop->name, (long long)extent_out[i], MAX_ROUNDS);
        }
        c->loop_index[i] = 0;
    }
    return HEFT_OK;
}

static heft_status_t compile_match(heft__compile_t *c, const heft__rule_t *rule,
                                   heft__name_t *source, uint32_t *n_taken)
{
    int64_t extent[HEFT__MAX_PARTS];
    int64_t n = 0;
    heft_status_t status = count_rounds(c, rule, extent, &n);
    for (; n > 0 && status == HEFT_OK; n--) {
        bool is_taken = false;
        status = compile_round(c, rule, source, &is_taken);
        *n_taken += is_taken ? 1 : 0;
        for (uint32_t i = rule->n_loops; i > 0 && ++c->loop_index[i - 1] == extent[i - 1]; i--) {
            c->loop_index[i - 1] = 0;
        }
    }
    return status;
}

static heft_status_t matches_nothing(const heft__compile_t *c, const heft__rule_t *rule,
                                     const heft__idle_t *idle)
{
    const char *text = idle->text;
    uint32_t n_matched = idle->n_matched;
    if (n_matched > 0) {
        return FAIL(c, rule->pos, HEFT_ERR_NAME,
                    "\"%s\" matches %u source tensors, and `when` turns away all of them (mark the "
                    "rule `optional` if that may be)",
                    text, (unsigned)n_matched);
    }
    const char *nearest =
        c->faults->n < MAX_NEAREST ? heft__names_nearest(c->names, text, true) : NULL;
    return FAIL(c, rule->pos, HEFT_ERR_NAME,
                "\"%s\" matches none of %u source tensors%s%s%s (mark the rule `optional` if that "
                "may be)",
                text, (unsigned)c->names->n, nearest != NULL ? "; nearest is \"" : "",
                nearest != NULL ? nearest : "", nearest != NULL ? "\"" : "");
}

/* Keep the first failure of a rule, count the others: 48 layers fail alike. False: one cannot go
 * on. */
static bool keep_failure(heft__compile_t *c, heft_status_t status, heft_error_t *first)
{
    if (status == HEFT_OK || status == HEFT__SAID) {
        return true;
    }
    if (c->n_failed++ == 0) {
        *first = c->inner;
    }
    heft__error_reset(&c->inner);
    return status != HEFT_ERR_NOMEM && status != HEFT_ERR_INTERNAL;
}

static bool is_hidden(const heft__compile_t *c, const heft__matches_t *m, size_t k)
{
    return c->names->items[m->names[k]].is_ignored;
}

static uint32_t count_matches(const heft__compile_t *c, const heft__matches_t *m)
{
    uint32_t n = 0;
    for (size_t k = 0; k < m->n; k++) {
        n += is_hidden(c, m, k) ? 0 : 1;
    }
    return n;
}

/* One match, and the note of the rule for it. */
static heft_status_t compile_noted(heft__compile_t *c, const heft__rule_t *rule,
                                   heft__name_t *source, uint32_t *n_taken)
{
    const uint32_t n_before = *n_taken;
    heft_status_t status = compile_match(c, rule, source, n_taken);
    return status != HEFT_OK || *n_taken == n_before || heft__note_match(c, rule, source->info.name)
               ? status
               : heft__error_nomem(c->err, 0);
}

/* The matches, or those of them that `when` does not turn away. HEFT__SAID: nothing can be said of
 * how many match. */
static heft_status_t compile_matches(heft__compile_t *c, const heft__rule_t *rule,
                                     heft__matches_t *m, uint32_t *n_taken_out)
{
    const uint32_t *picked = NULL;
    size_t n = m->n;
    bool is_said = false;
    heft_error_t first = HEFT_ERROR_INIT;
    const bool is_picked =
        rule->n_loops == 0 && heft__shared_pick(&c->env, m, rule->when, &picked, &n);
    for (size_t i = 0; i < n; i++) {
        const size_t k = is_picked ? picked[i] : i;
        if (is_hidden(c, m, k)) {
            continue;
        }
        heft__take_captures(c, m, k);
        heft_status_t status = compile_noted(c, rule, &c->names->items[m->names[k]], n_taken_out);
        is_said = is_said || status == HEFT__SAID;
        if (!keep_failure(c, status, &first)) {
            break;
        }
    }
    if (c->n_failed == 0) {
        return is_said ? HEFT__SAID : HEFT_OK;
    }
    if (c->n_failed > 1) {
        return heft__error_set(c->err, first.status, "%s (and %u more matches of the rule)",
                               first.message, (unsigned)c->n_failed - 1);
    }
    *c->err = first;
    return first.status;
}

heft_status_t heft__compile_rule(heft__compile_t *c, size_t i, heft__idle_t *idle_out)
{
    const heft__rule_t *rule = c->recipe->rules[i];
    heft__matches_t *m = &c->shared->rules[i];
    bool is_on = true;
    uint32_t n_taken = 0;
    heft__pattern_t pattern;
    heft_status_t status = HEFT_OK;
    c->n_failed = 0;
    *idle_out = (heft__idle_t){ .is_idle = false };
    if (rule->when != NULL && !rule->when_per_match) {
        status = heft__eval_bool(&c->env, rule->when, &is_on, c->err);
    }
    if (status == HEFT_OK && is_on) {
        status = heft__make_pattern(c, rule, &pattern);
    }
    if (status != HEFT_OK || !is_on) {
        return status;
    }
    status = heft__shared_match(c->shared, m, &pattern, rule->n_captures, c->err);
    if (status == HEFT_OK) {
        idle_out->n_matched = count_matches(c, m);
    }
    /* sizes of a rule that matches nothing need not have a value */
    if (status == HEFT_OK && idle_out->n_matched > 0) {
        status = eval_slots(c, rule, false);
    }
    if (status == HEFT_OK) {
        status = compile_matches(c, rule, m, &n_taken);
    }
    idle_out->is_idle = status == HEFT_OK && n_taken == 0 && !rule->is_optional;
    idle_out->text = pattern.text;
    return status;
}

/* ---- the whole ---- */

/* `ignore` hides source tensors from the rules; one that hides none is stale. */
static heft_status_t apply_ignore(heft__compile_t *c, size_t i)
{
    const heft__exception_line_t *line = &c->recipe->exception_lines[i];
    bool is_on = true;
    bool is_hit = false;
    heft_status_t status = HEFT_OK;
    if (line->when != NULL) {
        status = heft__eval_bool(&c->env, line->when, &is_on, c->err);
    }
    if (status != HEFT_OK || !is_on) {
        return status;
    }
    const heft__matches_t *m = NULL;
    status = heft__exception_put(&c->env, i, &c->text, c->err);
    if (status == HEFT_OK) {
        status = heft__shared_match_exception(c->shared, i, &c->text, &m, c->err);
    }
    for (size_t k = 0; status == HEFT_OK && k < m->n; k++) {
        c->names->items[m->names[k]].is_ignored = true;
        is_hit = true;
    }
    if (status != HEFT_OK || is_hit || line->is_optional ||
        heft__is_excluded(c->env.source, c->text.data)) {
        return status;
    }
    return FAIL(c, line->pattern.pos, HEFT_ERR_NAME,
                "ignore \"%s\" matches none of %u source tensors (write `optional ignore` if that "
                "may be)",
                c->text.data, (unsigned)c->names->n);
}

heft_status_t heft__compile_source(heft__compile_t *c, heft__name_t *name, uint32_t *buffer_out)
{
    heft_status_t status = HEFT_OK;
    if (name->buffer == HEFT__NO_BUFFER) {
        status = heft_tape_add_buffer(c->tape, HEFT_BUFFER_SOURCE, name->info.name,
                                      name->info.dtype, &name->info.shape, &name->buffer, c->err);
    }
    *buffer_out = name->buffer;
    return status;
}

static heft_status_t add_sources(heft__compile_t *c)
{
    heft_status_t status = HEFT_OK;
    uint32_t buffer;
    for (uint32_t i = 0; i < c->names->n && status == HEFT_OK; i++) {
        status = heft__compile_source(c, &c->names->items[i], &buffer);
    }
    return status;
}

/* Values: lets, ranks, the dtype. */
static bool run_values(heft__compile_t *c, uint32_t rank)
{
    heft_status_t status = HEFT_OK;
    if (heft__env_run(&c->env, false, c->faults) != HEFT_OK) {
        return false;
    }
    if (rank >= c->env.n_ranks) {
        status = heft__error_set(c->err, HEFT_ERR_ARGUMENT,
                                 "rank %u: recipe \"%s\" describes ranks 0 to %lld", (unsigned)rank,
                                 c->recipe->name, (long long)c->env.n_ranks - 1);
    }
    return take(c, status);
}

static bool run_rules(heft__compile_t *c)
{
    bool goes_on = true;
    for (size_t i = 0; i < c->recipe->n_exceptions && goes_on; i++) {
        if (c->recipe->exceptions[i].kind == HEFT_EXCEPTION_UNUSED) {
            goes_on = take(c, apply_ignore(c, i));
        }
    }
    goes_on = goes_on && (c->takes_read_alone || take(c, add_sources(c)));
    heft__idle_t *idle = heft__arena_calloc(&c->arena, c->recipe->n_rules + 1, sizeof *idle);
    if (idle == NULL) {
        return take(c, heft__error_nomem(c->err, c->recipe->n_rules * sizeof *idle));
    }
    for (size_t i = 0; i < c->recipe->n_rules && goes_on; i++) {
        goes_on = take(c, heft__compile_rule(c, i, &idle[i]));
    }
    for (size_t i = 0; i < c->recipe->n_refusals && goes_on; i++) {
        goes_on = take(c, heft__apply_refusal(c, i));
    }
    /* a tensor that is refused is why rules match nothing */
    for (size_t i = 0; i < c->recipe->n_rules && goes_on && c->n_refused == 0; i++) {
        goes_on = !idle[i].is_idle || take(c, matches_nothing(c, c->recipe->rules[i], &idle[i]));
    }
    return goes_on;
}

static void run(heft__compile_t *c, uint32_t rank, const heft_manifest_t *source,
                const heft_manifest_t *destination)
{
    c->env.names = c->names;
    c->env.destination = destination;
    c->env.source = source;
    c->env.rank = rank;
    c->env.captures = c->captures;
    c->env.axis_index = c->axis_index;
    c->env.loop_index = c->loop_index;
    heft__shared_begin(c->shared);
    if (!run_values(c, rank) || !take(c, heft__check_names(c))) {
        return;
    }
    heft_status_t policy = init_policy(c);
    if (!take(c, policy) || !check_except(c) || !run_rules(c) || policy != HEFT_OK) {
        return;
    }
    bool goes_on = destination == NULL || take(c, heft__check_destination(c, destination));
    bool is_wanted = c->wants_manifest || c->recipe->n_attr_lines > 0 ||
                     (destination != NULL && heft__has_layouts(destination));
    if (goes_on && is_wanted && c->faults->n == 0) {
        (void)take(c, heft__synthesize(c, &c->manifest));
    }
    if (c->manifest != NULL && destination != NULL) {
        heft__check_layouts(c, destination);
    }
}

heft_status_t heft_recipe_compile(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                  uint32_t rank, const heft_manifest_t *source,
                                  const heft_manifest_t *destination, heft_tape_t **tape_out,
                                  heft_error_t *err)
{
    return heft_recipe_compile_all(recipe, bindings, rank, source, destination, NULL, tape_out,
                                   err);
}

/* What one compilation is asked for. */
typedef struct wish {
    const heft_bindings_t *bindings;
    uint32_t rank;
    const heft_manifest_t *source;
    const heft_manifest_t *destination;
    bool takes_read_alone;
} wish_t;

static void init(heft__compile_t *c, heft__shared_t *shared, const wish_t *wish,
                 heft__faults_t *faults)
{
    c->recipe = shared->recipe;
    c->shared = shared;
    c->names = &shared->names;
    c->takes_read_alone = wish->takes_read_alone;
    c->faults = faults;
    c->err = &c->inner;
    heft__error_reset(&c->inner);
    heft__arena_init(&c->arena, 1u << 14);
    heft__text_init(&c->text);
    heft__map_init(&c->by_name);
}

static void fini(heft__compile_t *c)
{
    heft__env_fini(&c->env);
    heft__map_fini(&c->by_name);
    heft__text_fini(&c->text);
    heft__arena_fini(&c->arena);
    heft__free(c->params);
    heft__free(c);
}

/* One rank of what is shared already. */
static heft_status_t compile_shared(heft__shared_t *shared, const wish_t *wish,
                                    heft_issues_t *issues, heft_tape_t **tape_out,
                                    heft_manifest_t **manifest_out, heft_error_t *err)
{
    heft__compile_t *c = heft__calloc(1, sizeof *c);
    if (c == NULL) {
        return heft__error_nomem(err, sizeof *c);
    }
    heft__faults_t faults;
    heft__faults_init(&faults, shared->recipe, issues, true);
    init(c, shared, wish, &faults);
    c->wants_manifest = manifest_out != NULL;
    if (take(c, heft__env_init(&c->env, shared->recipe, wish->bindings, c->err)) &&
        take(c, heft_tape_create(&c->tape, c->err)) &&
        take(c, heft__tape_set_title(c->tape, shared->recipe->name, c->err))) {
        run(c, wish->rank, wish->source, wish->destination);
    }
    heft_status_t status = heft__faults_status(&faults, err);
    if (status == HEFT_OK && tape_out != NULL) {
        *tape_out = c->tape;
    } else {
        heft_tape_destroy(c->tape);
    }
    if (status == HEFT_OK && manifest_out != NULL) {
        *manifest_out = c->manifest;
    } else {
        heft_manifest_destroy(c->manifest);
    }
    fini(c);
    return status;
}

heft_status_t heft__compile_one(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                uint32_t rank, const heft_manifest_t *source,
                                const heft_manifest_t *destination, heft_issues_t *issues,
                                heft_tape_t **tape_out, heft_manifest_t **manifest_out,
                                heft_error_t *err)
{
    heft__shared_t shared;
    const wish_t wish = {
        .bindings = bindings, .rank = rank, .source = source, .destination = destination
    };
    heft_status_t status = heft__shared_init(&shared, recipe, source, err);
    if (status == HEFT_OK) {
        status = compile_shared(&shared, &wish, issues, tape_out, manifest_out, err);
    }
    heft__shared_fini(&shared);
    return status;
}

static heft_status_t compile_any(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                 uint32_t rank, const heft_manifest_t *source,
                                 const heft_manifest_t *destination, heft_issues_t *issues,
                                 heft_tape_t **tape_out, heft_manifest_t **manifest_out,
                                 heft_error_t *err)
{
    if (recipe == NULL || source == NULL || (tape_out == NULL && manifest_out == NULL)) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "no recipe, source or output");
    }
    return (recipe->n_parts > 0 ? heft__chain_compile : heft__compile_one)(
        recipe, bindings, rank, source, destination, issues, tape_out, manifest_out, err);
}

heft_status_t heft_recipe_compile_all(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                      uint32_t rank, const heft_manifest_t *source,
                                      const heft_manifest_t *destination, heft_issues_t *issues,
                                      heft_tape_t **tape_out, heft_error_t *err)
{
    return compile_any(recipe, bindings, rank, source, destination, issues, tape_out, NULL, err);
}

heft_status_t heft_recipe_synthesize(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                     uint32_t rank, const heft_manifest_t *source,
                                     heft_issues_t *issues, heft_manifest_t **manifest_out,
                                     heft_error_t *err)
{
    return compile_any(recipe, bindings, rank, source, NULL, issues, NULL, manifest_out, err);
}

/* ---- many ranks ---- */

struct heft__compiler {
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;
    const heft_manifest_t *source;
    heft__shared_t shared; /* not of a chain */
};

heft_status_t heft__compiler_create(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                    const heft_manifest_t *source, heft__compiler_t **compiler_out,
                                    heft_error_t *err)
{
    heft__compiler_t *compiler = heft__calloc(1, sizeof *compiler);
    if (compiler == NULL) {
        return heft__error_nomem(err, sizeof *compiler);
    }
    compiler->recipe = recipe;
    compiler->bindings = bindings;
    compiler->source = source;
    heft_status_t status =
        recipe->n_parts > 0 ? HEFT_OK : heft__shared_init(&compiler->shared, recipe, source, err);
    if (status != HEFT_OK) {
        heft__compiler_destroy(compiler);
        return status;
    }
    *compiler_out = compiler;
    return HEFT_OK;
}

void heft__compiler_destroy(heft__compiler_t *compiler)
{
    if (compiler != NULL) {
        heft__shared_fini(&compiler->shared);
        heft__free(compiler);
    }
}

heft_status_t heft__compiler_run(heft__compiler_t *compiler, uint32_t rank,
                                 const heft_manifest_t *destination, bool takes_read_alone,
                                 heft_issues_t *issues, heft_tape_t **tape_out, heft_error_t *err)
{
    const wish_t wish = { .bindings = compiler->bindings,
                          .rank = rank,
                          .source = compiler->source,
                          .destination = destination,
                          .takes_read_alone = takes_read_alone };
    return compiler->recipe->n_parts > 0
               ? heft__chain_compile(compiler->recipe, compiler->bindings, rank, compiler->source,
                                     destination, issues, tape_out, NULL, err)
               : compile_shared(&compiler->shared, &wish, issues, tape_out, NULL, err);
}

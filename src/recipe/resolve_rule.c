/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The static half of a rule: which axes there are, where each comes from and where it goes.
 *
 * After this every axis of a target is known to come from a source (and from there through
 * `where`), or to be a repeat with a written extent; no axis of a source is dropped; and every size
 * or offset has a slot.
 */
#include "recipe/syntax.h"

#include <string.h>

typedef enum side { SIDE_SOURCE = 1, SIDE_TREE, SIDE_TARGET } side_t;

typedef struct resolver {
    heft_recipe_t *recipe;
    heft__rule_t *rule;
    uint32_t seen; /* axes met on this side so far, by bit */
    bool source_has_rest;
    heft_error_t *err;
} resolver_t;

#define FAIL(r, pos, ...) \
    heft__recipe_error((r)->recipe, (pos), HEFT_ERR_SYNTAX, (r)->err, __VA_ARGS__)

static heft__scope_t scope_of(const resolver_t *r, bool with_axes)
{
    return (heft__scope_t){ .recipe = r->recipe,
                            .rule = r->rule,
                            .n_lets = r->recipe->n_lets,
                            .has_rank = r->recipe->rank_name != NULL,
                            .with_axes = with_axes };
}

static heft_status_t add_slot(resolver_t *r, heft__expr_t *expr, int32_t *slot_out)
{
    heft__rule_t *rule = r->rule;
    bool per_match = false;
    heft__scope_t scope = scope_of(r, false);
    heft_status_t status = heft__resolve_expr(&scope, expr, &per_match, r->err);
    if (status != HEFT_OK) {
        return status;
    }
    if (rule->n_slots == HEFT__MAX_SLOTS) {
        return heft__recipe_error(r->recipe, expr->pos, HEFT_ERR_LIMIT, r->err,
                                  "more than %d sizes and offsets in a rule", HEFT__MAX_SLOTS);
    }
    *slot_out = (int32_t)rule->n_slots;
    rule->slots[rule->n_slots++] = (heft__slot_t){ .expr = expr, .per_match = per_match };
    return HEFT_OK;
}

static int32_t find_axis(const heft__rule_t *rule, const char *name)
{
    for (uint32_t i = 0; i < rule->n_axes; i++) {
        if (strcmp(rule->axes[i], name) == 0) {
            return (int32_t)i;
        }
    }
    return HEFT__NONE;
}

static heft_status_t declare_axis(resolver_t *r, const char *name, heft__pos_t pos, bool is_source,
                                  int32_t *id_out)
{
    heft__rule_t *rule = r->rule;
    const char *kind = heft__resolve_taken(r->recipe, rule, name);
    if (kind != NULL) {
        return FAIL(r, pos,
                    "`%s` is a %s, not an axis: write {%s}:EXTENT for that position, or "
                    "give the axis another name",
                    name, kind, name);
    }
    if (rule->n_axes == HEFT__MAX_AXES) {
        return heft__recipe_error(r->recipe, pos, HEFT_ERR_LIMIT, r->err,
                                  "more than %d axes in a rule", HEFT__MAX_AXES);
    }
    *id_out = (int32_t)rule->n_axes;
    rule->axis_is_source[rule->n_axes] = is_source;
    rule->axes[rule->n_axes++] = name;
    return HEFT_OK;
}

static heft_status_t resolve_name(resolver_t *r, heft__axis_t *axis, side_t side)
{
    heft__rule_t *rule = r->rule;
    int32_t id = find_axis(rule, axis->name);
    if (id != HEFT__NONE && side == SIDE_TREE) {
        return FAIL(r, axis->pos, "axis `%s` exists already: `as` makes new axes", axis->name);
    }
    if (id != HEFT__NONE && rule->axis_is_refined[id]) {
        return FAIL(r, axis->pos, "axis `%s` was replaced by `where`: use what it was made of",
                    axis->name);
    }
    if (id == HEFT__NONE) {
        heft_status_t status = declare_axis(r, axis->name, axis->pos, side != SIDE_TARGET, &id);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if ((r->seen >> id & 1u) != 0) {
        return FAIL(r, axis->pos, "axis `%s` occurs twice", axis->name);
    }
    r->seen |= 1u << id;
    axis->id = id;
    if (axis->size == NULL) {
        return HEFT_OK;
    }
    rule->axis_has_size[id] = true;
    return add_slot(r, axis->size, &axis->size_slot);
}

static heft_status_t resolve_tree(resolver_t *r, heft__axis_t *axis, side_t side)
{
    heft_status_t status = HEFT_OK;
    if (axis->kind == AXIS_NAME) {
        return resolve_name(r, axis, side);
    }
    if (axis->size != NULL) {
        status = add_slot(r, axis->size, &axis->size_slot);
    }
    if (status == HEFT_OK && axis->offset != NULL) {
        status = add_slot(r, axis->offset, &axis->offset_slot);
    }
    for (uint32_t i = 0; i < axis->n_kids && status == HEFT_OK; i++) {
        status = resolve_tree(r, axis->kids[i], side);
    }
    return status;
}

static heft_status_t resolve_axes(resolver_t *r, const heft__axes_t *axes, side_t side,
                                  bool *has_rest_out)
{
    r->seen = 0;
    *has_rest_out = false;
    if (axes->n_dims > HEFT_MAX_DIMS) {
        return heft__recipe_error(r->recipe, axes->pos, HEFT_ERR_LIMIT, r->err,
                                  "%u dimensions, at most %d", (unsigned)axes->n_dims,
                                  HEFT_MAX_DIMS);
    }
    for (uint32_t i = 0; i < axes->n_dims; i++) {
        if (axes->dims[i]->kind == AXIS_REST) {
            if (*has_rest_out) {
                return FAIL(r, axes->dims[i]->pos, "a second `...`");
            }
            *has_rest_out = true;
        }
        heft_status_t status = resolve_tree(r, axes->dims[i], side);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* ---- names with holes ---- */

static heft_status_t collect_axes(resolver_t *r, const heft__expr_t *expr,
                                  heft__template_t *template)
{
    if (expr == NULL) {
        return HEFT_OK;
    }
    if (expr->kind == EXPR_AXIS) {
        for (uint32_t i = 0; i < template->n_axes; i++) {
            if (template->axes[i] == expr->index) {
                return HEFT_OK;
            }
        }
        if (r->rule->axis_is_refined[expr->index]) {
            return FAIL(r, expr->pos, "axis `%s` was replaced by `where`: use what it was made of",
                        expr->text);
        }
        template->axes[template->n_axes++] = expr->index;
        return HEFT_OK;
    }
    heft_status_t status = collect_axes(r, expr->left, template);
    return status == HEFT_OK ? collect_axes(r, expr->right, template) : status;
}

static heft_status_t resolve_template(resolver_t *r, heft__template_t *template, bool with_axes)
{
    for (uint32_t i = 0; i < template->n_pieces; i++) {
        heft__template_piece_t *piece = &template->pieces[i];
        heft_status_t status = HEFT_OK;
        if (piece->kind == PIECE_EXPR) {
            bool per_match = false;
            heft__scope_t scope = scope_of(r, with_axes);
            status = heft__resolve_expr(&scope, piece->expr, &per_match, r->err);
            if (status == HEFT_OK) {
                status = collect_axes(r, piece->expr, template);
            }
        } else if (piece->kind == PIECE_MANY) {
            for (uint32_t c = 0; c < r->rule->n_captures; c++) {
                if (r->rule->capture_is_many[c] &&
                    strlen(r->rule->captures[c]) == piece->text.len &&
                    memcmp(r->rule->captures[c], piece->text.data, piece->text.len) == 0) {
                    piece->capture = (int32_t)c;
                }
            }
            if (piece->capture == HEFT__NONE) {
                status = FAIL(r, template->pos, "{%.*s*} is no capture of the source",
                              (int)piece->text.len, piece->text.data);
            }
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* ---- the parts of a rule ---- */

/* `for p:P`: the name is new, the number may depend on captures. */
static heft_status_t resolve_loops(resolver_t *r)
{
    heft__rule_t *rule = r->rule;
    for (uint32_t i = 0; i < rule->n_loops; i++) {
        heft__loop_t *loop = &rule->loops[i];
        bool per_match = false;
        heft__scope_t scope = scope_of(r, false);
        scope.without_loops = true;
        const char *kind = heft__resolve_taken(r->recipe, NULL, loop->name);
        for (uint32_t k = 0; k < rule->n_captures; k++) {
            kind = strcmp(rule->captures[k], loop->name) == 0 ? "capture" : kind;
        }
        for (uint32_t k = 0; k < i; k++) {
            kind = strcmp(rule->loops[k].name, loop->name) == 0 ? "loop before it" : kind;
        }
        if (kind != NULL) {
            return FAIL(r, loop->pos, "loop `%s` has the name of a %s", loop->name, kind);
        }
        heft_status_t status = heft__resolve_expr(&scope, loop->size, &per_match, r->err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

/* A pattern made of values: lets and the rank, no captures. */
static heft_status_t resolve_pattern(resolver_t *r, const heft__pattern_t *pattern)
{
    const heft__template_t *template = pattern->made_of;
    heft__scope_t scope = scope_of(r, false);
    scope.rule = NULL;
    for (uint32_t i = 0; template != NULL && i < template->n_pieces; i++) {
        bool per_match = false;
        heft_status_t status =
            template->pieces[i].kind == PIECE_EXPR
                ? heft__resolve_expr(&scope, template->pieces[i].expr, &per_match, r->err)
                : HEFT_OK;
        if (status != HEFT_OK) {
            return status;
        }
    }
    return HEFT_OK;
}

static heft_status_t resolve_when(resolver_t *r)
{
    heft__rule_t *rule = r->rule;
    heft__scope_t scope = scope_of(r, false);
    return rule->when != NULL
               ? heft__resolve_expr(&scope, rule->when, &rule->when_per_match, r->err)
               : HEFT_OK;
}

static heft_status_t resolve_sources(resolver_t *r)
{
    heft__rule_t *rule = r->rule;
    for (uint32_t i = 0; i < rule->n_captures; i++) {
        const char *kind = heft__resolve_taken(r->recipe, NULL, rule->captures[i]);
        if (kind != NULL) {
            return FAIL(r, rule->sources[0].pattern.pos, "capture {%s} has the name of a %s",
                        rule->captures[i], kind);
        }
    }
    for (uint32_t i = 0; i < rule->n_sources; i++) {
        bool has_rest = false;
        heft_status_t status = HEFT_OK;
        if (i > 0) {
            status = resolve_template(r, &rule->sources[i].template, false);
        }
        if (status == HEFT_OK) {
            status = resolve_axes(r, &rule->sources[i].axes, SIDE_SOURCE, &has_rest);
        }
        if (status != HEFT_OK) {
            return status;
        }
        r->source_has_rest = r->source_has_rest || has_rest;
    }
    return HEFT_OK;
}

static heft_status_t resolve_refine(resolver_t *r, heft__refine_t *refine)
{
    heft__rule_t *rule = r->rule;
    int32_t id = find_axis(rule, refine->name);
    if (id != HEFT__NONE && rule->axis_is_refined[id]) {
        return FAIL(r, refine->pos, "axis `%s` was replaced before", refine->name);
    }
    if (id == HEFT__NONE && refine->kind == REFINE_SIZE) {
        heft_status_t status = declare_axis(r, refine->name, refine->pos, false, &id);
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (id == HEFT__NONE || (refine->kind != REFINE_SIZE && !rule->axis_is_source[id])) {
        const char *nearest = heft__nearest(refine->name, rule->axes, rule->n_axes);
        return FAIL(r, refine->pos, "`%s` is no axis of the source%s%s%s", refine->name,
                    nearest != NULL ? "; nearest is `" : "", nearest != NULL ? nearest : "",
                    nearest != NULL ? "`" : "");
    }
    refine->id = id;
    if (refine->kind == REFINE_AS) {
        r->seen = 0;
        heft_status_t status = resolve_tree(r, refine->tree, SIDE_TREE);
        rule->axis_is_refined[id] = true;
        return status;
    }
    rule->axis_is_padded[id] = rule->axis_is_padded[id] || refine->kind == REFINE_PAD;
    rule->axis_has_size[id] = rule->axis_has_size[id] || refine->kind == REFINE_SIZE;
    return add_slot(r, refine->size, &refine->size_slot);
}

/* Scales that the rule's kernel makes. */
static bool is_scale(const heft__rule_t *rule, const heft__rule_target_t *target)
{
    const heft__kernel_t *kernel = rule->kernel != NULL ? heft__kernel_find(rule->kernel) : NULL;
    return kernel != NULL && kernel->form == HEFT__FORM_QUANTISE && target == &rule->targets[1];
}

/* Axes of scales are axes of the source, or in the name as they are in that of the codes. An axis
 * that is missing is a block as a whole. */
static heft_status_t check_scale_use(resolver_t *r, const heft__rule_target_t *target)
{
    const heft__rule_t *rule = r->rule;
    uint32_t named[2] = { 0, 0 };
    for (uint32_t t = 0; t < 2; t++) {
        const heft__template_t *name = &rule->targets[t].template;
        for (uint32_t i = 0; i < name->n_axes; i++) {
            named[t] |= 1u << name->axes[i];
        }
    }
    if (named[0] != named[1]) {
        return FAIL(r, target->template.pos,
                    "the names of codes and scales must have the same axes in them");
    }
    for (uint32_t id = 0; id < rule->n_axes; id++) {
        bool in_axes = (r->seen >> id & 1u) != 0;
        bool is_live = rule->axis_is_source[id] && !rule->axis_is_refined[id];
        if (in_axes && (!is_live || (named[0] >> id & 1u) != 0)) {
            return FAIL(r, target->axes.pos, "axis `%s` of the scales is no axis of the codes",
                        rule->axes[id]);
        }
    }
    return HEFT_OK;
}

/* An axis of the target that the source does not have: perhaps what a missing one was meant to be.
 */
static const char *stranger_of(const resolver_t *r)
{
    for (uint32_t id = 0; id < r->rule->n_axes; id++) {
        if ((r->seen >> id & 1u) != 0 && !r->rule->axis_is_source[id]) {
            return r->rule->axes[id];
        }
    }
    return NULL;
}

/* Every live axis of the source is in the target or in its name, never in both. */
static heft_status_t check_use(resolver_t *r, const heft__rule_target_t *target)
{
    const heft__rule_t *rule = r->rule;
    if (is_scale(rule, target)) {
        return check_scale_use(r, target);
    }
    uint32_t named = 0;
    for (uint32_t i = 0; i < target->template.n_axes; i++) {
        named |= 1u << target->template.axes[i];
    }
    for (uint32_t id = 0; id < rule->n_axes; id++) {
        bool in_axes = (r->seen >> id & 1u) != 0;
        bool in_name = (named >> id & 1u) != 0;
        bool is_live = rule->axis_is_source[id] && !rule->axis_is_refined[id];
        if (in_axes && in_name) {
            return FAIL(r, target->axes.pos, "axis `%s` is in the target's name and in its axes",
                        rule->axes[id]);
        }
        if (is_live && !in_axes && !in_name) {
            const char *stranger = stranger_of(r);
            return FAIL(r, target->axes.pos,
                        "axis `%s` of the source is neither in the target nor in its name%s%s%s",
                        rule->axes[id], stranger != NULL ? "; `" : "",
                        stranger != NULL ? stranger : "",
                        stranger != NULL ? "` of the target is no axis of the source" : "");
        }
        if (in_name && !rule->axis_is_source[id] && !rule->is_shared) {
            return FAIL(r, target->template.pos,
                        "`%s` is no axis of the source; to write one source to many names, mark "
                        "the rule `shared`",
                        rule->axes[id]);
        }
        if (in_axes && !rule->axis_is_source[id] && !rule->axis_has_size[id]) {
            return FAIL(r, target->axes.pos,
                        "axis `%s` is only in the target: it repeats and needs an extent, %s:N",
                        rule->axes[id], rule->axes[id]);
        }
    }
    return HEFT_OK;
}

static heft_status_t resolve_targets(resolver_t *r)
{
    heft__rule_t *rule = r->rule;
    bool is_shared = false;
    for (uint32_t i = 0; i < rule->n_targets; i++) {
        heft__rule_target_t *target = &rule->targets[i];
        bool has_rest = false;
        heft_status_t status = resolve_template(r, &target->template, true);
        if (status == HEFT_OK) {
            status = resolve_axes(r, &target->axes, SIDE_TARGET, &has_rest);
        }
        if (status == HEFT_OK && has_rest != r->source_has_rest) {
            status = FAIL(r, target->axes.pos, "`...` is on one side only");
        }
        if (status == HEFT_OK) {
            status = check_use(r, target);
        }
        if (status != HEFT_OK) {
            return status;
        }
        for (uint32_t k = 0; k < target->template.n_axes; k++) {
            is_shared = is_shared || !rule->axis_is_source[target->template.axes[k]];
        }
    }
    if (rule->is_shared && !is_shared) {
        return FAIL(r, rule->pos,
                    "the rule is `shared`, but no axis in a target's name is missing "
                    "from the source");
    }
    return HEFT_OK;
}

/* What comes out of a kernel of blocks: codes have one dtype, and two more tell how scales are
 * kept. */
static heft_status_t check_form_dtype(resolver_t *r)
{
    const heft__rule_t *rule = r->rule;
    heft__form_t form = heft__kernel_find(rule->kernel)->form;
    heft_dtype_t dtype = rule->kernel_dtype;
    bool is_float = dtype == HEFT_DTYPE_F32 || dtype == HEFT_DTYPE_BF16;
    bool ok = form == HEFT__FORM_QUANTISE     ? dtype == HEFT_DTYPE_F8_E4M3
              : form == HEFT__FORM_DEQUANTISE ? is_float || dtype == HEFT_DTYPE_F16
                                              : is_float;
    return ok ? HEFT_OK
              : FAIL(r, rule->kernel_pos, "kernel %s makes %s, not %s", rule->kernel,
                     form == HEFT__FORM_QUANTISE     ? "f8_e4m3"
                     : form == HEFT__FORM_DEQUANTISE ? "f32, bf16 or f16"
                                                     : "f32 or bf16",
                     heft_dtype_get_name(dtype));
}

static heft_status_t check_kernel_dtype(resolver_t *r)
{
    const heft__rule_t *rule = r->rule;
    heft_dtype_t dtype = rule->kernel_dtype;
    if (dtype == HEFT_DTYPE_NONE) {
        return FAIL(r, rule->kernel_pos, "kernel %s needs its dtype: `by %s(...) in f32`",
                    rule->kernel, rule->kernel);
    }
    if (heft__kernel_find(rule->kernel)->form != HEFT__FORM_MAP) {
        return check_form_dtype(r);
    }
    bool is_arithmetic = dtype == HEFT_DTYPE_F16 || dtype == HEFT_DTYPE_BF16 ||
                         dtype == HEFT_DTYPE_F32 || dtype == HEFT_DTYPE_F64;
    bool is_cast = strcmp(rule->kernel, "cast") == 0;
    if (!is_arithmetic && !(is_cast && heft_dtype_is_float(dtype) != 0)) {
        return FAIL(r, rule->kernel_pos, "kernel %s does not work in %s", rule->kernel,
                    heft_dtype_get_name(dtype));
    }
    return HEFT_OK;
}

static heft_status_t resolve_kernel(resolver_t *r)
{
    heft__rule_t *rule = r->rule;
    if (rule->kernel == NULL) {
        if (rule->n_sources > 1) {
            return FAIL(r, rule->pos, "%u sources need a kernel: `by mul in f32`",
                        (unsigned)rule->n_sources);
        }
        return HEFT_OK;
    }
    const heft__kernel_t *kernel = heft__kernel_find(rule->kernel);
    if (kernel == NULL) {
        char known[128];
        heft__kernel_list(known, sizeof known);
        return FAIL(r, rule->kernel_pos, "no kernel \"%s\": there are %s", rule->kernel, known);
    }
    bool has_blocks = kernel->form == HEFT__FORM_QUANTISE || kernel->form == HEFT__FORM_DEQUANTISE;
    uint32_t n_args = has_blocks ? rule->n_args : kernel->n_args; /* counted against axes later */
    if (kernel->form == HEFT__FORM_QUANTISE && rule->n_targets != 2) {
        return FAIL(r, rule->kernel_pos,
                    "kernel %s writes two targets, codes and scales; there %s %u", rule->kernel,
                    rule->n_targets == 1 ? "is" : "are", (unsigned)rule->n_targets);
    }
    if (rule->n_args != n_args || rule->n_sources != kernel->n_sources) {
        return FAIL(r, rule->kernel_pos,
                    "kernel %s takes %u arguments and %u sources; there are %u and %u",
                    rule->kernel, (unsigned)n_args, (unsigned)kernel->n_sources,
                    (unsigned)rule->n_args, (unsigned)rule->n_sources);
    }
    bool per_match = false;
    heft__scope_t scope = scope_of(r, false);
    for (uint32_t i = 0; i < rule->n_args; i++) {
        heft_status_t status = heft__resolve_expr(&scope, rule->args[i], &per_match, r->err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return check_kernel_dtype(r);
}

heft_status_t heft__resolve_rule(heft_recipe_t *recipe, heft__rule_t *rule, heft_error_t *err)
{
    resolver_t r = { .recipe = recipe, .rule = rule, .err = err };
    heft_status_t status = resolve_pattern(&r, &rule->sources[0].pattern);
    if (status == HEFT_OK) {
        status = resolve_loops(&r);
    }
    if (status == HEFT_OK) {
        status = resolve_sources(&r);
    }
    for (heft__refine_t *refine = rule->refines; refine != NULL && status == HEFT_OK;
         refine = refine->next) {
        status = resolve_refine(&r, refine);
    }
    if (status == HEFT_OK) {
        status = resolve_targets(&r);
    }
    if (status == HEFT_OK) {
        status = resolve_when(&r);
    }
    return status == HEFT_OK && rule->message == NULL ? resolve_kernel(&r) : status;
}

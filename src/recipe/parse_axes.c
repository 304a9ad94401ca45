/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Axes in brackets: names, digits, groups and ranges.
 */
#include "recipe/syntax.h"

#include <string.h>

static heft_status_t new_axis(heft__parser_t *p, heft__axis_kind_t kind, heft__axis_t **out)
{
    heft__axis_t *axis = heft__arena_calloc(&p->recipe->arena, 1, sizeof *axis);
    if (axis == NULL) {
        (void)heft__parse_nomem(p);
        return HEFT_ERR_NOMEM;
    }
    axis->kind = kind;
    axis->pos = p->at->pos;
    axis->id = HEFT__NONE;
    axis->size_slot = HEFT__NONE;
    axis->offset_slot = HEFT__NONE;
    *out = axis;
    return HEFT_OK;
}

/* kids grow by doubling inside the arena; what is left behind goes with the recipe. */
static heft_status_t add_kid(heft__parser_t *p, heft__axis_t ***kids, uint32_t *n,
                             heft__axis_t *kid)
{
    if ((*n & (*n + 1)) == 0) { /* 0, 1, 3, 7, ...: full */
        heft__axis_t **more =
            heft__arena_calloc(&p->recipe->arena, 2 * (size_t)*n + 1, sizeof(void *));
        if (more == NULL) {
            return heft__parse_nomem(p);
        }
        if (*n > 0) {
            memcpy(more, *kids, *n * sizeof(void *));
        }
        *kids = more;
    }
    (*kids)[(*n)++] = kid;
    return HEFT_OK;
}

static heft_status_t parse_group(heft__parser_t *p, heft__axis_t *group)
{
    heft_status_t status = heft__parse_enter(p);
    while (status == HEFT_OK && !heft__parse_accept(p, TOKEN_RPAREN)) {
        heft__axis_t *kid = NULL;
        if (p->at->kind == TOKEN_COMMA) {
            return heft__parse_expected(p, "an axis or `)` (a group has no commas)");
        }
        status = heft__parse_axis(p, &kid);
        if (status == HEFT_OK) {
            status = add_kid(p, &group->kids, &group->n_kids, kid);
        }
    }
    p->depth--;
    return status;
}

/* INT or {EXPR} at the start of an axis: a digit; a lone 1: a unit axis. */
static heft_status_t parse_digit(heft__parser_t *p, heft__axis_t *axis)
{
    const heft__token_t *first = p->at;
    axis->kind = AXIS_DIGIT;
    heft_status_t status = heft__parse_size(p, &axis->offset);
    if (status != HEFT_OK) {
        return status;
    }
    if (p->at->kind == TOKEN_COLON) {
        p->at++;
        return heft__parse_size(p, &axis->size);
    }
    if (first->kind == TOKEN_INT && first->integer == 1) {
        axis->kind = AXIS_UNIT;
        axis->offset = NULL;
        return HEFT_OK;
    }
    return heft__recipe_error(p->recipe, first->pos, HEFT_ERR_SYNTAX, p->err,
                              "one position is written POSITION:EXTENT, such as 0:2; a lone 1 is a "
                              "unit axis");
}

static heft_status_t parse_base(heft__parser_t *p, heft__axis_t *axis)
{
    switch ((int)p->at->kind) {
    case TOKEN_LPAREN:
        axis->kind = AXIS_GROUP;
        p->at++;
        return parse_group(p, axis);
    case TOKEN_INT:
    case TOKEN_LBRACE:
        return parse_digit(p, axis);
    case TOKEN_NAME:
        axis->name = heft__parse_dup(p, p->at->text);
        if (axis->name == NULL) {
            return HEFT_ERR_NOMEM;
        }
        p->at++;
        return heft__parse_accept(p, TOKEN_COLON) ? heft__parse_size(p, &axis->size) : HEFT_OK;
    case TOKEN_ELLIPSIS:
        return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_SYNTAX, p->err,
                                  "`...` stands between commas, not inside a group");
    default:
        return heft__parse_expected(p, "an axis");
    }
}

heft_status_t heft__parse_axis(heft__parser_t *p, heft__axis_t **axis_out)
{
    heft__axis_t *axis = NULL;
    heft_status_t status = new_axis(p, AXIS_NAME, &axis);
    if (status == HEFT_OK) {
        status = parse_base(p, axis);
    }
    if (status != HEFT_OK || p->at->kind != TOKEN_AT) {
        *axis_out = axis;
        return status;
    }
    heft__axis_t *range = NULL;
    status = new_axis(p, AXIS_RANGE, &range);
    if (status != HEFT_OK) {
        return status;
    }
    range->pos = axis->pos;
    p->at++;
    status = heft__parse_size(p, &range->offset);
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_SLASH, "`/` and the whole extent");
    }
    if (status == HEFT_OK) {
        status = heft__parse_size(p, &range->size);
    }
    if (status == HEFT_OK) {
        status = add_kid(p, &range->kids, &range->n_kids, axis);
    }
    *axis_out = range;
    return status;
}

heft_status_t heft__parse_axes(heft__parser_t *p, heft__axes_t *axes_out)
{
    axes_out->pos = p->at->pos;
    heft_status_t status = heft__parse_token(p, TOKEN_LBRACKET, "`[` and axes (`[...]` for all)");
    if (status != HEFT_OK || heft__parse_accept(p, TOKEN_RBRACKET)) {
        return status;
    }
    do {
        heft__axis_t *dim = NULL;
        if (p->at->kind == TOKEN_ELLIPSIS) {
            status = new_axis(p, AXIS_REST, &dim);
            p->at++;
        } else {
            status = heft__parse_axis(p, &dim);
        }
        if (status == HEFT_OK) {
            status = add_kid(p, &axes_out->dims, &axes_out->n_dims, dim);
        }
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status == HEFT_OK ? heft__parse_token(p, TOKEN_RBRACKET, "`,` or `]`") : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rule: sources, where, targets, for, when, by. Names stay unresolved here (resolve_rule.c).
 */
#include "recipe/syntax.h"

#include <stdio.h>
#include <string.h>

static const heft__kernel_t kernels[] = {
    { .name = "cast", .code = HEFT_OP_CAST, .n_sources = 1 },
    { .name = "scale", .code = HEFT_OP_MUL_IMM, .n_args = 1, .n_sources = 1 },
    { .name = "add", .code = HEFT_OP_ADD_IMM, .n_args = 1, .n_sources = 1 },
    { .name = "divide", .code = HEFT_OP_DIV_IMM, .n_args = 1, .n_sources = 1 },
    { .name = "neg_exp", .code = HEFT_OP_NEG_EXP, .n_sources = 1 },
    { .name = "mul", .code = HEFT_OP_MUL, .n_sources = 2 },
    { .name = "fp8_quantise", .n_sources = 1, .form = HEFT__FORM_QUANTISE },
    { .name = "dequantise", .n_sources = 2, .form = HEFT__FORM_DEQUANTISE },
    { .name = "mxfp4_unpack", .n_sources = 2, .form = HEFT__FORM_UNPACK },
};

const heft__kernel_t *heft__kernel_find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            return &kernels[i];
        }
    }
    return NULL;
}

void heft__kernel_list(char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && at < bytes; i++) {
        int n = snprintf(out + at, bytes - at, "%s%s", i > 0 ? ", " : "", kernels[i].name);
        at += n > 0 ? (size_t)n : 0;
    }
}

static heft_status_t too_many(heft__parser_t *p, const char *what)
{
    return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_LIMIT, p->err,
                              "more than %d %s in a rule", HEFT__MAX_PARTS, what);
}

static heft_status_t parse_sources(heft__parser_t *p, heft__rule_t *rule)
{
    heft_status_t status;
    do {
        if (rule->n_sources == HEFT__MAX_PARTS) {
            return too_many(p, "sources");
        }
        const heft__token_t *name = p->at;
        heft__rule_source_t *source = &rule->sources[rule->n_sources];
        status = heft__parse_token(p, TOKEN_STRING, "a source name in quotes");
        if (status == HEFT_OK && rule->n_sources == 0) {
            status = heft__parse_pattern(p, rule, name->text, name->pos, &source->pattern);
        } else if (status == HEFT_OK) {
            status = heft__parse_template(p, name->text, name->pos, &source->template);
        }
        if (status == HEFT_OK) {
            status = heft__parse_axes(p, &source->axes);
        }
        rule->n_sources++;
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

static heft_status_t parse_targets(heft__parser_t *p, heft__rule_t *rule)
{
    heft_status_t status;
    do {
        if (rule->n_targets == HEFT__MAX_PARTS) {
            return too_many(p, "targets");
        }
        const heft__token_t *name = p->at;
        heft__rule_target_t *target = &rule->targets[rule->n_targets];
        status = heft__parse_token(p, TOKEN_STRING, "a target name in quotes");
        if (status == HEFT_OK) {
            status = heft__parse_template(p, name->text, name->pos, &target->template);
        }
        if (status == HEFT_OK) {
            status = heft__parse_axes(p, &target->axes);
        }
        rule->n_targets++;
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

static heft_status_t new_refine(heft__parser_t *p, heft__refine_kind_t kind, const char *name,
                                heft__pos_t pos, heft__refine_t ***tail, heft__refine_t **out)
{
    heft__refine_t *refine = heft__arena_calloc(&p->recipe->arena, 1, sizeof *refine);
    if (refine == NULL) {
        return heft__parse_nomem(p);
    }
    refine->kind = kind;
    refine->name = name;
    refine->pos = pos;
    refine->id = HEFT__NONE;
    refine->size_slot = HEFT__NONE;
    **tail = refine;
    *tail = &refine->next;
    *out = refine;
    return HEFT_OK;
}

/* NAME as AXIS | NAME pad SIZE [as AXIS] | NAME:SIZE */
static heft_status_t parse_refine(heft__parser_t *p, heft__refine_t ***tail)
{
    heft__pos_t pos = p->at->pos;
    heft__refine_t *refine = NULL;
    if (p->at->kind != TOKEN_NAME) {
        return heft__parse_expected(p, "the name of an axis");
    }
    const char *name = heft__parse_dup(p, p->at->text);
    if (name == NULL) {
        return HEFT_ERR_NOMEM;
    }
    p->at++;
    heft_status_t status = HEFT_OK;
    if (heft__parse_accept(p, TOKEN_COLON)) {
        status = new_refine(p, REFINE_SIZE, name, pos, tail, &refine);
        return status == HEFT_OK ? heft__parse_size(p, &refine->size) : status;
    }
    bool is_pad = heft__parse_accept_word(p, "pad");
    if (is_pad) {
        status = new_refine(p, REFINE_PAD, name, pos, tail, &refine);
        if (status == HEFT_OK) {
            status = heft__parse_size(p, &refine->size);
        }
    }
    if (status != HEFT_OK || (is_pad && !heft__parse_is_word(p, "as"))) {
        return status;
    }
    if (!heft__parse_accept_word(p, "as")) {
        return heft__parse_expected(p, "`as`, `pad` or `:`");
    }
    status = new_refine(p, REFINE_AS, name, pos, tail, &refine);
    return status == HEFT_OK ? heft__parse_axis(p, &refine->tree) : status;
}

static heft_status_t parse_kernel(heft__parser_t *p, heft__rule_t *rule)
{
    rule->kernel_pos = p->at->pos;
    if (p->at->kind != TOKEN_NAME) {
        return heft__parse_expected(p, "the name of a kernel");
    }
    rule->kernel = heft__parse_dup(p, p->at->text);
    if (rule->kernel == NULL) {
        return HEFT_ERR_NOMEM;
    }
    p->at++;
    if (heft__parse_accept(p, TOKEN_LPAREN) && !heft__parse_accept(p, TOKEN_RPAREN)) {
        heft_status_t status;
        do {
            if (rule->n_args == HEFT__MAX_PARTS) {
                return too_many(p, "arguments");
            }
            status = heft__parse_expr(p, &rule->args[rule->n_args++]);
        } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
        if (status == HEFT_OK) {
            status = heft__parse_token(p, TOKEN_RPAREN, "`,` or `)`");
        }
        if (status != HEFT_OK) {
            return status;
        }
    }
    if (!heft__parse_accept_word(p, "in")) {
        return HEFT_OK;
    }
    char name[16] = "";
    if (p->at->kind == TOKEN_NAME && p->at->text.len < sizeof name) {
        memcpy(name, p->at->text.data, p->at->text.len);
        rule->kernel_dtype = heft_dtype_from_name(name);
    }
    if (rule->kernel_dtype == HEFT_DTYPE_NONE) {
        return heft__parse_expected(p, "a dtype");
    }
    p->at++;
    return HEFT_OK;
}

/* for NAME:SIZE [, NAME:SIZE] */
static heft_status_t parse_loops(heft__parser_t *p, heft__rule_t *rule)
{
    heft_status_t status;
    do {
        if (rule->n_loops == HEFT__MAX_PARTS) {
            return too_many(p, "loops");
        }
        if (p->at->kind != TOKEN_NAME) {
            return heft__parse_expected(p, "the name of a loop");
        }
        heft__loop_t *loop = &rule->loops[rule->n_loops++];
        loop->pos = p->at->pos;
        loop->name = heft__parse_dup(p, p->at->text);
        if (loop->name == NULL) {
            return HEFT_ERR_NOMEM;
        }
        p->at++;
        status = heft__parse_token(p, TOKEN_COLON, "`:` and a number");
        if (status == HEFT_OK) {
            status = heft__parse_size(p, &loop->size);
        }
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

/* note "TEXT" */
static heft_status_t parse_note(heft__parser_t *p, heft__rule_t *rule)
{
    const heft__token_t *text = p->at;
    rule->remark_pos = text->pos;
    heft_status_t status = heft__parse_token(p, TOKEN_STRING, "a text in quotes");
    if (status == HEFT_OK) {
        rule->remark = heft__parse_dup(p, text->text);
        status = rule->remark != NULL ? HEFT_OK : HEFT_ERR_NOMEM;
    }
    return status;
}

/* "PATTERN" because "MESSAGE" [when EXPR] */
heft_status_t heft__parse_refusal(heft__parser_t *p, heft__rule_t **rule_out)
{
    heft__rule_t *rule = heft__arena_calloc(&p->recipe->arena, 1, sizeof *rule);
    if (rule == NULL) {
        return heft__parse_nomem(p);
    }
    rule->takes_used = heft__parse_accept_word(p, "any");
    const heft__token_t *name = p->at;
    rule->pos = name->pos;
    rule->n_sources = 1;
    heft_status_t status = heft__parse_token(p, TOKEN_STRING, "a pattern in quotes");
    if (status == HEFT_OK) {
        status = heft__parse_pattern(p, rule, name->text, name->pos, &rule->sources[0].pattern);
    }
    if (status == HEFT_OK && !heft__parse_accept_word(p, "because")) {
        status = heft__parse_expected(p, "`because` and a message");
    }
    const heft__token_t *message = p->at;
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_STRING, "a message in quotes");
    }
    if (status == HEFT_OK) {
        rule->message = heft__parse_dup(p, message->text);
        status = rule->message != NULL ? HEFT_OK : HEFT_ERR_NOMEM;
    }
    if (status == HEFT_OK && heft__parse_accept_word(p, "when")) {
        status = heft__parse_expr(p, &rule->when);
    }
    *rule_out = rule;
    return status;
}

static heft_status_t parse_where(heft__parser_t *p, heft__rule_t *rule)
{
    heft__refine_t **tail = &rule->refines;
    heft_status_t status;
    do {
        status = parse_refine(p, &tail);
    } while (status == HEFT_OK && heft__parse_accept(p, TOKEN_COMMA));
    return status;
}

static heft_status_t make_note(heft__parser_t *p, heft__rule_t *rule)
{
    char note[160];
    size_t n = strlen(p->recipe->name);
    const char *name = n > 120 ? p->recipe->name + (n - 120) : p->recipe->name;
    (void)snprintf(note, sizeof note, "%s:%u", name, (unsigned)rule->pos.line);
    rule->note = heft__parse_dup(p, (heft__span_t){ note, strlen(note) });
    return rule->note == NULL ? HEFT_ERR_NOMEM : HEFT_OK;
}

heft_status_t heft__parse_rule(heft__parser_t *p, heft__rule_t **rule_out)
{
    heft__rule_t *rule = heft__arena_calloc(&p->recipe->arena, 1, sizeof *rule);
    if (rule == NULL) {
        return heft__parse_nomem(p);
    }
    rule->pos = p->at->pos;
    heft_status_t status = make_note(p, rule);
    if (status == HEFT_OK) {
        status = parse_sources(p, rule);
    }
    if (status == HEFT_OK && heft__parse_accept_word(p, "where")) {
        status = parse_where(p, rule);
    }
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_ARROW, "`->` or `where`");
    }
    if (status == HEFT_OK) {
        status = parse_targets(p, rule);
    }
    while (status == HEFT_OK && p->at->kind == TOKEN_NAME) {
        if (rule->when == NULL && heft__parse_accept_word(p, "when")) {
            status = heft__parse_expr(p, &rule->when);
        } else if (rule->n_loops == 0 && heft__parse_accept_word(p, "for")) {
            status = parse_loops(p, rule);
        } else if (rule->remark == NULL && heft__parse_accept_word(p, "note")) {
            status = parse_note(p, rule);
        } else if (rule->kernel == NULL && heft__parse_accept_word(p, "by")) {
            status = parse_kernel(p, rule);
        } else {
            status = heft__parse_expected(p, "`for`, `when`, `by`, `note` or the end of the line");
        }
    }
    *rule_out = rule;
    return status;
}

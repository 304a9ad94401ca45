/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a recipe declares of the two sides: the form of their names, and how parameters are laid
 * out.
 */
#include "recipe/syntax.h"

#include <string.h>

/* ---- names ---- */

static const char *side_name(int side)
{
    return side == HEFT__SOURCE ? "source" : "destination";
}

static heft_status_t parse_form(heft__parser_t *p, heft__name_decl_t *decl)
{
    if (heft__parse_accept_word(p, "dotted")) {
        decl->form = HEFT_NAME_FORM_DOTTED;
        return HEFT_OK;
    }
    if (!heft__parse_accept_word(p, "keystr")) {
        return heft__parse_expected(p, "`dotted` or `keystr`");
    }
    decl->form = HEFT_NAME_FORM_KEYSTR;
    if (heft__parse_accept_word(p, "scanned")) {
        decl->layers = HEFT_LAYER_FORM_SCANNED;
    } else if (heft__parse_accept_word(p, "unrolled")) {
        decl->layers = HEFT_LAYER_FORM_UNROLLED;
    } else {
        return heft__parse_expected(p, "`scanned` or `unrolled`");
    }
    return HEFT_OK;
}

/* container "layers", root "model", suffix ".value", in any order, each once */
static heft_status_t parse_parts(heft__parser_t *p, heft__name_decl_t *decl)
{
    static const char *const words[] = { "container", "root", "suffix" };
    const char **const values[] = { &decl->container, &decl->root, &decl->suffix };
    for (size_t i = 0; i < 3 && decl->form == HEFT_NAME_FORM_KEYSTR; i++) {
        if (*values[i] != NULL || !heft__parse_accept_word(p, words[i])) {
            continue;
        }
        const heft__token_t *text = p->at;
        heft_status_t status = heft__parse_token(p, TOKEN_STRING, "a text in quotes");
        if (status != HEFT_OK) {
            return status;
        }
        *values[i] = heft__parse_dup(p, text->text);
        if (*values[i] == NULL) {
            return HEFT_ERR_NOMEM;
        }
        i = SIZE_MAX; /* from the first word again */
    }
    return HEFT_OK;
}

heft_status_t heft__parse_names(heft__parser_t *p, heft__pos_t pos)
{
    heft__name_decl_t decl = { .pos = pos };
    int side = HEFT__SOURCE;
    if (heft__parse_accept_word(p, "destination")) {
        side = HEFT__DESTINATION;
    } else if (!heft__parse_accept_word(p, "source")) {
        return heft__parse_expected(p, "`source` or `destination`");
    }
    heft__name_decl_t *there = &p->recipe->name_decls[side];
    if (there->form != HEFT_NAME_FORM_NONE) {
        return heft__recipe_error(p->recipe, pos, HEFT_ERR_SYNTAX, p->err,
                                  "a second `names %s`: line %u has one", side_name(side),
                                  (unsigned)there->pos.line);
    }
    heft_status_t status = parse_form(p, &decl);
    if (status == HEFT_OK) {
        status = parse_parts(p, &decl);
    }
    if (status == HEFT_OK) {
        *there = decl;
    }
    return status;
}

/* ---- attributes of parameters ---- */

/* fused.layout, native-less keys with one dot; joined to one text. */
static heft_status_t parse_attr_key(heft__parser_t *p, const char **key_out)
{
    const heft__token_t *first = p->at;
    heft_status_t status = heft__parse_token(p, TOKEN_NAME, "an attribute, such as fused.layout");
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_DOT, "`.`, as in fused.layout");
    }
    const heft__token_t *last = p->at;
    if (status == HEFT_OK) {
        status = heft__parse_token(p, TOKEN_NAME, "a name behind the dot, as in fused.layout");
    }
    if (status != HEFT_OK) {
        return status;
    }
    size_t n = (size_t)(last->text.data - first->text.data) + last->text.len;
    if (n != first->text.len + 1 + last->text.len) {
        return heft__recipe_error(p->recipe, first->pos, HEFT_ERR_SYNTAX, p->err,
                                  "blanks inside the name of an attribute");
    }
    *key_out = heft__parse_dup(p, (heft__span_t){ first->text.data, n });
    return *key_out != NULL ? HEFT_OK : HEFT_ERR_NOMEM;
}

static heft_status_t parse_items(heft__parser_t *p, heft__attr_line_t *line)
{
    do {
        heft__attr_item_t *item = &line->items[line->n_items];
        if (line->n_items == HEFT__MAX_ATTRS) {
            return heft__recipe_error(p->recipe, p->at->pos, HEFT_ERR_LIMIT, p->err,
                                      "more than %d attributes", HEFT__MAX_ATTRS);
        }
        item->pos = p->at->pos;
        heft_status_t status = parse_attr_key(p, &item->key);
        if (status == HEFT_OK) {
            status = heft__parse_token(p, TOKEN_ASSIGN, "`=` and a value");
        }
        if (status == HEFT_OK) {
            status = heft__parse_expr(p, &item->value);
        }
        if (status != HEFT_OK) {
            return status;
        }
        line->n_items++;
    } while (heft__parse_accept(p, TOKEN_COMMA));
    return HEFT_OK;
}

heft_status_t heft__parse_attr(heft__parser_t *p, bool is_optional)
{
    heft_recipe_t *recipe = p->recipe;
    heft__attr_line_t *line = heft__arena_calloc(&recipe->arena, 1, sizeof *line);
    if (line == NULL) {
        return heft__parse_nomem(p);
    }
    const heft__token_t *name = p->at;
    line->is_optional = is_optional;
    heft_status_t status = heft__parse_token(p, TOKEN_STRING, "a pattern in quotes");
    if (status == HEFT_OK) {
        status = heft__parse_pattern(p, NULL, name->text, name->pos, &line->pattern);
    }
    if (status == HEFT_OK) {
        status = parse_items(p, line);
    }
    if (status == HEFT_OK && heft__parse_accept_word(p, "when")) {
        status = heft__parse_expr(p, &line->when);
    }
    void *items = recipe->attr_lines;
    if (status != HEFT_OK) {
        return status;
    }
    if (!heft__grow(&items, &recipe->cap_attr_lines, recipe->n_attr_lines + 1, sizeof(void *))) {
        return heft__parse_nomem(p);
    }
    recipe->attr_lines = items;
    recipe->attr_lines[recipe->n_attr_lines++] = line;
    return HEFT_OK;
}

/* ---- what is declared, for callers ---- */

/* A chain reads what its first recipe reads, and makes what its last one makes. */
static const heft__name_decl_t *decl_of(const heft_recipe_t *recipe, const char *side)
{
    int i = strcmp(side, "source") == 0 ? HEFT__SOURCE : HEFT__DESTINATION;
    if (recipe->n_parts > 0) {
        recipe = recipe->parts[i == HEFT__SOURCE ? 0 : recipe->n_parts - 1];
    }
    return &recipe->name_decls[i];
}

int heft_recipe_query_names(const heft_recipe_t *recipe, const char *side,
                            heft_name_opts_t *opts_out)
{
    const heft__name_decl_t *decl = decl_of(recipe, side);
    *opts_out = (heft_name_opts_t)HEFT_NAME_OPTS_INIT;
    opts_out->name_form = decl->form;
    opts_out->layer_form = decl->layers;
    opts_out->container = decl->container;
    opts_out->types_lost = decl->form == HEFT_NAME_FORM_KEYSTR ? 1 : 0;
    return decl->form != HEFT_NAME_FORM_NONE ? 1 : 0;
}

heft_status_t heft_recipe_declare_names(const heft_recipe_t *recipe, heft_manifest_t *manifest,
                                        heft_error_t *err)
{
    const heft__name_decl_t *decl = decl_of(recipe, heft_manifest_get_side(manifest));
    if (decl->form == HEFT_NAME_FORM_NONE) {
        return HEFT_OK;
    }
    bool is_keystr = decl->form == HEFT_NAME_FORM_KEYSTR;
    const struct {
        const char *key;
        const char *value;
    } attrs[] = {
        { "name_form", heft_name_form_get_name(decl->form) },
        { "layer_form", is_keystr ? heft_layer_form_get_name(decl->layers) : NULL },
        { "container", decl->container },
        { "root", decl->root },
        { "leaf_suffix", is_keystr && decl->suffix == NULL ? "" : decl->suffix },
    };
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < sizeof attrs / sizeof attrs[0] && status == HEFT_OK; i++) {
        if (attrs[i].value != NULL) {
            status = heft_manifest_set_attr(manifest, attrs[i].key, attrs[i].value, err);
        }
    }
    return status;
}

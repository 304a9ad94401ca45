/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chains: several recipes as one, each reading what the one before it makes.
 *
 * A chain is a text, too: the texts of its recipes, each behind a line `recipe "NAME"`. So it
 * travels wherever a recipe does. Each part is parsed, compiled and complained about by itself; the
 * tapes are joined, so that nothing in between is ever there.
 */
#include "recipe/chain.h"

#include <string.h>

#define MAX_NAME_BYTES 200

/* ---- headings ---- */

/* The line at text, without its end. */
static heft__span_t line_at(const char *text, const char *end)
{
    const char *stop = memchr(text, '\n', (size_t)(end - text));
    return (heft__span_t){ text, (size_t)((stop != NULL ? stop : end) - text) };
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) {
        at++;
    }
    return at;
}

/* Does a recipe of a chain begin with this line: recipe "..? */
static bool is_heading(heft__span_t line)
{
    static const char word[] = "recipe";
    const size_t n = sizeof word - 1;
    const char *end = line.data + line.len;
    if (line.len <= n || memcmp(line.data, word, n) != 0) {
        return false;
    }
    const char *at = skip_blanks(line.data + n, end);
    return at > line.data + n && at < end && *at == '"';
}

bool heft__chain_is_chain(const char *text, size_t n)
{
    const char *end = text + n;
    for (const char *at = text; at < end;) {
        heft__span_t line = line_at(at, end);
        if (is_heading(line)) {
            return true;
        }
        at = line.data + line.len + 1;
    }
    return false;
}

/* The name in a heading; false: what follows it is neither blank nor a comment, or it is no name.
 */
static bool read_heading(heft__span_t line, heft__span_t *name_out)
{
    const char *end = line.data + line.len;
    const char *from = (const char *)memchr(line.data, '"', line.len) + 1;
    const char *to = memchr(from, '"', (size_t)(end - from));
    if (to == NULL || to == from || to - from > MAX_NAME_BYTES) {
        return false;
    }
    *name_out = (heft__span_t){ from, (size_t)(to - from) };
    const char *rest = skip_blanks(to + 1, end);
    return rest == end || *rest == '#';
}

static heft_status_t refuse_line(const heft_recipe_t *chain, uint32_t line, const char *what,
                                 heft_error_t *err)
{
    return heft__recipe_error(chain, (heft__pos_t){ .line = line, .column = 1 }, HEFT_ERR_SYNTAX,
                              err, "%s", what);
}

/* ---- what is wrong ---- */

heft_status_t heft__chain_end(const heft_recipe_t *recipe, heft_issues_t *issues, uint32_t n_said,
                              heft_status_t status, const heft_error_t *error, heft_error_t *err)
{
    heft__faults_t faults;
    if (status == HEFT_OK) {
        return HEFT_OK;
    }
    bool is_said = heft__chain_n_said(issues) > n_said;
    heft__faults_init(&faults, recipe, is_said ? NULL : issues, false);
    (void)heft__faults_take(&faults, status, error);
    return heft__faults_status(&faults, err);
}

/* ---- parsing ---- */

static heft_status_t add_part(heft_recipe_t *chain, heft__span_t name, heft__span_t text,
                              heft_issues_t *issues, heft_error_t *err)
{
    char buffer[MAX_NAME_BYTES + 1];
    memcpy(buffer, name.data, name.len);
    buffer[name.len] = '\0';
    if (chain->n_parts == HEFT__MAX_PARTS) {
        return heft__error_set(err, HEFT_ERR_LIMIT,
                               "recipe \"%s\": more than %d recipes in a chain", chain->name,
                               HEFT__MAX_PARTS);
    }
    heft_status_t status = heft_recipe_parse_all(buffer, text.data, text.len, issues,
                                                 &chain->parts[chain->n_parts], err);
    chain->n_parts += status == HEFT_OK ? 1 : 0;
    return status;
}

static heft_status_t parse_parts(heft_recipe_t *chain, size_t n, heft_issues_t *issues,
                                 heft_error_t *err)
{
    const char *end = chain->text + n;
    heft__span_t name = { "", 0 };
    const char *from = NULL; /* of the part that is open */
    uint32_t number = 1;
    heft_status_t status = HEFT_OK;
    for (const char *at = chain->text; at < end && status == HEFT_OK; number++) {
        heft__span_t line = line_at(at, end);
        const char *text = skip_blanks(at, line.data + line.len);
        if (is_heading(line)) {
            if (from != NULL) {
                status =
                    add_part(chain, name, (heft__span_t){ from, (size_t)(at - from) }, issues, err);
            }
            if (status == HEFT_OK && !read_heading(line, &name)) {
                status = refuse_line(chain, number, "`recipe \"NAME\"` expected", err);
            }
            from = line.data + line.len < end ? line.data + line.len + 1 : end;
        } else if (from == NULL && text < line.data + line.len && *text != '#') {
            status =
                refuse_line(chain, number, "a statement before the first recipe of a chain", err);
        }
        at = line.data + line.len + 1;
    }
    return status == HEFT_OK
               ? add_part(chain, name, (heft__span_t){ from, (size_t)(end - from) }, issues, err)
               : status;
}

/* What is asked of the whole text: variables, configuration, exceptions of all parts. */
static heft_status_t gather(heft_recipe_t *chain, heft_error_t *err)
{
    for (uint32_t p = 0; p < chain->n_parts; p++) {
        chain->n_variables += chain->parts[p]->n_variables;
        chain->n_config_keys += chain->parts[p]->n_config_keys;
        chain->n_exceptions += chain->parts[p]->n_exceptions;
    }
    const size_t n = chain->n_variables + chain->n_config_keys + chain->n_exceptions;
    chain->variables = heft__calloc(chain->n_variables + 1, sizeof *chain->variables);
    chain->config_keys = heft__calloc(chain->n_config_keys + 1, sizeof *chain->config_keys);
    chain->exceptions = heft__calloc(chain->n_exceptions + 1, sizeof *chain->exceptions);
    if (chain->variables == NULL || chain->config_keys == NULL || chain->exceptions == NULL) {
        return heft__error_nomem(err, n * sizeof *chain->exceptions);
    }
    size_t v = 0;
    size_t k = 0;
    size_t e = 0;
    for (uint32_t p = 0; p < chain->n_parts; p++) {
        const heft_recipe_t *part = chain->parts[p];
        for (size_t i = 0; i < part->n_variables; i++) {
            chain->variables[v++] = part->variables[i];
        }
        for (size_t i = 0; i < part->n_config_keys; i++) {
            chain->config_keys[k++] = part->config_keys[i];
        }
        for (size_t i = 0; i < part->n_exceptions; i++) {
            chain->exceptions[e] = part->exceptions[i];
            chain->exceptions[e++].stage = (int32_t)p;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__chain_parse(heft_recipe_t *chain, size_t n, heft_issues_t *issues,
                                heft_error_t *err)
{
    heft_error_t inner = HEFT_ERROR_INIT;
    const uint32_t n_said = heft__chain_n_said(issues);
    heft_status_t status = parse_parts(chain, n, issues, &inner);
    if (status == HEFT_OK) {
        status = gather(chain, &inner);
    }
    return heft__chain_end(chain, issues, n_said, status, &inner, err);
}

/* ---- making one ---- */

static const char *base_name(const heft_recipe_t *recipe)
{
    const char *slash = strrchr(recipe->name, '/');
    return slash != NULL ? slash + 1 : recipe->name;
}

static heft_status_t put_recipe(const heft_recipe_t *recipe, heft__text_t *name, heft__text_t *text,
                                heft_error_t *err)
{
    const char *base = base_name(recipe);
    size_t n = strlen(recipe->text);
    if (base[0] == '\0' || strlen(base) > MAX_NAME_BYTES || strpbrk(base, "\"\n\r") != NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "a chain of recipes: \"%.80s\" is no name of 1 to %d bytes without "
                               "quotes",
                               base, MAX_NAME_BYTES);
    }
    heft__text_printf(name, "%s%s", name->len > 0 ? "+" : "", base);
    if (recipe->n_parts == 0) {
        heft__text_printf(text, "recipe \"%s\"\n", base);
    }
    heft__text_put(text, recipe->text);
    heft__text_put(text, n > 0 && recipe->text[n - 1] != '\n' ? "\n" : "");
    return name->failed || text->failed ? heft__error_nomem(err, text->len) : HEFT_OK;
}

heft_status_t heft_recipe_chain(const heft_recipe_t *const *recipes, uint32_t n,
                                heft_recipe_t **chain_out, heft_error_t *err)
{
    if (recipes == NULL || n == 0 || chain_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT,
                               "a chain of recipes without recipes or output");
    }
    heft__text_t name;
    heft__text_t text;
    heft__text_init(&name);
    heft__text_init(&text);
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < n && status == HEFT_OK; i++) {
        status = recipes[i] != NULL
                     ? put_recipe(recipes[i], &name, &text, err)
                     : heft__error_set(err, HEFT_ERR_ARGUMENT, "recipe %u of %u is NULL",
                                       (unsigned)i, (unsigned)n);
    }
    if (status == HEFT_OK) {
        status = heft_recipe_parse(name.data, text.data, text.len, chain_out, err);
    }
    heft__text_fini(&name);
    heft__text_fini(&text);
    return status;
}

uint32_t heft_recipe_get_n_parts(const heft_recipe_t *recipe)
{
    return recipe->n_parts > 0 ? recipe->n_parts : 1;
}

const heft_recipe_t *heft_recipe_get_part(const heft_recipe_t *recipe, uint32_t i)
{
    if (recipe->n_parts == 0) {
        return i == 0 ? recipe : NULL;
    }
    return i < recipe->n_parts ? recipe->parts[i] : NULL;
}

/* ---- bindings: each part takes those that it declares ---- */

/* "hf-to-engine-dense" of "hf-to-engine-dense.heft". */
static heft__span_t stem_of(const heft_recipe_t *part)
{
    static const char suffix[] = ".heft";
    const char *base = base_name(part);
    size_t n = strlen(base);
    size_t m = sizeof suffix - 1;
    bool has_suffix = n > m && strcmp(base + n - m, suffix) == 0;
    return (heft__span_t){ base, has_suffix ? n - m : n };
}

/* The let that a binding is of in this part, or NULL: of "PART.NAME" in that part alone. */
static const char *let_in(const heft_recipe_t *part, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dot == NULL) {
        const char *kind = heft__resolve_taken(part, NULL, name);
        return kind != NULL && kind[0] == 'l' ? name : NULL;
    }
    heft__span_t stem = stem_of(part);
    bool is_its = stem.len == (size_t)(dot - name) && memcmp(stem.data, name, stem.len) == 0;
    return is_its ? dot + 1 : NULL;
}

static heft_status_t nobody_declares(const heft_recipe_t *chain, const char *name,
                                     heft_error_t *err)
{
    heft__text_t there;
    const bool is_qualified = strrchr(name, '.') != NULL;
    heft__text_init(&there);
    for (uint32_t p = 0; p < chain->n_parts; p++) {
        heft__span_t stem = stem_of(chain->parts[p]);
        heft__text_printf(&there, "%s%.*s", p > 0 ? ", " : "", (int)stem.len, stem.data);
    }
    const char *best = NULL;
    uint32_t limit = (uint32_t)strlen(name) / 3 + 1;
    for (uint32_t p = 0; p < chain->n_parts && !is_qualified; p++) {
        const heft_recipe_t *part = chain->parts[p];
        for (size_t k = 0; k < part->n_lets && limit > 0; k++) {
            uint32_t distance = heft__edit_distance(name, part->lets[k].name, limit);
            if (distance <= limit) {
                best = part->lets[k].name;
                limit = distance > 0 ? distance - 1 : 0;
            }
        }
    }
    heft_status_t status = heft__error_set(
        err, HEFT_ERR_ARGUMENT, "no recipe of the chain %s %.60s%s%s%s%s; there are %.120s",
        is_qualified ? "is meant by" : "declares `let", name, is_qualified ? "" : "`",
        best != NULL ? "; nearest is \"" : "", best != NULL ? best : "", best != NULL ? "\"" : "",
        there.failed ? "" : there.data);
    heft__text_fini(&there);
    return status;
}

static heft_status_t check_bindings(const heft_recipe_t *chain, const heft_bindings_t *bindings,
                                    heft_error_t *err)
{
    for (size_t i = 0; bindings != NULL && i < bindings->n; i++) {
        bool is_taken = false;
        for (uint32_t p = 0; p < chain->n_parts && !is_taken; p++) {
            is_taken = let_in(chain->parts[p], bindings->items[i].name) != NULL;
        }
        if (!is_taken) {
            return nobody_declares(chain, bindings->items[i].name, err);
        }
    }
    return HEFT_OK;
}

/* What is said for this part alone stands first, where it is found first. Only items is allocated.
 */
static heft_status_t select_bindings(const heft_recipe_t *part, const heft_bindings_t *bindings,
                                     heft_bindings_t *out, heft_error_t *err)
{
    *out = (heft_bindings_t){ .n = 0 };
    if (bindings == NULL) {
        return HEFT_OK;
    }
    out->config = bindings->config;
    out->env = bindings->env;
    out->items = heft__calloc(bindings->n + 1, sizeof *out->items);
    if (out->items == NULL) {
        return heft__error_nomem(err, bindings->n * sizeof *out->items);
    }
    for (size_t i = 0; i < 2 * bindings->n; i++) {
        const heft__binding_t *item = &bindings->items[i % bindings->n];
        bool is_qualified = strrchr(item->name, '.') != NULL;
        const char *let = let_in(part, item->name);
        if (let != NULL && is_qualified == (i < bindings->n)) {
            out->items[out->n] = *item;
            out->items[out->n++].name = item->name + (let - item->name);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__chain_open(heft__chain_t *c, const heft_recipe_t *recipe,
                               const heft_bindings_t *bindings, heft_error_t *err)
{
    *c = (heft__chain_t){ .recipe = recipe };
    heft_status_t status = check_bindings(recipe, bindings, err);
    for (uint32_t p = 0; p < recipe->n_parts && status == HEFT_OK; p++) {
        status = select_bindings(recipe->parts[p], bindings, &c->bindings[p], err);
    }
    if (status != HEFT_OK) {
        heft__chain_close(c);
    }
    return status;
}

void heft__chain_close(heft__chain_t *c)
{
    for (uint32_t p = 0; p < c->recipe->n_parts; p++) {
        heft__free(c->bindings[p].items);
    }
}

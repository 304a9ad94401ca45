/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of conversion and their vectors; see recipe_rules.h. */
#include "recipe_rules.h"

#include <ctype.h>

#define PATH "../tests/golden/recipe_rules.txt"

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long n = ftell(file);
    assert_true(n > 0);
    rewind(file);
    char *data = calloc((size_t)n + 1, 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, file), (size_t)n);
    (void)fclose(file);
    return data;
}

static char *after(char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && (line[n] == ' ' || line[n] == '\0')
               ? line + n + strspn(line + n, " ")
               : NULL;
}

static void begin_rule(rules_t *rules, char *name)
{
    assert_true(rules->n < sizeof rules->items / sizeof rules->items[0]);
    rule_set_t *rule = &rules->items[rules->n++];
    const char *kind = strchr(name, ' ');
    rule->goes_back = kind != NULL && strcmp(kind, " back") == 0;
    rule->is_computed = kind != NULL && strcmp(kind, " computed") == 0;
    assert_true(kind == NULL || rule->goes_back || rule->is_computed);
    name[strcspn(name, " ")] = '\0';
    rule->name = name;
    rule->text = calloc(8192, 1);
    assert_non_null(rule->text);
}

static void add_line(rules_t *rules, char *line)
{
    char *name = after(line, "rule");
    if (name != NULL) {
        begin_rule(rules, name);
        return;
    }
    if (rules->n == 0 || line[0] == '\0') {
        return; /* what the file says of itself; blank lines */
    }
    rule_set_t *rule = &rules->items[rules->n - 1];
    name = after(line, "case");
    if (name != NULL) {
        assert_true(rule->n_cases < sizeof rule->cases / sizeof rule->cases[0]);
        rule->cases[rule->n_cases++].name = name;
    } else if (rule->n_cases == 0) {
        size_t at = strlen(rule->text);
        (void)snprintf(rule->text + at, 8192 - at, "%s\n", line);
    } else {
        rule_case_t *c = &rule->cases[rule->n_cases - 1];
        assert_true(c->n_lines < sizeof c->lines / sizeof c->lines[0]);
        c->lines[c->n_lines++] = line;
    }
}

void rules_load(rules_t *rules)
{
    memset(rules, 0, sizeof *rules);
    rules->data = read_all(PATH);
    for (char *line = rules->data; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
        }
        add_line(rules, line);
        line = end != NULL ? end + 1 : NULL;
    }
}

void rules_free(rules_t *rules)
{
    for (size_t i = 0; i < rules->n; i++) {
        free(rules->items[i].text);
    }
    free(rules->data);
}

const rule_set_t *rules_find(const rules_t *rules, const char *name)
{
    for (size_t i = 0; i < rules->n; i++) {
        if (strcmp(rules->items[i].name, name) == 0) {
            return &rules->items[i];
        }
    }
    fail_msg("no rule \"%s\"", name);
    return NULL;
}

typedef struct tensor_line {
    char name[64];
    heft_dtype_t dtype;
    char shape[64];
    const char *values; /* NULL: none written */
} tensor_line_t;

/* "NAME DTYPE [SHAPE] = VALUES" */
static tensor_line_t parse_tensor(const char *text)
{
    tensor_line_t t = { .values = NULL };
    char dtype[16];
    int at = 0;
    assert_int_equal(sscanf(text, "%63s %15s [%n", t.name, dtype, &at), 2);
    assert_true(at > 0);
    size_t n = strcspn(text + at, "]");
    assert_true(n < sizeof t.shape);
    memcpy(t.shape, text + at, n);
    const char *equal = strchr(text + at, '=');
    assert_non_null(equal);
    equal += 1 + strspn(equal + 1, " ");
    t.values = *equal != '\0' ? equal : NULL;
    for (char *c = dtype; *c != '\0'; c++) {
        *c = (char)tolower(*c);
    }
    t.dtype = heft_dtype_from_name(dtype);
    assert_int_not_equal(t.dtype, HEFT_DTYPE_NONE);
    return t;
}

uint32_t rules_declare(rb_t *b, const rule_case_t *c)
{
    uint32_t rank = 0;
    rb_clear(b);
    for (size_t i = 0; i < c->n_lines; i++) {
        char *text;
        if ((text = after(c->lines[i], "in")) != NULL) {
            tensor_line_t t = parse_tensor(text);
            rb_source(b, t.name, t.dtype, t.shape, t.values);
        } else if ((text = after(c->lines[i], "set")) != NULL) {
            char name[32];
            int at = 0;
            assert_int_equal(sscanf(text, "%31s %n", name, &at), 1);
            rb_set(b, name, text + at);
        } else if ((text = after(c->lines[i], "config")) != NULL) {
            rb_config(b, text);
        } else if ((text = after(c->lines[i], "rank")) != NULL) {
            rank = (uint32_t)strtoul(text, NULL, 10);
        } else {
            assert_true(after(c->lines[i], "out") != NULL || after(c->lines[i], "refuse") != NULL);
        }
    }
    return rank;
}

bool rules_case_refuses(const rule_case_t *c)
{
    return after(c->lines[c->n_lines - 1], "refuse") != NULL;
}

/* "STATUS PART OF THE MESSAGE" */
static bool is_refused_like(const char *text, heft_status_t got, const heft_error_t *err,
                            char why[256])
{
    char status[40] = "ERR_";
    int at = 0;
    assert_int_equal(sscanf(text, "%31s %n", status + 4, &at), 1);
    if (strcmp(heft_status_get_name(got), status) == 0 && strstr(err->message, text + at) != NULL) {
        return true;
    }
    (void)snprintf(why, 256, "%s: %.180s", heft_status_get_name(got), err->message);
    return false;
}

bool rules_hold(rb_t *b, const char *recipe, const rule_case_t *c, char why[256])
{
    heft_error_t err = HEFT_ERROR_INIT;
    uint32_t rank = rules_declare(b, c);
    heft_status_t status = rb_try(b, recipe, rank, &err);
    (void)snprintf(why, 256, "%s", err.message);
    if (rules_case_refuses(c)) {
        return is_refused_like(after(c->lines[c->n_lines - 1], "refuse"), status, &err, why);
    }
    if (status == HEFT_OK && b->is_broken) {
        (void)snprintf(why, 256, "a temporary is read before it is written");
    }
    if (status == HEFT_OK && b->n_twice > 0) {
        (void)snprintf(why, 256, "%zu elements are written twice", b->n_twice);
    }
    bool holds = status == HEFT_OK && !b->is_broken && b->n_twice == 0;
    for (size_t i = 0; i < c->n_lines && holds; i++) {
        char *text = after(c->lines[i], "out");
        if (text != NULL) {
            tensor_line_t t = parse_tensor(text);
            holds = !rb_differs(b, t.name, t.dtype, t.shape, t.values, why);
        }
    }
    return holds;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The documents' examples are run: `heft` blocks must parse, and give what their `# out` lines say;
 * `heft-error` blocks must not parse.
 */
#include "recipe_bench.h"

#include "recipe/compile.h"

typedef struct block {
    char text[4096];
    char lines[32][160]; /* comment lines that say something, without "# " */
    size_t n_lines;
    bool must_fail;
} block_t;

/* "NAME [SHAPE] = VALUES" */
static void split(char *line, char **name, char **shape, char **values)
{
    *name = line;
    char *open = strchr(line, '[');
    char *close = open != NULL ? strchr(open, ']') : NULL;
    char *equal = close != NULL ? strchr(close, '=') : NULL;
    assert_non_null(equal);
    line[strcspn(line, " ")] = '\0';
    *close = '\0';
    *shape = open + 1;
    *values = equal + 1;
}

static char *word_after(char *line, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(line, word, n) != 0) {
        return NULL;
    }
    return line + n + strspn(line + n, " ");
}

/* Of a parameter; pages say values, not dtypes, but for codes they could not be f32. */
static heft_dtype_t out_dtype(const rb_t *b, const char *name)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_buffer_info_t info;
    uint32_t id;
    EXPECT_STATUS(heft_tape_find_buffer(b->tape, HEFT_BUFFER_PARAM, name, &id, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_query_buffer(b->tape, id, &info, &err), HEFT_OK);
    return info.dtype == HEFT_DTYPE_F8_E4M3 ? HEFT_DTYPE_F8_E4M3 : HEFT_DTYPE_F32;
}

/* Sources and bindings, then the run, then what must come out. Returns how many `# out` there were.
 */
static int run_block(rb_t *b, block_t *block)
{
    char *name;
    char *shape;
    char *values;
    uint32_t rank = 0;
    int n_out = 0;
    rb_clear(b);
    for (size_t i = 0; i < block->n_lines; i++) {
        char *in = word_after(block->lines[i], "in ");
        char *set = word_after(block->lines[i], "set ");
        char *number = word_after(block->lines[i], "rank ");
        char *config = word_after(block->lines[i], "config ");
        if (in != NULL) {
            split(in, &name, &shape, &values);
            rb_source(b, name, HEFT_DTYPE_F32, shape, values);
        } else if (set != NULL) {
            char *value = strchr(set, ' ');
            assert_non_null(value);
            *value = '\0';
            rb_set(b, set, value + 1);
        } else if (config != NULL) {
            rb_config(b, config);
        } else if (number != NULL) {
            rank = (uint32_t)strtoul(number, NULL, 10);
        }
    }
    rb_run(b, block->text, rank);
    for (size_t i = 0; i < block->n_lines; i++) {
        char *out = word_after(block->lines[i], "out ");
        if (out != NULL) {
            split(out, &name, &shape, &values);
            rb_expect(b, name, out_dtype(b, name), shape, values);
            n_out++;
        }
    }
    return n_out;
}

static void add_line(block_t *block, const char *line)
{
    size_t n = strlen(block->text);
    (void)snprintf(block->text + n, sizeof block->text - n, "%s", line);
    if (strncmp(line, "# ", 2) == 0 && block->n_lines < 32) {
        (void)snprintf(block->lines[block->n_lines++], 160, "%.150s", line + 2);
        block->lines[block->n_lines - 1][strcspn(line + 2, "\n")] = '\0';
    }
}

static void run_document(rb_t *b, const char *path, int least, int least_errors)
{
    heft_error_t err = HEFT_ERROR_INIT;
    FILE *file = fopen(path, "r");
    char line[1024];
    bool inside = false;
    int n_out = 0;
    int n_errors = 0;
    static block_t block;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (!inside && strncmp(line, "```heft", 7) == 0) {
            memset(&block, 0, sizeof block);
            block.must_fail = strncmp(line, "```heft-error", 13) == 0;
            inside = true;
        } else if (inside && strncmp(line, "```", 3) == 0) {
            inside = false;
            heft_recipe_t *recipe = NULL;
            if (block.must_fail) {
                EXPECT_STATUS(
                    heft_recipe_parse("document", block.text, strlen(block.text), &recipe, &err),
                    HEFT_ERR_SYNTAX);
                n_errors++;
            } else {
                n_out += run_block(b, &block);
            }
        } else if (inside) {
            add_line(&block, line);
        }
    }
    (void)fclose(file);
    assert_true(n_out >= least);
    assert_true(n_errors >= least_errors);
}

static void examples_of_the_format_page_hold(void **state)
{
    run_document(*state, "../docs/formats/recipe.md", 16, 1);
}

static void examples_of_the_guide_hold(void **state)
{
    run_document(*state, "../docs/guide/recipes.md", 10, 0);
}

/* Every kernel and function that exists is on the page. */
static void the_format_page_names_every_kernel(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft__text_t text;
    char known[128];
    heft__text_init(&text);
    EXPECT_STATUS(heft__recipe_read("../docs/formats/recipe.md", &text, &err), HEFT_OK);
    heft__kernel_list(known, sizeof known);
    for (char *at = known; *at != '\0';) {
        size_t n = strcspn(at, ",");
        char name[32];
        (void)snprintf(name, sizeof name, "`%.*s", (int)n, at);
        assert_non_null(strstr(text.data, name));
        at += n + strspn(at + n, ", ");
    }
    heft__text_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(examples_of_the_format_page_hold),
        T(examples_of_the_guide_hold),
        T(the_format_page_names_every_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

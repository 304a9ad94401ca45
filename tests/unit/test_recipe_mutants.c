/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults, planted one at a time, and the vectors that see them. A fault in a recipe is a change of
 * its text; a fault in C is a function put in the place of the right one by the linker. A fault
 * that no vector sees fails the test: then the vectors are too weak, whatever else passes.
 */
#include "recipe_rules.h"

#include "heft/sizes.h"
#include "recipe/compile.h"

static rules_t rules;

/* ---- faults in C ---- */

enum { NO_FAULT, POWER_OF_TWO, NO_REPEAT, NO_EXCEPT };
static int fault;

heft_status_t __real_heft_padded_size(int64_t size, int64_t lanes, int64_t tp, int64_t *out,
                                      heft_error_t *err);
heft_status_t __wrap_heft_padded_size(int64_t size, int64_t lanes, int64_t tp, int64_t *out,
                                      heft_error_t *err);
heft_status_t __real_heft_kv_repeat(int64_t kv_heads, int64_t kv_tp, int64_t *out,
                                    heft_error_t *err);
heft_status_t __wrap_heft_kv_repeat(int64_t kv_heads, int64_t kv_tp, int64_t *out,
                                    heft_error_t *err);
heft_dtype_t __real_heft__policy_dtype(const heft__compile_t *c, const heft__name_t *source);
heft_dtype_t __wrap_heft__policy_dtype(const heft__compile_t *c, const heft__name_t *source);

heft_status_t __wrap_heft_padded_size(int64_t size, int64_t lanes, int64_t tp, int64_t *out,
                                      heft_error_t *err)
{
    heft_status_t status = __real_heft_padded_size(size, lanes, tp, out, err);
    if (fault == POWER_OF_TWO && status == HEFT_OK && *out != size) {
        int64_t power = 1;
        while (power < *out) {
            power *= 2;
        }
        *out = power;
    }
    return status;
}

heft_status_t __wrap_heft_kv_repeat(int64_t kv_heads, int64_t kv_tp, int64_t *out,
                                    heft_error_t *err)
{
    heft_status_t status = __real_heft_kv_repeat(kv_heads, kv_tp, out, err);
    if (fault == NO_REPEAT && status == HEFT_OK) {
        *out = 1;
    }
    return status;
}

heft_dtype_t __wrap_heft__policy_dtype(const heft__compile_t *c, const heft__name_t *source)
{
    bool is_cast = fault == NO_EXCEPT && c->policy != HEFT_DTYPE_NONE;
    return is_cast ? c->policy : __real_heft__policy_dtype(c, source);
}

/* ---- planting ---- */

/* The text with the k-th `from` replaced; false: there are no more than k. */
static bool replace(const char *text, const char *from, const char *to, size_t k, char *out,
                    size_t bytes)
{
    const char *at = strstr(text, from);
    for (; at != NULL && k > 0; k--) {
        at = strstr(at + 1, from);
    }
    if (at == NULL) {
        return false;
    }
    int n = snprintf(out, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_true(n > 0 && (size_t)n < bytes);
    return true;
}

/* The text with every `from` replaced. */
static void replace_all(const char *text, const char *from, const char *to, char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (const char *hit = strstr(text, from); hit != NULL; hit = strstr(text, from)) {
        int n = snprintf(out + at, bytes - at, "%.*s%s", (int)(hit - text), text, to);
        assert_true(n >= 0 && (size_t)n < bytes - at);
        at += (size_t)n;
        text = hit + strlen(from);
    }
    (void)snprintf(out + at, bytes - at, "%s", text);
}

/* The first case that a recipe does not fulfil, or NULL. */
static const rule_case_t *first_to_see(rb_t *b, const rule_set_t *rule, const char *text)
{
    for (size_t i = 0; i < rule->n_cases; i++) {
        char why[256];
        if (!rules_hold(b, text, &rule->cases[i], why)) {
            return &rule->cases[i];
        }
    }
    return NULL;
}

typedef struct planted {
    const char *fault;
    const char *rule;
    const char *from; /* NULL: a fault in C */
    const char *to;
    int code;
} planted_t;

static const planted_t planted[] = {
    { "tile in place of repeat", "repeat", "(h r:f)", "(r:f h)", 0 },
    { "tile in place of repeat, heads of a bias", "repeat", "(h r:f e)", "(r:f h e)", 0 },
    { "repeat inside the head", "repeat", "(h r:f e)", "(h e r:f)", 0 },
    { "tile in place of repeat, by rank", "kv_heads", "{r * K / tp}", "{r % K}", 0 },
    { "no repeat", "kv_heads", NULL, NULL, NO_REPEAT },
    { "cycle off by one", "cycle", "r * C + s)", "r * C + s + 1)", 0 },
    { "cycle one too long", "cycle", "r * C + s)", "r * (C + 1) + s)", 0 },
    { "slot and repetition swapped", "cycle", "r * C + s)", "s * C + r)", 0 },
    { "interleaved in place of contiguous", "cycle", "s * R + r", "r * C + s", 0 },
    { "contiguous in place of interleaved", "cycle", "r * C + s)", "s * R + r)", 0 },
    { "the global layer first", "nested", "r * C + C - 1", "r * C", 0 },
    { "the scan axis off by one", "slice", "[a, l, c]", "[a, c, l]", 0 },
    { "layer_ in place of layers_", "cycle", "\"d.layers_{", "\"d.layer_{", 0 },
    { "no .value", "leaf_suffix", ".kernel.value", ".kernel", 0 },
    { "gate and up swapped, per shard", "fuse", "(s b 0:2 q)", "(s b 1:2 q)", 0 },
    { "gate and up swapped, concat", "fuse", "(0:2 s c)", "(1:2 s c)", 0 },
    { "gate and up swapped, rows", "fuse_rows", "(s 0:2 c)", "(s 1:2 c)", 0 },
    { "gate and up swapped, experts", "experts", "(0:2 i)", "(1:2 i)", 0 },
    { "gate and up swapped, HF w13", "hf_w13", "(s 0:2 c)", "(s 1:2 c)", 0 },
    { "order of lanes", "fuse", "(s b 0:2 q)", "(s 0:2 b q)", 0 },
    { "lanes turned", "fuse", "(s b 0:2 q)", "(s q 0:2 b)", 0 },
    { "lane in place of per_shard", "fuse", "if(layout == \"lane\" and W % lane == 0, lane, W)",
      "if(W % lane == 0, lane, W)", 0 },
    { "per_shard in place of lane", "fuse", "if(layout == \"lane\" and W % lane == 0, lane, W)",
      "W", 0 },
    { "concat in place of per_shard", "fuse", "layout != \"concat\"", "layout == \"lane\"", 0 },
    { "per_shard in place of concat", "fuse", "(0:2 s c)", "(s 0:2 c)", 0 },
    { "no fallback of lanes", "fuse", " and W % lane == 0", "", 0 },
    { "lanes that do not divide accepted", "lane_refused", "(T / n) % lane == 0", "true", 0 },
    { "padded before the split", "pad", "f as (s:n c), c pad W", "f pad P as (s:n c)", 0 },
    { "padded before the split, fused", "fuse", "f as (s:n c), c pad W as (b q:block)",
      "f pad T as (s:n b q:block)", 0 },
    { "padding on the wrong axis", "synthesis", "x as (s:n c), c pad {P / n} -> \"wo.",
      "d pad 8, x as (s:n c) -> \"wo.", 0 },
    { "padding of the experts' axis", "pad_two_axes", "e pad 2, f as", "d pad 4, f as", 0 },
    { "the parts of the source's sharding", "pad", "W = P / n", "W = P, n2 = 1", 0 },
    { "repeat in place of padding", "pad", "where f as (s:n c), c pad W -> \"w\" [(s c)",
      "-> \"w\" [(f z:{2})", 0 },
    { "a power of two for the padded size", "padded_size", NULL, NULL, POWER_OF_TWO },
    { "w13 not rounded up to lanes", "hf_w13", "round_up(config.F / tp, lanes)", "config.F / tp",
      0 },
    { "w2 padded like w13", "hf_w13", "\"down\" [e, d, f] ->",
      "\"down\" [e, d, f] where f pad {W * tp} ->", 0 },
    { "a stride of two forgotten", "rotary", "(i p:2)", "(p:2 i)", 0 },
    { "a stride of two forgotten, scaled", "llama_query", "(i p:2)", "(p:2 i)", 0 },
    { "a factor forgotten", "llama_query", "sqrt(E)", "1", 0 },
    { "the divisor not rounded", "gemma_embedding", "in bf16", "in f32", 0 },
    { "multiplied in place of divided", "gemma_embedding", "divide(", "scale(", 0 },
    { "the tied head left out", "gemma_embedding", ", \"lm_head\" [v, m] by", " by", 0 },
    { "a cast through bf16", "kept_dtype", NULL, NULL, NO_EXCEPT },
    { "an except inside a token", "kept_dtype", "*.router.*", "*.rout.*", 0 },
    { "key heads before query heads", "qkv", "(g (h e)@0/rows)", "(g (h e)@{2 * kv * Dh}/rows)",
      0 },
    { "groups of heads without an order", "qkv", "[(g:t h:q e:Dh), d]", "[(h:q g:t e:Dh), d]", 0 },
    { "value heads before key heads", "qkv", "@{q * Dh}/rows", "@{(q + kv) * Dh}/rows", 0 },
    { "half heads accepted", "qkv", "H % t == 0 and K * f % t == 0", "H % t == 0", 0 },
    { "query and gate swapped", "gated_query", "0:2 e:E", "1:2 e:E", 0 },
    { "query and gate in halves", "gated_query", "(h:H 0:2 e:E)", "(0:2 h:H e:E)", 0 },
    { "output projection not turned", "output_projection", "[m, (h e)]", "[(h e), m]", 0 },
    { "output heads turned", "output_projection", "(h e)", "(e h)", 0 },
    { "GDN blocks not taken apart", "gdn_qkvz", "(g (b q)@0/group)", "(g (q b)@{0}/group), 1", 0 },
    { "GDN groups forgotten", "gdn_ba", "(g h k e)", "(h g k e)", 0 },
    { "conv1d turned", "conv1d", "[k, l, 1, c]", "[c, l, 1, k]", 0 },
    { "conv1d cut as a whole", "conv1d_ranges", "({r}:tp c)@QK/all, k] where c:{QK / tp}",
      "c@{QK / tp * (r + 1)}/all, k] where c:{QK / tp}", 0 },
    { "MLA parts swapped", "mla", "n:nope@0/{nope + v}", "n:nope@v/{nope + v}", 0 },
    { "MLA rotary pairs left", "mla", "(x p)@{4 + rank}", "(p x)@{4 + rank}", 0 },
    { "the shared expert first", "shared_slot", "[{E}:{E + 1}, i, h]", "[0:{E + 1}, i, h]", 0 },
    { "slots by the other table", "placement", "{table[r * slots + p]}:E", "{table[p]}:E", 0 },
    { "experts in their own order", "placement", "{table[r * slots + p]}:E",
      "{(r * slots + p) % E}:E", 0 },
    { "a re-laid source taken for another", "relay", "[(s:m h:2 c)]", "[(h:2 s:m c)]", 0 },
    { "boxes that cut shards accepted", "relay", "n % boxes == 0", "true", 0 },
};

static void every_planted_fault_is_seen(void **state)
{
    rb_t *b = *state;
    static char text[8192];
    size_t n_missed = 0;
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        const planted_t *p = &planted[i];
        const rule_set_t *rule = rules_find(&rules, p->rule);
        fault = p->code;
        if (p->from != NULL) {
            assert_non_null(strstr(rule->text, p->from));
            replace_all(rule->text, p->from, p->to, text, sizeof text);
        }
        const rule_case_t *seen = first_to_see(b, rule, p->from != NULL ? text : rule->text);
        fault = NO_FAULT;
        print_message("%-42s  %-18s  %s\n", p->fault, p->rule,
                      seen != NULL ? seen->name : "NOT SEEN");
        n_missed += seen == NULL ? 1 : 0;
    }
    print_message("%zu faults planted, %zu not seen\n", sizeof planted / sizeof planted[0],
                  n_missed);
    assert_int_equal(n_missed, 0);
}

/* ---- faults by rote: small changes everywhere ---- */

static const char *const edits[][2] = {
    { "0:2", "1:2" },   { "1:2", "0:2" },  { " + ", " - " },         { " - ", " + " },
    { " * ", " + " },   { " / ", " * " },  { " pad ", " pad 1 + " }, { "@0/", "@1/" },
    { " == ", " != " }, { " < ", " <= " }, { ":2 ", ":1 " },         { " and ", " or " },
    { ", d]", "]" },    { "[e, ", "[" },   { "f32", "bf16" },
};

typedef struct rote {
    size_t n;
    size_t n_missed;
} rote_t;

/* Does the k-th `from` stand in a comment? */
static bool is_comment(const char *text, const char *from, size_t k)
{
    const char *at = strstr(text, from);
    for (; k > 0; k--) {
        at = strstr(at + 1, from);
    }
    while (at > text && at[-1] != '\n') {
        at--;
    }
    return *at == '#';
}

static void plant_everywhere(rb_t *b, const rule_set_t *rule, const char *from, const char *to,
                             rote_t *rote)
{
    static char text[8192];
    for (size_t k = 0; replace(rule->text, from, to, k, text, sizeof text); k++) {
        if (is_comment(rule->text, from, k)) {
            continue;
        }
        const rule_case_t *seen = first_to_see(b, rule, text);
        rote->n++;
        if (seen == NULL) {
            const char *at = rule->text;
            for (size_t i = 0; i < k; i++) {
                at = strstr(at, from) + 1;
            }
            at = strstr(at, from);
            print_message("not seen: %s: \"%s\" to \"%s\" at \"%.40s\"\n", rule->name, from, to,
                          at);
            rote->n_missed++;
        }
    }
}

/* Neighbours in a group or a list of axes change places. */
static void swap_neighbours(rb_t *b, const rule_set_t *rule, rote_t *rote)
{
    static char text[8192];
    const char *end = rule->text + strlen(rule->text);
    for (const char *at = rule->text; at < end; at++) {
        size_t n = strcspn(at, " ,()[]\"\n");
        bool starts = at > rule->text && strchr("([ ", at[-1]) != NULL;
        size_t gap = strspn(at + n, at[n] == ',' ? ", " : " ");
        const char *next = at + n + gap;
        size_t m = strcspn(next, " ,()[]\"\n");
        const char *line = at;
        while (line > rule->text && line[-1] != '\n') {
            line--;
        }
        bool in_axes = n > 0 && m > 0 && gap > 0 && starts && line[0] != 'l' && line[0] != '#' &&
                       line[0] != 'r' && strchr(")] ,", next[m]) != NULL &&
                       strcspn(at, "]\n") < strcspn(at, "[\"");
        if (!in_axes) {
            continue;
        }
        (void)snprintf(text, sizeof text, "%.*s%.*s%.*s%.*s%s", (int)(at - rule->text), rule->text,
                       (int)m, next, (int)gap, at + n, (int)n, at, next + m);
        rote->n++;
        if (first_to_see(b, rule, text) == NULL) {
            print_message("not seen: %s: \"%.*s\" turned\n", rule->name, (int)(n + gap + m), at);
            rote->n_missed++;
        }
        at = next - 1;
    }
}

static void faults_by_rote_are_seen(void **state)
{
    rb_t *b = *state;
    rote_t rote = { 0 };
    for (size_t i = 0; i < rules.n; i++) {
        for (size_t k = 0; k < sizeof edits / sizeof edits[0]; k++) {
            plant_everywhere(b, &rules.items[i], edits[k][0], edits[k][1], &rote);
        }
        swap_neighbours(b, &rules.items[i], &rote);
    }
    print_message("%zu changes by rote, %zu not seen\n", rote.n, rote.n_missed);
    assert_true(rote.n > 600);
    assert_int_equal(rote.n_missed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(every_planted_fault_is_seen),
        T(faults_by_rote_are_seen),
    };
    rules_load(&rules);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rules_free(&rules);
    return failed;
}

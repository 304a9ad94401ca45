/* SPDX-License-Identifier: Apache-2.0 */
/* Index notation against vectors written out by hand: slices, padding, repeats, fusion, attention.
 */
#include <jansson.h>
#include <stdlib.h>

#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32
#define BF16 HEFT_DTYPE_BF16

/* One source "x" in, one parameter "y" out. */
static void check(rb_t *b, const char *shape, const char *values, const char *rule,
                  const char *out_shape, const char *out)
{
    rb_clear(b);
    rb_source(b, "x", F32, shape, values);
    rb_run(b, rule, 0);
    rb_expect(b, "y", F32, out_shape, out);
}

/* "gate" and "up" in, "y" out. */
static void check_pair(rb_t *b, const char *n, const char *gate, const char *up, const char *rules,
                       const char *n_out, const char *out)
{
    rb_clear(b);
    rb_source(b, "gate", F32, n, gate);
    rb_source(b, "up", F32, n, up);
    rb_run(b, rules, 0);
    rb_expect(b, "y", F32, n_out, out);
}

/* ---- scanned trees ---- */

static void scanned_axis_is_sliced_wherever_it_stands(void **state)
{
    rb_t *b = *state;
    rb_source(b, "k", F32, "2,3,2", "0-11");
    rb_run(b, "\"k\" [a, l, c] -> \"k.{l}\" [a, c]", 0);
    rb_expect(b, "k.0", F32, "2,2", "0 1 6 7");
    rb_expect(b, "k.1", F32, "2,2", "2 3 8 9");
    rb_expect(b, "k.2", F32, "2,2", "4 5 10 11");

    rb_clear(b);
    rb_source(b, "k", F32, "2,3", "0-5");
    rb_run(b, "\"k\" [..., l] -> \"k.{l}\" [...]", 0);
    rb_expect(b, "k.0", F32, "2", "0 3");
    rb_expect(b, "k.1", F32, "2", "1 4");
    rb_expect(b, "k.2", F32, "2", "2 5");

    rb_clear(b);
    rb_source(b, "k", F32, "3,2,2", "0-11");
    rb_run(b, "\"k\" [l, ...] -> \"k.{l}\" [...]", 0);
    rb_expect(b, "k.1", F32, "2,2", "4 5 6 7");
    rb_expect(b, "k.2", F32, "2,2", "8 9 10 11");
    assert_int_equal(rb_n_params(b), 3);
}

static void hybrid_cycles_interleave_their_slots(void **state)
{
    rb_t *b = *state;
    char name[32];
    char values[32];
    for (int s = 0; s < 4; s++) {
        (void)snprintf(name, sizeof name, "layers.layer_%d.w", s);
        (void)snprintf(values, sizeof values, "%d-%d", 1000 * (s + 1), 1000 * (s + 1) + 3);
        rb_source(b, name, F32, "2,2", values);
    }
    rb_run(b, "let C = 4\n\"layers.layer_{s}.w\" [x, r] -> \"layers_{r*C+s}.w\" [x]", 0);
    assert_int_equal(rb_n_params(b), 8);
    rb_expect(b, "layers_0.w", F32, "2", "1000 1002");
    rb_expect(b, "layers_4.w", F32, "2", "1001 1003");
    rb_expect(b, "layers_1.w", F32, "2", "2000 2002");
    rb_expect(b, "layers_7.w", F32, "2", "4001 4003");
}

static void contiguous_cycles_put_slots_after_each_other(void **state)
{
    rb_t *b = *state;
    rb_source(b, "layers.layers_0.w", F32, "3", "0-2");
    rb_source(b, "layers.layers_1.w", F32, "3", "3-5");
    rb_run(b, "let R = 3\n\"layers.layers_{s}.w\" [r] -> \"l.{s*R+r}\" []", 0);
    for (int i = 0; i < 6; i++) {
        char name[16];
        char value[16];
        (void)snprintf(name, sizeof name, "l.%d", i);
        (void)snprintf(value, sizeof value, "%d", i);
        rb_expect(b, name, F32, "", value);
    }
}

static void nested_cycles_put_the_global_layer_last(void **state)
{
    rb_t *b = *state;
    rb_source(b, "local", F32, "1,2,3", "0-5");
    rb_source(b, "global", F32, "1,2", "100 101");
    rb_run(b,
           "let C = 4\n"
           "\"local\" [d, r, s:{C-1}] -> \"l.{r*C+s}\" [d]\n"
           "\"global\" [d, r] -> \"l.{r*C+C-1}\" [d]",
           0);
    static const char *const want[] = { "0", "1", "2", "100", "3", "4", "5", "101" };
    for (int i = 0; i < 8; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "l.%d", i);
        rb_expect(b, name, F32, "1", want[i]);
    }
}

static void a_shared_rule_writes_one_leaf_to_every_layer(void **state)
{
    rb_t *b = *state;
    rb_source(b, "layers.norm", F32, "2", "7 8");
    rb_run(b, "shared \"layers.norm\" [d] where l:3 -> \"layers_{l}.norm\" [d]", 0);
    assert_int_equal(rb_n_params(b), 3);
    rb_expect(b, "layers_2.norm", F32, "2", "7 8");
    rb_refuses(b, "\"layers.norm\" [d] where l:3 -> \"layers_{l}.norm\" [d]", 0, HEFT_ERR_SYNTAX,
               "shared");
    rb_refuses(b, "shared \"layers.norm\" [d] -> \"layers.norm\" [d]", 0, HEFT_ERR_SYNTAX,
               "shared");
}

/* ---- padding and repeating ---- */

static void padding_fills_each_shard_by_itself(void **state)
{
    rb_t *b = *state;
    check(b, "4", "1-4", "\"x\" [f] where f as (s:2 c), c pad 4 -> \"y\" [(s c)]", "8",
          "1 2 0 0 3 4 0 0");
    check(b, "4", "1-4", "\"x\" [f] where f pad 8 -> \"y\" [f]", "8", "1 2 3 4 0 0 0 0");
    check(b, "6", "1-6", "\"x\" [f] where f as (s:3 c), c pad 3 -> \"y\" [(s c)]", "9",
          "1 2 0 3 4 0 5 6 0");
    check(b, "2,2", "1-4", "\"x\" [f, d] where f as (s:2 c), c pad 2 -> \"y\" [(s c), d]", "4,2",
          "1 2 0 0 3 4 0 0");
    check(b, "1,2,2", "1-4", "\"x\" [e, d, f] where e pad 2, f pad 4 -> \"y\" [e, d, f]", "2,2,4",
          "1 2 0 0 3 4 0 0 0 0 0 0 0 0 0 0");
    check(b, "1,2,2", "1-4",
          "\"x\" [e, d, f] where e pad 2, f as (s:2 c), c pad 2 -> \"y\" [e, d, (s c)]", "2,2,4",
          "1 0 2 0 3 0 4 0 0 0 0 0 0 0 0 0");
}

static void repeats_are_by_element_or_by_tile_as_written(void **state)
{
    rb_t *b = *state;
    check(b, "2,2", "0 0 1 1", "\"x\" [k, d] -> \"y\" [(k f:2), d]", "4,2", "0 0 0 0 1 1 1 1");
    check(b, "2,2", "0 0 1 1", "\"x\" [k, d] -> \"y\" [(f:2 k), d]", "4,2", "0 0 1 1 0 0 1 1");
    check(b, "4", "1-4", "\"x\" [(k:2 e)] -> \"y\" [(k f:2 e)]", "8", "1 2 1 2 3 4 3 4");
}

static void padding_that_cannot_be_is_refused(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "6", NULL);
    rb_refuses(b, "\"x\" [f] where f pad 4 -> \"y\" [f]", 0, HEFT_ERR_SHAPE, "cannot shrink");
    rb_refuses(b, "\"x\" [f] where f as (s:4 c), c pad 4 -> \"y\" [(s c)]", 0, HEFT_ERR_SHAPE, "6");
    rb_refuses(b, "\"x\" [f] where f pad 8 as (b q:3) -> \"y\" [b, q]", 0, HEFT_ERR_SHAPE,
               "extent 8");
    rb_refuses(b, "\"x\" [f] where f pad 8 -> \"y\" [f:9]", 0, HEFT_ERR_SHAPE, "9");
}

static void widths_round_up_to_lanes(void **state)
{
    rb_t *b = *state;
    static const char *const cases[][2] = { { "0", "0" },     { "1", "128" },   { "127", "128" },
                                            { "128", "128" }, { "129", "256" }, { "256", "256" } };
    for (size_t i = 0; i < 6; i++) {
        rb_clear(b);
        rb_source(b, "x", F32, cases[i][0], NULL);
        rb_set(b, "n", cases[i][0]);
        rb_run(b, "let n\n\"x\" [f] where f pad {round_up(n, 128)} -> \"y\" [f]", 0);
        rb_expect(b, "y", F32, cases[i][1], NULL);
    }
}

static void padding_after_the_split_is_another_layout_than_before(void **state)
{
    rb_t *b = *state;
    check_pair(b, "2", "1 2", "3 4",
               "\"gate\" [f] where f as (s:2 c), c pad 2 as (b q:2) -> \"y\" [(s b 0:2 q)]\n"
               "\"up\" [f] where f as (s:2 c), c pad 2 as (b q:2) -> \"y\" [(s b 1:2 q)]",
               "8", "1 0 3 0 2 0 4 0");
    check_pair(b, "2", "1 2", "3 4",
               "\"gate\" [f] where f pad 4 as (s:2 b q:2) -> \"y\" [(s b 0:2 q)]\n"
               "\"up\" [f] where f pad 4 as (s:2 b q:2) -> \"y\" [(s b 1:2 q)]",
               "8", "1 2 3 4 0 0 0 0");
}

/* ---- gate and up ---- */

/* The three layouts of a fused pair, as rules for one half; %s is its name, %d its half. */
static void fuse(rb_t *b, const char *layout, int shards, int fused, int lane, const char *n,
                 const char *gate, const char *up, const char *out)
{
    char rules[512];
    char size[16];
    char half[2][256];
    static const char *const names[] = { "gate", "up" };
    for (int h = 0; h < 2; h++) {
        if (strcmp(layout, "concat") == 0) {
            (void)snprintf(half[h], sizeof half[h],
                           "\"%s\" [f] where f as (s:%d c), c pad %d -> \"y\" [(%d:2 s c)]",
                           names[h], shards, fused / shards, h);
        } else if (strcmp(layout, "per_shard") == 0) {
            (void)snprintf(half[h], sizeof half[h],
                           "\"%s\" [f] where f as (s:%d c), c pad %d -> \"y\" [(s %d:2 c)]",
                           names[h], shards, fused / shards, h);
        } else {
            (void)snprintf(half[h], sizeof half[h],
                           "\"%s\" [f] where f as (s:%d c), c pad %d as (b q:%d) -> \"y\" [(s b "
                           "%d:2 q)]",
                           names[h], shards, fused / shards, lane, h);
        }
    }
    (void)snprintf(rules, sizeof rules, "%s\n%s", half[0], half[1]);
    (void)snprintf(size, sizeof size, "%d", 2 * fused);
    check_pair(b, n, gate, up, rules, size, out);
}

static void fused_pairs_follow_their_layout(void **state)
{
    rb_t *b = *state;
    fuse(b, "per_shard", 2, 4, 0, "2", "1 2", "3 4", "1 0 3 0 2 0 4 0");
    fuse(b, "per_shard", 1, 4, 0, "2", "1 2", "3 4", "1 2 0 0 3 4 0 0");
    fuse(b, "per_shard", 2, 4, 0, "4", "1-4", "5-8", "1,2,5,6,3,4,7,8");
    fuse(b, "per_shard", 2, 6, 0, "4", "1-4", "5-8", "1,2,0,5,6,0,3,4,0,7,8,0");
    fuse(b, "per_shard", 4, 8, 0, "8", "1-8", "11-18", "1,2,11,12,3,4,13,14,5,6,15,16,7,8,17,18");
    fuse(b, "concat", 1, 3, 0, "2", "1 2", "3 4", "1,2,0,3,4,0");
    fuse(b, "concat", 2, 8, 0, "4", "1-4", "5-8", "1,2,0,0,3,4,0,0,5,6,0,0,7,8,0,0");
    fuse(b, "concat", 1, 8, 0, "4", "1-4", "5-8", "1,2,3,4,0,0,0,0,5,6,7,8,0,0,0,0");
    fuse(b, "lane", 1, 4, 2, "3", "1-3", "5-7", "1,2,5,6,3,0,7,0");
    fuse(b, "lane", 1, 8, 4, "6", "1-6", "11-16", "1,2,3,4,11,12,13,14,5,6,0,0,15,16,0,0");
    fuse(b, "per_shard", 1, 8, 0, "6", "1-6", "11-16", "1,2,3,4,5,6,0,0,11,12,13,14,15,16,0,0");
    fuse(b, "lane", 2, 16, 4, "16", "0-15", "100-115",
         "0-3,100-103,4-7,104-107,8-11,108-111,12-15,112-115");
    fuse(b, "per_shard", 2, 16, 0, "16", "0-15", "100-115", "0-7,100-107,8-15,108-115");
    fuse(b, "per_shard", 2, 100, 0, "100", "0-99", "100-199", "0-49,100-149,50-99,150-199");
    fuse(b, "lane", 1, 256, 128, "256", "0-255", "1000-1255", "0-127,1000-1127,128-255,1128-1255");
    fuse(b, "per_shard", 1, 256, 0, "256", "0-255", "1000-1255", "0-255,1000-1255");
    fuse(b, "lane", 2, 256, 128, "256", "0-255", "1000-1255", "0-127,1000-1127,128-255,1128-1255");
}

static void a_pair_fuses_on_any_axis_and_layer_by_layer(void **state)
{
    rb_t *b = *state;
    rb_source(b, "gate", F32, "2,1", "1 2");
    rb_source(b, "up", F32, "2,1", "3 4");
    rb_run(b,
           "\"gate\" [(s:2 c), d] -> \"y\" [(s 0:2 c), d]\n"
           "\"up\" [(s:2 c), ...] -> \"z\" [(s 1:2 c), ...]\n"
           "\"gate\" [(s:2 c), ...] -> \"z\" [(s 0:2 c), ...]\n"
           "\"up\" [(s:2 c), d] -> \"y\" [(s 1:2 c), d]",
           0);
    rb_expect(b, "y", F32, "4,1", "1 3 2 4");
    rb_expect(b, "z", F32, "4,1", "1 3 2 4");

    rb_clear(b);
    rb_source(b, "wi_0", F32, "3,2", "1-6");
    rb_source(b, "wi_1", F32, "3,2", "11-16");
    rb_run(b,
           "\"wi_0\" [f, l] -> \"wi.{l}\" [(0:2 f)]\n"
           "\"wi_1\" [f, l] -> \"wi.{l}\" [(1:2 f)]",
           0);
    rb_expect(b, "wi.0", F32, "6", "1 3 5 11 13 15");
    rb_expect(b, "wi.1", F32, "6", "2 4 6 12 14 16");
}

static void a_fused_source_is_laid_out_anew(void **state)
{
    rb_t *b = *state;
    check(b, "8", "1-8", "\"x\" [(h:2 s:2 c)] -> \"y\" [(s h c)]", "8", "1,2,5,6,3,4,7,8");
}

static void lanes_that_do_not_divide_the_shard_are_refused(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "200", NULL);
    rb_refuses(b, "\"x\" [f] where f as (s:2 c), c as (b q:128) -> \"y\" [(s b 0:2 q)]", 0,
               HEFT_ERR_SHAPE, "extent 100 does not fit");
}

/* ---- attention ---- */

static void fused_qkv_by_groups(void **state)
{
    static const struct {
        const char *groups;
        const char *out;
    } cases[] = { { "1", "0-7,100-103,200-203" },
                  { "2", "0-3,100,101,200,201,4-7,102,103,202,203" } };
    rb_t *b = *state;
    for (size_t i = 0; i < 2; i++) {
        rb_clear(b);
        rb_source(b, "q", F32, "8,1", "0-7");
        rb_source(b, "k", F32, "4,1", "100-103");
        rb_source(b, "v", F32, "4,1", "200-203");
        rb_set(b, "t", cases[i].groups);
        rb_run(b,
               "let t, H = 4, K = 2, E = 2\n"
               "let Q = H/t*E, KV = K/t*E, N = Q + 2*KV\n"
               "\"q\" [(g:t h e:E), d] -> \"y\" [(g (h e)@0/N), d]\n"
               "\"k\" [(g:t h e:E), d] -> \"y\" [(g (h e)@Q/N), d]\n"
               "\"v\" [(g:t h e:E), d] -> \"y\" [(g (h e)@{Q+KV}/N), d]",
               0);
        rb_expect(b, "y", F32, "16,1", cases[i].out);
    }
}

static void kv_heads_repeat_by_rank(void **state)
{
    rb_t *b = *state;
    static const int heads[2][8] = { { 0, 0, 1, 1 }, { 0, 0, 0, 0, 1, 1, 1, 1 } };
    for (int c = 0; c < 2; c++) {
        for (uint32_t r = 0; r < (c == 0 ? 4u : 8u); r++) {
            char value[8];
            rb_clear(b);
            rb_source(b, "k", F32, "2", "0 1");
            rb_set(b, "tp", c == 0 ? "4" : "8");
            rb_run(b,
                   "let tp, K = 2\nranks tp as r\n"
                   "\"k\" [h:{max(K/tp, 1)}@{r*K/tp}/K] -> \"k\" [h]",
                   r);
            (void)snprintf(value, sizeof value, "%d", heads[c][r]);
            rb_expect(b, "k", F32, "1", value);
        }
    }
}

static void output_projection_is_turned(void **state)
{
    rb_t *b = *state;
    rb_source(b, "o", F32, "2,1,2,2", "0-7");
    rb_run(b, "\"o\" [h, l, e, m] -> \"o.{l}\" [m, (h e)]", 0);
    rb_expect(b, "o.0", F32, "2,4", "0 2 4 6 1 3 5 7");
}

static void other_orders(void **state)
{
    rb_t *b = *state;
    check(b, "8", "0-7", "\"x\" [(i p:2)] -> \"y\" [(p i)]", "8", "0 2 4 6 1 3 5 7");
    check(b, "2,1,1,3", "0-5", "\"x\" [k, l, 1, c] -> \"y\" [c, 1, (l k)]", "3,1,2", "0 3 1 4 2 5");
    /* gated delta net: Hk blocks of q, k, v, z to groups; Hk = 2, Hv = 4, widths 1 */
    rb_clear(b);
    rb_source(b, "x", F32, "12", "0-11");
    rb_run(b,
           "\"x\" [(g q:1@0/6)] -> \"y\" [(q g)@0/12]\n"
           "\"x\" [(g k:1@1/6)] -> \"y\" [(k g)@2/12]\n"
           "\"x\" [(g v:2@2/6)] -> \"y\" [(g v)@4/12]\n"
           "\"x\" [(g z:2@4/6)] -> \"y\" [(g z)@8/12]",
           0);
    rb_expect(b, "y", F32, "12", "0 6 1 7 2 3 8 9 4 5 10 11");
    check(b, "8", "0-7", "\"x\" [(g h:2 e:2)] -> \"y\" [(h g e)]", "8", "0 1 4 5 2 3 6 7");
}

/* ---- kernels ---- */

static void maps_compute_in_their_dtype(void **state)
{
    rb_t *b = *state;
    rb_source(b, "q", F32, "4", "1-4");
    rb_run(b, "let E = 4\n\"q\" [(i p:2)] -> \"y\" [(p i)] by scale(sqrt(E)) in f32", 0);
    rb_expect(b, "y", F32, "4", "2 6 4 8");

    rb_clear(b);
    rb_source(b, "embed", F32, "2,2", "2 4 6 8");
    rb_run(b,
           "let d = 4\n"
           "\"embed\" [v, m] -> \"embed\" [v, m], \"lm_head\" [v, m] by divide(sqrt(d)) in f32",
           0);
    rb_expect(b, "embed", F32, "2,2", "1-4");
    rb_expect(b, "lm_head", F32, "2,2", "1-4");

    /* bf16 3F82 / bf16(sqrt(5376)): the divisor is rounded first, and gives 3C62, not 3C63 */
    rb_clear(b);
    rb_source(b, "x", BF16, "1", "1.015625");
    rb_run(b, "\"x\" [v] -> \"y\" [v] by divide(sqrt(5376)) in bf16", 0);
    rb_expect(b, "y", BF16, "1", "0.0137939453125");
    rb_run(b, "\"x\" [v] -> \"y\" [v] by divide(sqrt(5376)) in f32", 0);
    rb_expect(b, "y", BF16, "1", "0.01385498046875");
}

static void products_broadcast_over_missing_axes(void **state)
{
    rb_t *b = *state;
    rb_source(b, "l.w", F32, "2,3", "1-6");
    rb_source(b, "l.scale", F32, "2", "10 100");
    rb_run(b, "\"{p*}.w\" [o, i], \"{p*}.scale\" [o] -> \"{p*}.w\" [i, o] by mul in f32", 0);
    rb_expect(b, "l.w", F32, "3,2", "10 400 20 500 30 600");
    /* blocks of two rows share a scale; a refined axis of one source alone */
    rb_clear(b);
    rb_source(b, "l.w", F32, "4,1", "1-4");
    rb_source(b, "l.scale", F32, "2", "10 100");
    rb_run(b,
           "\"{p*}.w\" [f, i], \"{p*}.scale\" [g] where f as (g2:2 e) -> \"{p*}.w\" [g2, e, i, g] "
           "by mul in f32",
           0);
    rb_expect(b, "l.w", F32, "2,2,1,2", "10 100 20 200 30 300 40 400");
    rb_run(b, "\"{p*}.w\" [(g e), i], \"{p*}.scale\" [g] -> \"{p*}.w\" [(g e), i] by mul in f32",
           0);
    rb_expect(b, "l.w", F32, "4,1", "10 20 300 400");
    rb_source(b, "n.w", HEFT_DTYPE_I32, "1", NULL);
    rb_refuses(b, "\"n.w\" [o] -> \"n.w\" [o] by scale(2) in f32", 0, HEFT_ERR_SHAPE,
               "\"n.w\" is I32: kernels work on floats");
    rb_refuses(b, "\"{p*}.w\" [o, i], \"{p*}.scales\" [o] -> \"{p*}.w\" [i, o] by mul in f32", 0,
               HEFT_ERR_NAME, "\"l.scales\" is missing");
}

static void padding_behind_a_map_is_zero(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "2", "1 2");
    rb_run(b, "\"x\" [f] where f pad 4 -> \"y\" [f] by add(5) in f32", 0);
    rb_expect(b, "y", F32, "4", "6 7 0 0");
}

/* ---- a whole model: two slots, two layers each, one expert, fused pairs ---- */

static uint32_t crc32c(uint32_t crc, const unsigned char *bytes, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) {
            crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
        }
    }
    return ~crc;
}

static void declare_slot(rb_t *b, int slot)
{
    static const struct {
        const char *name;
        const char *shape;
        int first;
        int n;
    } leaves[] = { { "ln.scale", "2,2", 0, 4 },
                   { "moe_block.wi_0", "1,2,2,4", 10, 16 },
                   { "moe_block.wi_1", "1,2,2,4", 50, 16 },
                   { "moe_block.wo", "1,2,4,2", 70, 16 } };
    for (size_t i = 0; i < 4; i++) {
        char name[64];
        char values[32];
        int first = 100 * (slot + 1) + leaves[i].first;
        (void)snprintf(name, sizeof name, "decoder.layers.layer_%d.%s", slot, leaves[i].name);
        (void)snprintf(values, sizeof values, "%d-%d", first, first + leaves[i].n - 1);
        rb_source(b, name, F32, leaves[i].shape, values);
    }
}

/* All parameters' bytes, in bytewise order of their names, as float32; and what a plain sum of
 * values sees of them. */
static uint32_t digest(const rb_t *b, int64_t *n_elems_out, double *sum_out)
{
    static const char *const leaves[] = { "ln.scale", "moe_block.wi", "moe_block.wo" };
    uint32_t crc = 0;
    *n_elems_out = 0;
    *sum_out = 0;
    for (int layer = 0; layer < 4; layer++) {
        for (size_t i = 0; i < 3; i++) {
            char name[64];
            int64_t n = 0;
            (void)snprintf(name, sizeof name, "decoder.layers_%d.%s", layer, leaves[i]);
            const double *values = rb_values(b, name, &n);
            for (int64_t k = 0; k < n; k++) {
                float value = (float)values[k];
                unsigned char bytes[4];
                memcpy(bytes, &value, sizeof bytes);
                crc = crc32c(crc, bytes, sizeof bytes);
                *sum_out += values[k];
            }
            *n_elems_out += n;
        }
    }
    return crc;
}

/* The first values of a parameter. */
static void expect_values(const rb_t *b, const char *name, const json_t *want)
{
    int64_t n = 0;
    const double *values = rb_values(b, name, &n);
    assert_true((int64_t)json_array_size(want) <= n);
    for (size_t k = 0; k < json_array_size(want); k++) {
        if (values[k] != (double)json_integer_value(json_array_get(want, k))) {
            fail_msg("%s: element %zu is %g", name, k, values[k]);
        }
    }
}

/* The case is a file in tests/golden, which the Python tests run as well. */
static void a_scanned_model_has_its_digest_in_every_layout(void **state)
{
    rb_t *b = *state;
    json_error_t error;
    json_t *golden = json_load_file("golden/scanned_model.json", JSON_REJECT_DUPLICATES, &error);
    assert_non_null(golden);
    char text[2048] = "";
    size_t i;
    json_t *line;
    json_t *row;
    json_array_foreach(json_object_get(golden, "recipe"), i, line)
    {
        size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "%s\n", json_string_value(line));
    }
    const json_t *rows = json_object_get(golden, "rows");
    assert_int_equal(json_array_size(rows), 6);
    json_array_foreach(rows, i, row)
    {
        char value[16];
        const char *name;
        json_t *want;
        (void)snprintf(value, sizeof value, "%d",
                       (int)json_integer_value(json_object_get(row, "T")));
        rb_clear(b);
        declare_slot(b, 0);
        declare_slot(b, 1);
        rb_set(b, "layout", json_string_value(json_object_get(row, "layout")));
        rb_set(b, "T", value);
        rb_run(b, text, 0);
        assert_int_equal(rb_n_params(b), 12);
        int64_t n_elems = 0;
        double sum = 0;
        const char *crc = json_string_value(json_object_get(row, "crc32c"));
        assert_int_equal(digest(b, &n_elems, &sum), strtoul(crc, NULL, 16));
        assert_int_equal(n_elems, json_integer_value(json_object_get(row, "n_elems")));
        /* the same in every layout: no digest */
        assert_true(sum == (double)json_integer_value(json_object_get(golden, "sum")));
        json_object_foreach(json_object_get(row, "values"), name, want)
        {
            expect_values(b, name, want);
        }
    }
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(scanned_axis_is_sliced_wherever_it_stands),
        T(hybrid_cycles_interleave_their_slots),
        T(contiguous_cycles_put_slots_after_each_other),
        T(nested_cycles_put_the_global_layer_last),
        T(a_shared_rule_writes_one_leaf_to_every_layer),
        T(padding_fills_each_shard_by_itself),
        T(repeats_are_by_element_or_by_tile_as_written),
        T(padding_that_cannot_be_is_refused),
        T(widths_round_up_to_lanes),
        T(padding_after_the_split_is_another_layout_than_before),
        T(fused_pairs_follow_their_layout),
        T(a_pair_fuses_on_any_axis_and_layer_by_layer),
        T(a_fused_source_is_laid_out_anew),
        T(lanes_that_do_not_divide_the_shard_are_refused),
        T(fused_qkv_by_groups),
        T(kv_heads_repeat_by_rank),
        T(output_projection_is_turned),
        T(other_orders),
        T(maps_compute_in_their_dtype),
        T(products_broadcast_over_missing_axes),
        T(padding_behind_a_map_is_zero),
        T(a_scanned_model_has_its_digest_in_every_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The language: what parses, what expressions are worth, and where errors point. */
#include "recipe_bench.h"

#define F32 HEFT_DTYPE_F32
#define RULE "\n\"x\" [] -> \"y.{v}\" []"

/* `let v = EXPR` shows as the name of a parameter. */
static void worth(rb_t *b, const char *expr, const char *value)
{
    char text[512];
    char name[128];
    (void)snprintf(text, sizeof text, "let n = 7, m = -7, t = true, w = \"abc\"\nlet v = %s" RULE,
                   expr);
    (void)snprintf(name, sizeof name, "y.%s", value);
    rb_run(b, text, 0);
    if (!rb_has_param(b, name)) {
        fail_msg("%s is not %s", expr, value);
    }
}

static void expressions_have_their_worth(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_config(b, "{\"a\": 3, \"b\": {\"c\": 4, \"none\": null}, \"no\": false, \"s\": \"word\"}");
    worth(b, "1 + 2 * 3 - 4 / 2", "5");
    worth(b, "(1 + 2) * 3 % 4", "1");
    worth(b, "20 / 3 / 2", "3");
    worth(b, "2 - -3", "5");
    worth(b, "-m + 0", "7");
    worth(b, "m % 4", "1"); /* a remainder is never negative */
    worth(b, "m / 4 + 2", "0");
    worth(b, "min(3, max(1, 2)) + ceil_div(n, 2) + round_up(n, 4)", "14");
    worth(b, "config.a * config.b.c", "12");
    worth(b, "config.b.none or 5", "5");
    worth(b, "config.zzz or n + 1", "8");
    worth(b, "config.zzz or config.b.zzz or 9", "9");
    worth(b, "config.s", "word");
    worth(b, "w", "abc");
    worth(b, "config.a or 5", "3");
    worth(b, "if(t, n, 1 / 0) + if(n > 8, 1 / 0, 2)", "9");
    worth(b, "if(false, 1, if(true, w, 2))", "abc");
}

/* Truth shows through `when`: the rule is there, or it is not. */
static void truth(rb_t *b, const char *expr, bool value)
{
    char text[512];
    (void)snprintf(text, sizeof text,
                   "let n = 7, w = \"abc\"\n\"x\" [] -> \"y\" []\n\"x\" [] -> \"z\" [] when %s",
                   expr);
    rb_run(b, text, 0);
    if (rb_has_param(b, "z") != value) {
        fail_msg("%s is %s", expr, value ? "false" : "true");
    }
}

static void conditions_have_their_truth(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    rb_source(b, "l.0.y", F32, "", NULL);
    rb_source(b, "l.1.y", F32, "", NULL);
    rb_config(b, "{\"yes\": true, \"no\": false, \"half\": 0.5}");
    truth(b, "n == 7 and not n < 7", true);
    truth(b, "n >= 8 or n <= 6 or n != 7", false);
    truth(b, "not n == 8", true);
    truth(b, "w == \"abc\" and w != \"abcd\"", true);
    truth(b, "true and false or true", true);
    truth(b, "config.no or true", false); /* the default of a key that is there */
    truth(b, "(config.no) or true", true);
    truth(b, "config.gone or true", true);
    truth(b, "false and 1 / 0 == 1", false); /* the right side is not looked at */
    truth(b, "has(\"x\") and not has(\"q\")", true);
    truth(b, "has(\"l.*.y\") and count(\"l.*.y\") == 2", true);
    truth(b, "1.5 < 2 and 0.5 + 0.5 == 1", true);
    truth(b, "sqrt(16) == 4 and sqrt(2) * sqrt(2) > 1.99", true);
    truth(b, "bf16(sqrt(5376)) == 73.5 and bf16(1.00390625) == 1 and bf16(-3) == -3", true);
    truth(b, "bf16(1.01171875) == 1.015625 and bf16(0) == 0", true);
    truth(b, "1 / 2.0 == 0.5 and 3 - 0.5 == 2.5 and min(1, 0.5) == 0.5 and max(1, 1.5) == 1.5",
          true);
    truth(b, "-0.5 < 0 and config.half == 0.5 and config.yes == true and config.yes != false",
          true);
}

static void expressions_that_have_no_worth_are_refused(void **state)
{
    static const struct {
        const char *expr;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "1 / 0", HEFT_ERR_ARGUMENT, "test:1:11: division by zero of 1 and 0" },
        { "n % 0", HEFT_ERR_SYNTAX, "`n` is no let" },
        { "9223372036854775807 + 1", HEFT_ERR_OVERFLOW, "9223372036854775807" },
        { "-9223372036854775807 - 2", HEFT_ERR_OVERFLOW, "overflow" },
        { "(-9223372036854775807 - 1) / -1", HEFT_ERR_OVERFLOW, "overflow" },
        { "9223372036854775808", HEFT_ERR_SYNTAX, "beyond 64 bits" },
        { "1 + true", HEFT_ERR_ARGUMENT, "a number wanted, got the truth value true" },
        { "true == 1", HEFT_ERR_ARGUMENT, "compared" },
        { "not 1", HEFT_ERR_ARGUMENT, "true or false wanted, got the integer 1" },
        { "1 or 2", HEFT_ERR_ARGUMENT, "true or false wanted" },
        { "config.a", HEFT_ERR_ARGUMENT, "no configuration was given" },
        { "dest.tp", HEFT_ERR_ARGUMENT, "dest.tp is absent" },
        { "1 < 2 < 3", HEFT_ERR_SYNTAX, "one comparison at a time" },
        { "foo(1)", HEFT_ERR_SYNTAX, "no function \"foo\"" },
        { "if(1, 2, 3)", HEFT_ERR_ARGUMENT, "true or false wanted, got the integer 1" },
        { "if(true, 2)", HEFT_ERR_SYNTAX, "`,` and" },
        { "min(1)", HEFT_ERR_SYNTAX, "second argument" },
        { "has(v)", HEFT_ERR_SYNTAX, "in quotes" },
        { "12abc", HEFT_ERR_SYNTAX, "malformed number \"12abc\"" },
        { "1.5e39", HEFT_ERR_SYNTAX, "malformed number \"1.5e39\"" },
        { "1 + )", HEFT_ERR_SYNTAX, "a value expected, found `)`" },
        { "sqrt(-1)", HEFT_ERR_ARGUMENT, "square root of -1" },
        { "bf16(9000000000000000000.0 * 9000000000000000000.0 * 9.0) > 0", HEFT_ERR_OVERFLOW,
          "7.29e+38 is beyond bf16" },
        { "1.5 % 2", HEFT_ERR_OVERFLOW, "no such operation" },
        { "1.5 / 0", HEFT_ERR_ARGUMENT, "division by zero" },
        { "-true", HEFT_ERR_ARGUMENT, "a number wanted" },
        { "sqrt(true)", HEFT_ERR_ARGUMENT, "a number wanted" },
        { "1 < true", HEFT_ERR_ARGUMENT, "a number wanted" },
        { "config", HEFT_ERR_SYNTAX, "`.` and a key expected" },
        { "config.1", HEFT_ERR_SYNTAX, "a key expected" },
        { "config.a . b", HEFT_ERR_SYNTAX, "blanks inside" },
        { "\"open", HEFT_ERR_SYNTAX, "closing quote" },
        { "1 $ 2", HEFT_ERR_SYNTAX, "stray character '$'" },
    };
    rb_t *b = *state;
    rb_source(b, "x", F32, "", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "let v = %s" RULE, cases[i].expr);
        rb_refuses(b, text, 0, cases[i].status, cases[i].part);
    }
}

static void deep_nesting_is_refused(void **state)
{
    rb_t *b = *state;
    char text[4096] = "let v = ";
    for (int i = 0; i < 200; i++) {
        (void)strcat(text, "(");
    }
    rb_refuses(b, text, 0, HEFT_ERR_SYNTAX, "nested deeper than");
    (void)strcpy(text, "let v = 0");
    for (int i = 0; i < 600; i++) {
        (void)strcat(text, " + 1");
    }
    rb_refuses(b, text, 0, HEFT_ERR_SYNTAX, "shorter expression");
    (void)strcpy(text, "\"x\" [");
    for (int i = 0; i < 200; i++) {
        (void)strcat(text, "(");
    }
    rb_refuses(b, text, 0, HEFT_ERR_SYNTAX, "nested deeper than");
}

static void statements_end_with_their_line(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "4", NULL);
    rb_run(b,
           "# a comment\n\n"
           "let a = 1,\n"
           "    b = (2\n"
           "         + 3)   # the line goes on inside brackets\n"
           "  , c = a +\n"
           "    b\n"
           "\n"
           "\"x\" [f]\n"
           "\n"
           "  where f as (s:2 c2),   # a comment in between\n"
           "        c2 pad c\n"
           "  -> \"y\" [(s\n"
           "            c2)]\n"
           "  when a == 1 and\n"
           "    not\n"
           "    (b == 4 or\n"
           "     c == 7) or\n"
           "    false\n"
           "  by add(1)\n"
           "  in f32\n",
           0);
    rb_expect(b, "y", F32, "12", "2 3 0 0 0 0 4 5 0 0 0 0");
    rb_refuses(b, "\"x\" [f] -> \"y\" [f] when 1 == 1 and\n\n", 0, HEFT_ERR_SYNTAX,
               "a value expected, found the end of the text");
    rb_refuses(b, "let a = 1 let b = 2", 0, HEFT_ERR_SYNTAX,
               "test:1:11: the end of the line expected, found `let`");
}

static const struct {
    const char *text;
    const char *part;
} syntax_cases[] = {
    { "", "has no rule" },
    { "# nothing\n", "has no rule" },
    { "lat x = 1", "test:1:1: a statement (let" },
    { "\"x\" [a] \"y\" [a]", "test:1:9: `->` or `where` expected, found text \"y\"" },
    { "\"x\" a -> \"y\" [a]", "`[` and axes" },
    { "\"x\" [a, b] -> \"y\" [a]", "axis `b` of the source is neither" },
    { "\"x\" [a] -> \"y\" [a, b]", "only in the target" },
    { "\"x\" [a] -> \"y\" [a a]", "`,` or `]` expected" },
    { "\"x\" [a, a] -> \"y\" [a]", "test:1:9: axis `a` occurs twice" },
    { "\"x\" [a] -> \"y.{a}\" [a]", "in the target's name and in its axes" },
    { "\"x\" [2] -> \"y\" []", "a lone 1 is a unit axis" },
    { "\"x\" [...] -> \"y\" []", "`...` is on one side only" },
    { "\"x\" [] -> \"y\" [...]", "`...` is on one side only" },
    { "\"x\" [..., ...] -> \"y\" [...]", "a second `...`" },
    { "\"x\" [(a ...)] -> \"y\" [a]", "not inside a group" },
    { "\"x\" [(a, b)] -> \"y\" [a]", "a group has no commas" },
    { "let tp = 2\n\"x\" [(tp q)] -> \"y\" [q]", "`tp` is a let, not an axis: write {tp}:EXTENT" },
    { "ranks 2 as r\n\"x\" [(r q)] -> \"y\" [q]", "`r` is a rank" },
    { "\"x.{l}\" [l] -> \"y.{l}\" []", "`l` is a capture" },
    { "\"x.{l}.{l}\" [] -> \"y.{l}\" []", "capture {l} occurs twice" },
    { "\"x.{l}\" [] -> \"y.{l}\" []\nlet l = 1", "capture {l} has the name of a let" },
    { "\"x.{l}{m}\" [] -> \"y\" []", "one {capture} in a token" },
    { "\"x.a{l*}\" [] -> \"y\" []", "must be one by itself" },
    { "\"x.a*\" [] -> \"y\" []", "whole tokens only" },
    { "\"x.{}\" [] -> \"y\" []", "a capture is a name in braces" },
    { "\"x.{1 2}\" [] -> \"y\" []", "test:1:7: `}` expected, found `2`" },
    { "\"x.{a + 1}\" [] -> \"y\" []", "`a` is no let" },
    { "let a = 1\n\"x.{a}{b}{b}\" [] -> \"y\" []", "capture {b} occurs twice" },
    { "let a = 1\n\"x.{a}*\" [] -> \"y\" []", "stray `*`" },
    { "refuse \"x\"\n\"x\" [] -> \"y\" []", "`because` and a message expected" },
    { "refuse x because \"y\"", "a pattern in quotes expected" },
    { "refuse \"x\" because y", "a message in quotes expected" },
    { "refuse \"x.{s}\" because \"y\" when t > 1\n\"x\" [] -> \"y\" []",
      "`t` is no let or capture; nearest is `s`" },
    { "\"x\" [] -> \"y\" [] note 3", "a text in quotes expected" },
    { "\"x\" [] -> \"y\" [] note \"a\" note \"b\"", "`note` or the end of the line" },
    { "\"x.{l*}\" [] -> \"y.{m*}\" []", "{m*} is no capture" },
    { "\"x.{l*}\" [] -> \"y.{l}\" []", "{l*} holds whole tokens" },
    { "\"x\" [] -> \"y.{\" []", "`{` without `}`" },
    { "\"x\" [] -> \"y.{1 2}\" []", "test:1:17: `}` expected, found `2`" },
    { "\"x\" [] -> \"\" []", "an empty name" },
    { "\"x\" [] -> \"y.*\" []", "stray `*`" },
    { "'x' [] -> \"y\" []", "test:1:1: names stand in double quotes" },
    { "ignore \"x\"\n\"x\" [] -> \"y\" []",
      "test:1:11: `because` and a reason expected, found the end of the line" },
    { "ignore \"x\" [] -> \"y\" []", "test:1:12: `because` and a reason expected, found `[`" },
    { "ignore \"x\"", "`because` and a reason expected, found the end of the" },
    { "dtype bfloat16\n\"x\" [] -> \"y\" []",
      "test:1:7: no dtype or let \"bfloat16\"; nearest: bf16" },
    { "dtype float32\n\"x\" [] -> \"y\" []", "no dtype or let \"float32\"; nearest: f32" },
    { "dtype zz\n\"x\" [] -> \"y\" []", "no dtype or let \"zz\"" },
    { "\"x\" [a:b] -> \"y\" [a]", "`b` is no let" },
    { "\"x\" [a] where b as (c d) -> \"y\" [a]", "`b` is no axis of the source; nearest is `a`" },
    { "\"x\" [a] where a as (c a) -> \"y\" [a]", "`as` makes new axes" },
    { "\"x\" [a] where a as (c d) -> \"y\" [a]", "replaced by `where`" },
    { "\"x\" [a] where a as (c d), a pad 2 -> \"y\" [c, d]", "replaced before" },
    { "\"x\" [a] where a to b -> \"y\" [a]", "`as`, `pad` or `:` expected" },
    { "\"x\" [a], \"z\" [a] -> \"y\" [a]", "2 sources need a kernel" },
    { "\"x\" [a] -> \"y\" [a] by foo", "no kernel \"foo\": there are cast, scale, add" },
    { "\"x\" [a] -> \"y\" [a] by scale in f32", "takes 1 arguments" },
    { "\"x\" [a] -> \"y\" [a] by scale(2)", "needs its dtype" },
    { "\"x\" [a] -> \"y\" [a] by scale(2) in i32", "does not work in I32" },
    { "\"x\" [a] -> \"y\" [a] by scale(2) in q32", "a dtype expected, found `q32`" },
    { "\"x\" [a] -> \"y\" [a] when true when true", "`when`, `by`, `note` or the end" },
    { "dtype bf16\ndtype f32", "a second `dtype`" },
    { "ranks 2 as r\nranks 2 as s", "a second `ranks`" },
    { "ranks 2", "`as` and a name" },
    { "let a = 1\nlet a = 2", "stands on line 1 already" },
    { "let config = 1", "the language does not use itself" },
    { "let a = b, b = 1\n\"x\" [] -> \"y\" []", "`b` is used before its `let`" },
    { "let a = r\nranks 2 as r\n\"x\" [] -> \"y\" []", "`r` is used before its `ranks`" },
    { "let r = 1\nranks 2 as r\n\"x\" [] -> \"y\" []", "name of the rank" },
    { "require 1 == 1", "a message in quotes" },
    { "ignore \"a\"", "`because` and a reason expected" },
    { "ignore \"a\" because \"\"", "an empty reason" },
    { "shared ignore \"a\" because \"b\"", "a statement" },
    { "ignore \"a{x}*\" because \"b\"", "stray `*`" },
    { "\"x\" [a:] -> \"y\" [a]", "a number, a name, or {...} expected" },
    { "\"x\" [a,] -> \"y\" [a]", "an axis expected, found `]`" },
    { "\"x\" [a@1] -> \"y\" [a]", "`/` and the whole extent expected" },
    { "\"\" [] -> \"y\" []", "an empty name" },
    { "\"x\" [a] where (b) as c -> \"y\" [a]", "the name of an axis expected" },
    { "\"x\" [a] -> \"y\" [a] by 3", "the name of a kernel expected" },
    { "\"x.{l*}\" [] -> \"y{l*}\" []", "must be one by itself" },
    { "\"x\" [a] where a as (b c) -> \"y.{a}\" [b, c]", "replaced by `where`" },
    { "\"x\" [\x01] -> \"y\" []", "stray byte 0x01" },
    { "\"x\" [\xc3\xa4] -> \"y\" []", "test:1:6: stray character \xc3\xa4 outside text" },
    { "\xe2\x80\x9cx\" [] -> \"y\" []", "stray character \xe2\x80\x9c outside text and comments "
                                        "(text stands in plain double quotes" },
    { "\xef\xbb\xbf\"x\" [] -> \"y\" []", "test:1:1: a byte order mark" },
    { "\"x\" [] -> \"y\x01\" []", "test:1:11: text with the byte 0x01, a control character" },
    { "\"x\" [] -> \"y\t\" []", "text with the byte 0x09, a control character" },
    { "\"x\xff\" [] -> \"y\" []", "text with the byte 0xff, which is no UTF-8" },
    { "\"x\xe2\x80\" [] -> \"y\" []", "text with the byte 0xe2, which is no UTF-8" },
    { "\"x [] -> y []\r\n", "test:1:1: text without a closing quote on its line" },
};

static void rules_that_cannot_be_are_refused_where_they_stand(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "4", NULL);
    for (size_t i = 0; i < sizeof syntax_cases / sizeof syntax_cases[0]; i++) {
        rb_refuses(b, syntax_cases[i].text, 0, HEFT_ERR_SYNTAX, syntax_cases[i].part);
    }
}

static void rules_that_do_not_fit_are_refused_with_numbers(void **state)
{
    static const struct {
        const char *text;
        heft_status_t status;
        const char *part;
    } cases[] = {
        { "\"x\" [a] -> \"y\" [a]", HEFT_ERR_SHAPE, "\"x\" has 2 dimensions, the rule 1" },
        { "\"x\" [a, b, c, ...] -> \"y\" [a, b, c, ...]", HEFT_ERR_SHAPE, "at least 3" },
        { "\"x\" [a:5, b] -> \"y\" [a, b]", HEFT_ERR_SHAPE, "extent 4 does not fit a:5" },
        { "\"x\" [(a:3 c), b] -> \"y\" [a, c, b]", HEFT_ERR_SHAPE,
          "extent 4 does not fit (a:3 c:?)" },
        { "\"x\" [(a c), b] -> \"y\" [a, c, b]", HEFT_ERR_SHAPE, "two unknown extents share 4" },
        { "\"x\" [a, 1] -> \"y\" [a]", HEFT_ERR_SHAPE, "extent 6 does not fit 1" },
        { "\"x\" [4:4, b] -> \"y\" [b]", HEFT_ERR_SHAPE, "positions 4 to 4 of an extent of 4" },
        { "\"x\" [a:3@2/4, b] -> \"y\" [a, b]", HEFT_ERR_SHAPE,
          "positions 2 to 4 of an extent of 4" },
        { "\"x\" [a@2/4, b] -> \"y\" [a, b]", HEFT_ERR_SHAPE,
          "the extent of the range is not known" },
        { "\"x\" [a, b] -> \"y\" [a, b@4/9]", HEFT_ERR_SHAPE, "positions 4 to 9" },
        { "\"x\" [a, b] -> \"y\" [a, b, r:{0-2}]", HEFT_ERR_SHAPE, "axis `r` of extent -2" },
        { "\"x\" [a, b] -> \"y\" [(a b), r:4611686018427387904]", HEFT_ERR_OVERFLOW,
          "test:1:19: \"x\": these axes make more than 2^63 elements" },
        { "\"x\" [a, b] -> \"y.{a}\" [b]\n\"x\" [b, a] -> \"y.{a}\" [b]", HEFT_ERR_SHAPE,
          "F32 [4] here, F32 [6] by the rule on line 1" },
        { "shared \"x\" [a, b] where l:9999999 -> \"y.{l}\" [a, b]", HEFT_ERR_LIMIT, "more than" },
        { "\"x\" [a:{1 == 1}, b] -> \"y\" [a, b]", HEFT_ERR_ARGUMENT, "an integer wanted" },
        { "\"z\" [a] -> \"y\" [a]", HEFT_ERR_NAME,
          "\"z\" matches none of 1 source tensors; nearest" },
        { "require 1 == 2 \"one is two\"\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT,
          "test:1:1: one is two" },
        { "\"x\" [(a b), c] -> \"y\" [a:2, b:3, c]", HEFT_ERR_SHAPE,
          "extent 4 does not fit (a:2 b:3)" },
        { "\"x\" [a, b] -> \"y\" [a:4, b:7]", HEFT_ERR_SHAPE, "extent 6 does not fit b:7" },
        { "\"x\" [a:4, b] where a:5 -> \"y\" [a, b]", HEFT_ERR_SHAPE, "axis `a` is 5 here and 4" },
        { "\"x\" [(a c:2@1/3), b] -> \"y\" [a, c, b]", HEFT_ERR_SHAPE,
          "extent 4 does not fit (a:? c:2@1/3)" },
        { "\"x\" [a, b] where a pad 4611686018427387904 -> \"y\" [a, b]", HEFT_ERR_OVERFLOW,
          "\"x\": padded, it has more than 2^63 elements (an axis of 4611686018427387904 times "
          "6)" },
        { "\"x\" [...] -> \"y\" [..., 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", HEFT_ERR_LIMIT,
          "13 dimensions, at most 12" },
        { "\"x\" [a, b] -> \"y\" [a, b] by scale(0) in f32", HEFT_ERR_ARGUMENT,
          "scale(0): an argument that is not zero wanted" },
        { "\"x\" [..., a], \"x\" [a, ...] -> \"y\" [..., a] by mul in f32", HEFT_ERR_SHAPE,
          "extent 4 does not fit a:6" },
        { "\"x\" [a@0/4, b] -> \"y.{a}\" [b]", HEFT_ERR_SHAPE, "the extent of the range" },
        { "ranks 0 as r\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT, "0 ranks" },
        { "\"x\" [a, b] -> \"y\" [(a b r:4611686018427387904)]", HEFT_ERR_OVERFLOW,
          "extents of \"x\" overflow" },
        { "\"x\" [(a:4611686018427387904 c:4 d), b] -> \"y\" [a, c, d, b]", HEFT_ERR_OVERFLOW,
          "extents of \"x\" overflow" },
        { "\"x\" [a, b] where a as (c:4611686018427387904 d:4) -> \"y\" [c, d, b]",
          HEFT_ERR_OVERFLOW, "extents of \"x\" overflow" },
        { "\"x\" [(a 0:{0 - 2}), b] -> \"y\" [a, b]", HEFT_ERR_SHAPE, "an extent of -2" },
        { "\"x\" [a, b@0/6] -> \"y\" [a, b]", HEFT_ERR_SHAPE,
          "the extent of the range is not known" },
        { "\"x\" [...], \"x\" [a, ...] -> \"y\" [a, ...] by mul in f32", HEFT_ERR_SHAPE,
          "`...` is 1 dimensions here and 2 in an earlier source" },
        { "\"x\" [a, ...], \"x\" [..., a] -> \"y\" [a, ...] by mul in f32", HEFT_ERR_SHAPE,
          "extent 6 does not fit a:4" },
        { "\"{l}\" [...] -> \"{l}\" [...] when l == 1", HEFT_ERR_ARGUMENT,
          "the word \"x\" is compared with the integer 1" },
        { "\"{l}\" [...] -> \"{l}\" [...]\nrefuse \"{l}\" because \"no\" when l == 1", HEFT_OK,
          "" },
        { "optional \"q\" [] -> \"q\" []\nrefuse \"{l}\" because \"no\" when l == 1",
          HEFT_ERR_ARGUMENT, "the word \"x\" is compared" },
        { "let w = \"q\"\noptional \"q\" [] -> \"q\" []\nrefuse \"{w}{l}\" because \"no\"", HEFT_OK,
          "" },
        { "ignore \"q\" because \"r\" when 1\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT,
          "true or false wanted" },
        { "dtype 3\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT, "3 is no float dtype" },
        { "ranks true as r\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT,
          "an integer wanted, got the truth value true" },
        { "require 2 \"two\"\n\"x\" [...] -> \"x\" [...]", HEFT_ERR_ARGUMENT,
          "true or false wanted" },
        { "let f(a) = 1 / a\n\"x\" [a, b] where a pad {f(0)} -> \"y\" [a, b]", HEFT_ERR_ARGUMENT,
          "division by zero" },
        { "\"x\" [a, b] -> \"y\" [a, b] by scale(true) in f32", HEFT_ERR_ARGUMENT,
          "a number wanted" },
        { "let n = count(\"x\")\nranks n as r\n\"x\" [...] -> \"x\" [...]", HEFT_OK, "" },
    };
    rb_t *b = *state;
    rb_source(b, "x", F32, "4,6", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].status == HEFT_OK) { /* what looks like it is no error */
            rb_run(b, cases[i].text, 0);
        } else {
            rb_refuses(b, cases[i].text, 0, cases[i].status, cases[i].part);
        }
    }
    rb_source(b, "l.99999999999999999999.w", F32, "", NULL);
    rb_refuses(b, "optional \"q\" [] -> \"q\" []\nrefuse \"l.{i}.w\" because \"no\" when i > 1", 0,
               HEFT_ERR_OVERFLOW, "{i} is 99999999999999999999, beyond 64 bits");
}

/* A group of more parts than there are axes, and a text that is longer than a recipe may be. */
static void large_things_are_refused(void **state)
{
    rb_t *b = *state;
    char text[512] = "\"x\" [(";
    rb_source(b, "x", F32, "1", NULL);
    for (int i = 0; i < 33; i++) {
        (void)strcat(text, "1 ");
    }
    (void)strcat(text, "a)] -> \"y\" [a]");
    rb_refuses(b, text, 0, HEFT_ERR_LIMIT, "more than 32 axes in a group");
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    size_t n = ((size_t)1 << 20) + 1;
    char *large = calloc(n, 1);
    assert_non_null(large);
    memset(large, ' ', n);
    EXPECT_STATUS(heft_recipe_parse("t", large, n, &recipe, &err), HEFT_ERR_LIMIT);
    EXPECT_MESSAGE("has 1048577 bytes, at most 1048576");
    free(large);
    EXPECT_STATUS(heft_recipe_parse(NULL, "", 0, &recipe, &err), HEFT_ERR_ARGUMENT);
    EXPECT_STATUS(heft_recipe_parse("t", "\"x\" [] -> \"y\" []", 16, &recipe, &err), HEFT_OK);
    heft_tape_t *tape = NULL;
    EXPECT_STATUS(heft_recipe_compile(recipe, NULL, 0, NULL, NULL, &tape, &err), HEFT_ERR_ARGUMENT);
    uint32_t n_ranks = 0;
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, NULL, &n_ranks, &err), HEFT_OK);
    assert_int_equal(n_ranks, 1);
    heft_recipe_destroy(recipe);
    /* without a source nobody knows how many tensors there are */
    const char *counts = "let n = count(\"x\")\nranks n as r\n\"x\" [...] -> \"x\" [...]";
    EXPECT_STATUS(heft_recipe_parse("t", counts, strlen(counts), &recipe, &err), HEFT_OK);
    EXPECT_STATUS(heft_recipe_count_ranks(recipe, NULL, &n_ranks, &err), HEFT_ERR_ARGUMENT);
    EXPECT_MESSAGE("count() asks for the source, which is not known before `ranks`");
    heft_recipe_destroy(recipe);
}

static void optional_rules_may_match_nothing(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "1", NULL);
    /* sizes of a rule that matches nothing need no value */
    rb_run(b,
           "optional \"z\" [a:{config.nothing}] -> \"z\" [a]\noptional ignore \"q\" because \"r\"\n"
           "\"x\" [a] -> \"x\" [a]",
           0);
    assert_int_equal(rb_n_params(b), 1);
}

static void axes_of_extent_one_and_zero_are_axes(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "1,3,1", "1-3");
    rb_source(b, "e", F32, "0,4", NULL);
    rb_run(b,
           "\"x\" [1, a, b] -> \"y\" [b, 1, a, 1]\n\"x\" [1@0/1, (a), ()] -> \"z\" [(), a]\n"
           "\"e\" [a, (b:2 c)] -> \"e\" [b, (a c)]",
           0);
    rb_expect(b, "y", F32, "1,1,3,1", "1-3");
    rb_expect(b, "z", F32, "1,3", "1-3");
    rb_expect(b, "e", F32, "2,0", "");
}

static void many_axes_fit_while_few_are_longer_than_one(void **state)
{
    rb_t *b = *state;
    rb_source(b, "x", F32, "4096", NULL);
    rb_run(b,
           "\"x\" [(a:2 b:2 c:2 d:2 e:2 f:2 g:2 h:2 i:2 j:2 k:2 l:2)] -> "
           "\"y\" [(l k j i h g f e d c b a)]",
           0);
    rb_expect(b, "y", F32, "4096", NULL);
    rb_refuses(b,
               "\"x\" [(a:2 b:2 c:2 d:2 e:2 f:2 g:2 h:2 i:2 j:2 k:2 l:2)] -> "
               "\"y\" [(l k j i h g f e d c b a m:2)]",
               0, HEFT_ERR_LIMIT, "more than 12 axes");
}

/* One thing more than a rule may have, each time. */
static void limits_are_stated(void **state)
{
    rb_t *b = *state;
    static const struct {
        const char *begin;
        const char *item; /* %d: a number */
        int n;
        const char *end;
        const char *part;
    } cases[] = {
        { "\"x\" [(", "a%d ", 33, ")] -> \"y\" []", "more than 32 axes in a rule" },
        { "\"x\" [", "a%d, ", 12, "b] -> \"y\" []", "13 dimensions, at most 12" },
        { "\"x", ".{a%d}", 17, "\" [] -> \"y\" []", "more than 16 captures" },
        { "\"x\" [(", "%d:100 ", 97, ")] -> \"y\" []", "more than 96 sizes" },
        { "\"x\" []", ", \"x%d\" []", 8, " -> \"y\" []", "more than 8 sources" },
        { "\"x\" [] -> \"y\" []", ", \"x%d\" []", 8, "", "more than 8 targets" },
        { "\"x\" [] -> \"y\" [] by scale(1", ", %d", 8, ") in f32", "more than 8 arguments" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        (void)snprintf(text, sizeof text, "%s", cases[i].begin);
        for (int k = 0; k < cases[i].n; k++) {
            /* the items hold one %d each: written out by hand, since a format must be a literal */
            size_t at = strlen(text);
            size_t head = strcspn(cases[i].item, "%");
            (void)snprintf(text + at, sizeof text - at, "%.*s%d%s", (int)head, cases[i].item, k,
                           cases[i].item + head + 2);
        }
        size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "%s", cases[i].end);
        /* a size and its offset count twice, so the case of sizes fails as early as it can */
        heft_error_t err = HEFT_ERROR_INIT;
        heft_recipe_t *recipe = NULL;
        EXPECT_STATUS(heft_recipe_parse("t", text, strlen(text), &recipe, &err), HEFT_ERR_LIMIT);
        EXPECT_MESSAGE(cases[i].part);
    }
    (void)b;
}

static void long_names_keep_the_message_readable(void **state)
{
    (void)state;
    heft_error_t err = HEFT_ERROR_INIT;
    heft_recipe_t *recipe = NULL;
    char name[400];
    memset(name, 'p', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    EXPECT_STATUS(heft_recipe_parse(name, "lat", 3, &recipe, &err), HEFT_ERR_SYNTAX);
    EXPECT_MESSAGE(":1:1: a statement");
    EXPECT_STATUS(heft_recipe_parse("t", "\"a\" [] -> \"a\" []\0", 17, &recipe, &err),
                  HEFT_ERR_SYNTAX);
    EXPECT_MESSAGE("zero byte");
    assert_null(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, rb_setup, rb_teardown)
        T(expressions_have_their_worth),
        T(conditions_have_their_truth),
        T(expressions_that_have_no_worth_are_refused),
        T(deep_nesting_is_refused),
        T(statements_end_with_their_line),
        T(rules_that_cannot_be_are_refused_where_they_stand),
        T(rules_that_do_not_fit_are_refused_with_numbers),
        T(large_things_are_refused),
        T(optional_rules_may_match_nothing),
        T(axes_of_extent_one_and_zero_are_axes),
        T(many_axes_fit_while_few_are_longer_than_one),
        T(limits_are_stated),
        T(long_names_keep_the_message_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

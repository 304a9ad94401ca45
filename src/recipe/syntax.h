/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syntax tree of a recipe, private to this part.
 *
 * All nodes live in the recipe's arena and are immutable after heft_recipe_parse. Names are
 * resolved once, after parsing: an expression then refers to lets, captures and axes by index, and
 * every size or offset of an axis has a slot, so that geometry is arithmetic on integers.
 */
#ifndef HEFT_RECIPE_SYNTAX_H
#define HEFT_RECIPE_SYNTAX_H

#include <jansson.h>

#include "recipe/recipe.h"

#define HEFT__MAX_AXES 32     /* named axes of one rule */
#define HEFT__MAX_CAPTURES 16 /* captures of one rule */
#define HEFT__MAX_SLOTS 96    /* sizes and offsets of one rule */
#define HEFT__MAX_DEPTH 48    /* nesting of expressions and groups */
#define HEFT__MAX_HEIGHT 256  /* of the tree of an expression */
#define HEFT__MAX_PARTS \
    8 /* sources, targets, loops, kernel arguments of a rule; recipes of a chain */
#define HEFT__NONE (-1)
#define HEFT__MAX_ATTRS 16 /* of one `attr` */
#define HEFT__SOURCE 0
#define HEFT__DESTINATION 1

typedef struct heft__pos {
    uint32_t line;
    uint32_t column;
} heft__pos_t;

typedef struct heft__span {
    const char *data;
    size_t len;
} heft__span_t;

/* ---- tokens ---- */

typedef enum heft__token_kind {
    TOKEN_END = 0,
    TOKEN_BAD,     /* no token; its error is known */
    TOKEN_NEWLINE, /* ends a statement; not made where a line continues */
    TOKEN_NAME,
    TOKEN_INT,
    TOKEN_REAL,
    TOKEN_STRING,
    TOKEN_ARROW,    /* -> */
    TOKEN_ELLIPSIS, /* ... */
    TOKEN_EQ,       /* == */
    TOKEN_NE,       /* != */
    TOKEN_LE,
    TOKEN_GE,
    TOKEN_LT,
    TOKEN_GT,
    TOKEN_ASSIGN, /* = */
    TOKEN_PLUS,
    TOKEN_MINUS,
    TOKEN_STAR,
    TOKEN_SLASH,
    TOKEN_PERCENT,
    TOKEN_COMMA,
    TOKEN_COLON,
    TOKEN_AT,
    TOKEN_DOT,
    TOKEN_LPAREN,
    TOKEN_RPAREN,
    TOKEN_LBRACKET,
    TOKEN_RBRACKET,
    TOKEN_LBRACE,
    TOKEN_RBRACE
} heft__token_kind_t;

typedef struct heft__token {
    heft__token_kind_t kind;
    heft__pos_t pos;
    heft__span_t text; /* a string's text is without its quotes */
    int64_t integer;
    double real;
} heft__token_t;

typedef struct heft__tokens {
    heft__token_t *items; /* the last one is TOKEN_END */
    size_t n;
    size_t cap;
} heft__tokens_t;

/* ---- expressions ---- */

typedef enum heft__expr_kind {
    EXPR_INT = 1,
    EXPR_REAL,
    EXPR_BOOL,
    EXPR_WORD,
    EXPR_NAME, /* not yet resolved */
    EXPR_LET,
    EXPR_RANK,
    EXPR_CAPTURE,
    EXPR_LOOP, /* what a `for` of the rule counts */
    EXPR_AXIS,
    EXPR_CONFIG,
    EXPR_ENV,    /* a variable of the environment, as bound */
    EXPR_DEST,   /* left: NULL, or a pattern of tensors */
    EXPR_SOURCE, /* the same of the source */
    EXPR_UNARY,
    EXPR_BINARY,
    EXPR_CALL,
    EXPR_LIST, /* [1, 2, 3] as it stands */
    EXPR_INDEX /* left[right] */
} heft__expr_kind_t;

typedef enum heft__op {
    OP_NONE = 0,
    OP_OR,
    OP_AND,
    OP_NOT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MOD,
    OP_NEG,
    OP_MIN, /* functions from here on */
    OP_MAX,
    OP_CEIL_DIV,
    OP_ROUND_UP,
    OP_SQRT,
    OP_BF16,
    OP_PADDED_SIZE,
    OP_KV_REPEAT,
    OP_ROLLOUT_TP,
    OP_FLAG,
    OP_PAIR, /* the second and third argument of a function */
    OP_HAS,
    OP_COUNT,
    OP_IF, /* the second and third argument are a pair */
    OP_SINGULAR,
    OP_LEN,
    OP_RANGE,
    OP_CONTAINS,
    OP_INDEX,
    OP_EXPERT_TABLE /* the second and third argument are a pair */
} heft__op_t;

typedef struct heft__expr {
    heft__expr_kind_t kind;
    heft__op_t op;
    heft__pos_t pos;
    int32_t index;   /* of a let, capture, loop or axis */
    uint32_t height; /* of the tree below */
    bool is_closed;  /* in parentheses of its own */
    int64_t integer;
    double real;
    const char *text;         /* a name, a word, or a path of keys */
    json_t *list;             /* EXPR_LIST; the recipe owns it */
    struct heft__expr *left;  /* operand, or first argument */
    struct heft__expr *right; /* second operand or argument */
} heft__expr_t;

/* A value that may be absent, so that `or` behind it gives a default. */
static inline bool heft__expr_is_key(const heft__expr_t *expr)
{
    return expr->kind == EXPR_CONFIG || expr->kind == EXPR_DEST || expr->kind == EXPR_SOURCE ||
           expr->kind == EXPR_ENV;
}

/* ---- axes ---- */

typedef enum heft__axis_kind {
    AXIS_NAME = 1, /* a named axis, perhaps with an extent */
    AXIS_DIGIT,    /* one position of an extent */
    AXIS_UNIT,     /* 1 */
    AXIS_GROUP,    /* kids, outermost first */
    AXIS_RANGE,    /* kids[0] at an offset of a longer extent */
    AXIS_REST      /* ... */
} heft__axis_kind_t;

typedef struct heft__axis {
    heft__axis_kind_t kind;
    heft__pos_t pos;
    const char *name;    /* AXIS_NAME */
    int32_t id;          /* AXIS_NAME: index in the rule's axes */
    int32_t size_slot;   /* NAME: its extent, or NONE; DIGIT, RANGE: the whole extent */
    int32_t offset_slot; /* DIGIT, RANGE */
    heft__expr_t *size;  /* what the slots hold */
    heft__expr_t *offset;
    struct heft__axis **kids;
    uint32_t n_kids;
} heft__axis_t;

typedef struct heft__axes {
    heft__axis_t **dims;
    uint32_t n_dims;
    heft__pos_t pos;
} heft__axes_t;

/* ---- names ---- */

typedef enum heft__piece_kind {
    PIECE_TEXT = 1,
    PIECE_ONE,  /* a capture of (a part of) one token */
    PIECE_MANY, /* whole tokens: `*` or {name*} */
    PIECE_EXPR  /* {EXPR} on the target side, {LET} in a pattern */
} heft__piece_kind_t;

/* One token of a source pattern: literal text, or prefix{capture}suffix, or any number of tokens.
 */
typedef struct heft__pattern_token {
    heft__piece_kind_t kind; /* TEXT, ONE or MANY */
    heft__span_t prefix;     /* TEXT: the whole token */
    heft__span_t suffix;
    int32_t capture; /* NONE: `*` */
} heft__pattern_token_t;

typedef struct heft__pattern {
    const char *text;
    heft__pos_t pos;
    heft__pattern_token_t *tokens;
    uint32_t n_tokens;
    uint32_t n_many;
    struct heft__template *made_of; /* NULL, or what the tokens are made of once lets have values */
} heft__pattern_t;

/* A name with {EXPR} in it, as pieces in order; `starts` marks the first piece of a token. */
typedef struct heft__template_piece {
    heft__piece_kind_t kind; /* TEXT, MANY or EXPR; in a pattern also ONE */
    bool starts;
    heft__span_t text;
    heft__expr_t *expr;
    int32_t capture;
} heft__template_piece_t;

typedef struct heft__template {
    const char *text;
    heft__pos_t pos;
    heft__template_piece_t *pieces;
    uint32_t n_pieces;
    int32_t *axes; /* ids of the axes in it, in order */
    uint32_t n_axes;
} heft__template_t;

/* ---- statements ---- */

typedef enum heft__refine_kind { REFINE_AS = 1, REFINE_PAD, REFINE_SIZE } heft__refine_kind_t;

/* One clause of `where`. "c pad W as (b n)" makes two: PAD, then AS. */
typedef struct heft__refine {
    heft__refine_kind_t kind;
    heft__pos_t pos;
    const char *name;
    int32_t id;
    int32_t size_slot; /* PAD, SIZE */
    heft__expr_t *size;
    heft__axis_t *tree; /* AS */
    struct heft__refine *next;
} heft__refine_t;

typedef struct heft__rule_source {
    heft__pattern_t pattern;   /* the first source */
    heft__template_t template; /* further sources: a name made from the captures */
    heft__axes_t axes;
} heft__rule_source_t;

typedef struct heft__rule_target {
    heft__template_t template;
    heft__axes_t axes;
} heft__rule_target_t;

typedef struct heft__slot {
    heft__expr_t *expr;
    bool per_match; /* depends on captures */
} heft__slot_t;

/* `for NAME:SIZE`: the rule once for each NAME below SIZE. */
typedef struct heft__loop {
    const char *name;
    heft__pos_t pos;
    heft__expr_t *size;
} heft__loop_t;

typedef struct heft__rule {
    heft__pos_t pos;
    const char *note; /* "name:line" */
    heft__rule_source_t sources[HEFT__MAX_PARTS];
    heft__rule_target_t targets[HEFT__MAX_PARTS];
    heft__refine_t *refines;
    heft__expr_t *when;
    const char *message; /* of `refuse`; NULL: a rule */
    bool takes_used;     /* of `refuse any`: what a rule has used, too */
    const char *remark;  /* `note`: listed for every match */
    heft__pos_t remark_pos;
    const char *kernel; /* NULL: a copy */
    heft__pos_t kernel_pos;
    heft__expr_t *args[HEFT__MAX_PARTS];
    heft__loop_t loops[HEFT__MAX_PARTS];
    heft__slot_t slots[HEFT__MAX_SLOTS];
    const char *captures[HEFT__MAX_CAPTURES];
    const char *axes[HEFT__MAX_AXES];
    heft_dtype_t kernel_dtype; /* NONE: not given */
    uint32_t n_sources;
    uint32_t n_targets;
    uint32_t n_args;
    uint32_t n_loops;
    uint32_t n_slots;
    uint32_t n_captures;
    uint32_t n_axes;
    bool capture_is_many[HEFT__MAX_CAPTURES];
    bool axis_is_source[HEFT__MAX_AXES]; /* in a source, or refined from one */
    bool axis_is_padded[HEFT__MAX_AXES];
    bool axis_is_refined[HEFT__MAX_AXES]; /* replaced by `as` */
    bool axis_has_size[HEFT__MAX_AXES];   /* an extent is written somewhere */
    bool is_optional;
    bool is_shared;
    bool when_per_match; /* `when` depends on captures or loops */
} heft__rule_t;

typedef struct heft__let {
    const char *name;
    heft__pos_t pos;
    heft__expr_t *value; /* NULL: must be bound */
} heft__let_t;

/* `let f(a, b) = EXPR`. In the body, a name with an index is the parameter of that number. */
typedef struct heft__function {
    const char *name;
    heft__pos_t pos;
    const char *params[HEFT__MAX_PARTS];
    uint32_t n_params;
    heft__expr_t *body;
} heft__function_t;

typedef enum heft__step_kind { STEP_LET = 1, STEP_RANKS, STEP_REQUIRE } heft__step_kind_t;

/* What is evaluated before the rules, in the order of the text. */
typedef struct heft__step {
    heft__step_kind_t kind;
    heft__pos_t pos;
    uint32_t let; /* STEP_LET; else how many lets stand before it */
    heft__expr_t *expr;
    const char *text; /* RANKS: the name; REQUIRE: the message */
} heft__step_t;

typedef struct heft__except {
    heft__pattern_t pattern;
    heft__expr_t *when; /* NULL: always */
    bool is_optional;
} heft__except_t;

typedef struct heft__policy {
    bool is_set;
    heft__pos_t pos;
    heft__expr_t *dtype; /* a let, or NULL: fixed */
    heft_dtype_t fixed;  /* NONE with is_set: keep the source's */
    heft__except_t *except;
    size_t n_except;
    size_t cap_except;
} heft__policy_t;

typedef struct heft__exception_line {
    heft__pattern_t pattern;
    heft__template_t *made_of; /* a pattern with values in it, which has no tokens yet; or NULL */
    bool is_optional;
    heft__expr_t *when; /* NULL: always */
} heft__exception_line_t;

/* The form of one side's names; NONE: not declared. */
typedef struct heft__name_decl {
    heft__pos_t pos;
    heft_name_form_t form;
    heft_layer_form_t layers;
    const char *container; /* NULL: the usual one */
    const char *root;      /* NULL: none */
    const char *suffix;    /* NULL: none */
} heft__name_decl_t;

typedef struct heft__attr_item {
    heft__pos_t pos;
    const char *key;
    heft__expr_t *value;
} heft__attr_item_t;

/* How the parameters of a pattern are laid out. */
typedef struct heft__attr_line {
    heft__pattern_t pattern;
    heft__expr_t *when; /* NULL: always */
    heft__attr_item_t items[HEFT__MAX_ATTRS];
    uint32_t n_items;
    bool is_optional;
} heft__attr_line_t;

struct heft_recipe {
    heft__arena_t arena;
    const char *name;
    const char *text;
    heft__let_t *lets;
    size_t n_lets, cap_lets;
    heft__function_t *functions;
    size_t n_functions, cap_functions;
    heft__step_t *steps;
    size_t n_steps, cap_steps;
    heft__rule_t **rules;
    size_t n_rules, cap_rules;
    heft__rule_t **refusals; /* a pattern, `when` and a message each */
    size_t n_refusals, cap_refusals;
    heft__policy_t policy;
    heft_exception_t *exceptions;
    heft__exception_line_t *exception_lines; /* as many */
    size_t n_exceptions, cap_exceptions, cap_exception_lines;
    const char *rank_name;           /* NULL without `ranks` */
    heft__name_decl_t name_decls[2]; /* of source and destination */
    heft__attr_line_t **attr_lines;
    size_t n_attr_lines, cap_attr_lines;
    const char **variables; /* of the environment, as often as they are named */
    size_t n_variables, cap_variables;
    const char **config_keys; /* paths of config.KEY, as often as they are named */
    size_t n_config_keys, cap_config_keys;
    json_t *lists; /* an array of those that expressions hold; NULL: none */
    /* of a chain; it has variables, keys and exceptions of all of them, and no rules of its own */
    struct heft_recipe *parts[HEFT__MAX_PARTS];
    uint32_t n_parts; /* 0: no chain */
};

/* "name:line:column: message". Returns status. */
heft_status_t heft__recipe_error(const heft_recipe_t *recipe, heft__pos_t pos, heft_status_t status,
                                 heft_error_t *err, const char *fmt, ...) HEFT_PRINTF(5, 6);

/* "...end of the name:" as it begins every message; out holds 72. */
const char *heft__recipe_prefix(const heft_recipe_t *recipe, char out[72]);

/* ---- all errors, not only the first (issues.c) ---- */

/* What failed only because something failed before, which has its message: nothing is in err. */
#define HEFT__SAID HEFT_IN_PROGRESS

typedef struct heft__faults {
    const heft_recipe_t *recipe;
    heft_issues_t *issues; /* NULL: only the first is wanted */
    size_t first_issue;    /* of this pass */
    bool is_sorted;        /* by place, else as they come */
    uint32_t n;
    heft_error_t first;
    heft__pos_t first_pos;
} heft__faults_t;

void heft__faults_init(heft__faults_t *faults, const heft_recipe_t *recipe, heft_issues_t *issues,
                       bool is_sorted);
/* Count the error of a call that gave this status. False: one cannot go on (no memory, a bug). */
bool heft__faults_take(heft__faults_t *faults, heft_status_t status, const heft_error_t *error);
/* List a note: no error. False: out of memory. */
bool heft__faults_note(heft__faults_t *faults, const char *message);
/* HEFT_OK, or the first error with the number of all. */
heft_status_t heft__faults_status(const heft__faults_t *faults, heft_error_t *err);

/* Tokens of text, which starts at pos; strings and names are borrowed from it. With faults, what is
 * no token goes there and becomes TOKEN_BAD. On failure *tokens holds nothing to free. */
heft_status_t heft__lex(const heft_recipe_t *recipe, heft__span_t text, heft__pos_t pos,
                        heft__faults_t *faults, heft__tokens_t *tokens_out, heft_error_t *err);
void heft__tokens_fini(heft__tokens_t *tokens);
/* How a token reads in a message, such as `name "tp"`; out holds 64. */
const char *heft__token_text(const heft__token_t *token, char out[64]);

/* ---- parsing ---- */

typedef struct heft__parser {
    heft_recipe_t *recipe;
    const heft__token_t *at;
    uint32_t depth;
    bool takes_star; /* `*` may be a token of a template: it becomes a pattern */
    heft_error_t *err;
} heft__parser_t;

/* Syntax error at the current token: "WANTED expected, found ...". */
heft_status_t heft__parse_expected(heft__parser_t *p, const char *wanted);
/* Move on over one token of this kind, or fail. */
heft_status_t heft__parse_token(heft__parser_t *p, heft__token_kind_t kind, const char *wanted);
/* True, and moves on, if the current token is this. */
bool heft__parse_accept(heft__parser_t *p, heft__token_kind_t kind);
bool heft__parse_accept_word(heft__parser_t *p, const char *word);
bool heft__parse_is_word(const heft__parser_t *p, const char *word);
char *heft__parse_dup(heft__parser_t *p, heft__span_t text); /* NULL: err is set */
heft_status_t heft__parse_nomem(heft__parser_t *p);
/* One level deeper, which the caller leaves again (p->depth--); refused beyond the bound. */
heft_status_t heft__parse_enter(heft__parser_t *p);

heft_status_t heft__parse_expr(heft__parser_t *p, heft__expr_t **expr_out);
/* The height of a node whose operands stand, or an error. */
heft_status_t heft__parse_set_height(heft__parser_t *p, heft__expr_t *expr);
/* Is there a function of this name in the language itself? */
bool heft__parse_has_function(const char *name);
/* A `let` whose name is followed by `(`, which is the current token. */
heft_status_t heft__parse_function(heft__parser_t *p, const char *name, heft__pos_t pos);
/* Does a call of a function of the recipe begin here? And the formula it stands for. */
bool heft__parse_is_call(const heft__parser_t *p);
heft_status_t heft__parse_call(heft__parser_t *p, heft__expr_t **out);
/* NAME, INT or {EXPR}: the size or offset of an axis. */
heft_status_t heft__parse_size(heft__parser_t *p, heft__expr_t **expr_out);
heft_status_t heft__parse_axes(heft__parser_t *p, heft__axes_t *axes_out);
/* One axis without brackets: a name, a digit, a group. */
heft_status_t heft__parse_axis(heft__parser_t *p, heft__axis_t **axis_out);

/* `names` and `attr`, behind their word. */
heft_status_t heft__parse_names(heft__parser_t *p, heft__pos_t pos);
heft_status_t heft__parse_attr(heft__parser_t *p, bool is_optional);

/* Split a name into tokens; rule is NULL where captures are not allowed. text starts at pos. */
heft_status_t heft__parse_pattern(heft__parser_t *p, heft__rule_t *rule, heft__span_t text,
                                  heft__pos_t pos, heft__pattern_t *pattern_out);
heft_status_t heft__parse_template(heft__parser_t *p, heft__span_t text, heft__pos_t pos,
                                   heft__template_t *template_out);

heft_status_t heft__parse_rule(heft__parser_t *p, heft__rule_t **rule_out);
/* The kind of exception whose word stands here, or 0; and the rest of it, behind the word. */
heft_exception_kind_t heft__parse_exception_at(const heft__parser_t *p);
heft_status_t heft__parse_exception(heft__parser_t *p, heft_exception_kind_t kind,
                                    bool is_optional);
/* What stands behind `refuse`. */
heft_status_t heft__parse_refusal(heft__parser_t *p, heft__rule_t **rule_out);

/* ---- resolving: names become indices, and what can be refused without a model is refused ---- */

/* What the names of an expression may mean. */
typedef struct heft__scope {
    const heft_recipe_t *recipe;
    const heft__rule_t *rule; /* NULL: no captures, no axes */
    size_t n_lets;            /* the first of them are known */
    bool has_rank;
    bool with_axes;
    bool without_loops;
    bool is_dtype; /* the value names a dtype: what an unknown name may have meant */
} heft__scope_t;

/* Everything that is wrong goes to faults. HEFT_ERR_NOMEM ends it. */
heft_status_t heft__resolve(heft_recipe_t *recipe, heft__faults_t *faults);
heft_status_t heft__resolve_rule(heft_recipe_t *recipe, heft__rule_t *rule, heft_error_t *err);
/* Sets *per_match (left alone otherwise) when the value depends on a match. */
heft_status_t heft__resolve_expr(const heft__scope_t *scope, heft__expr_t *expr, bool *per_match,
                                 heft_error_t *err);
/* What a name is already, or NULL: "let", "rank", "capture", "loop". */
const char *heft__resolve_taken(const heft_recipe_t *recipe, const heft__rule_t *rule,
                                const char *name);

/* ---- kernels ---- */

typedef enum heft__form {
    HEFT__FORM_MAP = 0,  /* element by element */
    HEFT__FORM_QUANTISE, /* to codes and scales; arguments are the extents of a block, and a rule */
    HEFT__FORM_DEQUANTISE, /* from codes and scales, the same arguments */
    HEFT__FORM_UNPACK      /* mxfp4 blocks and scales */
} heft__form_t;

typedef struct heft__kernel {
    const char *name;
    uint8_t code; /* heft_op_code_t, of a map */
    uint8_t n_args;
    uint8_t n_sources;
    heft__form_t form;
} heft__kernel_t;

const heft__kernel_t *heft__kernel_find(const char *name); /* NULL: unknown */
void heft__kernel_list(char *out, size_t bytes);           /* the known names */

/* The nearest of n names within a third of its length, or NULL. */
const char *heft__nearest(const char *name, const char *const *names, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What running a recipe needs, private to this part: values, bindings, evaluation, names of the
 * source, geometry of one match, and the compilation in progress.
 */
#ifndef HEFT_RECIPE_COMPILE_H
#define HEFT_RECIPE_COMPILE_H

#include "recipe/syntax.h"

/* ---- values ---- */

typedef enum heft__value_kind {
    VALUE_NONE = 0,
    VALUE_INT,
    VALUE_REAL,
    VALUE_BOOL,
    VALUE_WORD,
    VALUE_LIST,
    VALUE_FAILED /* of a let: what uses it fails without a message of its own */
} heft__value_kind_t;

typedef struct heft__value {
    heft__value_kind_t kind;
    int64_t integer; /* INT, BOOL; LIST without `list`: 0, 1, .. up to here */
    double real;
    heft__span_t word;  /* borrowed */
    const json_t *list; /* borrowed: of the configuration, a binding or the recipe */
} heft__value_t;

const char *heft__value_kind_name(heft__value_kind_t kind);
/* How a value reads in a message; out holds 64. */
const char *heft__value_text(const heft__value_t *value, char out[64]);
/* Integer, decimal, true/false, else a word. False: an integer beyond 64 bits. */
bool heft__value_parse(heft__span_t text, heft__value_t *value_out);

/* ---- bindings ---- */

typedef struct heft__binding {
    char *name;
    char *text;
    json_t *list; /* what the text says, where it is a list */
} heft__binding_t;

struct heft_bindings {
    heft__binding_t *items;
    size_t n, cap;
    json_t *config; /* an object, or NULL */
    json_t *env;    /* variables of the environment: an object of texts, or NULL */
};

bool heft__is_let_name(const char *name);
/* The value of a variable of the environment as bound, or NULL. */
const char *heft__bindings_get_env(const heft_bindings_t *bindings, const char *name);
heft_status_t heft__bindings_decode_env(heft_bindings_t *bindings, json_t *object,
                                        heft_error_t *err);

/* A whole text file of at most 64 MiB. HEFT_ERR_IO, HEFT_ERR_NOT_FOUND, HEFT_ERR_LIMIT. */
heft_status_t heft__recipe_read(const char *path, heft__text_t *text, heft_error_t *err);

const heft__binding_t *heft__bindings_find(const heft_bindings_t *bindings, const char *name);

/* ---- names of the source ---- */

typedef struct heft__name {
    heft_tensor_info_t info;
    heft__span_t *tokens;
    uint32_t n_tokens;
    uint32_t buffer; /* in the tape; HEFT__NO_BUFFER: not there yet */
    bool is_ignored; /* not seen by rules */
    bool is_used;
    bool is_refused; /* by a `refuse` */
} heft__name_t;

#define HEFT__NO_BUFFER UINT32_MAX

/* How many names match, as count() or has() was answered. */
typedef struct heft__answer {
    const char *pattern; /* the recipe's: one text is one question */
    bool is_has;
    int64_t n;
} heft__answer_t;

typedef struct heft__names {
    heft__arena_t arena;
    heft__name_t *items; /* in bytewise order */
    uint64_t *keys;      /* of the last two tokens of each, see heft__tail_key */
    uint32_t n;
    heft__answer_t *answers; /* so far */
    size_t n_answers, cap_answers;
} heft__names_t;

/* A hash of the last token (low half) and of the one before it (high half). */
typedef struct heft__tail_key {
    uint64_t key;
    uint64_t mask; /* which halves a pattern fixes; 0: none */
} heft__tail_key_t;

heft__tail_key_t heft__pattern_tail_key(const heft__pattern_t *pattern);
heft__tail_key_t heft__text_tail_key(const char *text);

heft_status_t heft__names_init(heft__names_t *names, const heft_manifest_t *manifest,
                               heft_error_t *err);
void heft__names_fini(heft__names_t *names);
heft__name_t *heft__names_find(const heft__names_t *names, const char *name);
/* The nearest name that is not ignored, or NULL. */
const char *heft__names_nearest(const heft__names_t *names, const char *name, bool unused_only);

/* True if the tokens match; captures (may be NULL) receive their text. */
bool heft__pattern_match(const heft__pattern_t *pattern, const heft__name_t *name,
                         heft__span_t *captures);

/* ---- evaluation ---- */

typedef struct heft__env {
    const heft_recipe_t *recipe;
    const heft_bindings_t *bindings;    /* may be NULL */
    const heft_manifest_t *destination; /* may be NULL */
    const heft_manifest_t *source;      /* NULL where it is not known yet */
    heft__names_t *names;               /* NULL: has() is not available */
    heft__value_t *lets;                /* recipe->n_lets of them */
    int64_t rank;
    int64_t n_ranks;
    const heft__span_t *captures;
    const int64_t *axis_index;
    const int64_t *loop_index;
} heft__env_t;

heft_status_t heft__eval(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *value_out,
                         heft_error_t *err);
heft_status_t heft__eval_int(const heft__env_t *env, const heft__expr_t *expr, int64_t *out,
                             heft_error_t *err);
heft_status_t heft__eval_bool(const heft__env_t *env, const heft__expr_t *expr, bool *out,
                              heft_error_t *err);
heft_status_t heft__eval_real(const heft__env_t *env, const heft__expr_t *expr, double *out,
                              heft_error_t *err);
/* The value of JSON; false for null, and for objects. */
bool heft__value_of_json(const json_t *json, heft__value_t *out);
/* left[right], and the functions of lists. */
/* A key of configuration, destination or environment; VALUE_NONE where it is absent. */
heft_status_t heft__eval_key(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                             heft_error_t *err);
/* What a manifest declares: dest.KEY, source.KEY. */
heft_status_t heft__eval_dest(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                              heft_error_t *err);
/* padded_size, kv_repeat, rollout_tp, flag */
heft_status_t heft__eval_size_call(const heft__env_t *env, const heft__expr_t *expr,
                                   heft__value_t *out, heft_error_t *err);
heft_status_t heft__eval_index(const heft__env_t *env, const heft__expr_t *expr, heft__value_t *out,
                               heft_error_t *err);
/* How many values a list has, as a value. */
heft__value_t heft__list_length(const heft__value_t *list);
heft_status_t heft__eval_list_call(const heft__env_t *env, const heft__expr_t *expr,
                                   heft__value_t *out, heft_error_t *err);
/* "WANTED wanted, got the KIND VALUE" */
heft_status_t heft__wrong_kind(const heft__env_t *env, const heft__expr_t *expr, const char *wanted,
                               const heft__value_t *got, heft_error_t *err);
/* "H = 9, tp = 2": the names an expression mentions, with their values; out holds text already. */
void heft__list_values(const heft__env_t *env, const heft__expr_t *expr, char *out, size_t bytes);
/* Run the let, ranks and require steps. Stops before the rank is bound with until_ranks.
 * env->lets is allocated by init and freed by fini. */
heft_status_t heft__env_init(heft__env_t *env, const heft_recipe_t *recipe,
                             const heft_bindings_t *bindings, heft_error_t *err);
void heft__env_fini(heft__env_t *env);
/* What is wrong goes to faults; HEFT_OK, or HEFT_ERR_NOMEM. */
heft_status_t heft__env_run(heft__env_t *env, bool until_ranks, heft__faults_t *faults);

/* The pattern of exception i, with its values in it. */
heft_status_t heft__exception_put(const heft__env_t *env, size_t i, heft__text_t *text,
                                  heft_error_t *err);
/* Does that pattern match? */
bool heft__exception_matches(const heft_recipe_t *recipe, size_t i, const heft__text_t *text,
                             const heft__name_t *name);

/* ---- geometry ---- */

/* `...` stands for pseudo-axes behind the named ones. */
#define HEFT__ALL_AXES (HEFT__MAX_AXES + HEFT_MAX_DIMS)

/* A buffer seen through named axes: element (i0, ..) lies at offset + sum(stride[a] * ia). */
typedef struct heft__frame {
    uint32_t buffer;
    heft_dtype_t dtype;
    int64_t offset;
    int32_t order[HEFT__ALL_AXES]; /* live axes, outermost first as written */
    uint32_t n;
    int64_t stride[HEFT__ALL_AXES]; /* 0 for an axis that is not live: it broadcasts */
} heft__frame_t;

/* One match of a rule being worked on. */
typedef struct heft__match {
    const heft_recipe_t *recipe;
    const heft__rule_t *rule;
    const char *name; /* of the source being looked at, else of the first; for messages */
    const int64_t *slots;
    int64_t extent[HEFT__ALL_AXES]; /* -1: not known yet */
    uint32_t n_rest;                /* dimensions that `...` stands for */
    int32_t dim;                    /* of the source being looked at, for messages, or NONE */
    bool has_rest;
    heft_error_t *err;
} heft__match_t;

/* Forget the match before, take the extents that are written. */
heft_status_t heft__match_begin(heft__match_t *m);
/* Take the extents of dimensions that are one axis, for all sources before the first frame. */
heft_status_t heft__frame_measure(heft__match_t *m, const heft__axes_t *axes,
                                  const heft_shape_t *shape);
/* Read the axes of a source against its shape, which was measured. */
heft_status_t heft__frame_init(heft__match_t *m, const heft__axes_t *axes,
                               const heft_shape_t *shape, heft__frame_t *frame);
/* Split an axis by a tree: geometry only. */
heft_status_t heft__frame_refine(heft__match_t *m, const heft__refine_t *refine,
                                 heft__frame_t *frame, bool is_first);

/* Where a target's elements go: shape, and the frame of what a match writes. */
typedef struct heft__place {
    heft_shape_t shape;
    heft__frame_t frame; /* buffer not set */
} heft__place_t;

heft_status_t heft__place_init(heft__match_t *m, const heft__rule_target_t *target,
                               heft__place_t *place);
/* The view of a frame over the axes of `order`; axes of extent 1 are left out. */
heft_status_t heft__frame_view(heft__match_t *m, const heft__frame_t *frame, const int32_t *order,
                               uint32_t n, heft__pos_t pos, heft_view_t *view_out);

/* ---- the compilation ---- */

typedef struct heft__param {
    const char *name; /* in the compilation's arena */
    uint32_t buffer;
    heft_dtype_t dtype;
    heft_shape_t shape; /* logical */
    heft__pos_t pos;    /* of the rule that wrote first */
} heft__param_t;

typedef struct heft__shared heft__shared_t; /* shared.h */

typedef struct heft__compile {
    const heft_recipe_t *recipe;
    heft__env_t env;
    heft__shared_t *shared;
    heft__names_t *names;  /* its names */
    bool takes_read_alone; /* no sources but those that are read */
    heft_tape_t *tape;
    heft_manifest_t *manifest; /* the parameters, where it is wanted */
    bool wants_manifest;
    heft__arena_t arena;
    heft__param_t *params;
    size_t n_params, cap_params;
    heft__map_t by_name;
    heft__text_t text;   /* a name being made */
    heft_dtype_t policy; /* NONE: keep what the source has */
    bool *except_on;     /* which entries of `except` hold */
    heft__span_t captures[HEFT__MAX_CAPTURES];
    int64_t axis_index[HEFT__MAX_AXES];
    int64_t loop_index[HEFT__MAX_PARTS];
    int64_t slots[HEFT__MAX_SLOTS];
    heft__faults_t *faults;
    uint32_t n_failed;  /* matches of the rule at hand */
    uint32_t n_refused; /* tensors, by `refuse` */
    heft_error_t inner; /* what `err` points to */
    heft_error_t *err;
} heft__compile_t;

/* A rule that has done nothing and should have, which is not said yet. */
typedef struct heft__idle {
    bool is_idle;
    uint32_t n_matched; /* that `when` turned away */
    const char *text;   /* of its pattern, with its values */
} heft__idle_t;

/* The tape of one rank of a recipe that is no chain, and its parameters as a manifest; either out
 * may be NULL: not wanted. */
heft_status_t heft__compile_one(const heft_recipe_t *recipe, const heft_bindings_t *bindings,
                                uint32_t rank, const heft_manifest_t *source,
                                const heft_manifest_t *destination, heft_issues_t *issues,
                                heft_tape_t **tape_out, heft_manifest_t **manifest_out,
                                heft_error_t *err);
/* Everything rule i does. */
heft_status_t heft__compile_rule(heft__compile_t *c, size_t i, heft__idle_t *idle_out);
/* The source of a name on the tape, added if it is not there. */
heft_status_t heft__compile_source(heft__compile_t *c, heft__name_t *name, uint32_t *buffer_out);
/* The pattern of a rule, with the values of lets in it. */
heft_status_t heft__make_pattern(heft__compile_t *c, const heft__rule_t *rule,
                                 heft__pattern_t *pattern_out);
/* Append the value of an expression to c->text, as in a name. */
heft_status_t heft__put_expr(heft__compile_t *c, const heft__expr_t *expr);
/* Refuse the tensors that no rule has used and that refusal i is about. */
heft_status_t heft__apply_refusal(heft__compile_t *c, size_t i);
/* List the note of a rule for one of its matches. False: out of memory. */
bool heft__note_match(heft__compile_t *c, const heft__rule_t *rule, const char *name);
/* Emit one match: frames of the sources to the targets. sources are the matched names. */
heft_status_t heft__emit(heft__compile_t *c, heft__match_t *m, heft__name_t *const *sources);
/* The name of a template under the current captures and axis indices, in c->text. */
heft_status_t heft__make_name(heft__compile_t *c, const heft__template_t *template);
/* The dtype that the policy gives a source. */
heft_dtype_t heft__policy_dtype(const heft__compile_t *c, const heft__name_t *source);
/* The parameter with the name in c->text, made if new; shape and dtype must agree. */
heft_status_t heft__param_get(heft__compile_t *c, heft__pos_t pos, heft_dtype_t dtype,
                              const heft_shape_t *shape, uint32_t *buffer_out);
/* Take what went wrong, if anything; false: one cannot go on. */
bool heft__compile_take(heft__compile_t *c, heft_status_t status);
/* "A [..] here, B [..] there": refuse. */
heft_status_t heft__shapes_differ(const heft__compile_t *c, heft__pos_t pos, const char *name,
                                  heft_dtype_t dtype, const heft_shape_t *shape,
                                  heft_dtype_t other_dtype, const heft_shape_t *other,
                                  const char *where);
bool heft__same_shape(const heft_shape_t *a, const heft_shape_t *b);
/* The forms of names that the recipe and the manifests declare are the same. */
heft_status_t heft__check_names(heft__compile_t *c);
/* The parameters as a manifest of the destination, with what `attr` says of them. */
heft_status_t heft__synthesize(heft__compile_t *c, heft_manifest_t **manifest_out);
/* Whether a manifest says how any tensor is laid out. */
bool heft__has_layouts(const heft_manifest_t *manifest);
/* Compare what both say; differences go to the faults. */
void heft__check_layouts(heft__compile_t *c, const heft_manifest_t *destination);
/* Whether a leaf that the source excludes matches. */
bool heft__is_excluded(const heft_manifest_t *source, const char *pattern);
/* Compare with the destination; parameters that no rule writes are added to the tape unwritten. */
heft_status_t heft__check_destination(heft__compile_t *c, const heft_manifest_t *destination);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes: index-notation rules that map source tensors to parameters (docs/formats/recipe.md).
 *
 * A recipe describes one destination rank at a time; `ranks N as r` says how many there are and
 * binds r.
 */
#ifndef HEFT_RECIPE_H
#define HEFT_RECIPE_H

#include "heft/model.h"
#include "heft/names.h"
#include "heft/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heft_recipe heft_recipe_t;     /* immutable */
typedef struct heft_bindings heft_bindings_t; /* confined: values for `let` names and config.* */

/*
 * All that is wrong with a recipe, not only the first: one issue for each statement, rule,
 * parameter, ... that fails. The functions that end in _all take a list of issues (NULL: none
 * wanted) and add to it; their err holds the first error and says how many there are.
 */
typedef struct heft_issues heft_issues_t; /* confined */

typedef struct heft_issue {
    heft_status_t status; /* HEFT_OK: a note */
    uint32_t line;        /* 0: no place in the text */
    uint32_t column;
    uint32_t reserved;
    const char *text; /* one line, "name:line:column: message" */
} heft_issue_t;

HEFT_API HEFT_MUST_CHECK heft_status_t heft_issues_create(heft_issues_t **issues_out,
                                                          heft_error_t *err);
HEFT_API void heft_issues_destroy(heft_issues_t *issues);
/** Issues that can be had one by one: at most 40 errors and 40 notes. */
HEFT_API uint32_t heft_issues_get_n(const heft_issues_t *issues);
/** Errors in all. */
HEFT_API uint32_t heft_issues_get_n_errors(const heft_issues_t *issues);
/** Issue i, or NULL; borrowed. Errors of a text are in its order. */
HEFT_API const heft_issue_t *heft_issues_get(const heft_issues_t *issues, uint32_t i);

/** Parse a recipe. name is used in messages ("name:line:column: ..."). HEFT_ERR_SYNTAX,
 * HEFT_ERR_NOMEM. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_parse(const char *name, const char *text,
                                                         size_t n, heft_recipe_t **recipe_out,
                                                         heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_parse_all(const char *name, const char *text,
                                                             size_t n, heft_issues_t *issues,
                                                             heft_recipe_t **recipe_out,
                                                             heft_error_t *err);
/**
 * Load a recipe from a file, or by the bare name of a shipped one ("hf-to-engine-dense"): looked up
 * in $HEFT_RECIPES and then in the install and source folders. HEFT_ERR_NOT_FOUND lists the names
 * there are.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_load(const char *name_or_path,
                                                        heft_recipe_t **recipe_out,
                                                        heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_load_all(const char *name_or_path,
                                                            heft_issues_t *issues,
                                                            heft_recipe_t **recipe_out,
                                                            heft_error_t *err);
/**
 * Several recipes as one: the first reads the source, each further one what the one before it
 * makes, the last makes the parameters. What lies between is never there: tapes are folded to
 * copies from the source to the parameters. A recipe before the last may have ranks; their
 * parameters are then named rank-0.NAME, rank-1.NAME, .. A binding is taken by every recipe that
 * declares it, one named RECIPE.NAME (the recipe's name without folders and ".heft") by that one
 * alone. A chain is used wherever a recipe is; its text holds all of theirs, each behind a line
 * `recipe "NAME"`, and parsing that text gives the chain again. The recipes are borrowed until
 * return. HEFT_ERR_ARGUMENT: none, NULL, or a name that cannot stand in quotes. HEFT_ERR_LIMIT:
 * more than 8.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_chain(const heft_recipe_t *const *recipes,
                                                         uint32_t n, heft_recipe_t **chain_out,
                                                         heft_error_t *err);
/** The recipes of a chain, in order; of any other the recipe itself, 1. Borrowed; NULL beyond the
 * end. */
HEFT_API uint32_t heft_recipe_get_n_parts(const heft_recipe_t *recipe);
HEFT_API const heft_recipe_t *heft_recipe_get_part(const heft_recipe_t *recipe, uint32_t i);
HEFT_API void heft_recipe_destroy(heft_recipe_t *recipe);
/** The text as parsed (NUL-terminated) and its name; borrowed. */
HEFT_API const char *heft_recipe_get_text(const heft_recipe_t *recipe);
HEFT_API const char *heft_recipe_get_name(const heft_recipe_t *recipe);

HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_create(heft_bindings_t **bindings_out,
                                                            heft_error_t *err);
HEFT_API void heft_bindings_destroy(heft_bindings_t *bindings);
/** Override `let name` (of one recipe of a chain: "recipe.name"); value is an integer, true/false,
 * a word, or a list as JSON ([0, 1, 2]). Last one wins. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_set(heft_bindings_t *bindings,
                                                         const char *name, const char *value,
                                                         heft_error_t *err);
/** The same with the value in a file, such as a table of which expert stands in which slot. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_load(heft_bindings_t *bindings,
                                                          const char *name, const char *path,
                                                          heft_error_t *err);
/** Take config.KEY values (nested keys by dots) from a JSON object. HEFT_ERR_FORMAT. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_set_config(heft_bindings_t *bindings,
                                                                const char *json, size_t n,
                                                                heft_error_t *err);
/** The same from a file, such as a model's config.json. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_load_config(heft_bindings_t *bindings,
                                                                 const char *path,
                                                                 heft_error_t *err);
/**
 * Take the variables of the environment that the recipe reads (env.NAME), those that are set. A
 * recipe sees no others, and nothing that changes later: bindings travel, the environment does not.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_load_env(heft_bindings_t *bindings,
                                                              const heft_recipe_t *recipe,
                                                              heft_error_t *err);
/** One of them, whatever the environment says. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_set_env(heft_bindings_t *bindings,
                                                             const char *name, const char *value,
                                                             heft_error_t *err);
/** JSON text {"let": {...}, "config": {...}, "env": {...}} and back; the string is freed with
 * heft_string_free.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_encode(const heft_bindings_t *bindings,
                                                            char **text_out, heft_error_t *err);
HEFT_API HEFT_MUST_CHECK heft_status_t heft_bindings_decode(const char *text, size_t n,
                                                            heft_bindings_t **bindings_out,
                                                            heft_error_t *err);

/** How many destination ranks the recipe describes under these bindings (1 without a `ranks`
 * statement). */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_count_ranks(const heft_recipe_t *recipe,
                                                               const heft_bindings_t *bindings,
                                                               uint32_t *n_ranks_out,
                                                               heft_error_t *err);

/**
 * Emit the tape of one destination rank. Sources are the tensors of `source`, which is finished;
 * every one of them is added as a buffer, used or not; rules do not see those that an `ignore`
 * matches. Parameters are synthesised from the rules; with a destination manifest (may be NULL)
 * they must be among its tensors, with equal shapes and dtypes, and those of its tensors that no
 * rule writes are added as parameters without a write, for the proof to name or to excuse. Errors
 * carry "name:line:column". A rule that matches nothing is refused unless it is `optional`, an
 * `ignore` likewise. HEFT_ERR_ARGUMENT: bindings that the recipe does not declare, missing ones,
 * wrong types, a rank beyond the count, a `require` that does not hold. HEFT_ERR_NAME,
 * HEFT_ERR_SHAPE: what does not fit.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_recipe_compile(const heft_recipe_t *recipe, const heft_bindings_t *bindings, uint32_t rank,
                    const heft_manifest_t *source, const heft_manifest_t *destination,
                    heft_tape_t **tape_out, heft_error_t *err);

/** The same, and list all that is wrong. What fails only because something else has failed is not
 * listed. */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_recipe_compile_all(const heft_recipe_t *recipe, const heft_bindings_t *bindings, uint32_t rank,
                        const heft_manifest_t *source, const heft_manifest_t *destination,
                        heft_issues_t *issues, heft_tape_t **tape_out, heft_error_t *err);

/**
 * The parameters of one rank as a manifest of the destination: names, dtypes, shapes, and how they
 * are laid out (`attr`), from the source's manifest alone. issues as of heft_recipe_compile_all.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t
heft_recipe_synthesize(const heft_recipe_t *recipe, const heft_bindings_t *bindings, uint32_t rank,
                       const heft_manifest_t *source, heft_issues_t *issues,
                       heft_manifest_t **manifest_out, heft_error_t *err);

/** 1, and the options that make a side's names canonical, where the recipe declares their form
 * (`names`); 0 otherwise. side: "source" or "destination". */
HEFT_API int heft_recipe_query_names(const heft_recipe_t *recipe, const char *side,
                                     heft_name_opts_t *opts_out);
/** Set the attributes that the recipe declares of a side's names, in a manifest of that side that
 * is not finished. */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_declare_names(const heft_recipe_t *recipe,
                                                                 heft_manifest_t *manifest,
                                                                 heft_error_t *err);

/** Exceptions a recipe or a contract lists, each with its reason; see plan.h. */
typedef enum heft_exception_kind {
    HEFT_EXCEPTION_UNUSED = 1,    /* source tensor that no parameter needs (`ignore`) */
    HEFT_EXCEPTION_UNTOUCHED = 2, /* parameter that a round leaves alone */
    HEFT_EXCEPTION_DERIVED = 3,   /* parameter computed by the engine from others */
    HEFT_EXCEPTION_FROZEN = 4,    /* parameter of a model that never changes */
    HEFT_EXCEPTION_ELSEWHERE = 5, /* source that another destination rank owns */
    HEFT_EXCEPTION_EQUAL = 6,     /* parameter written twice with values that must agree */
    HEFT_EXCEPTION_TOGETHER = 7 /* parameters that are one group, such as a weight and its scale */
} heft_exception_kind_t;

typedef struct heft_exception {
    heft_exception_kind_t kind;
    const char *pattern; /* whole-token name pattern: `*` any number of tokens; of `together` one or
                            more with blanks between, in which `{l}` is one token, equal in all */
    const char *reason;  /* never empty */
    const char *where;   /* "recipe:line:column", or "" */
    int32_t is_optional; /* 1: it may match nothing */
    int32_t stage;       /* of a chain: which recipe says so, the first is 0 */
    int32_t n_dims;      /* 0: of the whole tensor. Else of the indices [begin, end) alone: padding
                            of an unused source, an untouched, derived or frozen parameter */
    int32_t reserved;
    int64_t begin[HEFT_MAX_DIMS];
    int64_t end[HEFT_MAX_DIMS];
} heft_exception_t;

/** The exceptions a recipe states, in order, whatever their `when`, patterns as they are written
 * (values in braces); borrowed. */
HEFT_API uint32_t heft_recipe_get_n_exceptions(const heft_recipe_t *recipe);
HEFT_API const heft_exception_t *heft_recipe_get_exception(const heft_recipe_t *recipe, uint32_t i);

/**
 * The exceptions that hold for these bindings and this source (and destination, or NULL): those
 * whose `when` holds, but for an `optional ignore` that matches nothing. *exceptions_out has
 * *n_out entries and is freed with heft_exceptions_free; its texts are borrowed from the recipe.
 * This is what a plan takes.
 */
HEFT_API HEFT_MUST_CHECK heft_status_t heft_recipe_resolve_exceptions(
    const heft_recipe_t *recipe, const heft_bindings_t *bindings, const heft_manifest_t *source,
    const heft_manifest_t *destination, heft_exception_t **exceptions_out, uint32_t *n_out,
    heft_error_t *err);
HEFT_API void heft_exceptions_free(heft_exception_t *exceptions);

/** 1 if a dot-separated name matches a whole-token pattern (`*`: any number of whole tokens, also
 * none). */
HEFT_API int heft_name_matches(const char *pattern, const char *name);

#ifdef __cplusplus
}
#endif

#endif

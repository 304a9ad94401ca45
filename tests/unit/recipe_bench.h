/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bench for recipes: sources with values, a recipe text, and what the parameters must hold.
 *
 * The tape is run by a naive interpreter on element values (doubles), one element at a time, so
 * that nothing of the folding is involved. Values are written as text: "1 2 3", "0-3,100-103" (a
 * run), 0 for padding, ? for an element that nothing wrote.
 */
#ifndef RECIPE_BENCH_H
#define RECIPE_BENCH_H

#include "heft/recipe.h"
#include "heft_test.h"

typedef struct rb_source {
    char *name;
    heft_dtype_t dtype;
    heft_shape_t shape;
    double *values;
    int64_t n;
} rb_source_t;

typedef struct rb {
    rb_source_t sources[64];
    size_t n_sources;
    rb_source_t dests[64]; /* without values */
    size_t n_dests;
    heft_bindings_t *bindings;
    heft_tape_t *tape; /* of the last rb_run */
    double **buffers;  /* by buffer id; NAN: nothing wrote it */
    bool is_broken;    /* a temporary was read before it was written */
    size_t n_twice;    /* elements of parameters that were written again */
} rb_t;

/* Fresh state for every test (cmocka setup and teardown). */
int rb_setup(void **state);
int rb_teardown(void **state);

/* shape: "2,3", "" for a scalar. values: as above; NULL: 1, 2, 3, .. going on through the bench. */
void rb_source(rb_t *b, const char *name, heft_dtype_t dtype, const char *shape,
               const char *values);
void rb_dest(rb_t *b, const char *name, heft_dtype_t dtype, const char *shape);
void rb_set(rb_t *b, const char *name, const char *value);
void rb_config(rb_t *b, const char *json);
/* Forget sources, destination, bindings. */
void rb_clear(rb_t *b);

/* Parse, compile and run; fails the test with the message when that fails. */
void rb_run(rb_t *b, const char *text, uint32_t rank);
/* The same, and a failure is returned. */
heft_status_t rb_try(rb_t *b, const char *text, uint32_t rank, heft_error_t *err);
/* The same with a loaded recipe. */
void rb_run_recipe(rb_t *b, const heft_recipe_t *recipe, uint32_t rank);
/* A parameter of the last run. values may be NULL: shape and dtype only. */
void rb_expect(const rb_t *b, const char *name, heft_dtype_t dtype, const char *shape,
               const char *values);
/* Is a parameter another one than that? why says how. */
bool rb_differs(const rb_t *b, const char *name, heft_dtype_t dtype, const char *shape,
                const char *values, char why[256]);
/* Values of a parameter of the last run, or of a source; borrowed. Fails the test if there is none.
 */
const double *rb_values(const rb_t *b, const char *name, int64_t *n_out);
const double *rb_source_values(const rb_t *b, const char *name);
bool rb_has_param(const rb_t *b, const char *name);
uint32_t rb_n_params(const rb_t *b);
/* Parsing or compiling must fail like this. */
void rb_refuses(rb_t *b, const char *text, uint32_t rank, heft_status_t status, const char *part);
/* Manifests of what was declared, for calls of one's own; owned by the caller. */
heft_manifest_t *rb_source_manifest(const rb_t *b);
heft_manifest_t *rb_dest_manifest(const rb_t *b); /* NULL when nothing was declared */

#endif

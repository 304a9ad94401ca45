/* SPDX-License-Identifier: Apache-2.0 */
/* One match on its way to the tape, for the files that put it there. Private to this part. */
#ifndef HEFT_RECIPE_EMIT_H
#define HEFT_RECIPE_EMIT_H

#include "recipe/compile.h"

typedef struct heft__emitter {
    heft__compile_t *c;
    heft__match_t *m;
    const heft__rule_t *rule;
    heft__frame_t frames[HEFT__MAX_PARTS];
    uint32_t n_frames;
    const heft__kernel_t *kernel; /* NULL: none, or done */
    double imm;
    heft_dtype_t dtype; /* of the result */
} heft__emitter_t;

bool heft__emit_has_elements(const heft_view_t *view);
/* Read source i, for rules without or with an element-wise kernel: measure all, then place all. */
heft_status_t heft__emit_measure(heft__emitter_t *e, uint32_t i, const heft__name_t *source);
heft_status_t heft__emit_place(heft__emitter_t *e, uint32_t i, heft__name_t *source);
/* A temporary over the axes of `order`, contiguous, as a frame. */
heft_status_t heft__emit_temp(heft__emitter_t *e, const int32_t *order, uint32_t n,
                              heft_dtype_t dtype, heft__frame_t *frame);
/* How many names the axes in a target's name make; the next of them (the last axis runs fastest).
 */
heft_status_t heft__emit_count_names(heft__emitter_t *e, const heft__rule_target_t *target,
                                     int64_t *n_out);
void heft__emit_first_name(heft__emitter_t *e, const heft__rule_target_t *target);
void heft__emit_next_name(heft__emitter_t *e, const heft__rule_target_t *target);
/* What a target's elements become when they are of dtype: the parameter's shape. */
heft_shape_t heft__emit_shape(const heft_shape_t *storage, heft_dtype_t dtype);

/* ---- emit_known.c ---- */

/* Frames of the sources of `dequantise`, whose scales count blocks. */
heft_status_t heft__emit_scaled_frames(heft__emitter_t *e, heft__name_t *const *sources);
/* The sources' frames become one of floats. */
heft_status_t heft__emit_dequantised(heft__emitter_t *e);
heft_status_t heft__emit_unpacked(heft__emitter_t *e);
/* Codes and scales to the two targets. */
heft_status_t heft__emit_quantised(heft__emitter_t *e);

#endif

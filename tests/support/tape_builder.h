/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short words for building small tapes in tests and for asking a fold where an element comes from.
 * Everything fails the running test on error.
 */
#ifndef TAPE_BUILDER_H
#define TAPE_BUILDER_H

#include "tape/tape.h"

typedef struct tape_builder {
    heft_tape_t *tape;
    heft__fold_t *fold; /* after tb_fold */
    heft_error_t err;
} tape_builder_t;

void tb_init(tape_builder_t *tb);
void tb_fini(tape_builder_t *tb);

#define TB_SHAPE(...)                                                                        \
    (heft_shape_t)                                                                           \
    {                                                                                        \
        .rank = (int32_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), .extent = { \
            __VA_ARGS__                                                                      \
        }                                                                                    \
    }
#define TB_SCALAR ((heft_shape_t){ .rank = 0 })

uint32_t tb_source(tape_builder_t *tb, const char *name, heft_dtype_t dtype, heft_shape_t shape);
uint32_t tb_param(tape_builder_t *tb, const char *name, heft_dtype_t dtype, heft_shape_t shape);
uint32_t tb_temp(tape_builder_t *tb, heft_dtype_t dtype, heft_shape_t shape);

/* Views: the whole buffer, and what may be done to one. */
heft_view_t tb_all(const tape_builder_t *tb, uint32_t buffer);
heft_view_t tb_reshape(uint32_t buffer, heft_shape_t shape);
heft_view_t tb_narrow(heft_view_t v, int k, int64_t from, int64_t n);
heft_view_t tb_select(heft_view_t v, int k, int64_t i);
heft_view_t tb_swap(heft_view_t v, int a, int b);
heft_view_t tb_flip(heft_view_t v, int k);
heft_view_t tb_step(heft_view_t v, int k, int64_t step);
heft_view_t tb_expand(heft_view_t v, int k, int64_t n); /* a new dimension k of stride 0 */

void tb_copy(tape_builder_t *tb, heft_view_t dst, heft_view_t src);
void tb_fill(tape_builder_t *tb, heft_view_t dst, uint64_t bits);
void tb_fold(tape_builder_t *tb);

/* The number of pieces of a parameter, and the i-th of them. */
uint64_t tb_n_pieces(const tape_builder_t *tb, uint32_t param);
const heft__fold_piece_t *tb_piece(const tape_builder_t *tb, uint32_t param, uint64_t i);
/* The piece that writes an element of a parameter, or NULL; source s of it at that element. */
const heft__fold_piece_t *tb_find(const tape_builder_t *tb, uint32_t param, int64_t element,
                                  uint32_t s, int64_t *source_element_out);

/* Element `element` of param is a plain copy of element `from` of source. */
void tb_expect(const tape_builder_t *tb, uint32_t param, int64_t element, uint32_t source,
               int64_t from);
/* Elements first, first + 1, .. of param are plain copies of these elements of source. */
void tb_expect_run(const tape_builder_t *tb, uint32_t param, int64_t first, uint32_t source,
                   const int64_t *from, size_t n);
/* Element is this constant. */
void tb_expect_constant(const tape_builder_t *tb, uint32_t param, int64_t element, uint64_t bits);
/* Nothing writes it. */
void tb_expect_nothing(const tape_builder_t *tb, uint32_t param, int64_t element);

#define TB_EXPECT_RUN(tb, param, first, source, ...)                            \
    tb_expect_run((tb), (param), (first), (source), (int64_t[]){ __VA_ARGS__ }, \
                  sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of known kernels: block by block and element by element, as their page says it. */
#ifndef REF_KNOWN_H
#define REF_KNOWN_H

#include "tape/tape.h"

/* Run an opaque write that is a known kernel; data[b] are the bytes of buffer b of the tape. */
void ref_known(const heft_tape_t *tape, uint8_t *const *data, const heft__write_t *write);

/* Code and scale (as f32 bits) of one rule: amax and x are f32. */
float ref_known_scale(heft__scale_rule_t rule, float amax);
uint8_t ref_known_code(heft__scale_rule_t rule, float amax, float x);

#endif

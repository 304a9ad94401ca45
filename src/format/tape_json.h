/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes as JSON (docs/formats/tape.md): alone, or within a contract, where manifests already say
 * what the sources and parameters are.
 */
#ifndef HEFT_FORMAT_TAPE_JSON_H
#define HEFT_FORMAT_TAPE_JSON_H

#include "base/base.h"
#include "heft/tape.h"
#include "tape/tape.h"

enum { HEFT__TAPE_FORMAT = 1 };

struct json_t;

/* Append a tape in normal form, without a line's end. has_names: with its sources and parameters.
 */
heft_status_t heft__tape_put(heft__text_t *out, const heft_tape_t *normal, bool has_names,
                             heft_error_t *err);
/* Of a tape in normal form. */
heft_status_t heft__tape_make_digest(const heft_tape_t *normal,
                                     char digest_out[HEFT_TAPE_DIGEST_BYTES], heft_error_t *err);

/* A tape from a value that was parsed already. names: NULL, or an empty tape with all sources and
 * then all parameters by name; it is taken, filled and given back, or destroyed on failure. */
heft_status_t heft__tape_decode_json(struct json_t *root, heft_tape_t *names,
                                     heft_tape_t **tape_out, heft_error_t *err);

#endif

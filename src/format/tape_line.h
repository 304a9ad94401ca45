/* SPDX-License-Identifier: Apache-2.0 */
/* One write of a tape as a line of text (docs/formats/tape.md), and back. */
#ifndef HEFT_FORMAT_TAPE_LINE_H
#define HEFT_FORMAT_TAPE_LINE_H

#include "base/base.h"
#include "heft/tape.h"
#include "tape/tape.h"

/* What a line refers to by number. Buffers of the tape: sources, then parameters, then temporaries,
 * as in the normal form. */
typedef struct heft__tape_words {
    uint32_t n_sources;
    uint32_t n_params;
    uint32_t n_temps;
    const char **ops; /* names of opaque writes */
    uint32_t n_ops;
    const char **notes;
    uint32_t n_notes;
} heft__tape_words_t;

#define HEFT__NO_WORD UINT32_MAX

/* Append a write of a tape in normal form; op is the number of its name, if it is opaque. */
void heft__tape_line_put(heft__text_t *out, const heft__tape_words_t *words,
                         const heft__write_t *write, uint32_t op);
/* Append what a line ends with where the write has a note. */
void heft__tape_line_put_note(heft__text_t *out, uint32_t note);

/* Views of the line at hand, kept from line to line: {0} before the first, fini after the last. */
typedef struct heft__tape_scratch {
    heft_view_t *dsts;
    heft_view_t *srcs;
    size_t cap_dsts;
    size_t cap_srcs;
} heft__tape_scratch_t;

void heft__tape_scratch_fini(heft__tape_scratch_t *scratch);

/* Record what a line says. HEFT_ERR_FORMAT says what was expected at which byte; what recording a
 * write can return. */
heft_status_t heft__tape_line_read(const char *line, const heft__tape_words_t *words,
                                   heft__tape_scratch_t *scratch, heft_tape_t *tape,
                                   heft_error_t *err);

#endif

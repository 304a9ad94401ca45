/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tape without the sources that no write reads. One rank of many reads few of the tensors that a
 * recipe is compiled against; a plan of that rank alone need not look at the others.
 */
#include "tape/tape.h"

void heft__tape_mark_read(const heft_tape_t *tape, bool *is_read)
{
    for (size_t w = 0; w < tape->n_writes; w++) {
        for (uint32_t k = 0; k < tape->writes[w].n_srcs; k++) {
            is_read[tape->writes[w].srcs[k].buffer] = true;
        }
    }
}

static heft_status_t copy_read(const heft_tape_t *tape, const bool *is_read, uint32_t *ids,
                               heft_tape_t *to, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t b = 0; b < tape->n_buffers && status == HEFT_OK; b++) {
        if (is_read[b] || tape->buffers[b].kind != HEFT_BUFFER_SOURCE) {
            status = heft__tape_add_storage(to, &tape->buffers[b], &ids[b], err);
        }
    }
    if (status == HEFT_OK && tape->title != NULL) {
        status = heft__tape_set_title(to, tape->title, err);
    }
    return status == HEFT_OK ? heft__tape_play(to, tape, ids, NULL, err) : status;
}

heft_status_t heft_tape_prune(const heft_tape_t *tape, heft_tape_t **pruned_out, heft_error_t *err)
{
    if (tape == NULL || pruned_out == NULL) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "no tape or output");
    }
    if (tape->n_firsts > 0) {
        return heft__error_set(err, HEFT_ERR_UNSUPPORTED,
                               "a tape of several parts keeps its sources: each part is proven "
                               "with all of them");
    }
    heft_tape_t *pruned = NULL;
    bool *is_read = heft__calloc(tape->n_buffers + 1, sizeof *is_read);
    uint32_t *ids = heft__calloc(tape->n_buffers + 1, sizeof *ids);
    heft_status_t status = is_read != NULL && ids != NULL
                               ? heft_tape_create(&pruned, err)
                               : heft__error_nomem(err, tape->n_buffers * sizeof *ids);
    if (status == HEFT_OK) {
        heft__tape_mark_read(tape, is_read);
        status = copy_read(tape, is_read, ids, pruned, err);
    }
    heft__free(is_read);
    heft__free(ids);
    if (status != HEFT_OK) {
        heft_tape_destroy(pruned);
        return status;
    }
    *pruned_out = pruned;
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tapes as one: the parameters of the first (of several ranks, each on a tape of its own) are
 * the sources of the second. They become temporaries, so that folding runs straight from the first
 * one's sources to the second one's parameters and nothing in between is ever there.
 *
 * The joined tape keeps what it was made of: whether the second tape uses all that the first one
 * makes shows only there.
 */
#include "tape/tape.h"

#include <stdio.h>
#include <string.h>

static heft_status_t add_as(heft_tape_t *tape, const heft_buffer_info_t *info,
                            heft_buffer_kind_t kind, uint32_t *buffer_out, heft_error_t *err)
{
    heft_buffer_info_t given = *info;
    given.kind = kind;
    return heft__tape_add_storage(tape, &given, buffer_out, err);
}

heft_status_t heft__tape_play(heft_tape_t *tape, const heft_tape_t *from, const uint32_t *ids,
                              const uint8_t *wanted, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (size_t i = 0; i < from->n_writes && status == HEFT_OK; i++) {
        if (wanted == NULL || wanted[i] != 0) {
            status = heft__tape_repeat(tape, &from->writes[i], ids, err);
        }
    }
    return status;
}

/* The first tapes' sources under their names, shared by the ranks; the rest become temporaries.
 * made: their parameters, as the second tape names them. */
static heft_status_t add_first(heft_tape_t *tape, const heft_tape_t *first, const char *prefix,
                               heft__map_t *made, uint32_t *ids, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    heft__text_t name;
    heft__text_init(&name);
    for (size_t i = 0; i < first->n_buffers && status == HEFT_OK; i++) {
        heft_buffer_info_t info = first->buffers[i];
        if (info.kind == HEFT_BUFFER_SOURCE) {
            ids[i] = heft__map_get(&tape->sources, info.name, strlen(info.name));
            if (ids[i] == HEFT__MAP_NONE) {
                status = add_as(tape, &info, info.kind, &ids[i], err);
            }
            continue;
        }
        bool is_made = info.kind == HEFT_BUFFER_PARAM;
        heft__text_reset(&name);
        heft__text_printf(&name, "%s%s", is_made ? prefix : "", info.name);
        if (name.failed) {
            status = heft__error_nomem(err, name.len);
            break;
        }
        info.name = name.data;
        status = add_as(tape, &info, HEFT_BUFFER_TEMP, &ids[i], err);
        if (status == HEFT_OK && is_made) {
            const char *kept = tape->buffers[ids[i]].name;
            status = heft__map_put(made, kept, strlen(kept), ids[i]);
            status = status == HEFT_OK ? status : heft__error_nomem(err, name.len);
        }
    }
    heft__text_fini(&name);
    return status;
}

void heft__rank_prefix(uint32_t n_ranks, uint32_t rank, char out[24])
{
    out[0] = '\0';
    if (n_ranks > 1) {
        (void)snprintf(out, 24, "rank-%u.", (unsigned)rank);
    }
}

static heft_status_t play_firsts(heft_tape_t *tape, heft_tape_t *const *firsts, uint32_t n_firsts,
                                 heft__map_t *made, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t r = 0; r < n_firsts && status == HEFT_OK; r++) {
        const heft_tape_t *first = firsts[r];
        char prefix[24];
        heft__rank_prefix(n_firsts, r, prefix);
        uint32_t *ids = heft__calloc(first->n_buffers + 1, sizeof *ids);
        status = ids != NULL ? add_first(tape, first, prefix, made, ids, err)
                             : heft__error_nomem(err, first->n_buffers * sizeof *ids);
        if (status == HEFT_OK) {
            status = heft__tape_play(tape, first, ids, NULL, err);
        }
        heft__free(ids);
    }
    return status;
}

/* is_read: which of the second one's buffers count; NULL: all. */
static heft_status_t add_second(heft_tape_t *tape, const heft_tape_t *second, const bool *is_read,
                                const heft__map_t *made, uint32_t *ids, heft_error_t *err)
{
    for (size_t i = 0; i < second->n_buffers; i++) {
        const heft_buffer_info_t *info = &second->buffers[i];
        if (info->kind != HEFT_BUFFER_SOURCE) {
            heft_status_t status = add_as(tape, info, info->kind, &ids[i], err);
            if (status != HEFT_OK) {
                return status;
            }
            continue;
        }
        ids[i] = HEFT__MAP_NONE;
        if (is_read != NULL && !is_read[i]) {
            continue;
        }
        ids[i] = heft__map_get(made, info->name, strlen(info->name));
        if (ids[i] == HEFT__MAP_NONE || tape->buffers[ids[i]].dtype != info->dtype ||
            tape->buffers[ids[i]].n_elems != info->n_elems) {
            return heft__error_set(err, HEFT_ERR_NAME,
                                   "joined tapes: the first one does not make \"%s\" as the second "
                                   "one reads it",
                                   info->name);
        }
    }
    return HEFT_OK;
}

heft_status_t heft__tape_begin_join(heft_tape_t *const *firsts, uint32_t n_firsts,
                                    const heft_tape_t *second, bool is_narrow,
                                    heft_tape_t **tape_out, uint32_t **ids_out, heft_error_t *err)
{
    heft_tape_t *tape = NULL;
    heft__map_t made;
    heft__map_init(&made);
    uint32_t *ids = heft__calloc(second->n_buffers + 1, sizeof *ids);
    bool *is_read = heft__calloc(second->n_buffers + 1, sizeof *is_read);
    heft_status_t status = ids != NULL && is_read != NULL
                               ? heft_tape_create(&tape, err)
                               : heft__error_nomem(err, second->n_buffers * sizeof *ids);
    if (status == HEFT_OK) {
        status = play_firsts(tape, firsts, n_firsts, &made, err);
    }
    if (status == HEFT_OK) {
        heft__tape_mark_read(second, is_read);
        status = add_second(tape, second, is_narrow ? is_read : NULL, &made, ids, err);
    }
    heft__free(is_read);
    heft__map_fini(&made);
    if (status != HEFT_OK) {
        heft__free(ids);
        heft_tape_destroy(tape);
        return status;
    }
    *tape_out = tape;
    *ids_out = ids;
    return HEFT_OK;
}

heft_status_t heft__tape_join(heft_tape_t **firsts, uint32_t n_firsts, heft_tape_t *second,
                              bool is_narrow, heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = NULL;
    uint32_t *ids = NULL;
    heft_status_t status =
        heft__tape_begin_join(firsts, n_firsts, second, is_narrow, &tape, &ids, err);
    if (status == HEFT_OK) {
        status = heft__tape_play(tape, second, ids, NULL, err);
    }
    heft__free(ids);
    if (status != HEFT_OK) {
        heft_tape_destroy(tape);
        return status;
    }
    tape->firsts = firsts;
    tape->n_firsts = n_firsts;
    tape->second = second;
    tape->is_narrow = is_narrow;
    *tape_out = tape;
    return HEFT_OK;
}

heft_status_t heft_tape_chain(heft_tape_t *first, heft_tape_t *second, heft_tape_t **chain_out,
                              heft_error_t *err)
{
    if (first == NULL || second == NULL || first == second) {
        return heft__error_set(err, HEFT_ERR_ARGUMENT, "a chain is of two tapes");
    }
    heft_tape_t **firsts = heft__calloc(1, sizeof(heft_tape_t *));
    if (firsts == NULL) {
        return heft__error_nomem(err, sizeof(heft_tape_t *));
    }
    firsts[0] = first;
    heft_status_t status = heft__tape_join(firsts, 1, second, false, chain_out, err);
    if (status != HEFT_OK) {
        heft__free(firsts);
    }
    return status;
}

void heft__tape_destroy_parts(heft_tape_t *tape)
{
    for (uint32_t i = 0; i < tape->n_firsts; i++) {
        heft_tape_destroy(tape->firsts[i]);
    }
    heft__free(tape->firsts);
    heft_tape_destroy(tape->second);
}

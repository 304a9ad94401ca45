/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several models on one rank as one tape. Buffers are taken over model by model; an alias gets the
 * number of the buffer that it is the storage of, and its writes are dropped once fold has shown
 * that they would leave the same. What reads an alias reads what the first model wrote there.
 */
#include "tape/tape.h"

#include <string.h>

typedef struct joiner {
    const heft_model_part_t *parts;
    uint32_t n_parts;
    const heft_model_alias_t *aliases;
    uint32_t n_aliases;
    heft_tape_t *out;
    uint32_t **numbers;   /* by part: of its buffers in the result */
    heft__fold_t **folds; /* by part, where an alias needs it */
    heft__text_t name;    /* scratch */
    heft_error_t *err;
} joiner_t;

/* ---- buffers ---- */

static const heft_model_alias_t *find_alias(const joiner_t *j, uint32_t part, const char *param)
{
    for (uint32_t i = 0; i < j->n_aliases; i++) {
        if (j->aliases[i].part == part && strcmp(j->aliases[i].param, param) == 0) {
            return &j->aliases[i];
        }
    }
    return NULL;
}

static bool is_alike(const heft_buffer_info_t *a, const heft_buffer_info_t *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.extent, b->shape.extent,
                  (size_t)a->shape.rank * sizeof a->shape.extent[0]) == 0;
}

static heft_status_t refuse_shapes(const joiner_t *j, uint32_t part, const char *what,
                                   const char *name)
{
    return heft__error_set(j->err, HEFT_ERR_SHAPE,
                           "model \"%.40s\": %s \"%.120s\" has another shape or dtype than in a "
                           "model before",
                           j->parts[part].role, what, name);
}

static heft_status_t take_source(joiner_t *j, uint32_t part, const heft_buffer_info_t *info,
                                 uint32_t *number)
{
    if (heft_tape_find_buffer(j->out, HEFT_BUFFER_SOURCE, info->name, number, NULL) != HEFT_OK) {
        return heft__tape_add_storage(j->out, info, number, j->err);
    }
    return is_alike(&j->out->buffers[*number], info) ? HEFT_OK
                                                     : refuse_shapes(j, part, "source", info->name);
}

/* The buffer that an alias is the storage of: its model has been taken before. */
static heft_status_t take_alias(joiner_t *j, const heft_model_alias_t *alias,
                                const heft_buffer_info_t *info, uint32_t *number)
{
    uint32_t buffer = 0;
    const heft_tape_t *of = j->parts[alias->of_part].tape;
    heft_status_t status =
        heft_tape_find_buffer(of, HEFT_BUFFER_PARAM, alias->of_param, &buffer, j->err);
    if (status != HEFT_OK) {
        return status;
    }
    *number = j->numbers[alias->of_part][buffer];
    return is_alike(&of->buffers[buffer], info)
               ? HEFT_OK
               : refuse_shapes(j, alias->part, "parameter", info->name);
}

static heft_status_t take_param(joiner_t *j, uint32_t part, const heft_buffer_info_t *info,
                                uint32_t *number)
{
    const heft_model_alias_t *alias = find_alias(j, part, info->name);
    if (alias != NULL) {
        return take_alias(j, alias, info, number);
    }
    heft_buffer_info_t named = *info;
    const char *role = j->parts[part].role;
    heft__text_reset(&j->name);
    heft__text_printf(&j->name, "%s%s%s", role, role[0] != '\0' ? "." : "", info->name);
    if (j->name.failed) {
        return heft__error_nomem(j->err, j->name.len);
    }
    named.name = j->name.data;
    return heft__tape_add_storage(j->out, &named, number, j->err);
}

static heft_status_t take_buffers(joiner_t *j, uint32_t part)
{
    const heft_tape_t *tape = j->parts[part].tape;
    heft_status_t status = HEFT_OK;
    j->numbers[part] = heft__calloc(tape->n_buffers + 1, sizeof *j->numbers[part]);
    if (j->numbers[part] == NULL) {
        return heft__error_nomem(j->err, tape->n_buffers * sizeof *j->numbers[part]);
    }
    for (size_t b = 0; b < tape->n_buffers && status == HEFT_OK; b++) {
        const heft_buffer_info_t *info = &tape->buffers[b];
        uint32_t *number = &j->numbers[part][b];
        if (info->kind == HEFT_BUFFER_SOURCE) {
            status = take_source(j, part, info, number);
        } else if (info->kind == HEFT_BUFFER_PARAM) {
            status = take_param(j, part, info, number);
        } else if (j->parts[part].is_frozen == 0) {
            status = heft__tape_add_storage(j->out, info, number, j->err);
        }
    }
    return status;
}

/* ---- aliases: filled alike ---- */

static bool same_source(const heft_tape_t *a, const heft__fold_src_t *x, const heft_tape_t *b,
                        const heft__fold_src_t *y, size_t n_strides)
{
    return x->opaque_write == HEFT__NO_WRITE && y->opaque_write == HEFT__NO_WRITE &&
           strcmp(a->buffers[x->buffer].name, b->buffers[y->buffer].name) == 0 &&
           x->offset == y->offset && memcmp(x->stride, y->stride, n_strides) == 0;
}

static bool same_piece(const heft_tape_t *a, const heft__fold_piece_t *x, const heft_tape_t *b,
                       const heft__fold_piece_t *y)
{
    const size_t bytes = (size_t)x->rank * sizeof x->extent[0];
    bool is_same = x->rank == y->rank && x->n_srcs == y->n_srcs && x->n_ops == y->n_ops &&
                   x->dst_offset == y->dst_offset && memcmp(x->extent, y->extent, bytes) == 0 &&
                   memcmp(x->dst_stride, y->dst_stride, bytes) == 0 &&
                   (x->n_ops == 0 || memcmp(x->ops, y->ops, x->n_ops * sizeof *x->ops) == 0);
    for (uint32_t s = 0; s < x->n_srcs && is_same; s++) {
        is_same = same_source(a, &x->srcs[s], b, &y->srcs[s], bytes);
    }
    return is_same;
}

static heft_status_t fold_part(joiner_t *j, uint32_t part)
{
    return j->folds[part] != NULL
               ? HEFT_OK
               : heft__fold_create(j->parts[part].tape, NULL, &j->folds[part], j->err);
}

/* A model that leaves the alias to the other one is well, too. */
static heft_status_t check_alias(joiner_t *j, const heft_model_alias_t *alias)
{
    const heft_tape_t *a = j->parts[alias->of_part].tape;
    const heft_tape_t *b = j->parts[alias->part].tape;
    uint32_t x = 0;
    uint32_t y = 0;
    heft_status_t status = heft_tape_find_buffer(b, HEFT_BUFFER_PARAM, alias->param, &y, j->err);
    if (status == HEFT_OK) {
        status = heft_tape_find_buffer(a, HEFT_BUFFER_PARAM, alias->of_param, &x, j->err);
    }
    status = status == HEFT_OK ? fold_part(j, alias->of_part) : status;
    status = status == HEFT_OK ? fold_part(j, alias->part) : status;
    if (status != HEFT_OK) {
        return status;
    }
    uint64_t n = 0;
    uint64_t m = 0;
    const heft__fold_piece_t *first = heft__fold_get_pieces(j->folds[alias->of_part], x, &n);
    const heft__fold_piece_t *second = heft__fold_get_pieces(j->folds[alias->part], y, &m);
    bool is_same = m == 0 || n == m;
    for (uint64_t i = 0; i < m && is_same; i++) {
        is_same = same_piece(a, &first[i], b, &second[i]);
    }
    return is_same ? HEFT_OK
                   : heft__error_set(j->err, HEFT_ERR_MISMATCH,
                                     "parameter \"%.80s\" of model \"%.40s\" is the storage of "
                                     "\"%.80s\", and is filled otherwise",
                                     alias->param, j->parts[alias->part].role, alias->of_param);
}

/* ---- writes ---- */

static bool is_alias(const joiner_t *j, uint32_t part, uint32_t buffer)
{
    const heft_buffer_info_t *info = &j->parts[part].tape->buffers[buffer];
    return info->kind == HEFT_BUFFER_PARAM && find_alias(j, part, info->name) != NULL;
}

static heft_status_t take_write(joiner_t *j, uint32_t part, const heft__write_t *write)
{
    for (uint32_t i = 0; i < write->n_dsts; i++) {
        if (!is_alias(j, part, write->dsts[i].buffer)) {
            continue;
        }
        if (write->kind != HEFT_WRITE_OPAQUE) {
            return HEFT_OK; /* the first model writes it */
        }
        return heft__error_set(j->err, HEFT_ERR_UNSUPPORTED,
                               "model \"%.40s\": operation \"%.80s\" writes %s, which is another "
                               "model's storage",
                               j->parts[part].role, write->op,
                               heft__tape_label(j->parts[part].tape, write->dsts[i].buffer).text);
    }
    return heft__tape_repeat(j->out, write, j->numbers[part], j->err);
}

static heft_status_t take_writes(joiner_t *j, uint32_t part)
{
    const heft_tape_t *tape = j->parts[part].tape;
    heft_status_t status = HEFT_OK;
    for (size_t w = 0; w < tape->n_writes && status == HEFT_OK && j->parts[part].is_frozen == 0;
         w++) {
        status = take_write(j, part, &tape->writes[w]);
    }
    return status;
}

/* ---- all ---- */

static heft_status_t check_parts(const joiner_t *j)
{
    for (uint32_t p = 0; p < j->n_parts; p++) {
        const heft_model_part_t *part = &j->parts[p];
        if (part->role == NULL || part->tape == NULL || part->is_frozen > 1 ||
            part->reserved != 0) {
            return heft__error_set(j->err, HEFT_ERR_ARGUMENT,
                                   "model %u needs a role and a tape, frozen 0 or 1, reserved 0",
                                   p);
        }
        for (uint32_t k = 0; k < p; k++) {
            if (strcmp(j->parts[k].role, part->role) == 0) {
                return heft__error_set(j->err, HEFT_ERR_EXISTS,
                                       "models %u and %u are both \"%.80s\"", k, p, part->role);
            }
        }
    }
    for (uint32_t i = 0; i < j->n_aliases; i++) {
        const heft_model_alias_t *alias = &j->aliases[i];
        if (alias->part >= j->n_parts || alias->of_part >= alias->part || alias->param == NULL ||
            alias->of_param == NULL) {
            return heft__error_set(j->err, HEFT_ERR_ARGUMENT,
                                   "alias %u: of a parameter of an earlier model, by name", i);
        }
    }
    return HEFT_OK;
}

static heft_status_t join(joiner_t *j)
{
    heft_status_t status = check_parts(j);
    status = status == HEFT_OK ? heft_tape_create(&j->out, j->err) : status;
    for (uint32_t i = 0; i < j->n_aliases && status == HEFT_OK; i++) {
        status = check_alias(j, &j->aliases[i]);
    }
    for (uint32_t p = 0; p < j->n_parts && status == HEFT_OK; p++) {
        status = take_buffers(j, p);
        status = status == HEFT_OK ? take_writes(j, p) : status;
    }
    return status;
}

heft_status_t heft_tape_join_models(const heft_model_part_t *parts, uint32_t n_parts,
                                    const heft_model_alias_t *aliases, uint32_t n_aliases,
                                    heft_tape_t **tape_out, heft_error_t *err)
{
    joiner_t j = {
        .parts = parts, .n_parts = n_parts, .aliases = aliases, .n_aliases = n_aliases, .err = err
    };
    heft__text_init(&j.name);
    j.numbers = heft__calloc((size_t)n_parts + 1, sizeof(uint32_t *));
    j.folds = heft__calloc((size_t)n_parts + 1, sizeof(heft__fold_t *));
    heft_status_t status = j.numbers != NULL && j.folds != NULL
                               ? join(&j)
                               : heft__error_nomem(err, n_parts * sizeof(uint32_t *));
    for (uint32_t p = 0; p < n_parts && j.numbers != NULL && j.folds != NULL; p++) {
        heft__free(j.numbers[p]);
        heft__fold_destroy(j.folds[p]);
    }
    heft__free(j.numbers);
    heft__free(j.folds);
    heft__text_fini(&j.name);
    if (status != HEFT_OK) {
        heft_tape_destroy(j.out);
        return status;
    }
    *tape_out = j.out;
    return HEFT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of joined tapes: the tapes of a chain of recipes, whose first part makes what the second
 * one reads. What is run is folded from the joined tape alone. But whether the first part covers
 * what it makes, and whether the second uses all of it, shows only in each by itself. So each part
 * is proven as if its checkpoint were there; then the whole, in which the exceptions of the parts
 * speak of other names:
 *
 *   - what the second part ignores excuses the sources it would have been made of;
 *   - where the first part writes a tensor twice and `equal` wants both values compared, every
 *     parameter that comes of the tensor must be the same with either value. The second part is
 *     played once for each other value before it is played for good: its parameters are then
 * written twice as well, and the plan has checks of them.
 */
#include "plan/plan.h"

#include <string.h>

/* Exceptions, some of which are of a set of names and not of a pattern. Texts are the caller's. */
typedef struct rules {
    heft_exception_t *items;
    heft__map_t **names; /* by item; NULL: its pattern */
    uint32_t n;
} rules_t;

/* A part proven, or a whole. */
typedef struct proven {
    heft_plan_t *plan;
    heft_report_t *report;
    rules_t rules;       /* what it was proven with */
    heft_tape_t **tapes; /* those that were folded; NULL: the ones given */
    uint32_t n_tapes;
} proven_t;

typedef struct job {
    const heft_tape_t *const *tapes;
    uint32_t n_tapes;
    uint32_t first_rank;
    int32_t stage;  /* of the first part among the recipes of the chain */
    bool is_placed; /* the tapes put whole tensors together, and are no recipe's */
    const heft_plan_opts_t *opts;
    heft_error_t *err;
} job_t;

/* ---- life ---- */

static heft_status_t rules_init(rules_t *rules, uint32_t most, heft_error_t *err)
{
    rules->items = heft__calloc((size_t)most + 1, sizeof *rules->items);
    rules->names = heft__calloc((size_t)most + 1, sizeof(heft__map_t *));
    rules->n = 0;
    return rules->items != NULL && rules->names != NULL
               ? HEFT_OK
               : heft__error_nomem(err, most * sizeof *rules->items);
}

/* A set of names, with their texts: it may outlive the plan that they are of. */
typedef struct names {
    heft__map_t map; /* first, so that whoever looks into it need not know the rest */
    heft__arena_t texts;
} names_t;

static void names_destroy(heft__map_t *map)
{
    names_t *names = (names_t *)map;
    if (names != NULL) {
        heft__map_fini(&names->map);
        heft__arena_fini(&names->texts);
        heft__free(names);
    }
}

static void rules_fini(rules_t *rules)
{
    for (uint32_t i = 0; rules->names != NULL && i < rules->n; i++) {
        names_destroy(rules->names[i]);
    }
    heft__free(rules->names);
    heft__free(rules->items);
}

static void proven_fini(proven_t *p)
{
    heft_plan_destroy(p->plan);
    heft_report_destroy(p->report);
    rules_fini(&p->rules);
    for (uint32_t r = 0; p->tapes != NULL && r < p->n_tapes; r++) {
        heft_tape_destroy(p->tapes[r]);
    }
    heft__free(p->tapes);
}

/* ---- sets of names ---- */

static heft_status_t add_name(heft__map_t *map, const char *name, heft_error_t *err)
{
    names_t *names = (names_t *)map;
    const size_t len = strlen(name);
    if (heft__map_get(map, name, len) != HEFT__MAP_NONE) {
        return HEFT_OK;
    }
    const char *kept = heft__arena_strndup(&names->texts, name, len);
    return kept != NULL && heft__map_put(map, kept, len, 0) == HEFT_OK
               ? HEFT_OK
               : heft__error_nomem(err, len);
}

static bool rule_matches(const rules_t *rules, uint32_t i, const char *name)
{
    return heft__names_match(rules->names[i], rules->items[i].pattern, name);
}

/* A rule of the whole: whether it has anything to excuse has been judged in its part. */
static heft__map_t *add_rule(rules_t *rules, const heft_exception_t *exception, bool with_names)
{
    names_t *names = with_names ? heft__calloc(1, sizeof *names) : NULL;
    if (names != NULL) {
        heft__map_init(&names->map);
        heft__arena_init(&names->texts, 1024);
    }
    rules->items[rules->n] = *exception;
    rules->items[rules->n].is_optional = 1;
    rules->names[rules->n++] = names != NULL ? &names->map : NULL;
    return names != NULL ? &names->map : NULL;
}

/* ---- the parts ---- */

static heft_status_t prove(const job_t *job, proven_t *out);

/* Of what several ranks hold each element is read from one. */
static const heft_exception_t replicas = { .kind = HEFT_EXCEPTION_ELSEWHERE,
                                           .pattern = "*",
                                           .reason = "another rank holds the same",
                                           .where = "",
                                           .is_optional = 1 };

/* A part that is a recipe by itself, with the exceptions that it states. */
static heft_status_t prove_alone(const job_t *job, proven_t *out)
{
    heft_status_t status = rules_init(&out->rules, job->opts->n_exceptions + 1, job->err);
    if (status == HEFT_OK && job->is_placed) {
        out->rules.items[out->rules.n++] = replicas;
    }
    for (uint32_t i = 0; i < job->opts->n_exceptions && status == HEFT_OK && !job->is_placed; i++) {
        if (job->opts->exceptions[i].stage == job->stage) {
            out->rules.items[out->rules.n++] = job->opts->exceptions[i];
        }
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_plan_opts_t opts = *job->opts;
    opts.exceptions = out->rules.items;
    opts.n_exceptions = out->rules.n;
    return heft__plan_create_one(job->tapes, job->n_tapes, job->first_rank, &opts, NULL, &out->plan,
                                 &out->report, job->err);
}

/* The message of a part's failure says whose it is. */
static heft_status_t prove_part(const job_t *job, proven_t *out)
{
    heft_status_t status = prove(job, out);
    const heft_tape_t *tape = job->tapes[0];
    if (status == HEFT_OK || tape->second != NULL || tape->title == NULL) {
        return status;
    }
    if (out->report != NULL && !heft__report_set_title(out->report, tape->title)) {
        return heft__error_nomem(job->err, strlen(tape->title));
    }
    return heft__plan_name_error(job->err, status, "recipe", tape->title);
}

/* The first part, whole; then what stands behind it. */
static heft_status_t prove_parts(const job_t *job, proven_t *first, proven_t *rest)
{
    heft_plan_opts_t opts = *job->opts;
    opts.partial = 0;
    job_t part = { .tapes = (const heft_tape_t *const *)job->tapes[0]->firsts,
                   .n_tapes = job->tapes[0]->n_firsts,
                   .stage = job->stage,
                   .is_placed = job->tapes[0]->is_placed,
                   .opts = &opts,
                   .err = job->err };
    heft_status_t status = prove_part(&part, first);
    if (status != HEFT_OK) {
        return status;
    }
    const heft_tape_t **seconds = heft__calloc(job->n_tapes, sizeof(heft_tape_t *));
    if (seconds == NULL) {
        return heft__error_nomem(job->err, job->n_tapes * sizeof(heft_tape_t *));
    }
    for (uint32_t r = 0; r < job->n_tapes; r++) {
        seconds[r] = job->tapes[r]->second;
    }
    part = *job;
    part.tapes = seconds;
    part.stage = job->stage + (job->tapes[0]->is_placed ? 0 : 1);
    status = prove_part(&part, rest);
    heft__free(seconds);
    return status;
}

/* ---- the first part's checks: other values of what it makes ---- */

/* Of each parameter of the first part, how many other values there are to be compared, and which of
 * them each check belongs to: checks of different elements share one. */
typedef struct others {
    uint32_t *n;      /* by slot */
    uint32_t **level; /* by rank: of each check */
    uint32_t n_ranks;
    uint32_t most;
    heft__map_t slot_of; /* the parameters as the second part names them */
    heft__arena_t arena; /* those names */
} others_t;

static void others_fini(others_t *o)
{
    for (uint32_t r = 0; o->level != NULL && r < o->n_ranks; r++) {
        heft__free(o->level[r]);
    }
    heft__free(o->level);
    heft__free(o->n);
    heft__map_fini(&o->slot_of);
    heft__arena_fini(&o->arena);
}

static heft_view_t dst_view(const heft_piece_t *piece, uint32_t buffer)
{
    heft_view_t view = { .buffer = buffer, .rank = piece->rank, .offset = piece->dst_offset };
    memcpy(view.extent, piece->extent, sizeof view.extent);
    memcpy(view.stride, piece->dst_stride, sizeof view.stride);
    return view;
}

/* The first level none of whose checks before i, of the same parameter, meets check i. */
static heft_status_t find_level(const heft__plan_rank_t *rank, uint64_t begin, uint64_t i,
                                uint32_t *level, heft_error_t *err)
{
    heft__region_t mine;
    heft_view_t view = dst_view(&rank->checks[i], 0);
    heft_status_t status = heft__region_from_view(&view, &mine, err);
    level[i] = 0;
    for (uint64_t k = begin; k < i && status == HEFT_OK; k++) {
        heft__region_t other;
        bool meets = false;
        view = dst_view(&rank->checks[k], 0);
        status = level[k] == level[i] ? heft__region_from_view(&view, &other, err) : HEFT_OK;
        if (status == HEFT_OK && level[k] == level[i]) {
            status = heft__region_overlaps(&mine, &other, &meets, err);
        }
        if (meets) {
            level[i]++;
            k = begin - 1; /* from the first again */
        }
    }
    return status;
}

static heft_status_t add_others(others_t *o, const heft_plan_t *first, uint32_t r,
                                heft_error_t *err)
{
    const heft__plan_rank_t *rank = &first->ranks[r];
    char prefix[24];
    heft__text_t name;
    heft_status_t status = HEFT_OK;
    heft__rank_prefix(first->n_ranks, r, prefix);
    heft__text_init(&name);
    o->level[r] = heft__calloc(rank->n_checks + 1, sizeof *o->level[r]);
    if (o->level[r] == NULL) {
        return heft__error_nomem(err, rank->n_checks * sizeof *o->level[r]);
    }
    for (uint32_t p = 0; p < rank->n_params && status == HEFT_OK; p++) {
        const uint32_t slot = rank->first_slot + p;
        const uint64_t begin = rank->first_check != NULL ? rank->first_check[p] : 0;
        const uint64_t end = rank->first_check != NULL ? rank->first_check[p + 1] : 0;
        heft__text_reset(&name);
        heft__text_printf(&name, "%s%s", prefix, rank->params[p].name);
        const char *kept = name.failed ? NULL : heft__arena_strndup(&o->arena, name.data, name.len);
        if (kept == NULL || heft__map_put(&o->slot_of, kept, name.len, slot) != HEFT_OK) {
            status = heft__error_nomem(err, name.len);
        }
        for (uint64_t i = begin; i < end && status == HEFT_OK; i++) {
            status = find_level(rank, begin, i, o->level[r], err);
            o->n[slot] = o->level[r][i] + 1 > o->n[slot] ? o->level[r][i] + 1 : o->n[slot];
        }
        o->most = o->n[slot] > o->most ? o->n[slot] : o->most;
    }
    heft__text_fini(&name);
    return status;
}

static heft_status_t others_init(others_t *o, const heft_plan_t *first, heft_error_t *err)
{
    *o = (others_t){ .n_ranks = first->n_ranks };
    heft__arena_init(&o->arena, 4096);
    heft__map_init(&o->slot_of);
    o->n = heft__calloc((size_t)first->n_slots + 1, sizeof *o->n);
    o->level = heft__calloc((size_t)first->n_ranks + 1, sizeof(uint32_t *));
    heft_status_t status = o->n != NULL && o->level != NULL
                               ? HEFT_OK
                               : heft__error_nomem(err, first->n_slots * sizeof *o->n);
    for (uint32_t r = 0; r < first->n_ranks && status == HEFT_OK; r++) {
        status = add_others(o, first, r, err);
    }
    return status;
}

static uint32_t rank_of_slot(const heft_plan_t *plan, uint32_t slot)
{
    uint32_t r = 0;
    while (r + 1 < plan->n_ranks && slot >= plan->ranks[r + 1].first_slot) {
        r++;
    }
    return r;
}

/* Write one check into a buffer that holds the tensor. */
static heft_status_t play_check(heft_tape_t *tape, const heft_plan_t *first,
                                const heft_piece_t *check, const char *note, uint32_t buffer,
                                heft_error_t *err)
{
    heft_view_t dst = dst_view(check, buffer);
    heft_view_t srcs[HEFT_MAX_SOURCES];
    for (uint32_t s = 0; s < check->n_srcs; s++) {
        srcs[s] = dst;
        srcs[s].offset = check->srcs[s].offset;
        memcpy(srcs[s].stride, check->srcs[s].stride, sizeof srcs[s].stride);
        heft_status_t status =
            heft_tape_find_buffer(tape, HEFT_BUFFER_SOURCE,
                                  first->sources[check->srcs[s].source].name, &srcs[s].buffer, err);
        if (status != HEFT_OK) {
            return status;
        }
    }
    return check->n_ops == 0 && check->n_srcs == 1
               ? heft_tape_copy(tape, &dst, srcs, note, err)
               : heft_tape_map(tape, &dst, srcs, check->n_srcs, check->ops, check->n_ops, note,
                               err);
}

/* The tensor of a slot with its other value of this level, in a buffer of its own. */
static heft_status_t add_other(heft_tape_t *tape, const heft_plan_t *first, const others_t *o,
                               uint32_t slot, uint32_t level, uint32_t *buffer, heft_error_t *err)
{
    const uint32_t r = rank_of_slot(first, slot);
    const heft__plan_rank_t *rank = &first->ranks[r];
    const uint32_t p = slot - rank->first_slot;
    heft_buffer_info_t info = tape->buffers[*buffer];
    heft_view_t from = {
        .buffer = *buffer, .rank = 1, .extent = { info.n_elems }, .stride = { 1 }
    };
    info.kind = HEFT_BUFFER_TEMP;
    heft_status_t status = heft__tape_add_storage(tape, &info, buffer, err);
    heft_view_t to = from;
    to.buffer = *buffer;
    if (status == HEFT_OK) {
        status = heft_tape_copy(tape, &to, &from, "", err);
    }
    for (uint64_t i = rank->first_check[p]; i < rank->first_check[p + 1] && status == HEFT_OK;
         i++) {
        if (o->level[r][i] == level) {
            status = play_check(tape, first, &rank->checks[i], rank->check_notes[i], *buffer, err);
        }
    }
    return status;
}

/* ---- playing the second part ---- */

/* Which writes of a tape belong together: those that meet in a parameter or a temporary. */
typedef struct parts {
    uint32_t *root;  /* by buffer */
    uint32_t *most;  /* by root: the most other values of a tensor that it reads */
    uint8_t *wanted; /* by write */
} parts_t;

static void parts_fini(parts_t *parts)
{
    heft__free(parts->root);
    heft__free(parts->most);
    heft__free(parts->wanted);
}

static uint32_t find_root(uint32_t *root, uint32_t i)
{
    while (root[i] != i) {
        root[i] = root[root[i]];
        i = root[i];
    }
    return i;
}

static uint32_t slot_of(const others_t *o, const heft_tape_t *tape, uint32_t buffer)
{
    const heft_buffer_info_t *info = &tape->buffers[buffer];
    return info->kind == HEFT_BUFFER_SOURCE
               ? heft__map_get(&o->slot_of, info->name, strlen(info->name))
               : HEFT__MAP_NONE;
}

static heft_status_t parts_init(parts_t *parts, const heft_tape_t *tape, const others_t *o,
                                heft_error_t *err)
{
    *parts = (parts_t){ .root = heft__calloc(tape->n_buffers + 1, sizeof *parts->root),
                        .most = heft__calloc(tape->n_buffers + 1, sizeof *parts->most),
                        .wanted = heft__calloc(tape->n_writes + 1, 1) };
    if (parts->root == NULL || parts->most == NULL || parts->wanted == NULL) {
        return heft__error_nomem(err, tape->n_buffers * sizeof *parts->root);
    }
    for (uint32_t i = 0; i < tape->n_buffers; i++) {
        parts->root[i] = i;
    }
    for (size_t w = 0; w < tape->n_writes; w++) {
        const heft__write_t *write = &tape->writes[w];
        uint32_t mine = find_root(parts->root, write->dsts[0].buffer);
        for (uint32_t i = 1; i < write->n_dsts; i++) {
            parts->root[find_root(parts->root, write->dsts[i].buffer)] = mine;
        }
        for (uint32_t i = 0; i < write->n_srcs; i++) {
            if (tape->buffers[write->srcs[i].buffer].kind != HEFT_BUFFER_SOURCE) {
                parts->root[find_root(parts->root, write->srcs[i].buffer)] = mine;
            }
        }
    }
    for (size_t w = 0; w < tape->n_writes; w++) {
        const heft__write_t *write = &tape->writes[w];
        uint32_t *most = &parts->most[find_root(parts->root, write->dsts[0].buffer)];
        for (uint32_t i = 0; i < write->n_srcs; i++) {
            uint32_t slot = slot_of(o, tape, write->srcs[i].buffer);
            *most = slot != HEFT__MAP_NONE && o->n[slot] > *most ? o->n[slot] : *most;
        }
    }
    return HEFT_OK;
}

/* Play what the other values of one level change. */
static heft_status_t play_level(heft_tape_t *tape, const heft_tape_t *second,
                                const heft_plan_t *first, const others_t *o, parts_t *parts,
                                uint32_t level, const uint32_t *ids, heft_error_t *err)
{
    uint32_t *other = heft__calloc(second->n_buffers + 1, sizeof *other);
    heft_status_t status =
        other != NULL ? HEFT_OK : heft__error_nomem(err, second->n_buffers * sizeof *other);
    for (uint32_t b = 0; b < second->n_buffers && status == HEFT_OK; b++) {
        const uint32_t slot = slot_of(o, second, b);
        other[b] = ids[b];
        if (slot != HEFT__MAP_NONE && o->n[slot] > level) {
            status = add_other(tape, first, o, slot, level, &other[b], err);
        }
    }
    for (size_t w = 0; w < second->n_writes; w++) {
        uint32_t root = find_root(parts->root, second->writes[w].dsts[0].buffer);
        parts->wanted[w] = parts->most[root] > level;
    }
    if (status == HEFT_OK) {
        status = heft__tape_play(tape, second, other, parts->wanted, err);
    }
    heft__free(other);
    return status;
}

/* joined: of the parts, with another second one. */
static heft_status_t play(const heft_tape_t *joined, const heft_tape_t *second,
                          const heft_plan_t *first, const others_t *o, heft_tape_t **tape_out,
                          heft_error_t *err)
{
    parts_t parts;
    heft_tape_t *tape = NULL;
    uint32_t *ids = NULL;
    heft_status_t status = parts_init(&parts, second, o, err);
    if (status == HEFT_OK) {
        status = heft__tape_begin_join(joined->firsts, joined->n_firsts, second, joined->is_narrow,
                                       &tape, &ids, err);
    }
    for (uint32_t level = o->most; level > 0 && status == HEFT_OK; level--) {
        status = play_level(tape, second, first, o, &parts, level - 1, ids, err);
    }
    if (status == HEFT_OK) {
        status = heft__tape_play(tape, second, ids, NULL, err);
    }
    heft__free(ids);
    parts_fini(&parts);
    if (status != HEFT_OK) {
        heft_tape_destroy(tape);
        return status;
    }
    *tape_out = tape;
    return HEFT_OK;
}

/* ---- exceptions of the whole ---- */

/* The parameters that come of the first part's tensors that exception e names. */
static heft_status_t spread_equal(const others_t *o, const heft_plan_t *first,
                                  const heft_exception_t *e, const heft_tape_t *second,
                                  heft__map_t *names, heft_error_t *err)
{
    parts_t parts;
    heft_status_t status = parts_init(&parts, second, o, err);
    for (uint32_t b = 0; b < second->n_buffers && status == HEFT_OK; b++) {
        parts.most[b] = 0; /* now: the exception says so */
    }
    for (size_t w = 0; w < second->n_writes && status == HEFT_OK; w++) {
        const heft__write_t *write = &second->writes[w];
        uint32_t *is_its = &parts.most[find_root(parts.root, write->dsts[0].buffer)];
        for (uint32_t i = 0; i < write->n_srcs; i++) {
            uint32_t slot = slot_of(o, second, write->srcs[i].buffer);
            if (slot == HEFT__MAP_NONE || o->n[slot] == 0) {
                continue;
            }
            const heft__plan_rank_t *rank = &first->ranks[rank_of_slot(first, slot)];
            const char *name = rank->params[slot - rank->first_slot].name;
            *is_its |= heft_name_matches(e->pattern, name) != 0 ? 1 : 0;
        }
    }
    for (uint32_t b = 0; b < second->n_buffers && status == HEFT_OK; b++) {
        if (second->buffers[b].kind == HEFT_BUFFER_PARAM &&
            parts.most[find_root(parts.root, b)] != 0) {
            status = add_name(names, second->buffers[b].name, err);
        }
    }
    parts_fini(&parts);
    return status;
}

/* The sources that tensor `slot` of the first part is made of, or compared with. */
static heft_status_t add_sources_of(const heft_plan_t *first, uint32_t slot, heft__map_t *names,
                                    heft_error_t *err)
{
    const heft__plan_rank_t *rank = &first->ranks[rank_of_slot(first, slot)];
    const uint32_t p = slot - rank->first_slot;
    const uint64_t n_pieces = rank->first_piece[p + 1] - rank->first_piece[p];
    const uint64_t first_check = rank->first_check != NULL ? rank->first_check[p] : 0;
    const uint64_t n_checks =
        rank->first_check != NULL ? rank->first_check[p + 1] - first_check : 0;
    heft_status_t status = HEFT_OK;
    for (uint64_t i = 0; i < n_pieces + n_checks; i++) {
        const heft_piece_t *piece = i < n_pieces ? &rank->pieces[rank->first_piece[p] + i]
                                                 : &rank->checks[first_check + i - n_pieces];
        for (uint32_t s = 0; s < piece->n_srcs && status == HEFT_OK; s++) {
            const heft_piece_src_t *src = &piece->srcs[s];
            if (src->opaque == 0) {
                status = add_name(names, first->sources[src->source].name, err);
                continue;
            }
            const heft_opaque_t *op = &rank->opaques[src->opaque - 1];
            for (uint32_t k = 0; k < op->n_sources && status == HEFT_OK; k++) {
                status = add_name(names, first->sources[op->sources[k]].name, err);
            }
        }
    }
    return status;
}

/* What rule i of the second part says of tensors in between, said of the sources. */
static heft_status_t spread_unused(const heft_plan_t *first, const rules_t *rules, uint32_t i,
                                   heft__map_t *names, heft_error_t *err)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t s = 0; s < first->n_slots && status == HEFT_OK; s++) {
        const uint32_t r = rank_of_slot(first, s);
        char prefix[24];
        heft__text_t name;
        heft__rank_prefix(first->n_ranks, r, prefix);
        heft__text_init(&name);
        heft__text_printf(&name, "%s%s", prefix,
                          first->ranks[r].params[s - first->ranks[r].first_slot].name);
        if (name.failed) {
            status = heft__error_nomem(err, name.len);
        } else if (rule_matches(rules, i, name.data)) {
            status = add_sources_of(first, s, names, err);
        }
        heft__text_fini(&name);
    }
    return status;
}

static bool is_of_sources(heft_exception_kind_t kind)
{
    return kind == HEFT_EXCEPTION_UNUSED || kind == HEFT_EXCEPTION_ELSEWHERE;
}

/* What was excused in its part is unused in the whole, too. A claim that another rank uses a tensor
 * has excused something only where a rank was alone. */
static bool is_kept(const heft_exception_t *e, bool is_alone)
{
    return e->kind == HEFT_EXCEPTION_UNUSED || (e->kind == HEFT_EXCEPTION_ELSEWHERE && is_alone);
}

static heft_status_t add_first_rules(const job_t *job, const proven_t *first, const proven_t *rest,
                                     const others_t *o, rules_t *rules)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < first->rules.n && status == HEFT_OK; i++) {
        const heft_exception_t *e = &first->rules.items[i];
        if (is_kept(e, first->plan->n_ranks == 1)) {
            (void)add_rule(rules, e, false);
        }
        if (e->kind != HEFT_EXCEPTION_EQUAL || o->most == 0) {
            continue;
        }
        heft__map_t *names = add_rule(rules, e, true);
        status = names != NULL ? HEFT_OK : heft__error_nomem(job->err, sizeof *names);
        for (uint32_t r = 0; r < job->n_tapes && status == HEFT_OK; r++) {
            const heft_tape_t *second =
                rest->tapes != NULL ? rest->tapes[r] : job->tapes[r]->second;
            status = spread_equal(o, first->plan, e, second, names, job->err);
        }
    }
    return status;
}

static heft_status_t add_rest_rules(const job_t *job, const proven_t *first, proven_t *rest,
                                    rules_t *rules)
{
    heft_status_t status = HEFT_OK;
    for (uint32_t i = 0; i < rest->rules.n && status == HEFT_OK; i++) {
        const heft_exception_t *e = &rest->rules.items[i];
        if (!is_of_sources(e->kind)) {
            (void)add_rule(rules, e, false);
            rules->names[rules->n - 1] = rest->rules.names[i];
            rest->rules.names[i] = NULL;
            continue;
        }
        if (!is_kept(e, job->n_tapes == 1 || job->opts->partial != 0)) {
            continue;
        }
        heft__map_t *names = add_rule(rules, e, true);
        status = names != NULL ? spread_unused(first->plan, &rest->rules, i, names, job->err)
                               : heft__error_nomem(job->err, sizeof *names);
    }
    return status;
}

/* ---- the whole ---- */

static heft_status_t play_all(const job_t *job, const proven_t *first, const proven_t *rest,
                              const others_t *o, proven_t *out)
{
    if (o->most == 0 && rest->tapes == NULL) {
        return HEFT_OK; /* the joined tapes are what is to be folded */
    }
    out->n_tapes = job->n_tapes;
    out->tapes = heft__calloc(job->n_tapes, sizeof(heft_tape_t *));
    heft_status_t status = out->tapes != NULL
                               ? HEFT_OK
                               : heft__error_nomem(job->err, job->n_tapes * sizeof(heft_tape_t *));
    for (uint32_t r = 0; r < job->n_tapes && status == HEFT_OK; r++) {
        const heft_tape_t *second = rest->tapes != NULL ? rest->tapes[r] : job->tapes[r]->second;
        status = play(job->tapes[r], second, first->plan, o, &out->tapes[r], job->err);
    }
    return status;
}

static heft_status_t prove_whole(const job_t *job, const proven_t *first, proven_t *rest,
                                 const others_t *o, proven_t *out)
{
    heft_status_t status = rules_init(&out->rules, first->rules.n + rest->rules.n, job->err);
    if (status == HEFT_OK) {
        status = add_first_rules(job, first, rest, o, &out->rules);
    }
    if (status == HEFT_OK) {
        status = add_rest_rules(job, first, rest, &out->rules);
    }
    if (status == HEFT_OK) {
        status = play_all(job, first, rest, o, out);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_plan_opts_t opts = *job->opts;
    opts.exceptions = out->rules.items;
    opts.n_exceptions = out->rules.n;
    const heft_tape_t *const *tapes =
        out->tapes != NULL ? (const heft_tape_t *const *)out->tapes : job->tapes;
    return heft__plan_create_one(tapes, job->n_tapes, job->first_rank, &opts,
                                 (const heft__map_t *const *)out->rules.names, &out->plan,
                                 &out->report, job->err);
}

static void keep_whole_digests(const proven_t *rest, proven_t *out)
{
    for (uint32_t r = 0; r < out->plan->n_ranks; r++) {
        memcpy(out->plan->ranks[r].whole_digest, rest->plan->ranks[r].digest,
               sizeof out->plan->ranks[r].whole_digest);
    }
}

static heft_status_t prove_joined(const job_t *job, proven_t *out)
{
    proven_t first = { .plan = NULL };
    proven_t rest = { .plan = NULL };
    others_t o = { .n = NULL };
    heft_status_t status = prove_parts(job, &first, &rest);
    if (status == HEFT_ERR_PROOF) { /* the report is the part's that is refused */
        proven_t *refused = first.plan == NULL ? &first : &rest;
        out->report = refused->report;
        refused->report = NULL;
    }
    if (status == HEFT_OK) {
        status = others_init(&o, first.plan, job->err);
        if (status == HEFT_OK) {
            status = prove_whole(job, &first, &rest, &o, out);
        }
        others_fini(&o);
    }
    if (status == HEFT_OK && out->plan != NULL && job->tapes[0]->is_placed) {
        keep_whole_digests(&rest, out);
    }
    proven_fini(&first);
    proven_fini(&rest);
    return status;
}

/* All tapes are made of the same: the first ones' are proven once, from tape 0. */
static heft_status_t check_alike(const job_t *job)
{
    const heft_tape_t *one = job->tapes[0];
    for (uint32_t r = 1; r < job->n_tapes; r++) {
        const heft_tape_t *tape = job->tapes[r];
        bool is_alike = (tape->second == NULL) == (one->second == NULL) &&
                        tape->is_placed == one->is_placed && tape->n_firsts == one->n_firsts;
        for (uint32_t i = 0; is_alike && i < one->n_firsts; i++) {
            is_alike = tape->firsts[i]->n_writes == one->firsts[i]->n_writes &&
                       tape->firsts[i]->n_buffers == one->firsts[i]->n_buffers;
        }
        if (!is_alike) {
            return heft__error_set(job->err, HEFT_ERR_ARGUMENT,
                                   "tapes 0 and %u are of different chains of recipes",
                                   (unsigned)r);
        }
    }
    return HEFT_OK;
}

static heft_status_t prove(const job_t *job, proven_t *out)
{
    heft_status_t status = check_alike(job);
    if (status != HEFT_OK) {
        return status;
    }
    return job->tapes[0]->second != NULL ? prove_joined(job, out) : prove_alone(job, out);
}

heft_status_t heft__plan_prove(const heft_tape_t *const *tapes, uint32_t n_tapes,
                               uint32_t first_rank, const heft_plan_opts_t *opts,
                               heft_plan_t **plan_out, heft_report_t **report_out,
                               heft_error_t *err)
{
    const job_t job = {
        .tapes = tapes, .n_tapes = n_tapes, .first_rank = first_rank, .opts = opts, .err = err
    };
    proven_t out = { .plan = NULL };
    heft_status_t status = prove(&job, &out);
    if (status == HEFT_OK) {
        *plan_out = out.plan;
        out.plan = NULL;
    }
    if (report_out != NULL && (status == HEFT_OK || status == HEFT_ERR_PROOF)) {
        *report_out = out.report;
        out.report = NULL;
    }
    proven_fini(&out);
    return status;
}

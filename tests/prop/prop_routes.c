/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleets of several senders, judged element by element. Random tapes (several ranks, fusions,
 * transposes, casts, programs, fills, kernels) read whole tensors; random trainers hold boxes of
 * them: uneven rows, meshes, replicas, stages, blocks in turn, any grid. The judge knows of every
 * element of every parameter what its bytes are (the interpreter of tapes) and who must send it
 * (the same interpreter on sets of senders). Every sender runs alone, in any order, with nothing
 * but its own boxes: each byte must be written once, by whom the judge says, and lie in the
 * regions of its route; shares of digests combine; packed routes rebuild the parameters. What the
 * routes refuse must need two senders, and the other way round.
 */
#include "ref_reshard.h"

#include "exec/exec.h"
#include "heft/exec.h"
#include "heft/model.h"
#include "heft/placement.h"
#include "heft/routes.h"
#include "plan/plan.h"
#include "tape/tape.h"

enum { MAX_SENDERS = 9, MAX_CELLS = 64, MAX_ENTRIES = 1024, MAX_TARGETS = REF_MAX_RANKS + 1 };

/* A box that a sender holds, as an entry of its manifest. */
typedef struct entry {
    uint32_t sender;
    int tensor;
    char name[40];
    int64_t begin[HEFT_MAX_DIMS]; /* in elements */
    int64_t end[HEFT_MAX_DIMS];
    bool is_whole; /* said without a part */
    uint8_t *data;
} entry_t;

typedef struct fleet {
    ref_case_t c;
    uint32_t n_senders;
    entry_t entries[MAX_ENTRIES];
    uint32_t n_entries;
    heft_manifest_t *manifests[MAX_SENDERS];
    heft_placement_t *placement;      /* NULL: one source that says nothing of parts */
    uint64_t *owner[REF_MAX_SOURCES]; /* of each element (storage units): one bit, who sends it */
    uint64_t *mask[REF_MAX_RANKS][REF_MAX_PARAMS]; /* of each parameter's elements: who it needs */
    bool is_refusable;                             /* some element needs two */
    heft_tape_t *read[REF_MAX_RANKS];
    heft_tape_t *placed[REF_MAX_RANKS];
    heft_tape_t *parts[MAX_SENDERS][REF_MAX_RANKS];
    heft_plan_t *plan;
    heft_routes_t *routes;
} fleet_t;

static int pick(uint64_t *rng, int low, int high)
{
    return (int)heft_test_random_in(rng, low, high);
}

/* ---- who holds what ---- */

typedef enum layout {
    FSDP,     /* rows, the last ones fewer or none */
    MESH,     /* rows by columns */
    TENSOR,   /* rows or columns of some tensors, others whole on all */
    HSDP,     /* rows, several times */
    PIPELINE, /* each tensor in one stage: whole, or in rows there */
    CYCLIC,   /* blocks of rows in turn: several boxes each */
    GRID,     /* any grid, any holders */
    N_LAYOUTS
} layout_t;

/* A tensor cut by borders, and who holds each cell. */
typedef struct grid {
    int rank;
    int64_t border[HEFT_MAX_DIMS][MAX_CELLS + 1];
    int n[HEFT_MAX_DIMS];
    int n_cells;
    uint64_t holders[MAX_CELLS];
} grid_t;

/* Borders of packed dtypes are whole bytes. */
static void cut_evenly(grid_t *g, const ref_source_t *s, int dim, int n)
{
    const int64_t unit =
        dim == s->shape.rank - 1 ? s->logical.extent[dim] / s->shape.extent[dim] : 1;
    const int64_t extent = s->shape.extent[dim];
    const int64_t each = (extent + n - 1) / n;
    for (int i = 0; i <= n; i++) {
        g->border[dim][i] = (i * each < extent ? i * each : extent) * unit;
    }
    g->n[dim] = n;
}

static void cut_anywhere(grid_t *g, const ref_source_t *s, int dim, uint64_t *rng)
{
    const int64_t unit =
        dim == s->shape.rank - 1 ? s->logical.extent[dim] / s->shape.extent[dim] : 1;
    g->n[dim] = 0;
    g->border[dim][0] = 0;
    for (int64_t at = 0; at < s->shape.extent[dim];) {
        at += heft_test_random_in(rng, 1, s->shape.extent[dim]);
        at = at > s->shape.extent[dim] || g->n[dim] == 2 ? s->shape.extent[dim] : at;
        g->border[dim][++g->n[dim]] = at * unit;
    }
}

static void grid_init(grid_t *g, const ref_source_t *s)
{
    *g = (grid_t){ .rank = s->shape.rank };
    for (int d = 0; d < g->rank; d++) {
        g->border[d][1] = s->logical.extent[d];
        g->n[d] = 1;
    }
}

static int count_cells(grid_t *g)
{
    g->n_cells = 1;
    for (int d = 0; d < g->rank; d++) {
        g->n_cells *= g->n[d];
    }
    assert_true(g->n_cells <= MAX_CELLS);
    return g->n_cells;
}

static void hold_by_number(grid_t *g, uint32_t first, uint32_t n, uint32_t n_replicas)
{
    for (int i = 0; i < count_cells(g); i++) {
        for (uint32_t r = 0; r < n_replicas; r++) {
            g->holders[i] |= UINT64_C(1) << (first + (uint32_t)i % n + r * n);
        }
    }
}

static uint64_t all_of(uint32_t n)
{
    return (UINT64_C(1) << n) - 1;
}

static void lay_mesh(grid_t *g, const ref_source_t *s, uint32_t n_senders, uint64_t *rng)
{
    const int columns = n_senders % 2 == 0 && g->rank > 1 ? 2 : 1;
    const int rows = (int)n_senders / columns;
    const int dim = pick(rng, 0, 1);
    cut_evenly(g, s, g->rank > 1 ? dim : 0, rows);
    if (columns > 1) {
        cut_evenly(g, s, 1 - dim, columns);
    }
    hold_by_number(g, 0, n_senders, 1);
}

static void lay_grid(grid_t *g, const ref_source_t *s, uint32_t n_senders, uint64_t *rng)
{
    for (int d = 0; d < g->rank && d < 3; d++) {
        cut_anywhere(g, s, d, rng);
    }
    for (int i = 0; i < count_cells(g); i++) {
        g->holders[i] = UINT64_C(1) << pick(rng, 0, (int)n_senders - 1);
        for (int more = pick(rng, -1, 2); more > 0; more--) {
            g->holders[i] |= UINT64_C(1) << pick(rng, 0, (int)n_senders - 1);
        }
    }
}

static void lay_pipeline(grid_t *g, const ref_source_t *s, uint32_t n_senders, uint64_t *rng)
{
    const uint32_t n = n_senders % 2 == 0 && pick(rng, 0, 1) > 0 ? 2 : 1; /* ranks of a stage */
    const uint32_t stage = (uint32_t)pick(rng, 0, (int)(n_senders / n) - 1);
    if (n > 1) {
        cut_evenly(g, s, 0, (int)n);
    }
    hold_by_number(g, stage * n, n, 1);
}

static void lay(grid_t *g, const ref_source_t *s, layout_t layout, uint32_t n, uint64_t *rng)
{
    grid_init(g, s);
    if (g->rank == 0) {
        count_cells(g);
        g->holders[0] = layout == PIPELINE ? 1 : all_of(n);
        return;
    }
    switch (layout) {
    case FSDP:
        cut_evenly(g, s, 0, (int)n);
        hold_by_number(g, 0, n, 1);
        break;
    case MESH:
        lay_mesh(g, s, n, rng);
        break;
    case TENSOR:
        if (pick(rng, 0, 2) > 0) {
            cut_evenly(g, s, pick(rng, 0, g->rank - 1), (int)n);
            hold_by_number(g, 0, n, 1);
        } else {
            count_cells(g);
            g->holders[0] = all_of(n);
        }
        break;
    case HSDP:
        cut_evenly(g, s, 0, (int)(n % 3 == 0 ? n / 3 : n % 2 == 0 ? n / 2 : n));
        hold_by_number(g, 0, (uint32_t)g->n[0], n / (uint32_t)g->n[0]);
        break;
    case PIPELINE:
        lay_pipeline(g, s, n, rng);
        break;
    case CYCLIC:
        cut_evenly(g, s, 0, (int)n * pick(rng, 1, 3));
        hold_by_number(g, 0, n, 1);
        break;
    case GRID:
    case N_LAYOUTS:
        lay_grid(g, s, n, rng);
        break;
    }
}

static void box_of(const grid_t *g, int cell, entry_t *entry)
{
    for (int d = g->rank - 1; d >= 0; d--) {
        entry->begin[d] = g->border[d][cell % g->n[d]];
        entry->end[d] = g->border[d][cell % g->n[d] + 1];
        cell /= g->n[d];
    }
}

/* One entry for each cell that a sender holds. */
static void add_entries(fleet_t *f, const grid_t *g, int tensor)
{
    for (uint32_t sender = 0; sender < f->n_senders; sender++) {
        int n = 0;
        for (int i = 0; i < g->n_cells; i++) {
            n += (int)(g->holders[i] >> sender & 1);
        }
        for (int i = 0, k = 0; i < g->n_cells; i++) {
            if ((g->holders[i] >> sender & 1) == 0) {
                continue;
            }
            assert_true(f->n_entries < MAX_ENTRIES);
            entry_t *e = &f->entries[f->n_entries++];
            *e = (entry_t){ .sender = sender, .tensor = tensor };
            (void)snprintf(e->name, sizeof e->name, n > 1 ? "%s.%d" : "%s",
                           f->c.sources[tensor].name, k++);
            box_of(g, i, e);
            e->is_whole = g->n_cells == 1 && g->holders[0] == UINT64_C(1) << sender;
        }
    }
}

/* ---- memory ---- */

/* In storage units. */
static void to_storage(const ref_source_t *s, const int64_t *index, int64_t *out)
{
    for (int d = 0; d < s->shape.rank; d++) {
        const bool is_last = d == s->shape.rank - 1;
        out[d] = is_last ? index[d] * s->shape.extent[d] / s->logical.extent[d] : index[d];
    }
}

typedef void (*element_fn_t)(void *arg, int64_t flat, int64_t i);

/* Every element of a box, in order: its place in the tensor, and in the box. */
static void each_element(const ref_source_t *s, const int64_t *begin, const int64_t *end,
                         element_fn_t fn, void *arg)
{
    int64_t low[HEFT_MAX_DIMS];
    int64_t high[HEFT_MAX_DIMS];
    int64_t n = 1;
    to_storage(s, begin, low);
    to_storage(s, end, high);
    for (int d = 0; d < s->shape.rank; d++) {
        n *= high[d] - low[d];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i;
        int64_t flat = 0;
        int64_t stride = 1;
        for (int d = s->shape.rank - 1; d >= 0; d--) {
            flat += (low[d] + rest % (high[d] - low[d])) * stride;
            rest /= high[d] - low[d];
            stride *= s->shape.extent[d];
        }
        fn(arg, flat, i);
    }
}

typedef struct taking {
    const ref_source_t *s;
    uint8_t *to;
    uint32_t unit;
} taking_t;

static void take_element(void *arg, int64_t flat, int64_t i)
{
    const taking_t *t = arg;
    memcpy(t->to + i * t->unit, t->s->data + flat * t->unit, t->unit);
}

static void take_memory(fleet_t *f)
{
    for (uint32_t i = 0; i < f->n_entries; i++) {
        entry_t *e = &f->entries[i];
        const ref_source_t *s = &f->c.sources[e->tensor];
        e->data = calloc((size_t)s->n_bytes + 1, 1);
        assert_non_null(e->data);
        taking_t taking = { .s = s, .to = e->data, .unit = heft_dtype_get_unit_bytes(s->dtype) };
        each_element(s, e->begin, e->end, take_element, &taking);
    }
}

/* ---- manifests and placement ---- */

static void add_to_manifest(const fleet_t *f, const entry_t *e, heft_manifest_t *manifest)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const ref_source_t *s = &f->c.sources[e->tensor];
    heft_shape_t local = s->logical;
    heft_part_t part = { .tensor = s->name, .shape = s->logical, .replica = e->sender };
    for (int d = 0; d < local.rank; d++) {
        local.extent[d] = e->end[d] - e->begin[d];
        part.begin[d] = e->begin[d];
    }
    EXPECT_STATUS(heft_manifest_add(manifest, e->name, s->dtype, &local, &err), HEFT_OK);
    if (!e->is_whole) {
        EXPECT_STATUS(heft_manifest_set_part(manifest, e->name, &part, &err), HEFT_OK);
    }
}

static void place(fleet_t *f, uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_placement_source_t sources[MAX_SENDERS] = { { .label = NULL } };
    heft_placement_opts_t opts = HEFT_PLACEMENT_OPTS_INIT;
    heft_manifest_t *whole = NULL;
    opts.min_cut_bytes = heft_test_random_in(rng, 0, 1) > 0 ? 1 : heft_test_random_in(rng, 0, 99);
    for (uint32_t r = 0; r < f->n_senders; r++) {
        EXPECT_STATUS(heft_manifest_create("source", &f->manifests[r], &err), HEFT_OK);
        for (uint32_t i = 0; i < f->n_entries; i++) {
            if (f->entries[i].sender == r) {
                add_to_manifest(f, &f->entries[i], f->manifests[r]);
            }
        }
        EXPECT_STATUS(heft_manifest_finish(f->manifests[r], &err), HEFT_OK);
        sources[r].manifest = f->manifests[r];
    }
    EXPECT_STATUS(heft_placement_from_sources(sources, f->n_senders, &opts, &f->placement, &whole,
                                              NULL, &err),
                  HEFT_OK);
    assert_int_equal(heft_manifest_get_n_tensors(whole), f->c.n_sources);
    heft_manifest_destroy(whole);
}

typedef struct owning {
    uint64_t *owner;
    uint64_t bit;
} owning_t;

static void own_element(void *arg, int64_t flat, int64_t i)
{
    const owning_t *o = arg;
    (void)i;
    assert_int_equal(o->owner[flat], 0); /* sent once */
    o->owner[flat] = o->bit;
}

static int tensor_of(const fleet_t *f, const char *name)
{
    int t = 0;
    while (strcmp(f->c.sources[t].name, name) != 0) {
        t++;
        assert_true(t < f->c.n_sources);
    }
    return t;
}

static void find_owners(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (int t = 0; t < f->c.n_sources; t++) {
        const int64_t n = f->c.sources[t].n_elems;
        f->owner[t] = calloc((size_t)n + 1, sizeof *f->owner[t]);
        assert_non_null(f->owner[t]);
        for (int64_t i = 0; i < n && f->placement == NULL; i++) {
            f->owner[t][i] = 1;
        }
    }
    const uint32_t n = f->placement != NULL ? heft_placement_get_n_cuts(f->placement) : 0;
    for (uint32_t i = 0; i < n; i++) {
        heft_shard_t cut;
        EXPECT_STATUS(heft_placement_query_cut(f->placement, i, &cut, &err), HEFT_OK);
        const int t = tensor_of(f, cut.tensor);
        owning_t owning = { .owner = f->owner[t], .bit = UINT64_C(1) << cut.rank };
        each_element(&f->c.sources[t], cut.begin, cut.end, own_element, &owning);
    }
    for (int t = 0; t < f->c.n_sources; t++) {
        for (int64_t i = 0; i < f->c.sources[t].n_elems; i++) {
            assert_int_not_equal(f->owner[t][i], 0);
        }
    }
}

/* ---- the tape on sets of senders ---- */

static int64_t place_of(const heft__tape_view_t *view, int64_t i)
{
    int64_t flat = view->offset;
    for (int k = view->rank - 1; k >= 0; k--) {
        flat += i % view->extent[k] * view->stride[k];
        i /= view->extent[k];
    }
    return flat;
}

static int64_t count_of(const heft__tape_view_t *view)
{
    int64_t n = 1;
    for (int k = 0; k < view->rank; k++) {
        n *= view->extent[k];
    }
    return n;
}

/* An operation needs whatever its inputs read. */
static void play_opaque(const heft__write_t *w, uint64_t *const *masks)
{
    uint64_t all = 0;
    for (uint32_t s = 0; s < w->n_srcs; s++) {
        for (int64_t i = 0; i < count_of(&w->srcs[s]); i++) {
            all |= masks[w->srcs[s].buffer][place_of(&w->srcs[s], i)];
        }
    }
    for (uint32_t d = 0; d < w->n_dsts; d++) {
        for (int64_t i = 0; i < count_of(&w->dsts[d]); i++) {
            masks[w->dsts[d].buffer][place_of(&w->dsts[d], i)] = all;
        }
    }
}

static void play(const heft__write_t *w, uint64_t *const *masks)
{
    if (w->kind == HEFT_WRITE_OPAQUE) {
        play_opaque(w, masks);
        return;
    }
    const int64_t n = count_of(&w->dsts[0]);
    uint64_t *result = calloc((size_t)n + 1, sizeof *result);
    assert_non_null(result);
    for (int64_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < w->n_srcs; s++) {
            result[i] |= masks[w->srcs[s].buffer][place_of(&w->srcs[s], i)];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        masks[w->dsts[0].buffer][place_of(&w->dsts[0], i)] = result[i];
    }
    free(result);
}

static void find_masks(fleet_t *f, int rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const heft_tape_t *tape = f->c.tapes[rank];
    uint64_t **masks = calloc(tape->n_buffers + 1, sizeof *masks);
    assert_non_null(masks);
    for (size_t b = 0; b < tape->n_buffers; b++) {
        const heft_buffer_info_t *info = &tape->buffers[b];
        masks[b] = calloc((size_t)info->n_elems + 1, sizeof **masks);
        assert_non_null(masks[b]);
        if (info->kind == HEFT_BUFFER_SOURCE) {
            memcpy(masks[b], f->owner[tensor_of(f, info->name)],
                   (size_t)info->n_elems * sizeof **masks);
        }
    }
    for (size_t k = 0; k < tape->n_writes; k++) {
        play(&tape->writes[k], masks);
    }
    for (uint32_t p = 0; p < f->c.n_params[rank]; p++) {
        heft_tensor_info_t info;
        uint32_t id;
        EXPECT_STATUS(heft_plan_query_param(f->c.plan, (uint32_t)rank, p, &info, &err), HEFT_OK);
        EXPECT_STATUS(heft_tape_find_buffer(tape, HEFT_BUFFER_PARAM, info.name, &id, &err),
                      HEFT_OK);
        f->mask[rank][p] = masks[id];
        masks[id] = NULL;
        for (int64_t i = 0; i < info.n_elems; i++) {
            const uint64_t m = f->mask[rank][p][i];
            f->is_refusable = f->is_refusable || (m & (m - 1)) != 0;
        }
    }
    for (size_t b = 0; b < tape->n_buffers; b++) {
        free(masks[b]);
    }
    free(masks);
}

/* ---- fleets ---- */

static void fleet_init(fleet_t *f, uint64_t *rng)
{
    const ref_opts_t opts = { .copies_only = pick(rng, 0, 1) > 0 };
    const layout_t layout = (layout_t)pick(rng, 0, N_LAYOUTS - 1);
    *f = (fleet_t){ .n_senders = (uint32_t)pick(rng, 1, MAX_SENDERS) };
    ref_case_init(&f->c, rng, &opts);
    for (int t = 0; t < f->c.n_sources; t++) {
        grid_t grid;
        lay(&grid, &f->c.sources[t], layout, f->n_senders, rng);
        add_entries(f, &grid, t);
    }
    take_memory(f);
    place(f, rng);
    find_owners(f);
    for (int r = 0; r < f->c.n_ranks; r++) {
        find_masks(f, r);
    }
}

static heft_plan_t *make_plan(heft_tape_t *const *tapes, uint32_t n, uint32_t first)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_plan_t *plan = NULL;
    opts.partial = 1;
    EXPECT_STATUS(
        heft_plan_create((const heft_tape_t *const *)tapes, n, first, &opts, &plan, NULL, &err),
        HEFT_OK);
    return plan;
}

/* What the destination of a rank plans: nothing of what it does not read. */
static heft_tape_t *place_read(const fleet_t *f, int rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_tape_t *copy = NULL;
    heft_tape_t *placed = NULL;
    char *text = NULL;
    EXPECT_STATUS(heft_tape_encode(f->c.tapes[rank], &text, &err), HEFT_OK);
    EXPECT_STATUS(heft_tape_decode(text, strlen(text), &copy, &err), HEFT_OK);
    EXPECT_STATUS(heft__placement_apply_read(f->placement, copy, &placed, &err), HEFT_OK);
    heft_string_free(text);
    return placed;
}

static void plan_fleet(fleet_t *f)
{
    heft_error_t err = HEFT_ERROR_INIT;
    for (int r = 0; r < f->c.n_ranks; r++) {
        for (uint32_t s = 0; s < f->n_senders && f->placement != NULL; s++) {
            EXPECT_STATUS(
                heft_placement_apply_part(f->placement, s, f->c.tapes[r], &f->parts[s][r], &err),
                HEFT_OK);
        }
        f->placed[r] = f->c.tapes[r];
        if (f->placement != NULL) {
            f->read[r] = place_read(f, r);
            EXPECT_STATUS(heft_placement_apply(f->placement, f->c.tapes[r], &f->placed[r], &err),
                          HEFT_OK);
        }
        f->c.tapes[r] = NULL;
    }
    f->plan = make_plan(f->placed, (uint32_t)f->c.n_ranks, 0);
}

static void fleet_fini(fleet_t *f)
{
    heft_routes_destroy(f->routes);
    heft_plan_destroy(f->plan);
    for (int r = 0; r < f->c.n_ranks; r++) {
        heft_tape_destroy(f->placed[r]);
        heft_tape_destroy(f->read[r]);
        for (uint32_t s = 0; s < f->n_senders; s++) {
            heft_tape_destroy(f->parts[s][r]);
        }
        for (uint32_t p = 0; p < f->c.n_params[r]; p++) {
            free(f->mask[r][p]);
        }
    }
    for (int t = 0; t < f->c.n_sources; t++) {
        free(f->owner[t]);
    }
    for (uint32_t i = 0; i < f->n_entries; i++) {
        free(f->entries[i].data);
    }
    for (uint32_t r = 0; r < f->n_senders; r++) {
        heft_manifest_destroy(f->manifests[r]);
    }
    heft_placement_destroy(f->placement);
    ref_case_fini(&f->c);
}

/* ---- who sends what, as the judge says ---- */

static uint32_t lowest_bit(uint64_t bits)
{
    uint32_t i = 0;
    while ((bits >> i & 1) == 0) {
        i++;
    }
    return i;
}

static uint64_t needs_of(const fleet_t *f, int rank, uint32_t param)
{
    heft_tensor_info_t info;
    uint64_t all = 0;
    assert_int_equal(heft_plan_query_param(f->plan, (uint32_t)rank, param, &info, NULL), HEFT_OK);
    for (int64_t i = 0; i < info.n_elems; i++) {
        all |= f->mask[rank][param][i];
    }
    return all;
}

/* The sender of constants of a parameter. */
static uint32_t sender_of_constants(const fleet_t *f, int rank, uint32_t param)
{
    uint64_t all = needs_of(f, rank, param);
    for (uint32_t p = 0; all == 0 && p < f->c.n_params[rank]; p++) {
        all = needs_of(f, rank, p); /* of the first parameter that anybody sends something of */
    }
    return all != 0 ? lowest_bit(all) : 0;
}

/* ---- running ---- */

typedef struct run {
    heft_exec_target_t targets[MAX_TARGETS];
    ref_params_t params[MAX_TARGETS];
    uint64_t digests[MAX_TARGETS][REF_MAX_PARAMS];
    uint32_t n;
} run_t;

static void run_sender(const fleet_t *f, uint32_t sender, run_t *run, uint32_t n_threads)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_info_t info;
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    heft_exec_t *exec = NULL;
    heft_plan_query(f->plan, &info);
    const void **sources = calloc((size_t)info.n_sources + 1, sizeof *sources);
    assert_non_null(sources);
    for (uint32_t i = 0; i < f->n_entries; i++) {
        if (f->entries[i].sender != sender) {
            continue;
        }
        char name[64];
        if (f->placement != NULL) {
            (void)snprintf(name, sizeof name, "rank-%u.%s", sender, f->entries[i].name);
        } else {
            (void)snprintf(name, sizeof name, "%s", f->entries[i].name);
        }
        for (uint32_t s = 0; s < info.n_sources; s++) {
            heft_tensor_info_t source;
            EXPECT_STATUS(heft_plan_query_source(f->plan, s, &source, &err), HEFT_OK);
            if (strcmp(source.name, name) == 0) {
                sources[s] = f->entries[i].data;
            }
        }
    }
    opts.routes = f->routes;
    opts.sender = sender;
    opts.n_threads = n_threads;
    EXPECT_STATUS(heft_exec_create(f->plan, run->targets, run->n, &opts, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    heft_exec_destroy(exec);
    free(sources);
}

/* A target for each rank, and one rank twice. */
static void run_init(run_t *run, const fleet_t *f, uint64_t *rng)
{
    run->n = (uint32_t)f->c.n_ranks + 1;
    for (uint32_t t = 0; t < run->n; t++) {
        const int rank = t + 1 < run->n ? (int)t : pick(rng, 0, f->c.n_ranks - 1);
        ref_params_init(&run->params[t], &f->c, rank);
        run->targets[t] = (heft_exec_target_t){ .rank_index = (uint32_t)rank,
                                                .params = run->params[t].data,
                                                .digests_out = run->digests[t] };
    }
}

static void run_fini(run_t *run)
{
    for (uint32_t t = 0; t < run->n; t++) {
        ref_params_fini(&run->params[t]);
    }
}

/* ---- judging one sender ---- */

/* Which bytes of a parameter a sender writes: those that do not depend on what was there. */
static void judge_bytes(const fleet_t *f, uint32_t sender, const run_t *one, const run_t *other,
                        uint32_t t, uint32_t p)
{
    const int rank = (int)one->targets[t].rank_index;
    heft_tensor_info_t info;
    assert_int_equal(heft_plan_query_param(f->plan, (uint32_t)rank, p, &info, NULL), HEFT_OK);
    const int64_t unit = heft_dtype_get_unit_bytes(info.dtype);
    const uint32_t of_constants = sender_of_constants(f, rank, p);
    const uint8_t *a = one->params[t].data[p];
    const uint8_t *b = other->params[t].data[p];
    for (int64_t i = 0; i < info.n_elems; i++) {
        const uint64_t mask = f->mask[rank][p][i];
        const bool is_mine = (mask != 0 ? lowest_bit(mask) : of_constants) == sender;
        for (int64_t k = i * unit; k < (i + 1) * unit; k++) {
            if (is_mine) {
                assert_int_equal(a[k], f->c.expected[rank][p][k]);
                assert_int_equal(b[k], f->c.expected[rank][p][k]);
            } else {
                assert_int_equal(a[k], 0xff);
                assert_int_equal(b[k], 0x00);
            }
        }
    }
}

/* The regions are what was written; packed, they carry it over to the rebuilt parameter. */
static void judge_route(const fleet_t *f, uint32_t sender, const run_t *one, const run_t *other,
                        uint32_t t, uint32_t p, uint8_t *rebuilt, uint64_t *rng)
{
    heft_error_t err = HEFT_ERROR_INIT;
    const uint32_t rank = one->targets[t].rank_index;
    heft_route_region_t *regions = NULL;
    heft_route_info_t info;
    uint32_t n = 0;
    EXPECT_STATUS(heft_routes_make_regions(f->routes, sender, rank, p, &regions, &n, &err),
                  HEFT_OK);
    heft_routes_query_param(f->routes, sender, rank, p, &info);
    const int64_t n_bytes = heft_route_regions_get_n_bytes(regions, n);
    assert_int_equal(n_bytes, info.n_bytes);
    assert_int_equal(n, info.n_regions);
    const uint8_t *a = one->params[t].data[p];
    const uint8_t *b = other->params[t].data[p];
    int64_t n_written = 0;
    for (int64_t k = 0; k < one->params[t].n_bytes[p]; k++) {
        n_written += a[k] == b[k];
    }
    assert_int_equal(n_written, n_bytes);
    uint8_t *packed = malloc((size_t)n_bytes + 1);
    assert_non_null(packed);
    for (int64_t at = 0; at < n_bytes;) { /* in chunks; each must be of bytes that were written */
        const int64_t chunk = heft_test_random_in(rng, 1, n_bytes - at);
        uint8_t *twice = malloc((size_t)chunk);
        assert_non_null(twice);
        EXPECT_STATUS(heft_route_pack(regions, n, a, at, packed + at, chunk, &err), HEFT_OK);
        EXPECT_STATUS(heft_route_pack(regions, n, b, at, twice, chunk, &err), HEFT_OK);
        assert_memory_equal(packed + at, twice, (size_t)chunk);
        EXPECT_STATUS(heft_route_unpack(regions, n, rebuilt, at, packed + at, chunk, &err),
                      HEFT_OK);
        at += chunk;
        free(twice);
    }
    free(packed);
    heft_route_regions_free(regions);
}

/* ---- judging a fleet ---- */

static void set_all(const run_t *run, int value)
{
    for (uint32_t t = 0; t < run->n; t++) {
        for (uint32_t p = 0; p < run->params[t].n; p++) {
            memset(run->params[t].data[p], value, (size_t)run->params[t].n_bytes[p]);
        }
    }
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t *rng)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = (uint32_t)pick(rng, 0, (int)i);
        order[i] = order[k];
        order[k] = i;
    }
}

static void judge_runs(const fleet_t *f, uint64_t *rng)
{
    static run_t one;
    static run_t other;
    static run_t rebuilt;
    uint32_t order[MAX_SENDERS];
    uint64_t digests[MAX_TARGETS][REF_MAX_PARAMS] = { { 0 } };
    uint64_t seed = *rng;
    run_init(&one, f, rng);
    run_init(&other, f, &seed);
    run_init(&rebuilt, f, &(uint64_t){ 0 });
    rebuilt.n--; /* one of each rank */
    ref_params_fini(&rebuilt.params[rebuilt.n]);
    shuffle(order, f->n_senders, rng);
    for (uint32_t i = 0; i < f->n_senders; i++) {
        const uint32_t sender = order[i];
        set_all(&one, 0xff);
        set_all(&other, 0x00);
        run_sender(f, sender, &one, (uint32_t)pick(rng, 1, 2));
        for (uint32_t t = 0; t < one.n; t++) {
            for (uint32_t p = 0; p < one.params[t].n; p++) {
                digests[t][p] ^= one.digests[t][p];
            }
        }
        other.targets[other.n - 1].rank_index = one.targets[one.n - 1].rank_index;
        run_sender(f, sender, &other, 1);
        for (uint32_t t = 0; t < one.n; t++) {
            for (uint32_t p = 0; p < one.params[t].n; p++) {
                judge_bytes(f, sender, &one, &other, t, p);
                if (t < rebuilt.n) {
                    judge_route(f, sender, &one, &other, t, p, rebuilt.params[t].data[p], rng);
                }
            }
        }
    }
    for (uint32_t t = 0; t < one.n; t++) {
        const int rank = (int)one.targets[t].rank_index;
        for (uint32_t p = 0; p < one.params[t].n; p++) {
            const int64_t n_bytes = one.params[t].n_bytes[p];
            assert_int_equal(digests[t][p], heft_digest(f->c.expected[rank][p], n_bytes));
        }
        if (t < rebuilt.n) {
            ref_params_check(&rebuilt.params[t], &f->c, rank);
        }
    }
    run_fini(&one);
    run_fini(&other);
    run_fini(&rebuilt);
}

/* Who plans one rank alone comes to the same routes of it. */
static void judge_alone(const fleet_t *f, heft_tape_t *const *tape, uint32_t rank)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_t *alone = NULL;
    heft_plan_t *plan = make_plan(tape, 1, rank);
    assert_string_equal(heft_plan_get_rank_digest(plan, 0),
                        heft_plan_get_rank_digest(f->plan, rank));
    EXPECT_STATUS(heft_routes_create(plan, NULL, f->n_senders, NULL, &alone, &err), HEFT_OK);
    uint32_t n = 0;
    uint32_t n_alone = 0;
    const uint32_t *senders = heft_routes_get_senders(f->routes, rank, &n);
    const uint32_t *senders_alone = heft_routes_get_senders(alone, 0, &n_alone);
    assert_int_equal(n, n_alone);
    for (uint32_t i = 0; i < n; i++) {
        heft_route_info_t info;
        heft_route_info_t info_alone;
        assert_int_equal(senders[i], senders_alone[i]);
        heft_routes_query(f->routes, senders[i], rank, &info);
        heft_routes_query(alone, senders[i], 0, &info_alone);
        assert_string_equal(info.digest, info_alone.digest);
        assert_int_equal(info.n_bytes, info_alone.n_bytes);
        assert_int_equal(info.n_runs, info_alone.n_runs);
    }
    heft_routes_destroy(alone);
    heft_plan_destroy(plan);
}

/* It knows which parameters are its alone, and which others send something of as well. */
static void judge_param_senders(const fleet_t *f, const heft_routes_t *part, uint32_t sender,
                                uint32_t r)
{
    for (uint32_t p = 0; p < heft_plan_get_n_params(f->plan, r); p++) {
        uint32_t n = 0;
        uint32_t n_part = 0;
        bool sends = false;
        bool sends_part = false;
        const uint32_t *senders = heft_routes_get_param_senders(f->routes, r, p, &n);
        const uint32_t *in_part = heft_routes_get_param_senders(part, r, p, &n_part);
        for (uint32_t i = 0; i < n; i++) {
            sends = sends || senders[i] == sender;
        }
        for (uint32_t i = 0; i < n_part; i++) {
            sends_part = sends_part || in_part[i] == sender;
        }
        assert_int_equal(sends_part, sends);
        assert_true(!sends || (n == 1) == (n_part == 1));
    }
}

/* A sender that plans its own part alone comes to the same routes. */
static void judge_part(const fleet_t *f, uint32_t sender)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    heft_plan_t *plan = NULL;
    heft_routes_t *routes = NULL;
    opts.others = f->placement;
    EXPECT_STATUS(heft_plan_create_part((const heft_tape_t *const *)f->parts[sender],
                                        (uint32_t)f->c.n_ranks, 0, NULL, &plan, &err),
                  HEFT_OK);
    EXPECT_STATUS(heft_routes_create(plan, NULL, f->n_senders, &opts, &routes, &err), HEFT_OK);
    for (uint32_t r = 0; r < (uint32_t)f->c.n_ranks; r++) {
        heft_route_info_t info;
        heft_route_info_t part;
        heft_routes_query(f->routes, sender, r, &info);
        heft_routes_query(routes, sender, r, &part);
        assert_int_equal(part.n_bytes, info.n_bytes);
        assert_int_equal(part.n_runs, info.n_runs);
        assert_int_equal(part.n_pieces, info.n_pieces);
        assert_int_equal(part.digest == NULL, info.digest == NULL);
        if (info.digest != NULL) {
            assert_string_equal(part.digest, info.digest);
        }
        judge_param_senders(f, routes, sender, r);
    }
    heft_routes_destroy(routes);
    heft_plan_destroy(plan);
}

static void every_byte_is_sent_once(void **state)
{
    (void)state;
    static fleet_t f;
    uint64_t rng = heft_test_seed();
    int64_t n_refused = 0;
    int64_t n_several = 0;
    const int64_t n = heft_test_cases(300);
    for (int64_t i = 0; i < n; i++) {
        heft_error_t err = HEFT_ERROR_INIT;
        fleet_init(&f, &rng);
        plan_fleet(&f);
        heft_status_t status = heft_routes_create(f.plan, NULL, f.n_senders, NULL, &f.routes, &err);
        if (f.is_refusable) {
            EXPECT_STATUS(status, HEFT_ERR_UNSUPPORTED);
            n_refused++;
        } else {
            EXPECT_STATUS(status, HEFT_OK);
            judge_runs(&f, &rng);
            const uint32_t rank = (uint32_t)pick(&rng, 0, f.c.n_ranks - 1);
            judge_alone(&f, &f.placed[rank], rank);
            if (f.placement != NULL) {
                judge_alone(&f, &f.read[rank], rank);
            }
            for (uint32_t s = 0; s < f.n_senders && f.placement != NULL; s++) {
                judge_part(&f, s);
            }
            n_several += f.placement != NULL;
        }
        fleet_fini(&f);
    }
    print_message("%lld fleets: %lld of several senders or parts judged, %lld refused rightly\n",
                  (long long)n, (long long)n_several, (long long)n_refused);
    assert_true(n < 100 || n_several > n / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_sent_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

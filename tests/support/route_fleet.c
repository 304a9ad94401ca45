/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what, at random; then everything that follows from it. */
#include "route_fleet.h"

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

void fleet_init(fleet_t *f, uint64_t *rng)
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

heft_plan_t *make_plan(heft_tape_t *const *tapes, uint32_t n, uint32_t first)
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

void plan_fleet(fleet_t *f)
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

void fleet_fini(fleet_t *f)
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

/* ---- running ---- */

void plan_part(const fleet_t *f, heft_tape_t *const *tapes, uint32_t n, bool gathers,
               heft_plan_t **plan_out, heft_routes_t **routes_out)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_routes_opts_t opts = HEFT_ROUTES_OPTS_INIT;
    opts.others = f->placement;
    opts.gathers = gathers;
    EXPECT_STATUS(
        heft_plan_create_part((const heft_tape_t *const *)tapes, n, 0, NULL, plan_out, &err),
        HEFT_OK);
    EXPECT_STATUS(heft_routes_create(*plan_out, NULL, f->n_senders, &opts, routes_out, &err),
                  HEFT_OK);
}

void run_share(const fleet_t *f, const heft_plan_t *plan, const heft_routes_t *routes,
               uint32_t sender, const heft_exec_target_t *targets, uint32_t n_targets,
               uint32_t n_threads)
{
    heft_error_t err = HEFT_ERROR_INIT;
    heft_plan_info_t info;
    heft_exec_opts_t opts = HEFT_EXEC_OPTS_INIT;
    heft_exec_t *exec = NULL;
    heft_plan_query(plan, &info);
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
            EXPECT_STATUS(heft_plan_query_source(plan, s, &source, &err), HEFT_OK);
            if (strcmp(source.name, name) == 0) {
                sources[s] = f->entries[i].data;
            }
        }
    }
    opts.routes = routes;
    opts.sender = sender;
    opts.n_threads = n_threads;
    EXPECT_STATUS(heft_exec_create(plan, targets, n_targets, &opts, &exec, &err), HEFT_OK);
    EXPECT_STATUS(heft_exec_run(exec, sources, &err), HEFT_OK);
    heft_exec_destroy(exec);
    free(sources);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Connected components of parameters and whole source tensors, by union and find; then the plan
 * that puts the tensors of some of them together, and what kernels are given. */
#include "sync/inputs.h"

#include "exec/exec.h"
#include "plan/plan.h"
#include "sync/holders.h"

typedef struct components {
    uint32_t *parent; /* parameters, then tensors */
    uint32_t n_params;
    uint32_t n_tensors;
    const heft__holder_t *holders; /* of the plan's sources */
    uint32_t node;                 /* the parameter whose sources are being joined to it */
} components_t;

static uint32_t find(uint32_t *parent, uint32_t node)
{
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

static void join(components_t *c, uint32_t one, uint32_t other)
{
    const uint32_t a = find(c->parent, one);
    const uint32_t b = find(c->parent, other);
    c->parent[a > b ? a : b] = a > b ? b : a;
}

static void join_source(void *arg, uint32_t source)
{
    components_t *c = arg;
    join(c, c->node, c->n_params + c->holders[source].tensor);
}

static void join_pieces(components_t *c, const heft_plan_t *plan, uint32_t rank_index,
                        const heft_piece_t *pieces, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        c->node = pieces[i].param;
        heft__piece_each_source(plan, rank_index, &pieces[i], join_source, c);
    }
}

static void classify(const heft_plan_t *plan, uint32_t rank_index, uint32_t param,
                     heft__inputs_t *inputs)
{
    uint64_t n = 0;
    uint64_t n_loaded = 0;
    const heft_piece_t *pieces = heft_plan_get_param_pieces(plan, rank_index, param, &n);
    for (uint64_t i = 0; i < n; i++) {
        n_loaded += heft__piece_needs_loader(plan, rank_index, &pieces[i]);
    }
    inputs->is_loaded[param] = n_loaded > 0;
    inputs->is_mixed[param] = n_loaded > 0 && n_loaded < n;
}

const heft_opaque_t *heft__inputs_first(const heft_plan_t *plan, uint32_t rank_index,
                                        uint32_t *param_out)
{
    uint64_t n = 0;
    const heft_piece_t *pieces = heft_plan_get_pieces(plan, rank_index, &n);
    for (uint64_t i = 0; i < n; i++) {
        if (!heft__piece_needs_loader(plan, rank_index, &pieces[i])) {
            continue;
        }
        *param_out = pieces[i].param;
        for (uint32_t s = 0; s < pieces[i].n_srcs; s++) {
            const heft_opaque_t *op = heft__piece_operation(plan, rank_index, &pieces[i], s);
            if (op != NULL) {
                return op;
            }
        }
    }
    return NULL;
}

static heft_status_t alloc_marks(uint32_t n_params, heft__inputs_t *inputs, heft_error_t *err)
{
    inputs->is_loaded = heft__calloc((size_t)n_params + 1, sizeof *inputs->is_loaded);
    inputs->is_mixed = heft__calloc((size_t)n_params + 1, sizeof *inputs->is_mixed);
    inputs->is_grouped = heft__calloc((size_t)n_params + 1, sizeof *inputs->is_grouped);
    return inputs->is_loaded != NULL && inputs->is_mixed != NULL && inputs->is_grouped != NULL
               ? HEFT_OK
               : heft__error_nomem(err, n_params * sizeof *inputs->is_loaded);
}

/* Marks go to the roots: a component is the loader's if one of its parameters is. */
static heft_status_t collect(const heft_plan_t *plan, uint32_t rank_index, components_t *c,
                             bool *marks, heft__inputs_t *inputs, heft_error_t *err)
{
    heft_status_t status = alloc_marks(c->n_params, inputs, err);
    if (status != HEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < c->n_params; i++) {
        classify(plan, rank_index, i, inputs);
        marks[find(c->parent, i)] |= inputs->is_loaded[i];
    }
    for (uint32_t i = 0; i < c->n_params; i++) {
        inputs->is_grouped[i] = !inputs->is_loaded[i] && marks[find(c->parent, i)];
    }
    return HEFT_OK;
}

static void join_all(components_t *c, const heft_plan_t *plan, uint32_t rank_index)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->n_params + c->n_tensors; i++) {
        c->parent[i] = i;
    }
    const heft_piece_t *pieces = heft_plan_get_pieces(plan, rank_index, &n);
    join_pieces(c, plan, rank_index, pieces, n);
    pieces = heft_plan_get_checks(plan, rank_index, &n);
    join_pieces(c, plan, rank_index, pieces, n);
    for (uint32_t i = 0; i < c->n_params; i++) {
        join(c, i, heft__plan_get_together(plan, rank_index, i));
    }
}

/* ---- the plan of inputs ---- */

/* A whole tensor to a parameter of its name. */
static heft_status_t add_input(heft_tape_t *tape, const heft_tensor_info_t *tensor,
                               heft_error_t *err)
{
    uint32_t source = 0;
    uint32_t param = 0;
    heft_buffer_info_t info;
    heft_status_t status =
        heft_tape_find_buffer(tape, HEFT_BUFFER_SOURCE, tensor->name, &source, NULL);
    if (status != HEFT_OK) { /* no kernel is given any of it */
        status = heft_tape_add_buffer(tape, HEFT_BUFFER_SOURCE, tensor->name, tensor->dtype,
                                      &tensor->shape, &source, err);
    }
    if (status == HEFT_OK) {
        status = heft_tape_add_buffer(tape, HEFT_BUFFER_PARAM, tensor->name, tensor->dtype,
                                      &tensor->shape, &param, err);
    }
    if (status == HEFT_OK) {
        status = heft_tape_query_buffer(tape, param, &info, err);
    }
    if (status != HEFT_OK) {
        return status;
    }
    heft_view_t dst = { .buffer = param, .rank = info.shape.rank };
    int64_t stride = 1;
    for (int d = info.shape.rank - 1; d >= 0; d--) {
        dst.extent[d] = info.shape.extent[d];
        dst.stride[d] = stride;
        stride *= info.shape.extent[d]; /* bounded by the elements of the tensor */
    }
    heft_view_t src = dst;
    src.buffer = source;
    return heft_tape_copy(tape, &dst, &src, "", err);
}

/* What is sent besides parameters, and by which plan. */
typedef struct wanted {
    const heft__sources_t *sources;
    const components_t *c; /* NULL: the loader is given nothing */
    const bool *marks;
    heft__gathered_t *gathered;
    uint32_t source; /* whose part is planned, or HEFT__ALL_SOURCES */
} wanted_t;

/* Over whole tensors. */
static heft_status_t make_tape(const wanted_t *w, heft_tape_t **tape_out, heft_error_t *err)
{
    heft_tape_t *tape = w->gathered->inputs;
    heft_status_t status = HEFT_OK;
    w->gathered->inputs = NULL;
    if (tape == NULL) {
        status = heft_tape_create(&tape, err);
    }
    for (uint32_t t = 0; w->c != NULL && t < w->c->n_tensors && status == HEFT_OK; t++) {
        heft_tensor_info_t info;
        if (w->marks[find(w->c->parent, w->c->n_params + t)]) {
            status = heft_manifest_query(w->sources->whole, t, &info, err);
            status = status == HEFT_OK ? add_input(tape, &info, err) : status;
        }
    }
    if (status != HEFT_OK) {
        heft_tape_destroy(tape);
        return status;
    }
    *tape_out = tape;
    return HEFT_OK;
}

/* The same over what the sources hold, or the part of it that concerns one of them. */
static heft_status_t place_tape(const wanted_t *w, heft_tape_t **tape, heft_error_t *err)
{
    heft_tape_t *placed = NULL;
    if (w->sources->placement == NULL) {
        return HEFT_OK;
    }
    if (w->source == HEFT__ALL_SOURCES) {
        heft_status_t status =
            heft__placement_apply_read(w->sources->placement, *tape, &placed, err);
        *tape = status == HEFT_OK ? placed : *tape;
        return status;
    }
    heft_status_t status =
        heft_placement_apply_part(w->sources->placement, w->source, *tape, &placed, err);
    if (status == HEFT_OK) {
        heft_tape_destroy(*tape);
        *tape = placed;
    }
    return status;
}

static heft_status_t list_items(const wanted_t *w, heft__inputs_t *inputs, heft_error_t *err)
{
    inputs->n = heft_plan_get_n_params(inputs->plan, 0);
    inputs->items = heft__calloc((size_t)inputs->n + 1, sizeof *inputs->items);
    inputs->is_gathered = heft__calloc((size_t)inputs->n + 1, sizeof *inputs->is_gathered);
    if (inputs->items == NULL || inputs->is_gathered == NULL) {
        return heft__error_nomem(err, inputs->n * sizeof *inputs->items);
    }
    for (uint32_t k = 0; k < inputs->n; k++) {
        heft_tensor_info_t info;
        heft_status_t status = heft_plan_query_param(inputs->plan, 0, k, &info, err);
        if (status != HEFT_OK) {
            return status;
        }
        inputs->items[k] =
            (heft_input_t){ .name = info.name,
                            .dtype = info.dtype,
                            .shape = heft__shape_from_storage(&info.shape, info.dtype),
                            .n_bytes = info.n_bytes };
        uint32_t buffer = 0;
        inputs->is_gathered[k] = w->gathered->local != NULL &&
                                 heft_tape_find_buffer(w->gathered->local, HEFT_BUFFER_SOURCE,
                                                       info.name, &buffer, NULL) == HEFT_OK;
        inputs->n_gathered += inputs->is_gathered[k];
    }
    return HEFT_OK;
}

static heft_status_t plan_inputs(const wanted_t *w, heft__inputs_t *inputs, heft_error_t *err)
{
    heft_plan_opts_t opts = HEFT_PLAN_OPTS_INIT;
    heft_routes_opts_t routed = HEFT_ROUTES_OPTS_INIT;
    heft_tape_t *tape = NULL;
    opts.partial = 1; /* all other tensors are no concern of it */
    heft_status_t status = make_tape(w, &tape, err);
    if (status != HEFT_OK) {
        return status;
    }
    status = place_tape(w, &tape, err);
    const heft_tape_t *const tapes[1] = { tape };
    if (status == HEFT_OK && w->source != HEFT__ALL_SOURCES) {
        routed.others = w->sources->placement;
        status = heft_plan_create_part(tapes, 1, 0, &opts, &inputs->plan, err);
    } else if (status == HEFT_OK) {
        status = heft_plan_create(tapes, 1, 0, &opts, &inputs->plan, NULL, err);
    }
    heft_tape_destroy(tape);
    if (status == HEFT_OK) {
        status =
            heft_routes_create(inputs->plan, NULL, w->sources->n, &routed, &inputs->routes, err);
    }
    return status == HEFT_OK ? list_items(w, inputs, err) : status;
}

/* What the loader is given, and with it what kernels are. */
static heft_status_t plan_for_loader(const heft_plan_t *plan, uint32_t rank_index,
                                     const wanted_t *for_kernels, heft__inputs_t *inputs,
                                     heft_error_t *err)
{
    heft__holder_t *holders = NULL;
    wanted_t w = *for_kernels;
    heft_status_t status = heft__holders_create(plan, w.sources, &holders, err);
    if (status != HEFT_OK) {
        return status;
    }
    components_t c = { .n_params = heft_plan_get_n_params(plan, rank_index),
                       .n_tensors = heft_manifest_get_n_tensors(w.sources->whole),
                       .holders = holders };
    const size_t n_nodes = (size_t)c.n_params + c.n_tensors;
    bool *marks = heft__calloc(n_nodes, sizeof *marks);
    c.parent = heft__calloc(n_nodes, sizeof *c.parent);
    status = marks != NULL && c.parent != NULL ? HEFT_OK
                                               : heft__error_nomem(err, n_nodes * sizeof *c.parent);
    if (status == HEFT_OK) {
        join_all(&c, plan, rank_index);
        status = collect(plan, rank_index, &c, marks, inputs, err);
    }
    if (status == HEFT_OK) {
        w.c = &c;
        w.marks = marks;
        status = plan_inputs(&w, inputs, err);
    }
    heft__free(holders);
    heft__free(marks);
    heft__free(c.parent);
    return status;
}

/* The loader writes nothing. */
static heft_status_t plan_for_kernels(const heft_plan_t *plan, uint32_t rank_index,
                                      const wanted_t *w, heft__inputs_t *inputs, heft_error_t *err)
{
    heft_status_t status = alloc_marks(heft_plan_get_n_params(plan, rank_index), inputs, err);
    return status == HEFT_OK ? plan_inputs(w, inputs, err) : status;
}

heft_status_t heft__inputs_init(const heft_plan_t *plan, uint32_t rank_index,
                                const heft__sources_t *sources, heft__gathered_t *gathered,
                                uint32_t source, heft__inputs_t *inputs_out, heft_error_t *err)
{
    uint32_t param;
    heft__inputs_t inputs = { .n = 0 };
    const wanted_t w = { .sources = sources, .gathered = gathered, .source = source };
    heft_status_t status = HEFT_OK;
    if (heft__inputs_first(plan, rank_index, &param) != NULL) {
        status = plan_for_loader(plan, rank_index, &w, &inputs, err);
    } else if (gathered->inputs != NULL) {
        status = plan_for_kernels(plan, rank_index, &w, &inputs, err);
    }
    if (status != HEFT_OK) {
        heft__inputs_fini(&inputs);
        return status;
    }
    *inputs_out = inputs;
    return HEFT_OK;
}

void heft__inputs_fini(heft__inputs_t *inputs)
{
    heft_routes_destroy(inputs->routes);
    heft_plan_destroy(inputs->plan);
    heft__free(inputs->items);
    heft__free(inputs->is_gathered);
    heft__free(inputs->is_loaded);
    heft__free(inputs->is_mixed);
    heft__free(inputs->is_grouped);
    *inputs = (heft__inputs_t){ .n = 0 };
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Connected components of parameters and source tensors, by union and find. */
#include "sync/inputs.h"

#include "exec/exec.h"
#include "plan/plan.h"

typedef struct components {
    uint32_t *parent; /* parameters, then sources */
    uint32_t n_params;
    uint32_t node; /* the parameter whose sources are being joined to it */
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
    join(c, c->node, c->n_params + source);
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

/* Marks go to the roots: a component is the loader's if one of its parameters is. */
static heft_status_t collect(const heft_plan_t *plan, uint32_t rank_index, components_t *c,
                             uint32_t n_sources, bool *marks, heft__inputs_t *inputs,
                             heft_error_t *err)
{
    inputs->is_loaded = heft__calloc(c->n_params, sizeof *inputs->is_loaded);
    inputs->is_mixed = heft__calloc(c->n_params, sizeof *inputs->is_mixed);
    inputs->is_grouped = heft__calloc(c->n_params, sizeof *inputs->is_grouped);
    inputs->sources = heft__calloc(n_sources + 1, sizeof *inputs->sources);
    if (inputs->is_loaded == NULL || inputs->is_mixed == NULL || inputs->is_grouped == NULL ||
        inputs->sources == NULL) {
        return heft__error_nomem(err, n_sources * sizeof *inputs->sources);
    }
    for (uint32_t i = 0; i < c->n_params; i++) {
        classify(plan, rank_index, i, inputs);
        marks[find(c->parent, i)] |= inputs->is_loaded[i];
    }
    for (uint32_t i = 0; i < c->n_params; i++) {
        inputs->is_grouped[i] = !inputs->is_loaded[i] && marks[find(c->parent, i)];
    }
    for (uint32_t s = 0; s < n_sources; s++) {
        if (marks[find(c->parent, c->n_params + s)]) {
            inputs->sources[inputs->n++] = s;
        }
    }
    return HEFT_OK;
}

heft_status_t heft__inputs_init(const heft_plan_t *plan, uint32_t rank_index,
                                heft__inputs_t *inputs_out, heft_error_t *err)
{
    heft_plan_info_t info;
    uint32_t param;
    heft__inputs_t inputs = { .n = 0 };
    if (heft__inputs_first(plan, rank_index, &param) == NULL) {
        *inputs_out = inputs;
        return HEFT_OK;
    }
    heft_plan_query(plan, &info);
    components_t c = { .n_params = heft_plan_get_n_params(plan, rank_index) };
    const size_t n_nodes = (size_t)c.n_params + info.n_sources;
    bool *marks = heft__calloc(n_nodes, sizeof *marks);
    c.parent = heft__calloc(n_nodes, sizeof *c.parent);
    heft_status_t status = marks != NULL && c.parent != NULL
                               ? HEFT_OK
                               : heft__error_nomem(err, n_nodes * sizeof *c.parent);
    if (status == HEFT_OK) {
        uint64_t n = 0;
        for (uint32_t i = 0; i < n_nodes; i++) {
            c.parent[i] = i;
        }
        const heft_piece_t *pieces = heft_plan_get_pieces(plan, rank_index, &n);
        join_pieces(&c, plan, rank_index, pieces, n);
        pieces = heft_plan_get_checks(plan, rank_index, &n);
        join_pieces(&c, plan, rank_index, pieces, n);
        for (uint32_t i = 0; i < c.n_params; i++) {
            join(&c, i, heft__plan_get_together(plan, rank_index, i));
        }
        status = collect(plan, rank_index, &c, info.n_sources, marks, &inputs, err);
    }
    heft__free(marks);
    heft__free(c.parent);
    if (status != HEFT_OK) {
        heft__inputs_fini(&inputs);
        return status;
    }
    *inputs_out = inputs;
    return HEFT_OK;
}

void heft__inputs_fini(heft__inputs_t *inputs)
{
    heft__free(inputs->sources);
    heft__free(inputs->is_loaded);
    heft__free(inputs->is_mixed);
    heft__free(inputs->is_grouped);
    *inputs = (heft__inputs_t){ .n = 0 };
}

heft_input_t heft__inputs_get(const heft__inputs_t *inputs, const heft_plan_t *plan, uint32_t k)
{
    heft_tensor_info_t info;
    if (heft_plan_query_source(plan, inputs->sources[k], &info, NULL) != HEFT_OK) {
        return (heft_input_t){ .name = "?" }; /* not for an index of the plan's own */
    }
    return (heft_input_t){ .name = info.name,
                           .dtype = info.dtype,
                           .shape = heft__shape_from_storage(&info.shape, info.dtype),
                           .n_bytes = info.n_bytes };
}

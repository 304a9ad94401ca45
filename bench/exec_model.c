/* SPDX-License-Identifier: Apache-2.0 */
#include "exec_model.h"

enum { HIDDEN = 2048, KV = 512, INTER = 5632, VOCAB = 32000 };

heft_error_t exec_model_err;

static heft_view_t add_shape(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name,
                             heft_shape_t shape)
{
    uint32_t id;
    CHECK(heft_tape_add_buffer(tape, kind, name, HEFT_DTYPE_BF16, &shape, &id, &exec_model_err));
    return heft_view_contiguous(id, &shape);
}

static heft_view_t add(heft_tape_t *tape, heft_buffer_kind_t kind, const char *name, int64_t rows,
                       int64_t cols)
{
    return add_shape(tape, kind, name, (heft_shape_t){ .rank = 2, .extent = { rows, cols } });
}

static heft_view_t source(heft_tape_t *tape, int layer, const char *what, int64_t rows,
                          int64_t cols)
{
    char name[96];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, what);
    return add(tape, HEFT_BUFFER_SOURCE, name, rows, cols);
}

static heft_view_t param(heft_tape_t *tape, int layer, const char *what, int64_t rows, int64_t cols)
{
    char name[96];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, what);
    return add(tape, HEFT_BUFFER_PARAM, name, rows, cols);
}

static heft_view_t narrow(heft_view_t view, int dim, int64_t begin, int64_t n)
{
    view.offset += begin * view.stride[dim];
    view.extent[dim] = n;
    return view;
}

/* Rank r's share of src along dim, to dst at this row. */
static void copy_share(heft_tape_t *tape, heft_view_t dst, int64_t row, heft_view_t src, int dim,
                       int r)
{
    int64_t n = src.extent[dim] / EXEC_MODEL_RANKS;
    src = narrow(src, dim, r * n, n);
    dst = narrow(dst, 0, row, src.extent[0]);
    CHECK(heft_tape_copy(tape, &dst, &src, "bench", &exec_model_err));
}

static void add_layer(heft_tape_t *tape, int l, int r)
{
    heft_view_t q = source(tape, l, "q_proj", HIDDEN, HIDDEN);
    heft_view_t k = source(tape, l, "k_proj", KV, HIDDEN);
    heft_view_t v = source(tape, l, "v_proj", KV, HIDDEN);
    heft_view_t o = source(tape, l, "o_proj", HIDDEN, HIDDEN);
    heft_view_t gate = source(tape, l, "gate_proj", INTER, HIDDEN);
    heft_view_t up = source(tape, l, "up_proj", INTER, HIDDEN);
    heft_view_t down = source(tape, l, "down_proj", HIDDEN, INTER);
    heft_view_t norm = source(tape, l, "norm", 2, HIDDEN);
    heft_view_t qkv = param(tape, l, "qkv_proj", (HIDDEN + 2 * KV) / EXEC_MODEL_RANKS, HIDDEN);
    copy_share(tape, qkv, 0, q, 0, r);
    copy_share(tape, qkv, HIDDEN / EXEC_MODEL_RANKS, k, 0, r);
    copy_share(tape, qkv, (HIDDEN + KV) / EXEC_MODEL_RANKS, v, 0, r);
    copy_share(tape, param(tape, l, "o_proj", HIDDEN, HIDDEN / EXEC_MODEL_RANKS), 0, o, 1, r);
    heft_view_t gate_up = param(tape, l, "gate_up_proj", 2 * INTER / EXEC_MODEL_RANKS, HIDDEN);
    copy_share(tape, gate_up, 0, gate, 0, r);
    copy_share(tape, gate_up, INTER / EXEC_MODEL_RANKS, up, 0, r);
    copy_share(tape, param(tape, l, "down_proj", HIDDEN, INTER / EXEC_MODEL_RANKS), 0, down, 1, r);
    heft_view_t norm_param = param(tape, l, "norm", 2, HIDDEN);
    CHECK(heft_tape_copy(tape, &norm_param, &norm, "bench", &exec_model_err));
}

enum { EXPERTS = 32, EXPERT_INTER = 768, PADDED = 1024, LANE = 128 };

static void fill(heft_tape_t *tape, heft_view_t dst)
{
    CHECK(heft_tape_fill(tape, &dst, 0, "bench", &exec_model_err));
}

/* [e, l, d, f] of gate (which = 0) or up (1), layer l, rank r, to wi [e, d, (b 2 n)]: f is shared
 * out, padded, cut in blocks b of n lanes. */
static void copy_lanes(heft_tape_t *tape, heft_view_t wi, heft_view_t src, int which, int l, int r)
{
    const int64_t share = EXPERT_INTER / EXEC_MODEL_RANKS;
    src = narrow(narrow(src, 1, l, 1), 3, r * share, share);
    heft_view_t from = { .buffer = src.buffer,
                         .rank = 4,
                         .offset = src.offset,
                         .extent = { EXPERTS, HIDDEN, share / LANE, LANE },
                         .stride = { src.stride[0], src.stride[2], LANE, 1 } };
    heft_view_t to = { .buffer = wi.buffer,
                       .rank = 4,
                       .offset = wi.offset + which * LANE,
                       .extent = { EXPERTS, HIDDEN, share / LANE, LANE },
                       .stride = { wi.stride[0], wi.stride[1], 2 * LANE, 1 } };
    CHECK(heft_tape_copy(tape, &to, &from, "bench", &exec_model_err));
    to.offset += share / LANE * 2 * LANE;
    to.extent[2] = (PADDED / EXEC_MODEL_RANKS - share) / LANE;
    fill(tape, to);
}

static heft_tape_t *make_scanned_tape(int n_layers, int r)
{
    heft_tape_t *tape = NULL;
    CHECK(heft_tape_create(&tape, &exec_model_err));
    const heft_shape_t wide = { .rank = 4, .extent = { EXPERTS, n_layers, HIDDEN, EXPERT_INTER } };
    const heft_shape_t square = { .rank = 3, .extent = { HIDDEN, n_layers, HIDDEN } };
    heft_view_t wi_0 = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.wi_0", wide);
    heft_view_t wi_1 = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.wi_1", wide);
    heft_view_t query = add_shape(tape, HEFT_BUFFER_SOURCE, "layers.query", square);
    for (int l = 0; l < n_layers; l++) {
        char name[64];
        (void)snprintf(name, sizeof name, "layers.%d.wi", l);
        heft_view_t wi = add_shape(
            tape, HEFT_BUFFER_PARAM, name,
            (heft_shape_t){ .rank = 3,
                            .extent = { EXPERTS, HIDDEN, 2 * PADDED / EXEC_MODEL_RANKS } });
        copy_lanes(tape, wi, wi_0, 0, l, r);
        copy_lanes(tape, wi, wi_1, 1, l, r);
        (void)snprintf(name, sizeof name, "layers.%d.q", l);
        heft_view_t q = add(tape, HEFT_BUFFER_PARAM, name, HIDDEN / EXEC_MODEL_RANKS, HIDDEN);
        heft_view_t src =
            narrow(query, 2, r * (HIDDEN / EXEC_MODEL_RANKS), HIDDEN / EXEC_MODEL_RANKS);
        heft_view_t turned = { .buffer = src.buffer,
                               .rank = 2,
                               .offset = src.offset + l * src.stride[1],
                               .extent = { HIDDEN / EXEC_MODEL_RANKS, HIDDEN },
                               .stride = { 1, src.stride[0] } };
        CHECK(heft_tape_copy(tape, &q, &turned, "bench", &exec_model_err));
    }
    return tape;
}

static heft_tape_t *make_tape(int n_layers, int r)
{
    heft_tape_t *tape = NULL;
    CHECK(heft_tape_create(&tape, &exec_model_err));
    heft_view_t embed = add(tape, HEFT_BUFFER_SOURCE, "model.embed.weight", VOCAB, HIDDEN);
    copy_share(tape,
               add(tape, HEFT_BUFFER_PARAM, "model.embed.weight", VOCAB / EXEC_MODEL_RANKS, HIDDEN),
               0, embed, 0, r);
    for (int l = 0; l < n_layers; l++) {
        add_layer(tape, l, r);
    }
    return tape;
}

heft_plan_t *exec_model_plan(int is_scanned, int n_layers)
{
    heft_tape_t *tapes[EXEC_MODEL_RANKS];
    const heft_tape_t *borrowed[EXEC_MODEL_RANKS];
    for (int r = 0; r < EXEC_MODEL_RANKS; r++) {
        tapes[r] = is_scanned ? make_scanned_tape(n_layers, r) : make_tape(n_layers, r);
        borrowed[r] = tapes[r];
    }
    heft_plan_t *plan = NULL;
    CHECK(heft_plan_create(borrowed, EXEC_MODEL_RANKS, 0, NULL, &plan, NULL, &exec_model_err));
    for (int r = 0; r < EXEC_MODEL_RANKS; r++) {
        heft_tape_destroy(tapes[r]);
    }
    return plan;
}

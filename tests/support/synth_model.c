/* SPDX-License-Identifier: Apache-2.0 */
/* Emits a model's tape layer by layer, in the order in which checkpoints list their tensors. */
#include "synth_model.h"

#include <stdio.h>
#include <string.h>

const synth_model_t synth_dense_8b = { .n_layers = 36,
                                       .hidden = 4096,
                                       .intermediate = 12288,
                                       .n_heads = 32,
                                       .n_kv_heads = 8,
                                       .head_dim = 128,
                                       .vocab = 151936,
                                       .has_qk_norm = true };

const synth_model_t synth_moe_235b = { .n_layers = 94,
                                       .n_experts = 128,
                                       .hidden = 4096,
                                       .intermediate = 1536,
                                       .n_heads = 64,
                                       .n_kv_heads = 4,
                                       .head_dim = 128,
                                       .vocab = 151936,
                                       .has_qk_norm = true };

const synth_model_t synth_moe_1t = { .n_layers = 61,
                                     .n_experts = 384,
                                     .hidden = 7168,
                                     .intermediate = 2048,
                                     .n_heads = 64,
                                     .n_kv_heads = 8,
                                     .head_dim = 128,
                                     .vocab = 163840 };

typedef struct emitter {
    const synth_model_t *m;
    int64_t tp;
    int64_t rank;
    int64_t expert_rank;
    heft_tape_t *tape;
    heft_error_t *err;
    heft_status_t status; /* the first failure */
    char prefix[64];      /* "model.layers.3." */
} emitter_t;

static uint32_t add(emitter_t *e, heft_buffer_kind_t kind, const char *prefix, const char *name,
                    const heft_shape_t *shape)
{
    char full[160];
    uint32_t buffer = 0;
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    if (e->status == HEFT_OK) {
        e->status =
            heft_tape_add_buffer(e->tape, kind, full, HEFT_DTYPE_BF16, shape, &buffer, e->err);
    }
    if (e->m->has_fills && kind == HEFT_BUFFER_PARAM && e->status == HEFT_OK) {
        heft_view_t all = heft_view_contiguous(buffer, shape);
        e->status = heft_tape_fill(e->tape, &all, 0, "loader: zeros", e->err);
    }
    return buffer;
}

static heft_shape_t shape2(int64_t a, int64_t b)
{
    return (heft_shape_t){ .rank = 2, .extent = { a, b } };
}

static heft_view_t narrow(heft_view_t v, int k, int64_t from, int64_t n)
{
    v.offset += from * v.stride[k];
    v.extent[k] = n;
    return v;
}

static heft_view_t select_dim(heft_view_t v, int k, int64_t i)
{
    v.offset += i * v.stride[k];
    for (; k + 1 < v.rank; k++) {
        v.extent[k] = v.extent[k + 1];
        v.stride[k] = v.stride[k + 1];
    }
    v.rank--;
    return v;
}

static heft_view_t transpose(heft_view_t v)
{
    heft_view_t t = v;
    t.extent[0] = v.extent[1];
    t.stride[0] = v.stride[1];
    t.extent[1] = v.extent[0];
    t.stride[1] = v.stride[0];
    return t;
}

static void copy(emitter_t *e, heft_view_t dst, heft_view_t src)
{
    if (e->m->has_temps || e->m->has_kernels) {
        heft_shape_t shape = { .rank = src.rank };
        memcpy(shape.extent, src.extent, sizeof shape.extent);
        uint32_t temp = add(e, HEFT_BUFFER_TEMP, "", "", &shape);
        heft_view_t whole = heft_view_contiguous(temp, &shape);
        if (e->status == HEFT_OK && e->m->has_kernels) {
            e->status =
                heft_tape_opaque(e->tape, "unpack", &whole, 1, &src, 1, "loader: unpack", e->err);
        } else if (e->status == HEFT_OK) {
            e->status = heft_tape_copy(e->tape, &whole, &src, "loader: contiguous", e->err);
        }
        src = whole;
    }
    if (e->status == HEFT_OK) {
        e->status = heft_tape_copy(e->tape, &dst, &src, "loader", e->err);
    }
}

/* A source and a parameter of one name, one shape, whole on every rank. */
static void whole(emitter_t *e, const char *name, const heft_shape_t *shape)
{
    uint32_t src = add(e, HEFT_BUFFER_SOURCE, e->prefix, name, shape);
    uint32_t dst = add(e, HEFT_BUFFER_PARAM, e->prefix, name, shape);
    copy(e, heft_view_contiguous(dst, shape), heft_view_contiguous(src, shape));
}

static void whole1(emitter_t *e, const char *name, int64_t n)
{
    const heft_shape_t shape = { .rank = 1, .extent = { n } };
    whole(e, name, &shape);
}

/* Rows [from, from + n) of a new source [rows, hidden] to rows [at, at + n) of dst. */
static void rows(emitter_t *e, const char *name, int64_t n_rows, int64_t from, int64_t n,
                 heft_view_t dst, int64_t at)
{
    heft_shape_t shape = shape2(n_rows, e->m->hidden);
    uint32_t src = add(e, HEFT_BUFFER_SOURCE, e->prefix, name, &shape);
    copy(e, narrow(dst, 0, at, n), narrow(heft_view_contiguous(src, &shape), 0, from, n));
}

/* This rank's columns of a new source [hidden, columns] to dst. */
static void columns(emitter_t *e, const char *name, int64_t n_columns, heft_view_t dst)
{
    int64_t n = n_columns / e->tp;
    heft_shape_t shape = shape2(e->m->hidden, n_columns);
    uint32_t src = add(e, HEFT_BUFFER_SOURCE, e->prefix, name, &shape);
    copy(e, dst, narrow(heft_view_contiguous(src, &shape), 1, e->rank * n, n));
}

static void vocabulary(emitter_t *e, const char *name)
{
    int64_t n = e->m->vocab / e->tp;
    heft_shape_t shape = shape2(n, e->m->hidden);
    uint32_t dst = add(e, HEFT_BUFFER_PARAM, e->prefix, name, &shape);
    rows(e, name, e->m->vocab, e->rank * n, n, heft_view_contiguous(dst, &shape), 0);
}

static void attention(emitter_t *e)
{
    const synth_model_t *m = e->m;
    int64_t q = m->n_heads / e->tp * m->head_dim;
    int64_t kv_heads = m->n_kv_heads > e->tp ? m->n_kv_heads / e->tp : 1;
    int64_t copies = e->tp > m->n_kv_heads ? e->tp / m->n_kv_heads : 1;
    int64_t kv = kv_heads * m->head_dim;
    int64_t first = e->rank / copies * kv;
    heft_shape_t shape = shape2(q + 2 * kv, m->hidden);
    uint32_t qkv = add(e, HEFT_BUFFER_PARAM, e->prefix, "self_attn.qkv_proj.weight", &shape);
    heft_view_t dst = heft_view_contiguous(qkv, &shape);
    rows(e, "self_attn.q_proj.weight", m->n_heads * m->head_dim, e->rank * q, q, dst, 0);
    rows(e, "self_attn.k_proj.weight", m->n_kv_heads * m->head_dim, first, kv, dst, q);
    rows(e, "self_attn.v_proj.weight", m->n_kv_heads * m->head_dim, first, kv, dst, q + kv);
    shape = shape2(m->hidden, q);
    uint32_t o = add(e, HEFT_BUFFER_PARAM, e->prefix, "self_attn.o_proj.weight", &shape);
    columns(e, "self_attn.o_proj.weight", m->n_heads * m->head_dim,
            heft_view_contiguous(o, &shape));
    if (m->has_qk_norm) {
        whole1(e, "self_attn.q_norm.weight", m->head_dim);
        whole1(e, "self_attn.k_norm.weight", m->head_dim);
    }
}

/* gate, up and down of one expert (or of a dense layer); up_gate is [2 * f, hidden], down is
 * [hidden, f], as views of the rank's parameters. */
static void feed_forward(emitter_t *e, const char *base, heft_view_t up_gate, heft_view_t down)
{
    int64_t all = e->m->intermediate;
    int64_t f = all / e->tp;
    char name[96];
    (void)snprintf(name, sizeof name, "%sgate_proj.weight", base);
    rows(e, name, all, e->rank * f, f, up_gate, 0);
    (void)snprintf(name, sizeof name, "%sup_proj.weight", base);
    rows(e, name, all, e->rank * f, f, up_gate, f);
    (void)snprintf(name, sizeof name, "%sdown_proj.weight", base);
    columns(e, name, all, down);
}

/* An expert of another rank: its sources, which nothing reads. */
static void other_expert(emitter_t *e, const char *base)
{
    static const char *const names[] = { "gate_proj", "up_proj", "down_proj" };
    for (int i = 0; i < 3; i++) {
        char name[96];
        heft_shape_t shape = i < 2 ? shape2(e->m->intermediate, e->m->hidden)
                                   : shape2(e->m->hidden, e->m->intermediate);
        (void)snprintf(name, sizeof name, "%s%s.weight", base, names[i]);
        (void)add(e, HEFT_BUFFER_SOURCE, e->prefix, name, &shape);
    }
}

/* Whole experts, those of this rank. */
static void dealt_experts(emitter_t *e)
{
    const synth_model_t *m = e->m;
    const int64_t n = m->n_experts / m->n_expert_ranks;
    const int64_t first = e->expert_rank * n;
    const int64_t tp = e->tp;
    const int64_t rank = e->rank;
    heft_shape_t router = shape2(m->n_experts, m->hidden);
    whole(e, "mlp.gate.weight", &router);
    heft_shape_t w13 = { .rank = 3, .extent = { n, 2 * m->intermediate, m->hidden } };
    heft_shape_t w2 = { .rank = 3, .extent = { n, m->hidden, m->intermediate } };
    uint32_t up_gate = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.experts.w13_weight", &w13);
    uint32_t down = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.experts.w2_weight", &w2);
    e->tp = 1;
    e->rank = 0;
    for (int64_t i = 0; i < m->n_experts; i++) {
        char base[48];
        (void)snprintf(base, sizeof base, "mlp.experts.%lld.", (long long)i);
        if (i < first || i >= first + n) {
            other_expert(e, base);
            continue;
        }
        feed_forward(e, base, select_dim(heft_view_contiguous(up_gate, &w13), 0, i - first),
                     select_dim(heft_view_contiguous(down, &w2), 0, i - first));
    }
    e->tp = tp;
    e->rank = rank;
}

static void experts(emitter_t *e)
{
    const synth_model_t *m = e->m;
    int64_t f = m->intermediate / e->tp;
    heft_shape_t router = shape2(m->n_experts, m->hidden);
    whole(e, "mlp.gate.weight", &router);
    heft_shape_t w13 = { .rank = 3, .extent = { m->n_experts, 2 * f, m->hidden } };
    heft_shape_t w2 = { .rank = 3, .extent = { m->n_experts, m->hidden, f } };
    if (m->is_transposed) {
        w13 = (heft_shape_t){ .rank = 3, .extent = { m->n_experts, m->hidden, 2 * f } };
        w2 = (heft_shape_t){ .rank = 3, .extent = { m->n_experts, f, m->hidden } };
    }
    uint32_t up_gate = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.experts.w13_weight", &w13);
    uint32_t down = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.experts.w2_weight", &w2);
    for (int64_t i = 0; i < m->n_experts; i++) {
        char base[48];
        (void)snprintf(base, sizeof base, "mlp.experts.%lld.", (long long)i);
        heft_view_t a = select_dim(heft_view_contiguous(up_gate, &w13), 0, i);
        heft_view_t b = select_dim(heft_view_contiguous(down, &w2), 0, i);
        feed_forward(e, base, m->is_transposed ? transpose(a) : a,
                     m->is_transposed ? transpose(b) : b);
    }
}

static void dense(emitter_t *e)
{
    int64_t f = e->m->intermediate / e->tp;
    heft_shape_t w13 = shape2(2 * f, e->m->hidden);
    heft_shape_t w2 = shape2(e->m->hidden, f);
    uint32_t up_gate = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.gate_up_proj.weight", &w13);
    uint32_t down = add(e, HEFT_BUFFER_PARAM, e->prefix, "mlp.down_proj.weight", &w2);
    feed_forward(e, "mlp.", heft_view_contiguous(up_gate, &w13), heft_view_contiguous(down, &w2));
}

heft_status_t synth_model_tape(const synth_model_t *model, int64_t tp, int64_t rank,
                               heft_tape_t **tape_out, heft_error_t *err)
{
    emitter_t e = { .m = model, .tp = tp, .rank = rank, .err = err };
    if (model->n_expert_ranks > 0) {
        e.rank = rank % tp;
        e.expert_rank = rank % model->n_expert_ranks;
    }
    e.status = heft_tape_create(&e.tape, err);
    if (e.status != HEFT_OK) {
        return e.status;
    }
    vocabulary(&e, "model.embed_tokens.weight");
    for (int64_t l = 0; l < model->n_layers && e.status == HEFT_OK; l++) {
        (void)snprintf(e.prefix, sizeof e.prefix, "model.layers.%lld.", (long long)l);
        whole1(&e, "input_layernorm.weight", model->hidden);
        attention(&e);
        whole1(&e, "post_attention_layernorm.weight", model->hidden);
        if (model->n_expert_ranks > 0) {
            dealt_experts(&e);
        } else if (model->n_experts > 0) {
            experts(&e);
        } else {
            dense(&e);
        }
    }
    e.prefix[0] = '\0';
    whole1(&e, "model.norm.weight", model->hidden);
    vocabulary(&e, "lm_head.weight");
    if (e.status != HEFT_OK) {
        heft_tape_destroy(e.tape);
        return e.status;
    }
    *tape_out = e.tape;
    return HEFT_OK;
}

uint64_t synth_model_n_sources(const synth_model_t *model)
{
    uint64_t feed = model->n_experts > 0 ? 1 + 3 * (uint64_t)model->n_experts : 3;
    uint64_t layer = 2 + 4 + (model->has_qk_norm ? 2u : 0u) + feed;
    return 3 + (uint64_t)model->n_layers * layer;
}

uint64_t synth_model_n_params(const synth_model_t *model)
{
    uint64_t layer = 2 + 2 + (model->has_qk_norm ? 2u : 0u) + (model->n_experts > 0 ? 3u : 2u);
    return 3 + (uint64_t)model->n_layers * layer;
}

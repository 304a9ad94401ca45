# SPDX-License-Identifier: Apache-2.0
"""What Megatron-Core's ranks hold of a model, written from the description of its layouts, apart from any recipe.

A model is {name: matrix}: a list of rows, or a list of numbers for a vector. `shards` deals the tensors of a Hugging Face
model to the ranks the way the trainer lays them out. Every element has its own value, so that one in the wrong place shows.
"""
import itertools


class Values:
    """1, 2, 3, ... over everything it makes."""

    def __init__(self, start=1):
        self.count = itertools.count(start)

    def vector(self, n):
        return [next(self.count) for _ in range(n)]

    def matrix(self, rows, columns):
        return [self.vector(columns) for _ in range(rows)]


def hf_model(config):
    """The tensors of a Hugging Face checkpoint of this configuration."""
    make, out = Values(), {}
    kind, d, n = config["model_type"], config["hidden_size"], config["num_hidden_layers"]
    out["model.embed_tokens.weight"] = make.matrix(config["vocab_size"], d)
    mtp = config.get("num_nextn_predict_layers", 0)
    for i in range(n + mtp):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = make.vector(d)
        out[p + "post_attention_layernorm.weight"] = make.vector(d)
        (latent_attention if kind == "deepseek_v3" else attention)(config, p + "self_attn.", make, out)
        (moe if is_moe(config, i) else mlp)(config, p + "mlp.", make, out)
        if i >= n:
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                out[p + norm + ".weight"] = make.vector(d)
            out[p + "eh_proj.weight"] = make.matrix(d, 2 * d)
    out["model.norm.weight"] = make.vector(d)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = make.matrix(config["vocab_size"], d)
    for i in range(n, n + mtp):
        out[f"model.layers.{i}.embed_tokens.weight"] = out["model.embed_tokens.weight"]
        out[f"model.layers.{i}.shared_head.head.weight"] = out["lm_head.weight"]
    return out


def is_moe(config, layer):
    if config["model_type"] == "qwen3_moe":
        return layer not in config["mlp_only_layers"]
    return config["model_type"] == "deepseek_v3" and layer >= config["first_k_dense_replace"]


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def attention(config, p, make, out):
    d, e, h, kv = config["hidden_size"], head_dim(config), config["num_attention_heads"], config["num_key_value_heads"]
    for name, heads in (("q", h), ("k", kv), ("v", kv)):
        out[f"{p}{name}_proj.weight"] = make.matrix(heads * e, d)
        if config["model_type"] == "qwen2":
            out[f"{p}{name}_proj.bias"] = make.vector(heads * e)
    out[p + "o_proj.weight"] = make.matrix(d, h * e)
    if config["model_type"].startswith("qwen3"):
        out[p + "q_norm.weight"], out[p + "k_norm.weight"] = make.vector(e), make.vector(e)


def latent_attention(config, p, make, out):
    d, h = config["hidden_size"], config["num_attention_heads"]
    nope, rope, v = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    if q_rank is None:
        out[p + "q_proj.weight"] = make.matrix(h * (nope + rope), d)
    else:
        out[p + "q_a_proj.weight"] = make.matrix(q_rank, d)
        out[p + "q_a_layernorm.weight"] = make.vector(q_rank)
        out[p + "q_b_proj.weight"] = make.matrix(h * (nope + rope), q_rank)
    out[p + "kv_a_proj_with_mqa.weight"] = make.matrix(kv_rank + rope, d)
    out[p + "kv_a_layernorm.weight"] = make.vector(kv_rank)
    out[p + "kv_b_proj.weight"] = make.matrix(h * (nope + v), kv_rank)
    out[p + "o_proj.weight"] = make.matrix(d, h * v)


def mlp(config, p, make, out, inner=None):
    d, inner = config["hidden_size"], inner or config["intermediate_size"]
    out[p + "gate_proj.weight"] = make.matrix(inner, d)
    out[p + "up_proj.weight"] = make.matrix(inner, d)
    out[p + "down_proj.weight"] = make.matrix(d, inner)


def moe(config, p, make, out):
    experts = config.get("num_experts") or config["n_routed_experts"]
    out[p + "gate.weight"] = make.matrix(experts, config["hidden_size"])
    for e in range(experts):
        mlp(config, f"{p}experts.{e}.", make, out, config["moe_intermediate_size"])
    if config["model_type"] == "deepseek_v3":
        out[p + "gate.e_score_correction_bias"] = make.vector(experts)
        mlp(config, p + "shared_experts.", make, out, config["moe_intermediate_size"] * config["n_shared_experts"])


# ---- the trainer's side ----


def part(items, rank, size):
    assert len(items) % size == 0
    n = len(items) // size
    return items[rank * n : (rank + 1) * n]


def columns(matrix, rank, size):
    return [part(row, rank, size) for row in matrix]


def stages(layout, n_layers):
    """{(stage, chunk): layers}: layers are dealt in order, all stages of a chunk before the next chunk."""
    items = list(range(n_layers))
    pp, vpp = layout["pp"], layout["vpp"]
    first, last = layout.get("first", 0), layout.get("last", 0)
    if layout.get("counted"):
        items = ["embedding"] + items + ["loss"]
    even = [s for s in range(pp) if not (s == 0 and first) and not (s == pp - 1 and last)]
    share = (len(items) - first - last) // max(len(even), 1)
    size = [share if s in even else first if s == 0 else last for s in range(pp)]
    out, at = {}, 0
    for chunk in range(vpp):
        for s in range(pp):
            n = size[s] // vpp
            out[s, chunk] = [i for i in items[at : at + n] if isinstance(i, int)]
            at += n
    assert at == len(items)
    return out


class Rank:
    """The tensors of one rank. tp: its place in the tensor parallel group, and the group's size."""

    def __init__(self, hf, config, layout, number):
        self.hf, self.config, self.layout = hf, config, layout
        self.tp = (number % layout["tp"], layout["tp"])
        in_stage = number % (layout["tp"] * layout["dp"])
        self.stage = number // (layout["tp"] * layout["dp"])
        self.etp = (in_stage % layout["etp"], layout["etp"])
        self.ep = (in_stage // layout["etp"] % layout["ep"], layout["ep"])
        self.out = {}

    def gate_up(self, p, place):
        return part(self.hf[p + "gate_proj.weight"], *place) + part(self.hf[p + "up_proj.weight"], *place)

    def attention(self, to, p):
        config, hf = self.config, self.hf
        e, kv = head_dim(config), config["num_key_value_heads"]
        per_group = config["num_attention_heads"] // kv
        for what in ("weight", "bias"):
            if f"{p}q_proj.{what}" not in hf:
                continue
            q, k, v = (hf[f"{p}{x}_proj.{what}"] for x in "qkv")
            rows = []
            for g in part(range(kv), *self.tp):
                rows += q[g * per_group * e : (g + 1) * per_group * e] + k[g * e : (g + 1) * e] + v[g * e : (g + 1) * e]
            self.out[f"{to}linear_qkv.{what}"] = rows
        self.out[to + "linear_proj.weight"] = columns(hf[p + "o_proj.weight"], *self.tp)
        for x in "qk":
            if f"{p}{x}_norm.weight" in hf:
                self.out[f"{to}{x}_layernorm.weight"] = hf[f"{p}{x}_norm.weight"]

    def latent_attention(self, to, p):
        """Transformer Engine keeps the down projections whole, the local layers split their rows."""
        hf, te = self.hf, self.layout.get("te")
        down = (lambda m: m) if te else (lambda m: part(m, *self.tp))
        if p + "q_proj.weight" in hf:
            self.out[to + "linear_q_proj.weight"] = part(hf[p + "q_proj.weight"], *self.tp)
        else:
            self.out[to + "linear_q_down_proj.weight"] = down(hf[p + "q_a_proj.weight"])
            self.out[to + "linear_q_up_proj.weight"] = part(hf[p + "q_b_proj.weight"], *self.tp)
            norm = "linear_q_up_proj.layer_norm_weight" if te else "q_layernorm.weight"
            self.out[to + norm] = hf[p + "q_a_layernorm.weight"]
        self.out[to + "linear_kv_down_proj.weight"] = down(hf[p + "kv_a_proj_with_mqa.weight"])
        self.out[to + "linear_kv_up_proj.weight"] = part(hf[p + "kv_b_proj.weight"], *self.tp)
        norm = "linear_kv_up_proj.layer_norm_weight" if te else "kv_layernorm.weight"
        self.out[to + norm] = hf[p + "kv_a_layernorm.weight"]
        self.out[to + "linear_proj.weight"] = columns(hf[p + "o_proj.weight"], *self.tp)

    def moe(self, to, p):
        hf = self.hf
        self.out[to + "router.weight"] = hf[p + "gate.weight"]
        if p + "gate.e_score_correction_bias" in hf:
            self.out[to + "router.expert_bias"] = hf[p + "gate.e_score_correction_bias"]
            q = p + "shared_experts."
            self.out[to + "shared_experts.linear_fc1.weight"] = self.gate_up(q, self.tp)
            self.out[to + "shared_experts.linear_fc2.weight"] = columns(hf[q + "down_proj.weight"], *self.tp)
        for local, e in enumerate(part(range(len(hf[p + "gate.weight"])), *self.ep)):
            q = f"{p}experts.{e}."
            names = [f"experts.linear_fc{k}.weight{local}" if self.layout.get("grouped")
                     else f"experts.local_experts.{local}.linear_fc{k}.weight" for k in (1, 2)]
            self.out[to + names[0]] = self.gate_up(q, self.etp)
            self.out[to + names[1]] = columns(hf[q + "down_proj.weight"], *self.etp)

    def layer(self, to, i):
        hf, p, te = self.hf, f"model.layers.{i}.", self.layout.get("te")
        is_latent, has_experts = self.config["model_type"] == "deepseek_v3", is_moe(self.config, i)
        (self.latent_attention if is_latent else self.attention)(to + "self_attention.", p + "self_attn.")
        fused = te and not is_latent
        self.out[to + ("self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight")] = \
            hf[p + "input_layernorm.weight"]
        fused = te and not has_experts
        self.out[to + ("mlp.linear_fc1.layer_norm_weight" if fused else "pre_mlp_layernorm.weight")] = \
            hf[p + "post_attention_layernorm.weight"]
        if has_experts:
            self.moe(to + "mlp.", p + "mlp.")
        else:
            self.out[to + "mlp.linear_fc1.weight"] = self.gate_up(p + "mlp.", self.tp)
            self.out[to + "mlp.linear_fc2.weight"] = columns(hf[p + "mlp.down_proj.weight"], *self.tp)

    def vocabulary(self, name):
        rows = self.hf[name]
        whole = self.layout["vocab_multiple"] * self.layout["tp"]
        n = -(-len(rows) // whole) * whole
        padding = Values(3_000_000_000).matrix(n - len(rows), len(rows[0]))
        return part(rows + padding, *self.tp)

    def prediction(self, chunk, n):
        for i in range(self.config.get("num_nextn_predict_layers", 0)):
            p, to = f"model.layers.{n + i}.", f"{chunk}mtp.layers.{i}."
            self.out[to + "enorm.weight"] = self.hf[p + "enorm.weight"]
            self.out[to + "hnorm.weight"] = self.hf[p + "hnorm.weight"]
            self.out[to + "eh_proj.weight"] = part(self.hf[p + "eh_proj.weight"], *self.tp)
            self.layer(to + "transformer_layer.", n + i)
            self.out[to + "final_layernorm.weight"] = self.hf[p + "shared_head.norm.weight"]

    def fill(self):
        n = self.config["num_hidden_layers"]
        has_mtp = self.config.get("num_nextn_predict_layers", 0) > 0
        dealt = stages(self.layout, n)
        for c in range(self.layout["vpp"]):
            chunk = f"model{c}."
            is_first = self.stage == 0 and c == 0
            is_last = self.stage == self.layout["pp"] - 1 and c == self.layout["vpp"] - 1
            if is_first or (is_last and has_mtp):
                self.out[chunk + "embedding.word_embeddings.weight"] = self.vocabulary("model.embed_tokens.weight")
            for local, i in enumerate(dealt[self.stage, c]):
                self.layer(f"{chunk}decoder.layers.{local}.", i)
            if is_last:
                self.out[chunk + "decoder.final_layernorm.weight"] = self.hf["model.norm.weight"]
                self.prediction(chunk, n)
                tied = self.config["tie_word_embeddings"]
                if not tied or not is_first:
                    self.out[chunk + "output_layer.weight"] = self.vocabulary(
                        "model.embed_tokens.weight" if tied else "lm_head.weight")
        return self.out


def shards(hf, config, layout):
    """{rank number: tensors}"""
    n = layout["tp"] * layout["dp"] * layout["pp"]
    return {number: Rank(hf, config, layout, number).fill() for number in range(n)}


def full_layout(**given):
    layout = dict(tp=1, pp=1, vpp=1, dp=1, ep=1, vocab_multiple=8)
    layout.update(given)
    layout.setdefault("etp", layout["tp"])
    return layout


def shape_of(tensor):
    return (len(tensor), len(tensor[0])) if isinstance(tensor[0], list) else (len(tensor),)

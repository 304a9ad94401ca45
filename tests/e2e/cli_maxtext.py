# SPDX-License-Identifier: Apache-2.0
"""The MaxText recipes on tiny trees of the shapes that MaxText makes (tests/golden/maxtext).

Every element of a tree is another number. What must come out is written below once more, from the
description of both layouts, an element at a time; the recipes are not looked at. Python's standard
library only; tests/engines/compare_maxtext.py compares with MaxText's own converter.
"""
import itertools
import json
import math
import os
import pathlib
import re
import struct
import unittest

from cli_support import Case, read_checkpoint, run, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "maxtext"
RECIPES = pathlib.Path(os.environ["HEFT_RECIPES"].split(":")[0])


class Array:
    def __init__(self, shape, values):
        self.shape, self.values = tuple(shape), values

    def __call__(self, *index):
        assert len(index) == len(self.shape), (index, self.shape)
        at = 0
        for i, n in zip(index, self.shape):
            assert 0 <= i < n, (index, self.shape)
            at = at * n + i
        return self.values[at]


class Tree:
    """A MaxText tree: its tensors by name, and a layer's part of them whatever the form."""

    def __init__(self, facts):
        self.facts, self.tensors, start = facts, {}, 1
        for name, (_, dtype, *shape) in sorted(facts["tree"].items()):
            assert dtype == "float32"
            n = math.prod(shape)
            self.tensors[name] = Array(shape, range(start, start + n))
            start += n
        assert start < 2**24  # exact in f32

    def write(self, folder):
        folder.mkdir(parents=True)
        packed = {
            name: ("F32", a.shape, struct.pack(f"<{len(a.values)}f", *a.values)) for name, a in self.tensors.items()
        }
        write_safetensors(folder / "model.safetensors", packed)
        (folder / "config.json").write_text(json.dumps(self.facts["hf_config"]))
        return packed

    def __call__(self, name):
        return self.tensors[name]

    def layer(self, number, leaf, cycle=1, singular="layer", stack="layers"):
        """One layer's leaf, and its shape without the scan axis, which is the second."""
        if not self.facts["overrides"]["scan_layers"]:
            return self.tensors[f"decoder.{stack}_{number}.{leaf}"]
        slot, repeat = number % cycle, number // cycle
        name = f"decoder.{stack}.{leaf}" if cycle == 1 else f"decoder.{stack}.{singular}_{slot}.{leaf}"
        whole = self.tensors[name]
        if repeat >= whole.shape[1]:  # Gemma: what is over is not scanned
            return self.tensors[f"decoder.layers_remainder.layers_{slot}.{leaf}"]
        return Slice(whole, repeat)


class Slice(Array):
    def __init__(self, whole, repeat):
        self.whole, self.repeat = whole, repeat
        self.shape = whole.shape[:1] + whole.shape[2:]

    def __call__(self, *index):
        return self.whole(index[0], self.repeat, *index[1:])


# ---- what must come out: name -> (shape, value at an index) ----


def same(a):
    return a.shape, a


def turned(a):
    """A matrix the other way round."""
    return a.shape[::-1], lambda i, j: a(j, i)


def heads_out(a):
    """Kernel (in, heads, width) to weight (heads * width, in)."""
    d, heads, width = a.shape
    return (heads * width, d), lambda o, i: a(i, o // width, o % width)


def heads_in(a):
    """Kernel (heads, width, out) to weight (out, heads * width)."""
    heads, width, d = a.shape
    return (d, heads * width), lambda o, i: a(i // width, i % width, o)


def flat(a):
    return (math.prod(a.shape),), lambda i: a(i // a.shape[1], i % a.shape[1])


def changed(made, change):
    shape, value = made
    return shape, lambda *index: change(value(*index))


def expert(a, e):
    """(experts, in, out): one expert's weight (out, in)."""
    return a.shape[:0:-1], lambda o, i: a(e, i, o)


def attention(tree, layer, out, prefix, **how):
    """Grouped-query attention without norms, into out under prefix."""
    for source, target in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        out[f"{prefix}.{target}.weight"] = heads_out(tree.layer(layer, f"{how['at']}.{source}.kernel", **how["cycle"]))
    out[f"{prefix}.o_proj.weight"] = heads_in(tree.layer(layer, f"{how['at']}.out.kernel", **how["cycle"]))


def outer(tree, model, tied=False):
    out = {f"{model}embed_tokens.weight": same(tree("token_embedder.embedding"))}
    out[f"{model}norm.weight"] = same(tree("decoder.decoder_norm.scale"))
    if not tied:
        out["lm_head.weight"] = turned(tree("decoder.logits_dense.kernel"))
    return out


def mlp(tree, layer, out, prefix, at="mlp", **how):
    for source, target in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
        out[f"{prefix}.{target}.weight"] = turned(tree.layer(layer, f"{at}.{source}.kernel", **how))


def pre_and_post(tree, layer, out, prefix, **how):
    out[prefix + "input_layernorm.weight"] = same(tree.layer(layer, "pre_self_attention_layer_norm.scale", **how))
    out[prefix + "post_attention_layernorm.weight"] = same(
        tree.layer(layer, "post_self_attention_layer_norm.scale", **how)
    )


def llama3(tree, config):
    out = outer(tree, "model.", config.get("tie_word_embeddings"))
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        attention(tree, layer, out, p + "self_attn", at="self_attention", cycle={})
        for target, factor in (("q_proj", 2), ("k_proj", 1)):  # 2 = sqrt(head_dim)
            kernel = tree.layer(layer, f"self_attention.{'query' if factor == 2 else 'key'}.kernel")
            d, heads, width = kernel.shape

            def rotary(o, i, kernel=kernel, width=width, factor=factor):
                head, place = o // width, o % width
                pair, half = place % (width // 2), place // (width // 2)
                return kernel(i, head, 2 * pair + half) * factor

            out[f"{p}self_attn.{target}.weight"] = (heads * width, d), rotary
        mlp(tree, layer, out, p + "mlp")
        pre_and_post(tree, layer, out, p)
    return out


def qwen3(tree, config):
    out = outer(tree, "model.", config.get("tie_word_embeddings"))
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        attention(tree, layer, out, p + "self_attn", at="self_attention", cycle={})
        out[p + "self_attn.q_norm.weight"] = same(tree.layer(layer, "self_attention.query_norm.scale"))
        out[p + "self_attn.k_norm.weight"] = same(tree.layer(layer, "self_attention.key_norm.scale"))
        pre_and_post(tree, layer, out, p)
        experts = config.get("num_experts") or config.get("num_local_experts")
        if not experts:
            mlp(tree, layer, out, p + "mlp")
            continue
        out[p + "mlp.gate.weight"] = turned(tree.layer(layer, "moe_block.gate.kernel"))
        for e in range(experts):
            for source, target in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
                out[f"{p}mlp.experts.{e}.{target}.weight"] = expert(tree.layer(layer, f"moe_block.{source}"), e)
    return out


def delta_net(tree, layer, out, p, config, how):
    """in_proj_qkvz and in_proj_ba hold a block for each key head: q, k, v.., z.. and b.., a.."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    qkvz = tree.layer(layer, "attention.in_proj_qkvz.kernel", **how)
    ba = tree.layer(layer, "attention.in_proj_ba.kernel", **how)
    per = values // keys
    block = 2 * dk + 2 * per * dv
    rows = []  # the column of the kernel for each row of in_proj_qkv
    for offset, width in ((0, dk), (dk, dk), (2 * dk, per * dv)):
        rows += [h * block + offset + e for h in range(keys) for e in range(width)]
    z = [h * block + 2 * dk + per * dv + e for h in range(keys) for e in range(per * dv)]
    b = [h * 2 * per + v for h in range(keys) for v in range(per)]
    d = qkvz.shape[0]
    out[p + "in_proj_qkv.weight"] = (len(rows), d), lambda o, i: qkvz(i, rows[o])
    out[p + "in_proj_z.weight"] = (len(z), d), lambda o, i: qkvz(i, z[o])
    out[p + "in_proj_b.weight"] = (values, d), lambda o, i: ba(i, b[o])
    out[p + "in_proj_a.weight"] = (values, d), lambda o, i: ba(i, b[o] + per)
    conv = tree.layer(layer, "attention.conv1d.kernel", **how)
    out[p + "conv1d.weight"] = conv.shape[::-1], lambda c, one, k: conv(k, one, c)
    out[p + "A_log"] = same(tree.layer(layer, "attention.A_log", **how))
    out[p + "dt_bias"] = same(tree.layer(layer, "attention.dt_bias", **how))
    out[p + "norm.weight"] = same(tree.layer(layer, "attention.norm.rms_norm.scale", **how))
    out[p + "out_proj.weight"] = turned(tree.layer(layer, "attention.out_proj.kernel", **how))


def halves(gate, up):
    """(experts, in, out) twice to (experts, 2 * out, in), gate before up."""
    e, d, f = gate.shape
    return (e, 2 * f, d), lambda x, o, i: (gate if o < f else up)(x, i, o % f)


def qwen35(tree, config):
    out, config = outer(tree, "model.language_model."), config["text_config"]
    how = {"cycle": 4}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.language_model.layers.{layer}."
        if layer % 4 == 3:
            at = "attention.attention"
            out_kernel = tree.layer(layer, f"{at}.out.kernel", **how)
            for source, target in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
                out[f"{p}self_attn.{target}.weight"] = heads_out(tree.layer(layer, f"{at}.{source}.kernel", **how))
            out[p + "self_attn.o_proj.weight"] = turned(out_kernel)
            out[p + "self_attn.q_norm.weight"] = same(tree.layer(layer, f"{at}.query_norm.scale", **how))
            out[p + "self_attn.k_norm.weight"] = same(tree.layer(layer, f"{at}.key_norm.scale", **how))
        else:
            delta_net(tree, layer, out, p + "linear_attn.", config, how)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{norm}.weight"] = same(tree.layer(layer, f"{norm}.scale", **how))
        routed = "mlp.routed_experts"
        out[p + "mlp.gate.weight"] = turned(tree.layer(layer, f"{routed}.gate.kernel", **how))
        gate, up, wo = (tree.layer(layer, f"{routed}.{leaf}", **how) for leaf in ("wi_0", "wi_1", "wo"))
        out[p + "mlp.experts.gate_up_proj"] = halves(gate, up)
        e, f, d = wo.shape
        out[p + "mlp.experts.down_proj"] = (e, d, f), lambda x, o, i, wo=wo: wo(x, i, o)
        mlp(tree, layer, out, p + "mlp.shared_expert", at="mlp.shared_expert", **how)
        out[p + "mlp.shared_expert_gate.weight"] = turned(tree.layer(layer, "mlp.shared_expert_gate.kernel", **how))
    return out


def gemma3(tree, config):
    config = config["text_config"]
    how = {"cycle": 6, "singular": "layers"}
    less = lambda made: changed(made, lambda x: x - 1)  # noqa: E731
    embedding = tree("token_embedder.embedding")
    rows, d = embedding.shape
    assert d == 16  # its root, 4, is exact in bf16
    out = {
        "model.language_model.embed_tokens.weight": (
            (config["vocab_size"], d),
            lambda v, i: embedding(v, i) / 4 if v < rows else 0,
        ),
        "model.language_model.norm.weight": less(same(tree("decoder.decoder_norm.scale"))),
    }
    for layer in range(config["num_hidden_layers"]):
        p = f"model.language_model.layers.{layer}."
        attention(tree, layer, out, p + "self_attn", at="self_attention", cycle=how)
        mlp(tree, layer, out, p + "mlp", **how)
        for source, target in (
            ("self_attention.query_norm", "self_attn.q_norm"),
            ("self_attention.key_norm", "self_attn.k_norm"),
            ("pre_self_attention_norm", "input_layernorm"),
            ("post_self_attention_norm", "post_attention_layernorm"),
            ("pre_ffw_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ):
            out[f"{p}{target}.weight"] = less(same(tree.layer(layer, f"{source}.scale", **how)))
    return out


def deepseek(tree, config):
    out = outer(tree, "model.")
    dense = config["first_k_dense_replace"]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        number = layer if layer < dense else layer - dense
        how = {"stack": "dense_layers" if layer < dense else "moe_layers"}
        leaf = lambda name, number=number, how=how: tree.layer(number, name, **how)  # noqa: E731
        pre_and_post(tree, number, out, p, **how)
        a = p + "self_attn."
        out[a + "q_a_proj.weight"] = turned(leaf("self_attention.wq_a.kernel"))
        out[a + "q_a_layernorm.weight"] = same(leaf("self_attention.q_norm.scale"))
        out[a + "q_b_proj.weight"] = heads_out(leaf("self_attention.wq_b.kernel"))
        out[a + "kv_a_proj_with_mqa.weight"] = turned(leaf("self_attention.wkv_a.kernel"))
        out[a + "kv_a_layernorm.weight"] = same(leaf("self_attention.kv_norm.scale"))
        out[a + "kv_b_proj.weight"] = heads_out(leaf("self_attention.wkv_b.kernel"))
        out[a + "o_proj.weight"] = heads_in(leaf("self_attention.out.kernel"))
        if layer < dense:
            mlp(tree, number, out, p + "mlp", **how)
            continue
        block = "DeepSeekMoeBlock_0."
        mlp(tree, number, out, p + "mlp.shared_experts", at=block + "shared_experts", **how)
        out[p + "mlp.gate.weight"] = turned(leaf(block + "MoeBlock_0.gate.kernel"))
        out[p + "mlp.gate.e_score_correction_bias"] = same(leaf(block + "MoeBlock_0.gate.bias"))
        for e in range(config["n_routed_experts"]):
            for source, target in (("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj")):
                out[f"{p}mlp.experts.{e}.{target}.weight"] = expert(leaf(f"{block}MoeBlock_0.{source}"), e)
    return out


def gpt_oss(tree, config):
    out = outer(tree, "model.")
    how = {"cycle": 2, "singular": "layers"}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        leaf = lambda name, layer=layer: tree.layer(layer, name, **how)  # noqa: E731
        pre_and_post(tree, layer, out, p, **how)
        attention(tree, layer, out, p + "self_attn", at="GptOssAttention", cycle=how)
        for source, target in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            out[f"{p}self_attn.{target}.bias"] = flat(leaf(f"GptOssAttention.{source}.bias"))
        out[p + "self_attn.o_proj.bias"] = same(leaf("GptOssAttention.out.bias"))
        out[p + "self_attn.sinks"] = same(leaf("GptOssAttention.sinks"))
        out[p + "mlp.router.weight"] = turned(leaf("GptOssMlp.gate.kernel"))
        out[p + "mlp.router.bias"] = same(leaf("GptOssMlp.gate.bias"))
        gate, up = leaf("GptOssMlp.wi_0"), leaf("GptOssMlp.wi_1")
        e, d, f = gate.shape
        out[p + "mlp.experts.gate_up_proj"] = (e, d, 2 * f), lambda x, i, o, g=gate, u=up: (u if o % 2 else g)(x, i, o // 2)
        gate, up = leaf("GptOssMlp.wi_0_bias"), leaf("GptOssMlp.wi_1_bias")
        out[p + "mlp.experts.gate_up_proj_bias"] = (e, 2 * f), lambda x, o, g=gate, u=up: (u if o % 2 else g)(x, o // 2)
        out[p + "mlp.experts.down_proj"] = same(leaf("GptOssMlp.wo"))
        out[p + "mlp.experts.down_proj_bias"] = same(leaf("GptOssMlp.wo_bias"))
    return out


REFERENCES = {
    "llama3": llama3,
    "qwen3": qwen3,
    "qwen3-moe": qwen3,
    "qwen3.5-moe": qwen35,
    "gemma3": gemma3,
    "deepseek-v3": deepseek,
    "gpt-oss": gpt_oss,
}
ARITHMETIC = {"llama3", "gemma3"}

# A fault in a recipe, planted in its text: what is replaced, by what. Each must be refused or seen in the values.
FAULTS = [
    ("gate and up change places", r"gate_proj", "up_proj", r"up_proj", "gate_proj"),
    ("halves change places", r"0:2", "1:2", r"1:2", "0:2"),
    ("heads inside their width", r"\(h e\)", "(e h)", None, None),
    ("rotary pairs stay", r"\(h p i\)", "(h i p)", None, None),
    ("slot and repeat change places", r"\{r \* cycle \+ s\}", "{s * repeats + r}", None, None),
    ("keys for queries", r"query\.kernel", "key.kernel", r"key\.kernel", "query.kernel"),
    ("norms change places", r"input_layernorm\.weight", "post_attention_layernorm.weight",
     r"post_attention_layernorm\.weight", "input_layernorm.weight"),
    ("no factor", r"by scale\(sqrt\(head_dim\)\) in f32", "", None, None),
    ("no divisor", r"by divide\(normaliser\) in f32", "", None, None),
    ("norms keep their one", r"by add\(-1\) in f32", "", None, None),
    ("q and k of a block change places", r"c:k_dim@0/block", "c:k_dim@k_dim/block", r"c:k_dim@k_dim/block", "c:k_dim@0/block"),
    ("v and z of a block change places", r"@\{2 \* k_dim\}/block", "@{2 * k_dim + group}/block",
     r"@\{2 \* k_dim \+ group\}/block", "@{2 * k_dim}/block"),
    ("heads and blocks interleave", r"\(h c\)", "(c h)", None, None),
    ("experts shifted", r"experts\.\{e\}", "experts.{(e + 1) % experts}", None, None),
    ("MoE layers counted from 0", r"\{first_moe \+ l\}", "{l}", None, None),
]  # fmt: skip


def exchange(text, first, first_to, second, second_to):
    """Both replacements at once."""
    if second is None:
        return re.sub(first, first_to.replace("\\", ""), text)
    return re.sub(f"(?P<a>{first})|(?P<b>{second})", lambda m: first_to if m.group("a") else second_to, text)


def read_f32(folder):
    return {
        name: (shape, struct.unpack(f"<{len(raw) // 4}f", raw)) for name, (_, shape, raw) in read_checkpoint(folder).items()
    }


class MaxTextTest(Case):
    def first_difference(self, got, expected):
        """None, or where the two are not the same."""
        if set(got) != set(expected):
            return sorted(set(got) ^ set(expected))[0]
        for name, (shape, value) in expected.items():
            if got[name][0] != tuple(shape):
                return name, got[name][0], shape
            for at, index in enumerate(itertools.product(*map(range, shape))):
                if got[name][1][at] != value(*index):
                    return name, index, got[name][1][at], value(*index)
        return None

    def prepare(self, path, folder):
        facts = json.loads(path.read_text())
        tree = Tree(facts)
        family = path.stem.rsplit("-", 1)[0]
        return facts, tree, tree.write(folder), REFERENCES[family](tree, facts["hf_config"]), family

    def one(self, path):
        facts, _, packed, expected, family = self.prepare(path, self.dir / "tree")
        args = ["--recipe", facts["recipe"], "--let", "wire=f32"]
        self.assertEqual({name: list(shape) for name, (shape, _) in expected.items()}, facts["hf"])
        self.heft("check", self.dir / "tree", *args)
        self.heft("convert", self.dir / "tree", self.dir / "out", *args)
        self.assertIsNone(self.first_difference(read_f32(self.dir / "out"), expected))
        self.heft("verify", self.dir / "tree", self.dir / "out", *args)
        back = self.dir / "back"
        reverse = ("convert", self.dir / "out", back, *args, "--reverse", "--like", self.dir / "tree")
        if family in ARITHMETIC:
            self.assertIn("is computed, not copied", self.heft(*reverse, code=3).stderr)
            self.assertFalse(back.exists())
        else:
            self.heft(*reverse)
            self.assertEqual(read_checkpoint(back), packed)

    def test_what_stays_float32(self):
        """Gates always, and more with the trainer's flags; nothing that stays is rounded on the way."""
        _, _, _, expected, _ = self.prepare(GOLDEN / "qwen3-moe-scanned.json", self.dir / "tree")
        gates = {name for name in expected if name.endswith("mlp.gate.weight")}
        self.assertEqual(len(gates), 3)
        for n, (flags, kept) in enumerate(
            (
                ([], gates),
                (["float32_gate_logits"], set(expected)),
                (["logits_dot_in_fp32"], gates | {"model.norm.weight", "lm_head.weight"}),
            )
        ):
            out = self.dir / f"out-{n}"
            lets = [part for flag in flags for part in ("--let", f"{flag}=true")]
            args = ("--recipe", "maxtext-to-hf-qwen3", "--let", "wire=bf16", *lets)
            self.heft("convert", self.dir / "tree", out, *args)
            got = read_checkpoint(out)
            self.assertEqual({name for name, (dtype, _, _) in got.items() if dtype == "F32"}, kept)
            self.assertEqual({name for name, (dtype, _, _) in got.items() if dtype == "BF16"}, set(expected) - kept)
            exact = {name: (shape, struct.unpack(f"<{len(raw) // 4}f", raw)) for name, (_, shape, raw) in got.items() if name in kept}
            self.assertIsNone(self.first_difference(exact, {name: expected[name] for name in kept}))

    def test_no_layer_beyond_the_last(self):
        """A tree with as many layers as the configuration has, one of them by a number that cannot be."""
        for n, (stem, moved, number, part) in enumerate(
            (
                ("llama3-unscanned", "layers_1.", "layers_97.", "(scanned = false, l = 97, layers = 3)"),
                ("qwen3-moe-unscanned", "layers_2.", "layers_3.", "(scanned = false, l = 3, layers = 3)"),
                ("gemma3-unscanned", "layers_1.", "layers_14.", "(scanned = false, l = 14, layers = 14)"),
                ("gemma3-scanned", "layers.layers_5.", "layers.layers_6.", "no such slot of the cycle (s = 6, cycle = 6)"),
                ("gemma3-scanned", "remainder.layers_1.", "remainder.layers_2.", "(p = 2, remainder = 2)"),
                ("gpt-oss-unscanned", "layers_0.", "layers_4.", "(scanned = false, l = 4, layers = 4)"),
                ("gpt-oss-scanned", "layers.layers_0.", "layers.layers_2.", "no such slot of the cycle (s = 2, cycle = 2)"),
                ("qwen3.5-moe-unscanned", "layers_0.", "layers_8.", "(scanned = false, l = 8, layers = 8)"),
                ("qwen3.5-moe-scanned", "layers.layer_0.", "layers.layer_4.", "no such slot of the cycle (s = 4, cycle = 4)"),
                ("deepseek-v3-unscanned", "dense_layers_0.", "dense_layers_2.", "(l = 2, first_moe = 2)"),
                ("deepseek-v3-unscanned", "moe_layers_0.", "moe_layers_3.", "(l = 3, layers = 5, first_moe = 2)"),
            )
        ):
            facts = json.loads((GOLDEN / f"{stem}.json").read_text())
            facts["tree"] = {name.replace(moved, number): leaf for name, leaf in facts["tree"].items()}
            tree = self.dir / f"tree-{n}"
            Tree(facts).write(tree)
            done = self.heft("check", tree, "--recipe", facts["recipe"], "--let", "wire=f32", code=1)
            self.assertIn(part, done.stdout)

    def test_no_leaf_may_be_missing(self):
        """Each leaf in turn: of a scanned tree all, of an unscanned one those of one layer of each kind."""
        for path in sorted(GOLDEN.glob("*.json")):
            facts = json.loads(path.read_text())
            config = self.dir / "config.json"
            config.write_text(json.dumps(facts["hf_config"]))
            tensors = [{"name": name, "dtype": "F32", "shape": leaf[2:]} for name, leaf in facts["tree"].items()]
            kinds = r"layers_(?!1\.|3\.)\d+\." if "qwen3.5" in path.stem else r"layers_(?!1\.)\d+\."
            for tensor in tensors:
                if re.search(kinds, tensor["name"]):
                    continue
                manifest = self.dir / "tree.json"
                left = [other for other in tensors if other is not tensor]
                manifest.write_text(json.dumps({"heft_manifest": 1, "side": "source", "tensors": left}))
                done = run("check", manifest, "--recipe", facts["recipe"], "--config", config, "--let", "wire=f32")
                self.assertNotEqual(done.returncode, 0, f"{path.stem}: {tensor['name']}")

    def is_seen(self, path, recipe, n):
        """Is a recipe that is wrong refused, or its output not what must come out?"""
        tree = self.dir / path.stem
        if not tree.exists():
            facts, whole, _, expected, _ = self.prepare(path, tree)
            self.expected[path] = expected
        out = self.dir / f"{path.stem}-{n}"
        if run("convert", tree, out, "--recipe", recipe, "--let", "wire=f32").returncode != 0:
            return True
        return self.first_difference(read_f32(out), self.expected[path]) is not None

    def faults(self, recipe, paths):
        self.expected = {}
        text = (RECIPES / f"{recipe}.heft").read_text()
        planted = 0
        for n, (what, *fault) in enumerate(FAULTS):
            broken = self.dir / f"fault-{n}.heft"
            broken.write_text(exchange(text, *fault))
            if broken.read_text() != text:
                planted += 1
                self.assertTrue(any(self.is_seen(path, broken, n) for path in paths), f"{recipe}: {what}")
        self.assertGreaterEqual(planted, 3)


def add_tests():
    by_recipe = {}
    for path in sorted(GOLDEN.glob("*.json")):
        by_recipe.setdefault(json.loads(path.read_text())["recipe"], []).append(path)
        setattr(MaxTextTest, f"test_{re.sub(r'[^a-z0-9]', '_', path.stem)}", lambda self, path=path: self.one(path))
    for recipe, paths in by_recipe.items():
        name = f"test_faults_in_{re.sub(r'[^a-z0-9]', '_', recipe)}"
        setattr(MaxTextTest, name, lambda self, recipe=recipe, paths=paths: self.faults(recipe, paths))


add_tests()

if __name__ == "__main__":
    unittest.main()

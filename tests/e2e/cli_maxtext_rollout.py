# SPDX-License-Identifier: Apache-2.0
"""The recipes from MaxText to engines (tests/golden/maxtext/rollout has what the engines' names and shapes are).

As in cli_maxtext: every element another number, and both layouts stated once more, here as positions.
"""
import itertools
import json
import re
import unittest

from cli_maxtext import GOLDEN, RECIPES, Tree, exchange, heads_in, read_f32, same, turned
from cli_support import Case, read_checkpoint, run

LAYOUTS = {
    # where element j of shard s of the gate and of the up half goes, W being the width of a shard, T of a half
    "per_shard": lambda s, j, W, T, lane: (s * 2 * W + j, s * 2 * W + W + j),
    "concat": lambda s, j, W, T, lane: (s * W + j, T + s * W + j),
    "lane": lambda s, j, W, T, lane: (
        s * 2 * W + 2 * (j // lane) * lane + j % lane,
        s * 2 * W + 2 * (j // lane) * lane + j % lane + lane,
    ),
}


def placed(shape, entries):
    """Zeros but for the entries (index, value), each index once."""
    filled = {}
    for index, value in entries:
        assert index not in filled
        filled[index] = value
    return shape, lambda *index: filled.get(index, 0)


def fused(gate, up, shards, width, layout, lane):
    """(experts, in, F) twice to (experts, in, 2 * width)."""
    e, d, inner = gate.shape
    share, W = inner // shards, width // shards
    entries = []
    for x, i, s, j in itertools.product(range(e), range(d), range(shards), range(share)):
        first, second = LAYOUTS[layout](s, j, W, width, lane)
        entries += [((x, i, first), gate(x, i, s * share + j)), ((x, i, second), up(x, i, s * share + j))]
    return placed((e, d, 2 * width), entries)


def padded(a, axis, shards, width):
    """One axis padded shard by shard."""
    shape = list(a.shape)
    share, W = shape[axis] // shards, width // shards
    entries = []
    for index in itertools.product(*map(range, a.shape)):
        at = list(index)
        at[axis] = at[axis] // share * W + at[axis] % share
        entries.append((tuple(at), a(*index)))
    shape[axis] = width
    return placed(tuple(shape), entries)


def repeated(a, axis, factor):
    """Each head factor times, neighbours alike."""
    shape = list(a.shape)
    shape[axis] *= factor
    return tuple(shape), lambda *i: a(*i[:axis], i[axis] // factor, *i[axis + 1 :])


def direct(tree, config, lets):
    """Unrolled layers, wi fused, heads repeated."""
    cycle, tp, lanes = lets["cycle"], lets["moe_tp"], lets["lanes"]
    config = config.get("text_config") or config
    kv_heads = config["num_key_value_heads"]
    factor = max(lets["kv_tp"] // kv_heads, 1)
    out = {}
    for name, whole in tree.tensors.items():
        head = "decoder.layers." + ("" if cycle == 1 else r"layer_(\d+)\.")
        match = re.match(head.replace("layers.", r"layers\.", 1), name)
        if not match:
            out[name] = same(whole)
            continue
        leaf = name[match.end() :]
        slot = int(match.group(1)) if cycle > 1 else 0
        for repeat in range(whole.shape[1]):
            number = repeat * cycle + slot
            a = tree.layer(number, leaf, cycle=cycle)
            target = f"decoder.layers_{number}.{leaf}"
            if re.search(r"\.(key|value)\.(kernel|bias)$", name):
                out[target] = repeated(a, len(a.shape) - 2, factor)
            elif re.search(r"\.wi_[01]$", name):
                width = -(-a.shape[2] // (2 * lanes * tp)) * 2 * lanes * tp
                if not lets.get("fuse", True):
                    out[target] = padded(a, 2, tp, width)
                elif name.endswith("0"):
                    up = tree.layer(number, leaf[:-1] + "1", cycle=cycle)
                    out[target[:-2]] = fused(a, up, tp, width, lets["layout"], lanes)
            elif name.endswith(".wo") and lets.get("pad_wo"):
                width = -(-a.shape[1] // (2 * lanes * tp)) * 2 * lanes * tp
                out[target] = padded(a, 1, tp, width)
            else:
                out[target] = same(a)
    return out


def stacked(parts, groups):
    """Kernels (in, heads, width) to rows: for each group the heads of the first part, of the second, ..."""
    rows = []
    for g in range(groups):
        for part in parts:
            share = part.shape[1] // groups
            rows += [(part, h, e) for h in range(g * share, (g + 1) * share) for e in range(part.shape[2])]
    return (len(rows), parts[0].shape[0]), lambda o, i: rows[o][0](i, *rows[o][1:])


def vllm_experts(tree, number, out, p, at, tp, how):
    gate, up, wo = (tree.layer(number, f"{at}.{leaf}", **how) for leaf in ("wi_0", "wi_1", "wo"))
    width = -(-(gate.shape[2] // tp) // 128) * 128 * tp
    out[p + "mlp.gate.weight"] = turned(tree.layer(number, at + ".gate.kernel", **how))
    out[p + "mlp.experts.w13_weight"] = fused(gate, up, tp, width, "per_shard", None)
    out[p + "mlp.experts.w2_weight"] = same(wo)


def vllm_qwen3_moe(tree, config, lets):
    out = {
        "vllm_model.model.embed_tokens.weight": same(tree("token_embedder.embedding")),
        "vllm_model.model.norm.weight": same(tree("decoder.decoder_norm.scale")),
        "vllm_model.lm_head.weight": turned(tree("decoder.logits_dense.kernel")),
    }
    for layer in range(config["num_hidden_layers"]):
        p = f"vllm_model.model.layers.{layer}."
        leaf = lambda name, layer=layer: tree.layer(layer, name)  # noqa: E731
        out[p + "input_layernorm.weight"] = same(leaf("pre_self_attention_layer_norm.scale"))
        out[p + "post_attention_layernorm.weight"] = same(leaf("post_self_attention_layer_norm.scale"))
        qkv = [leaf(f"self_attention.{part}.kernel") for part in ("query", "key", "value")]
        out[p + "self_attn.qkv_proj.weight"] = stacked(qkv, min(lets["tp"], config["num_key_value_heads"]))
        out[p + "self_attn.o_proj.weight"] = heads_in(leaf("self_attention.out.kernel"))
        out[p + "self_attn.q_norm.weight"] = same(leaf("self_attention.query_norm.scale"))
        out[p + "self_attn.k_norm.weight"] = same(leaf("self_attention.key_norm.scale"))
        vllm_experts(tree, layer, out, p, "moe_block", lets["tp"], {})
    return out


def vllm_delta_net(tree, layer, out, p, config, tp, how):
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    per, share = values // keys, keys // tp
    block = 2 * dk + 2 * per * dv
    columns, columns_ba = [], []
    for t in range(tp):
        for offset, width in ((0, dk), (dk, dk), (2 * dk, per * dv), (2 * dk + per * dv, per * dv)):
            columns += [(t * share + h) * block + offset + e for h in range(share) for e in range(width)]
        for half in range(2):
            columns_ba += [((t * share + h) * 2 + half) * per + v for h in range(share) for v in range(per)]
    qkvz = tree.layer(layer, "attention.in_proj_qkvz.kernel", **how)
    ba = tree.layer(layer, "attention.in_proj_ba.kernel", **how)
    conv = tree.layer(layer, "attention.conv1d.kernel", **how)
    out[p + "in_proj_qkvz.weight"] = (len(columns), qkvz.shape[0]), lambda o, i: qkvz(i, columns[o])
    out[p + "in_proj_ba.weight"] = (len(columns_ba), ba.shape[0]), lambda o, i: ba(i, columns_ba[o])
    out[p + "conv1d.weight"] = conv.shape[::-1], lambda c, one, k: conv(k, one, c)
    out[p + "out_proj.weight"] = turned(tree.layer(layer, "attention.out_proj.kernel", **how))
    for target, source in (("A_log", "A_log"), ("dt_bias", "dt_bias"), ("norm.weight", "norm.rms_norm.scale")):
        out[p + target] = same(tree.layer(layer, f"attention.{source}", **how))


def vllm_qwen35(tree, config, lets):
    config, tp, how = config["text_config"], lets["tp"], {"cycle": 4}
    out = {
        "vllm_model.language_model.model.embed_tokens.weight": same(tree("token_embedder.embedding")),
        "vllm_model.language_model.model.norm.weight": same(tree("decoder.decoder_norm.scale")),
        "vllm_model.language_model.lm_head.weight": turned(tree("decoder.logits_dense.kernel")),
    }
    for layer in range(config["num_hidden_layers"]):
        p = f"vllm_model.language_model.model.layers.{layer}."
        leaf = lambda name, layer=layer: tree.layer(layer, name, **how)  # noqa: E731
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{norm}.weight"] = same(leaf(f"{norm}.scale"))
        if layer % 4 == 3:
            at = "attention.attention."
            qkv = [leaf(f"{at}{part}.kernel") for part in ("query", "key", "value")]
            out[p + "self_attn.qkv_proj.weight"] = stacked(qkv, tp)
            out[p + "self_attn.o_proj.weight"] = turned(leaf(at + "out.kernel"))
            out[p + "self_attn.q_norm.weight"] = same(leaf(at + "query_norm.scale"))
            out[p + "self_attn.k_norm.weight"] = same(leaf(at + "key_norm.scale"))
        else:
            vllm_delta_net(tree, layer, out, p + "linear_attn.", config, tp, how)
        vllm_experts(tree, layer, out, p, "mlp.routed_experts", tp, how)
        gate, up = (leaf(f"mlp.shared_expert.wi_{n}.kernel") for n in (0, 1))
        share = gate.shape[1] // tp
        rows = [(a, t * share + j) for t in range(tp) for a in (gate, up) for j in range(share)]
        out[p + "mlp.shared_expert.gate_up_proj.weight"] = (
            (len(rows), gate.shape[0]),
            lambda o, i, rows=rows: rows[o][0](i, rows[o][1]),
        )
        out[p + "mlp.shared_expert.down_proj.weight"] = turned(leaf("mlp.shared_expert.wo.kernel"))
        out[p + "mlp.shared_expert_gate.weight"] = turned(leaf("mlp.shared_expert_gate.kernel"))
    return out


REFERENCES = {
    "maxtext-to-maxtext-rollout": direct,
    "maxtext-to-vllm-tpu-qwen3-moe": vllm_qwen3_moe,
    "maxtext-to-vllm-tpu-qwen3.5-moe": vllm_qwen35,
}

# What MaxText has no converter for, or no longer: the other layout of wi, halves apart, wo padded, and no key/value
# heads to repeat on some ranks.
MORE = [{"layout": "lane"}, {"fuse": False}, {"pad_wo": True}]

FAULTS = [
    ("gate and up change places", r" 0:2", " 1:2", r" 1:2", " 0:2"),
    ("padded, then split", r"\(t (?P<n>[01]):2 c\)", "(0:2 t c)", None, None),
    ("tiled heads", r"\(h f:repeat\)", "(f:repeat h)", None, None),
    ("slot and repeat change places", r"r \* cycle \+ s", "s * repeats + r", None, None),
    ("keys first", r"h@0/width", "h@kv/width", r"h@q/width", "h@0/width"),
    ("groups inside the parts", r"\(g h@", "(h@", None, None),
    ("keys for values", r"attention\.key\.kernel", "attention.value.kernel",
     r"attention\.value\.kernel", "attention.key.kernel"),
    ("v and z change places", r"@\{2 \* k_dim\}/block", "@{2 * k_dim + group}/block",
     r"@\{2 \* k_dim \+ group\}/block", "@{2 * k_dim}/block"),
    ("heads and blocks interleave", r"\(h c\)", "(c h)", None, None),
]  # fmt: skip


class RolloutTest(Case):
    def args(self, facts, more):
        lets = {**facts["lets"], **more, "wire": "f32"}
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in lets.items()}
        return [part for name, value in words.items() for part in ("--let", f"{name}={value}")], lets

    def prepare(self, path, folder):
        facts = json.loads(path.read_text())
        tree = Tree(json.loads((GOLDEN / f"{facts['family']}-scanned.json").read_text()))
        packed = tree.write(folder)
        (folder / "config.json").write_text(json.dumps(facts["hf_config"]))
        return facts, tree, packed

    def first_difference(self, got, expected):
        if set(got) != set(expected):
            return sorted(set(got) ^ set(expected))[0]
        for name, (shape, value) in expected.items():
            if got[name][0] != tuple(shape):
                return name, got[name][0], shape
            for at, index in enumerate(itertools.product(*map(range, shape))):
                if got[name][1][at] != value(*index):
                    return name, index, got[name][1][at], value(*index)
        return None

    def one(self, path):
        facts, tree, packed = self.prepare(path, self.dir / "tree")
        reference = REFERENCES[facts["recipe"]]
        has_experts = any(name.endswith(".wi_0") for name in tree.tensors)
        variants = [{}] + (MORE if reference is direct and has_experts else [])
        for n, more in enumerate(variants):
            lets, all_lets = self.args(facts, more)
            args = ["--recipe", facts["recipe"], *lets]
            expected = reference(tree, facts["hf_config"], all_lets)
            if not more:
                self.assertEqual({name: list(shape) for name, (shape, _) in expected.items()}, facts["engine"])
            self.heft("check", self.dir / "tree", *args)
            out, back = self.dir / f"out-{n}", self.dir / f"back-{n}"
            self.heft("convert", self.dir / "tree", out, *args)
            self.assertIsNone(self.first_difference(read_f32(out), expected), more)
            self.heft("convert", out, back, *args, "--reverse", "--like", self.dir / "tree")
            self.assertEqual(read_checkpoint(back), packed)

    def faults(self, recipe, paths):
        text = (RECIPES / f"{recipe}.heft").read_text()
        planted = 0
        prepared = []
        for n, path in enumerate(paths):
            facts, tree, _ = self.prepare(path, self.dir / f"tree-{n}")
            lets, all_lets = self.args(facts, {})
            prepared.append((self.dir / f"tree-{n}", lets, REFERENCES[recipe](tree, facts["hf_config"], all_lets)))
        for n, (what, *fault) in enumerate(FAULTS):
            broken = self.dir / f"fault-{n}.heft"
            broken.write_text(exchange(text, *fault))
            if broken.read_text() == text:
                continue
            planted += 1
            seen = False
            for k, (tree, lets, expected) in enumerate(prepared):
                out = self.dir / f"fault-{n}-{k}"
                done = run("convert", tree, out, "--recipe", broken, *lets)
                seen = seen or done.returncode != 0 or self.first_difference(read_f32(out), expected) is not None
            self.assertTrue(seen, f"{recipe}: {what}")
        self.assertGreaterEqual(planted, 3)

    def test_layouts_come_from_the_engine(self):
        """With the engine's manifest nothing needs to be told; one that says otherwise is refused."""
        for number, path in enumerate(sorted((GOLDEN / "rollout").glob("*-qwen3*.json"))):
            folder = self.dir / f"tree-{number}"
            facts, _, _ = self.prepare(path, folder)
            lets, _ = self.args(facts, {})
            args = ["--recipe", facts["recipe"]]
            said = self.heft("plan", folder, *args, *lets, "--manifest").stdout
            manifest = json.loads(said)
            fused = [tensor for tensor in manifest["tensors"] if "fused" in tensor]
            tp = facts["lets"].get("moe_tp") or facts["lets"]["tp"]
            self.assertEqual({tensor["fused"]["shards"] for tensor in fused}, {tp})
            self.assertEqual({tensor["fused"]["layout"] for tensor in fused}, {facts["lets"].get("layout", "per_shard")})
            engine = self.dir / f"engine-{number}.json"
            engine.write_text(said)
            few = ["--let", "wire=f32"]
            if "cycle" in facts["lets"]:
                few += ["--let", f"cycle={facts['lets']['cycle']}"]
            self.heft("check", folder, engine, *args, *few)
            fused[0]["fused"]["layout"] = "concat" if fused[0]["fused"]["layout"] == "per_shard" else "per_shard"
            for key in ("digest", "side"):
                manifest.pop(key, None)
            manifest["side"] = "destination"
            engine.write_text(json.dumps(manifest))
            said = self.heft("check", folder, engine, *args, *lets, code=1)
            self.assertIn("fused.layout", said.stdout + said.stderr)

    def test_an_engine_of_any_family_says_its_layout(self):
        """Dense models have no wi, and the halves of others stand apart: what is said of other leaves is taken, or nothing."""
        for number, path in enumerate(sorted((GOLDEN / "rollout").glob("direct-*.json"))):
            folder, engine = self.dir / f"tree-{number}", self.dir / f"engine-{number}.json"
            facts, _, _ = self.prepare(path, folder)
            for fuse in (True, False):
                lets, _ = self.args(facts, {"fuse": fuse})
                args = ["--recipe", facts["recipe"]]
                engine.write_text(self.heft("plan", folder, *args, *lets, "--manifest").stdout)
                few = ["--let", "wire=f32", "--let", f"cycle={facts['lets']['cycle']}", "--let", f"fuse={str(fuse).lower()}"]
                self.heft("check", folder, engine, *args, *lets)
                self.heft("check", folder, engine, *args, *few)

    def ranks(self, source, out, recipe, tp, *config):
        """The tensors of each rank."""
        self.heft("convert", source, out, "--recipe", recipe, "--let", f"tp={tp}", "--let", "wire=f32", *config)
        return [read_f32(out / f"rank-{rank}" if tp > 1 else out) for rank in range(tp)]

    def two_steps(self, family, first, second, direct_recipe, sizes):
        """Straight to the engine's ranks, and by way of the Hugging Face form."""
        facts = json.loads((GOLDEN / f"{family}-scanned.json").read_text())
        facts["hf_config"].update(sizes, vocab_size=40)
        tree = Tree(facts)
        packed = tree.write(self.dir / "tree")
        config = ("--config", self.dir / "tree" / "config.json")
        self.heft("convert", self.dir / "tree", self.dir / "hf", "--recipe", first, "--let", "wire=f32", *config)
        for tp in (1, 2, 4):  # 2 key/value heads: shared by neighbours at 4
            lets = ("--let", "wire=f32", "--let", f"tp={tp}")
            straight = self.ranks(self.dir / "tree", self.dir / f"straight-{tp}", direct_recipe, tp, *config)
            stepwise = self.ranks(self.dir / "hf", self.dir / f"stepwise-{tp}", second, tp, *config)
            self.assertEqual(straight, stepwise)
            self.heft("check", self.dir / "tree", "--recipe", direct_recipe, *lets, *config)
            if family != "llama3":
                back = self.dir / f"back-{tp}"
                like = ("--reverse", "--like", self.dir / "tree")
                self.heft("convert", self.dir / f"straight-{tp}", back, "--recipe", direct_recipe, *lets, *config, *like)
                self.assertEqual(read_checkpoint(back), packed)

    def test_llama3_straight_to_ranks(self):
        self.two_steps(
            "llama3", "maxtext-to-hf-llama3", "hf-to-engine-dense", "maxtext-to-engine-llama3", {"intermediate_size": 20}
        )

    def test_qwen3_straight_to_ranks(self):
        self.two_steps(
            "qwen3", "maxtext-to-hf-qwen3", "hf-to-engine-dense", "maxtext-to-engine-qwen3", {"intermediate_size": 20}
        )

    def test_qwen3_moe_straight_to_ranks(self):
        sizes = {"moe_intermediate_size": 12, "num_experts": 4}
        self.two_steps("qwen3-moe", "maxtext-to-hf-qwen3", "hf-to-engine-qwen3-moe", "maxtext-to-engine-qwen3", sizes)

    def test_what_cannot_be_is_refused(self):
        folder = self.dir / "tree"
        facts, _, _ = self.prepare(sorted((GOLDEN / "rollout").glob("direct-*-qwen3-moe.json"))[0], folder)
        for lets, code, part in (
            ({"moe_tp": 5}, 2, "width does not divide by moe_tp (inner = 12, moe_tp = 5)"),
            ({"kv_tp": 3}, 2, "3"),
            ({"layout": "lanes"}, 2, "no such layout of wi (layout = \"lanes\")"),
            ({"width": 8}, 2, "width"),
            ({"cycle": 3}, 2, "no slots of a cycle"),
        ):
            args, _ = self.args(facts, lets)
            said = self.heft("check", folder, "--recipe", facts["recipe"], *args, code=code).stderr
            self.assertIn(part, said)
        config = dict(facts["hf_config"], moe_intermediate_size=10)
        (folder / "config.json").write_text(json.dumps(config))
        args, lets = self.args(facts, {})
        said = self.heft("check", folder, "--recipe", facts["recipe"], *args, code=1).stdout
        self.assertIn(f"extent 12 does not fit (t:{lets['moe_tp']} c:{10 // lets['moe_tp']})", said)
        del config["moe_intermediate_size"]
        (folder / "config.json").write_text(json.dumps(config))
        said = self.heft("check", folder, "--recipe", facts["recipe"], *args, code=2).stderr
        self.assertIn("the tree has experts and config.json no moe_intermediate_size", said)
        (folder / "config.json").write_text(json.dumps(facts["hf_config"]))
        other = "maxtext-to-vllm-tpu-qwen3-moe"
        said = self.heft("check", folder, "--recipe", other, "--let", "wire=f32", "--let", "tp=5", code=2).stderr
        self.assertIn("width does not divide by tp (inner = 12, tp = 5)", said)


    def test_what_is_missing_is_told_without_an_engine(self):
        """No engine's manifest says what there must be; leaves that belong together are counted."""
        for n, (stem, missing, moved, part) in enumerate(
            (
                ("direct-2-qwen3-moe", ".wo", None, "experts without wi_0, or without wo"),
                ("direct-2-qwen3-moe", ".wi_1", None, "experts without wi_0, or without wi_1"),
                ("direct-2-qwen3-moe", ".key.kernel", None, "keys without queries, or queries without keys"),
                ("direct-2-qwen3-moe", ".value.kernel", None, "keys without values, or values without keys"),
                ("direct-6-qwen3.5-moe", None, ("layer_1.", "layer_4."), "no such slot of the cycle (s = 4, cycle = 4)"),
                ("vllm-3-qwen3.5-moe", None, ("layer_1.", "layer_4."), "no such slot of the cycle (s = 4, cycle = 4)"),
            )
        ):
            facts = json.loads((GOLDEN / "rollout" / f"{stem}.json").read_text())
            tree = json.loads((GOLDEN / f"{facts['family']}-scanned.json").read_text())
            leaves = {name: leaf for name, leaf in tree["tree"].items() if missing is None or not name.endswith(missing)}
            tree["tree"] = {name.replace(*moved) if moved else name: leaf for name, leaf in leaves.items()}
            folder = self.dir / f"tree-{n}"
            Tree(tree).write(folder)
            (folder / "config.json").write_text(json.dumps(facts["hf_config"]))
            args, _ = self.args(facts, {})
            done = run("check", folder, "--recipe", facts["recipe"], *args)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(part, done.stdout + done.stderr)

    def test_groups_never_split_heads(self):
        """vLLM's groups: 3 shards have neither whole query heads nor whole key/value heads."""
        folder = self.dir / "tree"
        facts, _, _ = self.prepare(sorted((GOLDEN / "rollout").glob("vllm-0-*.json"))[0], folder)
        args, _ = self.args(facts, {"tp": 3})
        said = self.heft("check", folder, "--recipe", facts["recipe"], *args, code=2).stderr
        self.assertIn("the query heads do not divide by tp (heads = 4, tp = 3)", said)
        said = self.heft("plan", folder, "--recipe", facts["recipe"], *self.args(facts, {"tp": 2})[0], "--manifest").stdout
        manifest = json.loads(said)
        rows = [tensor for tensor in manifest["tensors"] if "qkv" in tensor]
        self.assertEqual(rows[0]["qkv"], {"t": 2, "f": 1, "heads": 4, "kv_heads": 2})
        rows[0]["qkv"]["t"] = 4  # half a key head on each
        engine = self.dir / "engine.json"
        manifest.pop("digest", None)
        engine.write_text(json.dumps(manifest))
        said = self.heft("check", folder, engine, "--recipe", facts["recipe"], *args, code=3).stderr
        self.assertIn("qkv.t = 4 groups would split 2 key/value heads, qkv.f = 1 times each", said)


def add_tests():
    by_recipe = {}
    for path in sorted((GOLDEN / "rollout").glob("*.json")):
        by_recipe.setdefault(json.loads(path.read_text())["recipe"], []).append(path)
        name = f"test_{re.sub(r'[^a-z0-9]', '_', path.stem)}"
        setattr(RolloutTest, name, lambda self, path=path: self.one(path))
    for recipe, paths in by_recipe.items():
        name = f"test_faults_in_{re.sub(r'[^a-z0-9]', '_', recipe)}"
        setattr(RolloutTest, name, lambda self, recipe=recipe, paths=paths: self.faults(recipe, paths))


add_tests()

if __name__ == "__main__":
    unittest.main()

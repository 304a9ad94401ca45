# SPDX-License-Identifier: Apache-2.0
"""The recipes from Megatron-Core: trees of ranks with a value of its own in every element, laid out by megatron_layout."""
import copy
import json
import pathlib
import re
import struct
import unittest

from cli_support import Case, read_checkpoint, run, write_safetensors
from megatron_layout import full_layout, hf_model, shape_of, shards

RECIPES = pathlib.Path(__file__).resolve().parent.parent.parent / "recipes"
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "megatron"

DENSE = dict(hidden_size=6, intermediate_size=20, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
             head_dim=3, vocab_size=16, tie_word_embeddings=False)
LLAMA = dict(DENSE, model_type="llama")
QWEN2 = dict(DENSE, model_type="qwen2", hidden_size=24, vocab_size=13)
QWEN3 = dict(DENSE, model_type="qwen3", tie_word_embeddings=True)

LETS = {"first": "decoder_first_pipeline_num_layers", "last": "decoder_last_pipeline_num_layers"}


def pack(tensor):
    flat = [x for row in tensor for x in row] if isinstance(tensor[0], list) else tensor
    return "F32", shape_of(tensor), struct.pack(f"<{len(flat)}I", *flat)


class Megatron(Case):
    recipe = "megatron-to-hf-dense"
    keys = ("tp", "pp", "vpp", "dp")

    def lets(self, layout, **more):
        lets = {k: layout[k] for k in self.keys}
        lets.update({LETS[k]: layout[k] for k in LETS if k in layout})
        if layout.get("counted"):
            lets.update(account_for_embedding_in_pipeline_split=1, account_for_loss_in_pipeline_split=1)
        lets.update(vocab_multiple=layout["vocab_multiple"], wire="source")
        lets.update(more)
        return ["--recipe", self.recipe] + [x for k, v in lets.items() for x in ("--let", f"{k}={v}")]

    def tree(self, config, layout, change=None):
        hf = hf_model(config)
        ranks = shards(hf, config, layout)
        if change is not None:
            ranks = {n: copy.deepcopy(tensors) for n, tensors in ranks.items()}  # copies of their own
            change(ranks)
        folder = self.dir / f"tree-{len(list(self.dir.iterdir()))}"
        for number, tensors in ranks.items():
            (folder / f"rank-{number}").mkdir(parents=True)
            write_safetensors(folder / f"rank-{number}" / "model.safetensors", {k: pack(v) for k, v in tensors.items()})
        (folder / "config.json").write_text(json.dumps(config))
        return folder, hf, ranks

    def good(self, config, **given):
        layout = full_layout(**given)
        folder, hf, ranks = self.tree(config, layout)
        out, back = self.dir / f"{folder.name}-hf", self.dir / f"{folder.name}-back"
        self.heft("convert", folder, out, *self.lets(layout))
        got, want = read_checkpoint(out), {k: pack(v) for k, v in hf.items()}
        self.assertEqual(sorted(got), sorted(want), given)
        self.assertEqual([k for k in want if got[k] != want[k]], [], given)
        if config["vocab_size"] % (layout["vocab_multiple"] * layout["tp"]) == 0:
            self.heft("convert", out, back, "--reverse", "--like", folder, *self.lets(layout))
            tree = {f"rank-{n}.{k}": pack(v) for n, tensors in ranks.items() for k, v in tensors.items()}
            self.assertEqual(read_checkpoint(back), tree)

    def refused(self, text, config, change=None, lets=None, **given):
        layout = full_layout(**given)
        folder, _, _ = self.tree(config, layout, change)
        out = self.dir / f"{folder.name}-hf"
        result = run("convert", folder, out, *self.lets(layout, **(lets or {})))
        self.assertIn(result.returncode, (1, 2, 3), result.stderr)
        self.assertIn(text, result.stderr)
        self.assertFalse(out.exists())


    def none_may_be_missing(self, config, **given):
        """Each tensor of one layer of each kind, one expert's, and all that stand outside, in turn, from all of one rank."""
        layout = full_layout(**given)
        (ranks,) = shards(hf_model(config), config, layout).values()
        tensors = [{"name": f"rank-0.{k}", "dtype": "F32", "shape": list(pack(v)[1])} for k, v in ranks.items()]
        (self.dir / "config.json").write_text(json.dumps(config))
        for tensor in tensors:
            name = tensor["name"]
            if re.search(r"decoder\.layers\.[^01]\.|local_experts\.[^3]\.|experts\.linear_fc\d\.weight[^3]", name):
                continue
            left = [other for other in tensors if other is not tensor]
            (self.dir / "tree.json").write_text(json.dumps({"heft_manifest": 1, "side": "source", "tensors": left}))
            done = run("check", self.dir / "tree.json", "--config", self.dir / "config.json", *self.lets(layout))
            self.assertNotEqual(done.returncode, 0, name)


class Dense(Megatron):
    def test_every_layout_gives_the_model(self):
        for given in (dict(), dict(tp=2), dict(tp=4), dict(pp=2), dict(pp=2, tp=2), dict(pp=2, vpp=2), dict(dp=2),
                      dict(tp=2, dp=2, pp=2), dict(pp=3, last=2), dict(pp=2, first=1), dict(pp=3, counted=True),
                      dict(pp=2, vpp=1, first=3), dict(tp=2, pp=2, te=True), dict(te=True)):
            self.good(LLAMA, **given)

    def test_uneven_stages_of_a_virtual_pipeline(self):
        self.good(dict(LLAMA, num_hidden_layers=12), pp=3, vpp=2, first=2, last=4)
        self.good(dict(LLAMA, num_hidden_layers=12), pp=4, vpp=2, last=6)
        self.good(dict(LLAMA, num_hidden_layers=10), pp=2, vpp=2, counted=True)

    def test_bias_norms_of_heads_and_padding(self):
        for given in (dict(), dict(tp=2), dict(tp=4), dict(tp=2, te=True), dict(tp=2, vocab_multiple=1)):
            self.good(QWEN2, **given)
            self.good(QWEN3, **given)
        # some ranks hold nothing but padding
        self.good(dict(QWEN3, vocab_size=9), tp=4, vocab_multiple=8)

    def test_tied_copies_of_the_last_stage_must_agree(self):
        self.good(QWEN3, pp=2, tp=2)

        def spoil(ranks):
            ranks[2]["model0.output_layer.weight"][3][0] += 1

        self.refused('"model.embed_tokens.weight"', QWEN3, spoil, pp=2, tp=2)

    def test_copies_that_differ_are_found(self):
        def spoil(name, rank):
            def change(ranks):
                ranks[rank][name] = [x + 1 for x in ranks[rank][name]]
            return change

        norm = "model0.decoder.layers.1.input_layernorm.weight"
        self.refused('"model.layers.1.input_layernorm.weight"', LLAMA, spoil(norm, 1), tp=2)
        self.refused('"model.norm.weight"', LLAMA, spoil("model0.decoder.final_layernorm.weight", 1), dp=2)

    def test_no_tensor_may_be_missing(self):
        for config in (LLAMA, QWEN2, QWEN3):
            self.none_may_be_missing(config)
        self.none_may_be_missing(QWEN3, te=True)

    def test_what_is_missing_is_refused(self):
        def drop(*numbers):
            return lambda ranks: [ranks.pop(n) for n in numbers]

        def lose(name):
            return lambda ranks: ranks[0].pop(name)

        self.refused("layers or ranks are missing", LLAMA, drop(1), tp=2)
        self.refused("layers or ranks are missing", LLAMA, drop(2, 3), tp=2, pp=2)
        self.refused("the norm before the MLP", LLAMA, lose("model0.decoder.layers.2.pre_mlp_layernorm.weight"))
        self.refused("output_layer.weight", LLAMA, lose("model0.output_layer.weight"))
        self.refused("a layer has no linear_fc2", LLAMA, lose("model0.decoder.layers.2.mlp.linear_fc2.weight"), tp=2)

    def test_sizes_that_are_wrong_are_refused(self):
        self.refused("all 240 elements unused", LLAMA, lets=dict(pp=4), pp=2)
        self.refused("layers or ranks are missing", LLAMA, lets=dict(pp=1, dp=2), pp=2)
        self.refused("rank-1.model1.decoder.layers.0.", LLAMA, lets=dict(vpp=1), pp=2, vpp=2)
        self.refused(" and then by ", LLAMA, lets=dict(vpp=2), pp=2)
        self.refused("extent 8 does not fit v:16", LLAMA, lets=dict(tp=1, dp=2), tp=2)
        self.refused("do not divide by the stages", LLAMA, lets=dict(pp=3), pp=2)
        self.refused("virtual pipeline needs", LLAMA, lets=dict(vpp=2))
        self.refused("do not divide by tp", dict(LLAMA, num_key_value_heads=1), lets=dict(tp=2))

    def test_floats_are_narrowed_on_demand(self):
        folder, _, _ = self.tree(LLAMA, full_layout(tp=2))
        out = self.dir / "bf16"
        self.heft("convert", folder, out, *self.lets(full_layout(tp=2), wire="bf16"))
        self.assertEqual({t[0] for t in read_checkpoint(out).values()}, {"BF16"})


MOE = dict(DENSE, model_type="qwen3_moe", num_experts=8, moe_intermediate_size=4, mlp_only_layers=[])


class Qwen3Moe(Megatron):
    recipe = "megatron-to-hf-qwen3-moe"
    keys = ("tp", "pp", "vpp", "dp", "ep", "etp")

    def test_every_layout_gives_the_model(self):
        for given in (dict(), dict(tp=2), dict(tp=2, etp=1), dict(tp=2, ep=2, etp=1), dict(dp=2, ep=2), dict(dp=4, ep=2),
                      dict(tp=2, dp=2, ep=2), dict(tp=2, dp=2, ep=4, etp=1), dict(pp=2, vpp=2, dp=2, ep=2),
                      dict(tp=2, dp=2, ep=1, etp=4), dict(pp=2, first=1, tp=2, dp=4, ep=4)):
            self.good(MOE, grouped=False, **given)
            self.good(MOE, grouped=True, te=True, **given)

    def test_dense_layers_between(self):
        self.good(dict(MOE, mlp_only_layers=[0, 2]), tp=2)
        self.good(dict(MOE, mlp_only_layers=[3]), dp=2, ep=2, te=True, grouped=True)

    def test_no_tensor_may_be_missing(self):
        self.none_may_be_missing(dict(MOE, mlp_only_layers=[1]))
        self.none_may_be_missing(dict(MOE, mlp_only_layers=[1]), grouped=True, te=True)

    def test_what_is_missing_or_wrong_is_refused(self):
        def lose(name):
            return lambda ranks: ranks[1].pop(name)

        expert = "model0.decoder.layers.1.mlp.experts.linear_fc1.weight2"
        self.refused("experts are missing", MOE, lose(expert), dp=2, ep=2, grouped=True)
        self.refused("neither router nor MLP", MOE, lose("model0.decoder.layers.1.mlp.router.weight"), dp=2, ep=2)
        self.refused("experts are missing", MOE, lets=dict(ep=1), dp=2, ep=2)
        self.refused("more data parallel ranks are needed", MOE, lets=dict(ep=4), dp=2, ep=2)
        # all ranks there, but twice the first half of the experts
        self.refused("layers or ranks are missing", MOE, lambda ranks: [ranks.pop(1), ranks.pop(3)], dp=4, ep=2)

    def test_copies_that_differ_are_found(self):
        def spoil(name):
            def change(ranks):
                ranks[1][name][1][1] += 1
            return change

        self.refused('"model.layers.2.mlp.gate.weight"', MOE, spoil("model0.decoder.layers.2.mlp.router.weight"), dp=2, ep=2)
        expert = "model0.decoder.layers.2.mlp.experts.local_experts.3.linear_fc2.weight"
        self.refused('"model.layers.2.mlp.experts.3.down_proj.weight"', MOE, spoil(expert), tp=2, etp=1)
        self.refused('"model.layers.2.mlp.experts.3.down_proj.weight"', MOE, spoil(expert), dp=2)

    def test_the_router_keeps_its_bits(self):
        folder, hf, _ = self.tree(MOE, full_layout())
        out = self.dir / "bf16"
        self.heft("convert", folder, out, *self.lets(full_layout(), wire="bf16"))
        got = read_checkpoint(out)
        self.assertEqual({t[0] for k, t in got.items() if not k.endswith("mlp.gate.weight")}, {"BF16"})
        gate = "model.layers.1.mlp.gate.weight"
        self.assertEqual(got[gate], pack(hf[gate]))


DEEPSEEK = dict(
    model_type="deepseek_v3", hidden_size=8, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4, vocab_size=32,
    tie_word_embeddings=False, q_lora_rank=8, kv_lora_rank=10, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5,
    n_routed_experts=8, n_shared_experts=2, moe_intermediate_size=4, first_k_dense_replace=1, num_nextn_predict_layers=1)


class DeepseekV3(Megatron):
    recipe = "megatron-to-hf-deepseek-v3"
    keys = ("tp", "pp", "vpp", "dp", "ep", "etp")

    def test_every_layout_gives_the_model(self):
        for given in (dict(), dict(tp=2), dict(tp=2, etp=1), dict(tp=2, ep=2, etp=1), dict(dp=2, ep=2), dict(dp=4, ep=2),
                      dict(tp=2, dp=2, ep=2), dict(tp=4, ep=4, etp=1), dict(pp=2, vpp=2, dp=2, ep=2), dict(pp=2, tp=2),
                      dict(pp=2, first=1, tp=2, dp=4, ep=4), dict(pp=3, counted=True)):
            self.good(DEEPSEEK, **given)
            self.good(DEEPSEEK, grouped=True, te=True, **given)

    def test_other_models_of_the_kind(self):
        for given in (dict(), dict(tp=2), dict(tp=2, te=True), dict(dp=2, ep=2), dict(pp=2, te=True)):
            self.good(dict(DEEPSEEK, q_lora_rank=None), **given)
            self.good(dict(DEEPSEEK, num_nextn_predict_layers=0), **given)
            self.good(dict(DEEPSEEK, num_nextn_predict_layers=2, first_k_dense_replace=2, vocab_size=27), **given)

    def test_prediction_layers_can_be_left_out(self):
        layout = full_layout(tp=2)
        folder, hf, _ = self.tree(DEEPSEEK, layout)
        out = self.dir / "out"
        self.heft("convert", folder, out, *self.lets(layout, mtp_layers=0))
        want = {k: pack(v) for k, v in hf.items() if not k.startswith("model.layers.4.")}
        self.assertEqual(read_checkpoint(out), want)

    def test_no_tensor_may_be_missing(self):
        self.none_may_be_missing(DEEPSEEK)
        self.none_may_be_missing(dict(DEEPSEEK, q_lora_rank=None), grouped=True, te=True)

    def test_what_is_missing_or_wrong_is_refused(self):
        def lose(name, rank=1):
            return lambda ranks: ranks[rank].pop(name)

        p = "model0.decoder.layers.2."
        self.refused("no expert_bias", DEEPSEEK, lose(p + "mlp.router.expert_bias"), tp=2)
        self.refused("no shared experts", DEEPSEEK, lose(p + "mlp.shared_experts.linear_fc1.weight"), tp=2)
        self.refused("norm of the compressed keys", DEEPSEEK, lose(p + "self_attention.kv_layernorm.weight"), tp=2)
        self.refused("is mtp_layers right?", DEEPSEEK, lets=dict(mtp_layers=2), tp=2)
        self.refused("eh_proj", DEEPSEEK, lose("model0.mtp.layers.0.eh_proj.weight"), tp=2)

    def test_router_and_bias_keep_their_bits(self):
        layout = full_layout()
        folder, hf, _ = self.tree(DEEPSEEK, layout)
        out = self.dir / "bf16"
        self.heft("convert", folder, out, *self.lets(layout, wire="bf16"))
        got = read_checkpoint(out)
        for name in ("gate.weight", "gate.e_score_correction_bias"):
            self.assertEqual(got["model.layers.2.mlp." + name], pack(hf["model.layers.2.mlp." + name]))
        self.assertEqual(got["model.layers.2.mlp.experts.3.up_proj.weight"][0], "BF16")


class Planted(Megatron):
    """A fault in a recipe shows: the conversion is refused, or what it writes is not the model."""

    def found(self, recipe, config, faults, **given):
        layout = full_layout(**given)
        folder, hf, _ = self.tree(config, layout)
        want = {k: pack(v) for k, v in hf.items()}
        text = (RECIPES / f"{recipe}.heft").read_text()
        for number, (right, wrong) in enumerate(faults):
            self.assertIn(right, text)
            path, out = self.dir / f"{recipe}-{number}.heft", self.dir / f"{recipe}-{number}"
            path.write_text(text.replace(right, wrong))
            lets = ["--recipe", path] + self.lets(layout)[2:]
            if run("convert", folder, out, *lets).returncode == 0:
                self.assertTrue(read_checkpoint(out) != want, (right, wrong))

    def test_faults_in_dense(self):
        self.keys = Dense.keys
        self.found("megatron-to-hf-dense", QWEN2, [
            ("{per_group}:in_group", "{per_group + 1}:in_group"), ("h:per_group@0/in_group", "h:per_group@2/in_group"),
            ("(0:2 f:{inner / tp})", "(f:{inner / tp} 0:2)"), ("(0:2 f", "(1:2 f"), ("({t(r)}:tp g h e)", "(g {t(r)}:tp h e)"),
            ("({t(r)}:tp f)", "(f {t(r)}:tp)"), ("let t(r) = r % tp", "let t(r) = tp - 1 - r % tp"),
            ("let stage(r) = r / (tp * dp)", "let stage(r) = pp - 1 - r / (tp * dp)"),
            ("c * (slots / vpp)", "c * (slots / vpp / pp)"), ("v@{t(r) * shard}/vocab", "v@{(1 - t(r)) * shard}/vocab"),
            ("pre_mlp_layernorm.weight\" [d]", "input_layernorm.weight\" [d]"),
        ], tp=2, pp=2, vpp=2)

    def test_faults_in_qwen3_moe(self):
        self.keys = Qwen3Moe.keys
        self.found("megatron-to-hf-qwen3-moe", MOE, [
            ("(0:2 f:{expert_inner", "(1:2 f:{expert_inner"), ("* (experts / ep) + e", "+ e * ep"),
            ("r % (tp * dp) / etp % ep", "r % ep"), ("r % (tp * dp) % etp", "r / ep % etp"),
            ("({etp_rank(r)}:etp f)", "(f {etp_rank(r)}:etp)"), ("mlp.router.weight\" [e:experts, d]", "mlp.router.weight\" [d, e]"),
        ], tp=2, dp=2, ep=2, etp=2)

    def test_faults_in_deepseek_v3(self):
        self.keys = DeepseekV3.keys
        self.found("megatron-to-hf-deepseek-v3", DEEPSEEK, [
            ("({t(r) % down}:down row)", "(row {t(r) % down}:down)"), ("({t(r)}:tp h e)", "(h {t(r)}:tp e)"),
            ("(0:2 f:{shared_inner", "(1:2 f:{shared_inner"), ("{layers + l}.enorm", "{layers + l}.hnorm"),
            ("({t(r)}:tp o), i]", "(o {t(r)}:tp), i]"), ("layers + l, decoder_layer", "layers - 1 - l, decoder_layer"),
        ], tp=2, pp=2)


class Golden(unittest.TestCase):
    """megatron_layout against the names and shapes of real Megatron-Core models (tests/engines/megatron)."""

    def test_layouts_are_those_of_megatron(self):
        files = sorted(GOLDEN.glob("*.json"))
        self.assertTrue(files)
        for file in files:
            facts = json.loads(file.read_text())
            config, layout = facts["config"], full_layout(**facts["layout"])
            hf = hf_model(config)
            got = {str(n): {k: list(shape_of(v)) for k, v in tensors.items()}
                   for n, tensors in shards(hf, config, layout).items()}
            want = {n: {k: shape for k, (_, shape) in tensors.items()} for n, tensors in facts["ranks"].items()}
            self.assertEqual(got, want, file.name)
            self.assertEqual({k: list(shape_of(v)) for k, v in hf.items()},
                             {k: shape for k, (_, shape) in facts["hf"].items()}, file.name)


if __name__ == "__main__":
    unittest.main()

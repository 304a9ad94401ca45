# SPDX-License-Identifier: Apache-2.0
"""From Hugging Face to the engines' stacked experts, each rank's parameters written down as an engine's loader fills them."""
import json
import struct
import unittest

from cli_support import Case, read_checkpoint, run, write_dense_model, write_safetensors
from megatron_layout import columns, hf_model, part, shape_of

QWEN = dict(model_type="qwen3_moe", hidden_size=6, intermediate_size=16, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4, head_dim=3, vocab_size=60, tie_word_embeddings=False, num_experts=8,
            moe_intermediate_size=8, mlp_only_layers=[])


def pack(tensor):
    def flat(x):
        return [z for y in x for z in flat(y)] if isinstance(x[0], list) else x
    shape = (len(tensor),) + shape_of(tensor[0]) if isinstance(tensor[0], list) and isinstance(tensor[0][0], list) else shape_of(tensor)
    values = flat(tensor)
    return "F32", shape, struct.pack(f"<{len(values)}I", *values)


class Engine:
    """One rank's parameters."""

    def __init__(self, hf, config, number, tp=1, dp=1, ep=1, engine="vllm"):
        self.hf, self.config, self.engine = hf, config, engine
        self.tp = (number % tp, tp)
        inner = tp * dp // ep
        self.ep, self.expert_tp = (number // inner, ep), (number % inner, inner)
        self.at = "experts.routed_experts." if engine == "vllm" else "experts."
        self.out = {}

    def vocabulary(self, name):
        rows = self.hf[name]
        return part(rows + [[0] * len(rows[0])] * (-len(rows) % 64), *self.tp)

    def gate_up(self, p, place):
        return part(self.hf[p + "gate_proj.weight"], *place) + part(self.hf[p + "up_proj.weight"], *place)

    def mlp(self, p):
        self.out[p + "gate_up_proj.weight"] = self.gate_up(p, self.tp)
        self.out[p + "down_proj.weight"] = columns(self.hf[p + "down_proj.weight"], *self.tp)

    def attention(self, p):
        hf, (rank, size) = self.hf, self.tp
        e, kv = self.config["head_dim"], self.config["num_key_value_heads"]
        heads = lambda rows: [rows[i : i + e] for i in range(0, len(rows), e)]  # noqa: E731
        q, k, v = (heads(hf[f"{p}{x}_proj.weight"]) for x in "qkv")
        mine = part(range(kv), rank, size) if kv >= size else [rank * kv // size]
        picked = part(q, rank, size) + [k[h] for h in mine] + [v[h] for h in mine]
        self.out[p + "qkv_proj.weight"] = [row for head in picked for row in head]
        self.out[p + "o_proj.weight"] = columns(hf[p + "o_proj.weight"], *self.tp)
        for x in "qk":
            self.out[f"{p}{x}_norm.weight"] = hf[f"{p}{x}_norm.weight"]

    def moe(self, p):
        self.out[p + "gate.weight"] = self.hf[p + "gate.weight"]
        mine = part(range(len(self.hf[p + "gate.weight"])), *self.ep)
        self.out[p + self.at + "w13_weight"] = [self.gate_up(f"{p}experts.{e}.", self.expert_tp) for e in mine]
        self.out[p + self.at + "w2_weight"] = [
            columns(self.hf[f"{p}experts.{e}.down_proj.weight"], *self.expert_tp) for e in mine]

    def fill(self):
        self.out["model.embed_tokens.weight"] = self.vocabulary("model.embed_tokens.weight")
        self.out["lm_head.weight"] = self.vocabulary("lm_head.weight")
        self.out["model.norm.weight"] = self.hf["model.norm.weight"]
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
                self.out[p + norm] = self.hf[p + norm]
            self.attention(p + "self_attn.")
            self.moe(p + "mlp.") if p + "mlp.gate.weight" in self.hf else self.mlp(p + "mlp.")
        return self.out


class Case_(Case):
    recipe, rank = "hf-to-engine-qwen3-moe", Engine

    def model(self, config):
        folder = self.dir / f"hf-{len(list(self.dir.iterdir()))}"
        folder.mkdir()
        hf = hf_model(config)
        write_safetensors(folder / "model.safetensors", {k: pack(v) for k, v in hf.items()})
        (folder / "config.json").write_text(json.dumps(config))
        return folder, hf

    def lets(self, **given):
        return ["--recipe", self.recipe] + [x for k, v in given.items() for x in ("--let", f"{k}={v}")]

    def good(self, config, reverse=True, **given):
        folder, hf = self.model(config)
        out, back = folder.with_name(folder.name + "-out"), folder.with_name(folder.name + "-back")
        self.heft("convert", folder, out, *self.lets(**given))
        n = given.get("tp", 1) * given.get("dp", 1)
        for number in range(n):
            got = read_checkpoint(out / f"rank-{number}" if n > 1 else out)
            want = {k: pack(v) for k, v in self.rank(hf, config, number, **given).fill().items()}
            self.assertEqual(sorted(got), sorted(want), given)
            self.assertEqual([k for k in want if got[k] != want[k]], [], given)
        if reverse:
            self.heft("convert", out, back, "--reverse", "--like", folder, *self.lets(**given))
            self.assertEqual(read_checkpoint(back), read_checkpoint(folder))


    def none_may_be_missing(self, folder, keep=()):
        """Each tensor but one expert in two, in turn: no engine's manifest says what there must be."""
        tensors = [{"name": name, "dtype": dtype, "shape": list(shape)}
                   for name, (dtype, shape, _) in read_checkpoint(folder).items()]
        manifest = self.dir / "one-less.json"
        for tensor in tensors:
            name = tensor["name"]
            if name in keep or (".experts." in name and ".experts.3." not in name):
                continue
            left = [other for other in tensors if other is not tensor]
            manifest.write_text(json.dumps({"heft_manifest": 1, "side": "source", "tensors": left}))
            done = run("check", manifest, "--config", folder / "config.json", *self.lets())
            self.assertNotEqual(done.returncode, 0, name)


class Latent(Engine):
    """DeepSeek-V3."""

    def __init__(self, hf, config, number, shared="own", **given):
        super().__init__(hf, config, number, **given)
        self.shared = shared

    def attention(self, p):
        hf = self.hf
        down = hf[p + "kv_a_proj_with_mqa.weight"]
        if p + "q_a_proj.weight" in hf:
            name = "fused_qkv_a_proj" if self.engine == "vllm" else "fused_qkv_a_proj_with_mqa"
            self.out[f"{p}{name}.weight"] = hf[p + "q_a_proj.weight"] + down
            self.out[p + "q_a_layernorm.weight"] = hf[p + "q_a_layernorm.weight"]
            self.out[p + "q_b_proj.weight"] = part(hf[p + "q_b_proj.weight"], *self.tp)
        else:
            self.out[p + "kv_a_proj_with_mqa.weight"] = down
            self.out[p + "q_proj.weight"] = part(hf[p + "q_proj.weight"], *self.tp)
        self.out[p + "kv_a_layernorm.weight"] = hf[p + "kv_a_layernorm.weight"]
        self.out[p + "kv_b_proj.weight"] = part(hf[p + "kv_b_proj.weight"], *self.tp)
        self.out[p + "o_proj.weight"] = columns(hf[p + "o_proj.weight"], *self.tp)

    def moe(self, p):
        super().moe(p)
        self.out[p + "gate.e_score_correction_bias"] = self.hf[p + "gate.e_score_correction_bias"]
        q = p + "shared_experts."
        if self.shared == "own":
            self.mlp(q)
        else:
            self.out[p + self.at + "w13_weight"].append(self.gate_up(q, self.expert_tp))
            self.out[p + self.at + "w2_weight"].append(columns(self.hf[q + "down_proj.weight"], *self.expert_tp))


class DeepseekV3(Case_):
    recipe, rank = "hf-to-engine-deepseek-v3", Latent
    config = dict(
        model_type="deepseek_v3", hidden_size=6, intermediate_size=16, num_hidden_layers=3, num_attention_heads=8,
        vocab_size=60, tie_word_embeddings=False, q_lora_rank=8, kv_lora_rank=10, qk_nope_head_dim=3, qk_rope_head_dim=2,
        v_head_dim=5, n_routed_experts=8, n_shared_experts=2, moe_intermediate_size=8, first_k_dense_replace=1)

    def test_every_rank_holds_its_part(self):
        for given in (dict(), dict(tp=2), dict(tp=8), dict(tp=2, ep=2), dict(tp=4, ep=2, engine="sglang"), dict(dp=2, ep=2),
                      dict(dp=2, tp=2, ep=4), dict(engine="sglang")):
            self.good(self.config, **given)
            self.good(dict(self.config, q_lora_rank=None), **given)

    def test_no_tensor_may_be_missing(self):
        for rank in (8, None):
            folder, _ = self.model(dict(self.config, q_lora_rank=rank))
            self.none_may_be_missing(folder)

    def test_a_shared_expert_among_the_others(self):
        config = dict(self.config, n_shared_experts=1)
        self.good(config, engine="sglang", shared="expert", tp=2)
        self.good(config, engine="sglang", shared="expert")
        folder, _ = self.model(config)
        result = run("convert", folder, self.dir / "out", *self.lets(shared="expert", tp=2, ep=2))
        self.assertIn("only one shared expert", result.stderr)

    def test_prediction_layers_are_left_out(self):
        for n in (1, 2):
            self.good(dict(self.config, num_nextn_predict_layers=n), reverse=False, tp=2)
        # a checkpoint that has none, of a configuration that says it has
        folder, _ = self.model(self.config)
        (folder / "config.json").write_text(json.dumps(dict(self.config, num_nextn_predict_layers=1)))
        self.heft("convert", folder, self.dir / "out", *self.lets())

    def test_the_bias_keeps_its_bits(self):
        folder, hf = self.model(self.config)
        self.heft("convert", folder, self.dir / "out", *self.lets(wire="bf16"))
        got = read_checkpoint(self.dir / "out")
        name = "model.layers.1.mlp.gate.e_score_correction_bias"
        self.assertEqual(got[name], pack(hf[name]))
        self.assertEqual(got["model.layers.1.mlp.gate.weight"][0], "BF16")


class Qwen3Moe(Case_):
    def test_every_rank_holds_its_part(self):
        for given in (dict(), dict(tp=2), dict(tp=8), dict(tp=2, ep=2), dict(tp=4, ep=2, engine="sglang"), dict(dp=2, ep=2),
                      dict(dp=2, tp=2, ep=4), dict(dp=2), dict(tp=8, ep=8, engine="sglang")):
            self.good(QWEN, **given)

    def test_dense_layers_between(self):
        self.good(dict(QWEN, mlp_only_layers=[1]), tp=2, ep=2)

    def test_no_tensor_may_be_missing(self):
        folder, _ = self.model(dict(QWEN, mlp_only_layers=[1]))
        self.none_may_be_missing(folder)

    def test_another_place_for_the_experts(self):
        folder, _ = self.model(QWEN)
        self.heft("convert", folder, self.dir / "out", *self.lets(experts_at="experts"))
        self.assertIn("model.layers.0.mlp.experts.w13_weight", read_checkpoint(self.dir / "out"))

    def test_what_does_not_divide_is_refused(self):
        folder, _ = self.model(QWEN)
        for text, lets in (("do not divide by ep", dict(tp=2, ep=3)), ("dp must be 1", dict(dp=2, engine="sglang")),
                           ("the experts do not divide", dict(tp=16, ep=16, vocab_multiple=64))):
            result = run("convert", folder, self.dir / "out", *self.lets(**lets))
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(text, result.stderr)


class Dense(Case_):
    recipe = "hf-to-engine-dense"

    def test_no_tensor_may_be_missing(self):
        folder = self.dir / "dense"
        write_dense_model(folder)
        self.none_may_be_missing(folder)


if __name__ == "__main__":
    unittest.main()

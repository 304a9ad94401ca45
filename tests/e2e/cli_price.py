# SPDX-License-Identifier: Apache-2.0
"""Prices: `plan --links` of real checkpoints, and `simulate`, which must come to the same."""
import json
import unittest

from cli_support import Case, Counter, write_dense_model, write_safetensors

SIDE = {"ranks_per_host": 2, "nics_per_host": 2}
LINKS = {
    "format": 1,
    "chunk_bytes": 1000,
    "source": SIDE,
    "destination": SIDE,
    "nic": {"bytes_per_s": 1e6, "latency_s": 0.5, "message_s": 0},
    "copy": {"bytes_per_s": 1e9, "run_s": 0},
    "flip": {"bytes_per_s": 1e7},
    "digest": {"bytes_per_s": 1e8},
}
LETS = ("--recipe", "hf-to-engine-dense", "--let", "tp=4")
TINY = {  # the sizes of tiny-dense
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 128, "vocab_size": 256, "tie_word_embeddings": False,
}  # fmt: skip


def tiny_dense():
    make = Counter()
    tensors = {name: make.tensor("BF16", 256, 64) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors["model.norm.weight"] = make.tensor("BF16", 64)
    for layer in range(2):
        p = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64),
            "mlp.down_proj": (64, 128), "input_layernorm": (64,), "post_attention_layernorm": (64,),
        }.items():  # fmt: skip
            tensors[f"{p}{name}.weight"] = make.tensor("BF16", *shape)
    return tensors


def rows(tensor, rank, n):
    dtype, shape, raw = tensor
    each = -(-shape[0] // n)
    begin, end = min(rank * each, shape[0]), min((rank + 1) * each, shape[0])
    row = len(raw) // shape[0]
    return dtype, (end - begin, *shape[1:]), raw[begin * row : end * row]


class Price(Case):
    def setUp(self):
        super().setUp()
        self.links = self.dir / "links.json"
        self.links.write_text(json.dumps(LINKS))

    def sharded(self, n):
        folder = self.dir / "ranks"
        for rank in range(n):
            (folder / f"rank-{rank}").mkdir(parents=True)
            tensors = {name: rows(tensor, rank, n) for name, tensor in tiny_dense().items()}
            write_safetensors(folder / f"rank-{rank}" / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(TINY))
        return folder


class Plan(Price):
    def test_one_source(self):
        write_dense_model(self.dir / "model")
        words = ("plan", self.dir / "model", "--recipe", "hf-to-engine-dense", "--let", "tp=2")
        plain = self.json(*words)
        self.assertNotIn("price", plain)
        price = self.json(*words, "--links", self.links)["price"]
        self.assertEqual(price["bytes"], plain["bytes"] + plain["constant_bytes"])
        self.assertEqual(price["senders"]["ranks"], 1)
        self.assertEqual(price["routes"], 2)
        sent = price["sender_list"][0]["bytes"]
        self.assertEqual(sent, sum(r["bytes"] for r in price["receiver_list"]))
        self.assertAlmostEqual(price["bound_s"], sent / 1e6)
        first = min(1000, price["receiver_list"][0]["bytes"]) / 1e9
        self.assertAlmostEqual(price["stage_s"], sent / 1e6 + 0.5 + first)
        self.assertEqual(price["busiest"]["kind"], "nic-out")
        self.assertAlmostEqual(price["flip_s"], max(r["bytes"] for r in price["receiver_list"]) / 1e7)
        twice = self.json(*words, "--links", self.links, "--replicas", 2)["price"]
        self.assertEqual(twice["bytes"], 2 * price["bytes"])
        self.assertAlmostEqual(twice["relayed_s"], price["bound_s"])
        text = self.heft(*words, "--links", self.links).stdout
        self.assertRegex(text, r"(?m)^senders +1 of 1 at work; .*, 1.00 x$")
        self.assertRegex(text, r"(?m)^busiest +nic-out 0: ")

    def test_one_rank_is_a_part(self):
        write_dense_model(self.dir / "model")
        words = ("plan", self.dir / "model", "--recipe", "hf-to-engine-dense", "--let", "tp=2", "--links", self.links)
        self.assertRegex(self.heft(*words, "--rank", 1).stdout, r"(?m)^stage +\S+ \S+  at least$")

    def test_sharded_source_is_what_simulate_makes(self):
        folder = self.sharded(3)
        real = self.json("plan", folder, *LETS, "--sharded", 0, "--links", self.links)["price"]
        words = ("simulate", "tiny-dense", "--trainer", "fsdp=3", "--engine", "tp=4", "--links", self.links, "--ranks")
        self.assertEqual(self.json(*words)["price"], real)
        self.assertEqual(real["senders"]["ranks"], 3)
        self.assertGreater(real["receiver_list"][0]["peers"], 1)


class Simulate(Price):
    def simulate(self, *words):
        return self.json("simulate", *words, "--links", self.links)

    def test_every_family_and_degree(self):
        for model, trainer, engine, n_ranks in (
            ("tiny-dense", "fsdp=4,tp=2", "tp=4,replicas=3", 8),
            ("tiny-dense", "pp=2,hsdp=2,fsdp=2", "tp=2", 8),
            ("tiny-moe", "fsdp=4,ep=2", "tp=2,dp=2,ep=4", 4),
            ("tiny-moe", "fsdp=16,ep=4,tp=2", "tp=8", 32),
            ("tiny-moe", "fsdp=16", "tp=1,dp=8,ep=8,replicas=2", 16),
            ("tiny-mla", "pp=3,tp=2,ep=2", "tp=4,ep=4", 6),
        ):
            out = self.simulate(model, "--trainer", trainer, "--engine", engine, "--ranks")
            price = out["price"]
            self.assertEqual(out["trainer"]["ranks"], n_ranks)
            self.assertEqual(out["planned_ranks"], out["engine_ranks"])
            self.assertFalse(out["is_sample"])
            sent = sum(r["bytes"] for r in price["sender_list"])
            self.assertEqual(sent, sum(r["bytes"] for r in price["receiver_list"]))
            self.assertEqual(sent, price["bytes"])
            self.assertGreaterEqual(sent, out["model"]["bytes"] * out["engine"]["replicas"])
            self.assertEqual(price["senders"]["at_work"], n_ranks, (model, trainer))
            self.assertLessEqual(price["ideal_s"], price["bound_s"] * (1 + 1e-12))
            self.assertLessEqual(price["bound_s"], price["stage_s"])

    def test_text(self):
        out = self.heft("simulate", "tiny-dense", "--trainer", "fsdp=2", "--engine", "tp=2,replicas=2", "--links",
                        self.links).stdout.splitlines()  # fmt: skip
        planned = [line for line in out if line.startswith("planned")]
        self.assertRegex(planned[0], r"^planned         2 of the 2 ranks of an engine, \d+ pieces: placement ")
        self.assertEqual([line for line in out if line not in planned], EXPECTED.splitlines())

    def test_copies_on_the_engines_hosts_send_to_these(self):
        side = {"ranks_per_host": 2, "nics_per_host": 1}
        rate = {"bytes_per_s": 1e9}
        memory = {"bytes_per_s": 1e9, "latency_s": 0, "message_s": 0}
        links = {"format": 1, "shared_hosts": True, "source": side, "destination": side, "memory": memory,
                 "copy": {**rate, "run_s": 0}, "flip": rate, "digest": rate}  # fmt: skip
        path = self.dir / "one-network-less.json"  # whatever leaves its host is an error
        path.write_text(json.dumps(links))
        engines = ("--engine", "tp=2,replicas=2", "--links", path)
        out = self.json("simulate", "tiny-dense", "--trainer", "hsdp=2,fsdp=2", *engines)
        self.assertEqual(out["price"]["senders"]["at_work"], 4)
        self.assertLess(out["price"]["senders"]["balance"], 1.1)
        said = self.heft("simulate", "tiny-dense", "--trainer", "fsdp=4", *engines, code=3).stderr
        self.assertIn('are on two hosts, and the links have no "nic"', said)

    def test_a_sample_says_so(self):
        words = ("tiny-moe", "--trainer", "fsdp=2", "--engine", "tp=4", "--sample", 2)
        out = self.simulate(*words)
        self.assertEqual((out["planned_ranks"], out["engine_ranks"], out["is_sample"]), (2, 4, True))
        self.assertEqual(out["price"]["receivers"]["at_work"], 2)
        self.assertIsNone(out["price"]["senders"]["balance"])
        text = self.heft("simulate", *words, "--links", self.links).stdout
        self.assertIn("a sample: the other ranks are not in what follows", text)
        self.assertRegex(text, r"(?m)^round +\S+ \S+  at least$")
        self.assertFalse(self.simulate(*words, "--all")["is_sample"])

    def test_a_cast_is_sent_as_it_arrives(self):
        words = ("tiny-dense", "--trainer", "fsdp=2", "--engine", "tp=2")
        half = self.simulate(*words)["price"]["bytes"]
        self.assertEqual(self.simulate(*words, "--dtype", "f32")["price"]["bytes"], 2 * half)
        self.assertEqual(self.simulate(*words, "--dtype", "f32", "--wire", "bf16")["price"]["bytes"], half)

    def test_config_of_a_model(self):
        config = self.dir / "config.json"
        config.write_text(json.dumps({**TINY, "model_type": "llama"}))
        words = ("--trainer", "fsdp=2", "--engine", "tp=2")
        given, preset = self.simulate(config, *words), self.simulate("tiny-dense", *words)
        self.assertEqual(given["price"], preset["price"])
        deeper = self.simulate(config, *words, "--layers", 4)
        self.assertEqual(deeper["model"]["layers"], 4)
        config.write_text(json.dumps({**TINY, "hidden_size": "wide"}))
        self.assertIn('"hidden_size" is "wide", no integer', self.heft("simulate", config, "--links", self.links, code=3).stderr)
        config.write_text(json.dumps({**TINY, "head_dim": None}))
        self.assertEqual(self.simulate(config, *words)["price"], preset["price"])
        for key, value, text in (
            ("head_dim", "64", '"head_dim" is "64", no integer from 1'),  # not what hidden / heads comes to
            ("head_dim", 64.5, '"head_dim" is 64.5, no integer from 1'),
            ("num_local_experts", 8, '"num_local_experts" is of a family of experts that cannot be simulated'),
            ("n_routed_experts", 8, '"n_routed_experts" is of a family'),  # not a dense model
        ):
            config.write_text(json.dumps({**TINY, key: value}))
            self.assertIn(text, self.heft("simulate", config, "--links", self.links, code=3).stderr)

    def test_mistakes(self):
        for words, code, text in (
            (("tiny-dnse",), 2, "nearest: tiny-dense"),
            (("tiny-dense", "--trainer", "fspd=2"), 2, '"fspd=2" is not NAME=NUMBER'),
            (("tiny-dense", "--trainer", "fsdp=2,fsdp=2"), 2, 'fsdp is given twice: 2, and "fsdp=2"'),
            (("tiny-dense", "--trainer", "fsdp= 2"), 2, '"fsdp= 2" is no number from 1'),
            (("tiny-dense", "--trainer", "fsdp=300,tp=300"), 2, "90000 ranks, at most 65536"),
            (("tiny-dense", "--engine", "tp=8,replicas=10000"), 2, "80000 ranks, at most 65536"),
            (("tiny-dense", "--trainer", "fsdp=0"), 2, "no number from 1"),
            (("tiny-dense", "--trainer", "fsdp=2,"), 2, '"" is not NAME=NUMBER'),
            (("tiny-moe", "--trainer", "fsdp=2,ep=3"), 2, "does not divide by ep = 3"),
            (("tiny-dense", "--engine", "tp=3"), 2, "do not divide by tp"),
            (("tiny-dense", "--engine", "dp=2"), 2, "a dense model has neither dp nor ep"),
            (("tiny-dense", "--dtype", "f12"), 2, 'no dtype of whole bytes "f12"'),
            (("missing.json",), 4, "missing.json"),
        ):
            self.assertIn(text, self.heft("simulate", *words, "--links", self.links, code=code).stderr, words)
        self.assertIn("nearest: rdma-400", self.heft("simulate", "tiny-dense", "--links", "rdma-4000", code=2).stderr)
        self.links.write_text(json.dumps({**LINKS, "speed": 1}))
        error = self.heft("simulate", "tiny-dense", "--links", self.links, code=3).stderr
        self.assertIn('"speed" is no key', error)
        self.assertIn("links.json", error)

    def test_named_links(self):
        for name in ("rdma-400", "rdma-200", "tcp-100"):
            self.assertGreater(self.json("simulate", "tiny-moe", "--links", name)["price"]["stage_s"], 0)


EXPECTED = """\
model           tiny-dense: 2 layers, 21 tensors, 213.6 KB
trainer         2 ranks: pp 1, hsdp 1, fsdp 2, tp 1, ep 1; 42 boxes
engine          4 ranks: 2 x (tp 2, dp 1, ep 1), by hf-to-engine-dense
sent            428.5 KB in 8 routes, 432 messages, 96 runs
senders         2 of 2 at work; mean 214.3 KB, most 214.3 KB (rank 0), 1.00 x
receivers       4 of 4 at work; mean 107.1 KB, most 107.1 KB (rank 0), 1.00 x
busiest         nic-out 0: 214.3 KB at 1.00 MB/s, 214.27 ms
prepare         0.00 us
stage           714.27 ms
verify          1.07 ms
pause           0.00 us
flip            10.71 ms
round           726.06 ms
engine stands   10.71 ms
bound           214.27 ms  the busiest link, bytes alone
ideal           214.27 ms  the same for the best choice of senders
relayed         107.14 ms  the bound if each replica hands on what it gets (heft coordinator --relay)
"""

if __name__ == "__main__":
    unittest.main()

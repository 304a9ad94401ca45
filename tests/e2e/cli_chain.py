# SPDX-License-Identifier: Apache-2.0
"""Chains of recipes: one conversion through several recipes is the same, byte for byte, as one after the other.

The models are those of the other tests: trees of the shapes that MaxText makes, and those of Megatron's ranks.
"""
import json
import struct
import unittest

from cli_maxtext import GOLDEN, Tree
from cli_megatron import DEEPSEEK, LLAMA, MOE, QWEN3, pack
from cli_rounds import Process
from cli_support import Case, read_checkpoint, run, write_safetensors
from megatron_layout import full_layout, hf_model, shards

MAXTEXT = {
    "llama3": "hf-to-engine-dense",
    "qwen3": "hf-to-engine-dense",
    "qwen3-moe": "hf-to-engine-qwen3-moe",
    "qwen3.5-moe": "hf-to-engine-qwen3.5",
    "gemma3": "hf-to-engine-gemma3",
    "deepseek-v3": "hf-to-engine-deepseek-v3",
    "gpt-oss": "hf-to-engine-gpt-oss",
}
ARITHMETIC = {"llama3", "gemma3"}


def lets(**values):
    return [word for name, value in values.items() for word in ("--let", f"{name}={value}")]


def read_all(folder):
    """What convert wrote: one checkpoint, or one for each rank."""
    ranks = sorted(folder.glob("rank-*"))
    return {rank.name: read_checkpoint(rank) for rank in ranks} if ranks else read_checkpoint(folder)


def whole_config(facts):
    """What the engine's recipe reads, too: sizes that shapes tell."""
    shapes, config = facts["hf"], dict(facts["hf_config"])

    def rows(leaf, dim=0):
        found = [shape for name, shape in shapes.items() if name.endswith(leaf)]
        return found[0][dim] if found else None

    sizes = {
        "vocab_size": rows("embed_tokens.weight"),
        "hidden_size": rows("embed_tokens.weight", 1),
        "intermediate_size": rows(".mlp.gate_proj.weight"),
        "moe_intermediate_size": rows("experts.0.gate_proj.weight"),
        "kv_lora_rank": rows("kv_a_layernorm.weight"),
        "q_lora_rank": rows("q_a_layernorm.weight"),
        "num_experts": config.get("num_local_experts"),
    }
    if "gate_up_proj" in str(shapes) and "intermediate_size" not in config:  # of the experts
        sizes["intermediate_size"] = sizes["intermediate_size"] or rows("experts.down_proj", 1)
    inner = config.setdefault("text_config", config)  # where published configurations have them
    inner.update({key: value for key, value in sizes.items() if value is not None and key not in inner})
    if inner is config:
        del config["text_config"]
    if rows("shared_experts.gate_proj.weight"):
        config["n_shared_experts"] = rows("shared_experts.gate_proj.weight") // config["moe_intermediate_size"]
    return config


class ChainTest(Case):
    def two_steps(self, source, first, second, lets_first, lets_second):
        """The second recipe on what the first one wrote."""
        between, out = self.dir / "between", self.dir / "two"
        self.heft("convert", source, between, "--recipe", first, *lets_first)
        (between / "config.json").write_text((source / "config.json").read_text())
        self.heft("convert", between, out, "--recipe", second, *lets_second)
        return read_all(out)

    def same(self, source, first, second, lets_first, lets_second, chain_lets):
        want = self.two_steps(source, first, second, lets_first, lets_second)
        words = ["--recipe", first, "--recipe", second, *chain_lets]
        out = self.dir / "one"
        self.heft("check", source, *words)
        self.heft("convert", source, out, *words)
        got = read_all(out)
        self.assertEqual(sorted(got), sorted(want))
        for name in want:
            self.assertEqual(got[name], want[name], name)
        self.heft("verify", source, out, *words)
        return words, out


class MaxText(ChainTest):
    def run_golden(self, path, tp):
        facts = json.loads(path.read_text())
        family = path.stem.rsplit("-", 1)[0]
        source = self.dir / "tree"
        packed = Tree(facts).write(source)
        (source / "config.json").write_text(json.dumps(whole_config(facts)))
        given = lets(wire="f32")
        with_tp = lets(tp=tp)
        words, out = self.same(source, facts["recipe"], MAXTEXT[family], given, given + with_tp, given + with_tp)
        back = ("convert", out, self.dir / "back", *words, "--reverse", "--like", source)
        if family in ARITHMETIC:
            self.assertIn("is computed, not copied", self.heft(*back, code=3).stderr)
        else:
            self.heft(*back)
            self.assertEqual(read_checkpoint(self.dir / "back"), packed)


def add_golden():
    for path in sorted(GOLDEN.glob("*.json")):
        family = path.stem.rsplit("-", 1)[0]
        for tp in (1, 2) if family in MAXTEXT else ():
            name = f"test_{path.stem}_tp_{tp}".replace("-", "_").replace(".", "_")
            setattr(MaxText, name, lambda self, path=path, tp=tp: self.run_golden(path, tp))


add_golden()

SIZES = ("tp", "pp", "vpp", "dp", "ep", "etp", "vocab_multiple")


class Megatron(ChainTest):
    """The second recipe has lets of the same names with other values."""

    def tree(self, config, layout, change=None):
        ranks = shards(hf_model(config), config, layout)
        source = self.dir / "tree"
        for number, tensors in ranks.items():
            tensors = {name: pack(tensor) for name, tensor in tensors.items()}
            if change is not None:
                change(number, tensors)
            (source / f"rank-{number}").mkdir(parents=True)
            write_safetensors(source / f"rank-{number}" / "model.safetensors", tensors)
        (source / "config.json").write_text(json.dumps(config))
        return source

    def words(self, first, second, layout, engine):
        """Lets of the first recipe, of the second one, and of both together."""
        keys = SIZES[:4] + SIZES[6:] if first.endswith("dense") else SIZES
        ours = {key: layout[key] for key in keys} | {"wire": "source"}
        both = {f"{first}.{key}": value for key, value in ours.items()}
        both |= {f"{second}.{key}": value for key, value in engine.items()}
        return lets(**ours), lets(**engine), lets(**both)

    def run_layout(self, name, config, engine, **given):
        first, second = f"megatron-to-hf-{name}", f"hf-to-engine-{name}"
        layout = full_layout(**given)
        source = self.tree(config, layout)
        words, out = self.same(source, first, second, *self.words(first, second, layout, engine))
        if config["vocab_size"] % (layout["vocab_multiple"] * layout["tp"]) != 0:
            return  # what the padding of the source holds is nowhere
        self.heft("convert", out, self.dir / "back", *words, "--reverse", "--like", source)
        left_out = {n for n in read_ranks(source) if ".mtp." in n}
        want = {n: t for n, t in read_ranks(source).items() if n not in left_out}
        self.assertEqual(read_checkpoint(self.dir / "back"), want)

    def test_dense_with_copies_to_compare(self):
        self.run_layout("dense", LLAMA, {"tp": 4}, tp=2, dp=2)

    def test_dense_over_a_pipeline(self):
        self.run_layout("dense", LLAMA, {"tp": 2}, tp=4, pp=2, vpp=2)

    def test_dense_padded_and_back(self):
        self.run_layout("dense", LLAMA, {"tp": 2}, tp=2, pp=2, vocab_multiple=8)

    def test_dense_tied_over_a_pipeline(self):
        self.run_layout("dense", QWEN3, {"tp": 2, "head": "false"}, tp=2, pp=2, vocab_multiple=8)

    def test_qwen3_moe(self):
        self.run_layout("qwen3-moe", MOE, {"tp": 2}, tp=2, dp=2, ep=2, grouped=True, te=True)

    def test_deepseek_v3_without_its_prediction_layers(self):
        self.run_layout("deepseek-v3", DEEPSEEK, {"tp": 2}, tp=2, dp=2, ep=2)

    def test_copies_that_differ_are_found_behind_the_second_recipe(self):
        first, second = "megatron-to-hf-dense", "hf-to-engine-dense"
        layout = full_layout(tp=2, dp=2)

        def spoil(number, tensors):
            name = "model0.decoder.layers.1.self_attention.linear_qkv.weight"
            if number == 2:  # the same shard as rank 0
                dtype, shape, raw = tensors[name]
                tensors[name] = (dtype, shape, raw[:-4] + struct.pack("<I", 9999))

        source = self.tree(LLAMA, layout, spoil)
        words = ["--recipe", first, "--recipe", second]
        words += self.words(first, second, layout, {"tp": 4})[2]
        refused = self.heft("convert", source, self.dir / "out", *words, code=1)
        self.assertIn('"model.layers.1.self_attn.qkv_proj.weight"', refused.stderr)
        self.assertFalse((self.dir / "out").exists())


class ExpertSlots(ChainTest):
    """Experts by an engine's table, busy ones more than once, in front of the engine's recipe."""

    def test_slots_hold_the_experts_of_the_table(self):
        config = dict(MOE, num_hidden_layers=3)
        table = [[0, 1, 2, 3, 4, 5, 6, 7, 3, 3], [7, 6, 5, 4, 3, 2, 1, 0, 0, 1], [2, 2, 2, 0, 1, 3, 4, 5, 6, 7]]
        model = self.dir / "model"
        model.mkdir()
        tensors = {name: pack(tensor) for name, tensor in hf_model(config).items()}
        write_safetensors(model / "model.safetensors", tensors)
        (model / "config.json").write_text(json.dumps(config))
        (self.dir / "table.json").write_text(json.dumps(table))
        engine = "hf-to-engine-qwen3-moe"
        words = ["--recipe", "hf-to-hf-expert-slots", "--recipe", engine, "--let", f"table=@{self.dir / 'table.json'}"]
        words += ["--let", f"{engine}.slots=10", *lets(tp=2, ep=2)]
        self.heft("convert", model, self.dir / "out", *words)
        for rank, got in enumerate(read_all(self.dir / "out").values()):
            for layer, slots in enumerate(table):
                _, shape, raw = got[f"model.layers.{layer}.mlp.experts.routed_experts.w2_weight"]
                self.assertEqual(shape[0], 5)
                size = len(raw) // 5
                for place in range(5):
                    expert = slots[5 * rank + place]
                    want = tensors[f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"][2]
                    self.assertEqual(raw[place * size : (place + 1) * size], want, (rank, layer, place))
        self.heft("convert", self.dir / "out", self.dir / "back", *words, "--reverse", "--like", model)
        self.assertEqual(read_checkpoint(self.dir / "back"), tensors)
        # an expert that stands nowhere is lost
        table[1][0] = 6
        (self.dir / "table.json").write_text(json.dumps(table))
        done = self.heft("check", model, *words, code=2)
        self.assertIn("expert table: layer 1: expert 7 of 8 is in none of its 10 slots", done.stderr)


def read_ranks(folder):
    ranks = read_all(folder)
    return {f"{rank}.{name}": tensor for rank, tensors in ranks.items() for name, tensor in tensors.items()}


class Words(ChainTest):
    """What is said of chains that are wrong, and that bindings find their recipe."""

    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        self.model.mkdir()
        write_safetensors(self.model / "model.safetensors", {"a": ("F32", (4,), struct.pack("<4f", 1, 2, 3, 4))})

    def recipe(self, name, text):
        path = self.dir / f"{name}.heft"
        path.write_text(text)
        return path

    def refused(self, text, *words, code=2):
        done = self.heft("check", self.model, *words, code=code)
        self.assertIn(text, done.stdout + done.stderr)

    def test_a_let_goes_to_every_recipe_that_has_it(self):
        one = self.recipe("one", 'let n = 1, m = 1\n"a" [(i:n j)] -> "b" [(j i)]\n')
        two = self.recipe("two", 'let n = 1\n"b" [(i:n j)] -> "c" [(j i)]\n')
        chain = ["--recipe", one, "--recipe", two]
        cases = {
            (): [1, 2, 3, 4],
            ("--let", "n=2"): [1, 2, 3, 4],  # there and back
            ("--let", "one.n=2"): [1, 3, 2, 4],
            ("--let", "n=2", "--let", "two.n=1"): [1, 3, 2, 4],
            ("--let", "n=4", "--let", "one.n=1", "--let", "m=7"): [1, 2, 3, 4],
        }
        for number, (words, want) in enumerate(cases.items()):
            out = self.dir / f"out-{number}"
            self.heft("convert", self.model, out, *chain, *words)
            self.assertEqual(struct.unpack("<4f", read_checkpoint(out)["c"][2]), tuple(want), words)

    def test_a_let_of_no_recipe_is_refused(self):
        one = self.recipe("one", 'let size = 1\n"a" [i] -> "b" [i]\n')
        two = self.recipe("two", '"b" [i] -> "c" [i]\n')
        chain = ["--recipe", one, "--recipe", two]
        self.refused('no recipe of the chain declares `let sise`; nearest is "size"; there are one, two', *chain,
                     "--let", "sise=2")
        self.refused("no recipe of the chain is meant by three.size; there are one, two", *chain, "--let", "three.size=2")
        self.refused('recipe "two.heft" declares no `let size`', *chain, "--let", "two.size=2")

    def test_messages_name_recipe_and_line(self):
        one = self.recipe("one", '# a comment\n"a" [i] -> "b" [i]\n')
        two = self.recipe("two", '"b" [i] -> "c" [i]\n\n"bb" [i] -> "d" [i]\n')
        self.refused('two.heft:3:1: "bb" matches none of 1 source tensors', "--recipe", one, "--recipe", two, code=1)
        one = self.recipe("one", '#\n"x" [i] -> "b" [i]\n')
        self.refused("one.heft:2:1", "--recipe", one, "--recipe", two, code=1)

    def test_what_only_one_part_shows_is_refused(self):
        twice = self.recipe("one", '"a" [i] -> "b" [i]\n"a" [i] -> "c" [i]\n')
        half = self.recipe("two", '"b" [i] -> "d" [i]\n')
        # every source element is used, but nobody asked for c to be dropped
        self.refused('in recipe "two.heft"', "--recipe", twice, "--recipe", half, code=1)
        self.refused('source "c": all 4 elements unused', "--recipe", twice, "--recipe", half, code=1)
        half = self.recipe("two", '"b" [i] -> "d" [i]\nignore "c" because "a copy"\n')
        self.heft("check", self.model, "--recipe", twice, "--recipe", half)
        stale = self.recipe("three", '"a" [i] -> "b" [i]\nuntouched "b" because "no"\n')
        two = self.recipe("two", '"b" [i] -> "d" [i]\n')
        self.refused('in recipe "three.heft"', "--recipe", stale, "--recipe", two, code=1)
        refused = self.heft("convert", self.model, self.dir / "x", "--recipe", stale, "--recipe", two, code=1)
        self.assertIn('heft convert: recipe "three.heft": refused: 1 error', refused.stderr)

    def test_a_chain_travels_in_a_contract(self):
        one = self.recipe("one", 'let n = 1\n"a" [(i:n j)] -> "b" [(j i)]\n')
        two = self.recipe("two", 'ranks 2 as rank\n"b" [({rank}:2 i)] -> "c" [i]')
        words = ["--recipe", one, "--recipe", two, "--let", "one.n=2"]
        contract = self.dir / "contract.json"
        self.heft("contract", self.model, *words, "--output", contract)
        self.heft("check", contract)
        first = json.loads(contract.read_text())["mapping"]["recipe"]
        self.assertEqual(first["name"], "one.heft+two.heft")
        self.assertEqual(first["lines"][0], 'recipe "one.heft"')
        # the text of a chain is a recipe
        path = self.recipe("both", "\n".join(first["lines"]))
        self.heft("convert", self.model, self.dir / "x", *words)
        self.heft("convert", self.model, self.dir / "y", "--recipe", path, "--let", "one.n=2")
        self.assertEqual(read_all(self.dir / "x"), read_all(self.dir / "y"))

    def test_ranks_of_a_recipe_before_the_last(self):
        one = self.recipe("one", 'ranks 2 as r\n"a" [({r}:2 i)] -> "b" [i]\n')
        two = self.recipe("two", '"rank-{r}.b" [i] -> "c" [({1 - r}:2 i)]\n')
        self.heft("convert", self.model, self.dir / "out", "--recipe", one, "--recipe", two)
        self.assertEqual(struct.unpack("<4f", read_checkpoint(self.dir / "out")["c"][2]), (3, 4, 1, 2))


class Rounds(ChainTest):
    """A fleet whose destinations come by a chain."""

    def test_a_round_delivers_what_the_chain_makes(self):
        one = self.dir / "one.heft"
        two = self.dir / "two.heft"
        one.write_text('"a{i}" [k] -> "b" [k]\nequal "b" because "copies"\n')
        two.write_text('ranks 2 as r\n"b" [({r}:2 k)] -> "c" [k]\n')
        words = ["--recipe", one, "--recipe", two]
        models = {}
        for name, copies in (("good", ((1, 2, 3, 4),) * 2), ("bad", ((5, 6, 7, 8), (5, 6, 7, 9)))):
            models[name] = self.dir / name
            models[name].mkdir()
            tensors = {f"a{i}": ("F32", (4,), struct.pack("<4f", *values)) for i, values in enumerate(copies)}
            write_safetensors(models[name] / "model.safetensors", tensors)
        coordinator = Process(self, "coordinator", "--port-file", self.dir / "port", "--contact-ms", "5000")
        url = coordinator.wait_line(lambda line: line.startswith("http://"))
        for rank in range(2):
            serve = ("serve", "--url", url, *words, "--model", models["good"], "--rank", rank, "--json")
            Process(self, *serve).wait_event("registered")
        push = ("--url", url, "--wait-for", "2", "--version")
        self.assertEqual(self.json("push", models["good"], *push, 1)["state"], "committed")
        live = self.json("verify", "--live", "--url", url)
        self.assertEqual([member["match"] for member in live["live"]], [True, True])
        # copies that differ are found where the chain ends, and the version before stays
        refused = run("push", models["bad"], *push, 2, "--json")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn('"c"', refused.stderr)
        self.assertEqual(self.json("status", "--url", url)["committed_version"], 1)


if __name__ == "__main__":
    unittest.main()

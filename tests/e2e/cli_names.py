# SPDX-License-Identifier: Apache-2.0
"""Names of a JAX tree, layouts of tensors, cache maps: what inspect says of them."""
import json
import unittest

from cli_support import Case, Counter, read_checkpoint, write_safetensors


class Names(Case):
    def setUp(self):
        super().setUp()
        make = Counter()
        self.natives = {
            "['base']['decoder']['layers']['mlp']['wi'].value": make.tensor("F32", 2, 3, 2),
            "['base']['decoder']['norm']['scale'].value": make.tensor("F32", 2),
            "['base']['rngs']['params']['count'].value": make.tensor("I64"),
        }
        self.tree = self.dir / "tree.safetensors"
        write_safetensors(self.tree, self.natives)
        self.keystr = ("--name-form", "keystr", "--layer-form", "scanned")

    def test_names_become_canonical_where_their_form_is_declared(self):
        plain = self.json("inspect", self.tree)
        self.assertEqual([t["name"] for t in plain["tensors"]], sorted(self.natives))
        data = self.json("inspect", self.tree, *self.keystr)
        self.assertEqual([t["name"] for t in data["tensors"]], ["decoder.layers.mlp.wi", "decoder.norm.scale"])
        self.assertEqual(
            data["attributes"],
            {"layer_form": "scanned", "leaf_suffix": ".value", "name_form": "keystr", "root": "base"},
        )
        self.assertEqual([e["name"] for e in data["excluded"]], ["rngs.params.count"])
        self.assertEqual(data["tensors"][0]["native"], "['base']['decoder']['layers']['mlp']['wi'].value")
        self.assertIn("excluded: rngs.params.count: ", self.heft("inspect", self.tree, *self.keystr).stdout)
        other = self.json("inspect", self.tree, *self.keystr, "--side", "destination")
        self.assertNotIn("root", other["attributes"])
        self.assertEqual(other["side"], "destination")

    def test_a_manifest_keeps_its_names(self):
        text = self.heft("inspect", self.tree, *self.keystr, "--manifest").stdout
        path = self.dir / "source.json"
        path.write_text(text)
        data = self.json("inspect", path)
        self.assertEqual(data["tensors"][1]["native"], "['base']['decoder']['norm']['scale'].value")
        self.assertEqual(self.json("inspect", path, *self.keystr), data)
        result = self.heft("inspect", path, "--name-form", "keystr", "--layer-form", "unrolled", code=1)
        self.assertIn("names are declared keystr (layers unrolled), the manifest says keystr (scanned)", result.stderr)

    def test_forms_are_declared_whole(self):
        self.heft("inspect", self.tree, "--name-form", "keystr", code=2)
        self.heft("inspect", self.tree, "--layer-form", "scanned", code=2)
        self.heft("inspect", self.tree, "--name-form", "dotted", "--layer-form", "scanned", code=2)
        write_safetensors(self.dir / "hf.safetensors", {"model.norm.weight": Counter().tensor("F32", 2)})
        result = self.heft("inspect", self.dir / "hf.safetensors", *self.keystr, code=1)
        self.assertIn("is no key string at byte 0", result.stderr)


class Trees(Case):
    """A scanned tree with native names, converted to an unrolled one and back."""

    def setUp(self):
        super().setUp()
        make = Counter()
        self.tree = self.dir / "tree"
        self.tree.mkdir()
        self.natives = {
            "['base']['layers']['wi'].value": make.tensor("F32", 2, 3, 2),
            "['base']['norm'].value": make.tensor("F32", 2),
            "['base']['rngs']['count'].value": make.tensor("I64"),
        }
        write_safetensors(self.tree / "model.safetensors", self.natives)
        self.recipe = self.dir / "tree.heft"
        self.recipe.write_text(
            "names source keystr scanned\n"
            'names destination keystr unrolled root "model" suffix ".value"\n'
            '"layers.wi" [d, l, f] -> "layers_{l}.wi" [d, f]\n'
            '"norm" [d] -> "norm" [d]\n'
            'ignore "rngs.*" because "no weight"\n'
        )
        self.with_recipe = ("--recipe", self.recipe)

    def test_native_names_are_written_and_read(self):
        out = self.dir / "out"
        self.heft("convert", self.tree, out, *self.with_recipe)
        written = read_checkpoint(out)
        names = [f"['model']['layers_{i}']['wi'].value" for i in range(3)] + ["['model']['norm'].value"]
        self.assertEqual(sorted(written), names)
        raw = self.natives["['base']['layers']['wi'].value"][2]
        self.assertEqual(written[names[1]][2], raw[8:16] + raw[32:40])
        self.assertIn("proven", self.heft("check", self.tree, out, *self.with_recipe).stdout)
        self.assertTrue(self.json("verify", self.tree, out, *self.with_recipe)["match"])
        back = self.dir / "back"
        self.heft("convert", out, back, "--reverse", "--like", self.tree, *self.with_recipe)
        weights = {n: t for n, t in self.natives.items() if "rngs" not in n}
        self.assertEqual(read_checkpoint(back), weights)

    def test_a_synthesised_manifest_is_a_destination(self):
        text = self.heft("plan", self.tree, *self.with_recipe, "--manifest").stdout
        path = self.dir / "destination.json"
        path.write_text(text)
        self.assertEqual(json.loads(text)["attributes"]["root"], "model")
        self.assertIn("proven", self.heft("check", self.tree, path, *self.with_recipe).stdout)
        plan = self.json("plan", self.tree, path, *self.with_recipe)
        self.assertEqual(plan["digest"], self.json("plan", self.tree, *self.with_recipe)["digest"])
        changed = json.loads(text)
        del changed["digest"]
        changed["tensors"][0]["repeat"] = {"axis": 0, "factor": 2}
        path.write_text(json.dumps(changed))
        result = self.heft("check", self.tree, path, *self.with_recipe, code=1)
        self.assertIn('parameter "layers_0.wi": repeat.factor is 2 in the destination', result.stdout)
        self.heft("plan", self.tree, path, *self.with_recipe, code=1)


class Layouts(Case):
    def test_layouts_are_shown(self):
        path = self.dir / "engine.json"
        fused = {"axis": -1, "half": "gate_up", "lane": 2, "layout": "lane", "shards": 2}
        wi = {"name": "wi", "dtype": "F32", "shape": [1, 8], "fused": fused}
        path.write_text(json.dumps({"heft_manifest": 1, "side": "destination", "tensors": [wi]}))
        data = self.json("inspect", path)
        self.assertEqual(data["tensors"][0]["layout"]["fused.axis"], "1")
        self.assertIn("fused.layout=lane", self.heft("inspect", path).stdout)
        wi["fused"]["lane"] = 128
        path.write_text(json.dumps({"heft_manifest": 1, "side": "destination", "tensors": [wi]}))
        self.assertIn("no multiple of the lane 128", self.heft("inspect", path, code=3).stderr)


    def test_files_say_nothing_of_layouts(self):
        recipe = self.dir / "fuse.heft"
        recipe.write_text('dtype source\n"a" [d, f] -> "wi" [d, (0:2 f)]\n"b" [d, f] -> "wi" [d, (1:2 f)]\n'
                          'attr "wi" fused.axis = -1, fused.shards = 1, fused.layout = \"concat\", fused.half = \"gate_up\"\n')
        make = Counter()
        (self.dir / "tree").mkdir()
        write_safetensors(self.dir / "tree" / "model.safetensors", {"a": make.tensor("F32", 2, 4), "b": make.tensor("F32", 2, 4)})
        args = (self.dir / "tree", self.dir / "out", "--recipe", recipe)
        self.heft("convert", *args)
        self.heft("check", *args)  # nothing to compare: the files cannot say how wi is fused
        self.heft("verify", *args)
        manifest = self.dir / "engine.json"
        manifest.write_text(self.heft("inspect", self.dir / "out", "--manifest").stdout)
        result = self.heft("check", self.dir / "tree", manifest, "--recipe", recipe, code=1)
        self.assertIn("fused.layout is concat here, absent in the destination", result.stdout)


class CacheMaps(Case):
    def test_slots_are_listed(self):
        path = self.dir / "map.json"
        path.write_text('{"model.layers.0.attn": 0, "model.layers.3.attn": 30, "lm_head": 5}')
        data = self.json("inspect", "--cache-map", path)
        layers = [{"layer": 0, "slot": 0}, {"layer": 3, "slot": 30}]
        self.assertEqual(data, {"positional": False, "layers": layers, "skipped": ["lm_head"]})
        text = self.heft("inspect", "--cache-map", path).stdout
        self.assertRegex(text, r"3 +30")
        self.assertIn('skipped: "lm_head"', text)

    def test_what_is_wrong_is_named(self):
        path = self.dir / "map.json"
        path.write_text('[["layer.3", 30], [3, 31]]')
        self.assertIn("layer 3 has the slots 30 and 31", self.heft("inspect", "--cache-map", path, code=3).stderr)
        path.write_text("null")
        self.assertIn("slot of a layer is its number", self.heft("inspect", "--cache-map", path).stdout)
        self.assertIn("hybrid model", self.heft("inspect", "--cache-map", path, "--hybrid", code=2).stderr)
        self.heft("inspect", "--cache-map", self.dir / "gone", code=4)


if __name__ == "__main__":
    unittest.main()

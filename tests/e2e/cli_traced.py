# SPDX-License-Identifier: Apache-2.0
"""--contract in the place of --recipe: of a traced loader (two ranks, rows of q and k and a row of zeros each), and of a recipe."""
import json
import pathlib
import struct
import unittest

from cli_support import Case, read_checkpoint, write_safetensors

LOADER = pathlib.Path(__file__).resolve().parents[2] / "fuzz/corpus/contract_json/loader.json"


def rows(raw, *which):
    return b"".join(raw[6 * r : 6 * r + 6] for r in which)


class TracedTest(Case):
    def setUp(self):
        super().setUp()
        self.q = struct.pack("<12H", *range(1, 13))
        self.k = struct.pack("<6H", *range(101, 107))
        self.model = self.dir / "m.safetensors"
        write_safetensors(self.model, {"q": ("BF16", (4, 3), self.q), "k": ("BF16", (2, 3), self.k)})

    def test_check_makes_it_again(self):
        self.assertIn("no drift (the mapping made again, 2 ranks)", self.heft("check", LOADER).stdout)

    def test_plan_and_explain(self):
        data = self.json("plan", self.model, "--contract", LOADER)
        self.assertEqual(data["digest"], json.loads(LOADER.read_text())["mapping"]["plan"])
        out = self.heft("explain", "qkv", self.model, "--contract", LOADER, "--rank", "1").stdout
        self.assertIn("<- q [2:4, 0:3]", out)
        self.assertIn("<- k [1, 0:3]", out)
        manifest = self.heft("plan", self.model, "--contract", LOADER, "--rank", "1", "--manifest").stdout
        self.assertEqual([t["name"] for t in json.loads(manifest)["tensors"]], ["qkv"])

    def test_convert_verify_and_back(self):
        out, back = self.dir / "out", self.dir / "back"
        self.heft("convert", self.model, out, "--contract", LOADER)
        for rank in (0, 1):
            made = read_checkpoint(out / f"rank-{rank}")["qkv"][2]
            self.assertEqual(made, rows(self.q, 2 * rank, 2 * rank + 1) + rows(self.k, rank) + bytes(6))
        self.assertTrue(self.json("verify", self.model, out, "--contract", LOADER)["match"])
        self.heft("convert", out, back, "--contract", LOADER, "--reverse", "--like", self.model)
        self.assertEqual({n: t[2] for n, t in read_checkpoint(back).items()}, {"q": self.q, "k": self.k})
        other = self.dir / "other.safetensors"
        write_safetensors(other, {"q": ("BF16", (4, 3), self.q), "k": ("BF16", (2, 3), self.k[::-1])})
        self.assertIn("qkv", self.heft("verify", other, out, "--contract", LOADER, code=1).stdout)

    def test_a_rank_alone(self):
        out = self.dir / "one"
        self.heft("convert", self.model, out, "--contract", LOADER, "--rank", "1")
        self.assertEqual(len(read_checkpoint(out / "rank-1")), 1)
        self.assertIn("ranks 0 to 1", self.heft("plan", self.model, "--contract", LOADER, "--rank", "2", code=2).stderr)

    def test_another_source_is_refused(self):
        other = self.dir / "other.safetensors"
        write_safetensors(other, {"q": ("BF16", (4, 3), self.q)})
        err = self.heft("plan", other, "--contract", LOADER, code=1).stderr
        self.assertIn("the source is not the one in the contract, 1 difference", err)
        self.assertIn('"k"', err)

    def test_another_destination_is_refused(self):
        for rank in (0, 1):
            (self.dir / f"e/rank-{rank}").mkdir(parents=True)
            write_safetensors(self.dir / f"e/rank-{rank}/model.safetensors", {"qkv": ("BF16", (4 + rank, 3), bytes(24 + 6 * rank))})
        err = self.heft("plan", self.model, self.dir / "e", "--contract", LOADER, code=1).stderr
        self.assertIn("the destination of rank 1 is not the one in the contract", err)

    def test_contracts_of_ranks_are_merged(self):
        whole = json.loads(LOADER.read_text())
        parts = []
        for rank in (0, 1):
            part = self.dir / f"rank-{rank}.json"
            part.write_text((LOADER.parent / f"rank_{rank}.json").read_text())
            parts.append(part)
        out = self.dir / "fleet.json"
        said = self.heft("contract", parts[1], "--merge", parts[0], "--output", out).stdout
        self.assertIn("a traced loader, 2 ranks", said)
        merged = json.loads(out.read_text())
        self.assertEqual(merged["mapping"]["plan"], whole["mapping"]["plan"])
        self.assertIn("no drift", self.heft("check", out).stdout)
        self.assertIn("is in two contracts", self.heft("contract", out, "--merge", parts[0], code=2).stderr)
        lone = self.heft("contract", parts[0], "--merge", parts[0], code=2).stderr
        self.assertIn("rank 0 is in two contracts", lone)
        self.assertIn("is no contract of a traced loader", self.heft("contract", self.model, "--merge", parts[0], code=2).stderr)
        self.assertIn("--output alone", self.heft("contract", out, self.model, "--merge", parts[0], code=2).stderr)

    def test_usage(self):
        for words, message in (
            (("--contract", LOADER, "--let", "tp=2"), "--let and --contract do not go together"),
            (("--contract", LOADER, "--sharded", 0), "--sharded and --contract do not go together"),
            (("--contract", LOADER, "--recipe", "x"), "--recipe and --contract do not go together"),
            ((), "--recipe or --contract is needed"),
            (("--contract", self.model), "this is no contract"),
        ):
            self.assertIn(message, self.heft("plan", self.model, *words, code=2).stderr)

    def test_tapes_that_are_not_those_recorded(self):
        contract = json.loads(LOADER.read_text())
        contract["tapes"].reverse()
        swapped = self.dir / "swapped.json"
        swapped.write_text(json.dumps(contract))
        err = self.heft("plan", self.model, "--contract", swapped, code=1).stderr
        self.assertIn("the plan of rank 0 is", err)

    def test_a_recipes_contract(self):
        recipe = self.dir / "r.heft"
        recipe.write_text('"q" [r, c] -> "w" [r, c]\n"k" [r, c] -> "k" [r, c]\n')
        contract = self.dir / "c.json"
        self.heft("contract", self.model, "--recipe", recipe, "--output", contract)
        recipe.unlink()
        out = self.dir / "out"
        self.heft("convert", self.model, out, "--contract", contract)
        self.assertEqual(read_checkpoint(out)["w"][2], self.q)
        self.assertTrue(self.json("verify", self.model, out, "--contract", contract)["match"])


if __name__ == "__main__":
    unittest.main()

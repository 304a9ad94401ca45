# SPDX-License-Identifier: Apache-2.0
"""check, plan, explain, convert, verify on tiny checkpoints, judged by slices written out here."""
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest

from cli_support import Case, Counter, HEFT, read_checkpoint, write_dense_model, write_safetensors

DENSE = ("--recipe", "hf-to-engine-dense", "--let", "tp=2")


def rows(tensor, first, last):
    """Rows [first, last) of a 2-d tensor's bytes."""
    _, shape, raw = tensor
    n = len(raw) // shape[0]
    return raw[first * n : last * n]


def columns(tensor, first, last):
    _, shape, raw = tensor
    size = len(raw) // (shape[0] * shape[1])
    line = shape[1] * size
    return b"".join(raw[r * line + first * size : r * line + last * size] for r in range(shape[0]))


class Files(Case):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        self.tensors = write_dense_model(self.model)

    def recipe(self, text):
        path = self.dir / "test.heft"
        path.write_text(text)
        return path


class Check(Files):
    def test_good_recipe_is_proven(self):
        result = self.heft("check", self.model, *DENSE)
        self.assertIn("proven: 0 errors", result.stdout)
        data = self.json("check", self.model, *DENSE)
        self.assertTrue(data["ok"])
        self.assertEqual((data["errors"], data["ranks"], data["status"]), (0, 2, "OK"))
        self.assertIn("constant", {f["kind"] for f in data["findings"]})

    def test_uncovered_and_unused_are_found_by_name(self):
        recipe = self.recipe('"model.norm.weight" [d] -> "norm" [d]\n')
        result = self.heft("check", self.model, "--recipe", recipe, code=1)
        self.assertIn("refused", result.stdout)
        self.assertIn("model.embed_tokens.weight", result.stdout)
        data = self.json("check", self.model, "--recipe", recipe, code=1)
        self.assertFalse(data["ok"])
        unused = [f for f in data["findings"] if f["kind"] == "unused" and f["error"]]
        self.assertEqual(len(unused), len(self.tensors) - 1)
        # a refused plan is the same refusal for those that need one
        for command in (("plan", self.model), ("explain", "norm", self.model), ("convert", self.model, self.dir / "out")):
            self.assertIn("ERR_PROOF", self.heft(*command, "--recipe", recipe, code=1).stderr)
        self.assertFalse((self.dir / "out").exists())

    def test_a_tree_of_another_kind_is_said_in_a_line(self):
        rules = "".join(f'"leaf_{i}" [d] -> "p{i}" [d]\n' for i in range(9))
        recipe = self.recipe('"model.norm.weight" [d] -> "norm" [d]\n' + rules)
        listed = self.heft("plan", self.model, "--recipe", recipe, code=1).stderr
        self.assertIn("(1 of 9 errors)", listed)
        self.assertIn("error  8 rules, from line 3 to line 10, match nothing in the source", listed)
        self.assertEqual(listed.count("\n"), 2)
        self.assertEqual(self.json("check", self.model, "--recipe", recipe, code=1)["errors"], 9)

    def test_permuted_rows_are_explained_by_example(self):
        folder = self.dir / "heads"
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {"q": Counter().tensor("F32", 16, 4, 8)})
        recipe = self.recipe('"q" [d, h:4, (i:4 p:2)] -> "q_proj" [(h p i), d]\n')
        text = self.heft("explain", "q_proj", folder, "--recipe", recipe).stdout
        self.assertIn("[0:32, 0:16]           <- q [0:16, 0:4, 0:8]  transposed", text)
        for row, source in ((0, "0, 0"), (1, "0, 2"), (4, "0, 1"), (8, "1, 0")):
            self.assertIn(f"     row {row:<6} <- [0:16, {source}]\n", text)

    def test_misspelt_words_have_a_nearest(self):
        self.assertIn(
            "nearest: hf-to-engine-dense;", self.heft("plan", self.model, "--recipe", "hf-to-engine-dens", code=2).stderr
        )
        wrong = self.recipe('dtype bf61\n"model.norm.weight" [d] -> "norm" [d]\n')
        self.assertIn('no dtype or let "bf61"; nearest: bf16', self.heft("plan", self.model, "--recipe", wrong, code=3).stderr)
        wrong = self.recipe('let wire\ndtype wire\n"model.norm.weight" [d] -> "norm" [d]\n')
        listed = self.heft("plan", self.model, "--recipe", wrong, "--let", "wire=bf61", code=2).stderr
        self.assertIn('"bf61" is no float dtype (nor the word source); nearest: bf16', listed)
        listed = self.heft("plan", self.model, "--recipe", wrong, code=2).stderr
        self.assertIn("`let wire` has no value: it must be bound (--let wire=VALUE)", listed)
        wrong = self.recipe('"model.norm.weight" [d] -> "norm" [g]\n')
        listed = self.heft("plan", self.model, "--recipe", wrong, code=3).stderr
        self.assertIn("; `g` of the target is no axis of the source", listed)

    def test_a_require_that_does_not_hold_is_a_matter_of_what_was_given(self):
        recipe = self.recipe('require 1 == 2 "it is not so"\n"model.norm.weight" [d] -> "norm" [d]\n')
        self.assertIn("it is not so", self.heft("plan", self.model, "--recipe", recipe, code=2).stderr)

    def test_all_that_is_wrong_with_a_recipe_is_listed(self):
        recipe = self.recipe('"a" [d] -> "a" [d]\n"model.norm.weight" [d:3] -> "norm" [d]\n')
        listed = self.heft("check", self.model, "--recipe", recipe, code=1).stdout
        self.assertIn("(1 of 2 errors)", listed)
        self.assertEqual(listed.count("test.heft:1:1: "), 1)  # the summary is not listed again
        self.assertIn("test.heft:2:22: ", listed)
        self.assertIn("test.heft:2:22: ", self.heft("plan", self.model, "--recipe", recipe, code=1).stderr)
        data = self.json("check", self.model, "--recipe", recipe, code=1)
        self.assertEqual((data["errors"], data["status"]), (2, "ERR_NAME"))
        self.assertEqual([(f["line"], f["column"]) for f in data["findings"]], [(1, 1), (2, 22)])
        wrong = self.recipe('let a = )\nlat b\n')
        listed = self.heft("check", self.model, "--recipe", wrong, code=3).stderr
        self.assertIn("test.heft:1:9: ", listed)
        self.assertIn("test.heft:2:1: ", listed)
        missing = self.recipe('let a = config.x, b = config.y\nranks a as r\n"x" [] -> "x" []\n')
        listed = self.heft("check", self.model, "--recipe", missing, code=2).stderr
        self.assertIn("config.x", listed)
        self.assertIn("config.y", listed)

    def test_destination_must_agree_both_ways(self):
        out = self.dir / "out"
        self.heft("convert", self.model, out, *DENSE)
        self.heft("check", self.model, out, *DENSE)
        # a manifest will do in place of files
        manifest = self.dir / "engine.json"
        one = (*DENSE[:2], "--let", "tp=1")
        single = self.dir / "single"
        self.heft("convert", self.model, single, *one)
        data = json.loads(self.heft("inspect", single, "--manifest").stdout)
        for key in ("digest", "n_tensors", "n_elems", "n_bytes"):
            del data[key]
        manifest.write_text(json.dumps(data))
        self.heft("check", self.model, manifest, *one)
        # one name more, one shape other, one name less
        more = json.loads(json.dumps(data))
        more["tensors"].append({"name": "extra.weight", "dtype": "BF16", "shape": [2]})
        manifest.write_text(json.dumps(more))
        self.assertIn("extra.weight", self.heft("check", self.model, manifest, *one, code=1).stdout)
        other = json.loads(json.dumps(data))
        other["tensors"][-1]["shape"] = [9]
        manifest.write_text(json.dumps(other))
        self.assertIn(other["tensors"][-1]["name"], self.heft("check", self.model, manifest, *one, code=1).stdout)
        less = json.loads(json.dumps(data))
        gone = less["tensors"].pop()
        manifest.write_text(json.dumps(less))
        result = self.heft("check", self.model, manifest, *one, code=1)
        self.assertIn(gone["name"], result.stdout)
        self.assertFalse(self.json("check", self.model, manifest, *one, code=1)["ok"])

    def test_bad_recipes_and_bindings(self):
        self.assertIn("test.heft:1", self.heft("check", self.model, "--recipe", self.recipe("what is this\n"), code=3).stderr)
        self.assertIn("hf-to-engine-dense", self.heft("check", self.model, "--recipe", "hf-to-engine", code=2).stderr)
        self.assertIn("NAME=VALUE", self.heft("check", self.model, *DENSE[:2], "--let", "tp", code=2).stderr)
        self.assertIn('nearest is "tp"', self.heft("check", self.model, *DENSE[:2], "--let", "tpp=2", code=2).stderr)
        for command in (("check", self.model), ("explain", "model.norm.weight", self.model), ("plan", self.model)):
            err = self.heft(*command, *DENSE, "--rank", "2", code=2, env={"HEFT_RECIPES": f"{self.dir}:{os.environ['HEFT_RECIPES']}"}).stderr
            self.assertEqual(err, f"heft {command[0]}: --rank 2: the recipe has 2 ranks, 0 to 1\n")
        self.assertIn("--let tp given twice", self.heft("check", self.model, *DENSE, "--let", "tp=1", code=2).stderr)

    def test_missing_paths_are_one_kind_of_failure(self):
        recipe = self.recipe('"w" [a] -> "w" [a]\n')
        none = self.dir / "none"
        for args in ((none, "--recipe", recipe), (self.model, "--recipe", f"{none}.heft"),
                     (self.model, "--recipe", recipe, "--config", none)):
            self.assertIn("none", self.heft("check", *args, code=4).stderr)
        err = self.heft("check", self.model, "--recipe", "test", code=2, cwd=self.dir).stderr
        self.assertIn("did you mean ./test.heft?", err)

    def test_ignored_sources_and_those_without_a_rule(self):
        recipe = self.recipe('"model.norm.*" [d] -> "norm" [d]\nignore "model.layers.*" because "not yet"\n')
        out = self.heft("check", self.model, "--recipe", recipe, code=1).stdout
        self.assertRegex(out, r'ignored: 18 sources, \d+ elements by "model.layers.\*" \(.*test.heft:2:8\): not yet')
        self.assertIn("no rule reads it: add one, or ignore it with a reason", out)

    def test_folders_of_ranks_are_told_from_ranks(self):
        out = self.dir / "out"
        self.heft("convert", self.model, out, *DENSE)
        err = self.heft("check", self.model, out, *DENSE[:2], "--let", "tp=1", code=2).stderr
        self.assertIn("holds rank-0 to rank-1, but the recipe has 1 rank", err)
        err = self.heft("check", self.model, out / "rank-1", *DENSE, code=2).stderr
        self.assertIn("give the folder that holds rank-1", err)
        back = self.dir / "back"
        self.heft("convert", out / "rank-0", back, *DENSE, "--reverse", "--like", self.model, code=2)
        self.assertFalse(back.exists())
        self.assertIn("--rank", self.heft("check", self.model, *DENSE, "--rank", "-1", code=2).stderr)
        self.assertIn("--recipe is needed", self.heft("check", self.model, code=2).stderr)

    def test_config_is_found_or_given(self):
        config = self.dir / "other.json"
        shutil.move(self.model / "config.json", config)
        self.heft("check", self.model, *DENSE, code=2)
        self.heft("check", self.model, *DENSE, "--config", config)
        config.write_text("{")
        self.heft("check", self.model, *DENSE, "--config", config, code=3)
        self.heft("check", self.model, *DENSE, "--config", self.dir / "gone", code=4)


class Plan(Files):
    def test_text_and_json_agree(self):
        data = self.json("plan", self.model, *DENSE)
        text = self.heft("plan", self.model, *DENSE).stdout
        self.assertIn(data["digest"], text)
        self.assertEqual(len(data["ranks"]), 2)
        self.assertEqual(sum(r["pieces"] for r in data["ranks"]), data["pieces"])
        self.assertRegex(text, rf"pieces +{data['pieces']}\n")
        self.assertEqual(data["sources"], len(self.tensors))
        # two ranks hold the whole model once, norms twice; head and embedding are one tensor twice
        norms = sum(len(t[2]) for n, t in self.tensors.items() if "norm" in n)
        embed = len(self.tensors["model.embed_tokens.weight"][2])
        total = sum(len(t[2]) for t in self.tensors.values())
        self.assertEqual(data["bytes"], total + norms + embed)
        self.assertEqual(data["constant_bytes"], 2 * (128 - 70) * 8 * 2)

    def test_rank_alone_has_the_digest_it_has_in_the_fleet(self):
        fleet = self.json("plan", self.model, *DENSE)
        for rank in range(2):
            alone = self.json("plan", self.model, *DENSE, "--rank", rank)
            self.assertEqual(alone["ranks"][0]["digest"], fleet["ranks"][rank]["digest"])
            self.assertEqual(alone["first_rank"], rank)

    def test_pieces_are_listed(self):
        data = self.json("plan", self.model, *DENSE, "--pieces")
        self.assertEqual(len(data["ranks"][1]["piece_list"]), data["ranks"][1]["pieces"])
        text = self.heft("plan", self.model, *DENSE, "--pieces").stdout
        self.assertIn("model.layers.1.mlp.down_proj.weight [0:8, 0:6] <- model.layers.1.mlp.down_proj.weight [0:8, 6:12]", text)


class Explain(Files):
    def test_fused_parameter_shows_its_sources(self):
        out = self.heft("explain", "model.layers.0.self_attn.qkv_proj.weight", self.model, *DENSE, "--rank", "1").stdout
        self.assertRegex(out, r"A  \[0:4, 0:8\] +<- model\.layers\.0\.self_attn\.q_proj\.weight \[4:8, 0:8\]")
        self.assertRegex(out, r"C  \[6:8, 0:8\] +<- model\.layers\.0\.self_attn\.v_proj\.weight \[2:4, 0:8\]")
        self.assertRegex(out, r"\|A{28}B{14}C{14}\|")
        self.assertIn("hf-to-engine-dense.heft:", out)

    def test_padding_is_dots(self):
        out = self.heft("explain", "model.embed_tokens.weight", self.model, *DENSE, "--rank", "1").stdout
        self.assertRegex(out, r"\|A{6}\.{54}\|")
        self.assertIn("constant 0x0", out)

    def test_geometry_and_arithmetic_are_named(self):
        write_safetensors(self.dir / "t.safetensors", {"w": ("F32", [4, 6], struct.pack("<24f", *range(1, 25)))})
        recipe = self.recipe('"w" [a, (b c:2)] -> "t" [b, c, a]\n')
        out = self.heft("explain", "t", self.dir / "t.safetensors", "--recipe", recipe).stdout
        self.assertIn("transposed", out)
        recipe = self.recipe('"w" [a, b] -> "t" [a, b, k:2]\n')
        self.assertIn("repeated", self.heft("explain", "t", self.dir / "t.safetensors", "--recipe", recipe).stdout)
        recipe = self.recipe('dtype bf16\n"w" [a, b] -> "t" [a, b]\n')
        self.assertIn("to BF16", self.heft("explain", "t", self.dir / "t.safetensors", "--recipe", recipe).stdout)

    def test_json_and_unknown_name(self):
        data = self.json("explain", "model.norm.weight", self.model, *DENSE)
        self.assertEqual(data["pieces"][0]["source"], "model.norm.weight")
        err = self.heft("explain", "model.nrm.weight", self.model, *DENSE, code=2).stderr
        self.assertIn("nearest: model.norm.weight", err)


class Convert(Files):
    def test_ranks_hold_their_slices(self):
        out = self.dir / "out"
        result = self.json("convert", self.model, out, *DENSE)
        self.assertEqual(result["ranks"], 2)
        for rank in range(2):
            got = read_checkpoint(out / f"rank-{rank}")
            qkv = got["model.layers.1.self_attn.qkv_proj.weight"]
            p = "model.layers.1.self_attn."
            expected = (
                rows(self.tensors[p + "q_proj.weight"], 4 * rank, 4 * rank + 4)
                + rows(self.tensors[p + "k_proj.weight"], 2 * rank, 2 * rank + 2)
                + rows(self.tensors[p + "v_proj.weight"], 2 * rank, 2 * rank + 2)
            )
            self.assertEqual(qkv, ("BF16", (8, 8), expected))
            down = self.tensors["model.layers.0.mlp.down_proj.weight"]
            self.assertEqual(got["model.layers.0.mlp.down_proj.weight"][2], columns(down, 6 * rank, 6 * rank + 6))
            embed = self.tensors["model.embed_tokens.weight"][2] + bytes(58 * 16)
            self.assertEqual(got["lm_head.weight"][2], embed[rank * 64 * 16 : (rank + 1) * 64 * 16])

    def test_there_and_back(self):
        out, back = self.dir / "out", self.dir / "back"
        self.heft("convert", self.model, out, *DENSE, "--max-shard-bytes", "500", "--threads", "2")
        self.assertTrue((out / "rank-0" / "model.safetensors.index.json").exists())
        self.heft("convert", out, back, *DENSE, "--reverse", "--like", self.model)
        self.assertEqual(read_checkpoint(back), self.tensors)

    def test_there_and_back_without_what_is_ignored(self):
        src, out, back = self.dir / "src", self.dir / "out", self.dir / "back"
        src.mkdir()
        want = {name: self.tensors[name] for name in ("model.norm.weight", "model.embed_tokens.weight")}
        write_safetensors(src / "model.safetensors", {**want, "n.rng.count": ("I64", (), b"7" * 8)})
        rules = '"model.norm.weight" [d] -> "norm" [d]\n"model.embed_tokens.weight" [a, b] -> "embed" [b, a]\n'
        recipe = self.recipe(rules + 'ignore "n.rng.*" because "random state"\n')
        self.heft("convert", src, out, "--recipe", recipe)
        args = ("convert", out, back, "--recipe", recipe, "--reverse", "--like", src)
        done = self.heft(*args)
        self.assertIn("left out: 1 source that the recipe ignores: n.rng.count\n", done.stderr)
        self.assertIn("1 checkpoint, 2 tensors", done.stdout)
        self.assertEqual(read_checkpoint(back), want)
        shutil.rmtree(back)
        self.assertEqual(self.json(*args)["left_out"], ["n.rng.count"])

    def test_one_rank_of_many(self):
        out = self.dir / "out"
        self.heft("convert", self.model, out, *DENSE)
        alone = self.dir / "alone"
        self.heft("convert", self.model, alone, *DENSE, "--rank", "1")
        self.assertEqual(read_checkpoint(alone / "rank-1"), read_checkpoint(out / "rank-1"))
        self.assertFalse((alone / "rank-0").exists())

    def test_existing_checkpoint_is_refused(self):
        out = self.dir / "out"
        self.heft("convert", self.model, out, "--recipe", "identity")
        before = read_checkpoint(out)
        self.assertIn("holds a checkpoint already", self.heft("convert", self.model, out, "--recipe", "identity", code=4).stderr)
        self.assertEqual(read_checkpoint(out), before)

    def test_reverse_and_like_go_together(self):
        self.assertIn("go together", self.heft("convert", self.model, self.dir / "o", *DENSE, "--reverse", code=2).stderr)
        self.assertIn("go together", self.heft("convert", self.model, self.dir / "o", *DENSE, "--like", self.model, code=2).stderr)

    def test_no_space_leaves_nothing(self):
        out = self.dir / "out"
        command = f'ulimit -f 4; exec "{HEFT}" convert "{self.model}" "{out}" --recipe identity'
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("ERR_NOSPACE", result.stderr)
        self.assertFalse(out.exists())


    def test_one_by_one_names_each_group(self):
        out = self.dir / "out"
        done = self.heft("convert", self.model, out, *DENSE, "--one-by-one", "--memory", "1M")
        groups = [line for line in done.stderr.splitlines() if line.startswith("heft convert: group ")]
        self.assertEqual(len(groups), self.json("plan", self.model, *DENSE)["groups"])
        self.assertTrue(any(line.endswith(": model.layers.1.mlp.down_proj.weight") for line in groups), groups)
        plain = self.dir / "plain"
        self.heft("convert", self.model, plain, *DENSE)
        self.assertEqual(read_checkpoint(out / "rank-1"), read_checkpoint(plain / "rank-1"))
        self.assertIn("1000000", self.heft("convert", self.model, out, *DENSE, "--memory", "1000", code=2).stderr)
        self.assertIn(
            "--one-by-one", self.heft("convert", out, self.dir / "b", *DENSE, "--reverse", "--like", self.model, "--one-by-one", code=2).stderr
        )

    def test_a_kill_leaves_no_half_result(self):
        out = self.dir / "out"
        args = [HEFT, "convert", self.model, out, "--recipe", "identity", "--one-by-one", "--max-shard-bytes", "200"]
        for n_lines in (1, 5, 9):
            # One page for its messages, nearly full and read by nobody: it waits at about that group until it is killed.
            read_end, write_end = os.pipe()
            filled = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096) - 70 * n_lines
            os.write(write_end, b"\n" * filled)
            child = subprocess.Popen(args, stderr=write_end)
            end = time.monotonic() + 60
            while struct.unpack("i", fcntl.ioctl(read_end, termios.FIONREAD, b"\0" * 4))[0] == filled:
                self.assertTrue(child.poll() is None and time.monotonic() < end, "no group was begun")
                time.sleep(0.01)
            child.kill()
            self.assertEqual(child.wait(), -signal.SIGKILL)
            os.close(read_end)
            os.close(write_end)
            self.assertEqual([p.name for p in out.glob("*.safetensors*")], [])
        self.heft(*args[1:])
        self.assertEqual(read_checkpoint(out), self.tensors)
        self.assertEqual([p.name for p in out.iterdir() if p.name.startswith(".")], [])

    def test_interrupt_leaves_nothing(self):
        def interrupted():
            """The signal is there before the program begins: blocked and pending over exec."""
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)

        for more in ((), ("--reverse", "--like", self.model)):
            source = self.model
            if more:
                source = self.dir / "engine"
                self.heft("convert", self.model, source, *DENSE)
            out = self.dir / "out"
            result = subprocess.run(
                [HEFT, "convert", source, out, *DENSE, *more], capture_output=True, text=True, preexec_fn=interrupted
            )
            self.assertEqual((result.returncode, result.stdout), (130, ""), result.stderr)
            self.assertFalse(out.exists())


class Drift(Files):
    def test_equal_sides_have_no_drift(self):
        manifest = self.dir / "then.json"
        manifest.write_text(self.heft("inspect", self.model, "--manifest").stdout)
        self.assertEqual(self.heft("check", manifest, self.model).stdout, "no drift\n")
        self.assertEqual(self.json("check", manifest, self.model), {"ok": True, "errors": 0, "drift": []})

    def test_drift_is_listed_and_status_is_1(self):
        now = self.dir / "now"
        now.mkdir()
        changed = {name.replace("mlp.", "ffn."): t for name, t in self.tensors.items()}
        dtype, (d,), raw = changed["model.norm.weight"]
        changed["model.norm.weight"] = (dtype, (1, d), raw)
        write_safetensors(now / "model.safetensors", changed)
        lines = self.heft("check", self.model, now, code=1).stdout.splitlines()
        self.assertIn('renamed "model.layers.1.mlp.down_proj.weight" to "model.layers.1.ffn.down_proj.weight", BF16 [8, 12]', lines)
        self.assertIn(f'reshaped "model.norm.weight": was BF16 [{d}], is BF16 [1, {d}] (as many elements)', lines)
        self.assertEqual(lines[-1], "drift: 7 findings")
        found = self.json("check", self.model, now, code=1)
        self.assertEqual({f["kind"] for f in found["drift"]}, {"renamed", "reshaped"})
        self.assertIn("--let needs --recipe", self.heft("check", self.model, now, "--let", "a=1", code=2).stderr)
        self.assertIn("--recipe is needed", self.heft("check", self.model, code=2).stderr)


RECIPE = """let tp = 2, unit = config.hidden_size or 8
ranks tp as r
ignore "model.norm.*" because "normed elsewhere"
"model.embed_tokens.weight" [v, ({r}:tp d)] -> "embed" [v, d]
"""


def contract_digest(c):
    """docs/formats/contract.md, written out."""
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    number = lambda n: struct.pack("<Q", n)
    m, ends = c.get("mapping"), c.get("destinations", [])
    out = text("heft contract 1") + text(c["manifest"]["digest"]) + number(1 if m else 0)
    if m:
        out += text(m["recipe"]["name"]) + text("\n".join(m["recipe"]["lines"]))
        out += text(json.dumps(m["bindings"], sort_keys=True, separators=(",", ":"))) + text(m["plan"])
        out += number(len(m["ranks"])) + number(len(ends))
        for r in m["ranks"]:
            out += text(r["plan"]) + number(r.get("destination", 0))
        out += b"".join(text(d["digest"]) for d in ends) + number(len(m["exceptions"]))
        kinds = ["unused", "untouched", "derived", "frozen", "elsewhere", "equal"]
        for e in m["exceptions"]:
            out += number(kinds.index(e["kind"]) + 1) + text(e["pattern"]) + text(e["reason"])
            out += number(1 if e.get("optional") else 0)
    return hashlib.sha256(out).hexdigest()


class Contract(Files):
    """Two tensors, so that a change is one line."""

    def setUp(self):
        super().setUp()
        self.model = self.dir / "small"
        self.model.mkdir()
        self.small = {n: self.tensors[n] for n in ("model.embed_tokens.weight", "model.norm.weight")}
        self.write_model(self.small, hidden_size=8)

    def write_model(self, tensors, **config):
        write_safetensors(self.model / "model.safetensors", tensors)
        (self.model / "config.json").write_text(json.dumps(config))

    def contract(self, name, *extra, recipe=RECIPE):
        path = self.dir / name
        self.heft("contract", self.model, "--recipe", self.recipe(recipe), "--output", path, *extra)
        return path

    def drift(self, then, now):
        lines = self.heft("check", then, now, code=1).stdout.splitlines()
        found = self.json("check", then, now, code=1)
        self.assertEqual([f["text"] for f in found["drift"]], lines[:-1])
        self.assertEqual(lines[-1].split(" (")[0], "drift: %d finding%s" % (len(lines) - 1, "s" if len(lines) > 2 else ""))
        return [(f["kind"], f["text"]) for f in found["drift"]]

    def test_equal_input_gives_equal_bytes(self):
        then = self.contract("then.json")
        self.assertEqual(self.heft("contract", self.model, "--recipe", self.recipe(RECIPE)).stdout, then.read_text())
        self.assertEqual(self.heft("check", then, self.contract("now.json")).stdout, "no drift (manifests and mappings)\n")
        self.assertEqual(self.heft("check", then, self.model).stdout, "no drift (manifests only)\n")
        held = json.loads(then.read_text())
        ranks = [r["digest"] for r in self.json("plan", self.model, "--recipe", self.recipe(RECIPE))["ranks"]]
        self.assertEqual([r["plan"] for r in held["mapping"]["ranks"]], ranks)
        self.assertEqual(held["mapping"]["bindings"]["config"], {"hidden_size": 8})

    def test_made_again_without_the_model(self):
        then = self.contract("then.json")
        shutil.rmtree(self.model)
        os.remove(self.recipe(RECIPE))
        self.assertEqual(self.heft("check", then).stdout, "no drift (the mapping made again, 2 ranks)\n")
        self.assertEqual(self.json("check", then)["errors"], 0)
        # a contract is its manifest where one is taken
        self.assertIn("proven", self.heft("check", then, "--recipe", self.recipe(RECIPE)).stdout)

    def test_a_renamed_tensor(self):
        then = self.contract("then.json")
        moved = {n.replace("embed_tokens", "embed_token"): t for n, t in self.small.items()}
        self.write_model(moved, hidden_size=8)
        renamed = 'renamed "model.embed_tokens.weight" to "model.embed_token.weight", BF16 [70, 8]'
        self.assertEqual(self.drift(then, self.model), [("renamed", renamed)])
        refused = self.heft("contract", self.model, "--recipe", self.recipe(RECIPE), "--output", then, code=1)
        self.assertIn("model.embed_token.weight", refused.stderr)
        self.assertEqual(self.heft("check", then).stdout, "no drift (the mapping made again, 2 ranks)\n")

    def test_a_changed_value(self):
        then = self.contract("then.json")
        self.assertEqual(
            self.drift(then, self.contract("now.json", "--let", "tp=4")),
            [("binding", "let tp: was not given, is 4"), ("ranks", "ranks: were 2, are 4")],
        )
        self.write_model(self.small, hidden_size=16, unread=1)
        found = [("binding", "config.hidden_size: was 8, is 16")]
        self.assertEqual(self.drift(then, self.contract("now.json")), found)

    def test_a_changed_line(self):
        then = self.contract("then.json")
        found = self.drift(then, self.contract("now.json", recipe=RECIPE.replace("-> \"embed\"", "-> \"emb\"")))
        self.assertEqual([kind for kind, _ in found], ["recipe"])
        self.assertIn("changed from line 4: was", found[0][1])
        self.assertNotIn("plans are equal", found[0][1])
        found = self.drift(then, self.contract("now.json", recipe="# new\n" + RECIPE))
        self.assertIn("changed from line 1: was", found[0][1])
        self.assertIn("; the plans are equal", found[0][1])

    def test_an_exception_that_is_gone(self):
        then = self.contract("then.json")
        rule = '"model.norm.weight" [d] -> "norm" [d]'
        recipe = RECIPE.replace('ignore "model.norm.*" because "normed elsewhere"', rule)
        found = self.drift(then, self.contract("now.json", recipe=recipe))
        self.assertEqual([kind for kind, _ in found], ["recipe", "exception"])
        gone = 'exception unused "model.norm.*" gone; its reason was "normed elsewhere"'
        self.assertEqual(found[1][1], gone)

    def test_a_destination_must_agree_and_is_kept(self):
        self.heft("convert", self.model, self.dir / "engine", "--recipe", self.recipe(RECIPE))
        then = self.dir / "then.json"
        self.heft("contract", self.model, self.dir / "engine", "--recipe", self.recipe(RECIPE), "--output", then)
        self.assertEqual(len(json.loads(then.read_text())["destinations"]), 1)  # both ranks have it
        self.assertEqual(self.heft("check", then).stdout, "no drift (the mapping made again, 2 ranks)\n")
        self.assertEqual(self.drift(then, self.contract("now.json")), [("mapping", "destination: was recorded, is not")])
        engine = self.dir / "engine.json"  # of a contract the side that the other is of
        rank = self.dir / "engine" / "rank-1"
        engine.write_text(self.heft("inspect", rank, "--manifest", "--side", "destination").stdout)
        for pair in ((then, engine), (engine, then)):
            self.assertEqual(self.heft("check", *pair).stdout, "no drift (manifests only)\n")
        write_safetensors(self.dir / "engine" / "rank-1" / "model.safetensors", {"other": self.small["model.norm.weight"]})
        command = ("contract", self.model, self.dir / "engine", "--recipe", self.recipe(RECIPE))
        self.assertIn("ERR_", self.heft(*command, code=1).stderr)

    def test_a_mapping_that_is_refused_now(self):
        then = self.contract("then.json")
        held = json.loads(then.read_text())
        self.assertEqual(held["digest"], contract_digest(held))

        def edited(line):
            held["mapping"]["recipe"]["lines"][3] = line
            held["digest"] = contract_digest(held)
            then.write_text(json.dumps(held))
            return then

        lines = '"model.embed_tokens.weight" [v, ({r}:tp d)] -> "embed" [v@0/100, d]'
        refused = self.heft("check", edited(lines), code=1)
        self.assertIn("the recorded mapping is refused", refused.stderr)
        self.assertIn("uncovered", refused.stderr)
        found = self.json("check", then, code=1)
        self.assertEqual((found["ok"], found["status"], found["drift"]), (False, "ERR_PROOF", []))
        self.assertIn("uncovered", [f["kind"] for f in found["findings"]])
        self.assertIn("test.heft:4:", self.heft("check", edited("let = 1"), code=3).stderr)
        held["mapping"]["ranks"][0]["plan"] = "0" * 64  # as another heft might have written it
        rule = RECIPE.splitlines()[3]
        self.assertIn("heft itself maps otherwise", self.heft("check", edited(rule), code=1).stdout)

    def test_a_side_alone(self):
        side = self.dir / "side.json"
        side.write_text(self.heft("contract", self.model, "--side", "destination").stdout)
        self.assertEqual(json.loads(side.read_text())["manifest"]["side"], "destination")
        self.assertEqual(self.heft("check", side, side).stdout, "no drift\n")
        self.assertIn("no mapping", self.heft("check", side, code=2).stderr)

    def test_what_is_refused(self):
        then = self.contract("then.json")
        then.write_text(then.read_text().replace("normed elsewhere", "no reason"))
        self.assertIn("was it edited?", self.heft("check", then, code=3).stderr)
        then.write_text('{"heft_contract": 3}')
        self.assertIn("format version 3, this library reads 2", self.heft("check", then, code=3).stderr)
        self.assertIn("--let needs --recipe", self.heft("contract", self.model, "--let", "tp=1", code=2).stderr)
        self.assertIn("needs --recipe", self.heft("contract", self.model, self.model, code=2).stderr)
        command = ("contract", self.model, "--recipe", self.recipe(RECIPE), "--side", "source")
        self.assertIn("--side is of a side alone", self.heft(*command, code=2).stderr)
        nowhere = self.dir / "no" / "where.json"
        command = ("contract", self.model, "--recipe", self.recipe(RECIPE), "--output", nowhere)
        self.assertIn("cannot write", self.heft(*command, code=4).stderr)


class Diff(Files):
    def changed(self, edit):
        folder = self.dir / "other"
        folder.mkdir()
        tensors = dict(self.tensors)
        edit(tensors)
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def test_equal_checkpoints(self):
        n = len(self.tensors)
        self.assertEqual(
            self.heft("diff", self.model, self.model).stdout, f"{n} tensors equal, 0 differ in 0 elements, 0 other differences\n"
        )
        lines = self.heft("diff", self.model, self.model, "--all", "--threads", "2").stdout.splitlines()
        self.assertEqual(len([line for line in lines if line.startswith("equal ")]), n)

    def test_differences_are_counted_and_the_first_is_named(self):
        name = "model.layers.1.mlp.up_proj.weight"

        def edit(tensors):
            dtype, shape, raw = tensors[name]
            raw = bytearray(raw)
            raw[2 * 13] ^= 1
            raw[2 * 20] ^= 2
            tensors[name] = (dtype, shape, bytes(raw))
            tensors["model.norm.wieght"] = tensors.pop("model.norm.weight")

        other = self.changed(edit)
        out = self.heft("diff", self.model, other, code=1).stdout
        self.assertRegex(out, rf"differs  {name}: 2 of 96 elements, at most 2 ULP, 1.5 on average; first \[1, 5\]: 0x")
        self.assertIn('renamed "model.norm.weight" to "model.norm.wieght"', out)
        result = self.json("diff", self.model, other, code=1)
        self.assertEqual((result["equal"], result["tensors_differ"], result["elements_differ"]), (False, 1, 2))
        (tensor,) = result["tensors"]
        self.assertEqual((tensor["name"], tensor["differ"], tensor["max_ulp"], tensor["mean_ulp"]), (name, 2, 2, 1.5))
        self.assertEqual((tensor["first"]["flat"], tensor["first"]["index"]), (13, "[1, 5]"))
        self.assertEqual([f["kind"] for f in result["drift"]], ["renamed"])

    def test_manifests_hold_no_values(self):
        manifest = self.dir / "m.json"
        manifest.write_text(self.heft("inspect", self.model, "--manifest").stdout)
        self.assertIn("needs a checkpoint", self.heft("diff", manifest, self.model, code=2).stderr)
        self.heft("diff", self.dir / "nowhere", self.model, code=4)


class Verify(Files):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"
        self.heft("convert", self.model, self.out, *DENSE)

    def flip_bit(self, rank, name, element):
        path = self.out / f"rank-{rank}" / "model.safetensors"
        raw = bytearray(path.read_bytes())
        (n,) = struct.unpack("<Q", raw[:8])
        begin = json.loads(raw[8 : 8 + n])[name]["data_offsets"][0]
        raw[8 + n + begin + 2 * element] ^= 1
        path.write_bytes(raw)

    def test_equal_is_counted(self):
        self.assertIn("elements agree", self.heft("verify", self.model, self.out, *DENSE).stdout)
        data = self.json("verify", self.model, self.out, *DENSE)
        self.assertTrue(data["match"])
        self.assertEqual([r["elements_differ"] for r in data["ranks"]], [0, 0])

    def test_first_difference_is_named(self):
        self.flip_bit(1, "model.layers.0.self_attn.qkv_proj.weight", 5 * 8 + 3)
        data = self.json("verify", self.model, self.out, *DENSE, code=1)
        self.assertFalse(data["match"])
        self.assertTrue(data["ranks"][0]["match"])
        bad = data["ranks"][1]
        self.assertEqual((bad["elements_differ"], bad["params_differ"]), (1, 1))
        first = bad["first"]
        self.assertEqual((first["param"], first["index"]), ("model.layers.0.self_attn.qkv_proj.weight", [5, 3]))
        # row 5 of rank 1 is row 1 of its k rows: row 3 of k_proj
        self.assertEqual((first["source"], first["source_index"]), ("model.layers.0.self_attn.k_proj.weight", 3 * 8 + 3))
        self.assertEqual(int(first["expected"], 16) ^ int(first["actual"], 16), 1)
        text = self.heft("verify", self.model, self.out, *DENSE, code=1).stdout
        self.assertIn("model.layers.0.self_attn.qkv_proj.weight[5, 3] is 0x", text)

    def test_padding_must_stay_zero(self):
        self.flip_bit(1, "lm_head.weight", 20 * 8)
        text = self.heft("verify", self.model, self.out, *DENSE, code=1).stdout
        self.assertIn("lm_head.weight[20, 0] is 0x1, expected 0x0 (a constant)", text)

    def test_missing_operands_are_usage_errors(self):
        self.heft("verify", self.model, *DENSE, code=2)
        self.heft("verify", self.model, self.out, code=2)
        self.heft("verify", "--live", code=2)
        self.heft("verify", "--live", self.model, "--url", "http://127.0.0.1:1", code=2)
        self.heft("verify", self.model, self.dir / "gone", *DENSE, code=4)


if __name__ == "__main__":
    unittest.main()

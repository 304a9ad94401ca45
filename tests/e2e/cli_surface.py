# SPDX-License-Identifier: Apache-2.0
"""The command line itself: help, options, misspelt words, completion, exit codes of bad calls."""
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from cli_support import Case, HEFT, run, write_safetensors

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def commands():
    lines = run("help").stdout.splitlines()
    return [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]


class Help(Case):
    def test_every_command_has_a_manual_page(self):
        names = commands()
        self.assertIn("inspect", names)
        for name in names:
            page = self.heft("help", name).stdout
            self.assertEqual(page, self.heft(name, "--help").stdout)
            self.assertEqual(page, self.heft(name, "-h").stdout)
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLE"):
                self.assertIn(section + "\n", page)
            self.assertIn(f"heft {name}", page)
            for line in page.splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_overview_goes_where_it_belongs(self):
        self.assertEqual(self.heft("--help").stdout, self.heft("help").stdout)
        result = run()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("Commands:", result.stderr)

    def test_version(self):
        self.assertRegex(self.heft("version").stdout, r"^heft \d+\.\d+\.\d+\ntransports: shm[,;] ucx .*\n$")
        self.assertEqual(self.heft("--version").stdout, self.heft("version").stdout)
        self.assertRegex(self.json("version")["version"], r"^\d+\.\d+\.\d+$")


class Mistakes(Case):
    def test_misspelt_words_name_the_nearest(self):
        for args, nearest in (
            (("inspcet", "x"), "nearest: inspect"),
            (("inspect", "x", "--fliter", "y"), "nearest: --filter"),
            (("inspect", "x", "--jso"), "nearest: --json"),
            (("inspect", "x", "--hepl"), "nearest: --help"),
            (("help", "insepct"), "nearest: inspect"),
            (("completion", "bahs"), "nearest: bash"),
        ):
            self.assertIn(nearest, self.heft(*args, code=2).stderr)

    def test_far_words_name_none(self):
        self.assertNotIn("nearest", self.heft("qqqqqqqqqqqq", code=2).stderr)
        self.assertNotIn("nearest", self.heft("inspect", "x", "--qqqqqqqqqqqqq", code=2).stderr)

    def test_wrong_calls_are_usage_errors(self):
        for args, part in (
            (("inspect",), "PATH is missing"),
            (("inspect", "a", "b"), 'surplus operand "b"'),
            (("inspect", "a", "--filter"), "--filter needs a value"),
            (("inspect", "a", "--filter", "--json"), "--filter needs a value"),
            (("inspect", "a", "--filter="), "an empty value"),
            (("bench", "--bytes", "4M"), "4M is 4000000, less than 4194304"),
            (("bench", "--only", "nope"), "scatter_256"),
            (("demo", "a", "--let", "tp=2"), "--tp gives this"),
            (("inspect", "a", "--filter", "x", "--filter", "y"), "--filter given twice"),
            (("inspect", "a", "--json=yes"), "--json takes no value"),
            (("inspect", "a", "-j"), "unknown option -j"),
            (("version", "x"), "surplus operand"),
        ):
            self.assertIn(part, self.heft(*args, code=2).stderr)

    def test_two_dashes_end_the_options(self):
        write_safetensors(self.dir / "--json", {"w": ("U8", [1], b"\1")})
        result = self.heft("inspect", "--", "--json", cwd=self.dir)
        self.assertIn("w ", result.stdout)

    def test_full_output_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([HEFT, "help"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 4)
        self.assertIn("standard output", result.stderr)


class Completion(Case):
    def complete(self, *words):
        script = self.heft("completion", "bash").stdout
        program = script + (
            f"\nCOMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}; _heft;"
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        )
        result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_commands_and_options_complete(self):
        for name in commands():
            self.assertIn(name, self.complete("heft", ""))
        self.assertEqual(self.complete("heft", "insp"), ["inspect"])
        self.assertEqual(self.complete("heft", "inspect", "--fi"), ["--filter"])
        self.assertEqual(self.complete("heft", "completion", ""), ["bash"])
        self.assertIn("inspect", self.complete("heft", "help", "in"))

    def test_files_complete(self):
        (self.dir / "weights.safetensors").write_bytes(b"")
        self.assertEqual(self.complete("heft", "inspect", "wei"), ["weights.safetensors"])

    def test_every_option_of_every_command_completes(self):
        for name in commands():
            page = self.heft("help", name).stdout
            for option in re.findall(r"^    (--[a-z-]+)", page, re.M):
                self.assertIn(option, self.complete("heft", name, "--"))

    def test_built_script_is_what_the_command_prints(self):
        built = pathlib.Path(HEFT).parent / "heft.bash"
        self.assertEqual(built.read_text(), self.heft("completion", "bash").stdout)


class Inspect(Case):
    def setUp(self):
        super().setUp()
        self.path = self.dir / "m.safetensors"
        write_safetensors(
            self.path,
            {"a.w": ("BF16", [2, 3], bytes(12)), "b.w": ("F32", [], bytes(4)), "b.x": ("BF16", [0, 4], b"")},
        )

    def test_text_lists_tensors_and_totals(self):
        out = self.heft("inspect", self.path).stdout
        self.assertRegex(out, r"a\.w +BF16 +\[2, 3\] +12\n")
        self.assertRegex(out, r"b\.w +F32 +\[\] +4\n")
        self.assertRegex(out, r"BF16 +2 tensors +6 elements +12 bytes")
        self.assertRegex(out, r"all +3 tensors +16 bytes")

    def test_json_has_the_same(self):
        data = self.json("inspect", self.path)
        self.assertEqual((data["n_tensors"], data["n_bytes"]), (3, 16))
        self.assertEqual(data["tensors"][0], {"name": "a.w", "dtype": "BF16", "shape": [2, 3], "n_elems": 6, "n_bytes": 12})
        self.assertEqual(data["dtypes"]["BF16"], {"n_tensors": 2, "n_elems": 6, "n_bytes": 12})

    def test_filter_takes_whole_names(self):
        self.assertEqual([t["name"] for t in self.json("inspect", self.path, "--filter", "b.*")["tensors"]], ["b.w", "b.x"])
        self.assertEqual(self.json("inspect", self.path, "--filter", "w")["tensors"], [])

    def test_manifest_form_is_accepted_back(self):
        manifest = self.dir / "m.json"
        manifest.write_text(self.heft("inspect", self.path, "--manifest").stdout)
        self.assertEqual(self.json("inspect", manifest), self.json("inspect", self.path))
        manifest.write_text(manifest.read_text().replace('"n_bytes": 16', '"n_bytes": 17'))
        self.assertIn('"n_bytes" is 17, the tensors say 16', self.heft("inspect", manifest, code=3).stderr)

    def test_bad_input_and_missing_files_differ(self):
        bad = self.dir / "bad.safetensors"
        bad.write_bytes(b"\0" * 4)
        self.assertIn("truncated", self.heft("inspect", bad, code=3).stderr)
        self.assertIn("No such file", self.heft("inspect", self.dir / "gone", code=4).stderr)
        self.assertIn("no .safetensors", self.heft("inspect", tempfile.mkdtemp(dir=self.dir), code=3).stderr)

    def test_index_disagreement_names_all(self):
        (self.dir / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a.w": "m.safetensors", "gone": "m.safetensors"}})
        )
        err = self.heft("inspect", self.dir, code=3).stderr
        for part in ('"gone" is missing from m.safetensors', '"b.x" of m.safetensors', "1 missing, 2 surplus in all"):
            self.assertIn(part, err)


class Bench(Case):
    SMALL = ("--bytes", "4194304", "--runs", "1")

    def test_json_is_an_array_of_results(self):
        (result,) = self.json("bench", *self.SMALL, "--only", "scatter_256")
        self.assertEqual(
            set(result), {"name", "text", "gb_per_s", "ratio", "ratio_min", "ratio_max", "aim", "bytes", "runs"}
        )
        self.assertEqual((result["name"], result["runs"]), ("scatter_256", 1))
        self.assertGreater(result["gb_per_s"], 0)

    def test_text_has_the_same_names(self):
        self.assertRegex(self.heft("bench", *self.SMALL, "--only", "memcpy").stdout, r"^memcpy +[0-9.]+ GB/s")

    def test_unknown_name_is_a_usage_error(self):
        self.assertIn("scater", self.heft("bench", *self.SMALL, "--only", "scater_256", code=2).stderr)
        self.assertIn("is not a whole number", self.heft("bench", "--bytes", "many", code=2).stderr)


class Guide(Case):
    def test_every_command_is_in_the_guide(self):
        guide = (ROOT / "docs/guide/cli.md").read_text()
        for name in commands():
            self.assertIn(f"`heft {name}", guide)


if __name__ == "__main__":
    unittest.main()

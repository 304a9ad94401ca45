# SPDX-License-Identifier: Apache-2.0
"""What the hf-to-engine recipes make, against digests of what the engines' own loaders made.

The digests in tests/golden/engines were recorded by tests/engines/compare_recipes.py, each of a rank in which
recipe and loader agreed in every element. Here the same checkpoints are made again, without an engine.
"""
import array
import hashlib
import json
import math
import pathlib
import sys
import unittest

from cli_support import Case, read_checkpoint, run, write_safetensors

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "engines"


def values(seed, dtype, shape):
    """As values() of compare_recipes.py."""
    bits = [(7 * i + 1009 * seed) % 0x7F00 + 1 for i in range(math.prod(shape))]
    packed = array.array("I", (b << 16 for b in bits)) if dtype == "float32" else array.array("H", bits)
    if sys.byteorder == "big":
        packed.byteswap()
    return {"float32": "F32", "bfloat16": "BF16"}[dtype], shape, packed.tobytes()


def digest(tensors):
    total = hashlib.sha256()
    for name, (_, shape, raw) in sorted(tensors.items()):
        total.update(f"{name} {list(shape)} ".encode())
        total.update(raw)
    return total.hexdigest()


class EngineGolden(Case):
    def run_golden(self, path):
        golden = json.loads(path.read_text())
        source = self.dir / "model"
        source.mkdir()
        tensors = {
            name: values(seed, dtype, shape) for seed, (name, (dtype, *shape)) in enumerate(sorted(golden["sources"].items()))
        }
        write_safetensors(source / "model.safetensors", tensors)
        (source / "config.json").write_text(json.dumps(golden["config"]))
        for number, case in enumerate(golden["cases"]):
            out = self.dir / f"out-{number}"
            lets = [word for let in case["lets"] for word in ("--let", let)]
            self.heft("convert", source, out, "--recipe", golden["recipe"], *lets)
            ranks = [out / f"rank-{r}" for r in range(len(case["ranks"]))] if len(case["ranks"]) > 1 else [out]
            self.assertEqual([digest(read_checkpoint(rank)) for rank in ranks], case["ranks"], case["lets"])
        self.missing(source, tensors, golden)

    def missing(self, source, tensors, golden):
        """Each tensor of the first and last layer, and those outside, taken away in turn: refused."""
        case = golden["cases"][0]
        lets = [word for let in case["lets"] for word in ("--let", let)]
        last = golden["config"].get("num_hidden_layers")
        described = [{"name": n, "dtype": d, "shape": list(s)} for n, (d, s, _) in tensors.items()]
        for tensor in described:
            name = tensor["name"]
            layer = name.split("layers.")[1].split(".")[0] if "layers." in name else None
            if layer not in (None, "0", str(last - 1)) or "inv_freq" in name or name == "lm_head.weight":
                continue
            left = [other for other in described if other is not tensor]
            text = {"heft_manifest": 1, "side": "source", "tensors": left}
            (self.dir / "left.json").write_text(json.dumps(text))
            words = ["--recipe", golden["recipe"], *lets, "--config", source / "config.json"]
            done = run("check", self.dir / "left.json", *words)
            self.assertNotEqual(done.returncode, 0, f"{name} is missing, and nobody says so")


for path in sorted(GOLDEN.glob("*.json")):
    name = f"test_{path.stem}".replace("-", "_").replace(".", "_")
    setattr(EngineGolden, name, lambda self, path=path: self.run_golden(path))

if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""A trainer in bf16, two ranks in fp8 blocks with scales: files and live memory, against a reference written here."""
import bisect
import json
import random
import struct
import unittest

from cli_rounds import Process
from cli_support import Case, read_checkpoint, write_safetensors

ROWS, COLUMNS, TP, BLOCK = 2 * 256, 200, 2, 128
RECIPE = f"""
let tp = {TP}
ranks tp as rank
dtype source
"l.{{n}}.weight" [({{rank}}:tp o), i]
  -> "l.{{n}}.weight" [o, i], "l.{{n}}.weight_scale_inv" [o, i] by fp8_quantise({BLOCK}, {BLOCK}) in f8_e4m3
"norm.weight" [d] -> "norm.weight" [d]
"""


def to_f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def e4m3_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    return mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


POSITIVE = [e4m3_value(code) for code in range(127)]  # 127 is NaN


def to_e4m3(value):
    """Nearest, ties to the even code, saturating."""
    magnitude = min(abs(value), POSITIVE[-1])
    above = bisect.bisect_left(POSITIVE, magnitude)
    if POSITIVE[above] != magnitude:
        below = above - 1
        low, high = magnitude - POSITIVE[below], POSITIVE[above] - magnitude
        above = below if low < high or (low == high and below % 2 == 0) else above
    return above | (0x80 if struct.pack("<f", value)[3] & 0x80 else 0)


def quantised(rows):
    """Codes by row, and scales by block: amax / 448, at least what does not divide by zero."""
    codes = [bytearray(len(rows[0])) for _ in rows]
    scales = []
    for top in range(0, len(rows), BLOCK):
        for left in range(0, len(rows[0]), BLOCK):
            block = [(r, c) for r in range(top, min(top + BLOCK, len(rows))) for c in range(left, min(left + BLOCK, len(rows[0])))]
            amax = max(abs(rows[r][c]) for r, c in block)
            scale = to_f32(amax / 448.0) if amax else 1.0
            scales.append(scale)
            for r, c in block:
                codes[r][c] = to_e4m3(to_f32(rows[r][c] / scale))
    return b"".join(codes), scales


class Fp8(Case):
    def setUp(self):
        super().setUp()
        self.recipe = self.dir / "fp8.heft"
        self.recipe.write_text(RECIPE)
        self.weights = {}

    def model(self, name, seed):
        rng, tensors = random.Random(seed), {}
        for layer in range(2):
            bits = [rng.getrandbits(1) << 15 | rng.randrange(0x3000, 0x4200) for _ in range(ROWS * COLUMNS)]
            for at in range(0, BLOCK * COLUMNS, COLUMNS):  # a block of zeros
                bits[at : at + BLOCK] = [0] * BLOCK
            tensors[f"l.{layer}.weight"] = ("BF16", (ROWS, COLUMNS), struct.pack(f"<{len(bits)}H", *bits))
            values = struct.unpack(f"<{len(bits)}f", b"".join(b"\0\0" + struct.pack("<H", b) for b in bits))
            self.weights[name, layer] = [values[r * COLUMNS : (r + 1) * COLUMNS] for r in range(ROWS)]
        tensors["norm.weight"] = ("BF16", (8,), bytes(range(16)))
        folder = self.dir / name
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def test_files_and_live_memory(self):
        one, two = self.model("one", 1), self.model("two", 2)
        args = ("--recipe", self.recipe)
        out = self.dir / "out"
        self.heft("convert", one, out, *args)
        half = ROWS // TP
        for rank in range(TP):
            tensors = read_checkpoint(out / f"rank-{rank}")
            self.assertEqual(tensors["norm.weight"][2], bytes(range(16)))
            for layer in range(2):
                codes, scales = quantised(self.weights["one", layer][rank * half : (rank + 1) * half])
                dtype, shape, raw = tensors[f"l.{layer}.weight"]
                self.assertEqual((dtype, shape), ("F8_E4M3", (half, COLUMNS)))
                self.assertEqual(raw, codes, f"rank {rank}, layer {layer}")
                dtype, shape, raw = tensors[f"l.{layer}.weight_scale_inv"]
                self.assertEqual((dtype, shape), ("F32", (half // BLOCK, -(-COLUMNS // BLOCK))))
                got = struct.unpack(f"<{len(scales)}f", raw)
                self.assertEqual([g for g, s in zip(got, scales) if s != 1.0], [s for s in scales if s != 1.0])
        self.heft("verify", one, out, *args)
        self.heft("verify", two, out, *args, code=1)
        self.assertIn("cannot convert back", self.heft("convert", out, self.dir / "back", *args, "--reverse", "--like", one, code=3).stderr)

        coordinator = Process(self, "coordinator")
        url = coordinator.wait_line(lambda line: line.startswith("http://"))
        ranks = [
            Process(self, "serve", "--url", url, *args, "--model", one, "--rank", rank, "--readers", "1", "--json")
            for rank in range(TP)
        ]
        for version, model in enumerate((one, two, one), 1):
            self.heft("push", model, "--url", url, "--version", version, "--wait-for", TP)
        live = json.loads(self.heft("verify", "--live", "--url", url, "--json").stdout)
        self.assertEqual([m["match"] for m in live["live"]], [True] * TP)
        for process in ranks:
            self.assertEqual(process.stop(), 0, process.errors)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: pushes between processes on this host, and what `heft plan --links` says of them.

The links are measured right before, with the kernels alone (`heft bench`), so that both see the same machine; then a
coordinator, `--tp` serving ranks and some pushes. Prints each phase as predicted and measured.

    python3 bench/price_check.py --heft build/release/src/cli/heft [--layers 8] [--tp 2] [--pushes 5]
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import tempfile

HIDDEN, INNER, HEADS, KV_HEADS, VOCAB = 2048, 5632, 32, 8, 32000
DEADLINE_S = 120


def shapes(layers):
    kv = HIDDEN // HEADS * KV_HEADS
    found = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        for name, shape in {
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
        }.items():  # fmt: skip
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return found


def write_model(folder, layers):
    folder.mkdir()
    header, at = {}, 0
    for name, shape in shapes(layers).items():
        n = 2
        for extent in shape:
            n *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = at
        while left > 0:
            left -= file.write(os.urandom(min(left, 1 << 24)))
    config = {
        "num_hidden_layers": layers, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": INNER, "vocab_size": VOCAB, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def run_json(heft, *args):
    out = subprocess.run([heft, *map(str, args), "--json"], capture_output=True, text=True, timeout=600, check=True)
    return json.loads(out.stdout)


def measure_rates(heft):
    """Bytes per second of a thread: copying with digests, plain copying, reading for a digest. Two threads, which are
    timed by the wall's clock: one would be timed by its own, and not see what the rest of the machine takes."""
    rates = {}
    for name in ("copy_contiguous", "crc64_copy", "crc64_read"):
        rows = run_json(heft, "bench", "--only", name, "--threads", 2, "--bytes", "256M")
        (row,) = [r for r in rows if r["name"] == name]
        rates[name] = row["gb_per_s"] * 1e9 / 2
    return rates


def make_links(path, rates, tp, phase_s):
    side = {"ranks_per_host": max(tp, 1), "nics_per_host": 1}
    links = {
        "format": 1, "shared_hosts": True, "source": side, "destination": side,
        "memory": {"bytes_per_s": rates["crc64_copy"], "latency_s": 1e-6, "message_s": 0},
        "copy": {"bytes_per_s": rates["crc64_copy"], "run_s": 0},
        "flip": {"bytes_per_s": rates["copy_contiguous"]},
        "digest": {"bytes_per_s": rates["crc64_read"]},
        "control": {"phase_s": phase_s, "member_s": 0},
    }  # fmt: skip
    path.write_text(json.dumps(links))


class Fleet:
    """A coordinator and its serving ranks, ended when left."""

    def __init__(self, heft, model, tp, folder):
        self.heft, self.children = heft, []
        recipe = ("--recipe", "hf-to-engine-dense", "--let", f"tp={tp}")
        self.url = self.start("coordinator", "--port-file", folder / "port").stdout.readline().strip()
        for rank in range(tp):
            self.start("serve", "--url", self.url, *recipe, "--model", model, "--rank", rank, "--json").stdout.readline()

    def start(self, *args):
        child = subprocess.Popen([self.heft, *map(str, args)], stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            child.terminate()
            child.wait(DEADLINE_S)


def compare(pushes, predicted):
    rows = {"transfer": ("transfer_s", "stage_s"), "verify": ("verify_s", "verify_s"), "pause to resume": ("pause_s", "down_s")}
    for name, (measured_key, predicted_key) in rows.items():
        values = [push[measured_key] for push in pushes]
        said = statistics.median(p[predicted_key] for p in predicted)
        middle = statistics.median(values)
        print(f"{name:16} predicted {said * 1e3:9.1f} ms   measured {middle * 1e3:9.1f} ms "
              f"({min(values) * 1e3:.1f} to {max(values) * 1e3:.1f})   {100 * (said / middle - 1):+6.0f} %")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heft", required=True)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pushes", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heft-price-") as folder:
        folder = pathlib.Path(folder)
        model, links = folder / "model", folder / "links.json"
        write_model(model, args.layers)
        words = ("plan", model, "--recipe", "hf-to-engine-dense", "--let", f"tp={args.tp}", "--links", links)
        pushes, predicted = [], []
        with Fleet(args.heft, model, args.tp, folder) as fleet:
            for version in range(1, args.pushes + 2):
                make_links(links, measure_rates(args.heft), args.tp, 1e-3)
                price = run_json(args.heft, *words)["price"]
                push = run_json(args.heft, "push", model, "--url", fleet.url, "--version", version, "--wait-for", args.tp)
                if version > 1:  # the first one plans
                    pushes.append(push)
                    predicted.append(price)
        print(f"{price['bytes'] / 1e9:.2f} GB, {args.tp} ranks, {len(pushes)} pushes after the first")
        compare(pushes, predicted)


if __name__ == "__main__":
    main()

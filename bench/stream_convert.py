# SPDX-License-Identifier: Apache-2.0
"""Converting a scanned mixture-of-experts model with a bound on memory, against NumPy and PyTorch.

    python3 bench/stream_convert.py --heft build/release/bin/heft --dir DIR [--experts 144] [--memory 1G] [--warm]

Builds a synthetic model in DIR (layers stacked as MaxText keeps them, random bytes on every page), converts it to one tensor per
layer in the engine's orientation, gate and up fused, with heft, with NumPy and with PyTorch (each alone, each to files that are
synced), and prints bytes per second, the ratio to memcpy of as many bytes in this run, and the peaks of anonymous memory and of
mapped file pages. Files are dropped from the page cache before each run, unless --warm. Needs NumPy; PyTorch where it is there.
"""
import argparse
import ctypes
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import threading
import time

import numpy as np

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, HEAD, VOCAB = 8, 2048, 512, 16, 2, 256, 151936
RECIPE = """
"decoder.layers.moe_block.wi_0" [e, l, d, f] -> "model.layers.{l}.mlp.experts.gate_up_proj" [e, (0:2 f), d]
"decoder.layers.moe_block.wi_1" [e, l, d, f] -> "model.layers.{l}.mlp.experts.gate_up_proj" [e, (1:2 f), d]
"decoder.layers.moe_block.wo" [e, l, f, d] -> "model.layers.{l}.mlp.experts.down_proj" [e, d, f]
"decoder.layers.attention.query.kernel" [d, l, h, k] -> "model.layers.{l}.self_attn.q_proj.weight" [(h k), d]
"decoder.layers.attention.key.kernel" [d, l, h, k] -> "model.layers.{l}.self_attn.k_proj.weight" [(h k), d]
"decoder.layers.attention.value.kernel" [d, l, h, k] -> "model.layers.{l}.self_attn.v_proj.weight" [(h k), d]
"decoder.layers.attention.out.kernel" [h, l, k, d] -> "model.layers.{l}.self_attn.o_proj.weight" [d, (h k)]
"decoder.layers.norm.scale" [d, l] -> "model.layers.{l}.input_layernorm.weight" [d]
"token_embedder.embedding" [v, d] -> "model.embed_tokens.weight" [v, d]
"""


def shapes(experts):
    return {
        "decoder.layers.attention.key.kernel": (WIDTH, LAYERS, KV_HEADS, HEAD),
        "decoder.layers.attention.out.kernel": (HEADS, LAYERS, HEAD, WIDTH),
        "decoder.layers.attention.query.kernel": (WIDTH, LAYERS, HEADS, HEAD),
        "decoder.layers.attention.value.kernel": (WIDTH, LAYERS, KV_HEADS, HEAD),
        "decoder.layers.moe_block.wi_0": (experts, LAYERS, WIDTH, INNER),
        "decoder.layers.moe_block.wi_1": (experts, LAYERS, WIDTH, INNER),
        "decoder.layers.moe_block.wo": (experts, LAYERS, INNER, WIDTH),
        "decoder.layers.norm.scale": (WIDTH, LAYERS),
        "token_embedder.embedding": (VOCAB, WIDTH),
    }


def build(folder, experts):
    """One file; every 16 MiB are random bytes, made anew by adding a number to a random block."""
    header, offset = {}, 0
    for name, shape in shapes(experts).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    block = np.random.default_rng(1).integers(0, 2**32, 4 << 20, dtype=np.uint32)
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left, k = offset, 0
        while left > 0:
            k += 1
            chunk = (block + np.uint32(k * 2654435761 % 2**32)).tobytes()[:left]
            file.write(chunk)
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return offset


def source_views(folder):
    path = folder / "model.safetensors"
    raw = np.memmap(path, np.uint8, "c")  # PyTorch wants it writable; nothing writes
    n = int(raw[:8].view("<u8")[0])
    header = json.loads(raw[8 : 8 + n].tobytes())
    views = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        views[name] = raw[8 + n + begin : 8 + n + end].view(np.uint16).reshape(t["shape"])
    return views


def targets(views, cat, transpose, contiguous):
    """name, array for every target; the same steps in both frameworks."""
    v = {name.split(".", 2)[-1]: view for name, view in views.items()}
    for l in range(LAYERS):
        p = f"model.layers.{l}."
        gate, up = v["moe_block.wi_0"][:, l], v["moe_block.wi_1"][:, l]
        yield p + "mlp.experts.gate_up_proj", cat([transpose(gate, (0, 2, 1)), transpose(up, (0, 2, 1))], 1)
        yield p + "mlp.experts.down_proj", contiguous(transpose(v["moe_block.wo"][:, l], (0, 2, 1)))
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            x = v[f"attention.{name}.kernel"][:, l]
            yield p + f"self_attn.{short}_proj.weight", contiguous(transpose(x.reshape(WIDTH, -1), (1, 0)))
        x = v["attention.out.kernel"][:, l]
        yield p + "self_attn.o_proj.weight", contiguous(transpose(x.reshape(HEADS * HEAD, WIDTH), (1, 0)))
        yield p + "input_layernorm.weight", contiguous(v["norm.scale"][:, l])
    yield "model.embed_tokens.weight", contiguous(views["token_embedder.embedding"])


def convert(which, source, out):
    views = source_views(source)
    if which == "numpy":
        steps = targets(views, np.concatenate, np.transpose, np.ascontiguousarray)
    else:
        import torch

        torch.set_num_threads(os.cpu_count())
        views = {name: torch.from_numpy(np.asarray(view).view(np.int16)) for name, view in views.items()}
        steps = targets(views, torch.cat, torch.permute, lambda x: x.contiguous())
    out.mkdir()
    for name, value in steps:
        with open(out / name, "wb") as file:
            (value if which == "numpy" else value.numpy()).tofile(file)
            file.flush()
            os.fsync(file.fileno())


def drop_caches(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(command):
    """Seconds, seconds of processors, and peaks of RssAnon and RssFile, looked at every 5 ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = {"RssAnon": 0, "RssFile": 0}

    def watch():
        while child.poll() is None:
            try:
                for line in open(f"/proc/{child.pid}/status"):
                    key = line.split(":")[0]
                    if key in peaks:
                        peaks[key] = max(peaks[key], int(line.split()[1]) << 10)
            except OSError:
                pass
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = child.wait()
    seconds = time.monotonic() - start
    watcher.join()
    if code != 0:
        sys.exit(f"{command[0]} ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peaks


def memcpy_rate():
    n = 512 << 20
    a, b = np.ones(n, np.uint8), np.ones(n, np.uint8)
    best = 1e9
    for _ in range(5):
        start = time.monotonic()
        ctypes.memmove(b.ctypes.data, a.ctypes.data, n)
        best = min(best, time.monotonic() - start)
    return n / best


def compare(heft_out, other):
    raw = {}
    for path in sorted(heft_out.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        n = int(data[:8].view("<u8")[0])
        header = json.loads(data[8 : 8 + n].tobytes())
        header.pop("__metadata__", None)
        for name, t in header.items():
            raw[name] = data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]
    names = sorted(path.name for path in other.iterdir())
    if names != sorted(raw) or any(not np.array_equal(raw[n], np.memmap(other / n, np.uint8, "r")) for n in names):
        sys.exit(f"{other} differs from {heft_out}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heft", default="heft")
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--experts", type=int, default=144)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--only", choices=("numpy", "torch"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    source, out = args.dir / "source", args.dir / "out"
    if args.only:
        return convert(args.only, source, out)
    n_bytes = build(source, args.experts)
    (args.dir / "stream.heft").write_text('dtype source\n' + RECIPE)
    rate = memcpy_rate()
    print(f"{n_bytes / 2**30:.2f} GiB; memcpy, one thread: {rate / 1e9:.2f} GB/s")
    own = [sys.executable, __file__, "--dir", args.dir, "--only"]
    runs = {"heft": [args.heft, "convert", source, out, "--recipe", args.dir / "stream.heft", "--memory", args.memory,
                     "--threads", args.threads]}
    runs["numpy"] = [*own, "numpy"]
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        runs["torch"] = [*own, "torch"]
    kept = args.dir / "heft-out"
    for name, command in runs.items():
        if not args.warm:
            drop_caches(args.dir)
        seconds, cpu, peaks = measure([str(part) for part in command])
        speed = n_bytes / seconds
        print(f"{name:6} {seconds:7.2f} s  {speed / 1e9:6.3f} GB/s  {speed / rate:6.3f} of memcpy  {cpu:6.2f} s of CPU   "
              f"RssAnon {peaks['RssAnon'] / 2**20:7.0f} MiB  RssFile {peaks['RssFile'] / 2**20:7.0f} MiB", flush=True)
        if name == "heft":
            out.rename(kept)
        else:
            compare(kept, out)
            shutil.rmtree(out)
    shutil.rmtree(kept)
    shutil.rmtree(source)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""fp8 blocks and casts in heft and in PyTorch, in one run, one thread each: rates beside a copy of the same run.

  bench/torch_blocks.py [BENCH_KERNELS [MIB [RUNS]]]     BENCH_KERNELS: build/release/bench/bench_kernels

GB/s is the mean of bytes read and written, as bench_kernels counts it. Rounds alternate between heft and PyTorch, so that
a busy machine hits both; the median of the ratios to each one's own copy is given.
"""
import re
import statistics
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("torch_blocks: PyTorch is not installed; bench_kernels has heft's side alone")

BLOCK, COLS = 128, 4096


def quantise(x):
    rows = x.shape[0]
    tiles = x.to(torch.float32).view(rows // BLOCK, BLOCK, COLS // BLOCK, BLOCK)
    scale = tiles.abs().amax(dim=(1, 3)) / 448.0
    codes = (tiles / scale[:, None, :, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(rows, COLS), scale


def dequantise(codes, scale):
    rows = codes.shape[0]
    tiles = codes.view(rows // BLOCK, BLOCK, COLS // BLOCK, BLOCK).to(torch.float32)
    return (tiles * scale[:, None, :, None]).to(torch.bfloat16).view(rows, COLS)


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def heft(bench, name, mib):
    out = subprocess.run([bench, name, str(mib), "1"], check=True, capture_output=True, text=True, timeout=300).stdout
    match = re.search(r"([\d.]+) GB/s\s+x([\d.]+)", out)
    return float(match.group(1)), float(match.group(2))


def main():
    bench = sys.argv[1] if len(sys.argv) > 1 else "build/release/bench/bench_kernels"
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    torch.set_num_threads(1)
    rows = (mib << 20) // 2 // COLS // BLOCK * BLOCK
    x = torch.randn(rows, COLS).to(torch.bfloat16)
    copy = torch.empty_like(x)
    codes, scale = quantise(x)
    n = x.numel()
    cases = (
        ("quantise_blocks", 3 * n / 2, lambda: quantise(x)),
        ("dequantise_blocks", 3 * n / 2, lambda: dequantise(codes, scale)),
        ("cast_bf16_e4m3", 3 * n / 2, lambda: x.to(torch.float8_e4m3fn)),
    )
    print(f"{'':20} {'heft GB/s':>10} {'x copy':>7} {'torch GB/s':>11} {'x copy':>7} {'heft / torch':>13}")
    for name, n_bytes, run in cases:
        rounds = []
        for _ in range(runs):
            own, own_ratio = heft(bench, name, mib)
            copied = 2 * n / timed(lambda: copy.copy_(x)) / 1e9
            rate = n_bytes / timed(run) / 1e9
            rounds.append((own, own_ratio, rate, rate / copied, own / rate))
        a, b, c, d, e = (statistics.median(column) for column in zip(*rounds))
        print(f"{name:20} {a:10.2f} {b:7.2f} {c:11.2f} {d:7.2f} {e:13.1f}")


if __name__ == "__main__":
    main()

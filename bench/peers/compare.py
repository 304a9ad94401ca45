# SPDX-License-Identifier: Apache-2.0
"""The same bytes from one process to another, by heft and by others, in one run: a table of times and ratios.

compare.py --build BUILD [--bytes N] [--rounds N] [--only NAME ...]

Every peer is two processes that have their memory, are connected, and have moved it once. Then, peer after peer, round after round,
so that a slow minute of the machine hits all: new contents, from `go` until the receiver holds all of it, every word compared. The table
has medians. `memcpy` is glibc's, of the same bytes, in the same rounds. tools/peers_env makes the environment of the Python peers.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from peers import LAYER_BYTES, allocate, n_layers

WAIT_S = 120
SEGMENTS = {"UCX_TCP_TX_SEG_SIZE": "512k", "UCX_TCP_RX_SEG_SIZE": "512k"}


@dataclass
class Row:
    name: str
    program: str  # bench_peer_... of the build, or a Python file
    option: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    over: str = "tcp"


ROWS = (
    Row("heft push", "peer_heft.py", over="shared memory"),
    Row("heft push, ucx", "peer_heft.py", "ucx", {"UCX_TLS": "tcp,self", "HEFT_UCX_ALLOW_TCP": "1"}),
    Row("torch.distributed gloo, a broadcast for each tensor", "peer_gloo.py"),
    Row("torch.distributed gloo, one broadcast", "peer_gloo.py", "flat"),
    Row("raw TCP, 1 stream", "bench_peer_tcp", "1"),
    Row("raw TCP, 4 streams", "bench_peer_tcp", "4"),
    Row("ucp_put loop, tcp", "bench_peer_ucp", "", {"UCX_TLS": "tcp,self"}),
    Row("ucp_put loop, tcp with segments of 512k", "bench_peer_ucp", "", {"UCX_TLS": "tcp,self"} | SEGMENTS),
    Row("ucp_put loop, posix, memory of UCX", "bench_peer_ucp", "ucx", {"UCX_TLS": "posix,self"}, "shared memory"),
    Row("ucp_put loop, posix and cma, memory of the receiver", "bench_peer_ucp", "", {"UCX_TLS": "posix,cma,self"}, "shared memory"),
    Row("libfabric fi_write, tcp;ofi_rxm", "bench_peer_fabric", "tcp;ofi_rxm"),
    Row("libfabric fi_write, shm", "bench_peer_fabric", "shm", over="shared memory"),
    Row("NIXL, UCX over tcp", "peer_nixl.py", "UCX", {"UCX_TLS": "tcp,self"}),
    Row("NIXL, UCX over what it chooses", "peer_nixl.py", "UCX", over="any"),
    Row("NIXL, LIBFABRIC", "peer_nixl.py", "LIBFABRIC"),
    Row("NIXL, POSIX, a file in /dev/shm", "peer_nixl.py", "POSIX", over="file"),
    Row("Mooncake transfer engine, tcp", "peer_mooncake.py"),
    Row("checkpoint-engine", "peer_checkpoint_engine.py"),
    Row("load_weights alone, after any of those that convert nothing", "peer_loader.py", over="memory"),
)


class Failed(Exception):
    """A peer that cannot run here, and why."""


class End:
    """One process of a peer."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            env=os.environ | environment,
        )

    def say(self, line: str) -> None:
        try:
            self.child.stdin.write(line + "\n")
        except BrokenPipeError:
            self.fail()

    def hear(self) -> str:
        if not select.select([self.child.stdout], [], [], WAIT_S)[0]:
            raise Failed(f"no answer within {WAIT_S} s")
        line = self.child.stdout.readline()
        if not line:
            self.fail()
        return line.strip()

    def fail(self) -> None:
        said = [line for line in self.child.communicate(timeout=WAIT_S)[1].splitlines() if line.strip()]
        raise Failed(said[-1] if said else f"ended with {self.child.returncode}")

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.communicate(timeout=WAIT_S)


class Pair:
    def __init__(self, row: Row, arguments: argparse.Namespace, n_bytes: int):
        self.row, self.ends = row, []
        self.times: list[float] = []
        self.transfers: list[float] = []
        self.error = ""
        for role in ("send", "recv"):
            if row.program.endswith(".py"):
                command = [arguments.python, str(HERE / row.program)]
            else:
                command = [str(arguments.build / "bench" / row.program)]
                if not os.path.exists(command[0]):
                    raise Failed("not built: its library was not found")
            path = {"PYTHONPATH": str(arguments.build / "python"), "OMP_NUM_THREADS": "1"}
            self.ends.append(End([*command, role, str(n_bytes), row.option], path | row.environment))
        infos = [end.hear().removeprefix("hello ") for end in self.ends]
        self.both("peer {}", "ready", infos[1], infos[0])

    def both(self, line: str, wanted: str, *values: str) -> list[str]:
        for end, value in zip(self.ends, values or ("", "")):
            end.say(line.format(value))
        answers = [end.hear() for end in self.ends]
        if not all(answer.split()[0] == wanted for answer in answers):
            raise Failed(f"{line}: {answers}")
        return answers

    def move(self, seed: int) -> tuple[float, float]:
        """One version; its seconds, and those of the transfer alone where the peer knows them."""
        sender, receiver = self.ends
        sender.say(f"fill {seed}")
        sender.hear()
        began = time.perf_counter()
        answers = self.both("go", "ok")
        seconds = time.perf_counter() - began
        receiver.say(f"check {seed}")
        verdict = receiver.hear()
        if verdict != "ok":
            raise Failed(f"WRONG BYTES: {verdict}")
        said = answers[0].split()
        return seconds, float(said[2]) if len(said) == 3 else 0.0

    def end(self) -> None:
        for end in self.ends:
            end.end()


def memcpy_seconds(to: int, of: int, n_bytes: int) -> float:
    began = time.perf_counter()
    ctypes.memmove(to, of, n_bytes)
    return time.perf_counter() - began


def measure(row: Row, arguments: argparse.Namespace, n_bytes: int, seed: int) -> tuple[list[tuple[float, float]], str]:
    """A pair for this round: the first version connects and warms, the others count."""
    pair = None
    try:
        pair = Pair(row, arguments, n_bytes)
        pair.move(seed)
        return [pair.move(seed + i) for i in range(1, arguments.repeat + 1)], ""
    except Failed as error:
        return [], str(error)
    finally:
        if pair is not None:
            pair.end()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build/release")
    parser.add_argument("--python", default=str(HERE.parent.parent / "build/venv-peers/bin/python"))
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="rows whose name contains one of these")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def main() -> None:
    arguments = parse()
    n_bytes = n_layers(arguments.bytes) * LAYER_BYTES
    rows = [row for row in ROWS if not arguments.only or any(part in row.name for part in arguments.only)]
    seconds: dict[str, list[tuple[float, float]]] = {row.name: [] for row in rows}
    errors: dict[str, str] = {}
    copies = []
    here, there = allocate(n_bytes), allocate(n_bytes)
    for turn in range(arguments.rounds):
        copies += [memcpy_seconds(there.ctypes.data, here.ctypes.data, n_bytes) for _ in range(3)]
        for number, row in enumerate(rows):
            if row.name in errors:
                continue
            got, error = measure(row, arguments, n_bytes, 1 + 1000 * turn + 20 * number)
            seconds[row.name] += got
            if error:
                errors[row.name] = error
            print(f"round {turn + 1}: {row.name}: {error or [round(t, 3) for t, _ in got]}", file=sys.stderr, flush=True)
    report(arguments, rows, seconds, errors, statistics.median(copies), n_bytes)


def ratio(seconds: float, push: float | None) -> str:
    return f"{seconds / push:.2f}" if push else ""


def report(arguments: argparse.Namespace, rows: list[Row], seconds: dict[str, list[tuple[float, float]]],
           errors: dict[str, str], memcpy: float, n_bytes: int) -> None:
    medians = {name: statistics.median(t for t, _ in got) for name, got in seconds.items() if got}
    push = medians.get("heft push")
    if arguments.json:
        print(json.dumps({"bytes": n_bytes, "memcpy_s": memcpy, "seconds": seconds, "errors": errors}))
        return
    print(f"{n_bytes / 1e9:.2f} GB, {n_layers(n_bytes)} layers, {arguments.rounds} rounds of {arguments.repeat}; "
          f"memcpy {n_bytes / memcpy / 1e9:.1f} GB/s\n")
    print("| | over | s, median | least to most | GB/s | x memcpy | x heft push |\n|---|---|---|---|---|---|---|")
    for row in rows:
        if row.name in errors:
            print(f"| {row.name} | {row.over} | {errors[row.name]} | | | | |")
            continue
        times = sorted(t for t, _ in seconds[row.name])
        median = medians[row.name]
        print(f"| {row.name} | {row.over} | {median:.3f} | {times[0]:.3f} to {times[-1]:.3f} | {n_bytes / median / 1e9:.2f} "
              f"| {memcpy / median:.2f} | {ratio(median, push)} |")
        transfers = [t for _, t in seconds[row.name] if t > 0]
        if transfers:
            median = statistics.median(transfers)
            print(f"| … of it the transfer, digests included | {row.over} | {median:.3f} | | {n_bytes / median / 1e9:.2f} "
                  f"| {memcpy / median:.2f} | {ratio(median, push)} |")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Four trainer ranks, each with its rows of every tensor, to four tensor-parallel engine ranks with fused qkv and gate_up, in one run.

ranks.py --build BUILD [--bytes N] [--rounds N] [--repeat N] [--only NAME ...]

heft pushes from all four. Without it the trainers gather each tensor with all_gather, rank 0 broadcasts it to the engines, and each of
these copies its shard into its parameters, as load_weights does. Otherwise as compare.py: new contents each time, every word of every
parameter compared after each.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import threading
import time

import numpy as np
from compare import HERE, End, Failed, Row, parse
from peers import HIDDEN, INNER, LAYER_BYTES, SHAPES, Peer, allocate, main as converse, n_layers, words

N = 4
ROWS = (
    Row("heft push", "heft", over="shared memory"),
    Row("heft push, ucx", "heft", "ucx", {"UCX_TLS": "tcp,self", "HEFT_UCX_ALLOW_TCP": "1"}),
    Row("gloo, all_gather and broadcast of each tensor, load_weights", "gloo"),
)
RECIPE = """
ranks 4 as rank
"model.layers.{l}.self_attn.q_proj.weight" [({rank}:4 o), i] -> "model.layers.{l}.qkv" [(0:3 o), i]
"model.layers.{l}.self_attn.k_proj.weight" [({rank}:4 o), i] -> "model.layers.{l}.qkv" [(1:3 o), i]
"model.layers.{l}.self_attn.v_proj.weight" [({rank}:4 o), i] -> "model.layers.{l}.qkv" [(2:3 o), i]
"model.layers.{l}.self_attn.o_proj.weight" [o, ({rank}:4 i)] -> "model.layers.{l}.o" [o, i]
"model.layers.{l}.mlp.gate_proj.weight" [({rank}:4 o), i] -> "model.layers.{l}.gate_up" [(0:2 o), i]
"model.layers.{l}.mlp.up_proj.weight" [({rank}:4 o), i] -> "model.layers.{l}.gate_up" [(1:2 o), i]
"model.layers.{l}.mlp.down_proj.weight" [o, ({rank}:4 i)] -> "model.layers.{l}.down" [o, i]
"""
FUSED = {"qkv": (3 * HIDDEN // N, HIDDEN), "o": (HIDDEN, HIDDEN // N), "gate_up": (2 * INNER // N, HIDDEN), "down": (HIDDEN, INNER // N)}
PARTS = ("qkv", "qkv", "qkv", "o", "gate_up", "gate_up", "down")  # where each of SHAPES goes


class Rank(Peer):
    """A trainer rank or an engine rank: 16-bit tensors by layer, in one memory."""

    def __init__(self, is_sender: bool, n_bytes: int, option: str):
        self.is_sender = is_sender
        way, self.rank = option.split(":")[0], int(option.split(":")[1])
        self.option = option.split(":")[2]
        shapes = {name: (rows // N, columns) for name, (rows, columns) in SHAPES.items()} if is_sender else FUSED
        self.memory = allocate(n_bytes // N)
        self.layers, at = [], 0
        for _ in range(n_bytes // LAYER_BYTES):
            self.layers.append({})
            for name, (rows, columns) in shapes.items():
                n = 2 * rows * columns
                self.layers[-1][name] = self.memory[at : at + n].view(np.uint16).reshape(rows, columns)
                at += n
        self.way = {"heft": Heft, "gloo": Gloo}[way](self)
        self.info, self.connect, self.go, self.close = self.way.info, self.way.connect, self.way.go, self.way.close

    def wholes(self, seed: int, layer: int) -> list[tuple[str, np.ndarray]]:
        """The whole tensors of a layer, as contents `seed` have them."""
        whole = words(layer * LAYER_BYTES // 8, LAYER_BYTES // 8, seed).view(np.uint16)
        at, found = 0, []
        for name, (rows, columns) in SHAPES.items():
            found.append((name, whole[at : at + rows * columns].reshape(rows, columns)))
            at += rows * columns
        return found

    def fill(self, seed: int) -> None:
        for i, layer in enumerate(self.layers):
            for name, whole in self.wholes(seed, i):
                layer[name][:] = np.split(whole, N)[self.rank]

    def check(self, seed: int) -> str:
        for i, layer in enumerate(self.layers):
            wanted: dict[str, list[np.ndarray]] = {name: [] for name in FUSED}
            for (_, whole), part in zip(self.wholes(seed, i), PARTS):
                wanted[part].append(np.split(whole, N, axis=part in ("o", "down"))[self.rank])
            bad = [name for name, shards in wanted.items() if not np.array_equal(layer[name], np.concatenate(shards))]
            if bad:
                return f"bad {bad[0]} of layer {i}"
        return "ok"


class Heft:
    def __init__(self, rank: Rank):
        import heft

        self.heft, self.rank, self.info, self.version = heft, rank, "-", 0
        if rank.option:
            os.environ["HEFT_TRANSPORT"] = rank.option
        if rank.is_sender and rank.rank == 0:
            self.coordinator = heft.Coordinator()
            self.info = self.coordinator.url

    def tensors(self, form: str) -> dict[str, object]:
        return {form.format(i, name): self.heft.view_as(tensor, self.heft.DType.BF16, tensor.shape)
                for i, layer in enumerate(self.rank.layers) for name, tensor in layer.items()}

    def connect(self, url: str) -> None:
        heft, rank = self.heft, self.rank.rank
        self.url = url
        if self.rank.is_sender:
            held = heft.held_by(self.tensors("model.layers.{}.{}.weight"), heft.Mesh({"fsdp": N}, rank), {"*": ("fsdp",)},
                                rank=rank, n_ranks=N)
            self.publisher = heft.Publisher(url, held)
            return
        self.subscriber = heft.Subscriber.create(url, heft.Recipe.parse(RECIPE), heft.Bindings({}),
                                                 self.tensors("model.layers.{}.{}"), member=heft.Member(rank=rank))
        threading.Thread(target=self.poll, daemon=True).start()

    def poll(self) -> None:
        while True:
            self.subscriber.poll(100)

    def go(self) -> None:
        if self.rank.is_sender:
            if self.version == 0:
                self.heft.client.await_destinations(N, self.url)
            self.version += 1
            self.publisher.push(self.version)

    def close(self) -> None:
        os._exit(0)


class Gloo:
    """Bytes: gloo knows no bf16."""

    def __init__(self, rank: Rank):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist, self.rank, self.info = torch, dist, rank, "-"
        if rank.is_sender and rank.rank == 0:
            self.store = dist.TCPStore("127.0.0.1", 0, 2 * N, is_master=True, wait_for_workers=False)
            self.info = str(self.store.port)

    def connect(self, port: str) -> None:
        dist, rank = self.dist, self.rank
        store = self.store if self.info != "-" else dist.TCPStore("127.0.0.1", int(port), 2 * N, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank.rank + (0 if rank.is_sender else N), world_size=2 * N)
        self.trainers = dist.new_group(list(range(N)))
        self.receivers = dist.new_group([0, *range(N, 2 * N)])
        self.whole = self.torch.from_numpy(allocate(max(2 * rows * columns for rows, columns in SHAPES.values())))

    def go(self) -> None:
        for layer in self.rank.layers:
            for i, (name, (rows, columns)) in enumerate(SHAPES.items()):
                whole = self.whole[: 2 * rows * columns]
                if self.rank.is_sender:
                    shard = self.torch.from_numpy(layer[name].reshape(-1).view(np.uint8))
                    self.dist.all_gather(list(whole.chunk(N)), shard, group=self.trainers)
                if not self.rank.is_sender or self.rank.rank == 0:
                    self.dist.broadcast(whole, 0, group=self.receivers)
                if not self.rank.is_sender:
                    self.load(layer, i, whole.view(self.torch.int16).reshape(rows, columns))

    def load(self, layer: dict[str, np.ndarray], i: int, whole: object) -> None:
        """As a weight loader does: one narrow() and one copy_() for each tensor that has come."""
        rank, (rows, columns) = self.rank.rank, whole.shape
        part = self.torch.from_numpy(layer[PARTS[i]].view(np.int16))
        if PARTS[i] in ("o", "down"):
            part.copy_(whole.narrow(1, rank * columns // N, columns // N))
        else:
            first = (i - PARTS.index(PARTS[i])) * rows // N
            part.narrow(0, first, rows // N).copy_(whole.narrow(0, rank * rows // N, rows // N))

    def close(self) -> None:
        self.dist.destroy_process_group()


class Group:
    """The eight processes of a row."""

    def __init__(self, row: Row, arguments: object, n_bytes: int):
        self.ends = []
        environment = {"PYTHONPATH": str(arguments.build / "python"), "OMP_NUM_THREADS": "1"} | row.environment
        for role in ("send", "recv"):
            for rank in range(N):
                self.ends.append(End([arguments.python, str(HERE / "ranks.py"), role, str(n_bytes), f"{row.program}:{rank}:{row.option}"],
                                     environment))
        infos = [end.hear().removeprefix("hello ") for end in self.ends]
        self.all(f"peer {infos[0]}", "ready")

    def all(self, line: str, wanted: str, ends: slice = slice(None)) -> None:
        for end in self.ends[ends]:
            end.say(line)
        answers = [end.hear() for end in self.ends[ends]]
        if any(answer != wanted for answer in answers):
            raise Failed(f"{line}: {answers}")

    def move(self, seed: int) -> float:
        self.all(f"fill {seed}", "ok", slice(N))
        began = time.perf_counter()
        self.all("go", "ok")
        seconds = time.perf_counter() - began
        self.all(f"check {seed}", "ok", slice(N, None))
        return seconds


def measure(row: Row, arguments: object, n_bytes: int, seed: int) -> list[float]:
    """The first version connects and warms, the others count."""
    group = Group(row, arguments, n_bytes)
    try:
        group.move(seed)
        return [group.move(seed + i) for i in range(1, arguments.repeat + 1)]
    finally:
        for end in group.ends:
            end.end()


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("send", "recv"):
        converse(Rank)
        return
    arguments = parse()
    n_bytes = n_layers(arguments.bytes) * LAYER_BYTES
    rows = [row for row in ROWS if not arguments.only or any(part in row.name for part in arguments.only)]
    seconds: dict[str, list[float]] = {row.name: [] for row in rows}
    for turn in range(arguments.rounds):
        for number, row in enumerate(rows):
            seconds[row.name] += measure(row, arguments, n_bytes, 1 + 1000 * turn + 20 * number)
            print(f"round {turn + 1}: {row.name}: {[round(t, 3) for t in seconds[row.name]]}", file=sys.stderr, flush=True)
    push = statistics.median(seconds[rows[0].name])
    print(f"{n_bytes / 1e9:.2f} GB, {arguments.rounds} rounds of {arguments.repeat}\n")
    print("| | over | s, median | least to most | x heft push |\n|---|---|---|---|---|")
    for row in rows:
        times = sorted(seconds[row.name])
        median = statistics.median(times)
        print(f"| {row.name} | {row.over} | {median:.3f} | {times[0]:.3f} to {times[-1]:.3f} | {median / push:.2f} |")


if __name__ == "__main__":
    main()

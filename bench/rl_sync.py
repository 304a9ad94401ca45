# SPDX-License-Identifier: Apache-2.0
"""A sync between a trainer process and an engine process: heft, and what is done without it.

rl_sync.py MODEL [--engine transformers|vllm] [--repeat N]

The same weights, processes and machine, one after the other, the best of N:
  push        a round of heft into the engine's parameters, verified and made live at once
  broadcast   one gloo broadcast for each tensor, then the engine's loader over what arrived
  checkpoint  the trainer saves a state dict to memory (/dev/shm), the engine reads and loads it
Also: the engine's loader alone, over tensors that it has already.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import heft
import heft.torch

Ask = Callable[..., None]


def trainer(folder: str, url: str, store: str, repeat: int, pipe: object) -> None:
    """Sends; measures from the moment its weights are ready until the engine has them."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tensors = {name: tensor.detach() for name, tensor in heft.torch.tensors_of(model).items()}
    pipe.recv()  # the engine is up and does no collectives of its own
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=2)
    shared = pathlib.Path("/dev/shm") / f"heft-rl-sync-{os.getpid()}"
    best: dict[str, float] = {}

    def measure(name: str, once: Callable[[], None]) -> None:
        for _ in range(repeat):
            with torch.no_grad():
                for tensor in tensors.values():
                    tensor.mul_(-1)  # another version: nothing can be skipped
            started = time.perf_counter()
            once()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - started)

    version = iter(range(1, 1000))
    with heft.ModulePublisher(model, url=url) as publisher:
        pipe.send("push")
        pipe.recv()
        measure("push", lambda: publisher.push(next(version)))
        pipe.send("done")
        pipe.recv()

    def ask(request: str) -> None:
        pipe.send(request)
        assert pipe.recv() == "loaded"

    def broadcast() -> None:
        pipe.send("broadcast")
        for tensor in tensors.values():
            dist.broadcast(tensor, 0)
        assert pipe.recv() == "loaded"

    def checkpoint() -> None:
        torch.save(tensors, shared)
        ask(f"checkpoint {shared}")

    try:
        measure("broadcast", broadcast)
        measure("checkpoint", checkpoint)
        measure("loader alone", lambda: ask("again"))
    finally:
        shared.unlink(missing_ok=True)
    pipe.send("end")
    n_bytes = sum(tensor.nbytes for tensor in tensors.values())
    print(f"{n_bytes / 1e6:.0f} MB in {len(tensors)} tensors, one thread each, best of {repeat}:")
    for name, seconds in best.items():
        print(f"  {name:12} {seconds * 1e3:7.1f} ms  {seconds / best['push']:5.2f} x push")
    sys.stdout.flush()


def engine(name: str, folder: str, url: str, store: str, pipe: object) -> None:
    """Receives, into the model of an engine."""
    from transformers import AutoConfig

    from heft import engines
    from heft.engines.transformers import checkpoint_names
    from heft.trace import trace

    torch.set_num_threads(1)
    plugin = engines.get(name)
    config = AutoConfig.from_pretrained(folder, dtype=torch.bfloat16)
    model = plugin.build(config)
    if dist.is_initialized():
        dist.destroy_process_group()  # what build() needed; the real one follows
    names = checkpoint_names(config)
    received = {n: torch.empty(t.shape, dtype=t.dtype) for n, t in names.items()}
    traced = trace(model, names, load=lambda weights: plugin.load(model, weights))

    def load() -> None:
        with torch.no_grad(), contextlib.redirect_stderr(open(os.devnull, "w")):
            plugin.load(model, received.items())

    pipe.send("up")
    dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
    assert pipe.recv() == "push"
    with heft.LiveModel(model, traced, url=url):
        pipe.send("ready")
        assert pipe.recv() == "done"
    pipe.send("left")
    for request in _requests(pipe):
        if request == "broadcast":
            for tensor in received.values():
                dist.broadcast(tensor, 0)
        elif request != "again":
            received.update(torch.load(request.split()[1], mmap=True))
        load()
        pipe.send("loaded")


def _requests(pipe: object) -> Iterator[str]:
    while (request := pipe.recv()) != "end":
        yield request


def main() -> None:
    args = _arguments()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with heft.Coordinator() as coordinator, tempfile.TemporaryDirectory():
        url = coordinator.url
        processes = [
            context.Process(target=trainer, args=(args.model, url, store, args.repeat, ours)),
            context.Process(target=engine, args=(args.engine, args.model, url, store, theirs)),
        ]
        print(f"engine: {args.engine}", flush=True)
        for process in processes:
            process.start()
        for process in processes:
            process.join(600)
        if any(process.exitcode != 0 for process in processes):
            for process in processes:
                process.kill()
            raise SystemExit(f"exit codes {[process.exitcode for process in processes]}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a checkpoint, such as build/demo/model")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--repeat", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A live fleet of a sharded trainer and a sharded engine: each rank sends its own part.

Four trainer processes (FSDP2 and tensor parallelism over gloo) push into two engine ranks, whose
own loader was traced. The judge is that loader, run on the weights gathered for that alone.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import heft
from heft.torch import manifest_of
from heft.trace import trace

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "sharded_trainer"
sys.path.insert(0, str(EXAMPLE))
from engine_model import EngineModel  # noqa: E402
from trainer_model import SIZES, TrainerModel, shard  # noqa: E402

TP, TRAINERS = 2, 4
LARGE = {"vocab": 1 << 16, "d": 256, "d_kv": 16, "d_inner": 64, "n_layers": 1}
WHOLE_BYTES = LARGE["vocab"] * LARGE["d"] * 4  # of its largest tensor: 64 MiB
DEADLINES = {"poll_ms": 200, "contact_ms": 60_000}


# ---- the trainer's ranks ----


def trained(sizes: dict[str, int]) -> tuple[TrainerModel, DeviceMesh]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(11)
    return shard(TrainerModel(**sizes), mesh), mesh


def change(model: torch.nn.Module, version: int) -> None:
    """In the place of a step: every element gets another value, the same on all copies of it."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25).add_(version / 8)


def whole_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def push_twice(rank: int, url: str) -> list[Any]:
    """The whole weights after the last push, gathered for the judge, and what the pushes said."""
    model, mesh = trained(SIZES)
    results = []
    with heft.ModulePublisher(model, url=url, mesh=mesh) as publisher:
        for version in (1, 2):
            change(model, version)
            result = publisher.push(version)
            results.append((result.version, result.state, result.n_destinations))
    whole = whole_of(model)  # every rank takes part
    return [results, whole if rank == 0 else None]


def memory_of(field: str) -> int:
    """Bytes of this process: VmHWM, the most it has had; RssShmem, shared memory it sees."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def push_large(rank: int, url: str) -> int:
    """By how many bytes a rank's memory grew at most, from the module to a committed version.

    The engines' staging memory, which it writes into, is theirs and is not counted.
    """
    model, mesh = trained(LARGE)
    dist.barrier()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget what the peak was
    before = memory_of("VmHWM")
    with heft.ModulePublisher(model, url=url, mesh=mesh) as publisher:
        publisher.push(1)
        assert publisher.copied_bytes == 0
        return memory_of("VmHWM") - before - memory_of("RssShmem")


# ---- the engine's ranks ----


@contextlib.contextmanager
def engines(url: str, sizes: dict[str, int]) -> Iterator[list[heft.LiveModel]]:
    with torch.device("meta"):
        sent = manifest_of(TrainerModel(**sizes))
    with contextlib.ExitStack() as stack:
        found = []
        for rank in range(TP):
            model = EngineModel(**sizes, rank=rank, tp=TP)
            contract = trace(model, sent, rank=rank).contract(partial=True)
            member = heft.Member(rank=rank)
            live = heft.LiveModel(model, contract, url=url, member=member)
            found.append(stack.enter_context(live))
        heft.client.await_destinations(TP, url)
        yield found


@pytest.fixture
def coordinator() -> Iterator[heft.Coordinator]:
    with heft.Coordinator(deadlines=DEADLINES) as one:
        yield one


@pytest.mark.timeout(280)
def test_shards_arrive_as_the_loader_would_have_made_them(
    coordinator: heft.Coordinator, tmp_path: pathlib.Path
) -> None:
    with engines(coordinator.url, SIZES) as live:
        found = run_ranks(TRAINERS, tmp_path, push_twice, coordinator.url)
        for results, _ in found:
            assert results == [(1, "committed", TP), (2, "committed", TP)]
        for rank, one in enumerate(live):
            fresh = EngineModel(**SIZES, rank=rank, tp=TP)
            fresh.load_weights(found[0][1].items())
            with one.gate.serving(timeout=60) as version:
                assert version == 2
                for name, parameter in fresh.named_parameters():
                    assert torch.equal(one.model.get_parameter(name), parameter), name


@pytest.mark.timeout(280)
def test_no_rank_needs_memory_for_a_whole_tensor(
    coordinator: heft.Coordinator, tmp_path: pathlib.Path
) -> None:
    with engines(coordinator.url, LARGE) as live:
        grown = run_ranks(TRAINERS, tmp_path, push_large, coordinator.url)
        assert max(grown) < WHOLE_BYTES // 4, grown  # less than its own share of that tensor
        for one in live:
            with one.gate.serving(timeout=60) as version:
                assert version == 1

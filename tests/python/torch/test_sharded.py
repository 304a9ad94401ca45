# SPDX-License-Identifier: Apache-2.0
"""What ranks of a trainer hold: real DTensors over gloo, each element judged against the tensor.

Each rank is a process. It says what it holds and hands over its tensors; here every element of
every box is compared with the whole tensor, and all boxes together must hold each element as often
as there are copies.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gloo_ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import heft
import heft.torch
from heft import errors

pytestmark = pytest.mark.timeout(280)  # processes that import a framework on a busy machine


class Entry(NamedTuple):
    """One tensor of a rank, as it is declared."""

    rank: int
    name: str
    part: heft.Part | None
    values: np.ndarray
    manifest: str  # of the rank


def entries_of(held: heft.Held) -> list[Entry]:
    manifest = held.manifest.to_json() if held.tensors else ""
    return [
        Entry(held.rank, name, held.manifest.part(name), tensor.numpy().copy(), manifest)
        for name, tensor in held.tensors.items()
    ]


def judge(entries: list[Entry], whole: dict[str, np.ndarray], copies: dict[str, int]) -> None:
    """Every element is what the whole tensor says, and is held as often as there are copies."""
    seen = {name: np.zeros(array.shape, int) for name, array in whole.items()}
    holders: dict[tuple[str, int, tuple[int, ...]], int] = {}
    for entry in entries:
        assert entry.part is not None, entry.name
        name, array = entry.part.tensor, whole[entry.part.tensor]
        assert entry.part.shape == array.shape
        shape = entry.values.shape
        at = tuple(slice(b, b + n) for b, n in zip(entry.part.begin, shape, strict=True))
        np.testing.assert_array_equal(entry.values, array[at], err_msg=f"{entry}")
        seen[name][at] += 1
        key = (name, entry.part.replica, entry.part.begin)
        assert holders.setdefault(key, entry.rank) == entry.rank, f"{key} of two ranks"
    for name, counts in seen.items():
        assert (counts == copies.get(name, 1)).all(), f"{name}: {counts}"


def put_together(entries: list[Entry], whole: dict[str, np.ndarray]) -> None:
    """A plan that reads what the ranks hold makes the whole tensors, and nothing else is there."""
    ranks = sorted({entry.rank for entry in entries})
    by_rank = {entry.rank: entry.manifest for entry in entries}
    manifests = [heft.Manifest.from_json(by_rank[rank]) for rank in ranks]
    placement, tensors = heft.Placement.from_sources(manifests)
    assert placement is not None
    assert {info.name: info.shape for info in tensors} == {n: a.shape for n, a in whole.items()}
    tape = heft.Recipe.load("identity").compile(heft.Bindings(), tensors)
    plan = heft.Plan.create([placement.apply(tape)])
    sources = {f"rank-{ranks.index(e.rank)}.{e.name}": e.values for e in entries}
    made = {name: np.zeros_like(array) for name, array in whole.items()}
    heft.execute(plan, sources, made)
    for name, array in whole.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)


# ---- placements, on four ranks ----

S, R, SS = Shard, Replicate, _StridedShard
PLACEMENTS: list[tuple[tuple[int, ...], tuple[int, ...], list[Placement], int]] = [
    # mesh, shape, placements, copies
    ((4,), (10, 3), [S(0)], 1),  # 3, 3, 3, 1
    ((4,), (3, 2), [S(0)], 1),  # the last rank has nothing
    ((4,), (5, 4), [R()], 4),
    ((4,), (), [R()], 4),
    ((4,), (2, 9), [S(1)], 1),
    ((2, 2), (10, 3), [S(0), S(0)], 1),
    ((2, 2), (10, 7), [S(0), S(1)], 1),
    ((2, 2), (10, 7), [S(1), S(0)], 1),
    ((2, 2), (6, 5), [R(), S(0)], 2),
    ((2, 2), (6, 5), [S(1), R()], 2),
    ((2, 2), (8, 3), [SS(0, split_factor=2), S(0)], 1),
    ((2, 2), (16, 3), [SS(0, split_factor=4), R()], 2),  # four boxes on each rank
    ((2, 2), (3, 16), [S(0), SS(1, split_factor=4)], 1),
]


def tensor_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(max(int(np.prod(shape)), 1), dtype=torch.float32).reshape(shape)


def hold_placements(rank: int) -> list[list[Entry]]:
    found = []
    for mesh_shape, shape, placements, _ in PLACEMENTS:
        mesh = init_device_mesh("cpu", mesh_shape)
        tensor = distribute_tensor(tensor_of(shape), mesh, placements)
        if not any(isinstance(p, _StridedShard) for p in placements):
            assert torch.equal(tensor.full_tensor(), tensor_of(shape))
        found.append(entries_of(heft.torch.held_by({"w": tensor})))
    return found


def shard_in_another_order(rank: int) -> list[Entry]:
    """Over the mesh's second dimension first: 5, 5 rows, and each of these 3, 2."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta

    mesh = init_device_mesh("cpu", (2, 2))
    whole = tensor_of((10, 3))
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    spec = DTensorSpec(mesh, (Shard(0), Shard(0)), tensor_meta=meta, shard_order=order)
    first, second = mesh.get_coordinate() or []
    local = whole.chunk(2)[second].chunk(2)[first].clone()
    tensor = DTensor(local, spec, requires_grad=False)
    return entries_of(heft.torch.held_by({"w": tensor}))


def refuse_sums(rank: int) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = DTensor.from_local(torch.ones(4, 2), mesh, [Replicate(), Partial()])
    with pytest.raises(errors.ArgumentError) as caught:
        heft.torch.held_by({"head.weight": tensor})
    return str(caught.value)


def hold_part_of_the_mesh(rank: int) -> dict[str, Any]:
    """Ranks 2 and 3 have a mesh of their own; what lies on it is nothing to the others."""
    mesh = DeviceMesh("cpu", [2, 3])
    local = tensor_of((4, 2)).chunk(2)[rank % 2]
    tensor = DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size((4, 2)), stride=(2, 1))
    return heft.torch.held_by({"w": tensor}).parts


# ---- modules ----


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("steps", torch.tensor([3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(self.up(x).relu()))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.w.to_local() if isinstance(self.w, DTensor) else self.w
        return torch.einsum("bd,edf->bf", x, w)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


def state_of(make: Callable[[], nn.Module]) -> dict[str, np.ndarray]:
    return {name: t.detach().numpy().copy() for name, t in seeded(make).state_dict().items()}


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block())


def fsdp(rank: int) -> list[Entry]:
    model, mesh = seeded(blocks), init_device_mesh("cpu", (4,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 6)).sum()  # the parameters of the last one are whole after a forward pass
    return entries_of(heft.torch.held_by(model, mesh=mesh))


def hsdp(rank: int) -> list[Entry]:
    model, mesh = seeded(blocks), init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    fully_shard(model, mesh=mesh)
    return entries_of(heft.torch.held_by(model, mesh=mesh))


def parallelized(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tensor_parallel(rank: int) -> list[Entry]:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    return entries_of(heft.torch.held_by(parallelized(seeded(blocks), mesh), mesh=mesh))


def fsdp_and_tensor_parallel(rank: int) -> list[Entry]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelized(seeded(blocks), mesh["tp"])
    for block in model:
        fully_shard(block, mesh=mesh["dp"])
    model(torch.ones(2, 6)).sum().backward()
    return entries_of(heft.torch.held_by(model, mesh=mesh))


def hsdp_and_tensor_parallel(rank: int) -> list[Entry]:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("copy", "shard", "tp"))
    model = parallelized(seeded(blocks), mesh["tp"])
    for block in model:
        fully_shard(block, mesh=mesh["copy", "shard"])
    return entries_of(heft.torch.held_by(model, mesh=mesh))


def expert_parallel(rank: int) -> list[Entry]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    model = seeded(Experts)
    model.w = nn.Parameter(distribute_tensor(model.w.data, mesh["ep"], [Shard(0)]))
    fully_shard(model, mesh=mesh["dp"])
    return entries_of(heft.torch.held_by(model, mesh=mesh))


def no_mesh_is_given(rank: int) -> str:
    """What lies on a part of the mesh is this rank's alone, unless it is said to be a copy."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = seeded(blocks)
    fully_shard(model, mesh=mesh["dp"])
    return heft.torch.held_by(model).manifest.to_json()


MODELS: dict[Callable[[int], list[Entry]], tuple[Callable[[], nn.Module], dict[str, int]]] = {
    fsdp: (blocks, {"*": 1, "steps": 4}),
    hsdp: (blocks, {"*": 2, "steps": 4}),
    tensor_parallel: (blocks, {"*": 1, "norm": 4, "down.bias": 4, "steps": 4}),
    fsdp_and_tensor_parallel: (blocks, {"*": 1, "norm": 2, "down.bias": 2, "steps": 4}),
    expert_parallel: (Experts, {"*": 1}),
}


def copies_of(name: str, counts: dict[str, int]) -> int:
    return next((n for key, n in counts.items() if key in name), counts["*"])


# ---- the ranks run everything in one go ----


def everything(rank: int) -> dict[str, Any]:
    bodies = [hold_placements, shard_in_another_order, refuse_sums, hold_part_of_the_mesh]
    return {body.__name__: body(rank) for body in [*bodies, *MODELS, no_mesh_is_given]}


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Callable[[Callable[[int], Any]], list[Any]]]:
    """Of a function: what it returned on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(4, pathlib.Path(folder), everything)
    yield lambda function: [one[function.__name__] for one in found]


@pytest.mark.parametrize("case", range(len(PLACEMENTS)), ids=lambda i: str(PLACEMENTS[i][:3]))
def test_placements(four_ranks, case: int) -> None:
    _, shape, placements, copies = PLACEMENTS[case]
    entries = [e for rank in four_ranks(hold_placements) for e in rank[case]]
    judge(entries, {"w": tensor_of(shape).numpy()}, {"w": copies})
    put_together(entries, {"w": tensor_of(shape).numpy()})
    if any(isinstance(p, _StridedShard) and p.split_factor > 2 for p in placements):
        assert {entry.name for entry in entries} == {f"w.{k}" for k in range(4)}


def test_shards_made_in_another_order(four_ranks) -> None:
    entries = [e for rank in four_ranks(shard_in_another_order) for e in rank]
    judge(entries, {"w": tensor_of((10, 3)).numpy()}, {})
    assert {e.rank: e.part.begin[0] for e in entries} == {0: 0, 1: 5, 2: 3, 3: 8}


def test_a_sum_that_has_not_been_made_is_refused_by_name(four_ranks) -> None:
    for text in four_ranks(refuse_sums):
        assert '"head.weight"' in text
        assert 'dimension "tp"' in text
        assert "redistribute() it first" in text


def test_a_rank_outside_the_mesh_holds_nothing(four_ranks) -> None:
    assert [len(parts) for parts in four_ranks(hold_part_of_the_mesh)] == [0, 0, 1, 1]


@pytest.mark.parametrize("body", MODELS, ids=lambda body: body.__name__)
def test_modules(four_ranks, body: Callable[[int], list[Entry]]) -> None:
    make, counts = MODELS[body]
    whole = state_of(make)
    entries = [entry for rank in four_ranks(body) for entry in rank]
    judge(entries, whole, {name: copies_of(name, counts) for name in whole})
    put_together(entries, whole)


def test_eight_ranks_of_three_dimensions(tmp_path: pathlib.Path) -> None:
    entries = [e for rank in run_ranks(8, tmp_path, hsdp_and_tensor_parallel) for e in rank]
    counts = {"*": 2, "norm": 4, "down.bias": 4, "steps": 8}
    whole = state_of(blocks)
    judge(entries, whole, {name: copies_of(name, counts) for name in whole})
    put_together(entries, whole)


def test_a_copy_is_declared_not_guessed(four_ranks) -> None:
    """Without the mesh two ranks say the same box, and nothing says that it is a copy."""
    manifests = [heft.Manifest.from_json(text) for text in four_ranks(no_mesh_is_given)]
    with pytest.raises(errors.ExistsError) as caught:
        heft.Placement.from_sources(manifests)
    text = str(caught.value) + "".join(caught.value.issues)
    assert "without a replica index" in text
    assert "0.steps" in text  # a plain tensor of the same name on every rank


def test_a_module_that_is_not_sharded_is_held_whole() -> None:
    """Without torch.distributed a module is one rank's, as before."""
    held = heft.torch.held_by(nn.Linear(2, 3))
    assert (held.rank, held.n_ranks, held.parts) == (0, 0, {})
    assert held.manifest.digest == heft.torch.manifest_of(nn.Linear(2, 3)).digest

# SPDX-License-Identifier: Apache-2.0
"""From a trainer's shards straight to an engine's: recipe, loader and placement as one tape.

Four processes hold DTensors of a trainer whose tree is no checkpoint's (layers stacked, kernels
transposed, float32). A recipe makes checkpoint tensors of it, an engine's own loader, traced, makes
its parameters of those. Nothing of what is in between is ever there. The judge is the real loader,
run on real checkpoint tensors.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gloo_ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

import heft
import heft.torch
from heft import errors
from heft.trace import Trace, trace

pytestmark = pytest.mark.timeout(280)  # processes that import a framework on a busy machine
EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "sharded_trainer"
sys.path.insert(0, str(EXAMPLE))
from engine_model import EngineModel  # noqa: E402

SIZES = {"vocab": 24, "d": 8, "d_kv": 4, "d_inner": 20, "n_layers": 3}
TP = 2
RECIPE = """
"embedding" [v, d] -> "embed.weight" [v, d]
"layers.q.kernel" [d, l, f] -> "layers.{l}.q_proj.weight" [f, d]
"layers.k.kernel" [d, l, f] -> "layers.{l}.k_proj.weight" [f, d]
"layers.v.kernel" [d, l, f] -> "layers.{l}.v_proj.weight" [f, d]
"layers.o.kernel" [f, l, d] -> "layers.{l}.o_proj.weight" [d, f]
"layers.wi_0" [d, l, f] -> "layers.{l}.gate_proj.weight" [f, d]
"layers.wi_1" [d, l, f] -> "layers.{l}.up_proj.weight" [f, d]
"layers.wo" [f, l, d] -> "layers.{l}.down_proj.weight" [d, f]
"layers.input_norm" [l, d] -> "layers.{l}.input_norm.weight" [d]
"layers.mlp_norm" [l, d] -> "layers.{l}.mlp_norm.weight" [d]
"norm" [d] -> "norm.weight" [d]
dtype bf16
"""
PROJECTIONS = {
    "q_proj": "q.kernel",
    "k_proj": "k.kernel",
    "v_proj": "v.kernel",
    "o_proj": "o.kernel",
    "gate_proj": "wi_0",
    "up_proj": "wi_1",
    "down_proj": "wo",
}
S, R = Shard, Replicate
PLACED: dict[str, list[Placement]] = {  # on a mesh of 2 x 2: FSDP, tensor parallelism
    "embedding": [S(0), S(0)],
    "layers.q.kernel": [S(0), S(2)],
    "layers.k.kernel": [S(0), S(2)],
    "layers.v.kernel": [S(1), S(2)],  # 3 layers over 2 ranks
    "layers.o.kernel": [S(2), S(0)],
    "layers.wi_0": [S(0), S(2)],
    "layers.wi_1": [S(2), S(2)],
    "layers.wo": [S(1), R()],
    "layers.input_norm": [R(), S(0)],
    "layers.mlp_norm": [R(), R()],
    "norm": [S(0), R()],
}


def tree() -> dict[str, torch.Tensor]:
    """The trainer's tensors, whole: known to the judge, and to each rank by its seed."""
    n, d, d_kv, f = (SIZES[k] for k in ("n_layers", "d", "d_kv", "d_inner"))
    shapes = {
        "embedding": (SIZES["vocab"], d),
        "layers.q.kernel": (d, n, d),
        "layers.k.kernel": (d, n, d_kv),
        "layers.v.kernel": (d, n, d_kv),
        "layers.o.kernel": (d, n, d),
        "layers.wi_0": (d, n, f),
        "layers.wi_1": (d, n, f),
        "layers.wo": (f, n, d),
        "layers.input_norm": (n, d),
        "layers.mlp_norm": (n, d),
        "norm": (d,),
    }
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def checkpoint() -> dict[str, torch.Tensor]:
    """What the recipe describes, written down as PyTorch."""
    own = tree()
    made = {"embed.weight": own["embedding"], "norm.weight": own["norm"]}
    for i in range(SIZES["n_layers"]):
        for name, kernel in PROJECTIONS.items():
            made[f"layers.{i}.{name}.weight"] = own[f"layers.{kernel}"][:, i].T
        for name in ("input_norm", "mlp_norm"):
            made[f"layers.{i}.{name}.weight"] = own[f"layers.{name}"][i]
    return {name: tensor.to(torch.bfloat16) for name, tensor in made.items()}


def hold(rank: int) -> tuple[str, dict[str, np.ndarray]]:
    mesh = init_device_mesh("cpu", (2, 2))
    placed = {name: distribute_tensor(t, mesh, PLACED[name]) for name, t in tree().items()}
    held = heft.torch.held_by(placed)
    return held.manifest.to_json(), {n: t.contiguous().numpy() for n, t in held.tensors.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[heft.Manifest, dict[str, Any]]]:
    found = run_ranks(4, tmp_path_factory.mktemp("ranks"), hold)
    return [(heft.Manifest.from_json(text), tensors) for text, tensors in found]


def composed(whole: heft.Manifest) -> list[tuple[Trace, heft.Tape]]:
    """For each rank of the engine: its loader, behind the recipe."""
    recipe, bindings = heft.Recipe.parse(RECIPE, "tree"), heft.Bindings()
    middle = recipe.synthesize(bindings, whole)
    found = []
    for rank in range(TP):
        traced = trace(EngineModel(**SIZES, rank=rank, tp=TP), middle, rank=rank)
        loader = heft.Tape.from_json(traced.tape.to_json())
        found.append((traced, heft.Tape.chain(recipe.compile(bindings, whole), loader)))
    return found


def loaded(rank: int) -> dict[str, torch.Tensor]:
    """What the real loader makes of real checkpoint tensors."""
    engine = EngineModel(**SIZES, rank=rank, tp=TP)
    engine.load_weights(checkpoint().items())
    return {name: parameter.detach() for name, parameter in engine.named_parameters()}


def test_shards_become_what_the_real_loader_makes(ranks) -> None:
    placement, whole = heft.Placement.from_sources([manifest for manifest, _ in ranks])
    assert placement is not None
    tapes = [placement.apply(tape) for _, tape in composed(whole)]
    plan = heft.Plan.create(tapes)
    sources = {f"rank-{r}.{n}": a for r, (_, own) in enumerate(ranks) for n, a in own.items()}
    for rank in range(TP):
        wanted = loaded(rank)
        made = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        heft.execute(plan, sources, made, rank=rank)
        for name, tensor in wanted.items():
            assert torch.equal(made[name], tensor), name
            assert tensor.any(), name
    between = {"embed.weight", *(f"layers.{i}.q_proj.weight" for i in range(3))}
    assert not between & {info.name for info in plan.sources}


def test_the_chain_travels_in_a_contract(ranks) -> None:
    """As an engine declares it: with the whole tensors as sources, whoever holds them."""
    _, whole = heft.Placement.from_sources([manifest for manifest, _ in ranks])
    traced, tapes = zip(*composed(whole), strict=True)
    params = [one.params for one in traced]
    contract = heft.Contract.create(whole, destinations=params, tapes=tapes)
    again = heft.Contract.from_json(contract.to_json())
    assert not list(again.check())
    own = {name: tensor.numpy() for name, tensor in tree().items()}
    for rank in range(TP):
        made = {name: torch.zeros_like(tensor) for name, tensor in loaded(rank).items()}
        heft.execute(again.plan(), own, made, rank=rank)
        for name, tensor in loaded(rank).items():
            assert torch.equal(made[name], tensor), name


def test_a_shard_that_no_rank_holds_refuses_before_anything_moves(ranks) -> None:
    with pytest.raises(errors.ProofError, match=r"embedding|layers\."):
        heft.Placement.from_sources([manifest for manifest, _ in ranks[:3]])

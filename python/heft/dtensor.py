# SPDX-License-Identifier: Apache-2.0
"""DTensors as boxes: what a rank of FSDP2, HSDP, tensor or expert parallelism holds of a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from heft._handles import argument_error
from heft.cuts import Box, Cut, CutRule, cut


class Shards(NamedTuple):
    """What this rank has of a tensor: boxes of its shape, all of them in one local tensor."""

    shape: tuple[int, ...]
    boxes: list[Box]  # none: nothing
    local: torch.Tensor
    n_copies: int = 1  # how often the mesh holds each element
    replica: int = 0  # which of these this is

    @property
    def is_whole(self) -> bool:
        return tuple(self.local.shape) == self.shape


def whole(tensor: torch.Tensor) -> Shards:
    """A plain tensor."""
    shape = tuple(tensor.shape)
    return Shards(shape, cut(shape, [])[1], tensor.detach())


def shards_of(name: str, tensor: DTensor) -> Shards | None:
    """None: this rank is not in the tensor's mesh. Placements are read by mesh positions alone."""
    position = tensor.device_mesh.get_coordinate()
    if position is None:
        return None
    shape = tuple(tensor.shape)
    local = local_of(name, tensor)
    extents, boxes = cut(shape, list(_cuts_of(name, tensor, position)))
    if boxes and extents != tuple(local.shape):
        raise argument_error(
            f'tensor "{name}": {_text_of(tensor)} leaves {list(extents)} of {list(shape)} to '
            f"position {list(position)}, its local tensor is {list(local.shape)}"
        )
    n_copies, replica = 1, 0
    for dim, placement in enumerate(tensor.placements):
        if isinstance(placement, Replicate):
            n = tensor.device_mesh.size(dim)
            n_copies, replica = n_copies * n, replica * n + position[dim]
    return Shards(shape, boxes, local, n_copies, replica)


def local_of(name: str, tensor: DTensor) -> torch.Tensor:
    with torch.no_grad():
        local: Any = tensor.to_local()
    if isinstance(local, AsyncCollectiveTensor):
        local = local.wait()
    if hasattr(local, "local_shards"):  # a wrapper of several, which has no memory itself
        raise argument_error(f'tensor "{name}": its local tensor is a {type(local).__name__}')
    found: torch.Tensor = local.detach()
    return found


def _cuts_of(name: str, tensor: DTensor, position: list[int]) -> Iterator[Cut]:
    """In the order in which the shards were made, which need not be that of the mesh."""
    placements, mesh = tensor.placements, tensor.device_mesh
    for dim, placement in enumerate(placements):
        if isinstance(placement, Partial):
            raise argument_error(
                f'tensor "{name}": it is {_text_of(tensor)}: over {_axis_name(mesh, dim)} of the '
                "mesh it is a sum whose terms the ranks hold; redistribute() it first"
            )
        if not isinstance(placement, Replicate | Shard | _StridedShard):
            raise argument_error(f'tensor "{name}": {placement} is not known')
    order = getattr(tensor._spec, "shard_order", None)
    if order is None:
        dims = list(range(len(placements)))
    else:
        dims = [dim for entry in order for dim in entry.mesh_dims]
    for dim in dims:
        placement = placements[dim]
        if isinstance(placement, Shard | _StridedShard):
            n_blocks = placement.split_factor if isinstance(placement, _StridedShard) else 1
            n = mesh.size(dim)
            yield Cut(placement.dim, n, position[dim], int(n_blocks), CutRule.CEIL)


def _axis_name(mesh: DeviceMesh, dim: int) -> str:
    names = mesh.mesh_dim_names
    return f'dimension "{names[dim]}"' if names else f"dimension {dim}"


def _text_of(tensor: DTensor) -> str:
    placed = ", ".join(str(placement) for placement in tensor.placements)
    return f"[{placed}] on a mesh of {list(tensor.device_mesh.shape)}"


def copies_on(mesh: DeviceMesh, name: str, own: DeviceMesh | None) -> tuple[int, int]:
    """(How many copies a mesh holds of what lies on one of its sub-meshes, which one this is.)

    own: None, a plain tensor: each rank of the mesh has a copy.
    """
    position = mesh.get_coordinate()
    if position is None:
        raise argument_error(f'tensor "{name}": this rank is not in the mesh that was given')
    varies = _dims_of(mesh, name, own) if own is not None else set()
    n, i = 1, 0
    for dim, at in enumerate(position):
        if dim not in varies:
            n, i = n * mesh.size(dim), i * mesh.size(dim) + at
    return n, i


def _dims_of(mesh: DeviceMesh, name: str, own: DeviceMesh) -> set[int]:
    """The dimensions of a mesh along which one of its sub-meshes goes."""
    grid = itertools.product(*map(range, mesh.shape))
    places = dict(zip(mesh.mesh.flatten().tolist(), grid, strict=True))
    found: set[int] = set()
    first = None
    for rank in own.mesh.flatten().tolist():
        if rank not in places:
            raise argument_error(
                f'tensor "{name}": its mesh of {list(own.shape)} has rank {rank}, which mesh= of '
                f"{list(mesh.shape)} has not: give the mesh of all ranks that hold the model"
            )
        first = places[rank] if first is None else first
        found |= {dim for dim, at in enumerate(places[rank]) if at != first[dim]}
    n = math.prod(mesh.size(dim) for dim in found)
    if n != own.size():
        raise argument_error(
            f'tensor "{name}": its mesh of {own.size()} ranks lies across {n} of the one that was '
            f"given, of {list(mesh.shape)}"
        )
    return found

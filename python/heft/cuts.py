# SPDX-License-Identifier: Apache-2.0
"""Cuts: which boxes of a tensor a mesh of devices leaves to one rank (include/heft/cuts.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from heft._handles import argument_error, call
from heft._native import ffi, lib
from heft.dtypes import new_shape, shape_of


class CutRule(enum.IntEnum):
    """Where what is cut does not divide: 10 in 3 parts is ..."""

    EVEN = lib.HEFT_CUT_EVEN  # refused
    CEIL = lib.HEFT_CUT_CEIL  # (0, 4) (4, 8) (8, 10), as PyTorch's DTensor has it
    LAST = lib.HEFT_CUT_LAST  # (0, 3) (3, 6) (6, 10)


class Cut(NamedTuple):
    """One dimension of a mesh that shards one of a tensor's."""

    dim: int
    n_parts: int
    part: int  # the rank's position in that dimension of the mesh
    n_blocks: int = 1  # cut into so many blocks first; a part has its share of each
    rule: CutRule = CutRule.EVEN


class Box(NamedTuple):
    """A box of a tensor, and where it begins in the tensor that holds it."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    local: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in zip(self.begin, self.end, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where it lies in the tensor that holds it."""
        return tuple(
            slice(at, at + extent) for at, extent in zip(self.local, self.shape, strict=True)
        )


def cut(shape: Sequence[int], cuts: Iterable[Cut]) -> tuple[tuple[int, ...], list[Box]]:
    """What is left after these cuts, one after the other: its shape, and the boxes it is made of.

    No box where nothing is left; more than one only after cuts with blocks.
    """
    listed = [Cut(*one) for one in cuts]
    array = ffi.new("heft_cut_t[]", max(len(listed), 1))
    for out, one in zip(array, listed, strict=False):
        if min(one.n_parts, one.part, one.n_blocks) < 0:
            raise argument_error(f"a cut into {one.n_parts} parts, position {one.part}")
        out.dim, out.n_parts, out.part, out.n_blocks, out.rule = one
    whole, local, n = new_shape(shape, ""), ffi.new("heft_shape_t *"), ffi.new("uint32_t *")
    capacity = 1  # nearly always enough
    boxes = ffi.new("heft_cut_box_t[]", capacity)
    call(lib.heft_shape_cut, whole, array, len(listed), local, boxes, capacity, n)
    if n[0] > capacity:
        capacity = n[0]
        boxes = ffi.new("heft_cut_box_t[]", capacity)
        call(lib.heft_shape_cut, whole, array, len(listed), local, boxes, capacity, n)
    rank = len(shape)
    found = [
        Box(tuple(b.begin[0:rank]), tuple(b.end[0:rank]), tuple(b.local[0:rank]))
        for b in boxes[0 : n[0]]
    ]
    return shape_of(local), found


class Blocks(NamedTuple):
    """In a spec: a dimension of n blocks, of each of which a rank has its share of the axis."""

    axis: str
    n: int


# For each dimension of a tensor the axes of the mesh that shard it: None, one, several (the first
# one is the slowest), or one with blocks. Dimensions that are left out are not sharded.
Spec = Sequence[str | Blocks | Sequence[str] | None]


class Mesh:
    """Ranks as a grid with names for its axes, and the position of one rank in it.

    Positions are row-major: of rank r on {"dp": 2, "tp": 4} they are (r // 4, r % 4). Give another
    position where the numbers of the ranks are in another order, as those of a torus are.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        rank: int | None = None,
        *,
        position: Sequence[int] | None = None,
    ) -> None:
        self.axes = dict(axes)
        if (rank is None) == (position is None):
            raise argument_error("a mesh wants a rank or a position, and not both")
        at = _position_of(self.axes, rank) if rank is not None else tuple(position or ())
        if len(at) != len(self.axes):
            raise argument_error(f"position {list(at)} on a mesh of {len(self.axes)} axes")
        for (axis, n), i in zip(self.axes.items(), at, strict=True):
            if not 0 <= i < n:
                raise argument_error(f'position {i} on axis "{axis}" of {n}')
        self.position = dict(zip(self.axes, at, strict=True))

    def __repr__(self) -> str:
        return f"Mesh({self.axes}, position={list(self.position.values())})"

    def _place(self, axes: Iterable[str]) -> tuple[int, int]:
        """(how many positions these axes have together, which one this is)."""
        n, i = 1, 0
        for axis in axes:
            n, i = n * self.axes[axis], i * self.axes[axis] + self.position[axis]
        return n, i

    def cuts(self, spec: Spec, rule: CutRule = CutRule.EVEN) -> list[Cut]:
        """Several axes on one dimension cut it once, into as many parts as they have positions."""
        self._check(spec)
        cuts = []
        for dim, entry in enumerate(spec):
            axes, n_blocks = _axes_of(entry)
            if axes:
                n, i = self._place(axes)
                cuts.append(Cut(dim, n, i, n_blocks, rule))
        return cuts

    def replica(self, spec: Spec) -> int:
        """Which copy this rank has: its position on the axes that the spec does not name."""
        self._check(spec)
        used = {axis for entry in spec for axis in _axes_of(entry)[0]}
        return self._place(axis for axis in self.axes if axis not in used)[1]

    def _check(self, spec: Spec) -> None:
        named = [axis for entry in spec for axis in _axes_of(entry)[0]]
        for axis in named:
            if axis not in self.axes:
                raise argument_error(f'no axis "{axis}" in the mesh: it has {list(self.axes)}')
            if named.count(axis) > 1:
                raise argument_error(f'axis "{axis}" shards two dimensions of one tensor')


def _position_of(axes: Mapping[str, int], rank: int) -> tuple[int, ...]:
    position, left = [], rank
    for n in reversed(list(axes.values())):
        left, i = divmod(left, n)
        position.append(i)
    if left or rank < 0:
        raise argument_error(f"rank {rank} on a mesh of {dict(axes)}")
    return tuple(reversed(position))


def _axes_of(entry: str | Blocks | Sequence[str] | None) -> tuple[tuple[str, ...], int]:
    """(axes, blocks) of a dimension in a spec."""
    if entry is None:
        return (), 1
    if isinstance(entry, str):
        return (entry,), 1
    if isinstance(entry, Blocks):
        return (entry.axis,), entry.n
    return tuple(entry), 1

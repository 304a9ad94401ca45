# SPDX-License-Identifier: Apache-2.0
"""How long programs become when writes are folded into one another, and which become too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heft._native import lib
from heft.trace.log import Buffer, Call, Write

MAX_OPS: int = lib.HEFT_MAX_OPS
MAX_SOURCES: int = lib.HEFT_MAX_SOURCES


class Size(NamedTuple):
    """Of the longest program behind an element: source views, and operations on them."""

    loads: int
    ops: int


_LOAD = Size(1, 0)


def too_long(writes: Sequence[tuple[Call, Write]]) -> set[int]:
    """Maps and casts (by id) that would fold to a program that no tape holds.

    An upper bound: equal source views are counted each time, and casts that vanish are counted.
    """
    sizes: dict[Buffer, Size] = {}
    found: set[int] = set()
    for _, write in writes:
        size = _size(write, [sizes.get(src.buffer, _LOAD) for src in write.srcs])
        if size.loads > MAX_SOURCES or size.loads + size.ops > MAX_OPS:
            found.add(id(write))
            size = _LOAD
        for dst in write.dsts:
            before = sizes.get(dst.buffer, _LOAD)
            sizes[dst.buffer] = Size(max(before.loads, size.loads), max(before.ops, size.ops))
    return found


def _size(write: Write, srcs: Sequence[Size]) -> Size:
    if write.kind not in ("copy", "map"):
        return _LOAD
    own = sum(step.code != "LOAD" for step in write.program)
    if any(src.dtype != dst.dtype for dst in write.dsts for src in write.srcs):
        own += 1
    return Size(sum(s.loads for s in srcs), own + sum(s.ops for s in srcs))

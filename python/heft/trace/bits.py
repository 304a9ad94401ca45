# SPDX-License-Identifier: Apache-2.0
"""Writes through a view of another dtype, as programs over the elements that there are.

`x.view(torch.uint8)` of 4-byte elements is four writes: for byte b of every element, each of them a
regular view again, and a program that takes that byte. Seen as wide as they are, elements keep
their places. These fold, compose with casts and scales, and are proven element by element. Seen
wider than they are, or written narrower, they are put together from parts, which no program does:
retype.py has what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from heft.trace.casts import TAPE_DTYPES
from heft.trace.log import Region, Step, Write

_NO_BYTES = {torch.bool, torch.float4_e2m1fn_x2}


def as_programs(write: Write, dtypes: Sequence[torch.dtype]) -> list[Write] | None:
    """Writes that do the same; dtypes: of the buffers behind dst and srcs. None: there are none."""
    regions = [*write.dsts, *write.srcs]
    if len({region.dtype for region in regions}) == len(set(dtypes)) == 1 < len(regions):
        return None  # whole elements are moved
    if write.kind not in ("copy", "map", "fill", "const") or not _can_be_said(regions, dtypes):
        return None
    if write.kind in ("fill", "const"):
        value = write.value
        if isinstance(value, torch.Tensor):
            value = value.contiguous().view(dtypes[0])
        return [write._replace(dsts=(regions[0]._replace(dtype=dtypes[0]),), value=value)]
    return [
        _stored(write, part, dtypes) for part in _split(regions, dtypes, 1) if part[0].numel > 0
    ]


def _can_be_said(regions: Sequence[Region], dtypes: Sequence[torch.dtype]) -> bool:
    for i, (region, dtype) in enumerate(zip(regions, dtypes, strict=True)):
        if region.dtype == dtype:
            continue
        if {region.dtype, dtype} & _NO_BYTES or region.dtype not in TAPE_DTYPES:
            return False
        ratio, rest = divmod(dtype.itemsize, region.dtype.itemsize)
        if rest or ratio < 1 or (i == 0 and ratio != 1):
            return False
    return True


def _split(
    regions: Sequence[Region], dtypes: Sequence[torch.dtype], first: int
) -> Iterator[list[Region]]:
    """Parts in which every source, from number `first` on, takes the same byte of its elements."""
    for i in range(first, len(regions)):
        ratio = dtypes[i].itemsize // regions[i].dtype.itemsize
        for dim, stride in enumerate(regions[i].stride):
            if stride % ratio and regions[i].extent[dim] > 1:
                for rest in range(min(ratio, regions[i].extent[dim])):
                    yield from _split([_every(r, dim, rest, ratio) for r in regions], dtypes, i)
                return
    yield list(regions)


def _every(region: Region, dim: int, first: int, step: int) -> Region:
    """Elements first, first + step, .. of one dimension."""
    extent, stride = list(region.extent), list(region.stride)
    extent[dim] = -(-(extent[dim] - first) // step)
    stride[dim] *= step
    offset = region.offset + first * region.stride[dim]
    return region._replace(offset=offset, extent=tuple(extent), stride=tuple(stride))


def _stored(write: Write, regions: Sequence[Region], dtypes: Sequence[torch.dtype]) -> Write:
    """The same views in elements of the buffers, and a program that sees them otherwise."""
    dst, srcs = regions[0], regions[1:]
    seen: dict[int, Step] = {}
    stored: list[Region] = []
    for i, (src, dtype) in enumerate(zip(srcs, dtypes[1:], strict=True)):
        ratio = dtype.itemsize // src.dtype.itemsize
        if src.dtype != dtype:
            byte = src.offset % ratio * src.dtype.itemsize
            seen[i] = Step("BITS", src.dtype, arg=byte)
        stride = tuple(
            s // ratio if e > 1 else 0 for e, s in zip(src.extent, src.stride, strict=True)
        )
        stored.append(Region(src.buffer, src.offset // ratio, src.extent, stride, dtype))
    program: list[Step] = []
    for step in write.program or (Step("LOAD"),):
        program.append(step)
        if step.code == "LOAD" and step.arg in seen:
            program.append(seen[step.arg])
    if dst.dtype != dtypes[0]:
        program += [Step("CAST", dst.dtype), Step("BITS", dtypes[0])]
    dst = dst._replace(dtype=dtypes[0])
    return Write("map", (dst,), tuple(stored), program=tuple(program))

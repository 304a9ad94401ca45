# SPDX-License-Identifier: Apache-2.0
"""view(dtype): elements seen as another dtype than their buffer has.

A copy between two such views of one real dtype moves whole elements and needs nothing special, and
bits.py has what programs say. Everything else goes through heft.bits, which heft runs itself. That
kernel's result may be copied and cast, but not meet another tensor in one program; a trace that
needs that leaves the write to the engine's loader, as it does when a view holds parts of elements
of its buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from heft.trace.log import Buffer, Call, Region, Write

BITS = "heft.bits/1"


def in_elements_of(region: Region, dtype: torch.dtype) -> Region | None:
    """The region in elements of its buffer's dtype; None if it holds parts of elements."""
    have, want = region.dtype.itemsize, dtype.itemsize
    if have == want:
        return region._replace(dtype=dtype)
    if have > want:  # each element is several of the buffer's
        k = have // want
        return Region(
            region.buffer,
            region.offset * k,
            (*region.extent, k),
            (*(s * k for s in region.stride), 1),
            dtype,
        )
    k = want // have
    if not region.extent or region.stride[-1] != 1:
        return None
    if any(n % k for n in (region.offset, region.extent[-1], *region.stride[:-1])):
        return None
    return Region(
        region.buffer,
        region.offset // k,
        (*region.extent[:-1], region.extent[-1] // k),
        (*(s // k for s in region.stride[:-1]), 1),
        dtype,
    )


def temporary(extent: Sequence[int], dtype: torch.dtype) -> Region:
    """A buffer of the tape's own."""
    base = torch.empty(tuple(extent), dtype=dtype, device="meta")
    return Region(Buffer("temp", "", base, -1), 0, tuple(extent), base.stride(), dtype)


def take_bits(src: Region, real: torch.dtype, dtype: torch.dtype) -> tuple[Write, Region] | None:
    """The write that brings src, seen as dtype, to a temporary of dtype; and the temporary."""
    elements = in_elements_of(src, real)
    if elements is not None:
        out = temporary(src.extent, dtype)
        return Write("opaque", (out,), (elements,), op=BITS), out
    if src.buffer.kind != "source":
        return None
    n = src.buffer.numel  # parts of elements: all of the source, and the view on that
    whole = Region(src.buffer, 0, (n,), (1,), real)
    out = temporary((n * real.itemsize // dtype.itemsize,), dtype)
    seen = src._replace(buffer=out.buffer)
    return Write("opaque", (out,), (whole,), op=BITS), seen


def retyped_copy(write: Write, dst_real: torch.dtype, src_real: torch.dtype) -> list[Write] | None:
    """A copy with a view(dtype) on either side, as writes without; None if there are none."""
    (dst,), (src,) = write.dsts, write.srcs
    if dst.dtype == src.dtype and dst_real == src_real:
        pair = in_elements_of(dst, dst_real), in_elements_of(src, src_real)
        if pair[0] is not None and pair[1] is not None:
            return [Write("copy", (pair[0],), (pair[1],))]
    writes: list[Write] = []
    if src.dtype != src_real:
        taken = take_bits(src, src_real, src.dtype)
        if taken is None:
            return None
        writes.append(taken[0])
        src = taken[1]
    if dst.dtype == dst_real:
        return [*writes, Write("copy", (dst,), (src,))]
    to = in_elements_of(dst, dst_real)
    if to is None:
        return None
    if (
        src.dtype != dst.dtype or writes
    ):  # cast first; and one kernel does not read another's result
        return None
    bits = temporary(to.extent, dst_real)
    return [Write("opaque", (bits,), (src,), op=BITS), Write("copy", (to,), (bits,))]


def retyped_fill(write: Write, real: torch.dtype) -> list[Write] | None:
    """A fill through a view(dtype): of zeros, or of a pattern that repeats in the real dtype."""
    (dst,) = write.dsts
    to = in_elements_of(dst, real)
    if to is None:
        return None
    have, want = dst.dtype.itemsize, real.itemsize
    pattern = int(write.value).to_bytes(have, "little") * max(want // have, 1)
    parts = {pattern[i : i + want] for i in range(0, len(pattern), want)}
    if len(parts) != 1:
        return None
    return [Write("fill", (to,), value=int.from_bytes(parts.pop(), "little"))]


def unusable(writes: Iterable[tuple[Call, Write]], is_retyped: dict[int, bool]) -> set[int]:
    """Retyped copies (by id) whose bits would meet another tensor in a program, or an operation."""
    behind: dict[Buffer, set[int]] = {}
    bad: set[int] = set()
    for _, write in writes:
        met = set().union(*(behind.get(src.buffer, set()) for src in write.srcs))
        if (write.kind == "map" and len(write.srcs) > 1) or write.kind == "opaque":
            bad |= met
        if is_retyped.get(id(write)):
            bad |= met
            met = {id(write)}
        for dst in write.dsts:
            behind[dst.buffer] = behind.get(dst.buffer, set()) | met
    return bad

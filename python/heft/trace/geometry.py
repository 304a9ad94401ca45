# SPDX-License-Identifier: Apache-2.0
"""From physical strides to a tape's numbering of a parameter's elements, which is row-major."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

MAX_PARTS = 1 << 14


class Layout(NamedTuple):
    """Digits of a physical place: dimensions by falling stride, each with its row-major stride."""

    offset: int
    extent: tuple[int, ...]
    physical: tuple[int, ...]
    logical: tuple[int, ...]
    is_row_major: bool

    @classmethod
    def of(cls, meta: torch.Tensor) -> Layout:
        logical, n = [], 1
        for e in reversed(meta.shape):
            logical.insert(0, n)
            n *= e
        dims = [d for d in range(meta.dim()) if meta.shape[d] > 1]
        dims.sort(key=lambda d: -meta.stride(d))
        return cls(
            meta.storage_offset(),
            tuple(meta.shape[d] for d in dims),
            tuple(meta.stride(d) for d in dims),
            tuple(logical[d] for d in dims),
            all(meta.stride(d) == logical[d] for d in dims),
        )

    def digits(self, place: int) -> list[int] | None:
        """Indices along the dimensions, of a place counted from the offset; None in a gap."""
        digits = []
        for s in self.physical:
            digits.append(place // s)
            place %= s
        return digits if place == 0 else None


def split_for(
    layout: Layout, offset: int, extent: Sequence[int], stride: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], list[int], int, list[int]]]:
    """A physical view as row-major views: (first index, extents, offset, strides) of each part.

    The parts have the view's dimensions; most are one part. ValueError: it leaves the parameter.
    """
    if layout.is_row_major:
        yield (0,) * len(extent), list(extent), offset - layout.offset, list(stride)
        return
    yield from _split(
        layout, (0,) * len(extent), list(extent), offset - layout.offset, list(stride)
    )


def _split(
    layout: Layout, first: tuple[int, ...], extent: list[int], offset: int, stride: list[int]
) -> Iterator[tuple[tuple[int, ...], list[int], int, list[int]]]:
    at = layout.digits(offset)
    steps = [layout.digits(abs(s) if e > 1 else 0) for e, s in zip(extent, stride, strict=True)]
    if at is not None and all(s is not None for s in steps):
        signed = [
            [d if s >= 0 else -d for d in ds or []] for ds, s in zip(steps, stride, strict=True)
        ]
        if _stays_inside(layout, at, signed, extent):
            yield (
                first,
                extent,
                _dot(at, layout.logical),
                [_dot(ds, layout.logical) for ds in signed],
            )
            return
    long = [d for d, e in enumerate(extent) if e > 1]
    if not long:
        raise ValueError("a view leaves the parameter's elements")
    d = min(long, key=lambda k: extent[k])
    if extent[d] > MAX_PARTS:
        raise ValueError(f"a view would come to more than {MAX_PARTS} parts")
    for i in range(extent[d]):
        part, where = list(extent), list(first)
        part[d], where[d] = 1, first[d] + i
        yield from _split(layout, tuple(where), part, offset + i * stride[d], stride)


def _stays_inside(layout: Layout, at: list[int], steps: list[list[int]], extent: list[int]) -> bool:
    for k, e in enumerate(layout.extent):
        low = high = at[k]
        for ds, n in zip(steps, extent, strict=True):
            low += min(ds[k] * (n - 1), 0)
            high += max(ds[k] * (n - 1), 0)
        if low < 0 or high >= e:
            return False
    return True


def _dot(digits: Sequence[int], strides: Sequence[int]) -> int:
    return sum(d * s for d, s in zip(digits, strides, strict=True))

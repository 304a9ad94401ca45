# SPDX-License-Identifier: Apache-2.0
"""A plan as element maps: every piece written out, element by element."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch

from heft import DType, OpCode, Piece, Plan

from .notation import UNTOUCHED, Elem, Entry

TORCH_DTYPES = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.F8_E4M3: torch.float8_e4m3fn,
}


def expand_plan(plan: Plan, rank: int = 0) -> dict[str, list[Entry]]:
    """Parameter element <- source elements, as the pieces say; writing one twice is an error.

    What an operation leaves counts as made of every element of the sources that it needs.
    """
    names = [source.name for source in plan.sources]
    maps: dict[str, list[Entry]] = {}
    params = plan.params(rank)
    for param in params:
        maps[param.name] = [UNTOUCHED] * param.n_elems
    for piece in plan.pieces(rank):
        target = maps[params[piece.param].name]
        for at, entry in _entries(plan, piece, names, rank):
            if target[at] != UNTOUCHED:
                raise AssertionError(f"{params[piece.param].name}#{at} is written twice")
            target[at] = entry
    return maps


def constant_of(piece: Piece) -> float:
    """The value of a piece without sources, whose program is one constant (and casts)."""
    const = next(op for op in piece.ops if op.code == OpCode.CONST)
    dtype = TORCH_DTYPES[const.dtype]
    size = const.dtype.unit_bytes
    raw = torch.frombuffer(bytearray(struct.pack("<Q", const.imm_bits)[:size]), dtype=torch.uint8)
    return float(raw.view(dtype)[0])


def _entries(
    plan: Plan, piece: Piece, names: Sequence[str], rank: int
) -> Iterator[tuple[int, Entry]]:
    for index in product(*(range(extent) for extent in piece.extent)):
        at = piece.dst_offset + _dot(index, piece.dst_stride)
        if not piece.srcs:
            yield at, Entry(constant=constant_of(piece))
            continue
        elems: set[Elem] = set()
        for src in piece.srcs:
            if src.opaque:
                elems |= _elements_of_operation(plan, src.opaque - 1, names, rank)
            else:
                elems.add(Elem(names[src.source], src.offset + _dot(index, src.stride)))
        yield at, Entry(frozenset(elems))


def _elements_of_operation(
    plan: Plan, operation: int, names: Sequence[str], rank: int
) -> set[Elem]:
    sources = plan.sources
    return {
        Elem(names[s], i)
        for s in plan.opaques(rank)[operation].sources
        for i in range(prod(sources[s].shape))
    }


def _dot(index: Sequence[int], stride: Sequence[int]) -> int:
    return sum(i * s for i, s in zip(index, stride, strict=False))

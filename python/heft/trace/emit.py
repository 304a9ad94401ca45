# SPDX-License-Identifier: Apache-2.0
"""From the log of a run to a tape: what reaches a parameter, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from heft.dtypes import DType
from heft.tape import BufferKind, Op, OpCode, Tape, View
from heft.trace.bits import as_programs
from heft.trace.casts import TAPE_DTYPES
from heft.trace.errors import TraceError
from heft.trace.geometry import Layout, split_for
from heft.trace.log import Buffer, Call, Region, Step, Write
from heft.trace.model import Owner, span
from heft.trace.programs import too_long
from heft.trace.retype import retyped_copy, retyped_fill, unusable

MAX_CONSTANT_RUNS = 1 << 16  # fills that one constant tensor may come to


def tape_dtype(dtype: torch.dtype) -> DType:
    """U8 for what has no name on a tape (complex numbers): its bytes."""
    return DType.from_name(TAPE_DTYPES.get(dtype, "U8"))


def tape_shape(dtype: torch.dtype, shape: Sequence[int]) -> tuple[int, ...]:
    """The logical shape: PyTorch counts pairs of 4-bit floats, a tape the floats."""
    if dtype == torch.float4_e2m1fn_x2:
        return (*shape[:-1], shape[-1] * 2)
    return tuple(shape)


def live_writes(calls: Sequence[Call], wanted: set[Buffer]) -> list[tuple[Call, Write]]:
    """The writes that reach one of the wanted buffers, in order."""
    live, found = set(wanted), []
    for call in reversed(calls):
        for write in reversed(call.writes):
            if any(dst.buffer in live for dst in write.dsts):
                live.update(src.buffer for src in write.srcs)
                found.append((call, write))
    return found[::-1]


class _Place(NamedTuple):
    """A buffer on the tape, or a part of one buffer that is a parameter of its own."""

    buffer: int
    dtype: torch.dtype
    layout: Layout | None  # None: physical places are elements


class Emitter:
    """Puts live writes on a tape."""

    def __init__(
        self,
        tape: Tape,
        sources: Mapping[str, tuple[torch.dtype, Sequence[int]]],
        owners: Sequence[Owner],
    ) -> None:
        self.tape = tape
        self._sources = {
            name: tape.add_buffer(
                BufferKind.SOURCE, name, tape_dtype(dtype), tape_shape(dtype, shape)
            )
            for name, (dtype, shape) in sources.items()
        }
        self._owners: dict[Buffer, list[tuple[Owner, _Place]]] = {}
        for owner in owners:
            self._add_owner(owner)
        self._places: dict[Buffer, _Place] = {}
        self._too_long: set[int] = set()  # writes whose folded program no tape holds
        self._unusable: set[int] = set()  # copies that cannot go through heft.bits
        self.left: list[
            tuple[Call, Write, Write]
        ] = []  # writes that became opaque here, and as what

    def _add_owner(self, owner: Owner) -> None:
        meta = owner.meta
        if meta.dtype not in TAPE_DTYPES:
            raise TraceError(
                f'{owner.kind} "{owner.name}": dtype {meta.dtype} has no name in a manifest'
            )
        number = self.tape.add_buffer(
            BufferKind.PARAM, owner.name, tape_dtype(meta.dtype), tape_shape(meta.dtype, meta.shape)
        )
        place = _Place(number, meta.dtype, Layout.of(meta))
        self._owners.setdefault(owner.buffer, []).append((owner, place))

    def _place(self, region: Region, note: str) -> _Place:
        buffer = region.buffer
        owned = self._owners.get(buffer)
        if owned is not None:
            return owned[0][1] if len(owned) == 1 else self._owner_of(region, owned, note)
        place = self._places.get(buffer)
        if place is None:
            if buffer.kind == "source":
                place = _Place(self._sources[buffer.name], buffer.dtype, None)
            else:
                size = buffer.numel * (
                    1 if buffer.dtype in TAPE_DTYPES else buffer.base.element_size()
                )
                dtype = buffer.dtype if buffer.dtype != torch.float4_e2m1fn_x2 else torch.uint8
                place = _Place(
                    self.tape.add_buffer(BufferKind.TEMP, "", tape_dtype(dtype), (size,)),
                    dtype,
                    None,
                )
            self._places[buffer] = place
        return place

    @staticmethod
    def _owner_of(region: Region, owned: Sequence[tuple[Owner, _Place]], note: str) -> _Place:
        size = region.dtype.itemsize
        steps = [(e - 1) * s * size for e, s in zip(region.extent, region.stride, strict=True)]
        first = region.offset * size + sum(min(s, 0) for s in steps)
        last = region.offset * size + sum(max(s, 0) for s in steps) + size - 1
        for owner, place in owned:
            begin, end = span(owner.meta)
            if begin <= first and last <= end:
                return place
        names = " and ".join(f'"{owner.name}"' for owner, _ in owned[:2])
        raise TraceError(f"{note}: one write goes to {names}, which share a storage")

    # ---- writes ----

    def write_all(self, writes: Sequence[tuple[Call, Write]]) -> None:
        retyped = {id(w): self._is_retyped(call, w) for call, w in writes if w.kind == "copy"}
        self._unusable = unusable(writes, retyped)
        self._too_long = too_long(writes)
        for call, write in writes:
            self.write(call, write)

    def _is_retyped(self, call: Call, write: Write) -> bool:
        return any(self._place(r, call.note).dtype != r.dtype for r in [*write.dsts, *write.srcs])

    def write(self, call: Call, write: Write) -> None:
        if any(r.numel == 0 for r in write.dsts):
            return
        regions = [*write.dsts, *write.srcs]
        places = [self._place(r, call.note) for r in regions]
        retyped = [
            p.dtype != r.dtype and p.dtype in TAPE_DTYPES
            for p, r in zip(places, regions, strict=True)
        ]
        if write.kind == "opaque":
            self._opaque(call, write, regions, places)
        elif id(write) in self._too_long:
            self._leave(call, write, f"{call.op}, at the end of a long computation")
        elif any(retyped):
            self._retyped(call, write, regions, places)
        elif write.kind == "const":
            self._constant(call, write, places[0])
        else:
            self._parts(call, write, regions, places)

    def _parts(
        self, call: Call, write: Write, regions: Sequence[Region], places: Sequence[_Place]
    ) -> None:
        try:
            for views in split_views(regions, places):
                self._put(write, views, call.note)
        except ValueError as error:
            raise TraceError(f"{call.note}: {call.op} to {regions[0].buffer!r}: {error}") from None

    def _put(self, write: Write, views: Sequence[View], note: str) -> None:
        if write.kind == "copy":
            self.tape.copy(views[0], views[1], note)
        elif write.kind == "fill":
            self.tape.fill(views[0], write.value, note)
        else:
            self.tape.map(views[0], views[1:], [op_of(step) for step in write.program], note)

    def _opaque(
        self, call: Call, write: Write, regions: Sequence[Region], places: Sequence[_Place]
    ) -> None:
        n = len(write.dsts)
        try:
            if write.op.startswith("heft."):  # a known kernel speaks of dimensions: they are kept
                views = [[known_view(r, p)] for r, p in zip(regions, places, strict=True)]
            else:
                views = [opaque_views(r, p) for r, p in zip(regions, places, strict=True)]
        except ValueError as error:
            raise TraceError(f"{call.note}: {call.op} of {regions[0].buffer!r}: {error}") from None
        dsts, srcs = itertools.chain(*views[:n]), itertools.chain(*views[n:])
        self.tape.opaque(write.op, list(dsts), list(srcs), call.note)

    def _constant(self, call: Call, write: Write, place: _Place) -> None:
        for part in constant_runs(write, call.note):
            self._parts(call, part, part.dsts, [place])

    def _retyped(
        self, call: Call, write: Write, regions: Sequence[Region], places: Sequence[_Place]
    ) -> None:
        """A view(dtype) on one side: as programs, through heft.bits, else opaque."""
        instead = as_programs(write, [place.dtype for place in places])
        if instead is not None:
            pass
        elif id(write) not in self._unusable and write.kind == "copy":
            instead = retyped_copy(write, places[0].dtype, places[1].dtype)
        elif write.kind == "fill":
            instead = retyped_fill(write, places[0].dtype)
        if instead is not None:
            for one in instead:
                self.write(call, one)
            return
        pairs = zip(regions, places, strict=True)
        seen, real = next((r.dtype, p.dtype) for r, p in pairs if r.dtype != p.dtype)
        self._leave(call, write, f"view({seen}) of {real}")

    def _leave(self, call: Call, write: Write, op: str) -> None:
        """To the engine's loader."""
        left = write._replace(kind="opaque", op=op, program=())
        self.write(call, left)
        self.left.append((call, write, left))


def opaque_views(region: Region, place: _Place) -> list[View]:
    """What an operation of the engine's reads or writes; parts of it, where strides want that."""
    if place.dtype != region.dtype:
        return [whole_view(region, place)]
    return [views[0] for views in split_views([region], [place])]


def known_view(region: Region, place: _Place) -> View:
    """An operand of a known kernel, with its dimensions."""
    if place.layout is None:
        return View(place.buffer, region.offset, region.extent, region.stride)
    parts = list(split_for(place.layout, region.offset, region.extent, region.stride))
    if len(parts) != 1:
        raise ValueError(f"a strided parameter in {len(parts)} parts, and a kernel takes it whole")
    _, extent, offset, stride = parts[0]
    return View(place.buffer, offset, tuple(extent), tuple(stride))


def whole_view(region: Region, place: _Place) -> View:
    """All of the buffer that a retyped view looks at."""
    if place.layout is None:
        n = region.buffer.numel
        return View(place.buffer, 0, (n,), (1,))
    n = 1
    for e in place.layout.extent:
        n *= e
    return View(place.buffer, 0, (n,), (1,))


def split_views(regions: Sequence[Region], places: Sequence[_Place]) -> Iterator[list[View]]:
    """Regions of one write in the tape's numbering; a strided parameter may need several parts."""
    first = next(
        (i for i, p in enumerate(places) if p.layout is not None and not p.layout.is_row_major),
        None,
    )
    if first is None:
        yield [
            View(p.buffer, r.offset - (p.layout.offset if p.layout else 0), *compact(r, k, regions))
            for k, (r, p) in enumerate(zip(regions, places, strict=True))
        ]
        return
    region, place = regions[first], places[first]
    assert place.layout is not None
    done = place._replace(layout=None)
    for start, extent, offset, stride in split_for(
        place.layout, region.offset, region.extent, region.stride
    ):
        parts = []
        for k, r in enumerate(regions):
            if k == first:
                parts.append(r._replace(offset=offset, extent=tuple(extent), stride=tuple(stride)))
            else:
                shift = sum(i * s for i, s in zip(start, r.stride, strict=True))
                parts.append(r._replace(offset=r.offset + shift, extent=tuple(extent)))
        yield from split_views(parts, [*places[:first], done, *places[first + 1 :]])


def compact(
    region: Region, k: int, regions: Sequence[Region]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides without extents of 1, merged where all regions are contiguous."""
    extent = region.extent
    keep = [d for d, e in enumerate(extent) if e != 1]
    groups: list[list[int]] = []
    for d in keep:
        if groups and all(r.stride[groups[-1][-1]] == r.stride[d] * extent[d] for r in regions):
            groups[-1].append(d)
        else:
            groups.append([d])
    sizes = []
    for group in groups:
        n = 1
        for d in group:
            n *= extent[d]
        sizes.append(n)
    return tuple(sizes), tuple(region.stride[group[-1]] for group in groups)


def constant_runs(write: Write, note: str) -> Iterator[Write]:
    """A constant tensor as fills: one for each run of equal bits along the last dimension."""
    (dst,), value = write.dsts, write.value
    if not dst.extent:
        yield Write("fill", (dst,), value=_bits(value.reshape(1))[0])
        return
    bits = _bits(value.reshape(-1))
    rows = torch.tensor(bits).reshape(-1, dst.extent[-1])
    n_runs = 0
    for i, row in enumerate(rows):
        first, at = dst.offset, i
        for e, s in zip(reversed(dst.extent[:-1]), reversed(dst.stride[:-1]), strict=True):
            first += at % e * s
            at //= e
        values, counts = torch.unique_consecutive(row, return_counts=True)
        n_runs += len(values)
        if n_runs > MAX_CONSTANT_RUNS:
            raise TraceError(
                f"{note}: a constant of {value.numel()} elements for {dst.buffer!r} has more than "
                f"{MAX_CONSTANT_RUNS} runs of equal values"
            )
        place = 0
        for v, n in zip(values.tolist(), counts.tolist(), strict=True):
            part = dst._replace(
                offset=first + place * dst.stride[-1], extent=(n,), stride=(dst.stride[-1],)
            )
            yield Write(
                "fill", (part,), value=v & ((1 << 64) - 1) if dst.dtype.itemsize == 8 else v
            )
            place += n


def _bits(flat: torch.Tensor) -> list[int]:
    """The bit patterns of a real tensor's elements, as numbers (8-byte ones signed)."""
    size = flat.element_size()
    as_int = flat.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    )
    mask = (1 << 8 * size) - 1 if size < 8 else -1
    return (as_int.to(torch.int64) & mask).tolist()


def op_of(step: Step) -> Op:
    dtype = DType.F32 if step.dtype is None else tape_dtype(step.dtype)
    return Op(OpCode[step.code], dtype, step.arg, step.imm)

# SPDX-License-Identifier: Apache-2.0
"""Operators that pick elements by constant lists and masks: the positions become strided boxes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from heft.trace import fallback
from heft.trace.log import Ref, Region
from heft.trace.ops_move import can_cast, clone, result
from heft.trace.registry import handles
from heft.trace.tracer import Tracer

LIMIT = 1 << 24  # positions that are looked at one by one
MAX_BOXES = 1 << 16


def boxes(places: torch.Tensor) -> Iterator[tuple[int, list[int], int, list[int]]]:
    """A list of places as boxes: (position, extents, place, strides), in order.

    Position counts along the list; a box's places are place + sum(i_k * stride_k), its extents in
    row-major order. Arithmetic runs merge, and runs that repeat at equal steps merge again.
    """
    p = places.reshape(-1)
    n = p.numel()
    at = 0
    nested = _nested(p)
    if nested is not None:
        yield 0, nested[0], int(p[0]), nested[1]
        return
    while at < n:
        length, step = _run(p, at)
        yield at, [length], int(p[at]), [step]
        at += length


def _run(p: torch.Tensor, at: int) -> tuple[int, int]:
    """Length and step of the arithmetic run that begins here."""
    n = p.numel()
    if at + 1 >= n:
        return 1, 0
    step = int(p[at + 1] - p[at])
    size = 64
    while True:  # look ahead in growing windows: lists are long, runs may be short
        window = p[at : at + size]
        wrong = (window[1:] - window[:-1] != step).nonzero()
        if wrong.numel():
            return int(wrong[0]) + 1, step
        if at + size >= n:
            return n - at, step
        size *= 8


def _nested(p: torch.Tensor) -> tuple[list[int], list[int]] | None:
    """Extents and strides if the whole list is one box."""
    extents: list[int] = []
    strides: list[int] = []
    while p.numel() > 1 and len(extents) < 6:
        length, step = _run(p, 0)
        if p.numel() % length or length == 1:
            return None
        rows = p.reshape(-1, length)
        if not bool((rows - rows[:, :1] == rows[0] - rows[0, 0]).all()):
            return None
        extents.insert(0, length)
        strides.insert(0, step)
        p = rows[:, 0].contiguous()
    return (extents or [1], strides or [0]) if p.numel() == 1 else None


def constant_indices(tracer: Tracer, indices: Any) -> list[torch.Tensor | None] | None:
    """Index lists and masks as real integer tensors; None if one depends on a source."""
    out: list[torch.Tensor | None] = []
    for index in indices:
        value = None if index is None else tracer.constant_value(index)
        if index is not None and value is None:
            return None
        if value is not None and value.dtype in (torch.bool, torch.uint8):
            out += list(value.cpu().nonzero(as_tuple=True))
        else:
            out.append(None if value is None else value.cpu().long())
    return out


class Picked:
    """Where `x[indices]` is: a list of places along the index, the other dimensions whole."""

    def __init__(self, shape: torch.Size, indices: list[torch.Tensor | None]) -> None:
        used = [d for d, index in enumerate(indices) if index is not None]
        lists = torch.broadcast_tensors(*[i for i in indices if i is not None])
        self.dims = used
        self.kept = [d for d in range(len(shape)) if d not in used]
        adjacent = used == list(range(used[0], used[-1] + 1))
        self.before = [d for d in self.kept if adjacent and d < used[0]]
        self.after = [d for d in self.kept if d not in self.before]
        self.shape = list(lists[0].shape)
        self.lists = [self._wrapped(i, shape[d]) for i, d in zip(lists, used, strict=True)]

    @staticmethod
    def _wrapped(index: torch.Tensor, extent: int) -> torch.Tensor:
        flat = index.reshape(-1)
        if flat.numel() and (int(flat.min()) < -extent or int(flat.max()) >= extent):
            raise IndexError(f"an index of {int(flat.max())} in a dimension of {extent}")
        return torch.where(flat < 0, flat + extent, flat)

    def places(self, stride: tuple[int, ...]) -> torch.Tensor:
        return sum(
            (i * stride[d] for i, d in zip(self.lists, self.dims, strict=True)),
            torch.zeros(self.lists[0].numel(), dtype=torch.long),
        )

    def has_repeats(self, shape: torch.Size) -> bool:
        ids = torch.zeros(self.lists[0].numel(), dtype=torch.long)
        for i, d in zip(self.lists, self.dims, strict=True):
            ids = ids * shape[d] + i
        return ids.unique().numel() != ids.numel()

    def pairs(self, whole: Region, listed: Region) -> Iterator[tuple[Region, Region]]:
        """(part of whole, part of listed); listed has dimensions [before.., index.., after..]."""
        n_before, n_index = len(self.before), len(self.shape)
        steps = listed.stride[n_before : n_before + n_index]
        for at, extents, place, strides in self._boxes(whole.stride):
            extent = (
                [whole.extent[d] for d in self.before]
                + extents
                + [whole.extent[d] for d in self.after]
            )
            a = (
                [whole.stride[d] for d in self.before],
                strides,
                [whole.stride[d] for d in self.after],
            )
            inner = _row_major(extents)
            starts = _digits(at, self.shape)
            step = next((s for s, e in zip(steps[::-1], self.shape[::-1], strict=True) if e > 1), 0)
            b = (
                list(listed.stride[:n_before]),
                [s * step for s in inner],
                list(listed.stride[n_before + n_index :]),
            )
            first = sum(i * s for i, s in zip(starts, steps, strict=True))
            yield (
                Region(
                    whole.buffer,
                    whole.offset + place,
                    tuple(extent),
                    tuple(itertools.chain(*a)),
                    whole.dtype,
                ),
                Region(
                    listed.buffer,
                    listed.offset + first,
                    tuple(extent),
                    tuple(itertools.chain(*b)),
                    listed.dtype,
                ),
            )

    def _boxes(self, stride: tuple[int, ...]) -> Iterator[tuple[int, list[int], int, list[int]]]:
        return boxes(self.places(stride))


def _row_major(extents: list[int]) -> list[int]:
    strides, n = [], 1
    for e in reversed(extents):
        strides.insert(0, n)
        n *= e
    return strides


def _digits(at: int, shape: list[int]) -> list[int]:
    digits = []
    for e in reversed(shape):
        digits.insert(0, at % e)
        at //= e
    return digits


def _is_row_major(region: Region, first: int, n: int) -> bool:
    """Whether the n dimensions from first on can be counted through with one step."""
    dims = [
        (e, s)
        for e, s in zip(region.extent[first : first + n], region.stride[first:], strict=False)
        if e != 1
    ]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(dims))


@handles("aten::index.Tensor")
def index(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src = args[0]
    origin = tracer.ref(src)
    lists = constant_indices(tracer, args[1])
    if origin is None or lists is None:
        return fallback.opaque(tracer, func, args, kwargs)
    picked = Picked(origin.meta.shape, lists)
    if picked.lists[0].numel() > LIMIT:
        return fallback.opaque(tracer, func, args, kwargs)
    shape = [
        *(src.shape[d] for d in picked.before),
        *picked.shape,
        *(src.shape[d] for d in picked.after),
    ]
    meta = torch.empty(shape, dtype=src.dtype, device="meta")
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    if meta.numel():
        for what, to in picked.pairs(origin.region, ref.region):
            tracer.copy(call, to, what)
    return out


@handles("aten::index_select")
def index_select(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, dim, listed = args
    return index(tracer, aten_index, (src, _at(src, dim, listed)), {})


aten_index = torch.ops.aten.index.Tensor
aten_index_put_ = torch.ops.aten.index_put_.default


def _at(tensor: torch.Tensor, dim: int, listed: torch.Tensor) -> list[torch.Tensor | None]:
    return [None] * (dim % max(tensor.dim(), 1)) + [listed.reshape(-1)]


@handles("aten::index_put_", "aten::_index_put_impl_")
def index_put_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, indices, values = args[0], args[1], args[2]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    lists = constant_indices(tracer, indices)
    if accumulate or lists is None or not can_cast(tracer, values, dst.dtype):
        return fallback.record_opaque(tracer, func, args, kwargs)
    picked = Picked(dst.shape, lists)
    if picked.has_repeats(dst.shape):
        tracer.fail(f"{func} writes an index twice in {dst!r}; which value stays is not defined")
    shape = [
        *(dst.shape[d] for d in picked.before),
        *picked.shape,
        *(dst.shape[d] for d in picked.after),
    ]
    ref = tracer.ref(values)
    listed = None if ref is None else ref.region.expand(shape)
    if listed is not None and not _is_row_major(listed, len(picked.before), len(picked.shape)):
        listed = _dense(tracer, values, shape).region
    to = tracer.writable(dst)
    call = tracer.begin(func, (to, *args[1:]), kwargs)
    if listed is None:
        put_constant(tracer, call, picked, to.region, values.expand(shape))
    else:
        for part, what in picked.pairs(to.region, listed):
            tracer.copy(call, part, what)
    return dst


def _dense(tracer: Tracer, values: torch.Tensor, shape: list[int]) -> Ref:
    """values broadcast to shape, in row-major order."""
    expanded = fallback.view(tracer, torch.ops.aten.expand.default, (values, shape), {})
    dense = clone(
        tracer,
        torch.ops.aten.clone.default,
        (expanded,),
        {"memory_format": torch.contiguous_format},
    )
    return dense._heft_ref


def put_constant(
    tracer: Tracer, call: Any, picked: Picked, whole: Region, values: torch.Tensor
) -> None:
    values = values.contiguous()
    n = values.numel()
    ids = Region(whole.buffer, 0, tuple(values.shape), values.stride(), whole.dtype)
    for part, what in picked.pairs(whole, ids) if n else ():
        tracer.constant(
            call, part, values.reshape(-1).as_strided(what.extent, what.stride, what.offset)
        )


@handles("aten::index_copy_")
def index_copy_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, dim, listed, src = args
    index_put_(tracer, aten_index_put_, (dst, _at(dst, dim, listed), src), {})
    return dst


@handles("aten::index_fill_.int_Scalar")
def index_fill_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, dim, listed, value = args
    index_put_(
        tracer,
        aten_index_put_,
        (dst, _at(dst, dim, listed), torch.tensor(value, dtype=dst.dtype)),
        {},
    )
    return dst


@handles("aten::gather")
def gather(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, dim, listed = args[0], args[1], tracer.constant_value(args[2])
    origin = tracer.ref(src)
    if origin is None or listed is None or listed.numel() > LIMIT:
        return fallback.opaque(tracer, func, args, kwargs)
    return index(tracer, aten_index, (src, _grid(listed.cpu(), dim % max(listed.dim(), 1))), {})


def _grid(listed: torch.Tensor, dim: int) -> list[torch.Tensor]:
    """gather's and scatter's index as one full list for every dimension."""
    grid = list(torch.meshgrid(*[torch.arange(n) for n in listed.shape], indexing="ij"))
    grid[dim] = listed
    return grid


@handles("aten::scatter_.src", "aten::scatter_.value")
def scatter_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, dim, listed, src = args[0], args[1], tracer.constant_value(args[2]), args[3]
    if listed is None or listed.numel() > LIMIT:
        return fallback.record_opaque(tracer, func, args, kwargs)
    listed = listed.cpu()
    if isinstance(src, torch.Tensor):
        ref = tracer.ref(src)
        src = (
            _corner(src, listed.shape)
            if ref is None
            else tracer.stand_in(ref.view(_corner(ref.meta, listed.shape)), src.device)
        )
    else:
        src = torch.tensor(src, dtype=dst.dtype)
    index_put_(tracer, aten_index_put_, (dst, _grid(listed, dim % max(listed.dim(), 1)), src), {})
    return dst


def _corner(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The front corner of this shape: scatter_ reads no more of its source."""
    for d, n in enumerate(shape):
        tensor = tensor.narrow(d, 0, n)
    return tensor


@handles(
    "aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar"
)
def where(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A constant mask: the one where it is false, then the other over it where it is true."""
    mask = tracer.constant_value(args[0])
    meta = tracer.meta_call(func, args, kwargs)
    sides = [a for a in args[1:] if isinstance(a, torch.Tensor)]
    if (
        mask is None
        or mask.numel() > LIMIT
        or not all(can_cast(tracer, t, meta.dtype) for t in sides)
    ):
        return fallback.opaque(tracer, func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, next(iter(sides), args[0]))
    tracer.assign(call, ref.region, args[2])
    assign_where(tracer, call, ref.region, mask.expand(meta.shape), args[1])
    return out


def assign_where(tracer: Tracer, call: Any, dst: Region, mask: torch.Tensor, src: Any) -> None:
    """dst <- src where the constant mask is true."""
    places = mask.cpu().expand(dst.extent).reshape(-1).nonzero().reshape(-1)
    if not places.numel():
        return
    value = src if isinstance(src, torch.Tensor) else torch.tensor(src)
    ref = tracer.ref(value)
    shape = list(dst.extent)
    if ref is not None:
        what = ref.region.expand(shape)
    else:
        value = value.expand(shape)
    for _, extents, place, strides in _mask_boxes(places, shape):
        part = _sub_box(dst, shape, place, extents, strides)
        if ref is not None:
            tracer.copy(call, part, _sub_box(what, shape, place, extents, strides))
        else:
            dense = value.contiguous()
            ids = Region(dst.buffer, 0, tuple(shape), dense.stride(), dst.dtype)
            box = _sub_box(ids, shape, place, extents, strides)
            tracer.constant(
                call, part, dense.reshape(-1).as_strided(box.extent, box.stride, box.offset)
            )


def _mask_boxes(
    places: torch.Tensor, shape: list[int]
) -> Iterator[tuple[int, list[int], int, list[int]]]:
    """Boxes that stay inside one row each, so that they are boxes in every layout."""
    row = shape[-1] if shape else 1
    cuts = (
        (places[1:] // row != places[:-1] // row)
        if places.numel() > 1
        else torch.zeros(0, dtype=torch.bool)
    )
    starts = [0, *(int(i) + 1 for i in cuts.nonzero().reshape(-1)), places.numel()]
    for a, b in itertools.pairwise(starts):
        at = a
        while at < b:
            length, step = _run(places[:b], at)
            yield at, [length], int(places[at]), [step]
            at += length


def _sub_box(
    region: Region, shape: list[int], place: int, extents: list[int], strides: list[int]
) -> Region:
    """One run along the last dimension of a region that has this shape."""
    first = region.offset + sum(
        i * s for i, s in zip(_digits(place, shape), region.stride, strict=True)
    )
    last = region.stride[-1] if region.stride else 0
    return region._replace(
        offset=first, extent=tuple(extents), stride=tuple(s * last for s in strides)
    )


@handles(
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::masked_fill_.Scalar",
    "aten::masked_fill_.Tensor",
)
def masked_fill(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, mask, value = args[0], tracer.constant_value(args[1]), args[2]
    if mask is None or mask.numel() > LIMIT:
        return fallback.record_opaque(tracer, func, args, kwargs)
    if func._schema.name.endswith("_"):
        to, out = tracer.writable(src), src
        call = tracer.begin(func, (to, *args[1:]), kwargs)
    else:
        call = tracer.begin(func, args, kwargs)
        to, out = result(tracer, call, tracer.meta_call(func, args, kwargs), src)
        tracer.assign(call, to.region, src)
    assign_where(tracer, call, to.region, mask.expand(to.meta.shape), value)
    return out


@handles("aten::tril", "aten::triu")
def triangle(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src = args[0]
    if tracer.ref(src) is None or src.numel() > LIMIT:
        return fallback.opaque(tracer, func, args, kwargs)
    mask = func(torch.ones(src.shape, dtype=torch.bool), *args[1:], **kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, tracer.meta_call(func, args, kwargs), src)
    tracer.fill(call, ref.region, 0)
    assign_where(tracer, call, ref.region, mask, src)
    return out

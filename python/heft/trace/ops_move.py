# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements: copies, concatenation, tiling, padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from heft.trace import fallback
from heft.trace.casts import is_cast_exact
from heft.trace.log import Call, Ref, Region
from heft.trace.registry import handles
from heft.trace.standin import StandIn
from heft.trace.tracer import Tracer, tensors_in

aten = torch.ops.aten


def result(tracer: Tracer, call: Call, meta: torch.Tensor, like: Any) -> tuple[Ref, torch.Tensor]:
    """A fresh temporary for a call, and the stand-in the loader gets for it."""
    device = call.kwargs.get("device") or (
        like.device if isinstance(like, torch.Tensor) else tracer.device
    )
    ref = tracer.fresh(call, meta)
    return ref, tracer.stand_in(ref, torch.device(device))


def can_cast(tracer: Tracer, src: Any, dst_dtype: torch.dtype) -> bool:
    """Whether src is a constant, or heft casts it to dst_dtype bit for bit."""
    return tracer.ref(src) is None or is_cast_exact(src.dtype, dst_dtype, tracer.is_on_cpu(src))


handles("aten::_unsafe_view")(fallback.view)


@handles("aten::copy_")
def copy_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, src = args[0], args[1]
    if not can_cast(tracer, src, dst.dtype):
        return fallback.record_opaque(tracer, func, args, kwargs, cast_name(src.dtype, dst.dtype))
    to = tracer.writable(dst)
    ref = tracer.ref(src)
    refuse_overlap(tracer, to, ref)
    call = tracer.begin(func, (to, src), {})
    tracer.assign(call, to.region, src)
    return dst


def cast_name(src: torch.dtype, dst: torch.dtype) -> str:
    return f"cast {str(src).removeprefix('torch.')} to {str(dst).removeprefix('torch.')}"


def refuse_overlap(tracer: Tracer, dst: Ref, src: Ref | None) -> None:
    """PyTorch leaves undefined what a copy between overlapping views does."""
    if src is None or src.buffer is not dst.buffer or dst.meta.numel() == 0:
        return
    a, b = dst.region, src.region
    if a == b:
        return
    if _span(a)[1] < _span(b)[0] or _span(b)[1] < _span(a)[0]:
        return
    if not set(_elements(a)).isdisjoint(_elements(b)):
        tracer.fail(f"copy_ between overlapping parts of {dst.buffer!r}")


def _span(region: Region) -> tuple[int, int]:
    steps = [(e - 1) * s for e, s in zip(region.extent, region.stride, strict=True)]
    return region.offset + sum(min(s, 0) for s in steps), region.offset + sum(
        max(s, 0) for s in steps
    )


def _elements(region: Region) -> list[int]:
    base = torch.arange(1)
    for e, s in zip(region.extent, region.stride, strict=True):
        base = (base[:, None] + torch.arange(e) * s).reshape(-1)
    return (base + region.offset).tolist()


@handles("aten::_foreach_copy_")
def foreach_copy_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    for dst, src in zip(args[0], args[1], strict=True):
        tracer.dispatch(aten.copy_.default, (dst, src), {})


@handles("aten::is_pinned")
def is_pinned(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> bool:
    return False


@handles("aten::_pin_memory")
def pin_memory(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """To memory that devices read: there is none here, so it is a copy."""
    return clone(tracer, aten.clone.default, args[:1], {})


@handles("aten::clone", "aten::_to_copy")
def clone(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A new temporary with the strides PyTorch gives it; another dtype is a cast."""
    src = args[0]
    meta = tracer.meta_call(func, args, kwargs)
    if not can_cast(tracer, src, meta.dtype):
        return fallback.record_opaque(tracer, func, args, kwargs, cast_name(src.dtype, meta.dtype))
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    tracer.assign(call, ref.region, src)
    return out


@handles("aten::cat")
def cat(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [t for t in args[0] if tuple(t.shape) != (0,)]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return _join(
        tracer,
        func,
        args,
        kwargs,
        tensors,
        dim,
        lambda m, d, at, t: m.narrow(d, at, t.shape[d]),
        lambda t, d: t.shape[d],
    )


@handles("aten::stack")
def stack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return _join(
        tracer,
        func,
        args,
        kwargs,
        list(args[0]),
        dim,
        lambda m, d, at, t: m.select(d, at),
        lambda t, d: 1,
    )


def _join(
    tracer: Tracer,
    func: Any,
    args: Any,
    kwargs: Any,
    tensors: Sequence[torch.Tensor],
    dim: int,
    place: Any,
    size: Any,
) -> Any:
    meta = tracer.meta_call(func, args, kwargs)
    if not all(can_cast(tracer, t, meta.dtype) for t in tensors):
        return fallback.opaque(tracer, func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, tensors[0] if tensors else None)
    dim, at = dim % max(meta.dim(), 1), 0
    for t in tensors:
        tracer.assign(call, ref.view(place(meta, dim, at, t)).region, t)
        at += size(t, dim)
    return out


@handles("aten::repeat")
def repeat(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """T seen as [n1, e1, n2, e2, ..] <- S with stride 0 along every n."""
    src, counts = args[0], list(args[1])
    meta = tracer.meta_call(func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    if meta.numel() == 0:
        return out
    extents = [1] * (len(counts) - src.dim()) + list(src.shape)
    seen = [n for pair in zip(counts, extents, strict=True) for n in pair]
    dst = ref.view(meta.view(seen)).region
    origin = tracer.ref(src)
    if origin is None:
        tracer.constant(call, dst, src.reshape([n for e in extents for n in (1, e)]))
    else:
        flat = origin.view(origin.meta.expand(extents))
        paired = flat.meta
        for i in range(len(extents)):
            paired = paired.unsqueeze(2 * i)
        tracer.copy(call, dst, flat.view(paired).region)
    return out


@handles("aten::roll")
def roll(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, shifts = args[0], args[1]
    dims = args[2] if len(args) > 2 else kwargs.get("dims", [])
    origin = tracer.ref(src)
    meta = tracer.meta_call(func, args, kwargs)
    if origin is None or len(set(dims)) != len(dims):
        return fallback.opaque(tracer, func, args, kwargs)
    if not dims and not origin.meta.is_contiguous():
        dense = clone(
            tracer, aten.clone.default, (src,), {"memory_format": torch.contiguous_format}
        )
        return roll(tracer, func, (dense, shifts), {})
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    a, b = meta, origin.meta
    if not dims:  # over the flattened tensor
        a, b, dims = a.view(-1), b.view(-1), [0]
    dims = [d % max(a.dim(), 1) for d in dims]
    for parts in itertools.product(
        *[_turn(b.shape[d], s) for d, s in zip(dims, shifts, strict=True)]
    ):
        to, what = a, b
        for d, (n, dst_at, src_at) in zip(dims, parts, strict=True):
            to, what = to.narrow(d, dst_at, n), what.narrow(d, src_at, n)
        tracer.copy(call, ref.view(to).region, origin.view(what).region)
    return out


def _turn(extent: int, shift: int) -> list[tuple[int, int, int]]:
    """(length, place in the result, place in the source) of the two parts of a rotation."""
    k = shift % extent if extent else 0
    return [(n, to, at) for n, to, at in ((extent - k, k, 0), (k, 0, extent - k)) if n]


@handles("aten::flip")
def flip(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, dims = args[0], args[1]
    origin = tracer.ref(src)
    if origin is None:
        return fallback.opaque(tracer, func, args, kwargs)
    meta = tracer.meta_call(func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    region = origin.region
    for d in dims:
        region = region.flip(d % meta.dim())
    tracer.copy(call, ref.region, region)
    return out


@handles("aten::constant_pad_nd")
def constant_pad_nd(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    src, pads = args[0], list(args[1])
    value = args[2] if len(args) > 2 else kwargs.get("value", 0)
    origin = tracer.ref(src)
    if origin is None:
        return fallback.opaque(tracer, func, args, kwargs)
    meta = tracer.meta_call(func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    ref, out = result(tracer, call, meta, src)
    tracer.fill(call, ref.region, value)
    to, what = meta, origin.meta
    for i in range(len(pads) // 2):
        d, before, after = meta.dim() - 1 - i, pads[2 * i], pads[2 * i + 1]
        n = what.shape[d] + min(before, 0) + min(after, 0)  # a negative pad crops
        to, what = to.narrow(d, max(before, 0), n), what.narrow(d, max(-before, 0), n)
    tracer.copy(call, ref.view(to).region, origin.view(what).region)
    return out


@handles(
    "aten::t_",
    "aten::transpose_",
    "aten::squeeze_",
    "aten::unsqueeze_",
    "aten::swapaxes_",
    "aten::swapdims_",
)
def view_in_place(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A temporary may be seen otherwise from now on: PyTorch does so to a vector's product."""
    base = args[0]
    ref = tracer.ref(base)
    if not isinstance(base, StandIn) or ref is None or ref.buffer.kind != "temp":
        return metadata_in_place(tracer, func, args, kwargs)
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"))
    meta = packet(ref.meta, *args[1:], **kwargs)
    with no_dispatch():
        func(*args, **kwargs)  # the sizes that the loader sees
    base._heft_ref = ref.view(meta)
    return base


@handles(
    "aten::resize_",
    "aten::set_",
    "aten::as_strided_",
    "aten::resize_as_",
    "aten::detach_",
)
def metadata_in_place(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """These give a tensor another storage or shape; the buffer behind it would not follow."""
    refs = [ref for t in tensors_in(args, kwargs) if (ref := tracer.ref(t)) is not None]
    tracer.bypass(
        f"{func._schema.name.removeprefix('aten::')}() of {refs[0].buffer!r}: "
        "it changes the tensor itself, not its elements"
    )

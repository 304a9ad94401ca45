# SPDX-License-Identifier: Apache-2.0
"""Operators without a handler: views, out= forms, questions; everything else is opaque."""

from __future__ import annotations

from typing import Any

import torch

from heft.trace import registry
from heft.trace.log import Ref
from heft.trace.tracer import Tracer, map_tensors, tensors_in

# In-place operators that give every element another value.
REPLACES = {
    "aten::bernoulli_",
    "aten::copy_",
    "aten::exponential_",
    "aten::fill_",
    "aten::normal_",
    "aten::random_",
    "aten::uniform_",
}
# In-place operators that put values somewhere and compute nothing with what was there.
OVERWRITES = REPLACES | {
    "aten::_index_put_impl_",
    "aten::index_copy_",
    "aten::index_fill_",
    "aten::index_put_",
    "aten::masked_fill_",
    "aten::masked_scatter_",
    "aten::put_",
    "aten::scatter_",
}


def choose(func: Any) -> registry.Handler:
    schema = func._schema
    writes = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if any(a.is_out for a in writes):
        return out_form
    returns_tensor = any("Tensor" in str(r.type) for r in schema.returns)
    if not returns_tensor and not writes and schema.returns:
        return question
    if not writes and any(r.alias_info is not None for r in schema.returns):
        return view
    return opaque


def view(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Geometry only: PyTorch computes it on the meta tensor inside; nothing is recorded."""
    base = args[0]
    ref = tracer.ref(base)
    if ref is None:  # a view of a constant by some stand-in: no such operator is known
        return opaque(tracer, func, args, kwargs)
    out = func(ref.meta, *args[1:], **kwargs)
    return map_tensors(lambda t: tracer.stand_in(ref.view(t), base.device), out)


def out_form(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """`op(.., out=t)` is the operator, then a write to t."""
    outs = {a.name: kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs}
    rest = {k: v for k, v in kwargs.items() if k not in outs}
    plain = functional_form(func)
    if plain is None or len(outs) != 1:
        return opaque(tracer, func, args, kwargs)
    (dst,) = outs.values()
    result = (
        plain(*args, **rest)
        if not is_traced(tracer, args, rest)
        else tracer.dispatch(plain, args, rest)
    )
    if tuple(dst.shape) != tuple(result.shape):
        tracer.fail(
            f"{func} would resize its output from {list(dst.shape)} to {list(result.shape)}"
        )
    tracer.dispatch(torch.ops.aten.copy_.default, (dst, result), {})
    return dst


def functional_form(func: Any) -> Any:
    """aten::cat.out -> aten::cat: the overload with the same arguments but out."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::"), None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    for overload in packet.overloads() if packet is not None else ():
        schema = getattr(packet, overload)._schema
        if [(a.name, str(a.type)) for a in schema.arguments] == wanted:
            return getattr(packet, overload)
    return None


def is_traced(tracer: Tracer, *trees: Any) -> bool:
    return any(tracer.ref(t) is not None for t in tensors_in(*trees))


def question(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """An operator that answers with a number or a truth value: it is run on real tensors."""
    from heft.trace.replay import answer

    return answer(tracer, func, args, kwargs)


def opaque(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """What no tape can hold: the results depend on all arguments, and the operator is named."""
    from heft.trace.replay import run_on_constants

    answered, result = run_on_constants(tracer, func, args, kwargs)
    if answered:
        return result
    return record_opaque(tracer, func, args, kwargs)


def record_opaque(tracer: Tracer, func: Any, args: Any, kwargs: Any, op: str = "") -> Any:
    schema = func._schema
    written = _written_arguments(tracer, schema, args, kwargs)
    out = None
    if any(r.alias_info is None for r in schema.returns):
        out = _geometry(tracer, func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    read = list(tensors_in(args, kwargs))
    is_new = schema.name in OVERWRITES and not tracer.writable(args[0]).buffer.calls
    if is_new or schema.name in REPLACES:
        read = read[1:]  # what it held before is nobody's business
    srcs = [ref.region for t in read if (ref := tracer.ref(t)) is not None]
    fresh: list[Ref] = []
    device = _result_device(tracer, args, kwargs)

    def wrap(meta: torch.Tensor) -> torch.Tensor:
        fresh.append(tracer.fresh(call, meta))
        return tracer.stand_in(fresh[-1], device)

    result = map_tensors(wrap, out)
    dsts = [ref.region for ref in [*written, *fresh] if ref.meta.numel() > 0]
    if dsts:
        tracer.opaque(call, dsts, [s for s in srcs if s.numel > 0], op)
    if out is not None:
        return result
    return _returned_arguments(schema, args, kwargs)


def _result_device(tracer: Tracer, args: Any, kwargs: Any) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((t.device for t in tensors_in(args)), tracer.device)


def _geometry(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return tracer.meta_call(func, args, kwargs)
    except (NotImplementedError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        sources = ", ".join(
            repr(ref.buffer) for t in tensors_in(args, kwargs) if (ref := tracer.ref(t)) is not None
        )
        tracer.fail(
            f"{func} on {sources}: the shape of its result cannot be known without values: {text}"
        )


def _written_arguments(tracer: Tracer, schema: Any, args: Any, kwargs: Any) -> list[Ref]:
    written: list[Ref] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
            )
            written += [tracer.writable(t) for t in tensors_in(value)]
    return written


def _returned_arguments(schema: Any, args: Any, kwargs: Any) -> Any:
    """In-place operators return the arguments they wrote."""
    by_alias: dict[str, Any] = {}
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            value = (
                args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
            )
            by_alias["".join(sorted(argument.alias_info.before_set))] = value
    out = [
        by_alias.get("".join(sorted(r.alias_info.before_set)))
        for r in schema.returns
        if r.alias_info is not None
    ]
    return None if not out else out[0] if len(out) == 1 else tuple(out)

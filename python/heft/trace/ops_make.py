# SPDX-License-Identifier: Apache-2.0
"""Factories and fills. What is uniform takes no memory, whatever its size."""

from __future__ import annotations

from typing import Any

import torch

from heft.trace import fallback
from heft.trace.casts import is_cast_exact
from heft.trace.ops_move import cast_name, result
from heft.trace.registry import handles
from heft.trace.tracer import Tracer

NOTHING = object()


@handles("aten::fill_", "aten::fill_.Tensor", "aten::zero_")
def fill_(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    dst, value = args[0], args[1] if len(args) > 1 else 0
    traced = isinstance(value, torch.Tensor) and tracer.ref(value) is not None
    if traced and not is_cast_exact(value.dtype, dst.dtype, tracer.is_on_cpu(value)):
        return fallback.record_opaque(tracer, func, args, kwargs, cast_name(value.dtype, dst.dtype))
    to = tracer.writable(dst)
    call = tracer.begin(func, (to, *args[1:]), kwargs)
    tracer.assign(call, to.region, value)
    return dst


def _make(tracer: Tracer, func: Any, args: Any, kwargs: Any, value: Any) -> Any:
    meta = tracer.meta_call(func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    like = args[0] if args and isinstance(args[0], torch.Tensor) else None
    ref, out = result(tracer, call, meta, like)
    if value is not NOTHING:
        tracer.fill(call, ref.region, value)
    return out


@handles("aten::zeros", "aten::new_zeros", "aten::zeros_like")
def zeros(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return _make(tracer, func, args, kwargs, 0)


@handles("aten::ones", "aten::new_ones", "aten::ones_like")
def ones(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return _make(tracer, func, args, kwargs, 1)


@handles("aten::full")
def full(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return _make(tracer, func, args, kwargs, args[1])


@handles("aten::new_full", "aten::full_like")
def full_like(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    value = args[2] if func._schema.name == "aten::new_full" else args[1]
    return _make(tracer, func, args, kwargs, value)


@handles(
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::empty_like",
    "aten::empty_permuted",
)
def empty(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return _make(tracer, func, args, kwargs, NOTHING)


FACTORIES = {
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_permuted",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_full",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::full_like",
    "aten::empty_like",
}

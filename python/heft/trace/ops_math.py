# SPDX-License-Identifier: Apache-2.0
"""Element-wise arithmetic as programs of a tape, with PyTorch's own roundings.

A number beside a bf16 or f16 tensor, measured on a CPU: products and quotients are computed in f32
with the number as f32, and rounded once; in sums the number is rounded to the tensor's dtype first.
Other devices may do otherwise (reciprocals, other roundings of the number). There, only what comes
to the same either way is a program, and the rest is opaque.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from heft.trace import fallback
from heft.trace.casts import FLOAT8, FLOATS
from heft.trace.log import Ref, Region, Step
from heft.trace.ops_move import result
from heft.trace.registry import handles
from heft.trace.tracer import Tracer

aten = torch.ops.aten
HALVES = {torch.float16, torch.bfloat16}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


def can_load(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether an operand's value is exact in the dtype that is computed in."""
    return tensor.dtype in FLOATS | FLOAT8 and (
        tensor.dtype != torch.float64 or dtype == torch.float64
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_number(tracer: Tracer, value: Any) -> Any:
    """A Python number, or a real tensor of one element and no dimension, as a number; else None."""
    if is_number(value):
        return value
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        constant = tracer.constant_value(value)
        if constant is not None and constant.dtype not in (
            torch.bool,
            torch.complex64,
            torch.complex128,
        ):
            return constant.item()
    return None


def apply(
    tracer: Tracer, func: Any, args: Any, kwargs: Any, srcs: list[torch.Tensor], program: list[Step]
) -> Any:
    """Record dst <- program(srcs): a fresh temporary, or args[0] of an in-place operator."""
    if func._schema.name.endswith("_"):
        out = args[0]
        regions = [_ref(tracer, t).region for t in srcs]
        to = tracer.writable(out)
        regions = [
            _ref(tracer, t).region if t is out else r for t, r in zip(srcs, regions, strict=True)
        ]
        call = tracer.begin(func, (to, *args[1:]), kwargs)
    else:
        regions = [_ref(tracer, t).region for t in srcs]
        meta = tracer.meta_call(func, args, kwargs)
        call = tracer.begin(func, args, kwargs)
        to, out = result(tracer, call, meta, srcs[0])
    tracer.map(call, to.region, regions, program)
    return out


def _ref(tracer: Tracer, tensor: torch.Tensor) -> Ref:
    ref = tracer.ref(tensor)
    assert ref is not None
    return ref


def result_dtype(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> torch.dtype:
    if func._schema.name.endswith("_"):
        return args[0].dtype
    return tracer.meta_call(func, args, kwargs).dtype


def traced_float(tracer: Tracer, value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and tracer.ref(value) is not None
        and value.dtype in FLOATS | FLOAT8
    )


def rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def is_settled(code: str, value: float, dtype: torch.dtype, is_on_cpu: bool) -> bool:
    """Whether it is known how the device rounds, or makes no difference."""
    if is_on_cpu:
        return True
    if code == "DIV_IMM":
        return math.frexp(value)[0] in (0.5, -0.5)  # a power of two has an exact reciprocal
    return dtype not in HALVES or rounded(value, dtype) == value


def immediate(code: str, value: float, dtype: torch.dtype) -> list[Step]:
    """top <op> number, in PyTorch's order of roundings."""
    wide = compute_dtype(dtype)
    if code == "ADD_IMM" and dtype in HALVES:
        value = rounded(value, dtype)
    steps = [Step("LOAD"), Step(code, wide, imm=rounded(value, wide))]
    return steps if wide == dtype else [*steps, Step("CAST", dtype)]


def with_number(
    tracer: Tracer, func: Any, args: Any, kwargs: Any, tensor: Any, code: str, value: Any
) -> Any:
    dtype = result_dtype(tracer, func, args, kwargs)
    if (
        value is None
        or not traced_float(tracer, tensor)
        or dtype not in FLOATS
        or not can_load(tensor, dtype)
        or not is_settled(code, value, dtype, tracer.is_on_cpu(tensor))
    ):
        return fallback.opaque(tracer, func, args, kwargs)
    return apply(tracer, func, args, kwargs, [tensor], immediate(code, value, dtype))


@handles("aten::mul.Tensor", "aten::mul_.Tensor", "aten::mul.Scalar", "aten::mul_.Scalar")
def mul(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    a, b = args[0], args[1]
    value = as_number(tracer, b)
    if value is not None and traced_float(tracer, a):
        return with_number(tracer, func, args, kwargs, a, "MUL_IMM", value)
    value = as_number(tracer, a)
    if value is not None and traced_float(tracer, b):
        if b.dtype in HALVES:  # as the first operand it is rounded first; as the second it is not
            value = rounded(value, b.dtype)
        return with_number(tracer, func, args, kwargs, b, "MUL_IMM", value)
    if not (traced_float(tracer, a) and traced_float(tracer, b)):
        return fallback.opaque(tracer, func, args, kwargs)
    dtype = result_dtype(tracer, func, args, kwargs)
    if dtype not in FLOATS or not (can_load(a, dtype) and can_load(b, dtype)):
        return fallback.opaque(tracer, func, args, kwargs)
    if dtype in HALVES and not tracer.is_on_cpu(a) and any(t.dtype != dtype for t in (a, b)):
        return fallback.opaque(tracer, func, args, kwargs)  # a GPU may round a wider operand first
    wide = compute_dtype(dtype)
    program = [Step("LOAD"), Step("LOAD", arg=1), Step("MUL", wide)]
    if a.dim() == 0 and b.dim() > 0 and dtype in HALVES and a.dtype != dtype:
        program.insert(1, Step("CAST", dtype))
    if wide != dtype:
        program.append(Step("CAST", dtype))
    return apply(tracer, func, args, kwargs, [a, b], program)


@handles("aten::div.Tensor", "aten::div_.Tensor", "aten::div.Scalar", "aten::div_.Scalar")
def div(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return with_number(tracer, func, args, kwargs, args[0], "DIV_IMM", as_number(tracer, args[1]))


def _alpha(args: Any, kwargs: Any) -> float:
    return args[2] if len(args) > 2 else kwargs.get("alpha", 1)


@handles("aten::add.Tensor", "aten::add_.Tensor", "aten::add.Scalar", "aten::add_.Scalar")
def add(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    for tensor, other in ((args[0], args[1]), (args[1], args[0])):
        value = as_number(tracer, other)
        if value is not None and traced_float(tracer, tensor) and _alpha(args, kwargs) == 1:
            return with_number(tracer, func, args, kwargs, tensor, "ADD_IMM", value)
    return fallback.opaque(tracer, func, args, kwargs)


@handles("aten::sub.Tensor", "aten::sub_.Tensor", "aten::sub.Scalar", "aten::sub_.Scalar")
def sub(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    value = as_number(tracer, args[1])
    if _alpha(args, kwargs) != 1 or value is None:
        return fallback.opaque(tracer, func, args, kwargs)
    return with_number(tracer, func, args, kwargs, args[0], "ADD_IMM", -value)


def unary(tracer: Tracer, func: Any, args: Any, kwargs: Any, steps: Any) -> Any:
    tensor = args[0]
    if not traced_float(tracer, tensor) or tensor.dtype not in FLOATS:
        return fallback.opaque(tracer, func, args, kwargs)
    dtype = tensor.dtype
    wide = compute_dtype(dtype)
    program = [Step("LOAD"), *steps(wide)]
    return apply(
        tracer,
        func,
        args,
        kwargs,
        [tensor],
        program if wide == dtype else [*program, Step("CAST", dtype)],
    )


@handles("aten::neg", "aten::neg_")
def neg(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Times -1, which is exact; of a whole exp(x) it is the one operation -exp(x)."""
    source = None if func._schema.name.endswith("_") else exponent_of(tracer, args[0])
    if source is None:
        return unary(tracer, func, args, kwargs, lambda wide: [Step("MUL_IMM", wide, imm=-1.0)])
    meta = tracer.meta_call(func, args, kwargs)
    call = tracer.begin(func, args, kwargs)
    to, out = result(tracer, call, meta, args[0])
    dtype = meta.dtype
    program = [Step("LOAD"), Step("NEG_EXP", compute_dtype(dtype))]
    tracer.map(
        call,
        to.region,
        [source],
        program if dtype == program[-1].dtype else [*program, Step("CAST", dtype)],
    )
    return out


def exponent_of(tracer: Tracer, tensor: torch.Tensor) -> Region | None:
    """What x is, if the tensor is all of one exp(x) and nothing has touched either since."""
    ref = tracer.ref(tensor)
    if ref is None or len(ref.buffer.calls) != 1:
        return None
    call = ref.buffer.calls[0]
    if (
        call.func is not aten.exp.default
        or call.writes[0].kind != "map"
        or call.writes[0].dsts[0] != ref.region
    ):
        return None
    source = call.writes[0].srcs[0]
    later = source.buffer.calls[-1].index > call.index if source.buffer.calls else False
    return None if later else source


@handles("aten::exp", "aten::exp_")
def exp(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return unary(
        tracer,
        func,
        args,
        kwargs,
        lambda wide: [Step("NEG_EXP", wide), Step("MUL_IMM", wide, imm=-1.0)],
    )

# SPDX-License-Identifier: Apache-2.0
"""Known kernels: functions of an engine that heft can run itself (docs/formats/known-kernels.md).

An engine plug-in declares them. While a loader is traced the function is replaced; called with a
stand-in, it leaves an opaque write with the kernel's name, and nothing of its inside is traced.

    @known_kernel("engine.quant.fp8:block_quantise")
    def block_quantise(record, weight, block):
        op = f"heft.fp8_quantise/1(block={block}x{block},scale=deepseek)"
        blocks = tuple(-(-n // block) for n in weight.shape)
        return record(op, [weight], [(weight.shape, torch.float8_e4m3fn), (blocks, torch.float32)])

It returns what the function returns, or NotImplemented for arguments that no kernel stands for;
then the function itself is traced.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from heft.trace.errors import TraceError
from heft.trace.tracer import Tracer, tensors_in, untraced

Outputs = Sequence[tuple[Sequence[int], torch.dtype]]
Record = Callable[[str, Sequence[torch.Tensor], Outputs], tuple[torch.Tensor, ...]]


class KnownKernel(NamedTuple):
    """A function of an engine, "package.module:name", and what it is to heft."""

    target: str
    describe: Callable[..., Any]  # (record, *args, **kwargs) -> what the function returns


def known_kernel(target: str) -> Callable[[Callable[..., Any]], KnownKernel]:
    """Declare that describe(record, ...) says what the function `target` does."""

    def declare(describe: Callable[..., Any]) -> KnownKernel:
        return KnownKernel(target, describe)

    return declare


class _Function:
    """The engine's function, as the log has it: it can be called again, but is no operator."""

    def __init__(self, target: str, original: Callable[..., Any]) -> None:
        self.original = original
        self._schema = SimpleNamespace(name=f"kernel::{target}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)

    def __str__(self) -> str:
        return self._schema.name


@contextlib.contextmanager
def replaced(tracer: Tracer, kernels: Iterable[KnownKernel]) -> Iterator[None]:
    """The functions record themselves while this is open. A missing target is an error."""
    with contextlib.ExitStack() as stack:
        for kernel in kernels:
            owner, name = _find(kernel.target)
            original = getattr(owner, name)
            setattr(owner, name, _wrap(tracer, kernel, original))
            stack.callback(setattr, owner, name, original)
        yield


def _find(target: str) -> tuple[Any, str]:
    module_name, _, path = target.partition(":")
    try:
        owner: Any = importlib.import_module(module_name)
        *outer, name = path.split(".")
        for step in outer:
            owner = getattr(owner, step)
        getattr(owner, name)
    except (ImportError, AttributeError) as error:
        raise TraceError(f"known kernel {target!r}: {error}") from error
    return owner, name


def _wrap(tracer: Tracer, kernel: KnownKernel, original: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if all(tracer.ref(tensor) is None for tensor in tensors_in(args, kwargs)):
            return original(*args, **kwargs)

        def record(
            op: str, inputs: Sequence[torch.Tensor], outputs: Outputs
        ) -> tuple[torch.Tensor, ...]:
            return _record(
                tracer, _Function(kernel.target, original), op, inputs, outputs, args, kwargs
            )

        result = kernel.describe(record, *args, **kwargs)
        return original(*args, **kwargs) if result is NotImplemented else result

    function.__name__ = getattr(original, "__name__", kernel.target)
    return function


def _record(
    tracer: Tracer,
    function: _Function,
    op: str,
    inputs: Sequence[torch.Tensor],
    outputs: Outputs,
    args: Any,
    kwargs: Any,
) -> tuple[torch.Tensor, ...]:
    if not op.startswith("heft."):
        raise TraceError(
            f"known kernel {function}: {op!r} is no kernel of heft; their names begin with heft."
        )
    call = tracer.begin(function, args, kwargs)
    srcs = []
    for tensor in inputs:
        ref = tracer.ref(tensor)
        if ref is None:
            raise TraceError(f"known kernel {function}: an input is a constant")
        srcs.append(ref.region)
    with untraced():
        metas = [torch.empty(tuple(n), dtype=dtype, device="meta") for n, dtype in outputs]
        refs = [tracer.fresh(call, meta) for meta in metas]
        tracer.opaque(call, [ref.region for ref in refs], srcs, op)
        return tuple(tracer.stand_in(ref) for ref in refs)

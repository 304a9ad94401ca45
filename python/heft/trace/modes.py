# SPDX-License-Identifier: Apache-2.0
"""Modes: factories, real tensors that mean a buffer, and devices that are not here.

A mode sees what a stand-in's own hook cannot, operators without a stand-in; but only in threads
where it is on. So threads that start during a trace are started with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from heft.trace.ops_make import FACTORIES
from heft.trace.standin import StandIn
from heft.trace.tracer import Tracer, is_here, tensors_in

_CPU = torch.device("cpu")


class OperatorMode(TorchDispatchMode):
    """Sees every operator. Those that touch a buffer, or make a uniform tensor, are recorded."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tracer = self.tracer
        if tracer.is_closed:  # in a thread that outlives the trace; stand-ins have their own hook
            return func(*args, **kwargs)
        tensors = list(tensors_in(args, kwargs))
        for tensor in tensors:
            if isinstance(tensor, StandIn) or tracer.known_buffer(tensor) is not None:
                return tracer.dispatch(func, args, kwargs)
        name = func._schema.name
        if name in FACTORIES or torch.Tag.nondeterministic_seeded in func.tags:
            return tracer.dispatch(func, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}  # constants are computed for real
        return func(*args, **kwargs)


class CallMode(TorchFunctionMode):
    """Sees calls before they become operators: moves to devices that are not here, and pointers."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.tracer.is_closed:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _MOVES and isinstance(args[0], torch.Tensor) and not is_here(name):
            return args[0]
        if (
            name in _POINTERS
            and args
            and isinstance(args[0], torch.Tensor)
            and not isinstance(args[0], StandIn)
        ):
            self._check_pointer(name, args[0])
        if name == "__set__" and args and self.tracer.known_buffer(args[0]) is not None:
            self.tracer.bypass(
                f"assigning .data of {self.tracer.known_buffer(args[0])!r}: it moves away"
            )
        if "device" in kwargs or len(args) > 1:
            args, kwargs = (
                tuple(_present(a) for a in args),
                {k: _present(v) for k, v in kwargs.items()},
            )
        return func(*args, **kwargs)

    def _check_pointer(self, name: str, tensor: torch.Tensor) -> None:
        buffer = self.tracer.known_buffer(tensor)
        if buffer is not None:
            self.tracer.bypass(
                f"{name}() of {buffer!r}: what is done with memory, a trace cannot see"
            )


_MOVES = {"cuda", "xpu", "hpu"}
_POINTERS = {"data_ptr", "numpy", "tolist", "__array__", "__dlpack__", "untyped_storage", "storage"}


def _present(arg: Any) -> Any:
    """The CPU in place of a device this machine has not got: nothing is there to be moved."""
    if isinstance(arg, torch.device) or (isinstance(arg, str) and arg.split(":")[0] in _MOVES):
        return arg if is_here(torch.device(arg).type) else _CPU
    return arg


@contextlib.contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Both modes, in this thread and in those started from now on."""
    start = threading.Thread.start

    def traced_start(thread: threading.Thread) -> None:
        run = thread.run  # the instance's: a subclass may have its own

        def traced_run() -> None:
            with CallMode(tracer), OperatorMode(tracer):
                run()

        thread.run = traced_run  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = traced_start  # type: ignore[method-assign]
    try:
        with CallMode(tracer), OperatorMode(tracer):
            yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]

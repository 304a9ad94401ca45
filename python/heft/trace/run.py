# SPDX-License-Identifier: Apache-2.0
"""One pass: the loader runs once over stand-ins, everything is put back, its writes are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from heft.trace import ops_index, ops_make, ops_math, ops_move  # noqa: F401  (they register handlers)
from heft.trace.answers import Answers
from heft.trace.errors import TraceError
from heft.trace.kernels import KnownKernel, replaced
from heft.trace.log import Buffer
from heft.trace.model import Model
from heft.trace.modes import tracing
from heft.trace.standin import StandIn
from heft.trace.tracer import Tracer, is_loader_frame, short_path

Specs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
Load = Callable[[Iterator[tuple[str, torch.Tensor]]], object]
MAX_TEXT = 500  # characters of what a loader raised that go into one line


def loader_of(model: torch.nn.Module, load: Load | None) -> Load:
    """What was given, or the model's own; an error says what to give."""
    loader: Load | None = load if load is not None else getattr(model, "load_weights", None)
    if loader is None:
        raise TraceError(
            f"{type(model).__name__} has no load_weights: pass load=, a function of the (name, "
            "tensor) pairs; heft.engines.get(..).load is one for transformers, vLLM and SGLang"
        )
    if not callable(loader):
        raise TraceError(f"load is a {type(loader).__name__}, not a function")
    return loader


class Recording:
    """What one pass leaves behind."""

    def __init__(self, tracer: Tracer, model: Model, unread: list[str]) -> None:
        self.tracer = tracer
        self.owners = model.owners
        self.aliases = model.aliases
        self.unread = unread  # names that the loader never pulled
        self.changed = model.changed_attributes()
        self.new_tensors: dict[str, Buffer] = {}
        for name, tensor in model.new_tensors():
            ref = tracer.ref(tensor)
            if ref is not None and ref.buffer.kind == "param":
                self.aliases[name] = ref.buffer.name
            elif ref is not None:
                self.new_tensors[name] = ref.buffer


class _Pulled:
    """The iterator that the loader gets; it makes a stand-in for each name when it is asked for."""

    def __init__(self, tracer: Tracer, specs: Specs) -> None:
        self.tracer = tracer
        self.specs = specs
        self.last = ""
        self.names: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, (dtype, shape) in self.specs.items():
            self.last = name
            self.names.add(name)
            yield name, self.tracer.new_source(name, dtype, shape)


def record(
    model: torch.nn.Module,
    specs: Specs,
    load: Load,
    device: torch.device,
    answers: Answers,
    kernels: Sequence[KnownKernel] = (),
) -> Recording:
    """Run load once. The model is as before afterwards, whatever happens."""
    tracer = Tracer(device, answers)
    stand_ins = Model(model, tracer)
    pulled = _Pulled(tracer, specs)
    try:
        stand_ins.replace()
        with replaced(tracer, kernels):
            _run(tracer, load, pulled)
        if tracer.failures:
            raise tracer.failures[0]  # the loader swallowed it
        stand_ins.check()
        return Recording(tracer, stand_ins, [name for name in specs if name not in pulled.names])
    finally:
        tracer.is_closed = True
        stand_ins.restore()


def _run(tracer: Tracer, load: Load, pulled: _Pulled) -> None:
    try:
        with tracing(tracer):
            load(iter(pulled))
    except TraceError:
        raise
    except Exception as error:
        where, names = _culprits(error)
        if tracer.refused is not None and tracer.refused[0] is error:
            names = tracer.refused[1]
        what = ", ".join(names) or (f'source "{pulled.last}"' if pulled.last else "no source yet")
        text = _one_line(str(error))
        raise TraceError(
            f"{where}: the loader failed with {what}: {type(error).__name__}: {text}"
        ) from error


def _one_line(text: str) -> str:
    """All of it where it is short: PyTorch's first line may say only that there were errors."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]}..."


def _culprits(error: BaseException) -> tuple[str, list[str]]:
    """Where the loader failed, and the stand-ins its innermost frames hold."""
    where, names = "?", []
    frames = []
    tb = error.__traceback__
    while tb is not None:
        frames.append((tb.tb_frame, tb.tb_lineno))
        tb = tb.tb_next
    for frame, line in reversed(frames):
        if not is_loader_frame(frame.f_code.co_filename):
            continue
        if where == "?":
            where = f"{short_path(frame.f_code.co_filename)}:{line}"
        names = _named(frame.f_locals.values())
        if any(name.startswith("source") for name in names):
            break
    return where, names


def _named(values: Iterable[Any]) -> list[str]:
    found: dict[str, None] = {}
    for value in values:
        if isinstance(value, StandIn) and value._heft_ref.buffer.name:
            found[repr(value._heft_ref.buffer)] = None
    return sorted(found, key=lambda name: not name.startswith("source"))[:6]

# SPDX-License-Identifier: Apache-2.0
"""heft.trace: a tape from an engine's own loader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from heft.contract import Contract
from heft.dtypes import DType
from heft.exceptions import Exception_
from heft.manifest import Manifest
from heft.plan import Plan
from heft.tape import Tape
from heft.trace.answers import Answers
from heft.trace.casts import TAPE_DTYPES
from heft.trace.emit import Emitter, live_writes, tape_dtype, tape_shape
from heft.trace.errors import TraceError
from heft.trace.flow import Flow, OpaqueUse
from heft.trace.kernels import KnownKernel
from heft.trace.model import Owner
from heft.trace.run import Load, Recording, Specs, loader_of, record
from heft.trace.values import settle

_TORCH_DTYPES = {name: dtype for dtype, name in TAPE_DTYPES.items()}


class Derived(NamedTuple):
    """A tensor that the loader computes from parameters: never sent, made again by the receiver."""

    name: str
    params: tuple[str, ...]  # what it is made of
    is_new: bool  # the loader made a new tensor of it, so its address changes


@dataclass(repr=False)
class Trace:
    """What an engine's loader does on one rank."""

    rank: int
    specs: Specs  # what the sender sends, in its order, as PyTorch counts
    source: Manifest  # the same as a manifest
    params: Manifest  # what is delivered into, in the loader's layout
    tape: Tape
    exceptions: list[Exception_]  # for every plan made of it
    aliases: dict[str, str]  # name -> the parameter it shares memory with
    derived: list[Derived]
    opaque: dict[str, list[OpaqueUse]]  # by parameter: why the loader is needed for it
    constants: list[str]  # parameters that depend on no source
    unread: list[str]  # names the loader never pulled
    unused: list[str]  # names it pulled, and nothing came of them
    kept: list[str]  # tensors it left on modules; they were removed
    changed: dict[str, list[str]]  # attributes of tensors it set; they were put back
    reads: list[str]  # values it asked for: file:line and operator
    seconds: float

    @property
    def attrs(self) -> dict[str, str]:
        """Facts about the destination, as given."""
        return self.params.attrs

    def plan(self, exceptions: Iterable[Exception_] = (), *, partial: bool = False) -> Plan:
        """Fold and prove this rank alone; ProofError with its report where it is refused."""
        return Plan.create(
            [self.tape],
            first_rank=self.rank,
            exceptions=[*self.exceptions, *exceptions],
            partial=partial,
        )

    def contract(self, exceptions: Iterable[Exception_] = (), *, partial: bool = False) -> Contract:
        """The source, this rank and what its loader does, to be kept and delivered by."""
        return Contract.create(
            self.source,
            destinations=[self.params],
            tapes=[self.tape],
            first_rank=self.rank,
            exceptions=[*self.exceptions, *exceptions],
            attrs=self.attrs,
            partial=partial,
        )

    def __repr__(self) -> str:
        return (
            f"<Trace of rank {self.rank}: {len(self.source)} sources, {len(self.params)} "
            f"parameters, {self.tape.n_writes} writes, {len(self.opaque)} opaque, "
            f"{self.seconds:.2f} s>"
        )


def trace(
    model: torch.nn.Module,
    specs: Any,
    *,
    load: Load | None = None,
    rank: int = 0,
    exceptions: Iterable[Exception_] = (),
    attrs: Mapping[str, str] | None = None,
    device: torch.device | str = "cpu",
    kernels: Iterable[KnownKernel] = (),
) -> Trace:
    """Run the model's own loader over tensors without storage, and record what it writes where.

    specs: what the sender sends: a manifest, a mapping of names to tensors (meta ones do), or
    (name, dtype, shape) triples. load: called with an iterator of (name, tensor); not given:
    model.load_weights. attrs: facts about the destination that decided what the loader does (ranks,
    platform, backend); they enter the manifest of the parameters, and so its digest. device: where
    the engine will load; nothing is allocated there. kernels: functions of the engine that heft
    runs itself. The model is as before afterwards, whatever happens.

    TraceError: the loader failed, or did what no tape can hold; it names tensor, file and line.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 32:
        raise TraceError(f"rank {rank!r}: ranks of an engine are counted from 0")
    started = time.perf_counter()
    wanted = specs_of(specs)
    loader, known = loader_of(model, load), list(kernels)

    def run(answers: Answers) -> Recording:
        return record(model, wanted, loader, torch.device(device), answers, known)

    recording = run(Answers(1.0))
    if recording.tracer.reads:  # without a value read, a second pass could not differ
        settle(recording.tracer, run(Answers(2.0)).tracer, lambda answers: run(answers).tracer)
    return make_trace(recording, wanted, rank, list(exceptions), dict(attrs or {}), started)


def make_trace(
    recording: Recording,
    specs: Specs,
    rank: int,
    exceptions: list[Exception_],
    attrs: Mapping[str, str],
    started: float,
) -> Trace:
    flow = Flow(recording)
    owners = [owner for owner in recording.owners if flow.is_destination(owner)]
    emitter = Emitter(Tape(), specs, owners)
    emitter.write_all(live_writes(recording.tracer.calls, {owner.buffer for owner in owners}))
    for call, write, left in emitter.left:
        call.writes[:] = [left if w is write else w for w in call.writes]
    flow = Flow(recording) if emitter.left else flow
    source = Manifest.create(
        "source", [(n, tape_dtype(d), tape_shape(d, s)) for n, (d, s) in specs.items()]
    )
    params = Manifest.create("destination", [_tensor_of(owner) for owner in owners], attrs=attrs)
    return Trace(
        rank=rank,
        specs=specs,
        source=source,
        params=params,
        tape=emitter.tape,
        exceptions=exceptions,
        aliases=dict(recording.aliases),
        derived=flow.derived,
        opaque=flow.opaque,
        constants=flow.constants,
        unread=list(recording.unread),
        unused=flow.unused(specs, recording.unread),
        kept=flow.kept,
        changed=dict(recording.changed),
        reads=[f"{r.note}: {r.func}" for r in recording.tracer.reads],
        seconds=time.perf_counter() - started,
    )


def _tensor_of(owner: Owner) -> tuple[str, DType, tuple[int, ...]]:
    dtype = owner.meta.dtype
    return owner.name, tape_dtype(dtype), tape_shape(dtype, owner.meta.shape)


def specs_of(specs: Any) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Name -> (dtype, shape) as PyTorch counts them, from all that trace() takes."""
    if isinstance(specs, torch.nn.Module):
        raise TraceError(
            f"specs is the module {type(specs).__name__}; give heft.torch.manifest_of of it"
        )
    if isinstance(specs, Mapping):
        triples: Iterable[Any] = ((name, t.dtype, tuple(t.shape)) for name, t in specs.items())
    elif isinstance(specs, Manifest):
        triples = ((info.name, info.dtype, info.shape) for info in specs)
    else:
        triples = specs
    out: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for triple in triples:
        if isinstance(triple, str) or len(triple) != 3:
            raise TraceError(f"specs: {triple!r} is no (name, dtype, shape)")
        name, dtype, shape = triple
        if name in out:
            raise TraceError(f'source "{name}" is listed twice')
        out[name] = _torch_spec(name, dtype, tuple(shape))
    if not out:
        raise TraceError("there is no source tensor to trace a loader with")
    return out


def _torch_spec(
    name: str, dtype: Any, shape: tuple[int, ...]
) -> tuple[torch.dtype, tuple[int, ...]]:
    if isinstance(dtype, torch.dtype):
        return dtype, shape
    known = DType.from_name(dtype) if isinstance(dtype, str) else DType(dtype)
    if known.name not in _TORCH_DTYPES:
        raise TraceError(f'source "{name}": PyTorch has no dtype {known.name}')
    if known == DType.F4:
        shape = (*shape[:-1], shape[-1] // 2)
    return _TORCH_DTYPES[known.name], shape


__all__ = ["Derived", "Trace", "trace"]

# SPDX-License-Identifier: Apache-2.0
"""Values: the calls behind one tensor, run again on real tensors.

Sources answer with the pass's constant. Only what the value needs is run, and everything is freed
once it has been answered, so a question costs the tensors behind it and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from heft.trace.errors import TraceError
from heft.trace.log import Buffer, Call, Ref
from heft.trace.tracer import Tracer, map_tensors, tensors_in

CONSTANT_LIMIT = 1 << 26  # bytes of constants that are computed for real


class Read:
    """A value that the loader asked for."""

    __slots__ = ("at", "func", "note", "refs", "value")

    def __init__(self, func: Any, refs: list[Ref], value: Any, note: str, at: int) -> None:
        self.at = at  # calls recorded before it
        self.func = func
        self.refs = refs
        self.value = value
        self.note = note


def needed_calls(buffers: list[Buffer], before: int) -> tuple[list[Call], set[Buffer]]:
    """The calls behind these buffers as of call number `before`, in order; all buffers touched."""
    seen: dict[Buffer, int] = {}
    calls: dict[int, Call] = {}
    todo = [(b, before) for b in buffers]
    while todo:
        buffer, limit = todo.pop()
        if seen.get(buffer, -1) >= limit:
            continue
        seen[buffer] = limit
        for call in buffer.calls:
            if call.index < limit and call.index not in calls:
                calls[call.index] = call
                todo += [(ref.buffer, call.index) for ref in refs_in(call.args, call.kwargs)]
                todo += [(dst.buffer, call.index) for w in call.writes for dst in w.dsts]
    return [calls[i] for i in sorted(calls)], set(seen)


def refs_in(*trees: Any) -> list[Ref]:
    """Stand-ins among the arguments of a call in the log."""
    found: list[Ref] = []
    for tree in trees:
        if isinstance(tree, Ref):
            found.append(tree)
        elif isinstance(tree, list | tuple):
            found += refs_in(*tree)
        elif isinstance(tree, dict):
            found += refs_in(*tree.values())
    return found


class Replay:
    """Runs calls of a log on real storages."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.storages: dict[Buffer, torch.Tensor] = {}

    def real(self, ref: Ref) -> torch.Tensor:
        """The real tensor of a Ref, over the buffer's real storage."""
        m = ref.meta
        one = self._uniform_source(ref)
        if one is not None:
            return one.expand(m.shape)
        storage = self.storages.get(ref.buffer)
        if storage is None:
            storage = self.storages[ref.buffer] = self._storage(ref.buffer)
        if m.dtype != storage.dtype:
            storage = storage.view(torch.uint8).view(m.dtype)
        return storage.as_strided(m.shape, m.stride(), m.storage_offset())

    def _uniform_source(self, ref: Ref) -> torch.Tensor | None:
        """A source is one number again and again, which takes no memory; nothing writes it."""
        buffer = ref.buffer
        if buffer.kind != "source" or ref.meta.dtype != buffer.dtype:
            return None
        return self.tracer.answers.uniform(buffer.name, buffer.dtype)

    def _storage(self, buffer: Buffer) -> torch.Tensor:
        if buffer.live is not None:
            return over_storage(buffer.live).clone()
        flat = torch.empty(buffer.numel, dtype=buffer.dtype, device="cpu")
        if buffer.kind in ("source", "param"):
            return self.tracer.answers.fill(buffer.name, flat)
        return flat.view(torch.uint8).zero_().view(flat.dtype)

    def run(self, call: Call) -> None:
        args, kwargs = self.tree(call.args), self.tree(call.kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        with torch.no_grad():
            result = call.func(*args, **kwargs)
        for ref, value in zip(call.outs, tensors_in(result) if call.outs else (), strict=True):
            self.real(ref).copy_(value)

    def tree(self, tree: Any) -> Any:
        if isinstance(tree, Ref):
            return self.real(tree)
        if type(tree) in (list, tuple):
            return type(tree)([self.tree(t) for t in tree])
        if type(tree) is dict:
            return {k: self.tree(v) for k, v in tree.items()}
        return tree


def over_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the storage that a tensor is on, on the CPU."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage).cpu()


def evaluate(tracer: Tracer, refs: list[Ref]) -> list[torch.Tensor]:
    """The values of these tensors as they are now, in this pass."""
    calls, _ = needed_calls([ref.buffer for ref in refs], len(tracer.calls))
    replay = Replay(tracer)
    for call in calls:
        replay.run(call)
    return [replay.real(ref) for ref in refs]


def is_constant(tracer: Tracer, ref: Ref) -> bool:
    """Whether what it holds depends on no source, no parameter and no chance, and is small."""
    calls, buffers = needed_calls([ref.buffer], len(tracer.calls))
    if any(is_random(call.func) for call in calls):
        return False
    size = sum(b.numel * b.base.element_size() for b in buffers)
    return size <= CONSTANT_LIMIT and all(b.kind == "temp" or b.live is not None for b in buffers)


def is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def value_of_constant(tracer: Tracer, tensor: torch.Tensor) -> torch.Tensor | None:
    ref = tracer.ref(tensor)
    if ref is None:
        return tensor
    if not is_constant(tracer, ref):
        return None
    return evaluate(tracer, [ref])[0].clone()


def constants_of(tracer: Tracer, *trees: Any) -> bool:
    return all(
        ref is None or is_constant(tracer, ref)
        for t in tensors_in(*trees)
        for ref in [tracer.ref(t)]
    )


def run_on_constants(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    """Run an operator for real if all its arguments are constants and it writes none of them."""
    schema = func._schema
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return False, None
    if is_random(func):
        return False, None
    if not constants_of(tracer, args, kwargs):
        return False, None
    args, kwargs = (
        map_tensors(tracer.constant_value, args),
        map_tensors(tracer.constant_value, kwargs),
    )
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    return True, func(*args, **kwargs)


def answer(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Answer item(), equal() and the like with the values of this pass."""
    refs = [ref for t in tensors_in(args, kwargs) if (ref := tracer.ref(t)) is not None]
    for ref in refs:
        if any(
            c.writes and c.writes[0].kind == "opaque" and not can_replay(c)
            for c in ref.buffer.calls
        ):
            raise TraceError(
                f"{tracer.where()}: {func} reads the result of an operator that cannot be run again"
            )
    values = iter(evaluate(tracer, refs))
    args = map_tensors(lambda t: t if tracer.ref(t) is None else next(values), args)
    kwargs = map_tensors(lambda t: t if tracer.ref(t) is None else next(values), kwargs)
    value = func(*args, **kwargs)
    if not all(is_constant(tracer, ref) for ref in refs):
        tracer.reads.append(Read(func, refs, value, tracer.where(), len(tracer.calls)))
    return value


def can_replay(call: Call) -> bool:
    """Operators of PyTorch itself run on a CPU; an extension's kernel may not."""
    return str(call.func._schema.name).startswith("aten::")

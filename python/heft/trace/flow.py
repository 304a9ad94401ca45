# SPDX-License-Identifier: Apache-2.0
"""What depends on what: which tensors are destinations or derived, and what is opaque why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from heft.trace.log import Buffer, Call, Write
from heft.trace.model import Owner

if TYPE_CHECKING:
    from heft.trace.api import Derived
    from heft.trace.run import Recording


class OpaqueUse(NamedTuple):
    """Why the engine's loader is needed for a parameter."""

    op: str
    note: str  # file:line in the loader
    sources: tuple[str, ...]


class _Facts:
    """What a buffer's contents depend on, so far."""

    __slots__ = ("is_written", "opaque", "params", "sources")

    def __init__(self) -> None:
        self.sources: set[str] = set()
        self.params: set[Buffer] = set()
        self.opaque: dict[tuple[str, str], set[str]] = {}
        self.is_written = False


class Flow:
    """Dependences of one recording, buffer by buffer."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._facts: dict[Buffer, _Facts] = {}
        for call in recording.tracer.calls:
            for write in call.writes:
                self._step(call, write)
        names = self._names()
        self.opaque = {
            name: [
                OpaqueUse(op, note, tuple(sorted(sources)))
                for (op, note), sources in self._of(buffer).opaque.items()
            ]
            for name, buffer in names.items()
            if self._of(buffer).opaque
        }
        self.constants = [
            name
            for name, buffer in names.items()
            if self._of(buffer).is_written
            and not self._of(buffer).sources
            and not self._of(buffer).opaque
        ]
        self.kept = [
            name for name, buffer in recording.new_tensors.items() if not self._is_derived(buffer)
        ]
        self.derived = self._derived()

    def _of(self, buffer: Buffer) -> _Facts:
        facts = self._facts.get(buffer)
        if facts is None:
            facts = self._facts[buffer] = _Facts()
            if buffer.kind == "source":
                facts.sources.add(buffer.name)
        return facts

    def _step(self, call: Call, write: Write) -> None:
        sources: set[str] = set()
        params: set[Buffer] = set()
        opaque: dict[tuple[str, str], set[str]] = {}
        for src in write.srcs:
            facts = self._of(src.buffer)
            sources |= facts.sources
            params |= facts.params
            opaque |= facts.opaque
            if src.buffer.kind == "param":
                params.add(src.buffer)
        if write.kind == "opaque":
            opaque = {**opaque, (write.op, call.note): set(sources)}
        for dst in write.dsts:
            facts = self._of(dst.buffer)
            facts.is_written = True
            facts.sources |= sources
            facts.params |= params - {dst.buffer}
            facts.opaque |= opaque

    def _names(self) -> dict[str, Buffer]:
        return {o.name: o.buffer for o in self._recording.owners if self.is_destination(o)}

    def is_destination(self, owner: Owner) -> bool:
        """All parameters; other tensors if the loader writes them, and not from parameters."""
        if owner.kind == "parameter":
            return True
        facts = self._of(owner.buffer)
        return facts.is_written and not facts.params

    def _is_derived(self, buffer: Buffer) -> bool:
        return bool(self._of(buffer).params)

    def _derived(self) -> list[Derived]:
        from heft.trace.api import Derived

        out = [
            Derived(o.name, self._param_names(o.buffer), False)
            for o in self._recording.owners
            if o.kind != "parameter" and self._is_derived(o.buffer)
        ]
        new = self._recording.new_tensors
        return out + [
            Derived(name, self._param_names(b), True)
            for name, b in new.items()
            if self._is_derived(b)
        ]

    def _param_names(self, buffer: Buffer) -> tuple[str, ...]:
        return tuple(sorted(b.name for b in self._of(buffer).params))

    def unused(self, names: Iterable[str], unread: Iterable[str]) -> list[str]:
        """Names that were pulled and reach no destination."""
        used: set[str] = set(unread)
        for owner in self._recording.owners:
            if self.is_destination(owner):
                used |= self._of(owner.buffer).sources
        return [name for name in names if name not in used]

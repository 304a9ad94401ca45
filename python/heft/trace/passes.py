# SPDX-License-Identifier: Apache-2.0
"""Two passes of a loader, with different answers to questions about values, must write the same."""

from __future__ import annotations

from heft.trace.errors import ValueDependence
from heft.trace.log import Call, Region, Write
from heft.trace.run import Recording


def compare(first: Recording, second: Recording) -> None:
    """Raise unless both passes made the same writes."""
    a, b = _writes(first), _writes(second)
    for (call, one), (_, other) in zip(a, b, strict=False):
        if _key(one) != _key(other):
            raise ValueDependence(
                f"{call.note}: {call.op} to {one.dsts[0].buffer!r} depends on values: "
                f"{_reads(first)}"
            )
    if len(a) != len(b):
        call, write = max(a, b, key=len)[min(len(a), len(b))]
        raise ValueDependence(
            f"{call.note}: {call.op} to {write.dsts[0].buffer!r} is done or not depending on "
            f"values: {_reads(first)}"
        )


def _writes(recording: Recording) -> list[tuple[Call, Write]]:
    return [(call, write) for call in recording.tracer.calls for write in call.writes]


def _key(write: Write) -> tuple[object, ...]:
    value = write.value.tolist() if write.kind == "const" else write.value
    return (
        write.kind,
        [_region(r) for r in write.dsts],
        [_region(r) for r in write.srcs],
        value,
        write.program,
        write.op,
    )


def _region(r: Region) -> tuple[object, ...]:
    return (r.buffer.kind, r.buffer.name or r.buffer.index, r.offset, r.extent, r.stride, r.dtype)


def _reads(recording: Recording) -> str:
    return "; ".join(f"{read.note} asks {read.func}" for read in recording.tracer.reads[:3])

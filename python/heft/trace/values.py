# SPDX-License-Identifier: Apache-2.0
"""Values that a loader asked for and wrote somewhere: which element of which source they are.

Passes over one loader differ in nothing but the values that sources answer with: 1, then 2, then an
uneven number that no narrow dtype keeps, so that what is rounded or cut on its way shows (a loader
may reject that one). What differs in their logs depends on values. A number in a write is looked
for among the scalars that the loader read: the one that had this number in every pass is where it
comes from, and the write becomes a copy (or a product) of that element. Where several had it, one
more pass gives every source a power of two of its own, and the last one every element that was
read. What cannot be told apart then is opaque. Any other difference means that values choose what
is written where, which no tape describes.

Logs are aligned by what a call does, not by its place, since loaders write from thread pools.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from heft.trace.answers import Answers
from heft.trace.errors import TraceError, ValueDependence
from heft.trace.log import Buffer, Call, Ref, Region, Step, Write
from heft.trace.replay import Read, needed_calls
from heft.trace.tracer import Tracer, bits_of

UNEVEN = Answers(0.7654321)  # no dtype but fp32 and fp64 keeps it, and a limit of 1 does not cut it
OPAQUE_OP = "value"  # of a write with a number that no one element explains


RunPass = Callable[[Answers], Tracer]


class Number(NamedTuple):
    """A number in a write: the value of a fill, an element of a constant, or one in a program."""

    call: Call
    write: int  # of the call
    step: int = -1  # of the write's program; -1: its value
    elem: int = -1  # of a value that is a tensor; -1: it is one number


@dataclass
class Alignment:
    """Two passes side by side: each call's twin, and the numbers that differ."""

    others: dict[int, Call]
    numbers: list[Number]


def settle(first: Tracer, second: Tracer, run: RunPass) -> None:
    """Compare two passes and replace, in the first one's log, every number that depends on a value.

    run: another pass, with other answers.
    """
    origins = _Origins(first)
    numbers = set(origins.add(second))
    numbers |= set(origins.add_pass(UNEVEN, run) or ())
    for choose in (answers_by_source, answers_by_element):
        found = [origins.candidates(number) for number in numbers]
        unclear = [read for reads in found if len(reads) > 1 for read in reads]
        if not unclear or origins.add_pass(choose(first, unclear), run) is None:
            break
    in_order = sorted(numbers, key=lambda number: (number.call.index, *number[1:]))
    _rewrite_all({number: origins.candidates(number) for number in in_order}, first)


# ---- comparing passes ----


def compare(first: Tracer, second: Tracer) -> Alignment:
    """The numbers that differ; ValueDependence if anything else does."""
    signs, others = signatures(first), signatures(second)
    found = Alignment({}, [])
    todo: list[tuple[Call, Call]] = []
    mine, theirs = _calls_by_param(first), _calls_by_param(second)
    for name in sorted(mine.keys() | theirs.keys()):
        pairs = _pair(mine.get(name, []), signs, theirs.get(name, []), others)
        if pairs is None:
            only_here = _without(mine.get(name, []), signs, theirs.get(name, []), others)
            raise _value_dependence(first, name, only_here)
        todo += pairs
    todo += _pairs_behind_reads(first, signs, second, others)
    while todo:
        call, other = todo.pop()
        if call.index in found.others:
            continue
        found.others[call.index] = other
        found.numbers += _differences(call, other)
        todo += _pairs_behind(call, signs, other, others)
    found.numbers.sort(key=lambda n: (n.call.index, *n[1:]))
    return found


def signatures(tracer: Tracer) -> list[int]:
    """For each call a number that says what it does to what, whatever the values and the order."""
    state: dict[Buffer, int] = {}
    signs: list[int] = []
    for call in tracer.calls:
        sign = hash((str(call.func), call.note, *(_sign_write(w, state) for w in call.writes)))
        for write in call.writes:
            for dst in write.dsts:
                state[dst.buffer] = (state.get(dst.buffer, 0) + sign) % (1 << 64)
        signs.append(sign)
    return signs


def _sign_write(write: Write, state: Mapping[Buffer, int]) -> int:
    program = tuple((step.code, step.dtype, step.arg) for step in write.program)
    dsts = tuple(_sign_region(dst, {}) for dst in write.dsts)
    srcs = tuple(_sign_region(src, state) for src in write.srcs)
    return hash((write.kind in ("fill", "const") or write.kind, write.op, program, dsts, srcs))


def _sign_region(region: Region, state: Mapping[Buffer, int]) -> int:
    b = region.buffer
    geometry = (region.offset, region.extent, region.stride, region.dtype)
    return hash((b.kind, b.name, b.numel, b.dtype, state.get(b, 0), geometry))


def _calls_by_param(tracer: Tracer) -> dict[str, list[Call]]:
    return {b.name: b.calls for b in tracer.buffers if b.kind == "param" and b.calls}


def _pair(
    mine: Sequence[Call], signs: Sequence[int], theirs: Sequence[Call], others: Sequence[int]
) -> list[tuple[Call, Call]] | None:
    """Calls that do the same, in order among equals; None if one side has others."""
    by_sign: dict[int, list[Call]] = defaultdict(list)
    for call in reversed(theirs):
        by_sign[others[call.index]].append(call)
    if len(mine) != len(theirs):
        return None
    pairs: list[tuple[Call, Call]] = []
    for call in mine:
        same = by_sign[signs[call.index]]
        if not same:
            return None
        pairs.append((call, same.pop()))
    return pairs


def _pairs_behind(
    call: Call, signs: Sequence[int], other: Call, others: Sequence[int]
) -> Iterator[tuple[Call, Call]]:
    """The calls that made what a call reads, in both passes."""
    for write, other_write in zip(call.writes, other.writes, strict=True):
        for src, other_src in zip(write.srcs, other_write.srcs, strict=True):
            before = [c for c in src.buffer.calls if c.index < call.index]
            other_before = [c for c in other_src.buffer.calls if c.index < other.index]
            yield from _pair(before, signs, other_before, others) or ()


def _pairs_behind_reads(
    first: Tracer, signs: Sequence[int], second: Tracer, others: Sequence[int]
) -> Iterator[tuple[Call, Call]]:
    """The calls that made what was read: a write may take its number from there."""
    theirs = _scalar_reads(second)
    for key, read in _scalar_reads(first).items():
        if key in theirs:
            yield from _pair(_calls_before(read), signs, _calls_before(theirs[key]), others) or ()


def _calls_before(read: Read) -> list[Call]:
    """Calls that had written what was read, by then."""
    return [call for ref in read.refs for call in ref.buffer.calls if call.index < read.at]


def _differences(call: Call, other: Call) -> Iterator[Number]:
    for w, (write, twin) in enumerate(zip(call.writes, other.writes, strict=True)):
        for i, (step, twin_step) in enumerate(zip(write.program, twin.program, strict=True)):
            if step.imm != twin_step.imm:
                yield Number(call, w, step=i)
        mine, theirs = write.value, twin.value
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            for elem in (_raw(mine) != _raw(theirs)).any(dim=1).nonzero().reshape(-1).tolist():
                yield Number(call, w, elem=elem)
        elif type(mine) is not type(theirs) or mine != theirs:
            yield Number(call, w)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """A row of bytes for each element."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


def _without(
    mine: Sequence[Call], signs: Sequence[int], theirs: Sequence[Call], others: Sequence[int]
) -> Call | None:
    """The first call that the other pass does not have."""
    known = {others[call.index] for call in theirs}
    return next((call for call in mine if signs[call.index] not in known), None)


def _value_dependence(first: Tracer, name: str, call: Call | None) -> ValueDependence:
    """Name the parameter, the write that only one pass has, and the last value read before it."""
    before = len(first.calls) if call is None else call.index
    reads = [read for read in first.reads if read.at <= before]
    where = f" ({call.op} at {call.note})" if call is not None else ""
    read = _describe_read(first, reads[-1]) if reads else "a value"
    return ValueDependence(
        f"parameter {name!r}: what is written to it{where} depends on {read}; "
        "with other values the loader does something else"
    )


def _describe_read(tracer: Tracer, read: Read) -> str:
    what = ", ".join(sorted(repr(buffer) for buffer in _sources_behind(tracer, read)))
    return f"a value of {what or 'constants'} read at {read.note}"


# ---- where a number comes from ----


class _Origins:
    """The passes so far, and which scalar read in all of them explains a number."""

    def __init__(self, first: Tracer) -> None:
        self.first = first
        self.reads = _scalar_reads(first)
        self.passes: list[tuple[dict[int, Call], dict[Any, Read]]] = []

    def add(self, other: Tracer) -> list[Number]:
        """Take in another pass; the numbers that differ from the first one's."""
        alignment = compare(self.first, other)
        self.passes.append((alignment.others, _scalar_reads(other)))
        return alignment.numbers

    def add_pass(self, answers: Answers, run: RunPass) -> list[Number] | None:
        """Run the loader once more; None if it rejects these values.

        Sources that differ from one another may choose another way through the loader, which says
        nothing about the two passes that were asked for; one number for all of them may not.
        """
        try:
            other = run(answers)
            return self.add(other)
        except ValueDependence:
            if not answers.sources and not answers.elements:
                raise
        except TraceError:
            pass
        return None

    def candidates(self, number: Number) -> list[Read]:
        """Reads of different elements that had this number in every pass."""
        found: dict[tuple[Any, ...], Read] = {}
        for key, read in self.reads.items():
            if read.at <= number.call.index and self._explains(key, read, number):
                region = read.refs[0].region
                found.setdefault(
                    (region.buffer.index, region.offset, len(_calls_before(read))), read
                )
        return list(found.values())

    def _explains(self, key: Any, read: Read, number: Number) -> bool:
        if not _is_number(number, read.value):
            return False
        for others, reads in self.passes:
            same, call = reads.get(key), others.get(number.call.index)
            if same is None or call is None:
                return False
            if not _is_number(number._replace(call=call), same.value):
                return False
        return True


def _scalar_reads(tracer: Tracer) -> dict[Any, Read]:
    """Numbers that were read, by what was read where, which is the same in every pass."""
    signs = signatures(tracer)
    found: dict[Any, Read] = {}
    n_equal: dict[Any, int] = defaultdict(int)
    for read in tracer.reads:
        if isinstance(read.value, bool) or not isinstance(read.value, int | float):
            continue
        calls, _ = needed_calls([ref.buffer for ref in read.refs], read.at)
        regions = tuple(_sign_region(ref.region, {}) for ref in read.refs)
        key = (read.note, regions, tuple(sorted(signs[call.index] for call in calls)))
        n_equal[key] += 1
        found[(key, n_equal[key])] = read
    return found


def _is_number(number: Number, value: float) -> bool:
    write = number.call.writes[number.write]
    if number.step >= 0:
        return bool(write.program[number.step].imm == value)
    dtype = write.dsts[0].dtype
    if number.elem >= 0:
        element = write.value.contiguous().reshape(-1)[number.elem]
        return bits_of(element) == element_bits(value, dtype)
    return bool(write.value == element_bits(value, dtype))


def element_bits(value: float, dtype: torch.dtype) -> int:
    return bits_of(torch.tensor(value).to(dtype))


# ---- rewriting ----


def _rewrite_all(found: Mapping[Number, list[Read]], first: Tracer) -> None:
    """Rewrite every write with such numbers, as an opaque one where no other stands for it."""
    by_write: dict[tuple[int, int], list[Number]] = defaultdict(list)
    for number in found:
        by_write[(number.call.index, number.write)].append(number)
    for numbers in by_write.values():
        call, at = numbers[0].call, numbers[0].write
        if all(len(found[n]) == 1 and _can_rewrite(n, found[n][0]) for n in numbers):
            for number in reversed(numbers):  # from the last step on, since steps are inserted
                _rewrite(number, found[number][0])
            continue
        reads = [read for number in numbers for read in found[number]]
        reads = reads or [read for read in first.reads if read.at <= call.index]
        _make_opaque(first, call, at, reads)


def _can_rewrite(number: Number, read: Read) -> bool:
    """Whether what was read is still there, and the number stands where an element can."""
    calls_since = [c for c in read.refs[0].buffer.calls if read.at <= c.index < number.call.index]
    if calls_since:
        return False
    if number.step < 0:
        return True
    write = number.call.writes[number.write]
    return write.program[number.step].code == "MUL_IMM"


def _rewrite(number: Number, read: Read) -> None:
    """Make the write take its number from the element that was read."""
    write = number.call.writes[number.write]
    region = read.refs[0].region
    element = Region(region.buffer, region.offset, (), (), region.dtype)
    if number.step >= 0:
        number.call.writes[number.write] = _with_factor(write, number.step, element)
    elif number.elem >= 0:  # the rest of the constant stays as it is
        dst = _element_of(write.dsts[0], number.elem)
        number.call.writes.insert(number.write + 1, Write("copy", (dst,), (element,)))
    else:
        dst = write.dsts[0]
        number.call.writes[number.write] = Write("copy", (dst,), (element.expand(dst.extent),))


def _with_factor(write: Write, at: int, element: Region) -> Write:
    """x * c becomes x * element."""
    load = Step("LOAD", arg=len(write.srcs))
    product = (load, Step("MUL", write.program[at].dtype))
    program = (*write.program[:at], *product, *write.program[at + 1 :])
    srcs = (*write.srcs, element.expand(write.dsts[0].extent))
    return write._replace(srcs=srcs, program=program)


def _element_of(region: Region, elem: int) -> Region:
    """Element number elem of a region, in row-major order, as a region."""
    offset = region.offset
    for extent, stride in zip(reversed(region.extent), reversed(region.stride), strict=True):
        offset += elem % extent * stride
        elem //= extent
    return Region(region.buffer, offset, (), (), region.dtype)


def _make_opaque(first: Tracer, call: Call, at: int, reads: Sequence[Read]) -> None:
    """Leave a write to the engine's loader, with all sources of the values it may depend on."""
    write = call.writes[at]
    buffers = {b.name: b for read in reads for b in _sources_behind(first, read)}
    srcs = [Ref(buffer, buffer.base).region for _, buffer in sorted(buffers.items())]
    call.writes[at] = Write("opaque", write.dsts, (*write.srcs, *srcs), op=OPAQUE_OP)


# ---- answers that tell sources and elements apart ----


def answers_by_source(first: Tracer, reads: Sequence[Read]) -> Answers:
    """A power of two for every source behind these reads."""
    powers = _Powers()
    sources = {
        buffer.name: buffer.dtype for read in reads for buffer in _sources_behind(first, read)
    }
    return Answers(1.0, {name: powers.take(dtype) for name, dtype in sorted(sources.items())})


def answers_by_element(first: Tracer, reads: Sequence[Read]) -> Answers:
    """A power of two for every element that was read from a source as it is."""
    powers = _Powers()
    regions = {
        (r.buffer.name, r.offset): r.dtype
        for read in reads
        for r in [read.refs[0].region]
        if r.buffer.kind == "source"
    }
    return Answers(1.0, {}, {key: powers.take(dtype) for key, dtype in sorted(regions.items())})


def _sources_behind(tracer: Tracer, read: Read) -> list[Buffer]:
    _, buffers = needed_calls([ref.buffer for ref in read.refs], read.at)
    return [buffer for buffer in buffers if buffer.kind == "source"]


class _Powers:
    """Powers of two that a dtype can hold, none of them twice; 1 when there are no more."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def take(self, dtype: torch.dtype) -> float:
        for exponent in _exponents(dtype):
            if exponent not in self.taken:
                self.taken.add(exponent)
                return float(2.0**exponent)
        return 1.0


def _exponents(dtype: torch.dtype) -> Iterator[int]:
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        high, low = min(int(math.log2(info.max)), 100), max(int(math.log2(info.tiny)), -100)
    else:
        high, low = (1, 0) if dtype == torch.bool else (int(math.log2(torch.iinfo(dtype).max)), 0)
    yield from range(2, high + 1)
    yield from range(-1, low - 1, -1)

# SPDX-License-Identifier: Apache-2.0
"""A tape interpreted element by element, in the plainest way there is, from its text form.

The text is that of docs/formats/tape.md. Nothing of the library's fold is used, so this judges what
was recorded, apart from what becomes of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from heft._handles import call, take_text
from heft._native import ffi, lib
from heft.tape import Tape

from .notation import UNTOUCHED, Elem, Entry

VIEW = re.compile(r"([spt])(\d+)(?:\+(\d+))?(?:\[([\d,]*)\])?(?:\*([-\d,]+))?$")
NOTHING_READ = Entry(constant=float("nan"))  # a constant whose value the judge does not follow


@dataclass(frozen=True)
class TapeView:
    buffer: str  # "s0", "p1", "t2"
    offset: int
    extent: tuple[int, ...]
    stride: tuple[int, ...]

    def places(self) -> Iterator[int]:
        """The elements, in row-major order of the view."""
        for index in product(*(range(e) for e in self.extent)):
            yield self.offset + sum(i * s for i, s in zip(index, self.stride, strict=False))


def encode_tape(tape: Tape) -> str:
    out = ffi.new("char **")
    call(lib.heft_tape_encode, tape.pointer, out)
    return take_text(out)


def without_notes(text: str) -> str:
    """The same tape, without where its writes come from."""
    start = text.index(' "notes": [')
    stop = text.index(' "writes": [')
    text = text[:start] + ' "notes": [],\n' + text[stop:]
    return re.sub(r' #\d+"', '"', text)


def expand_tape(text: str) -> dict[str, list[Entry]]:
    """Parameter element <- source elements, a constant (of unknown value), or nothing."""
    tape = json.loads(text)
    contents: dict[str, list[Entry]] = {}
    for i, (name, _, shape) in enumerate(tape["sources"]):
        contents[f"s{i}"] = [Entry(frozenset([Elem(name, k)])) for k in range(prod(shape))]
    for i, (_, _, shape) in enumerate(tape["parameters"]):
        contents[f"p{i}"] = [UNTOUCHED] * prod(shape)
    for i, (_, n) in enumerate(tape["temporaries"]):
        contents[f"t{i}"] = [UNTOUCHED] * n
    for line in tape["writes"]:
        _apply(line, contents)
    return {name: contents[f"p{i}"] for i, (name, _, _) in enumerate(tape["parameters"])}


def _apply(line: str, contents: dict[str, list[Entry]]) -> None:
    line = re.sub(r" #\d+$", "", line)
    if " = " in line:
        (dst,) = _views(line.split(" = ")[0])
        for at in dst.places():
            contents[dst.buffer][at] = NOTHING_READ
        return
    left, _, right = line.partition(" <")
    is_operation = " !" in left
    dsts = _views(left)
    srcs = _views(right.partition(" :")[0], None if is_operation else dsts[0].extent)
    if is_operation:
        _apply_operation(dsts, srcs, contents)
        return
    (dst,) = dsts
    read = [[contents[src.buffer][at] for at in src.places()] for src in srcs]
    for i, at in enumerate(dst.places()):
        contents[dst.buffer][at] = _join([column[i] for column in read])


def _apply_operation(
    dsts: list[TapeView], srcs: list[TapeView], contents: dict[str, list[Entry]]
) -> None:
    everything = _join([contents[src.buffer][at] for src in srcs for at in src.places()])
    for dst in dsts:
        for at in dst.places():
            contents[dst.buffer][at] = everything


def _join(entries: list[Entry]) -> Entry:
    if UNTOUCHED in entries:
        raise AssertionError("a write reads what nothing wrote")
    elems = frozenset().union(*(entry.elems for entry in entries))
    return Entry(elems) if elems else NOTHING_READ


def _views(text: str, extent: tuple[int, ...] | None = None) -> list[TapeView]:
    """The views of a line; sources of a copy have the extents of its destination."""
    return [_view(word, extent) for word in text.split() if word[0] in "spt"]


def _view(word: str, inherited: tuple[int, ...] | None) -> TapeView:
    found = VIEW.match(word)
    if found is None:
        raise AssertionError(f"no view: {word}")
    kind, number, offset, extents, strides = found.groups()
    if extents is not None:
        extent = tuple(int(e) for e in extents.split(",")) if extents else ()
    elif inherited is not None:
        extent = inherited
    else:
        raise AssertionError(f"no extents: {word}")
    if strides:
        stride = tuple(int(s) for s in strides.split(","))
    else:
        stride = tuple(prod(extent[d + 1 :]) for d in range(len(extent)))
    return TapeView(f"{kind}{number}", int(offset or 0), extent, stride)

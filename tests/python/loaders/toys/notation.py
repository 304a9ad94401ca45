# SPDX-License-Identifier: Apache-2.0
"""Element maps as text: what each element of a parameter is made of, in row-major order.

    x#8..11     four elements, each made of one source element (both ends are included)
    q#6,7,2     three elements in this order
    w#14*s#5    one element made of two source elements; a side of one element repeats
    =0          one element that no source reaches, with its value
    _           one element that the loader leaves alone
    TOKEN:n     n times TOKEN

Tokens are separated by blanks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Elem(NamedTuple):
    """One element of one source tensor."""

    source: str
    index: int


@dataclass(frozen=True)
class Entry:
    """What an element of a parameter is made of: source elements, else a constant, else nothing."""

    elems: frozenset[Elem] = frozenset()
    constant: float | None = None

    def __str__(self) -> str:
        if self.elems:
            return "*".join(f"{e.source}#{e.index}" for e in sorted(self.elems))
        return "_" if self.constant is None else f"={self.constant:g}"


UNTOUCHED = Entry()


def parse_map(text: str) -> list[Entry]:
    """The entries that a text stands for, in the order of the parameter's elements."""
    entries: list[Entry] = []
    for token in text.split():
        body, _, times = token.partition(":")
        entries.extend(_parse_token(body) * (int(times) if times else 1))
    return entries


def format_map(entries: list[Entry]) -> str:
    """The shortest plain text: one token for each run of equal or neighbouring entries."""
    tokens: list[str] = []
    i = 0
    while i < len(entries):
        n = _run_length(entries, i)
        tokens.append(_format_run(entries[i], n))
        i += n
    return " ".join(tokens)


def _parse_token(body: str) -> list[Entry]:
    if body == "_":
        return [UNTOUCHED]
    if body.startswith("="):
        return [Entry(constant=float(body[1:]))]
    factors = [_parse_elems(factor) for factor in body.split("*")]
    n = max(len(factor) for factor in factors)
    if any(len(factor) not in (1, n) for factor in factors):
        raise ValueError(f"{body}: factors of {[len(f) for f in factors]} elements")
    return [Entry(frozenset(f[i % len(f)] for f in factors)) for i in range(n)]


def _parse_elems(text: str) -> list[Elem]:
    source, sep, ranges = text.partition("#")
    if not sep:
        raise ValueError(f"{text}: no '#'")
    elems: list[Elem] = []
    for piece in ranges.split(","):
        first, sep, last = piece.partition("..")
        stop = int(last) if sep else int(first)
        elems.extend(Elem(source, i) for i in range(int(first), stop + 1))
    return elems


def _run_length(entries: list[Entry], start: int) -> int:
    n = 1
    while start + n < len(entries) and _follows(entries[start], entries[start + n], n):
        n += 1
    return n


def _follows(first: Entry, other: Entry, distance: int) -> bool:
    if len(first.elems) != 1:
        return first == other
    (elem,) = first.elems
    return other.elems == frozenset([Elem(elem.source, elem.index + distance)])


def _format_run(first: Entry, n: int) -> str:
    if n == 1:
        return str(first)
    if len(first.elems) != 1:
        return f"{first}:{n}"
    (elem,) = first.elems
    return f"{first}..{elem.index + n - 1}"

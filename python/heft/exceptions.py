# SPDX-License-Identifier: Apache-2.0
"""What a proof accepts, each with its reason (heft_exception_t in include/heft/recipe.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from heft._handles import argument_error, encode, text_of
from heft._native import ffi, lib


class ExceptionKind(enum.IntEnum):
    UNUSED = lib.HEFT_EXCEPTION_UNUSED  # source tensor that no parameter needs
    UNTOUCHED = lib.HEFT_EXCEPTION_UNTOUCHED  # parameter that a round leaves alone
    DERIVED = lib.HEFT_EXCEPTION_DERIVED  # parameter computed by the engine from others
    FROZEN = lib.HEFT_EXCEPTION_FROZEN  # parameter of a model that never changes
    ELSEWHERE = lib.HEFT_EXCEPTION_ELSEWHERE  # source that another destination rank owns
    EQUAL = lib.HEFT_EXCEPTION_EQUAL  # parameter written twice with values that must agree
    TOGETHER = lib.HEFT_EXCEPTION_TOGETHER  # parameters that are one group


class Exception_(NamedTuple):
    """What the proof should accept: names that match a whole-token pattern, and why.

    TOGETHER has one or more patterns with blanks between, in which {l} is a part of a token that
    is equal in all of them.
    """

    kind: ExceptionKind
    pattern: str
    reason: str
    optional: bool = False  # it may match nothing
    where: str = ""  # "recipe:line:column"
    box: Sequence[tuple[int, int]] = ()  # of these indices alone, [begin, end) for each dimension


def exception_of(out: Any) -> Exception_:
    """A heft_exception_t."""
    return Exception_(
        ExceptionKind(out.kind),
        text_of(out.pattern),
        text_of(out.reason),
        bool(out.is_optional),
        text_of(out.where),
        tuple((out.begin[k], out.end[k]) for k in range(out.n_dims)),
    )


def new_exceptions(exceptions: Iterable[Exception_]) -> tuple[Any, int, list[Any]]:
    """(heft_exception_t array, its length, what must be kept while it is used)."""
    listed = [Exception_(*exception) for exception in exceptions]
    array = ffi.new("heft_exception_t[]", max(len(listed), 1))
    kept: list[Any] = [array]
    for out, one in zip(array, listed, strict=False):
        if not one.reason:
            raise argument_error(f'exception "{one.pattern}": it has no reason')
        texts = [ffi.new("char[]", encode(text)) for text in (one.pattern, one.reason, one.where)]
        out.kind, out.is_optional = ExceptionKind(one.kind), one.optional
        out.pattern, out.reason, out.where = texts
        if len(one.box) > len(out.begin):
            raise argument_error(f'exception "{one.pattern}": a box of {len(one.box)} dimensions')
        out.n_dims = len(one.box)
        for k, (begin, end) in enumerate(one.box):
            out.begin[k], out.end[k] = begin, end
        kept += texts
    return array, len(listed), kept

# SPDX-License-Identifier: Apache-2.0
"""What a proof accepts, each with its reason (heft_exception_t in include/heft/recipe.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
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


class Exception_(NamedTuple):
    """What the proof should accept: names that match a whole-token pattern, and why."""

    kind: ExceptionKind
    pattern: str
    reason: str
    optional: bool = False  # it may match nothing
    where: str = ""  # "recipe:line:column"


def exception_of(out: Any) -> Exception_:
    """A heft_exception_t."""
    return Exception_(
        ExceptionKind(out.kind),
        text_of(out.pattern),
        text_of(out.reason),
        bool(out.is_optional),
        text_of(out.where),
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
        kept += texts
    return array, len(listed), kept

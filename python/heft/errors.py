# SPDX-License-Identifier: Apache-2.0
"""Exceptions, made from the status table of the library (include/heft/status.h).

HeftError has one subclass for each remedy (CallerError: fix the call; RetryError: the same call may
work later; PeerError: go on without that peer; DataError: discard this version; LocalError: this
host is broken or full; BugError: report it), and each of these one for each status, such as
ShapeError for ERR_SHAPE. Catch a remedy to act on it, a status to act on one cause.
"""

from __future__ import annotations

from typing import Any

from heft._native import ffi, lib


class HeftError(Exception):
    """A failure of the library: one line, and what to do about it."""

    status: int = 0
    status_name: str = ""
    remedy: str = ""

    def __init__(
        self,
        message: str,
        *,
        sys_errno: int = 0,
        peer_rank: int = -1,
        report: Any = None,
        issues: Any = (),
        mismatch: Any = None,
        result: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sys_errno = sys_errno
        self.peer_rank = peer_rank
        self.report = report  # heft.Report, of a plan that was refused
        self.mismatch = mismatch  # heft.Mismatch, of a verification
        self.result = result  # heft.PushResult, of a push: how far the round got
        self.issues = tuple(issues)  # heft.Issue: all that is wrong with a text, not only the first


def _text(chars: Any) -> str:
    text: str = ffi.string(chars).decode("utf-8", "replace")
    return text


def _make_remedies() -> dict[int, type[HeftError]]:
    classes: dict[int, type[HeftError]] = {}
    for value, long_name in ffi.typeof("heft_remedy_t").elements.items():
        name = long_name.removeprefix("HEFT_REMEDY_")
        if value != lib.HEFT_REMEDY_NONE:
            body = {"__module__": __name__, "__doc__": f"Remedy {name}.", "remedy": name}
            classes[value] = type(name.capitalize() + "Error", (HeftError,), body)
    return classes


def _make_status(value: int, base: type[HeftError]) -> type[HeftError]:
    status_name = _text(lib.heft_status_get_name(value))
    words = status_name.removeprefix("ERR_").split("_")
    name = "".join(word.capitalize() for word in words) + "Error"
    if name == base.__name__:  # ERR_PEER is the plain case of its remedy
        base.status, base.status_name = value, status_name
        return base
    doc = _text(lib.heft_status_get_text(value)).capitalize() + "."
    body = {"__module__": __name__, "__doc__": doc, "status": value, "status_name": status_name}
    return type(name, (base,), body)


BY_REMEDY = _make_remedies()
BY_STATUS = {
    value: _make_status(value, BY_REMEDY[lib.heft_status_get_remedy(value)])
    for value in ffi.typeof("heft_status_t").elements
    if value < 0
}
_classes = {cls.__name__: cls for cls in [*BY_REMEDY.values(), *BY_STATUS.values()]}
globals().update(_classes)
__all__ = ["BY_REMEDY", "BY_STATUS", "HeftError", *_classes]

# SPDX-License-Identifier: Apache-2.0
"""Python callables that the library calls. What they raise stops the call and is raised from it.

The library calls them from the thread that called it, unless its header says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heft._handles import error_of, new_error, text_of
from heft._native import ffi, lib


class Callbacks:
    """The callables of one call of the library, and the first exception that one of them raised."""

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        self.functions = {
            name: function for name, function in functions.items() if function is not None
        }
        self.raised: BaseException | None = None
        self.handle = ffi.new_handle(self)

    def has(self, name: str) -> bool:
        return name in self.functions

    def stop_when(self, name: str, *args: Any) -> int:
        """Call one; 1 when it raised or returned False. After an exception none is called."""
        if self.raised is not None:
            return 1
        try:
            return int(self.functions[name](*args) is False)
        except BaseException as raised:
            self.raised = raised
            return 1

    def note(self, name: str, *args: Any) -> None:
        """Call one that cannot stop anything; what it raises is raised at the end."""
        try:
            self.functions[name](*args)
        except BaseException as raised:
            self.raised = self.raised or raised

    def call(self, function: Callable[..., int], *args: Any) -> None:
        """As _handles.call, for a function that these callbacks were given to.

        What a callback raised comes before what the library then says.
        """
        err = new_error()
        status = function(*args, err)
        self.raise_what_was_raised()
        if status != lib.HEFT_OK:
            raise error_of(status, err)

    def raise_what_was_raised(self) -> None:
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


def _from(arg: Any) -> Callbacks:
    callbacks: Callbacks = ffi.from_handle(arg)
    return callbacks


@ffi.def_extern(error=1)
def heft_py_progress(arg: Any, done_bytes: int, total_bytes: int) -> int:
    return _from(arg).stop_when("progress", done_bytes, total_bytes)


@ffi.def_extern()
def heft_py_release(arg: Any, i: int) -> None:
    _from(arg).note("release", i)


@ffi.def_extern()
def heft_py_group_begin(arg: Any, group: int, n_groups: int, param: Any) -> None:
    _from(arg).note("group_begin", group, n_groups, text_of(param))


@ffi.def_extern(error=1)
def heft_py_diff(arg: Any, a: Any, b: Any, diff: Any) -> int:
    return _from(arg).stop_when("diff", a, b, diff)

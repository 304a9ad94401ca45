# SPDX-License-Identifier: Apache-2.0
"""What all wrappers share: calls that raise, and objects of the library with an owner.

An object of the library lives as long as its wrapper, or longer: as long as another object of the
library borrows it. The order in which Python collects wrappers therefore does not matter.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from heft import errors
from heft._native import ffi, lib

_Self = TypeVar("_Self", bound="Handle")
_counting = threading.RLock()  # a collection may run a destructor inside a destructor


def text_of(chars: Any) -> str:
    """A borrowed C string; "" for NULL."""
    if chars == ffi.NULL:
        return ""
    text: str = ffi.string(chars).decode("utf-8", "surrogateescape")
    return text


def version() -> str:
    """The version of the library."""
    return text_of(lib.heft_version_get())


def ucx_version() -> str | None:
    """The version of OpenUCX on this host; "" where it has none, None where heft has no ucx."""
    chars = lib.heft_ucx_get_version()
    return None if chars == ffi.NULL else text_of(chars)


def take_text(out: Any) -> str:
    """The string in a `char **`, which the caller owns: copied and freed."""
    try:
        return text_of(out[0])
    finally:
        lib.heft_string_free(out[0])


def encode(text: str) -> bytes:
    """A C string of a name or a path; one that a C string cannot hold is refused."""
    if "\0" in text:
        raise errors.BY_STATUS[lib.HEFT_ERR_ARGUMENT](f"{text!r} holds a NUL character")
    return text.encode("utf-8", "surrogateescape")


def encode_or_null(text: str | None) -> Any:
    return ffi.NULL if text is None else encode(text)


def error_of(status: int, err: Any, **details: Any) -> errors.HeftError:
    """The exception for a failed call."""
    cls = errors.BY_STATUS.get(status, errors.BY_STATUS[lib.HEFT_ERR_INTERNAL])
    message = text_of(err.message) or text_of(lib.heft_status_get_text(status))
    return cls(message, sys_errno=err.sys_errno, peer_rank=err.peer_rank, **details)


def new_error() -> Any:
    return ffi.new("heft_error_t *", {"peer_rank": -1})


def call(function: Callable[..., int], *args: Any) -> None:
    """Call a function whose last parameter is `heft_error_t *err`; raise what it fails with."""
    err = new_error()
    status = function(*args, err)
    if status != lib.HEFT_OK:
        raise error_of(status, err)


def argument_error(message: str) -> errors.HeftError:
    return errors.BY_STATUS[lib.HEFT_ERR_ARGUMENT](message)


def state_error(message: str) -> errors.HeftError:
    return errors.BY_STATUS[lib.HEFT_ERR_STATE](message)


class Owned:
    """One object of the library, and how many wrappers and other objects need it."""

    __slots__ = ("_destroy", "_kept", "_n_users", "_process", "lock", "pointer")

    def __init__(
        self, pointer: Any, destroy: Callable[[Any], Any] | None, kept: Iterable[Any]
    ) -> None:
        self.pointer = pointer
        self._destroy = destroy
        self._n_users = 1
        self._process = os.getpid()  # a child that is forked does not own what it inherits
        self.lock = threading.Lock()  # of objects that are confined to one thread at a time
        self._kept = tuple(kept)  # objects, memory and Owned that this one borrows
        for other in self._kept:
            if isinstance(other, Owned):
                other.use()

    def use(self) -> None:
        with _counting:
            self._n_users += 1

    @property
    def can_be_taken(self) -> bool:
        return self._destroy is not None and self._n_users == 1

    def forget(self) -> None:
        """Somebody else destroys it."""
        self._destroy = None

    def keep_instead(self, *kept: Any) -> None:
        """What is borrowed from now on, in the place of what was."""
        for other in kept:
            if isinstance(other, Owned):
                other.use()
        before, self._kept = self._kept, kept
        for other in before:
            if isinstance(other, Owned):
                other.drop()

    def drop(self) -> None:
        with _counting:
            self._n_users -= 1
            if self._n_users > 0 or self._process != os.getpid():
                return
        if self._destroy is not None:
            self._destroy(self.pointer)
        for other in self._kept:
            if isinstance(other, Owned):
                other.drop()
        self._kept = ()


@contextlib.contextmanager
def holding(*handles: Handle) -> Iterator[tuple[Any, ...]]:
    """Their pointers, which stay good in a blocking call even if another thread closes them."""
    owners = [handle.owned for handle in handles]
    for owned in owners:
        owned.use()
    try:
        yield tuple(owned.pointer for owned in owners)
    finally:
        for owned in owners:
            owned.drop()


@contextlib.contextmanager
def exclusive(handle: Handle) -> Iterator[Any]:
    """The pointer of an object that one thread at a time may use; another one is refused."""
    with holding(handle) as (pointer,):
        lock = handle.owned.lock
        if not lock.acquire(blocking=False):
            raise state_error(f"this {type(handle).__name__} is in use by another thread")
        try:
            yield pointer
        finally:
            lock.release()


class Handle:
    """A wrapper: a context manager, closed at the end of the block or when it is collected."""

    __slots__ = ("__weakref__", "_owned")
    _owned: Owned | None
    _borrowing: ClassVar[tuple[str, ...]] = ()  # attributes that refer to memory of others

    def __new__(cls: type[_Self], *args: Any, **kwargs: Any) -> _Self:
        self = super().__new__(cls)
        self._owned = None
        return self

    def _own(self, pointer: Any, destroy: Callable[[Any], Any] | None, *kept: Any) -> None:
        """Take an object of the library; kept: what it borrows, handles among them."""
        owners = (item.owned if isinstance(item, Handle) else item for item in kept)
        self._owned = Owned(pointer, destroy, owners)

    @property
    def owned(self) -> Owned:
        if self._owned is None:
            raise state_error(f"this {type(self).__name__} is closed")
        return self._owned

    @property
    def pointer(self) -> Any:
        """The C object; an error once closed."""
        return self.owned.pointer

    @property
    def is_closed(self) -> bool:
        return self._owned is None

    def close(self) -> None:
        """Give the object back. It is freed once nothing that borrows it is left.

        A second call does nothing.
        """
        owned, self._owned = self._owned, None
        if owned is not None:
            for name in self._borrowing:
                setattr(self, name, None)
            owned.drop()

    def to_be_taken(self) -> Any:
        """The pointer, for a function that takes the object."""
        if not self.owned.can_be_taken:
            raise state_error(f"this {type(self).__name__} belongs to another object, or is in use")
        return self.pointer

    def was_taken(self) -> None:
        """The object has another owner now: this wrapper is closed."""
        self.owned.forget()
        self.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

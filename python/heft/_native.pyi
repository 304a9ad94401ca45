# SPDX-License-Identifier: Apache-2.0
# The extension: what cffi makes of include/heft. Its functions are C's; see the headers.
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

class _FFI:
    NULL: Any
    def def_extern(self, name: str = ..., error: Any = ...) -> Callable[[_F], _F]: ...
    def __getattr__(self, name: str) -> Any: ...

ffi: _FFI
lib: Any

# SPDX-License-Identifier: Apache-2.0
"""Which function handles which operator.

A handler is `f(tracer, func, args, kwargs)` and returns what the loader gets. It is registered by
qualified name, "aten::copy_" for all overloads or "aten::fill_.Tensor" for one. An operator without
a handler is a view if its schema says so, else opaque: nothing is ever ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[[Any, Any, Any, Any], Any]

_handlers: dict[str | None, Handler] = {}
_resolved: dict[Any, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for these operators; a name has one handler."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in _handlers:
                raise ValueError(f"operator {name} has a handler: {_handlers[name].__qualname__}")
            _handlers[name] = handler
        _resolved.clear()
        return handler

    return register


def qualified_name(func: Any) -> str:
    """ "aten::slice.Tensor"; the overload "default" is not written."""
    schema = func._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def find(func: Any, fallback: Callable[[Any], Handler]) -> Handler:
    """The handler of an operator; fallback(func) chooses one when none is registered."""
    handler = _resolved.get(func)
    if handler is None:
        name = None if any(a.is_out for a in func._schema.arguments) else func._schema.name
        handler = _handlers.get(qualified_name(func)) or _handlers.get(name) or fallback(func)
        _resolved[func] = handler
    return handler

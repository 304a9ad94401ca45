# SPDX-License-Identifier: Apache-2.0
"""Tracing: an engine's own loader, run once over tensors without storage, becomes a tape.

docs/guide/tracing.md is the guide, docs/internals/trace.md says how it works.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from heft.trace.api import Derived, Trace, trace
from heft.trace.errors import BypassError, TraceError, ValueDependence
from heft.trace.flow import OpaqueUse

__all__ = ["BypassError", "Derived", "OpaqueUse", "Trace", "TraceError", "ValueDependence", "trace"]


class _CallableModule(types.ModuleType):
    """`heft.trace(...)` is the function, `heft.trace` the package it lives in."""

    def __call__(self, *args: Any, **kwargs: Any) -> Trace:
        return trace(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule

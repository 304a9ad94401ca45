# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a trace; every message names the tensor and the loader's file and line."""

from __future__ import annotations


class TraceError(Exception):
    """The loader failed, or did something that a tape cannot hold; nothing is kept."""


class BypassError(TraceError):
    """The loader reached past PyTorch's operators (numpy, pointers, a replaced parameter)."""


class ValueDependence(TraceError):
    """What the loader writes depends on values of the weights, so no tape describes it."""

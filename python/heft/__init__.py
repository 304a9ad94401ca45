# SPDX-License-Identifier: Apache-2.0
"""heft: weight synchronisation from a trainer into running inference engines.

A thin package over the C library; docs/guide/python.md is its guide. Nothing here imports a
framework: what needs torch is in modules of its own, imported when they are asked for.
"""

import importlib

from heft.dtypes import DType
from heft.errors import HeftError
from heft.exceptions import Exception_, ExceptionKind, name_matches
from heft.executor import Exec, Target, digest, execute
from heft.manifest import Manifest, TensorInfo
from heft.memory import Memory, view_as
from heft.plan import Finding, FindingKind, Group, Opaque, Piece, PieceSource, Plan, Report
from heft.tape import BufferInfo, BufferKind, Op, OpCode, Tape, View

__version__ = "0.1.0"

__all__ = [
    "BufferInfo",
    "BufferKind",
    "DType",
    "ExceptionKind",
    "Exception_",
    "Exec",
    "Finding",
    "FindingKind",
    "Group",
    "HeftError",
    "Manifest",
    "Memory",
    "Op",
    "OpCode",
    "Opaque",
    "Piece",
    "PieceSource",
    "Plan",
    "Report",
    "Tape",
    "Target",
    "TensorInfo",
    "View",
    "digest",
    "execute",
    "name_matches",
    "view_as",
]


def __getattr__(name: str) -> object:
    """Parts that need a framework are imported when they are asked for."""
    if name == "trace":
        return importlib.import_module("heft.trace")
    raise AttributeError(f"module 'heft' has no attribute {name!r}")

# SPDX-License-Identifier: Apache-2.0
"""heft: weight synchronisation from a trainer into running inference engines.

A thin package over the C library; docs/guide/python.md is its guide. Nothing here imports a
framework: what needs torch is in modules of its own, imported when they are asked for.
"""

import importlib

from heft.checkpoint import Checkpoint, CheckpointWriter, write_checkpoint
from heft.contract import Contract, Drift, DriftFinding, DriftKind, drift
from heft.dtypes import DType
from heft.errors import HeftError
from heft.exceptions import Exception_, ExceptionKind
from heft.executor import Exec, Target, digest, execute
from heft.files import (
    ConvertOptions,
    DiffEntry,
    Mismatch,
    TensorDiff,
    convert,
    convert_tensors,
    diff,
    diff_tensors,
    reverse,
    verify_checkpoint,
)
from heft.manifest import Manifest, TensorInfo
from heft.memory import Memory, view_as
from heft.names import LayerForm, NameForm, NameOptions, canonical_name, name_matches
from heft.plan import Finding, FindingKind, Group, Opaque, Piece, PieceSource, Plan, Report
from heft.recipe import Bindings, Issue, Recipe
from heft.sizes import CacheMap, kv_repeat, padded_size, rollout_tp
from heft.tape import BufferInfo, BufferKind, Op, OpCode, Tape, View

__version__ = "0.1.0"

__all__ = [
    "Bindings",
    "BufferInfo",
    "BufferKind",
    "CacheMap",
    "Checkpoint",
    "CheckpointWriter",
    "Contract",
    "ConvertOptions",
    "DType",
    "DiffEntry",
    "Drift",
    "DriftFinding",
    "DriftKind",
    "ExceptionKind",
    "Exception_",
    "Exec",
    "Finding",
    "FindingKind",
    "Group",
    "HeftError",
    "Issue",
    "LayerForm",
    "Manifest",
    "Memory",
    "Mismatch",
    "NameForm",
    "NameOptions",
    "Op",
    "OpCode",
    "Opaque",
    "Piece",
    "PieceSource",
    "Plan",
    "Recipe",
    "Report",
    "Tape",
    "Target",
    "TensorDiff",
    "TensorInfo",
    "View",
    "canonical_name",
    "convert",
    "convert_tensors",
    "diff",
    "diff_tensors",
    "digest",
    "drift",
    "execute",
    "kv_repeat",
    "name_matches",
    "padded_size",
    "reverse",
    "rollout_tp",
    "verify_checkpoint",
    "view_as",
    "write_checkpoint",
]


def __getattr__(name: str) -> object:
    """Parts that need a framework are imported when they are asked for."""
    if name == "trace":
        return importlib.import_module("heft.trace")
    raise AttributeError(f"module 'heft' has no attribute {name!r}")

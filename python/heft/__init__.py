# SPDX-License-Identifier: Apache-2.0
"""heft: weight synchronisation from a trainer into running inference engines.

A thin package over the C library; docs/guide/python.md is its guide. Nothing here imports a
framework: what needs torch is in modules of its own, imported when they are asked for.
"""

import importlib

from heft import client, errors, log
from heft._handles import ucx_version, version
from heft.checkpoint import Checkpoint, CheckpointWriter, write_checkpoint
from heft.contract import Contract, Drift, DriftFinding, DriftKind, drift
from heft.coordinator import Coordinator
from heft.cuts import Blocks, Box, Cut, CutRule, Mesh, cut
from heft.dtypes import DType
from heft.errors import HeftError
from heft.exceptions import Exception_, ExceptionKind
from heft.executor import Exec, Target, digest, execute
from heft.experts import ExpertTable
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
from heft.held import Held, held_by
from heft.manifest import Manifest, Part, TensorInfo
from heft.memory import Memory, view_as
from heft.names import (
    LayerForm,
    NameForm,
    NameOptions,
    canonical_name,
    name_matches,
    split_rank_name,
)
from heft.options import Config, knobs
from heft.placement import Placement, Shard
from heft.plan import Finding, FindingKind, Group, Opaque, Piece, PieceSource, Plan, Report
from heft.price import LinkLoad, Links, Price, PriceInfo, PriceRank, PriceRoute
from heft.publisher import Begin, Member, Publisher, PushResult, manifest_of
from heft.recipe import Bindings, Issue, Recipe
from heft.routes import Load, Region, Regions, Route, Routes
from heft.sizes import CacheMap, kv_repeat, padded_size, rollout_tp
from heft.subscriber import Hooks, Subscriber
from heft.tape import BufferInfo, BufferKind, ModelAlias, ModelPart, Op, OpCode, Tape, View

__version__ = version()

__all__ = [
    "Begin",
    "Bindings",
    "Blocks",
    "Box",
    "BufferInfo",
    "BufferKind",
    "CacheMap",
    "Checkpoint",
    "CheckpointWriter",
    "Config",
    "Contract",
    "ConvertOptions",
    "Coordinator",
    "Cut",
    "CutRule",
    "DType",
    "DiffEntry",
    "Drift",
    "DriftFinding",
    "DriftKind",
    "ExceptionKind",
    "Exception_",
    "Exec",
    "ExpertTable",
    "Finding",
    "FindingKind",
    "Group",
    "HeftError",
    "Held",
    "Hooks",
    "Issue",
    "LayerForm",
    "LinkLoad",
    "Links",
    "Load",
    "Manifest",
    "Member",
    "Memory",
    "Mesh",
    "Mismatch",
    "ModelAlias",
    "ModelPart",
    "NameForm",
    "NameOptions",
    "Op",
    "OpCode",
    "Opaque",
    "Part",
    "Piece",
    "PieceSource",
    "Placement",
    "Plan",
    "Price",
    "PriceInfo",
    "PriceRank",
    "PriceRoute",
    "Publisher",
    "PushResult",
    "Recipe",
    "Region",
    "Regions",
    "Report",
    "Route",
    "Routes",
    "Shard",
    "Subscriber",
    "Tape",
    "Target",
    "TensorDiff",
    "TensorInfo",
    "View",
    "canonical_name",
    "client",
    "convert",
    "convert_tensors",
    "cut",
    "diff",
    "diff_tensors",
    "digest",
    "drift",
    "errors",
    "execute",
    "held_by",
    "knobs",
    "kv_repeat",
    "log",
    "manifest_of",
    "name_matches",
    "padded_size",
    "reverse",
    "rollout_tp",
    "split_rank_name",
    "ucx_version",
    "verify_checkpoint",
    "view_as",
    "write_checkpoint",
]


_WITH_TORCH = {"LiveModel": "heft.live", "ModulePublisher": "heft.torch"}


def __getattr__(name: str) -> object:
    """Parts that need a framework are imported when they are asked for."""
    if name in ("trace", "verify"):
        return importlib.import_module(f"heft.{name}")
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'heft' has no attribute {name!r}")

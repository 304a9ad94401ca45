# SPDX-License-Identifier: Apache-2.0
"""Plug-ins for inference engines: how to build a model, call its loader, and what it leaves out.

A plug-in is a module with the functions of Engine. It knows how to set an engine up in one process
as rank r of t without starting the others, and nothing about what a loader does with the names:
that is derived by running it (heft.trace). Modules are imported when asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Protocol

from heft.exceptions import Exception_

NAMES = ("transformers", "vllm", "sglang")

Weights = Iterable[tuple[str, Any]]


class Engine(Protocol):
    """What a plug-in provides."""

    def version(self) -> str:
        """The version of the engine. ImportError where it cannot be used, with the reason."""

    def build(
        self,
        config: Any,
        *,
        tp: int = 1,
        rank: int = 0,
        expert_parallel: bool = False,
        draft: bool = False,
        device: str = "cpu",
    ) -> Any:
        """The engine's model for a transformers config, as one rank; weights are not set."""

    def load(self, model: Any, weights: Weights) -> None:
        """The engine's own loader, over all (name, tensor) pairs of a checkpoint."""

    def post(self, model: Any) -> None:
        """The engine's step after loading: repacking, derived tensors. The model can then serve."""

    def exceptions(self, model: Any) -> list[Exception_]:
        """What the proof should accept of this engine's loader by design, each with its reason."""


def get(name: str) -> Engine:
    """The plug-in of this name; ImportError where its engine is not installed."""
    if name not in NAMES:
        raise ValueError(f'engine "{name}": not one of {", ".join(NAMES)}')
    plugin: Engine = importlib.import_module(f"heft.engines.{name}")  # type: ignore[assignment]
    plugin.version()
    return plugin


__all__ = ["NAMES", "Engine", "Weights", "get"]

# SPDX-License-Identifier: Apache-2.0
"""Exceptions that engines have in common: which names of a checkpoint a model leaves to another."""

from __future__ import annotations

from typing import Any

from heft.exceptions import Exception_, ExceptionKind


def unused_by_target(config: Any) -> list[Exception_]:
    """Tied heads, and the layers after the last, which are the draft's."""
    found = []
    if getattr(config, "tie_word_embeddings", False):
        found.append(unused("lm_head.weight", "tied to the embedding"))
    first = config.num_hidden_layers
    for layer in range(first, first + (getattr(config, "num_nextn_predict_layers", 0) or 0)):
        found.append(unused(f"model.layers.{layer}.*", "multi-token prediction: the draft's"))
    return found


def unused_by_draft(config: Any) -> list[Exception_]:
    """The layers of the target, and its norm."""
    layers = [
        unused(f"model.layers.{layer}.*", "the target's")
        for layer in range(config.num_hidden_layers)
    ]
    return [*layers, unused("model.norm.weight", "the target's")]


def unused(pattern: str, reason: str) -> Exception_:
    return Exception_(ExceptionKind.UNUSED, pattern, reason, optional=True)


def equal(pattern: str, reason: str) -> Exception_:
    return Exception_(ExceptionKind.EQUAL, pattern, reason, optional=True)


def untouched(pattern: str, reason: str) -> Exception_:
    return Exception_(ExceptionKind.UNTOUCHED, pattern, reason, optional=True)

# SPDX-License-Identifier: Apache-2.0
"""What a pass answers when a loader asks for values of what it is loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Answers:
    """One number for every element; another one for a source, or for single elements of it."""

    default: float
    sources: Mapping[str, float] = field(default_factory=dict)
    elements: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def uniform(self, name: str, dtype: torch.dtype) -> torch.Tensor | None:
        """The number that a source consists of, as a tensor without dimensions; None if several."""
        if any(source == name for source, _ in self.elements):
            return None
        return element(self.sources.get(name, self.default), dtype)

    def fill(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        """Give every element of a source its value."""
        flat.copy_(element(self.sources.get(name, self.default), flat.dtype))
        for (source, index), value in self.elements.items():
            if source == name:
                flat[index] = element(value, flat.dtype)
        return flat


def element(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A number in some dtype, at least 1 in one of integers; 8-bit floats are made by a cast."""
    if not dtype.is_floating_point:
        value = max(round(value), 1)
    return torch.tensor(value).to(dtype)

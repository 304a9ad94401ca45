# SPDX-License-Identifier: Apache-2.0
"""One tensor-parallel rank of an engine: what it holds, and its own loader of checkpoint tensors.

The loader is in the manner of vLLM's: fused projections, rows or columns of this rank, names of a
Hugging Face checkpoint. Nothing here knows of heft.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

STACKED = [  # parameter of the engine, tensor of the checkpoint, place in the parameter
    ("qkv_proj", "q_proj", 0),
    ("qkv_proj", "k_proj", 1),
    ("qkv_proj", "v_proj", 2),
    ("gate_up_proj", "gate_proj", 0),
    ("gate_up_proj", "up_proj", 1),
]


class Columns(nn.Module):
    """Several projections in one parameter, of each of which this rank has its share of the rows."""

    def __init__(self, d_in: int, d_outs: list[int], rank: int, tp: int) -> None:
        super().__init__()
        self.rows, self.rank = [d_out // tp for d_out in d_outs], rank
        self.weight = nn.Parameter(torch.zeros(sum(self.rows), d_in, dtype=torch.bfloat16))

    def load(self, weight: torch.Tensor, part: int) -> None:
        start, n = sum(self.rows[:part]), self.rows[part]
        self.weight.data[start : start + n].copy_(weight.narrow(0, self.rank * n, n))


class Rows(nn.Module):
    """A projection of which this rank has its share of the columns."""

    def __init__(self, d_in: int, d_out: int, rank: int, tp: int) -> None:
        super().__init__()
        self.n, self.rank = d_in // tp, rank
        self.weight = nn.Parameter(torch.zeros(d_out, self.n, dtype=torch.bfloat16))

    def load(self, weight: torch.Tensor, part: int) -> None:
        self.weight.data.copy_(weight.narrow(1, self.rank * self.n, self.n))


class Norm(nn.Module):
    """Whole on every rank."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d, dtype=torch.bfloat16))

    def load(self, weight: torch.Tensor, part: int) -> None:
        self.weight.data.copy_(weight)


class Layer(nn.Module):
    def __init__(self, d: int, d_kv: int, d_inner: int, rank: int, tp: int) -> None:
        super().__init__()
        self.input_norm, self.mlp_norm = Norm(d), Norm(d)
        self.qkv_proj = Columns(d, [d, d_kv, d_kv], rank, tp)
        self.o_proj = Rows(d, d, rank, tp)
        self.gate_up_proj = Columns(d, [d_inner, d_inner], rank, tp)
        self.down_proj = Rows(d_inner, d, rank, tp)


class EngineModel(nn.Module):
    def __init__(
        self, vocab: int, d: int, d_kv: int, d_inner: int, n_layers: int, rank: int, tp: int
    ) -> None:
        super().__init__()
        self.embed = Columns(d, [vocab], rank, tp)
        self.layers = nn.ModuleList(Layer(d, d_kv, d_inner, rank, tp) for _ in range(n_layers))
        self.norm = Norm(d)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            path, part = name.removesuffix(".weight"), 0
            for fused, one, place in STACKED:
                if path.endswith(f".{one}"):
                    path, part = path.replace(one, fused), place
            module = self.get_submodule(path)
            module.load(weight, part)

# SPDX-License-Identifier: Apache-2.0
"""The trainer's model, as it would be without heft, and how it is sharded over the ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SIZES = {"vocab": 96, "d": 32, "d_kv": 16, "d_inner": 72, "n_layers": 2}
HEAD = 8


class Norm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Layer(nn.Module):
    def __init__(self, d: int, d_kv: int, d_inner: int) -> None:
        super().__init__()
        self.input_norm, self.mlp_norm = Norm(d), Norm(d)
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, d_kv, bias=False)
        self.v_proj = nn.Linear(d, d_kv, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.gate_proj = nn.Linear(d, d_inner, bias=False)
        self.up_proj = nn.Linear(d, d_inner, bias=False)
        self.down_proj = nn.Linear(d_inner, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.input_norm(x)
        q, k, v = (
            p(y).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(seen.transpose(1, 2).flatten(-2))
        y = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class TrainerModel(nn.Module):
    def __init__(self, vocab: int, d: int, d_kv: int, d_inner: int, n_layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d, d_kv, d_inner) for _ in range(n_layers))
        self.norm = Norm(d)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed.weight)


def shard(model: TrainerModel, mesh: DeviceMesh) -> TrainerModel:
    """Tensor parallelism inside of a layer, FSDP2 over the rest: any other way will do as well."""
    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {f"{name}_proj": columns for name in ("q", "k", "v", "gate", "up")}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {**plan, "o_proj": rows, "down_proj": rows})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model

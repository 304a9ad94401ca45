# SPDX-License-Identifier: Apache-2.0
"""Layers that load their own shard, written as inference engines write theirs.

A parameter carries a `weight_loader(param, loaded, *where)`; a model's load_weights renames what it
is given and calls the loader of the parameter it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

WeightLoader = Callable[..., None]


@dataclass(frozen=True)
class Rank:
    """A rank of a parallel group."""

    rank: int = 0
    size: int = 1


def new_param(dtype: torch.dtype, shape: Sequence[int], loader: WeightLoader) -> nn.Parameter:
    param = nn.Parameter(torch.empty(tuple(shape), dtype=dtype), requires_grad=False)
    param.weight_loader = loader
    return param


def default_weight_loader(param: nn.Parameter, loaded: torch.Tensor) -> None:
    if param.numel() == 1 and loaded.numel() == 1:
        loaded = loaded.reshape(param.shape)
    assert param.shape == loaded.shape, f"{tuple(param.shape)} and {tuple(loaded.shape)}"
    param.data.copy_(loaded)


def divide(a: int, b: int) -> int:
    assert a % b == 0, f"{a} is not divisible by {b}"
    return a // b


class Replicated(nn.Module):
    def __init__(self, rows: int, cols: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = new_param(dtype, (rows, cols), default_weight_loader)


class ColumnParallel(nn.Module):
    """A rank has a range of rows, of weight and bias alike."""

    def __init__(
        self, rows: int, cols: int, dtype: torch.dtype, tp: Rank, bias: bool = False
    ) -> None:
        super().__init__()
        self.tp = tp
        local = divide(rows, tp.size)
        self.weight = new_param(dtype, (local, cols), self.weight_loader)
        if bias:
            self.bias = new_param(dtype, (local,), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        size = param.shape[0]
        param.data.copy_(loaded.narrow(0, self.tp.rank * size, size))


class RowParallel(nn.Module):
    """A rank has a range of columns; the bias is whole."""

    def __init__(
        self, rows: int, cols: int, dtype: torch.dtype, tp: Rank, bias: bool = False
    ) -> None:
        super().__init__()
        self.tp = tp
        self.weight = new_param(dtype, (rows, divide(cols, tp.size)), self.weight_loader)
        if bias:
            self.bias = new_param(dtype, (rows,), default_weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        size = param.shape[1]
        param.data.copy_(loaded.narrow(1, self.tp.rank * size, size))


class MergedColumnParallel(nn.Module):
    """Several matrices above one another, each of them sharded."""

    def __init__(
        self,
        sizes: Sequence[int],
        cols: int,
        dtype: torch.dtype,
        tp: Rank,
        block: int = 0,
        n_scales: int = 0,
    ) -> None:
        super().__init__()
        self.tp = tp
        self.sizes = list(sizes)
        self.weight = new_param(
            dtype, (sum(divide(s, tp.size) for s in sizes), cols), self.weight_loader
        )
        if block:
            self.block = block
            rows = sum(-(-divide(s, tp.size) // block) for s in sizes)
            self.weight_scale = new_param(torch.float32, (rows,), self.scale_loader)
        if n_scales:
            self.weight_scale = new_param(torch.float32, (n_scales,), self.tensor_scale_loader)

    def weight_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: int | None = None
    ) -> None:
        if shard is None:  # fused on disk
            start = 0
            for i, size in enumerate(self.sizes):
                self.weight_loader(param, loaded.narrow(0, start, size), i)
                start += size
            return
        self._put(param, loaded, [divide(s, self.tp.size) for s in self.sizes], shard)

    def scale_loader(self, param: nn.Parameter, loaded: torch.Tensor, shard: int) -> None:
        local = [-(-divide(s, self.tp.size) // self.block) for s in self.sizes]
        self._put(param, loaded, local, shard)

    def tensor_scale_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: int | None = None
    ) -> None:
        if shard is None:  # one scale for all of a tensor that is fused on disk
            for i in range(param.shape[0]):
                param.data[i].copy_(loaded.reshape(()))
            return
        param.data[shard].copy_(loaded.reshape(()))

    def _put(
        self, param: nn.Parameter, loaded: torch.Tensor, local: Sequence[int], shard: int
    ) -> None:
        size = local[shard]
        target = param.data.narrow(0, sum(local[:shard]), size)
        loaded = loaded.narrow(0, self.tp.rank * size, size)
        assert target.shape == loaded.shape
        target.copy_(loaded)


class QKVParallel(nn.Module):
    """Query, key and value heads above one another; KV heads are repeated beyond their number."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cols: int,
        dtype: torch.dtype,
        tp: Rank,
        bias: bool = False,
        query_parts: int = 1,
    ) -> None:
        super().__init__()
        self.tp = tp
        self.n_copies = max(1, tp.size // kv_heads)
        kv = divide(kv_heads, tp.size) if tp.size < kv_heads else 1
        q = divide(heads, tp.size) * query_parts
        self.local = {"q": q * head_dim, "k": kv * head_dim, "v": kv * head_dim}
        self.total = {
            "q": heads * query_parts * head_dim,
            "k": kv_heads * head_dim,
            "v": kv_heads * head_dim,
        }
        rows = sum(self.local.values())
        self.weight = new_param(dtype, (rows, cols), self.weight_loader)
        if bias:
            self.bias = new_param(dtype, (rows,), self.weight_loader)

    def weight_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: str | None = None
    ) -> None:
        if shard is None:  # fused on disk
            start = 0
            for name, size in self.total.items():
                self.weight_loader(param, loaded.narrow(0, start, size), name)
                start += size
            return
        size = self.local[shard]
        offset = {"q": 0, "k": self.local["q"], "v": self.local["q"] + self.local["k"]}[shard]
        index = self.tp.rank if shard == "q" else self.tp.rank // self.n_copies
        target = param.data.narrow(0, offset, size)
        target.copy_(loaded.narrow(0, index * size, size))


class VocabParallelEmbedding(nn.Module):
    """A padded vocabulary, split; rows beyond the real ones are zero."""

    def __init__(
        self, vocab: int, cols: int, dtype: torch.dtype, tp: Rank, multiple: int = 4
    ) -> None:
        super().__init__()
        self.tp = tp
        self.vocab = vocab
        padded = -(-vocab // multiple) * multiple
        self.weight = new_param(dtype, (divide(padded, tp.size), cols), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        size = param.shape[0]
        start = self.tp.rank * size
        loaded = loaded[start : min(start + size, self.vocab)]
        param[: loaded.shape[0]].data.copy_(loaded)
        param[loaded.shape[0] :].data.fill_(0)


class FusedMoE(nn.Module):
    """Experts of this rank; w13 has the halves gate and up above one another."""

    def __init__(
        self,
        n_experts: int,
        inner: int,
        hidden: int,
        dtype: torch.dtype,
        tp: Rank,
        ep: Rank,
        *,
        halves: Sequence[str] = ("w1", "w3"),
        transposed: bool = False,
        scales: bool = False,
        input_scale: bool = False,
        slot_experts: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.tp = tp
        self.halves = list(halves)
        self.transposed = transposed
        n_local = divide(n_experts, ep.size)
        local = range(ep.rank * n_local, (ep.rank + 1) * n_local)
        self.slot_experts = list(local if slot_experts is None else slot_experts)
        n_slots = len(self.slot_experts)
        shard = divide(inner, tp.size)
        w13, w2 = (n_slots, 2 * shard, hidden), (n_slots, hidden, shard)
        if transposed:
            w13, w2 = (n_slots, hidden, 2 * shard), (n_slots, shard, hidden)
        self.w13_weight = new_param(dtype, w13, self.weight_loader)
        self.w2_weight = new_param(dtype, w2, self.weight_loader)
        if scales:
            self.w13_weight_scale = new_param(torch.float32, (n_slots, 2), self.scale_loader)
            self.w2_weight_scale = new_param(torch.float32, (n_slots,), self.scale_loader)
        if input_scale:
            self.w13_input_scale = new_param(torch.float32, (n_slots,), self.input_scale_loader)

    def slots_of(self, expert: int) -> list[int]:
        return [slot for slot, owner in enumerate(self.slot_experts) if owner == expert]

    def weight_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: str, expert: int
    ) -> None:
        for slot in self.slots_of(expert):
            self._load_slot(param.data[slot], loaded, shard)

    def _load_slot(self, target: torch.Tensor, loaded: torch.Tensor, shard: str) -> None:
        axis = 1 if shard == "w2" else 0
        if self.transposed:
            loaded = loaded.t()
            axis = 1 - axis
        if shard == "w2":
            size = target.shape[axis]
        else:
            size = target.shape[axis] // 2
            target = target.narrow(axis, self.halves.index(shard) * size, size)
        target.copy_(loaded.narrow(axis, self.tp.rank * size, size))

    def scale_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: str, expert: int
    ) -> None:
        for slot in self.slots_of(expert):
            if shard == "w2":
                param.data[slot] = loaded.reshape(())
            else:
                param.data[slot][self.halves.index(shard)] = loaded.reshape(())

    def input_scale_loader(
        self, param: nn.Parameter, loaded: torch.Tensor, shard: str, expert: int
    ) -> None:
        for slot in self.slots_of(expert):
            param.data[slot] = loaded.reshape(())


class LayerModel(nn.Module):
    """Layers under their names, and the loop over (name, tensor) pairs that engines have.

    stacked: (part of a parameter's name, part of a source's name, shard) for fused parameters.
    experts: (part of a parameter's name, part of a source's name, expert, shard).
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        stacked: Sequence[tuple[str, str, object]] = (),
        experts: Sequence[tuple[str, str, int, str]] = (),
        skipped: Sequence[str] = (),
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.stacked_map = list(stacked)
        self.expert_map = list(experts)
        self.skipped = list(skipped)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        params = dict(self.named_parameters())
        loaded_names: set[str] = set()
        for name, loaded in weights:
            if any(skip in name for skip in self.skipped):
                continue
            target, where = self._resolve(name)
            param = params[target]
            param.weight_loader(param, loaded, *where)
            loaded_names.add(target)
        return loaded_names

    def _resolve(self, name: str) -> tuple[str, tuple[object, ...]]:
        for param_part, source_part, shard in self.stacked_map:
            if source_part in name.split("."):
                return name.replace(source_part, param_part), (shard,)
        for param_part, source_part, expert, shard in self.expert_map:
            if source_part in name:
                return name.replace(source_part, param_part), (shard, expert)
        return name, ()


QKV_STACKED = [("qkv", "q", "q"), ("qkv", "k", "k"), ("qkv", "v", "v")]
GATE_UP_STACKED = [("gate_up", "gate", 0), ("gate_up", "up", 1)]


def expert_params(n_experts: int) -> list[tuple[str, str, int, str]]:
    """experts.N.{gate,up,down}.KIND -> experts.{w13,w2}_KIND, with the shard each of them is."""
    names = (("w13", "gate", "w1"), ("w13", "up", "w3"), ("w2", "down", "w2"))
    return [
        (f"experts.{param}_", f"experts.{expert}.{source}.", expert, shard)
        for expert in range(n_experts)
        for param, source, shard in names
    ]

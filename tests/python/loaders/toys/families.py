# SPDX-License-Identifier: Apache-2.0
"""Loader rules of model families, cut down to a few rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from .arithmetic import expand_block_scale
from .case import Excuse, Toy, bf16, f8, f32, plant, u8
from .layers import (
    QKV_STACKED,
    LayerModel,
    QKVParallel,
    Rank,
    default_weight_loader,
    new_param,
)

TOYS: list[Toy] = []
BF16 = torch.bfloat16
Weights = Iterable[tuple[str, torch.Tensor]]


def elsewhere(*patterns: str) -> tuple[Excuse, ...]:
    return tuple(Excuse("elsewhere", pattern, "other ranks") for pattern in patterns)


class GatedAttention(LayerModel):
    """Each query head has its rows twice: query and gate."""

    def __init__(self, tp: Rank) -> None:
        super().__init__({"qkv": QKVParallel(2, 2, 2, 1, BF16, tp, query_parts=2)}, QKV_STACKED)


TOYS.append(
    Toy(
        name="gated_query_has_rows_of_query_and_gate",
        sources={"q.weight": bf16(8, 1), "k.weight": bf16(4, 1), "v.weight": bf16(4, 1)},
        build=lambda: GatedAttention(Rank(1, 2)),
        expect={"qkv.weight": "q.weight#4..7 k.weight#2,3 v.weight#2,3"},
        excuses=elsewhere("*"),
        rank=1,
    )
)


class LinearAttention(nn.Module):
    """Query, key, value and gate above one another; the checkpoint has the first three fused.

    The names are matched as whole tokens: in_proj_b is the start of in_proj_ba.
    """

    MERGED: ClassVar = {
        "in_proj_qkv": ("in_proj_qkvz", (0, 1, 2)),
        "in_proj_z": ("in_proj_qkvz", (3,)),
        "in_proj_b": ("in_proj_ba", (0,)),
        "in_proj_a": ("in_proj_ba", (1,)),
    }

    def __init__(self, key: int, value: int, heads: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.sizes = {"in_proj_qkvz": (key, key, value, value), "in_proj_ba": (heads, heads)}
        for name, sizes in self.sizes.items():
            rows = sum(size // tp.size for size in sizes)
            plant(self, f"{name}.weight", new_param(BF16, (rows, 1), default_weight_loader))
        rows = sum(size // tp.size for size in (key, key, value))
        plant(self, "conv1d.weight", new_param(BF16, (rows, 1, 2), default_weight_loader))

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            layer = name.split(".")[0]
            if layer == "conv1d":
                self._load_ranges(self.conv1d.weight, loaded, self.sizes["in_proj_qkvz"][:3])
                continue
            merged, shards = self.MERGED[layer]
            sizes = self.sizes[merged]
            parts = loaded.split([sizes[shard] for shard in shards], dim=0)
            for shard, part in zip(shards, parts, strict=False):
                self._load_shard(getattr(self, merged).weight, part, sizes, shard)

    def _load_shard(
        self, param: nn.Parameter, part: torch.Tensor, sizes: tuple[int, ...], shard: int
    ) -> None:
        size = sizes[shard] // self.tp.size
        offset = sum(sizes[:shard]) // self.tp.size
        param.data.narrow(0, offset, size).copy_(part.narrow(0, self.tp.rank * size, size))

    def _load_ranges(
        self, param: nn.Parameter, loaded: torch.Tensor, sizes: tuple[int, ...]
    ) -> None:
        for shard, part in enumerate(loaded.split(list(sizes), dim=0)):
            self._load_shard(param, part, sizes, shard)


TOYS.append(
    Toy(
        name="linear_attention_splits_what_is_fused_on_disk",
        sources={
            "in_proj_qkv.weight": bf16(8, 1),
            "in_proj_z.weight": bf16(4, 1),
            "in_proj_b.weight": bf16(2, 1),
            "in_proj_a.weight": bf16(2, 1),
            "conv1d.weight": bf16(8, 1, 2),
        },
        build=lambda: LinearAttention(2, 4, 2, Rank(1, 2)),
        expect={
            "in_proj_qkvz.weight": "in_proj_qkv.weight#1,3,6,7 in_proj_z.weight#2,3",
            "in_proj_ba.weight": "in_proj_b.weight#1 in_proj_a.weight#1",
            "conv1d.weight": "conv1d.weight#2,3,6,7,12..15",
        },
        excuses=elsewhere("*"),
        rank=1,
    )
)


class PlusOneNorm(nn.Module):
    """A norm whose kernel wants weight + 1, kept beside the weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = new_param(torch.float32, (size,), self.weight_loader)
        self.register_buffer("plus_one", torch.zeros(size))

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        param.data.copy_(loaded)
        self.plus_one.copy_(param.data + 1)


TOYS.append(
    Toy(
        name="norm_with_a_derived_plus_one",
        sources={"norm.weight": bf16(2)},
        build=lambda: LayerModel({"norm": PlusOneNorm(2)}),
        expect={"norm.weight": "norm.weight#0,1"},
    )
)


class LatentAttention(nn.Module):
    """kv_b of this rank's heads; w_kc and w_vc are cut out of it after the load, in place."""

    def __init__(self, heads: int, nope: int, v: int, rank: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.nope, self.v = nope, v
        local = heads // tp.size
        self.kv_b = new_param(BF16, (local * (nope + v), rank), self.weight_loader)
        self.fused_qkv_a = new_param(BF16, (3, rank), default_weight_loader)
        self.register_buffer("w_kc", torch.zeros(local, nope, rank, dtype=BF16))
        self.register_buffer("w_vc", torch.zeros(local, rank, v, dtype=BF16))

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        size = param.shape[0]
        param.data.copy_(loaded.narrow(0, self.tp.rank * size, size))

    def load_weights(self, weights: Weights) -> None:
        halves: dict[str, torch.Tensor] = {}
        for name, loaded in weights:
            if name == "kv_b.weight":
                self.weight_loader(self.kv_b, loaded)
                continue
            halves[name] = loaded
            if len(halves) == 2:
                both = torch.cat([halves["q_a.weight"], halves["kv_a.weight"]], dim=0)
                default_weight_loader(self.fused_qkv_a, both)
        self._post_load()

    def _post_load(self) -> None:
        w = self.kv_b.data.unflatten(0, (-1, self.nope + self.v))
        w_kc, w_vc = w.split([self.nope, self.v], dim=1)
        self.w_kc.copy_(w_kc)
        self.w_vc.copy_(w_vc.transpose(1, 2))


TOYS.append(
    Toy(
        name="latent_attention_with_halves_that_wait_for_one_another",
        sources={"kv_b.weight": bf16(6, 2), "kv_a.weight": bf16(1, 2), "q_a.weight": bf16(2, 2)},
        build=lambda: LatentAttention(2, 2, 1, 2, Rank(1, 2)),
        expect={
            "kv_b": "kv_b.weight#6..11",
            "fused_qkv_a": "q_a.weight#0..3 kv_a.weight#0,1",
        },
        excuses=elsewhere("kv_b.weight"),
        rank=1,
    )
)


class Indexer(nn.Module):
    """wk comes in fp8 with block scales and goes above weights_proj, dequantised."""

    def __init__(self) -> None:
        super().__init__()
        self.wk_weights_proj = new_param(BF16, (6, 4), default_weight_loader)

    def load_weights(self, weights: Weights) -> None:
        pending: dict[str, torch.Tensor] = {}
        for name, loaded in weights:
            if name == "weights_proj.weight":
                self.wk_weights_proj.data[4:].copy_(loaded)
                continue
            pending[name] = loaded
            if len(pending) == 2:
                weight = pending.pop("wk.weight").to(torch.float32)
                scale = expand_block_scale(pending.pop("wk.weight_scale_inv"), 4, 4, block=2)
                self.wk_weights_proj.data[:4].copy_((weight * scale).to(BF16))


TOYS.append(
    Toy(
        name="indexer_dequantises_the_top_rows",
        sources={
            "wk.weight": f8(4, 4),
            "wk.weight_scale_inv": f32(2, 2),
            "weights_proj.weight": bf16(2, 4),
        },
        build=Indexer,
        expect={
            "wk_weights_proj": "wk.weight#0..3*wk.weight_scale_inv#0,0,1,1"
            " wk.weight#4..7*wk.weight_scale_inv#0,0,1,1"
            " wk.weight#8..11*wk.weight_scale_inv#2,2,3,3"
            " wk.weight#12..15*wk.weight_scale_inv#2,2,3,3"
            " weights_proj.weight#0..7"
        },
        computed=frozenset(["wk_weights_proj"]),
    )
)


class InterleavedExperts(nn.Module):
    """[experts, hidden, 2 * inner] on disk: columns gate, up, gate, up; transposed on load."""

    def __init__(self, n_experts: int, hidden: int, inner: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        local = inner // tp.size
        self.w13_weight = new_param(BF16, (n_experts, 2 * local, hidden), default_weight_loader)
        self.w2_weight = new_param(BF16, (n_experts, hidden, local), default_weight_loader)
        self.w2_bias = new_param(BF16, (n_experts, hidden), default_weight_loader)
        self.sinks = new_param(BF16, (2,), default_weight_loader)

    def load_weights(self, weights: Weights) -> None:
        rank = self.tp.rank
        for name, loaded in weights:
            if name == "gate_up_proj":
                size = self.w13_weight.shape[1]
                narrow = loaded[:, :, rank * size : (rank + 1) * size]
                self.w13_weight.data.copy_(narrow.permute(0, 2, 1).contiguous())
            elif name == "down_proj":
                size = self.w2_weight.shape[2]
                narrow = loaded[:, rank * size : (rank + 1) * size, :]
                self.w2_weight.data.copy_(narrow.permute(0, 2, 1).contiguous())
            elif name == "down_proj_bias":
                if rank != 0:
                    loaded.zero_()  # added once, by the first rank
                self.w2_bias.data.copy_(loaded)
            else:
                self.sinks.data.copy_(loaded.narrow(0, rank * 2, 2))


INTERLEAVED_SOURCES = {
    "gate_up_proj": bf16(1, 2, 4),
    "down_proj": bf16(1, 2, 2),
    "down_proj_bias": bf16(1, 2),
    "sinks": bf16(4),
}
TOYS.append(
    Toy(
        name="interleaved_experts_rank_1",
        sources=INTERLEAVED_SOURCES,
        build=lambda: InterleavedExperts(1, 2, 2, Rank(1, 2)),
        expect={
            "w13_weight": "gate_up_proj#2,6,3,7",
            "w2_weight": "down_proj#2,3",
            "w2_bias": "=0:2",
            "sinks": "sinks#2,3",
        },
        excuses=elsewhere("*"),
        rank=1,
    )
)
TOYS.append(
    Toy(
        name="interleaved_experts_rank_0",
        sources=INTERLEAVED_SOURCES,
        build=lambda: InterleavedExperts(1, 2, 2, Rank(0, 2)),
        expect={
            "w13_weight": "gate_up_proj#0,4,1,5",
            "w2_weight": "down_proj#0,1",
            "w2_bias": "down_proj_bias#0,1",
            "sinks": "sinks#0,1",
        },
        excuses=elsewhere("gate_up_proj", "down_proj", "sinks"),
    )
)


class PackedExperts(nn.Module):
    """Blocks of 32 four-bit values; ranks take whole blocks, the last rank fewer of them.

    Parameters are padded; the loader fills their front corner and leaves the rest alone.
    """

    def __init__(self, inner: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.inner = inner
        self.per_rank = -(-(inner // 32) // tp.size) * 32
        size = self.per_rank
        self.gate_up = new_param(torch.uint8, (1, 2 * size, 2), default_weight_loader)
        self.down = new_param(torch.uint8, (1, 1, size // 2), default_weight_loader)
        self.down_scale = new_param(torch.uint8, (1, 1, size // 32), default_weight_loader)

    def load_weights(self, weights: Weights) -> None:
        start = self.tp.rank * self.per_rank
        stop = min(start + self.per_rank, self.inner)
        cuts = {
            "gate_up_blocks": (self.gate_up, 1, 2 * start, 2 * stop),
            "down_blocks": (self.down, 2, start // 2, stop // 2),
            "down_scales": (self.down_scale, 2, start // 32, stop // 32),
        }
        for name, loaded in weights:
            param, axis, first, last = cuts[name]
            if loaded.dim() == 4:  # blocks of bytes: trailing axes merged
                loaded = loaded.view(*loaded.shape[:2], -1)
            corner = loaded.narrow(axis, first, last - first)
            region = param.data
            for dim in range(3):
                region = region.narrow(dim, 0, corner.shape[dim])
            region.copy_(corner)


def packed_expert_map(rank: int) -> dict[str, str]:
    if rank == 0:
        return {
            "gate_up": "gate_up_blocks#0..255",
            "down": "down_blocks#0..31",
            "down_scale": "down_scales#0,1",
        }
    return {
        "gate_up": "gate_up_blocks#256..383 _:128",
        "down": "down_blocks#32..47 _:16",
        "down_scale": "down_scales#2 _",
    }


PADDING = (
    Excuse("untouched", "gate_up", "padding", box=((0, 1), (64, 128), (0, 2))),
    Excuse("untouched", "down", "padding", box=((0, 1), (0, 1), (16, 32))),
    Excuse("untouched", "down_scale", "padding", box=((0, 1), (0, 1), (1, 2))),
)
for _rank in (0, 1):
    TOYS.append(
        Toy(
            name=f"packed_experts_fill_the_front_corner_rank_{_rank}",
            sources={
                "gate_up_blocks": u8(1, 192, 1, 2),
                "down_blocks": u8(1, 1, 3, 16),
                "down_scales": u8(1, 1, 3),
            },
            build=lambda r=_rank: PackedExperts(96, Rank(r, 2)),
            expect=packed_expert_map(_rank),
            excuses=elsewhere("*") + (PADDING if _rank else ()),
            rank=_rank,
        )
    )


class DraftLayer(nn.Module):
    """The layer after the last one is the draft's: its own tensors, and its decoder."""

    OWN = ("enorm", "hnorm", "eh_proj")

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.prefix = f"model.layers.{n_layers}."
        for name in ("enorm.weight", "decoder.mlp.x"):
            plant(self, f"model.{name}", new_param(BF16, (2,), default_weight_loader))

    def load_weights(self, weights: Weights) -> None:
        params = dict(self.named_parameters())
        for name, loaded in weights:
            if not name.startswith(self.prefix):
                continue
            rest = name.removeprefix(self.prefix)
            inside = "" if rest.split(".")[0] in self.OWN else "decoder."
            param = params[f"model.{inside}{rest}"]
            param.weight_loader(param, loaded)


TOYS.append(
    Toy(
        name="draft_layer_is_found_by_its_whole_number",
        sources={
            "model.layers.2.enorm.weight": bf16(2),
            "model.layers.2.mlp.x": bf16(2),
            "model.layers.20.mlp.x": bf16(2),
        },
        build=lambda: DraftLayer(2),
        expect={
            "model.enorm.weight": "model.layers.2.enorm.weight#0,1",
            "model.decoder.mlp.x": "model.layers.2.mlp.x#0,1",
        },
        excuses=(Excuse("unused", "model.layers.20.*", "no draft layer"),),
    )
)


class TiedHead(nn.Module):
    """The head is the embedding: one parameter with two names."""

    def __init__(self, loads_head: bool) -> None:
        super().__init__()
        self.loads_head = loads_head
        plant(self, "embed.weight", new_param(BF16, (3, 2), default_weight_loader))
        self.head = nn.Module()
        self.head.weight = self.embed.weight

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            if name == "lm_head.weight" and not self.loads_head:
                continue
            default_weight_loader(self.embed.weight, loaded)


TOYS.append(
    Toy(
        name="tied_head_is_skipped",
        sources={"embed.weight": bf16(3, 2), "lm_head.weight": bf16(3, 2)},
        build=lambda: TiedHead(loads_head=False),
        expect={"embed.weight": "embed.weight#0..5"},
        excuses=(Excuse("unused", "lm_head.weight", "tied"),),
    )
)
TOYS.append(
    Toy(
        name="tied_head_is_loaded_over_the_embedding",
        sources={"embed.weight": bf16(3, 2), "lm_head.weight": bf16(3, 2)},
        build=lambda: TiedHead(loads_head=True),
        expect={"embed.weight": "lm_head.weight#0..5"},
        excuses=(Excuse("equal", "embed.weight", "tied: both must agree"),),
    )
)

# SPDX-License-Identifier: Apache-2.0
"""Loader rules per kind of layer, each on one rank of its parallel groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from .case import Excuse, Spec, Toy, bf16, f32, i32
from .layers import (
    GATE_UP_STACKED,
    QKV_STACKED,
    ColumnParallel,
    FusedMoE,
    LayerModel,
    MergedColumnParallel,
    QKVParallel,
    Rank,
    RowParallel,
    VocabParallelEmbedding,
    expert_params,
    new_param,
)

TOYS: list[Toy] = []
BF16 = torch.bfloat16


def add(
    name: str,
    sources: Mapping[str, Spec],
    expect: Mapping[str, str],
    build: Callable[[], nn.Module],
    unused: Iterable[str] = (),
    approximate: Iterable[str] = (),
    rank: int = 0,
) -> None:
    """A toy whose other ranks use what this one does not."""
    TOYS.append(
        Toy(
            name=name,
            sources=sources,
            build=build,
            expect=expect,
            excuses=tuple(Excuse("elsewhere", pattern, "other ranks") for pattern in unused),
            approximate=frozenset(approximate),
            computed=frozenset(approximate),
            rank=rank,
        )
    )


def one_layer(layer: nn.Module, stacked: list[tuple[str, str, object]] = ()) -> nn.Module:
    return LayerModel({"layer": layer}, stacked)


add(
    "column_parallel_takes_rows",
    {"layer.weight": bf16(6, 2), "layer.bias": bf16(6)},
    {"layer.weight": "layer.weight#8..11", "layer.bias": "layer.bias#4,5"},
    lambda: one_layer(ColumnParallel(6, 2, BF16, Rank(2, 3), bias=True)),
    unused=["layer.weight", "layer.bias"],
)

add(
    "row_parallel_takes_columns",
    {"layer.weight": bf16(2, 6), "layer.bias": bf16(2)},
    {"layer.weight": "layer.weight#2,3,8,9", "layer.bias": "layer.bias#0,1"},
    lambda: one_layer(RowParallel(2, 6, BF16, Rank(1, 3), bias=True)),
    unused=["layer.weight"],
)


class Attention(LayerModel):
    def __init__(self, heads: int, kv_heads: int, dim: int, cols: int, tp: Rank) -> None:
        super().__init__({"qkv": QKVParallel(heads, kv_heads, dim, cols, BF16, tp)}, QKV_STACKED)


for _rank, _q in ((0, "0,1"), (2, "4,5"), (3, "6,7")):
    _kv = "0,1" if _rank < 2 else "2,3"
    add(
        f"kv_heads_repeat_beyond_their_number_rank_{_rank}",
        {"q.weight": bf16(4, 2), "k.weight": bf16(2, 2), "v.weight": bf16(2, 2)},
        {"qkv.weight": f"q.weight#{_q} k.weight#{_kv} v.weight#{_kv}"},
        lambda r=_rank: Attention(4, 2, 1, 2, Rank(r, 4)),
        unused=["q.weight", "k.weight", "v.weight"],
        rank=_rank,
    )

add(
    "qkv_fused_on_disk",
    {"qkv.weight": bf16(8, 2)},
    {"qkv.weight": "qkv.weight#6,7 qkv.weight#10,11 qkv.weight#14,15"},
    lambda: Attention(4, 2, 1, 2, Rank(3, 4)),
    unused=["qkv.weight"],
)

add(
    "gate_and_up_are_halves_per_rank",
    {"gate.weight": bf16(4, 2), "up.weight": bf16(4, 2)},
    {"gate_up.weight": "gate.weight#4..7 up.weight#4..7"},
    lambda: LayerModel(
        {"gate_up": MergedColumnParallel([4, 4], 2, BF16, Rank(1, 2))}, GATE_UP_STACKED
    ),
    unused=["gate.weight", "up.weight"],
)

add(
    "gate_and_up_fused_on_disk",
    {"gate_up.weight": bf16(8, 2)},
    {"gate_up.weight": "gate_up.weight#4..7 gate_up.weight#12..15"},
    lambda: LayerModel({"gate_up": MergedColumnParallel([4, 4], 2, BF16, Rank(1, 2))}),
    unused=["gate_up.weight"],
)


class ScalesOnly(LayerModel):
    """The scales of a fused layer, without its weight."""

    def __init__(self, fused: MergedColumnParallel, stacked: list[tuple[str, str, object]]) -> None:
        super().__init__({"fused": fused}, stacked)
        del fused.weight


add(
    "block_scales_of_a_fused_parameter",
    {"gate.weight_scale": f32(2), "up.weight_scale": f32(2)},
    {"fused.weight_scale": "gate.weight_scale#1 up.weight_scale#1"},
    lambda: ScalesOnly(
        MergedColumnParallel([8, 8], 1, BF16, Rank(1, 2), block=4),
        [("fused", "gate", 0), ("fused", "up", 1)],
    ),
    unused=["gate.weight_scale", "up.weight_scale"],
)

add(
    "block_scales_with_short_last_blocks",
    {"gate.weight_scale": f32(4), "up.weight_scale": f32(2)},
    {"fused.weight_scale": "gate.weight_scale#2,3 up.weight_scale#1"},
    lambda: ScalesOnly(
        MergedColumnParallel([12, 4], 1, BF16, Rank(1, 2), block=4),
        [("fused", "gate", 0), ("fused", "up", 1)],
    ),
    unused=["gate.weight_scale", "up.weight_scale"],
)

add(
    "one_scale_slot_for_each_shard",
    {"q.weight_scale": f32(1), "k.weight_scale": f32(), "v.weight_scale": f32(1)},
    {"fused.weight_scale": "q.weight_scale#0 k.weight_scale#0 v.weight_scale#0"},
    lambda: ScalesOnly(
        MergedColumnParallel([2, 2, 2], 1, BF16, Rank(0, 1), n_scales=3),
        [("fused", "q", 0), ("fused", "k", 1), ("fused", "v", 2)],
    ),
)

add(
    "one_scale_on_disk_for_all_shards",
    {"fused.weight_scale": f32(1)},
    {"fused.weight_scale": "fused.weight_scale#0:3"},
    lambda: ScalesOnly(MergedColumnParallel([2, 2, 2], 1, BF16, Rank(0, 1), n_scales=3), []),
)


class PackedQKV(nn.Module):
    """Words of eight 4-bit values each along the fused axis."""

    def __init__(self, logical: Mapping[str, tuple[int, int]], pack: int) -> None:
        super().__init__()
        self.logical = dict(logical)
        self.pack = pack
        words = sum(size for _, size in self.logical.values()) // pack
        self.qweight = new_param(torch.int32, (2, words), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor, shard: str) -> None:
        offset, size = self.logical[shard]
        if offset % self.pack or size % self.pack:
            raise ValueError(f"{shard}: offset {offset} is no multiple of {self.pack}")
        param.data.narrow(1, offset // self.pack, size // self.pack).copy_(loaded)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, loaded in weights:
            self.weight_loader(self.qweight, loaded, name.split(".")[0])


PACKED = {"q": (0, 16), "k": (16, 8), "v": (24, 8)}
PACKED_SOURCES = {"q.qweight": i32(2, 2), "k.qweight": i32(2, 1), "v.qweight": i32(2, 1)}

add(
    "packed_axis_counts_words",
    PACKED_SOURCES,
    {"qweight": "q.qweight#0,1 k.qweight#0 v.qweight#0 q.qweight#2,3 k.qweight#1 v.qweight#1"},
    lambda: PackedQKV(PACKED, 8),
)


class PaddedVocabulary(LayerModel):
    def __init__(self, rank: int, trainer_rows: int = 10) -> None:
        embed = VocabParallelEmbedding(10, 2, BF16, Rank(rank, 2))
        super().__init__({"embed": embed})
        self.trainer_rows = trainer_rows


for _rank, _rows in ((0, "embed.weight#0..11"), (1, "embed.weight#12..19 =0:4")):
    for _trainer in (10, 16):
        add(
            f"vocabulary_of_{_trainer}_is_padded_then_split_rank_{_rank}",
            {"embed.weight": bf16(_trainer, 2)},
            {"embed.weight": _rows},
            lambda r=_rank, t=_trainer: PaddedVocabulary(r, t),
            unused=["embed.weight"],
            rank=_rank,
        )


def expert_sources(experts: Iterable[int], inner: int, hidden: int) -> dict[str, Spec]:
    sources: dict[str, Spec] = {}
    for e in experts:
        sources[f"experts.{e}.gate.weight"] = bf16(inner, hidden)
        sources[f"experts.{e}.up.weight"] = bf16(inner, hidden)
        sources[f"experts.{e}.down.weight"] = bf16(hidden, inner)
    return sources


def moe(*args: object, n_experts: int, **options: object) -> nn.Module:
    return LayerModel(
        {"experts": FusedMoE(n_experts, *args, **options)}, experts=expert_params(n_experts)
    )


add(
    "experts_of_one_rank_with_their_inner_shard",
    expert_sources(range(4), 4, 2),
    {
        "experts.w13_weight": "experts.2.gate.weight#4..7 experts.2.up.weight#4..7"
        " experts.3.gate.weight#4..7 experts.3.up.weight#4..7",
        "experts.w2_weight": "experts.2.down.weight#2,3,6,7 experts.3.down.weight#2,3,6,7",
    },
    lambda: moe(4, 2, BF16, Rank(1, 2), Rank(1, 2), n_experts=4),
    unused=["experts.*"],
)

add(
    "half_order_is_the_backends",
    expert_sources(range(4), 4, 2),
    {
        "experts.w13_weight": "experts.2.up.weight#4..7 experts.2.gate.weight#4..7"
        " experts.3.up.weight#4..7 experts.3.gate.weight#4..7",
        "experts.w2_weight": "experts.2.down.weight#2,3,6,7 experts.3.down.weight#2,3,6,7",
    },
    lambda: moe(4, 2, BF16, Rank(1, 2), Rank(1, 2), n_experts=4, halves=("w3", "w1")),
    unused=["experts.*"],
)

add(
    "transposed_backend_moves_the_shard_axis",
    {
        f"experts.0.{n}.weight": s
        for n, s in (("gate", bf16(4, 2)), ("up", bf16(4, 2)), ("down", bf16(2, 4)))
    },
    {
        "experts.w13_weight": "experts.0.gate.weight#4,6 experts.0.up.weight#4,6"
        " experts.0.gate.weight#5,7 experts.0.up.weight#5,7",
        "experts.w2_weight": "experts.0.down.weight#2,6,3,7",
    },
    lambda: moe(4, 2, BF16, Rank(1, 2), Rank(0, 1), n_experts=1, transposed=True),
    unused=["experts.*"],
)

add(
    "expert_replicas_follow_the_map",
    expert_sources(range(2), 1, 2),
    {
        "experts.w13_weight": "experts.0.gate.weight#0,1 experts.0.up.weight#0,1"
        " experts.1.gate.weight#0,1 experts.1.up.weight#0,1"
        " experts.0.gate.weight#0,1 experts.0.up.weight#0,1",
        "experts.w2_weight": "experts.0.down.weight#0,1 experts.1.down.weight#0,1"
        " experts.0.down.weight#0,1",
    },
    lambda: moe(1, 2, BF16, Rank(0, 1), Rank(0, 1), n_experts=2, slot_experts=[0, 1, 0]),
)


class SharedExpertAsSlot(LayerModel):
    """The shared expert is one more routed expert, on every rank."""

    def __init__(self, n_routed: int, ep: Rank) -> None:
        n_local = n_routed // ep.size
        slots = [*range(ep.rank * n_local, (ep.rank + 1) * n_local), n_routed]
        experts = FusedMoE(n_routed, 1, 2, BF16, Rank(), ep, slot_experts=slots)
        super().__init__({"experts": experts}, experts=expert_params(n_routed + 1))
        self.n_routed = n_routed

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        renamed = (
            (name.replace("shared_expert.", f"experts.{self.n_routed}."), loaded)
            for name, loaded in weights
        )
        return super().load_weights(renamed)


for _rank, _slots in ((0, "01"), (1, "23")):
    _sources = expert_sources(range(4), 1, 2) | {
        f"shared_expert.{n}.weight": s
        for n, s in (("gate", bf16(1, 2)), ("up", bf16(1, 2)), ("down", bf16(2, 1)))
    }
    _names = [f"experts.{e}" for e in _slots] + ["shared_expert"]
    add(
        f"shared_expert_is_the_last_slot_rank_{_rank}",
        _sources,
        {
            "experts.w13_weight": " ".join(
                f"{n}.gate.weight#0,1 {n}.up.weight#0,1" for n in _names
            ),
            "experts.w2_weight": " ".join(f"{n}.down.weight#0,1" for n in _names),
        },
        lambda r=_rank: SharedExpertAsSlot(4, Rank(r, 2)),
        unused=[f"experts.{e}.*" for e in range(4) if str(e) not in _slots],
        rank=_rank,
    )


class ExpertScales(LayerModel):
    """Scales of experts, without the weights."""

    def __init__(self) -> None:
        experts = FusedMoE(2, 1, 1, BF16, Rank(), Rank(), scales=True)
        del experts.w13_weight, experts.w2_weight
        super().__init__({"experts": experts}, experts=expert_params(2))


add(
    "expert_scales_have_a_slot_each",
    {f"experts.{e}.{n}.weight_scale": f32(1) for e in range(2) for n in ("gate", "up", "down")},
    {
        "experts.w13_weight_scale": "experts.0.gate.weight_scale#0 experts.0.up.weight_scale#0"
        " experts.1.gate.weight_scale#0 experts.1.up.weight_scale#0",
        "experts.w2_weight_scale": "experts.0.down.weight_scale#0 experts.1.down.weight_scale#0",
    },
    ExpertScales,
)


class StackedExperts(nn.Module):
    """[experts, 2 * inner, hidden] on disk, cut in two and loaded expert by expert."""

    def __init__(self, n_experts: int, inner: int, hidden: int, tp: Rank) -> None:
        super().__init__()
        self.experts = FusedMoE(n_experts, inner, hidden, BF16, tp, Rank())
        del self.experts.w2_weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, loaded in weights:
            param = self.experts.w13_weight
            for shard, half in zip(("w1", "w3"), loaded.chunk(2, dim=-2), strict=False):
                for expert in range(half.shape[0]):
                    param.weight_loader(param, half[expert], shard, expert)


add(
    "experts_stacked_on_disk",
    {"experts.gate_up_proj": bf16(2, 4, 1)},
    {"experts.w13_weight": "experts.gate_up_proj#1,3,5,7"},
    lambda: StackedExperts(2, 2, 1, Rank(1, 2)),
    unused=["experts.gate_up_proj"],
)


class Ranges(nn.Module):
    """Ranges of rows, (size, is repeated): each is sharded, or whole on every rank."""

    def __init__(self, ranges: list[tuple[int, bool]], inner: tuple[int, ...], tp: Rank) -> None:
        super().__init__()
        self.ranges = ranges
        self.tp = tp
        rows = sum(size if whole else size // tp.size for size, whole in ranges)
        self.weight = new_param(BF16, (rows, *inner), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        source = target = 0
        for size, whole in self.ranges:
            take = size if whole else size // self.tp.size
            skip = 0 if whole else self.tp.rank * take
            param.data[target : target + take, ...] = loaded[
                source + skip : source + skip + take, ...
            ]
            source += size
            target += take


add(
    "several_ranges_each_sharded",
    {"layer.weight": bf16(8, 1, 2)},
    {"layer.weight": "layer.weight#2,3,6,7,12..15"},
    lambda: one_layer(Ranges([(2, False), (2, False), (4, False)], (1, 2), Rank(1, 2))),
    unused=["layer.weight"],
)

add(
    "some_ranges_repeated_on_every_rank",
    {"layer.weight": bf16(16)},
    {"layer.weight": "layer.weight#2,3,6,7,8..11,14,15"},
    lambda: one_layer(
        Ranges([(4, False), (4, False), (2, True), (2, True), (4, False)], (), Rank(1, 2))
    ),
    unused=["layer.weight"],
)


class StateSpace(nn.Module):
    """A = -exp(A_log) in fp32, of this rank's heads."""

    def __init__(self, heads: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.A = new_param(torch.float32, (heads // tp.size,), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        size = param.shape[0]
        param.data.copy_(loaded.narrow(0, self.tp.rank * size, size))
        param.data.copy_(-torch.exp(param.data.float()))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, loaded in weights:
            assert name == "A_log"
            self.A.weight_loader(self.A, loaded)


add(
    "negative_exponential_of_this_ranks_heads",
    {"A_log": bf16(4)},
    {"A": "A_log#2,3"},
    lambda: StateSpace(4, Rank(1, 2)),
    unused=["A_log"],
    approximate=["A"],
)


class ThreeRanks(LayerModel):
    """Attention, experts' inner size and experts each have ranks of their own."""

    def __init__(self, attention: Rank, moe_tp: Rank, moe_ep: Rank) -> None:
        super().__init__(
            {
                "qkv": QKVParallel(2, 2, 1, 2, BF16, attention),
                "experts": FusedMoE(1, 4, 2, BF16, moe_tp, moe_ep),
            },
            QKV_STACKED,
            expert_params(1),
        )


add(
    "attention_and_experts_have_ranks_of_their_own",
    {"q.weight": bf16(2, 2), "k.weight": bf16(2, 2), "v.weight": bf16(2, 2)}
    | expert_sources([0], 4, 2),
    {
        "qkv.weight": "q.weight#0..3 k.weight#0..3 v.weight#0..3",
        "experts.w13_weight": "experts.0.gate.weight#4..7 experts.0.up.weight#4..7",
        "experts.w2_weight": "experts.0.down.weight#2,3,6,7",
    },
    lambda: ThreeRanks(Rank(0, 1), Rank(1, 2), Rank(0, 1)),
    unused=["experts.*"],
)


class InputScaleOfBoth(nn.Module):
    """One input scale, which gate and up both write."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = FusedMoE(2, 1, 1, BF16, Rank(), Rank(), input_scale=True)
        del self.experts.w13_weight, self.experts.w2_weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        param = self.experts.w13_input_scale
        for name, loaded in weights:
            _, expert, which, _ = name.split(".")
            param.weight_loader(param, loaded, which, int(expert))


TOYS.append(
    Toy(
        name="input_scale_written_by_gate_and_up",
        sources={f"experts.{e}.{n}.input_scale": f32(1) for e in range(2) for n in ("gate", "up")},
        build=InputScaleOfBoth,
        expect={"experts.w13_input_scale": "experts.0.up.input_scale#0 experts.1.up.input_scale#0"},
        excuses=(Excuse("equal", "experts.w13_input_scale", "gate and up share one input"),),
    )
)


class PaddedHalves(nn.Module):
    """Each half of a fused parameter is padded to the kernel's tile by itself, after the split."""

    def __init__(self, inner: int, tile: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.size = inner // tp.size
        self.padded = -(-self.size // tile) * tile
        self.w13 = new_param(BF16, (2 * self.padded, 1), self.weight_loader)
        self.w2 = new_param(BF16, (1, self.padded), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor, shard: str) -> None:
        axis = 1 if shard == "down" else 0
        start = self.padded if shard == "up" else 0
        half = param.data.narrow(axis, start, self.padded)
        half.narrow(axis, self.size, self.padded - self.size).zero_()
        half.narrow(axis, 0, self.size).copy_(
            loaded.narrow(axis, self.tp.rank * self.size, self.size)
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, loaded in weights:
            shard = name.removesuffix(".weight")
            self.weight_loader(self.w2 if shard == "down" else self.w13, loaded, shard)


for _rank, _rows in ((0, "0..4"), (1, "5..9")):
    add(
        f"halves_are_padded_after_the_split_rank_{_rank}",
        {"gate.weight": bf16(10, 1), "up.weight": bf16(10, 1), "down.weight": bf16(1, 10)},
        {
            "w13": f"gate.weight#{_rows} =0:3 up.weight#{_rows} =0:3",
            "w2": f"down.weight#{_rows} =0:3",
        },
        lambda r=_rank: PaddedHalves(10, 4, Rank(r, 2)),
        unused=["*"],
        rank=_rank,
    )


class GroupedRows(nn.Module):
    """Rows b and a interleaved per key head on disk; all b first in the parameter."""

    def __init__(self, heads: int, tp: Rank) -> None:
        super().__init__()
        self.tp = tp
        self.weight = new_param(BF16, (4 * heads // tp.size, 2), self.weight_loader)

    def weight_loader(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        heads = loaded.unflatten(0, (-1, 2, 2)).chunk(self.tp.size)[self.tp.rank]
        b, a = heads.unbind(1)
        param.data.copy_(torch.cat([b.flatten(0, 1), a.flatten(0, 1)]))


add(
    "rows_interleaved_per_head_are_sorted",
    {"layer.weight": bf16(8, 2)},
    {"layer.weight": "layer.weight#0..3 layer.weight#8..11 layer.weight#4..7 layer.weight#12..15"},
    lambda: one_layer(GroupedRows(2, Rank(0, 1))),
)
add(
    "rows_interleaved_per_head_are_cut_between_heads",
    {"layer.weight": bf16(8, 2)},
    {"layer.weight": "layer.weight#8..15"},
    lambda: one_layer(GroupedRows(2, Rank(1, 2))),
    unused=["layer.weight"],
    rank=1,
)

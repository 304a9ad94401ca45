# SPDX-License-Identifier: Apache-2.0
"""Loaders that move elements: views, copies, lists, order and tiling, fills, padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import Excuse, Toy, bf16, f8, f32, i32, toy, u8

TOYS: list[Toy] = []
UNUSED_X = Excuse("unused", "x")


@toy(
    {"foo.q": bf16(4, 2), "foo.k": bf16(2, 2), "foo.v": bf16(2, 2)},
    {"a.qkv": bf16(8, 2)},
    {"a.qkv": "foo.q#0..7 foo.k#0..3 foo.v#0..3"},
    TOYS,
)
def fused_rows(model, weights):
    start = 0
    for name in ("foo.q", "foo.k", "foo.v"):
        loaded = weights[name]
        model.a.qkv.data.narrow(0, start, loaded.shape[0]).copy_(loaded)
        start += loaded.shape[0]


@toy(
    {"x": bf16(4, 3, 2)},
    {"p": bf16(4, 4)},
    {"p": "=0:8 x#2,8,14,20 x#3,9,15,21"},
    TOYS,
    excuses=[UNUSED_X],
)
def views_on_both_sides(model, weights):
    model.p.zero_()
    model.p[2:4].T.copy_(weights["x"][:, 1])


@toy({"x": f32(2, 3)}, {"p": f32(6)}, {"p": "x#0,3,1,4,2,5"}, TOYS)
def reshape_that_must_copy(model, weights):
    model.p.copy_(weights["x"].t().reshape(6))


@toy(
    {"x": bf16(6, 2), "y": bf16(2, 2)},
    {"p": bf16(3, 2), "q": bf16(2)},
    {"p": "x#10,11,0..3", "q": "y#1,2"},
    TOYS,
    excuses=[UNUSED_X, Excuse("unused", "y")],
)
def integer_lists(model, weights):
    model.p.copy_(weights["x"][[5, 0, 1]])
    model.q.copy_(weights["y"][[0, 1], [1, 0]])


@toy(
    {"x": f32(5), "z": f32(2)},
    {"rolled": f32(5), "flipped": f32(5), "tiled": f32(4), "repeated": f32(4)},
    {
        "rolled": "x#3,4,0,1,2",
        "flipped": "x#4,3,2,1,0",
        "tiled": "z#0,1,0,1",
        "repeated": "z#0,0,1,1",
    },
    TOYS,
)
def order_and_tiling(model, weights):
    x, z = weights["x"], weights["z"]
    model.rolled.copy_(torch.roll(x, 2))
    model.flipped.copy_(x.flip(0))
    model.tiled.copy_(z.repeat(2))
    model.repeated.copy_(z.repeat_interleave(2))


@toy({"x": f32(2, 3)}, {"p": f32(3, 4)}, {"p": "x#0..2 =0 x#3..5 =0 =0:4"}, TOYS)
def fill_then_corner(model, weights):
    model.p.zero_()
    model.p[:2, :3] = weights["x"]


@toy(
    {"x": bf16(6, 2)},
    {"p": bf16(8, 2)},
    {"p": "x#0..11 _:4"},
    TOYS,
    excuses=[Excuse("untouched", "p", "padding", box=((6, 8), (0, 2)))],
)
def padding_left_alone(model, weights):
    model.p[:6].copy_(weights["x"])


@toy({"s": f32()}, {"p": f32(3)}, {"p": "s#0:3"}, TOYS)
def broadcast_copy(model, weights):
    model.p.copy_(weights["s"])


@toy(
    {"w": bf16(2, 2), "b": bf16(2)},
    {"p": bf16(2, 2), "bias": bf16(2)},
    {"p": "w#0..3", "bias": "=0:2"},
    TOYS,
    excuses=[Excuse("unused", "b")],
)
def source_zeroed_in_place(model, weights):
    weights["b"].zero_()
    model.bias.copy_(weights["b"])
    model.p.copy_(weights["w"])


@toy(
    {"w": bf16(2, 3), "b": bf16(3)},
    {"p": bf16(2, 3), "bias": bf16(3)},
    {"p": "w#0..5", "bias": "b#0 =0 b#2"},
    TOYS,
    excuses=[Excuse("unused", "b")],
)
def source_changed_in_part(model, weights):
    weights["b"][1] = 0
    model.p.copy_(weights["w"])
    model.bias.copy_(weights["b"])


@toy(
    {"x": bf16(5, 2)},
    {"p": bf16(5, 2)},
    {"p": "x#2..5 x#6,7 x#0,1 x#8,9"},
    TOYS,
)
def uneven_chunks(model, weights):
    a, b, c = weights["x"].chunk(4)  # 2, 2 and 1 rows
    first, second = a.unbind(0)
    model.p.copy_(torch.cat([torch.stack([second]), b, first[None], c])[[0, 1, 2, 3, 4]])


@toy(
    {"x": bf16(5)},
    {"p": bf16(5)},
    {"p": "x#4,3,2,0,1"},
    TOYS,
)
def tensor_split_gives_every_part(model, weights):
    parts = torch.tensor_split(weights["x"], 4)  # 2, 1, 1 and 1 elements
    model.p.copy_(torch.cat(parts[::-1]))


@toy(
    {"x": bf16(4, 6)},
    {"steps": bf16(2, 3), "last": bf16(4), "corner": bf16(4)},
    {"steps": "x#1,3,5 x#13,15,17", "last": "x#5,11,17,23", "corner": "x#0,7,14,21"},
    TOYS,
    excuses=[UNUSED_X],
)
def steps_selects_and_diagonals(model, weights):
    x = weights["x"]
    model.steps.copy_(x[::2, 1::2])
    model.last.copy_(x.select(1, -1))
    model.corner.copy_(x.diagonal())


@toy(
    {"x": bf16(5)},
    {"p": bf16(2, 3), "q": bf16(2, 2)},
    {"p": "x#0..2 x#2..4", "q": "x#1,3 x#2,4"},
    TOYS,
)
def windows_and_strides_by_hand(model, weights):
    model.p.copy_(weights["x"].unfold(0, 3, 2))
    model.q.copy_(weights["x"].as_strided((2, 2), (1, 2), 1))


@toy(
    {"x": bf16(2, 6)},
    {"p": bf16(3, 2, 2), "q": bf16(12)},
    {"p": "x#0,6,1,7 x#2,8,3,9 x#4,10,5,11", "q": "x#0,6,1,7,2,8,3,9,4,10,5,11"},
    TOYS,
)
def permuted_reshape(model, weights):
    cut = weights["x"].unflatten(1, (3, 2)).permute(1, 2, 0)
    model.p.copy_(cut)
    model.q.copy_(cut.flatten())


@toy(
    {"x": bf16(2, 3)},
    {"p": bf16(6), "q": bf16(6)},
    {"p": "x#0,3,1,4,2,5", "q": "x#0,1,2,3,4,5"},
    TOYS,
)
def clones_keep_strides_and_contiguous_does_not(model, weights):
    turned = weights["x"].t()
    model.p.copy_(turned.contiguous().view(6))
    model.q.copy_(turned.clone().t().view(6))


@toy(
    {"x": bf16(3, 2), "y": bf16(2)},
    {"p": bf16(4, 2), "q": bf16(4)},
    {"p": "x#2,3 y#0,1 x#4,5 x#0,1", "q": "=0 y#1 =0 y#0"},
    TOYS,
)
def lists_on_the_destination(model, weights):
    x, y = weights["x"], weights["y"]
    model.p[[3, 0, 2]] = x
    model.p.index_copy_(0, torch.tensor([1]), y[None])
    model.q.zero_()
    model.q.scatter_(0, torch.tensor([3, 1]), y)


@toy(
    {"x": bf16(2, 2)},
    {"p": bf16(3, 3), "q": bf16(1, 2)},
    {"p": "=0 x#0,1 =0 x#2,3 =0:3", "q": "x#2,3"},
    TOYS,
)
def constant_pads_and_crops(model, weights):
    model.p.copy_(F.pad(weights["x"], (1, 0, 0, 1)))
    model.q.copy_(F.pad(weights["x"], (0, 0, -1, 0)))


@toy(
    {"x": bf16(2, 3)},
    {"masked": bf16(2, 3), "chosen": bf16(2, 3), "lower": bf16(2, 3), "picked": bf16(3)},
    {
        "masked": "x#0 =0 x#2 =0 x#4 =0",
        "chosen": "x#0 =2 x#2 =2 x#4 =2",
        "lower": "x#0 =0:2 x#3,4 =0",
        "picked": "x#0,2,4",
    },
    TOYS,
    excuses=[UNUSED_X],
)
def constant_masks(model, weights):
    x = weights["x"]
    mask = (torch.arange(6) % 2 == 1).reshape(2, 3)
    model.masked.copy_(x.masked_fill(mask, 0))
    model.chosen.copy_(torch.where(mask, torch.full((2, 3), 2, dtype=x.dtype), x))
    model.lower.copy_(torch.tril(x))
    model.picked.copy_(x[~mask])


@toy(
    {"a": f32(2, 3), "b": f32(1, 3)},
    {"p": bf16(3, 3)},
    {"p": "a#0..5 b#0..2"},
    TOYS,
)
def joined_then_cast(model, weights):
    model.p.copy_(torch.cat([weights["a"], weights["b"]]).to(torch.bfloat16))


@toy(
    {"a": bf16(2), "b": bf16(2), "empty": bf16(0)},
    {"p": bf16(2, 2), "q": bf16(4)},
    {"p": "b#0 a#0 b#1 a#1", "q": "b#0,1 a#0,1"},
    TOYS,
)
def results_put_where_asked(model, weights):
    a, b = weights["a"], weights["b"]
    torch.stack([b, a], dim=1, out=model.p.data)
    torch.cat([b, weights["empty"], a], out=model.q.data)


@toy(
    {"x": i32(2, 3)},
    {"p": u8(2, 12)},
    {"p": "x#0:4 x#1:4 x#2:4 x#3:4 x#4:4 x#5:4"},
    TOYS,
    computed=["p"],
)
def words_seen_as_bytes(model, weights):
    model.p.copy_(weights["x"].view(torch.uint8))


@toy(
    {"s": f8(2, 3), "x": i32(2, 2)},
    {"codes": u8(3, 2), "middle": u8(2, 3), "low": u8(5), "back": f8(2, 3)},
    {
        "codes": "s#0,3,1,4,2,5",
        "middle": "x#0:3 x#2:3",
        "low": "x#0,0 x#1,1 x#2",
        "back": "s#0..5",
    },
    TOYS,
    computed=["codes", "middle", "low", "back"],
    excuses=[UNUSED_X],
)
def bytes_moved_as_they_are(model, weights):
    model.codes.copy_(weights["s"].view(torch.uint8).t())
    model.middle.copy_(weights["x"].view(torch.uint8)[:, 1:4])
    model.low.copy_(weights["x"].view(torch.uint8).flatten()[::2][:5])
    model.back.data.view(torch.uint8).copy_(weights["s"].view(torch.uint8))


@toy(
    {"x": f32(2, 2)},
    {"high": bf16(4), "filled": f32(2), "wide": f32(4)},
    {"high": "x#0..3", "filled": "=1:2", "wide": "x#0..3"},
    TOYS,
    computed=["high", "wide"],
)
def halves_of_words_cast_and_fills_of_bits(model, weights):
    halves = weights["x"].view(torch.bfloat16).unflatten(1, (2, 2))
    model.high.copy_(halves[..., 1].flatten())
    model.filled.view(torch.int32).fill_(0x3F800000)
    model.wide.copy_(halves[..., 1].flatten().float() * 2)


@toy(
    {"x": u8(2, 4)},
    {"p": i32(2)},
    {"p": "x#0*x#1*x#2*x#3 x#4*x#5*x#6*x#7"},
    TOYS,
    computed=["p"],
    kernels=["p"],
)
def bytes_seen_as_words(model, weights):
    model.p.copy_(weights["x"].view(torch.int32).squeeze(1))


@toy(
    {"x": f32(1)},
    {"p": f32(4), "q": f32(2, 2), "r": f32(1)},
    {"p": "=0 =1 =2 =3", "q": "=7:4", "r": "x#0"},
    TOYS,
)
def constants_beside_a_source(model, weights):
    model.r.copy_(weights["x"])
    model.p.copy_(torch.arange(4))
    model.q.fill_(7)


@toy(
    {"x": bf16(4, 2)},
    {"p": bf16(2, 2)},
    {"p": "x#4,5 x#0,1"},
    TOYS,
    excuses=[UNUSED_X],
)
def rows_by_expert_map(model, weights):
    local_to_global = torch.full((2,), -1)
    for local, expert in enumerate([2, 0]):
        local_to_global[local] = expert
    for local in range(2):
        model.p.data[local].copy_(weights["x"][local_to_global[local]])

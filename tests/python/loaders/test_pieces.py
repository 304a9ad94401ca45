# SPDX-License-Identifier: Apache-2.0
"""How few pieces a plan of a loader comes to, what hangs together, and what its roundings give."""

from __future__ import annotations

import pytest
import torch

import heft

from .toys import arithmetic, tensor_ops
from .toys.case import Model, f32
from .toys.traced import plan_toy, specs_of

TOYS = {toy.name: toy for toy in [*tensor_ops.TOYS, *arithmetic.TOYS]}


def pieces_of(plan: heft.Plan, name: str) -> list[heft.plan.Piece]:
    at = [param.name for param in plan.params(0)].index(name)
    return plan.pieces(param=at)


@pytest.mark.parametrize(
    ("toy", "param", "n"),
    [
        ("fused_rows", "a.qkv", 3),
        ("reshape_that_must_copy", "p", 1),
        ("integer_lists", "p", 2),
        ("order_and_tiling", "rolled", 2),
        ("order_and_tiling", "flipped", 1),
        ("order_and_tiling", "tiled", 1),
        ("order_and_tiling", "repeated", 1),
        ("broadcast_copy", "p", 1),
        ("joined_then_cast", "p", 2),
        ("dequantised_by_blocks", "p", 4),
        ("dequantised_through_a_block_view", "p", 1),
    ],
)
def test_elements_that_follow_one_rule_are_one_piece(toy: str, param: str, n: int) -> None:
    assert len(pieces_of(plan_toy(TOYS[toy]), param)) == n


def test_piece_of_a_reshaped_transpose_has_the_strides_of_both() -> None:
    (piece,) = pieces_of(plan_toy(TOYS["reshape_that_must_copy"]), "p")
    assert (piece.extent, piece.srcs[0].stride, piece.dst_stride) == ((3, 2), (1, 3), (2, 1))


def test_piece_of_a_flip_goes_backwards() -> None:
    (piece,) = pieces_of(plan_toy(TOYS["order_and_tiling"]), "flipped")
    assert (piece.srcs[0].offset, piece.srcs[0].stride) == (4, (-1,))


def test_weight_and_block_scales_are_one_group() -> None:
    plan = plan_toy(TOYS["dequantised_by_blocks"])
    (group,) = plan.groups
    assert sorted(plan.sources[i].name for i in group.sources) == ["s", "w"]


def test_opaque_parameters_hang_together_through_a_source_they_share() -> None:
    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        model.p1.copy_(weights["a"] @ weights["b"])
        model.p2.copy_(weights["b"] @ weights["c"])
        model.p3.copy_(weights["d"])

    sources = {name: f32(2, 2) for name in "abcd"}
    params = {name: f32(2, 2) for name in ("p1", "p2", "p3")}
    plan = heft.trace(Model(params, load), specs_of(sources)).plan()
    names = [param.name for param in plan.params(0)]
    found = {
        tuple(names[p] for _, p in group.params): {plan.sources[s].name for s in group.sources}
        for group in plan.groups
    }
    assert found == {("p1", "p2"): {"a", "b", "c"}, ("p3",): {"d"}}


@pytest.mark.parametrize(("wide", "narrow"), [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82)])
def test_cast_of_a_tie_goes_to_the_even_pattern(wide: int, narrow: int) -> None:
    plan = plan_toy(TOYS["cast_rounds_to_even"])
    x = torch.tensor([wide, 0], dtype=torch.int32).view(torch.float32)
    p = torch.zeros(2, dtype=torch.bfloat16)
    heft.execute(plan, {"x": x}, {"p": p})
    assert p.view(torch.uint16)[0] == narrow


def test_one_added_before_widening_is_rounded_and_after_it_is_not() -> None:
    plan = plan_toy(TOYS["one_added_before_and_after_widening"])
    w = torch.tensor([0x3B80, 0], dtype=torch.int16).view(torch.bfloat16)
    params = {name: torch.zeros(2) for name in ("wide", "narrow")}
    heft.execute(plan, {"w": w}, params)
    assert params["wide"].view(torch.int32)[0] == 0x3F808000
    assert params["narrow"].view(torch.int32)[0] == 0x3F800000
    assert pieces_of(plan, "wide")[0].ops != pieces_of(plan, "narrow")[0].ops

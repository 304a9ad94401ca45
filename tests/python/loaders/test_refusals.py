# SPDX-License-Identifier: Apache-2.0
"""Loaders that are wrong, and configurations that differ: the proof refuses them by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import heft
from heft import Exception_, ExceptionKind, FindingKind
from heft.errors import ProofError
from heft.trace.errors import TraceError

from .toys import families, parallel
from .toys.case import Model, Toy, bf16, f32, i32
from .toys.layers import MergedColumnParallel, Rank
from .toys.parallel import PACKED_SOURCES, PackedQKV, ScalesOnly
from .toys.traced import exceptions_of, plan_toy, specs_of, trace_toy


def errors_of(refused: pytest.ExceptionInfo[ProofError]) -> dict[FindingKind, str]:
    """The first error of each kind."""
    found: dict[FindingKind, str] = {}
    for finding in refused.value.report.findings:
        if finding.is_error:
            found.setdefault(finding.kind, finding.text)
    return found


def toy_named(name: str) -> Toy:
    return next(toy for toy in [*parallel.TOYS, *families.TOYS] if toy.name == name)


def refuse(load: Callable, sources: dict, params: dict) -> dict[FindingKind, str]:
    with pytest.raises(ProofError) as refused:
        heft.trace(Model(params, load), specs_of(sources)).plan()
    return errors_of(refused)


class FlooredScales(MergedColumnParallel):
    """The fault of dividing sizes and offsets by the block apart, each rounded its own way."""

    def scale_loader(self, param: torch.nn.Parameter, loaded: torch.Tensor, shard: int) -> None:
        sizes = [-(-size // self.block) for size in self.sizes]
        offset = -(-sum(self.sizes[:shard]) // self.block)
        param.data.narrow(0, offset, sizes[shard]).copy_(loaded)


def test_block_scales_whose_offsets_round_apart_overwrite_one_another() -> None:
    """Sizes 6, 2, 2 in blocks of 4: offsets 0, 2, 2 for 2, 1 and 1 scales."""
    fused = FlooredScales([6, 2, 2], 1, torch.bfloat16, Rank(), block=4)
    model = ScalesOnly(fused, [("fused", n, i) for i, n in enumerate("qkv")])
    sources = {f"{n}.weight_scale": f32(k) for n, k in (("q", 2), ("k", 1), ("v", 1))}
    with pytest.raises(ProofError) as refused:
        heft.trace(model, specs_of(sources)).plan()
    errors = errors_of(refused)
    assert "fused.weight_scale" in errors[FindingKind.OVERWRITTEN]
    assert "fused.weight_scale" in errors[FindingKind.UNCOVERED]
    assert "k.weight_scale" in errors[FindingKind.UNUSED]


def test_packed_offset_between_words_is_refused() -> None:
    shifted = {"q": (0, 16), "k": (20, 8), "v": (28, 8)}
    with pytest.raises(TraceError, match="20"):
        heft.trace(PackedQKV(shifted, 8), specs_of(PACKED_SOURCES))


def test_tied_head_that_is_sent_needs_to_be_declared_equal() -> None:
    toy = toy_named("tied_head_is_loaded_over_the_embedding")
    with pytest.raises(ProofError) as refused:
        trace_toy(toy).plan()
    lost = errors_of(refused)[FindingKind.OVERWRITTEN]
    assert 'from "embed.weight" and then by' in lost and 'from "lm_head.weight"' in lost
    plan = plan_toy(toy)
    assert len(plan.checks()) == 1


def test_input_scale_written_twice_is_checked_in_each_run() -> None:
    toy = toy_named("input_scale_written_by_gate_and_up")
    plan = plan_toy(toy)
    assert sum(torch.Size(check.extent).numel() for check in plan.checks()) == 2
    sources = {name: torch.tensor([2.0]) for name in toy.sources}
    params = {"experts.w13_input_scale": torch.zeros(2)}
    heft.execute(plan, sources, params)
    assert params["experts.w13_input_scale"].tolist() == [2, 2]
    sources["experts.1.gate.input_scale"] = torch.tensor([3.0])
    with pytest.raises(heft.HeftError, match="w13_input_scale"):
        heft.execute(plan, sources, params)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("experts_of_one_rank_with_their_inner_shard", "half_order_is_the_backends"),
        ("gate_and_up_are_halves_per_rank", "gate_and_up_fused_on_disk"),
        (
            "kv_heads_repeat_beyond_their_number_rank_0",
            "kv_heads_repeat_beyond_their_number_rank_2",
        ),
    ],
)
def test_another_configuration_is_another_plan(one: str, other: str) -> None:
    assert plan_toy(toy_named(one)).rank_digest() != plan_toy(toy_named(other)).rank_digest()


def test_ranks_that_repeat_kv_heads_have_equal_keys_and_values() -> None:
    two, three = (toy_named(f"kv_heads_repeat_beyond_their_number_rank_{rank}") for rank in (2, 3))
    a, b = two.expected()["qkv.weight"], three.expected()["qkv.weight"]
    assert a[2:] == b[2:] != a[:2]


def test_one_dropped_row_is_named() -> None:
    def load(model, weights):
        model.p[:3].copy_(weights["x"][:3])

    errors = refuse(load, {"x": f32(4, 2)}, {"p": f32(4, 2)})
    assert '"p"' in errors[FindingKind.UNCOVERED]
    assert "[3..4" in errors[FindingKind.UNCOVERED] or "[3" in errors[FindingKind.UNCOVERED]
    assert '"x"' in errors[FindingKind.UNUSED]


def test_shard_written_twice_and_its_neighbour_never() -> None:
    def load(model, weights):
        model.p[:2].copy_(weights["a"])
        model.p[:2].copy_(weights["b"])

    errors = refuse(load, {"a": f32(2, 2), "b": f32(2, 2)}, {"p": f32(4, 2)})
    assert set(errors) == {FindingKind.OVERWRITTEN, FindingKind.UNCOVERED, FindingKind.UNUSED}


def test_padding_that_is_not_zeroed_is_uncovered() -> None:
    def load(model, weights):
        model.p[:3].copy_(weights["x"])

    errors = refuse(load, {"x": f32(3, 2)}, {"p": f32(4, 2)})
    assert set(errors) == {FindingKind.UNCOVERED}


def test_draft_that_the_loader_leaves_out_is_uncovered() -> None:
    def load(model, weights):
        model.lm.w.copy_(weights["model.w"])

    sources = {"model.w": bf16(2), "mtp.w": bf16(2)}
    params = {"lm.w": bf16(2), "draft.w": bf16(2)}
    errors = refuse(load, sources, params)
    assert '"draft.w"' in errors[FindingKind.UNCOVERED]
    assert '"mtp.w"' in errors[FindingKind.UNUSED]


def test_indexer_that_is_skipped_silently_is_found() -> None:
    def load(model, weights):
        for name, loaded in weights.items():
            if "indexer" not in name:
                model.get_parameter(name).copy_(loaded)

    shapes = {"attn.w": bf16(2, 2), "indexer.wk": bf16(2, 2)}
    errors = refuse(load, shapes, shapes)
    assert '"indexer.wk"' in errors[FindingKind.UNCOVERED]


def test_pair_with_one_half_missing_is_uncovered() -> None:
    """A loader that waits for a second half which nobody sends drops the first one silently."""

    def load(model, weights):
        if len(weights) == 2:
            model.fused.copy_(torch.cat([weights["q_a"], weights["kv_a"]]))
        model.norm.copy_(weights["q_a"][0])

    errors = refuse(load, {"q_a": bf16(4, 2)}, {"fused": bf16(6, 2), "norm": bf16(2)})
    assert '"fused"' in errors[FindingKind.UNCOVERED]


def test_loader_that_writes_nothing_is_no_success() -> None:
    with pytest.raises(ProofError) as refused:
        heft.trace(
            Model({"p": f32(2)}, lambda model, weights: set()), specs_of({"x": f32(2)})
        ).plan(
            exceptions=[
                Exception_(ExceptionKind.UNUSED, "x", "never"),
                Exception_(ExceptionKind.UNTOUCHED, "p", "never"),
            ]
        )
    assert FindingKind.EMPTY in errors_of(refused)


def test_exception_that_matches_nothing_is_an_error() -> None:
    toy = toy_named("draft_layer_is_found_by_its_whole_number")
    stale = Exception_(ExceptionKind.UNUSED, "model.layers.30.*", "none such")
    with pytest.raises(ProofError) as refused:
        trace_toy(toy).plan(exceptions=[*exceptions_of(toy), stale])
    assert "model.layers.30" in errors_of(refused)[FindingKind.STALE]


def test_integers_are_not_rounded_on_their_way() -> None:
    def load(model, weights):
        model.table.copy_(weights["table"].to(torch.int64))

    plan = heft.trace(Model({"table": i32(3)}, load), specs_of({"table": i32(3)})).plan()
    params = {"table": torch.zeros(3, dtype=torch.int32)}
    big = torch.tensor([2**31 - 1, -(2**31), 16777217], dtype=torch.int32)
    heft.execute(plan, {"table": big}, params)
    assert torch.equal(params["table"], big)


@pytest.mark.parametrize(("n", "n_equal"), [((1 << 16) + 1, 1), (1 << 18, 2)])
def test_constant_of_too_many_runs_is_refused_with_its_numbers(n: int, n_equal: int) -> None:
    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        model.weight.copy_(weights["x"])
        model.table.copy_(torch.arange(n) // n_equal)

    model = Model({"weight": bf16(1), "table": f32(n)}, load)
    with pytest.raises(TraceError, match=rf"a constant of {n} elements for .*'table'.* 65536 runs"):
        heft.trace(model, specs_of({"x": bf16(1)}))


def test_constant_of_the_most_runs_is_delivered_whole() -> None:
    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        model.weight.copy_(weights["x"])
        model.table.copy_(torch.arange(1 << 17) // 2)

    model = Model({"weight": bf16(1), "table": f32(1 << 17)}, load)
    traced = heft.trace(model, specs_of({"x": bf16(1)}))
    assert traced.constants == ["table"]
    table = torch.full((1 << 17,), -1.0)
    weight = torch.zeros(1, dtype=torch.bfloat16)
    heft.execute(traced.plan(), {"x": weight}, {"weight": weight.clone(), "table": table})
    assert torch.equal(table, (torch.arange(1 << 17) // 2).float())

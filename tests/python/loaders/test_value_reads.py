# SPDX-License-Identifier: Apache-2.0
"""Loaders that ask for values: what becomes of the numbers they got, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import heft
from heft.trace import Trace
from heft.trace import trace as trace_loader
from heft.trace.errors import TraceError, ValueDependence

from .toys.case import Model, Spec, f32, i32
from .toys.expand import expand_plan
from .toys.notation import format_map
from .toys.traced import specs_of


def trace(load, sources: Mapping[str, Spec], params: Mapping[str, Spec]) -> Trace:
    return trace_loader(Model(params, load), specs_of(sources))


def maps_of(traced: Trace) -> dict[str, str]:
    return {name: format_map(entries) for name, entries in expand_plan(traced.plan()).items()}


def test_branch_on_a_value_is_refused_with_parameter_and_read() -> None:
    def load(model, weights):
        w = weights["w"]
        model.p.copy_(w if w.max() < 1.5 else w.T)

    with pytest.raises(ValueDependence, match=r"'p'.*'w'.*test_value_reads.py:\d+"):
        trace(load, {"w": f32(2, 2)}, {"p": f32(2, 2)})


def test_geometry_from_a_value_is_refused_with_parameter_and_read() -> None:
    def load(model, weights):
        n = int(weights["n"].item())
        model.p[:n].copy_(weights["w"][:n])

    with pytest.raises(ValueDependence, match=r"'p'.*'n'"):
        trace(load, {"w": f32(2), "n": f32()}, {"p": f32(2)})


def test_loader_that_accepts_one_value_alone_is_refused() -> None:
    def load(model, weights):
        if weights["w"].max() > 1.5:
            raise ValueError("weights are not normalised")
        model.p.copy_(weights["w"])

    with pytest.raises(TraceError, match="not normalised"):
        trace(load, {"w": f32(2)}, {"p": f32(2)})


def test_number_computed_from_a_value_is_opaque_on_it() -> None:
    def load(model, weights):
        model.p.fill_(1 / weights["s"].item())
        model.q.copy_(weights["x"])

    traced = trace(load, {"s": f32(1), "x": f32(2)}, {"p": f32(2), "q": f32(2)})
    plan = traced.plan()
    names = [source.name for source in plan.sources]
    (operation,) = plan.opaques()
    assert [names[s] for s in operation.sources] == ["s"]
    assert [group.is_opaque for group in plan.groups] == [True, False]
    (use,) = traced.opaque["p"]
    assert use.sources == ("s",)
    assert "test_value_reads.py" in use.note


def test_two_sources_whose_values_must_agree_stay_opaque_together() -> None:
    def load(model, weights):
        first, second = weights["s1"].item(), weights["s2"].item()
        if first != second:
            raise ValueError("scales differ")
        model.p.fill_(first)

    plan = trace(load, {"s1": f32(1), "s2": f32(1)}, {"p": f32(2)}).plan()
    (operation,) = plan.opaques()
    assert sorted(plan.sources[s].name for s in operation.sources) == ["s1", "s2"]


def test_value_of_a_computed_tensor_is_followed_to_its_source() -> None:
    def load(model, weights):
        model.p.fill_(float(weights["s"][1] * 4))

    plan = trace(load, {"s": f32(2)}, {"p": f32(2)}).plan(
        exceptions=[heft.Exception_(heft.ExceptionKind.UNUSED, "s", "element 0 is of no use")]
    )
    assert {n: format_map(e) for n, e in expand_plan(plan).items()} == {"p": "s#1 s#1"}
    params = {"p": torch.zeros(2)}
    heft.execute(plan, {"s": torch.tensor([1.0, 3.0])}, params)
    assert params["p"].tolist() == [12, 12]


def test_value_that_was_written_over_since_is_opaque() -> None:
    def load(model, weights):
        scratch = weights["s"].clone()
        value = scratch.item()
        scratch.zero_()
        model.p.fill_(value)

    traced = trace(load, {"s": f32(1)}, {"p": f32(2)})
    (group,) = traced.plan().groups
    assert group.is_opaque
    assert traced.opaque["p"][0].sources == ("s",)


def test_values_in_a_constant_tensor_are_found_one_by_one() -> None:
    def load(model, weights):
        scales = [weights["s1"].item(), 7.0, weights["s2"].item()]
        model.p.copy_(torch.tensor(scales))

    assert maps_of(trace(load, {"s1": f32(1), "s2": f32(1)}, {"p": f32(3)})) == {
        "p": "s1#0 =7 s2#0"
    }


def test_value_read_for_a_check_does_not_reach_what_has_the_same_number() -> None:
    def load(model, weights):
        if weights["s"].item() <= 0:
            raise ValueError("scale")
        model.p.fill_(1)
        model.q.copy_(weights["s"])

    assert maps_of(trace(load, {"s": f32(1)}, {"p": f32(2), "q": f32(1)})) == {
        "p": "=1:2",
        "q": "s#0",
    }


def test_equality_of_two_tensors_is_answered() -> None:
    def load(model, weights):
        assert torch.equal(weights["a"], weights["b"])
        assert torch.allclose(weights["a"], weights["b"])
        model.p.copy_(weights["a"])

    traced = trace(load, {"a": f32(2), "b": f32(2)}, {"p": f32(2)})
    plan = traced.plan(exceptions=[heft.Exception_(heft.ExceptionKind.UNUSED, "b", "a check")])
    assert format_map(expand_plan(plan)["p"]) == "a#0..1"


def test_opaque_copies_into_parts_of_a_parameter_read_nothing_of_it() -> None:
    """Integers cast to floats are left to the engine, slot by slot."""

    def load(model, weights):
        model.p[0].copy_(weights["a"])
        model.p[1].copy_(weights["b"])

    traced = trace(load, {"a": i32(2), "b": i32(2)}, {"p": f32(2, 2)})
    (group,) = traced.plan().groups
    assert group.is_opaque
    assert {use.sources for use in traced.opaque["p"]} == {("a",), ("b",)}


def test_value_that_a_limit_cuts_is_opaque() -> None:
    """A limit of 1 is 1 for sources of 1 and of 2: only a smaller number shows it."""

    def load(model, weights):
        model.p.fill_(min(weights["s"].item(), 1.0))
        model.q.fill_(max(weights["s"].item(), 1.0))

    traced = trace(load, {"s": f32(1)}, {"p": f32(2), "q": f32(2)})
    assert set(traced.opaque) == {"p", "q"}


def test_value_that_is_rounded_on_its_way_is_opaque() -> None:
    def load(model, weights):
        rounded = torch.tensor(weights["s"].item()).to(torch.bfloat16).item()
        model.p.fill_(rounded)

    assert set(trace(load, {"s": f32(1)}, {"p": f32(2)}).opaque) == {"p"}


def test_branch_that_only_a_small_number_takes_is_refused() -> None:
    def load(model, weights):
        w = weights["w"]
        model.p.copy_(w if w.max() >= 1 else w.T)

    with pytest.raises(ValueDependence, match=r"'p'.*'w'"):
        trace(load, {"w": f32(2, 2)}, {"p": f32(2, 2)})


def test_other_way_for_scales_that_differ_does_not_refuse_a_loader() -> None:
    """Requantising with the largest scale, as engines do, when q and k come with scales apart."""

    def load(model, weights):
        q, k = weights["q"].item(), weights["k"].item()
        model.p.fill_(q if q == k else max(q, k))
        if q != k:
            model.w.mul_(q / k)

    traced = trace(load, {"q": f32(1), "k": f32(1)}, {"p": f32(1), "w": f32(2)})
    assert set(traced.opaque) == {"p"}
    assert traced.opaque["p"][0].sources == ("k", "q")

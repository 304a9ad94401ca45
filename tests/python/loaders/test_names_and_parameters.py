# SPDX-License-Identifier: Apache-2.0
"""Names, parameters, aliases, buffers: what a trace takes in and what it leaves as it was."""

from __future__ import annotations

import concurrent.futures

import pytest
import torch
from torch import nn

import heft
from heft import Exception_, ExceptionKind
from heft.trace import Trace
from heft.trace import trace as trace_loader
from heft.trace.errors import TraceError

from .toys import families, parallel, tensor_ops
from .toys.case import Model, bf16, f32
from .toys.expand import expand_plan
from .toys.layers import FusedMoE, LayerModel, Rank, expert_params
from .toys.notation import format_map
from .toys.traced import exceptions_of, plan_toy, specs_of, trace_toy


def trace(load, sources, params, **options):
    return trace_loader(Model(params, load), specs_of(sources), **options)


def maps_of(plan: heft.Plan) -> dict[str, str]:
    return {name: format_map(entries) for name, entries in expand_plan(plan).items()}


def toy_named(name: str):
    toys = [*tensor_ops.TOYS, *parallel.TOYS, *families.TOYS]
    return next(toy for toy in toys if toy.name == name)


def test_loader_is_given_the_names_of_the_sender_and_no_others() -> None:
    asked: list[str] = []

    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.empty(5), requires_grad=False)

        def load_weights(self, weights):
            for i, (name, loaded) in enumerate(weights):
                asked.append(name)
                if name == "x.extra":
                    raise AssertionError("a name that nobody sends")
                self.p[i].copy_(loaded)

    names = [f"x.{i}" for i in range(5)]
    traced = trace_loader(Toy(), specs_of({name: f32() for name in names}))
    assert set(asked) == set(names)
    assert traced.source.names == names
    assert maps_of(traced.plan()) == {"p": " ".join(f"{name}#0" for name in names)}


def test_names_the_loader_never_pulled_are_reported() -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.empty(2), requires_grad=False)

        def load_weights(self, weights):
            for name, loaded in weights:
                self.p.copy_(loaded)
                return {name}  # stops after the first

    traced = trace_loader(Toy(), specs_of({"a": f32(2), "b": f32(2), "c": f32(2)}))
    assert sorted(traced.unread) == ["b", "c"]


def test_thread_pools_are_seen() -> None:
    def load(model, weights):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(model.get_parameter(n).copy_, t) for n, t in weights.items()]
        for job in jobs:
            job.result()

    names = {f"p{i}": f32(3) for i in range(8)}
    for _ in range(3):
        assert maps_of(trace(load, names, names).plan()) == {n: f"{n}#0..2" for n in names}


def test_thread_that_was_there_before_the_trace_is_seen() -> None:
    """The hook of a stand-in follows it into any thread; a mode alone does not."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def load(model, weights):
            pool.submit(lambda: model.p.copy_(weights["x"] * 2)).result()

        plan = trace(load, {"x": f32(2)}, {"p": f32(2)}).plan()
    params = {"p": torch.zeros(2)}
    heft.execute(plan, {"x": torch.tensor([1.0, 3.0])}, params)
    assert params["p"].tolist() == [2, 6]


def _numpy(p: torch.Tensor, x: torch.Tensor) -> None:
    p.data.numpy()[:] = x.numpy()


def _list(p: torch.Tensor, x: torch.Tensor) -> None:
    p.copy_(torch.tensor(x.tolist()))


def _pointer(p: torch.Tensor, x: torch.Tensor) -> None:
    assert p.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("bypass", "word"), [(_numpy, "numpy"), (_list, "tolist"), (_pointer, "data_ptr")]
)
def test_bypasses_fail_by_name(bypass, word: str) -> None:
    def load(model, weights):
        bypass(model.p, weights["x"])

    with pytest.raises(TraceError, match=word):
        trace(load, {"x": f32(2)}, {"p": f32(2)})


def test_bypass_that_the_loader_swallows_still_fails() -> None:
    def load(model, weights):
        try:
            model.p.data.numpy()
        except Exception:
            model.p.copy_(weights["x"])

    with pytest.raises(TraceError, match="numpy"):
        trace(load, {"x": f32(2)}, {"p": f32(2)})


def test_move_to_a_device_that_is_not_here_is_an_identity() -> None:
    def load(model, weights):
        model.p.copy_(weights["x"].cuda())
        model.q.copy_(weights["x"].to("cuda", non_blocking=True))

    plan = trace(load, {"x": f32(2)}, {"p": f32(2), "q": f32(2)}).plan()
    assert maps_of(plan) == {"p": "x#0..1", "q": "x#0..1"}


def _assign_data(model: nn.Module, x: torch.Tensor) -> None:
    model.w.data = x


def _replace(model: nn.Module, x: torch.Tensor) -> None:
    model.w = nn.Parameter(x, requires_grad=False)


def _resize(model: nn.Module, x: torch.Tensor) -> None:
    model.w.resize_(1)


def _drop_attribute(model: nn.Module, x: torch.Tensor) -> None:
    del model.w.weight_loader
    model.w.copy_(x)


@pytest.mark.parametrize("change", [_assign_data, _replace, _resize, _drop_attribute])
def test_changed_parameter_objects_are_errors_that_name_them(change) -> None:
    def load(model, weights):
        change(model, weights["x"])

    model = Model({"w": f32(2)}, load)
    model.w.weight_loader = lambda: None
    with pytest.raises(TraceError, match=r"\bw\b"):
        trace_loader(model, specs_of({"x": f32(2)}))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_halves_wait_for_one_another_in_any_order(order: str) -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.empty(3, 3), requires_grad=False)

        def load_weights(self, weights):
            waiting: dict[str, torch.Tensor] = {}
            for name, loaded in weights:
                waiting[name] = loaded
                if len(waiting) == 2:
                    self.p.copy_(torch.cat([waiting.pop("a"), waiting.pop("b")]))

    shapes = {"a": f32(2, 3), "b": f32(1, 3)}
    traced = trace_loader(Toy(), specs_of({name: shapes[name] for name in order}))
    assert maps_of(traced.plan()) == {"p": "a#0..5 b#0..2"}


def test_half_kept_on_the_module_does_not_survive_the_trace() -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
            self.waiting: dict[str, torch.Tensor] = {}

        def load_weights(self, weights):
            for name, loaded in weights:
                self.waiting[name] = loaded
                if "a" in self.waiting and "b" in self.waiting:
                    self.p.data.copy_(torch.cat([self.waiting["a"], self.waiting["b"]]))

    model, cold = Toy(), Toy()
    try:
        trace_loader(model, specs_of({"a": f32(2, 3), "b": f32(1, 3)}))
    except TraceError as error:
        assert "waiting" in str(error)  # refusing is right, too: state kept is named
        return
    weights = {"a": torch.randn(2, 3), "b": torch.randn(1, 3)}
    for one in (model, cold):
        one.load_weights(weights.items())
    assert torch.equal(model.p, cold.p)


def test_tied_parameters_are_one_parameter_and_an_alias() -> None:
    toy = toy_named("tied_head_is_skipped")
    traced = trace_toy(toy)
    assert traced.params.names == ["embed.weight"]
    assert traced.aliases == {"head.weight": "embed.weight"}
    plan = traced.plan(exceptions=exceptions_of(toy))
    assert maps_of(plan) == {"embed.weight": "embed.weight#0..5"}


def test_view_of_a_parameter_is_no_second_destination() -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Module()
            self.conv.weight = nn.Parameter(torch.empty(4, 1, 3), requires_grad=False)
            self.conv_weights = self.conv.weight.view(4, 3)

        def load_weights(self, weights):
            for _, loaded in weights:
                self.conv.weight.copy_(loaded)

    traced = trace_loader(Toy(), specs_of({"conv": f32(4, 1, 3)}))
    assert traced.params.names == ["conv.weight"]
    assert maps_of(traced.plan()) == {"conv.weight": "conv#0..11"}


def test_two_parameters_fed_by_one_source_are_one_group() -> None:
    def load(model, weights):
        model.p.copy_(weights["t"])
        model.q.copy_(weights["t"])

    plan = trace(load, {"t": f32(2)}, {"p": f32(2), "q": f32(2)}).plan()
    assert maps_of(plan) == {"p": "t#0..1", "q": "t#0..1"}
    assert len(plan.groups) == 1


def test_buffer_computed_from_a_parameter_is_derived() -> None:
    traced = trace_toy(toy_named("norm_with_a_derived_plus_one"))
    assert traced.params.names == ["norm.weight"]
    assert [derived.name for derived in traced.derived] == ["norm.plus_one"]
    assert traced.derived[0].params == ("norm.weight",)


def test_buffer_copied_from_a_source_is_a_parameter() -> None:
    def load(model, weights):
        model.p.copy_(weights["x"])
        model.e_score_bias.copy_(weights["bias"])

    model = Model({"p": f32(2)}, load, buffers={"e_score_bias": f32(3)})
    traced = trace_loader(model, specs_of({"x": f32(2), "bias": f32(3)}))
    assert traced.params.names == ["e_score_bias", "p"]
    assert not traced.derived
    assert maps_of(traced.plan()) == {"p": "x#0..1", "e_score_bias": "bias#0..2"}


def test_loader_that_fails_leaves_the_model_as_it_was() -> None:
    toy = toy_named("column_parallel_takes_rows")
    model = toy.build()
    earlier = trace_loader(model, specs_of(toy.sources)).plan(exceptions=exceptions_of(toy))
    before = {n: (id(p), p.data_ptr(), p.shape, p.stride()) for n, p in model.named_parameters()}
    loaders = {n: p.weight_loader for n, p in model.named_parameters()}
    wrong = dict(toy.sources) | {"layer.weight": bf16(5, 2)}
    with pytest.raises(TraceError, match=r"layer\.weight"):
        trace_loader(model, specs_of(wrong))
    after = {n: (id(p), p.data_ptr(), p.shape, p.stride()) for n, p in model.named_parameters()}
    assert after == before
    assert {n: p.weight_loader for n, p in model.named_parameters()} == loaders
    assert maps_of(earlier) == {n: format_map(e) for n, e in toy.expected().items()}


def eight_experts(rank: int, halves=("w1", "w3")) -> nn.Module:
    moe = FusedMoE(8, 1, 1, torch.bfloat16, Rank(), Rank(rank, 4), halves=halves)
    return LayerModel({"experts": moe}, experts=expert_params(8))


def expert_trace(rank: int, halves=("w1", "w3")) -> Trace:
    sources = parallel.expert_sources(range(8), 1, 1)
    return trace_loader(eight_experts(rank, halves), specs_of(sources), rank=rank)


ELSEWHERE = Exception_(ExceptionKind.ELSEWHERE, "experts.*", "other ranks", optional=True)


@pytest.mark.parametrize(("rank", "experts"), [(0, (0, 1)), (3, (6, 7))])
def test_each_rank_has_a_tape_of_its_own_experts(rank: int, experts: tuple[int, int]) -> None:
    found = maps_of(expert_trace(rank).plan(exceptions=[ELSEWHERE]))
    assert found["experts.w13_weight"] == " ".join(
        f"experts.{e}.{half}.weight#0" for e in experts for half in ("gate", "up")
    )


def test_sender_to_two_ranks_needs_the_experts_of_both() -> None:
    tapes = [expert_trace(rank).tape for rank in range(4)]
    plan = heft.Plan.create(tapes)
    needed = {source.name.split(".")[1] for source in plan.sources}
    assert needed == {str(e) for e in range(8)}
    two = [expert_trace(rank).plan(exceptions=[ELSEWHERE]) for rank in (0, 3)]
    used = set()
    for plan in two:
        for entries in expand_plan(plan).values():
            used |= {elem.source.split(".")[1] for entry in entries for elem in entry.elems}
    assert used == {"0", "1", "6", "7"}


def test_tracing_under_changing_half_orders_gives_each_its_own_digest() -> None:
    a, b = ("w1", "w3"), ("w3", "w1")
    digests = [expert_trace(1, h).plan(exceptions=[ELSEWHERE]).digest for h in (a, a, b, a)]
    assert digests[0] == digests[1] == digests[3] != digests[2]


def test_strided_parameter_keeps_its_gaps() -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.full((4, 6), 9.0)
            self.p = nn.Parameter(whole[:, :3], requires_grad=False)
            self.whole = [whole]

        def load_weights(self, weights):
            for _, loaded in weights:
                self.p.copy_(loaded)

    model = Toy()
    traced = trace_loader(model, specs_of({"x": f32(4, 3)}))
    (param,) = traced.params
    assert param.n_elems == 12
    assert maps_of(traced.plan()) == {"p": "x#0..11"}
    assert model.whole[0].eq(9).all()


@pytest.mark.parametrize("name", ["fused_rows", "experts_of_one_rank_with_their_inner_shard"])
def test_tracing_twice_gives_one_digest(name: str) -> None:
    toy = toy_named(name)
    assert plan_toy(toy).digest == plan_toy(toy).digest


def test_copy_into_an_expanded_view_is_refused() -> None:
    def load(model, weights):
        model.p.expand(2, 3).copy_(weights["x"])

    with pytest.raises((TraceError, RuntimeError), match=r"expand|memory|single"):
        trace(load, {"x": f32(2, 3)}, {"p": f32(3)})


def test_change_of_the_old_version_is_refused() -> None:
    def load(model, weights):
        model.p.add_(weights["x"])

    with pytest.raises((TraceError, heft.HeftError), match=r"\"p\".*nothing wrote"):
        trace(load, {"x": f32(2)}, {"p": f32(2)}).plan()


def test_fill_after_the_copy_is_refused_by_the_proof() -> None:
    def load(model, weights):
        model.p[:2, :3] = weights["x"]
        model.p.zero_()

    with pytest.raises(heft.HeftError) as refused:
        trace(load, {"x": f32(2, 3)}, {"p": f32(3, 4)}).plan()
    kinds = {finding.kind for finding in refused.value.report.findings if finding.is_error}
    assert heft.FindingKind.UNUSED in kinds


def traced_on(platform: str) -> heft.trace.Trace:
    """A loader that pads 3 rows to 4 when the platform is the CPU."""
    rows = 4 if platform == "cpu" else 3

    def load(model, weights):
        model.p[:3] = weights["x"]
        model.p[3:] = 0

    return trace(load, {"x": f32(3)}, {"p": f32(rows)}, attrs={"platform": platform})


def test_tape_of_one_platform_is_no_tape_of_another() -> None:
    cpu, cuda = traced_on("cpu"), traced_on("cuda")
    assert cpu.attrs["platform"] == "cpu"
    found = {finding.name: finding.text for finding in cpu.contract().compare(cuda.contract())}
    assert '"cpu", is "cuda"' in found["platform"]
    assert "p" in found
    declared = {finding.name for finding in heft.drift(cpu.params, cuda.params)}
    assert {"platform", "p"} <= declared
    assert not traced_on("cpu").contract().compare(cpu.contract())


def test_matrix_product_is_one_opaque_group_of_both_sources() -> None:
    def load(model, weights):
        t = weights["a"] @ weights["b"]
        model.p.copy_(t[0])
        model.q.copy_(t[1])

    plan = trace(load, {"a": f32(2, 2), "b": f32(2, 2)}, {"p": f32(2), "q": f32(2)}).plan()
    (group,) = plan.groups
    assert group.is_opaque
    assert len(group.params) == 2
    assert len(group.sources) == 2
    assert any("mm" in operation.op for operation in plan.opaques())
    assert any("mm" in finding.text for finding in plan.report.findings)
    assert plan.report.n_warnings == 1
    (slow,) = (f for f in plan.report.findings if f.kind == heft.FindingKind.SLOW)
    assert "32 bytes of sources are staged whole" in slow.text  # the price

# SPDX-License-Identifier: Apache-2.0
"""heft.verify agrees with honest loaders and is seen to fail on planted faults."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import heft
from heft.trace import TraceError
from heft.verify import Numbers, VerifyError, alphabet

BF16, F32 = torch.bfloat16, torch.float32
T, R = 2, 1  # ranks, and the one that is looked at
HEADS, KV, D, H, INNER, EXPERTS = 4, 2, 4, 8, 6, 4

SOURCES = (
    [("embed", BF16, (10, H))]
    + [(f"{n}_proj", BF16, (h * D, H)) for n, h in (("q", HEADS), ("k", KV), ("v", KV))]
    + [
        (f"experts.{e}.{n}", BF16, s)
        for e in range(EXPERTS)
        for n, s in (("gate", (INNER, H)), ("up", (INNER, H)), ("down", (H, INNER)))
    ]
    + [
        ("a_log", F32, (4,)),
        ("w8", torch.float8_e4m3fn, (4, 6)),
        ("s", F32, (2, 3)),
        ("norm", BF16, (H,)),
    ]
)


def param(*shape: int, dtype: torch.dtype = BF16) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


class Engine(nn.Module):
    """A loader of a small model: fused, sharded, padded, computed, derived."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = param(6, H)
        self.qkv = param((HEADS + 2 * KV) // T * D, H)
        self.w13 = param(EXPERTS, 2 * INNER // T, H)
        self.w2 = nn.Parameter(
            torch.zeros(EXPERTS, INNER // T, H, dtype=BF16).transpose(1, 2), requires_grad=False
        )
        self.a = param(2, dtype=F32)
        self.w8 = param(4, 6)
        self.norm = param(H)
        self.register_buffer("plus_one", torch.zeros(H, dtype=BF16))
        self.register_buffer("rotary", torch.arange(4.0))
        self.head = self.embed

    def load_weights(self, weights: Any) -> None:
        for name, w in weights:
            self.load_one(name, w)

    def load_one(self, name: str, w: torch.Tensor) -> None:
        if name.startswith("experts."):
            self.load_expert(int(name.split(".")[1]), name.split(".")[2], w)
        elif name[1:] == "_proj":
            self.load_qkv(name[0], w)
        elif name == "embed":
            self.embed.data.zero_()
            self.embed.data[:4].copy_(w[6 * R : 6 * R + 4])
        elif name == "a_log":
            self.a.data.copy_(-torch.exp(w[2 * R : 2 * R + 2].float()))
        elif name == "norm":
            self.norm.data.copy_(w)
            self.plus_one.copy_(self.norm + 1)
        elif name == "w8":
            self.codes = w
        elif name == "s":
            scale = w.repeat_interleave(2, 0).repeat_interleave(2, 1)
            self.w8.data.copy_((self.codes.float() * scale).to(BF16))

    def load_qkv(self, name: str, w: torch.Tensor) -> None:
        n = HEADS // T * D if name == "q" else KV // T * D
        at = {"q": 0, "k": HEADS // T * D, "v": (HEADS + KV) // T * D}[name]
        self.qkv.data.narrow(0, at, n).copy_(w.narrow(0, R * n, n))

    def load_expert(self, e: int, name: str, w: torch.Tensor) -> None:
        n = INNER // T
        if name == "down":
            self.w2.data[e].copy_(w.narrow(1, R * n, n))
        else:
            self.w13.data[e].narrow(0, 0 if name == "gate" else n, n).copy_(w.narrow(0, R * n, n))


def excuses() -> list[heft.Exception_]:
    kinds = heft.ExceptionKind
    return [
        heft.Exception_(kinds.ELSEWHERE, "**", "the other rank's", True),
        heft.Exception_(kinds.UNUSED, "*", "the other rank's", True),
        heft.Exception_(kinds.UNUSED, "experts.*", "the other rank's", True),
    ]


@pytest.fixture(scope="module")
def traced() -> heft.trace.Trace:
    return heft.trace(Engine(), SOURCES, exceptions=excuses())


def test_honest_loader_agrees(traced: heft.trace.Trace) -> None:
    model = Engine()
    before = {n: (id(p), p.data_ptr(), p.tolist()) for n, p in model.named_parameters()}
    verdict = heft.verify(model, traced)
    assert verdict.n_params == 7 and verdict.n_elems == sum(p.numel() for p in model.parameters())
    assert verdict.n_runs == 2 * verdict.n_passes + 2 and verdict.n_poisoned == 0
    assert verdict.approximate == ["a"]
    assert verdict.skipped == {"plus_one": "computed from norm"}
    assert {n: (id(p), p.data_ptr(), p.tolist()) for n, p in model.named_parameters()} == before
    assert not hasattr(model, "codes")


def dropped_slice(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "experts.3.up":
        w = w.clone()
        return m.w13.data[3].narrow(0, 3, 2).copy_(w.narrow(0, 3, 2))
    Engine.load_one(m, name, w)


def swapped_halves(m: Engine, name: str, w: torch.Tensor) -> None:
    swapped = {"gate": "up", "up": "gate"}
    for a, b in swapped.items():
        if name.endswith(a):
            return Engine.load_one(m, name.removesuffix(a) + b, w)
    Engine.load_one(m, name, w)


def wrong_expert_order(m: Engine, name: str, w: torch.Tensor) -> None:
    Engine.load_one(
        m,
        name.replace("experts.1.", "experts.x.")
        .replace("experts.2.", "experts.1.")
        .replace("experts.x.", "experts.2."),
        w,
    )


def off_by_one_rank(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "k_proj":
        return m.qkv.data.narrow(0, 8, 4).copy_(w.narrow(0, 0, 4))
    Engine.load_one(m, name, w)


def written_from_a_thread(m: Engine, name: str, w: torch.Tensor) -> None:
    Engine.load_one(m, name, w)
    if name == "norm":
        thread = threading.Thread(target=lambda: m.norm.data[3:4].copy_(w[:1]))
        thread.start()
        thread.join(timeout=30)


def one_row_dropped(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "embed":
        m.embed.data.zero_()
        m.embed.data[:3].copy_(w[6:9])
    else:
        Engine.load_one(m, name, w)


def padding_not_zeroed(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "embed":
        m.embed.data[:4].copy_(w[6:10])
    else:
        Engine.load_one(m, name, w)


def scale_shifted_by_one(m: Engine, name: str, w: torch.Tensor) -> None:
    Engine.load_one(m, name, w.roll(1, 1) if name == "s" else w)


def exponent_skipped(m: Engine, name: str, w: torch.Tensor) -> None:
    m.a.data.copy_(w[2:4]) if name == "a_log" else Engine.load_one(m, name, w)


def works_once(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "norm" and getattr(m, "is_loaded", False):
        return
    if name == "norm":
        m.is_loaded = True
    Engine.load_one(m, name, w)


def second_shard_written_twice(m: Engine, name: str, w: torch.Tensor) -> None:
    if name == "v_proj":
        return m.qkv.data.narrow(0, 8, 4).copy_(w.narrow(0, 4, 4))
    Engine.load_one(m, name, w)


def other_buffer_written(m: Engine, name: str, w: torch.Tensor) -> None:
    Engine.load_one(m, name, w)
    m.rotary[0] += 1


def parameter_replaced(m: Engine, name: str, w: torch.Tensor) -> None:
    Engine.load_one(m, name, w)
    m.norm = nn.Parameter(m.norm.data.clone(), requires_grad=False)


FAULTS: list[tuple[Callable[..., Any], str]] = [
    (dropped_slice, "w13"),
    (swapped_halves, "w13"),
    (wrong_expert_order, "w13"),
    (off_by_one_rank, "qkv"),
    (written_from_a_thread, "norm"),
    (one_row_dropped, "embed"),
    (padding_not_zeroed, "embed"),
    (scale_shifted_by_one, "w8"),
    (exponent_skipped, "a"),
    (works_once, "norm"),
    (second_shard_written_twice, "qkv"),
    (other_buffer_written, "rotary"),
    (parameter_replaced, "norm"),
]


@pytest.mark.parametrize("fault, parameter", FAULTS, ids=lambda f: getattr(f, "__name__", None))
def test_planted_fault_is_caught(traced: heft.trace.Trace, fault: Any, parameter: str) -> None:
    model = Engine()
    model.load_one = lambda name, w: fault(model, name, w)
    with pytest.raises(VerifyError) as caught:
        heft.verify(model, traced)
    assert caught.value.parameter == parameter


def test_first_difference_names_both_source_elements() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(2, 3), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            self.p.copy_(dict(weights)["x"])

    model = Small()
    traced = heft.trace(
        model,
        [("x", F32, (2, 3)), ("y", F32, (4,))],
        exceptions=[heft.Exception_(heft.ExceptionKind.UNUSED, "y", "test")],
    )

    def load(weights: Any) -> None:
        by_name = dict(weights)
        model.p.copy_(by_name["x"])
        model.p.data[1, 1] = by_name["y"][2]

    with pytest.raises(VerifyError) as caught:
        heft.verify(model, traced, load=load)
    error = caught.value
    assert (error.parameter, error.index, error.n_differ) == ("p", (1, 1), 1)
    assert error.expected_source == ("x", 4) and error.actual_source == ("y", 2)
    assert error.expected != error.actual


def test_skip_has_a_reason_and_must_match(traced: heft.trace.Trace) -> None:
    model = Engine()
    model.load_one = lambda name, w: padding_not_zeroed(model, name, w)
    verdict = heft.verify(model, traced, skip=[("embed", "padding is free here")])
    assert verdict.skipped["embed"] == "padding is free here"
    with pytest.raises(TraceError, match=r'skip "nothing\.here".*matches no tensor'):
        heft.verify(model, traced, skip=[("nothing.here", "why not")])


def test_parameter_without_elements_is_no_obstacle() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.none = nn.Parameter(torch.zeros(0, 3), requires_grad=False)
            self.register_buffer("nothing", torch.zeros(0))

        def load_weights(self, weights: Any) -> None:
            self.p.copy_(dict(weights)["x"])

    verdict = heft.verify(Empty(), heft.trace(Empty(), [("x", F32, (2,))]))
    assert verdict.n_elems == 2


def test_source_that_the_specs_do_not_list_is_named(traced: heft.trace.Trace) -> None:
    with pytest.raises(TraceError, match='reads "embed", which the specs do not list'):
        heft.verify(Engine(), traced, specs=[s for s in SOURCES if s[0] != "embed"])


def test_opaque_parameters_are_skipped_with_their_operator() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(2, 2), requires_grad=False)
            self.q = nn.Parameter(torch.zeros(2, 2), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            by_name = dict(weights)
            self.p.copy_(by_name["a"] @ by_name["a"])
            self.q.copy_(by_name["b"])

    model = Product()
    verdict = heft.verify(model, heft.trace(model, [("a", F32, (2, 2)), ("b", F32, (2, 2))]))
    assert verdict.n_params == 1 and "mm" in verdict.skipped["p"]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        BF16,
        torch.float16,
        F32,
        torch.float64,
    ],
)
def test_digits_tell_all_elements_apart_in_both_versions(dtype: torch.dtype) -> None:
    n = 5000
    numbers = Numbers({"x": (dtype, (n - 7,)), "y": (dtype, (7,))}, {}, seed=3)
    letters = alphabet(dtype)
    assert letters.unique().numel() == letters.numel() and numbers.n_digits <= 13
    for version in (0, 1):
        runs = [numbers.make(digit, version) for digit in range(numbers.n_digits)]
        columns = [torch.cat([run["x"], run["y"]]).view(torch.uint8).reshape(n, -1) for run in runs]
        assert torch.cat(columns, 1).unique(dim=0).shape[0] == n
    first, second = numbers.make(0, 0)["x"], numbers.make(0, 1)["x"]
    assert (
        (first.view(torch.uint8).reshape(n - 7, -1) != second.view(torch.uint8).reshape(n - 7, -1))
        .any(1)
        .all()
    )


def test_copy_of_a_model_verifies_like_the_model(traced: heft.trace.Trace) -> None:
    assert heft.verify(copy.deepcopy(Engine()), traced).n_params == 7


class Derived(nn.Module):
    """A norm, and weight + 1 beside it; the loader leaves both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("plus_one", torch.zeros(4))
        self.n_derived = 0

    def load_weights(self, weights: Any) -> None:
        self.norm.copy_(dict(weights)["norm"])
        self.plus_one.copy_(self.norm + 1)


def derived_again(m: Derived) -> None:
    m.plus_one.copy_(m.norm + 1)


def derived_never(m: Derived) -> None:
    pass


def derived_once(m: Derived) -> None:
    if m.n_derived == 0:
        m.plus_one.copy_(m.norm + 1)
    m.n_derived += 1


def derived_in_part(m: Derived) -> None:
    m.plus_one[:3].copy_(m.norm[:3] + 1)


def test_derived_tensor_that_is_computed_again_agrees() -> None:
    model = Derived()
    verdict = heft.verify(model, heft.trace(model, [("norm", F32, (4,))]), derive=derived_again)
    assert not verdict.skipped


@pytest.mark.parametrize("derive", [derived_never, derived_once, derived_in_part])
def test_stale_derived_tensor_is_caught(derive: Callable[[Derived], None]) -> None:
    model = Derived()
    with pytest.raises(VerifyError) as caught:
        heft.verify(model, heft.trace(model, [("norm", F32, (4,))]), derive=derive)
    assert caught.value.parameter == "plus_one"

# SPDX-License-Identifier: Apache-2.0
"""Loaders of block formats, mxfp8 and nvfp4, on real bit patterns and on the second of two ranks.

mxfp8: e4m3 codes, and for each 32 of a row a byte that is a power of two. nvfp4: two codes in a
byte, low one first, for each 16 of a row an e4m3 scale, and a scale of the whole tensor. Loaders
that keep the format compile; what looks codes up in a table is left to the engine's loader, and is
delivered through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch

import heft
from heft import Exception_, ExceptionKind, LiveModel, Member, ModulePublisher
from heft.trace import trace as trace_loader
from heft.trace.errors import TraceError

from .toys.case import Model, Spec, bf16, f8, f32, u8
from .toys.reference import POISON, bytes_of, elements_as_bytes
from .toys.traced import specs_of

Weights = dict[str, torch.Tensor]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
ROWS, COLS = 4, 128  # of a source; the rank takes the second half


def second_half(t: torch.Tensor, dim: int) -> torch.Tensor:
    return t.chunk(2, dim)[1]


def mxfp8_kept(model: Model, weights: Weights) -> None:
    """Codes and scales go side by side: columns of one, columns over 32 of the other."""
    model.codes.copy_(second_half(weights["codes"], 1))
    model.scales.copy_(second_half(weights["scales"], 1))
    model.rows.copy_(second_half(weights["codes"], 0))
    model.row_scales.copy_(second_half(weights["scales"], 0))


def scaled(codes: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    return (codes.unflatten(1, (-1, block)) * scales[..., None]).flatten(1).to(torch.bfloat16)


def mxfp8_widened(model: Model, weights: Weights) -> None:
    """Scales are read as the dtype that they are."""
    scales = weights["scales"].view(torch.float8_e8m0fnu).float()
    model.p.copy_(second_half(scaled(weights["codes"].float(), scales, 32), 1))


def mxfp8_widened_by_exponent(model: Model, weights: Weights) -> None:
    scales = weights["scales"]
    scales = torch.ldexp(torch.ones(scales.shape), scales.int() - 127)
    model.p.copy_(second_half(scaled(weights["codes"].float(), scales, 32), 1))


def nvfp4_kept(model: Model, weights: Weights) -> None:
    """w13 has halves; the scale of a whole tensor has a slot for each of them."""
    for half, name in enumerate(("gate", "up")):
        model.w13.data.chunk(2, 0)[half].copy_(second_half(weights[f"{name}.codes"], 0))
        model.w13_scale.data.chunk(2, 0)[half].copy_(second_half(weights[f"{name}.scales"], 0))
        model.w13_scale_2.data[half] = weights[f"{name}.scale_2"]


def nvfp4_widened(model: Model, weights: Weights) -> None:
    packed = weights["codes"]
    codes = FP4[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]
    scales = weights["scales"].float() * weights["scale_2"]
    model.p.copy_(second_half(scaled(codes, scales, 16), 1))


def nvfp4_of_one_scale(model: Model, weights: Weights) -> None:
    """gate and up are given one scale, the larger, and their block scales follow.

    When a round calls it, it is given the scales alone: the codes are there already.
    """
    both = torch.maximum(weights["gate.scale_2"], weights["up.scale_2"])
    model.w13_scale_2.copy_(both)
    for half, name in enumerate(("gate", "up")):
        scales = weights[f"{name}.scales"].float() * (weights[f"{name}.scale_2"] / both)
        model.w13_scale.data.chunk(2, 0)[half].copy_(scales.to(torch.float8_e4m3fn))
        if f"{name}.codes" in weights:
            model.w13.data.chunk(2, 0)[half].copy_(weights[f"{name}.codes"])


MXFP8 = {"codes": f8(ROWS, COLS), "scales": u8(ROWS, COLS // 32)}
NVFP4 = {"codes": u8(ROWS, COLS // 2), "scales": f8(ROWS, COLS // 16), "scale_2": f32()}
GATE_UP = {f"{half}.{name}": spec for half in ("gate", "up") for name, spec in NVFP4.items()}


@dataclass(frozen=True)
class Case:
    load: Callable[[Model, Weights], None]
    sources: Mapping[str, Spec]
    params: Mapping[str, Spec]
    opaque: frozenset[str] = frozenset()


CASES = [
    Case(
        mxfp8_kept,
        MXFP8,
        {
            "codes": f8(ROWS, COLS // 2),
            "scales": u8(ROWS, COLS // 64),
            "rows": f8(ROWS // 2, COLS),
            "row_scales": u8(ROWS // 2, COLS // 32),
        },
    ),
    Case(mxfp8_widened, MXFP8, {"p": bf16(ROWS, COLS // 2)}),
    Case(mxfp8_widened_by_exponent, MXFP8, {"p": bf16(ROWS, COLS // 2)}, frozenset("p")),
    Case(
        nvfp4_kept,
        GATE_UP,
        {
            "w13": u8(ROWS, COLS // 2),
            "w13_scale": f8(ROWS, COLS // 16),
            "w13_scale_2": f32(2),
        },
    ),
    Case(nvfp4_widened, NVFP4, {"p": bf16(ROWS, COLS // 2)}, frozenset("p")),
    Case(
        nvfp4_of_one_scale,
        GATE_UP,
        {
            "w13": u8(2 * ROWS, COLS // 2),
            "w13_scale": f8(2 * ROWS, COLS // 16),
            "w13_scale_2": f32(),
        },
        frozenset(["w13_scale", "w13_scale_2"]),
    ),
]
ELSEWHERE = [Exception_(ExceptionKind.ELSEWHERE, "*", "the first rank's", True)]


def bits(sources: Mapping[str, Spec], version: int) -> Weights:
    """Any finite code, scales around one; other bits in each version."""
    generator = torch.Generator().manual_seed(version)

    def draw(name: str, spec: Spec) -> torch.Tensor:
        if spec.dtype == torch.float32:
            return torch.rand(spec.shape, generator=generator) + 0.5
        low, high = (97, 160) if name.endswith("scales") and spec.dtype == torch.uint8 else (0, 256)
        drawn = torch.randint(low, high, spec.shape, generator=generator).to(torch.uint8)
        if spec.dtype == torch.uint8:
            return drawn
        if name.endswith("scales"):
            return (drawn % 0x7F).view(spec.dtype)  # finite, not negative
        return drawn.masked_fill(drawn & 0x7F == 0x7F, 0x38).view(spec.dtype)

    return {name: draw(name, spec) for name, spec in sources.items()}


def loaded(case: Case, sources: Weights, poison: int) -> Model:
    model = Model(case.params, case.load)
    for param in model.parameters():
        bytes_of(param.data).fill_(poison)
    with torch.no_grad():
        model.load_weights((n, t.clone()) for n, t in sources.items())
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.load.__name__)
def test_loader_is_compiled_or_left_to_the_engine(case: Case) -> None:
    traced = trace_loader(
        Model(case.params, case.load), specs_of(case.sources), exceptions=ELSEWHERE
    )
    assert traced.opaque.keys() == case.opaque
    model, values = Model(case.params, case.load), bits(case.sources, 7)
    if case.opaque == case.params.keys():
        with pytest.raises(TraceError, match="no element to compare"):
            heft.verify(model, traced, values=values)
        return
    verdict = heft.verify(model, traced, values=values)
    assert verdict.skipped.keys() == case.opaque
    assert verdict.n_params == len(case.params) - len(case.opaque)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.load.__name__)
def test_a_round_delivers_what_the_loader_loads(case: Case) -> None:
    model = Model(case.params, case.load)
    traced = trace_loader(model, specs_of(case.sources), exceptions=ELSEWHERE)
    state = bits(case.sources, 0)
    for param in model.parameters():
        bytes_of(param.data).fill_(POISON[0])
    with (
        heft.Coordinator() as coordinator,
        LiveModel(model, traced.contract(), url=coordinator.url, member=Member()) as live,
        ModulePublisher(state, url=coordinator.url) as publisher,
    ):
        for version in (1, 2):
            for name, tensor in bits(case.sources, version).items():
                state[name].copy_(tensor)
            publisher.push(version)
            assert live.version == version
            expected = dict(loaded(case, state, POISON[1]).named_parameters())
            for name, param in model.named_parameters():
                same = elements_as_bytes(param) == elements_as_bytes(expected[name])
                assert same.all(), name

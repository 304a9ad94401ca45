# SPDX-License-Identifier: Apache-2.0
"""Functions that an engine plug-in declares are run by heft itself, bit for bit."""

from __future__ import annotations

import pytest
import torch

import heft
from heft.trace import trace as trace_loader
from heft.trace.errors import TraceError
from heft.trace.kernels import KnownKernel

from .toys import kernels
from .toys.case import bf16
from .toys.traced import specs_of

X = {"x": bf16(2, 4)}


def run(plan: heft.Plan, sources: dict[str, torch.Tensor], like: torch.nn.Module):
    params = {name: torch.empty_like(p.data) for name, p in like.named_parameters()}
    heft.execute(plan, sources, params)
    return params


def loaded(model: torch.nn.Module, sources: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        model.load_weights(sources.items())
    return {name: p.data for name, p in model.named_parameters()}


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_declared_quantiser_gives_codes_and_scales() -> None:
    model = kernels.quantising_model()
    trace = trace_loader(model, specs_of(X), kernels=kernels.KERNELS)
    x = torch.tensor([[1, -2, 0, 0], [7, 3.5, 0, 0]], dtype=torch.bfloat16)
    found = run(trace.plan(), {"x": x}, model)
    assert found["scale"][0, 0] == 1 / 64
    assert found["weight"][:, :2].float().tolist() == [[64, -128], [448, 224]]
    assert found["weight"][:, 2:].float().tolist() == [[0, 0], [0, 0]]
    assert torch.isfinite(found["scale"]).all()
    assert_same_bits(found, loaded(kernels.quantising_model(), {"x": x}))


def test_declared_unpacking_feeds_a_transposed_slice() -> None:
    model = kernels.unpacking_model()
    trace = trace_loader(model, specs_of(kernels.UNPACK_SOURCES), kernels=kernels.KERNELS)
    generator = torch.Generator().manual_seed(1)
    sources = {
        "w_blocks": torch.randint(0, 256, (2, 1, 16), generator=generator).to(torch.uint8),
        "w_scales": torch.tensor([[120], [130]], dtype=torch.uint8),
    }
    plan = trace.plan()
    assert [operation.op for operation in plan.opaques()] == ["heft.mxfp4_unpack/1"]
    expected = loaded(kernels.unpacking_model(), sources)
    assert_same_bits(run(plan, sources, model), expected)


def test_undeclared_quantiser_is_left_to_the_engine() -> None:
    trace = trace_loader(kernels.quantising_model(), specs_of(X))
    assert all(group.is_opaque for group in trace.plan().groups)


def test_function_is_put_back_after_the_trace() -> None:
    before = kernels.block_quantise
    trace_loader(kernels.quantising_model(), specs_of(X), kernels=kernels.KERNELS)
    assert kernels.block_quantise is before


def test_target_that_is_not_there_is_named() -> None:
    wrong = KnownKernel(f"{kernels.__name__}:block_quantize", lambda record: None)
    with pytest.raises(TraceError, match="block_quantize"):
        trace_loader(kernels.quantising_model(), specs_of(X), kernels=[wrong])


def test_arguments_without_a_kernel_are_traced_as_they_are() -> None:
    declined = KnownKernel(kernels.describe_quantise.target, lambda record, *args: NotImplemented)
    trace = trace_loader(kernels.quantising_model(), specs_of(X), kernels=[declined])
    assert all(group.is_opaque for group in trace.plan().groups)

# SPDX-License-Identifier: Apache-2.0
"""After a trace the model is as it was, and what escapes every hook is found and named."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import heft
from heft.trace import BypassError, TraceError

F32 = torch.float32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 2))
        self.w.weight_loader = lambda param, weight: param.data.copy_(weight)
        self.register_buffer("scale", torch.ones(2))
        self.view = self.w.data.view(2, 4)
        self.cache: dict[str, Any] = {}
        self.tensors = [torch.zeros(3)]


class Model(nn.Module):
    def __init__(self, load: Any) -> None:
        super().__init__()
        self.layer = Layer()
        self.load = load

    def load_weights(self, weights: Any) -> None:
        self.load(self.layer, dict(weights))


def everything(model: nn.Module) -> dict[str, Any]:
    layer = model.layer
    tensors = {"w": layer.w, "scale": layer.scale, "view": layer.view, "0": layer.tensors[0]}
    return {
        name: (id(t), type(t), t.data_ptr(), t.shape, t.stride(), t.dtype, set(vars(t)), t.tolist())
        for name, t in tensors.items()
    } | {"cache": dict(layer.cache), "vars": set(vars(layer)), "tensors": len(layer.tensors)}


def run(load: Any, shape: tuple[int, ...] = (4, 2)) -> heft.trace.Trace:
    model = Model(load)
    before = everything(model)
    try:
        return heft.trace(model, [("x", F32, shape)])
    finally:
        assert everything(model) == before


def test_trace_leaves_no_stand_in_behind() -> None:
    def load(layer: Layer, weights: Any) -> None:
        layer.w.weight_loader(layer.w, weights["x"])
        layer.cache["half"] = weights["x"]
        layer.tensors.append(weights["x"])
        layer.left = weights["x"][0]

    traced = run(load)
    assert traced.tape.n_writes == 1
    assert sorted(traced.kept) == ["layer.cache.half", "layer.left", "layer.tensors.1"]


def test_loader_that_raises_leaves_the_model_as_it_was() -> None:
    def load(layer: Layer, weights: Any) -> None:
        layer.cache["half"] = weights["x"]
        layer.w.data.copy_(weights["x"])

    with pytest.raises(TraceError, match=r"""test_restoration.py:\d+: .*source 'x' .*\[5, 2\]"""):
        run(load, (5, 2))


def replace_data(layer: Layer, weights: Any) -> None:
    layer.w.data = weights["x"]


def replace_parameter(layer: Layer, weights: Any) -> None:
    layer.w = nn.Parameter(weights["x"])


def resize(layer: Layer, weights: Any) -> None:
    layer.w.data.resize_(2, 2)


def delete_attribute(layer: Layer, weights: Any) -> None:
    del layer.w.weight_loader
    layer.w.data.copy_(weights["x"])


def delete_parameter(layer: Layer, weights: Any) -> None:
    del layer.w


def replace_buffer(layer: Layer, weights: Any) -> None:
    layer.scale = weights["x"][0] * 1


def set_storage(layer: Layer, weights: Any) -> None:
    with torch.no_grad():
        layer.w.set_(weights["x"])


@pytest.mark.parametrize(
    "load, name",
    [
        (replace_data, "layer.w"),
        (replace_parameter, "layer.w"),
        (resize, "layer.w"),
        (delete_attribute, "layer.w"),
        (delete_parameter, "layer.w"),
        (replace_buffer, "layer.scale"),
        (set_storage, "layer.w"),
    ],
)
def test_bypass_names_the_tensor(load: Any, name: str) -> None:
    with pytest.raises(BypassError, match=name):
        run(load)


@pytest.mark.parametrize(
    "reach",
    [
        lambda t: t.data_ptr(),
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: t.__dlpack__(),
        lambda t: t.untyped_storage(),
        lambda t: t.detach().numpy(),
        lambda t: memoryview(t.numpy()),
    ],
)
@pytest.mark.parametrize("of", ["w", "x"])
def test_reaching_for_memory_is_refused_even_if_the_loader_swallows_it(reach: Any, of: str) -> None:
    def load(layer: Layer, weights: Any) -> None:
        with contextlib.suppress(Exception):
            reach(layer.w.data if of == "w" else weights["x"])
        layer.w.data.copy_(weights["x"])

    with pytest.raises(BypassError, match="layer.w" if of == "w" else "source 'x'"):
        run(load)


def test_pointers_taken_in_cpp_are_refused() -> None:
    def load(layer: Layer, weights: Any) -> None:
        with pytest.raises(RuntimeError, match="data pointer"):
            torch.utils.dlpack.to_dlpack(weights["x"])
        layer.w.data.copy_(weights["x"])

    run(load)


def test_attributes_that_the_loader_sets_are_put_back_and_reported() -> None:
    def load(layer: Layer, weights: Any) -> None:
        layer.w.is_loaded = True
        layer.w.data.copy_(weights["x"])

    assert run(load).changed == {"layer.w": ["is_loaded"]}


def test_stand_in_kept_outside_the_model_is_refused_by_the_next_trace() -> None:
    kept: list[torch.Tensor] = []

    def load(layer: Layer, weights: Any) -> None:
        layer.w.data.copy_(kept[0] if kept else weights["x"])
        kept.append(weights["x"])

    run(load)
    with pytest.raises(TraceError, match="left over from an earlier trace"):
        run(load)
    with pytest.raises(TraceError, match="after its trace"):
        kept[0] + 1


def test_original_parameter_in_a_closure_is_still_traced() -> None:
    model = Model(None)
    original = model.layer.w

    def load(layer: Layer, weights: Any) -> None:
        with torch.no_grad():
            original[:2] = weights["x"][2:]
            original[2:].fill_(1.5)

    model.load = load
    traced = heft.trace(model, [("x", F32, (4, 2))])
    assert traced.tape.n_writes == 2
    assert original.tolist() == [[0.0, 0.0]] * 4


def test_an_integer_buffer_answers_what_it_holds() -> None:
    """An expert map beside the parameters: where an expert goes is a fact, not a weight."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, 3))
            self.register_buffer("expert_map", torch.tensor([-1, 1, -1, 0], dtype=torch.int32))

        def load_weights(self, weights: Any) -> None:
            for name, weight in weights:
                slot = self.expert_map[int(name)].item()
                if slot >= 0:
                    self.w.data[slot].copy_(weight)

    model = Experts()
    traced = heft.trace.trace(model, {str(e): torch.empty(3, device="meta") for e in range(4)})
    sources = {str(e): torch.full((3,), float(e)) for e in (1, 3)}
    out = torch.zeros(2, 3)
    heft.execute(traced.plan(partial=True), sources, {"w": out})
    assert out.tolist() == [[3.0] * 3, [1.0] * 3]
    assert traced.reads == []  # a constant: one pass is enough
    assert model.expert_map.tolist() == [-1, 1, -1, 0]

# SPDX-License-Identifier: Apache-2.0
"""Which tensors are destinations: ties, views, strides, buffers, attributes, classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import heft
from heft.trace import BypassError, TraceError

F32 = torch.float32


class Bare(nn.Module):
    """A module to hang things on, and a loader."""

    def __init__(self, load: Any = None) -> None:
        super().__init__()
        self.load = load

    def load_weights(self, weights: Any) -> None:
        self.load(self, dict(weights))


def param(*shape: int, dtype: torch.dtype = F32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


def execute(
    traced: heft.trace.Trace, model: nn.Module, sources: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """What the plan makes of these sources, in fresh row-major tensors."""
    kinds = heft.ExceptionKind
    excuses = [heft.Exception_(k, "*", "test", True) for k in (kinds.UNUSED, kinds.UNTOUCHED)]
    plan = traced.plan(excuses)
    out = {
        p.name: torch.zeros(p.shape, dtype=model.get_parameter(p.name).dtype) for p in plan.params()
    }
    heft.execute(plan, sources, out)
    return out


def loaded(model: nn.Module, sources: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the loader itself makes of them."""
    with torch.no_grad():
        model.load_weights(iter(sources.items()))
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same_as_loader(model: nn.Module, sources: dict[str, torch.Tensor]) -> heft.trace.Trace:
    traced = heft.trace(model, sources)
    found = execute(traced, model, sources)
    for name, tensor in loaded(model, sources).items():
        assert torch.equal(found[name], tensor), name
    return traced


def test_tied_parameter_is_one_parameter_and_one_alias() -> None:
    model = Bare(lambda m, w: m.embed.copy_(w["e"]))
    model.embed = param(3, 2)
    model.head = model.embed
    traced = heft.trace(model, [("e", F32, (3, 2))])
    assert traced.aliases == {"head": "embed"} and traced.params.names == ["embed"]
    assert traced.plan().n_bytes == 24


def test_view_of_a_parameter_is_no_second_destination() -> None:
    model = Bare(lambda m, w: m.conv_weights.copy_(w["x"].view(4, 3)))
    model.weight = param(4, 1, 3)
    model.conv_weights = model.weight.data.view(4, 3)
    traced = assert_same_as_loader(model, {"x": torch.randn(4, 3)})
    assert traced.aliases == {"conv_weights": "weight"} and traced.params.names == ["weight"]


@pytest.mark.parametrize("shape", ["columns", "transposed", "permuted", "padded"])
def test_strided_parameters_keep_their_geometry(shape: str) -> None:
    whole = {
        "columns": torch.zeros(4, 6)[:, :3],
        "transposed": torch.zeros(3, 4).T,
        "permuted": torch.zeros(2, 3, 4).permute(2, 0, 1),
        "padded": torch.zeros(5, 4, 8)[:4, :2, 1:4],
    }[shape]

    def load(m: Bare, w: Any) -> None:
        m.p.data[1:3].copy_(w["x"][1:3])
        m.p.data[0].fill_(2)
        m.p.data[3] = w["x"][0]
        assert m.p.stride() == whole.stride() and m.p.is_contiguous() == whole.is_contiguous()

    model = Bare(load)
    model.p = nn.Parameter(whole, requires_grad=False)
    assert_same_as_loader(model, {"x": torch.randn(whole.shape)})


def test_strided_parameter_of_an_opaque_operator_is_written_in_parts() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.data.T.reshape(12)[1:11].uniform_()
        m.q.copy_(w["x"])

    model = Bare(load)
    model.p = nn.Parameter(torch.zeros(3, 4).T, requires_grad=False)
    model.q = param(2)
    traced = heft.trace(model, [("x", F32, (2,))])
    assert list(traced.opaque) == ["p"]
    with pytest.raises(heft.errors.ProofError, match='"p" rank 0: 2 of 12 elements uncovered'):
        traced.plan()


def test_bits_of_a_transposed_parameter() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.copy_(w["x"])
        m.q.copy_(m.p.data.view(torch.int32))

    model = Bare(load)
    model.p = nn.Parameter(torch.zeros(3, 4).T, requires_grad=False)
    model.q = param(4, 3, dtype=torch.int32)
    assert_same_as_loader(model, {"x": torch.randn(4, 3)})


def test_flattened_view_of_a_transposed_parameter() -> None:
    def load(m: Bare, w: Any) -> None:
        flat = m.p.data.T.reshape(12)
        flat.zero_()
        flat[2:11].copy_(w["x"])

    model = Bare(load)
    model.p = nn.Parameter(torch.zeros(3, 4).T, requires_grad=False)
    assert_same_as_loader(model, {"x": torch.randn(9)})


def test_parameters_cut_from_one_storage_are_each_their_own() -> None:
    flat = torch.zeros(10)

    def load(m: Bare, w: Any) -> None:
        m.a.copy_(w["x"][:4])
        m.b.copy_(w["x"][4:].view(2, 3))

    model = Bare(load)
    model.a = nn.Parameter(flat[:4], requires_grad=False)
    model.b = nn.Parameter(flat[4:].view(2, 3), requires_grad=False)
    model.flat = flat
    traced = assert_same_as_loader(model, {"x": torch.randn(10)})
    assert traced.params.names == ["a", "b"]


def test_parameters_that_overlap_in_part_are_refused() -> None:
    flat = torch.zeros(10)
    model = Bare(lambda m, w: None)
    model.a = nn.Parameter(flat[:6], requires_grad=False)
    model.b = nn.Parameter(flat[4:], requires_grad=False)
    with pytest.raises(TraceError, match='"b" shares a part of its memory with "a"'):
        heft.trace(model, [("x", F32, (10,))])


def test_buffer_made_of_a_parameter_is_derived_and_one_that_is_loaded_is_not() -> None:
    def load(m: Bare, w: Any) -> None:
        m.weight.copy_(w["x"])
        m.plus_one.copy_(m.weight + 1)
        m.scale.copy_(w["s"])
        m.bias_of_attribute.copy_(w["s"] * 2)
        m.fresh = m.weight.clone()
        m.seen = m.weight.view(2, 1)

    model = Bare(load)
    model.weight = param(2)
    model.register_buffer("plus_one", torch.zeros(2))
    model.register_buffer("scale", torch.zeros(1))
    model.register_buffer("rotary", torch.zeros(5))
    model.bias_of_attribute = torch.zeros(1)
    traced = heft.trace(model, [("x", F32, (2,)), ("s", F32, (1,))])
    assert traced.params.names == ["bias_of_attribute", "scale", "weight"]
    assert [(d.name, d.params, d.is_new) for d in traced.derived] == [
        ("plus_one", ("weight",), False),
        ("fresh", ("weight",), True),
    ]
    assert traced.aliases == {"seen": "weight"} and traced.kept == []
    assert traced.plan().n_bytes == 16


class ColumnParameter(nn.Parameter):
    """Like an engine's: a class with a loader in it and attributes of its own."""

    def __new__(cls, data: torch.Tensor, **kwargs: Any) -> ColumnParameter:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, output_dim: int = 0) -> None:
        self._output_dim = output_dim

    @property
    def output_dim(self) -> int:
        return self._output_dim

    def load_column(self, loaded: torch.Tensor, rank: int) -> None:
        n = self.data.shape[self.output_dim]
        self.data.copy_(loaded.narrow(self.output_dim, rank * n, n))


def test_parameter_classes_keep_methods_properties_and_attributes() -> None:
    def load(m: Bare, w: Any) -> None:
        assert isinstance(m.p, ColumnParameter) and isinstance(m.p, nn.Parameter)
        assert type(m.p.data) is not type(m.p) and not isinstance(m.p.data, nn.Parameter)
        assert isinstance(m.q, nn.Parameter) and m.q.requires_grad and not m.p.requires_grad
        assert dict(m.named_parameters())["p"] is m.p
        m.p.load_column(w["x"], 1)
        m.q.data.copy_(w["x"][0])

    model = Bare(load)
    model.p = ColumnParameter(torch.zeros(2, 2))
    model.q = nn.Parameter(torch.zeros(2))
    assert_same_as_loader(model, {"x": torch.randn(4, 2)})


def test_class_that_keeps_its_data_elsewhere_is_refused_by_name() -> None:
    class Quantised(torch.Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError

    model = Bare(lambda m, w: None)
    model.inner = Bare()
    model.inner.w = torch.Tensor._make_wrapper_subclass(Quantised, (2,))
    with pytest.raises(BypassError, match=r'"inner\.w".*Quantised'):
        heft.trace(model, [("x", F32, (2,))])


def test_source_written_by_the_loader_is_copied_first() -> None:
    def load(m: Bare, w: Any) -> None:
        w["x"][:2].zero_()
        m.p.copy_(w["x"])
        m.q.copy_(w["x"][:, 0])

    model = Bare(load)
    model.p, model.q = param(4, 2), param(4)
    traced = heft.trace(model, [("x", F32, (4, 2))])
    sources = {"x": torch.randn(4, 2)}
    found = execute(traced, model, sources)
    expected = sources["x"].clone()
    expected[:2] = 0
    assert torch.equal(found["p"], expected) and torch.equal(found["q"], expected[:, 0])


def test_real_tensor_that_is_written_from_a_source_becomes_a_temporary() -> None:
    def load(m: Bare, w: Any) -> None:
        made = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        made[1:] = w["x"]
        m.p.copy_(made)
        assert made[0, 0].item() == 1.0

    model = Bare(load)
    model.p = param(3, 2)
    sources = {"x": torch.randn(2, 2)}
    found = execute(heft.trace(model, sources), model, sources)
    assert torch.equal(found["p"], torch.cat([torch.tensor([[1.0, 2.0]]), sources["x"]]))


def test_numpy_of_a_temporary_that_depends_on_a_source_is_refused() -> None:
    def load(m: Bare, w: Any) -> None:
        made = torch.tensor([1.0, 2.0])
        made[0] = w["x"][0]
        m.p.copy_(torch.from_numpy(made.numpy().copy()))

    model = Bare(load)
    model.p = param(2)
    with pytest.raises(BypassError, match="numpy"):
        heft.trace(model, [("x", F32, (2,))])


def test_constants_may_be_read_in_every_way() -> None:
    def load(m: Bare, w: Any) -> None:
        local = torch.full((4,), -1)
        local[[2, 0]] = torch.arange(2)
        order = [i for i in local.tolist() if i >= 0]
        assert order == [1, 0] and int(local.max()) == 1 and local.numpy().sum() == -1
        with pytest.raises(ValueError, match="read-only"):
            local.numpy()[0] = 7
        for i in order:
            m.p.data[i].copy_(w["x"][local == i][0])

    model = Bare(load)
    model.p = param(2, 3)
    assert_same_as_loader_with_constants(model)


def assert_same_as_loader_with_constants(model: Bare) -> None:
    sources = {"x": torch.randn(4, 3)}
    found = execute(heft.trace(model, sources), model, sources)
    assert torch.equal(found["p"], sources["x"][[2, 0]])


def test_large_constants_take_no_memory() -> None:
    def load(m: Bare, w: Any) -> None:
        big = torch.zeros(1 << 40)
        big[5:7] = w["x"]
        m.p.copy_(big[4:8])

    model = Bare(load)
    model.p = param(4)
    sources = {"x": torch.randn(2)}
    found = execute(heft.trace(model, sources), model, sources)
    assert found["p"].tolist() == [0.0, *sources["x"].tolist(), 0.0]


def test_names_never_pulled_and_names_pulled_for_nothing_are_told_apart() -> None:
    def load(m: Bare, weights: Any) -> None:
        for name, weight in weights:
            if name == "a":
                m.p.copy_(weight)
            if name == "b":
                return

    model = Bare()
    model.p = param(2)
    traced = heft.trace(model, [(n, F32, (2,)) for n in "abc"], load=lambda it: load(model, it))
    assert traced.unread == ["c"] and traced.unused == ["b"]


def test_device_moves_without_the_device_are_copies_at_most() -> None:
    def load(m: Bare, w: Any) -> None:
        x = w["x"].cuda().to("cuda:0", non_blocking=True).to(torch.device("cuda")).cpu()
        index = torch.tensor([1, 0], device="cuda").cuda()
        m.p.copy_(x[index])
        m.q.copy_(torch.zeros(2, device="cuda"))

    if torch.cuda.is_available():
        pytest.skip("for machines without a GPU")
    model = Bare(load)
    model.p, model.q = param(2), param(2)
    sources = {"x": torch.randn(2)}
    assert torch.equal(
        execute(heft.trace(model, sources), model, sources)["p"], sources["x"].flip(0)
    )


def test_load_state_dict_pinned_and_a_move_with_nothing_to_do() -> None:
    def load(m: Bare, w: Any) -> None:
        m.to(torch.float32)
        m.load_state_dict({name: tensor.pin_memory() for name, tensor in w.items()})

    model = Bare(load)
    model.fc = nn.Linear(4, 3)
    sources = {"fc.weight": torch.randn(3, 4), "fc.bias": torch.randn(3)}
    assert execute(heft.trace(model, sources), model, sources).keys() == sources.keys()


def test_move_to_another_dtype_is_refused() -> None:
    model = Bare(lambda m, w: m.half())
    model.p = param(2)
    with pytest.raises(BypassError, match=r"assigning \.data of param 'p'"):
        heft.trace(model, [("x", F32, (2,))])


def test_computation_too_long_for_a_tape_is_opaque_and_the_rest_is_not() -> None:
    def load(m: Bare, w: Any) -> None:
        x = w["x"]
        for k in range(12):
            x = x * (k + 2) + k
        m.p.copy_(x)
        product = w["a"]
        for name in "bcde":
            product = product * w[name]
        m.q.copy_(product)
        m.r.copy_(w["a"] * w["b"] * w["c"] * w["d"] + 1)

    model = Bare(load)
    model.p, model.q, model.r = param(2), param(2), param(2)
    traced = heft.trace(model, {name: torch.randn(2) for name in "xabcde"})
    assert sorted(traced.opaque) == ["p", "q"]
    assert "end of a long computation" in traced.opaque["p"][0].op
    assert sorted(heft.verify(model, traced).skipped) == ["p", "q"]


def test_order_by_chance_is_opaque() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.copy_(w["x"][torch.randperm(4)])
        m.q.copy_(torch.rand(2) * 2)

    model = Bare(load)
    model.p, model.q = param(4), param(2)
    opaque = heft.trace(model, [("x", F32, (4,))]).opaque
    assert {use.op for use in opaque["p"]} == {"randperm", "index.Tensor"}
    assert "rand" in {use.op for use in opaque["q"]}


def test_inference_mode_and_gradients_do_not_matter() -> None:
    def load(m: Bare, w: Any) -> None:
        with torch.inference_mode():
            m.fc.weight.copy_(w["x"][:, :4])
        with torch.no_grad():
            m.fc.bias[:] = w["x"][:, 4]

    model = Bare(load)
    model.fc = nn.Linear(4, 3)
    assert_same_as_loader(model, {"x": torch.randn(3, 5)})


def test_copy_into_an_expanded_view_is_refused() -> None:
    model = Bare(lambda m, w: m.p.data.expand(3, 2).copy_(w["x"]))
    model.p = param(1, 2)
    with pytest.raises(TraceError, match=r"test_tensors.py:\d+: .*expanded view of param 'p'"):
        heft.trace(model, [("x", F32, (3, 2))])


def test_overlapping_copy_is_refused() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.copy_(w["x"])
        m.p.data[1:].copy_(m.p.data[:-1])

    model = Bare(load)
    model.p = param(4)
    with pytest.raises(TraceError, match="overlapping parts of param 'p'"):
        heft.trace(model, [("x", F32, (4,))])


def test_temporaries_may_change_their_own_shape() -> None:
    def load(m: Bare, w: Any) -> None:
        t = w["x"].clone()
        before = t[0]
        t.t_()
        assert t.shape == (3, 2) and before.shape == (3,)
        t[2].add_(1)
        m.p.copy_(t)
        m.q.copy_(before)
        m.r.copy_(t.unsqueeze_(0).squeeze_().swapaxes_(0, 1)[1])

    model = Bare(load)
    model.p, model.q, model.r = param(3, 2), param(3), param(3)
    traced = assert_same_as_loader(model, {"x": torch.arange(6.0).view(2, 3)})
    assert traced.opaque == {}


def test_product_of_a_vector_is_opaque() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.copy_(w["v"] @ w["x"])  # PyTorch takes the rank off the product itself
        m.q.copy_(nn.functional.linear(w["v"], w["x"]))

    model = Bare(load)
    model.p, model.q = param(2), param(2)
    traced = heft.trace(model, [("v", F32, (2,)), ("x", F32, (2, 2))])
    assert [use.op for use in traced.opaque["p"]] == ["mm"]
    assert traced.opaque["q"][0].sources == ("v", "x")


@pytest.mark.parametrize("change", ["t_", "squeeze_"])
@pytest.mark.parametrize("which", ["source", "param"])
def test_others_may_not_change_their_shape(change: str, which: str) -> None:
    def load(m: Bare, w: Any) -> None:
        getattr(w["x"] if which == "source" else m.p.data, change)()
        m.p.copy_(w["x"])

    model = Bare(load)
    model.p = param(2, 2)
    with pytest.raises(BypassError, match=rf"{change}\(\) of {which} '[xp]'.*the tensor itself"):
        heft.trace(model, [("x", F32, (2, 2))])


def test_index_written_twice_is_refused() -> None:
    def load(m: Bare, w: Any) -> None:
        m.p.data[[1, 1]] = w["x"]

    model = Bare(load)
    model.p = param(4)
    with pytest.raises(TraceError, match="writes an index twice"):
        heft.trace(model, [("x", F32, (2,))])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_arithmetic_is_a_program_where_the_rounding_is_known(device: str) -> None:
    exact = {"a": lambda x: x * 2, "b": lambda x: x / 4, "c": lambda x: x + 1.5}
    inexact = {"d": lambda x: x * 0.1, "e": lambda x: x / 3, "f": lambda x: x - 0.1}

    def load(m: Bare, w: Any) -> None:
        for name, compute in (exact | inexact).items():
            m.get_parameter(name).copy_(compute(w["x"]))

    model = Bare(load)
    for name in exact | inexact:
        data = torch.zeros(2, dtype=torch.bfloat16, device="meta")
        model.register_parameter(name, nn.Parameter(data, requires_grad=False))
    opaque = heft.trace(model, [("x", torch.bfloat16, (2,))], device=device).opaque
    assert set(opaque) == (set() if device == "cpu" else set(inexact))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, F32])
def test_scales_round_as_pytorch_rounds_them_in_either_order(dtype: torch.dtype) -> None:
    tenth = torch.tensor(0.1)
    computed = {
        "a": lambda x, s: x * s,
        "b": lambda x, s: s * x,
        "c": lambda x, s: x * tenth,
        "d": lambda x, s: tenth * x,
        "e": lambda x, s: x * 0.1,
        "f": lambda x, s: x / tenth,
        "g": lambda x, s: x + tenth,
        "h": lambda x, s: (x.float() * s).to(dtype),
        "i": lambda x, s: x.clone().mul_(s),
    }

    def load(m: Bare, w: Any) -> None:
        for name, compute in computed.items():
            m.get_parameter(name).copy_(compute(w["x"], w["s"]))

    model = Bare(load)
    for name in computed:
        model.register_parameter(name, param(500, dtype=dtype))
    sources = {"x": torch.randn(500).to(dtype), "s": torch.tensor(0.7)}
    traced = assert_same_as_loader(model, sources)
    assert traced.opaque == {}


def test_a_rank_is_counted_from_0() -> None:
    for rank in (-1, 1 << 32, 0.5, None):
        with pytest.raises(TraceError, match="ranks of an engine are counted from 0"):
            heft.trace.trace(nn.Linear(2, 2), {"w": torch.ones(2, 2)}, load=list, rank=rank)

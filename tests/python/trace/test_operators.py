# SPDX-License-Identifier: Apache-2.0
"""Which operators each piece of a loader's text shows up as, in the PyTorch that is installed.

Names change between versions. A new one is opaque until it has a handler, so a row that fails here
says what to look at; the second test says whether anything became opaque that was not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import heft

# text of a loader with x:[4,6], y:[4,6], v:[4] (sources) and p:[4,6] (a parameter) -> operators
GEOMETRY = {
    "x.narrow(0, 1, 2)": "slice.Tensor",
    "x[1:3]": "slice.Tensor",
    "x[1]": "select.int",
    "x[..., 0]": "select.int",
    "x[None]": "unsqueeze",
    "x.T": "permute",
    "x.permute(1, 0)": "permute",
    "x.movedim(0, 1)": "permute",
    "x.t()": "t",
    "x.transpose(0, 1)": "transpose.int",
    "x.mT": "transpose.int",
    "x.swapaxes(0, 1)": "transpose.int",
    "x.chunk(2)": "split.Tensor",
    "x.split(2)": "split.Tensor",
    "x.split([1, 3])": "split_with_sizes",
    "x.tensor_split(3)": "slice.Tensor slice.Tensor slice.Tensor",
    "list(x)": "unbind.int",
    "x.view(2, 2, 6)": "view",
    "x.flatten()": "view",
    "x.unflatten(0, (2, 2))": "view",
    "x.reshape(24)": "view",
    "x.view(torch.int32)": "view.dtype",
    "x.expand(2, 4, 6)": "expand",
    "x.broadcast_to(2, 4, 6)": "expand",
    "x.squeeze()": "squeeze",
    "x.diagonal()": "diagonal",
    "x.unfold(0, 2, 1)": "unfold",
    "x.as_strided((2, 2), (1, 2), 0)": "as_strided",
    "x.data": "detach",
    "x.detach()": "detach",
    "x.contiguous()": "",
    "x.float()": "",
    "x.cpu()": "",
    "torch.einsum('ij->ji', x)": "permute",
}
MOVEMENT = {
    "p.copy_(x)": "copy_",
    "p[1:3] = x[:2]": "slice.Tensor slice.Tensor copy_",
    "p[1:] = 0": "lift_fresh slice.Tensor fill_.Tensor",
    "p[0, 0] = 1.5": "lift_fresh select.int select.int copy_",
    "p[1:] = v[0]": "select.int slice.Tensor fill_.Tensor",
    "p.fill_(2)": "fill_.Scalar",
    "p.zero_()": "zero_",
    "torch._foreach_copy_([p], [x])": "_foreach_copy_",
    "x.clone()": "clone",
    "x.clone().unsqueeze_(0).squeeze_(0)": "clone unsqueeze_ squeeze_.dim",
    "x.clone().t_()": "clone t_",
    "x.clone().transpose_(0, 1)": "clone transpose_",
    "x.t().contiguous()": "t clone",
    "x.t().reshape(24)": "t clone _unsafe_view",
    "x.to(torch.bfloat16)": "_to_copy",
    "x.half()": "_to_copy",
    "torch.cat([x, y])": "cat",
    "torch.hstack([x, y])": "cat",
    "torch.stack([x, y])": "stack",
    "x.repeat(2, 1)": "repeat",
    "x.tile(2)": "repeat",
    "x.repeat_interleave(2, 0)": "unsqueeze expand clone view",
    "x.repeat_interleave(torch.tensor([2, 1, 1, 1]), 0)": (
        "lift_fresh repeat_interleave.Tensor index_select"
    ),
    "x[[0, 2]]": "lift_fresh index.Tensor",
    "x[torch.tensor([True, False, True, False])]": "lift_fresh index.Tensor",
    "x.index_select(0, torch.tensor([0, 1]))": "lift_fresh index_select",
    "x.gather(0, torch.zeros(1, 6, dtype=torch.long))": "zeros gather",
    "p[[0, 1]] = x[:2]": "slice.Tensor lift_fresh index_put_",
    "p[:, [0, 2]] = x[:, :2]": "slice.Tensor lift_fresh index_put_",
    "p.index_copy_(0, torch.tensor([0, 1]), x[:2])": "lift_fresh slice.Tensor index_copy_",
    "p.scatter_(0, torch.zeros(1, 6, dtype=torch.long), x)": "zeros scatter_.src",
    "x.roll(1)": "roll",
    "x.roll(1, 0)": "roll",
    "x.flip(0)": "flip",
    "F.pad(x, (0, 1))": "constant_pad_nd",
    "torch.where(torch.eye(4, 6).bool(), x, y)": "eye.m _to_copy where.self",
    "x.masked_fill(torch.eye(4, 6).bool(), 0.0)": "eye.m _to_copy masked_fill.Scalar",
    "x.tril()": "tril",
    "torch.cat([x, y], out=torch.empty(8, 6))": "empty.memory_format cat.out",
}
ARITHMETIC = {
    "x + 1": "add.Tensor",
    "x - 1": "sub.Tensor",
    "x * 2": "mul.Tensor",
    "x / 3": "div.Tensor",
    "-x": "neg",
    "-torch.exp(x)": "exp neg",
    "x * v[:, None]": "unsqueeze mul.Tensor",
    "x * v[0]": "select.int mul.Tensor",
    "torch.mul(x, 2, out=p)": "mul.out",
    "x.clone().mul_(2)": "clone mul_.Tensor",
}
QUESTIONS = {
    "v[0].item()": "select.int _local_scalar_dense",
    "float(v[0])": "select.int _local_scalar_dense",
    "bool(v[0])": "select.int _local_scalar_dense",
    "torch.equal(x, y)": "equal",
    "torch.allclose(x, y)": "allclose",
}
OPAQUE = {
    "x @ y.T": "permute mm",
    "x.sum()": "sum",
    "x.abs()": "abs",
    "x.sort()[0]": "sort",
    "F.pad(x, (1, 1), mode='replicate')": "replication_pad1d",
    "torch.where(x > 0, x, y)": "gt.Scalar where.self",
    "x + y": "add.Tensor",
    "x / y": "div.Tensor",
    "2 - x": "rsub.Scalar",
    "torch.rand(3)": "rand",
}
FACTORIES = {
    "torch.zeros(3)": "zeros",
    "torch.full((3,), 2.0)": "full",
    "torch.empty(3)": "empty.memory_format",
    "x.new_zeros(3)": "new_zeros",
    "torch.zeros_like(x)": "zeros_like",
    "torch.arange(3)": "arange",
    "torch.tensor([1, 2])": "lift_fresh",
    "torch.eye(3)": "eye",
}
TABLE = GEOMETRY | MOVEMENT | ARITHMETIC | QUESTIONS | OPAQUE | FACTORIES
FOLDED = [text for text in GEOMETRY | MOVEMENT | ARITHMETIC if "x.view(torch." not in text]


def execute(text: str, names: dict[str, Any]) -> Any:
    """Run one line; what it is worth, if it is an expression."""
    scope = {"torch": torch, "F": F, **names}
    if " = " in text:
        exec(text, scope)
        return None
    return eval(text, scope)


@pytest.mark.parametrize("text", TABLE)
def test_text_shows_up_as(text: str) -> None:
    seen: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = str(func).removeprefix("aten.")
            seen.append(name.removesuffix(".default"))
            return func(*args, **(kwargs or {}))

    names = {"x": torch.ones(4, 6), "y": torch.ones(4, 6), "v": torch.ones(4)}
    names["p"] = torch.zeros(4, 6)
    with torch.no_grad(), Names():
        execute(text, names)
    seen = [s for s in seen if not (text.startswith("x.view(torch.") and s == "detach")]
    assert " ".join(seen) == TABLE[text]


class Loader(nn.Module):
    """One line of text, and its result copied into a parameter."""

    def __init__(self, text: str, result: torch.Tensor | None) -> None:
        super().__init__()
        self.text = text
        self.p = nn.Parameter(torch.zeros(4, 6), requires_grad=False)
        if result is not None:
            self.q = nn.Parameter(torch.zeros_like(result), requires_grad=False)

    def load_weights(self, weights: Any) -> None:
        out = execute(self.text, dict(weights) | {"p": self.p.data})
        if hasattr(self, "q"):
            self.q.copy_(tensor_in(out))


def tensor_in(out: Any) -> torch.Tensor | None:
    return next((t for t in out if t is not None), None) if isinstance(out, (list, tuple)) else out


def traced(text: str) -> heft.trace.Trace:
    names = {"x": torch.ones(4, 6), "y": torch.ones(4, 6), "v": torch.ones(4)}
    result = tensor_in(execute(text, names | {"p": torch.zeros(4, 6)}))
    return heft.trace(Loader(text, result if result is not None else None), names)


@pytest.mark.parametrize("text", FOLDED)
def test_moved_and_computed_elements_are_not_opaque(text: str) -> None:
    assert traced(text).opaque == {}


@pytest.mark.parametrize("text", OPAQUE)
def test_what_no_tape_holds_is_opaque_and_named(text: str) -> None:
    (uses,) = traced(text).opaque.values()
    last = OPAQUE[text].split()[-1]
    assert last in {use.op for use in uses}
    assert all("test_operators.py:" in use.note or "<string>" in use.note for use in uses)


@pytest.mark.parametrize("text", FACTORIES)
def test_factories_make_constants(text: str) -> None:
    if "empty" not in text:
        assert traced(text).constants == ["q"]


def test_unknown_operator_is_opaque() -> None:
    @torch.library.custom_op("heft_test::swizzle", mutates_args=())
    def swizzle(x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)

    @swizzle.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Swizzled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(4, 6), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            self.p.copy_(swizzle(dict(weights)["x"])[1:].repeat(2, 1)[:4])

    (use,) = heft.trace(Swizzled(), {"x": torch.ones(4, 6)}).opaque["p"]
    assert use.op == "heft_test.swizzle" and use.sources == ("x",)

# SPDX-License-Identifier: Apache-2.0
"""Random loaders, as source text: a failing one can be read, and run again by its seed.

Lines are made one by one and run on real tensors at once, so every line fits the shapes before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .case import Model, Spec, Toy

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_ELEMS = 200
GLOBALS = {"torch": torch, "F": F}


@dataclass
class Draft:
    """A loader that is being written: its lines, and what its names hold so far."""

    rng: random.Random
    values: dict[str, torch.Tensor]
    lines: list[str]

    def pick(self) -> tuple[str, torch.Tensor]:
        """A value to go on with, one of the latest more often than not."""
        names = list(self.values)
        name = self.rng.choice(names[-2:] if self.rng.random() < 0.6 else names)
        return name, self.values[name]

    def dim(self, tensor: torch.Tensor) -> int | None:
        return self.rng.randrange(tensor.dim()) if tensor.dim() else None

    def add(self, expression: str) -> None:
        """One more line, unless its result is too large or empty."""
        result = eval(expression, GLOBALS | self.values)
        if 0 < result.numel() <= MAX_ELEMS and result.dim() <= 4:
            name = f"t{len(self.lines)}"
            self.values[name] = result
            self.lines.append(f"{name} = {expression}")


Step = Callable[[Draft, str, torch.Tensor, int], str | None]


def _narrow(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    start = d.rng.randrange(t.shape[dim])
    return f"{x}.narrow({dim}, {start}, {d.rng.randint(1, t.shape[dim] - start)})"


def _slice(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    start, step = d.rng.randrange(-t.shape[dim], t.shape[dim]), d.rng.randint(1, 3)
    return f"{x}[{':, ' * dim}{start}::{step}]"


def _select(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.select({dim}, {d.rng.randrange(-t.shape[dim], t.shape[dim])})"


def _transpose(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.transpose({dim}, {d.rng.randrange(t.dim())})"


def _permute(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.permute({d.rng.sample(range(t.dim()), t.dim())})"


def _movedim(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.movedim({dim}, {d.rng.randrange(t.dim())})"


def _unsqueeze(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    sizes = [-1] * dim + [d.rng.randint(1, 2)] + [-1] * (t.dim() - dim)
    return f"{x}.unsqueeze({dim}).expand({sizes})"


def _squeeze(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.squeeze()"


def _reshape(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    n = t.numel()
    first = d.rng.choice([k for k in range(1, n + 1) if n % k == 0])
    ways = [f"{x}.reshape({first}, -1)", f"{x}.flatten()", f"{x}.reshape(-1, {first})"]
    return d.rng.choice(ways)


def _unflatten(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    n = t.shape[dim]
    first = d.rng.choice([k for k in range(1, n + 1) if n % k == 0])
    return f"{x}.unflatten({dim}, ({first}, -1))"


def _part(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    n, size = d.rng.randint(1, t.shape[dim]), d.rng.randint(1, t.shape[dim])
    whole = d.rng.choice(
        [
            f"{x}.chunk({n}, dim={dim})",
            f"{x}.split({size}, dim={dim})",
            f"torch.tensor_split({x}, {n}, dim={dim})",
            f"{x}.unbind({dim})",
        ]
    )
    return f"{whole}[{d.rng.choice([0, -1])}]"


def _diagonal(d: Draft, x: str, t: torch.Tensor, dim: int) -> str | None:
    return f"{x}.diagonal(dim1=-2, dim2=-1)" if t.dim() >= 2 else None


def _unfold(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.unfold({dim}, {d.rng.randint(1, t.shape[dim])}, {d.rng.randint(1, 2)})"


def _other(d: Draft, t: torch.Tensor) -> str:
    """Another value of the same shape and dtype, if there is one."""
    same = [n for n, v in d.values.items() if v.shape == t.shape and v.dtype == t.dtype]
    return d.rng.choice(sorted(same))


def _cat(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"torch.cat([{x}, {_other(d, t)}], dim={dim})"


def _stack(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"torch.stack([{_other(d, t)}, {x}], dim={dim})"


def _roll(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"torch.roll({x}, {d.rng.randint(-3, 3)}, {dim})"


def _flip(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.flip({dim})"


def _repeat(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    times = [d.rng.randint(1, 2) for _ in range(t.dim())]
    return d.rng.choice([f"{x}.repeat({times})", f"{x}.repeat_interleave(2, dim={dim})"])


def _lists(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    rows = [d.rng.randrange(t.shape[dim]) for _ in range(d.rng.randint(1, 4))]
    return d.rng.choice(
        [f"{x}[{':, ' * dim}{rows}]", f"{x}.index_select({dim}, torch.tensor({rows}))"]
    )


def _mask(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    mask = f"(torch.arange({t.numel()}) % {d.rng.randint(2, 4)} == 0).reshape({list(t.shape)})"
    other = _other(d, t)
    return d.rng.choice([f"{x}.masked_fill({mask}, 3)", f"torch.where({mask}, {x}, {other})"])


def _pad(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    before, after = d.rng.randint(0, 2), d.rng.randint(-1, 2)
    return f"F.pad({x}, ({before}, {after}), value={d.rng.randint(0, 2)})"


def _triangle(d: Draft, x: str, t: torch.Tensor, dim: int) -> str | None:
    if t.dim() != 2:
        return None
    return f"torch.{d.rng.choice(['tril', 'triu'])}({x}, {d.rng.randint(-1, 1)})"


def _memory(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    turned = ".clone().t()" if t.dim() == 2 else ".data"
    return x + d.rng.choice([".clone()", ".contiguous()", ".detach()", turned])


def _cast(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    return f"{x}.to({d.rng.choice(DTYPES)})"


def _retype(d: Draft, x: str, t: torch.Tensor, dim: int) -> str | None:
    """The same memory as another dtype, as wide or narrower (or wider, where it divides)."""
    dtype = d.rng.choice([torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.int32])
    divides = t.shape[-1] * t.element_size() % dtype.itemsize == 0
    if t.stride(-1) != 1 or (dtype.itemsize > t.element_size() and not divides):
        return None
    if dtype.itemsize > t.element_size() and not t.is_contiguous():
        return None
    return f"{x}.view({dtype})"


def _arithmetic(d: Draft, x: str, t: torch.Tensor, dim: int) -> str:
    c = d.rng.choice([0.5, 3, -1.25, 0.3])
    other = _other(d, t)
    return d.rng.choice([f"{x} + {c}", f"{x} * {c}", f"{x} / {c}", f"-{x}", f"{x} * {other}"])


STEPS: tuple[Step, ...] = (
    _narrow, _slice, _select, _transpose, _permute, _movedim, _unsqueeze, _squeeze, _reshape,
    _unflatten, _part, _diagonal, _unfold, _cat, _stack, _roll, _flip, _repeat, _lists, _mask,
    _pad, _triangle, _memory, _cast, _arithmetic, _retype,
)  # fmt: skip


def _in_place(d: Draft) -> None:
    """Write into one of the values: a temporary, or the tensor that the loader was given."""
    name, tensor = d.pick()
    if not tensor.dim() or not _is_injective(tensor):
        return
    dim = d.rng.randrange(tensor.dim())
    at = f"{':, ' * dim}{d.rng.randrange(tensor.shape[dim])}"
    other = _other(d, tensor)
    ways = [
        f"{name}[{at}] = {d.rng.randint(0, 3)}",
        f"{name}.narrow({dim}, 0, 1).zero_()",
        f"{name}.add_(0.5)",
        f"{name}.mul_(-2)",
        f"{name}.copy_({other}.clone())",
        f"{name}[{':, ' * dim}[0]] = {other}.clone().narrow({dim}, 0, 1)",
    ]
    if not tensor.dtype.is_floating_point:
        ways = ways[:2]
    line = d.rng.choice(ways)
    exec(line, GLOBALS | d.values)
    d.lines.append(line)


def _is_injective(tensor: torch.Tensor) -> bool:
    """Whether no two of its elements share memory."""
    places = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    seen = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return len(seen.unique()) == tensor.numel()


def _value_read(d: Draft) -> None:
    """Ask for a number, and use it as a factor or as contents of a new tensor."""
    name, tensor = d.pick()
    other, _ = d.pick()
    at = d.rng.randrange(tensor.numel())
    number = f"n{len(d.lines)}"
    d.lines.append(f"{number} = {name}.flatten()[{at}].item()")
    expression = d.rng.choice([f"{other} * {number}", f"torch.full_like({other}, {number})"])
    globals_now = GLOBALS | d.values | {number: 1.0}
    result = eval(expression, globals_now)
    temp = f"t{len(d.lines)}"
    d.values[temp] = result
    d.lines.append(f"{temp} = {expression}")


def random_toy(seed: int) -> tuple[Toy, str]:
    """A toy with a random loader, and the loader's source text."""
    rng = random.Random(seed)
    sources = {f"x{i}": _random_spec(rng) for i in range(rng.randint(1, 3))}
    draft = Draft(rng, {n: torch.ones(s.shape, dtype=s.dtype) for n, s in sources.items()}, [])
    for _ in range(rng.randint(1, 8)):
        _add_step(draft)
    params: dict[str, Spec] = {}
    for i in range(rng.randint(1, 2)):
        params[f"p{i}"] = _write(draft, f"p{i}")
    sources["anchor"] = params["anchor_param"] = Spec(torch.float32, (1,))
    draft.lines.append("anchor_param.copy_(anchor)")  # a plan of constants alone is refused
    text = "\n".join(draft.lines)
    code = compile(text, f"<random loader {seed}>", "exec")

    def load(model: Model, weights: dict[str, torch.Tensor]) -> None:
        exec(code, GLOBALS | weights | dict(model.named_parameters()))

    expect = dict.fromkeys(params, "")
    toy = Toy(f"random_{seed}", sources, lambda: Model(params, load), expect)
    return toy, text


def _random_spec(rng: random.Random) -> Spec:
    n_dims = rng.choice([0, 1, 1, 2, 2, 2, 2, 3, 3])
    shape = tuple(rng.randint(1, 5) for _ in range(n_dims))
    return Spec(rng.choice(DTYPES), shape)


def _add_step(draft: Draft) -> None:
    kind = draft.rng.random()
    if kind < 0.1:
        _in_place(draft)
        return
    if kind < 0.15:
        _value_read(draft)
        return
    name, tensor = draft.pick()
    dim = draft.dim(tensor)
    if dim is None:
        draft.add(f"{name}.reshape(1).expand(3)")
        return
    expression = draft.rng.choice(STEPS)(draft, name, tensor, dim)
    if expression is not None:
        draft.add(expression)


def _write(draft: Draft, param: str) -> Spec:
    """Write one of the last values to a new parameter; its spec."""
    rng = draft.rng
    names = sorted(draft.values, key=lambda n: (n.startswith("t"), len(n), n))
    name = rng.choice(names[-3:])
    value = draft.values[name]
    dtype = rng.choice(DTYPES)
    shape = tuple(value.shape)
    way = rng.randrange(5)
    if way == 0 and value.dim():  # the corner of a larger one
        draft.lines.append(f"{param}.fill_({rng.randint(0, 2)})")
        corner = ", ".join(f":{n}" for n in shape)
        draft.lines.append(f"{param}[{corner}] = {name}")
        return Spec(dtype, tuple(n + rng.randint(0, 2) for n in shape))
    if way == 1 and value.dim() >= 2:  # turned
        draft.lines.append(f"{param}.transpose(0, 1).copy_({name})")
        return Spec(dtype, (shape[1], shape[0], *shape[2:]))
    if way == 2 and value.dim():  # row by row, in another order
        order = rng.sample(range(shape[0]), shape[0])
        draft.lines.append(f"{param}[{order}] = {name}.to({param}.dtype)")
        return Spec(dtype, shape)
    if way == 3 and value.dim():  # part by part
        draft.lines.append(f"{param}.data[:-1].copy_({name}[1:])")
        draft.lines.append(f"{param}.data[-1:].copy_({name}[:1])")
        return Spec(dtype, shape)
    draft.lines.append(f"{param}.copy_({name})")
    return Spec(dtype, shape)

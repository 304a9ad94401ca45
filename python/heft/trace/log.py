# SPDX-License-Identifier: Apache-2.0
"""What a traced run leaves behind: buffers, and calls with the writes they made, in order.

Three layers of description. A `Ref` is a tensor as the loader saw it: a buffer and a meta tensor,
whose storage offset, sizes and strides PyTorch computed. A `Region` is the same in plain numbers,
with signed strides, in elements of the dtype the loader saw. A `Write` says what happens to a
region. Writes become a tape in emit.py; replay.py runs calls again, on real tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Buffer:
    """A flat run of elements that a traced run reads or writes."""

    __slots__ = (
        "base",
        "calls",
        "index",
        "is_tensor_attribute",
        "kind",
        "live",
        "name",
        "names",
        "numel",
        "shadow",
    )

    def __init__(self, kind: str, name: str, base: torch.Tensor, index: int) -> None:
        self.kind = kind  # "source", "param" or "temp"
        self.name = name
        self.base = base  # meta: the tensor as it was declared or made; its storage is the buffer's
        self.index = index
        self.numel = base.untyped_storage().nbytes() // base.element_size()  # of the storage
        self.calls: list[Call] = []  # those that wrote here
        self.shadow: Buffer | None = None  # of a source that the loader wrote into: the copy
        self.names: list[str] = [name] if name else []  # a parameter's own name, then its aliases
        self.live: torch.Tensor | None = None  # integers that are configuration
        self.is_tensor_attribute = False  # a module's buffer or plain tensor, not an nn.Parameter

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def __repr__(self) -> str:
        what = f"{self.kind} {self.name!r}" if self.name else f"{self.kind} {self.index}"
        return f"{what} ({str(self.dtype).removeprefix('torch.')} {list(self.base.shape)})"


class Region(NamedTuple):
    """A strided window on a buffer, in elements of dtype; strides are signed, 0 repeats."""

    buffer: Buffer
    offset: int
    extent: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype  # as the loader saw it; another one than the buffer's after view(dtype)

    @property
    def numel(self) -> int:
        n = 1
        for e in self.extent:
            n *= e
        return n

    def flip(self, dim: int) -> Region:
        extent, stride = self.extent[dim], list(self.stride)
        offset = self.offset + max(extent - 1, 0) * stride[dim]
        stride[dim] = -stride[dim]
        return self._replace(offset=offset, stride=tuple(stride))

    def expand(self, extent: Sequence[int]) -> Region:
        """Broadcast to more or longer dimensions."""
        n_new = len(extent) - len(self.extent)
        if n_new < 0:
            raise RuntimeError(f"shape {list(self.extent)} does not broadcast to {list(extent)}")
        stride = [0] * n_new
        for have, want, step in zip(self.extent, extent[n_new:], self.stride, strict=True):
            if have != want and have != 1:
                raise RuntimeError(
                    f"shape {list(self.extent)} does not broadcast to {list(extent)}"
                )
            stride.append(step if have == want else 0)
        return self._replace(extent=tuple(extent), stride=tuple(stride))


class Ref(NamedTuple):
    """A tensor as the loader saw it: a buffer, and a meta tensor on that buffer's storage."""

    buffer: Buffer
    meta: torch.Tensor

    @property
    def region(self) -> Region:
        m = self.meta
        return Region(self.buffer, m.storage_offset(), tuple(m.shape), m.stride(), m.dtype)

    def view(self, meta: torch.Tensor) -> Ref:
        return Ref(self.buffer, meta)


class Step(NamedTuple):
    """One operation of an element-wise program, in postfix order."""

    code: str  # of heft.OpCode
    dtype: torch.dtype | None = None
    arg: int = 0
    imm: float = 0.0


class Write(NamedTuple):
    """One write: "copy", "fill" (value: bits), "const" (value: a tensor), "map" or "opaque"."""

    kind: str
    dsts: tuple[Region, ...]
    srcs: tuple[Region, ...] = ()
    value: Any = None
    program: tuple[Step, ...] = ()
    op: str = ""


class Call:
    """One operator that the loader called, and the writes it comes to."""

    __slots__ = ("args", "func", "index", "kwargs", "note", "outs", "writes")

    def __init__(self, index: int, func: Any, args: Any, kwargs: Any, note: str) -> None:
        self.index = index
        self.func = func
        self.args = args  # with a Ref where the loader's call had a stand-in
        self.kwargs = kwargs
        self.note = note  # file:line in the loader
        self.outs: list[Ref] = []  # fresh results, in the order in which func returns them
        self.writes: list[Write] = []

    @property
    def op(self) -> str:
        return str(self.func).removeprefix("aten.").removesuffix(".default")

# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules and state dicts as a side of a round: names, dtypes, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from heft._handles import argument_error
from heft._native import ffi
from heft.dtypes import BY_FRAMEWORK_NAME, DType
from heft.manifest import Manifest
from heft.memory import Memory
from heft.publisher import Begin, Member, Publisher, PushResult

_NAMES = {**BY_FRAMEWORK_NAME, "float4_e2m1fn_x2": DType.F4}
_DTYPES = {getattr(torch, name): dtype for name, dtype in _NAMES.items() if hasattr(torch, name)}
_TORCH = {dtype: torch_dtype for torch_dtype, dtype in _DTYPES.items()}

Source = torch.nn.Module | Mapping[str, torch.Tensor]


def dtype_of(dtype: torch.dtype) -> DType:
    """The dtype of heft; an error names what it has not."""
    if dtype not in _DTYPES:
        raise argument_error(f"{dtype} is no dtype of heft")
    return _DTYPES[dtype]


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of PyTorch; an error names what it has not."""
    if dtype not in _TORCH:
        raise argument_error(f"PyTorch {torch.__version__} has no {DType(dtype).name}")
    return _TORCH[dtype]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The logical shape: a torch element of packed F4 holds two."""
    shape = tuple(tensor.shape)
    if tensor.dtype in _DTYPES and _DTYPES[tensor.dtype] is DType.F4:
        return (*shape[:-1], 2 * shape[-1])
    return shape


def memory_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements of the same memory."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def tensors_of(source: Source) -> dict[str, torch.Tensor]:
    """The tensors of a state dict by name: parameters and persistent buffers of a module.

    Of tied ones, which share their memory, the first name alone (aliases_of has the others).
    """
    return _split(source)[0]


def aliases_of(source: Source) -> dict[str, str]:
    """The names that tensors_of leaves out, and the name each shares its memory with."""
    return _split(source)[1]


def _split(source: Source) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    state = source.state_dict(keep_vars=True) if isinstance(source, torch.nn.Module) else source
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise argument_error(f'"{name}" is a {type(tensor).__name__}, not a tensor')
        if tensor.layout is not torch.strided:
            raise argument_error(f'tensor "{name}" is {tensor.layout}: to_dense() it first')
        if tensor.dtype not in _DTYPES:
            raise argument_error(f'tensor "{name}": {tensor.dtype} is no dtype of heft')
        key = memory_key(tensor)
        if tensor.numel() > 0 and key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor
    return tensors, aliases


def manifest_of(
    source: Source, side: str = "source", attrs: Mapping[str, str] | None = None
) -> Manifest:
    """What a module or a state dict holds, as one side of a round."""
    tensors = tensors_of(source)
    entries = [(name, dtype_of(t.dtype), shape_of(t)) for name, t in tensors.items()]
    return Manifest.create(side, entries, attrs={"framework": "torch", **(attrs or {})})


def tensor_of(memory: Memory) -> torch.Tensor:
    """A tensor over contiguous memory, which must live as long."""
    dtype = torch_dtype(memory.dtype)
    if memory.n_bytes == 0:
        return torch.empty(memory.shape, dtype=dtype)
    buffer = ffi.buffer(memory.pointer, memory.n_bytes)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(memory.shape)


def _first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two mappings of names to memory keys, by the first name."""
    name = next(n for n in [*before, *now] if before.get(n) != now.get(n))
    if name not in now:
        return f'tensor "{name}" is gone, or shares the memory of another one now'
    if name not in before:
        return f'tensor "{name}" was not there when the publisher was made'
    (address, *layout), (address_now, *layout_now) = before[name], now[name]
    if layout != layout_now:
        return f'tensor "{name}" was {_layout_text(*layout)}, is {_layout_text(*layout_now)}'
    return f'tensor "{name}" moved from {address:#x} to {address_now:#x}'


def _layout_text(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)} with strides {list(strides)}"


class ModulePublisher:
    """A source rank: the tensors of a module or a state dict, pushed as they are at each push.

    Tensors that are not contiguous are copied at each push (`copied_bytes` says how much memory
    that takes); all others are read where they are, and must not change while a push runs. The
    module is looked at again before each push: a tensor that was replaced, added or taken away, or
    was given other memory, is refused by name (make a new publisher then).
    """

    def __init__(
        self,
        source: Source,
        *,
        url: str | None = None,
        member: Member = Member(),  # noqa: B008  immutable
        max_bytes_per_s: int = 0,
        begin: Begin = Begin.FIRST,
        n_ranks: int = 0,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        tensors, self.aliases = _split(source)
        self._source = source
        self._keys = {name: memory_key(tensor) for name, tensor in tensors.items()}
        plain = {name: tensor.detach() for name, tensor in tensors.items()}
        self._copies = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype)
            for name, tensor in plain.items()
            if not tensor.is_contiguous()
        }
        self._strided = {name: plain[name] for name in self._copies}
        self.publisher = Publisher(
            url,
            {**plain, **self._copies},
            manifest=manifest_of(tensors, attrs=attrs),
            member=member,
            max_bytes_per_s=max_bytes_per_s,
            begin=begin,
            n_ranks=n_ranks,
        )

    @property
    def manifest(self) -> Manifest:
        return self.publisher.manifest

    @property
    def copied_bytes(self) -> int:
        """Memory for copies of tensors that are not contiguous."""
        return sum(copy.nbytes for copy in self._copies.values())

    def push(self, version: int) -> PushResult:
        """Bring every registered engine to this version, or leave all of them at theirs."""
        now = {name: memory_key(tensor) for name, tensor in tensors_of(self._source).items()}
        if now != self._keys:
            raise argument_error(f"{_first_change(self._keys, now)}; make a new publisher of it")
        for name, copy in self._copies.items():
            copy.copy_(self._strided[name])
        return self.publisher.push(version)

    def close(self) -> None:
        self.publisher.close()

    def __enter__(self) -> ModulePublisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

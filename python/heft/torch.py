# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules and state dicts as a side of a round: names, dtypes, memory."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from heft._handles import argument_error
from heft._native import ffi
from heft.dtypes import BY_FRAMEWORK_NAME, DType
from heft.held import Held, add_cut
from heft.manifest import Manifest, Part
from heft.memory import Memory
from heft.publisher import Begin, Member, Publisher, PushResult

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_NAMES = {**BY_FRAMEWORK_NAME, "float4_e2m1fn_x2": DType.F4}
DTYPES = {getattr(torch, name): dtype for name, dtype in _NAMES.items() if hasattr(torch, name)}
_TORCH = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}

Source = torch.nn.Module | Mapping[str, torch.Tensor]


def dtype_of(dtype: torch.dtype) -> DType:
    """The dtype of heft; an error names what it has not."""
    if dtype not in DTYPES:
        raise argument_error(f"{dtype} is no dtype of heft")
    return DTYPES[dtype]


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of PyTorch; an error names what it has not."""
    if dtype not in _TORCH:
        raise argument_error(f"PyTorch {torch.__version__} has no {DType(dtype).name}")
    return _TORCH[dtype]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The logical shape: a torch element of packed F4 holds two."""
    shape = tuple(tensor.shape)
    if tensor.dtype in DTYPES and DTYPES[tensor.dtype] is DType.F4:
        return (*shape[:-1], 2 * shape[-1])
    return shape


def memory_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements of the same memory."""
    address: Any = tensor.data_ptr()
    if tensor.is_meta:  # no memory, but tied ones share what stands for it
        address = (tensor.untyped_storage()._cdata, tensor.storage_offset())
    return (address, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def tensors_of(source: Source) -> dict[str, torch.Tensor]:
    """The tensors of a state dict by name: parameters and persistent buffers of a module.

    Of tied ones, which share their memory, the first name alone (aliases_of has the others).
    """
    return _split(source)[0]


def aliases_of(source: Source) -> dict[str, str]:
    """The names that tensors_of leaves out, and the name each shares its memory with."""
    return _split(source)[1]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor: a tensor of which this process has a part."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _local_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not is_sharded(tensor):
        return tensor
    return importlib.import_module("heft.dtensor").local_of(name, tensor)


def _tensors_in(source: Source) -> Mapping[str, torch.Tensor]:
    if isinstance(source, torch.nn.Module):
        found: Mapping[str, torch.Tensor] = source.state_dict(keep_vars=True)
        return found
    if isinstance(source, Mapping):
        return source
    raise argument_error(
        f"a {type(source).__name__} is no source: give a module, a state dict, or a mapping of "
        "names to tensors"
    )


def _split(source: Source) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in _tensors_in(source).items():
        if not isinstance(tensor, torch.Tensor):
            raise argument_error(f'"{name}" is a {type(tensor).__name__}, not a tensor')
        if tensor.layout is not torch.strided:
            raise argument_error(f'tensor "{name}" is {tensor.layout}: to_dense() it first')
        if tensor.dtype not in DTYPES:
            raise argument_error(f'tensor "{name}": {tensor.dtype} is no dtype of heft')
        local = _local_of(name, tensor)
        key = (*memory_key(local), tuple(tensor.shape))
        if local.numel() > 0 and key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor
    return tensors, aliases


def held_by(
    source: Source,
    *,
    mesh: DeviceMesh | None = None,
    rank: int | None = None,
    attrs: Mapping[str, str] | None = None,
) -> Held:
    """What this rank holds of a module or a state dict: the local part of each DTensor.

    DTensors say themselves what they are (FSDP2, HSDP, tensor and expert parallelism, in any
    combination). mesh: of the ranks on which this model lies; what a tensor's own mesh says nothing
    about is the same on all of it, and a plain tensor is so on each of its ranks. Without it such a
    tensor is this rank's alone, and a second rank with that name is refused when a push begins. Stages
    of a pipeline are no copies: their dimension does not belong into the mesh. rank: of the source;
    None: that of the process where anything is sharded, else 0. Nothing is copied, nothing is sent.
    """
    tensors, _ = _split(source)
    held = Held(0, 0, attrs={"framework": "torch", **(attrs or {})})
    for name, tensor in tensors.items():
        _hold(held, name, tensor, mesh)
    if mesh is not None or any(map(is_sharded, tensors.values())):
        held.rank, held.n_ranks = _process_ranks()
    if rank is not None:
        held.rank = rank
    return held


def _hold(held: Held, name: str, tensor: torch.Tensor, mesh: DeviceMesh | None) -> None:
    dtype, sharded = dtype_of(tensor.dtype), is_sharded(tensor)
    if not sharded and mesh is None:
        held.add(name, dtype, shape_of(tensor), tensor.detach())
        return
    dtensors = importlib.import_module("heft.dtensor")
    own = dtensors.shards_of(name, tensor) if sharded else dtensors.whole(tensor)
    if own is None:
        return
    n_copies, replica = own.n_copies, own.replica
    if mesh is not None:
        n, i = dtensors.copies_on(mesh, name, tensor.device_mesh if sharded else None)
        n_copies, replica = n * n_copies, i * n_copies + replica
    if n_copies == 1 and own.is_whole:
        held.add(name, dtype, shape_of(tensor), own.local)
    else:
        add_cut(held, name, dtype, own.shape, own.boxes, own.local, replica)


def _process_ranks() -> tuple[int, int]:
    """(rank, ranks) of this process, as torch.distributed has them; (0, 0) without it."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized():
        return 0, 0
    return group.get_rank(), group.get_world_size()


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


def _keys_of(held: Held) -> dict[str, Any]:
    return {
        name: (held.parts.get(name), *memory_key(tensor)) for name, tensor in held.tensors.items()
    }


def _first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two mappings of names to memory keys, by the first name."""
    name = next(n for n in [*before, *now] if before.get(n) != now.get(n))
    if name not in now:
        return f'tensor "{name}" is gone, or shares the memory of another one now'
    if name not in before:
        return f'tensor "{name}" was not there when the publisher was made'
    (part, address, *layout), (part_now, address_now, *layout_now) = before[name], now[name]
    if part != part_now:
        return f'tensor "{name}" was {_part_text(part)}, is {_part_text(part_now)}'
    if layout != layout_now:
        return f'tensor "{name}" was {_layout_text(*layout)}, is {_layout_text(*layout_now)}'
    return f'tensor "{name}" moved from {address:#x} to {address_now:#x}'


def _layout_text(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)} with strides {list(strides)}"


def _part_text(part: Part | None) -> str:
    if part is None:
        return "whole"
    return f'the box at {list(part.begin)} of "{part.tensor}" {list(part.shape)}'


class ModulePublisher:
    """A source rank: the tensors of a module or a state dict, pushed as they are at each push.

    Sharded modules (held_by) are published by every rank of the trainer, each its own part: all
    make a publisher, and all push. Tensors that are not contiguous are copied at each push
    (`copied_bytes` says how much memory that takes); all others are read where they are, and must
    not change while a push runs. The module is looked at again before each push: a tensor that was
    replaced, added or taken away, or was given other memory, is refused by name (renew() then).

    source: or a function without arguments that says what is held, called again at each push. mesh,
    rank: as in held_by. n_ranks: how many ranks of the trainer publish; 0: of a sharded module all
    of the process group, else not said.
    """

    def __init__(
        self,
        source: Source | Callable[[], Held],
        *,
        url: str | None = None,
        member: Member = Member(),  # noqa: B008  immutable
        mesh: DeviceMesh | None = None,
        rank: int | None = None,
        max_bytes_per_s: int = 0,
        begin: Begin = Begin.FIRST,
        n_ranks: int = 0,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        self.aliases: dict[str, str] = {}
        if isinstance(source, torch.nn.Module) or not callable(source):
            self.aliases = aliases_of(source)
            rank = member.rank if rank is None and member.rank else rank
            self._read = functools.partial(held_by, source, mesh=mesh, rank=rank, attrs=attrs)
        else:
            self._read = source
        self._options = {
            "url": url,
            "member": member,
            "max_bytes_per_s": max_bytes_per_s,
            "begin": begin,
        }
        self._register(n_ranks)

    def _register(self, n_ranks: int) -> None:
        held = self._read()
        self._keys = _keys_of(held)
        plain = {name: tensor.detach() for name, tensor in held.tensors.items()}
        self._copies = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype)
            for name, tensor in plain.items()
            if not tensor.is_contiguous()
        }
        self._strided = {name: plain[name] for name in self._copies}
        held.tensors = {**plain, **self._copies}
        self.publisher = Publisher(tensors=held, n_ranks=n_ranks, **self._options)

    def renew(self, n_ranks: int = 0) -> None:
        """This rank holds something else now (other experts, other boxes): declare that.

        Between pushes; nothing is restarted. What the source says is read again, with the rank that
        it says; n_ranks: how many ranks publish now, as at creation. Every rank whose boxes have
        changed renews, in any order, before the next push; one that does not take part any more is
        closed. After a failure it is closed, too: make a new publisher then.
        """
        self.publisher.close()
        self._register(n_ranks)

    @property
    def manifest(self) -> Manifest:
        return self.publisher.manifest

    @property
    def copied_bytes(self) -> int:
        """Memory for copies of tensors that are not contiguous."""
        return sum(copy.nbytes for copy in self._copies.values())

    def push(self, version: int) -> PushResult:
        """Bring every registered engine to this version, or leave all of them at theirs."""
        now = _keys_of(self._read())
        if now != self._keys:
            raise argument_error(f"{_first_change(self._keys, now)}; renew() the publisher")
        for name, copy in self._copies.items():
            copy.copy_(self._strided[name])
        return self.publisher.push(version)

    def close(self) -> None:
        self.publisher.close()

    def __enter__(self) -> ModulePublisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

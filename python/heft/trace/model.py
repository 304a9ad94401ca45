# SPDX-License-Identifier: Apache-2.0
"""The model during a trace: stand-ins in place of its tensors, and everything back as it was.

A loader finds tensors through its modules: parameters, buffers, plain attributes, lists or dicts of
them. Each place gets a stand-in with the same geometry, class and attributes; tensors that share
storage get stand-ins on one buffer. Whatever else a loader keeps on modules is put back as well.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from heft.trace import standin
from heft.trace.errors import BypassError, TraceError
from heft.trace.log import Buffer, Ref
from heft.trace.standin import OWN_ATTRIBUTES, StandIn
from heft.trace.tracer import Tracer, on_storage

_CONTAINERS = (dict, list, set)
_ATOMS = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    type,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.Size,
)
_DEPTH = 6


class Place(NamedTuple):
    """Where a tensor stands: container[key]."""

    kind: str  # "parameter", "buffer" or "attribute"
    name: str  # dotted, from the model
    container: Any
    key: Any
    tensor: torch.Tensor


class Owner(NamedTuple):
    """A tensor that a plan may write: the first to claim its elements of a storage."""

    name: str
    kind: str
    buffer: Buffer
    meta: torch.Tensor


def places_of(model: torch.nn.Module) -> list[Place]:
    """All tensors of a model: parameters, then buffers, then attributes; each in module order."""
    found: dict[str, list[Place]] = {"parameter": [], "buffer": [], "attribute": []}
    for prefix, module in model.named_modules():
        dot = prefix + "." if prefix else ""
        for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
            for key, tensor in tensors.items():
                if tensor is not None:
                    found[kind].append(Place(kind, dot + key, tensors, key, tensor))
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                found["attribute"] += _attributes(dot + key, vars(module), key, value, 3)
    return found["parameter"] + found["buffer"] + found["attribute"]


def _attributes(name: str, container: Any, key: Any, value: Any, depth: int) -> Iterator[Place]:
    if isinstance(value, torch.Tensor):
        yield Place("attribute", name, container, key, value)
    elif depth and isinstance(value, list | dict):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for k, v in items:
            yield from _attributes(f"{name}.{k}", value, k, v, depth - 1)


class Model:
    """The tensors of a model, their stand-ins, and the way back."""

    def __init__(self, model: torch.nn.Module, tracer: Tracer) -> None:
        self.model = model
        self.tracer = tracer
        self.owners: list[Owner] = []
        self.aliases: dict[str, str] = {}  # name -> the parameter that it is, or is a view of
        self._places = places_of(model)
        self._state = State(model)
        self._before = [(p, geometry(p.tensor)) for p in self._places]
        self._stand_ins: dict[int, StandIn] = {}  # by id of the real tensor
        self._buffers: dict[int, Buffer] = {}  # by storage

    # ---- replacing ----

    def replace(self) -> None:
        for place in self._places:
            if id(place.tensor) not in self._stand_ins:
                self._stand_ins[id(place.tensor)] = self._stand_in(place)
            else:
                self.aliases[place.name] = self._name_of(place.tensor)
            place.container[place.key] = self._stand_ins[id(place.tensor)]

    def _name_of(self, tensor: torch.Tensor) -> str:
        return self._stand_ins[id(tensor)]._heft_ref.buffer.name

    def _stand_in(self, place: Place) -> StandIn:
        tensor = place.tensor
        if is_lazy(tensor):
            raise TraceError(
                f'{place.kind} "{place.name}" has no shape yet (it is lazy); build the model first'
            )
        try:
            cls = standin.class_for(type(tensor))
            buffer = self._buffer(place)
        except (BypassError, NotImplementedError) as error:
            raise BypassError(f'{place.kind} "{place.name}": {error}') from None
        device = self.tracer.device if tensor.device.type == "meta" else tensor.device
        ref = Ref(buffer, on_storage(buffer, tensor))
        self._claim(place, ref)
        out = standin.make(self.tracer, ref, device, cls, tensor.requires_grad)
        vars(out).update(vars(tensor))
        return out

    def _buffer(self, place: Place) -> Buffer:
        storage = place.tensor.untyped_storage()
        buffer = self._buffers.get(storage._cdata)
        if buffer is None:
            base = torch.empty(0, dtype=place.tensor.dtype, device="meta")
            base.set_(
                torch.UntypedStorage(storage.nbytes(), device="meta"),
                place.tensor.storage_offset(),
                place.tensor.shape,
                place.tensor.stride(),
            )
            buffer = self.tracer.new_buffer("param", place.name, base)
            buffer.is_tensor_attribute = place.kind != "parameter"
            buffer.live = place.tensor if _is_configuration(place) else None
            self._buffers[storage._cdata] = buffer
            self.tracer.bind_storage(place.tensor, buffer)
        return buffer

    def _claim(self, place: Place, ref: Ref) -> None:
        """A tensor owns its elements of a storage; if they have an owner, it is an alias."""
        mine = span(ref.meta)
        for owner in self.owners:
            if owner.buffer is ref.buffer and ref.meta.numel() and owner.meta.numel():
                theirs = span(owner.meta)
                if (
                    mine[0] <= theirs[1]
                    and theirs[0] <= mine[1]
                    and not _are_disjoint(ref.meta, owner.meta)
                ):
                    is_inside = theirs[0] <= mine[0] and mine[1] <= theirs[1]
                    if not is_inside and place.kind == "parameter":
                        raise TraceError(
                            f'parameter "{place.name}" shares a part of its memory with '
                            f'"{owner.name}"'
                        )
                    self.aliases[place.name] = owner.name
                    return
        self.owners.append(Owner(place.name, place.kind, ref.buffer, ref.meta))

    # ---- comparing ----

    def check(self) -> None:
        """What escapes every hook: replaced objects, changed geometry, deleted attributes."""
        for place, before in self._before:
            if geometry(place.tensor) != before:
                raise BypassError(
                    f'{place.kind} "{place.name}": the loader changed the tensor itself: '
                    f"{before} became {geometry(place.tensor)}"
                )
            now = _get(place.container, place.key)
            if now is not self._stand_ins[id(place.tensor)] and place.kind != "attribute":
                what = "deleted" if now is None else "replaced by another tensor"
                raise BypassError(
                    f'{place.kind} "{place.name}" was {what} by the loader; graphs keep the old one'
                )
            self._check_attributes(place)

    def _check_attributes(self, place: Place) -> None:
        now = vars(self._stand_ins[id(place.tensor)])
        for key in vars(place.tensor):
            if key not in now:
                raise BypassError(
                    f'{place.kind} "{place.name}": the loader deleted its attribute "{key}"'
                )

    def changed_attributes(self) -> dict[str, list[str]]:
        """Attributes of parameters that the loader set; they are put back."""
        changed: dict[str, list[str]] = {}
        for place in self._places:
            before, now = vars(place.tensor), vars(self._stand_ins[id(place.tensor)])
            keys = [
                k
                for k, v in now.items()
                if k not in OWN_ATTRIBUTES and before.get(k, OWN_ATTRIBUTES) is not v
            ]
            if keys:
                changed[place.name] = keys
        return changed

    def new_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors that stand on modules now and did not before, by name."""
        known = {id(s) for s in self._stand_ins.values()}
        for place in places_of(self.model):
            if id(place.tensor) not in known:
                yield place.name, place.tensor

    def restore(self) -> None:
        self._state.restore()


def _is_configuration(place: Place) -> bool:
    """Integers and masks beside the parameters are facts to look up, such as expert maps."""
    exact = not (place.tensor.dtype.is_floating_point or place.tensor.dtype.is_complex)
    return exact and place.kind != "parameter" and place.tensor.device.type != "meta"


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What must not change: storage, offset, shape, strides, dtype."""
    storage = tensor.untyped_storage()
    return (
        storage._cdata,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


def span(meta: torch.Tensor) -> tuple[int, int]:
    """First and last byte of a tensor in its storage."""
    size = meta.element_size()
    first = meta.storage_offset() * size
    last = first + sum((e - 1) * s for e, s in zip(meta.shape, meta.stride(), strict=True)) * size
    return first, last + size - 1


def _are_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether interleaved tensors have no byte in common; large ones are taken to share."""
    if max(a.numel(), b.numel()) > 1 << 22 or a.dtype != b.dtype:
        return False
    sets = []
    for t in (a, b):
        places = torch.zeros(1, dtype=torch.long) + t.storage_offset()
        for e, s in zip(t.shape, t.stride(), strict=True):
            places = (places[:, None] + torch.arange(e) * s).reshape(-1)
        sets.append(places)
    return not bool(torch.isin(sets[0], sets[1]).any())


def _get(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError):
        return None


class State:
    """Contents of all containers that hang on modules, and of plain objects one step away."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}
        for module in model.modules():
            self._save(vars(module), _DEPTH, objects=True)
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                if tensor is not None:
                    self._save(vars(tensor), _DEPTH, objects=False)

    def _save(self, container: Any, depth: int, objects: bool) -> None:
        if id(container) in self._saved or depth == 0:
            return
        self._saved[id(container)] = (container, container.copy())
        for value in container.values() if isinstance(container, dict) else container:
            if isinstance(value, _CONTAINERS):
                self._save(value, depth - 1, objects)
            elif objects and _is_plain_object(value):
                self._save(vars(value), depth - 1, objects=False)

    def restore(self) -> None:
        for container, saved in self._saved.values():
            if isinstance(container, list):
                container[:] = saved
            else:
                container.clear()
                container.update(saved)


def _is_plain_object(value: Any) -> bool:
    """An object of an engine's own class, such as a quantisation method with a cache."""
    if isinstance(value, (*_ATOMS, torch.Tensor, torch.nn.Module)) or not isinstance(
        getattr(value, "__dict__", None), dict
    ):
        return False
    return type(value).__module__.split(".")[0] not in ("torch", "builtins", "threading", "logging")

# SPDX-License-Identifier: Apache-2.0
"""Stand-ins: tensors without storage that tell a tracer what is done with them.

A stand-in is a wrapper subclass: it has the shape, strides, dtype and device that a loader expects,
and inside a meta tensor on which PyTorch computes the geometry of every view. Its dispatch hook
follows it into any thread. What would reach past the operators is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from heft.trace.errors import BypassError
from heft.trace.log import Ref

if TYPE_CHECKING:
    from heft.trace.tracer import Tracer

OWN_ATTRIBUTES = ("_heft_ref", "_heft_tracer")


class StandIn(torch.Tensor):
    """A source, a parameter, or what a loader made of them."""

    _heft_ref: Ref
    _heft_tracer: Tracer

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tracer_of(args, kwargs).dispatch(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return make(self._heft_tracer, self._heft_ref, self.device)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if isinstance(value, StandIn) and value._heft_ref.region == self._heft_ref.region:
            return  # what it is already, as of module.to() with nothing to do
        refuse(self, "assigning .data", "it moves the parameter to other memory; use .copy_()")

    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._heft_tracer.device_move(self)

    def tolist(self) -> Any:
        return _values(self, "tolist()").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """A constant as an array that cannot be written: what numpy writes, no trace would see."""
        array = _values(self, "numpy()").numpy()
        array.flags.writeable = False
        return array

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy().__array__(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<stand-in {list(self.shape)} {self.dtype} of {self._heft_ref.buffer!r}>"

    def __format__(self, spec: str) -> str:
        return repr(self)


def tracer_of(args: Any, kwargs: Any) -> Tracer:
    """The tracer of the first stand-in among the arguments of an operator."""
    for tree in (args, (kwargs or {}).values()):
        for arg in tree:
            for leaf in arg if isinstance(arg, list | tuple) else (arg,):
                if isinstance(leaf, StandIn):
                    return leaf._heft_tracer
    raise AssertionError("an operator came to a stand-in's hook without one")


def make(
    tracer: Tracer,
    ref: Ref,
    device: torch.device,
    cls: type[StandIn] = StandIn,
    requires_grad: bool = False,
) -> StandIn:
    """A stand-in of class cls for what ref describes."""
    if torch.is_inference_mode_enabled():  # a view of a normal tensor is a normal tensor, there too
        with torch.inference_mode(False):
            return make(tracer, ref, device, cls, requires_grad)
    m = ref.meta
    self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        cls,
        m.shape,
        strides=m.stride(),
        storage_offset=m.storage_offset(),
        dtype=m.dtype,
        device=device,
        requires_grad=requires_grad,
    )
    torch._C._set_throw_on_mutable_data_ptr(self)  # for C++ that takes the pointer, as DLPack does
    self._heft_ref = ref
    self._heft_tracer = tracer
    return self


_classes: dict[type, type[StandIn]] = {}


def class_for(cls: type) -> type[StandIn]:
    """A class of stand-ins that are also instances of cls, an engine's Parameter class, say."""
    if cls is torch.Tensor:
        return StandIn
    if cls not in _classes:
        if cls.__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
            raise BypassError(
                f"tensors of class {cls.__module__}.{cls.__qualname__} keep their data where "
                "a trace cannot see it (the class has its own __torch_dispatch__)"
            )
        _classes[cls] = type(cls.__name__, (StandIn, cls), {"__module__": cls.__module__})
    return _classes[cls]


def refuse(tensor: StandIn, what: str, why: str) -> NoReturn:
    tensor._heft_tracer.bypass(f"{what} of {tensor._heft_ref.buffer!r}: {why}")


def _refusing(name: str, why: str) -> Any:
    def method(self: StandIn, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self, f"{name}()", why)

    method.__name__ = name
    return method


def _values(self: StandIn, what: str) -> torch.Tensor:
    """Constants that the loader made may be read freely; a source's values are not there."""
    value = self._heft_tracer.constant_value(self)
    if value is None:
        refuse(self, what, "a trace has no values; use PyTorch's operators")
    return value


for _name in (
    "data_ptr",
    "__dlpack__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "__reduce_ex__",
    "const_data_ptr",
    "mutable_data_ptr",
):
    setattr(StandIn, _name, _refusing(_name, "a stand-in has no memory"))

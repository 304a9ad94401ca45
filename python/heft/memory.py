# SPDX-License-Identifier: Apache-2.0
"""Where a tensor lies: address, dtype, shape and strides of arrays and buffers.

Nothing is copied and no framework is imported. Four ways are tried: what a torch tensor says of
itself (its bf16 and 8-bit floats have no buffer), the array interface of numpy (ml_dtypes
included), DLPack, and the buffer protocol.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from heft import errors
from heft._handles import argument_error, call
from heft._native import ffi, lib
from heft.dtypes import BY_FRAMEWORK_NAME, DType, new_shape, shape_of

_BY_FORMAT = {
    "?": DType.BOOL,
    "B": DType.U8,
    "c": DType.U8,
    "b": DType.I8,
    "e": DType.F16,
    "f": DType.F32,
    "d": DType.F64,
}
_UNSIGNED = {2: DType.U16, 4: DType.U32, 8: DType.U64}
_SIGNED = {2: DType.I16, 4: DType.I32, 8: DType.I64}
_DLPACK_WIDTHS = {  # DLDataTypeCode: dtype by bits
    0: {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64},
    1: {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64},
    2: {16: DType.F16, 32: DType.F32, 64: DType.F64},
    4: {16: DType.BF16},
    6: {8: DType.BOOL},
    10: {8: DType.F8_E4M3},
    12: {8: DType.F8_E5M2},
    14: {8: DType.F8_E8M0},
}
_DLPACK_CPU = 1
_DLPACK_READ_ONLY = 1
_PYTHON = ctypes.pythonapi
_PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
_PYTHON.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_PYTHON.PyCapsule_GetName.restype = ctypes.c_char_p
_PYTHON.PyCapsule_GetName.argtypes = [ctypes.py_object]


class Memory(NamedTuple):
    """A tensor in this process's memory. It lives as long as `owner` is kept."""

    address: int
    dtype: DType
    shape: tuple[int, ...]  # storage units: of packed dtypes, bytes
    strides: tuple[int, ...]  # elements
    is_read_only: bool
    owner: Any

    @property
    def n_bytes(self) -> int:
        n = self.dtype.unit_bytes
        for extent in self.shape:
            n *= extent
        return n

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        if 0 in self.shape:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def bytes(self) -> memoryview:
        """The bytes of contiguous memory, not to be used once what they belong to is gone."""
        if not self.is_contiguous:
            raise argument_error(f"memory of shape {list(self.shape)} is not contiguous")
        view = memoryview(ffi.buffer(ffi.cast("char *", self.address), self.n_bytes))
        return view.toreadonly() if self.is_read_only else view

    @property
    def pointer(self) -> Any:
        return ffi.cast("void *", self.address)


def shape_error(message: str) -> errors.HeftError:
    return errors.BY_STATUS[lib.HEFT_ERR_SHAPE](message)


def describe(tensor: Any, name: str = "") -> Memory:
    """Where a tensor lies; name is used in messages. An error says what cannot be used and why."""
    if isinstance(tensor, Memory):
        return tensor
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "layout"):
        return _of_torch(tensor, name)
    if hasattr(tensor, "__array_interface__"):
        return _of_numpy(tensor, name)
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(tensor, name)
    return _of_buffer(tensor, name)


def view_as(tensor: Any, dtype: DType, shape: Sequence[int] | None = None) -> Memory:
    """The same contiguous bytes under another dtype (and shape): bf16 kept as 16-bit integers."""
    memory = describe(tensor)
    if not memory.is_contiguous:
        raise argument_error(
            f"memory of shape {memory.shape} is not contiguous and cannot be seen as {dtype.name}"
        )
    if shape is None:
        if dtype.unit_bytes != memory.dtype.unit_bytes:
            raise shape_error(
                f"{memory.dtype.name} elements cannot be seen as {dtype.name}: give a shape"
            )
        shape = memory.shape
    seen = Memory(
        memory.address, dtype, tuple(shape), _row_major(shape), memory.is_read_only, memory.owner
    )
    if seen.n_bytes != memory.n_bytes:
        raise shape_error(
            f"{memory.n_bytes} bytes cannot be seen as {dtype.name} of shape {seen.shape}: "
            f"{seen.n_bytes} bytes"
        )
    return seen


def contiguous(
    tensor: Any, name: str, dtype: DType, shape: Sequence[int], *, writable: bool
) -> Memory:
    """Memory that must be this tensor, row-major; one line says which is not and why.

    The shape is in storage units. A packed dtype comes as bytes (U8).
    """
    memory = strided(tensor, name, dtype, shape, writable=writable)
    if not memory.is_contiguous:
        raise argument_error(
            f'tensor "{name}": memory is not contiguous: shape {list(memory.shape)}, '
            f"strides {list(memory.strides)}"
        )
    return memory


def strided(
    tensor: Any, name: str, dtype: DType, shape: Sequence[int], *, writable: bool
) -> Memory:
    """The same with any strides."""
    memory = describe(tensor, name)
    where = f'tensor "{name}"'
    if memory.dtype is not dtype and not (dtype.is_packed and memory.dtype is DType.U8):
        raise shape_error(f"{where}: memory holds {memory.dtype.name}, {dtype.name} is expected")
    if memory.shape != tuple(shape):
        raise shape_error(
            f"{where}: memory has shape {list(memory.shape)}, {list(shape)} is expected"
        )
    if writable and memory.is_read_only:
        raise argument_error(f"{where}: memory is read-only")
    return memory


def of_address(address: int, dtype: DType, shape: Sequence[int]) -> Memory:
    """Contiguous memory that somebody else keeps."""
    return Memory(address, dtype, tuple(shape), _row_major(shape), False, None)


def storage_shape(dtype: DType, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in storage units: a packed dtype counts bytes in the last extent."""
    if not dtype.is_packed:
        return tuple(shape)
    out = ffi.new("heft_shape_t *")
    call(lib.heft_shape_to_storage, new_shape(shape, ""), dtype, out)
    return shape_of(out)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _in_elements(strides: Sequence[int], unit: int, name: str) -> tuple[int, ...]:
    if any(stride % unit for stride in strides):
        raise argument_error(
            f'tensor "{name}": strides of {list(strides)} bytes are no multiple of {unit}'
        )
    return tuple(stride // unit for stride in strides)


def _of_torch(tensor: Any, name: str) -> Memory:
    dtype = BY_FRAMEWORK_NAME.get(str(tensor.dtype).rpartition(".")[2])
    if dtype is None:
        raise shape_error(f'tensor "{name}": {tensor.dtype} is no dtype of heft')
    if tensor.device.type != "cpu":
        raise argument_error(
            f'tensor "{name}": memory is on {tensor.device}, this version reads cpu memory alone'
        )
    if str(tensor.layout) != "torch.strided":
        raise argument_error(f'tensor "{name}": its layout is {tensor.layout}, not torch.strided')
    if tensor.is_neg():
        raise argument_error(
            f'tensor "{name}": a view with its negation pending (resolve_neg() makes it plain)'
        )
    address = int(tensor.data_ptr())
    if address == 0 and tensor.numel() > 0:
        raise argument_error(f'tensor "{name}": a {type(tensor).__name__} without memory')
    return Memory(address, dtype, tuple(tensor.shape), tuple(tensor.stride()), False, tensor)


def _of_numpy(array: Any, name: str) -> Memory:
    interface = array.__array_interface__
    dtype_name = getattr(getattr(array, "dtype", None), "name", interface["typestr"])
    dtype = BY_FRAMEWORK_NAME.get(dtype_name)
    if dtype is None or interface["typestr"][0] == ">":
        raise shape_error(
            f'tensor "{name}": {getattr(array, "dtype", dtype_name)} is no dtype of heft'
        )
    address, is_read_only = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    in_elements = (
        _row_major(shape) if strides is None else _in_elements(strides, dtype.unit_bytes, name)
    )
    return Memory(address, dtype, shape, in_elements, bool(is_read_only), array)


def _of_dlpack(tensor: Any, name: str) -> Memory:
    device, number = tensor.__dlpack_device__()
    if device != _DLPACK_CPU:
        raise argument_error(
            f'tensor "{name}": memory is on DLPack device {int(device)}:{number}, '
            "this version reads "
            "cpu memory alone"
        )
    try:
        capsule = tensor.__dlpack__(max_version=(1, 1))
    except TypeError:  # a producer from before DLPack 1.0
        capsule = tensor.__dlpack__()
    capsule_name = _PYTHON.PyCapsule_GetName(capsule)
    address = _PYTHON.PyCapsule_GetPointer(capsule, capsule_name)
    if capsule_name == b"dltensor_versioned":
        managed = ffi.cast("heft_py_versioned_t *", address)
        if managed.major != 1:
            raise argument_error(
                f'tensor "{name}": DLPack {managed.major}.{managed.minor} is not known, 1.x is'
            )
        is_read_only = bool(managed.flags & _DLPACK_READ_ONLY)
    else:
        managed = ffi.cast("heft_py_managed_t *", address)
        is_read_only = False
    it = managed.tensor
    dtype = (
        _DLPACK_WIDTHS.get(it.dtype.code, {}).get(it.dtype.bits) if it.dtype.lanes == 1 else None
    )
    if dtype is None:
        raise shape_error(
            f'tensor "{name}": DLPack code {it.dtype.code} of {it.dtype.bits} bits, '
            f"{it.dtype.lanes} "
            "lanes is no dtype of heft"
        )
    shape = tuple(it.shape[0 : it.ndim]) if it.ndim else ()
    strides = (
        _row_major(shape)
        if it.strides == ffi.NULL
        else tuple(it.strides[0 : it.ndim])
        if it.ndim
        else ()
    )
    # JAX's arrays never change for JAX, whatever the capsule says
    is_read_only |= type(tensor).__module__.partition(".")[0] in ("jax", "jaxlib")
    start = int(ffi.cast("uintptr_t", it.data)) + it.byte_offset
    return Memory(start, dtype, shape, strides, is_read_only, (tensor, capsule))


def _of_buffer(buffer: Any, name: str) -> Memory:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise argument_error(
            f'tensor "{name}": a {type(buffer).__name__} is no tensor: neither torch, array '
            "interface, DLPack nor buffer protocol"
        ) from None
    kind = view.format.lstrip("@=<") if view.format else "B"
    dtype = _BY_FORMAT.get(kind)
    if dtype is None and kind in tuple("HILQN"):
        dtype = _UNSIGNED.get(view.itemsize)
    elif dtype is None and kind in tuple("hilqn"):
        dtype = _SIGNED.get(view.itemsize)
    if dtype is None:
        raise shape_error(
            f'tensor "{name}": a buffer of format "{view.format}" is no dtype of heft'
        )
    if not view.c_contiguous:
        raise argument_error(
            f'tensor "{name}": memory is not contiguous: shape {list(view.shape or ())}'
        )
    raw = ffi.from_buffer("char[]", view)
    shape, strides = tuple(view.shape or ()), _in_elements(view.strides or (), view.itemsize, name)
    return Memory(
        int(ffi.cast("uintptr_t", raw)), dtype, shape, strides, view.readonly, (buffer, raw)
    )

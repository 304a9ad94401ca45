# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie: numpy, ml_dtypes, buffers and DLPack, without copies."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

from heft import DType, errors, memory

NUMPY = {
    "bool": DType.BOOL,
    "uint8": DType.U8,
    "int8": DType.I8,
    "uint16": DType.U16,
    "int16": DType.I16,
    "uint32": DType.U32,
    "int32": DType.I32,
    "uint64": DType.U64,
    "int64": DType.I64,
    "float16": DType.F16,
    "float32": DType.F32,
    "float64": DType.F64,
}
ML_DTYPES = {
    "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
    "float8_e8m0fnu": DType.F8_E8M0,
}


@pytest.mark.parametrize("name", [*NUMPY, *ML_DTYPES])
def test_an_array_lies_where_numpy_says(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name)) if name in ML_DTYPES else np.dtype(name)
    values = np.zeros((3, 5), dtype)[:, ::2]
    found = memory.describe(values, "w")
    assert found.address == values.ctypes.data
    assert found.dtype is {**NUMPY, **ML_DTYPES}[name]
    assert (found.shape, found.strides) == ((3, 3), (5, 2))
    assert not found.is_contiguous
    assert not found.is_read_only
    assert found.n_bytes == values.nbytes


class DLPackOnly:
    """What a framework offers that has DLPack and nothing else."""

    def __init__(self, values: np.ndarray, versioned: bool, device: int = 1) -> None:
        self.values, self.versioned, self.device = values, versioned, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **kwargs):
        if kwargs and not self.versioned:
            raise TypeError("from before 1.0")
        return self.values.__dlpack__(**kwargs)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("name", list(NUMPY))
def test_dlpack_is_read_in_both_forms(name: str, versioned: bool) -> None:
    values = np.zeros((4, 6), name)[1:, ::-2]
    found = memory.describe(DLPackOnly(values, versioned), "w")
    assert (found.address, found.dtype) == (values.ctypes.data, NUMPY[name])
    assert (found.shape, found.strides) == ((3, 3), (6, -2))


def test_a_scalar_and_an_empty_tensor_have_shapes() -> None:
    for make in (lambda v: v, lambda v: DLPackOnly(v, True)):
        assert memory.describe(make(np.zeros((), np.float32))).shape == ()
        empty = memory.describe(make(np.zeros((0, 3), np.float32)))
        assert (empty.shape, empty.n_bytes, empty.is_contiguous) == ((0, 3), 0, True)


def test_read_only_memory_is_a_source_and_no_parameter() -> None:
    values = np.zeros(4, np.float32)
    values.flags.writeable = False
    for one in (values, DLPackOnly(values, True), memoryview(values)):
        assert memory.describe(one).is_read_only
        memory.contiguous(one, "w", DType.F32, (4,), writable=False)
        with pytest.raises(errors.ArgumentError, match='tensor "w": memory is read-only'):
            memory.contiguous(one, "w", DType.F32, (4,), writable=True)


def test_an_array_of_jax_is_a_source_and_no_parameter() -> None:
    kind = type("ArrayImpl", (DLPackOnly,), {"__module__": "jaxlib._jax"})
    array_of_jax = kind(np.zeros(4, np.float32), versioned=False)
    memory.contiguous(array_of_jax, "w", DType.F32, (4,), writable=False)
    with pytest.raises(errors.ArgumentError, match='tensor "w": memory is read-only'):
        memory.contiguous(array_of_jax, "w", DType.F32, (4,), writable=True)


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_a_buffer_lies_where_it_says(code: str) -> None:
    values = array.array(code, [1, 2, 3])
    found = memory.describe(values)
    assert (found.address, found.shape, found.strides) == (values.buffer_info()[0], (3,), (1,))
    assert found.dtype.bits == 8 * values.itemsize
    signs = {"f": "F", "d": "F"}.get(code, "I" if code.islower() else "U")
    assert found.dtype.name[0] == signs


def test_bytes_can_be_seen_as_another_dtype() -> None:
    raw = bytearray(24)
    seen = memory.view_as(raw, DType.BF16, (3, 4))
    assert (seen.dtype, seen.shape, seen.strides, seen.n_bytes) == (DType.BF16, (3, 4), (4, 1), 24)
    assert memory.view_as(np.zeros((2, 3), np.uint16), DType.BF16).shape == (2, 3)
    with pytest.raises(
        errors.ShapeError, match="24 bytes cannot be seen as BF16 of shape \\(5,\\): 10 bytes"
    ):
        memory.view_as(raw, DType.BF16, (5,))
    with pytest.raises(errors.ShapeError, match="give a shape"):
        memory.view_as(raw, DType.BF16)


def test_packed_dtypes_come_as_bytes() -> None:
    packed = np.zeros((2, 4), np.uint8)
    shape = memory.storage_shape(DType.F4, (2, 8))
    assert memory.contiguous(packed, "w", DType.F4, shape, writable=True).n_bytes == 8
    with pytest.raises(errors.ShapeError, match=r"shape \[2, 4\], \[2, 8\]"):
        memory.contiguous(packed, "w", DType.F4, (2, 8), writable=True)
    with pytest.raises(errors.ShapeError):
        memory.storage_shape(DType.F4, (2, 7))


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        (np.zeros(3, np.complex64), errors.ShapeError, "complex64 is no dtype"),
        (np.zeros(3, ">f4"), errors.ShapeError, ">f4 is no dtype"),
        (np.zeros(4, np.float16), errors.ShapeError, "memory holds F16, F32 is expected"),
        (np.zeros((4, 1), np.float32), errors.ShapeError, r"shape \[4, 1\], \[4\] is expected"),
        (
            np.zeros(8, np.float32)[::2],
            errors.ArgumentError,
            r"not contiguous: shape \[4\], strides \[2\]",
        ),
        (
            DLPackOnly(np.zeros(4, np.float32), True, device=2),
            errors.ArgumentError,
            "DLPack device 2:0",
        ),
        (
            DLPackOnly(np.zeros(4, np.complex64), True),
            errors.ShapeError,
            "DLPack code 5 of 64 bits",
        ),
        (memoryview(np.zeros(8, np.float32))[::2], errors.ArgumentError, "not contiguous"),
        ([1.0, 2.0], errors.ArgumentError, "a list is no tensor"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(tensor, error, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        memory.contiguous(tensor, "model.w", DType.F32, (4,), writable=False)
    assert '"model.w"' in str(caught.value)
    assert "\n" not in str(caught.value)

# SPDX-License-Identifier: Apache-2.0
"""Dtypes and shapes. Values are the library's, so they may stand in files."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from heft._handles import argument_error, encode
from heft._native import ffi, lib


class DType(enum.IntEnum):
    """An element type; its name is the safetensors spelling."""

    BOOL = lib.HEFT_DTYPE_BOOL
    U8 = lib.HEFT_DTYPE_U8
    I8 = lib.HEFT_DTYPE_I8
    U16 = lib.HEFT_DTYPE_U16
    I16 = lib.HEFT_DTYPE_I16
    U32 = lib.HEFT_DTYPE_U32
    I32 = lib.HEFT_DTYPE_I32
    U64 = lib.HEFT_DTYPE_U64
    I64 = lib.HEFT_DTYPE_I64
    F16 = lib.HEFT_DTYPE_F16
    BF16 = lib.HEFT_DTYPE_BF16
    F32 = lib.HEFT_DTYPE_F32
    F64 = lib.HEFT_DTYPE_F64
    F8_E4M3 = lib.HEFT_DTYPE_F8_E4M3
    F8_E5M2 = lib.HEFT_DTYPE_F8_E5M2
    F8_E8M0 = lib.HEFT_DTYPE_F8_E8M0
    F4 = lib.HEFT_DTYPE_F4
    F6_E2M3 = lib.HEFT_DTYPE_F6_E2M3
    F6_E3M2 = lib.HEFT_DTYPE_F6_E3M2

    @classmethod
    def _missing_(cls, value: object) -> DType | None:
        """DType("bf16") is from_name("bf16")."""
        return cls.from_name(value) if isinstance(value, str) else None

    @classmethod
    def from_name(cls, name: str) -> DType:
        """By safetensors spelling or lower-case short form: "BF16", "bf16"."""
        value = lib.heft_dtype_from_name(encode(name))
        if value == lib.HEFT_DTYPE_NONE:
            raise argument_error(
                f'"{name}" is no dtype; there are: {", ".join(d.name for d in cls)}'
            )
        return cls(value)

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return int(lib.heft_dtype_get_bits(self))

    @property
    def unit_bytes(self) -> int:
        """Bytes of one storage unit: of an element, or 1 for a packed dtype (fewer than 8 bits)."""
        return int(lib.heft_dtype_get_unit_bytes(self))

    @property
    def is_float(self) -> bool:
        return bool(lib.heft_dtype_is_float(self))

    @property
    def is_packed(self) -> bool:
        return self.bits < 8


MAX_DIMS: int = lib.HEFT_MAX_DIMS


# By the name that a framework gives to its dtype, without the framework.
BY_FRAMEWORK_NAME = {
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
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "float8_e4m3fn": DType.F8_E4M3,
    "float8_e5m2": DType.F8_E5M2,
    "float8_e8m0fnu": DType.F8_E8M0,
}


def fill_shape(out: Any, shape: Sequence[int], name: str) -> None:
    """Put a shape into a heft_shape_t."""
    n = len(shape)
    if n > MAX_DIMS:
        raise argument_error(f'tensor "{name}": {n} dimensions, at most {MAX_DIMS} are supported')
    out.rank = n
    out.extent[0:n] = shape


def new_shape(shape: Sequence[int], name: str) -> Any:
    out = ffi.new("heft_shape_t *")
    fill_shape(out, shape, name)
    return out


def shape_of(shape: Any) -> tuple[int, ...]:
    """The extents of a heft_shape_t."""
    return tuple(shape.extent[0 : shape.rank])

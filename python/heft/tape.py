# SPDX-License-Identifier: Apache-2.0
"""The tape: what a loader or a recipe does to one rank, recorded (include/heft/tape.h)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from heft._handles import (
    Handle,
    argument_error,
    call,
    encode,
    error_of,
    new_error,
    take_text,
    text_of,
)
from heft._native import ffi, lib
from heft.dtypes import MAX_DIMS, DType, new_shape, shape_of


class BufferKind(enum.IntEnum):
    SOURCE = lib.HEFT_BUFFER_SOURCE  # a global source tensor
    PARAM = lib.HEFT_BUFFER_PARAM  # what the destination keeps, in the rank's local shape
    TEMP = lib.HEFT_BUFFER_TEMP


class OpCode(enum.IntEnum):
    """Operations of an element-wise program, in postfix order; see heft_op_code_t."""

    LOAD = lib.HEFT_OP_LOAD
    CONST = lib.HEFT_OP_CONST
    CAST = lib.HEFT_OP_CAST
    ADD_IMM = lib.HEFT_OP_ADD_IMM
    MUL_IMM = lib.HEFT_OP_MUL_IMM
    DIV_IMM = lib.HEFT_OP_DIV_IMM
    NEG_EXP = lib.HEFT_OP_NEG_EXP
    MUL = lib.HEFT_OP_MUL
    BITS = lib.HEFT_OP_BITS


class View(NamedTuple):
    """A strided window on a buffer, in elements; strides are signed, 0 repeats."""

    buffer: int
    offset: int
    extent: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def contiguous(cls, buffer: int, shape: Sequence[int]) -> View:
        """The whole of a buffer of this (storage) shape."""
        stride = [1] * len(shape)
        for k in reversed(range(len(shape) - 1)):
            stride[k] = stride[k + 1] * shape[k + 1]
        return cls(buffer, 0, tuple(shape), tuple(stride))


class Op(NamedTuple):
    """One operation: LOAD source view `arg`; CONST of `imm_bits`; arithmetic with `imm`."""

    code: OpCode
    dtype: DType | None  # of the result or the arithmetic; None: of the source view (LOAD)
    arg: int = 0
    imm: float = 0.0
    imm_bits: int = 0


class ModelPart(NamedTuple):
    """One of the models that live on a rank: the target, and drafts."""

    role: str  # "", or before the names of its parameters: "draft" makes "draft.w"
    tape: Tape
    is_frozen: bool = False  # its parameters are there, and nothing writes them


class ModelAlias(NamedTuple):
    """A parameter that is the storage of another model's, such as a draft's embedding."""

    part: int
    of_part: int  # an earlier one
    param: str
    of_param: str


class BufferInfo(NamedTuple):
    name: str
    kind: BufferKind
    dtype: DType
    shape: tuple[int, ...]  # storage shape: a packed dtype counts bytes in the last extent


def view_of(v: Any) -> View:
    """A heft_view_t."""
    return View(v.buffer, v.offset, tuple(v.extent[0 : v.rank]), tuple(v.stride[0 : v.rank]))


class _Views:
    """Room for n views that is filled again and again, so that recording allocates nothing."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.array = ffi.new("heft_view_t[]", n)
        self._slots = [(v, v.extent, v.stride) for v in (self.array[i] for i in range(n))]

    def put(self, i: int, view: View) -> None:
        struct, extents, strides = self._slots[i]
        struct.buffer, struct.offset, extent, stride = view
        n = len(extent)
        if n > MAX_DIMS or len(stride) != n:
            raise argument_error(
                f"a view of {n} extents and {len(stride)} strides; as many, at most {MAX_DIMS}"
            )
        struct.rank = n
        extents[0:n] = extent
        strides[0:n] = stride

    def put_all(self, views: Sequence[View]) -> Any:
        """The array, which moves when more views come than ever before."""
        if len(views) > self.n:
            self.__init__(2 * len(views))  # type: ignore[misc]
        for i, view in enumerate(views):
            self.put(i, view)
        return self.array


class Tape(Handle):
    """Buffers and an ordered list of writes; later ones win. Confined to a thread while made.

    A write that is refused leaves the tape as it was.
    """

    __slots__ = ("_dsts", "_err", "_ops", "_srcs")

    def __init__(self) -> None:
        out = ffi.new("heft_tape_t **")
        call(lib.heft_tape_create, out)
        self._take(out[0])

    def _take(self, pointer: Any, *parents: Handle) -> None:
        self._own(pointer, None if parents else lib.heft_tape_destroy, *parents)
        self._dsts = _Views(1)
        self._srcs = _Views(lib.HEFT_MAX_SOURCES)
        self._ops = ffi.new("heft_op_t[]", lib.HEFT_MAX_OPS)
        self._err = new_error()

    @classmethod
    def _adopt(cls, pointer: Any) -> Tape:
        self = cls.__new__(cls)
        self._take(pointer)
        return self

    @classmethod
    def join_models(cls, parts: Sequence[ModelPart], aliases: Sequence[ModelAlias] = ()) -> Tape:
        """The tape of all models of one rank, one after the other, parameters under their roles."""
        array = ffi.new("heft_model_part_t[]", max(len(parts), 1))
        roles = [ffi.new("char[]", encode(part.role)) for part in parts]
        for out, part, role in zip(array, parts, roles, strict=False):
            out.role, out.tape, out.is_frozen = role, part.tape.pointer, part.is_frozen
        same = ffi.new("heft_model_alias_t[]", max(len(aliases), 1))
        names = [
            [ffi.new("char[]", encode(name)) for name in (one.param, one.of_param)]
            for one in aliases
        ]
        for out, one, (param, of_param) in zip(same, aliases, names, strict=False):
            out.part, out.of_part, out.param, out.of_param = one.part, one.of_part, param, of_param
        made = ffi.new("heft_tape_t **")
        call(lib.heft_tape_join_models, array, len(parts), same, len(aliases), made)
        return cls._adopt(made[0])

    @classmethod
    def chain(cls, first: Tape, second: Tape) -> Tape:
        """What first makes is what second reads, by name; nothing in between is ever there.

        It takes both, which are closed afterwards. Of a plan's exceptions, stage 0 is first.
        """
        made = ffi.new("heft_tape_t **")
        call(lib.heft_tape_chain, first.to_be_taken(), second.to_be_taken(), made)
        first.was_taken()
        second.was_taken()
        return cls._adopt(made[0])

    @classmethod
    def from_json(cls, text: str | bytes) -> Tape:
        """Read the JSON form (docs/formats/tape.md), strictly."""
        data = text.encode() if isinstance(text, str) else text
        out = ffi.new("heft_tape_t **")
        call(lib.heft_tape_decode, data, len(data), out)
        return cls._adopt(out[0])

    def to_json(self) -> str:
        """The JSON form; equal tapes give equal text."""
        out = ffi.new("char **")
        call(lib.heft_tape_encode, self.pointer, out)
        return take_text(out)

    def prune(self) -> Tape:
        """The same without the sources that no write reads, for a plan of one rank of many."""
        out = ffi.new("heft_tape_t **")
        call(lib.heft_tape_prune, self.pointer, out)
        return Tape._adopt(out[0])

    @property
    def digest(self) -> str:
        """64 hex digits over what the tape does; notes and temporaries have no part in it."""
        out = ffi.new("char[]", lib.HEFT_TAPE_DIGEST_BYTES)
        call(lib.heft_tape_query_digest, self.pointer, out)
        return text_of(out)

    def _check(self, status: int) -> None:
        if status:
            raise error_of(status, self._err)

    @classmethod
    def _borrow(cls, pointer: Any, parent: Handle) -> Tape:
        """One that belongs to a contract, which lives as long as it is used. Not to be added to."""
        self = cls.__new__(cls)
        self._take(pointer, parent)
        return self

    def add_buffer(self, kind: BufferKind, name: str, dtype: DType, shape: Sequence[int]) -> int:
        """Add a buffer of this logical shape; its id. Sources and parameters have unique names."""
        out = ffi.new("uint32_t *")
        status = lib.heft_tape_add_buffer(
            self.pointer, kind, encode(name), dtype, new_shape(shape, name), out, self._err
        )
        self._check(status)
        return int(out[0])

    def copy(self, dst: View, src: View, note: str = "") -> None:
        """dst <- src, of equal extents; a cast where dtypes differ. note: where it comes from."""
        self._dsts.put(0, dst)
        self._srcs.put(0, src)
        status = lib.heft_tape_copy(
            self.pointer, self._dsts.array, self._srcs.array, note.encode(), self._err
        )
        if status:
            raise error_of(status, self._err)

    def fill(self, dst: View, bits: int, note: str = "") -> None:
        """dst <- the element with this bit pattern."""
        self._dsts.put(0, dst)
        self._check(
            lib.heft_tape_fill(self.pointer, self._dsts.array, bits, note.encode(), self._err)
        )

    def map(self, dst: View, srcs: Sequence[View], ops: Sequence[Op], note: str = "") -> None:
        """dst <- program(srcs), element by element."""
        self._dsts.put(0, dst)
        n_ops = len(ops)
        if n_ops > lib.HEFT_MAX_OPS:
            raise argument_error(
                f"a program of {n_ops} operations, at most {lib.HEFT_MAX_OPS} are supported"
            )
        for i, op in enumerate(ops):
            out = self._ops[i]
            out.code, out.dtype, out.arg, out.imm, out.imm_bits = op.code, op.dtype or 0, *op[2:]
        self._check(
            lib.heft_tape_map(
                self.pointer,
                self._dsts.array,
                self._srcs.put_all(srcs),
                len(srcs),
                self._ops,
                n_ops,
                note.encode(),
                self._err,
            )
        )

    def opaque(self, op: str, dsts: Sequence[View], srcs: Sequence[View], note: str = "") -> None:
        """A write that is no copy and no map: `op` reads srcs and writes dsts as a whole."""
        self._check(
            lib.heft_tape_opaque(
                self.pointer,
                encode(op),
                self._dsts.put_all(dsts),
                len(dsts),
                self._srcs.put_all(srcs),
                len(srcs),
                note.encode(),
                self._err,
            )
        )

    @property
    def n_buffers(self) -> int:
        return int(lib.heft_tape_get_n_buffers(self.pointer))

    @property
    def n_writes(self) -> int:
        return int(lib.heft_tape_get_n_writes(self.pointer))

    def query_buffer(self, buffer: int) -> BufferInfo:
        out = ffi.new("heft_buffer_info_t *")
        call(lib.heft_tape_query_buffer, self.pointer, buffer, out)
        return BufferInfo(
            text_of(out.name), BufferKind(out.kind), DType(out.dtype), shape_of(out.shape)
        )

    def find_buffer(self, kind: BufferKind, name: str) -> int:
        """The id of the source or the parameter of this name."""
        out = ffi.new("uint32_t *")
        call(lib.heft_tape_find_buffer, self.pointer, kind, encode(name), out)
        return int(out[0])

# SPDX-License-Identifier: Apache-2.0
"""Plans: tapes folded to pieces and proven (include/heft/plan.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from heft._handles import Handle, argument_error, call, error_of, new_error, text_of
from heft._native import ffi, lib
from heft.dtypes import DType, shape_of
from heft.exceptions import Exception_, new_exceptions
from heft.manifest import TensorInfo, tensor_info
from heft.tape import Op, OpCode, Tape, View, view_of

GROUP_NONE: int = lib.HEFT_GROUP_NONE


class FindingKind(enum.IntEnum):
    UNCOVERED = lib.HEFT_FINDING_UNCOVERED
    OVERWRITTEN = lib.HEFT_FINDING_OVERWRITTEN
    CONSTANT = lib.HEFT_FINDING_CONSTANT
    UNUSED = lib.HEFT_FINDING_UNUSED
    EXCEPTION = lib.HEFT_FINDING_EXCEPTION
    STALE = lib.HEFT_FINDING_STALE
    EMPTY = lib.HEFT_FINDING_EMPTY
    OPAQUE = lib.HEFT_FINDING_OPAQUE
    OVERLAP = lib.HEFT_FINDING_OVERLAP
    NAME = lib.HEFT_FINDING_NAME
    SLOW = lib.HEFT_FINDING_SLOW


class Finding(NamedTuple):
    """What the proof found, by name and index range. begin, end: the first of n_regions boxes."""

    kind: FindingKind
    is_error: bool
    rank: int  # of the destination; -1: the source side
    name: str
    n_elems: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    n_regions: int
    text: str


class Report(NamedTuple):
    """The whole of a proof: errors first, then notes; at most 40 of each kind one by one."""

    summary: str
    n_errors: int
    n_warnings: int
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join([self.summary, *(finding.text for finding in self.findings)])


class Piece(NamedTuple):
    """One folded copy: dst[i] = program(src_0[i], ..) for every index i in extent. In elements."""

    param: int  # index within the rank
    group: int  # index within the plan
    extent: tuple[int, ...]
    dst_offset: int
    dst_stride: tuple[int, ...]
    srcs: tuple[PieceSource, ...]  # none: a constant
    ops: tuple[Op, ...]  # none: a plain copy
    note: str


class PieceSource(NamedTuple):
    source: int  # index within the plan; the output of the operation where opaque != 0
    opaque: int  # k: reads what operation k - 1 of the rank left
    offset: int
    stride: tuple[int, ...]


class Group(NamedTuple):
    """Parameters that are in one version or none of them is."""

    params: tuple[tuple[int, int], ...]  # (rank index, parameter index)
    sources: tuple[int, ...]
    n_pieces: int
    n_bytes: int
    source_bytes: int
    is_opaque: bool


class OpaqueInput(NamedTuple):
    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class OpaqueOutput(NamedTuple):
    dtype: DType
    view: View
    buffer_elems: int


class Opaque(NamedTuple):
    """An operation that is not folded: the engine's loader, or a known kernel ("heft....")."""

    op: str
    note: str
    group: int
    sources: tuple[int, ...]
    inputs: tuple[OpaqueInput, ...]
    outputs: tuple[OpaqueOutput, ...]


def take_report(pointer: Any) -> Report | None:
    """The contents of a heft_report_t, which is freed; None for NULL."""
    if pointer == ffi.NULL:
        return None
    try:
        n = lib.heft_report_get_n_findings(pointer)
        findings = tuple(_finding_of(lib.heft_report_get_finding(pointer, i)) for i in range(n))
        return Report(
            text_of(lib.heft_report_get_summary(pointer)),
            lib.heft_report_get_n_errors(pointer),
            lib.heft_report_get_n_warnings(pointer),
            findings,
        )
    finally:
        lib.heft_report_destroy(pointer)


def _finding_of(f: Any) -> Finding:
    return Finding(
        FindingKind(f.kind),
        bool(f.is_error),
        f.rank,
        text_of(f.name),
        f.n_elems,
        tuple(f.begin[0 : f.n_dims]),
        tuple(f.end[0 : f.n_dims]),
        f.n_regions,
        text_of(f.text),
    )


class Plan(Handle):
    """Pieces, groups and the proof. Immutable: share it freely. Ranks are counted from 0."""

    __slots__ = ("_info", "report")
    _info: Any
    report: Report

    @classmethod
    def create(
        cls,
        tapes: Sequence[Tape],
        *,
        first_rank: int = 0,
        exceptions: Iterable[Exception_] = (),
        partial: bool = False,
        max_pieces_per_param: int = 0,
    ) -> Plan:
        """Fold, prove, group; tapes[r] is that of destination rank first_rank + r.

        partial: not all destination ranks are here, so that unused sources are no error.
        errors.ProofError has what is wrong in `report`.
        """
        array, n, kept = new_exceptions(exceptions)
        opts = ffi.new("heft_plan_opts_t *")
        opts.size = ffi.sizeof("heft_plan_opts_t")
        opts.exceptions, opts.n_exceptions = array, n
        opts.max_pieces_per_param, opts.partial = max_pieces_per_param, partial
        pointers = ffi.new("heft_tape_t *[]", [tape.pointer for tape in tapes])
        out, report, err = ffi.new("heft_plan_t **"), ffi.new("heft_report_t **"), new_error()
        status = lib.heft_plan_create(pointers, len(tapes), first_rank, opts, out, report, err)
        del kept
        found = take_report(report[0])
        if status:
            raise error_of(status, err, report=found)
        return cls._adopt(out[0], found)

    @classmethod
    def create_part(
        cls,
        parts: Sequence[Tape],
        *,
        first_rank: int = 0,
        exceptions: Iterable[Exception_] = (),
    ) -> Plan:
        """The pieces of parts of tapes (Placement.apply_part). Nothing is proven or reported."""
        array, n, kept = new_exceptions(exceptions)
        opts = ffi.new("heft_plan_opts_t *")
        opts.size = ffi.sizeof("heft_plan_opts_t")
        opts.exceptions, opts.n_exceptions = array, n
        pointers = ffi.new("heft_tape_t *[]", [part.pointer for part in parts])
        out = ffi.new("heft_plan_t **")
        call(lib.heft_plan_create_part, pointers, len(parts), first_rank, opts, out)
        del kept
        return cls._adopt(out[0], Report("", 0, 0, ()))

    @classmethod
    def _adopt(cls, pointer: Any, report: Report | None) -> Plan:
        assert report is not None
        self = cls()
        self._own(pointer, lib.heft_plan_destroy)
        self._info = ffi.new("heft_plan_info_t *")
        lib.heft_plan_query(self.pointer, self._info)
        self.report = report
        return self

    @property
    def n_ranks(self) -> int:
        return int(self._query().n_ranks)

    @property
    def first_rank(self) -> int:
        return int(self._query().first_rank)

    @property
    def n_pieces(self) -> int:
        return int(self._query().n_pieces)

    @property
    def n_bytes(self) -> int:
        """Bytes written to parameters, constants excluded."""
        return int(self._query().n_bytes)

    @property
    def n_constant_bytes(self) -> int:
        return int(self._query().n_constant_bytes)

    @property
    def digest(self) -> str:
        """64 hex digits over sources, parameters, pieces, checks, groups."""
        return text_of(self._query().digest)

    def rank_digest(self, rank: int = 0) -> str:
        """64 hex digits over one rank alone, equal in every plan made from equal tapes."""
        text = lib.heft_plan_get_rank_digest(self.pointer, rank)
        if text == ffi.NULL:
            raise argument_error(f"rank {rank}: the plan has {self.n_ranks}")
        return text_of(text)

    def _query(self) -> Any:
        self.pointer  # noqa: B018  an error once closed
        return self._info

    def params(self, rank: int = 0) -> list[TensorInfo]:
        """The parameters of a rank, in bytewise name order, storage shapes."""
        n = lib.heft_plan_get_n_params(self.pointer, rank)
        return self._tensors(
            n, lambda i, out: lib.heft_plan_query_param(self.pointer, rank, i, out, ffi.NULL)
        )

    @property
    def sources(self) -> list[TensorInfo]:
        """The source tensors, storage shapes."""
        n = self._query().n_sources
        return self._tensors(
            n, lambda i, out: lib.heft_plan_query_source(self.pointer, i, out, ffi.NULL)
        )

    @staticmethod
    def _tensors(n: int, query: Any) -> list[TensorInfo]:
        out, tensors = ffi.new("heft_tensor_info_t *"), []
        for i in range(n):
            assert query(i, out) == lib.HEFT_OK
            tensors.append(tensor_info(out))
        return tensors

    def pieces(self, rank: int = 0, param: int | None = None) -> list[Piece]:
        """The pieces of a rank, or of one parameter of it, in the order of destination."""
        n = ffi.new("uint64_t *")
        if param is None:
            first = lib.heft_plan_get_pieces(self.pointer, rank, n)
        else:
            first = lib.heft_plan_get_param_pieces(self.pointer, rank, param, n)
        return [self._piece(first[i]) for i in range(n[0])]

    def checks(self, rank: int = 0, param: int | None = None) -> list[Piece]:
        """Pieces that write nothing: earlier values that must agree with the last (`equal`)."""
        n = ffi.new("uint64_t *")
        if param is None:
            first = lib.heft_plan_get_checks(self.pointer, rank, n)
        else:
            first = lib.heft_plan_get_param_checks(self.pointer, rank, param, n)
        return [self._piece(first[i]) for i in range(n[0])]

    def _piece(self, p: Any) -> Piece:
        rank = p.rank
        srcs = tuple(
            PieceSource(s.source, s.opaque, s.offset, tuple(s.stride[0:rank]))
            for s in _each(p.srcs, p.n_srcs)
        )
        ops = tuple(
            Op(OpCode(o.code), DType(o.dtype) if o.dtype else None, o.arg, o.imm, o.imm_bits)
            for o in _each(p.ops, p.n_ops)
        )
        note = text_of(lib.heft_plan_get_piece_note(self.pointer, ffi.addressof(p)))
        return Piece(
            p.param,
            p.group,
            tuple(p.extent[0:rank]),
            p.dst_offset,
            tuple(p.dst_stride[0:rank]),
            srcs,
            ops,
            note,
        )

    @property
    def groups(self) -> list[Group]:
        return [self._group(i) for i in range(self._query().n_groups)]

    def _group(self, group: int) -> Group:
        info, n = ffi.new("heft_group_info_t *"), ffi.new("uint32_t *")
        call(lib.heft_plan_query_group, self.pointer, group, info)
        members = lib.heft_plan_get_group_params(self.pointer, group, n)
        params = tuple((members[i].rank_index, members[i].param) for i in range(n[0]))
        sources = lib.heft_plan_get_group_sources(self.pointer, group, n)
        return Group(
            params,
            tuple(_each(sources, n[0])),
            info.n_pieces,
            info.n_bytes,
            info.source_bytes,
            bool(info.is_opaque),
        )

    def group_of(self, param: int, rank: int = 0) -> int | None:
        """The group of a parameter, or None where nothing writes it."""
        group = lib.heft_plan_get_param_group(self.pointer, rank, param)
        return None if group == GROUP_NONE else int(group)

    def n_kept(self, param: int, rank: int = 0) -> int:
        """Elements of a parameter with pieces that no piece writes: they keep what they hold."""
        return int(lib.heft_plan_get_n_kept(self.pointer, rank, param))

    def leaves_out(self, source: int) -> bool:
        """Whether nothing uses a source because a recipe of a chain ignores what it would make."""
        return bool(lib.heft_plan_leaves_out(self.pointer, source))

    def opaques(self, rank: int = 0) -> list[Opaque]:
        """The operations of a rank that are not folded, in the order in which they run."""
        n = ffi.new("uint32_t *")
        return [
            self._opaque(o) for o in _each(lib.heft_plan_get_opaques(self.pointer, rank, n), n[0])
        ]

    def _opaque(self, o: Any) -> Opaque:
        inputs = tuple(
            OpaqueInput(
                DType(i.dtype),
                shape_of(i.shape),
                tuple(self._piece(p) for p in _each(i.pieces, i.n_pieces)),
            )
            for i in _each(o.inputs, o.n_inputs)
        )
        outputs = tuple(
            OpaqueOutput(DType(i.dtype), view_of(i.view), i.buffer_elems)
            for i in _each(o.outputs, o.n_outputs)
        )
        return Opaque(
            text_of(o.op),
            text_of(o.note),
            o.group,
            tuple(_each(o.sources, o.n_sources)),
            inputs,
            outputs,
        )


def _each(array: Any, n: int) -> Iterator[Any]:
    return (array[i] for i in range(n))

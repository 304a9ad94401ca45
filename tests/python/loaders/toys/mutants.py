# SPDX-License-Identifier: Apache-2.0
"""Tapes with one fault planted: the same buffers, one write wrong."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from heft import BufferKind, DType, Op, OpCode, Tape, View

from .tape_judge import TapeView, _views

CODES = {
    "load": OpCode.LOAD,
    "const": OpCode.CONST,
    "cast": OpCode.CAST,
    "add": OpCode.ADD_IMM,
    "mul": OpCode.MUL_IMM,
    "div": OpCode.DIV_IMM,
    "negexp": OpCode.NEG_EXP,
    "product": OpCode.MUL,
    "bits": OpCode.BITS,
}


@dataclass(frozen=True)
class TapeWrite:
    """A line of a tape, in parts."""

    dsts: tuple[TapeView, ...]
    srcs: tuple[TapeView, ...] = ()
    bits: int | None = None  # of a fill
    ops: tuple[str, ...] = ()
    operation: str = ""  # of an opaque write


def parse_writes(tape: dict[str, Any]) -> list[TapeWrite]:
    return [_parse(re.sub(r" #\d+$", "", line), tape["operations"]) for line in tape["writes"]]


def _parse(line: str, operations: list[str]) -> TapeWrite:
    if " = " in line:
        left, bits = line.split(" = ")
        return TapeWrite(tuple(_views(left)), bits=int(bits, 16))
    left, _, right = line.partition(" <")
    number = re.search(r" !(\d+)$", left)
    dsts = tuple(_views(left))
    srcs, _, ops = right.partition(" :")
    if number is not None:
        return TapeWrite(dsts, tuple(_views(srcs)), operation=operations[int(number[1])])
    return TapeWrite(dsts, tuple(_views(srcs, dsts[0].extent)), ops=tuple(ops.split()))


def build(tape: dict[str, Any], writes: list[TapeWrite]) -> Tape:
    """The tape with these writes in the place of its own."""
    out = Tape()
    kinds = (("s", BufferKind.SOURCE), ("p", BufferKind.PARAM))
    ids: dict[str, int] = {}
    dtypes: dict[str, DType] = {}
    for (key, kind), tensors in zip(kinds, (tape["sources"], tape["parameters"]), strict=True):
        for i, (name, dtype, shape) in enumerate(tensors):
            dtypes[f"{key}{i}"] = DType[dtype]
            ids[f"{key}{i}"] = out.add_buffer(kind, name, DType[dtype], shape)
    for i, (dtype, n) in enumerate(tape["temporaries"]):
        dtypes[f"t{i}"] = DType[dtype]
        ids[f"t{i}"] = out.add_buffer(BufferKind.TEMP, "", DType[dtype], (n,))
    for write in writes:
        _record(out, write, ids, dtypes)
    return out


def _record(out: Tape, write: TapeWrite, ids: dict[str, int], dtypes: dict[str, DType]) -> None:
    def view(v: TapeView) -> View:
        return View(ids[v.buffer], v.offset, v.extent, v.stride)

    dsts, srcs = [view(v) for v in write.dsts], [view(v) for v in write.srcs]
    if write.bits is not None:
        out.fill(dsts[0], write.bits)
    elif write.operation:
        out.opaque(write.operation, dsts, srcs)
    elif write.ops:
        out.map(dsts[0], srcs, [_op(text, write, dtypes) for text in write.ops])
    else:
        out.copy(dsts[0], srcs[0])


def _op(text: str, write: TapeWrite, dtypes: dict[str, DType]) -> Op:
    word, *rest = text.split(".")
    if word == "load":
        arg = int(rest[0])
        return Op(OpCode.LOAD, dtypes[write.srcs[arg].buffer], arg=arg)
    dtype = DType[rest[0]]
    if word == "const":
        return Op(OpCode.CONST, dtype, imm_bits=int(rest[1], 16))
    if word == "bits":
        return Op(OpCode.BITS, dtype, arg=int(rest[1], 16))
    imm = struct.unpack("<d", struct.pack("<Q", int(rest[1], 16)))[0] if len(rest) > 1 else 0.0
    return Op(CODES[word], dtype, imm=imm)


# ---- faults ----

Fault = Callable[[list[TapeWrite], random.Random], list[TapeWrite] | None]


def _pick(
    writes: list[TapeWrite], rng: random.Random, want: Callable[[TapeWrite], bool]
) -> int | None:
    return rng.choice([i for i, write in enumerate(writes) if want(write)] or [None])


def _put(writes: list[TapeWrite], at: int, write: TapeWrite) -> list[TapeWrite]:
    return [*writes[:at], write, *writes[at + 1 :]]


def lost_write(writes: list[TapeWrite], rng: random.Random) -> list[TapeWrite] | None:
    """A chunk that never comes, padding that is not zeroed."""
    at = rng.randrange(len(writes))
    return [*writes[:at], *writes[at + 1 :]]


def shifted_source(writes: list[TapeWrite], rng: random.Random) -> list[TapeWrite] | None:
    """The wrong head, a scale one block further."""
    at = _pick(writes, rng, lambda w: bool(w.srcs) and not w.operation)
    if at is None:
        return None
    write = writes[at]
    which = rng.randrange(len(write.srcs))
    src = write.srcs[which]
    step = rng.choice([1, -1]) if src.offset else 1
    srcs = _put(list(write.srcs), which, replace(src, offset=src.offset + step))  # type: ignore[arg-type]
    return _put(writes, at, replace(write, srcs=tuple(srcs)))


def swapped_sources(writes: list[TapeWrite], rng: random.Random) -> list[TapeWrite] | None:
    """Gate where up should be."""
    plain = [i for i, w in enumerate(writes) if w.srcs and not w.operation]
    if len(plain) < 2:
        return None
    i, j = rng.sample(plain, 2)
    if [s.extent for s in writes[i].srcs] != [s.extent for s in writes[j].srcs]:
        return None
    out = _put(writes, i, replace(writes[i], srcs=writes[j].srcs))
    return _put(out, j, replace(writes[j], srcs=writes[i].srcs))


def repeated_shard(writes: list[TapeWrite], rng: random.Random) -> list[TapeWrite] | None:
    """A shard written twice, and its neighbour never."""
    plain = [i for i, w in enumerate(writes) if not w.operation]
    if len(plain) < 2:
        return None
    i, j = rng.sample(plain, 2)
    if writes[i].dsts[0].extent != writes[j].dsts[0].extent:
        return None
    return _put(writes, i, replace(writes[i], dsts=writes[j].dsts))


def skipped_operation(writes: list[TapeWrite], rng: random.Random) -> list[TapeWrite] | None:
    """No -exp, no scale, a rounding less."""
    at = _pick(writes, rng, lambda w: any(not op.startswith("load") for op in w.ops))
    if at is None:
        return None
    ops = list(writes[at].ops)
    unary = [
        k for k, op in enumerate(ops) if op.split(".")[0] in ("cast", "add", "mul", "div", "negexp")
    ]
    if not unary:
        return None
    del ops[rng.choice(unary)]
    return _put(writes, at, replace(writes[at], ops=tuple(ops)))


FAULTS: tuple[Fault, ...] = (
    lost_write,
    shifted_source,
    swapped_sources,
    repeated_shard,
    skipped_operation,
)


def mutants(text: str, seed: int, n_each: int) -> Iterator[tuple[str, dict, list[TapeWrite]]]:
    """(fault, tape, its writes), n_each of each kind where the tape has a place for it."""
    tape = json.loads(text)
    writes = parse_writes(tape)
    rng = random.Random(seed)
    for fault in FAULTS:
        for _ in range(n_each):
            made = fault(writes, rng)
            if made is not None and made != writes:
                yield fault.__name__, tape, made

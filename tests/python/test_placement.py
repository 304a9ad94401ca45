# SPDX-License-Identifier: Apache-2.0
"""Tensors held in boxes by a trainer's ranks."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import heft
from heft import BufferKind, DType, Manifest, Placement, Plan, Shard, Tape, View, errors


def whole() -> Manifest:
    return Manifest.create("source", [("w", DType.F32, (4, 6)), ("b", DType.F32, (6,))])


def tape() -> Tape:
    made = Tape()
    w = made.add_buffer(BufferKind.SOURCE, "w", DType.F32, (4, 6))
    b = made.add_buffer(BufferKind.SOURCE, "b", DType.F32, (6,))
    p = made.add_buffer(BufferKind.PARAM, "p", DType.F32, (5, 6))
    made.copy(View(p, 0, (4, 6), (6, 1)), View.contiguous(w, (4, 6)))
    made.copy(View(p, 24, (6,), (1,)), View.contiguous(b, (6,)))
    return made


ROWS = [Shard("w", rank, ((2 * rank, 2 * rank + 2), (0, 6))) for rank in range(2)]
BIAS = [Shard("b", rank, ((0, 6),)) for rank in range(2)]  # replicas


def test_a_tape_reads_what_ranks_hold() -> None:
    placement = Placement(whole(), [*ROWS, *BIAS])
    assert placement.n_ranks == 2
    assert sum(placement.load(rank) for rank in range(2)) == whole().n_bytes
    assert {cut.tensor for cut in placement.cuts} == {"w", "b"}
    assert [cut for cut in placement.cuts if cut.tensor == "w"] == ROWS
    given = tape()
    placed = placement.apply(given)
    assert given.is_closed
    del placement
    gc.collect()
    excuse = heft.Exception_(heft.ExceptionKind.UNUSED, "*.b", "another rank sends it", True)
    plan = Plan.create([placed], exceptions=[excuse])
    w, b = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6, dtype=np.float32)
    held = {f"rank-{r}.w": w[2 * r : 2 * r + 2].copy() for r in range(2)}
    held |= {f"rank-{r}.b": b for r in range(2)}
    p = np.zeros((5, 6), np.float32)
    heft.execute(plan, held, {"p": p})
    np.testing.assert_array_equal(p, np.concatenate([w, b[None]]))


def test_tensors_of_ranks_say_who_holds_what() -> None:
    shapes = {"rank-0.w": (4, 2), "rank-1.w": (4, 4), "rank-0.b": (6,), "rank-1.b": (6,)}
    ranks = Manifest.create("source", [(name, DType.F32, s) for name, s in shapes.items()])
    placement, tensors = Placement.infer(ranks, 1)  # of one dimension: whole on each rank
    assert {info.name: info.shape for info in tensors} == {"w": (4, 6), "b": (6,)}
    assert [cut.box for cut in placement.cuts if cut.tensor == "w"] == [
        ((0, 4), (0, 2)),
        ((0, 4), (2, 6)),
    ]
    with pytest.raises(errors.ShapeError, match="w"):
        Placement.infer(ranks, 0)
    with pytest.raises(errors.ArgumentError):
        Placement.infer(ranks, -1)


def test_what_no_rank_holds_is_named() -> None:
    with pytest.raises(errors.ProofError, match='"w"'):
        Placement(whole(), [ROWS[0], *BIAS])
    with pytest.raises(errors.NameError, match='"v"'):
        Placement(whole(), [Shard("v", 0, ((0, 1),))])
    with pytest.raises(errors.ShapeError, match='"b"'):
        Placement(whole(), [*ROWS, Shard("b", 0, ((0, 7),))])


def test_a_tape_that_is_refused_or_borrowed_is_kept() -> None:
    placement = Placement(whole(), [*ROWS, *BIAS])
    other = Tape()
    other.add_buffer(BufferKind.SOURCE, "x", DType.F32, (1,))
    with pytest.raises(errors.NameError, match='"x"'):
        placement.apply(other)
    assert other.n_buffers == 1
    contract = heft.Contract.create(whole(), tapes=[tape()])
    (borrowed,) = contract.tapes
    with pytest.raises(errors.StateError, match="belongs to another object"):
        placement.apply(borrowed)

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


def test_what_the_receiving_host_holds_comes_from_there() -> None:
    copies = [Shard("w", rank, ((0, 4), (0, 6))) for rank in range(4)]
    hosts = [7, 7, 9, 9]
    for to_host, senders in ((7, {0, 1}), (9, {2, 3}), (None, {1, 2, 3})):  # rank 0 has b to send
        placement = Placement(
            whole(), [*copies, BIAS[0]], min_cut_bytes=1, hosts=hosts, to_host=to_host
        )
        assert {cut.rank for cut in placement.cuts if cut.tensor == "w"} == senders
        loads = [placement.load(rank) for rank in range(4)]
        assert sum(loads) == whole().n_bytes
    assert abs(sum(loads[:2]) - sum(loads[2:])) <= 24  # a row


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


def held(rank: int, box: tuple[tuple[int, int], tuple[int, int]], replica: int = 0) -> Manifest:
    begin, shape = zip(*((low, high - low) for low, high in box), strict=True)
    part = heft.Part("w", (4, 6), begin, replica)
    own = [(f"w.of.{rank}", DType.F32, shape), (f"only.{rank}", DType.F32, (2,))]
    return Manifest.create("source", own, parts={f"w.of.{rank}": part})


def test_manifests_of_ranks_say_who_holds_what() -> None:
    rows, columns = ((0, 2), (0, 6)), ((2, 4), (0, 6))
    placement, tensors = Placement.from_sources([held(0, rows), held(1, columns)])
    assert placement is not None
    assert {t.name: t.shape for t in tensors} == {"w": (4, 6), "only.0": (2,), "only.1": (2,)}
    assert [cut for cut in placement.cuts if cut.tensor == "w"] == [
        Shard("w", 0, rows, "w.of.0"),
        Shard("w", 1, columns, "w.of.1"),
    ]
    assert Placement.from_sources([whole()])[0] is None
    assert Placement.from_sources([whole()])[1].digest == whole().digest


def test_all_that_ranks_do_not_agree_on_is_listed() -> None:
    everything = ((0, 4), (0, 6))
    assert Placement.from_sources([held(0, everything), held(1, everything, 1)])[0] is not None
    with pytest.raises(errors.ExistsError, match="without a replica index"):
        Placement.from_sources([held(0, everything), held(1, everything)])
    with pytest.raises(errors.ProofError, match='"w"'):
        Placement.from_sources([held(0, ((0, 4), (0, 3)))])
    with pytest.raises(errors.HeftError) as caught:
        Placement.from_sources([held(0, ((0, 1), (0, 3))), held(0, ((0, 1), (0, 3)))])
    assert len(caught.value.issues) > 1


def test_a_rank_may_hold_several_boxes() -> None:
    boxes = [Shard("w", 0, ((0, 4), (k, k + 2)), f"w.{k}") for k in (0, 2, 4)]
    placement = Placement(whole(), [*boxes, Shard("b", 0, ((0, 6),))])
    assert [cut.name for cut in placement.cuts if cut.tensor == "w"] == ["w.0", "w.2", "w.4"]
    plan = Plan.create([placement.apply(tape())])
    w, b = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6, dtype=np.float32)
    own = {f"rank-0.w.{k}": w[:, k : k + 2].copy() for k in (0, 2, 4)}
    p = np.zeros((5, 6), np.float32)
    heft.execute(plan, {**own, "rank-0.b": b}, {"p": p})
    np.testing.assert_array_equal(p, np.concatenate([w, b[None]]))

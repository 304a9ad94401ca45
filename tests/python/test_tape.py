# SPDX-License-Identifier: Apache-2.0
"""Tapes, plans and runs from memory to memory, judged by numpy."""

from __future__ import annotations

import gc
import os
import pathlib
import time
import weakref

import numpy as np
import pytest

import heft
from heft import BufferKind, DType, Op, OpCode, Plan, Tape, View, errors

STALE = heft.Exception_(heft.ExceptionKind.UNUSED, "nothing.*", "there is none")


def transposing_tape() -> Tape:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.F32, (4, 6))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (6, 4))
    tape.copy(View.contiguous(dst, (6, 4)), View(src, 0, (6, 4), (1, 6)), "loader.py:1")
    return tape


def test_a_tape_tells_its_buffers() -> None:
    tape = Tape()
    first = tape.add_buffer(BufferKind.SOURCE, "w", DType.BF16, (2, 3))
    tape.add_buffer(BufferKind.TEMP, "", DType.F4, (2, 8))
    assert (tape.n_buffers, tape.n_writes) == (2, 0)
    assert tape.query_buffer(first) == heft.BufferInfo("w", BufferKind.SOURCE, DType.BF16, (2, 3))
    assert tape.query_buffer(1).shape == (2, 4)  # packed: bytes
    assert tape.find_buffer(BufferKind.SOURCE, "w") == first


def test_a_refused_write_leaves_the_tape_as_it_was() -> None:
    tape = transposing_tape()
    with pytest.raises(errors.ArgumentError, match=r"write 1 \(here\): .*reaches"):
        tape.copy(View(1, 0, (25,), (1,)), View(0, 0, (25,), (0,)), "here")
    with pytest.raises(errors.ArgumentError, match="2 extents and 1 strides"):
        tape.copy(View(1, 0, (2, 2), (1,)), View(0, 0, (2, 2), (1, 2)))
    with pytest.raises(errors.ArgumentError, match="13 dimensions"):
        tape.add_buffer(BufferKind.SOURCE, "deep", DType.F32, (1,) * 13)
    assert (tape.n_buffers, tape.n_writes) == (2, 1)


def test_a_tape_goes_through_json() -> None:
    tape = transposing_tape()
    copy = Tape.from_json(tape.to_json())
    assert copy.to_json() == tape.to_json()
    assert copy.digest == tape.digest
    assert len(tape.digest) == 64
    tape.fill(View(1, 0, (1,), (1,)), 0)
    assert copy.digest != tape.digest
    with pytest.raises(errors.FormatError):
        Tape.from_json("{}")


def test_models_of_one_rank_share_a_tape() -> None:
    parts = [heft.ModelPart("", transposing_tape()), heft.ModelPart("draft", transposing_tape())]
    joined = Tape.join_models(parts)
    params = [info.name for info in Plan.create([joined]).params()]
    assert params == ["draft.p", "p"]
    one = Tape.join_models(parts, [heft.ModelAlias(1, 0, "p", "p")])
    assert [info.name for info in Plan.create([one]).params()] == ["p"]
    with pytest.raises(errors.NotFoundError, match="nowhere"):
        Tape.join_models(parts, [heft.ModelAlias(1, 0, "nowhere", "p")])


def test_a_plan_runs_a_copy() -> None:
    plan = Plan.create([transposing_tape()])
    w, p = np.arange(24, dtype=np.float32).reshape(4, 6), np.zeros((6, 4), np.float32)
    heft.execute(plan, {"w": w}, {"p": p})
    np.testing.assert_array_equal(p, w.T)


def test_a_plan_runs_fill_map_and_temporaries() -> None:
    tape = Tape()
    a = tape.add_buffer(BufferKind.SOURCE, "a", DType.F32, (8,))
    b = tape.add_buffer(BufferKind.SOURCE, "b", DType.F32, (8,))
    t = tape.add_buffer(BufferKind.TEMP, "", DType.F32, (8,))
    p = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (10,))
    line = ((8,), (1,))
    mul = [
        Op(OpCode.LOAD, None, 0),
        Op(OpCode.LOAD, None, 1),
        Op(OpCode.MUL, DType.F32),
        Op(OpCode.ADD_IMM, DType.F32, imm=1.5),
    ]
    tape.map(View(t, 0, *line), [View(a, 0, *line), View(b, 7, (8,), (-1,))], mul)
    tape.copy(View(p, 0, *line), View(t, 0, *line))
    tape.fill(View(p, 8, (2,), (1,)), int(np.float32(2.0).view(np.uint32)))
    plan = Plan.create([tape])
    assert [piece.ops for piece in plan.pieces() if piece.srcs] == [tuple(mul)]
    values = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    out = np.zeros(10, np.float32)
    heft.execute(plan, {"a": values[0], "b": values[1]}, {"p": out})
    np.testing.assert_array_equal(out[:8], values[0] * values[1][::-1] + np.float32(1.5))
    np.testing.assert_array_equal(out[8:], 2.0)


def test_a_plan_tells_pieces_groups_parameters_and_digests() -> None:
    plan = Plan.create([transposing_tape()], first_rank=3)
    assert (plan.n_ranks, plan.first_rank, plan.n_pieces, plan.n_bytes, plan.n_constant_bytes) == (
        1,
        3,
        1,
        96,
        0,
    )
    assert [info.name for info in plan.params()] == ["p"]
    assert plan.sources == [heft.TensorInfo("w", DType.F32, (4, 6), 24, 96)]
    (piece,) = plan.pieces()
    assert (piece.extent, piece.dst_offset, piece.dst_stride) == ((6, 4), 0, (4, 1))
    assert piece.srcs == (heft.PieceSource(0, 0, 0, (1, 6)),)
    assert piece.note == "loader.py:1"
    assert plan.groups == [heft.Group(((0, 0),), (0,), 1, 96, 96, False)]
    assert plan.group_of(0) == 0
    assert plan.checks() == []
    assert plan.digest != plan.rank_digest()
    assert plan.rank_digest() == Plan.create([transposing_tape()]).rank_digest()
    with pytest.raises(errors.ArgumentError, match="rank 1: the plan has 1"):
        plan.rank_digest(1)


def test_a_plan_tells_what_it_leaves_to_a_loader() -> None:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.F32, (4,))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (4,))
    tape.opaque(
        "engine.shuffle", [View(dst, 0, (4,), (1,))], [View(src, 0, (4,), (1,))], "loader.py:7"
    )
    plan = Plan.create([tape])
    (opaque,) = plan.opaques()
    assert (opaque.op, opaque.note, opaque.sources, opaque.group) == (
        "engine.shuffle",
        "loader.py:7",
        (0,),
        0,
    )
    assert plan.groups[0].is_opaque
    assert heft.FindingKind.OPAQUE in [finding.kind for finding in plan.report.findings]


def test_a_refused_plan_says_everything_that_is_wrong() -> None:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.F32, (4, 6))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (6, 4))
    tape.copy(View(dst, 0, (3, 4), (4, 1)), View(src, 0, (3, 4), (1, 6)))
    with pytest.raises(errors.ProofError) as caught:
        Plan.create([tape])
    report = caught.value.report
    assert report.n_errors == 2
    kinds = {finding.kind: finding for finding in report.findings}
    uncovered = kinds[heft.FindingKind.UNCOVERED]
    assert (uncovered.name, uncovered.n_elems, uncovered.begin, uncovered.end) == (
        "p",
        12,
        (3, 0),
        (6, 4),
    )
    assert kinds[heft.FindingKind.UNUSED].name == "w"
    assert str(report).count("\n") == 2


def test_an_exception_excuses_and_needs_a_reason() -> None:
    tape = transposing_tape()
    tape.add_buffer(BufferKind.SOURCE, "rope.inv_freq", DType.F32, (2,))
    with pytest.raises(errors.ProofError):
        Plan.create([tape])
    excuse = heft.Exception_(heft.ExceptionKind.UNUSED, "*.inv_freq", "computed by the engine")
    assert Plan.create([tape], exceptions=[excuse]).report.n_errors == 0
    with pytest.raises(errors.ArgumentError, match="has no reason"):
        Plan.create([tape], exceptions=[excuse._replace(reason="")])


def test_replicas_get_digests_that_agree_with_memory() -> None:
    plan = Plan.create([transposing_tape()])
    w = np.arange(24, dtype=np.float32).reshape(4, 6)
    outs = [np.zeros((6, 4), np.float32) for _ in range(2)]
    with heft.Exec(plan, [heft.Target(0, {"p": out}) for out in outs], digests=True) as run:
        run.run({"w": w})
        for k, out in enumerate(outs):
            np.testing.assert_array_equal(out, w.T)
            assert run.digests(k) == {"p": heft.digest(out)}


def test_progress_cancels_and_its_exception_comes_back() -> None:
    tape = Tape()
    n = 6 << 20
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.F32, (n,))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (n,))
    tape.copy(View(dst, 0, (n,), (1,)), View(src, 0, (n,), (1,)))
    plan, w, p = Plan.create([tape]), np.ones(n, np.float32), np.zeros(n, np.float32)
    seen: list[tuple[int, int]] = []
    heft.Exec(plan, {"p": p}, progress=lambda done, total: seen.append((done, total))).run({"w": w})
    assert seen[-1] == (4 * n, 4 * n)
    with pytest.raises(errors.CanceledError):
        heft.Exec(plan, {"p": p}, progress=lambda done, total: False).run({"w": w})

    def fail(done: int, total: int) -> None:
        raise LookupError("in progress")

    with pytest.raises(LookupError, match="in progress"):
        heft.Exec(plan, {"p": p}, progress=fail).run({"w": w})


def test_names_and_shapes_of_memory_are_checked() -> None:
    plan = Plan.create([transposing_tape()])
    w, p = np.zeros((4, 6), np.float32), np.zeros((6, 4), np.float32)
    with pytest.raises(errors.ArgumentError, match='source "v" is not in the plan'):
        heft.execute(plan, {"w": w, "v": w}, {"p": p})
    with pytest.raises(errors.ArgumentError, match='"w"'):
        heft.execute(plan, {}, {"p": p})
    with pytest.raises(errors.ArgumentError, match='"p"'):
        heft.execute(plan, {"w": w}, {})
    with pytest.raises(
        errors.ShapeError, match=r'"w": memory has shape \[6, 4\], \[4, 6\] is expected'
    ):
        heft.execute(plan, {"w": p}, {"p": p})


def test_memory_lives_as_long_as_it_is_borrowed() -> None:
    plan = Plan.create([transposing_tape()])
    out = np.zeros((6, 4), np.float32)
    gone = weakref.ref(out)
    run = heft.Exec(plan, {"p": out})
    plan.close()
    del plan, out
    gc.collect()
    assert gone() is not None
    run.run({"w": np.ones((4, 6), np.float32)})
    assert (gone() == 1).all()
    run.close()
    gc.collect()
    assert gone() is None


def test_a_closed_object_says_so_and_closes_twice() -> None:
    with transposing_tape() as tape:
        assert tape.n_writes == 1
    tape.close()
    assert tape.is_closed
    with pytest.raises(errors.StateError, match="this Tape is closed"):
        tape.n_writes  # noqa: B018


def test_cycles_of_objects_are_collected_in_any_order() -> None:
    class Node:
        pass

    for _ in range(50):
        node = Node()
        node.self = node
        node.plan = Plan.create([transposing_tape()])
        node.run = heft.Exec(node.plan, {"p": np.zeros((6, 4), np.float32)})
    del node
    gc.collect()


def test_objects_that_are_dropped_give_their_memory_back() -> None:
    w, p = np.zeros((4, 6), np.float32), np.zeros((6, 4), np.float32)

    def use() -> None:
        for _ in range(300):
            plan = Plan.create([transposing_tape()])
            heft.Exec(plan, {"p": p}, digests=True).run({"w": w})
            heft.Manifest.create("source", [(f"w.{i}", DType.F32, (4,)) for i in range(30)])
            with pytest.raises(errors.ProofError):
                Plan.create([transposing_tape(), transposing_tape()], exceptions=[STALE])

    def resident() -> int:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    use()  # allocators and caches have what they want
    before = resident()
    for _ in range(4):
        use()
    grown = resident() - before
    assert grown < 2 << 20, f"{grown} bytes more after 1200 rounds"


def test_a_hundred_thousand_writes_take_seconds() -> None:
    tape = Tape()
    src = tape.add_buffer(BufferKind.SOURCE, "w", DType.BF16, (100_000, 4))
    dst = tape.add_buffer(BufferKind.PARAM, "p", DType.BF16, (100_000, 4))
    start = time.process_time()
    for i in range(100_000):
        tape.copy(View(dst, 4 * i, (4,), (1,)), View(src, 4 * i, (4,), (1,)), "loader.py:12")
    seconds = time.process_time() - start
    assert tape.n_writes == 100_000
    assert seconds < 4, f"{seconds:.1f} s; about 0.3 s when it was written"


def test_a_chain_reads_what_its_first_tape_reads() -> None:
    def copied(source: str, param: str) -> Tape:
        tape = Tape()
        src = tape.add_buffer(BufferKind.SOURCE, source, DType.F32, (2, 3))
        dst = tape.add_buffer(BufferKind.PARAM, param, DType.F32, (3, 2))
        tape.copy(View.contiguous(dst, (3, 2)), View(src, 0, (3, 2), (1, 3)))
        return tape

    first, second = copied("a", "b"), copied("b", "c")
    chain = Tape.chain(first, second)
    assert first.is_closed
    assert second.is_closed
    a, c = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
    heft.execute(Plan.create([chain]), {"a": a}, {"c": c})
    np.testing.assert_array_equal(c, a.T.reshape(2, 3).T)
    one, other = copied("a", "b"), copied("x", "c")
    with pytest.raises(errors.NameError, match='does not make "x"'):
        Tape.chain(one, other)
    assert other.n_writes == 1  # still its owner's
    with pytest.raises(errors.ArgumentError, match="two tapes"):
        Tape.chain(one, one)

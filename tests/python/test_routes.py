# SPDX-License-Identifier: Apache-2.0
"""Who sends what to whom, and runs of one sender's share."""

from __future__ import annotations

import numpy as np
import pytest

import heft
from heft import BufferKind, DType, Load, Op, OpCode, Plan, Region, Routes, Tape, View, errors


def plan() -> Plan:
    """p is rows of senders 0 and 2, with zeros beside them."""
    tape = Tape()
    a = tape.add_buffer(BufferKind.SOURCE, "rank-0.w", DType.F32, (2, 3))
    b = tape.add_buffer(BufferKind.SOURCE, "rank-2.w", DType.F32, (1, 3))
    p = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (3, 4))
    tape.copy(View(p, 0, (2, 3), (4, 1)), View.contiguous(a, (2, 3)))
    tape.copy(View(p, 8, (1, 3), (4, 1)), View.contiguous(b, (1, 3)))
    tape.fill(View(p, 3, (3,), (4,)), 0)
    return Plan.create([tape])


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((1, 3), 7, np.float32)
P = np.concatenate([np.concatenate([A, B]), np.zeros((3, 1), np.float32)], axis=1)


def test_who_sends_what() -> None:
    routes = Routes(plan(), 3, loads=[Load(0, 1, 10)])
    assert (routes.n_senders, routes.n_ranks, len(routes.digest)) == (3, 1, 64)
    assert routes.senders(0) == [0, 1, 2]
    assert routes.senders(0, 0) == [0, 2]
    assert routes.params(0, 0) == [0]
    assert routes.params(1, 0) == []
    assert routes.route(0, 0).n_bytes == (6 + 3) * 4
    assert routes.route(1, 0).n_load_bytes == 10
    assert routes.route(2, 0, 0).n_runs == 1
    assert [routes.piece_sender(0, i) for i in range(plan().n_pieces)].count(2) == 1
    assert routes.piece_sender(0, 99) is None
    assert list(routes.regions(2, 0, 0)) == [Region(32, 12, (), ())]
    assert Routes(plan(), 2, senders=[1, 0]).senders(0) == [0, 1]


def test_shares_combine() -> None:
    made = plan()
    routes = Routes(made, 3)
    p, combined = np.full((3, 4), np.nan, np.float32), 0
    for sender, sources in ((2, {"rank-2.w": B}), (0, {"rank-0.w": A})):
        with heft.Exec(made, {"p": p}, routes=routes, sender=sender, digests=True) as run:
            run.run(sources)
            combined ^= run.digests()["p"]
    np.testing.assert_array_equal(p, P)
    assert combined == heft.digest(P)


def test_packed() -> None:
    routes = Routes(plan(), 3)
    p, out = P.copy(), np.full((3, 4), np.nan, np.float32)
    for sender in (0, 2):
        regions = routes.regions(sender, 0, 0)
        packed = regions.pack(p)
        assert len(packed) == regions.n_bytes
        assert regions.pack(p, 4, 5) == packed[4:9]
        regions.unpack(packed[:7], out)
        regions.unpack(packed[7:], out, 7)
    np.testing.assert_array_equal(out, p)
    with pytest.raises(errors.ArgumentError, match="bytes"):
        regions.pack(p, 4, 100)
    with pytest.raises(errors.ArgumentError, match="parameter of 44 bytes"):
        regions.unpack(b"", np.zeros(2, np.float32))


def test_a_kernel_of_two_senders_can_be_the_receivers() -> None:
    tape = Tape()
    a = tape.add_buffer(BufferKind.SOURCE, "rank-0.w", DType.BF16, (3, 4))
    b = tape.add_buffer(BufferKind.SOURCE, "rank-1.w", DType.BF16, (1, 4))
    x = tape.add_buffer(BufferKind.TEMP, "", DType.BF16, (4, 4))
    codes = tape.add_buffer(BufferKind.TEMP, "", DType.F8_E4M3, (4, 4))
    scales = tape.add_buffer(BufferKind.TEMP, "", DType.F32, (1, 1))
    p = tape.add_buffer(BufferKind.PARAM, "p", DType.F8_E4M3, (4, 4))
    tape.copy(View(x, 0, (3, 4), (4, 1)), View.contiguous(a, (3, 4)))
    tape.copy(View(x, 12, (1, 4), (4, 1)), View.contiguous(b, (1, 4)))
    tape.opaque(
        "heft.fp8_quantise/1(block=4x4,scale=deepseek)",
        [View.contiguous(codes, (4, 4)), View.contiguous(scales, (1, 1))],
        [View.contiguous(x, (4, 4))],
    )
    tape.copy(View.contiguous(p, (4, 4)), View.contiguous(codes, (4, 4)))
    made = Plan.create([tape])
    with pytest.raises(errors.UnsupportedError, match="fp8_quantise/1 needs"):
        Routes(made, 2)
    routes = Routes(made, 2, gathers=True)
    assert routes.piece_sender(0, 0) is None
    assert routes.senders(0, 0) == []
    assert [routes.route(s, 0).n_load_bytes for s in range(2)] == [24, 8]


def test_what_is_refused_is_named() -> None:
    tape = Tape()
    a = tape.add_buffer(BufferKind.SOURCE, "a", DType.F32, (2,))
    b = tape.add_buffer(BufferKind.SOURCE, "b", DType.F32, (2,))
    p = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (2,))
    ops = [Op(OpCode.LOAD, None, 0), Op(OpCode.LOAD, None, 1), Op(OpCode.MUL, DType.F32)]
    tape.map(View.contiguous(p, (2,)), [View.contiguous(a, (2,)), View.contiguous(b, (2,))], ops)
    made = Plan.create([tape])
    with pytest.raises(errors.UnsupportedError, match='"a" of left with "b" of right'):
        Routes(made, 2, senders=[0, 1], names=["left", "right"])
    with pytest.raises(errors.ArgumentError, match="names"):
        Routes(made, 2, senders=[0, 1], names=["left"])
    with pytest.raises(errors.ArgumentError, match="senders of 1"):
        Routes(made, 2, senders=[0])


def test_a_sender_plans_its_part_alone() -> None:
    whole = heft.Manifest.create("source", [("w", DType.F32, (4, 3)), ("v", DType.F32, (2, 3))])
    rows = [heft.Shard("w", r, ((2 * r, 2 * r + 2), (0, 3))) for r in range(2)]
    placement = heft.Placement(whole, [*rows, heft.Shard("v", 1, ((0, 2), (0, 3)))])
    tape = Tape()
    w = tape.add_buffer(BufferKind.SOURCE, "w", DType.F32, (4, 3))
    v = tape.add_buffer(BufferKind.SOURCE, "v", DType.F32, (2, 3))
    p = tape.add_buffer(BufferKind.PARAM, "p", DType.F32, (4, 3))
    q = tape.add_buffer(BufferKind.PARAM, "q", DType.F32, (2, 3))
    tape.copy(View.contiguous(p, (4, 3)), View.contiguous(w, (4, 3)))
    tape.copy(View.contiguous(q, (2, 3)), View.contiguous(v, (2, 3)))
    parts = [placement.apply_part(sender, tape) for sender in range(2)]
    whole_routes = Routes(Plan.create([placement.apply(tape)]), 2)
    for sender, part in enumerate(parts):
        routes = Routes(Plan.create_part([part]), 2, others=placement)
        assert routes.route(sender, 0) == whole_routes.route(sender, 0)
    with pytest.raises(errors.ArgumentError, match="rank 2 of 2"):
        placement.apply_part(2, tape if not tape.is_closed else Tape())

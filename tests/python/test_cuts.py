# SPDX-License-Identifier: Apache-2.0
"""What a mesh leaves of a tensor to one rank."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from heft import Blocks, Box, Cut, CutRule, Mesh, cut, errors


def shard_number(mesh: Mesh, spec: tuple[str, ...]) -> int:
    """Which shard of the grid that a spec makes a position holds, counted row by row."""
    grid = tuple(mesh.axes[axis] for axis in spec)
    ((begin, _, _),) = cut(grid, mesh.cuts(spec))[1]
    return int(np.ravel_multi_index(begin, grid))


def test_the_second_host_of_four_devices() -> None:
    second = [Mesh({"fsdp": 2, "tp": 8}, rank) for rank in range(4, 8)]
    assert [shard_number(mesh, ("tp", "fsdp")) for mesh in second] == [8, 10, 12, 14]
    assert [shard_number(mesh, ("fsdp", "tp")) for mesh in second] == [4, 5, 6, 7]


def test_ten_in_three_parts() -> None:
    def parts(rule: CutRule) -> list[tuple[int, int]]:
        found = [cut((10,), [Cut(0, 3, part, rule=rule)])[1][0] for part in range(3)]
        return [(box.begin[0], box.end[0]) for box in found]

    assert parts(CutRule.LAST) == [(0, 3), (3, 6), (6, 10)]
    assert parts(CutRule.CEIL) == [(0, 4), (4, 8), (8, 10)]
    with pytest.raises(errors.ShapeError, match="10 do not divide into 3 equal parts"):
        parts(CutRule.EVEN)


def test_axes_of_equal_size_are_told_apart_by_name() -> None:
    mesh = Mesh({"data": 2, "model": 2}, 1)  # data 0, model 1
    assert cut((4, 4), mesh.cuts(("data", "model")))[1][0].begin == (0, 2)
    assert cut((4, 4), mesh.cuts(("model", "data")))[1][0].begin == (2, 0)
    assert (mesh.replica(("data",)), mesh.replica(("model",))) == (1, 0)


def test_positions_are_stated_where_ranks_have_another_order() -> None:
    torus = [0, 1, 3, 2, 6, 7, 5, 4]  # the number of the device at each position
    at = {device: divmod(place, 4) for place, device in enumerate(torus)}
    held = {d: cut((2, 4), Mesh({"x": 2, "y": 4}, position=at[d]).cuts(("x", "y")))[1] for d in at}
    assert held[6] == [Box((1, 0), (2, 1), (0, 0))]
    assert held[2] == [Box((0, 3), (1, 4), (0, 0))]


def test_blocks_give_a_rank_several_boxes() -> None:
    """Gate and up one above the other, and each of them in two shards."""
    mesh = Mesh({"tp": 2}, 1)
    shape, boxes = cut((8, 3), mesh.cuts((Blocks("tp", 2),)))
    assert shape == (4, 3)
    assert boxes == [Box((2, 0), (4, 3), (0, 0)), Box((6, 0), (8, 3), (2, 0))]
    whole = np.arange(24).reshape(8, 3)
    own = np.concatenate([whole[2:4], whole[6:8]])
    for box in boxes:
        begin, end = box.begin[0], box.end[0]
        np.testing.assert_array_equal(own[box.slices], whole[begin:end])


def test_every_element_is_on_as_many_ranks_as_there_are_replicas() -> None:
    axes = {"a": 2, "b": 3, "c": 2}
    for spec in ((("a", "b"),), ("b", None, "c"), (None, ("c", "a")), ()):
        seen = np.zeros((12, 12, 4), int)
        replicas = set()
        for rank in range(12):
            mesh = Mesh(axes, rank)
            for box in cut(seen.shape, mesh.cuts(spec))[1]:
                seen[tuple(map(slice, box.begin, box.end))] += 1
            replicas.add(mesh.replica(spec))
        n = len(replicas)
        assert replicas == set(range(n))
        assert (seen == n).all()


def test_what_is_no_mesh_or_spec_is_refused() -> None:
    mesh = Mesh({"dp": 2, "tp": 2}, 3)
    with pytest.raises(errors.ArgumentError, match='no axis "fsdp"'):
        mesh.cuts(("fsdp",))
    with pytest.raises(errors.ArgumentError, match='"tp" shards two dimensions'):
        mesh.cuts(("tp", "tp"))
    with pytest.raises(errors.ArgumentError, match="rank 4"):
        Mesh({"dp": 2, "tp": 2}, 4)
    with pytest.raises(errors.ArgumentError, match='position 2 on axis "tp" of 2'):
        Mesh({"dp": 2, "tp": 2}, position=(0, 2))
    with pytest.raises(errors.ArgumentError, match="a rank or a position"):
        Mesh({"dp": 2})
    with pytest.raises(errors.ArgumentError, match="has 1 dimensions"):
        cut((4,), mesh.cuts((None, "tp")))
    with pytest.raises(errors.ArgumentError, match="position -1"):
        cut((4,), [Cut(0, 2, -1)])


def test_many_boxes() -> None:
    shape, boxes = cut((64, 64), [Cut(0, 2, 0, 8), Cut(1, 2, 1, 8)])
    assert shape == (32, 32)
    assert len(boxes) == 64
    locals_ = [box.local for box in boxes]
    assert locals_ == list(itertools.product(range(0, 32, 4), repeat=2))

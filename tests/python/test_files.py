# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, conversion there and back, verification and differences."""

from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest
import safetensors.numpy
from models import RECIPE, expected, manifest_of, tensors

import heft
from heft import Bindings, Checkpoint, ConvertOptions, DType, Recipe, errors

IGNORED = [heft.Exception_(heft.ExceptionKind.UNUSED, "rope.inv_freq", "computed")]


@pytest.fixture
def source(tmp_path) -> Checkpoint:
    heft.write_checkpoint(tmp_path / "source", tensors())
    return Checkpoint.open(tmp_path / "source")


def plan_of(source: Checkpoint, tp: int = 2) -> heft.Plan:
    return Recipe.parse(RECIPE).plan(Bindings({"tp": tp}), source.manifest)


def read(folder) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_checkpoint_is_what_another_library_reads(tmp_path, source) -> None:
    assert_equal(read(tmp_path / "source"), tensors())
    assert source.manifest.names == sorted(tensors())
    assert len(source) == len(tensors())


def test_a_tensor_is_seen_where_it_is_mapped(source) -> None:
    wanted = tensors()["embed"]
    view = source.view("embed")
    assert view.readonly
    np.testing.assert_array_equal(np.frombuffer(view, np.float32).reshape(wanted.shape), wanted)
    one = source["embed"]
    assert (one.dtype, one.shape, one.is_read_only) == (DType.F32, wanted.shape, True)
    assert heft.digest(one) == heft.digest(wanted)
    source.release("embed")
    source.close()
    gc.collect()
    np.testing.assert_array_equal(np.frombuffer(view, np.float32).reshape(wanted.shape), wanted)
    with pytest.raises(errors.StateError, match="this Checkpoint is closed"):
        source.view("embed")


def test_a_writer_leaves_nothing_without_commit(tmp_path) -> None:
    manifest = manifest_of({"w": np.zeros(4, np.float32)})
    with heft.CheckpointWriter(tmp_path / "out", manifest) as writer:
        view = writer.map("w")
        view[:4] = b"\1\2\3\4"
        with pytest.raises(errors.StateError, match='"w"'):
            writer.commit()
    del view
    gc.collect()
    assert list((tmp_path / "out").glob("*")) == []


def test_a_broken_checkpoint_is_named_whole(tmp_path) -> None:
    heft.write_checkpoint(tmp_path / "a", tensors(), max_shard_bytes=200)
    index = tmp_path / "a" / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    weights = document["weight_map"]
    document["weight_map"] = {
        "nowhere.1": weights["embed"],
        "nowhere.2": weights["embed"],
        **weights,
    }
    index.write_text(json.dumps(document))
    with pytest.raises(errors.FormatError) as caught:
        Checkpoint.open(tmp_path / "a")
    assert [name for name in ("nowhere.1", "nowhere.2") if name in str(caught.value.issues)] == [
        "nowhere.1",
        "nowhere.2",
    ]
    with pytest.raises(errors.NotFoundError, match="nothing-here"):
        Checkpoint.open(tmp_path / "nothing-here")


def test_native_names_become_canonical_when_opened(tmp_path) -> None:
    heft.write_checkpoint(tmp_path / "jax", {"['base']['w'].value": np.ones(2, np.float32)})
    names = heft.NameOptions(heft.NameForm.KEYSTR, heft.LayerForm.SCANNED)
    assert Checkpoint.open(tmp_path / "jax", names=names).manifest.names == ["w"]


def test_a_conversion_there_and_back_is_the_identity(tmp_path, source) -> None:
    plan, seen = plan_of(source), []
    options = ConvertOptions(n_threads=2, progress=lambda done, total: seen.append((done, total)))
    heft.convert(plan, source, tmp_path / "out", options)
    assert seen[-1][0] == seen[-1][1]
    ranks = [Checkpoint.open(tmp_path / "out" / f"rank-{r}", "destination") for r in range(2)]
    for rank in range(2):
        assert_equal(read(tmp_path / "out" / f"rank-{rank}"), expected(tensors(), 2, rank))
        n_elems = heft.verify_checkpoint(plan, source, ranks[rank], rank=rank)
        assert n_elems == ranks[rank].manifest.n_elems
    heft.reverse(plan, ranks, tmp_path / "back", exceptions=IGNORED)
    wanted = tensors()
    del wanted["rope.inv_freq"]
    assert_equal(read(tmp_path / "back"), wanted)


def test_tensors_in_memory_are_let_go_one_by_one(tmp_path, source) -> None:
    plan, arrays = plan_of(source, 1), tensors()
    gone = {name: weakref.ref(array) for name, array in arrays.items()}
    released: list[str] = []

    def release(name: str) -> None:
        del arrays[name]
        released.append(name)
        assert gone[name]() is None

    heft.convert_tensors(plan, source.manifest, arrays, tmp_path / "out", release=release)
    assert sorted(released) == sorted(tensors())
    assert_equal(read(tmp_path / "out"), expected(tensors()))
    with pytest.raises(errors.ArgumentError, match='"stray" is not in the manifest'):
        heft.convert_tensors(plan, source.manifest, {"stray": np.zeros(1)}, tmp_path / "x")


def test_what_a_callback_raises_comes_back(tmp_path, source) -> None:
    plan = plan_of(source, 1)

    def fail(*_: object) -> None:
        raise LookupError("from the callback")

    for options in (
        ConvertOptions(progress=fail),
        ConvertOptions(group_begin=fail, one_by_one=True),
    ):
        with pytest.raises(LookupError, match="from the callback"):
            heft.convert(plan, source, tmp_path / f"out-{options.one_by_one}", options)
    with pytest.raises(errors.CanceledError):
        heft.convert(plan, source, tmp_path / "c", ConvertOptions(progress=lambda *_: False))
    assert not list(tmp_path.glob("c/*.safetensors"))


def test_what_is_closed_during_a_conversion_is_good_until_its_end(tmp_path, source) -> None:
    plan = plan_of(source, 1)

    def close(*_: object) -> None:
        plan.close()
        source.close()

    heft.convert(plan, source, tmp_path / "out", ConvertOptions(progress=close))
    assert_equal(read(tmp_path / "out"), expected(tensors()))
    with pytest.raises(errors.StateError, match="closed"):
        heft.convert(plan, source, tmp_path / "again")


def test_groups_are_announced_one_by_one(tmp_path, source) -> None:
    begun: list[tuple[int, int, str]] = []
    options = ConvertOptions(one_by_one=True, group_begin=lambda *args: begun.append(args))
    heft.convert(plan_of(source, 1), source, tmp_path / "out", options)
    names = sorted(expected(tensors()))
    assert sorted(name for _, _, name in begun) == names
    assert {n for _, n, _ in begun} == {len(names)}


def test_a_single_wrong_bit_is_found(tmp_path, source) -> None:
    wrong = expected(tensors())
    wrong["layers.1.gate_up"].view(np.uint32)[9, 4] ^= 1
    heft.write_checkpoint(tmp_path / "wrong", wrong, side="destination")
    with pytest.raises(errors.MismatchError, match=r"layers\.1\.gate_up") as caught:
        heft.verify_checkpoint(
            plan_of(source, 1), source, Checkpoint.open(tmp_path / "wrong", "destination")
        )
    found = caught.value.mismatch
    assert (found.param, found.position, found.n_differ) == ("layers.1.gate_up", (9, 4), 1)
    assert (found.source, found.source_index) == ("layers.1.up", 1 * 6 + 4)
    assert found.expected_bits ^ found.actual_bits == 1


def test_differences_are_measured(tmp_path, source) -> None:
    other = tensors()
    other["embed"] = np.nextafter(other["embed"], np.float32(9))
    other["layers.0.up"] = other["layers.0.up"].astype(np.float16)
    heft.write_checkpoint(tmp_path / "other", other)
    entries = {
        entry.a.name: entry for entry in heft.diff(source, Checkpoint.open(tmp_path / "other"))
    }
    assert entries.keys() == other.keys()
    assert entries["layers.0.up"].diff is None
    changed = entries["embed"].diff
    assert changed is not None
    assert (changed.n_differ, changed.max_ulp, changed.mean_ulp, changed.first) == (60, 1, 1.0, 0)
    assert heft.diff_tensors(tensors()["embed"], other["embed"]) == changed
    same = entries["rope.inv_freq"].diff
    assert same is not None
    assert (same.n_differ, same.first) == (0, -1)

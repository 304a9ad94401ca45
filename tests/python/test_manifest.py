# SPDX-License-Identifier: Apache-2.0
"""Manifests, names, sizes and cache maps, judged by the golden files where there are some."""

from __future__ import annotations

import json
import threading

import pytest

import heft
from heft import DType, LayerForm, Manifest, NameForm, NameOptions, errors, sizes


def test_a_manifest_tells_what_it_was_given() -> None:
    fused = {"fused.axis": "0", "fused.half": "gate_up", "fused.layout": "concat"}
    fused["fused.shards"] = "1"
    manifest = Manifest.create(
        "destination",
        [("b", DType.BF16, (2, 3)), ("a", DType.F4, (4, 8))],
        attrs={"framework": "toy"},
        tensor_attrs={"b": fused},
        excluded={"rng": "not a weight"},
    )
    assert manifest.names == ["a", "b"]
    assert list(manifest)[1] == heft.TensorInfo("b", DType.BF16, (2, 3), 6, 12)
    assert (manifest["a"].n_elems, manifest["a"].n_bytes) == (32, 16)
    assert (manifest.side, len(manifest), manifest.n_bytes, manifest.n_elems) == (
        "destination",
        2,
        28,
        38,
    )
    assert manifest.attrs == {"framework": "toy"}
    assert manifest.tensor_attrs("b") == fused
    assert manifest.tensor_attrs("a") == {}
    assert manifest.excluded == {"rng": "not a weight"}
    assert "a" in manifest
    assert "c" not in manifest
    assert 3 not in manifest
    with pytest.raises(errors.NotFoundError, match='"bb"'):
        manifest["bb"]


def test_a_manifest_goes_through_json() -> None:
    manifest = Manifest.create("source", [("w", DType.F32, ())], attrs={"k": "ü"})
    copy = Manifest.from_json(manifest.to_json())
    assert (copy.digest, copy.to_json()) == (manifest.digest, manifest.to_json())
    document = json.loads(manifest.to_json())
    document["colour"] = "red"
    with pytest.raises(errors.FormatError, match="colour"):
        Manifest.from_json(json.dumps(document))


def test_parts_of_a_source_are_joined() -> None:
    first = Manifest.create("source", [("a", DType.F32, (1,)), ("tied", DType.F32, (2,))])
    second = Manifest.create("source", [("b", DType.F32, (1,)), ("tied", DType.F32, (2,))])
    with pytest.raises(errors.ExistsError, match="tied"):
        Manifest.join([first, second])
    joined, writers = Manifest.join([first, second], shared=["tied"])
    assert dict(zip(joined.names, writers, strict=True)) == {"a": 0, "b": 1, "tied": 0}
    with pytest.raises(errors.NotFoundError, match="nothing"):
        Manifest.join([first, second], shared=["tied", "nothing"])


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ([("w", DType.F32, (1,)), ("w", DType.F32, (1,))], errors.ExistsError, '"w"'),
        ([("w", DType.F32, (-1,))], errors.HeftError, '"w"'),
        ([("w", DType.F4, (3,))], errors.ShapeError, '"w"'),
        ([("a\0b", DType.F32, (1,))], errors.ArgumentError, "NUL"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(tensors, error, text: str) -> None:
    with pytest.raises(error, match=text):
        Manifest.create("source", tensors)


def test_a_manifest_is_read_by_many_threads() -> None:
    manifest = Manifest.create("source", [(f"w.{i}", DType.F32, (i,)) for i in range(500)])
    wanted, found = list(manifest), []
    threads = [threading.Thread(target=lambda: found.append(list(manifest))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [wanted] * 4


def test_names_are_the_golden_ones(golden) -> None:
    cases = json.loads((golden / "names.json").read_text())
    assert cases
    for case in cases:
        layers = LayerForm[case["layers"].upper()] if case.get("layers") else None
        options = NameOptions(NameForm[case["form"].upper()], layers, case.get("container"))
        if case.get("canonical") is None:
            with pytest.raises(errors.HeftError):
                heft.canonical_name(case["native"], options)
        else:
            assert heft.canonical_name(case["native"], options) == case["canonical"]


def test_trees_of_names_are_the_golden_ones(golden) -> None:
    cases = json.loads((golden / "name_trees.json").read_text())
    assert cases
    for case in cases:
        options = NameOptions(
            NameForm.KEYSTR,
            LayerForm[case["layers"].upper()],
            case.get("container"),
            case.get("types_lost", False),
        )
        native = Manifest.create(case["side"], [(n, DType.F32, (1,)) for n in case["native"]])
        if "canonical" not in case:
            with pytest.raises(errors.HeftError):
                native.canonicalize(options)
            continue
        made = native.canonicalize(options)
        assert set(made.names) == set(case["canonical"])
        assert sorted(made.excluded) == sorted(case.get("excluded", []))
        if not made.excluded:
            back = dict(zip(case["canonical"], case["native"], strict=True))
            assert {name: made.native_name(name) for name in made.names} == back
        assert (made.name_form, made.layer_form) == (NameForm.KEYSTR, options.layers)


def test_padded_sizes_are_the_golden_ones(golden) -> None:
    cases = json.loads((golden / "padded_sizes.json").read_text())
    assert cases
    for case in cases:
        lanes = case.get("lanes", 128)
        assert heft.padded_size(case["size"], lanes, case["tp"]) == case["padded"]


def test_a_pattern_matches_whole_tokens() -> None:
    assert heft.name_matches("*.bias", "layers.0.bias")
    assert heft.name_matches("*.bias", "bias")
    assert not heft.name_matches("*.bias", "layers.0.xbias")


def test_names_of_ranks_are_taken_apart() -> None:
    assert heft.split_rank_name("rank-12.layers.0.bias") == (12, "layers.0.bias")
    assert heft.split_rank_name("layers.0.bias") is None


def test_sizes_that_both_sides_come_to() -> None:
    assert heft.kv_repeat(2, 8) == 4
    assert heft.rollout_tp("config.tp", 4, "TP", "4") == 4
    assert heft.rollout_tp("config.tp", None, "TP", "8") == 8
    with pytest.raises(errors.ArgumentError, match="TP"):
        heft.rollout_tp("config.tp", 4, "TP", "2")
    with pytest.raises(errors.ArgumentError):
        heft.kv_repeat(3, 8)
    view = sizes.positions_view((3, 5))
    assert (view.extent, view.stride[0], view.stride[2]) == ((5, 1, 3), 1, 5)


def test_a_cache_map_finds_the_slot_of_a_layer() -> None:
    entries = {"layers.3.attn": 0, "layers.7.attn": 1, "x": 2}
    cache = heft.CacheMap.from_engine(entries, is_hybrid=True)
    assert (cache.slots, cache.skipped, cache.slot_of(7)) == ({3: 0, 7: 1}, ["x"], 1)
    assert not cache.is_positional
    with pytest.raises(errors.NotFoundError):
        cache.slot_of(4)
    assert heft.CacheMap.from_engine(None, is_hybrid=False).slot_of(9) == 9
    with pytest.raises(errors.ArgumentError):
        heft.CacheMap.from_engine(None, is_hybrid=True)
    assert heft.CacheMap.of_cycle(8, 4).slots == {0: 0, 1: 1, 2: 2, 3: 6, 4: 3, 5: 4, 6: 5, 7: 7}
    groups = sizes.cache_groups(8, 4)
    assert (groups.n_attention, groups.n_other) == (2, 6)
    assert sizes.gdn_cache(4, 2, 4, 8, 8).conv == (3, 2 * 2 * 8 + 4 * 8)


def test_parts_of_whole_tensors() -> None:
    parts = {
        "w.0": heft.Part("w", (4, 6), (0, 3)),
        "w.1": heft.Part("w", (4, 6), (2, 0), 1),
        "b": heft.Part("b", (8,), (2,)),
    }
    tensors = [("w.0", DType.BF16, (2, 3)), ("w.1", DType.BF16, (2, 3)), ("b", DType.F32, (3,))]
    made = Manifest.create("source", [*tensors, ("c", DType.F32, (1,))], parts=parts)
    again = Manifest.from_json(made.to_json())
    assert again.digest == made.digest
    assert {name: again.part(name) for name in again.names} == {**parts, "c": None}
    with pytest.raises(errors.ShapeError, match=r'"b".* 3 from 6'):
        Manifest.create("source", tensors, parts={"b": heft.Part("b", (8,), (6,))})
    with pytest.raises(errors.ArgumentError, match="no parts"):
        Manifest.create("destination", tensors, parts=parts)

# SPDX-License-Identifier: Apache-2.0
"""Recipes, bindings, contracts and drift."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest
from models import RECIPE, expected, manifest_of, tensors, zeros_like

import heft
from heft import (
    Bindings,
    Contract,
    DriftKind,
    LayerForm,
    NameForm,
    NameOptions,
    Recipe,
    errors,
)


def test_a_recipe_makes_what_numpy_makes() -> None:
    source = tensors()
    recipe, bindings = Recipe.parse(RECIPE, "toy"), Bindings({"tp": 2})
    assert (recipe.name, recipe.text, recipe.n_ranks(bindings)) == ("toy", RECIPE, 2)
    plan = recipe.plan(bindings, manifest_of(source))
    assert plan.n_ranks == 2
    for rank in range(2):
        wanted = expected(source, 2, rank)
        params = zeros_like(wanted)
        read = {info.name for info in plan.sources}
        given = {name: array for name, array in source.items() if name in read}
        heft.execute(plan, given, params, rank=rank)
        for name, array in wanted.items():
            np.testing.assert_array_equal(params[name], array, err_msg=name)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def scanned_leaves() -> dict[str, np.ndarray]:
    """Two slots of two layers under the names that JAX gives them, every value different."""
    shapes = {
        "['ln']['scale']": ((2, 2), 0),
        "['moe_block']['wi_0']": ((1, 2, 2, 4), 10),
        "['moe_block']['wi_1']": ((1, 2, 2, 4), 50),
        "['moe_block']['wo']": ((1, 2, 4, 2), 70),
    }
    return {
        f"['base']['decoder']['layers']['layer_{slot}']{leaf}.value": (
            np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100 * (slot + 1) + first
        )
        for slot in range(2)
        for leaf, (shape, first) in shapes.items()
    }


def test_a_scanned_model_has_its_golden_values_and_digest_in_every_layout(golden) -> None:
    case = json.loads((golden / "scanned_model.json").read_text())
    recipe = Recipe.parse("\n".join(case["recipe"]))
    leaves = scanned_leaves()
    options = NameOptions(NameForm.KEYSTR, LayerForm.SCANNED)
    source = manifest_of(leaves).canonicalize(options)
    given = {name: leaves[source.native_name(name)] for name in source.names}
    assert len(case["rows"]) == 6
    for row in case["rows"]:
        bindings = Bindings({"layout": row["layout"], "T": row["T"]})
        made = recipe.synthesize(bindings, source)
        params = {info.name: np.full(info.shape, np.nan, np.float32) for info in made}
        heft.execute(recipe.plan(bindings, source), given, params)
        assert len(params) == 12
        for name, values in row["values"].items():
            assert params[name].ravel()[: len(values)].tolist() == values, name
        whole = b"".join(params[name].astype("<f4").tobytes() for name in sorted(params))
        assert len(whole) == 4 * row["n_elems"]
        assert f"{crc32c(whole):08x}" == row["crc32c"]
        assert sum(float(array.sum()) for array in params.values()) == case["sum"]


def test_everything_that_is_wrong_with_a_recipe_is_listed() -> None:
    text = 'let a =\n"x" [a] -> "y" [b\nignore "z"\n'
    with pytest.raises(errors.SyntaxError) as caught:
        Recipe.parse(text, "bad")
    lines = [issue.line for issue in caught.value.issues if issue.status]
    assert lines == sorted(lines)
    assert len(lines) >= 2
    assert all(issue.text.startswith("bad:") for issue in caught.value.issues)


def test_everything_that_does_not_fit_is_listed() -> None:
    source = tensors()
    del source["embed"]
    source["layers.0.up"] = np.zeros((8, 7), np.float32)
    with pytest.raises(errors.CallerError) as caught:
        Recipe.parse(RECIPE).compile(Bindings(), manifest_of(source))
    texts = "\n".join(issue.text for issue in caught.value.issues)
    assert '"embed"' in texts
    assert '"layers.0.gate_up"' in texts


def test_a_destination_decides_what_a_rank_has() -> None:
    source = tensors()
    recipe, bindings = Recipe.parse(RECIPE), Bindings()
    made = recipe.synthesize(bindings, manifest_of(source))
    assert made.side == "destination"
    assert {info.name: info.shape for info in made} == {
        name: array.shape for name, array in expected(source).items()
    }
    recipe.plan(bindings, manifest_of(source), [made])
    fewer = {name: array for name, array in expected(source).items() if name != "embed"}
    with pytest.raises(errors.CallerError, match="embed"):
        recipe.plan(bindings, manifest_of(source), [manifest_of(fewer, "destination")])
    with pytest.raises(errors.ArgumentError, match="1 manifests of destinations for 2 ranks"):
        recipe.plan(Bindings({"tp": 2}), manifest_of(source), [made])


def test_exceptions_of_a_recipe_hold_with_their_reasons() -> None:
    recipe = Recipe.parse(RECIPE, "toy")
    (stated,) = recipe.exceptions
    assert (stated.kind, stated.pattern) == (heft.ExceptionKind.UNUSED, "rope.inv_freq")
    assert stated.where == "toy:7:8"
    assert recipe.resolve_exceptions(Bindings(), manifest_of(tensors())) == [stated]


def test_bindings_take_values_of_every_kind_and_travel() -> None:
    bindings = Bindings(
        {"tp": 2, "on": True, "word": "bf16", "table": [3, 1, 2]},
        config={"hidden": 8, "rope": {"theta": 5}},
        env={"TP": "2"},
    )
    said = json.loads(bindings.to_json())
    assert said["config"] == {"hidden": 8, "rope": {"theta": 5}} or said["config"] == {
        "hidden": 8,
        "rope.theta": 5,
    }
    assert Bindings.from_json(bindings.to_json()).to_json() == bindings.to_json()
    with pytest.raises(errors.FormatError):
        Bindings.from_json("{")


def test_bindings_come_from_files_and_the_environment(tmp_path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text('{"hidden": 8}')
    (tmp_path / "table.json").write_text("[1, 0]")
    monkeypatch.setenv("TOY_TP", "4")
    recipe = Recipe.parse('let tp = env.TOY_TP\nranks tp as r\n"a" [x] -> "b" [x]\n')
    bindings = Bindings()
    bindings.load_config(tmp_path / "config.json")
    bindings.load("table", tmp_path / "table.json")
    bindings.load_env(recipe)
    said = bindings.to_json()
    assert '"hidden"' in said
    assert "TOY_TP" in said
    assert "PATH" not in said
    with pytest.raises(errors.HeftError, match=r"nowhere\.json"):
        bindings.load_config(tmp_path / "nowhere.json")


def test_a_shipped_recipe_is_found_by_name() -> None:
    assert "model.embed_tokens.weight" in Recipe.load("hf-to-engine-dense").text
    with pytest.raises(errors.NotFoundError, match="hf-to-engine-dense"):
        Recipe.load("no-such-recipe")


def test_a_contract_is_kept_checked_and_compared() -> None:
    manifest = manifest_of(tensors())
    recipe, bindings = Recipe.parse(RECIPE, "toy"), Bindings({"tp": 2})
    contract = Contract.create(manifest, recipe, bindings)
    assert contract.report is not None
    assert contract.report.n_errors == 0
    assert contract.n_ranks == 2
    plan = recipe.plan(bindings, manifest)
    assert contract.plan_digest == plan.digest
    assert [contract.rank_digest(r) for r in range(2)] == [plan.rank_digest(r) for r in range(2)]
    read = Contract.from_json(contract.to_json())
    assert read.digest == contract.digest
    assert (read.recipe_name, read.recipe_text) == ("toy", RECIPE)
    assert read.check() == ()
    assert contract.compare(read) == ()
    other = Contract.create(manifest, recipe, Bindings({"tp": 4}))
    kinds = {finding.kind for finding in contract.compare(other)}
    assert {DriftKind.BINDING, DriftKind.RANKS} <= kinds
    assert read.exceptions[0].reason == "computed from the configuration"
    assert read.destination() is None


def test_a_chain_reads_what_the_recipe_before_it_makes() -> None:
    first = Recipe.parse('"a" [x, y] -> "m" [y, x]\n', "first")
    second = Recipe.parse('"m" [y, x] -> "b" [(y x)]\n', "second")
    chain = Recipe.chain([first, second])
    first.close()
    assert [part.name for part in chain.parts] == ["first", "second"]
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(12, np.float32)
    plan = chain.plan(Bindings(), manifest_of({"a": a}))
    heft.execute(plan, {"a": a}, {"b": b})
    np.testing.assert_array_equal(b, a.T.ravel())
    assert not plan.leaves_out(0)


def traced() -> heft.Tape:
    tape = heft.Tape()
    src = tape.add_buffer(heft.BufferKind.SOURCE, "w", heft.DType.F32, (4, 6))
    dst = tape.add_buffer(heft.BufferKind.PARAM, "p", heft.DType.F32, (6, 4))
    tape.copy(heft.View.contiguous(dst, (6, 4)), heft.View(src, 0, (6, 4), (1, 6)), "loader:1")
    return tape


def test_a_contract_of_tapes_holds_what_a_loader_does() -> None:
    manifest = manifest_of({"w": np.zeros((4, 6), np.float32), "rope": np.zeros(2, np.float32)})
    with pytest.raises(errors.ProofError, match="rope"):
        Contract.create(manifest, tapes=[traced()])
    excuse = heft.Exception_(heft.ExceptionKind.UNUSED, "rope", "computed")
    contract = Contract.create(
        manifest, tapes=[traced()], exceptions=[excuse], attrs={"platform": "cpu", "tp_rank": "0"}
    )
    read = Contract.from_json(contract.to_json())
    assert read.is_traced
    assert (read.first_rank, read.n_ranks, read.is_partial) == (0, 1, False)
    assert read.attrs == {"platform": "cpu", "tp_rank": "0"}
    assert read.recipe_name is read.bindings is None
    assert [one.reason for one in read.exceptions] == ["computed"]
    destination = read.destination()
    assert destination is not None
    assert destination.names == ["p"]
    assert read.check() == ()
    (tape,), plan = read.tapes, read.plan()
    read.close()
    assert [tape.query_buffer(i).name for i in range(tape.n_buffers)] == ["rope", "w", "p"]
    assert plan.digest == contract.plan_digest
    assert (plan.report.n_errors, plan.n_kept(0)) == (0, 0)


def test_contracts_of_some_ranks_are_merged() -> None:
    source = {"w": np.zeros((4, 6), np.float32)}

    def half(rank: int) -> heft.Tape:
        tape = heft.Tape()
        src = tape.add_buffer(heft.BufferKind.SOURCE, "w", heft.DType.F32, (4, 6))
        dst = tape.add_buffer(heft.BufferKind.PARAM, "p", heft.DType.F32, (2, 6))
        rows = heft.View(src, 12 * rank, (2, 6), (6, 1))
        tape.copy(heft.View.contiguous(dst, (2, 6)), rows)
        return tape

    parts = [
        Contract.create(
            manifest_of(source), tapes=[half(r)], first_rank=r, partial=True, attrs={"rank": str(r)}
        )
        for r in (1, 0)
    ]
    whole = Contract.merge(parts)
    del parts
    gc.collect()
    assert (whole.n_ranks, whole.first_rank, whole.is_partial) == (2, 0, False)
    assert whole.attrs == {"rank-0.rank": "0", "rank-1.rank": "1"}
    assert whole.check() == ()
    with pytest.raises(errors.ArgumentError, match="rank"):
        Contract.merge([whole, whole])


def test_a_refused_contract_has_the_report() -> None:
    source = tensors()
    source["stray"] = np.zeros(3, np.float32)
    with pytest.raises(errors.ProofError, match="stray") as caught:
        Contract.create(manifest_of(source), Recipe.parse(RECIPE), Bindings())
    assert caught.value.report.n_errors == 1


def test_a_contract_of_a_side_alone_has_no_mapping() -> None:
    contract = Contract.create(manifest_of(tensors()))
    assert not contract.has_mapping
    assert contract.recipe_name is contract.bindings is contract.plan_digest is None
    with pytest.raises(errors.ArgumentError):
        contract.check()


def test_what_is_borrowed_lives_as_long_as_it_is_used() -> None:
    contract = Contract.from_json(Contract.create(manifest_of(tensors())).to_json())
    manifest = contract.manifest
    contract.close()
    del contract
    gc.collect()
    assert "embed" in manifest


def test_drift_names_what_has_changed() -> None:
    now = tensors()
    now["embedding"] = now.pop("embed")
    now["layers.0.up"] = now["layers.0.up"].astype(np.float16)
    now["layers.1.up"] = now["layers.1.up"].T
    del now["rope.inv_freq"]
    found = {f.kind: f for f in heft.drift(manifest_of(tensors()), manifest_of(now))}
    assert found[DriftKind.MISSING].name == "rope.inv_freq"
    assert (found[DriftKind.RENAMED].name, found[DriftKind.RENAMED].other) == ("embed", "embedding")
    assert found[DriftKind.RETYPED].name == "layers.0.up"
    assert found[DriftKind.RESHAPED].name == "layers.1.up"
    assert heft.drift(manifest_of(now), manifest_of(now)) == ()

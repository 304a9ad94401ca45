# SPDX-License-Identifier: Apache-2.0
"""The plug-in for transformers: every family traced, proved and compared with transformers."""

from __future__ import annotations

import pathlib
import sys

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "engines"))

import torch
from engine_loaders import Layout, assert_equal, layouts_of, random_weights, run
from families import FAMILIES

from heft import engines

WHOLE = [name for name, family in FAMILIES.items() if layouts_of("transformers", family)]
LLAMA = FAMILIES["llama"]


def names_without_draft(family: str) -> dict[str, torch.Tensor]:
    config = FAMILIES[family].config()
    draft = f"model.layers.{config.num_hidden_layers}."
    names = FAMILIES[family].names()
    return {name: tensor for name, tensor in names.items() if not name.startswith(draft)}


@pytest.mark.parametrize("family", WHOLE)
def test_the_plan_writes_what_the_conversion_of_transformers_writes(family: str) -> None:
    engine = engines.get("transformers")
    result = run(engine, FAMILIES[family], Layout(1), names_without_draft(family))
    assert result.opaque == {}
    assert result.n_compared > 300_000


def test_loading_keeps_addresses_and_gives_the_values_of_from_pretrained(
    tmp_path: pathlib.Path,
) -> None:
    engine = engines.get("transformers")
    family = FAMILIES["qwen3-moe"]
    weights = random_weights(family.names(), seed=1)
    live = engine.build(family.config())
    addresses = {name: p.data_ptr() for name, p in live.named_parameters()}
    engine.load(live, weights.items())
    assert {name: p.data_ptr() for name, p in live.named_parameters()} == addresses

    from safetensors.torch import save_file

    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    family.config().save_pretrained(tmp_path)
    fresh = type(live).from_pretrained(tmp_path)
    for name, parameter in fresh.named_parameters():
        assert_equal(name, parameter.detach(), live.get_parameter(name).detach())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.update({"model.extra": torch.zeros(2)}), "model.extra: not a parameter"),
        (lambda w: w.pop("model.norm.weight"), "model.norm.weight: not given"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), "norm.weight: [3] given, [64]"),
    ],
)
def test_loading_refuses_what_from_pretrained_would_log(change: object, said: str) -> None:
    engine = engines.get("transformers")
    weights = random_weights(LLAMA.names(), seed=2)
    change(weights)
    with pytest.raises(ValueError, match="transformers: 1 problem:") as error:
        engine.load(engine.build(LLAMA.config()), weights.items())
    assert said in str(error.value)


def test_a_tensor_parallel_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 1 of 2"):
        engines.get("transformers").build(LLAMA.config(), tp=2, rank=1)


def test_an_unknown_engine_is_an_error() -> None:
    with pytest.raises(ValueError, match='engine "vlm": not one of'):
        engines.get("vlm")

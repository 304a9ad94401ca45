# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that serve while rounds deliver checkpoint tensors into them.

Their loader renames, transposes and stacks experts; what is live after a round is what the same
loader makes of the same tensors in a fresh model, twice, with other values.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "engines"))

import torch
from engine_loaders import assert_equal, layouts_of, random_weights
from families import FAMILIES

import heft
from heft import LiveModel, ModulePublisher, engines
from heft.trace import trace

ENGINE = engines.get("transformers")
WHOLE = [name for name, family in FAMILIES.items() if layouts_of("transformers", family)]


@pytest.mark.parametrize("name", WHOLE)
def test_a_round_delivers_what_the_loader_loads(name: str) -> None:
    family = FAMILIES[name]
    config = family.config()
    draft = f"model.layers.{config.num_hidden_layers}."
    names = {n: meta for n, meta in family.names().items() if not n.startswith(draft)}
    model = ENGINE.build(config)
    load = lambda weights: ENGINE.load(model, weights)  # noqa: E731
    contract = trace(model, names, load=load).contract(ENGINE.exceptions(model))
    state = {n: torch.empty_like(meta, device="cpu") for n, meta in names.items()}
    tokens = torch.arange(8).view(1, 8)
    with (
        heft.Coordinator() as coordinator,
        LiveModel(model, contract, url=coordinator.url, load=load, derive=ENGINE.post) as live,
        ModulePublisher(state, url=coordinator.url) as publisher,
        torch.no_grad(),
    ):
        for version in (1, 2):
            for n, tensor in random_weights(names, seed=version).items():
                state[n].copy_(tensor)
            publisher.push(version)
            fresh = ENGINE.build(family.config())
            ENGINE.load(fresh, ((n, tensor.clone()) for n, tensor in state.items()))
            ENGINE.post(fresh)
            wanted = dict(fresh.named_parameters())
            with live.gate.serving(5) as served:
                assert served == version
                for n, parameter in model.named_parameters():
                    assert_equal(n, wanted[n].detach(), parameter.detach())
                if name == "llama":
                    assert torch.equal(model.eval()(tokens).logits, fresh.eval()(tokens).logits)

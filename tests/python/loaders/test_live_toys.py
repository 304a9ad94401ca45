# SPDX-License-Identifier: Apache-2.0
"""Every toy in a round: what is live afterwards is what its own loader makes of the same sources.

Two versions with other values, over memory full of poison, so that a byte that nobody wrote, or
that is left of the version before, shows.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heft
from heft import Exception_, ExceptionKind, LiveModel, Member, ModulePublisher
from heft.trace import trace

from .toys import ALL_TOYS
from .toys.case import Toy, Weights
from .toys.reference import (
    POISON,
    base_sources,
    bytes_of,
    elements_as_bytes,
    named_state,
    run_real,
    state_of,
)
from .toys.traced import exceptions_of, trace_toy


def sources_of(toy: Toy, version: int) -> dict[str, torch.Tensor]:
    """Other values for every version, but where a loader insists on some."""
    found = base_sources(toy)
    for name, tensor in found.items():
        if toy.uniform:
            found[name] = torch.full_like(tensor, version)
        elif name not in toy.values and tensor.numel() > 0:
            flat = tensor.reshape(-1)
            raw = flat.view(torch.uint8).reshape(flat.numel(), -1).roll(version, 0).reshape(-1)
            found[name] = raw.view(tensor.dtype).reshape(tensor.shape)
    return found


@pytest.mark.parametrize("i", range(len(ALL_TOYS)), ids=lambda i: ALL_TOYS[i].name)
def test_a_round_delivers_what_the_loader_loads(i: int) -> None:
    toy, poison = ALL_TOYS[i], POISON[i % 2]
    traced = trace_toy(toy)
    contract = traced.contract(exceptions_of(toy))
    model = toy.build()
    for tensor in named_state(model).values():
        bytes_of(tensor).fill_(poison)
    state = {name: torch.empty_like(tensor) for name, tensor in base_sources(toy).items()}
    compared = toy.expect.keys() - {derived.name for derived in traced.derived}
    assert compared
    with (
        heft.Coordinator() as coordinator,
        LiveModel(model, contract, url=coordinator.url, member=Member(rank=toy.rank)) as live,
        ModulePublisher(state, url=coordinator.url) as publisher,
    ):
        for version in (1, 2):
            sources = sources_of(toy, version)
            for name, tensor in sources.items():
                state[name].copy_(tensor)
            publisher.push(version)
            assert live.version == version
            expected = run_real(toy, sources, poison)
            for name in compared:
                found = state_of(model, name)
                if name in toy.approximate:
                    torch.testing.assert_close(found, expected[name])
                else:
                    same = elements_as_bytes(found) == elements_as_bytes(expected[name])
                    assert same.all(), name


class TargetAndDraft(nn.Module):
    """Two models of one rank; the draft uses the target's embedding and is loaded if it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.draft = nn.Module(), nn.Module()
        self.target.embed = nn.Parameter(torch.zeros(3, 2), requires_grad=False)
        self.target.w = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.draft.embed = self.target.embed
        self.draft.x = nn.Parameter(torch.zeros(2), requires_grad=False)

    def load_weights(self, weights: Weights) -> None:
        for name, loaded in weights:
            model = self.draft if name.startswith("mtp.") else self.target
            getattr(model, name.removeprefix("mtp.")).data.copy_(loaded)


FROZEN = [Exception_(ExceptionKind.FROZEN, "draft.x", "an untrained draft")]


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_draft_shares_the_embedding_and_is_written_only_if_it_is_sent(is_trained: bool) -> None:
    model = TargetAndDraft()
    state = {"embed": torch.zeros(3, 2), "w": torch.zeros(4)}
    if is_trained:
        state["mtp.x"] = torch.zeros(2)
    traced = trace(model, state, exceptions=() if is_trained else FROZEN)
    assert traced.aliases == {"draft.embed": "target.embed"}
    assert sorted(traced.params.names) == ["draft.x", "target.embed", "target.w"]
    for tensor in named_state(model).values():
        bytes_of(tensor).fill_(POISON[0])
    kept, address = model.draft.x.clone(), model.draft.x.data_ptr()
    with (
        heft.Coordinator() as coordinator,
        LiveModel(model, traced.contract(), url=coordinator.url) as live,
        ModulePublisher(state, url=coordinator.url) as publisher,
    ):
        for version in (1, 2):
            for i, tensor in enumerate(state.values()):
                tensor.fill_(10 * version + i)
            result = publisher.push(version)
            assert live.version == version
            assert result.n_bytes == 4 * (6 + 4 + (2 if is_trained else 0))  # embed once
            assert torch.equal(model.draft.embed, state["embed"])
            assert torch.equal(model.target.w, state["w"])
            wanted = state["mtp.x"] if is_trained else kept
            assert torch.equal(model.draft.x.view(torch.int32), wanted.view(torch.int32))
            assert model.draft.x.data_ptr() == address

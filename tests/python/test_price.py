# SPDX-License-Identifier: Apache-2.0
"""Prices through the package: one route by hand, and what is refused."""

import json

import pytest

import heft

SIDE = {"ranks_per_host": 2, "nics_per_host": 2}
LINKS = {
    "format": 1,
    "chunk_bytes": 10,
    "source": SIDE,
    "destination": SIDE,
    "nic": {"bytes_per_s": 100, "latency_s": 0.5, "message_s": 0},
    "copy": {"bytes_per_s": 1000, "run_s": 0},
    "flip": {"bytes_per_s": 500},
    "digest": {"bytes_per_s": 250},
}


def test_one_route() -> None:
    links = heft.Links(json.dumps(LINKS))
    routes = [heft.PriceRoute(0, 1, 400), heft.PriceRoute(1, 0, 100)]
    price = heft.Price(links, routes, n_senders=2, n_receivers=2)
    assert price.info.stage_s == pytest.approx(4.51)
    assert price.info.bound_s == pytest.approx(4.0)
    assert price.info.n_bytes == 500
    assert price.sender(0).n_bytes == 400
    assert price.receiver(0).wire_s == pytest.approx(1.0)
    assert [(link.kind, link.number) for link in price.links][:2] == [("nic-out", 0), ("nic-in", 1)]
    assert price.links[0].host == 0
    assert (price.host_of_sender(1), price.host_of_receiver(1)) == (0, 1)
    shared = heft.Links(json.dumps({**LINKS, "shared_hosts": True}))
    assert heft.Price(shared, routes, n_senders=2, n_receivers=2).host_of_receiver(1) == 0
    with pytest.raises(heft.errors.NotFoundError):
        price.sender(2)


def test_links_are_strict() -> None:
    text = heft.Links(json.dumps(LINKS)).to_json()
    assert heft.Links(text).to_json() == text
    with pytest.raises(heft.errors.FormatError, match="speed"):
        heft.Links(json.dumps({**LINKS, "speed": 1}))


def test_routes_of_a_plan() -> None:
    tape = heft.Tape()
    for rank in range(2):
        source = tape.add_buffer(heft.BufferKind.SOURCE, f"rank-{rank}.w", heft.DType.F32, (3,))
        param = tape.add_buffer(heft.BufferKind.PARAM, f"p{rank}", heft.DType.F32, (3,))
        tape.copy(heft.View.contiguous(param, (3,)), heft.View.contiguous(source, (3,)))
    routes = heft.Routes(heft.Plan.create([tape.prune()]), 2)
    links = heft.Links(json.dumps(LINKS))
    plans = [(routes, 0, receiver) for receiver in range(2)]
    price = heft.Price(links, [], n_senders=2, n_receivers=2, n_replicas=2, plans=plans)
    assert price.info.n_bytes == 48
    assert price.sender(1).n_bytes == 24
    assert price.info.relayed_s == pytest.approx(price.info.bound_s)

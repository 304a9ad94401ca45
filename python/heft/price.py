# SPDX-License-Identifier: Apache-2.0
"""Prices: what a round costs on a fleet that nobody has to own (price.h)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from heft._handles import Handle, call, text_of
from heft._native import ffi, lib
from heft.routes import Routes


class Links(Handle):
    """How ranks are laid out on hosts, and how fast everything between them is. Immutable."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        """text: JSON (docs/formats/links.md)."""
        data, out = text.encode(), ffi.new("heft_links_t **")
        call(lib.heft_links_decode, data, len(data), out)
        self._own(out[0], lib.heft_links_destroy)

    def to_json(self) -> str:
        """The canonical text."""
        out = ffi.new("char **")
        call(lib.heft_links_encode, self.pointer, out)
        try:
            return text_of(out[0])
        finally:
            lib.heft_string_free(out[0])


class PriceRoute(NamedTuple):
    """What one sender has for one receiver."""

    sender: int
    receiver: int
    n_bytes: int
    n_packed_bytes: int = 0  # those that the receiver has to put in place once more
    n_runs: int = 1


class PriceInfo(NamedTuple):
    """What a round comes to."""

    n_senders: int
    n_receivers: int
    n_bytes: int
    n_messages: int
    n_routes: int
    n_runs: int
    prepare_s: float
    stage_s: float
    verify_s: float
    pause_s: float
    flip_s: float
    total_s: float
    down_s: float
    bound_s: float
    ideal_s: float
    relayed_s: float


class PriceRank(NamedTuple):
    """What one rank has to do."""

    n_bytes: int
    n_messages: int
    n_runs: int
    n_peers: int
    copy_s: float
    wire_s: float
    verify_s: float
    flip_s: float


class LinkLoad(NamedTuple):
    """What one link carries."""

    kind: str
    number: int  # of the rank, port, group or host
    host: int | None
    n_bytes: int
    bytes_per_s: float
    busy_s: float
    bound_s: float


def _fields(struct: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(struct, name) for name in names]


class Price(Handle):
    """The price of a round, from its routes. Immutable."""

    __slots__ = ()

    def __init__(
        self,
        links: Links,
        routes: Iterable[PriceRoute],
        *,
        n_senders: int,
        n_receivers: int,
        n_replicas: int = 1,
        in_place: bool = False,
        plans: Iterable[tuple[Routes, int, int]] = (),
    ) -> None:
        """plans: routes of plans, of which rank, and which receiver of the fleet that is."""
        opts = ffi.new("heft_price_opts_t *")
        opts.size = ffi.sizeof("heft_price_opts_t")
        opts.n_senders, opts.n_receivers = n_senders, n_receivers
        opts.n_replicas, opts.in_place = n_replicas, in_place
        out = ffi.new("heft_price_t **")
        call(lib.heft_price_create, links.pointer, opts, out)
        self._own(out[0], lib.heft_price_destroy, links)
        given = ffi.new("heft_price_route_t *")
        for route in routes:
            for name, value in zip(PriceRoute._fields, route, strict=True):
                setattr(given, name, value)
            call(lib.heft_price_add, self.pointer, given)
        for of_plan, rank_index, receiver in plans:
            call(lib.heft_price_add_routes, self.pointer, of_plan.pointer, rank_index, receiver)
        call(lib.heft_price_finish, self.pointer)

    def host_of_sender(self, rank: int) -> int:
        """Its host by the links; hosts that both sides share have one number."""
        return int(lib.heft_price_get_host(self.pointer, 0, rank))

    def host_of_receiver(self, rank: int) -> int:
        return int(lib.heft_price_get_host(self.pointer, 1, rank))

    @property
    def info(self) -> PriceInfo:
        out = ffi.new("heft_price_info_t *")
        lib.heft_price_query(self.pointer, out)
        return PriceInfo(*_fields(out, PriceInfo._fields))

    def sender(self, rank: int) -> PriceRank:
        out = ffi.new("heft_price_rank_t *")
        call(lib.heft_price_query_sender, self.pointer, rank, out)
        return PriceRank(*_fields(out, PriceRank._fields))

    def receiver(self, rank: int) -> PriceRank:
        out = ffi.new("heft_price_rank_t *")
        call(lib.heft_price_query_receiver, self.pointer, rank, out)
        return PriceRank(*_fields(out, PriceRank._fields))

    @property
    def links(self) -> list[LinkLoad]:
        """Those that carry anything, busiest first."""
        out, found = ffi.new("heft_link_load_t *"), []
        for i in range(lib.heft_price_get_n_links(self.pointer)):
            call(lib.heft_price_query_link, self.pointer, i, out)
            kind = text_of(lib.heft_link_kind_get_name(out.kind))
            host = None if out.host == 0xFFFFFFFF else out.host
            loads = _fields(out, LinkLoad._fields[3:])
            found.append(LinkLoad(kind, out.index, host, *loads))
        return found

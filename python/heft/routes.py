# SPDX-License-Identifier: Apache-2.0
"""Routes: who sends what to whom, of a plan that reads tensors of several senders (routes.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from heft import memory
from heft._handles import Handle, argument_error, call, encode, text_of
from heft._native import ffi, lib
from heft.placement import Placement
from heft.plan import Plan


class Load(NamedTuple):
    """What a sender sends a rank besides parameters: tensors that the engine's loader is given."""

    rank: int
    sender: int
    n_bytes: int


class Route(NamedTuple):
    """All that a sender sends a rank, or what of it belongs to one parameter."""

    n_params: int  # it writes something of so many
    n_regions: int
    n_runs: int  # stretches of neighbouring bytes
    n_pieces: int
    n_bytes: int  # written, constants included
    n_load_bytes: int  # for the engine's loader, besides; of a rank only
    digest: str  # of this route alone; "": nothing is sent, or it is of one parameter


class Region(NamedTuple):
    """Runs of run_bytes neighbouring bytes, the first at offset, repeated by loops."""

    offset: int
    run_bytes: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # bytes


class Routes(Handle):
    """Which piece of a plan is whose. Immutable."""

    __slots__ = ()

    def __init__(
        self,
        plan: Plan,
        n_senders: int,
        *,
        senders: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        loads: Iterable[Load] = (),
        others: Placement | None = None,
        gathers: bool = False,
    ) -> None:
        """senders: of each source of the plan; None: their names say it, rank-R.NAME.

        names: of senders, for messages. UnsupportedError names a parameter that needs two senders.
        others: the placement that the parts of a Plan.create_part were made by; sender n_senders
        then stands for all others than the one that the parts are of.
        gathers: known kernels whose inputs lie with several senders are the receiver's.
        """
        listed = [Load(*load) for load in loads]
        given = ffi.new("heft_route_load_t[]", max(len(listed), 1))
        for out, load in zip(given, listed, strict=False):
            out.rank_index, out.sender, out.n_bytes = load.rank, load.sender, load.n_bytes
        opts = ffi.new("heft_routes_opts_t *")
        opts.size, opts.loads, opts.n_loads = ffi.sizeof("heft_routes_opts_t"), given, len(listed)
        texts = [ffi.new("char[]", encode(name)) for name in names or ()]
        if names is not None:
            if len(texts) != n_senders:
                raise argument_error(f"{len(texts)} names of {n_senders} senders")
            array = ffi.new("char *[]", texts)
            opts.names = array
        if others is not None:
            opts.others = others.pointer
        opts.gathers = gathers
        if senders is not None and len(senders) != len(plan.sources):
            raise argument_error(f"senders of {len(senders)} sources, not of {len(plan.sources)}")
        of_sources = ffi.NULL if senders is None else ffi.new("uint32_t[]", [*senders, 0])
        made = ffi.new("heft_routes_t **")
        call(lib.heft_routes_create, plan.pointer, of_sources, n_senders, opts, made)
        self._own(made[0], lib.heft_routes_destroy, plan)

    @property
    def n_senders(self) -> int:
        return int(lib.heft_routes_get_n_senders(self.pointer))

    @property
    def n_ranks(self) -> int:
        return int(lib.heft_routes_get_n_ranks(self.pointer))

    @property
    def digest(self) -> str:
        """64 hex digits over all routes."""
        return text_of(lib.heft_routes_get_digest(self.pointer))

    def route(self, sender: int, rank: int, param: int | None = None) -> Route:
        """What a sender sends a rank, or of it what it writes of a parameter (by index)."""
        out = ffi.new("heft_route_info_t *")
        if param is None:
            lib.heft_routes_query(self.pointer, sender, rank, out)
        else:
            lib.heft_routes_query_param(self.pointer, sender, rank, param, out)
        return Route(
            out.n_params,
            out.n_regions,
            out.n_runs,
            out.n_pieces,
            out.n_bytes,
            out.n_load_bytes,
            text_of(out.digest),
        )

    def senders(self, rank: int, param: int | None = None) -> list[int]:
        """Who sends a rank anything, or writes something of a parameter, ascending."""
        n = ffi.new("uint32_t *")
        if param is None:
            found = lib.heft_routes_get_senders(self.pointer, rank, n)
        else:
            found = lib.heft_routes_get_param_senders(self.pointer, rank, param, n)
        return list(found[0 : n[0]]) if n[0] else []

    def params(self, sender: int, rank: int) -> list[int]:
        """The parameters of a rank of which a sender writes something."""
        n = ffi.new("uint32_t *")
        found = lib.heft_routes_get_params(self.pointer, sender, rank, n)
        return list(found[0 : n[0]]) if n[0] else []

    def piece_sender(self, rank: int, piece: int) -> int | None:
        """Whose work a piece is; None: the engine's loader writes it."""
        sender = int(lib.heft_routes_get_piece_sender(self.pointer, rank, piece))
        return None if sender == lib.HEFT_SENDER_NONE else sender

    def regions(self, sender: int, rank: int, param: int) -> Regions:
        """Where a sender writes in a parameter."""
        return Regions(self, sender, rank, param)


class Regions(Handle):
    """The part of a parameter that a sender writes, ordered by offset. Immutable."""

    __slots__ = ("_n",)

    def __init__(self, routes: Routes, sender: int, rank: int, param: int) -> None:
        made, n = ffi.new("heft_route_region_t **"), ffi.new("uint32_t *")
        call(lib.heft_routes_make_regions, routes.pointer, sender, rank, param, made, n)
        self._n = int(n[0])
        self._own(made[0], lib.heft_route_regions_free)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Region:
        if not 0 <= i < self._n:
            raise IndexError(i)
        r = self.pointer[i]
        k = r.n_loops
        return Region(r.offset, r.run_bytes, tuple(r.extent[0:k]), tuple(r.stride[0:k]))

    def __iter__(self) -> Iterator[Region]:
        return (self[i] for i in range(self._n))

    @property
    def n_bytes(self) -> int:
        return int(lib.heft_route_regions_get_n_bytes(self.pointer, self._n))

    def pack(self, param: Any, at: int = 0, n_bytes: int | None = None) -> bytes:
        """Bytes of the packed route, copied out of a contiguous parameter."""
        count = self.n_bytes - at if n_bytes is None else n_bytes
        out = ffi.new("char[]", max(count, 1))
        pointer = self._pointer_of(param, writable=False)
        call(lib.heft_route_pack, self.pointer, self._n, pointer, at, out, count)
        return bytes(ffi.buffer(out, max(count, 0)))

    def unpack(self, packed: bytes, param: Any, at: int = 0) -> None:
        """Bytes of the packed route, copied into a contiguous parameter."""
        pointer = self._pointer_of(param, writable=True)
        given = ffi.from_buffer(packed)
        call(lib.heft_route_unpack, self.pointer, self._n, pointer, at, given, len(packed))

    def _pointer_of(self, param: Any, *, writable: bool) -> Any:
        """The parameter must reach as far as the regions do."""
        one = memory.describe(param)
        end = max((_end_of(region) for region in self), default=0)
        if not one.is_contiguous or one.n_bytes < end or (writable and one.is_read_only):
            raise argument_error(
                f"a contiguous{' writable' if writable else ''} parameter of {end} bytes or more "
                f"is needed, not {one.n_bytes} bytes of strides {list(one.strides)}"
            )
        return one.pointer


def _end_of(region: Region) -> int:
    steps = zip(region.extents, region.strides, strict=True)
    return region.offset + region.run_bytes + sum((n - 1) * stride for n, stride in steps)

# SPDX-License-Identifier: Apache-2.0
"""Placements: which rank of a trainer holds which part of which tensor (placement.h)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from heft._handles import Handle, argument_error, call, encode, error_of, new_error, text_of
from heft._native import ffi, lib
from heft.dtypes import MAX_DIMS
from heft.manifest import Manifest, lines_of
from heft.tape import Tape


class Shard(NamedTuple):
    """A box of a tensor that a rank holds as a contiguous tensor: [begin, end) per dimension.

    A rank may hold several disjoint boxes of one tensor under names of their own.
    """

    tensor: str
    rank: int
    box: tuple[tuple[int, int], ...]
    name: str | None = None  # the rank's own for it; None: the tensor's


def _new_opts(
    min_cut_bytes: int, hosts: Sequence[int] = (), to_host: int | None = None
) -> tuple[Any, Any]:
    """(options, what must be kept meanwhile)."""
    opts, numbers = ffi.new("heft_placement_opts_t *"), ffi.new("uint32_t[]", list(hosts) or 1)
    opts.size, opts.min_cut_bytes = ffi.sizeof("heft_placement_opts_t"), min_cut_bytes
    if hosts:
        opts.hosts, opts.n_hosts = numbers, len(hosts)
        opts.to_host = 0 if to_host is None else to_host + 1
    return opts, numbers


class Placement(Handle):
    """Who sends what. Every element is read from one rank that holds it. Immutable."""

    __slots__ = ("_n_dims",)

    def __init__(
        self,
        tensors: Manifest,
        shards: Iterable[Shard],
        *,
        min_cut_bytes: int = 0,
        hosts: Sequence[int] = (),
        to_host: int | None = None,
    ) -> None:
        """tensors: the whole ones. min_cut_bytes: what several ranks hold is cut into no less.

        hosts: of each rank a number of its host; to_host: of the one that receives: what is held
        there comes from there, and the others share the rest so that no host sends too much.
        ProofError names a tensor, and the first box of it, that no rank holds.
        """
        listed = [Shard(*shard) for shard in shards]
        array = ffi.new("heft_shard_t[]", max(len(listed), 1))
        names = [ffi.new("char[]", encode(shard.tensor)) for shard in listed]
        own = [ffi.NULL if s.name is None else ffi.new("char[]", encode(s.name)) for s in listed]
        for out, shard, name, own_name in zip(array, listed, names, own, strict=False):
            if len(shard.box) > MAX_DIMS:
                n = len(shard.box)
                raise argument_error(f'tensor "{shard.tensor}": a box of {n} dimensions')
            out.tensor, out.rank, out.name = name, shard.rank, own_name
            for k, (begin, end) in enumerate(shard.box):
                out.begin[k], out.end[k] = begin, end
        opts, kept = _new_opts(min_cut_bytes, hosts, to_host)
        made = ffi.new("heft_placement_t **")
        call(lib.heft_placement_create, tensors.pointer, array, len(listed), opts, made)
        del kept
        self._take(made[0], tensors)

    def _take(self, pointer: Any, tensors: Manifest) -> None:
        self._own(pointer, lib.heft_placement_destroy)
        self._n_dims = {info.name: len(info.shape) for info in tensors}

    @classmethod
    def infer(
        cls, ranks: Manifest, dim: int, *, min_cut_bytes: int = 0
    ) -> tuple[Placement, Manifest]:
        """The same where tensors of ranks say it themselves, and the manifest of the whole ones.

        rank-0.NAME, rank-1.NAME, .. (as of a folder of ranks) are the parts of NAME along dimension
        dim, one after the other. A tensor of no more than dim dimensions is held whole.
        """
        made, whole = ffi.new("heft_placement_t **"), ffi.new("heft_manifest_t **")
        opts, _ = _new_opts(min_cut_bytes)
        call(lib.heft_placement_infer, ranks.pointer, dim, opts, made, whole)
        tensors = Manifest._adopt(whole[0])
        self = cls.__new__(cls)
        self._take(made[0], tensors)
        return self, tensors

    @classmethod
    def from_sources(
        cls,
        sources: Sequence[Manifest],
        *,
        min_cut_bytes: int = 0,
        hosts: Sequence[int] = (),
        to_host: int | None = None,
    ) -> tuple[Placement | None, Manifest]:
        """The same where manifests of parts say it, rank R is sources[R]; and the whole tensors.

        None: one source without parts, whose manifest is that of the whole tensors. `issues` of the
        exception lists all that is wrong: gaps, copies that are not said to be any, ranks that
        disagree.
        """
        array = ffi.new("heft_placement_source_t[]", max(len(sources), 1))
        for out, manifest in zip(array, sources, strict=False):
            out.manifest = manifest.pointer
        made, whole = ffi.new("heft_placement_t **"), ffi.new("heft_manifest_t **")
        report, err = ffi.new("char **"), new_error()
        opts, kept = _new_opts(min_cut_bytes, hosts, to_host)
        status = lib.heft_placement_from_sources(
            array, len(sources), opts, made, whole, report, err
        )
        del kept
        if status:
            raise error_of(status, err, issues=lines_of(report))
        tensors = Manifest._adopt(whole[0])
        if made[0] == ffi.NULL:
            return None, tensors
        self = cls.__new__(cls)
        self._take(made[0], tensors)
        return self, tensors

    @property
    def n_ranks(self) -> int:
        """One more than the highest rank."""
        return int(lib.heft_placement_get_n_ranks(self.pointer))

    def load(self, rank: int) -> int:
        """Bytes of the tensors that a rank is to send, each counted once."""
        return int(lib.heft_placement_get_load(self.pointer, rank))

    @property
    def cuts(self) -> list[Shard]:
        """The boxes in which the tensors are sent: disjoint, and together everything."""
        out, found = ffi.new("heft_shard_t *"), []
        for i in range(lib.heft_placement_get_n_cuts(self.pointer)):
            call(lib.heft_placement_query_cut, self.pointer, i, out)
            tensor = text_of(out.tensor)
            own = None if out.name == ffi.NULL else text_of(out.name)
            box = tuple((out.begin[k], out.end[k]) for k in range(self._n_dims[tensor]))
            found.append(Shard(tensor, out.rank, box, None if own == tensor else own))
        return found

    def apply(self, tape: Tape) -> Tape:
        """The tape that does the same and reads what the ranks hold: sources rank-R.NAME.

        It takes the tape that is given, which is closed afterwards.
        """
        made = ffi.new("heft_tape_t **")
        call(lib.heft_placement_apply, self.pointer, tape.to_be_taken(), made)
        tape.was_taken()
        return Tape._adopt(made[0])

    def apply_part(self, rank: int, tape: Tape) -> Tape:
        """The part of apply that concerns one rank, for Plan.create_part; tape is left as it is."""
        made = ffi.new("heft_tape_t **")
        call(lib.heft_placement_apply_part, self.pointer, rank, tape.pointer, made)
        return Tape._adopt(made[0])

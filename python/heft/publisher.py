# SPDX-License-Identifier: Apache-2.0
"""The source of rounds: what a trainer pushes (include/heft/sync.h)."""

from __future__ import annotations

import contextlib
import enum
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from heft import memory
from heft._handles import Handle, argument_error, call, error_of, exclusive, new_error, text_of
from heft._native import ffi, lib
from heft.checkpoint import Path
from heft.held import Held
from heft.manifest import Manifest
from heft.options import new_options


class Member(NamedTuple):
    """What publishers and subscribers have in common. Zero and None: settings, then defaults."""

    job: str | None = None
    replica: int = 0
    rank: int = 0
    n_threads: int = 0
    deadline_ms: int = 0  # of every call to the coordinator
    token_file: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False


class Begin(enum.IntEnum):
    """Which rank of a trainer begins a round. The others' pushes join it and return its outcome."""

    FIRST = lib.HEFT_BEGIN_FIRST  # rank 0 of replica 0
    YES = lib.HEFT_BEGIN_YES  # this one
    NO = lib.HEFT_BEGIN_NO  # another one, or whoever asks the coordinator for it


class PushResult(NamedTuple):
    version: int  # asked for
    round_epoch: int
    round_seq: int
    n_destinations: int
    n_pieces: int
    n_bytes: int  # payload moved to all destinations
    transfer_s: float
    verify_s: float
    pause_s: float  # pause to resume, the longest member
    total_s: float
    state: str  # "committed", "aborted", ...


def _result_of(r: Any) -> PushResult:
    values = {name: getattr(r, name) for name in PushResult._fields}
    return PushResult(**{**values, "state": text_of(r.state)})


class Publisher(Handle):
    """A source: a trainer, or what one of its ranks holds. One thread at a time.

    Tensors are kept alive, read where they lie during a push, and must not change until it returns.
    """

    __slots__ = ("_data", "_memories", "manifest")
    _borrowing = ("_data", "_memories")
    manifest: Manifest

    def __init__(
        self,
        url: str | None,
        tensors: Mapping[str, Any] | Held,
        *,
        manifest: Manifest | None = None,
        member: Member = Member(),  # noqa: B008  immutable
        max_bytes_per_s: int = 0,
        begin: Begin = Begin.FIRST,
        n_ranks: int = 0,
    ) -> None:
        """Register with the coordinator at url (None: from the settings).

        tensors: by name, contiguous, or what a rank holds, which says its rank and its manifest.
        manifest: what is declared; None: these names, dtypes and shapes. max_bytes_per_s: leave
        bandwidth to the trainer. n_ranks: source ranks of the job, all replicas together: a round
        waits for them, and is refused without one (0: what is held says it, or nobody).
        """
        if isinstance(tensors, Held):
            member = _member_of(tensors, manifest, member)
            n_ranks = n_ranks or tensors.n_ranks
            manifest, tensors = tensors.manifest, tensors.tensors
        if not isinstance(tensors, Mapping):
            raise argument_error(
                f"tensors are a {type(tensors).__name__}: give a mapping of names to tensors"
            )
        self.manifest = manifest if manifest is not None else manifest_of(tensors, "source")
        self._data = ffi.new("void *[]", max(len(self.manifest), 1))
        self._memories: list[Any] = [None] * len(self.manifest)
        self._bind(tensors)
        values = {"url": url, "max_bytes_per_s": max_bytes_per_s, **member._asdict()}
        values |= {"begin": begin, "n_ranks": n_ranks}
        opts, kept = new_options("heft_publisher_opts_t", values)
        out = ffi.new("heft_publisher_t **")
        call(lib.heft_publisher_create, opts, self.manifest.pointer, self._data, out)
        del kept
        kept_alive = (self.manifest, self._data, self._memories)
        self._own(out[0], lib.heft_publisher_destroy, *kept_alive)

    def _bind(self, tensors: Mapping[str, Any]) -> None:
        infos = list(self.manifest)
        missing = {info.name for info in infos} - set(tensors)
        unknown = set(tensors) - {info.name for info in infos}
        if missing or unknown:
            name = min(missing or unknown)
            what = "not given" if missing else "not in the manifest"
            raise argument_error(
                f'tensor "{name}" is {what} ({len(missing or unknown)} such names)'
            )
        found = []
        for info in infos:
            shape = memory.storage_shape(info.dtype, info.shape)
            tensor = tensors[info.name]
            found.append(memory.contiguous(tensor, info.name, info.dtype, shape, writable=False))
        for i, one in enumerate(found):
            self._memories[i], self._data[i] = one, one.pointer

    def push(self, version: int, tensors: Mapping[str, Any] | Held | None = None) -> PushResult:
        """Bring every destination to `version`, or leave the old one live everywhere.

        Blocks without the interpreter lock, bounded by the coordinator's deadlines. All ranks of a
        trainer call it and get one outcome (Begin). Returns only if committed; otherwise the
        exception says phase, member and cause, and `result` how far the round got. Ctrl-C on the
        main thread cancels the round, and is raised when it has ended.
        tensors: they lie elsewhere now, such as the arrays of a new training state.
        """
        _check_version(version)
        with exclusive(self) as pointer:
            if isinstance(tensors, Held):
                tensors = self._same(tensors)
            if tensors is not None:
                self._bind(tensors)
            out, err = ffi.new("heft_push_result_t *"), new_error()
            status = self._interruptible(
                lambda: lib.heft_publisher_push(pointer, version, out, err),
                lambda: lib.heft_publisher_interrupt(pointer),
            )
            result = _result_of(out)
        if status:
            raise error_of(status, err, result=result)
        return result

    def _same(self, held: Held) -> dict[str, Any]:
        """The tensors of what is held now, which must be the boxes that were declared."""
        if held.manifest.digest != self.manifest.digest:
            raise argument_error(
                f"what rank {held.rank} holds is not what it declared: {held.manifest!r} now, "
                f"{self.manifest!r} then; make a new publisher of it"
            )
        return held.tensors

    def _interruptible(self, function: Callable[[], int], interrupt: Callable[[], None]) -> int:
        """Call it; on the main thread, Ctrl-C cancels the round, and is raised at its end."""
        if threading.current_thread() is not threading.main_thread():
            return function()
        found: list[int] = []
        ended = threading.Event()  # a join() that was interrupted cannot be relied on afterwards

        def run() -> None:
            try:
                found.append(function())
            finally:
                ended.set()

        worker = threading.Thread(target=run)
        try:
            worker.start()
            ended.wait()
        except BaseException:
            if worker.ident is None:
                raise  # it could not be started
            interrupt()
            while not ended.is_set():  # the library is in there: further interrupts change nothing
                with contextlib.suppress(KeyboardInterrupt):
                    ended.wait()
            raise
        return found[0]


def _member_of(held: Held, manifest: Manifest | None, member: Member) -> Member:
    if manifest is not None:
        raise argument_error("what a rank holds has a manifest of its own: give no other one")
    if member.rank not in (0, held.rank):
        raise argument_error(f"the member is rank {member.rank}, what it holds {held.rank}'s")
    return member._replace(rank=held.rank)


def _check_version(version: Any) -> None:
    try:
        fits = abs(operator.index(version)) < 1 << 63
    except TypeError:
        fits = False
    if not fits:
        raise argument_error(f"version {version!r}: versions are integers below 2^63")


def manifest_of(
    tensors: Mapping[str, Any], side: str, attrs: Mapping[str, str] | None = None
) -> Manifest:
    """A manifest of these tensors, by name; a scalar dtype's shape is as the framework sees it."""
    found = ((name, memory.describe(tensor, name)) for name, tensor in tensors.items())
    return Manifest.create(side, [(name, one.dtype, one.shape) for name, one in found], attrs=attrs)

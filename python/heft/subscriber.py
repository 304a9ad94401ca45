# SPDX-License-Identifier: Apache-2.0
"""A destination of rounds: one rank of an engine (include/heft/sync.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from heft import memory
from heft._handles import Handle, argument_error, call, encode, exclusive, text_of
from heft._native import ffi, lib
from heft.contract import Contract
from heft.dtypes import DType, shape_of
from heft.errors import HeftError
from heft.manifest import Manifest
from heft.memory import Memory
from heft.options import new_options
from heft.publisher import Member, manifest_of
from heft.recipe import Bindings, Recipe


class Hooks(NamedTuple):
    """What the engine does in a round. They run on the thread that polls; None: nothing to do.

    A hook fails by raising: the round's result says why, and poll() raises it.
    """

    pause: Callable[[], Any] | None = None  # drain: nobody reads parameters after this
    flipped: Callable[[int], Any] | None = None  # live bytes are this version: refresh the rest
    resume: Callable[[int], Any] | None = None  # serve this version (0: none yet, stay out)
    locate: Callable[[], Mapping[str, Any]] | None = None  # parameters that lie elsewhere now
    load: Callable[[dict[str, Memory]], Any] | None = None  # the engine's own loader


class _Params:
    """Where the parameters lie, in the arrays that C reads."""

    def __init__(
        self, manifest: Manifest, params: Mapping[str, Any], recorded: Iterable[str] = ()
    ) -> None:
        self.infos = list(manifest)
        self.index = {info.name: i for i, info in enumerate(self.infos)}
        self.array = ffi.new("heft_param_t[]", max(len(self.infos), 1))
        self.pointers = ffi.new("void *[]", max(len(self.infos), 1))
        self.kept: list[Any] = [None] * len(self.infos)
        missing = self.index.keys() - params.keys()
        if missing:
            n = len(missing)
            raise argument_error(f'parameter "{min(missing)}" has no memory ({n} such names)')
        self.put(params)
        for name in recorded:
            self.array[self._find(name)].flags |= lib.HEFT_PARAM_RECORDED

    def _find(self, name: str) -> int:
        if name not in self.index:
            raise argument_error(f'"{name}" is no parameter')
        return self.index[name]

    def put(self, params: Mapping[str, Any]) -> None:
        """Where parameters lie; nothing changes unless all of them can be used."""
        found = []
        for name, tensor in params.items():
            info = self.infos[self._find(name)]
            shape = memory.storage_shape(info.dtype, info.shape)
            found.append((name, memory.strided(tensor, name, info.dtype, shape, writable=True)))
        for name, one in found:
            i = self.index[name]
            strides = ffi.NULL if one.is_contiguous else ffi.new("int64_t[]", one.strides)
            self.array[i].data, self.array[i].strides = one.pointer, strides
            self.pointers[i] = one.pointer
            self.kept[i] = (one, strides)


class _Live:
    """What C reads and calls while a subscriber lives: parameters and hooks."""

    def __init__(self, params: _Params, hooks: Hooks) -> None:
        self.params = params
        self.functions = hooks
        self.raised: BaseException | None = None
        self.why = ffi.NULL
        self.handle = ffi.new_handle(self)
        self.hooks = self._new_hooks()

    def _new_hooks(self) -> Any:
        out = ffi.new("heft_hooks_t *")
        out.size, out.arg = ffi.sizeof("heft_hooks_t"), self.handle
        for name in Hooks._fields:
            if getattr(self.functions, name) is not None:
                setattr(out, name, getattr(lib, f"heft_py_{name}"))
        out.explain = lib.heft_py_explain
        return out

    def run(self, name: str, *args: Any) -> int:
        """Call a hook for C; what it raises is kept for poll() and for the round's result."""
        try:
            found = getattr(self.functions, name)(*args)
            if name == "locate":
                self.params.put(found or {})
            return 0
        except BaseException as raised:
            self.raised = raised
            text = f"{type(raised).__name__}: {raised}".splitlines()[0].replace("\0", " ")
            self.why = ffi.new("char[]", encode(text))
            return 1

    def raise_what_a_hook_raised(self, cause: BaseException | None) -> None:
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised from cause


def _live(arg: Any) -> _Live:
    found: _Live = ffi.from_handle(arg)
    return found


@ffi.def_extern(error=1)
def heft_py_pause(arg: Any) -> int:
    return _live(arg).run("pause")


@ffi.def_extern(error=1)
def heft_py_flipped(arg: Any, version: int) -> int:
    return _live(arg).run("flipped", version)


@ffi.def_extern(error=1)
def heft_py_resume(arg: Any, version: int) -> int:
    return _live(arg).run("resume", version)


@ffi.def_extern(error=1)
def heft_py_locate(arg: Any) -> int:
    return _live(arg).run("locate")


@ffi.def_extern(error=1)
def heft_py_load(arg: Any, inputs: Any, n_inputs: int) -> int:
    return _live(arg).run(
        "load", {text_of(inputs[i].name): _input_of(inputs[i]) for i in range(n_inputs)}
    )


@ffi.def_extern()
def heft_py_explain(arg: Any) -> Any:
    return _live(arg).why


def _input_of(i: Any) -> Memory:
    dtype = DType(i.dtype)
    shape = memory.storage_shape(dtype, shape_of(i.shape))
    return memory.of_address(int(ffi.cast("uintptr_t", i.data)), dtype, shape)


def _declared(contract: Contract, manifest: Manifest | None, rank: int) -> Manifest:
    """What the engine declares; else what the contract does of this rank."""
    found = manifest if manifest is not None else contract.destination(rank - contract.first_rank)
    if found is None:
        raise argument_error(f"the contract has no manifest of rank {rank}: give one")
    return found


class Subscriber(Handle):
    """One destination rank. Its parameters are written inside a flip only. One thread at a time.

    Parameters are kept alive. Poll in a loop:

        while not stopped.is_set():
            try:
                subscriber.poll(500)
            except (heft.errors.PeerError, heft.errors.PoisonedError) as error:
                ...  # the coordinator cannot be reached now; or: wait for a round that refills
    """

    __slots__ = ("_live", "_rank", "manifest")
    _borrowing = ("_live",)
    _live: _Live
    _rank: int
    manifest: Manifest

    @classmethod
    def create(
        cls,
        url: str | None,
        recipe: Recipe,
        bindings: Bindings,
        params: Mapping[str, Any],
        *,
        manifest: Manifest | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008  immutable
        member: Member = Member(),  # noqa: B008
        in_place: bool = False,
        buffer_bytes: int = 0,
    ) -> Subscriber:
        """Register by a recipe. params: by name, contiguous.

        manifest: what the engine declares; None: these names, dtypes and shapes. in_place: no
        staging memory; the engine is paused while the bytes arrive (docs/guide/rounds.md).
        """
        self = cls()
        self.manifest = manifest if manifest is not None else manifest_of(params, "destination")
        memories = _Params(self.manifest, params)
        for one, _ in memories.kept:
            if not one.is_contiguous:
                raise argument_error(
                    "a subscriber by a recipe takes contiguous memory: use a contract"
                )
        self._live = _Live(memories, hooks)
        values = {"url": url, "in_place": in_place, "buffer_bytes": buffer_bytes}
        self._register(
            {**values, **member._asdict()},
            lib.heft_subscriber_create,
            (recipe, bindings, self.manifest),
            memories.pointers,
        )
        return self

    @classmethod
    def from_contract(
        cls,
        url: str | None,
        contract: Contract,
        params: Mapping[str, Any],
        *,
        manifest: Manifest | None = None,
        recorded: Iterable[str] = (),
        hooks: Hooks = Hooks(),  # noqa: B008  immutable
        member: Member = Member(),  # noqa: B008
        in_place: bool = False,
        buffer_bytes: int = 0,
    ) -> Subscriber:
        """Register by a contract: what does not fit is refused here. params: any strides.

        manifest: what the engine really holds; None: the contract's, of this rank. recorded:
        parameters that the engine changes after a flip, whose digests are taken from memory then.
        """
        self = cls()
        self.manifest = declared = _declared(contract, manifest, member.rank)
        memories = _Params(declared, params, recorded)
        self._live = _Live(memories, hooks)
        values = {"url": url, "in_place": in_place, "buffer_bytes": buffer_bytes}
        self._register(
            {**values, **member._asdict()},
            lib.heft_subscriber_create_contract,
            (contract, declared),
            memories.array,
        )
        return self

    def renew(
        self,
        mapping: Contract | Recipe,
        params: Mapping[str, Any],
        *,
        bindings: Bindings | None = None,
        manifest: Manifest | None = None,
        recorded: Iterable[str] = (),
        keeps_version: bool = False,
    ) -> None:
        """The engine has another layout now: take these in the place of the old ones.

        mapping: a contract, or a recipe with its bindings. On the thread that polls, between rounds
        (BusyError inside of one). The member stays in the fleet and serves nothing until a round
        has brought it to a version. keeps_version: it goes on serving its version, because the
        engine has moved its weights itself, and vouches for them; nothing may write to params
        meanwhile. After a failure all is as it was, but for PeerError and TimeoutError: the new
        layout stands, and the coordinator hears of it once it can be reached.
        """
        declared = self._declared_anew(mapping, params, manifest, bindings)
        memories = _Params(declared, params, recorded)
        renewal = ffi.new("heft_renewal_t *")
        renewal.size, renewal.params = ffi.sizeof("heft_renewal_t"), memories.array
        renewal.manifest, renewal.keeps_version = declared.pointer, keeps_version
        kept: tuple[Handle, ...] = (mapping, declared)
        if isinstance(mapping, Contract):
            renewal.contract = mapping.pointer
        elif bindings is not None:
            renewal.recipe, renewal.bindings = mapping.pointer, bindings.pointer
            kept = (*kept, bindings)
        with exclusive(self) as pointer:
            try:
                call(lib.heft_subscriber_renew_as, pointer, renewal)
            except HeftError as error:
                if error.status in (lib.HEFT_ERR_PEER, lib.HEFT_ERR_TIMEOUT):
                    self._take(memories, declared, kept)
                raise
            self._take(memories, declared, kept)

    def _declared_anew(
        self,
        mapping: Contract | Recipe,
        params: Mapping[str, Any],
        manifest: Manifest | None,
        bindings: Bindings | None,
    ) -> Manifest:
        if isinstance(mapping, Contract):
            return _declared(mapping, manifest, self._rank)
        if bindings is None:
            raise argument_error("a recipe is renewed with its bindings")
        return manifest if manifest is not None else manifest_of(params, "destination")

    def _take(self, memories: _Params, declared: Manifest, kept: tuple[Handle, ...]) -> None:
        self._live.params, self.manifest = memories, declared
        self.owned.keep_instead(*(handle.owned for handle in kept), self._live)

    @property
    def is_in_round(self) -> bool:
        """Whether a round is in flight here. Stays what it is as long as nobody polls."""
        with exclusive(self) as pointer:
            return bool(lib.heft_subscriber_is_in_round(pointer))

    def _register(
        self, values: Mapping[str, Any], function: Any, parents: tuple[Handle, ...], params: Any
    ) -> None:
        opts, kept = new_options("heft_subscriber_opts_t", {**values, "hooks": self._live.hooks})
        self._rank = values["rank"]
        out = ffi.new("heft_subscriber_t **")
        call(function, opts, *(parent.pointer for parent in parents), params, out)
        del kept
        self._own(out[0], lib.heft_subscriber_destroy, *parents, self._live)

    def poll(self, timeout_ms: int = 1000) -> None:
        """Report, take the next order and carry it out; one exchange, or timeout_ms.

        Blocks without the interpreter lock. PeerError: the coordinator cannot be reached now, the
        live version stays. PoisonedError: parameters are not to be trusted; go on polling, so that
        a round can write them anew. StaleError: another process has taken this rank's place. What a
        hook raised is raised once the library has reported it.
        """
        with exclusive(self) as pointer:
            live = self._live
            try:
                call(lib.heft_subscriber_poll, pointer, timeout_ms)
            except HeftError as error:
                live.raise_what_a_hook_raised(error)
                raise
            live.raise_what_a_hook_raised(None)

    @property
    def version(self) -> int:
        """The version that the parameters hold; 0: none yet."""
        return int(lib.heft_subscriber_get_version(self.pointer))

    @property
    def is_serving(self) -> bool:
        """Whether the engine may serve."""
        return bool(lib.heft_subscriber_is_serving(self.pointer))

    def digest(self, name: str) -> int:
        """The digest that a parameter has at the live version; 0 without a version."""
        return int(lib.heft_subscriber_get_digest(self.pointer, self.manifest.find(name)))

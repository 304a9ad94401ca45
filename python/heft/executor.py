# SPDX-License-Identifier: Apache-2.0
"""Running a plan from memory to memory (include/heft/exec.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from heft import memory
from heft._callbacks import Callbacks
from heft._handles import Handle, argument_error, call, exclusive
from heft._native import ffi, lib
from heft.manifest import TensorInfo
from heft.memory import Memory
from heft.plan import Plan
from heft.routes import Routes

Progress = Callable[[int, int], Any]  # (done bytes, total bytes); False cancels


class Target(NamedTuple):
    """One destination of a run: a rank of the plan, and its parameters by name."""

    rank: int
    params: Mapping[str, Any]


class Exec(Handle):
    """A prepared run of a plan, to be used again and again. Confined to one thread at a time.

    Targets are parameters by name (of rank 0 of the plan), or a list of Target. Their memory is
    written by run(); it is kept alive by this object. What nothing writes may be left out.

    routes, sender: run only what this sender writes; digests are then its shares, which combine
    with those of the others by XOR.
    """

    __slots__ = ("_callbacks", "_digests", "_plan_sources")

    def __init__(
        self,
        plan: Plan,
        targets: Mapping[str, Any] | Iterable[Target],
        *,
        n_threads: int = 0,
        progress: Progress | None = None,
        digests: bool = False,
        routes: Routes | None = None,
        sender: int = 0,
    ) -> None:
        listed = (
            [Target(0, targets)]
            if isinstance(targets, Mapping)
            else [Target(*target) for target in targets]
        )
        array = ffi.new("heft_exec_target_t[]", max(len(listed), 1))
        kept: list[Any] = [plan, array, *([] if routes is None else [routes])]
        self._digests: list[tuple[list[TensorInfo], Any]] = []
        for out, target in zip(array, listed, strict=False):
            params = plan.params(target.rank)
            pointers, memories = bind(params, target.params, "parameter", writable=True)
            kept += [pointers, memories]
            out.rank_index, out.params = target.rank, pointers
            if digests:
                self._digests.append((params, ffi.new("uint64_t[]", max(len(params), 1))))
                out.digests_out = self._digests[-1][1]
        self._callbacks = Callbacks(progress=progress)
        self._plan_sources = plan.sources
        opts = ffi.new("heft_exec_opts_t *")
        opts.size, opts.n_threads = ffi.sizeof("heft_exec_opts_t"), n_threads
        if progress is not None:
            opts.progress, opts.progress_arg = lib.heft_py_progress, self._callbacks.handle
        if routes is not None:
            opts.routes = routes.pointer
        opts.sender = sender
        out = ffi.new("heft_exec_t **")
        call(lib.heft_exec_create, plan.pointer, array, len(listed), opts, out)
        self._own(out[0], lib.heft_exec_destroy, *kept, self._callbacks, self._digests)

    def run(self, sources: Mapping[str, Any]) -> None:
        """params <- sources, by name; may differ from call to call. Blocks, without the GIL."""
        pointers, memories = bind(self._plan_sources, sources, "source", writable=False)
        with exclusive(self) as pointer:
            self._callbacks.call(lib.heft_exec_run, pointer, pointers)
        del memories

    def digests(self, target: int = 0) -> dict[str, int]:
        """The CRC-64 of every parameter of a target, as of the last run; with digests=True."""
        if not self._digests:
            raise argument_error("this Exec was made without digests")
        params, values = self._digests[target]
        return {info.name: values[i] for i, info in enumerate(params)}


def execute(
    plan: Plan,
    sources: Mapping[str, Any],
    params: Mapping[str, Any],
    *,
    rank: int = 0,
    n_threads: int = 0,
) -> None:
    """Run a plan once: the parameters of one rank <- sources, both by name."""
    with Exec(plan, [Target(rank, params)], n_threads=n_threads) as run:
        run.run(sources)


def bind(
    expected: Iterable[TensorInfo], given: Mapping[str, Any], what: str, *, writable: bool
) -> tuple[Any, list[Memory]]:
    """(array of pointers as expected, memory to keep). Missing: NULL; an unknown name: an error."""
    infos = list(expected)
    unknown = set(given) - {info.name for info in infos}
    if unknown:
        raise argument_error(
            f'{what} "{min(unknown)}" is not in the plan ({len(unknown)} such names)'
        )
    pointers, memories = ffi.new("void *[]", max(len(infos), 1)), []
    for i, info in enumerate(infos):
        if info.name in given:
            one = memory.contiguous(
                given[info.name], info.name, info.dtype, info.shape, writable=writable
            )
            memories.append(one)
            pointers[i] = one.pointer
    return pointers, memories


def digest(tensor: Any) -> int:
    """The digest of a contiguous tensor: CRC-64 over its bytes (docs/formats/digest.md)."""
    one = memory.describe(tensor)
    if not one.is_contiguous:
        raise argument_error(
            f"memory is not contiguous: shape {list(one.shape)}, strides {list(one.strides)}"
        )
    return int(lib.heft_digest(one.pointer, one.n_bytes))

# SPDX-License-Identifier: Apache-2.0
"""Whole checkpoints: convert, convert back, verify, compare (include/heft/exec.h, diff.h).

Memory is bounded, whatever the size of the checkpoint. Calls block without the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from heft import memory
from heft._callbacks import Callbacks
from heft._handles import Handle, argument_error, error_of, holding, new_error, text_of
from heft._native import ffi, lib
from heft.checkpoint import Checkpoint, Path, encode_path
from heft.exceptions import Exception_, new_exceptions
from heft.executor import Progress
from heft.manifest import Manifest, TensorInfo, tensor_info
from heft.plan import Plan


class ConvertOptions(NamedTuple):
    """How a conversion runs. Zero means the default."""

    n_threads: int = 0
    memory_bytes: int = 0  # beyond the plan: 1 GiB
    max_shard_bytes: int = 0  # 5 GB
    progress: Progress | None = None  # (done bytes, total bytes); False cancels
    group_begin: Callable[[int, int, str], Any] | None = None  # (group, of how many, parameter)
    one_by_one: bool = False  # finish each group on disk before the next
    names: Manifest | None = None  # of the side that is made: how its names are written in files


class _Conversion:
    """The options of one call in C's form, and the callables behind them."""

    def __init__(self, options: ConvertOptions, exceptions: Iterable[Exception_] = ()) -> None:
        self.callbacks = Callbacks(progress=options.progress, group_begin=options.group_begin)
        self.opts = ffi.new("heft_convert_opts_t *")
        o = self.opts
        o.size, o.n_threads = ffi.sizeof("heft_convert_opts_t"), options.n_threads
        o.memory_bytes, o.max_shard_bytes = options.memory_bytes, options.max_shard_bytes
        o.one_by_one = options.one_by_one
        o.exceptions, o.n_exceptions, self._kept = new_exceptions(exceptions)
        if options.names is not None:
            o.names = options.names.pointer
        if options.progress is not None:
            o.progress, o.progress_arg = lib.heft_py_progress, self.callbacks.handle
        if options.group_begin is not None:
            o.group_begin, o.group_begin_arg = lib.heft_py_group_begin, self.callbacks.handle

    def run(self, function: Callable[..., int], held: Sequence[Handle], *args: Any) -> None:
        """Call with the pointers of `held`, which may be closed meanwhile, and these arguments."""
        with holding(*held) as pointers:
            self.callbacks.call(function, *pointers, *args, self.opts)


DEFAULTS = ConvertOptions()


def convert(
    plan: Plan, source: Checkpoint, folder: Path, options: ConvertOptions = DEFAULTS
) -> None:
    """Convert a checkpoint: one folder for each rank of the plan (`folder` itself for one rank).

    Nothing is left under a final name when it fails.
    """
    _Conversion(options).run(lib.heft_convert, (plan, source), encode_path(folder))


def convert_tensors(
    plan: Plan,
    source: Manifest,
    tensors: Mapping[str, Any],
    folder: Path,
    options: ConvertOptions = DEFAULTS,
    *,
    release: Callable[[str], Any] | None = None,
) -> None:
    """The same from tensors in memory, contiguous, by name.

    release(name): the tensor will not be read again; what this call kept of it is gone already, so
    that a caller who drops it, too, frees its memory.
    """
    infos = list(source)
    unknown = set(tensors) - {info.name for info in infos}
    if unknown:
        raise argument_error(f'tensor "{min(unknown)}" is not in the manifest')
    pointers = ffi.new("void *[]", max(len(infos), 1))
    kept: list[Any] = [None] * len(infos)
    for i, info in enumerate(infos):
        if info.name in tensors:
            shape = memory.storage_shape(info.dtype, info.shape)
            kept[i] = memory.contiguous(
                tensors[info.name], info.name, info.dtype, shape, writable=False
            )
            pointers[i] = kept[i].pointer

    def let_go(i: int) -> None:
        kept[i] = None
        if release is not None:
            release(infos[i].name)

    conversion = _Conversion(options)
    conversion.callbacks.functions["release"] = let_go
    conversion.opts.release = lib.heft_py_release
    conversion.opts.release_arg = conversion.callbacks.handle
    conversion.run(lib.heft_convert_tensors, (plan, source), pointers, encode_path(folder))


def reverse(
    plan: Plan,
    ranks: Sequence[Checkpoint],
    folder: Path,
    options: ConvertOptions = DEFAULTS,
    *,
    exceptions: Iterable[Exception_] = (),
) -> None:
    """Run a plan of copies backwards: from the checkpoints of all its ranks to the source.

    exceptions: those of kind UNUSED say which source tensors may be left out.
    """
    conversion = _Conversion(options, exceptions)
    with holding(*ranks) as checkpoints:
        pointers = ffi.new("heft_checkpoint_t *[]", checkpoints or 1)
        conversion.run(lib.heft_convert_reverse, (plan,), pointers, len(ranks), encode_path(folder))


class Mismatch(NamedTuple):
    """The first element that is not what the plan makes of the source, and how many there are."""

    param: str
    rank: int
    position: tuple[int, ...]  # of the element in the parameter
    source: str | None  # None: a constant
    source_index: int  # flat; -1: a constant, or the result of a known kernel
    expected_bits: int
    actual_bits: int
    n_differ: int
    n_params: int


def verify_checkpoint(
    plan: Plan, source: Checkpoint, destination: Checkpoint, *, rank: int = 0
) -> int:
    """Compare a destination with what the plan makes of the source, bit for bit; elements compared.

    MismatchError has the first difference in `mismatch`.
    """
    out, err = ffi.new("heft_mismatch_t *"), new_error()
    with holding(plan, source, destination) as (p, a, b):
        status = lib.heft_verify(p, rank, a, b, out, err)
    if status == lib.HEFT_ERR_MISMATCH and out.param != ffi.NULL:
        raise error_of(status, err, mismatch=_mismatch_of(out))
    if status:
        raise error_of(status, err)
    return int(out.n_elems)


def _mismatch_of(m: Any) -> Mismatch:
    source = None if m.source == ffi.NULL else text_of(m.source)
    return Mismatch(
        text_of(m.param),
        m.rank,
        tuple(m.index[0 : m.n_dims]),
        source,
        m.source_index,
        m.expected_bits,
        m.actual_bits,
        m.n_differ,
        m.n_params,
    )


class TensorDiff(NamedTuple):
    """How two tensors of one dtype and shape differ; distances in units in the last place."""

    n_elems: int
    n_differ: int
    n_nan: int
    max_ulp: int
    mean_ulp: float
    first: int  # flat index of the first that differs, or -1
    first_a: int  # its bits on both sides
    first_b: int


class DiffEntry(NamedTuple):
    a: TensorInfo
    b: TensorInfo
    diff: TensorDiff | None  # None: dtype or shape differ


def diff_of(d: Any) -> TensorDiff:
    """A heft_tensor_diff_t."""
    return TensorDiff(
        d.n_elems, d.n_differ, d.n_nan, d.max_ulp, d.mean_ulp, d.first, d.first_a, d.first_b
    )


def diff(
    a: Checkpoint, b: Checkpoint, *, n_threads: int = 0, progress: Progress | None = None
) -> list[DiffEntry]:
    """Compare all tensors that two checkpoints have in common, in name order."""
    entries: list[DiffEntry] = []

    def add(info_a: Any, info_b: Any, found: Any) -> None:
        one = None if found == ffi.NULL else diff_of(found)
        entries.append(DiffEntry(tensor_info(info_a), tensor_info(info_b), one))

    callbacks = Callbacks(progress=progress, diff=add)
    opts = ffi.new("heft_diff_opts_t *")
    opts.size, opts.n_threads = ffi.sizeof("heft_diff_opts_t"), n_threads
    if progress is not None:
        opts.progress, opts.progress_arg = lib.heft_py_progress, callbacks.handle
    with holding(a, b) as pointers:
        callbacks.call(
            lib.heft_diff_checkpoints, *pointers, opts, lib.heft_py_diff, callbacks.handle
        )
    return entries


def diff_tensors(a: Any, b: Any) -> TensorDiff:
    """Compare two contiguous tensors of one dtype and shape."""
    one, two = memory.describe(a, "a"), memory.describe(b, "b")
    memory.contiguous(one, "a", one.dtype, one.shape, writable=False)
    memory.contiguous(two, "b", one.dtype, one.shape, writable=False)
    out = ffi.new("heft_tensor_diff_t *")
    n_elems = one.n_bytes // one.dtype.unit_bytes
    lib.heft_diff_tensors(one.dtype, one.pointer, two.pointer, n_elems, out)
    return diff_of(out)

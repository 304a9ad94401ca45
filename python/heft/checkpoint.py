# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: safetensors files and folders, mapped, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from heft import memory
from heft._handles import Handle, Owned, call, encode, error_of, new_error
from heft._native import ffi, lib
from heft.manifest import Manifest, lines_of
from heft.memory import Memory
from heft.names import NameOptions, new_name_options

Path = str | os.PathLike[str]


def encode_path(path: Path) -> bytes:
    return encode(os.fspath(path))


class Checkpoint(Handle):
    """Named tensors in safetensors files, mapped and not read. Immutable: share it freely."""

    __slots__ = ("_manifest",)
    _manifest: Manifest

    @classmethod
    def open(
        cls, path: Path, side: str = "source", *, names: NameOptions | None = None
    ) -> Checkpoint:
        """A .safetensors file, a folder with an index or with one file, or rank folders.

        names: how they are written; they become canonical ones. FormatError names file, tensor and
        byte; its `issues` lists everything in which an index and its shards disagree.
        """
        out, report, err = ffi.new("heft_checkpoint_t **"), ffi.new("char **"), new_error()
        status = lib.heft_checkpoint_open_report(encode_path(path), encode(side), out, report, err)
        if status:
            raise error_of(status, err, issues=lines_of(report))
        self = cls()
        self._own(out[0], lib.heft_checkpoint_close)
        if names is not None:
            opts, kept = new_name_options(names)
            call(lib.heft_checkpoint_canonicalize, self.pointer, opts)
            del kept
        self._manifest = Manifest._borrow(lib.heft_checkpoint_get_manifest(self.pointer), self)
        return self

    @property
    def manifest(self) -> Manifest:
        """What is in it; usable as long as it is kept, also after close()."""
        self.pointer  # noqa: B018  an error once closed
        return self._manifest

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, name: str) -> Memory:
        """A tensor where it is mapped, read-only; calls of heft take it as a tensor."""
        info = self.manifest[name]
        data = self.view(name)
        return memory.view_as(data, info.dtype, memory.storage_shape(info.dtype, info.shape))

    def view(self, name: str) -> memoryview:
        """The bytes of a tensor, read-only; the file stays mapped while it is kept."""
        i = self.manifest.find(name)
        data = lib.heft_checkpoint_get_data(self.pointer, i)
        return lent(data, self.manifest.query(i).n_bytes, self.owned).toreadonly()

    def release(self, name: str) -> None:
        """Tell the system that a tensor's pages are not needed again for now."""
        lib.heft_checkpoint_release(self.pointer, self.manifest.find(name))


class CheckpointWriter(Handle):
    """A checkpoint folder being written: map, fill, done for each tensor, then commit.

    Nothing exists under a final name before commit(); leaving the block without it removes what was
    written. Space is reserved on disk at once, so that a full disk is found before any work.
    """

    __slots__ = ("manifest",)

    def __init__(self, folder: Path, manifest: Manifest, *, max_shard_bytes: int = 0) -> None:
        out = ffi.new("heft_checkpoint_writer_t **")
        call(
            lib.heft_checkpoint_writer_create,
            encode_path(folder),
            manifest.pointer,
            max_shard_bytes,
            out,
        )
        self._own(out[0], lib.heft_checkpoint_writer_destroy)
        self.manifest = manifest

    def map(self, name: str) -> memoryview:
        """Writable bytes of a tensor in the output file, filled with zeros."""
        out = ffi.new("void **")
        i = self.manifest.find(name)
        call(lib.heft_checkpoint_writer_map, self.pointer, i, out)
        return lent(out[0], self.manifest.query(i).n_bytes, self.owned)

    def done(self, name: str) -> None:
        """A tensor is complete: its pages go to disk and out of this process."""
        call(lib.heft_checkpoint_writer_done, self.pointer, self.manifest.find(name))

    def commit(self) -> None:
        """Sync everything and give it its final names."""
        call(lib.heft_checkpoint_writer_commit, self.pointer)


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Any],
    *,
    side: str = "source",
    attrs: Mapping[str, str] | None = None,
    max_shard_bytes: int = 0,
) -> None:
    """Write tensors by name (contiguous) as a checkpoint folder, whole or not at all."""
    memories = {name: memory.describe(tensor, name) for name, tensor in tensors.items()}
    listed = [(name, one.dtype, one.shape) for name, one in memories.items()]
    with (
        Manifest.create(side, listed, attrs=attrs) as manifest,
        CheckpointWriter(folder, manifest, max_shard_bytes=max_shard_bytes) as writer,
    ):
        for name, one in memories.items():
            memory.contiguous(one, name, one.dtype, one.shape, writable=False)
            with writer.map(name) as out:
                ffi.memmove(out, one.pointer, one.n_bytes)
            writer.done(name)
        writer.commit()


def lent(pointer: Any, n_bytes: int, owner: Owned) -> memoryview:
    """Bytes that belong to an object of the library, which lives as long as the view does."""
    owner.use()
    drop: Callable[[Any], None] = lambda _: owner.drop()  # noqa: E731
    return memoryview(ffi.buffer(ffi.gc(ffi.cast("char *", pointer), drop), n_bytes))

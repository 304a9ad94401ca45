# SPDX-License-Identifier: Apache-2.0
"""Manifests: what one side holds, by name, dtype and shape (include/heft/model.h, names.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heft._handles import Handle, call, encode, error_of, new_error, take_text, text_of
from heft._native import ffi, lib
from heft.dtypes import DType, fill_shape, new_shape, shape_of
from heft.names import LayerForm, NameForm, NameOptions, new_name_options

if TYPE_CHECKING:
    from heft.recipe import Recipe


class TensorInfo(NamedTuple):
    """One tensor, as it is declared; the shape is logical."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    n_elems: int
    n_bytes: int


class Part(NamedTuple):
    """Says that a tensor of a source is a box of a whole one, with the extents that it has."""

    tensor: str  # the whole one
    shape: tuple[int, ...]  # of the whole one, logical
    begin: tuple[int, ...]
    replica: int = 0  # which copy this is, where several members hold the same


def tensor_info(out: Any) -> TensorInfo:
    """A heft_tensor_info_t."""
    return TensorInfo(
        text_of(out.name), DType(out.dtype), shape_of(out.shape), out.n_elems, out.n_bytes
    )


def _new_part(part: Part) -> tuple[Any, Any]:
    """(heft_part_t, what must be kept while it is used)."""
    out = ffi.new("heft_part_t *")
    out.tensor = name = ffi.new("char[]", encode(part.tensor))
    fill_shape(out.shape, part.shape, part.tensor)
    out.begin[0 : len(part.begin)] = part.begin
    out.replica = part.replica
    return out, name


def lines_of(out: Any) -> tuple[str, ...]:
    """The lines of a report in a `char **` (NULL: none), which the caller owns."""
    return () if out[0] == ffi.NULL else tuple(take_text(out).splitlines())


class Manifest(Handle):
    """Tensors in bytewise name order, and attributes. Immutable: share it freely."""

    __slots__ = ()

    @classmethod
    def create(
        cls,
        side: str,
        tensors: Iterable[tuple[str, DType, Sequence[int]]],
        *,
        attrs: Mapping[str, str] | None = None,
        tensor_attrs: Mapping[str, Mapping[str, str]] | None = None,
        excluded: Mapping[str, str] | None = None,
        parts: Mapping[str, Part] | None = None,
        recipe: Recipe | None = None,
    ) -> Manifest:
        """A manifest of these (name, dtype, shape), finished.

        side: "source" or "destination". attrs: of the whole side. tensor_attrs: by tensor, how the
        engine has laid it out (docs/formats/manifest.md). excluded: leaves not bound, and why.
        parts: of a source, by tensor: which box of which whole tensor it is.
        recipe: one whose declaration of names (`names`) becomes attributes of this side.
        """
        out = ffi.new("heft_manifest_t **")
        call(lib.heft_manifest_create, encode(side), out)
        self = cls._adopt(out[0])
        for name, dtype, shape in tensors:
            call(
                lib.heft_manifest_add,
                self.pointer,
                encode(name),
                DType(dtype),
                new_shape(shape, name),
            )
        for key, value in (attrs or {}).items():
            call(lib.heft_manifest_set_attr, self.pointer, encode(key), encode(value))
        for tensor, pairs in (tensor_attrs or {}).items():
            for key, value in pairs.items():
                call(
                    lib.heft_manifest_set_tensor_attr,
                    self.pointer,
                    encode(tensor),
                    encode(key),
                    encode(value),
                )
        for name, part in (parts or {}).items():
            new_part, kept = _new_part(part)
            call(lib.heft_manifest_set_part, self.pointer, encode(name), new_part)
            del kept
        for name, reason in (excluded or {}).items():
            call(lib.heft_manifest_exclude, self.pointer, encode(name), encode(reason))
        if recipe is not None:
            call(lib.heft_recipe_declare_names, recipe.pointer, self.pointer)
        call(lib.heft_manifest_finish, self.pointer)
        return self

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Read the JSON form, strictly. `issues` of the exception lists all that is wrong."""
        data = text.encode() if isinstance(text, str) else text
        out, report, err = ffi.new("heft_manifest_t **"), ffi.new("char **"), new_error()
        status = lib.heft_manifest_decode_report(data, len(data), out, report, err)
        if status:
            raise error_of(status, err, issues=lines_of(report))
        return cls._adopt(out[0])

    @classmethod
    def join(
        cls, parts: Sequence[Manifest], *, shared: Sequence[str] = ()
    ) -> tuple[Manifest, list[int]]:
        """One source of several source ranks, and which part sends each of its tensors.

        A name that two parts have is refused unless it matches a pattern of `shared`: a tensor that
        both keep, such as a tied embedding.
        """
        pointers = ffi.new("heft_manifest_t *[]", [part.pointer for part in parts] or 1)
        texts = [ffi.new("char[]", encode(pattern)) for pattern in shared]
        patterns = ffi.new("char const *[]", texts or 1)
        writers = ffi.new("uint32_t[]", max(sum(len(part) for part in parts), 1))
        out = ffi.new("heft_manifest_t **")
        call(
            lib.heft_manifest_join,
            pointers,
            len(parts),
            patterns,
            len(texts),
            out,
            writers,
        )
        made = cls._adopt(out[0])
        return made, list(writers[0 : len(made)])

    @classmethod
    def _adopt(cls, pointer: Any) -> Manifest:
        self = cls()
        self._own(pointer, lib.heft_manifest_destroy)
        return self

    @classmethod
    def _borrow(cls, pointer: Any, parent: Handle) -> Manifest:
        """One that belongs to a checkpoint or a contract, which lives as long as it is used."""
        self = cls()
        self._own(pointer, None, parent)
        return self

    def to_json(self) -> str:
        """The JSON form; equal manifests give equal text."""
        out = ffi.new("char **")
        call(lib.heft_manifest_encode, self.pointer, out)
        return take_text(out)

    @property
    def side(self) -> str:
        return text_of(lib.heft_manifest_get_side(self.pointer))

    @property
    def digest(self) -> str:
        """64 hex digits over everything in the manifest."""
        return text_of(lib.heft_manifest_get_digest(self.pointer))

    @property
    def n_bytes(self) -> int:
        return int(lib.heft_manifest_get_n_bytes(self.pointer))

    @property
    def n_elems(self) -> int:
        return int(lib.heft_manifest_get_n_elems(self.pointer))

    def __len__(self) -> int:
        return int(lib.heft_manifest_get_n_tensors(self.pointer))

    def __iter__(self) -> Iterator[TensorInfo]:
        for i in range(len(self)):
            yield self.query(i)

    def __contains__(self, name: object) -> bool:
        out = ffi.new("uint32_t *")
        return (
            isinstance(name, str)
            and lib.heft_manifest_find(self.pointer, encode(name), out, ffi.NULL) == 0
        )

    def __getitem__(self, name: str) -> TensorInfo:
        """The tensor of this name; NotFoundError names the nearest."""
        return self.query(self.find(name))

    def __repr__(self) -> str:
        if self.is_closed:
            return "<Manifest, closed>"
        size = f"{len(self)} tensors, {self.n_bytes} bytes"
        return f"<Manifest of a {self.side}: {size}, {self.digest[:12]}>"

    def query(self, i: int) -> TensorInfo:
        """Tensor i in bytewise name order."""
        out = ffi.new("heft_tensor_info_t *")
        call(lib.heft_manifest_query, self.pointer, i, out)
        return tensor_info(out)

    def find(self, name: str) -> int:
        """The index of a name; NotFoundError names the nearest."""
        out = ffi.new("uint32_t *")
        call(lib.heft_manifest_find, self.pointer, encode(name), out)
        return int(out[0])

    @property
    def names(self) -> list[str]:
        return [info.name for info in self]

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of the whole side."""
        n = lib.heft_manifest_get_n_attrs(self.pointer)
        return self._pairs(
            n, lambda k, key, value: call(lib.heft_manifest_query_attr, self.pointer, k, key, value)
        )

    def tensor_attrs(self, name: str) -> dict[str, str]:
        """How the engine has laid out one tensor."""
        i = self.find(name)
        n = lib.heft_manifest_get_n_tensor_attrs(self.pointer, i)
        query = lib.heft_manifest_query_tensor_attr
        return self._pairs(n, lambda k, key, value: call(query, self.pointer, i, k, key, value))

    @staticmethod
    def _pairs(n: int, query: Any) -> dict[str, str]:
        key, value = ffi.new("char const **"), ffi.new("char const **")
        pairs: dict[str, str] = {}
        for k in range(n):
            query(k, key, value)
            pairs[text_of(key[0])] = text_of(value[0])
        return pairs

    @property
    def excluded(self) -> dict[str, str]:
        """Leaves that are not bound, and why."""
        reason = ffi.new("char const **")
        pairs: dict[str, str] = {}
        for i in range(lib.heft_manifest_get_n_excluded(self.pointer)):
            name = text_of(lib.heft_manifest_get_excluded(self.pointer, i, reason))
            pairs[name] = text_of(reason[0])
        return pairs

    def part(self, name: str) -> Part | None:
        """Of which whole tensor this one is a box; None: of none."""
        out = ffi.new("heft_part_t *")
        i = self.find(name)
        if lib.heft_manifest_query_part(self.pointer, i, out, ffi.NULL) != lib.HEFT_OK:
            return None
        shape = shape_of(out.shape)
        return Part(text_of(out.tensor), shape, tuple(out.begin[0 : len(shape)]), out.replica)

    def canonicalize(self, options: NameOptions) -> Manifest:
        """The manifest with canonical names of this one, whose names are native."""
        opts, kept = new_name_options(options)
        out = ffi.new("heft_manifest_t **")
        call(lib.heft_manifest_canonicalize, self.pointer, opts, out)
        del kept
        return self._adopt(out[0])

    def native_name(self, canonical: str) -> str:
        """The name that the side itself gives to a tensor."""
        out = ffi.new("char **")
        call(lib.heft_manifest_get_native, self.pointer, encode(canonical), out)
        return take_text(out)

    @property
    def name_form(self) -> NameForm | None:
        """What the side declares of its names, if anything."""
        form = lib.heft_manifest_get_name_form(self.pointer)
        return NameForm(form) if form else None

    @property
    def layer_form(self) -> LayerForm | None:
        form = lib.heft_manifest_get_layer_form(self.pointer)
        return LayerForm(form) if form else None

# SPDX-License-Identifier: Apache-2.0
"""Recipes: rules that map source tensors to parameters (recipe.h, docs/guide/recipes.md).

What is wrong with a text or with what it is applied to is listed whole: the exception has the first
in its message and all in `issues`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from heft import errors
from heft._handles import Handle, call, encode, error_of, new_error, take_text, text_of
from heft._native import ffi, lib
from heft.checkpoint import Path, encode_path
from heft.exceptions import Exception_, exception_of
from heft.manifest import Manifest
from heft.names import NameOptions, name_options_of
from heft.plan import Plan
from heft.tape import Tape


class Issue(NamedTuple):
    """One thing that is wrong; status 0: a note."""

    status: int
    line: int  # 0: no place in the text
    column: int
    text: str  # "name:line:column: message"

    @property
    def status_name(self) -> str:
        return text_of(lib.heft_status_get_name(self.status))


class Issues:
    """A list that C fills; `call` raises with what is in it."""

    def __init__(self) -> None:
        out = ffi.new("heft_issues_t **")
        call(lib.heft_issues_create, out)
        self.pointer = ffi.gc(out[0], lib.heft_issues_destroy)

    def read(self) -> tuple[Issue, ...]:
        n = lib.heft_issues_get_n(self.pointer)
        found = (lib.heft_issues_get(self.pointer, i) for i in range(n))
        return tuple(Issue(i.status, i.line, i.column, text_of(i.text)) for i in found)

    def check(self, status: int, err: Any) -> None:
        if status != lib.HEFT_OK:
            raise error_of(status, err, issues=self.read())


class Bindings(Handle):
    """Values for the `let` names, the configuration and the variables that a recipe reads."""

    __slots__ = ()

    def __init__(
        self,
        let: Mapping[str, Any] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """let: integers, booleans, words or lists. config: as of a model's config.json.

        env: what a recipe sees as env.NAME; nothing of the real environment unless load_env is
        called.
        """
        out = ffi.new("heft_bindings_t **")
        call(lib.heft_bindings_create, out)
        self._own(out[0], lib.heft_bindings_destroy)
        if config is not None:
            self.set_config(config)
        for name, value in (let or {}).items():
            self.set(name, value)
        for name, value in (env or {}).items():
            self.set_env(name, value)

    @classmethod
    def from_json(cls, text: str) -> Bindings:
        """Read {"let": {...}, "config": {...}, "env": {...}}."""
        out, data = ffi.new("heft_bindings_t **"), text.encode()
        call(lib.heft_bindings_decode, data, len(data), out)
        self = cls.__new__(cls)
        self._own(out[0], lib.heft_bindings_destroy)
        return self

    def to_json(self) -> str:
        out = ffi.new("char **")
        call(lib.heft_bindings_encode, self.pointer, out)
        return take_text(out)

    def set(self, name: str, value: Any) -> None:
        """Override `let name`; the last one wins."""
        text = value if isinstance(value, str) else json.dumps(value)
        call(lib.heft_bindings_set, self.pointer, encode(name), encode(text))

    def load(self, name: str, path: Path) -> None:
        """The same with the value in a file."""
        call(lib.heft_bindings_load, self.pointer, encode(name), encode_path(path))

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Take config.KEY values, nested keys by dots."""
        data = json.dumps(config).encode()
        call(lib.heft_bindings_set_config, self.pointer, data, len(data))

    def load_config(self, path: Path) -> None:
        """The same from a file, such as a model's config.json."""
        call(lib.heft_bindings_load_config, self.pointer, encode_path(path))

    def set_env(self, name: str, value: str) -> None:
        call(lib.heft_bindings_set_env, self.pointer, encode(name), encode(value))

    def load_env(self, recipe: Recipe) -> None:
        """Take the variables of the environment that the recipe reads, those that are set."""
        call(lib.heft_bindings_load_env, self.pointer, recipe.pointer)


def _null(handle: Handle | None) -> Any:
    return ffi.NULL if handle is None else handle.pointer


class Recipe(Handle):
    """Rules, parsed. Immutable: share it freely. Bindings say for which model and ranks."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, name: str = "recipe") -> Recipe:
        """Parse a text; name is used in messages."""
        data = text.encode()
        return cls._make(lib.heft_recipe_parse_all, encode(name), data, len(data))

    @classmethod
    def load(cls, name_or_path: Path) -> Recipe:
        """From a file, or by the bare name of one that comes with heft ("hf-to-engine-dense")."""
        return cls._make(lib.heft_recipe_load_all, encode_path(name_or_path))

    @classmethod
    def chain(cls, recipes: Sequence[Recipe]) -> Recipe:
        """Several as one: each reads what the one before it makes, which is never there.

        A binding is taken by every recipe that declares it, "NAME.binding" by that one alone.
        """
        pointers = ffi.new("heft_recipe_t *[]", [recipe.pointer for recipe in recipes] or 1)
        out = ffi.new("heft_recipe_t **")
        call(lib.heft_recipe_chain, pointers, len(recipes), out)
        self = cls()
        self._own(out[0], lib.heft_recipe_destroy)
        return self

    @property
    def parts(self) -> list[Recipe]:
        """The recipes of a chain, in order; of any other, the recipe itself."""
        found = []
        for i in range(lib.heft_recipe_get_n_parts(self.pointer)):
            part = type(self)()
            part._own(lib.heft_recipe_get_part(self.pointer, i), None, self)
            found.append(part)
        return found

    @classmethod
    def _make(cls, function: Any, *args: Any) -> Recipe:
        issues, out, err = Issues(), ffi.new("heft_recipe_t **"), new_error()
        issues.check(function(*args, issues.pointer, out, err), err)
        self = cls()
        self._own(out[0], lib.heft_recipe_destroy)
        return self

    @property
    def name(self) -> str:
        return text_of(lib.heft_recipe_get_name(self.pointer))

    @property
    def text(self) -> str:
        return text_of(lib.heft_recipe_get_text(self.pointer))

    @property
    def exceptions(self) -> list[Exception_]:
        """What the recipe states, whatever its `when`, patterns as they are written."""
        n = lib.heft_recipe_get_n_exceptions(self.pointer)
        return [exception_of(lib.heft_recipe_get_exception(self.pointer, i)) for i in range(n)]

    def names(self, side: str) -> NameOptions | None:
        """How the recipe declares the names of a side to be written, if it does."""
        out = ffi.new("heft_name_opts_t *")
        found = lib.heft_recipe_query_names(self.pointer, encode(side), out)
        return name_options_of(out) if found else None

    def n_ranks(self, bindings: Bindings) -> int:
        """How many destination ranks the recipe describes under these bindings."""
        out = ffi.new("uint32_t *")
        call(lib.heft_recipe_count_ranks, self.pointer, bindings.pointer, out)
        return int(out[0])

    def compile(
        self,
        bindings: Bindings,
        source: Manifest,
        destination: Manifest | None = None,
        *,
        rank: int = 0,
    ) -> Tape:
        """The tape of one destination rank. With a destination, parameters must be its tensors."""
        issues, out, err = Issues(), ffi.new("heft_tape_t **"), new_error()
        status = lib.heft_recipe_compile_all(
            self.pointer,
            bindings.pointer,
            rank,
            source.pointer,
            _null(destination),
            issues.pointer,
            out,
            err,
        )
        issues.check(status, err)
        return Tape._adopt(out[0])

    def synthesize(self, bindings: Bindings, source: Manifest, *, rank: int = 0) -> Manifest:
        """The parameters of one rank as a manifest, from the source's alone."""
        issues, out, err = Issues(), ffi.new("heft_manifest_t **"), new_error()
        status = lib.heft_recipe_synthesize(
            self.pointer, bindings.pointer, rank, source.pointer, issues.pointer, out, err
        )
        issues.check(status, err)
        return Manifest._adopt(out[0])

    def resolve_exceptions(
        self, bindings: Bindings, source: Manifest, destination: Manifest | None = None
    ) -> list[Exception_]:
        """The exceptions that hold: what a plan takes."""
        out, n = ffi.new("heft_exception_t **"), ffi.new("uint32_t *")
        call(
            lib.heft_recipe_resolve_exceptions,
            self.pointer,
            bindings.pointer,
            source.pointer,
            _null(destination),
            out,
            n,
        )
        try:
            return [exception_of(out[0][i]) for i in range(n[0])]
        finally:
            lib.heft_exceptions_free(out[0])

    def plan(
        self,
        bindings: Bindings,
        source: Manifest,
        destinations: Sequence[Manifest] = (),
        *,
        rank: int | None = None,
    ) -> Plan:
        """Compile, fold and prove every rank, or one of them.

        destinations: none, or the manifest of each rank that is planned.
        """
        ranks = range(self.n_ranks(bindings)) if rank is None else [rank]
        if destinations and len(destinations) != len(ranks):
            raise errors.BY_STATUS[lib.HEFT_ERR_ARGUMENT](
                f"{len(destinations)} manifests of destinations for {len(ranks)} ranks"
            )
        given: list[Manifest | None] = list(destinations) or [None] * len(ranks)
        tapes = [
            self.compile(bindings, source, one, rank=r) for r, one in zip(ranks, given, strict=True)
        ]
        excused = self.resolve_exceptions(bindings, source, given[0])
        return Plan.create(tapes, first_rank=ranks[0], exceptions=excused, partial=rank is not None)

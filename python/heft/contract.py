# SPDX-License-Identifier: Apache-2.0
"""Contracts: what a side is and how it is made, kept in a file; and drift (contract.h, drift.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from heft._handles import Handle, call, encode, error_of, new_error, take_text, text_of
from heft._native import ffi, lib
from heft.exceptions import Exception_, exception_of, new_exceptions
from heft.manifest import Manifest
from heft.plan import Plan, Report, take_report
from heft.recipe import Bindings, Issues, Recipe
from heft.tape import Tape


class DriftKind(enum.IntEnum):
    MISSING = lib.HEFT_DRIFT_MISSING
    ADDED = lib.HEFT_DRIFT_ADDED
    RENAMED = lib.HEFT_DRIFT_RENAMED
    RETYPED = lib.HEFT_DRIFT_RETYPED
    RESHAPED = lib.HEFT_DRIFT_RESHAPED
    RELAID = lib.HEFT_DRIFT_RELAID
    ATTRIBUTE = lib.HEFT_DRIFT_ATTRIBUTE
    SIDE = lib.HEFT_DRIFT_SIDE
    MAPPING = lib.HEFT_DRIFT_MAPPING
    RECIPE = lib.HEFT_DRIFT_RECIPE
    BINDING = lib.HEFT_DRIFT_BINDING
    RANKS = lib.HEFT_DRIFT_RANKS
    EXCEPTION = lib.HEFT_DRIFT_EXCEPTION
    PLAN = lib.HEFT_DRIFT_PLAN


class DriftFinding(NamedTuple):
    kind: DriftKind
    name: str  # the tensor, or the attribute's key
    other: str  # its new name, or the nearest on the other side; "" where there is none
    text: str


Drift = tuple[DriftFinding, ...]  # everything that differs; empty: nothing


def _take_drift(pointer: Any) -> Drift:
    try:
        found = (lib.heft_drift_get(pointer, i) for i in range(lib.heft_drift_get_n(pointer)))
        return tuple(
            DriftFinding(DriftKind(f.kind), text_of(f.name), text_of(f.other), text_of(f.text))
            for f in found
        )
    finally:
        lib.heft_drift_destroy(pointer)


def drift(first: Manifest, second: Manifest) -> Drift:
    """What one side was and what it is now."""
    out = ffi.new("heft_drift_t **")
    call(lib.heft_drift_create, first.pointer, second.pointer, out)
    return _take_drift(out[0])


def _fill_traced(
    opts: Any, tapes: Sequence[Tape], exceptions: Iterable[Exception_], attrs: Mapping[str, str]
) -> tuple[Any, ...]:
    """What belongs to tapes; returns what must live until the call has returned."""
    pointers = ffi.new("heft_tape_t *[]", [tape.pointer for tape in tapes] or 1)
    array, n, kept = new_exceptions(exceptions)
    texts = [(ffi.new("char[]", encode(k)), ffi.new("char[]", encode(v))) for k, v in attrs.items()]
    pairs = ffi.new("heft_contract_attr_t[]", [{"key": k, "value": v} for k, v in texts] or 1)
    if tapes:
        opts.tapes, opts.n_tapes = pointers, len(tapes)
    if n:
        opts.exceptions, opts.n_exceptions = array, n
    if texts:
        opts.attrs, opts.n_attrs = pairs, len(texts)
    return pointers, array, kept, texts, pairs


class Contract(Handle):
    """A manifest and, with a recipe or tapes, the mapping and plan digests. Immutable."""

    __slots__ = ("report",)
    report: Report | None  # of the proof, where there was one

    @classmethod
    def create(
        cls,
        manifest: Manifest,
        recipe: Recipe | None = None,
        bindings: Bindings | None = None,
        destinations: Sequence[Manifest] = (),
        *,
        tapes: Sequence[Tape] = (),
        first_rank: int = 0,
        exceptions: Iterable[Exception_] = (),
        attrs: Mapping[str, str] | None = None,
        partial: bool = False,
    ) -> Contract:
        """Compile, fold and prove every rank, and keep the result. Without a mapping: a side alone.

        destinations: none, or the manifest of each rank. ProofError has `report`, others `issues`.
        tapes: in the place of a recipe, what an engine's loader does, of rank first_rank + i; with
        them exceptions, attrs (what it was traced under) and partial (other ranks are elsewhere).
        """
        issues = Issues()
        opts = ffi.new("heft_contract_opts_t *")
        opts.size = ffi.sizeof("heft_contract_opts_t")
        pointers = ffi.new("heft_manifest_t *[]", [one.pointer for one in destinations] or 1)
        if recipe is not None:
            opts.recipe, opts.issues = recipe.pointer, issues.pointer
        if bindings is not None:
            opts.bindings = bindings.pointer
        if destinations:
            opts.destinations, opts.n_destinations = pointers, len(destinations)
        kept = _fill_traced(opts, tapes, exceptions, attrs or {})
        opts.first_rank, opts.partial = first_rank, partial
        out, report, err = ffi.new("heft_contract_t **"), ffi.new("heft_report_t **"), new_error()
        status = lib.heft_contract_create(manifest.pointer, opts, out, report, err)
        del kept
        found = take_report(report[0])
        if status:
            raise error_of(status, err, report=found, issues=issues.read())
        return cls._adopt(out[0], found, manifest, *destinations)

    @classmethod
    def from_json(cls, text: str | bytes) -> Contract:
        """Read it, strictly. It proves nothing: see check()."""
        data = text.encode() if isinstance(text, str) else text
        out = ffi.new("heft_contract_t **")
        call(lib.heft_contract_decode, data, len(data), out)
        return cls._adopt(out[0], None)

    @classmethod
    def _adopt(cls, pointer: Any, report: Report | None, *kept: Handle) -> Contract:
        self = cls()
        self._own(pointer, lib.heft_contract_destroy, *kept)
        self.report = report
        return self

    @classmethod
    def merge(cls, contracts: Sequence[Contract], *, partial: bool = False) -> Contract:
        """The contract of all ranks from contracts of some each, in any order, proven together.

        Traced loaders only, over one manifest. partial: ranks are still missing.
        """
        pointers = ffi.new("heft_contract_t *[]", [one.pointer for one in contracts] or 1)
        out, report, err = ffi.new("heft_contract_t **"), ffi.new("heft_report_t **"), new_error()
        status = lib.heft_contract_merge(pointers, len(contracts), partial, out, report, err)
        found = take_report(report[0])
        if status:
            raise error_of(status, err, report=found)
        return cls._adopt(out[0], found, *contracts)

    def to_json(self) -> str:
        """The JSON form; equal contracts give equal text."""
        out = ffi.new("char **")
        call(lib.heft_contract_encode, self.pointer, out)
        return take_text(out)

    def check(self) -> Drift:
        """Make the mapping again from what is in here and prove it; empty: it comes to the same."""
        out, report, err = ffi.new("heft_drift_t **"), ffi.new("heft_report_t **"), new_error()
        status = lib.heft_contract_check(self.pointer, out, report, err)
        found = take_report(report[0])
        if status:
            raise error_of(status, err, report=found)
        return _take_drift(out[0])

    def plan(self) -> Plan:
        """The plan of the mapping, made and proven from what is in here.

        DigestError: this heft comes to other plans than the contract records.
        """
        out, report, err = ffi.new("heft_plan_t **"), ffi.new("heft_report_t **"), new_error()
        status = lib.heft_contract_plan(self.pointer, out, report, err)
        found = take_report(report[0])
        if status:
            raise error_of(status, err, report=found)
        return Plan._adopt(out[0], found)

    def compare(self, other: Contract) -> Drift:
        """What differs from this contract to another."""
        out = ffi.new("heft_drift_t **")
        call(lib.heft_contract_compare, self.pointer, other.pointer, out)
        return _take_drift(out[0])

    @property
    def digest(self) -> str:
        return text_of(lib.heft_contract_get_digest(self.pointer))

    @property
    def manifest(self) -> Manifest:
        """The side's manifest; of a mapping, the source's."""
        return Manifest._borrow(lib.heft_contract_get_manifest(self.pointer), self)

    @property
    def has_mapping(self) -> bool:
        return bool(lib.heft_contract_has_mapping(self.pointer))

    @property
    def is_traced(self) -> bool:
        """Whether the mapping is what a loader was traced to do: there are tapes, and no recipe."""
        return bool(lib.heft_contract_is_traced(self.pointer))

    @property
    def tapes(self) -> list[Tape]:
        """What the loader of each rank does, in normal form; none of a recipe."""
        n = self.n_ranks if self.is_traced else 0
        return [Tape._borrow(lib.heft_contract_get_tape(self.pointer, i), self) for i in range(n)]

    @property
    def first_rank(self) -> int:
        """The number of the first rank: 0, but of some ranks of a traced loader."""
        return int(lib.heft_contract_get_first_rank(self.pointer))

    @property
    def is_partial(self) -> bool:
        """Whether other ranks belong to the destination, too."""
        return bool(lib.heft_contract_is_partial(self.pointer))

    @property
    def attrs(self) -> dict[str, str]:
        """What the loader was traced under."""
        n = lib.heft_contract_get_n_attrs(self.pointer)
        found = (lib.heft_contract_get_attr(self.pointer, i) for i in range(n))
        return {text_of(one.key): text_of(one.value) for one in found}

    @property
    def recipe_name(self) -> str | None:
        return _text_or_none(lib.heft_contract_get_recipe_name(self.pointer))

    @property
    def recipe_text(self) -> str | None:
        return _text_or_none(lib.heft_contract_get_recipe_text(self.pointer))

    @property
    def bindings(self) -> Bindings | None:
        """What the recipe reads of its bindings."""
        text = _text_or_none(lib.heft_contract_get_bindings(self.pointer))
        return None if text is None else Bindings.from_json(text)

    @property
    def plan_digest(self) -> str | None:
        return _text_or_none(lib.heft_contract_get_plan_digest(self.pointer))

    @property
    def n_ranks(self) -> int:
        return int(lib.heft_contract_get_n_ranks(self.pointer))

    def rank_digest(self, rank: int = 0) -> str | None:
        return _text_or_none(lib.heft_contract_get_rank_digest(self.pointer, rank))

    def destination(self, rank: int = 0) -> Manifest | None:
        """The destination's manifest of one rank, where one was given."""
        pointer = lib.heft_contract_get_destination(self.pointer, rank)
        return None if pointer == ffi.NULL else Manifest._borrow(pointer, self)

    @property
    def exceptions(self) -> list[Exception_]:
        """The exceptions that hold."""
        n = lib.heft_contract_get_n_exceptions(self.pointer)
        return [exception_of(lib.heft_contract_get_exception(self.pointer, i)) for i in range(n)]


def _text_or_none(chars: Any) -> str | None:
    return None if chars == ffi.NULL else text_of(chars)

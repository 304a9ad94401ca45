# SPDX-License-Identifier: Apache-2.0
"""Options of the round service, and where their values come from (include/heft/config.h).

What is left out comes from the environment, then from the settings file that HEFT_SETTINGS names,
then from the default; docs/guide/configuration.md lists all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from heft._handles import Handle, argument_error, call, encode, encode_or_null, text_of
from heft._native import ffi, lib
from heft.checkpoint import Path, encode_path


def new_options(struct: str, values: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """(the options struct with these fields, what must be kept meanwhile). None: not given."""
    out, kept = ffi.new(f"{struct} *"), []
    out.size = ffi.sizeof(struct)
    fields = dict(ffi.typeof(struct).fields)
    for name, value in values.items():
        if name not in fields or name.startswith(("reserved", "size")):
            raise argument_error(f'"{name}" is no option; there are: {", ".join(_known(fields))}')
        if value is None:
            continue
        if fields[name].type.cname == "char *" or fields[name].type.cname == "char const *":
            value = ffi.new("char[]", encode_path(value))
            kept.append(value)
        setattr(out, name, value)
    return out, kept


def _known(fields: Mapping[str, Any]) -> list[str]:
    return [name for name in fields if not name.startswith(("reserved", "size"))]


class KnobKind(enum.IntEnum):
    TEXT = lib.HEFT_KNOB_TEXT
    FILE = lib.HEFT_KNOB_FILE
    NUMBER = lib.HEFT_KNOB_NUMBER
    BYTES = lib.HEFT_KNOB_BYTES
    FLAG = lib.HEFT_KNOB_FLAG


class KnobUsers(enum.IntFlag):
    COORDINATOR = lib.HEFT_KNOB_COORDINATOR
    PUBLISHER = lib.HEFT_KNOB_PUBLISHER
    SUBSCRIBER = lib.HEFT_KNOB_SUBSCRIBER
    CLIENT = lib.HEFT_KNOB_CLIENT
    PROCESS = lib.HEFT_KNOB_PROCESS


class Origin(enum.IntEnum):
    """Where a value comes from."""

    NONE = lib.HEFT_ORIGIN_NONE
    DEFAULT = lib.HEFT_ORIGIN_DEFAULT
    FILE = lib.HEFT_ORIGIN_FILE
    ENVIRONMENT = lib.HEFT_ORIGIN_ENVIRONMENT
    FLAG = lib.HEFT_ORIGIN_FLAG


class Knob(NamedTuple):
    """One row of the table of settings."""

    name: str
    variable: str
    kind: KnobKind
    users: KnobUsers
    fallback: str | None
    help: str
    removed: str | None  # what to use in place of this one, which exists no more


class Setting(NamedTuple):
    """The effective value of a knob."""

    name: str
    text: str | None  # None: no value
    number: int  # of numbers, bytes and flags
    origin: Origin
    where: str  # "HEFT_POLL_MS", "heft.conf", "default", "flag"
    line: int  # of the file


def _or_none(chars: Any) -> str | None:
    return None if chars == ffi.NULL else text_of(chars)


def _knob_of(k: Any) -> Knob:
    return Knob(
        text_of(k.name),
        text_of(k.variable),
        KnobKind(k.kind),
        KnobUsers(k.users),
        _or_none(k.fallback),
        text_of(k.help),
        _or_none(k.removed),
    )


def knobs() -> list[Knob]:
    """The table of settings."""
    n = lib.heft_config_get_n_knobs()
    return [_knob_of(lib.heft_config_get_knob(i)) for i in range(n)]


class Config(Handle):
    """Settings as they are now: file and environment are read once. Confined to one thread."""

    __slots__ = ()

    def __init__(self, file: Path | None = None) -> None:
        """file: None for the one that HEFT_SETTINGS names, or none."""
        out = ffi.new("heft_config_t **")
        path = ffi.NULL if file is None else encode_path(file)
        call(lib.heft_config_create, path, out)
        self._own(out[0], lib.heft_config_destroy)

    def set(self, name: str, text: str | None) -> None:
        """Give a knob a value as a flag does."""
        call(lib.heft_config_set, self.pointer, encode(name), encode_or_null(text))

    def __getitem__(self, name: str) -> Setting:
        """NotFoundError names the nearest."""
        out = ffi.new("heft_setting_t *")
        call(lib.heft_config_query, self.pointer, encode(name), out)
        return Setting(
            text_of(out.knob.name),
            _or_none(out.text),
            out.number,
            Origin(out.origin),
            text_of(out.where),
            out.line,
        )

    @property
    def warnings(self) -> list[str]:
        """A line about each variable HEFT_... that no knob has."""
        lines: list[str] = []
        while (line := lib.heft_config_get_warning(self.pointer, len(lines))) != ffi.NULL:
            lines.append(text_of(line))
        return lines

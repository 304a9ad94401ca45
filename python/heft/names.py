# SPDX-License-Identifier: Apache-2.0
"""Canonical names: one spelling for the tensors of both sides (include/heft/names.h)."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from heft._handles import call, encode, take_text, text_of
from heft._native import ffi, lib


class NameForm(enum.IntEnum):
    DOTTED = lib.HEFT_NAME_FORM_DOTTED  # canonical as it stands
    KEYSTR = lib.HEFT_NAME_FORM_KEYSTR  # ['key'], [3], .attr


class LayerForm(enum.IntEnum):
    """What `layers.3` means in a key string."""

    SCANNED = lib.HEFT_LAYER_FORM_SCANNED  # slot 3 of a scanned tree
    UNROLLED = lib.HEFT_LAYER_FORM_UNROLLED  # layer 3, called layers_3


class NameOptions(NamedTuple):
    """How a side writes its names. It is declared, never guessed."""

    form: NameForm
    layers: LayerForm | None = None  # must be given with KEYSTR, must not be with DOTTED
    container: str | None = None  # the token that holds the layers; None: "layers"
    types_lost: bool = False  # leaves that are no parameters are known by name alone


def new_name_options(options: NameOptions) -> Any:
    """(heft_name_opts_t, what must be kept while it is used)."""
    out = ffi.new("heft_name_opts_t *")
    out.size = ffi.sizeof("heft_name_opts_t")
    out.name_form, out.layer_form = options.form, options.layers or lib.HEFT_LAYER_FORM_NONE
    out.types_lost = options.types_lost
    kept = None
    if options.container is not None:
        kept = out.container = ffi.new("char[]", encode(options.container))
    return out, kept


def name_options_of(out: Any) -> NameOptions:
    """A heft_name_opts_t."""
    container = None if out.container == ffi.NULL else text_of(out.container)
    layers = LayerForm(out.layer_form) if out.layer_form else None
    return NameOptions(NameForm(out.name_form), layers, container, bool(out.types_lost))


def canonical_name(native: str, options: NameOptions) -> str:
    """The canonical form of one name, but for the tokens that all names of its side share."""
    opts, kept = new_name_options(options)
    out = ffi.new("char **")
    call(lib.heft_name_canonicalize, encode(native), opts, out)
    del kept
    return take_text(out)


def name_matches(pattern: str, name: str) -> bool:
    """Whether a dotted name matches a whole-token pattern; `*`: any number of tokens, also none."""
    return bool(lib.heft_name_matches(encode(pattern), encode(name)))


def split_rank_name(name: str) -> tuple[int, str] | None:
    """(R, NAME) of rank-R.NAME, as tensors of ranks stand in one manifest; None: another name."""
    text, rank, rest = encode(name), ffi.new("uint32_t *"), ffi.new("char **")
    if lib.heft_name_split_rank(text, rank, rest) == 0:
        return None
    return rank[0], text_of(rest[0])

# SPDX-License-Identifier: Apache-2.0
"""Sizes that both sides must come to by one rule, and the slots of KV caches (sizes.h, cache.h)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from heft._handles import Handle, call, encode, encode_or_null, text_of
from heft._native import ffi, lib
from heft.dtypes import new_shape, shape_of
from heft.tape import View, view_of


def padded_size(size: int, lanes: int, tp: int) -> int:
    """The width to which an intermediate size is padded: a multiple of 2 * lanes * tp."""
    out = ffi.new("int64_t *")
    call(lib.heft_padded_size, size, lanes, tp, out)
    return int(out[0])


def kv_repeat(kv_heads: int, kv_tp: int) -> int:
    """How often each key/value head stands on kv_tp ranks."""
    out = ffi.new("int64_t *")
    call(lib.heft_kv_repeat, kv_heads, kv_tp, out)
    return int(out[0])


def rollout_tp(key: str, configured: int | None, variable: str, value: str | None) -> int:
    """The engines' tensor parallelism, by a configuration's key and a variable, which agree."""
    out = ffi.new("int64_t *")
    number = ffi.NULL if configured is None else ffi.new("int64_t *", configured)
    call(lib.heft_rollout_tp, encode(key), number, encode(variable), encode_or_null(value), out)
    return int(out[0])


class CacheMap(Handle):
    """Which slot holds the cache of a layer. Immutable."""

    __slots__ = ()

    @classmethod
    def from_engine(cls, entries: Any, *, is_hybrid: bool) -> CacheMap:
        """An engine's own map: {name: slot}, or pairs [name, slot]; None: it has none."""
        return cls.from_json(None if entries is None else json.dumps(entries), is_hybrid=is_hybrid)

    @classmethod
    def from_json(cls, text: str | None, *, is_hybrid: bool) -> CacheMap:
        """The same as JSON text (docs/formats/cache-map.md)."""
        data = ffi.NULL if text is None else text.encode()
        n = 0 if text is None else len(data)
        out = ffi.new("heft_cache_map_t **")
        call(lib.heft_cache_map_decode, data, n, is_hybrid, out)
        return cls._adopt(out[0])

    @classmethod
    def of_cycle(cls, n_layers: int, cycle: int) -> CacheMap:
        """Of an engine that puts the last layer of each cycle behind all others."""
        out = ffi.new("heft_cache_map_t **")
        call(lib.heft_cache_map_create, n_layers, cycle, out)
        return cls._adopt(out[0])

    @classmethod
    def _adopt(cls, pointer: Any) -> CacheMap:
        self = cls()
        self._own(pointer, lib.heft_cache_map_destroy)
        return self

    @property
    def is_positional(self) -> bool:
        """No map was given: slot = layer, and there are no entries."""
        return bool(lib.heft_cache_map_is_positional(self.pointer))

    def slot_of(self, layer: int) -> int:
        """NotFoundError names the layers that there are."""
        out = ffi.new("int64_t *")
        call(lib.heft_cache_map_find, self.pointer, layer, out)
        return int(out[0])

    @property
    def slots(self) -> dict[int, int]:
        """Slots by layer, in ascending order of layers."""
        layer, slot, found = ffi.new("int64_t *"), ffi.new("int64_t *"), {}
        for i in range(lib.heft_cache_map_get_n(self.pointer)):
            call(lib.heft_cache_map_query, self.pointer, i, layer, slot)
            found[int(layer[0])] = int(slot[0])
        return found

    @property
    def skipped(self) -> list[str]:
        """Names without a layer."""
        n = lib.heft_cache_map_get_n_skipped(self.pointer)
        return [text_of(lib.heft_cache_map_get_skipped(self.pointer, i)) for i in range(n)]


class GdnCache(NamedTuple):
    """The cache of one gated-delta-net layer: a BF16 window and an F32 state."""

    conv: tuple[int, ...]
    state: tuple[int, ...]
    n_bytes: int


def gdn_cache(
    kernel: int, key_heads: int, value_heads: int, key_width: int, value_width: int
) -> GdnCache:
    out = ffi.new("heft_gdn_cache_t *")
    call(lib.heft_gdn_cache_query, kernel, key_heads, value_heads, key_width, value_width, out)
    return GdnCache(shape_of(out.conv), shape_of(out.state), out.n_bytes)


class CacheGroups(NamedTuple):
    """How an engine groups the caches of layers of which one in each cycle is attention."""

    n_attention: int
    n_other: int
    size: int
    n_attention_groups: int
    n_other_groups: int


def cache_groups(n_layers: int, cycle: int) -> CacheGroups:
    out = ffi.new("heft_cache_groups_t *")
    call(lib.heft_cache_groups_query, n_layers, cycle, out)
    return CacheGroups(
        out.n_attention, out.n_other, out.size, out.n_attention_groups, out.n_other_groups
    )


def positions_view(shape: tuple[int, ...]) -> View:
    """Token positions as an engine takes them, as a view of the contiguous array it is given."""
    out = ffi.new("heft_view_t *")
    call(lib.heft_positions_view, new_shape(shape, "positions"), out)
    return view_of(out)

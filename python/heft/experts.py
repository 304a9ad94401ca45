# SPDX-License-Identifier: Apache-2.0
"""Tables of experts: which logical expert stands in which slot (include/heft/experts.h)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from heft._handles import argument_error, call, take_text, text_of
from heft._native import ffi, lib
from heft.options import new_options

Row = tuple[int, ...]


class Moved(NamedTuple):
    """A slot that holds another expert than before."""

    layer: int
    slot: int
    was: int
    now: int


class ExpertTable:
    """Which logical expert stands in which slot of an engine, for each layer with experts.

    Engines that balance experts (EPLB) call it physical_to_logical_map. Immutable; equal tables are
    equal and have one digest. What does not fit is refused with layer, slot and numbers.
    """

    def __init__(
        self,
        table: Any,
        *,
        n_layers: int = 0,
        n_slots: int = 0,
        n_experts: int = 0,
        n_ranks: int = 0,
        once: bool = False,
    ) -> None:
        """table: lists, an array or a tensor (layers, slots of all ranks), or (layers, ranks,
        slots of a rank). n_...: what the model and the engine have; 0: what the table says.
        once: no expert may be in two slots.
        """
        self._check(
            json.dumps(table.tolist() if hasattr(table, "tolist") else table),
            {
                "n_layers": n_layers,
                "n_slots": n_slots,
                "n_experts": n_experts,
                "n_ranks": n_ranks,
                "once": once,
            },
        )

    @classmethod
    def from_json(cls, text: str | bytes, **known: int) -> ExpertTable:
        """The same as JSON text, also {"physical_to_logical_map": ...}."""
        self = cls.__new__(cls)
        self._check(text, known)
        return self

    def _check(self, text: str | bytes, known: dict[str, int]) -> None:
        data = text.encode() if isinstance(text, str) else text
        opts, kept = new_options("heft_expert_table_opts_t", known)
        info, out = ffi.new("heft_expert_table_info_t *"), ffi.new("char **")
        call(lib.heft_expert_table_check, data, len(data), opts, info, out)
        del kept
        self._text = take_text(out)
        self.rows: tuple[Row, ...] = tuple(map(tuple, json.loads(self._text)))
        self.n_layers, self.n_slots = int(info.n_layers), int(info.n_slots)
        self.n_experts = int(info.n_experts)
        self.digest = text_of(info.digest)

    def to_json(self) -> str:
        """For `--let table=@FILE`, and for engines that read a map of this form."""
        return f'{{"physical_to_logical_map": {self._text}}}\n'

    @property
    def text(self) -> str:
        """The lists alone, as Bindings take them."""
        return self._text

    @property
    def attrs(self) -> dict[str, str]:
        """What a rank of the engine declares: those of one engine must declare one table."""
        return {"expert_table": self.digest}

    def of_rank(self, rank: int, n_ranks: int) -> tuple[Row, ...]:
        """The slots of one rank, where ranks hold equal shares one after the other."""
        if n_ranks < 1 or self.n_slots % n_ranks or not 0 <= rank < n_ranks:
            raise argument_error(f"{self.n_slots} slots do not divide by {n_ranks}: rank {rank}")
        n = self.n_slots // n_ranks
        return tuple(row[rank * n : (rank + 1) * n] for row in self.rows)

    def moved(self, before: ExpertTable) -> list[Moved]:
        """The slots whose expert is another one; of tables of one size."""
        if (self.n_layers, self.n_slots) != (before.n_layers, before.n_slots):
            raise argument_error(
                f"{self.n_layers} layers of {self.n_slots} slots, before {before.n_layers} of "
                f"{before.n_slots}: slots cannot be compared"
            )
        return [
            Moved(layer, slot, was, now)
            for layer, (old, new) in enumerate(zip(before.rows, self.rows, strict=True))
            for slot, (was, now) in enumerate(zip(old, new, strict=True))
            if was != now
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExpertTable) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return (
            f"ExpertTable({self.n_layers} layers, {self.n_experts} experts in {self.n_slots} "
            f"slots, {self.digest[:8]})"
        )

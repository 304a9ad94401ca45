# SPDX-License-Identifier: Apache-2.0
"""What one rank of a trainer holds: its own tensors, and which boxes of whole tensors they are.

heft.torch.held_by and heft.jax.held_by read it from live objects; held_by() here takes what is
stated. Nothing is copied and nothing is sent: a rank looks at what is its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heft import memory
from heft._handles import argument_error
from heft.cuts import Box, CutRule, Mesh, Spec, cut
from heft.dtypes import DType
from heft.manifest import Manifest, Part
from heft.names import name_matches
from heft.placement import Shard

# A box of a tensor: where it begins, its shape, where it lies, and which copy of it this is.
HeldBox = tuple[tuple[int, ...], tuple[int, ...], Any, int]


@dataclasses.dataclass(repr=False)
class Held:
    """A rank's tensors by name, and which box of which tensor each of them is.

    A tensor without a part is whole. `manifest` is what the rank declares; a Publisher takes the
    whole object.
    """

    rank: int  # of the trainer
    n_ranks: int  # of the trainer; 0: not known
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    infos: dict[str, tuple[DType, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    parts: dict[str, Part] = dataclasses.field(default_factory=dict)
    attrs: dict[str, str] = dataclasses.field(default_factory=dict)
    tensor_attrs: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    excluded: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def manifest(self) -> Manifest:
        entries = [(name, dtype, shape) for name, (dtype, shape) in self.infos.items()]
        return Manifest.create(
            "source",
            entries,
            attrs=self.attrs,
            tensor_attrs=self.tensor_attrs,
            excluded=self.excluded,
            parts=self.parts,
        )

    @property
    def n_bytes(self) -> int:
        return self.manifest.n_bytes

    def shards(self, rank: int | None = None) -> list[Shard]:
        """The same for a Placement, with the number that it has for this rank (None: its rank)."""
        found = []
        for name, (_, shape) in self.infos.items():
            part = self.parts.get(name, Part(name, shape, (0,) * len(shape)))
            box = tuple((at, at + n) for at, n in zip(part.begin, shape, strict=True))
            own = None if part.tensor == name else name
            found.append(Shard(part.tensor, self.rank if rank is None else rank, box, own))
        return found

    def __repr__(self) -> str:
        n_boxes = f"{len(self.parts)} of them parts" if self.parts else "all whole"
        return f"<Held by rank {self.rank}: {len(self.tensors)} tensors, {n_boxes}>"

    def add(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[int],
        tensor: Any,
        *,
        part: Part | None = None,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        """A tensor that is whole, or part of one. attrs: of the whole tensor."""
        if name in self.tensors:
            raise argument_error(f'two tensors would have this name: "{name}"')
        self.tensors[name], self.infos[name] = tensor, (dtype, tuple(shape))
        if part is not None:
            self.parts[name] = part
        if attrs:
            self.tensor_attrs[name] = dict(attrs)

    def add_boxes(
        self,
        tensor: str,
        dtype: DType,
        shape: Sequence[int],
        boxes: Sequence[HeldBox],
        *,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        """Boxes of a tensor of this shape. One has its name, several NAME.0, NAME.1, ..."""
        for k, (begin, extents, local, replica) in enumerate(boxes):
            name = tensor if len(boxes) == 1 else f"{tensor}.{k}"
            part = Part(tensor, tuple(shape), tuple(begin), replica)
            self.add(name, dtype, extents, local, part=part, attrs=attrs)


def add_cut(
    held: Held,
    name: str,
    dtype: DType,
    shape: Sequence[int],
    boxes: Sequence[Box],
    local: Any,
    replica: int,
) -> None:
    """What cuts leave of a tensor, of which `local` is all that is left. Nothing: nothing is held.

    A packed dtype's last extent is logical in the manifest, and counted in bytes in a framework.
    """
    per_unit = 8 // dtype.bits if dtype.is_packed else 1

    def logical(extents: Sequence[int]) -> tuple[int, ...]:
        return (*extents[:-1], extents[-1] * per_unit) if extents else ()

    held.add_boxes(
        name,
        dtype,
        logical(shape),
        [
            (
                logical(box.begin),
                logical(box.shape),
                local if len(boxes) == 1 else local[box.slices],
                replica,
            )
            for box in boxes
        ],
    )


def held_by(
    tensors: Mapping[str, Any],
    mesh: Mesh,
    specs: Mapping[str, Spec] | None = None,
    *,
    rule: CutRule = CutRule.EVEN,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rename: Callable[[str], str] | None = None,
    rank: int | None = None,
    n_ranks: int = 0,
    attrs: Mapping[str, str] | None = None,
) -> Held:
    """What a rank holds, from what its caller states.

    tensors: this rank's own, by name. specs: by pattern of names (whole tokens, `*`: any number of
    them), which axes of the mesh shard which dimensions; the first pattern that matches counts, and
    one that matches nothing is an error. A tensor without a spec is the same on all of the mesh;
    stages of a pipeline, which hold different tensors, have a mesh each. rule, shapes: needed where
    tensors do not divide: how they are cut, and the whole shapes by name.
    rename: from this rank's names to those that are the same for the whole trainer (layers counted
    through all stages of a pipeline, experts through all ranks). rank: of the source; None: its
    place on the mesh.
    """
    specs, shapes = dict(specs or {}), dict(shapes or {})
    place = mesh.replica(())
    found = Held(place if rank is None else rank, n_ranks, attrs=dict(attrs or {}))
    unmatched = set(specs)
    for name, tensor in tensors.items():
        matching = [pattern for pattern in specs if name_matches(pattern, name)]
        unmatched -= set(matching)
        spec = specs[matching[0]] if matching else ()
        one = memory.describe(tensor, name)
        cuts = mesh.cuts(spec, rule)
        shape = tuple(shapes.pop(name, _whole_of(name, one.shape, cuts)))
        local, boxes = cut(shape, cuts)
        if local != one.shape:
            raise memory.shape_error(
                f'tensor "{name}": {mesh} leaves {list(local)} of {list(shape)}, '
                f"it has {list(one.shape)}"
            )
        whole = rename(name) if rename is not None else name
        add_cut(found, whole, one.dtype, shape, boxes, tensor, mesh.replica(spec))
    _refuse_unused("spec", unmatched)
    _refuse_unused("shape", shapes)
    return found


def _whole_of(name: str, shape: Sequence[int], cuts: Iterable[Any]) -> tuple[int, ...]:
    whole = list(shape)
    for one in cuts:
        if one.dim >= len(whole):
            raise memory.shape_error(
                f'tensor "{name}": its spec shards dimension {one.dim}, it has {len(whole)}'
            )
        whole[one.dim] *= one.n_parts
    return tuple(whole)


def _refuse_unused(what: str, names: Iterable[str]) -> None:
    left = sorted(names)
    if left:
        raise argument_error(f'the {what} of "{left[0]}" matches no tensor ({len(left)} such)')

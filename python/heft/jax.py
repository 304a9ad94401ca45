# SPDX-License-Identifier: Apache-2.0
"""Trees of jax.Array as a source of rounds: what this process holds of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from heft._handles import argument_error
from heft.dtypes import BY_FRAMEWORK_NAME
from heft.held import Held, HeldBox
from heft.manifest import Manifest, TensorInfo
from heft.names import NameForm, NameOptions


def held_by(
    tree: Any,
    names: NameOptions = NameOptions(NameForm.DOTTED),  # noqa: B008  immutable
    *,
    copies: bool = False,
    rank: int | None = None,
    attrs: Mapping[str, str] | None = None,
) -> Held:
    """What this process holds of a tree of arrays: the shards of its own devices.

    names: how the names of the leaves are meant. KEYSTR: as jax.tree_util.keystr writes them, made
    canonical (['decoder']['layers']['mlp'].value is decoder.layers.mlp). DOTTED: the keys with dots
    between them. Several devices of a process hold several parts of an array, NAME.0, NAME.1, ...;
    a box that two of them hold counts once. Copies on other processes are known from the sharding.
    An array that lies on this process alone is its own, unless copies says that all have the same.
    Leaves that are no arrays, or of no numeric dtype, are left out (Held.excluded). rank: of the
    source; None: the number of the process. Nothing is copied, and nothing is sent.
    """
    leaves = _leaves_of(tree, names.form)
    whole = _whole_manifest(leaves, names, {"framework": "jax", **(attrs or {})})
    arrays = {info.name: leaves[whole.native_name(info.name)] for info in whole}
    _wait_for(arrays)
    n = jax.process_count()
    held = Held(jax.process_index() if rank is None else rank, n if n > 1 else 0)
    held.attrs, held.excluded = whole.attrs, whole.excluded
    for info in whole:
        _hold(held, info, arrays[info.name], copies, whole.tensor_attrs(info.name))
    return held


def _hold(
    held: Held,
    info: TensorInfo,
    array: Any,
    copies: bool,
    attrs: Mapping[str, str],
) -> None:
    boxes = _boxes_of(array)
    is_own = isinstance(array, np.ndarray) or array.is_fully_addressable
    if is_own and copies:  # each process has its own, and they say that it is the same
        boxes = [(begin, shape, local, held.rank) for begin, shape, local, _ in boxes]
    elif is_own and len(boxes) == 1:
        held.add(info.name, info.dtype, info.shape, boxes[0][2], attrs=attrs)
        return
    held.add_boxes(info.name, info.dtype, info.shape, boxes, attrs=attrs)


def _leaves_of(tree: Any, form: NameForm) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path) if form is NameForm.KEYSTR else _dotted(path)
        if name in found:
            raise argument_error(f'two leaves of the tree have the name "{name}"')
        found[name] = leaf
    return found


def _dotted(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _whole_manifest(
    leaves: Mapping[str, Any], names: NameOptions, attrs: Mapping[str, str]
) -> Manifest:
    """Of all leaves, whole, under their canonical names."""
    tensors, excluded = [], {}
    for name, leaf in leaves.items():
        if not isinstance(leaf, jax.Array | np.ndarray):
            excluded[name] = f"a {type(leaf).__name__}, not an array"
        elif str(leaf.dtype) not in BY_FRAMEWORK_NAME:
            excluded[name] = f"of dtype {leaf.dtype}"
        else:
            tensors.append((name, BY_FRAMEWORK_NAME[str(leaf.dtype)], leaf.shape))
    if not tensors:
        raise argument_error(f"a tree of {len(leaves)} leaves, none of which is an array")
    native = Manifest.create("source", tensors, attrs=attrs, excluded=excluded)
    return native.canonicalize(names)


def _boxes_of(array: Any) -> list[HeldBox]:
    """What the devices of this process hold, each box once."""
    if isinstance(array, np.ndarray):
        return [((0,) * array.ndim, array.shape, array, 0)]
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Any]] = {}
    for shard in array.addressable_shards:
        ranges = [index.indices(n)[:2] for index, n in zip(shard.index, array.shape, strict=True)]
        begin = tuple(low for low, _ in ranges)
        extents = tuple(high - low for low, high in ranges)
        if (begin, extents) not in found or shard.replica_id < found[begin, extents][0]:
            found[begin, extents] = (shard.replica_id, shard.data)
    return [(*key, data, replica) for key, (replica, data) in sorted(found.items())]


def _wait_for(arrays: Mapping[str, Any]) -> None:
    """Arrays are there before they are computed."""
    for name, array in arrays.items():
        if isinstance(array, jax.Array):
            if array.is_deleted():
                raise argument_error(f'tensor "{name}": the array was deleted or donated')
            array.block_until_ready()

# SPDX-License-Identifier: Apache-2.0
"""What processes of JAX hold: arrays over eight devices of a CPU, each element judged."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import multiprocessing as mp
import pathlib
import pickle
import socket
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import heft
import heft.jax
from heft import LayerForm, NameForm, NameOptions, errors
from heft.memory import describe

pytestmark = pytest.mark.timeout(280)  # processes that import a framework on a busy machine
P = PartitionSpec
TORUS = [0, 1, 3, 2, 6, 7, 5, 4]  # the number of the device at each position
SCANNED = NameOptions(NameForm.KEYSTR, LayerForm.SCANNED)
UNROLLED = NameOptions(NameForm.KEYSTR, LayerForm.UNROLLED)
DEADLINE_S = 240


def mesh_of(shape: tuple[int, ...], axes: tuple[str, ...], order: Any = range(8)) -> Mesh:
    devices = np.array(jax.devices())[list(order)]
    return Mesh(devices.reshape(shape), axes)


def put(array: np.ndarray, mesh: Mesh, *spec: Any) -> jax.Array:
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh, P(*spec)), lambda index: array[index]
    )


def values_of(held: heft.Held, name: str) -> np.ndarray:
    """The bytes that a publisher would send."""
    one = describe(held.tensors[name], name)
    assert one.is_contiguous
    dtype = np.asarray(held.tensors[name]).dtype
    return np.frombuffer(one.bytes, dtype).reshape(one.shape).copy()


def judge(held: heft.Held, whole: dict[str, np.ndarray]) -> None:
    """Every element is what the whole array says, and is held once."""
    seen = {name: np.zeros(array.shape, int) for name, array in whole.items()}
    for name in held.tensors:
        values = values_of(held, name)
        shape = values.shape
        part = held.parts.get(name, heft.Part(name, shape, (0,) * len(shape)))
        at = tuple(slice(b, b + n) for b, n in zip(part.begin, shape, strict=True))
        np.testing.assert_array_equal(values, whole[part.tensor][at], err_msg=name)
        seen[part.tensor][at] += 1
    for name, counts in seen.items():
        assert (counts == 1).all(), name


def numbered(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def test_devices_of_a_process_hold_parts_of_one_array() -> None:
    whole = {"w": numbered(8, 16), "b": numbered(16), "s": np.float32(3).reshape(())}
    mesh = mesh_of((2, 4), ("fsdp", "tp"))
    tree = {
        "w": put(whole["w"], mesh, "tp", "fsdp"),
        "b": put(whole["b"], mesh, "fsdp"),  # on four devices each
        "s": put(whole["s"], mesh),
    }
    held = heft.jax.held_by(tree)
    judge(held, whole)
    assert (held.rank, held.n_ranks) == (0, 0)
    assert sorted(held.tensors) == ["b.0", "b.1", "s", *(f"w.{k}" for k in range(8))]
    assert held.parts["w.1"] == heft.Part("w", (8, 16), (0, 8), 0)
    assert "s" not in held.parts  # whole


def test_positions_count_and_not_the_numbers_of_devices() -> None:
    whole = {"w": numbered(8, 4)}
    tree = {"w": put(whole["w"], mesh_of((8,), ("x",), TORUS), "x")}
    judge(heft.jax.held_by(tree), whole)
    at = {shard.device.id: shard.index[0].start for shard in tree["w"].addressable_shards}
    assert at == {device: place for place, device in enumerate(TORUS)}


def test_two_axes_of_equal_size() -> None:
    whole = {"w": numbered(4, 6)}
    mesh = mesh_of((2, 2, 2), ("a", "b", "c"), [5, 0, 3, 6, 1, 7, 2, 4])
    for spec in (("a", "b"), ("b", "a"), ("c", "a"), (("b", "c"), "a"), (None, "c"), (("c", "a"),)):
        judge(heft.jax.held_by({"w": put(whole["w"], mesh, *spec)}), whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "bool", "float16"])
def test_dtypes(dtype: str) -> None:
    whole = {"w": numbered(8, 4, dtype=jnp.dtype(dtype))}
    mesh = mesh_of((8,), ("x",))
    held = heft.jax.held_by({"w": put(whole["w"], mesh, "x")})
    judge(held, whole)
    assert held.infos["w.0"][0] == heft.dtypes.BY_FRAMEWORK_NAME[dtype]


def scanned_tree(mesh: Mesh) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """As MaxText has it: layers on axis 1, the embedding over two axes."""
    whole = {
        "token_embedder.embedding": numbered(32, 8),
        "decoder.layers.mlp.wi_0.kernel": numbered(8, 3, 16),
        "decoder.layers.self_attention.query.kernel": numbered(8, 3, 4, 2),
        "decoder.decoder_norm.scale": numbered(8),
    }
    specs = {
        "token_embedder.embedding": (("fsdp", "tensor"), None),
        "decoder.layers.mlp.wi_0.kernel": ("fsdp", None, "tensor"),
        "decoder.layers.self_attention.query.kernel": ("fsdp", None, "tensor", None),
        "decoder.decoder_norm.scale": ("tensor",),
    }
    tree: dict[str, Any] = {}
    for name, array in whole.items():
        *path, leaf = name.split(".")
        node = tree
        for token in path:
            node = node.setdefault(token, {})
        node[leaf] = put(array, mesh, *specs[name])
    return tree, whole


def test_a_scanned_tree_has_canonical_names() -> None:
    tree, whole = scanned_tree(mesh_of((2, 4), ("fsdp", "tensor")))
    tree["rngs"] = {"params": {"key": jax.random.key(0)}}
    tree["step"] = 7
    held = heft.jax.held_by({"base": tree}, SCANNED)
    judge(held, whole)
    assert held.attrs["name_form"] == "keystr"
    assert held.attrs["root"] == "base"
    keys = {"['base']['rngs']['params']['key']": "of dtype key<fry>"}
    assert held.excluded == {**keys, "['base']['step']": "a int, not an array"}
    judge(heft.jax.held_by(tree), whole)  # the same names with dots between the keys


def test_layers_in_a_list() -> None:
    mesh = mesh_of((8,), ("x",))
    whole = {f"layers_{i}.w": numbered(8, 2) + i for i in range(3)}
    tree = {"layers": [{"w": put(whole[f"layers_{i}.w"], mesh, "x")} for i in range(3)]}
    judge(heft.jax.held_by(tree, UNROLLED), whole)


def test_arrays_that_are_not_sharded() -> None:
    tree = {"a": jnp.arange(4.0), "b": numbered(3)}
    held = heft.jax.held_by(tree)
    assert held.parts == {}
    judge(held, {"a": numbered(4), "b": numbered(3)})
    assert held.shards()[0].box == ((0, 4),)
    declared = heft.jax.held_by(tree, copies=True, rank=2)
    assert declared.parts["a"] == heft.Part("a", (4,), (0,), 2)


def test_what_cannot_be_held_is_refused_by_name() -> None:
    array = jnp.arange(4.0)
    array.delete()
    with pytest.raises(errors.ArgumentError, match=r'"a\.w": the array was deleted'):
        heft.jax.held_by({"a": {"w": array}})
    with pytest.raises(errors.ArgumentError, match="none of which is an array"):
        heft.jax.held_by({"step": 3})
    with pytest.raises(errors.ArgumentError, match=r'two leaves .* "a\.b"'):
        heft.jax.held_by({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)})


# ---- two processes of four devices ----


def hold_on_two_hosts(rank: int) -> dict[str, Any]:
    mesh = mesh_of((2, 4), ("fsdp", "tp"), TORUS)
    tree = {
        "both": put(numbered(8, 4), mesh, "tp", "fsdp"),
        "rows": put(numbered(8, 4), mesh, "fsdp"),
        "copied": put(numbered(4), mesh, "tp"),  # each box on two devices: of one host, or of two
        "all": put(numbered(4), mesh),
        "own": jnp.full(3, 5.0),
    }
    held = heft.jax.held_by(tree)
    parts = {name: (held.parts.get(name), values_of(held, name)) for name in held.tensors}
    return {"rank": (held.rank, held.n_ranks), "parts": parts}


def run_host(rank: int, port: int, folder: str) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", 4)
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
        assert len(jax.devices()) == 8
        found: tuple[str, Any] = ("returned", hold_on_two_hosts(rank))
    except BaseException:
        found = ("raised", traceback.format_exc())
    pathlib.Path(folder, str(rank)).write_bytes(pickle.dumps(found))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_two_processes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    port, context = free_port(), mp.get_context("spawn")
    hosts = [context.Process(target=run_host, args=(r, port, str(tmp_path))) for r in range(2)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join(DEADLINE_S)
        if host.is_alive():
            host.kill()
    found = []
    for rank in range(2):
        kind, value = pickle.loads((tmp_path / str(rank)).read_bytes())
        assert kind == "returned", value
        found.append(value)
    assert [one["rank"] for one in found] == [(0, 2), (1, 2)]
    whole = {"both": numbered(8, 4), "rows": numbered(8, 4), "copied": numbered(4)}
    whole |= {"all": numbered(4)}
    seen = {name: np.zeros((2, *array.shape), int) for name, array in whole.items()}
    replicas: dict[tuple[Any, ...], set[int]] = {}
    for rank, one in enumerate(found):
        for name, (part, values) in one["parts"].items():
            if name == "own":
                assert part is None
                continue
            at = tuple(slice(b, b + n) for b, n in zip(part.begin, values.shape, strict=True))
            np.testing.assert_array_equal(values, whole[part.tensor][at])
            seen[part.tensor][rank][at] += 1
            others = replicas.setdefault((part.tensor, part.begin), set())
            assert part.replica not in others  # two ranks that hold one box say different copies
            others.add(part.replica)
    assert (seen["both"].sum(0) == 1).all()
    assert (seen["rows"].max(0) == 1).all()
    assert (seen["all"] == 1).all()
    assert all((counts <= 1).all() and counts.sum(0).all() for counts in seen.values())

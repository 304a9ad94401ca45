# SPDX-License-Identifier: Apache-2.0
"""What a rank holds as its caller states it: meshes by name, and tensors by pattern."""

from __future__ import annotations

import re

import numpy as np
import pytest

import heft
from heft import Blocks, CutRule, Mesh, Part, errors

# A dense layer as Megatron-Core keeps it: gate and up one above the other in each rank.
MEGATRON = {
    "*.word_embeddings.weight": ("tp",),
    "*.linear_qkv.weight": ("tp",),
    "*.linear_proj.weight": (None, "tp"),
    "*.linear_fc1.weight": (Blocks("tp", 2),),
    "*.linear_fc2.weight": (None, "tp"),
}
TP, DP, PP, LAYERS = 2, 2, 2, 2  # layers of a stage


def full(layer: int) -> dict[str, np.ndarray]:
    """One layer, as one rank would have it."""
    rng = np.random.default_rng(layer)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f4")

    return {
        "self_attention.linear_qkv.weight": random(16, 4),
        "self_attention.linear_proj.weight": random(4, 8),
        "mlp.linear_fc1.weight": random(16, 4),
        "mlp.linear_fc2.weight": random(4, 8),
        "input_layernorm.weight": random(4),
        "pre_mlp_layernorm.weight": random(4),
    }


def whole_model() -> dict[str, np.ndarray]:
    layers = {
        f"decoder.layers.{i}.{name}": array
        for i in range(PP * LAYERS)
        for name, array in full(i).items()
    }
    embedding = np.arange(40, dtype="f4").reshape(10, 4)
    last = {"decoder.final_layernorm.weight": np.ones(4, "f4")}
    return {"embedding.word_embeddings.weight": embedding, **layers, **last}


def own_of(name: str, array: np.ndarray, tp: int) -> np.ndarray:
    """What Megatron's tensor parallelism leaves of it, written down as slices."""
    if "layernorm" in name:
        return array
    if name.endswith("linear_fc1.weight"):
        gate, up = np.split(array, 2)
        return np.concatenate([np.split(gate, TP)[tp], np.split(up, TP)[tp]])
    axis = 1 if re.search(r"linear_(proj|fc2)", name) else 0
    return np.ascontiguousarray(np.split(array, TP, axis)[tp])


def rank_of_megatron(rank: int) -> tuple[heft.Held, int]:
    """Ranks count tensor parallel positions first, then copies, then stages."""
    tp, stage = rank % TP, rank // (TP * DP)
    tensors = {}
    for name, array in whole_model().items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer is None and stage == (PP - 1 if "final" in name else 0):
            tensors[name] = own_of(name, array, tp)
        elif layer is not None and int(layer[1]) // LAYERS == stage:
            local = name.replace(layer[0], f"layers.{int(layer[1]) % LAYERS}.")
            tensors[local] = own_of(name, array, tp)

    def rename(name: str) -> str:
        return re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) + stage * LAYERS}.", name)

    mesh = Mesh({"dp": DP, "tp": TP}, rank % (TP * DP))
    specs = MEGATRON if stage == 0 else dict(list(MEGATRON.items())[1:])
    return heft.held_by(tensors, mesh, specs, rename=rename, rank=rank, n_ranks=8), stage


def test_ranks_of_megatron_hold_one_model() -> None:
    ranks = [rank_of_megatron(rank)[0] for rank in range(TP * DP * PP)]
    assert [held.rank for held in ranks] == list(range(8))
    fc1 = "decoder.layers.3.mlp.linear_fc1.weight"
    assert ranks[7].parts[f"{fc1}.1"] == Part(fc1, (16, 4), (12, 0), 1)
    placement, tensors = heft.Placement.from_sources([held.manifest for held in ranks])
    assert placement is not None
    whole = whole_model()
    assert {t.name: t.shape for t in tensors} == {n: a.shape for n, a in whole.items()}
    tape = heft.Recipe.load("identity").compile(heft.Bindings(), tensors)
    plan = heft.Plan.create([placement.apply(tape)])
    sources = {
        f"rank-{held.rank}.{name}": np.ascontiguousarray(array)
        for held in ranks
        for name, array in held.tensors.items()
    }
    made = {name: np.zeros_like(array) for name, array in whole.items()}
    heft.execute(plan, sources, made)
    for name, array in whole.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)


def test_the_recipe_for_megatron_reads_them_as_those_of_one_rank() -> None:
    ranks = [rank_of_megatron(rank)[0] for rank in range(TP * DP * PP)]
    for held in ranks:  # what `rename` would put in front
        held.infos = {f"rank-0.model0.{n}": info for n, info in held.infos.items()}
        held.parts = {
            f"rank-0.model0.{n}": p._replace(tensor=f"rank-0.model0.{p.tensor}")
            for n, p in held.parts.items()
        }
    placement, whole = heft.Placement.from_sources([held.manifest for held in ranks])
    assert placement is not None
    config = {
        "num_hidden_layers": PP * LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 2,
        "hidden_size": 4,
        "intermediate_size": 8,
        "vocab_size": 10,
        "tie_word_embeddings": True,
    }
    bindings = heft.Bindings({"wire": "source", "vocab_multiple": 5 * TP}, config=config)
    recipe = heft.Recipe.load("megatron-to-hf-dense")
    plan = heft.Plan.create(
        [placement.apply(recipe.compile(bindings, whole))],
        exceptions=recipe.resolve_exceptions(bindings, whole),
    )
    sources = {
        f"rank-{held.rank}.rank-0.model0.{name}": np.ascontiguousarray(array)
        for held in ranks
        for name, array in held.tensors.items()
    }
    made = {info.name: np.zeros(info.shape, "f4") for info in plan.params()}
    heft.execute(plan, sources, made)
    own = whole_model()
    gate, up = np.split(own["decoder.layers.2.mlp.linear_fc1.weight"], 2)
    np.testing.assert_array_equal(made["model.layers.2.mlp.gate_proj.weight"], gate)
    np.testing.assert_array_equal(made["model.layers.2.mlp.up_proj.weight"], up)
    qkv = own["decoder.layers.3.self_attention.linear_qkv.weight"].reshape(2, 4, 2, 4)
    np.testing.assert_array_equal(
        made["model.layers.3.self_attn.q_proj.weight"], qkv[:, :2].reshape(8, 4)
    )
    embedding = own["embedding.word_embeddings.weight"]
    np.testing.assert_array_equal(made["model.embed_tokens.weight"], embedding)


def test_stages_that_count_layers_alike_are_no_copies() -> None:
    """Two stages whose layers have the same names are refused, not taken for one another."""
    mesh = Mesh({"tp": 1}, 0)
    stages = [heft.held_by({"layers.0.w": np.ones(3, "f4")}, mesh, rank=r) for r in range(2)]
    with pytest.raises(errors.ExistsError, match=r'"layers\.0\.w"'):
        heft.Placement.from_sources([stage.manifest for stage in stages])


def test_shapes_are_stated_where_tensors_do_not_divide() -> None:
    whole = np.arange(30, dtype="f4").reshape(10, 3)
    rows = [whole[:4], whole[4:8], whole[8:]]
    ranks = [
        heft.held_by(
            {"w": rows[r]},
            Mesh({"x": 3}, r),
            {"w": ("x",)},
            rule=CutRule.CEIL,
            shapes={"w": (10, 3)},
        )
        for r in range(3)
    ]
    assert [held.parts["w"].begin for held in ranks] == [(0, 0), (4, 0), (8, 0)]
    with pytest.raises(errors.ShapeError, match=r'"w".* leaves \[2, 3\] of \[10, 3\].* \[4, 3\]'):
        heft.held_by(
            {"w": rows[0]},
            Mesh({"x": 3}, 2),
            {"w": ("x",)},
            rule=CutRule.CEIL,
            shapes={"w": (10, 3)},
        )


def test_what_matches_nothing_is_refused_by_name() -> None:
    mesh, tensors = Mesh({"tp": 2}, 0), {"a.w": np.ones((2, 2), "f4")}
    with pytest.raises(errors.ArgumentError, match=r'spec of "\*\.b" matches no tensor'):
        heft.held_by(tensors, mesh, {"*.b": ("tp",)})
    with pytest.raises(errors.ArgumentError, match=r'shape of "a\.v" matches no tensor'):
        heft.held_by(tensors, mesh, {"*.w": ("tp",)}, shapes={"a.v": (2, 2)})
    with pytest.raises(errors.ShapeError, match=r'"a\.w": its spec shards dimension 2'):
        heft.held_by(tensors, mesh, {"*.w": (None, None, "tp")})
    with pytest.raises(errors.ArgumentError, match='two tensors would have this name: "a"'):
        heft.held_by({**tensors, "b.w": tensors["a.w"]}, mesh, rename=lambda name: "a")
    with pytest.raises(errors.ArgumentError, match='no axis "ep"'):
        heft.held_by(tensors, mesh, {"*.w": ("ep",)})


def test_packed_elements_are_counted_in_the_manifest() -> None:
    packed = heft.view_as(np.arange(8, dtype="u1"), heft.DType.F4, (2, 4))  # bytes: two each
    held = heft.held_by({"w": packed}, Mesh({"tp": 2}, 1), {"w": (None, "tp")})
    assert held.infos["w"] == (heft.DType.F4, (2, 8))
    assert held.manifest.part("w") == Part("w", (2, 16), (0, 8))


def test_a_rank_says_who_it_is() -> None:
    held = heft.held_by({"w": np.ones(2, "f4")}, Mesh({"tp": 2}, 1), {"w": ("tp",)}, n_ranks=2)
    assert (held.rank, held.n_ranks, held.n_bytes) == (1, 2, 8)
    assert held.shards(5) == [heft.Shard("w", 5, ((2, 4),))]
    assert "rank 1" in repr(held)
    with pytest.raises(errors.ArgumentError, match="the member is rank 3"):
        heft.Publisher("http://127.0.0.1:1", held, member=heft.Member(rank=3))
    with pytest.raises(errors.ArgumentError, match="a manifest of its own"):
        heft.Publisher("http://127.0.0.1:1", held, manifest=held.manifest)

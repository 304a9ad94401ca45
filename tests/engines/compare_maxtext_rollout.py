#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes from MaxText to engines against MaxText's converters for its rollouts.

The direct path (the engine runs MaxText: unrolled, fused, padded, heads repeated) with targets that
are MaxText's own rollout models, sharded over four CPU devices; and the path to vLLM's own models on
TPU. Needs what compare_maxtext.py needs. With --facts it writes tests/golden/maxtext/rollout.

    compare_maxtext_rollout.py --maxtext CHECKOUT [--heft HEFT] [--facts]
"""
import argparse
import os
import pathlib
import shutil
import tempfile
import types

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import compare_maxtext as base  # noqa: E402

# family, tp (the experts' shards), factor of the key/value heads, lanes, layout
DIRECT = [
    ("llama3", 1, 1, 1, "per_shard"),
    ("llama3", 1, 2, 1, "per_shard"),
    ("qwen3-moe", 1, 1, 8, "per_shard"),
    ("qwen3-moe", 2, 2, 4, "per_shard"),
    ("qwen3-moe", 4, 2, 2, "per_shard"),
    ("qwen3-moe", 2, 1, 4, "concat"),
    ("qwen3.5-moe", 2, 2, 4, "per_shard"),
]
VLLM = [("qwen3-moe", 1), ("qwen3-moe", 2), ("qwen3-moe", 4), ("qwen3.5-moe", 1), ("qwen3.5-moe", 2)]


def nested(flat):
    out = {}
    for name, value in flat.items():
        place = out
        *folders, last = name.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return out


def flattened(tree, prefix=""):
    out = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out.update(flattened(value, name + ".") if hasattr(value, "items") else {name: value})
    return out


def config_of(recipe, hf, work):
    import json

    (work / "config.json").write_text(json.dumps(base.hf_json(hf)))
    return ["--recipe", recipe, "--config", work / "config.json"]


def run_heft(binary, arrays, args, work):
    (work / "tree").mkdir()
    base.write_tree(work / "tree" / "model.safetensors", arrays)
    base.heft(binary, "check", work / "tree", *args)
    base.heft(binary, "convert", work / "tree", work / "out", *args)
    return base.read_tree(work / "out")


def target_state(mt, config, tp):
    """MaxText's rollout model, the experts' wi sharded over tp devices on its last axis."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(mt.np.array(jax.devices()[:tp]), ("model",))
    out = {}
    for name, leaf in mt.tree(config).items():
        spec = [None] * len(leaf["shape"])
        if name.endswith(".wi"):
            spec[-1] = "model"
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        out[name] = jax.ShapeDtypeStruct(leaf["shape"], mt.np.float32, sharding=sharding)
    return out


def direct(mt, binary, family, tp, factor, lanes, layout, work):
    from maxtext.integration.vllm import weight_converter

    _, model, sizes, extra, _ = base.FAMILIES[family]
    config = mt.config(model, {**base.SIZES, **sizes}, True)
    hf = mt.hf_config(model, config, extra)
    kv = sizes["base_num_kv_heads"] * factor
    more = {"base_num_kv_heads": kv}
    if "num_experts" in sizes:
        inner = sizes["base_moe_mlp_dim"]
        width = -(-inner // (2 * lanes * tp)) * 2 * lanes * tp
        more.update(prefuse_moe_weights="true", padded_base_moe_mlp_dim=width)
    target = target_state(mt, mt.config(model, {**base.SIZES, **sizes, **more}, False), tp)
    arrays = base.random_tree(mt, mt.tree(config), "float32")
    names = {"per_shard": "PER_SHARD_INTERLEAVE", "concat": "CONCAT"}
    converter = weight_converter.WeightConverter(
        rules=None, config=config, moe_fused_layout=getattr(weight_converter.MoEFusedLayout, names[layout])
    )
    source = nested({f"base.{name}": mt.jax.numpy.asarray(a) for name, a in arrays.items()})
    expected = flattened(converter.convert(source, target_state=nested(target)))
    cycle = config.inhomogeneous_layer_cycle_interval
    lets = {"wire": "f32", "moe_tp": tp, "kv_tp": kv if factor > 1 else 1, "lanes": lanes, "layout": layout, "cycle": cycle}
    args = config_of("maxtext-to-maxtext-rollout", hf, work)
    for key, value in lets.items():
        args += ["--let", f"{key}={value}"]
    return finish(mt, binary, arrays, expected, args, work, family, hf, lets)


def vllm(mt, binary, family, tp, work):
    from maxtext.integration.vllm import weight_converter
    from maxtext.integration.vllm.torchax_converter import qwen35_moe

    _, model, sizes, extra, _ = base.FAMILIES[family]
    config = mt.config(model, {**base.SIZES, **sizes}, True)
    hf = mt.hf_config(model, config, extra)
    arrays = base.random_tree(mt, mt.tree(config), "bfloat16")
    source = nested({f"base.{name}": mt.jax.numpy.asarray(a) for name, a in arrays.items()})
    if family == "qwen3-moe":
        rules = weight_converter.MODEL_TO_CONVERSION_RULES["qwen3_moe"]
        expected = flattened(weight_converter.WeightConverter(rules=rules, tp=tp).convert(source))
    else:
        names = ["gdn_num_key_heads", "gdn_num_value_heads", "gdn_key_head_dim", "gdn_value_head_dim"]
        shim = types.SimpleNamespace(
            base_num_decoder_layers=config.base_num_decoder_layers,
            rollout_tensor_parallelism=tp,
            inhomogeneous_layer_cycle_interval=config.inhomogeneous_layer_cycle_interval,
            **{name: getattr(config, name) for name in names},
        )
        expected = qwen35_moe.Qwen35MaxTextToVLLMConverter(shim, None).convert(source)
    lets = {"wire": "bf16", "tp": tp}
    args = config_of(f"maxtext-to-vllm-tpu-{family}", hf, work)
    for key, value in lets.items():
        args += ["--let", f"{key}={value}"]
    return finish(mt, binary, arrays, expected, args, work, family, hf, lets)


def finish(mt, binary, arrays, expected, args, work, family, hf, lets):
    expected = {name: mt.np.asarray(a) for name, a in expected.items()}
    got = run_heft(binary, arrays, args, work)
    n = base.compare(mt, expected, expected, got, f"{family} {lets}")
    recipe = args[1]
    facts = {
        "framework": "MaxText",
        "version": mt.version,
        "commit": mt.commit,
        "recipe": recipe,
        "family": family,
        "lets": lets,
        "hf_config": base.used_config(recipe, hf),
        "engine": {name: list(a.shape) for name, a in expected.items()},
    }
    return facts, n


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maxtext", required=True, help="a checkout of MaxText")
    parser.add_argument("--heft", default=str(base.ROOT / "build/release/src/cli/heft"))
    parser.add_argument("--facts", action="store_true", help="write tests/golden/maxtext/rollout")
    args = parser.parse_args()
    mt = base.MaxText(args.maxtext)
    for kind, cases in ((direct, DIRECT), (vllm, VLLM)):
        for number, case in enumerate(cases):
            work = pathlib.Path(tempfile.mkdtemp(prefix="heft-rollout-"))
            try:
                facts, n = kind(mt, args.heft, *case, work)
            finally:
                shutil.rmtree(work)
            print(f"{facts['recipe']} {case}: {len(facts['engine'])} tensors, {n} elements equal", flush=True)
            if args.facts:
                base.write_facts(facts, base.GOLDEN / "rollout" / f"{kind.__name__}-{number}-{case[0]}.json")


if __name__ == "__main__":
    main()

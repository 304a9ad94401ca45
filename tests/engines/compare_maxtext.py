#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The MaxText recipes against MaxText itself and against transformers.

Builds MaxText's own models with tiny sizes on the CPU, converts random weights with MaxText's own
converters and with `heft convert`, and compares every element. With --facts it writes what the
frameworks produce (names, shapes, dtypes) to tests/golden/maxtext, which the tests read that run
without them.

With --published the models have their published sizes: names and shapes alone, proven and compared.

    compare_maxtext.py --maxtext CHECKOUT [--heft HEFT] [--facts | --published] [FAMILY ...]

Needs, besides a checkout of MaxText: jax, flax, orbax-checkpoint, omegaconf, pydantic, optax, qwix,
aqtp, tokamax, grain, drjax, pathwaysutils, pillow, transformers, torch. MaxText asks for Python 3.12;
on 3.11 two files under kernels/mhc need `type X = Y` replaced by `X = Y`.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import types

os.environ["JAX_PLATFORMS"] = "cpu"
ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "maxtext"
SIZES = {"base_emb_dim": 16, "base_mlp_dim": 20, "vocab_size": 40, "base_num_query_heads": 4}
GQA = {"base_num_kv_heads": 2, "head_dim": 4}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "base_moe_mlp_dim": 12}
GDN = {"gdn_key_head_dim": 4, "gdn_value_head_dim": 6, "gdn_num_key_heads": 2, "gdn_num_value_heads": 4}

# family -> recipe, model of MaxText, sizes, keys of the Hugging Face configuration that MaxText does
# not carry over, class of transformers
FAMILIES = {
    "llama3": ("maxtext-to-hf-llama3", "llama3.1-8b", {**GQA, "base_num_decoder_layers": 3}, {}, "LlamaForCausalLM"),
    "qwen3": ("maxtext-to-hf-qwen3", "qwen3-4b", {**GQA, "base_num_decoder_layers": 3}, {"layer_types": ["full_attention"] * 3}, "Qwen3ForCausalLM"),
    "qwen3-moe": (
        "maxtext-to-hf-qwen3",
        "qwen3-30b-a3b",
        {**GQA, **MOE, "base_num_decoder_layers": 3},
        {},
        "Qwen3MoeForCausalLM",
    ),
    "qwen3.5-moe": (
        "maxtext-to-hf-qwen3.5-moe",
        "qwen3.5-35b-a3b",
        {**GQA, **MOE, **GDN, "base_num_decoder_layers": 8, "head_dim": 8, "mrope_section": "[1,0,0]"},
        {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 6,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        },
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "gemma3": (
        "maxtext-to-hf-gemma3",
        "gemma3-4b",
        {**GQA, "base_num_decoder_layers": 14},
        {"vocab_size": 44, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2 + ["sliding_attention"] * 2},
        "Gemma3ForConditionalGeneration",
    ),
    "deepseek-v3": (
        "maxtext-to-hf-deepseek-v3",
        "deepseek3-671b",
        {
            **MOE,
            "base_num_kv_heads": 4,
            "base_num_decoder_layers": 5,
            "first_num_dense_layers": 2,
            "q_lora_rank": 10,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
        },
        {"first_k_dense_replace": 2, "n_shared_experts": 1, "num_nextn_predict_layers": 0, "qk_head_dim": 10},
        "DeepseekV3ForCausalLM",
    ),
    "gpt-oss": (
        "maxtext-to-hf-gpt-oss",
        "gpt-oss-20b",
        {**GQA, **MOE, "base_num_decoder_layers": 4, "base_moe_mlp_dim": 20},
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": None},
        "GptOssForCausalLM",
    ),
}


def fail(text):
    sys.exit(f"compare_maxtext: failed: {text}")


# ---- safetensors, without a library ----

CODES = {"float32": "F32", "bfloat16": "BF16"}


def write_tree(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            out.write(array.tobytes())


def read_tree(folder):
    raw = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    base = 8 + n
    return {
        name: (t["dtype"], tuple(t["shape"]), raw[base + t["data_offsets"][0] : base + t["data_offsets"][1]])
        for name, t in header.items()
    }


# ---- the frameworks ----


class MaxText:
    """What of MaxText is used."""

    def __init__(self, checkout):
        self.checkout = pathlib.Path(checkout)
        sys.path.insert(0, str(self.checkout / "src"))
        import jax
        import numpy as np
        from jax.sharding import Mesh

        import maxtext.version
        from maxtext.checkpoint_conversion import to_huggingface
        from maxtext.checkpoint_conversion.utils import utils
        from maxtext.checkpoint_conversion.utils.hf_model_configs import HF_MODEL_CONFIGS
        from maxtext.configs import pyconfig
        from maxtext.models import models
        from maxtext.utils import max_logging, maxtext_utils

        max_logging.log = lambda *_: None
        self.jax, self.np, self.mesh_class = jax, np, Mesh
        self.to_hf, self.utils, self.hf_configs = to_huggingface, utils, HF_MODEL_CONFIGS
        self.pyconfig, self.models, self.maxtext_utils = pyconfig, models, maxtext_utils
        self.version = maxtext.version.__version__
        self.commit = subprocess.run(
            ["git", "-C", str(self.checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def config(self, model, sizes, scan):
        settings = {
            **sizes,
            "model_name": model,
            "scan_layers": str(scan).lower(),
            "run_name": "heft",
            "skip_jax_distributed_system": "true",
            "override_model_config": "true",
            "log_config": "false",
            "hardware": "cpu",
            "enable_checkpointing": "false",
            "per_device_batch_size": 1,
            "max_target_length": 16,
            "base_output_directory": tempfile.gettempdir(),
            "weight_dtype": "float32",
        }
        base = self.checkout / "src" / "maxtext" / "configs" / "base.yml"
        return self.pyconfig.initialize(["", str(base)] + [f"{k}={v}" for k, v in settings.items()])

    def tree(self, config):
        """The model's own parameters: canonical name -> native name, MaxText's dashed name, shape, dtype."""
        import flax.linen as nn

        mesh = self.mesh_class(self.maxtext_utils.create_device_mesh(config), config.mesh_axes)
        model = self.models.transformer_as_linen(config, mesh, quant=None, model_mode="train")
        params = self.maxtext_utils.get_abstract_param(model, config)["params"]
        boxed = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
        leaves, _ = self.jax.tree_util.tree_flatten_with_path(params, is_leaf=boxed)
        out = {}
        for path, leaf in leaves:
            value = leaf.value if boxed(leaf) else leaf
            parts = self.utils.param_key_parts_from_path(path)
            out[".".join(parts)] = {
                "native": self.jax.tree_util.keystr(path),
                "dashed": "params-" + "-".join(parts),
                "shape": tuple(value.shape),
                "dtype": str(value.dtype),
            }
        return out

    def hf_config(self, model, config, extra):
        hf = copy.deepcopy(self.hf_configs[model])
        text = getattr(hf, "text_config", None) or hf
        self.to_hf._validate_or_update_architecture(hf, config, override=True)
        for key, value in extra.items():
            setattr(text, key, value)
        return hf

    def convert(self, model, config, hf, arrays, dtype):
        """MaxText's own conversion, tensor by tensor."""
        maps = self.to_hf._get_model_mappings(model, config.scan_layers, hf.to_dict(), config)
        keys = self.utils.validate_and_filter_param_map_keys(maps["param_mapping"], set(arrays))
        shim = types.SimpleNamespace(
            weight_dtype=dtype, scan_layers=config.scan_layers, param_scan_axis=config.param_scan_axis
        )
        out = {}
        for key in keys:
            weight = [arrays[k] for k in key] if isinstance(key, tuple) else arrays[key]
            out.update(
                self.utils.process_maxtext_param(
                    key, weight, maps["param_mapping"], maps["hook_fn_mapping"], maps["shape_mapping"], shim
                )
            )
        return out


def names_of_transformers(class_name, hf):
    """Names and shapes of the text model, as transformers holds it and as it writes it, and its version."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    hf = copy.deepcopy(hf)
    if getattr(hf, "vision_config", None) is not None:  # not of interest, and large
        setattr(hf.vision_config, "depth" if hasattr(hf.vision_config, "depth") else "num_hidden_layers", 1)
    model = getattr(transformers, class_name)(hf)
    held = {name: tuple(p.shape) for name, p in model.named_parameters()}
    held.update({name: tuple(p.shape) for name, p in model.named_buffers() if name.endswith("score_correction_bias")})
    folder = pathlib.Path(tempfile.mkdtemp(prefix="heft-hf-"))
    try:
        model.save_pretrained(folder)
        written = {name: shape for name, (_, shape, _) in read_tree(folder).items()}
    finally:
        shutil.rmtree(folder)
    is_text = lambda name: not re.search(r"visual|vision|multi_modal", name)  # noqa: E731
    forms = [{name: shape for name, shape in names.items() if is_text(name)} for names in (held, written)]
    return forms, transformers.__version__


# ---- heft ----


def heft(binary, *args):
    env = {**os.environ, "HEFT_RECIPES": str(ROOT / "recipes")}
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, env=env, timeout=300)
    if done.returncode != 0:
        fail(f"heft {' '.join(map(str, args))}: {done.stderr or done.stdout}")
    return done.stdout


def hf_json(hf):
    return json.loads(hf.to_json_string(use_diff=False))


def convert_with_heft(binary, recipe, arrays, hf, wire, work):
    shutil.rmtree(work, ignore_errors=True)
    (work / "tree").mkdir(parents=True)
    write_tree(work / "tree" / "model.safetensors", arrays)
    (work / "tree" / "config.json").write_text(json.dumps(hf_json(hf)))
    args = ["--recipe", recipe, "--let", f"wire={wire}"]
    heft(binary, "check", work / "tree", *args)
    heft(binary, "convert", work / "tree", work / "out", *args)
    return read_tree(work / "out")


def compare(mt, expected, exact, got, what):
    """expected: MaxText's output in the wire's dtype; exact: the same in float32, for what heft keeps."""
    if set(expected) != set(got):
        fail(f"{what}: names differ: {sorted(set(expected) ^ set(got))[:10]}")
    n = 0
    for name, (dtype, shape, raw) in got.items():
        want = expected[name]
        if CODES[str(want.dtype)] != dtype:
            want = exact[name]
        want = mt.np.asarray(want)
        if tuple(want.shape) != shape or CODES[str(want.dtype)] != dtype:
            fail(f"{what}: {name}: {dtype} {shape}, MaxText has {want.dtype} {want.shape}")
        if want.tobytes() != raw:
            have = mt.np.frombuffer(raw, dtype=want.dtype).reshape(shape)
            first = tuple(mt.np.argwhere(have.astype("float32") != want.astype("float32"))[0])
            fail(f"{what}: {name} differs at {first}: {have[first]}, MaxText has {want[first]}")
        n += math.prod(shape)
    return n


def random_tree(mt, tree, dtype):
    import ml_dtypes

    rng = mt.np.random.default_rng(20260822)
    kind = mt.np.float32 if dtype == "float32" else ml_dtypes.bfloat16
    return {name: rng.standard_normal(leaf["shape"]).astype(kind) for name, leaf in tree.items()}


def used_config(recipe, hf):
    """The keys that the recipe asks for."""
    text = re.sub(r"#.*", "", (ROOT / "recipes" / f"{recipe}.heft").read_text())
    out = {}
    for key in sorted(set(re.findall(r"config\.([a-z_.]+)", text))):
        value, place = hf_json(hf), out
        *folders, last = key.split(".")
        for folder in folders:
            value, place = value.get(folder) or {}, place.setdefault(folder, {})
        if value.get(last) is not None:
            place[last] = value[last]
    return out


def agreement(ours, forms):
    """Which of transformers' forms has exactly our names and shapes; else what is different."""
    ours = {name: tuple(shape) for name, shape in ours.items()}
    held, written = forms
    words = [word for word, names in (("held", held), ("written", written)) if names == ours]
    if words:
        return words
    near = min(forms, key=lambda names: len(set(names) ^ set(ours)))
    missing, extra = sorted(set(near) - set(ours)), sorted(set(ours) - set(near))
    differ = sorted(name for name in set(ours) & set(near) if ours[name] != near[name])
    fail(f"transformers: only there {missing[:3]}, only here {extra[:3]}, another shape {differ[:3]}")


def run_case(mt, binary, family, scan, work):
    recipe, model, sizes, extra, class_name = FAMILIES[family]
    config = mt.config(model, {**SIZES, **sizes}, scan)
    tree = mt.tree(config)
    hf = mt.hf_config(model, config, extra)
    elements = 0
    for source, wire in (("float32", "bfloat16"), ("float32", "float32"), ("bfloat16", "bfloat16")):
        arrays = random_tree(mt, tree, source)
        dashed = {tree[name]["dashed"]: mt.jax.numpy.asarray(a) for name, a in arrays.items()}
        expected = mt.convert(model, config, hf, dashed, wire)
        exact = mt.convert(model, config, hf, dashed, "float32")
        short = {"float32": "f32", "bfloat16": "bf16"}[wire]
        got = convert_with_heft(binary, recipe, arrays, hf, short, work)
        elements += compare(mt, expected, exact, got, f"{family} scan={scan} {source} to {wire}")
    forms, version = names_of_transformers(class_name, hf)
    names = {name: list(mt.np.asarray(a).shape) for name, a in expected.items()}
    facts = {
        "framework": "MaxText",
        "version": mt.version,
        "commit": mt.commit,
        "model_name": model,
        "overrides": {**SIZES, **sizes, "scan_layers": scan},
        "recipe": recipe,
        "transformers": version,
        "hf_class": class_name,
        "names_as": agreement(names, forms),
        "hf_config": used_config(recipe, hf),
        "tree": {name: [t["native"], t["dtype"], *t["shape"]] for name, t in tree.items()},
        "hf": names,
    }
    return facts, elements


def write_manifest(path, side, shapes):
    tensors = [{"name": name, "dtype": "F32", "shape": list(shape)} for name, shape in sorted(shapes.items())]
    path.write_text(json.dumps({"heft_manifest": 1, "side": side, "tensors": tensors}))


def run_published(mt, binary, family, work):
    """MaxText's tree and what its converter makes of it, at the published size, as manifests."""
    recipe, model, _, _, _ = FAMILIES[family]
    config = mt.config(model, {}, True)
    hf = mt.hf_configs[model]
    tree = mt.tree(config)
    maps = mt.to_hf._get_model_mappings(model, True, hf.to_dict(), config)
    keys = mt.utils.validate_and_filter_param_map_keys(maps["param_mapping"], {leaf["dashed"] for leaf in tree.values()})
    made = {}

    def add(names):
        if isinstance(names, list):
            for name in names:
                add(name)
        elif isinstance(names, tuple):
            made.update(zip(names, maps["shape_mapping"][names]))
        else:
            made[names] = maps["shape_mapping"][names]

    for key in keys:
        add(maps["param_mapping"][key])
    write_manifest(work / "source.json", "source", {name: leaf["shape"] for name, leaf in tree.items()})
    write_manifest(work / "destination.json", "destination", made)
    (work / "config.json").write_text(json.dumps(hf_json(hf)))
    args = ["--recipe", recipe, "--let", "wire=f32", "--config", work / "config.json"]
    said = heft(binary, "check", work / "source.json", work / "destination.json", *args)
    print(f"{model}: {len(tree)} -> {len(made)} tensors; {said.splitlines()[0]}", flush=True)


def write_facts(facts, path):
    """One tensor a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for key, value in facts.items():
        if key in ("tree", "hf", "engine"):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(value.items()))
            rows.append(f" {json.dumps(key)}: {{\n{inner}}}")
        else:
            rows.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maxtext", required=True, help="a checkout of MaxText")
    parser.add_argument("--heft", default=str(ROOT / "build/release/src/cli/heft"))
    parser.add_argument("--facts", action="store_true", help="write tests/golden/maxtext")
    parser.add_argument("--published", action="store_true", help="published sizes, names and shapes alone")
    parser.add_argument("family", nargs="*", help=", ".join(FAMILIES))
    args = parser.parse_args()
    unknown = set(args.family) - set(FAMILIES)
    if unknown:
        fail(f"no family {unknown.pop()}; there are: {', '.join(FAMILIES)}")
    mt = MaxText(args.maxtext)
    work = pathlib.Path(tempfile.mkdtemp(prefix="heft-maxtext-"))
    try:
        for family in args.family or FAMILIES:
            if args.published:
                run_published(mt, args.heft, family, work)
            for scan in () if args.published else (True, False):
                facts, elements = run_case(mt, args.heft, family, scan, work)
                form = "scanned" if scan else "unscanned"
                print(
                    f"{family} {form}: {len(facts['tree'])} -> {len(facts['hf'])} tensors, {elements} elements equal; "
                    f"names as transformers {facts['transformers']} has them: {' and '.join(facts['names_as'])}",
                    flush=True,
                )
                if args.facts:
                    write_facts(facts, GOLDEN / f"{family}-{form}.json")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What heft made of a model (check.py --keep DIR) against what mbridge makes of the same tensors, byte for byte.

mbridge knows the names of Transformer Engine layers; those of the local layers, which run on a CPU, are renamed first.
Run: compare_mbridge.py DIR FAMILY ...
"""
import os
import re
import sys
import types

import torch

import models

RENAME = [
    (r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight", r"experts.\2.weight\1"),
    (r"self_attention\.q_layernorm\.weight", "self_attention.linear_q_up_proj.layer_norm_weight"),
    (r"self_attention\.kv_layernorm\.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"),
]
DENSE_RENAME = [(r"\.input_layernorm\.weight", ".self_attention.linear_qkv.layer_norm_weight"),
                (r"\.pre_mlp_layernorm\.weight", ".mlp.linear_fc1.layer_norm_weight")]


def te_name(name, kind, moe_layers):
    layer = re.match(r"decoder\.layers\.(\d+)\.", name)
    is_moe = layer is not None and int(layer.group(1)) in moe_layers
    rules = []
    if kind == "deepseek_v3":
        rules = RENAME + ([] if is_moe else DENSE_RENAME[1:])
    else:
        rules = RENAME[:1] + DENSE_RENAME[:1] + ([] if is_moe else DENSE_RENAME[1:])
    for old, new in rules:
        name = re.sub(old, new, name)
    return name


def bridge_of(hf):
    """The converter of the family, without building its configuration, which wants a GPU's libraries."""
    import mbridge.models  # noqa: F401
    from mbridge.models.deepseek_v3 import DeepseekV3Bridge
    from mbridge.models.llama import LLaMABridge
    from mbridge.models.qwen2 import Qwen2Bridge
    from mbridge.models.qwen3 import Qwen3Bridge
    from mbridge.models.qwen3moe import Qwen3MoEBridge
    kind = {"llama": LLaMABridge, "qwen2": Qwen2Bridge, "qwen3": Qwen3Bridge, "qwen3_moe": Qwen3MoEBridge,
            "deepseek_v3": DeepseekV3Bridge}[hf["model_type"]]
    bridge = kind.__new__(kind)
    bridge.hf_config = models.hf_config(hf)
    bridge.config = types.SimpleNamespace(mtp_num_layers=0, num_layers=hf["num_hidden_layers"])
    bridge.make_vocab_size_divisible_by = 8
    bridge.vocab_size, bridge.padded_vocab_size = hf["vocab_size"], (hf["vocab_size"] + 7) // 8 * 8
    return bridge


def main():
    from safetensors.torch import load_file
    folder, families = sys.argv[1], sys.argv[2:]
    for family in families:
        hf = models.FAMILIES[family]
        tree = load_file(os.path.join(folder, family, "tree-0", "rank-0", "model.safetensors"))
        ours = load_file(os.path.join(folder, family, "hf-0", "model.safetensors"))
        moe_layers = {int(name.split(".")[3]) for name in tree if "decoder" in name and ".router." in name}
        bridge, theirs, n_mtp = bridge_of(hf), {}, 0
        for name, value in tree.items():
            name = name.split(".", 1)[1]
            if name.startswith("mtp."):
                n_mtp += 1  # mbridge converts them for 61 layers alone
                continue
            theirs.update(zip(*bridge._weight_to_hf_format(te_name(name, hf["model_type"], moe_layers), value)))
        last = f"model.layers.{hf['num_hidden_layers']}."
        ours = {k: v for k, v in ours.items() if not k.startswith(last)}
        assert ours.keys() == theirs.keys(), (set(ours) ^ set(theirs))
        bad = [k for k in ours if not torch.equal(ours[k].view(torch.uint8), theirs[k].contiguous().view(torch.uint8))]
        assert not bad, bad
        n = sum(v.numel() for v in ours.values())
        print(f"{family}: {len(ours)} tensors, {n} elements equal" + (f" ({n_mtp} of MTP layers not compared)" if n_mtp else ""))


if __name__ == "__main__":
    main()

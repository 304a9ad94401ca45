# SPDX-License-Identifier: Apache-2.0
"""A dense model as Megatron-Core's ranks hold it, built the slow and obvious way with NumPy, and written to a folder."""
import json
import struct

import numpy as np


def part(weight, rank, size):
    return np.split(weight, size, axis=0)[rank]


def columns(weight, rank, size):
    return np.split(weight, size, axis=1)[rank]


def interleaved(source, config, p, t, tp):
    """linear_qkv: for each key/value head its query heads, itself, its values."""
    kv = config["num_key_value_heads"]
    q, k, v = (np.split(source[f"{p}self_attn.{x}_proj.weight"], kv) for x in "qkv")
    groups = [np.concatenate([q[g], k[g], v[g]]) for g in range(kv)]
    return np.concatenate(groups[t * kv // tp : (t + 1) * kv // tp])


def ranks(source, config, tp, pp, dp=1):
    """{rank number: {name: array}}; rank numbers run over tensor, then data, then pipeline parallel ranks."""
    layers = config["num_hidden_layers"]
    tied = "lm_head.weight" not in source
    out = {}
    for number in range(tp * dp * pp):
        t, stage = number % tp, number // (tp * dp)
        names = out.setdefault(number, {})
        if stage == 0:
            names["model0.embedding.word_embeddings.weight"] = part(source["model.embed_tokens.weight"], t, tp)
        for local in range(layers // pp):
            p, to = f"model.layers.{stage * (layers // pp) + local}.", f"model0.decoder.layers.{local}."
            gate, up, down = (source[f"{p}mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
            names[to + "self_attention.linear_qkv.weight"] = interleaved(source, config, p, t, tp)
            names[to + "self_attention.linear_proj.weight"] = columns(source[p + "self_attn.o_proj.weight"], t, tp)
            names[to + "mlp.linear_fc1.weight"] = np.concatenate([part(gate, t, tp), part(up, t, tp)])
            names[to + "mlp.linear_fc2.weight"] = columns(down, t, tp)
            names[to + "input_layernorm.weight"] = source[p + "input_layernorm.weight"]
            names[to + "pre_mlp_layernorm.weight"] = source[p + "post_attention_layernorm.weight"]
        if stage == pp - 1:
            names["model0.decoder.final_layernorm.weight"] = source["model.norm.weight"]
            if not tied or pp > 1:
                head = source["model.embed_tokens.weight" if tied else "lm_head.weight"]
                names["model0.output_layer.weight"] = part(head, t, tp)
    return out


def write(folder, numbered):
    for number, tensors in numbered.items():
        rank = folder / f"rank-{number}"
        rank.mkdir(parents=True)
        header, offset = {}, 0
        for name, array in tensors.items():
            header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
            offset += array.nbytes
        text = json.dumps(header).encode()
        with open(rank / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for array in tensors.values():
                file.write(np.ascontiguousarray(array).tobytes())

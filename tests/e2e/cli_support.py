# SPDX-License-Identifier: Apache-2.0
"""Running the command, and tiny checkpoints: every element of a checkpoint has its own bit pattern."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

HEFT = os.environ["HEFT_BIN"]
SIZES = {"U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8}
CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset, data = {}, 0, []
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    base = 8 + n
    return {
        name: (t["dtype"], tuple(t["shape"]), raw[base + t["data_offsets"][0] : base + t["data_offsets"][1]])
        for name, t in header.items()
    }


def read_checkpoint(folder):
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    tensors = {}
    for file in files:
        tensors.update(read_safetensors(folder / file))
    return tensors


class Counter:
    """Bit patterns 1, 2, 3, ... over all tensors it makes; 0 is left to padding."""

    def __init__(self, start=1):
        self.next = start

    def tensor(self, dtype, *shape):
        count = 1
        for extent in shape:
            count *= extent
        size = SIZES[dtype]
        first = self.next
        self.next += count
        values = [(first + i - 1) % (256**size - 2) + 1 for i in range(count)]
        return dtype, shape, struct.pack(f"<{count}{CODES[size]}", *values)


def dense_model(start=1, layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, inner=12, vocab=70):
    """A decoder of the Hugging Face form, head tied to the embedding: tensors and configuration."""
    make = Counter(start)
    tensors = {"model.embed_tokens.weight": make.tensor("BF16", vocab, hidden)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        tensors[p + "self_attn.q_proj.weight"] = make.tensor("BF16", heads * head_dim, hidden)
        tensors[p + "self_attn.k_proj.weight"] = make.tensor("BF16", kv_heads * head_dim, hidden)
        tensors[p + "self_attn.v_proj.weight"] = make.tensor("BF16", kv_heads * head_dim, hidden)
        tensors[p + "self_attn.o_proj.weight"] = make.tensor("BF16", hidden, heads * head_dim)
        tensors[p + "mlp.gate_proj.weight"] = make.tensor("BF16", inner, hidden)
        tensors[p + "mlp.up_proj.weight"] = make.tensor("BF16", inner, hidden)
        tensors[p + "mlp.down_proj.weight"] = make.tensor("BF16", hidden, inner)
        tensors[p + "input_layernorm.weight"] = make.tensor("BF16", hidden)
        tensors[p + "post_attention_layernorm.weight"] = make.tensor("BF16", hidden)
    tensors["model.norm.weight"] = make.tensor("BF16", hidden)
    config = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": True,
    }
    return tensors, config


def write_dense_model(folder, start=1, **sizes):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors, config = dense_model(start, **sizes)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def run(*args, env=None, **kwargs):
    environment = {k: v for k, v in os.environ.items() if k != "HEFT_URL"}
    environment.update(env or {})
    return subprocess.run(
        [HEFT, *map(str, args)], capture_output=True, text=True, timeout=120, env=environment, **kwargs
    )


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="heft-e2e-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def heft(self, *args, code=0, **kwargs):
        """Run the command; check its exit code, and that failures say why on standard error."""
        result = run(*args, **kwargs)
        self.assertEqual(result.returncode, code, f"heft {args}\n{result.stdout}\n{result.stderr}")
        if code not in (0, 1):
            self.assertTrue(result.stderr.startswith("heft"), result.stderr)
        return result

    def json(self, *args, code=0, **kwargs):
        return json.loads(self.heft(*args, "--json", code=code, **kwargs).stdout)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names, dtypes and shapes of what check.py --keep DIR has made, as JSON for tests/golden/megatron.

Run: facts.py DIR OUT FAMILY NUMBER, where NUMBER is that of the layout (tree-N, hf-N).
"""
import json
import os
import struct
import sys
from importlib.metadata import version

import check
import models


def header_of(path):
    with open(path, "rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
    header.pop("__metadata__", None)
    return {name: [t["dtype"], t["shape"]] for name, t in sorted(header.items())}


def lines(tensors, indent):
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(what)}" for name, what in tensors.items())


def main():
    folder, out, family, number = sys.argv[1:5]
    layout, extra = ([({}, {})] + check.FAMILIES[family][1])[int(number)]
    layout = dict(layout, vocab_multiple=check.VOCAB_MULTIPLE)
    short = {"num_layers_in_first_pipeline_stage": "first", "num_layers_in_last_pipeline_stage": "last"}
    layout.update({short.get(key, "counted"): value for key, value in extra.items()})
    tree = os.path.join(folder, family, f"tree-{number}")
    ranks = {}
    for name in sorted(os.listdir(tree)):
        if name.startswith("rank-"):
            ranks[name[5:]] = header_of(os.path.join(tree, name, "model.safetensors"))
    hf = header_of(os.path.join(folder, family, f"hf-{number}", "model.safetensors"))
    head = {"megatron_core": version("megatron-core"), "transformers": version("transformers"),
            "torch": version("torch"), "spec": "local", "layout": layout, "config": models.FAMILIES[family]}
    text = "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
    text += ',\n"ranks": {\n' + ",\n".join(
        f'"{n}": {{\n{lines(tensors, "  ")}}}' for n, tensors in ranks.items()) + "},\n"
    text += '"hf": {\n' + lines(hf, "  ") + "}}\n"
    json.loads(text)
    with open(out, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()

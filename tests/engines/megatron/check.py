#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core models through the megatron-to-hf recipes, judged by Megatron-Core and transformers themselves.

For each family a small model is made on the CPU and its logits are kept. Then, for each parallel layout, Megatron-Core's
own distributed checkpoint re-shards the same weights over real processes (gloo), each rank writes a folder, and
`heft convert` makes a Hugging Face checkpoint of the folders. It must
  - load into the transformers model with no key missing and none left over,
  - give the logits that the Megatron model gave (f32),
  - be the same bytes whatever the layout was,
  - and, run backwards, be the folders again, bit for bit.

Needs: megatron-core, transformers, torch, safetensors, psutil. Run: check.py --heft build/release/src/cli/heft [FAMILY ...]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ONE = dict(tp=1, pp=1, vpp=1, ep=1, etp=1, dp=1)
UNEVEN = {"num_layers_in_first_pipeline_stage": 1}
LAST = {"num_layers_in_last_pipeline_stage": 2}
COUNTED = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
LETS = {"num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
        "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers"}

# (layout, what Megatron is told besides)
DENSE = [(dict(tp=2), {}), (dict(pp=2), {}), (dict(tp=2, pp=2), {}), (dict(pp=2, vpp=2), {}), (dict(tp=2, dp=2), {}),
         (dict(pp=2), UNEVEN), (dict(tp=4), {}), (dict(pp=3), LAST), (dict(pp=3), COUNTED)]
MOE = [(dict(tp=2), {}), (dict(dp=2, ep=2), {}), (dict(tp=2, ep=2, etp=1), {}), (dict(tp=2, dp=2, ep=2), {}),
       (dict(pp=2, dp=2, ep=2), {}), (dict(pp=2, vpp=2), {}), (dict(tp=2, etp=1, dp=2, ep=4), {}), (dict(dp=2, etp=2), {})]
FAMILIES = {
    "llama3": ("megatron-to-hf-dense", DENSE), "llama3_tied": ("megatron-to-hf-dense", DENSE[:4]),
    "qwen2": ("megatron-to-hf-dense", DENSE[:3]), "qwen3": ("megatron-to-hf-dense", DENSE),
    "qwen3_moe": ("megatron-to-hf-qwen3-moe", MOE), "deepseek_v3": ("megatron-to-hf-deepseek-v3", MOE),
}
VOCAB_MULTIPLE = 8


def text_of(layout, extra):
    parts = [f"{k}={v}" for k, v in layout.items() if v != 1]
    return " ".join(parts + sorted(extra)) or "one rank"


def run_ranks(task, port):
    layout = task["layout"]
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    children = [subprocess.Popen(
        [sys.executable, os.path.join(HERE, "worker.py"), json.dumps(dict(task, rank=rank, port=port))], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(layout["tp"] * layout["pp"] * layout["dp"])]
    outputs = [child.communicate(timeout=600)[0] for child in children]
    for child, output in zip(children, outputs):
        if child.returncode != 0:
            sys.exit(f"{task['family']} {text_of(layout, task['extra'])}: a rank failed\n{output[-3000:]}")


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def lets_of(recipe, layout, extra):
    keys = ("tp", "pp", "vpp", "dp") if recipe.endswith("dense") else tuple(layout)
    lets = {key: layout[key] for key in keys}
    lets.update({LETS.get(key, key): int(value) for key, value in extra.items()})
    lets.update(vocab_multiple=VOCAB_MULTIPLE, wire="source")
    return [part for key, value in lets.items() for part in ("--let", f"{key}={value}")]


def heft(args, *command):
    result = subprocess.run([args.heft, *command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"heft {' '.join(command)}\n{result.stdout}{result.stderr}")


def tensors(folder):
    from safetensors.torch import load_file
    out = {}
    for root, _, names in os.walk(folder):
        rank = os.path.basename(root)
        for name in names:
            if name.endswith(".safetensors"):
                prefix = f"{rank}." if rank.startswith("rank-") else ""
                out.update({prefix + k: v for k, v in load_file(os.path.join(root, name)).items()})
    return out


def same(a, b):
    """Names, dtypes, shapes and bits."""
    import torch
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape
        and torch.equal(a[k].contiguous().view(torch.uint8), b[k].contiguous().view(torch.uint8)) for k in a)


def logits_of(folder, tokens):
    import torch
    import transformers
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    extra = [k for k in info["unexpected_keys"] if not is_mtp(k, model.config)]
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if set(info["missing_keys"]) - tied or extra or info["mismatched_keys"]:
        sys.exit(f"{folder}: {info}")
    with torch.no_grad():
        return model.eval()(tokens).logits


def is_mtp(key, config):
    return key.startswith(f"model.layers.{config.num_hidden_layers}.") and getattr(config, "num_nextn_predict_layers", 0)


def check_family(args, family, work):
    import torch
    sys.path.insert(0, HERE)
    import models
    recipe, layouts = FAMILIES[family]
    recipe_lets = lambda layout, extra: lets_of(recipe, layout, extra)  # noqa: E731
    base, first = os.path.join(work, family), None
    dist = os.path.join(base, "dist")
    for number, (layout, extra) in enumerate([(ONE, {})] + layouts):
        layout = dict(ONE, **layout)
        if "etp" not in (layouts[number - 1][0] if number else {}):
            layout["etp"] = layout["tp"]
        tree, out = os.path.join(base, f"tree-{number}"), os.path.join(base, f"hf-{number}")
        run_ranks(dict(family=family, layout=layout, extra=extra, dist=dist, out=tree, make=number == 0,
                       vocab_multiple=VOCAB_MULTIPLE), free_port())
        heft(args, "convert", tree, out, "--recipe", recipe, *recipe_lets(layout, extra))
        got = tensors(out)
        if number == 0:
            first = got
            with open(os.path.join(out, "config.json"), "w") as file:
                file.write(models.hf_config(models.FAMILIES[family]).to_json_string())
            kept = torch.load(os.path.join(tree, "logits.pt"))
            found = logits_of(out, kept["tokens"])
            worst = (found - kept["logits"]).abs().max().item()
            scale = kept["logits"].abs().max().item()
            if worst > 1e-4 * scale:
                sys.exit(f"{family}: logits differ by {worst} of {scale}")
            print(f"{family}: {len(got)} tensors, logits up to {scale:.3g} differ by {worst:.2g}", flush=True)
        elif not same(first, got):
            bad = [k for k in first if k not in got or not torch.equal(first[k], got[k])]
            sys.exit(f"{family} {text_of(layout, extra)}: other bytes: {bad[:4]} .. {set(got) - set(first)}")
        back = ""
        if models.FAMILIES[family]["vocab_size"] == models.padded_vocab(models.FAMILIES[family], layout, VOCAB_MULTIPLE):
            again = os.path.join(base, f"back-{number}")
            heft(args, "convert", out, again, "--reverse", "--like", tree, "--recipe", recipe,
                 *recipe_lets(layout, extra))
            if not same(tensors(tree), tensors(again)):
                sys.exit(f"{family} {text_of(layout, extra)}: backwards it is another tree")
            back = ", and back"
        print(f"  {text_of(layout, extra)}: same bytes{back}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heft", default="heft")
    parser.add_argument("--keep", help="a folder for what is made; default: a temporary one")
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for family in args.families:
            check_family(args, family, args.keep or temporary)


if __name__ == "__main__":
    main()

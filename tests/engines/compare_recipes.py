# SPDX-License-Identifier: Apache-2.0
"""The shipped hf-to-engine recipes against the engine's own loader, element by element.

For every family and layout: a tiny checkpoint in the Hugging Face form, every tensor with values of
its own; `heft convert` on one side, the engine's model of each rank with its load_weights on the
other. Both must have the same parameters, and the same bytes in them. Needs vLLM or SGLang,
PyTorch, safetensors and the package heft.

    compare_recipes.py ENGINE [--heft COMMAND] [--family NAME]... [--record FOLDER]

--record keeps, for each family, the checkpoint's names and a digest of every rank that agreed, with
which tests/e2e/cli_engine_golden.py compares where there is no engine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from families import EXPERTS, FAMILIES, LINEAR_ATTENTION, Family  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from heft import engines  # noqa: E402

DEFAULT = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "src" / "cli" / "heft"
QWEN35_MOE = Family(
    "qwen3.5-moe",
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    {**EXPERTS, **LINEAR_ATTENTION, "num_experts": 8, "shared_expert_intermediate_size": 128},
    float32=("linear_attn.A_log", "linear_attn.norm.weight"),
    extra=(("full_attention_interval", 4),),
)


class Row(NamedTuple):
    """One family on one engine: recipe and lets, whether experts may be dealt to ranks, how many ranks
    there may be. published: experts in one tensor, names inside the model with vision.
    """

    family: Family
    recipe: str
    lets: tuple[str, ...] = ()
    with_ep: bool = False
    most: int = 8
    published: bool = False


ROWS = {
    "vllm": (
        Row(FAMILIES["llama"], "hf-to-engine-dense"),
        Row(FAMILIES["qwen2"], "hf-to-engine-dense", ("head=false",)),
        Row(FAMILIES["qwen3"], "hf-to-engine-dense"),
        Row(FAMILIES["qwen3-moe"], "hf-to-engine-qwen3-moe", (), True),
        Row(FAMILIES["deepseek-v3"], "hf-to-engine-deepseek-v3", (), True),
        Row(FAMILIES["gemma3"], "hf-to-engine-gemma3"),
        Row(FAMILIES["gpt-oss"], "hf-to-engine-gpt-oss", (), True, 4),
        Row(FAMILIES["qwen3.5"], "hf-to-engine-qwen3.5", most=4),
        Row(QWEN35_MOE, "hf-to-engine-qwen3.5", (), True, 4),
        Row(QWEN35_MOE, "hf-to-engine-qwen3.5", (), True, 4, True),
    ),
    "sglang": (
        # more ranks than key/value heads: on a CPU, and there alone, SGLang pads them
        Row(FAMILIES["llama"], "hf-to-engine-dense", most=4),
        Row(FAMILIES["qwen2"], "hf-to-engine-dense", ("head=false",), most=2),
        Row(FAMILIES["qwen3"], "hf-to-engine-dense", most=4),
        Row(FAMILIES["qwen3-moe"], "hf-to-engine-qwen3-moe", ("engine=sglang",), most=4),
        Row(FAMILIES["deepseek-v3"], "hf-to-engine-deepseek-v3", ("engine=sglang",), most=4),
        Row(FAMILIES["gemma3"], "hf-to-engine-gemma3", ("engine=sglang",), most=4),
        Row(FAMILIES["qwen3.5"], "hf-to-engine-qwen3.5", ("engine=sglang",), most=4),
        Row(QWEN35_MOE, "hf-to-engine-qwen3.5", ("engine=sglang",), most=4),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=sorted(ROWS))
    parser.add_argument("--heft", default=str(DEFAULT))
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    try:
        engine = engines.get(args.engine)
    except ImportError as error:
        print(f"SKIPPED {args.engine}: not installed here ({error}); no recipe was compared")
        return 77
    failed = 0
    for row in ROWS[args.engine]:
        if args.family and row.family.name not in args.family:
            continue
        version = f"{args.engine} {engine.version()}"
        record: dict[str, Any] = {"engine": version, "recipe": row.recipe, "cases": []}
        plain = [(tp, 1) for tp in (1, 2, 4, 8) if tp <= row.most]
        for tp, ep in (*plain, *(((4, 4),) if row.with_ep else ())):
            text = f"{row.family.name:14} {row.recipe:26} tp {tp} ep {ep}: "
            try:
                print(text + compare(args.heft, engine, row, tp, ep, record), flush=True)
            except (AssertionError, subprocess.CalledProcessError) as error:
                failed += 1
                print(f"{text}FAILED: {getattr(error, 'stderr', None) or error}", flush=True)
        if args.record:
            stem = f"{args.engine}-{row.family.name}{'-published' if row.published else ''}"
            (args.record / f"{stem}.json").write_text(as_text(record))
    print(f"{args.engine} {engine.version()}: {failed} failed")
    return 1 if failed else 0


def as_text(record: dict[str, Any]) -> str:
    """JSON with a line for each tensor and case."""
    sources, cases = record.pop("sources"), record.pop("cases")
    named = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sources.items())
    listed = ",\n  ".join(json.dumps(case) for case in cases)
    head = "".join(f'"{key}": {json.dumps(value)},\n ' for key, value in record.items())
    return f'{{\n {head}"sources": {{\n  {named}\n }},\n "cases": [\n  {listed}\n ]\n}}\n'


def compare(
    heft: str, engine: engines.Engine, row: Row, tp: int, ep: int, record: dict[str, Any]
) -> str:
    """What was compared; AssertionError says what differs."""
    names = dict(row.family.names())
    metas = as_published(names) if row.published else names
    weights = {name: values(seed, metas[name]) for seed, name in enumerate(sorted(metas))}
    words = [f"tp={tp}", "wire=bf16", *row.lets, *((f"ep={ep}",) if ep > 1 else ())]
    n_params = n_elems = 0
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder) / "model", pathlib.Path(folder) / "out"
        record["config"] = write_model(row, weights, source)
        record["sources"] = {name: described(weights[name]) for name in sorted(weights)}
        convert(heft, row.recipe, words, source, out)
        for rank in range(tp):
            got = load_file(next((out / f"rank-{rank}" if tp > 1 else out).glob("*.safetensors")))
            want = loaded(engine, row, weights, tp, rank, ep)
            for name, ours, theirs in pairs(got, want):
                assert_same(f"rank {rank} {name}", ours, theirs)
                n_params, n_elems = n_params + 1, n_elems + theirs.numel()
            digests.append(digest(got))
    record["cases"].append({"lets": words, "ranks": digests})
    return f"{n_params} parameters, {n_elems} elements, 0 differ"


def described(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), *tensor.shape]


def write_model(row: Row, weights: dict[str, torch.Tensor], folder: pathlib.Path) -> dict[str, Any]:
    """The checkpoint; its config.json, with the keys that transformers drops."""
    row.family.config().save_pretrained(folder)
    text = {**json.loads((folder / "config.json").read_text()), **dict(row.family.extra)}
    (folder / "config.json").write_text(json.dumps(text))
    save_file(weights, folder / "model.safetensors")
    return text


def convert(
    heft: str, recipe: str, lets: list[str], source: pathlib.Path, out: pathlib.Path
) -> None:
    words = [word for let in lets for word in ("--let", let)]
    command = [heft, "convert", str(source), str(out), "--recipe", recipe, *words]
    subprocess.run(command, check=True, capture_output=True, text=True)


def as_published(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts stacked, gate over up, as Qwen3.5's checkpoints have them."""
    out, experts = {}, {}
    for name, tensor in weights.items():
        if name.startswith("model."):
            name = name.replace("model.", "model.language_model.", 1)
        if ".mlp.experts." in name:
            layer, expert = name.split(".experts.")
            number, leaf, _ = expert.split(".")
            experts.setdefault(layer, {})[leaf, int(number)] = tensor
        else:
            out[name] = tensor
    for layer, parts in experts.items():
        numbers = range(len(parts) // 3)
        both = [torch.cat([parts["gate_proj", e], parts["up_proj", e]]) for e in numbers]
        out[f"{layer}.experts.gate_up_proj"] = torch.stack(both)
        downs = [parts["down_proj", e] for e in range(len(both))]
        out[f"{layer}.experts.down_proj"] = torch.stack(downs)
    return out


def values(seed: int, meta: torch.Tensor) -> torch.Tensor:
    """Bit patterns of bf16 or f32 that are finite and not zero, other ones in every tensor."""
    bits = (torch.arange(meta.numel()) * 7 + seed * 1009) % 0x7F00 + 1
    if meta.dtype == torch.float32:
        return (bits << 16).to(torch.int32).view(torch.float32).reshape(meta.shape)
    return bits.to(torch.int16).view(meta.dtype).reshape(meta.shape)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over name, shape and bytes of every tensor, by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {list(tensor.shape)} ".encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def loaded(
    engine: engines.Engine, row: Row, weights: dict[str, torch.Tensor], tp: int, rank: int, ep: int
) -> dict[str, torch.Tensor]:
    """The parameters that the engine's loader writes; what it leaves alone keeps a mark."""
    model: Any = engine.build(row.family.config(), tp=tp, rank=rank, expert_parallel=ep > 1)
    params = {name: param.data for name, param in model.named_parameters()}
    for param in params.values():
        param.fill_(MARK)
    engine.load(model, ((name, tensor.clone()) for name, tensor in weights.items()))
    return {name: param for name, param in params.items() if not bool((param == MARK).all())}


MARK = 77.0


def pairs(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    assert sorted(got) == sorted(want), f"names differ: {sorted(set(got) ^ set(want))[:6]}"
    return ((name, got[name], want[name]) for name in sorted(got))


def assert_same(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype} here, {theirs.dtype} in the engine"
    assert ours.shape == theirs.shape, f"{what}: {list(ours.shape)}, engine {list(theirs.shape)}"
    # rows of the vocabulary that only pad are nobody's: the engine leaves what it has allocated
    differ = (ours != theirs) & (theirs != MARK)
    if bool(differ.any()):
        index = [int(i) for i in differ.nonzero()[0]]
        at = tuple(index)
        raise AssertionError(f"{what} {index}: {ours[at]} here, {theirs[at]} in the engine")


if __name__ == "__main__":
    sys.exit(main())

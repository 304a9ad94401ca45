# SPDX-License-Identifier: Apache-2.0
"""Trace a real loader at a published size, on the meta device: ENGINE MODEL [--tp N].

Prints names, bytes of the checkpoint, seconds to build, trace and prove one rank, and the most
memory that the process had; nothing of the model is in memory.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import time
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

from families import DEEPSEEK, EXPERTS, Family  # noqa: E402

from heft import engines  # noqa: E402
from heft.trace import trace  # noqa: E402

MODELS = {
    "qwen3-235b-a22b": Family(
        "qwen3-235b-a22b",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {
            **EXPERTS,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_hidden_layers": 94,
            "vocab_size": 151936,
        },
    ),
    "deepseek-v3": Family(
        "deepseek-v3",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {
            **DEEPSEEK,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "head_dim": 64,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "first_k_dense_replace": 3,
            "num_hidden_layers": 61,
            "vocab_size": 129280,
        },
        ("e_score_correction_bias",),
    ),
}


def main() -> None:
    args = _arguments()
    logging.disable(logging.WARNING)
    engine, family = engines.get(args.engine), MODELS[args.model]
    names = family.names()
    if args.engine == "transformers":  # it does not know the draft's layers
        draft = f"model.layers.{family.config().num_hidden_layers}."
        names = {n: t for n, t in names.items() if not n.startswith(draft)}
    n_bytes = sum(t.numel() * t.element_size() for t in names.values())
    before = _peak_mib()
    started = time.monotonic()
    model = engine.build(family.config(), tp=args.tp, rank=args.tp - 1, device="meta")
    built = time.monotonic()
    traced = trace(model, names, load=lambda w: engine.load(model, w), rank=args.tp - 1)
    done = time.monotonic()
    plan = traced.plan(engine.exceptions(model), partial=args.tp > 1)
    proved = time.monotonic()
    print(
        f"{args.engine} {engine.version()}, {args.model}, rank {args.tp - 1} of {args.tp}: "
        f"{len(names)} names, {n_bytes / 2**30:.0f} GiB; built in {built - started:.1f} s, "
        f"traced in {done - built:.1f} s, proved in {proved - done:.1f} s: {plan.n_pieces} pieces, "
        f"{len(plan.groups)} groups, {len(traced.opaque)} opaque; peak {_peak_mib():.0f} MiB "
        f"({before:.0f} before the model)"
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=engines.NAMES)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--tp", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Rounds into an engine's real models: every family x every layout, the last rank of each.

A model of the engine is registered by the trace of its own loader, two versions are pushed into it,
and each parameter that the round writes must be what the loader makes of the same tensors in a
fresh model; once as it is loaded, and once packed by the engine for its kernels. Exit 1 if a row
fails.

run_live.py ENGINE [--family NAME]...
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HEFT_LOG", "error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from families import FAMILIES, Family  # noqa: E402
from known import REFUSED  # noqa: E402
from engine_loaders import Layout, _build, assert_equal, layouts_of, random_weights  # noqa: E402

import heft  # noqa: E402
from heft import LiveModel, Member, ModulePublisher, engines  # noqa: E402
from heft.trace import trace  # noqa: E402
from heft.trace.model import places_of  # noqa: E402


def deliver(
    engine: engines.Engine, family: Family, layout: Layout, packed: bool
) -> tuple[int, int]:
    """Parameters and elements that agreed, over two versions; packed: as kernels have them."""
    rank = layout.tp - 1
    names = family.names()
    if engine is engines.get("transformers"):  # it does not know the draft's layers
        draft = f"model.layers.{family.config().num_hidden_layers}."
        names = {name: meta for name, meta in names.items() if not name.startswith(draft)}
    model = _build(engine, family, layout, rank)
    load = lambda weights: engine.load(model, weights)  # noqa: E731
    traced = trace(model, names, load=load, rank=rank)
    exceptions = engine.exceptions(model)
    contract = traced.contract(exceptions, partial=layout.tp > 1)
    plan = traced.plan(exceptions, partial=layout.tp > 1)
    state = {name: torch.empty_like(meta, device="cpu") for name, meta in names.items()}
    params = [info.name for i, info in enumerate(plan.params()) if plan.pieces(param=i)]
    n_elems = 0
    hooks = {"restore": "keep", "post_process": engine.post} if packed else {}
    with (
        heft.Coordinator() as coordinator,
        LiveModel(
            model, contract, url=coordinator.url, member=Member(rank=rank), load=load, **hooks
        ) as live,
        ModulePublisher(state, url=coordinator.url) as publisher,
    ):
        for version in (1, 2):
            for name, tensor in random_weights(names, seed=version).items():
                state[name].copy_(tensor)
            publisher.push(version)
            assert live.version == version
            fresh = _build(engine, family, layout, rank)
            engine.load(fresh, ((name, tensor.clone()) for name, tensor in state.items()))
            if packed:
                engine.post(fresh)
            wanted = {place.name: place.tensor.detach() for place in places_of(fresh)}
            found = {place.name: place.tensor.detach() for place in places_of(model)}
            for name in [name for name in params if name in wanted]:
                assert_equal(name, wanted[name], found[name])
                n_elems += wanted[name].numel()
    return len(params), n_elems


def _why_not_packed(engine_name: str, family: Family) -> str:
    """Why the engine cannot repack the family's weights on this machine; "": it can."""
    if engine_name == "sglang" and family.mxfp4:
        return "SGLang repacks mxfp4 experts with triton_kernels, on GPUs alone"
    needs_amx = {"sglang": family.fp8, "vllm": family.mxfp4}
    if needs_amx.get(engine_name, False) and not torch.cpu._is_amx_tile_supported():
        return "its kernels are for CPUs with AMX, this one has none"
    if engine_name == "vllm" and family.fp8 and not hasattr(torch.ops._C, "convert_weight_packed"):
        return "vLLM is built without its fp8 kernels for a CPU with AVX2 alone"
    return ""


def _row(engine: engines.Engine, family: Family, layout: Layout, packed: bool) -> bool:
    row = f"{family.name}, {layout}{', packed' if packed else ''}"
    try:
        n_params, n_elems = deliver(engine, family, layout, packed)
    except Exception as error:
        text = " ".join(f"{getattr(error, 'report', None) or error}".split())
        print(f"FAILED {row}: {type(error).__name__}: {text[:500]}", flush=True)
        return False
    print(f"ok     {row}: {n_params} parameters, {n_elems} elements", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=engines.NAMES)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    try:
        engine = engines.get(args.engine)
    except ImportError as error:
        print(
            f"SKIPPED {args.engine}: not installed here ({error}); no model of it was delivered to"
        )
        return 77
    n_rows, n_failed, n_skipped, started = 0, 0, 0, time.monotonic()
    for family in [FAMILIES[name] for name in args.family or FAMILIES]:
        for layout in layouts_of(args.engine, family):
            if (args.engine, family.name, layout) in REFUSED:
                continue  # run_loaders.py has these, and why
            for packed in (False, True):
                why_not = _why_not_packed(args.engine, family) if packed else ""
                if why_not:
                    print(f"SKIPPED {family.name}, {layout}, packed: {why_not}")
                    n_skipped += 1
                    continue
                n_rows += 1
                n_failed += not _row(engine, family, layout, packed)
    seconds = time.monotonic() - started
    what = f"{args.engine} {engine.version()}: rounds"
    print(f"== {what}, {n_rows} rows, {n_failed} failed, {n_skipped} skipped, {seconds:.0f} s")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())

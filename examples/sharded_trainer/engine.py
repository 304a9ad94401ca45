# SPDX-License-Identifier: Apache-2.0
"""One rank of an engine whose weights change while it serves: engine.py RANK RANKS URL

Its own loader says how checkpoint tensors become its parameters. It is traced once, over tensors
without storage; from then on the library writes the parameters, whoever holds the tensors.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import torch
from engine_model import EngineModel
from trainer_model import SIZES, TrainerModel

import heft
from heft.torch import manifest_of
from heft.trace import trace


def main() -> None:
    args = _arguments()
    with torch.device("meta"):
        sent = manifest_of(TrainerModel(**SIZES))  # names, dtypes, shapes of the whole model
    model = EngineModel(**SIZES, rank=args.rank, tp=args.ranks)
    contract = trace(model, sent, rank=args.rank).contract(partial=True)  # of this rank alone
    member = heft.Member(rank=args.rank)
    with heft.LiveModel(model, contract, url=args.url, member=member) as live:
        while live.version < args.until:
            time.sleep(0.05)
        with live.gate.serving(timeout=60) as version:  # around every request
            print(f"engine rank {args.rank} serves version {version}", flush=True)
            if args.compare is not None:
                _compare(model, args, version)


def _compare(model: EngineModel, args: argparse.Namespace, version: int) -> None:
    """With what the loader itself makes of the trainer's weights, gathered."""
    path, deadline = args.compare / f"{version}.pt", time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} is not there")
        time.sleep(0.05)
    fresh = EngineModel(**SIZES, rank=args.rank, tp=args.ranks)
    fresh.load_weights(torch.load(path).items())
    wanted = dict(fresh.named_parameters())
    differing = [n for n, p in model.named_parameters() if not torch.equal(p, wanted[n])]
    if differing:
        raise SystemExit(f"engine rank {args.rank}, version {version}: {differing} differ")
    print(f"engine rank {args.rank}: {len(wanted)} parameters are what its loader makes", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("url")
    parser.add_argument("--until", type=int, default=2)
    parser.add_argument("--compare", type=pathlib.Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

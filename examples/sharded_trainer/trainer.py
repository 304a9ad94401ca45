# SPDX-License-Identifier: Apache-2.0
"""A sharded trainer that serves its weights: torchrun --nproc-per-node 4 trainer.py URL

Each process publishes what it holds, straight to the engine ranks that need it. Nothing is
gathered. heft is two lines here, the same on every rank: a publisher, and push().
"""

from __future__ import annotations

import argparse
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from trainer_model import SIZES, TrainerModel, shard

import heft


def main() -> None:
    args = _arguments()
    dist.init_process_group("gloo")
    n_ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n_ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = shard(TrainerModel(**SIZES), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    with heft.ModulePublisher(model, url=args.url, mesh=mesh) as publisher:
        heft.client.await_destinations(args.engines, args.url)
        for version in range(1, args.versions + 1):
            loss = _step(model, optimizer, seed=1000 * version + mesh.get_local_rank("dp"))
            result = publisher.push(version)
            if dist.get_rank() == 0:
                print(f"version {version}: loss {loss:.3f}, {result.n_bytes} bytes", flush=True)
            if args.save is not None:
                _save(model, args.save / f"{version}.pt")
    dist.destroy_process_group()


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    tokens = torch.randint(SIZES["vocab"], (4, 9), generator=torch.Generator().manual_seed(seed))
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _save(model: torch.nn.Module, path: pathlib.Path) -> None:
    """The whole model, gathered: for who wants to compare."""
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        torch.save(whole, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--save", type=pathlib.Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Ranks of a trainer as processes of their own, joined by gloo over the loopback interface."""

from __future__ import annotations

import multiprocessing as mp
import os
import pathlib
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

DEADLINE_S = 240


def _run(
    rank: int, n_ranks: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch.distributed as dist

    out = pathlib.Path(folder, f"result-{rank}")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=n_ranks,
            timeout=timedelta(seconds=DEADLINE_S),
        )
        found: tuple[str, Any] = ("returned", function(rank, *args))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        found = ("raised", traceback.format_exc())
    out.with_suffix(".part").write_bytes(pickle.dumps(found))
    out.with_suffix(".part").rename(out)


def run_ranks(
    n_ranks: int, folder: pathlib.Path, function: Callable[..., Any], *args: Any
) -> list[Any]:
    """What function(rank, *args) returns on each of n_ranks processes; an error of one is raised.

    The function is a test module's own, found again by name.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "heft.torch"])
    processes = [
        context.Process(target=_run, args=(rank, n_ranks, str(folder), function, args))
        for rank in range(n_ranks)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(DEADLINE_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    found = []
    for rank in range(n_ranks):
        path = pathlib.Path(folder, f"result-{rank}")
        assert path.exists(), f"rank {rank} ended without a result"
        kind, value = pickle.loads(path.read_bytes())
        assert kind == "returned", f"rank {rank}:\n{value}"
        found.append(value)
    return found

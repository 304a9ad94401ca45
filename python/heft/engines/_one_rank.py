# SPDX-License-Identifier: Apache-2.0
"""One process that is rank r of t: process groups in which nobody else has to be there.

Engines ask their process groups for rank and size when they build a model, and a loader cuts its
slice by them. PyTorch's `fake` backend answers such questions and lets collectives return at once
with what was put in; that is enough for loading, and it is wrong for computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def start(tp: int, rank: int) -> None:
    """The default process group, as rank `rank` of `tp`; an earlier one is taken down."""
    if not 0 <= rank < tp:
        raise ValueError(f"rank {rank} of {tp}: there is no such rank")
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp)


@contextmanager
def subgroups_without_peers() -> Iterator[None]:
    """Groups that an engine makes meanwhile are of the `fake` backend, whatever it asks for."""
    original = dist.new_group

    def new_group(ranks: Any = None, *args: Any, **options: Any) -> Any:
        return original(ranks, backend="fake")

    dist.new_group = new_group
    try:
        yield
    finally:
        dist.new_group = original


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of a module or class set for a while."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)

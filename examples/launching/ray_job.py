# SPDX-License-Identifier: Apache-2.0
"""The same under Ray: actors are processes anywhere, so each gets the coordinator's address and its place as arguments.

ray_job.py URL. Weights do not pass through Ray's object store.
"""

from __future__ import annotations

import os
import pathlib
import sys

import ray

HERE = str(pathlib.Path(__file__).resolve().parent)


@ray.remote(num_cpus=0)
class Process:
    """Runs one of the stand-ins, as rank `rank` of `size`."""

    def run(self, script: str, rank: int, size: int, url: str, *arguments: str) -> str:
        import subprocess

        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "HEFT_URL": url}
        command = [sys.executable, f"{HERE}/{script}", *arguments]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    url = sys.argv[1]
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    engines = [Process.remote() for _ in range(2)]
    ends = [engine.run.remote("engine.py", rank, 2, url, "3") for rank, engine in enumerate(engines)]
    trainers = [Process.remote() for _ in range(2)]
    ends += [trainer.run.remote("trainer.py", rank, 2, url, "3", "2") for rank, trainer in enumerate(trainers)]
    for text in ray.get(ends):
        print(text, end="")


main()

# SPDX-License-Identifier: Apache-2.0
"""A trainer of four processes and an engine of two: run.py [--versions N]

The coordinator is in this process. In the end each engine rank compares what it serves with what
its own loader makes of the trainer's weights, gathered.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import heft

HERE = pathlib.Path(__file__).parent
TP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=240)
    args = parser.parse_args()
    n = str(args.versions)
    with heft.Coordinator() as coordinator, tempfile.TemporaryDirectory() as folder:
        url = coordinator.url
        engine = [sys.executable, HERE / "engine.py"]
        options = ["--until", n, "--compare", folder]
        commands = [[*engine, str(rank), str(TP), url, *options] for rank in range(TP)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", "4"]
        trainer = [*torchrun, HERE / "trainer.py", url, "--versions", n, "--save", folder]
        raise SystemExit(_run([trainer, *commands], args.timeout))


def _run(commands: list[list[object]], timeout_s: float) -> int:
    """The first status that is not 0, or 0 when all have ended."""
    processes = [subprocess.Popen([str(word) for word in command]) for command in commands]
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            ended = [process.poll() for process in processes]
            if any(ended) or None not in ended:
                return next((abs(status) for status in ended if status), 0)
            time.sleep(0.05)
        raise SystemExit(f"not finished after {timeout_s} s")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    main()

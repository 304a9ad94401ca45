# SPDX-License-Identifier: Apache-2.0
"""examples/sharded_trainer: four trainer processes, two engine processes, nothing gathered."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "sharded_trainer" / "run.py"


@pytest.mark.timeout(860)
def test_engines_serve_what_their_loader_makes_of_gathered_weights() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), "--versions", "2", "--timeout", "800"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for rank in range(2):
        assert f"engine rank {rank} serves version 2" in run.stdout
        assert f"engine rank {rank}: 14 parameters are what its loader makes" in run.stdout
    assert "version 1: loss" in run.stdout
    assert "version 2: loss" in run.stdout

# SPDX-License-Identifier: Apache-2.0
"""The guide's code runs as it stands."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import heft

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide" / "python.md"


def test_the_code_of_the_guide_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert len(blocks) >= 3
    code = "\n".join(blocks)
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert said.returncode == 0, said.stderr
    assert "proven: 0 errors" in said.stdout
    assert "rank 1 serves version 1" in said.stdout
    assert "recipe:5" in said.stdout or '"up"' in said.stdout


def test_the_whole_example_of_tracing_runs(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    text = (GUIDE.parent / "tracing.md").read_text()
    blocks = re.findall(r"^```python\n(import pathlib\n.*?)^```", text, re.M | re.S)
    assert len(blocks) == 1
    command = [sys.executable, "-c", blocks[0]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "proven: 0 errors" in said.stdout
    recorded = heft.Contract.from_json((tmp_path / "contract.json").read_text())
    assert recorded.is_traced and recorded.n_ranks == 1


def test_the_example_of_experts_that_move_runs() -> None:
    pytest.importorskip("torch")
    text = (GUIDE.parent / "expert-placement.md").read_text()
    blocks = re.findall(r"^```python\n(import heft\n.*?)^```", text, re.M | re.S)
    assert len(blocks) == 1
    command = [sys.executable, "-c", blocks[0]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [
        "version 1 [3.0, 1.0, 2.0, 3.0, 0.0, 3.0]",
        "version 2 [13.0, 1.0, 2.0, 13.0, 0.0, 13.0]",
    ]


def test_the_first_sharded_trainer_runs(tmp_path: pathlib.Path) -> None:
    """With two ranks in the place of four, and the ways that the guide names."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    text = (GUIDE.parent / "sharded-trainers.md").read_text()
    blocks = re.findall(r"^```python\n(import sys\n.*?)^```", text, re.M | re.S)
    assert len(blocks) == 1
    (tmp_path / "trainer.py").write_text(blocks[0])
    model = tmp_path / "MODEL"
    with heft.Coordinator() as coordinator:
        environment = {**os.environ, "HEFT_URL": coordinator.url}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        serve = [os.environ["HEFT_BIN"], "serve", "--recipe", "hf-to-engine-dense"]
        serve += ["--let", "tp=2", "--model", str(model), "--rank"]
        trainer = subprocess.Popen(
            [*torchrun, "--nproc-per-node", "2", "trainer.py", "MODEL"],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        engines: list[subprocess.Popen[bytes]] = []
        try:
            end = time.monotonic() + 200
            while not list(tmp_path.glob("MODEL/*.safetensors")) and trainer.poll() is None:
                assert time.monotonic() < end
            engines += [subprocess.Popen([*serve, rank], env=environment) for rank in ("0", "1")]
            said, _ = trainer.communicate(timeout=200)
            assert trainer.returncode == 0, said
            assert re.findall(r"^version (\d) committed, \d+ bytes", said, re.M) == ["1", "2", "3"]
        finally:
            for process in (trainer, *engines):
                process.kill()
                process.wait()


def test_every_public_name_that_the_guide_lists_is_there() -> None:
    table = GUIDE.read_text().split("## What there is")[1].split("## Tensors")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`(?:heft\.)?(\w+)`", cell)]
    missing = [
        name
        for name in names  # of the package, or modules of it that are imported by themselves
        if not hasattr(heft, name) and importlib.util.find_spec(f"heft.{name}") is None
    ]
    assert len(names) > 30
    assert missing == []

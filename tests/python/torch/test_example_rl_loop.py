# SPDX-License-Identifier: Apache-2.0
"""examples/rl_loop with transformers, on a model small enough for a test."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

transformers = pytest.importorskip("transformers")
import torch  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "rl_loop" / "run.py"


@pytest.mark.timeout(280)
def test_what_was_pushed_is_what_a_freshly_loaded_engine_says(tmp_path: pathlib.Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=30000,
        tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(5)
    transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(
        tmp_path
    )
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path), "--rounds", "1", "--lr", "0.05"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"version 1: loss .* bytes in .* scores differ", run.stdout), run.stdout
    assert "a freshly loaded transformers engine says the same 8 tokens" in run.stdout

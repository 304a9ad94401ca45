# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share."""

from __future__ import annotations

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def golden() -> pathlib.Path:
    return ROOT / "tests" / "golden"

# SPDX-License-Identifier: Apache-2.0
"""The package is typed, and its written stubs say what is there."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import heft
from heft import errors

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_stub_of_errors_has_every_exception() -> None:
    stub = ast.parse((ROOT / "python" / "heft" / "errors.pyi").read_text())
    classes = {node.name: node.bases for node in stub.body if isinstance(node, ast.ClassDef)}
    written = {name: base.id for name, (base,) in classes.items() if isinstance(base, ast.Name)}
    made = [*errors.BY_REMEDY.values(), *errors.BY_STATUS.values()]
    assert written == {
        "HeftError": "Exception",
        **{cls.__name__: cls.__bases__[0].__name__ for cls in made},
    }


def test_the_package_has_the_version_of_the_library() -> None:
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert project is not None
    assert heft.__version__ == project[1]
    command = [sys.executable, "-m", "heft"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout == f"heft {project[1]}\n"


def test_importing_the_package_imports_no_framework() -> None:
    code = "import heft, sys; print([m for m in ('torch', 'numpy', 'jax') if m in sys.modules])"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize("command", ["mypy --config-file ../pyproject.toml", "ruff check"])
def test_the_package_passes(command: str, tmp_path: pathlib.Path) -> None:
    tool, *rest = command.split()
    pytest.importorskip(tool)
    cache = ["--cache-dir", str(tmp_path)]
    files = [str(path) for path in sorted((ROOT / "python" / "heft").glob("*.py"))]
    run = subprocess.run(
        [sys.executable, "-m", tool, *rest, *cache, *files],
        cwd=ROOT / "python",
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr

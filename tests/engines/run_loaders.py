# SPDX-License-Identifier: Apache-2.0
"""Every family x every layout through one engine's real loader; exit 1 if a row fails.

run_loaders.py ENGINE [--family NAME]... [--table FILE]      FILE gets the table as Markdown
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import sys
import time
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

from families import FAMILIES, Family  # noqa: E402
from known import REFUSED  # noqa: E402
from engine_loaders import Layout, Result, layouts_of, run  # noqa: E402

from heft import engines  # noqa: E402

HEAD = (
    "| family | model class | layout | names | parameters | groups | opaque | derived "
    "| elements compared | trace s |"
)


def main() -> int:
    args = _arguments()
    logging.disable(logging.WARNING)
    try:
        engine = engines.get(args.engine)
    except ImportError as error:
        print(f"SKIPPED {args.engine}: not installed here ({error}); no loader of it was tested")
        return 77
    version = engine.version()
    print(f"== {args.engine} {version}: real loaders", flush=True)
    rows, failures, started = [HEAD, "|" + " --- |" * HEAD.count(" |")], 0, time.monotonic()
    for family in [FAMILIES[name] for name in args.family or FAMILIES]:
        for layout in layouts_of(args.engine, family):
            row, failed = _row(args.engine, engine, family, layout)
            rows.append(row)
            failures += failed
            print(("FAILED " if failed else "ok     ") + row, flush=True)
    seconds = time.monotonic() - started
    print(f"== {args.engine} {version}: {len(rows) - 2} rows, {failures} failed, {seconds:.0f} s")
    if args.table:
        pathlib.Path(args.table).write_text("\n".join([f"{args.engine} {version}", *rows]) + "\n")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=engines.NAMES)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--table")
    return parser.parse_args()


def _row(name: str, engine: engines.Engine, family: Family, layout: Layout) -> tuple[str, bool]:
    """One line of the table, and whether it is a failure."""
    names = family.names()
    if name == "transformers":  # it does not know the draft's layers
        draft = f"model.layers.{family.config().num_hidden_layers}."
        names = {n: t for n, t in names.items() if not n.startswith(draft)}
    refused = REFUSED.get((name, family.name, layout))
    start = f"| {family.name} | "
    try:
        result = run(engine, family, layout, names)
    except Exception as error:
        text = " ".join(str(error).split())
        if refused and refused.error in text:
            return f"{start}- | {layout} | {refused.reason} |" + " - |" * 6, False
        report = getattr(error, "report", None)
        text = " ".join(f"{report or text}".split())
        return f"{start}- | {layout} | {type(error).__name__}: {text[:600]} |", True
    if refused:
        return f"{start}- | {layout} | expected to fail, and did not: {refused.reason} |", True
    return start + _cells(layout, result), False


def _cells(layout: Layout, result: Result) -> str:
    opaque = "; ".join(f"{name}: {uses[0]}" for name, uses in result.opaque.items()) or "0"
    derived = str(len(result.derived))
    if result.derived:
        derived += f" ({result.derived[0].rsplit('.', 1)[-1]}, ..)"
    numbers = f"{result.n_sources} | {result.n_params} | {result.n_groups}"
    return (
        f"{result.model_class} | {layout} | {numbers} | {opaque} | {derived} "
        f"| {result.n_compared} | {result.seconds:.2f} |"
    )


if __name__ == "__main__":
    sys.exit(main())

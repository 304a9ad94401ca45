# SPDX-License-Identifier: Apache-2.0
"""Put tables of run_loaders.py into a document, between its markers: write_tables.py DOC TABLE.."""

from __future__ import annotations

import pathlib
import sys

BEGIN, END = "<!-- tables: written by tools/test_engines --docs -->", "<!-- end of tables -->"


def main(document: str, *tables: str) -> None:
    path = pathlib.Path(document)
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    parts = []
    for table in tables:
        title, rows = pathlib.Path(table).read_text().split("\n", 1)
        parts.append(f"### {title}\n\n{rows}")
    path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}")


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own: serves until a version, and says what it served.

live_engine.py URL LAST: prints "VERSION SUM" for every version from 1 to LAST.
"""

import sys

import torch
from test_live import Engine, Trainer, contract_of

from heft import LiveModel


def main(url: str, last: int) -> None:
    engine = Engine()
    contract = contract_of(Trainer(), engine)
    with LiveModel(engine, contract, url=url, derive=Engine.derive) as live:
        print("ready", flush=True)
        for version in range(1, last + 1):
            live.await_version(version, 60)
            with live.gate.serving(60) as served, torch.no_grad():
                print(served, *engine.fingerprint().tolist(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

# SPDX-License-Identifier: Apache-2.0
"""bench_ucx_ranks between two hosts that are network namespaces with a cable of veth: ranks_hosts.py PROGRAM [RATE] [its arguments ...]

RATE such as 10gbit, or "full".
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/hosts"))

from network import Network


def main() -> int:
    program, rate, more = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "full", sys.argv[3:]
    with Network() as network:
        hosts = [network.host(name) for name in ("trainer", "node")]
        if rate != "full":
            hosts[0].slow(rate)
        command = [program, *(more + ["1", "5", "4"][len(more) :]), *(str(host.pid) for host in hosts)]
        return subprocess.run(command, env=os.environ | {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

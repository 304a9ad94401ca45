# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured between hosts: what `heft plan --links` says of the stage of a round over OpenUCX/TCP, and how long it takes.

Hosts are network namespaces of this machine (tests/hosts/network.py), each cable with a rate limit that both know: four engine ranks on
a host each, fed by one trainer and by four. The link of the model is the cable's rate less the headers of Ethernet, IP and TCP.

    HEFT_BIN=build/release/src/cli/heft HEFT_RECIPES=recipes python3 bench/price_hosts.py [RATE in Mbit/s ...]
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests/hosts"))

from host_fleet import HEFT, RECIPE, TP, HostFleet, HostSchedules
from network import require
from process_faults import write_safetensors

PUSHES = 3
RATES = (100, 200, 400)
PAYLOAD = 1448 / 1514  # of a full Ethernet frame, as a shaper counts it, with TCP's time stamps
PHASES = ("preflight", "prepare", "stage", "verify", "pause", "decide", "flip", "resume", "release", "abort")


class Four(HostFleet):
    deadline_ms = 30000
    limits = ("--contact-ms", "20000", *(word for phase in PHASES for word in (f"--{phase}-ms", "120000")))

    def start_coordinator(self):
        self.rounds = self.case.dir / "rounds"
        super().start_coordinator()

    def spawn(self, role, *args):
        return super().spawn(role, *args, *(("--round-log", self.rounds) if role == "coordinator" else ()))

    def stage_s(self, version):
        entries = map(json.loads, self.rounds.read_text().splitlines())
        return next(e["seconds"]["stage"] for e in entries if e["version"] == version)


class FromFour(Four):
    n_sources = 4


class Prices(HostSchedules):
    SIZES = {"hidden": 1024, "inner": 4096, "layers": 2}
    SETTINGS = ("UCX_TLS=tcp",)
    PLACEMENT = {"source": "trainer-0", **{f"source {r}": f"trainer-{r}" for r in range(1, TP)},
                 **{f"rank {r}": f"engine-{r}" for r in range(TP)}}  # fmt: skip

    def runTest(self):
        rates = [int(word) for word in sys.argv[1:]] or RATES
        folder = self.models[2].parent / "sharded"
        split(self.models[2], folder)
        print("| from | cables | GB | stage predicted, s | measured, s | error |\n|---|---|---|---|---|---|", flush=True)
        for kind, model, more in ((Four, self.models[2], ()), (FromFour, folder, ("--sharded", "0"))):
            for rate in rates:
                self.compare(kind, rate, (model, *more))

    def compare(self, kind, rate, source):
        links = self.dir / "links.json"
        side = {"ranks_per_host": 1, "nics_per_host": 1}
        links.write_text(json.dumps({
            "format": 1, "source": side, "destination": side, "nic": {"bytes_per_s": rate * 1e6 / 8 * PAYLOAD, "latency_s": 1e-4,
            "message_s": 0}, "copy": {"bytes_per_s": 5e9, "run_s": 0}, "flip": {"bytes_per_s": 5e9}, "digest": {"bytes_per_s": 5e9},
            "chunk_bytes": 1 << 20,
        }))  # fmt: skip
        said = subprocess.run([HEFT, "plan", *source, *RECIPE, "--links", links, "--json"], capture_output=True, text=True, check=True)
        price = json.loads(said.stdout)["price"]
        fleet = kind(self, random.Random(0), self.models, self.PLACEMENT, self.SETTINGS)
        assert fleet.push(1).returncode == 0  # it plans and connects
        for name in fleet.hosts.keys() - {"coordinator", "operator"}:
            fleet.hosts[name].slow(f"{rate}mbit")
        measured = []
        for version in range(2, 2 + PUSHES):
            fleet.models[version] = self.models[2]
            result = fleet.push(version)
            assert result.returncode == 0, result
            measured.append(fleet.stage_s(version))
        middle = statistics.median(measured)
        print(f"| {fleet.n_sources} | {rate} Mbit/s | {price['bytes'] / 1e9:.3f} | {price['stage_s']:.2f} | {middle:.2f} "
              f"({min(measured):.2f} to {max(measured):.2f}) | {100 * (price['stage_s'] / middle - 1):+.0f} % |", flush=True)  # fmt: skip
        self.doCleanups()
        self.setUp()


def split(model, folder):
    """A folder of ranks with a quarter of the rows of each tensor: what four trainers hold that push with --split."""
    raw = (model / "model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    folder.mkdir()
    for rank in range(TP):
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            part = (end - begin) // TP
            shape = [entry["shape"][0] // TP, *entry["shape"][1:]]
            tensors[name] = (entry["dtype"], shape, raw[8 + n + begin + rank * part : 8 + n + begin + (rank + 1) * part])
        (folder / f"rank-{rank}").mkdir()
        write_safetensors(folder / f"rank-{rank}" / "model.safetensors", tensors)
    (folder / "config.json").write_text((model / "config.json").read_text())


if __name__ == "__main__":
    require()
    sys.exit(not unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([Prices()])).wasSuccessful())

# SPDX-License-Identifier: Apache-2.0
"""A fleet of `heft` whose processes are on several hosts: the coordinator beyond loopback, with token and TLS.

`placement` says which host each role is on. Who asks (status, recover, verify) is on a host of its own. The coordinator is known by
its name, so that its host may come back with another address. Files (models, token, state) are seen by all hosts.
"""
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("e2e", "fault"):
    sys.path.insert(0, str(HERE.parent / folder))

from cli_rounds import DEADLINE_S, Process  # noqa: E402
from cli_support import HEFT  # noqa: E402
from network import Network, child_of  # noqa: E402
from process_faults import Fleet, LIMITS, Schedules, write_big_model  # noqa: E402

TP = 4
RECIPE = ("--recipe", "hf-to-engine-dense", "--let", f"tp={TP}")
COORDINATOR = "coordinator"
HOLD_S = 8  # a fault of the network lasts longer than any deadline of the fleet
ANSWER_S = 30


def write_keys(folder):
    """Token, certificate and key, as docs/guide/configuration.md makes them."""
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(secrets.token_hex(32) + "\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={COORDINATOR}", "-addext", f"subjectAltName=DNS:{COORDINATOR}", "-keyout", folder / "key.pem",
         "-out", folder / "cert.pem"], check=True, capture_output=True)
    (folder / "key.pem").chmod(0o600)


class HostProcess(Process):
    """A `heft` on a host. What its parent sees is nsenter, which ends as it ends and stops as it stops."""

    def __init__(self, case, host, environment, *args):
        super().__init__(case, *args, prefix=(*host.prefix(), "env", *environment))
        end = time.monotonic() + DEADLINE_S
        self.pid = None
        while self.pid is None and self.child.poll() is None and time.monotonic() < end:
            self.pid = child_of(self.child.pid)

    def send(self, number):
        if self.pid is not None and child_of(self.child.pid) == self.pid:
            os.kill(self.pid, number)
        self.child.send_signal(signal.SIGCONT)  # a stopped nsenter would not see what becomes of its child


class HostFleet(Fleet):
    RECIPE, TP = RECIPE, TP
    limits = tuple("5000" if before == "--contact-ms" else value for before, value in zip(("", *LIMITS), LIMITS))

    def __init__(self, case, rng, models, placement, settings=(), prepare=lambda hosts: None):
        self.keys = case.dir / "keys"
        self.keys.mkdir()
        write_keys(self.keys)
        self.network = Network()
        case.addCleanup(self.network.end)
        self.placement = placement
        self.hosts = {name: self.network.host(name) for name in (COORDINATOR, "operator", *sorted(set(placement.values())))}
        self.environment = [f"HEFT_TOKEN_FILE={self.keys / 'token'}", f"HEFT_CA_FILE={self.keys / 'cert.pem'}", *settings]
        prepare(self.hosts)
        super().__init__(case, rng, models)

    def host_of(self, role):
        """Of a role such as "rank 2": what the placement says of it, else of "rank"."""
        placement = {COORDINATOR: COORDINATOR} | self.placement
        return self.hosts[placement[role if role in placement else role.split()[0]]]

    def spawn(self, role, *args):
        if role == "coordinator":
            args += ("--address", "0.0.0.0", "--tls-cert", self.keys / "cert.pem", "--tls-key", self.keys / "key.pem")
        return HostProcess(self.case, self.host_of(role), self.environment, *args)

    def run(self, *args, host="operator"):
        return self.hosts[host].run("env", *self.environment, HEFT, *args)

    def push(self, version):
        return self.run(*self.push_args(version, "--json"), host=self.host_of("source").name)

    def start_coordinator(self):
        super().start_coordinator()
        self.url = f"https://{COORDINATOR}:{self.url.rsplit(':', 1)[1]}"

    def reboot(self, name, address=None):
        """The host loses power, and comes back, perhaps with another address; its processes are gone."""
        roles = [role for role in ("coordinator", *(f"rank {rank}" for rank in range(self.TP)))
                 if self.host_of(role).name == name]
        if self.push_process is not None and self.host_of("source").name == name:
            roles.append("source")
        self.hosts[name].cut()
        for role in roles:
            self.hit(role, signal.SIGKILL)
        if address is not None:
            self.hosts[name].set_address(address)
        self.hosts[name].join()
        return roles


class HostSchedules(Schedules):
    """A round of version 2, something that happens to it, and then the promises."""

    SIZES = {"hidden": 512, "inner": 2048, "layers": 2}
    PLACEMENT = {"source": "node", "rank": "node"}

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="heft-fault-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.models = {1: folder / "one", 2: folder / "two", 3: folder / "three"}
        for version, path in cls.models.items():
            write_big_model(path, version, **cls.SIZES)

    def fleet(self, placement=None, seed=0):
        fleet = HostFleet(self, random.Random(seed), self.models, placement or self.PLACEMENT)
        first = fleet.push(1)
        self.assertEqual(first.returncode, 0, first)
        return fleet

    def await_phase(self, fleet, phase):
        """Begin version 2 and wait until the coordinator logs the phase; the phase that it is in."""
        fleet.start_push(2)
        end = time.monotonic() + ANSWER_S
        while (seen := fleet.phase_of(2)) not in (phase, "ended") and fleet.push_process.child.poll() is None:
            self.assertLess(time.monotonic(), end)
        return seen

    def cause(self, fleet):
        """What the push says of its failure."""
        said = [json.loads(line) for line in fleet.push_process.lines if line.startswith("{")]
        error = said[-1].get("error") if said else None
        return error["message"] if error else ""

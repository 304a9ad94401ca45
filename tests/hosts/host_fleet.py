# SPDX-License-Identifier: Apache-2.0
"""A fleet of `heft` whose processes are on several hosts: the coordinator beyond loopback, with token and TLS.

`placement` says which host each role is on. Who asks (status, recover, verify) is on a host of its own. The coordinator is known by
its name, so that its host may come back with another address. Files (models, token, state) are seen by all hosts.
"""
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
from network import Network, child_of, is_child  # noqa: E402
from process_faults import Fleet, Schedules, write_big_model  # noqa: E402

TP = 4
RECIPE = ("--recipe", "hf-to-engine-dense", "--let", f"tp={TP}")
COORDINATOR = "coordinator"
HOLD_S = 12  # a fault of the network lasts longer than any deadline of the fleet
LIMITS = ("--contact-ms", "5000", "--poll-ms", "400")
for phase, ms in (("preflight", 10000), ("prepare", 10000), ("stage", 8000), ("verify", 8000), ("pause", 6000), ("decide", 4000),
                  ("flip", 6000), ("resume", 6000), ("release", 6000), ("abort", 5000)):
    LIMITS += (f"--{phase}-ms", str(ms))
ANSWER_S = 60
TRIES = 3
PHASES = ("preflight", "prepare", "stage", "verify", "pause", "flip", "resume", "release")
# HEFT_TEST_PHASES: all, or some, separated by commas: then every fault is tried in each of these
CHOSEN = os.environ.get("HEFT_TEST_PHASES", "")
CHOSEN = PHASES if CHOSEN == "all" else tuple(filter(None, CHOSEN.split(",")))
FAULTS = ("cut", "drop in", "drop out")


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
        if self.pid is not None and is_child(self.pid, self.child.pid):
            os.kill(self.pid, number)
        if number != signal.SIGSTOP:  # nsenter stops with its child; continued, it would continue the child, else not see its end
            self.child.send_signal(signal.SIGCONT)


class HostFleet(Fleet):
    RECIPE, TP, n_sources = RECIPE, TP, 1
    limits, deadline_ms, settle_s = LIMITS, 4000, 120
    read_ranks = (1,)  # each is busy all the time

    def __init__(self, case, rng, models, placement, settings=(), prepare=lambda hosts: None):
        self.keys = case.dir / "keys"
        self.keys.mkdir()
        write_keys(self.keys)
        self.network = Network()
        case.addCleanup(self.network.end)
        self.placement, self.coordinators = placement, []
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

    def share(self, rank):
        """What rank `rank` of several sources pushes: its rows of every tensor."""
        return ("--rank", rank, "--ranks", self.n_sources, "--split") if self.n_sources > 1 else ()

    def start_push(self, version, *more):
        super().start_push(version, *more, *self.share(0))
        self.start_others(version)

    def start_others(self, version):
        """Sources 1, 2, ...: they take part in the round of source 0 and have its outcome."""
        self.other_pushes = [self.spawn(f"source {rank}", *self.push_args(version, "--json"), *self.share(rank))
                             for rank in range(1, self.n_sources)]

    def push(self, version):
        """On a machine that is busy with other things a deadline may pass without a fault: then once more, and it is said."""
        for attempt in range(TRIES):
            self.start_others(version)
            result = self.run(*self.push_args(version, "--json"), *self.share(0), host=self.host_of("source").name)
            codes = [other.child.wait(ANSWER_S) for other in self.other_pushes]
            assert result.returncode != 0 or not any(codes), (result, codes)
            if result.returncode == 0 or "ERR_TIMEOUT" not in result.stderr or attempt + 1 == TRIES:
                return result
            print(f"version {version} once more: {result.stderr.splitlines()[-1]}", flush=True)
            self.settle()

    def is_pushing(self):
        return super().is_pushing() or any(other.child.poll() is None for other in self.other_pushes)

    def process(self, role):
        return self.other_pushes[int(role.split()[1]) - 1] if role.startswith("source ") else super().process(role)

    def start_coordinator(self):
        super().start_coordinator()
        self.coordinators.append(self.coordinator)
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
    FLEET, SETTINGS = HostFleet, ()

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="heft-fault-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.models = {1: folder / "one", 2: folder / "two", 3: folder / "three"}
        for version, path in cls.models.items():
            write_big_model(path, version, **cls.SIZES)

    def fleet(self, placement=None, seed=0):
        fleet = self.FLEET(self, random.Random(seed), self.models, placement or self.PLACEMENT, self.SETTINGS)
        first = fleet.push(1)
        self.assertEqual(first.returncode, 0, first)
        return fleet

    def spoil(self, host, fault):
        host.cut() if fault == "cut" else host.drop(fault.split()[1])

    def hold(self, fleet):
        """Until the push has ended, and no longer than a fault lasts."""
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end and fleet.push_process.child.poll() is None:
            time.sleep(0.05)

    def each(self, what, cases, one):
        """A row of the table for each case; a case that failed does not end the others."""
        print(f"| {what} | fault | phase | came to | claims |\n|---|---|---|---|---|", flush=True)
        for where, fault, phase in cases:
            with self.subTest(where=where, fault=str(fault), phase=phase):
                seen, outcome, claims = one(where, fault, phase)
                print(f"| {where} | {getattr(fault, 'name', fault)} | {seen} | {outcome} | {claims} |", flush=True)
            self.doCleanups()
            self.setUp()

    def await_phase(self, fleet, phase):
        """Begin version 2 and wait until the coordinator logs the phase; the phase that it is in."""
        fleet.start_push(2)
        end = time.monotonic() + ANSWER_S
        while (seen := fleet.phase_of(2)) not in (phase, "ended") and fleet.push_process.child.poll() is None:
            self.assertLess(time.monotonic(), end)
            with fleet.coordinator.changed:
                fleet.coordinator.changed.wait_for(lambda: fleet.phase_of(2) != seen, 0.05)
        return seen

    def cause(self, fleet):
        """What the push says of its failure."""
        return " ".join(line for line in fleet.push_process.errors if line.startswith("heft push:"))

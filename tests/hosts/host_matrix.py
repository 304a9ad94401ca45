# SPDX-License-Identifier: Apache-2.0
"""Every fault on every role in every phase, of a fleet whose weights cross cables: four sources, four ranks, each on a host of its own.

    host_matrix.py [--jobs N] [--seeds N] [--short] [--only WORD ...] [--list] [--log FILE]

`tools/test_hosts BUILD` runs it with the command of a build; --short is what `make test` runs.

Each case is a process and a network of its own: version 1 is pushed; while version 2 is, or between the two, one fault hits one
role. Then it is gone, what died is started again, and:

- whoever serves, serves one version whole: `heft verify --live` compares the digests;
- where the push failed, its cause names the member that was hit, or the coordinator;
- version 3 is pushed, with the claims that heft asks for and no others, and is live everywhere;
- nobody has ended by a signal that was not sent to it;
- a process that was there all the time has the threads and descriptors that it had after version 1, and at the end no host has
  anything in /dev/shm or a socket that is open.

A phase is held open by a bystander that is stopped until the fault is there: so it is the phase that is hit. With --seeds also
random schedules of two faults at random moments, a seed each. Rows are printed as they come; a case that fails is told with what it
said, and tried again (--tries) to tell a fault from a busy machine. The exit status is that of the last tries.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

from host_fleet import COORDINATOR, HOLD_S, HostFleet, HostSchedules
from network import require

ROLES = ("source", "source 2", "rank 1", COORDINATOR)
PHASES = ("prepare", "stage", "verify", "flip", "between")
RATE = "60mbit"  # of each trainer's cable: staging takes a second
CREEP = "4mbit"  # too slow for weights, not for orders; a chunk takes 2 s, less than silence may last
BLIP_S = 1.5  # shorter than any deadline
STILL_S = 150  # for threads and descriptors to go: the network takes its time to find out who is no more

CRASHES = [-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)]

# what is done, and what is undone when its time is over
FAULTS = {
    "kill": "kill -9",
    "stop": f"SIGSTOP {HOLD_S} s",
    "cut": "cable cut until the push has ended",
    "drop in": "cable drops what comes in",
    "drop out": "cable drops what goes out",
    "late": "cable cut, back after every deadline",
    "blip": f"cable cut for {BLIP_S} s",
    "slow": f"cable at {CREEP}",
    "moved": "host is gone, and back with another address",
}

# a minute or two of it
SHORT = (("source 2", "kill", "stage"), ("source 2", "slow", "stage"), ("rank 1", "kill", "flip"), ("rank 1", "cut", "stage"),
         (COORDINATOR, "kill", "flip"))


class FourByFour(HostFleet):
    n_sources, deadline_ms = 4, 8000
    last = None  # for what is said when a case fails while it is being made

    def __init__(self, *args):
        self.renumbered, self.pushes = 0, []
        FourByFour.last = self
        super().__init__(*args)

    def spawn(self, role, *args):
        process = super().spawn(role, *args)
        if role.startswith("source"):
            self.pushes.append(process)
        return process

    def reboot(self, name, address=None):
        self.renumbered += 1
        return super().reboot(name, address or f"198.18.0.{100 + self.renumbered}")


def names_of(role):
    """How a cause may call it."""
    if role == COORDINATOR:
        return ("coordinator",)
    kind, _, rank = role.partition(" ")
    member = ("source" if kind == "source" else "destination") + f".heft.0.{rank or 0}"
    return (member, f"rank {rank or 0}")


class Matrix(HostSchedules):
    FLEET = FourByFour
    SETTINGS = ("UCX_TLS=tcp", "HEFT_UCX_SILENCE_MS=3000")
    PLACEMENT = {"source": "trainer-0", **{f"source {rank}": f"trainer-{rank}" for rank in range(1, 4)},
                 **{f"rank {rank}": f"engine-{rank}" for rank in range(4)}}

    def start(self, seed=0):
        fleet = self.fleet(seed=seed)
        for rank in range(4):
            fleet.hosts[f"trainer-{rank}"].slow(RATE)
        fleet.settle()
        self.held = held_by(fleet)
        return fleet

    def case(self, role, fault, phase):
        """One cell of the table."""
        fleet = self.start()
        if phase == "between":
            undo = self.begin_fault(fleet, role, fault)
            fleet.start_push(2)
            seen = phase
        else:
            self.await_phase(fleet, phase)
            with self.bystander(fleet, role, phase):
                undo = self.begin_fault(fleet, role, fault)
                seen = fleet.phase_of(2) if undo is not None else "ended"
        began = time.monotonic()
        self.await_end(fleet, BLIP_S if fault == "blip" else HOLD_S, until_told=fault != "late")
        if undo is not None:
            undo()
        return {"phase": seen} | self.judge(fleet, [role], began)

    @contextlib.contextmanager
    def bystander(self, fleet, role, phase):
        other = fleet.process("source 3" if phase == "prepare" else "rank 3")
        other.send(signal.SIGSTOP)
        try:
            yield
        finally:
            other.send(signal.SIGCONT)

    def begin_fault(self, fleet, role, fault):
        """What ends it; None where the process was not there to be hit."""
        host = fleet.host_of(role)
        if fault in ("kill", "stop"):
            return (lambda: None) if fleet.hit(role, signal.SIGKILL if fault == "kill" else signal.SIGSTOP, seconds=HOLD_S) else None
        if fault == "moved":
            fleet.reboot(host.name)
            return lambda: None
        if fault == "slow":
            host.slow(CREEP)
        else:
            self.spoil(host, "cut" if fault in ("late", "blip") else fault)
        return host.join

    def await_end(self, fleet, seconds, until_told=True):
        """Until the push has ended, and no longer; or for all that time, and until its round has ended, too."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (fleet.is_pushing() or not until_told):
            fleet.wake(time.monotonic())
            time.sleep(0.02)

    def judge(self, fleet, roles, began):
        end = time.monotonic() + fleet.settle_s
        while fleet.is_pushing() and time.monotonic() < end:
            fleet.wake(time.monotonic())
            time.sleep(0.02)
        took = time.monotonic() - began
        code = fleet.push_process.child.poll()
        # one that was hit itself knows only that it reaches nobody
        pushes = {f"source {rank}" if rank > 0 else "source": push
                  for rank, push in enumerate((fleet.push_process, *fleet.other_pushes))}
        said = [line for role, push in pushes.items() for line in push.errors
                if line.startswith("heft push:") and role not in roles]
        outcome, claims = self.come_through(fleet, str(roles))
        said += self.ended(fleet)  # nothing, where all went on without the one that was hit
        named = not said or any(name in line for line in said for role in roles for name in names_of(role))
        return {"outcome": outcome, "claims": claims, "push": code, "took_s": round(took, 1), "named": named, "said": said,
                "kept": self.kept}

    def last_words(self):
        """Of every process, for a case that failed."""
        fleet = FourByFour.last
        every = [("coordinator", one) for one in fleet.coordinators] + [(f"rank {rank}", one) for rank, one in fleet.ranks.items()]
        every += [("push", one) for one in fleet.pushes]
        return [f"{name} ({process.child.poll()}): {line}" for name, process in every
                for line in (process.lines[-3:] + process.errors[-12:])]

    def ended(self, fleet):
        """What the coordinator, or the one before it, said of the end of version 2."""
        lines = [json.loads(line) for process in fleet.coordinators for line in process.errors if line.startswith("{")]
        ends = [line for line in lines if line.get("version") == 2 and line["message"] == "round ended"]
        return [f"{e.get('member', '')} (by {e.get('reported_by', '')}): {e.get('cause', '')}" for e in ends if e["state"] != "committed"]

    def before_stop(self, fleet):
        """Nothing is left: of the push in those that were there all the time."""
        end = time.monotonic() + STILL_S
        while (more := grown(self.held, held_by(fleet))) and time.monotonic() < end:
            time.sleep(0.5)
        self.assertEqual(more, [], "left behind by a push")
        now = held_by(fleet)
        self.kept = {kind: sum(n - self.held[key] for key, n in now.items() if key[2] == kind and key in self.held)
                     for kind in ("refused", "orphaned")}

    def after_stop(self, fleet):
        end = time.monotonic() + STILL_S
        while (left := left_on(fleet)) and time.monotonic() < end:
            time.sleep(0.2)
        self.assertEqual(left, [], "left behind on a host")
        self.assertEqual(crashed(fleet), [], "ended by itself")

    def random(self, seed):
        """Two faults of a push, of any roles, at random moments."""
        rng = random.Random(seed)
        fleet = self.start(seed)
        fleet.start_push(2)
        began, undo, done = time.monotonic(), [], []
        for moment in sorted(rng.uniform(0, 2.5) for _ in range(2)):
            role = rng.choice(("source", "source 1", "source 2", "rank 0", "rank 1", "rank 3", COORDINATOR))
            fault = rng.choice(list(FAULTS))
            self.await_end(fleet, began + moment - time.monotonic())
            action = self.begin_fault(fleet, role, fault)
            if action is not None:
                undo.append(action)
                done.append((role, fault))
        self.await_end(fleet, HOLD_S)
        for action in undo:
            action()
        row = self.judge(fleet, [role for role, _ in done] or ["nobody"], began)
        return {"faults": [f"{role}: {fault}" for role, fault in done]} | row


def servers(fleet):
    return [("coordinator", fleet.coordinator), *((f"rank {rank}", one) for rank, one in fleet.ranks.items())]


def sockets_of(pid):
    """Inode -> state and the other end's address, of every socket that its network knows."""
    found = {}
    for table, inode in (("tcp", 9), ("unix", 6), ("udp", 9)):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address = bytes.fromhex(fields[2][:8])[::-1] if table == "tcp" else b""
            found[fields[inode]] = (fields[3], ".".join(map(str, address)))
    return found


def crashed(fleet):
    """Processes that ended by a signal of their own making, also those that were replaced since; what they said of it."""
    every = [*fleet.coordinators, *fleet.ranks.values(), *fleet.dead_ranks, *fleet.pushes]
    return [f"{signal.Signals(-process.child.poll()).name}: {next((line for line in process.errors if 'Assertion' in line), '')}"
            for process in every if process.child.poll() in CRASHES]


def held_by(fleet):
    """What the processes that serve or referee hold: threads, and descriptors by kind.

    Two kinds are counted for themselves, because they are not heft's to give back: sockets that no table knows (UCX 1.13 keeps one for
    each connection that was refused), and connections to an address that nobody has any more (until TCP gives up).
    """
    addresses = {host.address for host in fleet.hosts.values()} | {"127.0.0.1", "0.0.0.0", ""}
    held = {}
    for name, process in servers(fleet):
        with contextlib.suppress(OSError):
            sockets, kinds = sockets_of(process.pid), collections.Counter()
            kinds["thread"] = len(os.listdir(f"/proc/{process.pid}/task"))
            for fd in os.listdir(f"/proc/{process.pid}/fd"):
                link = os.readlink(f"/proc/{process.pid}/fd/{fd}")
                known = sockets.get(link[8:-1])
                kinds["refused" if link.startswith("socket:") and known is None else
                      "orphaned" if known is not None and known[1] not in addresses else "descriptor"] += 1
            for kind in ("thread", "descriptor", "refused", "orphaned"):
                held[name, process.pid, kind] = kinds[kind]
    return held


def grown(before, now, kinds=("thread", "descriptor")):
    return [f"{name}: {kind}s {before[name, pid, kind]}, then {n}" for (name, pid, kind), n in now.items()
            if kind in kinds and n > before.get((name, pid, kind), n)]


def left_on(fleet):
    """Files in /dev/shm, and sockets that are open (1), listen (A) or were not closed (8)."""
    left = []
    for name, host in fleet.hosts.items():
        files = host.run("ls", "-A", "/dev/shm").stdout.split()
        sockets = [line.split()[1:4] for line in host.run("cat", "/proc/net/tcp").stdout.splitlines()[1:]]
        left += [f"{name}: /dev/shm/{file}" for file in files]
        left += [f"{name}: {socket}" for socket in sockets if socket[2] in ("01", "0A", "08")]
    return left


# ---- one case, in a process of its own ----


class One(Matrix):
    """What the runner of a case calls."""

    def runTest(self):
        self.row = self.random(int(self.what[1])) if self.what[0] == "random" else self.case(*self.what)


def run_one(what):
    One.setUpClass()
    case = One()
    case.what, case.row = what, {}
    began = time.monotonic()
    result = unittest.TestResult()
    case.run(result)
    One.doClassCleanups()
    faults = [text for _, text in result.failures + result.errors]
    if faults:
        faults.append("\n".join(case.last_words()))
    print(json.dumps({"case": what, **case.row, "total_s": round(time.monotonic() - began, 1),
                      "ok": not faults and case.row.get("named", False), "failure": faults}))


# ---- all of them ----


def cells():
    for fault in FAULTS:
        for role in ROLES:
            for phase in PHASES:
                if not (phase == "between" and fault in ("kill", "stop") and role.startswith("source")):
                    yield role, fault, phase  # `heft push` is there during a push alone


def attempt(what):
    made = subprocess.run([sys.executable, __file__, "--one", *what], capture_output=True, text=True, check=False)
    try:
        return json.loads(made.stdout.splitlines()[-1]) | {"said_else": made.stdout.splitlines()[:-1]}
    except (IndexError, ValueError):
        return {"case": what, "ok": False, "failure": [made.stdout + made.stderr]}


def hit_what_was_meant(row):
    return row["case"][0] == "random" or row.get("phase") == row["case"][2]


def run_case(what, tries, log):
    """The last of its tries: those that came too late for their phase do not count as failures."""
    for number in range(1, tries + 1):
        row = attempt(what) | {"try": number, "load": round(os.getloadavg()[0])}
        log.write(json.dumps(row) + "\n")
        log.flush()
        for text in row["failure"][:1]:
            print(f"FAILED {what}, try {number}: {text.strip()[-300:]}", flush=True)
        if row["ok"] and hit_what_was_meant(row):
            break
    return row


def cell_text(row):
    where, *rest = row["case"]
    if where == "random":
        rest = [", ".join(row.get("faults", []))]
        where = f"seed {row['case'][1]}"
    else:
        rest[1] = row.get("phase", rest[1])
    outcome = row.get("outcome", "FAILED") if row["ok"] else "FAILED" if row["failure"] else "culprit not named"
    kept = sum(row.get("kept", {}).values())
    return f"| {where} | {' | '.join(rest)} | {outcome} | {row.get('claims', '')} | {row.get('took_s', '')} | {kept} | {row['try']} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--log", type=pathlib.Path, default=pathlib.Path(os.devnull))
    parser.add_argument("--one", nargs="+")
    options = parser.parse_args()
    if options.one:
        run_one(options.one)
        return 0
    cases = [("random", str(seed)) for seed in range(options.first_seed, options.first_seed + options.seeds)] + list(cells())
    cases = list(SHORT) if options.short else cases
    cases = [case for case in cases if all(word in "/".join(case) for word in options.only)]
    if options.list:
        print(*("/".join(case) for case in cases), sep="\n")
        return 0
    require()
    print("| where | fault | phase | came to | claims | s | kept | try |\n|---|---|---|---|---|---|---|---|", flush=True)
    count = collections.Counter()
    with options.log.open("a") as log, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in concurrent.futures.as_completed([pool.submit(run_case, case, options.tries, log) for case in cases]):
            row = row.result()
            print(cell_text(row), flush=True)
            count["ok" if row["ok"] else "failed"] += 1
            count["another phase than meant"] += row["ok"] and not hit_what_was_meant(row)
            count["after a failure"] += row["ok"] and row["try"] > 1
    print(dict(count))
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

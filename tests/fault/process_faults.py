# SPDX-License-Identifier: Apache-2.0
"""Faults on real processes: a coordinator, a pushing source and two serving ranks, all of them `heft`.

Each seed is one schedule: a fleet serves version 1; while version 2 is being pushed, one to three of its processes are killed
(kill -9), stopped for a while (SIGSTOP), or ended in order (SIGTERM), at random moments. Killed ones are started again. Then:

- no reader has ever seen a torn version;
- whoever serves, serves one of the two versions, whole, and all who serve the same one;
- a following push succeeds: at once, or, where heft says that it is poisoned, after the claims that it asks for.

EachPhase hits each role in each phase, by what the coordinator logs; the fleet must come through in the same way. ManyPushes
reads all parameters all the time during HEFT_TEST_PUSHES pushes.

HEFT_TEST_CASES is the number of schedules, HEFT_TEST_SEED the first seed, HEFT_TEST_PHASES=all runs every role and phase (else
some of them). Tables are printed at the end.
"""
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

from cli_rounds import Process, RECIPE, TP  # noqa: E402
from cli_support import Case, run, write_dense_model, write_safetensors  # noqa: E402

CASES = int(os.environ.get("HEFT_TEST_CASES", "6"))
SEED = int(os.environ.get("HEFT_TEST_SEED", "1"))
ROLES = ("coordinator", "source", "rank 0", "rank 1")
ACTIONS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
SETTLE_S = 45
FIRST_TRIES = 3
LIMITS = ("--contact-ms", "1500", "--poll-ms", "400")
for phase, ms in (("preflight", 4000), ("prepare", 4000), ("stage", 5000), ("verify", 4000), ("pause", 3000), ("decide", 2000),
                  ("flip", 3000), ("resume", 3000), ("release", 3000), ("abort", 3000)):
    LIMITS += (f"--{phase}-ms", str(ms))


def write_big_model(folder, seed, hidden=1024, inner=4096, layers=3):
    """Large enough that each phase takes a while; the bits are random."""
    rng = random.Random(seed)
    shapes = {"model.embed_tokens.weight": (8000, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[p + f"self_attn.{name}.weight"] = (hidden, hidden)
        shapes |= {p + f"mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[p + "mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {p + f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {
        name: ("BF16", shape, rng.randbytes(2 * math.prod(shape))) for name, shape in shapes.items()
    })
    (folder / "config.json").write_text(json.dumps({
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": hidden // 16, "intermediate_size": inner, "vocab_size": 8000, "tie_word_embeddings": True,
    }))


class Fleet:
    """Where its processes run, and how it is asked, is for those who derive from it to say."""

    RECIPE, TP = RECIPE, TP
    limits, deadline_ms, settle_s = LIMITS, 2000, SETTLE_S
    read_ranks = None  # ranks whose parameters are read all the time; None: all

    def __init__(self, case, rng, models=None):
        self.case, self.rng = case, rng
        self.models = models or {1: case.dir / "one", 2: case.dir / "two", 3: case.dir / "three"}
        for version, path in self.models.items() if models is None else ():
            write_dense_model(path, start=1 + 7000 * version, layers=3, hidden=16)
        self.ranks, self.dead_ranks, self.lost = {}, [], set()
        self.port = "0"
        self.start_coordinator()
        self.port = self.url.rsplit(":", 1)[1]
        for rank in range(self.TP):
            self.start_rank(rank)
        self.push_process, self.stopped, self.ending = None, [], []

    def spawn(self, role, *args):
        return Process(self.case, *args)

    def run(self, *args):
        return run(*args)

    def start_coordinator(self):
        self.coordinator = self.spawn(
            "coordinator", "coordinator", "--state", self.case.dir / "state", "--port", self.port, "--drain-ms", "1000",
            "--log", "info", "--log-format", "json", *self.limits
        )
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http"))

    def start_rank(self, rank):
        if rank in self.ranks:
            self.dead_ranks.append(self.ranks[rank])
        readers = ("--readers", "1") if self.read_ranks is None or rank in self.read_ranks else ()
        self.ranks[rank] = self.spawn(
            f"rank {rank}", "serve", "--url", self.url, *self.RECIPE, "--model", self.models[1], "--rank", rank, *readers,
            "--json", "--deadline-ms", self.deadline_ms,
        )

    def push_args(self, version, *more):
        return ("push", self.models[version], "--url", self.url, "--version", version, "--wait-for", self.TP, "--wait-seconds",
                "20", "--deadline-ms", self.deadline_ms, *more)

    def push(self, version):
        return self.run(*self.push_args(version, "--json"))

    def push_first(self):
        """Version 1, before any fault. On a busy machine a deadline of two seconds may pass: then once more, and it is said."""
        for _ in range(FIRST_TRIES):
            result = self.push(1)
            if result.returncode == 0 or "ERR_TIMEOUT" not in result.stderr:
                break
            print(f"version 1 once more: {result.stderr.splitlines()[-1]}", flush=True)
            self.settle()
        return result

    def start_push(self, version, *more):
        self.push_process = self.spawn("source", *self.push_args(version, "--json", *more))

    def is_pushing(self):
        return self.push_process.child.poll() is None

    def process(self, role):
        if role.startswith("rank "):
            return self.ranks[int(role.split()[1])]
        return {"coordinator": self.coordinator, "source": self.push_process}[role]

    def phase_of(self, version):
        """The phase that the coordinator logged last for the round of a version; None before its first."""
        for line in reversed(list(self.coordinator.errors)):
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("version") == version:
                return entry["phase"] if entry["message"] == "round phase" else "ended"
        return None

    def hit(self, role, action, seconds=None):
        """Returns whether the process was there to be hit."""
        process = self.process(role)
        if process.child.poll() is not None:
            return False
        process.send(action)
        if action != signal.SIGSTOP:
            self.ending.append(process.child)  # a large process takes a while to die, also when it is killed
        if action == signal.SIGSTOP:
            wake = time.monotonic() + (seconds or self.rng.choice((0.2, 1.0, 3.0, 7.0)))
            self.stopped.append((wake, process))
        return True

    def wake(self, now=None):
        for entry in list(self.stopped):
            if now is None or entry[0] <= now:
                self.stopped.remove(entry)
                if entry[1].child.poll() is None:
                    entry[1].send(signal.SIGCONT)

    def restart_dead(self):
        if self.coordinator.child.poll() is not None:
            self.start_coordinator()
        for rank in range(self.TP):
            if self.ranks[rank].child.poll() is not None:
                self.start_rank(rank)

    def status(self):
        result = self.run("status", "--url", self.url, "--json")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def settle(self):
        """Wait until no round is in flight and every rank has been heard; the last status."""
        end = time.monotonic() + self.settle_s
        while time.monotonic() < end:
            self.wake(time.monotonic())
            # in this order: one that dies after restart_dead has looked is not taken for a live one
            self.ending = [child for child in self.ending if child.poll() is None]
            self.restart_dead()
            status = self.status()
            registered = all(any('"registered"' in line for line in list(p.lines)) for p in self.ranks.values())
            if status is not None and registered and not self.stopped and not self.ending:
                heard = [m for m in status["members"] if m["role"] == "destination" and m["contact"] == "ok"]
                if status["state"] in ("idle", "unknown", "partially_committed") and len(heard) == self.TP:
                    return status
            time.sleep(0.05)
        raise AssertionError(f"not settled after {self.settle_s} s: {self.status()}")

    def check_serving(self, status):
        serving = [m for m in status["members"] if m["role"] == "destination" and m["serving"]]
        versions = {m["live_version"] for m in serving}
        assert len(versions) <= 1 and versions <= {1, 2}, status
        for process in list(self.ranks.values()) + self.dead_ranks:
            assert not any(json.loads(line)["event"] == "torn" for line in list(process.lines)), process.lines
        live = self.run("verify", "--live", "--url", self.url, "--json")
        if live.stdout:  # a rank that serves nothing yet has no digests to give
            for member in json.loads(live.stdout).get("live", ()):
                assert member.get("match", True), f"live memory differs: {live.stdout}"
        return versions

    def recover(self, status):
        """The claims that make the fleet whole; how many were needed."""
        claims = 0
        end = time.monotonic() + self.settle_s
        while status["poisoned"]:
            if time.monotonic() > end:
                raise AssertionError(f"still poisoned: {status['reason']}: {status}")
            for member in status["members"]:
                for claim in ("restarted", "fenced", "retry", "refill") if "poison" in member else ():
                    if self.run("recover", member["id"], claim, "--url", self.url).returncode == 0:
                        claims += 1
                        break
                else:
                    if "poison" in member and member["role"] == "source" and member["contact"] != "ok":
                        claims += self.run("recover", member["id"], "removed", "--url", self.url).returncode == 0
            time.sleep(0.2)
            status = self.settle()
        return claims


class Schedules(Case):
    def before_stop(self, fleet):
        """All is well: what else is to be looked at in the processes."""

    def after_stop(self, fleet):
        """And once they have ended."""

    def come_through(self, fleet, what):
        """After the faults: nothing torn, one version, and the next push succeeds."""
        status = fleet.settle()
        end = time.monotonic() + fleet.settle_s
        while fleet.is_pushing() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertFalse(fleet.is_pushing(), f"{what}: the push does not end")
        status = fleet.settle()
        fleet.check_serving(status)
        outcome = "poisoned" if status["poisoned"] else f"version {status['committed_version']}"
        claims = fleet.recover(status)
        last = fleet.push(3)
        self.assertEqual(last.returncode, 0, f"{what}, {outcome}, {claims} claims: {last.stdout}{last.stderr}")
        live = fleet.run("verify", "--live", "--url", fleet.url, "--json")
        self.assertEqual(live.returncode, 0, f"{what}: {live.stdout}{live.stderr}")
        self.assertEqual([m["match"] for m in json.loads(live.stdout)["live"]], [True] * fleet.TP)
        self.before_stop(fleet)
        for process in fleet.ranks.values():
            self.assertEqual(process.stop(), 0, f"{what}: {process.errors}")
        fleet.coordinator.stop()
        self.after_stop(fleet)
        return outcome, claims


class Together:
    """Several processes that push one version; they are over when all of them are."""

    def __init__(self, processes):
        self.processes, self.child = processes, self

    def poll(self):
        codes = [process.child.poll() for process in self.processes]
        return None if None in codes else max(codes, key=abs)


class SharedFleet(Fleet):
    """Two processes push, each with half of the rows."""

    N_SOURCES = 2

    def share_args(self, version, rank, *more):
        return self.push_args(version, "--json", "--split", "--ranks", self.N_SOURCES, "--rank", rank, *more)

    def start_push(self, version, *more):
        self.push_process = Together(
            [self.spawn("source", *self.share_args(version, rank, *more)) for rank in range(self.N_SOURCES)]
        )

    def push(self, version):
        """The result of rank 0, with which the others agree."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ranks = range(self.N_SOURCES)
            results = list(pool.map(lambda rank: self.run(*self.share_args(version, rank)), ranks))
        assert len({result.returncode for result in results}) == 1, results
        return results[0]

    def process(self, role):
        if role.startswith("source "):
            return self.push_process.processes[int(role.split()[1])]
        return super().process(role)


class RandomSchedules(Schedules):
    table = collections.Counter()
    FLEET, ROLES = Fleet, ROLES

    def one(self, seed):
        rng = random.Random(seed)
        fleet = self.FLEET(self, rng)
        first = fleet.push_first()
        self.assertEqual(first.returncode, 0, f"seed {seed}: {first}")
        fleet.start_push(2, "--max-rate", rng.choice(("40K", "200K", "0")))
        began, faults = time.monotonic(), []
        for delay in sorted(rng.uniform(0, 1.2) ** 2 for _ in range(rng.choice((1, 1, 2, 3)))):
            role, action = rng.choice(self.ROLES), rng.choice(ACTIONS)
            while time.monotonic() < began + delay:
                fleet.wake(time.monotonic())
                time.sleep(0.002)
            if fleet.hit(role, action):
                faults.append(f"{role} {action.name}")
        outcome, claims = self.come_through(fleet, f"seed {seed}, {faults}")
        return faults, outcome, claims

    def test_promises_hold(self):
        for seed in range(SEED, SEED + CASES):
            with self.subTest(seed=seed):
                faults, outcome, claims = self.one(seed)
                self.table["schedules"] += 1
                self.table["faults that hit a process"] += len(faults)
                self.table[f"then {outcome}"] += 1
                self.table["operator's claims"] += claims
                for fault in faults:
                    self.table[f"fault: {fault}"] += 1
            self.doCleanups()
            self.setUp()
        self.assertGreater(self.table["faults that hit a process"], 0)
        for name in sorted(self.table):
            print(f"| {name} | {self.table[name]} |")


class RandomSchedulesOfTwoSources(RandomSchedules):
    table = collections.Counter()
    FLEET = SharedFleet
    ROLES = ("coordinator", "source 0", "source 1", "source 1", "rank 0", "rank 1")


class EachPhase(Schedules):
    PHASES = ("preflight", "prepare", "stage", "verify", "pause", "flip", "resume", "release")
    TRIES = 4

    def hit_in_phase(self, models, role, phase, action):
        """One round, the signal sent when the phase is seen; the phase that was really hit, and what came of it."""
        fleet = Fleet(self, random.Random(0), models)
        first = fleet.push_first()
        self.assertEqual(first.returncode, 0, first)
        fleet.start_push(2)
        end = time.monotonic() + SETTLE_S
        while fleet.phase_of(2) not in (phase, "ended"):
            self.assertLess(time.monotonic(), end)
        there = fleet.hit(role, action, seconds=8)  # longer than any deadline
        seen = fleet.phase_of(2)
        outcome, claims = self.come_through(fleet, f"{role} {action.name} in {phase}")
        return (seen if there else "ended"), outcome, claims

    def test_every_role_in_every_phase(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="heft-fault-"))
        self.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        models = {1: folder / "one", 2: folder / "two", 3: folder / "three"}
        for version, path in models.items():
            write_big_model(path, version)
        wanted = [(r, p, a) for a in (signal.SIGKILL, signal.SIGSTOP) for r in ROLES for p in self.PHASES]
        if os.environ.get("HEFT_TEST_PHASES") != "all":
            wanted = [(ROLES[i % 4], p, signal.SIGKILL) for i, p in enumerate(self.PHASES)][:: 2]
        print("| role | signal | phase | came to | claims |\n|---|---|---|---|---|")
        for role, phase, action in wanted:
            for attempt in range(self.TRIES):
                with self.subTest(role=role, phase=phase, action=action.name):
                    seen, outcome, claims = self.hit_in_phase(models, role, phase, action)
                self.doCleanups()
                self.setUp()
                if seen == phase:
                    break
            print(f"| {role} | {action.name} | {seen} | {outcome} | {claims} |", flush=True)


class ManyPushes(Schedules):
    def test_a_reader_never_sees_two_versions(self):
        """Every parameter is read and digested all the time, while versions change under the readers' pauses."""
        count = int(os.environ.get("HEFT_TEST_PUSHES", "20"))
        fleet = Fleet(self, random.Random(0))
        for version in range(1, count + 1):
            fleet.models[version] = fleet.models[(version - 1) % 3 + 1]
            result = fleet.push(version)
            self.assertEqual(result.returncode, 0, f"version {version}: {result.stderr}")
        passes = []
        for process in fleet.ranks.values():
            process.wait_event("live", version=count)
            self.assertEqual(process.stop(), 0, process.errors)
            events = [json.loads(line) for line in process.lines]
            self.assertEqual([e["version"] for e in events if e["event"] == "live"], list(range(1, count + 1)))
            readers = [e for e in events if e["event"] == "readers"][-1]
            self.assertFalse(readers["torn"])
            passes.append(readers["passes"])
            self.assertGreaterEqual(readers["passes"], count)
        print(f"{count} pushes, {passes} passes of the readers, none torn")


if __name__ == "__main__":
    unittest.main()

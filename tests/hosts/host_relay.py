# SPDX-License-Identifier: Apache-2.0
"""Relays between hosts: a trainer and four replicas of an engine, a host each, all cables alike and slow.

The trainer's cable is the limit: without relays it carries four times the model. What a round takes is read from the coordinator's log
of rounds, with and without relays, one after the other. Then relays are killed and stopped while they forward.
"""
import json
import signal

from host_fleet import HOLD_S, LIMITS, HostFleet, HostSchedules
from host_ucx import received
from network import main

REPLICAS = 4
RATE = "80mbit"


class Replicas(HostFleet):
    """Each "rank" of the fleet is an engine of its own here: replica N, rank 0."""

    RECIPE, TP = ("--recipe", "hf-to-engine-dense", "--let", "tp=1"), REPLICAS
    limits = tuple("60000" if before == "--stage-ms" else this for before, this in zip(("", *LIMITS), LIMITS))
    deadline_ms = 60000

    def start_coordinator(self):
        self.rounds = self.case.dir / "rounds"
        super().start_coordinator()

    def spawn(self, role, *args):
        if role == "coordinator":
            args += ("--round-log", self.rounds)
        if role.startswith("rank "):  # they were given their number as a rank
            at = args.index("--rank")
            args = (*args[:at], "--replica", args[at + 1], "--rank", 0, *args[at + 2:])
        return super().spawn(role, *args)

    def round_of(self, version):
        return next(r for r in map(json.loads, reversed(self.rounds.read_text().splitlines())) if r["version"] == version)

    def slow(self):
        for name in ("trainer", *(f"engine-{i}" for i in range(REPLICAS))):
            self.hosts[name].slow(RATE)


class Relays(HostSchedules):
    FLEET = Replicas
    SIZES = {"hidden": 512, "inner": 2048, "layers": 6}
    PLACEMENT = {"source": "trainer", **{f"rank {i}": f"engine-{i}" for i in range(REPLICAS)}}
    SETTINGS = ("UCX_TLS=tcp",)

    def timed(self, *settings):
        """Seconds of stage, bytes that left the trainer, and who forwarded to each replica, for a round of version 2."""
        self.SETTINGS = (*Relays.SETTINGS, *settings)
        fleet = self.fleet()
        fleet.slow()
        before = sum(received(fleet.hosts[f"engine-{i}"]) for i in range(REPLICAS))
        out = sent(fleet.hosts["trainer"])
        result = fleet.push(2)
        self.assertEqual(result.returncode, 0, result)
        entry = fleet.round_of(2)
        came = sum(received(fleet.hosts[f"engine-{i}"]) for i in range(REPLICAS)) - before
        relays = {m["id"]: m.get("relay") for m in entry["members"] if m["role"] == "destination"}
        self.assertEqual(entry["bytes"] // REPLICAS * REPLICAS, entry["bytes"])
        return entry["seconds"]["stage"], sent(fleet.hosts["trainer"]) - out, came, entry["bytes"] // REPLICAS, relays

    def test_the_trainers_cable_carries_the_model_once(self):
        direct_s, direct_sent, _, size, relays = self.timed("HEFT_RELAY=off")
        self.assertEqual(set(relays.values()), {None})
        self.doCleanups()
        self.setUp()
        relayed_s, relayed_sent, came, _, relays = self.timed()  # auto
        print(f"| {REPLICAS} replicas of {size / 1e6:.0f} MB, cables of {RATE} | stage, s | sent by the trainer, MB |\n|---|---|---|\n"
              f"| from the source alone | {direct_s:.2f} | {direct_sent / 1e6:.0f} |\n"
              f"| relayed | {relayed_s:.2f} | {relayed_sent / 1e6:.0f} |\n| ratio | {direct_s / relayed_s:.2f} | |", flush=True)
        ids = [f"destination.heft.{i}.0" for i in range(REPLICAS)]
        self.assertEqual(sorted(filter(None, relays.values())), sorted(i for i in ids if i in relays.values()))
        self.assertEqual(list(relays.values()).count(None), 1)  # a chain: one is served by the trainer
        self.assertLess(relayed_sent, 1.2 * size)
        self.assertGreater(direct_sent, REPLICAS * size)
        self.assertGreater(came, REPLICAS * size)
        self.assertGreater(direct_s / relayed_s, 2.0)

    def hit(self, place, action):
        """The one at `place` in the chain, while it forwards."""
        self.SETTINGS = (*Relays.SETTINGS, "HEFT_UCX_SILENCE_MS=5000")
        fleet = self.fleet()
        chain = chain_of(fleet.round_of(1))
        role = f"rank {chain[place].split('.')[2]}"
        fleet.slow()
        seen = self.await_phase(fleet, "stage")
        self.await_bytes(fleet, f"engine-{chain[place + 1].split('.')[2]}")
        self.assertTrue(fleet.hit(role, action, seconds=HOLD_S))
        self.hold(fleet)
        for host in fleet.hosts.values():
            host.join()
        outcome, claims = self.come_through(fleet, f"{chain[place]} {action.name}")
        self.assertIn(chain[place], self.cause(fleet))
        self.assertEqual(chain_of(fleet.round_of(3))[-1], chain[place])  # the next push forwards nothing by it
        self.assertEqual((outcome, claims), ("version 1", 0))
        print(f"| {place} of {REPLICAS} in the chain | {action.name} | {seen} | {outcome} | {claims} |\n{self.cause(fleet)}", flush=True)
        return fleet, chain

    def await_bytes(self, fleet, name):
        """The host is being sent something that is more than talk."""
        was = received(fleet.hosts[name])
        while received(fleet.hosts[name]) < was + 2_000_000:
            self.assertIsNone(fleet.push_process.child.poll(), fleet.push_process.errors)

    def test_a_relay_that_is_killed(self):
        for place in (0, 1):
            with self.subTest(place=place):
                self.hit(place, signal.SIGKILL)
            self.doCleanups()
            self.setUp()

    def test_a_relay_that_is_stopped(self):
        self.hit(1, signal.SIGSTOP)


def sent(host):
    lines = host.run("cat", "/proc/net/dev").stdout.splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("eth0:"))


def chain_of(entry):
    """Member ids, from the one that the trainer sends to."""
    relays = {m["id"]: m.get("relay") for m in entry["members"] if m["role"] == "destination"}
    chain = [next(i for i, relay in relays.items() if relay is None)]
    while len(chain) < len(relays):
        chain.append(next(i for i, relay in relays.items() if relay == chain[-1]))
    return chain


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Weights that cross the cables: a trainer's host, two hosts with two engine ranks each, a coordinator's and an operator's.

Cables that are cut or drop one way, hosts that come back elsewhere, links that are slow, and processes that are killed or stopped, in
the middle of a round. After each, whoever serves, serves one version whole (its digests are compared with those of the version), and
the next push succeeds, with the claims that heft asks for and no others.

HEFT_TEST_PHASES=all tries every fault in every phase; without it some of them.
"""
import signal
import time

from host_fleet import ANSWER_S, CHOSEN, COORDINATOR, FAULTS, HOLD_S, HostFleet, HostSchedules
from network import main

RATE = "300mbit"  # of the trainer's cable: staging takes most of a second, long enough to be hit


class Between(HostSchedules):
    SETTINGS = ("UCX_TLS=tcp", "HEFT_UCX_SILENCE_MS=3000")
    PLACEMENT = {"source": "trainer", "rank 0": "engine-0", "rank 1": "engine-0", "rank 2": "engine-1", "rank 3": "engine-1"}


class Cables(Between):
    def one(self, where, fault, phase):
        fleet = self.fleet()
        fleet.hosts["trainer"].slow(RATE)
        seen = self.await_phase(fleet, phase)
        self.spoil(fleet.hosts[where], fault)
        self.hold(fleet)
        for host in fleet.hosts.values():
            host.join()
        return seen, *self.come_through(fleet, f"{where}: {fault} in {phase}")

    def test_a_cable_that_fails_in_each_phase(self):
        places = ("trainer", "engine-1", COORDINATOR)
        cases = [(where, fault, phase) for where in places for fault in FAULTS for phase in CHOSEN]
        self.each("cable of", cases or [("trainer", "cut", "stage"), ("engine-1", "drop in", "stage"), ("engine-1", "cut", "flip")],
                  self.one)


class Processes(Between):
    def one(self, role, action, phase):
        fleet = self.fleet()
        fleet.hosts["trainer"].slow(RATE)
        seen = self.await_phase(fleet, phase)
        there = fleet.hit(role, action, seconds=HOLD_S)
        return (seen if there else "ended"), *self.come_through(fleet, f"{role} {action.name} in {phase}")

    def test_a_process_that_is_killed_or_stopped_in_each_phase(self):
        roles, actions = (COORDINATOR, "source", "rank 1", "rank 2"), (signal.SIGKILL, signal.SIGSTOP)
        cases = [(role, action, phase) for action in actions for role in roles for phase in CHOSEN]
        self.each("role", cases or [("source", signal.SIGKILL, "stage"), ("rank 2", signal.SIGKILL, "stage"),
                                    ("rank 1", signal.SIGSTOP, "stage")], self.one)


class FourSources(HostFleet):
    n_sources = 4


class SeveralSources(Processes):
    """Four sources on two hosts, four ranks on two others: every rank receives from all sources."""

    FLEET = FourSources
    PLACEMENT = Between.PLACEMENT | {"source": "trainer", "source 1": "trainer", "source 2": "trainer-1", "source 3": "trainer-1"}

    def test_a_process_that_is_killed_or_stopped_in_each_phase(self):
        roles, actions = ("source", "source 2", "rank 1"), (signal.SIGKILL, signal.SIGSTOP)
        cases = [(role, action, phase) for action in actions for role in roles for phase in CHOSEN]
        self.each("role, four sources", cases or [("source 2", signal.SIGKILL, "stage"), ("rank 1", signal.SIGKILL, "stage")], self.one)

    def test_a_cable_of_some_of_the_sources(self):
        def one(where, fault, phase):
            fleet = self.fleet()
            fleet.hosts["trainer"].slow(RATE)
            seen = self.await_phase(fleet, phase)
            self.spoil(fleet.hosts[where], fault)
            self.hold(fleet)
            for host in fleet.hosts.values():
                host.join()
            return seen, *self.come_through(fleet, f"{where}: {fault} in {phase}")

        self.each("cable, four sources", [("trainer-1", "cut", phase) for phase in CHOSEN or ("stage",)], one)


class Hosts(Between):
    def test_a_host_returns_with_another_address(self):
        for number, name in enumerate(("engine-0", "trainer", COORDINATOR)):
            with self.subTest(host=name):
                fleet = self.fleet()
                fleet.hosts["trainer"].slow(RATE)
                seen = self.await_phase(fleet, "stage")
                fleet.reboot(name, f"198.18.0.{90 + number}")
                outcome, claims = self.come_through(fleet, f"{name} elsewhere")
                print(f"| {name} | new address | {seen} | {outcome} | {claims} |", flush=True)
            self.doCleanups()
            self.setUp()


class Slow(Between):
    def test_a_slow_link_is_waited_for_within_the_deadline(self):
        fleet = self.fleet()
        fleet.hosts["engine-1"].slow("60mbit")
        fleet.start_push(2)
        end = time.monotonic() + ANSWER_S
        while fleet.push_process.child.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertEqual(fleet.push_process.child.returncode, 0, fleet.push_process.errors)
        outcome, claims = self.come_through(fleet, "slow link")
        self.assertEqual((outcome, claims), ("version 2", 0))

    def test_a_link_too_slow_for_the_deadline_is_named(self):
        fleet = self.fleet()
        fleet.hosts["engine-1"].slow("2mbit")
        fleet.start_push(2)
        end = time.monotonic() + ANSWER_S
        while fleet.push_process.child.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertEqual(fleet.push_process.child.returncode, 5, fleet.push_process.errors)
        fleet.hosts["engine-1"].join()
        self.come_through(fleet, "a link too slow")
        self.assertRegex(self.cause(fleet), r"destination\.heft\.0\.[23]")
        self.assertNotRegex(self.cause(fleet), r"destination\.heft\.0\.[01]")


if __name__ == "__main__":
    main()

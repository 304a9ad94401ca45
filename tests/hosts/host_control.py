# SPDX-License-Identifier: Apache-2.0
"""Between a coordinator and the host of all members: cables cut, dropped one way, hosts that come back with another address.

The weights do not cross the cable here (source and ranks are on one host, over shared memory); the orders do, with token and TLS.
After each fault the fleet serves one version whole, and the next push succeeds.

HEFT_TEST_PHASES=all tries every kind of fault in every phase; without it some of them.
"""
import json
import random

from host_fleet import CHOSEN, COORDINATOR, FAULTS, HostFleet, HostSchedules
from network import main

class Cables(HostSchedules):
    def one(self, where, fault, phase):
        fleet = self.fleet()
        seen = self.await_phase(fleet, phase)
        self.spoil(fleet.hosts[where], fault)
        self.hold(fleet)
        fleet.hosts[where].join()
        return seen, *self.come_through(fleet, f"{where}: {fault} in {phase}")

    def test_a_cable_that_fails_in_each_phase(self):
        cases = [(where, fault, phase) for where in ("node", COORDINATOR) for fault in FAULTS for phase in CHOSEN]
        self.each("cable of", cases or [("node", "cut", "stage"), (COORDINATOR, "cut", "pause"), ("node", "drop in", "prepare"),
                                        (COORDINATOR, "drop in", "flip")], self.one)


class Addresses(HostSchedules):
    def test_the_coordinators_host_returns_with_another_address(self):
        fleet = self.fleet()
        self.await_phase(fleet, "stage")
        fleet.reboot(COORDINATOR, "198.18.0.99")
        outcome, claims = self.come_through(fleet, "coordinator elsewhere")
        self.assertEqual(claims, 0, outcome)

    def test_the_members_host_returns_with_another_address(self):
        fleet = self.fleet()
        self.await_phase(fleet, "stage")
        fleet.reboot("node", "198.18.0.98")
        self.come_through(fleet, "members elsewhere")  # both ends of a transfer are gone: it may take claims

    def test_an_address_that_changes_under_running_members(self):
        fleet = self.fleet()
        fleet.hosts["node"].set_address("198.18.0.97")
        fleet.start_push(2)
        outcome, claims = self.come_through(fleet, "node renumbered")
        self.assertEqual(claims, 0, outcome)


class SharedMemory(HostSchedules):
    SIZES = {"hidden": 64, "inner": 128, "layers": 1}

    def test_is_refused_between_hosts_by_name(self):
        placement = {"source": "trainer", "rank": "node"}
        fleet = HostFleet(self, random.Random(0), self.models, placement, ["HEFT_TRANSPORT=shm"])
        result = fleet.push(1)
        self.assertEqual(result.returncode, 5, result)
        error = json.loads(result.stdout)["error"]
        self.assertEqual(error["status"], "ERR_PEER", error)
        self.assertIn("another host", error["message"])


if __name__ == "__main__":
    main()

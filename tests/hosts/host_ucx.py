# SPDX-License-Identifier: Apache-2.0
"""Weights that cross the cable: the transport ucx between hosts, chosen by itself, over one network and over two."""
import random
import time

from host_fleet import HOLD_S, HostFleet, HostSchedules
from network import main

SETTINGS = ("HEFT_LOG=info", "UCX_TLS=tcp")
NODES = {"source": "trainer", "rank": "node", "rank 2": "other", "rank 3": "trainer"}


def received(host, device="eth0"):
    lines = host.run("cat", "/proc/net/dev").stdout.splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith(device + ":"))


class Between(HostSchedules):
    PLACEMENT = NODES

    def fleet(self, placement=None, seed=0):
        fleet = HostFleet(self, random.Random(seed), self.models, placement or self.PLACEMENT, SETTINGS)
        self.first = fleet.push(1)
        self.assertEqual(self.first.returncode, 0, self.first)
        return fleet

    def test_each_link_takes_the_way_that_is_there(self):
        fleet = self.fleet()
        for rank, way in enumerate(("ucx tcp/eth0", "ucx tcp/eth0", "ucx tcp/eth0", "shm")):
            self.assertIn(f"destination.heft.0.{rank} by {way}", self.first.stderr)
        size = sum(path.stat().st_size for path in self.models[1].glob("*.safetensors"))
        self.assertGreater(received(fleet.hosts["node"]), size / 4)
        fleet.start_push(2)
        _, claims = self.come_through(fleet, "ucx")
        self.assertEqual(claims, 0)

    def test_a_cable_that_is_cut_while_weights_cross_it(self):
        fleet = self.fleet()
        self.await_phase(fleet, "stage")
        fleet.hosts["node"].cut()
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end and fleet.push_process.child.poll() is None:
            time.sleep(0.05)
        fleet.hosts["node"].join()
        self.come_through(fleet, "cut in stage")


class TwoNetworks(HostSchedules):
    def test_they_share_the_load(self):
        lanes = ("HEFT_UCX_LANES=2", "HEFT_UCX_DEVICES=eth0,eth1", "HEFT_TRANSPORT=ucx", *SETTINGS)
        fleet = HostFleet(self, random.Random(0), self.models, {"source": "trainer", "rank": "node"}, lanes,
                          prepare=lambda hosts: [host.second_cable() for host in hosts.values()])
        before = [received(fleet.hosts["node"], device) for device in ("eth0", "eth1")]
        result = fleet.push(1)
        self.assertEqual(result.returncode, 0, result)
        took = [received(fleet.hosts["node"], device) - was for device, was in zip(("eth0", "eth1"), before)]
        print("bytes by eth0, eth1:", *took)
        self.assertGreater(min(took), sum(took) / 20, result.stderr)  # small tensors go by one of them alone


if __name__ == "__main__":
    main()

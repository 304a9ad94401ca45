# SPDX-License-Identifier: Apache-2.0
"""A host that has vanished, while others still know the way to it: nobody waits for it longer than he wants to.

Every packet to it is lost without a sign, as behind a router of a network that has failed. TCP tries to connect for two minutes.
"""
import os
import re
import subprocess
import time
import unittest

from network import Network, main

PEER = os.environ["HEFT_UCX_PEER"]  # the program of the tests of ucx: with --peer it does what it is told
BYTES = 1 << 20
SILENCE_MS = 3000
WITHIN_MS = 3000
CONNECT_S = 7  # UCX waits for TCP, which asks three times
MARGIN_S = 7  # for a busy machine


class Peer:
    """One end of the transport, on a host."""

    def __init__(self, case, host):
        self.child = subprocess.Popen([*host.prefix(), "env", "UCX_TLS=tcp", PEER, "--peer", "1", "1", str(SILENCE_MS), ""],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        case.addCleanup(self.kill)

    def tell(self, text):
        """What it answers, and after how many seconds."""
        began = time.monotonic()
        self.child.stdin.write(text + "\n")
        return self.child.stdout.readline().rstrip("\n"), time.monotonic() - began

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()

    def end(self):
        """It says goodbye to whom it can; its exit status, and how long it took."""
        began = time.monotonic()
        self.child.stdin.close()
        code = self.child.wait(120)
        return code, time.monotonic() - began


def know_the_way(host, other):
    """As to a host behind a router: it is not asked for its hardware address, and not missed."""
    link = re.search(r"link/ether (\S+)", other.net("ip", "link", "show", "eth0")).group(1)
    host.net("ip", "neighbour", "replace", other.address, "lladdr", link, "dev", "eth0", "nud", "permanent")


class Vanished(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.end)
        self.here, self.there = self.network.host("here"), self.network.host("there")
        know_the_way(self.here, self.there)

    def test_a_receiver_that_has_vanished_costs_its_sender_the_deadline(self):
        sender, receiver, other = Peer(self, self.here), Peer(self, self.there), Peer(self, self.here)
        endpoint, _ = receiver.tell(f"window {BYTES}")
        near, _ = other.tell(f"window {BYTES}")
        self.there.drop("in")
        said, took = sender.tell(f"attach-within {WITHIN_MS} {endpoint}")
        self.assertRegex(said, "ERR_TIMEOUT|ERR_PEER", said)
        self.assertLess(took, CONNECT_S + MARGIN_S, said)
        # and its thread is there for others
        said, took = sender.tell(f"attach-within 20000 {near}")
        self.assertEqual(said.strip(), "OK")
        self.assertLess(took, MARGIN_S)
        code, took = sender.end()
        self.assertEqual(code, 0)
        self.assertLess(took, MARGIN_S)


if __name__ == "__main__":
    main()

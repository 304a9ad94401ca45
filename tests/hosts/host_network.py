# SPDX-License-Identifier: Apache-2.0
"""That the hosts of these tests are what the others take them for."""
import os
import pathlib
import select
import signal
import subprocess
import sys
import unittest

from network import Network, WAIT_S, child_of, main

SERVE = """
import socket
listener = socket.create_server(("0.0.0.0", 7))
print("listening", flush=True)
while True:
    with listener.accept()[0] as peer:
        while block := peer.recv(1 << 16):
            peer.sendall(block[:1])
"""
# sends some bytes and wants an answer, within some seconds
ASK = """
import socket, sys, time
name, count, wait = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
began = time.monotonic()
with socket.create_connection((name, 7), wait) as peer:
    peer.sendall(bytes(count))
    peer.shutdown(socket.SHUT_WR)
    while peer.recv(1 << 16):
        pass
print(time.monotonic() - began)
"""


class Hosts(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.end)
        self.one, self.two = self.network.host("one"), self.network.host("two")

    def server(self, host):
        child = subprocess.Popen([*host.prefix(), sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.wait, WAIT_S)
        self.addCleanup(child.stdout.close)
        self.addCleanup(self.network.end)  # with which it ends
        self.assertEqual(child.stdout.readline(), "listening\n")

    def ask(self, count=1, name="two"):
        result = self.one.run(sys.executable, "-S", "-c", ASK, name, count, WAIT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        return float(result.stdout)

    def ask_in_vain(self, name="two"):
        self.assertNotEqual(self.one.run(sys.executable, "-S", "-c", ASK, name, 1, 0.5).returncode, 0)

    def test_each_has_what_a_host_has(self):
        def of(host, *args):
            result = host.run(*args)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        self.assertEqual(of(self.one, "cat", "/proc/sys/kernel/hostname"), "one\n")
        ids = {of(host, "cat", "/proc/sys/kernel/random/boot_id") for host in (self.one, self.two)}
        ids.add(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
        self.assertEqual(len(ids), 3)
        for kind in ("net", "mnt", "ipc", "uts", "pid"):
            links = {of(host, "readlink", f"/proc/self/ns/{kind}") for host in (self.one, self.two)}
            self.assertEqual(len(links | {os.readlink(f"/proc/self/ns/{kind}") + "\n"}), 3, kind)
        of(self.one, "touch", "/dev/shm/mine")
        self.assertEqual(of(self.one, "ls", "/dev/shm"), "mine\n")
        self.assertEqual(of(self.two, "ls", "/dev/shm"), "")
        self.assertFalse(os.path.exists("/dev/shm/mine"))

    def test_cables_can_be_cut_dropped_one_way_and_joined(self):
        self.server(self.two)
        self.ask()
        for host in (self.one, self.two):
            for spoil in (host.cut, lambda host=host: host.drop("in"), lambda host=host: host.drop("out")):
                spoil()
                self.ask_in_vain()
                host.join()
                self.ask()

    def test_a_slow_cable_is_slow(self):
        self.server(self.two)
        self.two.slow("16mbit")
        took = self.ask(1_000_000)
        self.assertGreater(took, 0.4)  # half a second at that rate, less the burst
        self.two.join()

    def test_a_new_address_is_known_to_all(self):
        self.server(self.two)
        self.two.set_address("198.18.0.77")
        self.ask()
        self.ask(name="198.18.0.77")
        self.ask_in_vain(name="198.18.0.2")

    def test_nothing_is_left_when_its_maker_is_killed(self):
        script = """
import time
from network import Network
network = Network()
host = network.host("left")
import subprocess
child = subprocess.Popen([*host.prefix(), "sleep", "1000"])
print(host.init.pid, host.pid, network.switch.pid, child.pid, network.folder, flush=True)
time.sleep(1000)
"""
        maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                                 cwd=pathlib.Path(__file__).parent)
        self.addCleanup(maker.stdout.close)
        *pids, folder = maker.stdout.readline().split()
        self.assertIsNotNone(child_of(int(pids[0])))
        watches = [os.pidfd_open(int(pid)) for pid in pids]
        maker.send_signal(signal.SIGKILL)
        maker.wait(WAIT_S)
        for watch in watches:
            with os.fdopen(watch):
                self.assertTrue(ended(watch))
        self.assertFalse(os.path.exists(folder))


def ended(pidfd):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * WAIT_S))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: namespaces joined by a switch, each with what a host has of its own.

A Host is a process (its init) in namespaces of its own: network, mounts, IPC, processes, host name. It has a /dev/shm, a boot id, an
/etc/hosts and one address, and sees the rest of the file system, as if that came from a file server. A Network has a switch (a bridge in
a namespace of its own) and cables (veth pairs). Nothing is added to the namespaces of the machine: no names, no addresses, no routes,
so several networks can be there at a time, and addresses never collide.

Everything goes away with the process that made it, also when that is killed: each init waits for the end of a pipe, and with it end its
processes, with them their namespaces, with those the cables.

Cables can be cut, dropped one way, and slowed (qdiscs tbf and blackhole, which every kernel with traffic control has). A delay
needs netem; `Network.has_delay` says whether this kernel has it.

Who is not root uses a user namespace, where the kernel allows it (`main` does so).
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import uuid

OFF = "HEFT_TEST_HOSTS"
INSIDE = "HEFT_TEST_HOSTS_INSIDE"
TOOLS = ("unshare", "nsenter", "mount", "hostname", "ip", "tc")
NET = "198.18.0"  # the range of RFC 2544, for tests of networks: no real host has it
WAIT_S = 60
INIT = """
set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
echo "$1" >/dev/shm/boot_id
mount --bind /dev/shm/boot_id /proc/sys/kernel/random/boot_id
rm /dev/shm/boot_id
hostname "$2"
mount --bind "$3" /etc/hosts
ip link set lo up
echo ready
exec cat
"""

# it is the last to go, so it also removes the folder when its maker cannot any more
SWITCH = """
ip link set lo up && echo ready && cat
rm -rf "$1"
"""


class Forbidden(Exception):
    """This machine does not let us make hosts."""


def command(args, **kwargs):
    """Run a tool to its end; its output. What it says is in the exception."""
    result = subprocess.run(list(map(str, args)), capture_output=True, text=True, timeout=WAIT_S, check=False, **kwargs)
    if result.returncode != 0:
        raise Forbidden(f"{' '.join(map(str, args))}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def sbin_path():
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


class Namespaces:
    """The namespaces of one host or switch, and the process that holds them."""

    def __init__(self, name, unshare, script, *args):
        self.name = name
        self.init = subprocess.Popen(
            ["unshare", *unshare, "--fork", "--kill-child", "sh", "-c", script, "sh", *map(str, args)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PATH": sbin_path()},
        )
        if self.init.stdout.readline() != "ready\n":
            said = self.init.communicate(timeout=WAIT_S)[1].strip()
            raise Forbidden(f"host {name}: unshare {' '.join(unshare)}: {said}")
        self.pid = child_of(self.init.pid)

    def end(self):
        """Everything in them ends with their init."""
        self.init.stdin.close()
        self.init.wait(WAIT_S)
        self.init.stdout.close()
        self.init.stderr.close()

    def net(self, *args):
        """Run a tool on the network of this host, with the programs and files of the machine."""
        return command(("nsenter", "--target", self.pid, "--net", *args), env=os.environ | {"PATH": sbin_path()})


def child_of(pid):
    """The only child of unshare or nsenter; None where it has none (any more)."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return None
    return int(children[0]) if children else None


def is_child(pid, parent):
    """What child_of says is right only while nothing changes; this is right at any time."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[1]) == parent


class Host(Namespaces):
    def __init__(self, network, name, number):
        hosts = network.folder / f"hosts-{name}"
        hosts.write_text("")
        unshare = ("--net", "--mount", "--ipc", "--uts", "--pid", "--mount-proc")
        super().__init__(name, unshare, INIT, uuid.uuid4(), name, hosts)
        self.network, self.hosts, self.port = network, hosts, f"p{number}"
        self.address = None
        network.switch.net("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.pid)
        network.switch.net("ip", "link", "set", self.port, "master", "br0", "up")
        self.net("ip", "link", "set", "eth0", "up")
        self.set_address(f"{NET}.{number}")

    def set_address(self, address):
        """As a host that was started anew elsewhere: the old address is gone, and with it its connections."""
        self.net("ip", "address", "flush", "dev", "eth0")
        self.net("ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.address = address
        self.network.write_names()

    def second_cable(self):
        """Another network beside the first: eth1, with an address and a switch of its own."""
        port = f"{self.port}b"
        if "br1" not in self.network.switch.net("ip", "-o", "link", "show"):
            self.network.switch.net("ip", "link", "add", "br1", "type", "bridge", "forward_delay", "0")
            self.network.switch.net("ip", "link", "set", "br1", "up")
        self.network.switch.net("ip", "link", "add", port, "type", "veth", "peer", "name", "eth1", "netns", self.pid)
        self.network.switch.net("ip", "link", "set", port, "master", "br1", "up")
        self.net("ip", "link", "set", "eth1", "up")
        self.net("ip", "address", "add", f"198.18.1.{self.port[1:]}/24", "dev", "eth1")
        # who looks for devices there finds those of this host, no longer those of the machine
        command((*self.prefix(), "mount", "-t", "sysfs", "sysfs", "/sys"))

    def prefix(self):
        """In front of a command that is to run on this host."""
        return ("nsenter", "--target", str(self.pid), "--net", "--mount", "--ipc", "--uts", "--pid", "--")

    def run(self, *args, **kwargs):
        return subprocess.run(
            [*self.prefix(), *map(str, args)], capture_output=True, text=True, timeout=120, check=False, **kwargs
        )

    # The cable. "out" is what the host sends, "in" what it is sent.

    def cut(self):
        self.network.switch.net("ip", "link", "set", self.port, "down")

    def join(self):
        """The cable as it was made."""
        for where, device in self.ends():
            if "noqueue" not in where.net("tc", "qdisc", "show", "dev", device):
                where.net("tc", "qdisc", "delete", "dev", device, "root")
        self.network.switch.net("ip", "link", "set", self.port, "up")

    def drop(self, way):
        """What goes that way is lost without a sign; the link stays up."""
        where, device = self.ends()[("out", "in").index(way)]
        where.net("tc", "qdisc", "replace", "dev", device, "root", "blackhole")

    def slow(self, rate, delay=None):
        """Both ways at a rate such as 100mbit; delay, such as 5ms, is for kernels with netem."""
        for where, device in self.ends():
            where.net("tc", "qdisc", "replace", "dev", device, "root", "handle", "1:",
                      "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
            if delay is not None:
                where.net("tc", "qdisc", "add", "dev", device, "parent", "1:", "netem", "delay", delay)

    def ends(self):
        return (self, "eth0"), (self.network.switch, self.port)


class Network:
    """A switch with hosts. Use as a context, or end() it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="heft-hosts-"))
        self.hosts, self.switch = {}, None
        try:
            missing = [tool for tool in TOOLS if shutil.which(tool, path=sbin_path()) is None]
            if missing:
                raise Forbidden(f"not installed: {', '.join(missing)} (tools/setup installs them)")
            self.switch = Namespaces("switch", ("--net", "--pid"), SWITCH, self.folder)
            self.switch.net("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            self.switch.net("ip", "link", "set", "br0", "up")
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def host(self, name):
        self.hosts[name] = None
        number = len(self.hosts)
        try:
            self.hosts[name] = Host(self, name, number)
        except BaseException:
            del self.hosts[name]
            raise
        self.write_names()
        return self.hosts[name]

    def write_names(self):
        """Each host knows each by its name. Written in place: a mounted file is not to be replaced."""
        known = [host for host in self.hosts.values() if host is not None and host.address is not None]
        for host in known:
            lines = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in known)]
            host.hosts.write_text("\n".join(lines) + "\n")

    @property
    def has_delay(self):
        probe = next(iter(self.hosts.values()))
        try:
            probe.net("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        except Forbidden:
            return False
        probe.net("tc", "qdisc", "delete", "dev", "lo", "root")
        return True

    def end(self):
        for part in (*self.hosts.values(), self.switch):
            if part is not None:
                part.end()
        self.hosts, self.switch = {}, None
        shutil.rmtree(self.folder, ignore_errors=True)


def require():
    """For programs that need hosts: goes on where they can be made; else says what forbids them, or that they are left out on request."""
    if os.environ.get(OFF) == "off":
        print(f"left out because {OFF}=off", file=sys.stderr)
        sys.exit(77)
    if os.geteuid() != 0 and INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", sys.executable, *sys.argv])
    try:
        with Network() as network:
            network.host("probe").slow("1gbit")
            has_delay = network.has_delay
    except (Forbidden, OSError) as error:
        print(f"FAILED: this machine does not let us make hosts of namespaces: {error}\n"
              f"They need root (or user namespaces) and the kernel's veth, bridge, sch_tbf. {OFF}=off leaves these tests out.",
              file=sys.stderr)
        sys.exit(1)
    print(json.dumps({"hosts": "namespaces", "delay": "netem" if has_delay else "none: this kernel has no netem"}), flush=True)


def main():
    require()
    unittest.main()

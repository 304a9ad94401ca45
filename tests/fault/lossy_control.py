# SPDX-License-Identifier: Apache-2.0
"""Faults on the way between real processes and their coordinator: a proxy loses, repeats and delays whole messages.

Every member and every push speaks through the proxy. Of each kind of fault a share of the requests is hit, chosen by the seed:

- lost: the request never arrives, and the connection is closed;
- unanswered: the coordinator handles the request, and its reply is lost;
- repeated: the request arrives twice, and the second reply is given;
- late: the request waits on the way while later ones of other connections pass it;
- swallowed: the request is never heard of again, and the connection stays.

Pushes go on meanwhile. Readers check every parameter all the time. A push may fail only by saying so, and never because of a
process that lives and is said to be out of contact; whoever serves, serves one version, whole; without the proxy the next push
succeeds, and live memory has the digests of its version. A push may have to wait for the contact time: a process whose
registration or farewell got lost in the end keeps its place for so long.

HEFT_TEST_PUSHES is the number of pushes, HEFT_TEST_SEED the seed, HEFT_TEST_SHARE the share of each fault. What was hit is printed at the end, and each kind must be.
"""
import collections
import json
import os
import random
import socket
import threading
import time
import unittest

from process_faults import Fleet, LIMITS, Schedules, SEED, TP, run

PUSHES = int(os.environ.get("HEFT_TEST_PUSHES", "8"))
FAULTS = ("lost", "unanswered", "repeated", "late", "swallowed")
CONTACT_S = 6  # longer than a busy machine keeps a process waiting
LOSSY_LIMITS = tuple("16000" if LIMITS[i - 1] in ("--preflight-ms", "--verify-ms") else one for i, one in enumerate(LIMITS))
LOSSY_LIMITS = ("--contact-ms", str(1000 * CONTACT_S), *LOSSY_LIMITS[2:])
SHARE = float(os.environ.get("HEFT_TEST_SHARE", "0.04"))  # of the requests, for each fault


def read_message(stream):
    """One HTTP message with a body of known length; None at the end of the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        if name.lower() == b"transfer-encoding":
            raise AssertionError(f"a message without a length: {head}")
    body = stream.read(length)
    return head + body if len(body) == length else None


class Proxy:
    """Between clients and one coordinator on loopback. Faults are off until `faulty` is set."""

    def __init__(self, port, seed):
        self.port, self.rng, self.lock = port, random.Random(seed), threading.Lock()
        self.faulty, self.hit, self.broken = False, collections.Counter(), []
        self.unanswered = ()  # beginnings of requests that are handled, and never answered
        self.blocked = ()  # beginnings of requests that are all lost
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        self.closed = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.socket.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def close(self):
        self.closed.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def draw(self, request):
        """The fault of this request, if any, and how long it is late."""
        if any(request.startswith(path) for path in self.blocked):
            self.hit["blocked"] += 1
            return "lost", 0
        if any(request.startswith(path) for path in self.unanswered):
            return "unanswered", 0
        with self.lock:
            number, delay = self.rng.random(), self.rng.uniform(0.05, 0.6)
            fault = FAULTS[int(number / SHARE)] if self.faulty and number < SHARE * len(FAULTS) else None
            self.hit[fault or "passed"] += 1
            return fault, delay

    def serve(self, client):
        try:
            with client, client.makefile("rb") as requests:
                while (request := read_message(requests)) is not None:
                    fault, delay = self.draw(request)
                    if fault == "lost":
                        return
                    if fault == "late":
                        self.closed.wait(delay)
                    if fault == "swallowed":
                        requests.read()  # until the client goes away
                        return
                    for _ in range(2 if fault == "repeated" else 1):
                        reply = self.forward(request)
                    if fault == "unanswered" or reply is None:
                        return
                    client.sendall(reply)
        except OSError:
            pass  # an end has gone away; the other one is closed, as a network would
        except AssertionError as error:
            self.broken.append(error)

    def forward(self, request):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as server:
            server.sendall(request)
            with server.makefile("rb") as replies:
                return read_message(replies)


class LossyFleet(Fleet):
    """Members that reach the coordinator through the proxy alone."""

    limits, deadline_ms = LOSSY_LIMITS, 2000 * CONTACT_S

    def start_coordinator(self):
        super().start_coordinator()
        self.direct = self.url
        self.proxy = Proxy(int(self.url.rsplit(":", 1)[1]), SEED)
        self.url = self.proxy.url


class LossyControl(Schedules):
    def test_lost_repeated_and_late_messages_keep_the_promises(self):
        fleet = LossyFleet(self, random.Random(SEED))
        proxy = fleet.proxy
        self.addCleanup(proxy.close)
        self.assertEqual(run(*fleet.push_args(1)).returncode, 0)
        outcomes = collections.Counter()
        proxy.faulty = True
        for version in range(2, 2 + PUSHES):
            fleet.models[version] = fleet.models[(version - 1) % 3 + 1]
            result = self.push_when_free(fleet, version)
            outcomes["committed" if result.returncode == 0 else "failed"] += 1
            if result.returncode != 0:
                self.assertRegex(result.stderr, "(?m)^heft push: .+", f"version {version} failed without a word")
                self.assertNotIn("no contact", result.stderr)
                print(f"version {version}: {result.stderr.splitlines()[-1]}")
        self.assertGreater(outcomes["committed"], 0)
        proxy.faulty = False
        fleet.url, last = fleet.direct, 2 + PUSHES
        status = fleet.settle()
        self.check_one_version(status)
        claims = fleet.recover(status)
        fleet.models[last] = fleet.models[1]
        result = self.push_when_free(fleet, last)
        self.assertEqual(result.returncode, 0, f"seed {SEED}: {result.stderr}")
        live = run("verify", "--live", "--url", fleet.url, "--json")
        self.assertEqual([m["match"] for m in json.loads(live.stdout)["live"]], [True] * TP)
        for process in fleet.ranks.values():
            process.wait_event("live", version=last)
            self.assertEqual(process.stop(), 0, process.errors)
            readers = [e for e in map(json.loads, process.lines) if e["event"] == "readers"][-1]
            self.assertFalse(readers["torn"])
        self.assertEqual(proxy.broken, [])
        for fault in FAULTS:
            self.assertGreater(proxy.hit[fault], 0, f"{fault}: {proxy.hit}")
        print(f"{PUSHES} pushes: {dict(outcomes)}, {claims} claims; requests: {dict(proxy.hit)}")

    def push_when_free(self, fleet, version):
        """Pushed when the place of the source is free and the round of one that gave up has ended."""
        end = time.monotonic() + 3 * CONTACT_S
        while True:
            result = run(*fleet.push_args(version))
            if not any(name in result.stderr for name in ("ERR_EXISTS", "ERR_BUSY")) or time.monotonic() > end:
                return result

    def check_one_version(self, status):
        serving = {m["live_version"] for m in status["members"] if m["role"] == "destination" and m["serving"]}
        self.assertLessEqual(len(serving), 1, status)


class PatientFleet(LossyFleet):
    """The contact time is ten minutes: a round that waits for it hangs."""

    limits = ("--contact-ms", "600000", "--prepare-ms", "600000", "--stage-ms", "600000", "--verify-ms", "600000")


class GivenUp(Schedules):
    def give_up(self, blocked):
        """A push that hears nothing of its round returns; the round does not go on without it."""
        fleet = PatientFleet(self, random.Random(SEED))
        self.addCleanup(fleet.proxy.close)
        self.assertEqual(run(*fleet.push_args(1)).returncode, 0)
        fleet.proxy.blocked = blocked
        result = run(*fleet.push_args(2, "--max-rate", "200"))
        self.assertNotEqual(result.returncode, 0)
        self.assertGreater(fleet.proxy.hit["blocked"], 0)
        fleet.proxy.blocked = ()
        fleet.url = fleet.direct
        status = fleet.settle()
        self.assertEqual((status["state"], status["committed_version"], status["poisoned"]), ("idle", 1, False))
        self.assertEqual(status["sources"], 0, "it has left")
        result = run(*fleet.push_args(3))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_push_without_news_cancels_its_round(self):
        self.give_up((b"GET /v1/rounds/",))

    def test_a_round_that_cannot_be_canceled_is_left_by_its_source(self):
        self.give_up((b"GET /v1/rounds/", b"POST /v1/rounds/"))

    def test_a_round_that_its_push_does_not_know_of_is_left_by_its_source(self):
        """The round begins, and no answer to that ever arrives."""
        fleet = PatientFleet(self, random.Random(SEED))
        proxy = fleet.proxy
        self.addCleanup(proxy.close)
        self.assertEqual(run(*fleet.push_args(1)).returncode, 0)
        proxy.unanswered = (b"POST /v1/rounds ",)
        result = run(*fleet.push_args(2, "--max-rate", "200"))
        self.assertNotEqual(result.returncode, 0)
        proxy.unanswered = ()
        fleet.url = fleet.direct
        status = fleet.settle()
        self.assertEqual((status["state"], status["committed_version"], status["poisoned"]), ("idle", 1, False))
        result = run(*fleet.push_args(3))
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""coordinator, serve, push, status, verify --live: real processes on loopback, ports from the kernel."""
import json
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest
import urllib.request

from cli_support import Case, HEFT, dense_model, run, write_dense_model, write_safetensors

TP = 2
RECIPE = ("--recipe", "hf-to-engine-dense", "--let", f"tp={TP}")
DEADLINE_S = 60


class Process:
    """A child whose standard output is read line by line in the background."""

    def __init__(self, case, *args, prefix=()):
        self.child = subprocess.Popen(
            [*prefix, HEFT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines, self.errors = [], []
        self.changed = threading.Condition()
        self.threads = [
            threading.Thread(target=self.read, args=(self.child.stdout, self.lines), daemon=True),
            threading.Thread(target=self.read, args=(self.child.stderr, self.errors), daemon=True),
        ]
        for thread in self.threads:
            thread.start()
        case.addCleanup(self.kill)

    def read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        stream.close()

    def wait_line(self, predicate):
        with self.changed:
            found = lambda: next((line for line in self.lines if predicate(line)), None)  # noqa: E731
            if not self.changed.wait_for(lambda: found() is not None, DEADLINE_S):
                raise AssertionError(f"no such line: {self.lines} {self.errors}")
            return found()

    def wait_event(self, name, **fields):
        matches = lambda e: e["event"] == name and all(e[k] == v for k, v in fields.items())  # noqa: E731
        return json.loads(self.wait_line(lambda line: matches(json.loads(line))))

    def send(self, number):
        self.child.send_signal(number)

    def stop(self, number=signal.SIGTERM):
        if self.child.poll() is None:
            self.send(number)
        code = self.child.wait(DEADLINE_S)
        for thread in self.threads:
            thread.join(DEADLINE_S)
        return code

    def kill(self):
        if self.child.poll() is None:
            self.send(signal.SIGKILL)
            self.child.wait(DEADLINE_S)
        for thread in self.threads:
            thread.join(DEADLINE_S)


class Rounds(Case):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        write_dense_model(self.model)
        self.coordinator = Process(self, "coordinator", "--port-file", self.dir / "port", "--contact-ms", "5000")
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))

    def serve(self, rank, *more):
        process = Process(
            self, "serve", "--url", self.url, *RECIPE, "--model", self.model, "--rank", rank, "--json", *more
        )
        process.wait_event("registered")
        return process

    def push(self, version, model=None, code=0, *more):
        args = (model or self.model, "--url", self.url, "--version", version, "--wait-for", TP, *more)
        return self.json("push", *args, code=code)

    def await_status(self, predicate, process):
        end = time.monotonic() + DEADLINE_S
        while not predicate(status := self.json("status", "--url", self.url)):
            self.assertLess(time.monotonic(), end, (status, process.errors))

    def test_a_checkpoint_that_is_cut_while_it_is_pushed(self):
        """What is mapped and gone is a bus error: one line names the file, and the fleet keeps what it has."""
        ranks = [self.serve(rank) for rank in range(TP)]
        self.push(1)
        trained = self.dir / "trained"
        write_dense_model(trained, start=20000)
        share = ("--url", self.url, "--version", "2", "--split", "--ranks", "2", "--rank")
        push = Process(self, "push", trained, *share, "0")
        self.await_status(lambda status: any(m["role"] == "source" for m in status["members"]), push)
        whole = shutil.copytree(trained, self.dir / "whole")
        (trained / "model.safetensors").write_bytes(b"")  # while it waits for rank 1
        other = Process(self, "push", whole, *share, "1")
        self.assertEqual(push.child.wait(DEADLINE_S), 4, push.errors)
        push.kill()
        self.assertEqual(push.errors[-1], f"heft push: {trained}/model.safetensors: it has become shorter since it was opened, or its disk failed")
        self.assertEqual(other.child.wait(DEADLINE_S), 5)
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 1)
        self.assertEqual([process.stop() for process in ranks], [0] * TP)

    def test_tcp_on_one_host_is_refused_with_what_helps(self):
        """The error of a round is cut: what to do stands before the end, also behind the names of two members."""
        if "ucx (" not in self.heft("version").stdout:
            self.skipTest("OpenUCX is not on this host")
        tcp = ("env", "UCX_TLS=tcp", "HEFT_TRANSPORT=ucx")
        serve = ("serve", "--url", self.url, *RECIPE, "--model", self.model, "--json", "--rank")
        ranks = [Process(self, *serve, rank, prefix=tcp) for rank in range(TP)]
        for process in ranks:
            process.wait_event("registered")
        push = Process(self, "push", self.model, "--url", self.url, "--version", "1", "--wait-for", TP, prefix=tcp)
        self.assertEqual(push.child.wait(DEADLINE_S), 5, push.errors)
        push.kill()
        self.assertRegex(push.errors[-1], "on one host UCX chose tcp/[a-z0-9, /]+: use shm, or set ucx-allow-tcp")
        self.assertEqual([process.stop() for process in ranks], [0] * TP)

    def test_a_name_cut_inside_a_character_costs_no_error(self):
        """The message is cut somewhere in a long name that is not ASCII: JSON has the error all the same."""
        ranks = [self.serve(rank) for rank in range(TP)]
        for pad in range(3):
            model = self.dir / f"odd-{pad}"
            tensors, config = dense_model()
            tensors["x" * pad + 60 * "\u6743" + ".weight"] = ("F32", (1,), bytes(4))
            model.mkdir()
            write_safetensors(model / "model.safetensors", tensors)
            (model / "config.json").write_text(json.dumps(config))
            result = run("push", model, "--url", self.url, "--version", "1", "--wait-for", str(TP), "--json")
            self.assertEqual(result.returncode, 5, result)
            self.assertIn("\u6743...", json.loads(result.stdout)["error"]["message"])
        self.assertEqual([process.stop() for process in ranks], [0] * TP)

    def test_a_fleet_from_nothing_to_version_two(self):
        self.assertEqual(self.url.rsplit(":", 1)[1], (self.dir / "port").read_text().strip())
        ranks = [
            self.serve(rank, "--readers", "1", "--report-file", self.dir / f"report-{rank}") for rank in range(TP)
        ]
        result = self.push(1)
        self.assertEqual((result["state"], result["version"], result["destinations"]), ("committed", 1, TP))
        self.assertGreater(result["bytes"], 0)
        for process in ranks:
            self.assertEqual(process.wait_event("live")["version"], 1)

        trained = self.dir / "trained"
        write_dense_model(trained, start=20000)
        self.assertEqual(self.push(2, trained)["state"], "committed")
        for process in ranks:
            process.wait_event("live", version=2)

        status = self.json("status", "--url", self.url)
        self.assertEqual(status["committed_version"], 2)
        text = self.heft("status", env={"HEFT_URL": self.url}).stdout
        self.assertIn("version 2", text)
        self.assertIn("destination.heft.0.1", text)

        live = self.json("verify", "--live", "--url", self.url)
        self.assertEqual([m["match"] for m in live["live"]], [True] * TP)
        self.assertIn(f"{TP} of {TP} destinations match", self.heft("verify", "--live", "--url", self.url).stdout)

        # a version that is not newer is refused, and everything stays as it was
        refused = run("push", self.model, "--url", self.url, "--version", "1", "--json")
        self.assertEqual(refused.returncode, 5)
        self.assertEqual(json.loads(refused.stdout)["error"]["status"], "ERR_VERSION")
        self.assertIn("ERR_VERSION", refused.stderr)
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 2)

        for rank, process in enumerate(ranks):
            self.assertEqual(process.stop(), 0, process.errors)
            report = json.loads((self.dir / f"report-{rank}").read_text())
            self.assertEqual([v["version"] for v in report["versions"]], [1, 2])
            self.assertFalse(report["torn"])
            self.assertGreater(report["passes"], 0)
        self.assertEqual(self.coordinator.stop(), 0)

    def flip_live_bit(self, process, pattern):
        """Change one bit of the parameter with these bytes, in the memory of a serving process."""
        pid = process.child.pid
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in maps:
                bounds, rights, _, _, inode = line.split()[:5]
                begin, end = (int(x, 16) for x in bounds.split("-"))
                if rights != "rw-p" or inode != "0" or "[" in line or end - begin > 1 << 26:
                    continue  # not anonymous memory, or a sanitizer's shadow
                memory.seek(begin)
                content = memory.read(end - begin)
                at = content.find(pattern)
                if at >= 0 and (begin + at) % 64 == 0:
                    memory.seek(begin + at)
                    memory.write(bytes([pattern[0] ^ 1]))
                    return
        self.fail("the parameter is not in the process's memory")

    def test_a_byte_that_changes_is_found(self):
        reading = self.serve(0, "--readers", "2")
        silent = self.serve(1)
        self.assertEqual(self.push(1)["state"], "committed")
        reading.wait_event("live", version=1)
        silent.wait_event("live", version=1)
        tensors = dense_model()[0]
        norm = tensors["model.layers.1.post_attention_layernorm.weight"][2]
        self.flip_live_bit(silent, norm)
        live = self.json("verify", "--live", "--url", self.url, code=1)
        by_member = {m["member"]: m for m in live["live"]}
        self.assertTrue(by_member["destination.heft.0.0"]["match"])
        self.assertFalse(by_member["destination.heft.0.1"]["match"])
        self.assertEqual(by_member["destination.heft.0.1"]["differ"], 1)
        text = self.heft("verify", "--live", "--url", self.url, code=1).stdout
        self.assertIn("1 of 2 destinations match", text)

        # It has left service, and no round begins before it has been refilled.
        self.assertIn("must not serve", silent.wait_event("suspect")["message"])
        refused = run("push", self.model, "--url", self.url, "--version", "2")
        self.assertEqual(refused.returncode, 5)
        self.assertIn("destination.heft.0.1: it reports a poisoned condition", refused.stderr)
        member = "destination.heft.0.1"
        self.assertIn("no commit stands", self.heft("recover", member, "retry", "--url", self.url, code=5).stderr)
        self.assertIn("rounds may begin", self.heft("recover", member, "refill", "--url", self.url).stdout)
        self.assertEqual(self.push(1)["state"], "committed")
        live = self.json("verify", "--live", "--url", self.url)
        self.assertTrue(all(m["match"] for m in live["live"]))

        self.flip_live_bit(reading, norm)
        self.assertIn("model.layers.1.post_attention_layernorm.weight", reading.wait_event("torn")["message"])
        self.assertEqual(reading.child.wait(DEADLINE_S), 1)
        self.assertEqual(silent.stop(), 0)

    def test_mismatched_model_is_refused_in_preflight(self):
        ranks = [self.serve(rank) for rank in range(TP)]
        other = self.dir / "other"
        write_dense_model(other, layers=1)
        refused = run("push", other, "--url", self.url, "--version", "1", "--wait-for", str(TP))
        self.assertEqual(refused.returncode, 5)
        self.assertIn("preflight", refused.stderr)
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 0)
        self.assertEqual(self.push(1)["state"], "committed")
        for process in ranks:
            process.wait_event("live", version=1)
            self.assertEqual(process.stop(signal.SIGINT), 0)

    def test_an_interrupt_cancels_a_push(self):
        ranks = [self.serve(rank, "--readers", "1") for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        pushing = Process(self, "push", self.model, "--url", self.url, "--version", "2", "--max-rate", "200")
        self.await_status(lambda status: any(m["state"] == "sending" for m in status["members"]), pushing)
        self.assertEqual(pushing.stop(signal.SIGINT), 130)
        waiting = Process(self, "push", self.model, "--url", self.url, "--version", "2", "--rank", "1", "--begin", "no")
        self.await_status(lambda status: any(m["id"] == "source.heft.0.1" for m in status["members"]), waiting)
        self.assertEqual(waiting.stop(signal.SIGINT), 130)
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 1)
        self.assertEqual(self.push(2)["state"], "committed")
        for process in ranks:
            process.wait_event("live", version=2)
            self.assertEqual(process.stop(), 0)

    def test_a_coordinator_that_restarts_goes_on(self):
        self.coordinator.stop()
        state = ("--state", self.dir / "state")
        first = Process(self, "coordinator", *state)
        self.url = first.wait_line(lambda line: line.startswith("http://"))
        ranks = [self.serve(rank, "--readers", "1") for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        self.assertEqual(first.stop(), 0)
        for process in ranks:
            process.wait_event("unreachable")
        again = Process(self, "coordinator", *state, "--port", self.url.rsplit(":", 1)[1])
        self.assertEqual(again.wait_line(lambda line: line.startswith("http://")), self.url)
        for process in ranks:
            process.wait_event("reachable")
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 1)
        self.assertEqual(self.push(2)["state"], "committed")
        for process in ranks:
            process.wait_event("live", version=2)
            self.assertEqual(process.stop(), 0)

    def test_missing_ranks_are_refused_and_named(self):
        result = run("push", self.model, "--url", self.url, "--version", "1")
        self.assertEqual(result.returncode, 5)
        self.assertIn("empty side: 1 source, 0 destinations: no destination is registered at " + self.url, result.stderr)
        first = self.serve(1)
        result = run("push", self.model, "--url", self.url, "--version", "1")
        self.assertEqual(result.returncode, 5)
        self.assertIn("destinations for rank 0 of 2 are missing: start them, or wait with --wait-for 2", result.stderr)
        self.assertEqual(result.stderr.count("source.heft.0.0"), 1)
        self.assertEqual(self.json("status", "--url", self.url)["committed_version"], 0)
        second = self.serve(0)
        self.assertEqual(self.push(1)["state"], "committed")
        again = self.heft("push", self.model, "--url", self.url, "--version", "1").stdout
        self.assertIn("already live everywhere", again)
        for process in (first, second):
            self.assertEqual(process.stop(), 0)

    def test_a_dead_member_is_shown_and_can_be_removed(self):
        ranks = [self.serve(rank) for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        dead = "destination.heft.0.1"
        refused = self.heft("remove", dead, "--url", self.url, code=5)
        self.assertIn("--force", refused.stderr)
        ranks[1].kill()
        self.await_contact(dead, "silent")
        self.await_contact(dead, "lost")
        self.assertRegex(self.heft("status", "--url", self.url).stdout, rf"{dead} .*lost \d+ s")
        aborted = run("push", self.model, "--url", self.url, "--version", "2")
        self.assertEqual(aborted.returncode, 5)
        self.assertIn(f"{dead}: no contact for 5 s: restart it, or take it out with heft remove", aborted.stderr)
        self.assertIn("left: 1 destination\n", self.remove_when_idle(dead))
        members = self.json("status", "--url", self.url)["members"]
        self.assertNotIn(dead, [m["id"] for m in members])
        self.heft("remove", dead, "--url", self.url, code=5)
        again = self.serve(1)
        self.assertEqual(self.push(2)["state"], "committed")
        for process in (ranks[0], again):
            self.assertEqual(process.stop(), 0)

    def await_contact(self, member, contact):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            members = {m["id"]: m for m in self.json("status", "--url", self.url)["members"]}
            if members[member]["contact"] == contact:
                return
        self.fail(f"{member} is not {contact}")

    def remove_when_idle(self, member):
        """The round that the dead member was in is still being released for a moment."""
        end = time.monotonic() + DEADLINE_S
        while True:
            result = run("remove", member, "--url", self.url, "--force")
            if result.returncode == 0 or time.monotonic() > end:
                self.assertEqual(result.returncode, 0, result.stderr)
                return result.stdout
            self.assertIn("ERR_BUSY", result.stderr)

    def test_wait_for_has_a_deadline(self):
        result = run("push", self.model, "--url", self.url, "--version", "1", "--wait-for", "1", "--wait-seconds", "1")
        self.assertEqual(result.returncode, 5)
        self.assertIn("0 of 1 destinations after 1 s: nobody has registered", result.stderr)
        process = self.serve(1)
        result = run("push", self.model, "--url", self.url, "--version", "1", "--wait-for", "2", "--wait-seconds", "1")
        self.assertEqual(result.returncode, 5)
        self.assertIn("1 of 2 destinations after 1 s: there are destination.heft.0.1", result.stderr)
        self.assertEqual(process.stop(), 0)

    def test_a_rank_that_stops_is_named_and_not_waited_for_twice(self):
        """Once it has been missed for the contact time, nothing waits for it: no attach, no abort."""
        ranks = [self.serve(rank) for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        ranks[1].child.send_signal(signal.SIGSTOP)
        result = run("push", self.model, "--url", self.url, "--version", "2")
        self.assertEqual(result.returncode, 5)
        self.assertIn("destination.heft.0.1: no contact for 5 s", result.stderr)
        self.assertNotIn("waiting for", result.stderr)
        ranks[1].child.send_signal(signal.SIGCONT)
        for process in ranks:
            self.assertEqual(process.stop(), 0)

    def test_a_rank_that_stops_while_a_round_fails_is_waited_for_with_a_word(self):
        """The source refuses at once; the abort of the rank is not confirmed before its contact time is over."""
        ranks = [self.serve(rank) for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        wide = self.dir / "wide"
        write_dense_model(wide, inner=24)
        ranks[1].child.send_signal(signal.SIGSTOP)
        result = run("push", wide, "--url", self.url, "--version", "2")
        self.assertEqual(result.returncode, 5)
        waits = [int(seconds) for seconds in re.findall(
            r"round \S+ is aborted: waiting for abort of destination.heft.0.1(?: and others)?; "
            r"the push has taken (\d+) s; it failed: \S", result.stderr
        )]
        self.assertTrue(waits, result.stderr)
        self.assertEqual(waits, sorted(set(waits)))
        self.assertNotIn(" in none", result.stderr)
        ranks[1].child.send_signal(signal.SIGCONT)
        for process in ranks:
            self.assertEqual(process.stop(), 0)

    def test_a_rank_without_a_version_is_said(self):
        first = [self.serve(rank) for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        fresh = self.serve(0, "--replica", "1")  # half of an engine: nobody feeds it
        result = self.heft("verify", "--live", "--url", self.url, code=1)
        self.assertRegex(result.stdout, r"destination.heft.1.0 +version 0 .*no version yet")
        self.assertIn(f"{TP} of {TP + 1} destinations match", result.stdout)
        for process in (*first, fresh):
            self.assertEqual(process.stop(), 0)

    def test_a_late_engine_is_fed_without_a_source(self):
        first = [self.serve(rank) for rank in range(TP)]
        self.assertEqual(self.push(1)["state"], "committed")
        late = [self.serve(rank, "--replica", "1", "--readers", "1") for rank in range(TP)]
        for process in late:
            process.wait_event("live", version=1)
        live = self.json("verify", "--live", "--url", self.url)
        self.assertEqual([m["match"] for m in live["live"]], [True] * 2 * TP)
        self.assertEqual(self.push(2)["state"], "committed")
        for process in (*first, *late):
            self.assertEqual(process.stop(), 0)

    def test_in_place_pushes_tell_their_transfer_time(self):
        ranks = [self.serve(rank, "--in-place") for rank in range(TP)]
        self.assertGreater(self.push(1)["transfer_s"], 0)
        for process in ranks:
            self.assertEqual(process.stop(), 0)

    def test_status_is_what_the_coordinator_says(self):
        with urllib.request.urlopen(self.url + "/v1/status", timeout=DEADLINE_S) as reply:
            self.assertEqual(json.load(reply), self.json("status", "--url", self.url))
        watch = Process(self, "status", "--url", self.url, "--watch", "--json")
        watch.wait_line(lambda line: json.loads(line)["committed_version"] == 0)
        self.assertEqual(watch.stop(signal.SIGINT), 0)

    def test_watching_shows_the_time_and_sorts_members(self):
        ranks = [self.serve(rank) for rank in (1, 0)]
        watch = Process(self, "status", "--url", self.url, "--watch")
        watch.wait_line(lambda line: "destination.heft.0.1" in line)
        self.assertEqual(watch.stop(signal.SIGINT), 0)
        self.assertRegex(watch.lines[0], r"^time +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
        members = [line.split()[0] for line in watch.lines if line.startswith("  destination")]
        self.assertEqual(members[:2], ["destination.heft.0.0", "destination.heft.0.1"])
        for process in ranks:
            self.assertEqual(process.stop(), 0)

    def test_serve_needs_a_rank_of_several(self):
        args = ("serve", "--url", self.url, *RECIPE, "--model", self.model)
        self.assertIn("--rank is needed", self.heft(*args, code=2).stderr)
        self.assertIn("--rank 2: the recipe has 2 ranks, 0 to 1", self.heft(*args, "--rank", "2", code=2).stderr)


class Alone(Case):
    def test_no_coordinator_is_a_peer_error(self):
        write_dense_model(self.dir / "model")
        url = "http://127.0.0.1:1"
        self.heft("status", "--url", url, code=5)
        self.heft("verify", "--live", "--url", url, code=5)
        self.heft("push", self.dir / "model", "--url", url, "--version", "1", "--deadline-ms", "1000", code=5)

    def test_url_is_needed(self):
        for args in (("status",), ("push", "m", "--version", "1"), ("verify", "--live")):
            self.assertIn("--url", self.heft(*args, code=2).stderr)

    def test_a_port_in_use_is_a_system_error(self):
        first = Process(self, "coordinator")
        url = first.wait_line(lambda line: line.startswith("http://"))
        result = self.heft("coordinator", "--port", url.rsplit(":", 1)[1], code=4)
        self.assertIn(url.rsplit(":", 1)[1] + ", another process has it", result.stderr)
        self.assertEqual(first.stop(signal.SIGINT), 0)

    def test_a_state_file_that_is_held_names_the_holder(self):
        first = Process(self, "coordinator", "--state", self.dir / "state")
        first.wait_line(lambda line: line.startswith("http://"))
        result = self.heft("coordinator", "--state", self.dir / "state", code=5)
        self.assertRegex(result.stderr, rf"another coordinator has it \(\S+:{first.child.pid}\): end that one, or give")
        self.assertEqual(first.stop(signal.SIGINT), 0)

    def test_a_poll_beyond_a_third_of_the_contact_time_is_refused(self):
        result = self.heft("coordinator", "--contact-ms", "3000", "--poll-ms", "2000", code=2)
        self.assertIn("poll-ms 2000 is more than a third of contact-ms 3000: at most 1000", result.stderr)

    def test_bad_numbers_are_usage_errors(self):
        for args in (("--port", "70000"), ("--port", "x"), ("--stage-ms", "0"), ("--contact-ms", "-5")):
            self.assertIn("is not a whole number from", self.heft("coordinator", *args, code=2).stderr)
        self.assertIn("nearest: --stage-ms", self.heft("coordinator", "--stge-ms", "5", code=2).stderr)


if __name__ == "__main__":
    unittest.main()

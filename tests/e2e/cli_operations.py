# SPDX-License-Identifier: Apache-2.0
"""What operators look at: records of rounds, logs, metrics, and a coordinator that stops in good order."""
import json
import re
import threading
import time
import unittest
import urllib.request

from cli_rounds import DEADLINE_S, RECIPE, TP, Process
from cli_support import Case, run, write_dense_model

SAMPLE = re.compile(r'^([a-z_]+)(\{[a-z]+="[^"\\\n]*"(?:,[a-z]+="[^"\\\n]*")*\})? (-?[0-9.e+-]+|NaN)$')


def parse_metrics(text):
    """name{labels} -> value; every sample must follow the HELP and TYPE lines of its name."""
    values, known = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            kind, name = line.split()[1:3]
            if kind == "TYPE":
                assert line.split()[3] in ("gauge", "counter"), line
                assert name not in known, f"{name} twice"
                known.add(name)
            continue
        match = SAMPLE.match(line)
        assert match, line
        assert match[1] in known, line
        key = match[1] + (match[2] or "")
        assert key not in values, f"{key} twice"
        values[key] = float(match[3])
    return values


class Operations(Case):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        write_dense_model(self.model)
        self.log = self.dir / "rounds.jsonl"

    def start(self, *more, log=None):
        self.coordinator = Process(
            self, "coordinator", "--round-log", log or self.log, "--log", "info", "--log-format", "json", *more
        )
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))

    def serve_all(self):
        ranks = []
        for rank in range(TP):
            process = Process(
                self, "serve", "--url", self.url, *RECIPE, "--model", self.model, "--rank", rank, "--json"
            )
            process.wait_event("registered")
            ranks.append(process)
        return ranks

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as reply:
            return reply.read().decode()

    def push(self, version, *more, code=0, model=None):
        return self.json(
            "push", model or self.model, "--url", self.url, "--version", version, "--wait-for", TP, *more, code=code
        )

    def records(self, count):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            text = self.log.read_text() if self.log.exists() else ""
            if text.count("\n") >= count:
                return [json.loads(line) for line in text.splitlines()]
            time.sleep(0.02)
        self.fail(f"not {count} records: {text}")

    def test_every_round_is_recorded_once(self):
        self.start()
        self.serve_all()
        self.push(1)
        other = self.dir / "other"
        write_dense_model(other, layers=1)
        self.assertEqual(run("push", other, "--url", self.url, "--version", "2").returncode, 5)
        self.push(2)
        records = self.records(3)
        self.assertEqual([(r["version"], r["state"]) for r in records], [(1, "committed"), (2, "aborted"), (2, "committed")])
        self.assertIn("preflight", records[1]["cause"]["phase"])
        self.assertTrue(records[1]["problems"])
        for record in records:
            self.assertRegex(record["began"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual(json.loads(self.get(f"/v1/rounds/{record['round']}")), record)
        listed = json.loads(self.get("/v1/rounds"))["rounds"]
        self.assertEqual([r["round"] for r in listed], [r["round"] for r in reversed(records)])
        for brief, whole in zip(reversed(listed), records):
            self.assertEqual(brief, {k: v for k, v in whole.items() if k not in ("members", "problems")})

        # the file can be rotated
        self.log.rename(self.dir / "rounds.old")
        self.push(3)
        self.assertEqual([r["version"] for r in self.records(1)], [3])
        self.assertEqual(self.coordinator.stop(), 0)

    def test_logs_are_json_lines(self):
        self.start()
        ranks = self.serve_all()
        self.push(1)
        for process in ranks:
            self.assertEqual(process.stop(), 0)
        self.assertEqual(self.coordinator.stop(), 0)
        lines = [json.loads(line) for line in self.coordinator.errors if not line.startswith("heft coordinator: ")]
        for line in lines:
            self.assertEqual((line["level"], line["part"]), ("info", "coordinator"))
        registered = [line["member"] for line in lines if line["message"] == "member registered"]
        self.assertEqual(sorted(registered), ["destination.heft.0.0", "destination.heft.0.1", "source.heft.0.0"])
        left = [line["member"] for line in lines if line["message"] == "member left"]
        self.assertEqual(sorted(left), sorted(registered))
        phases = [line["phase"] for line in lines if line["message"] == "round phase"]
        order = ["preflight", "prepare", "stage", "verify", "pause", "flip"]
        self.assertEqual([p for p in phases if p in order], order)
        ended = [line for line in lines if line["message"] == "round ended"]
        self.assertEqual([(e["version"], e["state"]) for e in ended], [(1, "committed")])

    def test_logs_name_who_died(self):
        self.start("--contact-ms", "3000")
        ranks = self.serve_all()
        self.push(1)
        dead = ranks[1]
        dead.child.kill()
        dead.child.wait(DEADLINE_S)
        self.assertEqual(run("push", self.model, "--url", self.url, "--version", "2").returncode, 5)
        self.assertEqual(ranks[0].stop(), 0)
        self.coordinator.stop()
        lines = [json.loads(line) for line in self.coordinator.errors if not line.startswith("heft coordinator: ")]
        ended = [line for line in lines if line["message"] == "round ended" and line["state"] == "aborted"]
        self.assertEqual([e["member"] for e in ended], ["destination.heft.0.1"])
        self.assertIn("reported_by", ended[0])

    def test_metrics_are_those_of_pushes_and_of_who_is_there(self):
        self.start("--contact-ms", "3000")
        ranks = self.serve_all()
        self.push(1)
        before = parse_metrics(self.get("/metrics"))
        self.heft("verify", "--live", "--url", self.url)
        after = parse_metrics(self.get("/metrics"))
        self.assertEqual(after["heft_last_round_seconds"], before["heft_last_round_seconds"])
        self.assertEqual(after["heft_destinations_serving"], TP)
        ranks[1].child.kill()
        end = time.monotonic() + DEADLINE_S
        while parse_metrics(self.get("/metrics"))["heft_destinations_serving"] != TP - 1:
            self.assertLess(time.monotonic(), end, "a rank that is silent counts as serving")
            time.sleep(0.1)

    def test_metrics_say_what_happened(self):
        self.start()
        self.serve_all()
        result = self.push(1)
        values = parse_metrics(self.get("/metrics"))
        self.assertEqual(values["heft_committed_version"], 1)
        self.assertEqual(values['heft_rounds_total{outcome="committed"}'], 1)
        self.assertEqual(values["heft_moved_bytes_total"], result["bytes"])
        self.assertEqual(values["heft_round_log_errors_total"], 0)
        self.assertGreater(values['heft_phase_seconds_total{phase="stage"}'], 0)
        self.assertGreater(values["heft_downtime_seconds_total"], 0)
        for rank in range(TP):
            member = f'{{member="destination.heft.0.{rank}"}}'
            self.assertEqual(values["heft_member_live_version" + member], 1)
            self.assertEqual(values["heft_member_serving" + member], 1)
            self.assertEqual(values["heft_member_poisoned" + member], 0)
            self.assertLess(values["heft_member_silent_seconds" + member], DEADLINE_S)

    def test_a_record_that_cannot_be_written_is_said_and_counted(self):
        self.start(log="/dev/full")
        self.serve_all()
        self.assertEqual(self.push(1)["state"], "committed")
        end = time.monotonic() + DEADLINE_S
        while parse_metrics(self.get("/metrics"))["heft_round_log_errors_total"] == 0:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.assertEqual(self.coordinator.stop(), 0)
        errors = [json.loads(e) for e in self.coordinator.errors if "No space left" in e]
        self.assertEqual([e["level"] for e in errors], ["error"])
        missing = self.heft("coordinator", "--round-log", self.dir / "no" / "such", code=4)
        self.assertIn(str(self.dir / "no" / "such"), missing.stderr)

    def slow_push(self, version):
        """A push that takes seconds; returns when bytes are moving."""
        results = []
        args = ("push", self.model, "--url", self.url, "--version", version, "--max-rate", "4000", "--deadline-ms", "5000")
        thread = threading.Thread(target=lambda: results.append(run(*args, "--json")))
        thread.start()
        self.addCleanup(thread.join)
        end = time.monotonic() + DEADLINE_S
        while json.loads(self.get("/v1/status"))["state"] != "staging":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return thread, results

    def test_a_signal_lets_the_round_end(self):
        self.start()
        ranks = self.serve_all()
        thread, results = self.slow_push(1)
        self.coordinator.child.terminate()
        end = time.monotonic() + DEADLINE_S
        while not json.loads(self.get("/v1/status")).get("draining"):
            self.assertLess(time.monotonic(), end)
        refused = run("push", self.model, "--url", self.url, "--version", "2")
        self.assertEqual(refused.returncode, 5)
        self.assertIn("the coordinator is shutting down and begins no more rounds", refused.stderr)
        self.assertEqual(self.coordinator.child.wait(DEADLINE_S), 0)
        thread.join(DEADLINE_S)
        self.assertEqual(json.loads(results[0].stdout)["state"], "committed", results[0])
        for process in ranks:
            process.wait_event("live", version=1)
        self.assertEqual([r["state"] for r in self.records(1)], ["committed"])

    def test_a_round_that_does_not_end_is_named(self):
        self.start("--drain-ms", "100", "--state", self.dir / "state")
        self.serve_all()
        thread, results = self.slow_push(1)
        self.coordinator.child.terminate()
        self.assertEqual(self.coordinator.child.wait(DEADLINE_S), 5)
        self.coordinator.stop()
        self.assertRegex("\n".join(self.coordinator.errors), r"stopped all the same: round \d+\.\d+ is staging")
        thread.join(DEADLINE_S)
        self.assertNotEqual(results[0].returncode, 0)


if __name__ == "__main__":
    unittest.main()

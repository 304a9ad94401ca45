# SPDX-License-Identifier: Apache-2.0
"""Several processes that push one checkpoint together, each with a share of the rows, into serving processes."""
import json
import signal
import subprocess
import time
import unittest
import urllib.request

from cli_rounds import DEADLINE_S, RECIPE, TP, Process
from cli_support import HEFT, Case, read_checkpoint, write_dense_model


class Fleet(Case):
    """A coordinator, an engine of TP ranks, and sources that each hold a share of the rows."""

    recipe = RECIPE
    coordinator_args = ()

    def setUp(self):
        super().setUp()
        self.model = self.dir / "model"
        self.write_model(self.model)
        self.coordinator = Process(self, "coordinator", "--contact-ms", "3000", *self.coordinator_args)
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))
        self.engines = [self.serve(rank) for rank in range(TP)]

    def write_model(self, folder):
        write_dense_model(folder)

    def serve(self, rank, *more):
        process = Process(
            self, "serve", "--url", self.url, *self.recipe, "--model", self.model, "--rank", rank, "--json", "--readers", 1, *more
        )
        process.wait_event("registered")
        return process

    def start(self, rank, n_ranks, version, *more, model=None):
        args = ["push", model or self.model, "--url", self.url, "--version", version, "--json"]
        args += ["--rank", rank, "--ranks", n_ranks, "--split", "--wait-for", TP, *more]
        child = subprocess.Popen(
            [HEFT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

        def end():
            if child.poll() is None:
                child.kill()
            child.communicate()

        self.addCleanup(end)
        return child

    def finish(self, child):
        out, errors = child.communicate(timeout=DEADLINE_S)
        return child.returncode, json.loads(out) if out else None, errors

    def push(self, n_ranks, version, *more, model=None):
        """All ranks, which must agree on the outcome."""
        children = [self.start(rank, n_ranks, version, *more, model=model) for rank in range(n_ranks)]
        ended = [self.finish(child) for child in children]
        for code, result, errors in ended:
            self.assertEqual(code, 0, errors)
            self.assertEqual(result["round_seq"], ended[0][1]["round_seq"])
        return ended[0][1]

    def status(self):
        with urllib.request.urlopen(self.url + "/v1/status", timeout=DEADLINE_S) as reply:
            return json.loads(reply.read())

    def await_status(self, key, value):
        end = time.monotonic() + DEADLINE_S
        while self.status()[key] != value:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def private_memory(self, process):
        """The contents of its anonymous mappings."""
        pid = process.child.pid
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in maps:
                bounds, rights, _, _, inode = line.split()[:5]
                begin, end = (int(x, 16) for x in bounds.split("-"))
                if rights != "rw-p" or inode != "0" or "[" in line or end - begin > 1 << 22:
                    continue  # not anonymous memory, or a stack
                memory.seek(begin)
                yield memory.read(end - begin)

    def expect_weights(self, model):
        """Every parameter of every engine, byte by byte, as the same recipe converts files."""
        out = self.dir / f"converted-{model.name}"
        if not out.exists():
            self.heft("convert", model, out, *self.recipe)
        for i, process in enumerate(self.engines):
            rank = i % TP
            contents = list(self.private_memory(process))
            for name, (_, _, raw) in read_checkpoint(out / f"rank-{rank}").items():
                self.assertTrue(any(raw in content for content in contents), f"{name} rank {rank}")
        live = self.json("verify", "--live", "--url", self.url)
        self.assertEqual([m["match"] for m in live["live"]], [True] * len(self.engines))


class Sources(Fleet):
    def test_four_ranks_to_two_engines(self):
        result = self.push(4, 1)
        self.assertEqual((result["state"], result["destinations"]), ("committed", TP))
        self.expect_weights(self.model)
        trained = self.dir / "trained"
        write_dense_model(trained, start=20000)
        whole = self.json("push", trained, "--url", self.url, "--version", 2)  # one process, everything
        self.assertEqual(whole["bytes"], result["bytes"])
        self.expect_weights(trained)
        self.push(3, 3)
        self.expect_weights(self.model)
        self.push(11, 4, model=trained)  # more ranks than rows, for some tensors
        self.expect_weights(trained)
        for process in self.engines:
            process.wait_event("live", version=4)
            self.assertEqual(process.stop(), 0, process.errors)

    def test_a_rank_that_does_not_come_is_named(self):
        follower = self.start(2, 3, 1, "--deadline-ms", 20000)
        self.await_status("sources", 1)
        code, result, errors = self.finish(self.start(0, 3, 1, "--deadline-ms", 4000))
        self.assertEqual(code, 5)
        self.assertIn("2 of 3 source ranks of job heft are there after 4 s: rank 1 missing", errors)
        self.assertEqual(result["error"]["status"], "ERR_TIMEOUT")
        code, result, errors = self.finish(follower)
        self.assertEqual(code, 5)
        self.assertIn("no round of version 1 began within 20 s: has rank 0 pushed?", errors)
        self.assertEqual(self.status()["state"], "idle")

    def test_a_share_needs_the_number_of_ranks(self):
        self.heft("push", self.model, "--url", self.url, "--version", 1, "--split", code=2)
        self.heft("push", self.model, "--url", self.url, "--version", 1, "--split", "--ranks", 2, "--rank", 2, code=2)

    def break_off(self, number):
        """The second of three sources gets a signal while all of them send."""
        self.push(3, 1)
        trained = self.dir / "trained"
        write_dense_model(trained, start=20000)
        children = [self.start(rank, 3, 2, "--max-rate", 600, model=trained) for rank in range(3)]
        self.await_status("state", "staging")
        children[1].send_signal(number)
        for rank in (0, 2):
            code, result, errors = self.finish(children[rank])
            self.assertNotEqual(code, 0)
            self.assertEqual(result["state"], "aborted", errors)
            self.assertEqual(result["error"]["status"], "ERR_PEER", errors)
        children[1].kill()
        self.expect_weights(self.model)
        self.assertEqual(self.status()["committed_version"], 1)
        self.push(3, 3, model=trained)
        self.expect_weights(trained)

    def test_a_source_that_is_killed(self):
        self.break_off(signal.SIGKILL)

    def test_a_source_that_is_stopped(self):
        self.break_off(signal.SIGSTOP)


if __name__ == "__main__":
    unittest.main()

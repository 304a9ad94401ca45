# SPDX-License-Identifier: Apache-2.0
"""heft serve --watch: a table of experts in a file that changes while the ranks serve."""
import json
import os
import struct
import unittest

from cli_rounds import Process
from cli_support import Case, write_safetensors

RANKS, EXPERTS = 2, 3
RECIPE = """\
let ep = 1, layers = 1, experts = 1, table
ranks ep as rank
let map = expert_table(table, layers, experts)
let slots = len(map[0]) / ep
"experts.{e}.w" [d] -> "slots" [{p}:slots, d] for p:slots when map[0][rank * slots + p] == e
"""


class Experts(Case):
    def setUp(self):
        super().setUp()
        self.recipe = self.dir / "slots.heft"
        self.recipe.write_text(RECIPE)
        self.table = self.dir / "table.json"
        self.put([0, 1, 2, 0])
        self.model = self.write_model("model", 0)
        self.coordinator = Process(self, "coordinator", "--contact-ms", "20000")
        self.url = self.coordinator.wait_line(lambda line: line.startswith("http://"))

    def write_model(self, name, start):
        folder = self.dir / name
        folder.mkdir()
        tensors = {f"experts.{e}.w": ("F32", (4,), struct.pack("<4f", *range(start + 4 * e, start + 4 * e + 4))) for e in range(EXPERTS)}
        write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def put(self, row):
        """As a balancer should: a file that is whole at any time."""
        new = self.dir / "table.json.new"
        new.write_text(json.dumps({"physical_to_logical_map": [row]}) if isinstance(row, list) else row)
        os.replace(new, self.table)

    def serve(self, rank):
        lets = ["--let", f"ep={RANKS}", "--let", f"experts={EXPERTS}", "--let", f"table=@{self.table}"]
        process = Process(self, "serve", "--url", self.url, "--recipe", self.recipe, *lets, "--model", self.model, "--rank", rank, "--watch", "--readers", "1", "--json")
        process.wait_event("registered")
        return process

    def push(self, version, model, code=0):
        return self.json("push", model, "--url", self.url, "--version", version, "--wait-for", RANKS, code=code)

    def test_a_table_changes_under_ranks_that_serve(self):
        ranks = [self.serve(rank) for rank in range(RANKS)]
        pids = [process.child.pid for process in ranks]
        self.push(1, self.model)
        for process in ranks:
            process.wait_event("live", version=1)
        for bad, message in (([0, 1, 1, 0], "expert 2 of 3 is in none of its 4 slots"), ("[[0, 1", "expected near")):
            self.put(bad)
            for process in ranks:
                process.wait_line(lambda line, m=message: json.loads(line)["event"] == "refused" and m in line)
        status = self.json("status", "--url", self.url)
        for member in status["members"]:
            if member["id"].startswith("destination"):
                self.assertEqual((member["live_version"], member["serving"]), (1, True))
        for version, row in ((2, [2, 1, 1, 0, 0, 2]), (3, [1, 0, 0, 2])):
            self.put(row)
            for process in ranks:
                process.wait_line(lambda line, n=version - 1: json.loads(line)["event"] == "renewed" and sum('"renewed"' in x for x in process.lines) >= n)
            self.push(version, self.write_model(f"model-{version}", 100 * version))
            for process in ranks:
                process.wait_event("live", version=version)
            live = self.json("verify", "--live", "--url", self.url)
            self.assertEqual([m["match"] for m in live["live"]], [True] * RANKS)
        self.assertEqual([process.stop() for process in ranks], [0] * RANKS)
        self.assertEqual([process.child.pid for process in ranks], pids)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""A rank of an engine whose experts stand in slots by a table, in a process of its own.

expert_process.py URL REPLICA RANK RANKS EXPERTS TABLE: says "serves VERSION DIGEST-OF-SLOTS". Takes
lines: "table TABLE" announces another one, "moved TABLE" too, after moving the experts itself.
"""

from __future__ import annotations

import json
import select
import sys

import numpy as np
from expert_models import RECIPE, bindings, zeros

import heft


class Engine:
    def __init__(self, url: str, replica: int, rank: int, n_ranks: int, n_experts: int) -> None:
        self.rank, self.n_ranks, self.n_experts = rank, n_ranks, n_experts
        self.recipe = heft.Recipe.parse(RECIPE, "slots")
        self.url, self.member = url, heft.Member(replica=replica, rank=rank)

    def start(self, table: list[list[int]]) -> None:
        self.params = self.zeros(table)
        self.table = table
        self.subscriber = heft.Subscriber.create(
            self.url,
            self.recipe,
            bindings(table, self.n_ranks, self.n_experts),
            self.params,
            hooks=heft.Hooks(resume=self.say),
            member=self.member,
        )
        print("registered", flush=True)

    def zeros(self, table: list[list[int]]) -> dict[str, np.ndarray]:
        return zeros(len(table), len(table[0]) // self.n_ranks, self.n_experts)

    def say(self, version: int) -> None:
        digests = {name: f"{heft.digest(array):x}" for name, array in self.params.items()}
        print("serves", version, json.dumps(digests, sort_keys=True), flush=True)

    def renew(self, table: list[list[int]], has_moved: bool) -> None:
        params = self.zeros(table)
        try:
            if has_moved:  # what it has of each expert; the test keeps all of them here
                self.move(table, params)
            self.subscriber.renew(
                self.recipe,
                params,
                bindings=bindings(table, self.n_ranks, self.n_experts),
                keeps_version=has_moved,
            )
        except heft.HeftError as error:
            print("refused", error, flush=True)
            return
        self.params, self.table = params, table
        print("renewed", self.subscriber.version, int(self.subscriber.is_serving), flush=True)

    def move(self, table: list[list[int]], params: dict[str, np.ndarray]) -> None:
        first = self.rank * len(table[0]) // self.n_ranks
        for layer, row in enumerate(table):
            name = f"layers.{layer}.slots"
            for slot in range(len(params[name])):
                old = self.table[layer].index(row[first + slot]) - first
                params[name][slot] = self.params[name][old]
            gate = f"layers.{layer}.gate"
            params[gate][:] = self.params[gate]

    def run(self) -> None:
        while True:
            self.subscriber.poll(100)
            if select.select([sys.stdin], [], [], 0)[0]:
                line = sys.stdin.readline()
                if not line:
                    return
                what, _, table = line.partition(" ")
                self.renew(json.loads(table), what == "moved")


def main() -> None:
    url, replica, rank, n_ranks, n_experts, table = sys.argv[1:]
    engine = Engine(url, int(replica), int(rank), int(n_ranks), int(n_experts))
    engine.start(json.loads(table))
    engine.run()
    engine.subscriber.close()


if __name__ == "__main__":
    main()

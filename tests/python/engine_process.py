# SPDX-License-Identifier: Apache-2.0
"""An engine of a process of its own: URL RANK TP. Says what it serves; ends when its input does."""

from __future__ import annotations

import select
import sys

from models import RECIPE, expected, tensors, zeros_like

import heft


def main() -> None:
    url, rank, tp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = zeros_like(expected(tensors(), tp, rank))

    def say(version: int) -> None:
        digests = " ".join(f"{name}={heft.digest(params[name]):x}" for name in sorted(params))
        print(f"serves {version} {digests}", flush=True)

    subscriber = heft.Subscriber.create(
        url,
        heft.Recipe.parse(RECIPE, "toy"),
        heft.Bindings({"tp": tp}),
        params,
        hooks=heft.Hooks(resume=say),
        member=heft.Member(rank=rank),
    )
    print("registered", flush=True)
    with subscriber:
        while not select.select([sys.stdin], [], [], 0)[0]:
            subscriber.poll(200)


if __name__ == "__main__":
    main()

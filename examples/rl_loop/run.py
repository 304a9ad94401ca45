# SPDX-License-Identifier: Apache-2.0
"""A small loop of reinforcement learning: run.py MODEL [--engine vllm] [--rounds N]

Three processes: this one, which keeps the coordinator and the reward; a trainer; an engine. In each
round the engine samples, the trainer takes one step, and a push makes the new weights live in the
engine, which never restarts. An engine that is started anew from the trainer's checkpoint must then
say the same, to the last bit of its scores.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import tempfile
from typing import Any

from lines import Peer

import heft

HERE = pathlib.Path(__file__).parent
PROMPT = [504, 2365, 6354, 16438, 27003, 645]  # ids: the example needs no tokenizer
N_ROLLOUTS, N_TOKENS = 4, 8


def main() -> None:
    args = _arguments()
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(heft.Coordinator())
        engine = stack.enter_context(_peer("engine.py", args.engine, args.model, coordinator.url))
        trainer = stack.enter_context(_peer("trainer.py", args.model, coordinator.url, args.lr))
        before = _say(engine)
        for version in range(1, args.rounds + 1):
            loss, result = _round(engine, trainer, version)
            after = _say(engine)
            print(
                f"version {version}: loss {loss:+.4f}, {result['bytes']} bytes in "
                f"{result['total_s']:.3f} s, paused {result['pause_s'] * 1e3:.0f} ms; "
                f"scores {'differ from' if after != before else 'EQUAL'} the last version's"
            )
            if after == before:
                raise SystemExit("the engine says what it said before the push")
            with tempfile.TemporaryDirectory() as folder:
                trainer.call("save", folder=folder)
                _compare(args.engine, folder, version, after)
            before = after


def _peer(script: str, *arguments: str) -> Any:
    return contextlib.closing(Peer(str(HERE / script), *arguments))


def _say(engine: Peer) -> dict[str, Any]:
    """What the engine continues the prompt with, greedily, and the scores of its choices."""
    said = engine.call("greedy", prompt=PROMPT, n_tokens=N_TOKENS)
    return {"tokens": said["tokens"], "scores": said["scores"]}


def _round(engine: Peer, trainer: Peer, version: int) -> tuple[float, dict[str, Any]]:
    completions = engine.call(
        "rollouts", prompt=PROMPT, n=N_ROLLOUTS, n_tokens=N_TOKENS, seed=100 * version
    )
    rollouts = [
        {"prompt": PROMPT, "completion": tokens, "reward": _reward(tokens)}
        for tokens in completions
    ]
    loss = trainer.call("step", rollouts=rollouts)
    result = trainer.call("push", version=version)
    if engine.call("version") != version:
        raise SystemExit(f"the engine does not serve version {version}")
    return loss, result


def _reward(tokens: list[int]) -> float:
    """Stands for whatever scores an answer: the share of even ids."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


def _compare(engine: str, folder: str, version: int, live: dict[str, Any]) -> None:
    with _peer("engine.py", engine, folder) as fresh:
        cold = _say(fresh)
    if cold != live:
        raise SystemExit(f"version {version}: live {live}, freshly loaded {cold}")
    n = len(live["tokens"])
    print(f"version {version}: a freshly loaded {engine} engine says the same {n} tokens")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a checkpoint, such as build/demo/model")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lr", default="2e-5")
    return parser.parse_args()


if __name__ == "__main__":
    main()

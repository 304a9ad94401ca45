# SPDX-License-Identifier: Apache-2.0
"""The trainer: REINFORCE on rollouts, and a push of the model it trains. trainer.py MODEL URL LR

heft is two lines here: a publisher over the module, and push() after the optimizer's step.
"""

from __future__ import annotations

import sys
from typing import Any

from lines import serve, take_stdout

answers = take_stdout()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import heft  # noqa: E402


class Trainer:
    def __init__(self, folder: str, url: str, lr: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=float(lr))
        self.publisher = heft.ModulePublisher(self.model, url=url)

    def step(self, rollouts: list[dict[str, Any]]) -> float:
        """One update: what was rewarded above the mean becomes more likely."""
        rewards = torch.tensor([rollout["reward"] for rollout in rollouts])
        advantages = rewards - rewards.mean()
        advantages = advantages / (advantages.std() + 1e-6)
        self.optimizer.zero_grad()
        total = 0.0
        for rollout, advantage in zip(rollouts, advantages, strict=True):
            loss = advantage * self._negative_log_likelihood(rollout) / len(rollouts)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total

    def _negative_log_likelihood(self, rollout: dict[str, Any]) -> torch.Tensor:
        prompt, completion = rollout["prompt"], rollout["completion"]
        tokens = torch.tensor([prompt + completion])
        logits = self.model(tokens).logits[0, len(prompt) - 1 : -1].float()
        return torch.nn.functional.cross_entropy(logits, torch.tensor(completion))

    def push(self, version: int) -> dict[str, Any]:
        result = self.publisher.push(version)
        return {"bytes": result.n_bytes, "total_s": result.total_s, "pause_s": result.pause_s}

    def save(self, folder: str) -> None:
        """A checkpoint, for an engine that is started anew."""
        self.model.save_pretrained(folder)


def main() -> None:
    trainer = Trainer(*sys.argv[1:])
    with trainer.publisher:
        handlers = {"step": trainer.step, "push": trainer.push, "save": trainer.save}
        serve(answers, handlers)


if __name__ == "__main__":
    main()

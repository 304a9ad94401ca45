# SPDX-License-Identifier: Apache-2.0
"""An engine that serves while its weights change. engine.py transformers|vllm MODEL [URL]

With a URL it takes part in rounds; without one it serves what the checkpoint holds, as engines are
started today. Everything but the class Live is what such an engine would be without heft.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from lines import serve, take_stdout

answers = take_stdout()
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402

import heft  # noqa: E402
from heft import engines  # noqa: E402
from heft.engines.transformers import checkpoint_names  # noqa: E402
from heft.trace import trace  # noqa: E402


class Transformers:
    """Hugging Face transformers, without a cache of what was computed."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.config = self.model.config

    def forget(self, model: torch.nn.Module) -> None:
        """Nothing is kept between requests."""

    @torch.inference_mode()
    def sample(self, prompt: list[int], n_tokens: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return self._continue(prompt, n_tokens, lambda p: _draw(p, generator))[0]

    @torch.inference_mode()
    def greedy(self, prompt: list[int], n_tokens: int) -> tuple[list[int], list[float]]:
        return self._continue(prompt, n_tokens, lambda p: int(p.argmax()))

    def _continue(
        self, prompt: list[int], n_tokens: int, choose: Callable[[torch.Tensor], int]
    ) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        scores: list[float] = []
        for _ in range(n_tokens):
            logits = self.model(torch.tensor([prompt + tokens]), use_cache=False).logits
            log_p = logits[0, -1].float().log_softmax(-1)
            tokens.append(choose(log_p))
            scores.append(float(log_p[tokens[-1]]))
        return tokens, scores


def _draw(log_p: torch.Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(log_p.exp(), 1, generator=generator))


class Vllm:
    """vLLM for CPUs, in this process, where its model can be reached."""

    def __init__(self, folder: str) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        engines.get("vllm").keep_layout()
        import vllm

        self.params = vllm.SamplingParams
        self.llm = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=128,
            enforce_eager=True,
            distributed_executor_backend="uni",
        )
        worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self.model = worker.model_runner.model
        self.config = self.llm.llm_engine.vllm_config.model_config.hf_config

    def forget(self, model: torch.nn.Module) -> None:
        """Cached prefixes are what the old weights made of them."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache: requests are running")

    def sample(self, prompt: list[int], n_tokens: int, seed: int) -> list[int]:
        return self._run(prompt, temperature=1.0, seed=seed, max_tokens=n_tokens).token_ids

    def greedy(self, prompt: list[int], n_tokens: int) -> tuple[list[int], list[float]]:
        out = self._run(prompt, temperature=0.0, max_tokens=n_tokens, logprobs=0)
        chosen = zip(out.token_ids, out.logprobs, strict=True)
        return list(out.token_ids), [scores[token].logprob for token, scores in chosen]

    def _run(self, prompt: list[int], **options: Any) -> Any:
        params = self.params(detokenize=False, ignore_eos=True, **options)
        (out,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return out.outputs[0]


ENGINES = {"transformers": Transformers, "vllm": Vllm}


class Live:
    """The engine, and the rounds that write into its model."""

    def __init__(self, name: str, folder: str, url: str | None = None) -> None:
        self.engine = ENGINES[name](folder)
        self.live: heft.LiveModel | None = None
        if url is None:
            return
        model, plugin = self.engine.model, engines.get(name)
        traced = trace(
            model,
            checkpoint_names(self.engine.config),  # what the trainer sends
            load=lambda weights: plugin.load(model, weights),
        )
        self.live = heft.LiveModel(model, traced, url=url, derive=self.engine.forget).start()

    def _serving(self) -> contextlib.AbstractContextManager[Any]:
        if self.live is None or self.live.version == 0:
            return contextlib.nullcontext()  # what the checkpoint held
        return self.live.gate.serving(timeout=60)

    def rollouts(self, prompt: list[int], n: int, n_tokens: int, seed: int) -> list[list[int]]:
        with self._serving():
            return [list(self.engine.sample(prompt, n_tokens, seed + i)) for i in range(n)]

    def greedy(self, prompt: list[int], n_tokens: int) -> dict[str, Any]:
        with self._serving():
            tokens, scores = self.engine.greedy(prompt, n_tokens)
            return {"tokens": tokens, "scores": scores, "version": self.version()}

    def version(self) -> int:
        return self.live.version if self.live is not None else 0

    def close(self) -> None:
        if self.live is not None:
            self.live.close()


def main() -> None:
    engine = Live(*sys.argv[1:])
    handlers = {"rollouts": engine.rollouts, "greedy": engine.greedy, "version": engine.version}
    with contextlib.closing(engine):
        serve(answers, handlers)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Two processes that talk in lines of JSON: requests on stdin, answers on what was stdout.

Whatever a library prints goes to stderr, so that it cannot end up in an answer.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any


class Peer:
    """A process started with this Python; call("name", key=value) waits for its answer."""

    def __init__(self, script: str, *arguments: str, timeout_s: float = 300) -> None:
        self.name = os.path.basename(script)
        self.timeout_s = timeout_s
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, request: str, **values: Any) -> Any:
        self.send(request, **values)
        return self.receive()

    def send(self, request: str, **values: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"request": request, **values}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """One answer; RuntimeError where the process fails, ends or is silent for too long."""
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(self.timeout_s):
                raise RuntimeError(f"{self.name}: no answer after {self.timeout_s} s")
        line = stream.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def take_stdout() -> Any:
    """What answers are written to; from now on print() and C libraries write to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers: Any, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until stdin ends; an exception is an answer, too."""
    for line in sys.stdin:
        values = json.loads(line)
        try:
            answer = {"value": handlers[values.pop("request")](**values)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

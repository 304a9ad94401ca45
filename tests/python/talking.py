# SPDX-License-Identifier: Apache-2.0
"""Programs that are told lines and say lines."""

from __future__ import annotations

import os
import pathlib
import queue
import subprocess
import sys
import threading

DEADLINE_S = 60


class Talking:
    """A Python program of this folder in a process of its own, and the lines it says."""

    def __init__(self, program: str, *words: object, **env: str) -> None:
        path = pathlib.Path(__file__).with_name(program)
        pipe = subprocess.PIPE
        command = [sys.executable, str(path), *map(str, words)]
        environ = {**os.environ, **env}
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)
        self.pid = self.child.pid
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line.strip())

    def await_line(self, *begin: str) -> str:
        while not (line := self.lines.get(timeout=DEADLINE_S)).startswith(begin):
            pass
        return line

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    @property
    def is_alive(self) -> bool:
        return self.child.poll() is None

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        try:
            assert self.child.wait(DEADLINE_S) == 0
        finally:
            self.child.kill()
            self.child.wait(DEADLINE_S)

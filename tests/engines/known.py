# SPDX-License-Identifier: Apache-2.0
"""What engines refuse themselves: their own loader fails on these, with or without a tracer.

An entry that no longer fails, or fails differently, is a failure of the run.
"""

from __future__ import annotations

from typing import NamedTuple

from engine_loaders import Layout


class Refused(NamedTuple):
    error: str  # part of what the engine says
    reason: str


REFUSED = {
    ("sglang", "gpt-oss", Layout(4, True)): Refused(
        "does not broadcast",
        "SGLang's loader does not cut bf16 experts over ranks: it copies 8 experts into 2",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""The referee of rounds, in this process (include/heft/sync.h)."""

from __future__ import annotations

from collections.abc import Mapping

from heft._handles import Handle, call, holding, text_of
from heft._native import ffi, lib
from heft.checkpoint import Path
from heft.options import new_options


class Coordinator(Handle):
    """Serves on a thread of its own until stop(), close() or the end of its block. Any thread.

    with Coordinator() as coordinator:
        publisher = Publisher(coordinator.url, ...)
    """

    __slots__ = ("url",)
    url: str  # "http://127.0.0.1:PORT"

    def __init__(
        self,
        *,
        address: str | None = None,
        port: int = 0,
        state_file: Path | None = None,
        token_file: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        insecure: bool = False,
        request_ms: int = 0,
        max_connections: int = 0,
        round_log: Path | None = None,
        no_feed: bool = False,
        relay: str | None = None,
        relay_fan_out: int = 0,
        deadlines: Mapping[str, int] | None = None,
    ) -> None:
        """port 0: one from the kernel. deadlines: {"stage_ms": 5000, ...}, of phases.

        state_file: without one, the committed version lives in memory only. Beyond loopback
        token_file, tls_cert and tls_key are required, unless insecure. no_feed: who joins late
        waits for the next push, no engine that serves feeds it. relay: "off", "auto" or "on",
        whether replicas forward to each other, each to relay_fan_out of them.
        """
        opts, kept = new_options(
            "heft_coordinator_opts_t",
            {
                "address": address,
                "port": port,
                "state_file": state_file,
                "token_file": token_file,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "insecure": insecure,
                "request_ms": request_ms,
                "max_connections": max_connections,
                "round_log": round_log,
                "no_feed": no_feed,
                "relay": relay,
                "relay_fan_out": relay_fan_out,
                **(deadlines or {}),
            },
        )
        out = ffi.new("heft_coordinator_t **")
        call(lib.heft_coordinator_start, opts, out)
        del kept
        self._own(out[0], lib.heft_coordinator_stop)
        self.url = text_of(lib.heft_coordinator_get_url(self.pointer))

    def drain(self, deadline_ms: int = 30_000) -> None:
        """Take no new rounds and wait until the one in flight has ended.

        TimeoutError: it goes on, or has ended in doubt; stop it all the same.
        """
        with holding(self) as (pointer,):
            call(lib.heft_coordinator_drain, pointer, deadline_ms)

    def stop(self) -> None:
        """Answer what is in progress, then close. Members keep what they serve."""
        self.close()

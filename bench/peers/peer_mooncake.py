# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP: one batch of writes, all tensors. It tells the receiver nothing, so the sender's end is the
end."""

from __future__ import annotations

import os

os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

from mooncake.engine import TransferEngine
from peers import Peer, main


class Mooncake(Peer):
    def open(self) -> None:
        self.engine = TransferEngine()
        self._must(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self._must(self.engine.register_memory(self.memory.ctypes.data, self.memory.nbytes), "register_memory")
        self.info = f"127.0.0.1:{self.engine.get_rpc_port()}/{self.memory.ctypes.data:x}"

    def connect(self, info: str) -> None:
        self.other, _, base = info.partition("/")
        begin = self.memory.ctypes.data
        self.sources = [t.ctypes.data for t in self.tensors.values()]
        self.targets = [int(base, 16) + source - begin for source in self.sources]
        self.sizes = [t.nbytes for t in self.tensors.values()]

    def go(self) -> None:
        if self.is_sender:
            rc = self.engine.batch_transfer_sync_write(self.other, self.sources, self.targets, self.sizes)
            self._must(rc, "batch_transfer_sync_write")

    @staticmethod
    def _must(rc: int, what: str) -> None:
        if rc != 0:
            raise RuntimeError(f"mooncake: {what}: {rc}")


if __name__ == "__main__":
    main(Mooncake)

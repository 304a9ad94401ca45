# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over gloo: one broadcast for each tensor, or (OPTION flat) one for all bytes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from peers import Peer, main


class Gloo(Peer):
    def open(self) -> None:
        torch.set_num_threads(1)
        if self.is_sender:
            self.store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
            self.info = str(self.store.port)

    def connect(self, info: str) -> None:
        store = self.store if self.is_sender else dist.TCPStore("127.0.0.1", int(info), 2, is_master=False)
        dist.init_process_group("gloo", store=store, rank=0 if self.is_sender else 1, world_size=2)
        parts = [self.memory] if self.option == "flat" else self.tensors.values()
        self.parts = [torch.from_numpy(part) for part in parts]

    def go(self) -> None:
        for part in self.parts:
            dist.broadcast(part, 0)

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Gloo)

# SPDX-License-Identifier: Apache-2.0
"""NIXL, without a GPU: OPTION UCX or LIBFABRIC writes each tensor into the other process and notifies it; POSIX goes through a file
in /dev/shm, which the sender writes and the receiver then reads."""

from __future__ import annotations

import os
import pathlib
import time
import uuid

from nixl_cu12._api import nixl_agent, nixl_agent_config
from peers import Peer, main


class Nixl(Peer):
    def open(self) -> None:
        self.option = self.option or "UCX"
        self.name = "sender" if self.is_sender else "receiver"
        self.agent = nixl_agent(self.name, nixl_agent_config(backends=[self.option]))
        if self.option not in self.agent.backends:
            raise SystemExit(f"NIXL has no backend {self.option} here")
        self.regions = [(t.ctypes.data, t.nbytes, 0) for t in self.tensors.values()]
        self.registered = self.agent.register_memory([(*region, "") for region in self.regions], "DRAM")
        if self.option == "POSIX":
            self.file = pathlib.Path("/dev/shm") / f"heft-peers-{uuid.uuid4()}"
            self.info = str(self.file) if self.is_sender else "-"
            return
        regions = ",".join(f"{address:x}+{size:x}" for address, size, _ in self.regions)
        self.info = self.agent.get_agent_metadata().hex() + "/" + regions

    def connect(self, info: str) -> None:
        if self.option == "POSIX":
            if not self.is_sender:
                self.file = pathlib.Path(info)
            self.done = self.file.with_suffix(".done")
            fd = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)
            places, at = [], 0
            for _, size, _ in self.regions:
                places.append((at, size, fd))
                at += size
            os.ftruncate(fd, at)
            self.agent.register_memory([(*place, "") for place in places], "FILE")
            files = self.agent.get_xfer_descs(places, "FILE")
            verb = "WRITE" if self.is_sender else "READ"
            self.transfer = self.agent.initialize_xfer(verb, self._memory(), files, self.name)
            return
        metadata, _, regions = info.partition("/")
        remote = self.agent.add_remote_agent(bytes.fromhex(metadata))
        if self.is_sender:
            places = [(*(int(x, 16) for x in region.split("+")), 0) for region in regions.split(",")]
            self.transfer = self.agent.initialize_xfer(
                "WRITE", self._memory(), self.agent.get_xfer_descs(places, "DRAM"), remote, b"arrived"
            )

    def _memory(self) -> object:
        return self.agent.get_xfer_descs(self.regions, "DRAM")

    def _run(self) -> None:
        state = self.agent.transfer(self.transfer)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.transfer)
        if state != "DONE":
            raise RuntimeError(f"NIXL: {state}")

    def go(self) -> None:
        if self.option == "POSIX":
            while not self.is_sender and not self.done.exists():
                time.sleep(0.0002)
            self._run()
            self.done.touch() if self.is_sender else self.done.unlink()
        elif self.is_sender:
            self._run()
        else:
            while not self.agent.get_new_notifs():
                pass

    def close(self) -> None:
        if self.option == "POSIX":
            self.file.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Nixl)

"""What an agent keeps on its own disk, so that it goes on where it was killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, final

import msgspec

from sottovoce.errors import NetworkError
from sottovoce.network.lock import own
from sottovoce.network.protocol.agent import Memory
from sottovoce.network.slots import Slots

_MAGIC: Final = b"svagent5"

_decoder = msgspec.msgpack.Decoder(Memory)
_encoder = msgspec.msgpack.Encoder()


@final
class Saved:
    """An agent's memory in a file that only its owner can read, owned by one agent at a time.

    Args:
        path: the file, created if missing.
        start: what to begin with if nothing was saved.
        sums: how many whole numbers a contribution has at most.

    Raises:
        BusyError: another process of this agent is running.
        DiskError: the file cannot be opened.
        NetworkError: the file is something else, or damaged beyond both slots.
    """

    def __init__(self, path: str | os.PathLike[str], start: Memory, *, sums: int) -> None:
        self.path = Path(path).resolve()
        self._lock = own(self.path, owner="agent")
        try:
            # Room for everything in a memory that is not yet known to the first one.
            size = len(start.x)
            self._slots = Slots(self.path, _MAGIC, 1024 + 2 * size + max(8 * sums, size))
        except BaseException:
            self._lock.close()
            raise
        try:
            self.memory = self._load(start)
        except BaseException:
            self.close()
            raise

    def write(self, memory: Memory) -> None:
        """Keep a memory, in the slot that the previous round did not use.

        Raises:
            DiskError: the disk is full or failing; what was saved before is still there.
        """
        self._slots.write(memory.round, _encoder.encode(memory))
        self.memory = memory

    def close(self) -> None:
        """Close the file and give it back."""
        self._slots.close()
        self._lock.close()

    def _load(self, start: Memory) -> Memory:
        found = [_decoder.decode(body) for body in self._slots.bodies()]
        if not found and not self._slots.empty:
            raise NetworkError(f"{self.path} is not an agent's saved state, or is damaged")
        memory = max(found, key=lambda m: m.round, default=start)
        if len(memory.x) != len(start.x):
            raise NetworkError(f"{self.path} was saved by other agents: choose another file")
        return memory

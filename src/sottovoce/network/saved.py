"""What an agent keeps on its own disk: two slots, written in turn, each with its checksum.

A process killed in the middle of a write leaves the other slot whole, so the agent goes on from
the round before; a slot of a hundred bytes costs microseconds, not a file per round.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final, final

import msgspec

from sottovoce.network.errors import NetworkError
from sottovoce.network.protocol.agent import Memory

_MAGIC: Final = b"svagent1"
_HEAD: Final = len(_MAGIC) + 8
_decoder = msgspec.msgpack.Decoder(tuple[bytes, int, bytes, bytes])
_encoder = msgspec.msgpack.Encoder()


@final
class Saved:
    """An agent's memory in a file that only its owner can read.

    Args:
        path: the file, created if missing.
        start: what to begin with if nothing was saved.

    Raises:
        NetworkError: the file is something else, or damaged beyond both slots.
    """

    def __init__(self, path: str | os.PathLike[str], start: Memory) -> None:
        self.path = Path(path)
        # Room for everything in a memory that is not yet known to the first one.
        self._slot = _HEAD + 256 + len(start.x)
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            self._file = os.fdopen(handle, "r+b", buffering=0)
        except OSError as error:
            raise NetworkError(f"{self.path} cannot be opened: {error.strerror}") from None
        found = [m for m in (self._read(0), self._read(1)) if m is not None]
        if not found and self.path.stat().st_size:
            self.close()
            raise NetworkError(f"{self.path} is not an agent's saved state, or is damaged")
        self.memory = max(found, key=lambda m: m.round, default=start)
        if len(self.memory.x) != len(start.x):
            self.close()
            raise NetworkError(f"{self.path} was saved by other agents: choose another file")

    def write(self, memory: Memory) -> None:
        """Keep a memory, in the slot that the previous round did not use."""
        values = (memory.config, memory.round, memory.receipt, memory.x)
        body = _encoder.encode(values)
        head = _MAGIC + zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little")
        self._file.seek(self._slot * (memory.round % 2))
        self._file.write((head + body).ljust(self._slot, b"\0"))
        self.memory = memory

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, slot: int) -> Memory | None:
        self._file.seek(self._slot * slot)
        data = self._file.read(self._slot) or b""
        length = int.from_bytes(data[_HEAD - 4 : _HEAD], "little")
        body = data[_HEAD : _HEAD + length]
        mark = int.from_bytes(data[_HEAD - 8 : _HEAD - 4], "little")
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body) != mark:
            return None
        config, k, receipt, x = _decoder.decode(body)
        return Memory(config=config, round=k, receipt=receipt, x=x)

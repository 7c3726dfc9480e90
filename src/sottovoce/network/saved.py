"""What an agent keeps on its own disk: two slots, written in turn, each with its checksum.

A process killed in the middle of a write leaves the other slot whole, so the agent goes on from
the round before; a slot of a hundred bytes costs microseconds, not a file per round.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, final

import msgspec

from sottovoce.network.errors import NetworkError
from sottovoce.network.protocol.agent import Memory

_MAGIC: Final = b"svagent2"
_HEAD: Final = struct.Struct("<8sII")
"""The magic, the body's checksum and its length."""

_decoder = msgspec.msgpack.Decoder(tuple[bytes, int, bytes, bytes, bytes])
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
        self._slot = _HEAD.size + 256 + 2 * len(start.x)
        try:
            self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
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
        values = (memory.config, memory.round, memory.receipt, memory.x, memory.answer)
        body = _encoder.encode(values)
        slot = _HEAD.pack(_MAGIC, zlib.crc32(body), len(body)) + body
        # What a longer body left behind the end of this one is never read.
        os.pwrite(self._file, slot, self._slot * (memory.round % 2))
        self.memory = memory

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, slot: int) -> Memory | None:
        data = os.pread(self._file, self._slot, self._slot * slot)
        if len(data) < _HEAD.size:
            return None
        magic, mark, length = _HEAD.unpack_from(data)
        body = data[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or zlib.crc32(body) != mark:
            return None
        config, k, receipt, x, answer = _decoder.decode(body)
        return Memory(config=config, round=k, receipt=receipt, x=x, answer=answer)

"""A small file of two slots, written in turn, each with its checksum.

A process killed in the middle of a write leaves the other slot whole. Slots begin where sectors of
a disk begin, so a loss of power cannot tear both. Nothing is forced to the disk: a write costs
microseconds, survives the death of the process, and may be some rounds old after a loss of power.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, final

from sottovoce.network.errors import DiskError

SECTOR: Final = 512
_HEAD: Final = struct.Struct("<8sII")
"""The magic, the body's checksum and its length."""


@final
class Slots:
    """Two bodies in a file that only its owner can read; the file is created if missing.

    Args:
        path: the file.
        magic: eight bytes that say what the file is.
        room: the most bytes that a body may have.

    Raises:
        DiskError: the file cannot be opened.
    """

    def __init__(self, path: Path, magic: bytes, room: int) -> None:
        self.path = path
        self._magic = magic
        self._size = -(-(_HEAD.size + room) // SECTOR) * SECTOR
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise DiskError(f"{path} cannot be opened: {error.strerror}") from None

    @property
    def empty(self) -> bool:
        """Whether nothing was ever written."""
        return os.fstat(self._file).st_size == 0

    def bodies(self) -> list[bytes]:
        """Return what is whole: two bodies, one, or none."""
        return [body for turn in (0, 1) if (body := self._read(turn)) is not None]

    def write(self, turn: int, body: bytes) -> None:
        """Put a body into the slot of this turn, even or odd.

        Raises:
            DiskError: the disk is full or failing; the other slot is as it was.
        """
        slot = _HEAD.pack(self._magic, zlib.crc32(body), len(body)) + body
        try:
            # What a longer body left behind the end of this one is never read.
            written = os.pwrite(self._file, slot, self._size * (turn % 2))
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror}") from None
        if written != len(slot):
            raise DiskError(f"{self.path} cannot be written: the disk is full")

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, turn: int) -> bytes | None:
        data = os.pread(self._file, self._size, self._size * turn)
        if len(data) < _HEAD.size:
            return None
        magic, mark, length = _HEAD.unpack_from(data)
        body = data[_HEAD.size : _HEAD.size + length]
        return body if magic == self._magic and zlib.crc32(body) == mark else None

"""An append-only file of records of one size: each is on the disk before ``append`` returns.

A record ends with a checksum of its place and its contents. Space is written ahead with zeros, so
that a commit is one write and one wait for the disk, without a change of the file's size. What a
crash tore at the end was never promised to anybody; a broken record with a whole one behind it is
damage.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from sottovoce.network.errors import DiskError, StoreError
from sottovoce.network.seal import seal

AHEAD: Final = 1 << 18
_SEAL: Final = 16
_HEAD: Final = struct.Struct("<8sQQ")
"""The magic, the size of a record, and the length of the text that follows."""


@final
class Journal:
    """Records of one size after a heading that never changes.

    Args:
        path: the file; the caller owns it.
        magic: eight bytes that say what the file is.

    Raises:
        StoreError: it is something else, or damaged.
        DiskError: it cannot be read or written now.
    """

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path = path
        self._magic = magic
        self.heading = ""
        self.count = 0
        """How many records there are."""
        self._size = self._begin = self._room = 0
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise DiskError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            self._load()
        except BaseException:
            os.close(self._file)
            raise

    def records(self) -> Iterator[bytes]:
        """Yield all records, in order."""
        for place in range(self.count):
            at = self._begin + place * (self._size + _SEAL)
            yield os.pread(self._file, self._size, at)

    def begin(self, heading: str, size: int) -> None:
        """Write the heading of a new file, and say how large its records are."""
        text = heading.encode()
        head = _HEAD.pack(self._magic, size, len(text)) + text
        whole = head + seal(head)
        self._write(whole, 0)
        self._sync()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file's name, too, survives a loss of power
        finally:
            os.close(folder)
        self.heading, self._size = heading, size
        self._begin = self._room = len(whole)

    def append(self, body: bytes) -> None:
        """Write a record; returns only when it is on the disk.

        Raises:
            DiskError: the disk is full or failing; the record may be there or not.
        """
        place = self.count
        at = self._begin + place * (self._size + _SEAL)
        end = at + self._size + _SEAL
        if end > self._room:
            self._write(bytes(end - self._room + AHEAD), self._room)
            self._room = end + AHEAD
        self._write(body + seal(place, body), at)
        self._sync()
        self.count += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _load(self) -> None:
        try:
            size = os.fstat(self._file).st_size
            data = os.pread(self._file, size, 0)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be read: {error.strerror}") from None
        if not data.strip(b"\0"):
            return  # new, or killed before the heading was written
        head, text = data[: _HEAD.size], b""
        if len(head) == _HEAD.size and head.startswith(self._magic):
            _, self._size, length = _HEAD.unpack(head)
            text = data[_HEAD.size : _HEAD.size + length]
        self._begin = _HEAD.size + len(text) + _SEAL
        if not text or data[self._begin - _SEAL : self._begin] != seal(head + text):
            raise StoreError(f"{self.path} is not a helper's store, or is damaged")
        self.heading, self._room = text.decode(), max(size, self._begin)
        self._read(data)

    def _read(self, data: bytes) -> None:
        step, torn = self._size + _SEAL, False
        for place, at in enumerate(range(self._begin, len(data) - step + 1, step)):
            body = data[at : at + self._size]
            if data[at + self._size : at + step] != seal(place, body):
                torn = True
            elif torn:
                raise StoreError(
                    f"{self.path} is damaged: record {place} is whole, and one before it is not; "
                    "nothing is sent from it. Restore the disk's own copy, or begin a new run"
                )
            else:
                self.count += 1

    def _write(self, data: bytes, at: int) -> None:
        try:
            written = os.pwrite(self._file, data, at)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror}") from None
        if written != len(data):
            raise DiskError(f"{self.path} cannot be written: the disk is full")

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror}") from None

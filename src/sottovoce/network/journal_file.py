"""What lies under a journal: tables, checksums, the marker, the lock, and SQLite's errors."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import msgspec
from msgspec import Struct

from sottovoce.errors import NetworkError
from sottovoce.network.failures import BusyError, DiskError, StoreError

APPLICATION: Final = 0x53564F43
SCHEMA: Final = 7  # the layout of the tables; a file of another one is refused
LOG_PAGES: Final = 256
LOG_BYTES: Final = (LOG_PAGES + 16) * (4096 + 24)
"""SQLite's log: pages after which it is copied into the file and begun again, with room for what is
written beyond that at once. A round is one page of 4,096 bytes, or two, each with a head."""

SECTOR: Final = 512

TABLES: Final = (
    """CREATE TABLE rounds (
    k INTEGER PRIMARY KEY,
    context BLOB NOT NULL,
    release BLOB NOT NULL,
    digest BLOB NOT NULL,
    attendance BLOB NOT NULL,
    seal BLOB NOT NULL,
    said BLOB,
    said_seal BLOB
)""",
    """CREATE TABLE notes (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    seal BLOB NOT NULL
)""",
)

_LASTING: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
    }
)
"""SQLite errors that a retry cannot fix; all others may pass."""

_encoder = msgspec.msgpack.Encoder()

BEGIN_ANEW: Final = (
    "put the newest files back, or begin anew, a cloud with --new: a new run spends privacy anew"
)


def seal(*parts: bytes) -> bytes:
    """Return a checksum of values and of where each ends: against bit rot, not against forgers."""
    ends = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return hashlib.blake2b(ends + b"".join(parts), digest_size=16).digest()


class Reached(Struct, frozen=True, kw_only=True):
    """Where a run was: its name, the rounds released, the last digest, whether it was halted."""

    run_id: str
    rounds: int = 0
    digest: bytes = b""
    halted: bool = False


_reached = msgspec.msgpack.Decoder(Reached)


@final
class Marker:
    """How far a journal had got, in a file of one sector beside it.

    It is written after a round is durable and before a byte of it leaves, without a wait for the
    disk. It is never ahead of what the journal has promised to keep, so it accuses no honest one;
    after a loss of power it may be some rounds behind, and then proves that much less. A write
    replaces one sector, which neither a kill nor a loss of power tears, and the file is created
    whole: an empty one was emptied by something else, and counts as damaged. The journal's path has
    no symbolic links; without one no marker is kept.
    """

    def __init__(self, journal: Path | None) -> None:
        self.path = None if journal is None else marker_of(journal)
        self.reached: Reached | None = None
        self._file: int | None = None
        if self.path is not None and self.path.exists():
            data = self.path.read_bytes()
            body = data[18 : 18 + int.from_bytes(data[16:18], "little")]
            if seal(body) != data[:16]:
                raise StoreError(
                    f"{self.path} is damaged, so that {journal} may have lost rounds unnoticed: "
                    f"{BEGIN_ANEW}"
                )
            self.reached = _reached.decode(body)

    def write(self, reached: Reached) -> None:
        """Note that the run has got this far."""
        if self.path is None:
            return
        body = _encoder.encode(reached)
        sector = (seal(body) + len(body).to_bytes(2, "little") + body).ljust(SECTOR, b"\0")
        try:
            if self._file is not None:
                os.pwrite(self._file, sector, 0)  # in place, and never longer
            else:
                new = self.path.with_name(self.path.name + ".new")
                self._file = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
                os.pwrite(self._file, sector, 0)
                os.fsync(self._file)
                new.replace(self.path)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror}") from None
        self.reached = reached

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)


def marker_of(journal: Path) -> Path:
    """Return the file of a journal's marker."""
    return journal.with_name(journal.name + ".mark")


def damaged(path: os.PathLike[str], what: str) -> StoreError:
    """Return the error of a journal that says what was never written."""
    return StoreError(f"{path} is damaged: {what}; nothing is sent from it: {BEGIN_ANEW}")


def checkpoint(database: sqlite3.Connection, path: Path) -> None:
    """Copy the log into the file, durably."""
    with translated(path):
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    if busy:
        raise DiskError(
            f"{path} cannot be written now (another process is reading it); nothing was sent"
        )


def utc(moment: float | None = None) -> str:
    """Return a time, seconds since 1970, as ISO 8601 in UTC; by default now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise StoreError for SQLite errors that a retry cannot fix, and DiskError for others."""
    try:
        yield
    except sqlite3.Error as error:
        raise sqlite_error(path, error) from None
    except UnicodeDecodeError:  # of a schema with a flipped bit
        raise damaged(path, "text that is not UTF-8") from None
    except OSError as error:
        raise DiskError(f"{path} cannot be written now ({error.strerror})") from None


def sqlite_error(path: Path, error: sqlite3.Error) -> NetworkError:
    """Return a StoreError where a retry cannot help, a DiskError where it may."""
    # The low byte is the kind; the rest says where it happened.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(path, str(error))
    if code in _LASTING:
        return StoreError(f"{path} cannot be used as a store of a run ({error})")
    return DiskError(f"{path} cannot be read or written now ({error}); nothing was sent")


def set_aside(path: Path) -> None:
    """Rename the files of a journal that cannot be used."""
    aside = f"{path.name}.lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for end in ("", "-wal", "-shm", ".mark"):
        file = path.with_name(path.name + end)
        if file.exists():
            file.rename(path.with_name(aside + end))


def lock_file(path: Path, *, owner: str) -> sqlite3.Connection:
    """Take the lock beside a file; the system gives it back when this process dies.

    The path has no symbolic links: two names of a file must meet at one lock.
    """
    lock = path.with_name(path.name + ".lock")
    touch(lock)
    connection = sqlite3.connect(lock, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:
        connection.close()
        raise BusyError(f"{path} must be free, but another {owner} is using it") from None
    return connection


def touch(path: Path) -> None:
    """Create the file for its owner alone, or make it so, with what SQLite keeps beside it.

    An existing file is not opened: closing it again would drop the locks that SQLite holds on it
    elsewhere in this process, such is POSIX.
    """
    try:
        for beside in (f"{path.name}-wal", f"{path.name}-shm"):
            if path.with_name(beside).exists():
                path.with_name(beside).chmod(0o600)
        if path.exists():
            path.chmod(0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise DiskError(f"{path} cannot be opened: {error.strerror}") from None


def lengthen_log(path: Path) -> None:
    """Let SQLite's log have its full length before round 1.

    A commit within a file waits for its own bytes; one that makes the file longer waits for the
    file system's journal as well, which takes several times as long. Zeros at the end of a log are
    to SQLite what is left of an older one: no part of it.
    """
    file = os.open(path.with_name(path.name + "-wal"), os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        size = os.fstat(file).st_size
        if size < LOG_BYTES:
            os.pwrite(file, bytes(LOG_BYTES - size), size)
            os.fsync(file)
    finally:
        os.close(file)

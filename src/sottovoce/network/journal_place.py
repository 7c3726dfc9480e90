"""What lies under a journal: tables, checksums, the rollback marker, and who may write.

One process at a time writes. Of a file it has the lock; in PostgreSQL a lease, a row with a token
and an expiry by the server's clock. Every transaction that writes first prolongs the lease by its
token, which locks the row. A process that was stopped while another took the lease over has the
wrong token: it can write nothing, and hence send nothing. One that merely let its lease expire goes
on.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

import msgspec
from msgspec import Struct

from sottovoce.database import Address, Database, Statement, connect, driver_errors, fault_of
from sottovoce.network.failures import BusyError, DiskError, LeasedError, StoreError

APPLICATION: Final = 0x53564F43
SCHEMA: Final = 8  # the layout of the tables; a journal of another one is refused
STAMP: Final = (APPLICATION, SCHEMA)
SECONDS: Final = 10.0  # to wait while another process reads or writes
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

LEASE_SECONDS: Final = 5.0
"""After which another process may take over: some renewals, one per second, may be late or fail."""

POLL_SECONDS: Final = LEASE_SECONDS / 10  # between attempts of a standby
START_SECONDS: Final = 600.0
"""A lease is prolonged this long without a tick of its owner: a fleet's charges take a start."""

_LEASE: Final = "CREATE TABLE lease (token TEXT NOT NULL, expires TIMESTAMPTZ NOT NULL)"
_FIRST: Final = "INSERT INTO lease VALUES ('', clock_timestamp())"
_PROLONG: Final = (
    "UPDATE lease SET expires = clock_timestamp() + make_interval(secs => ?) WHERE token = ?"
)
_TAKE: Final = """
UPDATE lease SET token = ?, expires = clock_timestamp() + make_interval(secs => ?)
WHERE expires < clock_timestamp()"""
_FREE: Final = "UPDATE lease SET token = '', expires = clock_timestamp() WHERE token = ?"

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
    whole: an empty one was emptied by something else, and counts as damaged. Without a path no
    marker is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.reached: Reached | None = None
        self._file: int | None = None
        if self.path is not None and self.path.exists():
            data = self.path.read_bytes()
            body = data[18 : 18 + int.from_bytes(data[16:18], "little")]
            if seal(body) != data[:16]:
                raise StoreError(
                    f"{self.path} is damaged, so that rounds may be lost unnoticed: {BEGIN_ANEW}"
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


def damaged(name: str, what: str) -> StoreError:
    """Return the error of a journal that says what was never written."""
    return StoreError(f"{name} is damaged: {what}; nothing is sent from it: {BEGIN_ANEW}")


def utc(moment: float | None = None) -> str:
    """Return a time, seconds since 1970, as ISO 8601 in UTC; by default now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise a driver's or the system's errors as ``store_error`` has them."""
    try:
        yield
    except store_errors() as error:
        raise store_error(name, error) from None


def store_errors() -> tuple[type[Exception], ...]:
    """Return what reading or writing a journal may raise."""
    return (*driver_errors(), UnicodeDecodeError, OSError)


def store_error(name: str, error: Exception) -> StoreError | DiskError:
    """Return StoreError for what a retry cannot fix, and DiskError for all else."""
    if isinstance(error, UnicodeDecodeError):  # of a schema with a flipped bit
        return damaged(name, "text that is not UTF-8")
    if isinstance(error, OSError):
        return DiskError(f"{name} cannot be written now ({error.strerror})")
    kind, text = fault_of(error)
    if kind == "damage":
        return damaged(name, text)
    if kind == "lasting":
        return StoreError(f"{name} cannot be used as a store of a run ({text})")
    return DiskError(f"{name} cannot be read or written now ({text}); nothing was sent")


class _Place:
    """What files and schemas share; a method does nothing where the other one alone needs it."""

    address: Address

    def open(self, *rows: Statement) -> Database:
        """Open the database; make the tables, with these rows, if there are none."""
        if self.address.file is not None:
            touch(self.address.file)
        database = connect(self.address, seconds=SECONDS)
        try:
            # An empty file is what a process leaves that was killed before it made the tables.
            database.create(TABLES, STAMP, *rows)
        except BaseException:
            database.close()
            raise
        return database

    def prepare(self, database: Database, *, durable: bool) -> None:
        """Make an open journal ready for rounds."""

    def settle(self, database: Database) -> None:
        """Have what was committed in one place, durably."""

    def hold(self, database: Database | None = None) -> None:
        """Prolong a lease, in the transaction of a write or by itself, or raise LeasedError."""


@final
class JournalFile(_Place):
    """A journal's file, with its lock and marker beside it.

    Two names of one file are one journal, so links are resolved. The system gives the lock back
    when this process dies.
    """

    def __init__(self, file: Path, owner: str) -> None:
        self.path = file.resolve()
        self.name, self.mark = str(self.path), self._beside(".mark")
        self.address = Address(name=self.name, file=self.path)
        lock = self._beside(".lock")
        touch(lock)
        self._lock = sqlite3.connect(lock, timeout=0, isolation_level=None)
        try:
            self._lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error:
            self._lock.close()
            raise BusyError(f"{self.name} must be free, but another {owner} is using it") from None

    def exists(self) -> bool:
        """Whether there is anything in it."""
        return self.path.exists() and self.path.stat().st_size > 0

    def prepare(self, database: Database, *, durable: bool) -> None:
        """Have erased contributions overwritten, and the log at its full length."""
        if durable:
            database.execute("PRAGMA secure_delete = ON")
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            lengthen_log(self.path)
        else:
            database.execute(database.relaxed)

    def settle(self, database: Database) -> None:
        """Copy the log into the file."""
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy:
            raise DiskError(
                f"{self.name} cannot be written now (another process is reading it); nothing was "
                "sent"
            )

    def is_ours(self) -> bool:
        """Whether it is a journal; anything else stays as it is."""
        return self._beside(".mark").exists()  # without a marker a file may be anything

    def set_aside(self) -> None:
        """Rename what cannot be used."""
        aside = f".lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        for end in ("", "-wal", "-shm", ".mark"):
            if self._beside(end).exists():
                self._beside(end).rename(self._beside(aside + end))

    def close(self) -> None:
        """Let another process write."""
        self._lock.close()

    def _beside(self, end: str) -> Path:
        return self.path.with_name(self.path.name + end)


@final
class JournalSchema(_Place):
    """A journal's schema, with its lease; a marker only where the address names one."""

    def __init__(self, address: Address, owner: str) -> None:
        self.address = address
        self.name, self.mark = address.name, address.mark
        self._owner = owner
        self._token = f"{socket.gethostname()} process {os.getpid()} {uuid.uuid4().hex}"
        with translated(self.name):
            self._database = connect(address, seconds=SECONDS)
        try:
            with translated(self.name):
                self._database.create([_LEASE], STAMP, (_FIRST, ()))
                self._database.execute(self._database.relaxed)  # a lease need not be durable
                if self._database.execute(_TAKE, (self._token, LEASE_SECONDS)).rowcount != 1:
                    raise self._leased()
        except BaseException:
            self._database.close()
            raise
        self._ticking = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def exists(self) -> bool:
        """Whether there is anything in it."""
        return self._database.stamp("rounds") is not None

    def is_ours(self) -> bool:
        """Whether it is a journal; anything else stays as it is."""
        with translated(self.name):
            stamp = self._database.stamp("rounds")
        return stamp is None or stamp[0] == APPLICATION

    def set_aside(self) -> None:
        """Rename what cannot be used."""
        aside = f"lost_{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}"
        for table in ("rounds", "notes"):
            self._database.execute(f"ALTER TABLE IF EXISTS {table} RENAME TO {table}_{aside}")
        if self.mark is not None and self.mark.exists():
            self.mark.rename(self.mark.with_name(f"{self.mark.name}.{aside}"))

    def hold(self, database: Database | None = None) -> None:
        """Prolong the lease, or raise LeasedError."""
        if database is None:
            self._ticking.set()
        if (database or self._database).execute(
            _PROLONG, (LEASE_SECONDS, self._token)
        ).rowcount != 1:
            raise self._leased()

    def close(self) -> None:
        """Let another process write."""
        self._ticking.set()
        with suppress(*driver_errors()):
            self._database.execute(_FREE, (self._token,))
        self._database.close()

    def _keep(self) -> None:
        """Prolong the lease until its owner does, every second."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and not self._ticking.wait(LEASE_SECONDS / 5):
            with suppress(*driver_errors()):
                self._database.execute(_PROLONG, (LEASE_SECONDS, self._token))

    def _leased(self) -> LeasedError:
        holder = self._database.execute("SELECT token FROM lease").fetchone()[0]
        who = holder.rpartition(" ")[0] or "none any more"
        return LeasedError(
            f"{self.name} must be leased by this {self._owner}, got the lease of {who}: start "
            "again to wait for it"
        )


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

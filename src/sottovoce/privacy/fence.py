"""The ledger's tables and connections, and the fence: per run, the last round that may be sent.

So no copy of a store sends a round again.

A cloud commits round k in its store, then raises the fence from k - 1 to k in the ledger, then
sends. Both steps are durable. The fence rises by exactly one and keeps the digest of what it let
through, hence

- a store may be ahead of the fence by one round, after a crash between the two commits. That round
  was not sent, and the fence is raised before anything is;
- a store that does not hold the fenced round with the fenced digest is a copy or an old backup, or
  lost a race against one: what it would send was sent already, with other noise. It is refused;
- of two clouds on two copies at most one raises the fence to any round. The other has committed
  its round in its own store and sent nothing, and never will: its digest is another one.

Where store and ledger are in one database of PostgreSQL, both steps are one transaction.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, final

from sottovoce.database import Address, Database, connect, driver_errors, fault_of, transaction
from sottovoce.errors import InputError, PrivacyError, RollbackError, UnavailableError

APPLICATION: Final = int.from_bytes(b"svlg")
SCHEMA: Final = 3

# radius: NULL for "everything"
# spent: the exact sum of the squares in units of 4^-BITS, hexadecimal
# at: the ledger's time in UTC, ISO 8601, which never falls
# fence, digest: the last round of the run that may be sent
TABLES: Final = (
    """CREATE TABLE accounts (
    agent TEXT PRIMARY KEY,
    hide TEXT NOT NULL,
    radius REAL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    budget REAL NOT NULL,
    spent TEXT NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    note TEXT NOT NULL,
    at TEXT NOT NULL,
    fence INTEGER NOT NULL,
    digest BLOB NOT NULL
)""",
    """CREATE TABLE spends (
    number INTEGER NOT NULL REFERENCES runs,
    agent TEXT NOT NULL REFERENCES accounts,
    hide TEXT NOT NULL,
    radius REAL,
    mu REAL NOT NULL,
    allowance REAL NOT NULL,
    PRIMARY KEY (number, agent)
) WITHOUT ROWID""",
    """CREATE TABLE periods (
    agent TEXT NOT NULL REFERENCES accounts,
    per TEXT NOT NULL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    budget REAL NOT NULL,
    PRIMARY KEY (agent, per)
) WITHOUT ROWID""",
)
_WITHOUT_PERIODS: Final = 2  # the schema before; all other tables are as they were


def create_ledger(address: Address) -> None:
    """Make an empty ledger unless there is one, whole or not at all; bring an older one up to date.

    After that the release that wrote it refuses it: it would not keep budgets by period.
    """
    if address.file is not None and not address.file.exists():
        _create_file(address.file)
    with ledger_errors(address.name), closing(connect(address)) as database:
        if address.file is None:
            database.create(TABLES, (APPLICATION, SCHEMA))
        older = (APPLICATION, _WITHOUT_PERIODS)
        if database.stamp("accounts") == older:
            with transaction(database, write=True, lock="accounts"):
                if database.stamp("accounts") == older:  # another process may have been faster
                    database.execute(TABLES[-1])
                    database.restamp("accounts", (APPLICATION, SCHEMA))


def _create_file(path: Path) -> None:
    """Make a ledger beside its path and link it into place."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise InputError(f"ledger {path} cannot be created: {error.strerror}") from error
    os.close(handle)
    try:
        with closing(connect(Address(name=name, file=Path(name)))) as database:
            database.create(TABLES, (APPLICATION, SCHEMA))
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was faster
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    finally:
        Path(name).unlink()


@contextmanager
def ledger_transaction(address: Address, *, write: bool = False) -> Iterator[Database]:
    """Read one moment of a ledger; or write, while no other process changes an account."""
    with ledger_errors(address.name), closing(connect(address)) as database:
        _check_version(database, address.name)
        with transaction(database, write=write, lock="accounts" if write else ""):
            yield database


@contextmanager
def ledger_errors(name: str) -> Iterator[None]:
    """Turn drivers' errors into ours: UnavailableError if they are transient."""
    try:
        yield
    except driver_errors() as error:
        kind, text = fault_of(error)
        failure, now = (UnavailableError, " now") if kind == "passing" else (PrivacyError, "")
        raise failure(
            f"ledger {name} cannot be used{now} ({text}): nothing may be released without "
            "it, so make it available and start again"
        ) from None


def _check_version(database: Database, name: str) -> None:
    application, version = database.stamp("accounts") or (0, 0)
    if application != APPLICATION:
        raise PrivacyError(f"{name} is not a ledger: restore it or choose another")
    if version == 1:
        raise PrivacyError(
            f"ledger {name} must have schema version {SCHEMA}, got 1, which does not say for which "
            "adjacency and radius its budgets were spent: read what remains with the release that "
            "wrote it, and grant that much in a new file"
        )
    if version != SCHEMA:
        raise PrivacyError(
            f"ledger {name} must have schema version {SCHEMA}, got {version}: "
            "use the release of sottovoce that wrote it"
        )


Digests = Callable[[int], bytes | None]  # of a round in a store; None for one it does not hold
RAISE_FENCE: Final = """
UPDATE {}runs SET fence = ?, digest = ? WHERE run_id = ? AND fence = ? AND digest = ?"""


@final
class Fence:
    """One run's fence, on a connection of its own: opening the ledger anew costs several commits.

    The run is recorded in the ledger, and the fence stands at round k with its digest.
    """

    def __init__(self, address: Address, run_id: str, k: int, digest: bytes) -> None:
        self.address = address
        self._run_id = run_id
        self._standing = k, digest
        with ledger_errors(address.name):
            self._database = connect(address)
        self._file = _file_identity(address)

    def use(self, database: Database) -> None:
        """Rise from now on in the transactions of another connection to the same database."""
        self._database.close()
        self._database = database

    def rise(self, k: int, digest: bytes) -> None:
        """Let round k through; returns only when that is on disk.

        Raises:
            RollbackError: another cloud raised it first; nothing of this round may be sent.
            UnavailableError: the ledger cannot be written now; start again to continue.
        """
        if k != self._standing[0] + 1:
            raise PrivacyError(
                f"the fence of run {self._run_id!r} must rise by one round, got round {k} after "
                f"round {self._standing[0]}"
            )
        if _file_identity(self.address) != self._file:
            raise PrivacyError(
                f"ledger {self.address.name} was replaced while a run used it: nothing may be "
                "released before the newest one is back, so put it there and start again"
            )
        with ledger_errors(self.address.name):
            # One statement is a transaction by itself, outside of one.
            values = (k, digest, self._run_id, *self._standing)
            statement = RAISE_FENCE.format(self.address.prefix)
            risen = self._database.execute(statement, values).rowcount
        if risen != 1:
            raise RollbackError(
                f"round {k} of run {self._run_id!r} must be released once, but another cloud has "
                f"raised the fence in ledger {self.address.name}: this store is a copy; nothing "
                "was sent"
            )
        self._standing = k, digest

    def close(self) -> None:
        """Close the connection to the ledger."""
        self._database.close()


def require_fence(database: Database, run_id: str, rounds: int, digest: Digests) -> None:
    """Check a store of so many rounds against the fence; raise it if a crash left it one behind.

    Raises:
        RollbackError: the store is behind the fence, or holds another round there.
        PrivacyError: the ledger is behind the store.
    """
    fence, fenced_digest = database.execute(
        "SELECT fence, digest FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    if rounds < fence:
        raise RollbackError(
            f"the store of run {run_id!r} must hold every round that was released, got {rounds} "
            f"of {fence}: it is a copy or an old backup, and would release round {rounds + 1} "
            "again with other noise; use the newest store, or start a new run with a new store, "
            "which spends privacy anew"
        )
    if fence > 0 and digest(fence) != fenced_digest:
        raise RollbackError(
            f"the store of run {run_id!r} must hold round {fence} as it was released, got another "
            "one: it is a copy that another cloud has overtaken; use that cloud's store, or start "
            "a new run with a new store, which spends privacy anew"
        )
    if rounds > fence + 1:
        raise PrivacyError(
            f"the ledger must know all {rounds} rounds of run {run_id!r} but the last, got "
            f"{fence}: it is an old copy, or the run was continued without it; restore the newest "
            "ledger, or start a new run with a new store, which spends privacy anew"
        )
    if rounds == fence + 1:
        last_digest = digest(rounds) or b""
        values = (rounds, last_digest, run_id, fence, fenced_digest)
        if database.execute(RAISE_FENCE.format(""), values).rowcount != 1:
            raise RollbackError(
                f"round {rounds} of run {run_id!r} must be released once, but another cloud has "
                "raised the fence meanwhile; nothing was sent"
            )


def _file_identity(address: Address) -> tuple[int, int] | None:
    """Which file it is; a server that was replaced has broken the connection."""
    if address.file is None:
        return None
    try:
        status = address.file.stat()
    except OSError as error:
        raise UnavailableError(
            f"ledger {address.name} cannot be used now ({error.strerror}); nothing may be released "
            "without it"
        ) from None
    return status.st_dev, status.st_ino

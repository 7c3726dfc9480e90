"""A journal in a schema of PostgreSQL, and the lease by which one process at a time writes it.

The lease is a row with a token and an expiry by the server's clock. Every transaction that writes
first prolongs the lease by its token, which locks the row. A process that was stopped while another
took the lease over has the wrong token: it can write nothing, and hence send nothing. A process
that merely let its lease expire goes on.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from typing import Final, final

from sottovoce.database import Address, Database, Statement, connect, driver_errors
from sottovoce.network.failures import LeasedError
from sottovoce.network.journal_file import APPLICATION, SECONDS, STAMP, TABLES, translated

LEASE_SECONDS: Final = 5.0
"""After which another process may take over: some renewals, one per second, may be late or fail."""

POLL_SECONDS: Final = LEASE_SECONDS / 10  # between attempts of a standby

_LEASE: Final = "CREATE TABLE lease (token TEXT NOT NULL, expires TIMESTAMPTZ NOT NULL)"
_FIRST: Final = "INSERT INTO lease VALUES ('', clock_timestamp())"
_PROLONG: Final = (
    "UPDATE lease SET expires = clock_timestamp() + make_interval(secs => ?) WHERE token = ?"
)
_TAKE: Final = """
UPDATE lease SET token = ?, expires = clock_timestamp() + make_interval(secs => ?)
WHERE expires < clock_timestamp()"""
_FREE: Final = "UPDATE lease SET token = '', expires = clock_timestamp() WHERE token = ?"


@final
class JournalSchema:
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

    def exists(self) -> bool:
        """Whether there is anything in it."""
        return self._database.stamp("rounds") is not None

    def open(self, *rows: Statement) -> Database:
        """Open the database; make the tables, with these rows, if there are none."""
        database = connect(self.address, seconds=SECONDS)
        try:
            database.create(TABLES, STAMP, *rows)
        except BaseException:
            database.close()
            raise
        return database

    def prepare(self, database: Database, *, durable: bool) -> None:
        """Nothing is to be done: a connection is ready for rounds."""

    def settle(self, database: Database) -> None:
        """Nothing is to be done: what was committed is in one place."""

    def is_ours(self) -> bool:
        """Whether its tables are a journal's."""
        with translated(self.name):
            stamp = self._database.stamp("rounds")
        return stamp is None or stamp[0] == APPLICATION

    def set_aside(self) -> None:
        """Rename the tables of a journal that cannot be used, and its marker."""
        aside = f"lost_{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}"
        for table in ("rounds", "notes"):
            self._database.execute(f"ALTER TABLE IF EXISTS {table} RENAME TO {table}_{aside}")
        if self.mark is not None and self.mark.exists():
            self.mark.rename(self.mark.with_name(f"{self.mark.name}.{aside}"))

    def hold(self, database: Database | None = None) -> None:
        """Prolong the lease, in the transaction of a write or by itself, or raise LeasedError."""
        if (database or self._database).execute(
            _PROLONG, (LEASE_SECONDS, self._token)
        ).rowcount != 1:
            raise self._leased()

    def close(self) -> None:
        """Give the lease back."""
        with suppress(*driver_errors()):
            self._database.execute(_FREE, (self._token,))
        self._database.close()

    def _leased(self) -> LeasedError:
        holder = self._database.execute("SELECT token FROM lease").fetchone()[0]
        who = holder.rpartition(" ")[0] or "none any more"
        return LeasedError(
            f"{self.name} must be leased by this {self._owner}, got the lease of {who}: start "
            "again to wait for it"
        )

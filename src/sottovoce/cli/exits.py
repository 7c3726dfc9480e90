"""Exit codes: one table of what each error means to a supervisor that may restart the process."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from sottovoce.errors import SottovoceError, UnavailableError
from sottovoce.network.failures import (
    BusyError,
    CrashedError,
    DiskError,
    ExpiredError,
    RefusedError,
)
from sottovoce.network.protocol.messages import Code


class Exit(IntEnum):
    """How a command ends."""

    DONE = 0
    NO = 1
    """The answer is no: an assumption fails, a claim is broken; also any unexpected error."""
    PERSON = 2
    """A person must mend it; starting again gives the same."""
    AGAIN = 75
    """Time or a restart mends it (EX_TEMPFAIL)."""
    EXPIRED = 77
    """A certificate has ended, or a clock is wrong (EX_NOPERM)."""


ERRORS: Final[Mapping[type[SottovoceError], Exit]] = MappingProxyType(
    {
        SottovoceError: Exit.PERSON,
        BusyError: Exit.AGAIN,
        CrashedError: Exit.AGAIN,
        DiskError: Exit.AGAIN,
        ExpiredError: Exit.EXPIRED,
        UnavailableError: Exit.AGAIN,
    }
)
"""An error's code is that of its nearest ancestor here."""

REFUSALS: Final[Mapping[Code, Exit]] = MappingProxyType(
    dict.fromkeys(Code, Exit.PERSON) | {Code.REPLACED: Exit.AGAIN, Code.EXPIRED: Exit.EXPIRED}
)
"""What an agent ends with that the cloud refused for good."""

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    }
)


def exit_code(error: SottovoceError) -> Exit:
    """Return the exit code of an error."""
    if isinstance(error, RefusedError):
        return REFUSALS[error.code]
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        # A ledger on a disk that is full or busy: what it holds is as good as before.
        passing = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _PASSING
        return Exit.AGAIN if passing else Exit.PERSON
    return next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)

"""Errors of the network."""

from __future__ import annotations

from typing import final

from sottovoce.errors import Exit, NetworkError
from sottovoce.network.protocol.messages import Code


class StoreError(NetworkError):
    """The store of a run is damaged, lost rounds or belongs to something else."""


class HaltedError(NetworkError):
    """The run was halted for good."""


@final
class DivergedError(NetworkError):
    """Prices diverged, or a sum left its certified range in round k: the run failed for good."""

    def __init__(self, k: int, reason: str = "prices diverged") -> None:
        super().__init__(
            f"{reason} in round {k:,}: nothing of this round was sent; start a new run with a new "
            "store, which spends privacy again"
        )
        self.k = k
        self.reason = reason


class IdentityError(NetworkError):
    """A key, certificate or revocation list is missing or wrong."""


class DiskError(NetworkError):
    """A file cannot be read or written now: a disk that is full, failing or not mounted."""

    exit_code = Exit.AGAIN


class BusyError(NetworkError):
    """Another process holds the store, state file or port."""

    exit_code = Exit.AGAIN


@final
class LeasedError(BusyError):
    """Another process holds the lease of the store, or took it over."""


class CrashedError(NetworkError):
    """The cloud failed in the middle of something; a restart continues from the store."""

    exit_code = Exit.AGAIN


class ExpiredError(NetworkError):
    """A certificate has come to its end, or a clock is wrong."""

    exit_code = Exit.EXPIRED


@final
class RefusedError(NetworkError):
    """The other side refused by a code, and asking again at once cannot help."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        passing = {Code.REPLACED: Exit.AGAIN, Code.EXPIRED: Exit.EXPIRED}
        self.exit_code = passing.get(code, Exit.PERSON)


def not_listening(name: str, listen: tuple[str, int], error: OSError) -> NetworkError:
    """Return the error of an address, the argument ``name``, that the system does not give."""
    address = f"{listen[0]}:{listen[1]}"
    if isinstance(error, PermissionError):
        return NetworkError(f"{name} must be an address that this user may use, got {address}")
    reason = error.strerror or type(error).__name__
    return BusyError(
        f"{name} must be a free address, got {address} ({reason}): end the process that uses it"
    )

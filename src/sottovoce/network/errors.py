"""Errors of the network."""

from __future__ import annotations

from typing import final

from sottovoce.errors import SottovoceError
from sottovoce.network.protocol.messages import Code


class NetworkError(SottovoceError):
    """Cloud and agents cannot work together as asked."""


class StoreError(NetworkError):
    """The store of a run cannot be used; nothing may be released without it."""


class HaltedError(NetworkError):
    """The run was halted for good."""


class IdentityError(NetworkError):
    """A key, certificate or revocation list is missing or wrong."""


@final
class RefusedError(NetworkError):
    """The other side refused, and trying again cannot help.

    Attributes:
        code: why.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code

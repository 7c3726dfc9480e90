"""A server's own certificate, and who may talk to it: certificates, minus those revoked since."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import final

from sottovoce.errors import NetworkError
from sottovoce.network.failures import DiskError, IdentityError
from sottovoce.network.identity.certificates import Identity, require_current
from sottovoce.network.identity.tls import server_context
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.messages import Code


@final
class Authorization:
    """The certificate and the revocation list of a cloud, a relay or a helper.

    Args:
        keys: its folder of keys.

    Attributes:
        context: TLS with its certificate.
        unreadable: how often the list could not be read.

    Raises:
        IdentityError: a key or a certificate is missing or wrong.
        ExpiredError: its certificate has ended.
        DiskError: something cannot be read.
    """

    def __init__(self, keys: str | os.PathLike[str]) -> None:
        self.keys = Path(keys)
        self.context = server_context(keys)
        require_current(self.keys / "server.pem")
        self.unreadable = 0
        self._list = self.keys / "revoked.txt"
        try:
            self._stamp = _stamp(self._list)  # before it is read, so that no change is missed
        except OSError:
            raise DiskError(f"{self._list} must be readable") from None
        self._revoked = revoked(keys)
        self._current_at = time.monotonic()
        self._readable = True

    @property
    def unread_seconds(self) -> float:
        """How long ago the list was last known to be current."""
        return time.monotonic() - self._current_at

    def reload(self) -> None:
        """Read the revocation list again if it has changed.

        Whatever keeps it from being read (permissions, a missing file, no file descriptor left),
        the last good list counts until the next attempt. What was revoked once stays revoked in
        this process, so that a list caught while it is being rewritten admits no one.
        """
        try:
            stamp = _stamp(self._list)
            if stamp != self._stamp:
                self._revoked |= revoked(self.keys)
                self._stamp = stamp
        except (OSError, NetworkError) as error:
            self.unreadable += 1
            if self._readable:
                note("revocations unreadable", level=logging.ERROR, error=type(error).__name__)
            self._readable = False
            return
        if not self._readable:
            note("revocations readable again", level=logging.WARNING)
        self._readable = True
        self._current_at = time.monotonic()

    def objection(self, identity: Identity | None) -> Code | None:
        """Return why a certificate that was good at the handshake does not count here, if so."""
        if identity is None or not identity.takes_part or identity.serial in self._revoked:
            return Code.REVOKED
        # Another answer than to the revoked: a clock may be wrong, so coming back may help.
        return Code.EXPIRED if time.time() >= identity.expires else None


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes whenever a file does."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def revoked(folder: str | os.PathLike[str]) -> frozenset[str]:
    """Read the revocation list; a missing one is an error, never an empty list."""
    path = Path(folder) / "revoked.txt"
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        raise DiskError(f"{path} must be readable") from None
    except UnicodeDecodeError:
        raise IdentityError(f"{path} must be plain text") from None
    lines = (line.split("#")[0].strip().lower().lstrip("0") for line in text.splitlines())
    return frozenset(line for line in lines if line)

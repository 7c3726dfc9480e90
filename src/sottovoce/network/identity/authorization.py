"""Who is authorized: verified certificates, minus those revoked or expired since."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import final

from aiohttp import web

from sottovoce.errors import NetworkError
from sottovoce.network.failures import DiskError, IdentityError
from sottovoce.network.identity.roles import Identity, identity_of
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.messages import Code


@final
class Authorization:
    """Certificates and the revocation list of one cloud.

    Args:
        keys: the cloud's folder of keys.
    """

    def __init__(self, keys: str | os.PathLike[str]) -> None:
        self.keys = Path(keys)
        self._list = self.keys / "revoked.txt"
        try:
            self._stamp = _stamp(self._list)  # before it is read, so that no change is missed
        except OSError:
            raise DiskError(f"{self._list} must be readable") from None
        self._revoked = revoked(keys)
        self._current_at = time.monotonic()
        self._readable = True
        self.unreadable = 0
        """How often the list could not be read."""

    @property
    def unread_seconds(self) -> float:
        """How long ago the list was last known to be current."""
        return time.monotonic() - self._current_at

    def reload(self) -> None:
        """Read the revocation list again if it has changed.

        Whatever keeps it from being read (permissions, a missing file, no file descriptor left),
        the last good list counts until the next attempt. What was revoked once stays revoked in
        this process, so that a list caught while it is being rewritten lets nobody in.
        """
        try:
            stamp = _stamp(self._list)
            if stamp != self._stamp:
                self._revoked |= revoked(self._list.parent)
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

    def valid(self, identity: Identity) -> bool:
        """Whether a certificate that was good at the handshake still is."""
        return self.objection(identity) is None

    def objection(self, identity: Identity) -> Code | None:
        """Return why a certificate that was good at the handshake no longer is, if so."""
        if identity.serial in self._revoked:
            return Code.REVOKED
        return Code.EXPIRED if time.time() >= identity.expires else None

    def identify(self, request: web.Request) -> Identity:
        """Return who asks, or answer 403, or 401 to a certificate that has ended."""
        transport = request.transport
        identity = identity_of(None if transport is None else transport.get_extra_info("peercert"))
        if identity is not None and self.objection(identity) is Code.EXPIRED:
            # Another answer than to the revoked: a clock may be wrong, so coming back may help.
            raise web.HTTPUnauthorized(text="this certificate has ended")
        if identity is None or not self.valid(identity):
            raise web.HTTPForbidden(text="this certificate has no role here, or no longer")
        return identity

    def require_operator(self, request: web.Request) -> Identity:
        """Return the operator who asks, or answer 403."""
        identity = self.identify(request)
        if not identity.operator:
            raise web.HTTPForbidden(text="the operator's certificate is needed")
        return identity


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes whenever a file does."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def revoked(folder: str | os.PathLike[str]) -> frozenset[str]:
    """Read the revocation list; a missing one is an error, never an empty list."""
    try:
        text = (Path(folder) / "revoked.txt").read_text(encoding="ascii")
    except OSError:
        raise DiskError(f"{Path(folder) / 'revoked.txt'} must be readable") from None
    except UnicodeDecodeError:
        raise IdentityError(f"{Path(folder) / 'revoked.txt'} must be plain text") from None
    lines = (line.split("#")[0].strip().lower().lstrip("0") for line in text.splitlines())
    return frozenset(line for line in lines if line)

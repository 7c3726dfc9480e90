"""Who may come in: verified certificates, minus those revoked or expired since."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final

from aiohttp import web

from sottovoce.network.identity import Identity, identity_of, revoked


@final
class Gate:
    """Certificates and the revocation list of one cloud.

    Args:
        keys: the cloud's folder of keys.
    """

    def __init__(self, keys: str | os.PathLike[str]) -> None:
        self._list = Path(keys) / "revoked.txt"
        self._revoked = revoked(keys)
        self._read_at = self._list.stat().st_mtime_ns

    def reload(self) -> None:
        """Read the revocation list again if it has changed.

        Raises:
            IdentityError: the list has vanished or cannot be read.
        """
        changed = self._list.stat().st_mtime_ns if self._list.exists() else 0
        if changed != self._read_at:
            self._revoked, self._read_at = revoked(self._list.parent), changed

    def valid(self, identity: Identity) -> bool:
        """Whether a certificate that was good at the handshake still is."""
        return identity.serial not in self._revoked and time.time() < identity.expires

    def identify(self, request: web.Request) -> Identity:
        """Return who asks, or answer 403."""
        transport = request.transport
        identity = identity_of(None if transport is None else transport.get_extra_info("peercert"))
        if identity is None or not self.valid(identity):
            raise web.HTTPForbidden(text="this certificate has no role here, or no longer")
        return identity

    def require_operator(self, request: web.Request) -> None:
        """Answer 403 unless the operator asks."""
        if not self.identify(request).operator:
            raise web.HTTPForbidden(text="the operator's certificate is needed")

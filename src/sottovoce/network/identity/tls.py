"""TLS 1.3 with certificates on both sides, and nothing else."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from sottovoce.network.failures import DiskError, IdentityError


def server_context(keys: str | os.PathLike[str]) -> ssl.SSLContext:
    """Return the cloud's context: its own certificate, and one of ours asked of every peer."""
    root = Path(keys)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, root / "ca.pem", root / "server.pem", root / "server.key")


def client_context(keys: str | os.PathLike[str]) -> ssl.SSLContext:
    """Return an agent's or operator's context: the cloud must be who its address says."""
    root = Path(keys)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _load(context, root / "ca.pem", root / "cert.pem", root / "key.pem")


def _load(context: ssl.SSLContext, ca: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for path in (ca, certificate, key):
        if not path.is_file():
            raise IdentityError(f"{path} must exist: make keys with sottovoce identity init")
    if key.stat().st_mode & 0o077 and os.name == "posix":
        raise IdentityError(f"{key} must be readable by its owner only: chmod 600 {key}")
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise IdentityError(f"{certificate} and its key cannot be used: {error.reason}") from None
    except OSError as error:
        raise DiskError(f"{certificate.parent} cannot be read: {error.strerror}") from None
    return context

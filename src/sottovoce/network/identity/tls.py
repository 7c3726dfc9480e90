"""TLS 1.3 with a certificate on each side, and roles in certificates, without cryptography."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sottovoce.network.failures import DiskError, ExpiredError, IdentityError

AGENT: Final = "sottovoce:agent:"
OPERATOR: Final = "sottovoce:operator"
CLOUD: Final = "sottovoce:cloud"
HELPER: Final = "sottovoce:helper"
MASK: Final = "sottovoce:mask:"
"""What a certificate says of its owner, as URIs."""

FLEET_AUTHORITY: Final = "fleet-ca.pem"
"""Beside a server's keys: the authority of a fleet, whose certificates fleet.toml maps to roles."""

_RANGE: Final = re.compile(AGENT + r"([1-9]\d{0,9})(?:-([1-9]\d{0,9}))?\Z")


def server_context(keys: str | os.PathLike[str]) -> ssl.SSLContext:
    """Return a server's context: its certificate, and one of ours or the fleet's of every peer."""
    context, root = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), Path(keys)
    context.verify_mode = ssl.CERT_REQUIRED
    fleet = root / FLEET_AUTHORITY
    others = [fleet] if fleet.exists() else []
    return _load(context, root, "server.pem", "server.key", others)


def client_context(keys: str | os.PathLike[str]) -> ssl.SSLContext:
    """Return an agent's or operator's context: the server must be who its address says."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), Path(keys), "cert.pem", "key.pem")


def _load(
    context: ssl.SSLContext, root: Path, name: str, key_name: str, others: Iterable[Path] = ()
) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    ca, certificate, key = root / "ca.pem", root / name, root / key_name
    for path in (ca, certificate, key):
        if not path.is_file():
            raise IdentityError(f"{path} must exist: make keys with sottovoce identity init")
    require_private(key)
    try:
        context.load_cert_chain(certificate, key)
        for authority in (ca, *others):
            context.load_verify_locations(cafile=authority)
    except ssl.SSLError as error:
        raise IdentityError(
            f"{root} must hold a certificate, its key and authorities that fit: {error.reason}"
        ) from None
    except OSError as error:
        raise DiskError(f"{root} cannot be read: {error.strerror}") from None
    return context


def require_current(certificate: Path) -> None:
    """Refuse a certificate of our own that has ended."""
    try:
        # Python's own reader, private to it: cryptography would take 12 MB of every agent.
        fields = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
    except OSError:
        raise DiskError(f"{certificate} cannot be read") from None
    end = ssl.cert_time_to_seconds(fields["notAfter"])
    if time.time() >= end:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(end))
        raise ExpiredError(
            f"{certificate} must still be good, got one that ended on {when} UTC: renew it with "
            "sottovoce identity issue, or set this machine's clock"
        )


def require_private(key: Path) -> None:
    """Refuse a key that others can read."""
    if key.stat().st_mode & 0o077 and os.name == "posix":
        raise IdentityError(f"{key} must be readable by its owner only: chmod 600 {key}")


def ranges_in(uris: Iterable[str]) -> tuple[range, ...]:
    """Return the agents that a certificate with these URIs speaks for."""
    matches = [match for uri in uris if (match := _RANGE.match(uri))]
    return tuple(range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches)


def parse_range(text: str) -> range:
    """Read ``3`` or ``1-250``."""
    ranges = ranges_in([AGENT + text])
    if not ranges or not ranges[0]:
        raise IdentityError(f"agents must be a number or a range such as 1-250, got {text!r}")
    return ranges[0]

"""Certificates and keys as they are read."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.network.failures import DiskError, ExpiredError, IdentityError
from sottovoce.network.identity.tls import require_private

AGENT: Final = "sottovoce:agent:"
OPERATOR: Final = "sottovoce:operator"
CLOUD: Final = "sottovoce:cloud"
HELPER: Final = "sottovoce:helper"
MASK: Final = "sottovoce:mask:"

_RANGE: Final = re.compile(AGENT + r"([1-9]\d{0,9})(?:-([1-9]\d{0,9}))?\Z")
_MASK: Final = re.compile(MASK + r"([0-9a-f]{64})\Z")

Key: TypeAlias = ec.EllipticCurvePrivateKey


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Identity:
    """What a certificate says.

    Attributes:
        agents: ranges of the agents that it speaks for, from 1.
        roles: its URIs, such as ``OPERATOR``.
        mask: the X25519 key for masks, 32 bytes; empty without exactly one.
        signing: its own public key; None if it is of another kind than ours.
        serial: its serial number in lower-case hexadecimal.
        expires: when it ends, seconds since 1970.
    """

    agents: tuple[range, ...] = ()
    roles: frozenset[str] = frozenset()
    mask: bytes = b""
    signing: ec.EllipticCurvePublicKey | None = None
    serial: str = ""
    expires: float = math.inf

    def __contains__(self, agent: object) -> bool:
        return any(agent in part for part in self.agents)

    @property
    def takes_part(self) -> bool:
        """Whether it has any role in a run, or may look at one."""
        return bool(self.agents or self.roles & {OPERATOR, CLOUD})

    @staticmethod
    def of(certificate: x509.Certificate) -> Identity:
        """Read a certificate; one without names that can be read has no role."""
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        except (ValueError, x509.ExtensionNotFound):
            uris = []
        masks = [uri for uri in uris if uri.startswith(MASK)]
        mask = _MASK.match(masks[0]) if len(masks) == 1 else None
        signing = certificate.public_key()
        return Identity(
            agents=_ranges(uris),
            roles=frozenset(uris),
            mask=b"" if mask is None else bytes.fromhex(mask[1]),
            signing=signing if isinstance(signing, ec.EllipticCurvePublicKey) else None,
            serial=f"{certificate.serial_number:x}",
            expires=certificate.not_valid_after_utc.timestamp(),
        )


class TlsPeer(Protocol):
    """A transport of asyncio's, or a WebSocket of aiohttp's."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""


def peer_identity(peer: TlsPeer) -> Identity | None:
    """Return what the verified certificate on the other side says, None if there is none."""
    tls = peer.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    return None if der is None else _identity_in(der)


@lru_cache(maxsize=1024)  # a flood comes with the same certificate again and again
def _identity_in(der: bytes) -> Identity | None:
    try:
        return Identity.of(x509.load_der_x509_certificate(der))
    except ValueError:
        return None  # OpenSSL is less strict


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """Read a certificate in a file.

    Raises:
        DiskError: the file cannot be read.
        IdentityError: it is no certificate.
    """
    try:
        return Identity.of(x509.load_pem_x509_certificate(Path(path).read_bytes()))
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise IdentityError(f"{path} must be a certificate") from None


def certified(path: Path, authority: Path) -> Identity:
    """Read a certificate with a key for masks.

    Its end does not count here: TLS looks at that, and what a pledge says does not age.

    Args:
        path: the certificate.
        authority: ca.pem, which must have signed it.

    Raises:
        IdentityError: it is missing, not signed by the authority, or has no such key.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
        certificate.verify_directly_issued_by(issuer)
    except (OSError, ValueError, TypeError, InvalidSignature):
        raise IdentityError(f"{path} must be a certificate that {authority} has signed") from None
    identity = Identity.of(certificate)
    if not identity.mask or identity.signing is None:
        raise IdentityError(
            f"{path} must name a key for masks, got a certificate without: issue it anew with the "
            "keys of a split cloud (identity init --helper)"
        )
    return identity


def require_current(certificate: str | os.PathLike[str]) -> None:
    """Refuse a certificate of our own that has ended.

    Raises:
        ExpiredError: it has, or this machine's clock is ahead.
    """
    end = read_identity(certificate).expires
    if time.time() >= end:
        when = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M")
        raise ExpiredError(
            f"{certificate} must still be good, got one that ended on {when} UTC: renew it with "
            "sottovoce identity issue, or set this machine's clock"
        )


def _ranges(uris: list[str]) -> tuple[range, ...]:
    matches = [match for uri in uris if (match := _RANGE.match(uri))]
    return tuple(range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches)


def parse_range(text: str) -> range:
    """Read ``3`` or ``1-250``."""
    ranges = _ranges([AGENT + text])
    if not ranges or not ranges[0]:
        raise IdentityError(f"agents must be a number or a range such as 1-250, got {text!r}")
    return ranges[0]


def public_key(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of a public key for masks."""
    return key.public_key().public_bytes_raw()


def mask_key(folder: Path) -> X25519PrivateKey:
    """Return the private key for masks in a folder of keys.

    Raises:
        IdentityError: it is missing, others can read it, or it is something else.
    """
    path = folder / "mask.key"
    if path.exists():
        require_private(path)
    key = _private_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise IdentityError(f"{path} must be an X25519 key, as identity init --helper wrote it")
    return key


def tls_key(path: Path) -> Key:
    """Return the private key of a TLS certificate, or raise ``IdentityError``."""
    key = _private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path} must be an elliptic-curve key, as identity wrote it")
    return key


def _private_key(path: Path) -> object:
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError):
        return None

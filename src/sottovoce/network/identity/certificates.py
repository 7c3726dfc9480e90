"""Certificates and keys as they are read, and who may talk to a server: those not revoked."""

from __future__ import annotations

import logging
import math
import os
import re
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import NetworkError
from sottovoce.network.failures import DiskError, IdentityError
from sottovoce.network.identity.tls import (
    AGENT,
    CLOUD,
    FLEET_AUTHORITY,
    MASK,
    OPERATOR,
    ranges_in,
    require_current,
    require_private,
    server_context,
)
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.messages import Code

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from aiohttp import ClientWebSocketResponse

_MASK: Final = re.compile(MASK + r"([0-9a-f]{64})\Z")

Key: TypeAlias = ec.EllipticCurvePrivateKey

Name: TypeAlias = tuple[str, str]
"""A name in a certificate: "uri" or "common-name", and its text."""

_FLEET_NAMES: Final = "fleet.toml"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Identity:
    """What a certificate says."""

    agents: tuple[range, ...] = ()  # that it speaks for, from 1
    roles: frozenset[str] = frozenset()  # its URIs, such as ``OPERATOR``
    mask: bytes = b""  # the X25519 key for masks, 32 bytes; empty without exactly one
    signing: ec.EllipticCurvePublicKey | None = None  # its own key; None if of another kind
    serial: str = ""  # hexadecimal, lower case
    expires: float = math.inf  # seconds since 1970
    mapped: tuple[Name, str] | None = None  # of another authority: what ``FleetNames`` says of it

    def __contains__(self, agent: object) -> bool:
        return any(agent in part for part in self.agents)

    @property
    def takes_part(self) -> bool:
        """Whether it has any role in a run, or may look at one."""
        return bool(self.agents or self.roles & {OPERATOR, CLOUD})

    @staticmethod
    def of(certificate: x509.Certificate) -> Identity:
        """Read a certificate; one without names that can be read has no role."""
        uris = _uris(certificate)
        masks = [uri for uri in uris if uri.startswith(MASK)]
        mask = _MASK.match(masks[0]) if len(masks) == 1 else None
        signing = certificate.public_key()
        return Identity(
            agents=ranges_in(uris),
            roles=frozenset(uris),
            mask=b"" if mask is None else bytes.fromhex(mask[1]),
            signing=signing if isinstance(signing, ec.EllipticCurvePublicKey) else None,
            serial=f"{certificate.serial_number:x}",
            expires=certificate.not_valid_after_utc.timestamp(),
        )


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return names.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound):
        return []


@final
@dataclass(frozen=True, slots=True, eq=False)
class FleetNames:
    """Whom certificates of a fleet's own authority speak for, by their names.

    Such a certificate has the role that fleet.toml states for exactly one of its names, and never
    one of its own: no URI of ours counts in it.
    """

    authority: x509.Certificate  # ours, whose certificates state their roles
    roles: Mapping[Name, str]

    @staticmethod
    def of_folder(folder: Path) -> FleetNames | None:
        """Read fleet.toml, which must stand beside fleet-ca.pem; None without both."""
        file, fleet = folder / _FLEET_NAMES, folder / FLEET_AUTHORITY
        if not file.exists() and not fleet.exists():
            return None
        try:
            fleet.stat()
            tables = tomllib.loads(file.read_text(encoding="utf-8"))
            authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            roles = {(kind, n): str(role) for kind, ns in tables.items() for n, role in ns.items()}
        except (OSError, ValueError, AttributeError):
            raise IdentityError(
                f"{file} must be TOML with tables uri and common-name, beside {fleet}"
            ) from None
        for (kind, name), role in roles.items():
            spoken = ranges_in([f"{AGENT}{role}"])
            if kind not in ("uri", "common-name") or not (role == "operator" or any(spoken)):
                raise IdentityError(
                    f"{file} must map a uri or a common-name to agents such as '3' or '1-250', or "
                    f"to 'operator', got {kind} {name!r:.60} = {role!r:.60}"
                )
        return FleetNames(authority, roles)

    def identity(self, certificate: x509.Certificate) -> Identity:
        """Return what a verified certificate says, or what is said of it."""
        stated = Identity.of(certificate)
        if issued_by(certificate, self.authority):
            return stated
        texts = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        names = {("uri", uri) for uri in _uris(certificate)}
        names |= {("common-name", str(text.value)) for text in texts}
        roles = [(name, self.roles[name]) for name in names if name in self.roles]
        mapped = roles[0] if len(roles) == 1 else None
        role = "" if mapped is None else mapped[1]
        return Identity(
            agents=ranges_in([f"{AGENT}{role}"]),
            roles=frozenset([OPERATOR] if role == "operator" else []),
            serial=stated.serial,
            expires=stated.expires,
            mapped=mapped,
        )


def issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def peer_identity(
    peer: BaseTransport | ClientWebSocketResponse, names: FleetNames | None = None
) -> Identity | None:
    """Return what the verified certificate on the other side says, None if there is none."""
    tls = peer.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    return None if der is None else _identity_in(der, names)


@lru_cache(maxsize=1024)  # a flood comes with the same certificate again and again
def _identity_in(der: bytes, names: FleetNames | None) -> Identity | None:
    try:
        certificate = x509.load_der_x509_certificate(der)
        return Identity.of(certificate) if names is None else names.identity(certificate)
    except ValueError:
        return None  # OpenSSL is less strict


def read_identity(path: str | os.PathLike[str]) -> Identity:
    """Read a certificate in a file."""
    try:
        return Identity.of(x509.load_pem_x509_certificate(Path(path).read_bytes()))
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise IdentityError(f"{path} must be a certificate") from None


def certified(path: Path, authority: Path) -> Identity:
    """Read a certificate with a key for masks, which the authority (ca.pem) must have signed.

    Its end does not count here: TLS looks at that, and what a pledge says does not age.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
        if not issued_by(certificate, issuer):
            raise ValueError
    except (OSError, ValueError):
        raise IdentityError(
            f"{path} must be a certificate that {authority} has signed: copy it from the folder of "
            "its role (identity init, identity issue)"
        ) from None
    identity = Identity.of(certificate)
    if not identity.mask or identity.signing is None:
        raise IdentityError(
            f"{path} must name a key for masks, got a certificate without: issue it anew with the "
            "keys of a split cloud (identity init --helper)"
        )
    return identity


@final
class Authorization:
    """The certificate and the revocation list of a cloud, a relay or a helper."""

    def __init__(self, keys: str | os.PathLike[str]) -> None:
        self.keys = Path(keys)
        self.context, self.names = server_context(keys), FleetNames.of_folder(self.keys)
        require_current(self.keys / "server.pem")
        self.unreadable = 0
        self._loaded = self._stamps()
        self._list = self.keys / "revoked.txt"
        self._stamp: tuple[int, int, int] | None = None  # the first ``reload`` reads it again
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
                note("revocations-unreadable", level=logging.ERROR, error=type(error).__name__)
            self._readable = False
            return
        if not self._readable:
            note("revocations-readable", level=logging.WARNING)
        self._readable = True
        self._current_at = time.monotonic()

    def renew(self) -> None:
        """Take the server's certificate and key anew if they have changed, for new connections.

        While they do not fit each other, as between two copies, the old ones count. So it is with
        the names and the authority of a fleet, which count for all connections.
        """
        with suppress(OSError):
            stamps = self._stamps()
            if stamps == self._loaded:
                return
            self._loaded = stamps  # tried once: whoever mends a file changes it
            try:
                names = FleetNames.of_folder(self.keys)
                self.context, self.names = server_context(self.keys), names
            except NetworkError as error:
                note("certificate-unusable", level=logging.WARNING, error=type(error).__name__)
            else:
                note("certificate-renewed")

    def objection(self, identity: Identity | None) -> Code | None:
        """Return why a certificate that was good at the handshake does not count here, if so."""
        if identity is None or not identity.takes_part or identity.serial in self._revoked:
            return Code.REVOKED
        if identity.mapped is not None:
            name, role = identity.mapped
            if self.names is None or self.names.roles.get(name) != role:
                return Code.REVOKED
        # Another answer than to the revoked: a clock may be wrong, so coming back may help.
        return Code.EXPIRED if time.time() >= identity.expires else None

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """What changes with a file of ours, or of a fleet, which need not be there."""
        ours = [_stamp(self.keys / name) for name in ("ca.pem", "server.pem", "server.key")]
        fleet = [self.keys / name for name in (FLEET_AUTHORITY, _FLEET_NAMES)]
        return [*ours, *(_stamp(file) if file.exists() else None for file in fleet)]


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes whenever a file does."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def revoked(folder: str | os.PathLike[str]) -> frozenset[str]:
    """Read the revocation list; a missing one is an error, never an empty list."""
    path = Path(folder) / "revoked.txt"
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise DiskError(f"{path} must be readable, got: {error.strerror}") from None
    except UnicodeDecodeError:
        raise IdentityError(f"{path} must be plain text") from None
    lines = (line.split("#")[0].strip().lower().lstrip("0") for line in text.splitlines())
    return frozenset(line for line in lines if line)


def public_key(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of a public key for masks."""
    return key.public_key().public_bytes_raw()


def mask_key(folder: Path) -> X25519PrivateKey:
    """Return the private key for masks in a folder of keys."""
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

"""Who is who: a private certificate authority for one cloud and its agents.

    KEYS/ca.pem, ca.key           the authority; keep the key offline
    KEYS/server.pem, server.key   the cloud
    KEYS/round.key                signs receipts; outside the store, and never restored with it
    KEYS/revoked.txt              serial numbers of certificates that no longer count
    KEYS/issued.txt               serial number, role and end of every certificate ever issued
    KEYS/agents/3/                what device 3 gets: ca.pem, cert.pem, key.pem
    KEYS/operator/                likewise, for whoever may read /metrics and /status

A certificate says whom it speaks for in a URI: ``sottovoce:agent:3``, for a gateway
``sottovoce:agent:1-250``, and ``sottovoce:operator``.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.network.defaults import DAYS
from sottovoce.network.errors import DiskError, ExpiredError, IdentityError

AUTHORITY_DAYS: Final = 3650

_URI = re.compile(r"sottovoce:agent:([1-9]\d{0,9})(?:-([1-9]\d{0,9}))?\Z")
_OPERATOR: Final = "sottovoce:operator"
_Key: TypeAlias = ec.EllipticCurvePrivateKey


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a certificate says.

    Attributes:
        agents: the ranges of agents it speaks for, from 1.
        operator: whether it has the operator's role.
        serial: its serial number in lower-case hexadecimal.
        expires: when it ends, seconds since 1970.
    """

    agents: tuple[range, ...]
    operator: bool
    serial: str
    expires: float

    def __contains__(self, agent: object) -> bool:
        return any(agent in part for part in self.agents)


def create(
    folder: str | os.PathLike[str],
    *,
    agents: int,
    hosts: Sequence[str] = (),
    gateways: Sequence[range] = (),
    days: int = DAYS,
) -> None:
    """Make an authority and certificates for the cloud, its operator and every agent.

    Args:
        folder: a new folder, KEYS above.
        agents: the number of agents; each gets a certificate unless a gateway speaks for it.
        hosts: names and addresses of the cloud besides localhost, 127.0.0.1 and ::1.
        gateways: ranges of agents that share a connection and a certificate.
        days: how long certificates last; the authority lasts ten years.

    Raises:
        IdentityError: the folder already holds an authority.
    """
    root = Path(folder)
    if (root / "ca.pem").exists():
        raise IdentityError(f"{root} already holds an authority: choose a new folder, or use issue")
    _folder(root)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sottovoce private authority")])
    builder = _builder(name, name, key.public_key(), days=AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = builder.add_extension(own, critical=False).sign(key, hashes.SHA256())
    _write(root / "ca.key", _private(key))
    _write(root / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    _write(root / "round.key", secrets.token_bytes(32))
    _write(root / "revoked.txt", b"# serial numbers, one per line\n", mode=0o644)
    _issue_server(root, certificate, key, hosts, days)
    _issue_client(root, root / "operator", certificate, key, [_OPERATOR], days)
    hosted = {a for part in gateways for a in part}
    for part in gateways:
        _issue_agents(root, certificate, key, part, days)
    for agent in range(1, agents + 1):
        if agent not in hosted:
            _issue_agents(root, certificate, key, range(agent, agent + 1), days)


def issue(
    folder: str | os.PathLike[str],
    *,
    agents: range | None = None,
    hosts: Sequence[str] | None = None,
    operator: bool = False,
    days: int = DAYS,
) -> None:
    """Issue certificates anew: for a range of agents, the cloud under ``hosts``, the operator.

    An older certificate of the same role stays good until it ends or is revoked; ``issued.txt``
    keeps its serial number.

    Raises:
        IdentityError: nobody is named, or there is no authority.
    """
    if agents is None and hosts is None and not operator:
        raise IdentityError(
            "issue must be told for whom: agents (--agents), the cloud (--host) or the operator "
            "(--operator)"
        )
    root = Path(folder)
    try:
        certificate = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((root / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError):
        raise IdentityError(f"{root} must hold ca.pem and ca.key of an authority") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{root / 'ca.key'} must be an elliptic-curve key")
    if agents is not None:
        _issue_agents(root, certificate, key, agents, days)
    if hosts is not None:
        _issue_server(root, certificate, key, hosts, days)
    if operator:
        _issue_client(root, root / "operator", certificate, key, [_OPERATOR], days)


def revoke(folder: str | os.PathLike[str], certificate: str | os.PathLike[str]) -> str:
    """Add a certificate's serial number to the cloud's revocation list and return it.

    A running cloud reads the list again within seconds and drops the connection.
    """
    try:
        loaded = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    except (OSError, ValueError) as error:
        raise IdentityError(f"cannot revoke {certificate}: {error}") from None
    return _revoke(Path(folder), f"{loaded.serial_number:x}")


def revoke_serial(folder: str | os.PathLike[str], serial: str) -> str:
    """Revoke a certificate whose file is gone, by its serial number in ``issued.txt``.

    Raises:
        IdentityError: no such certificate was issued.
    """
    wanted = serial.strip().lower().lstrip("0")
    if wanted not in issued(folder):
        raise IdentityError(
            f"serial must be one of {Path(folder) / 'issued.txt'}, got {serial!r}: nothing is "
            "revoked"
        )
    return _revoke(Path(folder), wanted)


def issued(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the role and end of every certificate ever issued, by serial number."""
    path = Path(folder) / "issued.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}") from None
    parts = (line.partition(" ") for line in lines)
    return {serial: rest for serial, _, rest in parts if serial}


def _revoke(folder: Path, serial: str) -> str:
    path = folder / "revoked.txt"
    try:
        with path.open("r+", encoding="ascii") as file:
            text = file.read()
            # A last line without an end, as editors leave it, must not swallow this one.
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{serial}\n")
    except (OSError, ValueError) as error:
        raise IdentityError(f"cannot revoke {serial} in {path}: {error}") from None
    return serial


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


def expiry(certificate: str | os.PathLike[str]) -> float:
    """Return when a certificate ends, seconds since 1970."""
    try:
        loaded = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    except OSError as error:
        raise DiskError(f"{certificate} cannot be read: {error.strerror}") from None
    except ValueError:
        raise IdentityError(f"{certificate} must be a certificate") from None
    return loaded.not_valid_after_utc.timestamp()


def require_current(certificate: str | os.PathLike[str]) -> None:
    """Refuse a certificate of our own that has ended.

    Raises:
        ExpiredError: it has, or this machine's clock is ahead.
    """
    end = expiry(certificate)
    if time.time() >= end:
        when = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M")
        raise ExpiredError(
            f"{certificate} must still be good, got one that ended on {when} UTC: renew it with "
            "sottovoce identity issue, or set this machine's clock"
        )


def identity_of(peer: dict[str, Any] | None) -> Identity | None:
    """Read a verified peer's certificate, as ``ssl`` gives it; None if it has no role here."""
    if not peer:
        return None
    uris = [value for kind, value in peer.get("subjectAltName", ()) if kind == "URI"]
    matches = [match for uri in uris if (match := _URI.match(uri))]
    ranges = tuple(range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches)
    operator = _OPERATOR in uris
    if not ranges and not operator:
        return None
    expires = dt.datetime.strptime(peer["notAfter"], "%b %d %H:%M:%S %Y %Z")
    return Identity(
        agents=ranges,
        operator=operator,
        serial=str(peer["serialNumber"]).lower().lstrip("0"),
        expires=expires.replace(tzinfo=dt.UTC).timestamp(),
    )


def parse_range(text: str) -> range:
    """Read ``3`` or ``1-250``."""
    match = _URI.match(f"sottovoce:agent:{text}")
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise IdentityError(f"agents must be a number or a range such as 1-250, got {text!r}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _issue_server(
    root: Path, authority: x509.Certificate, key: _Key, hosts: Iterable[str], days: int
) -> None:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    own = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH
    certificate = _sign(authority, key, own, "sottovoce cloud", names, purpose, days)
    _write(root / "server.key", _private(own))
    _write(root / "server.pem", _listed(root, certificate), mode=0o644)


def _issue_agents(
    root: Path, authority: x509.Certificate, key: _Key, agents: range, days: int
) -> None:
    text = str(agents[0]) if len(agents) == 1 else f"{agents[0]}-{agents[-1]}"
    uri = f"sottovoce:agent:{text}"
    _issue_client(root, root / "agents" / text, authority, key, [uri], days)


def _issue_client(
    root: Path,
    folder: Path,
    authority: x509.Certificate,
    key: _Key,
    uris: Sequence[str],
    days: int,
) -> None:
    for made in (*(p for p in reversed(folder.parents) if root in p.parents), folder):
        _folder(made)
    own = ec.generate_private_key(ec.SECP256R1())
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH
    certificate = _sign(authority, key, own, uris[0], names, purpose, days)
    _write(folder / "key.pem", _private(own))
    _write(folder / "cert.pem", _listed(root, certificate), mode=0o644)
    _write(folder / "ca.pem", (root / "ca.pem").read_bytes(), mode=0o644)


def _sign(
    authority: x509.Certificate,
    key: _Key,
    own: _Key,
    common_name: str,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    own_id = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    builder = _builder(subject, authority.subject, own.public_key(), days=days)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(authority=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName(names), False),
        (own_id, False),
        (issuer_id, False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256())


def _listed(root: Path, certificate: x509.Certificate) -> bytes:
    """Put a certificate on the list of those issued, and return it as text for its file.

    On the list before it is in any file: one that leaks can be revoked when its file is gone.
    """
    name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    until = certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    file = os.open(root / "issued.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    with os.fdopen(file, "a", encoding="utf-8") as stream:
        stream.write(f"{certificate.serial_number:x} {name!s} until {until}\n")
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Devices with a clock some minutes behind must not refuse a new certificate.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _folder(path: Path) -> None:
    """Make a folder for its owner alone, whatever the umask and whoever made it before."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def _private(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "wb") as stream:
        path.chmod(mode)  # whatever the umask
        stream.write(data)

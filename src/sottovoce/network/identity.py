"""Who is who: a private certificate authority for one cloud and its agents.

    KEYS/ca.pem, ca.key           the authority; keep the key offline
    KEYS/server.pem, server.key   the cloud
    KEYS/round.key                signs receipts; outside the store, and never restored with it
    KEYS/revoked.txt              serial numbers of certificates that no longer count
    KEYS/issued.txt               serial number, role and end of every certificate ever issued
    KEYS/agents/3/                what device 3 gets: ca.pem, cert.pem, key.pem
    KEYS/operator/                likewise, for whoever may see the live page, /metrics, /status

For a split cloud nobody but the authority has all of it, and every folder goes to another party:

    KEYS/ca.pem, ca.key, issued.txt   the authority, which must be neither cloud nor helper
    KEYS/cloud/                   what the cloud gets: the above, and cert.pem, key.pem to ask the
                                  helper with
    KEYS/helper/                  what the helper gets: server.pem, server.key, mask.key, round.key,
                                  revoked.txt, and agents/3.pem, the agents' certificates
    KEYS/agents/3/                besides: mask.key and helper.pem, the helper's certificate. An
                                  agent that has one takes part in runs with this helper only

A certificate says whom it speaks for in a URI: ``sottovoce:agent:3``, for a gateway
``sottovoce:agent:1-250``, ``sottovoce:operator``, of a split cloud ``sottovoce:cloud`` and
``sottovoce:helper``; and in ``sottovoce:mask:`` and 64 hexadecimal digits the X25519 key of an
agent or of the helper, from which masks follow.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from sottovoce.network.authority import (
    Authority,
    Key,
    new_key,
    own_folder,
    private_text,
    write_file,
)
from sottovoce.network.defaults import DAYS
from sottovoce.network.errors import DiskError, ExpiredError, IdentityError

AGENT_URI: Final = re.compile(r"sottovoce:agent:([1-9]\d{0,9})(?:-([1-9]\d{0,9}))?\Z")
OPERATOR: Final = "sottovoce:operator"
CLOUD: Final = "sottovoce:cloud"
HELPER: Final = "sottovoce:helper"
MASK: Final = "sottovoce:mask:"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a certificate says.

    Attributes:
        agents: the ranges of agents it speaks for, from 1.
        operator: whether it has the operator's role.
        cloud: whether it has the role of a split cloud's half that talks to agents.
        serial: its serial number in lower-case hexadecimal.
        expires: when it ends, seconds since 1970.
    """

    agents: tuple[range, ...]
    operator: bool
    serial: str
    expires: float
    cloud: bool = False

    def __contains__(self, agent: object) -> bool:
        return any(agent in part for part in self.agents)


def create(
    folder: str | os.PathLike[str],
    *,
    agents: int,
    hosts: Sequence[str] = (),
    gateways: Sequence[range] = (),
    helper: Sequence[str] | None = None,
    days: int = DAYS,
) -> None:
    """Make an authority and certificates for the cloud, its operator and every agent.

    Args:
        folder: a new folder, KEYS above.
        agents: the number of agents; each gets a certificate unless a gateway speaks for it.
        hosts: names and addresses of the cloud besides localhost, 127.0.0.1 and ::1.
        gateways: ranges of agents that share a connection and a certificate.
        helper: for a split cloud, names and addresses of the helper, likewise; None for one cloud.
        days: how long certificates last; the authority lasts ten years.

    Raises:
        IdentityError: the folder already holds an authority.
    """
    root = Path(folder)
    authority = Authority.make(root)
    if helper is not None:
        own_folder(root / "cloud")
        authority.give(root / "cloud")
        _issue_helper(authority, helper, days)
    _begin(cloud_folder(root))
    _issue_cloud(authority, hosts, days)
    _issue_client(authority, root / "operator", [OPERATOR], days)
    hosted = {a for part in gateways for a in part}
    for part in gateways:
        _issue_agents(authority, part, days)
    for agent in range(1, agents + 1):
        if agent not in hosted:
            _issue_agents(authority, range(agent, agent + 1), days)


def issue(
    folder: str | os.PathLike[str],
    *,
    agents: range | None = None,
    hosts: Sequence[str] | None = None,
    operator: bool = False,
    helper: Sequence[str] | None = None,
    relay: Sequence[str] | None = None,
    days: int = DAYS,
) -> None:
    """Issue certificates anew: for a range of agents, the cloud under ``hosts``, the operator.

    An older certificate of the same role stays good until it ends or is revoked; ``issued.txt``
    keeps its serial number. The helper keeps its keys, which agents know.

    Args:
        folder: KEYS above.
        agents: for whom the certificate in ``agents/1-250`` speaks.
        hosts: names and addresses of the cloud besides this machine's own.
        operator: whether to issue the operator's.
        helper: names and addresses of a split cloud's helper, likewise.
        relay: those of a relay of ``agents``, likewise: their folder also gets what a relay is
            connected to with, and a copy of revoked.txt.
        days: how long certificates last.

    Raises:
        IdentityError: nobody is named, or there is no authority.
    """
    if agents is None and hosts is None and helper is None and not operator:
        raise IdentityError(
            "issue must be told for whom: agents (--agents), the cloud (--host), the operator "
            "(--operator) or the helper (--helper-host)"
        )
    root = Path(folder)
    authority = Authority.open(root)
    if helper is not None:
        if not _split(root):
            raise IdentityError(
                f"{root} must be of a split cloud for a helper, got keys for one cloud: make new "
                "ones with identity init --helper"
            )
        _issue_helper(authority, helper, days)
    if agents is not None:
        _issue_agents(authority, agents, days)
    if hosts is not None:
        _issue_cloud(authority, hosts, days)
    if relay is not None:
        _issue_relay(authority, agents, relay, days)
    if operator:
        _issue_client(authority, root / "operator", [OPERATOR], days)


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
    matches = [match for uri in uris if (match := AGENT_URI.match(uri))]
    ranges = tuple(range(int(m[1]), int(m[2] or m[1]) + 1) for m in matches)
    operator, cloud = OPERATOR in uris, CLOUD in uris
    if not (ranges or operator or cloud):
        return None
    expires = dt.datetime.strptime(peer["notAfter"], "%b %d %H:%M:%S %Y %Z")
    return Identity(
        agents=ranges,
        operator=operator,
        cloud=cloud,
        serial=str(peer["serialNumber"]).lower().lstrip("0"),
        expires=expires.replace(tzinfo=dt.UTC).timestamp(),
    )


def is_cloud(peer: dict[str, Any] | None) -> bool:
    """Whether a verified peer has the role of a split cloud: a helper must not pass for it."""
    names = () if not peer else peer.get("subjectAltName", ())
    return ("URI", CLOUD) in names


def is_helper(peer: dict[str, Any] | None) -> bool:
    """Whether a verified peer has the role of a helper."""
    names = () if not peer else peer.get("subjectAltName", ())
    return ("URI", HELPER) in names


def parse_range(text: str) -> range:
    """Read ``3`` or ``1-250``."""
    match = AGENT_URI.match(f"sottovoce:agent:{text}")
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise IdentityError(f"agents must be a number or a range such as 1-250, got {text!r}")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _split(root: Path) -> bool:
    return (root / "helper").is_dir()


def cloud_folder(root: Path) -> Path:
    """Where the cloud's files are: of a split cloud they leave the authority's folder."""
    return root / "cloud" if _split(root) else root


def _begin(folder: Path) -> None:
    """Make what signs receipts, and an empty list of revocations."""
    write_file(folder / "round.key", secrets.token_bytes(32))
    write_file(folder / "revoked.txt", b"# serial numbers, one per line\n", mode=0o644)


def _issue_cloud(authority: Authority, hosts: Sequence[str], days: int) -> None:
    root = authority.root
    folder, split = cloud_folder(root), _split(root)
    names = _names(hosts, [CLOUD] if split else [])
    _issue_server(authority, folder, "sottovoce cloud", names, days)
    if split:
        _issue_client(authority, folder, [CLOUD], days)


def _issue_helper(authority: Authority, hosts: Sequence[str], days: int) -> None:
    folder = authority.root / "helper"
    known = (folder / "mask.key").exists()
    own_folder(folder)
    if not known:
        _begin(folder)
        own_folder(folder / "agents")
        authority.give(folder)
        write_file(folder / "mask.key", private_text(X25519PrivateKey.generate()))
    names = _names(hosts, [HELPER, MASK + public_key(mask_key(folder)).hex()])
    key = tls_key(folder / "server.key") if known else None
    _issue_server(authority, folder, "sottovoce helper", names, days, key)


def _issue_relay(
    authority: Authority, agents: range | None, hosts: Sequence[str], days: int
) -> None:
    root = authority.root
    if agents is None or _split(root):
        raise IdentityError(
            "a relay must be told its agents (--agents), and none can stand before a split cloud"
        )
    folder = _agents_folder(root, agents)
    _issue_server(authority, folder, "sottovoce relay", _names(hosts, []), days)
    write_file(folder / "revoked.txt", (root / "revoked.txt").read_bytes(), mode=0o644)


def _agents_folder(root: Path, agents: range) -> Path:
    text = str(agents[0]) if len(agents) == 1 else f"{agents[0]}-{agents[-1]}"
    return root / "agents" / text


def _issue_agents(authority: Authority, agents: range, days: int) -> None:
    root = authority.root
    folder = _agents_folder(root, agents)
    text = folder.name
    uris = [f"sottovoce:agent:{text}"]
    if not _split(root):
        _issue_client(authority, folder, uris, days)
        return
    masks = X25519PrivateKey.generate()
    _issue_client(authority, folder, [*uris, MASK + public_key(masks).hex()], days)
    write_file(folder / "mask.key", private_text(masks))
    server = (root / "helper" / "server.pem").read_bytes()
    write_file(folder / "helper.pem", server, mode=0o644)
    certificate = (folder / "cert.pem").read_bytes()
    write_file(root / "helper" / "agents" / f"{text}.pem", certificate, mode=0o644)


def public_key(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of a public key for masks."""
    return key.public_key().public_bytes_raw()


def mask_key(folder: Path) -> X25519PrivateKey:
    """Return the private key for masks in a folder of keys.

    Raises:
        IdentityError: it is missing, others can read it, or it is something else.
    """
    path = folder / "mask.key"
    try:
        if path.stat().st_mode & 0o077 and os.name == "posix":
            raise IdentityError(f"{path} must be readable by its owner only: chmod 600 {path}")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise IdentityError(f"{path} must be an X25519 key, as identity init --helper wrote it")
    return key


def tls_key(path: Path) -> Key:
    """Return the private key of a TLS certificate.

    Raises:
        IdentityError: it is missing or something else.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path} must be an elliptic-curve key, as identity wrote it")
    return key


def _names(hosts: Sequence[str], uris: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names + [x509.UniformResourceIdentifier(uri) for uri in uris]


def _issue_server(
    authority: Authority,
    folder: Path,
    name: str,
    names: Sequence[x509.GeneralName],
    days: int,
    key: Key | None = None,
) -> None:
    own = new_key() if key is None else key
    certificate = authority.sign(own, name, names, ExtendedKeyUsageOID.SERVER_AUTH, days)
    write_file(folder / "server.key", private_text(own))
    write_file(folder / "server.pem", certificate, mode=0o644)


def _issue_client(authority: Authority, folder: Path, uris: Sequence[str], days: int) -> None:
    root = authority.root
    for made in (*(p for p in reversed(folder.parents) if root in p.parents), folder):
        own_folder(made)
    own = new_key()
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH
    certificate = authority.sign(own, uris[0], names, purpose, days)
    write_file(folder / "key.pem", private_text(own))
    write_file(folder / "cert.pem", certificate, mode=0o644)
    authority.give(folder)

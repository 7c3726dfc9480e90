"""Keys and certificates of all roles, issued into the folders described in this package."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from sottovoce.network.defaults import DAYS
from sottovoce.network.failures import DiskError, IdentityError
from sottovoce.network.identity.authority import (
    Authority,
    mask_key,
    new_key,
    own_folder,
    private_text,
    public_key,
    tls_key,
    write_file,
)
from sottovoce.network.identity.roles import CLOUD, HELPER, MASK, OPERATOR


def create_keys(
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


def issue_keys(
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
    _issue_server(authority, folder, "cloud", names, days)
    if split:
        _issue_client(authority, folder, [CLOUD], days)


def _issue_helper(authority: Authority, hosts: Sequence[str], days: int) -> None:
    folder = authority.root / "helper"
    own_folder(folder)
    if not (folder / "mask.key").exists():
        _begin(folder)
        own_folder(folder / "agents")
        authority.give(folder)
        write_file(folder / "mask.key", private_text(X25519PrivateKey.generate()))
    names = _names(hosts, [HELPER, MASK + public_key(mask_key(folder)).hex()])
    _issue_server(authority, folder, "helper", names, days)


def _issue_relay(
    authority: Authority, agents: range | None, hosts: Sequence[str], days: int
) -> None:
    root = authority.root
    if agents is None or _split(root):
        raise IdentityError(
            "a relay must be told its agents (--agents), and none can stand before a split cloud"
        )
    folder = _agents_folder(root, agents)
    _issue_server(authority, folder, "relay", _names(hosts, []), days)
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


def _names(hosts: Sequence[str], uris: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names + [x509.UniformResourceIdentifier(uri) for uri in uris]


def _issue_server(
    authority: Authority, folder: Path, role: str, names: Sequence[x509.GeneralName], days: int
) -> None:
    """A helper keeps its key, which agents know; everybody else gets a new one."""
    path = folder / "server.key"
    key = tls_key(path) if role == "helper" and path.exists() else new_key()
    purpose = ExtendedKeyUsageOID.SERVER_AUTH
    certificate = authority.sign(key, f"sottovoce {role}", names, purpose, days)
    write_file(path, private_text(key))
    write_file(folder / "server.pem", certificate, mode=0o644)


def _issue_client(authority: Authority, folder: Path, uris: Sequence[str], days: int) -> None:
    root = authority.root
    for made in (*(p for p in reversed(folder.parents) if root in p.parents), folder):
        own_folder(made)
    key = new_key()
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH
    certificate = authority.sign(key, uris[0], names, purpose, days)
    write_file(folder / "key.pem", private_text(key))
    write_file(folder / "cert.pem", certificate, mode=0o644)
    authority.give(folder)


def revoke_certificate(folder: str | os.PathLike[str], certificate: str | os.PathLike[str]) -> str:
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
    path = cloud_folder(folder) / "revoked.txt"
    try:
        with path.open("r+", encoding="ascii") as file:
            text = file.read()
            # A last line without an end, as editors leave it, must not swallow this one.
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{serial}\n")
    except (OSError, ValueError) as error:
        raise IdentityError(f"cannot revoke {serial} in {path}: {error}") from None
    return serial

"""A private authority: issues keys and certificates into the folders described in this package."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.network import CERTIFICATE_DAYS
from sottovoce.network.failures import DiskError, IdentityError
from sottovoce.network.identity.certificates import (
    Key,
    mask_key,
    public_key,
    read_identity,
    tls_key,
)
from sottovoce.network.identity.tls import AGENT, CLOUD, HELPER, MASK, OPERATOR

AUTHORITY_DAYS: Final = 3650
_PEM: Final = serialization.Encoding.PEM
_USAGES: Final = ("digital_signature", "key_cert_sign", "crl_sign", "content_commitment",
                  "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
                  "decipher_only")  # fmt: skip


def create_keys(
    folder: str | os.PathLike[str],
    *,
    agents: int,
    hosts: Sequence[str] = (),
    gateways: Sequence[range] = (),
    helper: Sequence[str] | None = None,
    days: int = CERTIFICATE_DAYS,
) -> None:
    """Make an authority and certificates for the cloud, its operator and every agent.

    Args:
        folder: a new folder, KEYS above.
        agents: the number of agents; each gets a certificate unless a gateway speaks for it.
        hosts: names and addresses of the cloud besides localhost, 127.0.0.1 and ::1.
        gateways: ranges of agents that share a connection and a certificate.
        helper: for a split cloud, names and addresses of the helper, likewise; None for one cloud.
        days: how long certificates last; the authority lasts ten years.
    """
    authority = Authority.make(Path(folder), days)
    hosted = {a for part in gateways for a in part}
    alone = (range(a, a + 1) for a in range(1, agents + 1) if a not in hosted)
    if helper is not None:
        helper_folder = authority.root / "helper"
        authority.begin(helper_folder)
        _private_folder(helper_folder / "agents")
        _write(helper_folder / "mask.key", _private_text(X25519PrivateKey.generate()))
        authority.issue_helper(helper)
    authority.begin(_cloud_folder(authority.root))
    authority.issue_cloud(hosts)
    authority.issue_operator()
    for part in (*gateways, *alone):
        authority.issue_agents(part)


def issue_keys(
    folder: str | os.PathLike[str],
    *,
    agents: range | None = None,
    hosts: Sequence[str] | None = None,
    operator: bool = False,
    helper: Sequence[str] | None = None,
    relay: Sequence[str] | None = None,
    days: int = CERTIFICATE_DAYS,
) -> None:
    """Issue certificates anew; ``hosts``, ``helper`` and ``relay`` are as in ``create_keys``.

    An older certificate of the same role stays good until it ends or is revoked; ``issued.txt``
    keeps its serial number. The helper keeps its keys, which agents know. With ``relay`` the folder
    of ``agents`` also gets what a relay is connected to with, and a copy of revoked.txt.
    """
    if agents is None and hosts is None and helper is None and not operator:
        raise IdentityError(
            "issue needs a role, got none: name agents (--agents), the cloud (--host), the "
            "operator (--operator) or the helper (--helper-host)"
        )
    authority = Authority.open(Path(folder), days)
    if helper is not None:
        if not authority.split:
            raise IdentityError(
                f"{folder} must be of a split cloud for a helper, got keys for one cloud: make new "
                "ones with identity init --helper"
            )
        authority.issue_helper(helper)
    if agents is not None:
        authority.issue_agents(agents)
    if hosts is not None:
        authority.issue_cloud(hosts)
    if relay is not None:
        if agents is None or authority.split:
            raise IdentityError(
                "a relay needs its agents (--agents) and a cloud that is not split: name agents, "
                "or connect them to the cloud"
            )
        authority.issue_relay(agents, relay)
    if operator:
        authority.issue_operator()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Authority:
    """The authority in a folder: ca.pem, ca.key, and issued.txt, the list of all it signed."""

    root: Path
    certificate: x509.Certificate
    key: Key
    days: int

    @staticmethod
    def make(root: Path, days: int) -> Authority:
        """Make an authority in a new folder."""
        if (root / "ca.pem").exists():
            raise IdentityError(
                f"{root} already holds an authority: choose a new folder, or use issue"
            )
        _private_folder(root)
        key, name = new_key(), _name("sottovoce private authority")
        certificate = (
            _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(root / "ca.key", _private_text(key))
        _write(root / "ca.pem", certificate.public_bytes(_PEM), mode=0o644)
        return Authority(root, certificate, key, days)

    @staticmethod
    def open(root: Path, days: int) -> Authority:
        """Open the authority in a folder."""
        try:
            certificate = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes())
        except (OSError, ValueError):
            raise IdentityError(f"{root} must hold ca.pem and ca.key of an authority") from None
        return Authority(root, certificate, tls_key(root / "ca.key"), days)

    @property
    def split(self) -> bool:
        """Whether the cloud has a helper."""
        return (self.root / "helper").is_dir()

    def begin(self, folder: Path) -> None:
        """Make what signs receipts, and an empty list of revocations."""
        self._open_folder(folder)
        _write(folder / "round.key", secrets.token_bytes(32))
        _write(folder / "revoked.txt", b"# serial numbers, one per line\n", mode=0o644)

    def issue_cloud(self, hosts: Sequence[str]) -> None:
        """Issue what the cloud listens with, and of a split cloud what it asks the helper with."""
        folder, uris = _cloud_folder(self.root), [CLOUD] if self.split else []
        self._issue(folder, "sottovoce cloud", uris, hosts)
        if self.split:
            self._issue(folder, CLOUD, uris)

    def issue_helper(self, hosts: Sequence[str]) -> None:
        """Issue a helper's certificate, for keys that it keeps: agents know them."""
        folder = self.root / "helper"
        uris = [HELPER, MASK + public_key(mask_key(folder)).hex()]
        self._issue(folder, "sottovoce helper", uris, hosts, keep=True)

    def issue_operator(self) -> None:
        """Issue what the operator connects with."""
        self._issue(self.root / "operator", OPERATOR, [OPERATOR])

    def issue_agents(self, agents: range) -> None:
        """Issue what agents connect with, and of a split cloud what they mask with."""
        folder, helper = self._agents_folder(agents), self.root / "helper"
        name = AGENT + folder.name
        if not self.split:
            self._issue(folder, name, [name])
            return
        masks = X25519PrivateKey.generate()
        self._issue(folder, name, [name, MASK + public_key(masks).hex()])
        _write(folder / "mask.key", _private_text(masks))
        _copy(helper / "server.pem", folder / "helper.pem")
        _copy(folder / "cert.pem", helper / "agents" / f"{folder.name}.pem")

    def issue_relay(self, agents: range, hosts: Sequence[str]) -> None:
        """Issue what a relay listens with, beside what its agents connect with."""
        folder = self._agents_folder(agents)
        self._issue(folder, "sottovoce relay", [], hosts)
        _copy(self.root / "revoked.txt", folder / "revoked.txt")

    def _agents_folder(self, agents: range) -> Path:
        text = str(agents[0]) if len(agents) == 1 else f"{agents[0]}-{agents[-1]}"
        return self.root / "agents" / text

    def _issue(
        self,
        folder: Path,
        common_name: str,
        uris: Sequence[str],
        hosts: Sequence[str] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        """Write a certificate, a server's under ``hosts`` or else a client's, and its new key.

        With ``keep`` it is for the key there is, if there is one.
        """
        names: list[x509.GeneralName] = []
        purpose, files = ExtendedKeyUsageOID.CLIENT_AUTH, ("cert.pem", "key.pem")
        if hosts is not None:
            purpose, files = ExtendedKeyUsageOID.SERVER_AUTH, ("server.pem", "server.key")
            names += map(_host_name, dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts]))
        names += map(x509.UniformResourceIdentifier, uris)
        public, private = (folder / file for file in files)
        key = tls_key(private) if keep and private.exists() else new_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        subject = _name(common_name)
        certificate = (
            _certificate(self.certificate.subject, subject, key.public_key(), self.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        # Listed before it is in any file: one that leaks can be revoked without its file.
        until = certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
        file = os.open(self.root / "issued.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with os.fdopen(file, "a", encoding="utf-8") as stream:
            stream.write(f"{certificate.serial_number:x} {common_name} until {until}\n")
        self._open_folder(folder)
        _write(private, _private_text(key))
        _write(public, certificate.public_bytes(_PEM), mode=0o644)

    def _open_folder(self, folder: Path) -> None:
        """Make a folder and those between it and the root; each but the root gets ca.pem."""
        for parent in reversed(folder.parents):
            if self.root in parent.parents:
                _private_folder(parent)
        if folder != self.root:
            _private_folder(folder)
            _copy(self.root / "ca.pem", folder / "ca.pem")


def _cloud_folder(root: Path) -> Path:
    """Where the cloud's files are: of a split cloud they leave the authority's folder."""
    return root / "cloud" if (root / "helper").is_dir() else root


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def new_key() -> Key:
    """Return a new key for TLS."""
    return ec.generate_private_key(ec.SECP256R1())


def _private_text(key: Key | X25519PrivateKey) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(_PEM, form, plain)


def _private_folder(path: Path) -> None:
    """Make a folder for its owner alone, whatever the umask and its mode before."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file of this mode, whatever was there before."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "wb") as stream:
        path.chmod(mode)  # whatever the umask
        stream.write(data)


def _copy(source: Path, target: Path) -> None:
    _write(target, source.read_bytes(), mode=0o644)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    issuer: x509.Name, subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # Devices with a clock some minutes behind must not refuse a new certificate.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def revoke_certificate(folder: str | os.PathLike[str], certificate: str | os.PathLike[str]) -> str:
    """Add a certificate's serial number to the cloud's revocation list and return it.

    A running cloud reads the list again within seconds and drops the connection.
    """
    try:
        return _revoke(Path(folder), read_identity(certificate).serial)
    except DiskError as error:
        raise IdentityError(f"cannot revoke {certificate}: {error}") from None


def revoke_serial(folder: str | os.PathLike[str], serial: str) -> str:
    """Revoke a certificate whose file is gone, by its serial number in ``issued.txt``."""
    wanted, path = serial.strip().lower().lstrip("0"), Path(folder) / "issued.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}") from None
    if not any(line.startswith(f"{wanted} ") for line in lines):
        raise IdentityError(f"serial must be one of {path}, got {serial!r}: nothing is revoked")
    return _revoke(Path(folder), wanted)


def _revoke(folder: Path, serial: str) -> str:
    path = _cloud_folder(folder) / "revoked.txt"
    try:
        with path.open("r+", encoding="ascii") as file:
            text = file.read()
            # A last line without an end, as editors leave it, must not swallow this one.
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{serial}\n")
    except (OSError, ValueError) as error:
        raise IdentityError(f"cannot revoke {serial} in {path}: {error}") from None
    return serial

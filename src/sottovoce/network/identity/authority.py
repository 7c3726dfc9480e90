"""A private authority: signs certificates, and puts keys and certificates into files."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import NameOID

from sottovoce.network.errors import IdentityError

AUTHORITY_DAYS: Final = 3650

Key: TypeAlias = ec.EllipticCurvePrivateKey


@final
class Authority:
    """The authority in a folder: ca.pem, ca.key, and issued.txt, the list of all it signed.

    Args:
        root: the folder.
        certificate: its own.
        key: its own.
    """

    def __init__(self, root: Path, certificate: x509.Certificate, key: Key) -> None:
        self.root = root
        self._certificate = certificate
        self._key = key

    @staticmethod
    def make(root: Path) -> Authority:
        """Make an authority in a new folder.

        Raises:
            IdentityError: the folder already holds one.
        """
        if (root / "ca.pem").exists():
            raise IdentityError(
                f"{root} already holds an authority: choose a new folder, or use issue"
            )
        own_folder(root)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sottovoce private authority")])
        builder = _builder(name, name, key.public_key(), days=AUTHORITY_DAYS)
        bounds = x509.BasicConstraints(ca=True, path_length=0)
        builder = builder.add_extension(bounds, critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = builder.add_extension(own, critical=False).sign(key, hashes.SHA256())
        write_file(root / "ca.key", private_text(key))
        text = certificate.public_bytes(serialization.Encoding.PEM)
        write_file(root / "ca.pem", text, mode=0o644)
        return Authority(root, certificate, key)

    @staticmethod
    def open(root: Path) -> Authority:
        """Open the authority in a folder.

        Raises:
            IdentityError: there is none.
        """
        try:
            certificate = x509.load_pem_x509_certificate((root / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((root / "ca.key").read_bytes(), password=None)
        except (OSError, ValueError):
            raise IdentityError(f"{root} must hold ca.pem and ca.key of an authority") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise IdentityError(f"{root / 'ca.key'} must be an elliptic-curve key")
        return Authority(root, certificate, key)

    def sign(
        self,
        own: Key,
        common_name: str,
        names: Sequence[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        days: int,
    ) -> bytes:
        """Return a certificate for a key, as text for its file; it is on the list by then."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own_id = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
        builder = _builder(subject, self._certificate.subject, own.public_key(), days=days)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(authority=False), True),
            (x509.ExtendedKeyUsage([purpose]), False),
            (x509.SubjectAlternativeName(names), False),
            (own_id, False),
            (issuer_id, False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        return self._listed(builder.sign(self._key, hashes.SHA256()))

    def give(self, folder: Path, end: str = "ca.pem") -> None:
        """Put a copy of the authority's own certificate into a folder."""
        write_file(folder / end, (self.root / "ca.pem").read_bytes(), mode=0o644)

    def _listed(self, certificate: x509.Certificate) -> bytes:
        """On the list before it is in any file: one that leaks can be revoked without its file."""
        name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        until = certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
        file = os.open(self.root / "issued.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with os.fdopen(file, "a", encoding="utf-8") as stream:
            stream.write(f"{certificate.serial_number:x} {name!s} until {until}\n")
        return certificate.public_bytes(serialization.Encoding.PEM)


def new_key() -> Key:
    """Return a new key for TLS."""
    return ec.generate_private_key(ec.SECP256R1())


def own_folder(path: Path) -> None:
    """Make a folder for its owner alone, whatever the umask and whoever made it before."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def private_text(key: Key | X25519PrivateKey) -> bytes:
    """Return a private key as text for its file."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file of this mode, whatever was there before."""
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "wb") as stream:
        path.chmod(mode)  # whatever the umask
        stream.write(data)


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

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

from sottovoce.network.failures import IdentityError

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
        key = new_key()
        name = _name("sottovoce private authority")
        certificate = _signed(
            key,
            name,
            (name, key.public_key()),
            AUTHORITY_DAYS,
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_usage(authority=True), True),
            ],
        )
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
        except (OSError, ValueError):
            raise IdentityError(f"{root} must hold ca.pem and ca.key of an authority") from None
        return Authority(root, certificate, tls_key(root / "ca.key"))

    def sign(
        self,
        own: Key,
        common_name: str,
        names: Sequence[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        days: int,
    ) -> bytes:
        """Return a certificate for a key, as text for its file; it is on the list by then."""
        issuer = self._key.public_key()
        certificate = _signed(
            self._key,
            self._certificate.subject,
            (_name(common_name), own.public_key()),
            days,
            [
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_usage(authority=False), True),
                (x509.ExtendedKeyUsage([purpose]), False),
                (x509.SubjectAlternativeName(names), False),
                (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
            ],
        )
        return self._listed(certificate)

    def give(self, folder: Path) -> None:
        """Put a copy of the authority's own certificate into a folder."""
        write_file(folder / "ca.pem", (self.root / "ca.pem").read_bytes(), mode=0o644)

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


def public_key(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of a public key for masks."""
    return key.public_key().public_bytes_raw()


def mask_key(folder: Path) -> X25519PrivateKey:
    """Return the private key for masks in a folder of keys.

    Raises:
        IdentityError: it is missing, others can read it, or it is something else.
    """
    path = folder / "mask.key"
    if path.exists() and path.stat().st_mode & 0o077 and os.name == "posix":
        raise IdentityError(f"{path} must be readable by its owner only: chmod 600 {path}")
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


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _signed(
    key: Key,
    issuer: x509.Name,
    subject: tuple[x509.Name, ec.EllipticCurvePublicKey],
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    name, public = subject
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # Devices with a clock some minutes behind must not refuse a new certificate.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256())


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

"""Certificates that no longer count: the list of those issued, and of those revoked."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography import x509

from sottovoce.network.errors import DiskError, IdentityError
from sottovoce.network.identity.keys import cloud_folder


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
    path = cloud_folder(folder) / "revoked.txt"
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

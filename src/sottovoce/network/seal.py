"""Checksums of rows: they find bit rot, and are no defence against somebody who writes."""

from __future__ import annotations

import hashlib


def seal(*parts: bytes | int) -> bytes:
    """Return a checksum of values and of where each of them ends."""
    whole = [p if isinstance(p, bytes) else p.to_bytes(8, "little", signed=True) for p in parts]
    ends = b"".join([len(part).to_bytes(8, "little") for part in whole])
    return hashlib.blake2b(ends + b"".join(whole), digest_size=16).digest()

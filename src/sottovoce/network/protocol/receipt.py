"""Receipts: proof, kept by the agents, of which rounds the cloud has released.

    digest(k)  = SHA-256(digest(k-1) || k || mu || all releases of round k),  digest(0) = config
    receipt(k) = digest(k) || HMAC-SHA-256(key, config || k || digest(k))

The chain names the whole history. The key lies outside the store, so a store that was rolled back
meets receipts for rounds it does not know; and an agent that lies cannot make one up.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol, final

from sottovoce.network.protocol.messages import DIGEST, RECEIPT


def next_digest(previous: bytes, k: int, mu: bytes, release: bytes) -> bytes:
    """Return digest(k) from digest(k-1)."""
    return hashlib.sha256(previous + k.to_bytes(8, "little") + mu + release).digest()


class Receipts(Protocol):
    """Gives and reads receipts: a notary's own, or those that a relay has heard."""

    def receipt(self, k: int, digest: bytes) -> bytes:
        """Return the receipt of round k."""

    def digest(self, k: int, receipt: bytes) -> bytes | None:
        """Return the digest a receipt of round k proves, or None if it is not genuine."""


@final
class Notary:
    """Signs and checks receipts of one run, by a key that is not in the store."""

    def __init__(self, key: bytes, config: bytes) -> None:
        self._marker = hmac.new(key, config, "sha256")

    def receipt(self, k: int, digest: bytes) -> bytes:
        """Return the receipt of round k."""
        return digest + self._mark(k, digest)

    def digest(self, k: int, receipt: bytes) -> bytes | None:
        """Return the digest a receipt of round k proves, or None if it is not genuine."""
        digest, mark = receipt[:DIGEST], receipt[DIGEST:]
        genuine = hmac.compare_digest(mark, self._mark(k, digest))
        return digest if genuine and len(receipt) == RECEIPT else None

    def _mark(self, k: int, digest: bytes) -> bytes:
        # A copy, as to begin with the key again costs more than the rest.
        marker = self._marker.copy()
        marker.update(k.to_bytes(8, "little") + digest)
        return marker.digest()

"""Receipts: proof, kept by the agents, of which rounds the cloud has released.

    digest(0)  = config,  digest(k) = SHA-256(digest(k-1) || k || context || releases of round k)
    receipt(k) = digest(k) || HMAC-SHA-256(key, config || k || digest(k))

The chain names the whole history. The key lies outside the store, so a store that was rolled back
meets receipts for rounds it does not know; and an agent that lies cannot make one up.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, TypeAlias, final

from sottovoce.network.protocol.messages import DIGEST, RECEIPT

_ELSEWHERE: Final = b"a round that the relay no longer knows"


def next_digest(previous: bytes, k: int, context: bytes, release: bytes) -> bytes:
    """Return digest(k) from digest(k-1); the context is price(k+1), or a helper's question."""
    return hashlib.sha256(previous + k.to_bytes(8, "little") + context + release).digest()


@final
class ReceiptSigner:
    """Signs and checks receipts of one run, by a key that is not in the store."""

    def __init__(self, key: bytes, config: bytes) -> None:
        self._mac = hmac.new(key, config, "sha256")

    def receipt(self, k: int, digest: bytes) -> bytes:
        """Return the receipt of round k."""
        return digest + self._sign(k, digest)

    def digest(self, k: int, receipt: bytes) -> bytes | None:
        """Return the digest a receipt of round k proves, or None if it is not genuine."""
        digest, signature = receipt[:DIGEST], receipt[DIGEST:]
        genuine = hmac.compare_digest(signature, self._sign(k, digest))
        return digest if genuine and len(receipt) == RECEIPT else None

    def _sign(self, k: int, digest: bytes) -> bytes:
        # A copy, as to begin with the key again costs more than the rest.
        mac = self._mac.copy()
        mac.update(k.to_bytes(8, "little") + digest)
        return mac.digest()


@final
class PassedReceipts:
    """Receipts as they came from above: the last is kept, older ones are believed.

    Whoever is below checks by its own receipt that no round is forgotten; the relay has no key to
    tell a genuine one by.
    """

    def __init__(self) -> None:
        self.round = 0
        self.last = b""

    def keep(self, k: int, receipt: bytes) -> None:
        """Round k has come from above."""
        self.round, self.last = k, receipt

    def receipt(self, k: int, digest: bytes) -> bytes:
        """Return the receipt of the last round."""
        if k != self.round or digest != self.last[:DIGEST]:
            raise ValueError("only the last round is passed on")
        return self.last

    def digest(self, k: int, receipt: bytes) -> bytes | None:
        """Return the digest that a receipt proves, None for another one of the last round."""
        if k != self.round:
            return _ELSEWHERE
        return receipt[:DIGEST] if receipt == self.last else None

    def history(self, k: int) -> bytes:
        """Return the digest of a round, as ``digest`` does."""
        return self.last[:DIGEST] if k == self.round else _ELSEWHERE


Receipts: TypeAlias = ReceiptSigner | PassedReceipts
"""Gives and reads receipts: a cloud's or helper's own, or those that a relay has passed on."""

"""What a helper signs for agents, and what each side does with keys for masks.

A pledge is the helper's signature under what a run asks of a connection: its sums with their grids,
the ranges and the bounds of the states. The cloud's welcome has the same. An agent takes part
where both agree, so that one of them alone cannot make the grid finer than the noise was planned
for, or the bounds wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.network.failures import IdentityError
from sottovoce.network.identity.certificates import (
    Identity,
    Key,
    certified,
    mask_key,
    public_key,
    tls_key,
)
from sottovoce.network.identity.tls import HELPER
from sottovoce.network.masks import Masker, Secret
from sottovoce.network.protocol.actions import Party
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import Welcome

_PURPOSE: Final = b"sottovoce pledge 1"
_SIGNING: Final = ec.ECDSA(hashes.SHA256())


@final
@dataclass(eq=False, repr=False)
class HelperKeys:
    """What a helper shares secrets and signs with."""

    masks: X25519PrivateKey
    signing: Key  # of its TLS certificate
    listed: Callable[[], Iterable[Identity]]  # returns what is certified of agents, read anew

    def __post_init__(self) -> None:
        self._known = {identity.mask: identity for identity in self.listed()}

    @staticmethod
    def of_folder(folder: Path) -> HelperKeys:
        """Read a helper's folder, as ``identity init --helper`` made it."""
        authority, masks = folder / "ca.pem", mask_key(folder)
        helper = certified(folder / "server.pem", authority)
        if HELPER not in helper.roles or helper.mask != public_key(masks):
            raise IdentityError(
                f"{folder / 'server.pem'} must be a helper's certificate for the key in mask.key"
            )

        def listed() -> list[Identity]:
            paths = sorted((folder / "agents").glob("*.pem"))
            return [certified(path, authority) for path in paths]

        return HelperKeys(masks, tls_key(folder / "server.key"), listed)

    def certified(self, agents: Sequence[int], mask: bytes) -> bool:
        """Whether a key for masks is certified for all of these agents."""
        if mask not in self._known:
            self._known = {known.mask: known for known in self.listed()}  # issued meanwhile?
        identity = self._known.get(mask)
        return identity is not None and all(agent in identity for agent in agents)

    def secret(self, mask: bytes) -> Secret:
        """What the helper shares with the owner of a key."""
        return Secret(self.masks, agent=mask, helper=public_key(self.masks))

    def sign(self, terms: bytes) -> bytes:
        """Sign the terms of a connection."""
        return self.signing.sign(terms, _SIGNING)


def terms_of(config: bytes, mask: bytes, party: Party) -> bytes:
    """Return what a run asks of a connection, as the helper signs it."""
    floats = map(pack, (party.grid, party.lower, party.upper))
    vectors = (*floats, pack_whole(party.least), pack_whole(party.most))
    return _terms(config, mask, list(party.agents), party.sums.tolist(), vectors)


def _terms(
    config: bytes, mask: bytes, agents: list[int], sums: list[int], vectors: tuple[bytes, ...]
) -> bytes:
    return msgspec.msgpack.encode([_PURPOSE, config, mask, agents, sums, vectors])


@final
class HelperKnown:
    """What an agent knows of the helper of its runs: who it is, and how to hide from the cloud."""

    def __init__(self, keys: Path, agents: tuple[int, ...]) -> None:
        helper = certified(keys / "helper.pem", keys / "ca.pem")
        masks, agent = mask_key(keys), certified(keys / "cert.pem", keys / "ca.pem")
        if HELPER not in helper.roles or helper.signing is None:
            raise IdentityError(f"{keys / 'helper.pem'} must be a helper's certificate")
        if public_key(masks) != agent.mask:
            raise IdentityError(f"{keys / 'mask.key'} must be the key that cert.pem names")
        self._agents = list(agents)
        self._signing, self._mask = helper.signing, agent.mask
        secret = Secret(masks, agent=agent.mask, helper=helper.mask)
        self.masker = Masker(secret, agent.mask, agents)

    def pledged(self, config: bytes, welcome: Welcome) -> bool:
        """Whether the helper has signed what the cloud says."""
        vectors = (welcome.grid, welcome.lower, welcome.upper, welcome.least, welcome.most)
        terms = _terms(config, self._mask, self._agents, list(welcome.sums), vectors)
        try:
            self._signing.verify(welcome.pledge, terms, _SIGNING)
        except InvalidSignature:
            return False
        return True

"""Masks: integers modulo 2^64 that an agent's contributions hide behind.

Agent and helper share a secret, X25519 between their certified keys; the cloud never has it. From
it follows a key for every (run, session, agents of a connection), and from that an AES-256 key
stream in counter mode, of which each round has a stretch of its own:

    key    = HKDF-SHA-256(X25519(private, public), salt = SHA-256 of the configuration,
                          info = "sottovoce mask 2" || agent's key || helper's key || session
                                 || p || agents)
    m(k)   = bytes (k-1) B .. (k-1) B + 8 p of AES-256-CTR(key, counter from 0),   B = 16 ceil(p/2)

as p little-endian numbers of 64 bits, one for each sum that the connection contributes to; p and
the agents' numbers enter info with 8 bytes each, little-endian. A session is 16 random bytes that
an agent draws whenever it starts. So a mask is used for one contribution even where a saved state
was lost or is an old copy: what was said is repeated byte for byte, and what is new comes under a
new session. And it follows from the agents that it covers alone: a cloud that announces some of
them, or others, gets numbers that cover nothing.

A pledge is the helper's signature under what a run asks of a connection: its sums with their grids,
the ranges and the bounds of the states. The cloud's welcome has the same. An agent takes part
where both agree, so that one of them alone cannot make the grid finer than the noise was planned
for, or the bounds wider.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

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
from sottovoce.network.protocol.actions import Party
from sottovoce.network.protocol.codec import Integers, pack, pack_whole
from sottovoce.network.protocol.messages import SESSION, Welcome

_PURPOSE: Final = b"sottovoce mask 2"
_PLEDGE: Final = b"sottovoce pledge 1"
_SIGNING: Final = ec.ECDSA(hashes.SHA256())
_KEY: Final = 32
_BLOCK: Final = 16
_LITTLE: Final = np.dtype("<i8")

AHEAD_BYTES: Final = 1 << 20  # how much of all key streams together is drawn ahead
MOST_AHEAD: Final = 1_024  # rounds drawn ahead at most


def new_session() -> bytes:
    """Return a name for masks that were never used."""
    return secrets.token_bytes(SESSION)


@final
class Secret:
    """What an agent, or a gateway, and the helper share; ``private`` is the key of either side."""

    def __init__(self, private: X25519PrivateKey, *, agent: bytes, helper: bytes) -> None:
        own_public = private.public_key().public_bytes_raw()
        other = helper if own_public == agent else agent
        self._shared = private.exchange(X25519PublicKey.from_public_bytes(other))
        self._names = agent + helper

    def stream(
        self, config: bytes, session: bytes, agents: tuple[int, ...], numbers: int
    ) -> Stream:
        """Return the masks of a session of contributions that are the total of all these agents."""
        covered = struct.pack(f"<{1 + len(agents)}Q", numbers, *agents)
        info = _PURPOSE + self._names + session + covered
        key = HKDF(algorithm=hashes.SHA256(), length=_KEY, salt=config, info=info)
        return Stream(key.derive(self._shared), numbers)


@final
class Stream:
    """The masks of one (run, session, agents), round by round, from a key of 32 bytes."""

    def __init__(self, key: bytes, numbers: int) -> None:
        self._cipher = algorithms.AES(key)
        self._blocks = -(-numbers // 2)
        self._numbers = numbers

    def rounds(self, first: int, count: int) -> Integers:
        """Return the masks of rounds ``first`` to ``first + count - 1``, one row each."""
        start = ((first - 1) * self._blocks).to_bytes(_BLOCK, "big")
        encryptor = Cipher(self._cipher, modes.CTR(start)).encryptor()
        drawn = encryptor.update(bytes(count * self._blocks * _BLOCK))
        table = np.frombuffer(drawn, dtype=_LITTLE).reshape(count, 2 * self._blocks)
        return table[:, : self._numbers]


@final
class ReadAhead:
    """Rows of rounds that ``draw(first, count)`` gives, more ahead while rounds follow."""

    def __init__(self, draw: Callable[[int, int], Integers], row_bytes: int) -> None:
        self._draw = draw
        self._most = max(1, min(MOST_AHEAD, AHEAD_BYTES // row_bytes))
        self._first = self._count = 0
        self._rows: list[Integers] = []

    def __getitem__(self, k: int) -> Integers:
        """The row of round k."""
        if not self._first <= k < self._first + self._count:
            follows = self._count and k == self._first + self._count
            count = min(self._most, 2 * self._count) if follows else 1
            self._rows = list(self._draw(k, count))
            self._first, self._count = k, count
        return self._rows[k - self._first]


@final
class Masker:
    """An agent's side: masks what it contributes, under a session of its own.

    The helper knows it by its public key, and its mask by all agents that are added up.
    """

    def __init__(self, secret: Secret, key: bytes, agents: tuple[int, ...]) -> None:
        self.key = key
        self._agents = agents
        self._secret = secret
        self._session = new_session()
        self._run = b"", 0
        self._last = 0
        self._masks: ReadAhead

    def mask(self, config: bytes, k: int, values: Integers) -> bytes:
        """Return the session and ``values + m(k) mod 2^64``, as they travel.

        Rounds must increase: the mask of a round is given out once, whatever asks for it.
        """
        if (config, values.size) != self._run or k <= self._last:
            self._session = new_session()
            stream = self._secret.stream(config, self._session, self._agents, values.size)
            self._masks = ReadAhead(stream.rounds, 8 * values.size + 1)
            self._run = config, values.size
        self._last = k
        return self._session + (values + self._masks[k]).astype(_LITTLE).tobytes()


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
    return msgspec.msgpack.encode([_PLEDGE, config, mask, agents, sums, vectors])


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

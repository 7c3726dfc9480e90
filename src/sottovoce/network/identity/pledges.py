"""Keys for masks that an authority has certified, and what helpers sign for agents.

A pledge is the helper's signature under what a run asks of a connection: its sums with their grids,
the ranges and the bounds of the states. The cloud says the same in its welcome. An agent goes by it
where both agree, so that one of them alone cannot make the grid finer than the noise was planned
for, or the bounds wider.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.network.failures import IdentityError
from sottovoce.network.identity.authority import Key, mask_key, public_key, tls_key
from sottovoce.network.identity.roles import HELPER, MASK, AgentRanges, ranges_of
from sottovoce.network.masks import Masker, Secret
from sottovoce.network.protocol.actions import Party
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import Welcome

_PURPOSE: Final = b"sottovoce pledge 1"
_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_SIGNING: Final = ec.ECDSA(hashes.SHA256())


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified(AgentRanges):
    """What a certificate says about a key for masks.

    Attributes:
        mask: the X25519 key, 32 bytes.
        helper: whether it is the helper's.
        signing: the key of its signatures.
    """

    mask: bytes
    helper: bool
    signing: ec.EllipticCurvePublicKey


def certified(path: Path, authority: Path) -> Certified:
    """Read a certificate with a key for masks.

    Its end does not count here: TLS looks at that, and what a pledge says does not age.

    Args:
        path: the certificate.
        authority: ca.pem, which must have signed it.

    Raises:
        IdentityError: it is missing, not signed by the authority, or has no such key.
    """
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise IdentityError(f"{path} must be a certificate that {authority} has signed") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    masks = [uri[len(MASK) :] for uri in uris if uri.startswith(MASK)]
    signing = found.public_key()
    whole = len(masks) == 1 and _HEX.match(masks[0])
    if not whole or not isinstance(signing, ec.EllipticCurvePublicKey):
        raise IdentityError(
            f"{path} must name a key for masks, got a certificate without: issue it anew with the "
            "keys of a split cloud (identity init --helper)"
        )
    return Certified(
        mask=bytes.fromhex(masks[0]),
        agents=ranges_of(uris),
        helper=HELPER in uris,
        signing=signing,
    )


@final
class HelperKeys:
    """What a helper shares secrets and signs with.

    Args:
        masks: its private key for masks.
        signing: the key of its TLS certificate.
        listed: returns what is certified of agents, read anew.
    """

    def __init__(
        self, masks: X25519PrivateKey, signing: Key, listed: Callable[[], Iterable[Certified]]
    ) -> None:
        self._masks, self._signing = masks, signing
        self._own = public_key(masks)
        self._listed = listed
        self._known = {found.mask: found for found in listed()}

    @staticmethod
    def of_folder(folder: Path) -> HelperKeys:
        """Read a helper's folder, as ``identity init --helper`` made it.

        Raises:
            IdentityError: something is missing, or not signed by the authority.
        """
        authority, own = folder / "ca.pem", mask_key(folder)
        mine = certified(folder / "server.pem", authority)
        if not mine.helper or mine.mask != public_key(own):
            raise IdentityError(
                f"{folder / 'server.pem'} must be a helper's certificate for the key in mask.key"
            )

        def listed() -> list[Certified]:
            return [
                certified(path, authority) for path in sorted((folder / "agents").glob("*.pem"))
            ]

        return HelperKeys(own, tls_key(folder / "server.key"), listed)

    def certified(self, agents: Sequence[int], mask: bytes) -> bool:
        """Whether a key for masks is certified for all of these agents."""
        if mask not in self._known:
            self._known = {found.mask: found for found in self._listed()}  # issued meanwhile?
        found = self._known.get(mask)
        return found is not None and all(agent in found for agent in agents)

    def secret(self, mask: bytes) -> Secret:
        """What the helper shares with the owner of a key."""
        return Secret(self._masks, agent=mask, helper=self._own)

    def sign(self, terms: bytes) -> bytes:
        """Sign the terms of a connection."""
        return self._signing.sign(terms, _SIGNING)


def terms_of(config: bytes, mask: bytes, party: Party) -> bytes:
    """Return what a run asks of a connection, as the helper signs it."""
    return _terms(
        config,
        mask,
        list(party.agents),
        party.sums.tolist(),
        (
            pack(party.grid),
            pack(party.lower),
            pack(party.upper),
            pack_whole(party.least),
            pack_whole(party.most),
        ),
    )


def _terms(
    config: bytes, mask: bytes, agents: list[int], sums: list[int], vectors: tuple[bytes, ...]
) -> bytes:
    return msgspec.msgpack.encode([_PURPOSE, config, mask, agents, sums, vectors])


@final
class HelperKnown:
    """What an agent knows of the helper of its runs: who it is, and how to hide from the cloud.

    Args:
        keys: the agent's folder, with helper.pem and mask.key.
        agents: the agents of its connection.

    Raises:
        IdentityError: something is missing or does not belong together.
    """

    def __init__(self, keys: Path, agents: tuple[int, ...]) -> None:
        helper = certified(keys / "helper.pem", keys / "ca.pem")
        own, mine = mask_key(keys), certified(keys / "cert.pem", keys / "ca.pem")
        if not helper.helper:
            raise IdentityError(f"{keys / 'helper.pem'} must be a helper's certificate")
        if public_key(own) != mine.mask:
            raise IdentityError(f"{keys / 'mask.key'} must be the key that cert.pem names")
        self._agents = list(agents)
        self._signing = helper.signing
        self._mask = mine.mask
        secret = Secret(own, agent=mine.mask, helper=helper.mask)
        self.masker = Masker(secret, mine.mask, agents)

    def pledged(self, config: bytes, welcome: Welcome) -> bool:
        """Whether the helper has signed what the cloud says."""
        terms = _terms(
            config,
            self._mask,
            self._agents,
            list(welcome.sums),
            (welcome.grid, welcome.lower, welcome.upper, welcome.least, welcome.most),
        )
        try:
            self._signing.verify(welcome.pledge, terms, _SIGNING)
        except InvalidSignature:
            return False
        return True


def knows_helper(keys: Path) -> bool:
    """Whether a folder of keys says that a helper must exist."""
    return (keys / "helper.pem").exists()

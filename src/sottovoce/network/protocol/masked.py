"""A masked contribution as the cloud keeps it: with all that the helper needs to find its mask."""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from sottovoce.network.protocol.messages import KEY, SESSION

_HEAD: Final = struct.Struct(f"<{KEY}s{SESSION}sQ")
HEAD: Final = _HEAD.size


class Mask(Struct, frozen=True, kw_only=True):
    """Which mask a contribution is behind: whose key, which session, and of which round."""

    key: bytes
    session: bytes
    round: int


def join(mask: Mask, values: bytes) -> bytes:
    """Return a masked contribution with what names its mask before it."""
    return _HEAD.pack(mask.key, mask.session, mask.round) + values


def mask_of(data: bytes) -> Mask:
    """Return what names the mask of a contribution that was joined with it."""
    key, session, k = _HEAD.unpack_from(data)
    return Mask(key=key, session=session, round=k)

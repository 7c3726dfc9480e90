"""Bytes to messages, vectors and masks, and back, and which vectors are admissible.

Decoding gives a message or ``MalformedError``, nothing else.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec
import numpy as np
from msgspec import Struct, msgpack
from numpy.typing import NDArray

from sottovoce.network.protocol.messages import (
    KEY,
    SESSION,
    FromAgent,
    FromCloud,
    FromHelper,
    ToHelper,
)

if TYPE_CHECKING:
    from sottovoce.privacy.sampler import Released

Floats = NDArray[np.float64]
NOTHING: Final = np.zeros(0)
Integers = NDArray[np.int64]
Decoded = TypeVar("Decoded")

INTEGER: Final = 9
DOUBLE: Final = 8
_LITTLE: Final = np.dtype("<f8")
_WHOLE: Final = np.dtype("<i8")

_MASK_HEAD: Final = struct.Struct(f"<{KEY}s{SESSION}sQ")
MASK_HEAD: Final = _MASK_HEAD.size

LARGEST: Final = sys.float_info.max
SMALLEST: Final = sys.float_info.min

_FEW: Final = 16  # up to here numbers one by one cost less than one call of NumPy


@final
class MalformedError(ValueError):
    """Bytes that are no message; it never quotes them."""


encode: Callable[[FromAgent | FromCloud | ToHelper | FromHelper], bytes] = msgpack.Encoder().encode
"""Returns the frame of a message."""


def _decode(decoder: msgpack.Decoder[Decoded], frame: bytes) -> Decoded:
    """Return a message, or raise ``MalformedError``."""
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # From None: the cause would quote what was sent.
        raise MalformedError("not a message of this protocol") from None


decode_from_agent: Callable[[bytes], FromAgent] = partial(_decode, msgpack.Decoder(FromAgent))
decode_from_cloud: Callable[[bytes], FromCloud] = partial(_decode, msgpack.Decoder(FromCloud))
decode_to_helper: Callable[[bytes], ToHelper] = partial(_decode, msgpack.Decoder(ToHelper))
decode_from_helper: Callable[[bytes], FromHelper] = partial(_decode, msgpack.Decoder(FromHelper))


def pack(values: Floats) -> bytes:
    """Return a vector as little-endian float64 bytes."""
    return np.asarray(values, dtype=_LITTLE).tobytes()


known_floats: Callable[[bytes], Floats] = partial(np.frombuffer, dtype=_LITTLE)
"""Returns the vector that ``pack`` wrote, where that is known."""


def unpack(data: bytes) -> Floats:
    """Return the vector that ``pack`` wrote, or raise ``MalformedError``."""
    if len(data) % DOUBLE:
        raise MalformedError("a vector must be whole numbers of 64 bits")
    return np.frombuffer(data, dtype=_LITTLE)


def pack_whole(values: Integers) -> bytes:
    """Return a vector as little-endian int64 bytes."""
    return np.asarray(values, dtype=_WHOLE).tobytes()


def unpack_whole(data: bytes) -> Integers:
    """Return the vector that ``pack_whole`` wrote, or raise ``MalformedError``."""
    return unpack(data).view(_WHOLE)


def pack_release(released: Released) -> bytes:
    """Return a release as it is stored: integers on the grid, or floats of a simulation."""
    return pack(released.values) if released.multiples is None else pack_whole(released.multiples)


class MaskName(Struct, frozen=True, kw_only=True):
    """Which mask a contribution is behind: whose key, which session, and of which round."""

    key: bytes
    session: bytes
    round: int


def join_mask(mask: MaskName, values: bytes) -> bytes:
    """Return a masked contribution with what names its mask before it."""
    return _MASK_HEAD.pack(mask.key, mask.session, mask.round) + values


def mask_of(data: bytes) -> MaskName:
    """Return what names the mask of a contribution that was joined with it."""
    key, session, k = _MASK_HEAD.unpack_from(data)
    return MaskName(key=key, session=session, round=k)


@final
class Box:
    """``lower <= v <= upper``, both finite, for vectors as they travel: float64, or int64."""

    def __init__(self, lower: Floats | Integers, upper: Floats | Integers) -> None:
        self._lower, self._upper = lower, upper
        self._kind = np.dtype("<i8" if lower.dtype == np.int64 else "<f8")
        self._numbers = struct.Struct(f"<{lower.size}{'q' if lower.dtype == np.int64 else 'd'}")
        self._pairs = tuple(zip(lower.tolist(), upper.tolist(), strict=True))
        self.size = self._numbers.size  # in bytes

    def holds(self, data: bytes) -> bool:
        """Whether the bytes are a vector of this length within the bounds."""
        if len(data) != self.size:
            return False
        # A comparison with NaN is false, so both ways refuse it together with infinities.
        if len(self._pairs) > _FEW:
            v = np.frombuffer(data, dtype=self._kind)
            return bool(((self._lower <= v) & (v <= self._upper)).all())
        for (low, high), value in zip(self._pairs, self._numbers.unpack(data), strict=True):
            if not low <= value <= high:
                return False
        return True

    def nearest(self, data: bytes) -> bytes | None:
        """The vector within the bounds that is nearest to the one in the bytes.

        The same bytes if they are within bounds, signed zeros too. What is not a number becomes the
        middle of its bounds: a function of public figures, like the bounds.

        Returns:
            None if the bytes are not a vector of this length.
        """
        if self.holds(data):
            return data
        if len(data) != self.size:
            return None
        v = np.frombuffer(data, dtype=self._kind)
        clipped = np.where(v < self._lower, self._lower, np.where(v > self._upper, self._upper, v))
        undefined = np.isnan(v)
        if undefined.any():
            clipped[undefined] = middle(self._lower[undefined], self._upper[undefined])
        return clipped.astype(self._kind, copy=False).tobytes()


def middle(lower: Floats, upper: Floats) -> Floats:
    """Return the middle of a box, never outside it."""
    return np.clip(lower / 2 + upper / 2, lower, upper)


def finite(size: int, least: float = -LARGEST) -> Box:
    """Return the box of all finite vectors of a size whose numbers are at least ``least``."""
    return Box(np.full(size, least), np.full(size, LARGEST))

"""Which vectors of a message are admissible, and what is taken in the place of one that is not."""

from __future__ import annotations

import struct
import sys
from typing import Final, final

import numpy as np

from sottovoce.network.protocol.codec import Floats, Integers, pack, pack_whole

LARGEST: Final = sys.float_info.max
SMALLEST: Final = sys.float_info.min

_FEW: Final = 16
"""Up to here numbers one by one cost less than one call of NumPy."""


@final
class Box:
    """``lower <= v <= upper`` for vectors as they travel, in little-endian float64 bytes.

    Args:
        lower: finite lower bounds.
        upper: finite upper bounds.
    """

    def __init__(self, lower: Floats, upper: Floats) -> None:
        self._lower, self._upper = lower, upper
        self._numbers = struct.Struct(f"<{lower.size}d")
        self._pairs = tuple(zip(lower.tolist(), upper.tolist(), strict=True))

    def holds(self, data: bytes) -> bool:
        """Whether the bytes are a vector of this length within the bounds."""
        if len(data) != self._numbers.size:
            return False
        # A comparison with NaN is false, so both ways refuse it together with infinities.
        if len(self._pairs) > _FEW:
            x = np.frombuffer(data, dtype="<f8")
            return bool(((self._lower <= x) & (x <= self._upper)).all())
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
        if len(data) != self._numbers.size:
            return None
        x = np.frombuffer(data, dtype="<f8")
        x = np.where(np.isnan(x), middle(self._lower, self._upper), x)
        return pack(
            np.where(x < self._lower, self._lower, np.where(x > self._upper, self._upper, x))
        )


@final
class Range:
    """``least <= v <= most`` for vectors of whole numbers, in little-endian int64 bytes.

    Args:
        least: the least values.
        most: the largest.
    """

    def __init__(self, least: Integers, most: Integers) -> None:
        self._least, self._most = least, most
        self._numbers = struct.Struct(f"<{least.size}q")
        self._pairs = tuple(zip(least.tolist(), most.tolist(), strict=True))

    def holds(self, data: bytes) -> bool:
        """Whether the bytes are a vector of this length within the range."""
        if len(data) != self._numbers.size:
            return False
        if len(self._pairs) > _FEW:
            v = np.frombuffer(data, dtype="<i8")
            return bool(((self._least <= v) & (v <= self._most)).all())
        for (low, high), value in zip(self._pairs, self._numbers.unpack(data), strict=True):
            if not low <= value <= high:
                return False
        return True

    def nearest(self, data: bytes) -> bytes | None:
        """The vector in the range that is nearest to the one in the bytes.

        Returns:
            None if the bytes are not a vector of this length.
        """
        if self.holds(data):
            return data
        if len(data) != self._numbers.size:
            return None
        return pack_whole(np.clip(np.frombuffer(data, dtype="<i8"), self._least, self._most))


def middle(lower: Floats, upper: Floats) -> Floats:
    """Return the middle of a box, never outside it."""
    return np.clip(lower / 2 + upper / 2, lower, upper)


def finite(size: int) -> Box:
    """Return the box of all finite vectors of a size."""
    return Box(np.full(size, -LARGEST), np.full(size, LARGEST))


def nonnegative(size: int) -> Box:
    """Return the box of all finite vectors of a size without a negative number."""
    return Box(np.zeros(size), np.full(size, LARGEST))


def positive(size: int) -> Box:
    """Return the box of all finite vectors of a size whose numbers are positive and normal."""
    return Box(np.full(size, SMALLEST), np.full(size, LARGEST))

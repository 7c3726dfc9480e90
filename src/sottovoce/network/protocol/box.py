"""Which vectors of a message are admissible, and what is taken in the place of one that is not."""

from __future__ import annotations

import struct
import sys
from typing import Final, final

import numpy as np

from sottovoce.network.protocol.codec import Floats, Integers

LARGEST: Final = sys.float_info.max
SMALLEST: Final = sys.float_info.min

_FEW: Final = 16
"""Up to here numbers one by one cost less than one call of NumPy."""


@final
class Box:
    """``lower <= v <= upper`` for vectors as they travel: little-endian float64, or int64.

    Args:
        lower: finite lower bounds; floats, or whole numbers (int64) for a box of such.
        upper: finite upper bounds, of the same kind.
    """

    def __init__(self, lower: Floats | Integers, upper: Floats | Integers) -> None:
        self._lower, self._upper = lower, upper
        self._kind = np.dtype("<i8" if lower.dtype == np.int64 else "<f8")
        self._numbers = struct.Struct(f"<{lower.size}{'q' if lower.dtype == np.int64 else 'd'}")
        self._pairs = tuple(zip(lower.tolist(), upper.tolist(), strict=True))

    def holds(self, data: bytes) -> bool:
        """Whether the bytes are a vector of this length within the bounds."""
        if len(data) != self._numbers.size:
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
        if len(data) != self._numbers.size:
            return None
        v = np.frombuffer(data, dtype=self._kind)
        kept = np.where(v < self._lower, self._lower, np.where(v > self._upper, self._upper, v))
        lost = np.isnan(v)
        if lost.any():
            kept[lost] = middle(self._lower[lost], self._upper[lost])
        return kept.astype(self._kind, copy=False).tobytes()


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

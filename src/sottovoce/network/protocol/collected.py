"""The states of the round that is being collected: what was said, and by whom it is missing."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from sottovoce.network.protocol.codec import Floats


@final
class Collected:
    """A vector that connections fill in part by part; what was said first stays.

    States are compared as bytes, once they lie within their bounds: the same again means the same
    bytes.

    Args:
        size: the number of components.
    """

    def __init__(self, size: int) -> None:
        # Plain bytes under NumPy's views: a part of a few numbers is copied without NumPy.
        self._bytes = bytearray(8 * size)
        self._flags = bytearray(size)
        self._bits = np.frombuffer(self._bytes, dtype="<i8")
        self._known = np.frombuffer(self._flags, dtype=np.bool_)
        self._missing = size

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self._missing == 0

    @property
    def known(self) -> Any:
        """Which components have been said."""
        return self._known

    def clear(self) -> None:
        """Begin a new round."""
        self._flags[:] = bytes(len(self._flags))
        self._missing = len(self._flags)

    def put(self, columns: slice | Any, data: bytes) -> bool:
        """Fill in some components; False if some were said differently before.

        Args:
            columns: which, a slice or their indices.
            data: their values, one float64 for each.
        """
        if not isinstance(columns, slice):
            return self._merge(columns, np.frombuffer(data, dtype="<i8"))
        begin, end = columns.start, columns.stop
        if self._flags.find(1, begin, end) >= 0:
            return self._merge(columns, np.frombuffer(data, dtype="<i8"))
        self._bytes[8 * begin : 8 * end] = data
        self._flags[begin:end] = b"\1" * (end - begin)
        self._missing -= end - begin
        return True

    def values(self, instead: Floats | None = None) -> Floats:
        """Return a copy of the vector, with the values of ``instead`` where nothing was said."""
        x = np.frombuffer(bytes(self._bytes), dtype="<f8")
        return x if instead is None else np.where(self._known, x, instead)

    def _merge(self, columns: slice | Any, bits: Any) -> bool:
        known = self._known[columns]
        if (self._bits[columns] != bits)[known].any():
            return False
        self._bits[columns] = bits
        self._missing -= int(np.count_nonzero(~known))
        self._known[columns] = True
        return True

"""Fingerprints: hashes of content, the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression
from sottovoce.formula.order import digest as structure
from sottovoce.problem.constraints import Constraint, FleetSum
from sottovoce.problem.groups import Group
from sottovoce.problem.linear_rows import Matrix


def fingerprint(*parts: object) -> str:
    """Return a hash of formulas, arrays and agents, ``H(part_1, part_2, ...)``, as 32 hex digits.

    Formulas count by structure, arrays by shape and little-endian bytes. The
    names of constraints do not count.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: hashlib.blake2b, part: object) -> None:
    if isinstance(part, (tuple, list)):
        digest.update(f"({len(part)}".encode())
        for item in part:
            _feed(digest, item)
    elif isinstance(part, Expression):
        digest.update(b"e" + structure(part))
    elif isinstance(part, str | int | float | bool) or part is None:
        digest.update(f"{type(part).__name__}:{part!r};".encode())
    elif isinstance(part, np.ndarray):
        _feed_array(digest, part)
    elif hasattr(part, "indptr"):
        sparse: Matrix = part
        _feed_array(digest, np.asarray(sparse.data))
        for places in (sparse.indices, sparse.indptr):
            _feed_array(digest, np.asarray(places, dtype=np.int64))  # however SciPy keeps them
    elif isinstance(part, Group):
        _feed(digest, (part.name, part.count, part.symbols, part.lower, part.upper))
        for symbol, values in sorted(part.parameters.items(), key=lambda item: item[0].name):
            _feed(digest, (symbol, values))
    elif isinstance(part, FleetSum):
        _feed(digest, (part.group.name, part.terms, part.weights))
    elif isinstance(part, Constraint):
        _feed(digest, (part.sums, part.rest, part.offset, part.equality))
        if part.hard:
            _feed(digest, "hard")
        if part.linear is not None:
            # By name and not by place: the same row has one hash, however it was written.
            by_name = part.linear.select(part.linear.used(), by_name=True)
            _feed(digest, [s.name for s in by_name.symbols])
            for array in (by_name.values, by_name.column, by_name.indptr):
                _feed_array(digest, array)
    else:
        raise TypeError(f"cannot fingerprint a {type(part).__name__}")


def _feed_array(digest: hashlib.blake2b, array: NDArray[np.generic]) -> None:
    # Equal along an axis counts once: a bound stated for all hashes like the same bound listed for
    # each, and a fleet's broadcast arrays hash fast.
    compact = array
    for axis in (axis for axis, size in enumerate(array.shape) if size > 1):
        first = compact.take([0], axis=axis)
        if compact.strides[axis] == 0 or np.all(compact == first):
            compact = first
    compact = np.ascontiguousarray(compact)
    digest.update(f"a{array.shape}{compact.shape}{compact.dtype.kind}".encode())
    digest.update(compact.astype(compact.dtype.newbyteorder("<"), copy=False).tobytes())

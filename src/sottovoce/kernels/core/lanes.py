"""Rows of 16 lanes and pointers into arrays; compiled, these are the inline functions of lanes.pxd.

Sixteen doubles are four AVX2 registers or eight of SSE2: enough independent operations to hide the
latency of each, few enough that a block's registers stay in the first-level cache.
"""

import numpy as np

LANES = 16


def row(p, i):
    """The pointer to row i."""
    return p[LANES * i :]


def skip(p, i):
    """``p + i``."""
    return p[i:]


skip_int = skip


def doubles(x):
    """The pointer to a contiguous float64 array."""
    return x


def ints(x):
    """The pointer to an int32 array; its items are Python's own integers."""
    return memoryview(x)


longs = doubles


def words(x):
    """The pointer to uint64, as integers that may grow before they are cut to 64 bits."""
    return [int(word) for word in x]


def spread(to, value):
    """The same number in all lanes."""
    to[:LANES] = value


def copy(to, a):
    """One row to another."""
    to[:LANES] = a[:LANES]


def copy_some(to, a, count):
    """``count`` numbers."""
    to[:count] = a[:count]


def fill(to, value, count):
    """The same number ``count`` times."""
    to[:count] = value


def any_positive(a):
    """Whether a lane is positive."""
    return bool(np.any(a[:LANES] > 0.0))

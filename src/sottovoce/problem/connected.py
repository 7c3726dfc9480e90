"""Which nodes of a graph hang together."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices: TypeAlias = NDArray[np.int64]


def connected(count: int, left: ArrayLike, right: ArrayLike) -> Indices:
    """Number the connected parts of a graph, from 0 in the order of their first nodes.

    Args:
        count: the number of nodes.
        left: one end of every edge.
        right: the other.

    Returns:
        The part of every node, shape (count,).
    """
    ends = np.array([left, right], dtype=np.int64).reshape(2, -1)
    ends = ends[:, ends[0] != ends[1]]
    if not ends.size:
        return np.arange(count)
    # Slow to load, for it brings all of SciPy's linear algebra, and most graphs have no edge.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)

"""Connected components of a graph."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices: TypeAlias = NDArray[np.int64]


def connected(count: int, left: ArrayLike, right: ArrayLike) -> Indices:
    """Number the connected components of a graph, from 0 in the order of their first nodes.

    Args:
        count: the number of nodes.
        left: one end of every edge.
        right: the other.

    Returns:
        The component of every node, shape (count,).
    """
    from scipy.sparse import coo_array  # 16 MB that an agent can do without
    from scipy.sparse.csgraph import connected_components

    ends = np.array([left, right], dtype=np.int64).reshape(2, -1)
    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)

"""Connected components of a graph, by union-find."""

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
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    ends = np.array([left, right], dtype=np.int64).reshape(2, -1)
    for a, b in ends.T.tolist():
        first, second = sorted((root(a), root(b)))
        parent[second] = first
    return np.unique([root(node) for node in range(count)], return_inverse=True)[1]

"""Connected components of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices: TypeAlias = NDArray[np.int64]


def connected(count: int, left: ArrayLike, right: ArrayLike) -> Indices:
    """Return the connected component of every node of a graph with edges ``left - right``.

    They are numbered from 0 in the order of their first nodes.
    """
    from scipy.sparse import coo_array  # 16 MB that an agent can do without
    from scipy.sparse.csgraph import connected_components

    ends = np.array([left, right], dtype=np.int64).reshape(2, -1)
    graph = coo_array((np.ones(ends.shape[1]), ends), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def connected_blocks(matrix: Sequence[Sequence[object]]) -> list[list[int]]:
    """Split indices into the sets that a symmetric matrix connects."""
    edges = [(i, j) for i, row in enumerate(matrix) for j in range(i) if row[j]]
    label = connected(len(matrix), [i for i, _ in edges], [j for _, j in edges])
    return [np.flatnonzero(label == part).tolist() for part in np.unique(label)]

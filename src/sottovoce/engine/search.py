"""The searches for an agent's minimiser, compiled once for all problems; kernels call them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sottovoce.engine.compile import load_kernel
from sottovoce.engine.interior_text import interior_source
from sottovoce.engine.separable_text import SEARCHES

_KIND = "boolean(int64, int64, float64[::1])"


def search_addresses(rows: Iterable[int]) -> NDArray[np.int64]:
    """Return where ``invoke`` finds the search over a box and 0, 1 or 2 rows; 0 if not asked for.

    A search takes d, where in the scratch array the problems of a block of agents lie, and that
    array.
    """
    found = np.zeros(len(SEARCHES), dtype=np.int64)
    for count in set(rows):
        found[count] = load_kernel(_source(count)).search.address
    return found


def interior_addresses(source: str) -> NDArray[np.int64]:
    """Return where ``invoke`` finds the interior-point method, and the ``derive`` of a module."""
    method, formulas = load_kernel(interior_source()).interior, load_kernel(source).derive
    return np.array([method.address, formulas.address], dtype=np.int64)


def _source(rows: int) -> str:
    module = "two_rows" if rows == 2 else "dual_search"
    return "\n".join(
        [
            "from sottovoce.compiler.module import entry",
            f"from sottovoce.algorithm.{module} import {SEARCHES[rows]}",
            f'\n\n@entry("{_KIND}")',
            "def search(size, at, work):",
            f"    {SEARCHES[rows]}(size, at, work)",
            "    return True",
            "",
        ]
    )

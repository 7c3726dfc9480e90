"""Projections, for floats and NumPy arrays; the engine teaches the compiler the same two."""

from __future__ import annotations

from typing import Any

import numpy as np


def project(x: Any, lower: Any, upper: Any) -> Any:
    """Return ``P_X[x] = min(max(x, lower), upper)``, the nearest point of a box; NaN stays NaN."""
    return np.minimum(np.maximum(x, lower), upper)


def positive(mu: Any) -> Any:
    """Return ``[mu]_+ = max(mu, 0)``, the nearest point of the orthant; NaN stays NaN."""
    return np.maximum(mu, 0.0)

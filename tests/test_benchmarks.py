"""The benchmark of efficiency runs what it says it runs: problems that come to their optimum."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv


@pytest.fixture(scope="module")
def families() -> Iterator[Any]:
    """The benchmark's families, which are no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1]))
        yield import_module("benchmarks.families")


@pytest.mark.parametrize("name", ["utility", "small", "vector", "scaled", "weak", "disc", "loads"])
def test_curved_families_without_noise_come_to_their_optimum(families: Any, name: str) -> None:
    result = sv.simulate(families.CURVED[name](0), rounds=300, record=[], progress=False)
    assert result.saddle_x is not None
    scale = np.max(np.abs(result.saddle_x))
    assert np.max(np.abs(np.ravel(result.x) - result.saddle_x)) < 1e-6 * scale

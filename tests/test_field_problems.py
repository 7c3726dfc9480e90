"""Problems of others: published optima, optima of other solvers, and runs without noise."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv

with pytest.MonkeyPatch.context() as _patch:  # no part of the package
    _patch.syspath_prepend(str(Path(__file__).parents[1]))
    _field: Any = import_module("benchmarks.field")

SLOW = {"hs34": "prices run away", "hs66": "prices run away", "goffin": "minimax"}


@pytest.fixture(scope="module", params=_field.PROBLEMS)
def stated(request: pytest.FixtureRequest) -> tuple[str, sv.Problem, float]:
    return (request.param, *_field.PROBLEMS[request.param].state())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pypower")
def test_a_problem_of_others_is_certified_and_has_the_optimum_that_they_state(stated: Any) -> None:
    _, problem, optimum = stated
    sv.certify(problem)
    best = sv.reference_optimum(problem)
    assert best.objective == pytest.approx(optimum, rel=1e-7, abs=1e-7)


@pytest.mark.slow
def test_a_run_without_noise_comes_near(stated: Any, request: pytest.FixtureRequest) -> None:
    name, problem, _ = stated
    if name in SLOW:  # strict: a run that converges asks to be taken off this list
        request.applymarker(pytest.mark.xfail(reason=SLOW[name], strict=True))
    off, over = _field.quiet(problem, sv.reference_optimum(problem))
    assert off <= 1e-3
    assert over <= 1e-3


# --- The benchmark of efficiency runs what it says it runs: problems that come to their optimum ---


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

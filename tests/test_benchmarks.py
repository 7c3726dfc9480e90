"""The benchmark of efficiency runs what it says it runs: games that come to their optimum."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm.dual_averaging import DualAveraging

ROUNDS = 150


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which are no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1]))
        names = ("families", "games", "rounds")
        yield SimpleNamespace(**{n: import_module(f"benchmarks.problems.{n}") for n in names})


@pytest.mark.parametrize("name", ["paper", "coupled", "utility"])
def test_games_without_noise_come_to_their_optimum(bench: Any, name: str) -> None:
    game = getattr(bench.families, name)(0)
    best, sigma, a = bench.games.optimum(game), game.plan(1.0), game.agents
    answer = bench.rounds.Answer(
        np.zeros(a.lower.size), np.zeros(game.sums), np.zeros((ROUNDS, a.lower.size))
    )
    public = game.public(sigma, noisy=False)
    none = np.zeros(0)
    assert not bench.rounds.run_rounds(np.ones(ROUNDS), none, a, public, DualAveraging(), answer)
    assert np.max(np.abs(answer.x - best.x) / (a.upper - a.lower)) < 1e-4
    assert np.array_equal(answer.trace[-1], answer.x)

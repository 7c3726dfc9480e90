"""The benchmark of efficiency runs what it says it runs.

Its loop is compiled and calls the cloud's round that `solve` uses; Python gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm.dual_averaging import Constants, DualAveraging, Rows, cloud_round
from sottovoce.algorithm.projection import PublicSet
from sottovoce.engine.region_text import phi_function

ROUNDS = 12


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark's modules, which are no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1]))
        names = ("families", "rounds")
        yield SimpleNamespace(**{n: import_module(f"benchmarks.problems.{n}") for n in names})


def plain_turn(k: int, y: Any, price: Any, memory: Any, constants: Any, *given: Any) -> bool:
    unit, noise, *public, phi = given
    rows = Rows(unit, noise, PublicSet(*public))
    return cloud_round(k, y, price, memory, rows, Constants(*constants), phi)


@pytest.mark.parametrize("noise", [1.0, 0.0])
@pytest.mark.parametrize("name", ["paper", "coupled", "chargers", "utility"])
def test_the_compiled_loop_gives_the_bits_that_python_gives(
    bench: Any, name: str, noise: float
) -> None:
    game = getattr(bench.families, name)(0)
    a, algorithm = game.agents, DualAveraging()
    sigma = game.plan(1.0)
    rows = Rows(sigma, np.full(game.sums, noise), game.public)
    shares = algorithm.share(np.arange(1, ROUNDS + 1), ROUNDS, noisy=True)
    normals = np.random.default_rng(1).standard_normal(ROUNDS * game.sums)
    plain, fast = (
        bench.rounds.Answer(
            np.zeros(a.lower.size), np.zeros(game.sums), np.zeros((ROUNDS, a.lower.size))
        )
        for _ in "ab"
    )
    phi = phi_function(bench.rounds.REGIONS)
    cloud = bench.rounds.Cloud(plain_turn, phi, np.array(algorithm.constants), rows)
    assert bench.rounds.run_rounds(shares, normals, a, cloud, algorithm.theta, plain) == 0
    assert bench.rounds.compiled_rounds(shares, normals, a, rows, algorithm, fast) == 0
    assert plain.trace[-1].any()
    for one, other in zip(plain, fast, strict=True):
        assert np.array_equal(one, other)

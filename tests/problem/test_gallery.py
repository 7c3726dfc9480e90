"""The gallery: problems as their sources state them."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical, expand
from sottovoce.formula.expression import symbol
from sottovoce.problem import gallery
from sottovoce.problem.gallery import CONNECTOR_KW
from sottovoce.problem.numeric import Numeric


def test_the_gallery_has_these_names() -> None:
    assert gallery.names() == (
        "paper",
        *(f"hs{number}" for number in (10, 11, 21, 22, 34, 43, 48, 51, 52, 53, 66, 72)),
        "coupled",
        "dispatch",
        "chargers",
        "smart_charging",
        "valley_filling",
        "peak_shaving",
        "soft_limit",
    )


def test_an_unknown_name_and_no_hours_are_refused() -> None:
    with pytest.raises(ProblemError, match="name must be one of"):
        gallery.known("rosenbrock")
    with pytest.raises(ProblemError, match=r"hours must be an integer .* got hours=0"):
        gallery.chargers(3, hours=0)


def test_the_papers_problem_is_the_one_printed_in_the_paper() -> None:
    x1, x2, x3, x4, x5, x6, x7 = (symbol(f"x{i}") for i in range(1, 8))
    problem = gallery.paper()
    printed = (
        (x1 - 9) ** 2 + x1 + (x2 + 4) ** 4 + (x3 - 1) ** 8 + x4**2 + (x4 + 6) + (x5 + 3) ** 6
        + (x6 - 7) ** 2 + (x7 - 5) ** 2
    )  # fmt: skip
    assert expand(canonical(sum(problem.objectives) - printed)).is_zero
    g = [family.formulas[0] for family in problem.constraints]
    stated = [
        x1 + x2 + x3 - 3,
        x5**2 + x6**4 / 12 + x7**4 / 12 - 20,
        x3**2 + x4 + x6 - 1,
        x6**2 + x7**2 - 5,
    ]
    assert all(a is canonical(b) for a, b in zip(g, stated, strict=True))
    assert set(problem.cloud.lower()) == {-10.0}
    assert set(problem.cloud.upper()) == {10.0}
    assert dict(problem.privacy) == {"epsilon": "ln(3)", "delta": 0.05, "radius": 1.0}
    assert dict(problem.schedule) == {"gamma_bar": 5e-4, "alpha_bar": 0.2, "c1": "1/3", "c2": "1/4"}


@pytest.mark.parametrize("name", [name for name in gallery.names() if gallery.known(name)])
def test_a_known_optimum_meets_the_conditions_of_optimality(name: str) -> None:
    optimum = gallery.known(name)
    assert optimum is not None
    numeric = Numeric(gallery.get(name), local=True)
    x, mu = np.array(optimum.x), np.zeros(numeric.equality.size)
    mu[: numeric.rows] = optimum.mu
    if mu.size > numeric.rows:  # the book prints a row of one agent's set among the others
        own = numeric.jacobian(x)[numeric.rows :].toarray()
        mu[numeric.rows :] = np.linalg.lstsq(own.T, -numeric.lagrangian_gradient(x, mu))[0]
    assert abs(numeric.objective(x) - optimum.objective) <= optimum.tolerance * (
        1 + abs(optimum.objective)
    )
    # HS72 is printed with an error of 5e-6; everything else with ten digits or more.
    assert numeric.residual(x, mu) <= 20 * optimum.tolerance
    assert optimum.source


def test_the_dispatch_is_the_one_the_book_prints() -> None:
    optimum = gallery.known("dispatch")
    assert optimum is not None
    assert [round(p, 1) for p in optimum.x] == [393.2, 334.6, 122.2]
    assert round(-optimum.mu[0], 3) == 9.148


def test_chargers_follow_their_seed() -> None:
    assert gallery.chargers(20, seed=1).fingerprint == gallery.chargers(20, seed=1).fingerprint
    assert gallery.chargers(20, seed=1).fingerprint != gallery.chargers(20, seed=2).fingerprint


def test_chargers_draw_realistic_limits_windows_and_needs() -> None:
    (ev,) = gallery.chargers(5000, seed=3).groups
    parked = ev.upper > 0.0
    assert set(np.unique(ev.upper)) == {0.0, *CONNECTOR_KW}
    assert np.all(ev.lower == 0.0)
    assert np.all(parked.any(axis=1))
    assert np.all(np.abs(np.diff(parked.astype(int), axis=1)).sum(axis=1) <= 2)
    need = ev.parameters[symbol("need")]
    assert np.all(need <= 0.9 * ev.upper.sum(axis=1) + 1e-9)
    assert 7.0 < np.mean(need) < 12.0
    assert 10.0 < np.mean(parked.sum(axis=1)) < 16.0


def test_the_capacity_depends_on_public_figures_only() -> None:
    one, other = (gallery.chargers(50, seed=seed).constraints[0].offset for seed in (1, 2))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(2 * one, gallery.chargers(100).constraints[0].offset, rtol=1e-14)
    assert one.size == 24
    assert gallery.chargers(50, hours=5).rows == 5


def test_a_single_hour_is_a_scalar_state() -> None:
    problem = gallery.chargers(4, hours=1)
    assert (problem.size, problem.rows) == (4, 1)


def test_a_million_chargers_are_stated_within_three_seconds_and_a_gigabyte() -> None:
    gallery.chargers(2)
    begin = time.process_time()
    problem = gallery.chargers(1_000_000)
    assert time.process_time() - begin < 3.0
    assert problem.size == 24_000_000
    del problem
    tracemalloc.start()
    try:
        gallery.chargers(1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1e9
    finally:
        tracemalloc.stop()


def test_smart_chargers_hold_their_needs_and_windows_to_themselves() -> None:
    plain, own = gallery.chargers(30, seed=2), gallery.smart_charging(30, seed=2)
    (local,), (group,) = own.local, own.groups
    assert local.equalities
    assert not local.inequalities
    np.testing.assert_array_equal(local.upper, plain.groups[0].upper)
    assert np.all(own.cloud.groups[0].upper == 22.0)
    assert not own.cloud.groups[0].parameters
    need = next(v for s, v in group.parameters.items() if s.name == "need")
    assert np.all(need < local.upper.sum(axis=1))

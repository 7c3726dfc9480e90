from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from random_expressions import (
    SYMBOLS,
    boxes,
    expressions,
    fractions,
    inside,
    patiently,
    precise,
    symbols,
)
from sottovoce.certificate import domain as module
from sottovoce.certificate.domain import MARGIN, EmptyDomainError, tightened_domain
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.intervals import Interval, interval


def test_the_papers_constraints_shrink_its_boxes_and_leave_a_margin() -> None:
    cloud, root = sv.gallery.paper().cloud, np.sqrt(5)
    bare, domain = ({g.name: g for g in tightened_domain(cloud, margin=m)} for m in (0.0, MARGIN))
    for name, reach in (
        ("x5", np.sqrt(20)),
        ("x6", root),
        ("x7", root),
        ("x3", np.sqrt(11 + root)),
    ):
        wide = reach * (1 + 2 * MARGIN)
        for tightened, most, rtol in ((bare, reach, 1e-14), (domain, wide, 1e-9)):
            np.testing.assert_allclose(tightened[name].upper, most, rtol=rtol)
            np.testing.assert_allclose(tightened[name].lower, -most, rtol=rtol)
    np.testing.assert_allclose(bare["x4"].upper, 1 + root, rtol=1e-14)
    for name, lower in (("x1", -10.0), ("x2", -10.0), ("x4", -10.0)):
        assert domain[name].lower[0, 0] == bare[name].lower[0, 0] == lower
    assert domain["x1"].upper[0, 0] == bare["x2"].upper[0, 0] == 10.0


def test_the_margin_stops_half_way_to_the_original_bound() -> None:
    x = sv.agents(2, lower=0, upper=[1.0, 0.998])
    problem = sv.Problem(objectives=[x[0], x[1]], constraints=[x[0] + x[1] <= 0.99])
    first, second = tightened_domain(problem.cloud)
    assert first.upper[0, 0] == pytest.approx(0.995, abs=1e-12)
    assert second.upper[0, 0] == pytest.approx(0.994, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 6),
    kind=st.sampled_from(["same", "dense", "sparse"]),
)
def test_a_fleet_is_tightened_like_its_agents_one_by_one(seed: int, count: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    lower, upper = -rng.uniform(0, 3, count), rng.uniform(0.5, 4, count)
    weights = np.ones((1, count)) if kind == "same" else rng.uniform(0.2, 2.0, (2, count))
    bound = rng.uniform(0.5, 2.0, (weights.shape[0],))
    ev = sv.agents(count, lower=lower, upper=upper)
    given_weights = {"same": None, "dense": weights, "sparse": sparse.csr_array(weights)}[kind]
    total = sv.total(ev.x + ev.x**2, weights=given_weights)
    fleet = sv.Problem(objectives=ev.x, constraints=[total <= bound])
    x = sv.agents(count, lower=list(lower), upper=list(upper))
    rows = [
        sum(float(w) * (s + s**2) for w, s in zip(row, x, strict=True)) <= float(b)
        for row, b in zip(weights, bound, strict=True)
    ]
    named = sv.Problem(objectives=list(x), constraints=rows)
    together = tightened_domain(fleet.cloud)[0]
    one_by_one = tightened_domain(named.cloud)
    np.testing.assert_allclose(
        together.upper[:, 0], [g.upper[0, 0] for g in one_by_one], rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        together.lower[:, 0], [g.lower[0, 0] for g in one_by_one], rtol=1e-6, atol=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_feasible_point_is_ever_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = sv.agents(3, lower=-4, upper=4)
    a = rng.integers(-3, 4, (2, 3))
    rows = [
        sum(int(c) * s for c, s in zip(row, x, strict=True)) + sum(s**2 for s in x) / 3 <= 4
        for row in a
    ]
    problem = sv.Problem(objectives=list(x), constraints=rows)
    points = rng.uniform(-4, 4, (4000, 3))
    feasible = np.all(points @ a.T + (points**2).sum(axis=1, keepdims=True) / 3 <= 4, axis=1)
    domain = tightened_domain(problem.cloud, margin=0.0)
    for c, group in enumerate(domain):
        inside = points[feasible, c]
        assert np.all((inside >= group.lower[0, 0]) & (inside <= group.upper[0, 0]))


def test_agents_untouched_by_a_sparse_row_keep_their_box() -> None:
    ev = sv.agents(3, lower=0.0, upper=5.0)
    weights = sparse.csr_array(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    problem = sv.Problem(
        objectives=ev.x, constraints=[sv.total(ev.x, weights=weights) <= [1.0, 100.0]]
    )
    upper = tightened_domain(problem.cloud)[0].upper[:, 0]
    np.testing.assert_allclose(upper, [1.1, 1.1, 5.0])


X1, X2, X3, X4, X5, X6, X7 = STATES = symbols("x", 7)
X, Y, Z = SYMBOLS
TEN = {symbol: interval(-10, 10) for symbol in STATES}


def contract(expr: Any, box: dict[Any, Interval], upper: Any = 0.0) -> dict[Any, Interval]:
    return module.contract(canonical(expr), box, upper)


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def ends(side: Interval) -> tuple[float, float]:
    return float(side.lower), float(side.upper)


@pytest.mark.parametrize(
    ("expr", "side", "expected"),
    [
        (1 - X**2, (-0.5, 10), (1, 10)),
        (1 - X**2, (-10, 0.5), (-10, -1)),
        (1 - X**2, (-10, 10), (-10, 10)),
        (X**2 - 4, (-10, 10), (-2, 2)),
        (8 + X**3, (-5, 10), (-5, -2)),
        (X**3 - 8, (-5, 10), (-5, 2)),
        (-log(X) - 5, (-5, 10), (math.exp(-5), 10)),
        (log(X) - 1, (-5, 10), (0, math.e)),
        (sqrt(X) - 2, (-2, 50), (0, 4)),
        (2 - sqrt(X), (-2, 50), (4, 50)),
        (X ** Fraction(1, 3) - 2, (-10, 50), (0, 8)),
        (1 / sqrt(X) - 2, (-10, 50), (0.25, 50)),
        (1 / X - 2, (0, 50), (0.5, 50)),
        (1 / X**2 - 4, (-0.1, 50), (0.5, 50)),
        (1 / X**3 + 8, (-9, 0), (-0.5, 0)),
        (X**math.pi - 3, (0, 50), (0, 3 ** (1 / math.pi))),
        (exp(-X) - 3, (-50, 50), (-math.log(3), 50)),
        (-2 * X + 3, (-50, 50), (1.5, 50)),
    ],
)
def test_each_operation_is_solved_for_its_operand(expr: Any, side: Any, expected: Any) -> None:
    box = contract(expr, {X: interval(*side)})
    assert ends(box[X]) == pytest.approx(expected, rel=1e-13, abs=1e-13)
    assert ends(box[X])[0] <= expected[0] * (1 + 1e-15 * np.sign(expected[0]))
    assert ends(box[X])[1] >= expected[1] * (1 - 1e-15 * np.sign(expected[1]))


def test_products_are_divided_soundly_when_a_factor_may_vanish() -> None:
    sides = {X: interval(0, 5), Y: interval(-10, 10)}
    assert ends(contract(1 - X * Y, sides)[Y]) == pytest.approx((0.2, 10), rel=1e-14)
    assert ends(contract(X * Y, sides)[Y]) == (-10, 10)
    assert ends(contract(X * Y + 1, {X: interval(2, 5), Y: interval(-10, 10)})[Y]) == pytest.approx(
        (-10, -0.2), rel=1e-14
    )


@patiently
@given(expressions, boxes, fractions, st.floats(-2, 2))
def test_contraction_never_loses_a_feasible_point(
    expr: Any, box: Any, shares: list[float], upper: float
) -> None:
    point = inside(box, shares)
    value = precise(expr, point)
    if value is None or value > upper:
        return
    contracted = contract(expr, {s: interval(*side) for s, side in box.items()}, upper)
    for symbol, side in contracted.items():
        assert box[symbol][0] <= side.lower <= point[symbol] <= side.upper <= box[symbol][1]


def test_the_search_for_lost_points_sees_inward_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> int:
        box = {X: interval(-3, 3), Y: interval(-3, 3)}
        thresholds = np.linspace(0.01, 8.9, 500)
        kept = [contract(X**2 + Y**2, box, c)[X].upper for c in thresholds]
        exact = [mpmath.sqrt(mpmath.mpf(float(c))) for c in thresholds]
        return sum(mpmath.mpf(float(k)) < e for k, e in zip(kept, exact, strict=True))

    assert lost() == 0

    def nearest(result: Interval, _: Any, base: Interval) -> Interval:
        root = np.sqrt(np.maximum(result.upper, 0))
        return interval(-root, root)

    monkeypatch.setattr(module, "_base", nearest)
    assert lost() > 100


def test_a_symbol_outside_the_constraint_keeps_its_bounds() -> None:
    assert ends(contract(X - 1, {X: interval(0, 5), Y: interval(-7, 7)})[Y]) == (-7, 7)


@pytest.mark.parametrize(
    "expr", [X + 100, X**2 + 1, exp(X), X**2 - 2 * X + 200, -log(X) + 20, 11 - sqrt(X**2)]
)
def test_an_infeasible_constraint_is_proven_empty_by_name(expr: Any) -> None:
    with pytest.raises(EmptyDomainError, match="holds nowhere") as caught:
        contract(expr, {X: interval(-10, 10)})
    assert str(canonical(expr)) in str(caught.value)
    assert isinstance(caught.value, ProblemError)


def test_one_empty_agent_of_a_fleet_is_enough() -> None:
    with pytest.raises(EmptyDomainError):
        contract(X, {X: interval([0.0, 2.0], [1.0, 3.0])}, 1.5)


def test_a_touching_point_is_not_called_empty() -> None:
    assert ends(contract(X**2, {X: interval(-1, 1)})[X]) == (0, 0)
    assert ends(contract(X + Y, {X: interval(0, 1), Y: interval(0, 1)})[X]) == (0, 0)


def test_unbounded_sides_become_bounded() -> None:
    line = interval(-np.inf, np.inf)
    box = contract(X**2 + Y**2 - 1, {X: line, Y: line})
    assert ends(box[X]) == ends(box[Y]) == (-1, 1)

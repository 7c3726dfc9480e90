"""Separable quadratics over a box and rows: against Clarabel, at ties, and when nothing is left."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithm.dual_search import box_search, row_search, softness
from sottovoce.algorithm.home_block import (
    CURVATURE,
    FREE,
    GIVE,
    LEAST,
    LOWER,
    MOST,
    NUMBERS,
    OTHER,
    POINT,
    ROW,
    SLOPE,
    UPPER,
    VECTORS,
)  # fmt: skip
from sottovoce.algorithm.two_rows import two_row_search

cp: Any = cvxpy  # it has no types

Row = tuple[Any, float, float, float]
"""a, least, most, give."""


def searched(p: Any, g: Any, w: Any, box: Any, rows: list[Row]) -> Any:
    d = len(p)
    work = [0.0] * (VECTORS * d + 2 * NUMBERS)
    vectors = {POINT: p, SLOPE: g, CURVATURE: w, LOWER: box[0], UPPER: box[1]}
    for order, (a, least, most, give) in enumerate(rows):
        vectors[(ROW, OTHER)[order]] = a
        first = VECTORS * d + order * NUMBERS
        work[first + LEAST], work[first + MOST], work[first + GIVE] = least, most, give
    for which, values in vectors.items():
        work[which * d : (which + 1) * d] = np.asarray(values, dtype=float).tolist()
    (box_search, row_search, two_row_search)[len(rows)](d, 0, work)
    return np.array(work[FREE * d : (FREE + 1) * d])


def oracle(p: Any, g: Any, w: Any, box: Any, rows: list[Row]) -> Any:
    x = cp.Variable(len(p))
    objective = g @ (x - p) + cp.sum(cp.multiply(w / 2, cp.square(x - p)))
    kept = [x >= box[0], x <= box[1]]
    for a, least, most, give in rows:
        if give > 0:
            objective += cp.square(a @ x - least) / (2 * give)
            continue
        kept += [a @ x == least] if least == most else [a @ x >= least] if least > -np.inf else []
        kept += [a @ x <= most] if least < most < np.inf else []
    tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    cp.Problem(cp.Minimize(objective), kept).solve(solver="CLARABEL", **tight)
    return x.value


def drawn(seed: int, kinds: str) -> tuple[Any, Any, Any, Any, list[Row]]:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(len(kinds) + 1, 12))
    box = np.stack([-rng.uniform(0, 2, d), rng.uniform(0, 2, d)])
    box[:, rng.uniform(size=d) < 0.2] = 0.0
    p = np.where(rng.uniform(size=d) < 0.3, box[0], rng.uniform(*box))
    g, w = rng.normal(size=d) * 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-1, 1, d)
    inside, rows = rng.uniform(*box), list[Row]()
    for kind in kinds:
        a = rng.normal(size=d) if rng.uniform() < 0.5 else np.ones(d)
        b = float(a @ inside)
        rows.append(
            {
                "=": (a, b, b, 0.0), "<": (a, -np.inf, b, 0.0), "-": (a, b - 0.1, b + 0.1, 0.0),
                "2": (a, b, b, float(10 ** rng.uniform(-2, 2))),
            }[kind]
        )  # fmt: skip
    return p, g, w, box, rows


@pytest.mark.parametrize("kinds", ["", "=", "<", "-", "2", "==", "=<", "-2", "22", "<-"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_answers_are_clarabels(kinds: str, seed: int) -> None:
    given_ = drawn(seed, kinds)
    x, (p, g, w, box, rows) = searched(*given_), given_
    assert np.all((x >= box[0]) & (x <= box[1]))
    for a, least, most, give in rows:
        room = 1e-13 * np.abs(a) @ np.maximum(*np.abs(box)) + 1e-14
        assert give > 0 or least - room <= a @ x <= most + room
    expected = oracle(p, g, w, box, rows)
    np.testing.assert_allclose(x, expected, atol=2e-6)  # as close as Clarabel comes

    def cost(y: Any) -> float:
        soft = sum((a @ y - least) ** 2 / (2 * give) for a, least, _, give in rows if give > 0)
        return float(g @ (y - p) + w / 2 @ (y - p) ** 2 + soft)

    assert cost(x) <= cost(expected) + 1e-9 * (1 + abs(cost(expected)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_optimality_conditions_hold_to_1e_9_of_the_box(seed: int) -> None:
    p, g, w, box, rows = drawn(seed, "=")
    x, (a, *_) = searched(p, g, w, box, rows), rows[0]
    slope = g + w * (x - p)
    margin = 1e-9 * (box[1] - box[0])  # a component at a bound may be off it by rounding
    loose = (x > box[0] + margin) & (x < box[1] - margin) & (a != 0)
    if not loose.any():
        return
    surest = np.argmax(np.where(loose, np.abs(a), 0.0))
    nu = -slope[surest] / a[surest]
    rest = slope + nu * a
    step = np.clip(x - rest / w, *box) - x  # where one component alone would go
    assert np.all(np.abs(step) <= margin)


def test_equal_costs_without_curvature_share_what_is_needed_and_stay_near_p() -> None:
    d = 6
    box = np.stack([np.zeros(d), np.ones(d)])
    p = np.array([0.5, 0.5, 0.5, 0.0, 0.0, 1.0])
    cost = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 0.5])
    x = searched(p, cost, np.zeros(d), box, [(np.ones(d), 2.5, 2.5, 0.0)])
    assert x.sum() == pytest.approx(2.5, abs=1e-14)
    np.testing.assert_allclose(x, [0.5, 0.5, 0.5, 0.0, 0.0, 1.0], atol=1e-6)
    x = searched(p, cost, np.zeros(d), box, [(np.ones(d), 3.0, 3.0, 0.0)])
    assert x.sum() == pytest.approx(3.0, abs=1e-14)
    assert x[4] == 0.0
    assert x[5] == 1.0


def test_a_need_that_takes_the_whole_window_is_met_exactly() -> None:
    box = np.stack([np.zeros(5), np.array([0.1, 0.2, 0.3, 0.0, 0.7])])
    need = float(box[1].sum())
    x = searched(np.zeros(5), np.ones(5), np.ones(5), box, [(np.ones(5), need, need, 0.0)])
    np.testing.assert_array_equal(x, box[1])


def test_a_slope_that_is_no_number_ends_the_search_and_says_so() -> None:
    box = np.stack([np.zeros(3), np.ones(3)])
    slope = np.array([1.0, np.nan, 2.0])
    x = searched(np.zeros(3), slope, np.ones(3), box, [(np.ones(3), 1.0, 1.0, 0.0)])
    assert np.isnan(x).any()


def test_a_square_without_weight_asks_for_nothing() -> None:
    box = np.stack([np.zeros(3), np.ones(3)])
    give = softness(0.0)
    x = searched(np.zeros(3), -np.ones(3) / 2, np.ones(3), box, [(np.ones(3), 3.0, 3.0, give)])
    np.testing.assert_allclose(x, 0.5, atol=1e-12)

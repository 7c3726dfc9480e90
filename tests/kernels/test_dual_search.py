"""Separable quadratics over a box and rows: against Clarabel, at ties, and to the same bits."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_builds import compiled

from sottovoce.kernels import variant

cp: Any = cvxpy  # it has no types

VECTORS, NUMBERS = 9, 3  # of an agent, d numbers each; and of each of its rows, after these
POINT, GRADIENT, CURVATURE, PULL, LOWER, UPPER, RESULT, ROW, OTHER = range(9)

Row = tuple[Any, float, float, float]
"""a, least, most, give."""


def run(build: str, d: int, rows: int, data: Any) -> None:
    kernels, outputs = variant.build(build), list(range(d, 4 * d))
    for order, first in enumerate((ROW * d, OTHER * d)):
        numbers = VECTORS * d + order * NUMBERS
        outputs += [*range(first, first + d), *range(numbers, numbers + NUMBERS)]
    work = np.zeros(kernels.search_rows(d) * 16)
    kernels.run_search(d, rows, data, np.array(outputs, dtype=np.int32), work)


def searched(p: Any, g: Any, w: Any, box: Any, rows: list[Row]) -> Any:
    d = len(p)
    work = np.zeros((VECTORS * d + 2 * NUMBERS, 16))
    vectors = {POINT: p, GRADIENT: g, CURVATURE: w, LOWER: box[0], UPPER: box[1]}
    for order, (a, *numbers) in enumerate(rows):
        vectors[(ROW, OTHER)[order]] = a
        first = VECTORS * d + order * NUMBERS
        work[first : first + 3] = np.array(numbers)[:, None]
    for which, values in vectors.items():
        work[which * d : (which + 1) * d] = np.asarray(values, dtype=float)[:, None]
    flat = work.ravel()
    with np.errstate(all="ignore"):
        run(variant.variant(), d, len(rows), flat)
    return flat.reshape(-1, 16)[RESULT * d : (RESULT + 1) * d, 0]


def block(d: int, seed: int) -> Any:
    """Sixteen agents' problems, ``[number, lane]``: equalities, intervals, penalties, flat ones."""
    rng = np.random.default_rng(seed)
    work = np.zeros((VECTORS * d + 2 * NUMBERS, 16))
    lower, upper = rng.uniform(-3, 0, (d, 16)), rng.uniform(0, 3, (d, 16))
    upper[0, 3] = lower[0, 3]
    work[:d] = lower + rng.uniform(0, 1, (d, 16)) * (upper - lower)
    work[d : 2 * d] = rng.normal(size=(d, 16)) * 3
    work[2 * d : 3 * d] = np.where(rng.random((d, 16)) < 0.3, 0.0, rng.uniform(0, 2, (d, 16)))
    work[LOWER * d : UPPER * d], work[UPPER * d : RESULT * d] = lower, upper
    for order, factors in enumerate((ROW * d, OTHER * d)):
        a = rng.normal(size=(d, 16))
        work[factors : factors + d] = a
        inside = (a * (lower + rng.uniform(0, 1, (d, 16)) * (upper - lower))).sum(axis=0)
        at = VECTORS * d + order * NUMBERS
        work[at] = inside - np.where(np.arange(16) % 3 == 0, 0.2, 0.0)
        work[at + 1] = inside + np.where(np.arange(16) % 3 == 0, 0.2, 0.0)
        work[at + 2] = np.where(np.arange(16) % 3 == 1, 0.5, 0.0)
    return work


@compiled
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_compiled_lanes_have_the_bits_of_plain_ones(build: str, rows: int) -> None:
    for d, seed in ((1, 0), (2, 1), (4, 2)):
        flat = block(d, seed).ravel()
        plain = flat.copy()
        run(build, d, rows, flat)
        with np.errstate(all="ignore"):
            run("plain", d, rows, plain)
        result = slice(RESULT * d * 16, (RESULT + 1) * d * 16)
        assert flat[result].tobytes() == plain[result].tobytes(), d


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

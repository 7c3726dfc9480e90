"""Quadratic forms as squares of sums: exact, or rounded so that nothing outside gets in."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import definiteness, ldl, quadratic_form
from sottovoce.formula.expression import Expression, number, symbol
from sottovoce.formula.functions import exp
from sottovoce.problem.quadratic import Squares, sum_of_squares

A, B, C = (symbol(name) for name in "abc")


def form(Q: Any, q: Any, c: float) -> tuple[Expression, tuple[Expression, ...]]:
    x = tuple(symbol(f"x{i + 1}") for i in range(len(q)))
    v: Any = np.array(x, dtype=object)
    total: Any = number(c)
    for row, w, s in zip(Q.tolist(), q.tolist(), x, strict=True):
        total = total + w * s + sum(a * t * s for a, t in zip(row, v, strict=True))
    return canonical(total), x


def excess(found: Squares, g: Expression) -> list[list[Fraction]]:
    """The bordered matrix of what the squares have more than the form, in exact arithmetic."""
    stated = quadratic_form(g)
    assert stated is not None
    place = {s: i for i, s in enumerate(stated.symbols)}
    left = [[-entry for entry in row] for row in stated.bordered]

    def add(matrix: Any, symbols: Any, scale: Fraction = Fraction(1)) -> None:
        places = [*(place[s] for s in symbols), len(place)]
        for i, row in zip(places, matrix, strict=True):
            for j, entry in zip(places, row, strict=True):
                left[i][j] += scale * entry

    for w, u, m in zip(found.weights, found.sums, found.centres, strict=True):
        read = quadratic_form(u)
        assert read is not None
        assert not any(map(any, read.quadratic))
        full = [*read.linear, -m]
        add([[a * b for b in full] for a in full], read.symbols, w)
    if found.rest.symbols:
        read = quadratic_form(found.rest)
        assert read is not None
        add(read.bordered, read.symbols)
    left[-1][-1] += found.constant
    return left


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_squares_are_never_below_the_form_and_hardly_above(seed: int, floats: bool) -> None:
    rng = np.random.default_rng(seed)
    n, rank = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    half = rng.normal(size=(rank, n)) if floats else rng.integers(-3, 4, (rank, n))
    Q = half.T @ half + np.diag(rng.integers(0, 3, n))
    g, x = form(Q, rng.integers(-3, 4, n), -5.0)
    found = sum_of_squares(g, {s: str(i // 2) for i, s in enumerate(x)})
    if found is None:
        # float64 may have pushed a semidefinite form over the edge.
        assert floats or not any(s in g.symbols for s in x) or not np.any(Q)
        return
    more = excess(found, g)
    assert definiteness(more) >= 0
    size = float(np.abs(Q).sum()) + 5.0
    assert max(abs(float(entry)) for row in more for entry in row) <= 1e-8 * size
    assert all(w > 0 for w in found.weights)


def test_the_exact_way_is_exact() -> None:
    g = canonical(3 * A**2 - 2 * A * B + B**2 + A - C - 7)
    found = sum_of_squares(g, {A: "a", B: "b", C: "c"})
    assert found is not None
    assert not any(entry for row in excess(found, g) for entry in row)


def test_a_form_that_is_not_semidefinite_has_no_squares() -> None:
    owners = {A: "a", B: "b"}
    assert sum_of_squares(canonical(A * B), owners) is None
    assert sum_of_squares(canonical(A**2 - B**2 + A * B), owners) is None


@pytest.mark.parametrize("g", [exp(A) * B, A**2 * B, (A * B) ** 0.5])
def test_what_is_no_form_is_left_alone(g: Any) -> None:
    assert quadratic_form(canonical(g)) is None
    assert sum_of_squares(canonical(g), {A: "a", B: "b"}) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_factorisation_is_exact_and_tells_semidefinite_from_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    half = rng.integers(-2, 3, (int(rng.integers(1, 5)), n))
    Q = [[Fraction(int(v)) for v in row] for row in half.T @ half]
    found = ldl(Q)
    assert found is not None
    pairs = list(zip(*found, strict=True))
    assert [[sum(w * v[i] * v[j] for v, w in pairs) for j in range(n)] for i in range(n)] == Q
    shift = 1 + max(map(max, Q))
    lowered = [[e - shift * (i == j) for j, e in enumerate(row)] for i, row in enumerate(Q)]
    assert ldl(lowered) is None


def test_a_form_over_two_dozen_agents_takes_seconds_at_most() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(24, 24))
    g, x = form(half.T @ half / 24, np.zeros(24), -9.0)
    begin = time.process_time()
    assert sum_of_squares(g, {s: s.name for s in x}) is not None
    assert time.process_time() - begin < 10.0

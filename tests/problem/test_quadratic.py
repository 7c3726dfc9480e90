"""Quadratic forms as squares of sums: exact, or rounded so that nothing outside gets in."""

from __future__ import annotations

import time

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.problem.quadratic import Squares, ldl, quadratic_form, squares


def form(Q: np.ndarray, q: np.ndarray, c: float) -> tuple[sp.Expr, tuple[sp.Symbol, ...]]:
    x = sp.symbols(f"x1:{len(q) + 1}")
    v = sp.Matrix(x)
    return sp.expand((v.T * sp.Matrix(Q) * v)[0] + (sp.Matrix(q).T * v)[0]) + c, x


def rebuilt(found: Squares) -> sp.Expr:
    terms = zip(found.weights, found.sums, found.centres, strict=True)
    return sp.expand(sp.Add(found.rest, found.constant, *(w * (u - m) ** 2 for w, u, m in terms)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_squares_are_never_below_the_form_and_hardly_above(seed: int, floats: bool) -> None:
    rng = np.random.default_rng(seed)
    n, rank = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    half = rng.normal(size=(rank, n)) if floats else rng.integers(-3, 4, (rank, n))
    Q = half.T @ half + np.diag(rng.integers(0, 3, n))
    g, x = form(Q, rng.integers(-3, 4, n), -5.0)
    found = squares(g, {s: str(i // 2) for i, s in enumerate(x)})
    if found is None:
        # float64 may have pushed a semidefinite form over the edge.
        assert floats or not any(s in g.free_symbols for s in x) or not np.any(Q)
        return
    exact = {f: sp.Rational(f) for f in g.atoms(sp.Float)}
    excess = sp.lambdify([x], sp.expand(rebuilt(found) - g.xreplace(exact)))
    for point in rng.uniform(-10, 10, (20, n)):
        size = float(np.abs(Q).sum()) * 100
        assert -1e-12 * size <= float(excess(point)) <= 1e-8 * size
    assert all(w.is_positive for w in found.weights)


def test_the_exact_way_is_exact() -> None:
    a, b, c = sp.symbols("a b c")
    g = 3 * a**2 - 2 * a * b + b**2 + a - c - 7
    found = squares(g, {a: "a", b: "b", c: "c"})
    assert found is not None
    assert rebuilt(found) == sp.expand(g)


def test_a_form_that_is_not_semidefinite_has_no_squares() -> None:
    a, b = sp.symbols("a b")
    assert squares(a * b, {a: "a", b: "b"}) is None
    assert squares(a**2 - b**2 + a * b, {a: "a", b: "b"}) is None


@pytest.mark.parametrize("formula", ["exp", "cubic", "root"])
def test_what_is_no_form_is_left_alone(formula: str) -> None:
    a, b = sp.symbols("a b")
    g = {"exp": sp.exp(a) * b, "cubic": a**2 * b, "root": sp.sqrt(2) * a * b}[formula]
    assert quadratic_form(g) is None
    assert squares(g, {a: "a", b: "b"}) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_factorisation_is_exact_and_tells_semidefinite_from_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    half = rng.integers(-2, 3, (int(rng.integers(1, 5)), n))
    Q = sp.Matrix((half.T @ half).tolist())
    found = ldl(Q)
    assert found is not None
    assert sum((w * v * v.T for v, w in zip(*found, strict=True)), sp.zeros(n)) == Q
    lowered = Q - sp.eye(n) * (1 + max(Q))
    assert ldl(lowered) is None


def test_a_form_over_two_dozen_agents_takes_seconds_at_most() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(24, 24))
    g, x = form(half.T @ half / 24, np.zeros(24), -9.0)
    begin = time.process_time()
    assert squares(g, {s: s.name for s in x}) is not None
    assert time.process_time() - begin < 10.0

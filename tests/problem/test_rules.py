"""What the rules call convex is convex, and what they refuse they refuse with a reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.problem import kinks
from sottovoce.problem.expressions import check_expression
from sottovoce.problem.rules import Rules

X, Y, P = sp.symbols("x y p")
BOX = {X: (-2.0, 1.5), Y: (0.5, 3.0), P: (0.5, 2.0)}
VALUES = {P: np.array([0.5, 1.25, 2.0])}


def ruled(expr: Any) -> Any:
    return Rules([X, Y], BOX, VALUES).of(check_expression(expr, [X, Y, P], ""))


def formulas() -> st.SearchStrategy[Any]:
    leaves = st.sampled_from([X, Y, X - 2 * Y + 1, 1 - X, P * X, Y - P, sp.Integer(2)])

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
            st.tuples(inner, st.sampled_from([2, -1, P, -P])).map(lambda t: t[0] * t[1]),
            st.tuples(inner, inner).map(lambda t: t[0] ** 2 / (t[1] + 8)),
            st.tuples(inner, inner).map(lambda t: (t[0] + 8) * sv.log((t[0] + 8) / (t[1] + 8))),
            st.tuples(inner, inner).map(lambda t: sv.sqrt((t[0] + 8) * (t[1] + 8))),
            st.tuples(inner, inner).map(lambda t: sv.maximum(*t)),
            st.tuples(inner, inner).map(lambda t: sv.norm(*t)),
            inner.map(abs),
            inner.map(lambda e: e**2),
            inner.map(lambda e: e**3),
            inner.map(lambda e: sv.huber(e, 1)),
            inner.map(lambda e: sv.exp(e / 4)),
        )

    return st.recursive(leaves, grown, max_leaves=4)


@settings(max_examples=40, deadline=None)
@given(formulas(), st.integers(0, 10**6))
def test_what_is_called_convex_lies_below_its_chords(expr: Any, seed: int) -> None:
    found = ruled(expr)
    if found.bend is None:
        assert "got" in found.why
        return
    value = sp.lambdify([X, Y, P], check_expression(expr, [X, Y, P], ""), [kinks.NUMPY, "numpy"])
    rng = np.random.default_rng(seed)
    low, high = (np.array([BOX[s][k] for s in (X, Y)]) for k in (0, 1))
    a, b = low + rng.random((2, 30, 2)) * (high - low)
    for p in VALUES[P]:
        ends = [np.broadcast_to(value(*q.T, p), (30,)) for q in (a, b, (a + b) / 2)]
        bulge = ends[2] - (ends[0] + ends[1]) / 2
        slack = 1e-9 * (1 + np.max(np.abs(ends)))
        assert found.bend == "concave" or np.all(bulge <= slack)
        assert found.bend == "convex" or np.all(bulge >= -slack)


@pytest.mark.parametrize(
    ("expr", "bend"),
    [
        (Y**3 + 1 / Y, "convex"),  # by the sign of y in its box
        (-sv.sqrt(Y), "convex"),
        (P * X**2 + X * Y / 4 + P * Y**2, "convex"),  # by its matrix, for every value of p
        ((P - 3) * X**2, "concave"),
        (sv.minimum(X, Y), "concave"),
        (P * X + Y, "affine"),
        (X**2 / (Y + P), "convex"),  # a square over something positive
        ((X + 3) ** 3 / Y**2, "convex"),
        (X**2 / Y - Y**0.5, "convex"),
        ((Y + 1) * sv.log(2 * Y + 2) - X, "convex"),
        (Y * sv.log(Y / (X + 3)), "convex"),
        (sv.sqrt(P * Y * (X + 3)), "concave"),
        (Y**0.25 * (X + 3) ** 0.5, "concave"),
    ],
)
def test_signs_parameters_and_matrices_count(expr: Any, bend: str) -> None:
    assert ruled(expr).bend == bend


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        (X * Y, "positive semidefinite matrix"),
        (X**3, r"bend one way over the box, got x\*\*3 with x in \[-2, 1.5\]"),
        ((P - 1) * X**2 + sv.exp(X), "a coefficient of a curved term must have one sign"),
        (sv.log(X**2 + 1), "log takes an affine or concave formula, got x"),
        (X**2 / (Y - 1), "a product must have one factor that names the state"),
        (X / Y, "a product must have one factor that names the state"),
        (X * sv.log(Y), "a product must have one factor that names the state"),
        (sv.sqrt(Y * (X + 1)), "positive semidefinite matrix"),
        (X * sv.exp(Y), "a product must have one factor that names the state"),
        (abs(X**2 - 1), "abs takes affine formulas, got x"),
    ],
)
def test_a_refusal_names_the_rule(expr: Any, why: str) -> None:
    found = ruled(expr)
    assert found.bend is None
    assert re.search(why, found.why)

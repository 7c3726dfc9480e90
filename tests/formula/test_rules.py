"""What the rules call convex is convex, and what they refuse they refuse with a reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_formulas import OURS, any_formula, ours

import sottovoce as sv
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical, positive_by_form
from sottovoce.formula.curvature import ConvexityRules, Curvature, curvature
from sottovoce.formula.enclosure import value_range
from sottovoce.formula.expression import nodes, number, symbol
from sottovoce.formula.signs import BoxSigns
from sottovoce.formula.tape import tape

X, Y, Z, P = (symbol(name) for name in ["x", "y", "z", "p"])
BOX = {X: (-2.0, 1.5), Y: (0.5, 3.0), P: (0.5, 2.0)}
VALUES = {P: np.array([0.5, 1.25, 2.0])}


def ruled(expr: Any) -> Curvature:
    return ConvexityRules([X, Y], BoxSigns(BOX, VALUES)).curvature(canonical(expr + number(0)))


def of_form(expr: Any) -> Curvature:
    return curvature(canonical(expr + number(0)))


# --- by form alone --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (number(3), "affine"),
        (2**0.5 * X - np.pi * Y + 1, "affine"),
        (2**0.5 * (X + Y), "affine"),
        (X**2, "convex"),
        (-(X**2) - sv.exp(Y), "concave"),
        (X**2.0, "convex"),
        (X**3, None),
        (X**3.0, None),
        (sv.sqrt(X), "concave"),
        (-sv.sqrt(X + Y), "convex"),
        (X**1.5, "convex"),
        ((X**2 - 1) ** 1.5, None),
        (X**-0.5, "convex"),
        (1 / X, None),
        (1 / X**2, None),
        (X * Y, None),
        (X**2 + X * Y + Y**2, "convex"),
        (X**2 + 2 * X * Y + Y**2, "convex"),
        (X**2 + 3 * X * Y + Y**2, None),
        (sv.exp(Z) + 0.5 * X**2 + 0.9 * X * Y + 0.5 * Y**2, "convex"),
        (sv.exp(X**2 - Y), "convex"),
        (sv.exp(-(X**2)), None),
        (sv.log(X + Y), "concave"),
        (sv.log(sv.exp(X) + sv.exp(Y - Z) + 1), "convex"),
        (sv.log(sv.exp(X) - sv.exp(Y)), None),
        (sv.sqrt(1 + X**2 + (X - Y) ** 2), "convex"),
        (sv.sqrt(1 + 2 * X + X**2 + Y**2), "convex"),
        (sv.sqrt(X**2 - 1), None),
        (sv.sqrt(X**2 + 2 * X), None),
        ((X**2 + Y**2) ** 2, "convex"),
        ((X**2 - 1) ** 2, None),
        ((1 + sv.exp(X)) ** 3, "convex"),
        (X**2 - Y**2, None),
        (X**2 * Y**2, None),
    ],
)
def test_the_curvature_is_what_the_form_shows(formula: Any, expected: str | None) -> None:
    assert of_form(formula).kind == expected


def form(recipe: Any) -> Any:
    try:
        return canonical(ours(recipe))
    except ProblemError:
        return None


@settings(max_examples=250, deadline=None)
@given(any_formula, st.integers(0, 10**6))
def test_no_segment_contradicts_a_curvature_or_a_sign(recipe: Any, seed: int) -> None:
    expr = form(recipe)
    if expr is None:
        return
    ends = np.random.default_rng(seed).uniform(-2, 2, (2, len(OURS), 15))
    parts = tape(nodes((expr,)), OURS.values())  # the formula comes last
    values = np.array([parts.arrays(list(p), (15,)) for p in (*ends, ends.mean(axis=0))])
    known = np.isfinite(values).all(axis=(0, 1))  # a maximum has a value where a piece has none
    low, high, middle = values[:, -1, known]
    slack = 1e-9 * (1 + abs(low) + abs(high) + abs(middle))
    bulge, proven = 2 * middle - low - high, curvature(expr)
    assert not (positive_by_form(expr, strict=False) and np.any(values[:, -1, known] < 0))
    assert not proven.is_convex or np.all(bulge <= slack)
    assert not proven.is_concave or np.all(bulge >= -slack)


# --- on a box -------------------------------------------------------------------------------------


def formulas() -> st.SearchStrategy[Any]:
    leaves = st.sampled_from([X, Y, X - 2 * Y + 1, 1 - X, P * X, Y - P, number(2)])

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


def sampled(expr: Any, seed: int) -> Any:
    """Values at both ends and in the middle of some segments, for every parameter."""
    rng = np.random.default_rng(seed)
    low, high = (np.array([[BOX[s][k]] for s in (X, Y)]) for k in (0, 1))
    a, b = low + rng.random((2, 2, 30)) * (high - low)
    value = tape([canonical(expr)], [X, Y, P])
    return np.array(
        [[value.arrays([*q, p], (30,))[0] for q in (a, b, (a + b) / 2)] for p in VALUES[P]]
    )


@settings(max_examples=100, deadline=None)
@given(formulas(), st.integers(0, 10**6))
def test_values_lie_in_the_range_and_below_chords_of_what_is_convex(expr: Any, seed: int) -> None:
    values = sampled(expr, seed)
    slack = 1e-9 * (1 + np.max(np.abs(values)))
    low, high = value_range(canonical(expr), BOX)
    assert low - slack <= values.min()
    assert values.max() <= high + slack
    proven = ruled(expr)
    assert proven.kind is not None or "got" in proven.why
    bulge = values[:, 2] - (values[:, 0] + values[:, 1]) / 2
    assert not proven.is_convex or np.all(bulge <= slack)
    assert not proven.is_concave or np.all(bulge >= -slack)


@pytest.mark.parametrize(
    ("expr", "kind"),
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
def test_signs_parameters_and_matrices_count(expr: Any, kind: str) -> None:
    assert ruled(expr).kind == kind


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
        (sv.exp(Y) - sv.exp(X), r"a sum must add convex terms only, got -exp\(x\), which is"),
    ],
)
def test_a_refusal_names_the_rule(expr: Any, why: str) -> None:
    proven = ruled(expr)
    assert proven.kind is None
    assert re.search(why, proven.why)


@pytest.mark.parametrize(
    ("expr", "strict"),
    [
        (X**2 + Y, {X}),
        (X**2 + X * Y + Y**2, {X, Y}),
        ((X + Y) ** 2, set()),
        (sv.exp(X) + sv.exp(-Y), {X, Y}),
        (sv.maximum(X**2 + Y**2, X**2), {X}),
        (P * X**4, {X}),
    ],
)
def test_strict_variables_are_those_in_which_it_curves(expr: Any, strict: Any) -> None:
    assert ruled(expr).convex == strict

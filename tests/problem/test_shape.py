"""What a formula's form tells of its shape: never more than is true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.problem.shape import never_negative, shape

x, y, z = sp.symbols("x y z")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (sp.Integer(3), "affine"),
        (sp.sqrt(2) * x - sp.pi * y + 1, "affine"),
        (sp.sqrt(2) * (x + y), "affine"),
        (x**2, "convex"),
        (-(x**2) - sp.exp(y), "concave"),
        (x**2.0, "convex"),
        (x**3, None),
        (x**3.0, None),
        (sp.sqrt(x), "concave"),
        (-sp.sqrt(x + y), "convex"),
        (x ** sp.Rational(3, 2), "convex"),
        (x ** sp.Rational(-1, 2), "convex"),
        (1 / x, None),
        (1 / x**2, None),
        (x * y, None),
        (x**2 + x * y + y**2, "convex"),
        (x**2 + 2 * x * y + y**2, "convex"),
        (x**2 + 3 * x * y + y**2, None),
        (sp.exp(z) + 0.5 * x**2 + 0.9 * x * y + 0.5 * y**2, "convex"),
        (sp.exp(x**2 - y), "convex"),
        (sp.exp(-(x**2)), None),
        (sp.log(x + y), "concave"),
        (sp.log(sp.exp(x) + sp.exp(y - z) + 1), "convex"),
        (sp.log(sp.exp(x) - sp.exp(y)), None),
        (sp.sqrt(1 + x**2 + (x - y) ** 2), "convex"),
        (sp.sqrt(1 + 2 * x + x**2 + y**2), "convex"),
        (sp.sqrt(x**2 - 1), None),
        (sp.sqrt(x**2 + 2 * x), None),
        ((x**2 + y**2) ** 2, "convex"),
        ((x**2 - 1) ** 2, None),
        ((1 + sp.exp(x)) ** 3, "convex"),
        (x**2 - y**2, None),
        (x**2 * y**2, None),
    ],
)
def test_the_shape_is_what_the_form_shows(formula: sp.Expr, expected: str | None) -> None:
    assert shape(formula) == expected


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3) -> sp.Expr:
    """Anything the language has, convex or not, of two symbols."""
    if depth == 0:
        return draw(st.sampled_from([x, y, x - y, 2 * x + 1, sp.Rational(1, 2) - y]))
    smaller = formulas(depth=depth - 1)
    kind = draw(st.sampled_from(["add", "scale", "multiply", "power", "exp", "log", "leaf"]))
    one = draw(smaller)
    if kind == "add":
        return one + draw(smaller)
    if kind == "scale":
        return draw(st.sampled_from([-2, -1, sp.Rational(1, 2), sp.sqrt(3), 0.7])) * one
    if kind == "multiply":
        return one * draw(smaller)
    if kind == "power":
        return one ** draw(st.sampled_from([2, 3, 4, -1, 2.0, 3.0, 0.5, 1.5, -0.5]))
    if kind in ("exp", "log"):
        return {"exp": sp.exp, "log": sp.log}[kind](one)
    return one


@settings(max_examples=250, deadline=None)
@given(formulas(), st.integers(0, 10**6))
def test_no_segment_contradicts_a_shape(formula: sp.Expr, seed: int) -> None:
    found = shape(formula)
    if found is None or formula.has(sp.zoo, sp.nan, sp.I, sp.oo):
        return
    value: Any = sp.lambdify([x, y], formula, modules="numpy")
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        for u, v in rng.uniform(-2, 2, (15, 2, 2)):
            low, high, middle = (np.float64(value(*p)) for p in (u, v, (u + v) / 2))
            if not np.all(np.isfinite([low, high, middle])):
                continue
            slack = 1e-9 * (1 + abs(low) + abs(high) + abs(middle))
            if found in ("affine", "convex"):
                assert 2 * middle <= low + high + slack
            if found in ("affine", "concave"):
                assert 2 * middle >= low + high - slack


@settings(max_examples=150, deadline=None)
@given(formulas(), st.integers(0, 10**6))
def test_what_is_said_never_to_be_negative_is_not(formula: sp.Expr, seed: int) -> None:
    if not never_negative(formula) or formula.has(sp.zoo, sp.nan, sp.I, sp.oo):
        return
    value: Any = sp.lambdify([x, y], formula, modules="numpy")
    with np.errstate(all="ignore"):
        found = [np.float64(value(*p)) for p in np.random.default_rng(seed).uniform(-2, 2, (20, 2))]
    assert not any(v < 0 for v in found)

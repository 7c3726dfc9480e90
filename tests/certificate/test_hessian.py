"""Enclosed second derivatives, and exact signs of polynomials with SymPy as the oracle."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from formula_values import evaluate
from random_expressions import symbols
from sottovoce.certificate.hessian import (
    Hessian,
    ProofRegion,
    bounded_below,
    bounded_on,
    nonnegative_polynomial,
    polynomial,
    sample_points,
)
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import hessian as second_derivatives
from sottovoce.formula.expression import Expression, exactly, number, symbol
from sottovoce.formula.functions import exp, log, sqrt

x, y, z, c = map(symbol, "xyzc")
S = sp.Symbol("x")


def region(*variables: Expression, **bounds: Any) -> ProofRegion:
    lower = {symbol(s): np.atleast_1d(np.float64(b[0])) for s, b in bounds.items()}
    upper = {symbol(s): np.atleast_1d(np.float64(b[1])) for s, b in bounds.items()}
    return ProofRegion(variables=variables, lower=lower, upper=upper)


def test_signs_are_proven_by_subdivision_and_never_beyond_the_truth() -> None:
    box = region(x, x=(0.0, 2.0))
    assert bounded_below(canonical(x**2 - 2 * x + Fraction(101, 100)), box, strict=True)
    assert not bounded_below(canonical(x**2 - 2 * x + Fraction(99, 100)), box, strict=False)
    assert bounded_below(x, box, strict=False)
    assert not bounded_below(x, box, strict=True)


def test_an_undefined_formula_has_no_sign_and_no_bound() -> None:
    box = region(x, x=(0.0, 1.0))
    pole, root = canonical(1 / x), canonical(sqrt(x))
    assert not bounded_below(pole, box, strict=True)
    assert not bounded_on(pole, box)
    assert not bounded_on(canonical(log(x)), box)
    assert bounded_on(root, box)
    assert bounded_on(canonical(1 / (x**2 - x + 1)), box)
    assert not bounded_on(root, region(x, x=(-1.0, 1.0)))
    assert not bounded_below(canonical(sqrt(x) + 1), region(x, x=(-1.0, 1.0)), strict=True)


@pytest.mark.parametrize(("top", "proven"), [(1.99, True), (2.01, False)])
def test_interval_hessians_are_definite_exactly_as_long_as_every_member_is(
    top: float, proven: bool
) -> None:
    # 2 c is the coupling of x and y; the matrix [[2, c], [c, 2]] is definite for |c| < 2.
    box = region(x, y, x=(-1.0, 1.0), y=(-1.0, 1.0), c=(1.0, top))
    found = Hessian(canonical(x**2 + c * x * y + y**2), box).definite(budget=20_000)
    assert found == (frozenset({x, y}) if proven else None)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=3, max_size=3),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_what_is_proven_definite_is_so_at_every_sampled_point(
    rows: list[list[int]], scale: float
) -> None:
    a, v = np.array(rows), [scale * x, y, z]
    form = (a.T @ a - np.eye(3)).tolist()
    f = exp(v[0] + y) / 4 + v[0] ** 2 * z
    f = canonical(f + sum(form[i][j] * v[i] * v[j] for i in range(3) for j in range(3)))
    box = region(x, y, z, x=(-1 / scale, 1 / scale), y=(-1.0, 1.0), z=(-1.0, 1.0))
    hessian = Hessian(f, box)
    proven, found = hessian.definite(budget=500), hessian.negative_direction()
    assert proven is None or found is None
    entries = second_derivatives(f, (x, y, z))
    unit = np.diag([1 / scale, 1.0, 1.0])

    def least(*point: float) -> float:
        here = dict(zip((x, y, z), point, strict=True))
        value = np.zeros((3, 3))
        for (s, t), entry in entries.items():
            i, j = ("xyz".index(name) for name in (s.name, t.name))
            value[i, j] = value[j, i] = evaluate(entry, here)
        return float(np.linalg.eigvalsh(unit @ value @ unit)[0])

    if proven is not None:
        assert min(least(*point) for point in sample_points(box, [x, y, z])[0][::8]) > -1e-9
    if found is not None:
        assert least(*(found[0][s] for s in (x, y, z))) < 1e-9


def test_large_sparse_hessians_are_proven_row_by_row() -> None:
    chain = symbols("s", 24)
    squares = sum(a**2 * b**2 for a, b in pairwise(chain))
    f = canonical(number(0) + sum(s**4 + s**2 for s in chain) + squares / 10)
    box = region(*chain, **{s.name: (-1.0, 1.0) for s in chain})
    assert Hessian(f, box).definite(budget=2000) == frozenset(chain)
    assert Hessian(canonical(f - 2 * chain[3] ** 2), box).definite(budget=2000) is None


def test_sample_points_belong_to_agents_and_include_their_extremes() -> None:
    lower, upper = np.array([0.0, 5.0, -7.0]), np.array([1.0, 5.0, -6.0])
    box = region(x, x=(lower, upper), c=([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]))
    points, free = sample_points(box, [c, x])
    agents = points[:, 0].astype(int) - 1
    assert set(agents) == {0, 1, 2}
    assert np.all((points[:, 1] >= lower[agents]) & (points[:, 1] <= upper[agents]))
    assert {-7.0, 0.0, 1.0} <= set(points[:, 1])
    assert not free[:, 0].any()
    assert np.array_equal(free[:, 1], agents != 1)
    assert np.array_equal(points, sample_points(box, [c, x])[0])


def coefficients(poly: Any) -> list[Fraction]:
    return [Fraction(int(c.p), int(c.q)) for c in reversed(poly.all_coeffs())]


ROOTS = st.lists(st.fractions(-2, 2, max_denominator=5), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(roots=ROOTS, doubled=st.booleans(), sign=st.sampled_from([1, -1]))
def test_a_polynomial_is_nonnegative_if_and_only_if_no_sampled_value_is_negative(
    roots: list[Fraction], doubled: bool, sign: int
) -> None:
    poly = sp.Poly(sign, S)
    for r in roots:
        poly *= sp.Poly(S - sp.Rational(r), S) ** (2 if doubled else 1)
    # Roots are multiples of 1/60 apart at least, so a finer grid meets every interval of signs.
    grid = [sp.Rational(k, 128) for k in range(-128, 129)]
    expected = all(poly.eval(t) >= 0 for t in grid)
    assert nonnegative_polynomial(coefficients(poly), -1.0, 1.0) == expected


def test_a_polynomial_that_dips_below_zero_between_two_close_roots_is_not_nonnegative() -> None:
    third, gap = Fraction(1, 3), Fraction(1, 10**20)

    def judged(expr: Any) -> bool:
        with exactly():
            p = polynomial(canonical(expr), x)
        assert p is not None
        return nonnegative_polynomial(p, 0.0, 1.0)

    assert not judged((x - third) * (x - third - gap))
    assert judged((x - third) ** 2)
    assert judged(x * (1 - x))
    assert judged(x - x)


@pytest.mark.parametrize("expr", [exp(x), x**0.5, x**-1, x * symbol("y")])
def test_other_formulas_are_no_polynomials(expr: Any) -> None:
    assert polynomial(canonical(expr), x) is None

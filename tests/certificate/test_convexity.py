"""Proofs of convexity and smoothness, and the points where they fail."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formula_values import evaluate
from random_expressions import precise, symbols
from sottovoce.certificate import convexity as module
from sottovoce.certificate.convexity import Judgement
from sottovoce.certificate.hessian import (
    Hessian,
    ProofRegion,
    nonnegative_polynomial,
    polynomial,
    sample_points,
)
from sottovoce.errors import InputError
from sottovoce.formula.canonical import canonical, expand
from sottovoce.formula.derive import hessian as second_derivatives
from sottovoce.formula.expression import Expression, exact_arithmetic, number, symbol
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.order import in_order
from sympy_oracle import sympy_of, sympy_symbol

X = symbols("x", 7)
x, y, z, p, q = map(symbol, "xyzpq")
WIDE = dict.fromkeys(X, (-10.0, 10.0))
POSITIVE = {x: (0.1, 3.0), y: (0.2, 4.0), z: (0.1, 1.0)}
Box = Mapping[Expression, tuple[float, float]]
mpmath.mp.dps = 50


def curvature(expr: Any, box: Any, **settings: Any) -> Judgement:
    return module.convexity(canonical(expr), box, **settings)


def smoothness(expr: Any, box: Any, **settings: Any) -> Judgement:
    return module.smoothness(canonical(expr), box, **settings)


def bulge(f: Expression, points: list[dict[Expression, float]]) -> Any:
    """The largest ``f((a + b)/2) - (f(a) + f(b))/2`` over pairs of points, with 50 digits.

    A positive one proves that f is not convex.
    """
    held = [{s: mpmath.mpf(v) for s, v in point.items()} for point in points]
    values = [precise(f, point) for point in held]
    return max(
        precise(f, {s: (held[i][s] + held[j][s]) / 2 for s in held[i]})
        - (values[i] + values[j]) / 2
        for i, j in combinations(range(len(points)), 2)
    )


def expanded(expr: Any) -> Expression:
    return expand(canonical(expr))


PROVEN = [
    # formula, box, strictly convex
    ((x + 3) ** 6, {x: (-10.0, 10.0)}, True),
    (expanded((x - 1) ** 8), {x: (-10.0, 10.0)}, True),
    (x**3, {x: (0.0, 1.0)}, True),
    (-(x**3), {x: (-1.0, 0.0)}, True),
    (1 / x, {x: (0.001, 4e5)}, True),
    (-1 / x, {x: (-4.0, -0.5)}, True),
    (x**-2, {x: (-4.0, -0.5)}, True),
    (-log(x), {x: (1e-300, 1.0)}, True),
    (-sqrt(x), {x: (0.0, 1.0)}, True),
    (x**1.5, {x: (0.0, 1.0)}, True),
    (x * log(x), {x: (0.01, 9.0)}, True),
    (x * exp(x), {x: (-1.9, 1.0)}, True),
    (3 * x**2 - 2 * x * y + y**2, {x: (-9.0, 9.0), y: (-9.0, 9.0)}, True),
    ((X[0] + 10 * X[1]) ** 2, WIDE, False),
    (expanded((X[0] + 10 * X[1]) ** 2), WIDE, False),
    ((X[0] + 10 * X[1]) ** 2 + (X[0] - X[1]) ** 2 / 7, WIDE, True),
    (X[0] ** 2 + X[1], WIDE, False),
    (X[0] + X[1] + X[2] - 3, WIDE, False),
    (log(sum(exp(s) for s in X)), WIDE, False),
    (log(2 * exp(X[0]) + exp(X[1] ** 2 - X[2]) + 3), WIDE, False),
    (sqrt(1 + sum(s**2 for s in X)), WIDE, True),
    (sqrt(sum(s**2 for s in X)), WIDE, False),
    (sqrt(1 + (X[0] - X[1]) ** 2), WIDE, False),
    ((1 + X[0] ** 4 + X[1] ** 4) ** 0.25, WIDE, False),
    (sqrt(1 + X[0] ** 4), WIDE, True),
    (exp(X[0] + X[1]) + X[0] ** 2 + X[0] * X[1] + X[1] ** 2, WIDE, True),
    (X[0] ** 4 + X[0] ** 2 * X[1] ** 2 + X[1] ** 4 + X[0] ** 2 + X[1] ** 2, WIDE, True),
    (exp(x) / y, POSITIVE, True),
    (x**2 / y, POSITIVE, False),
    ((x**2 + y**2) / z, POSITIVE, False),
    (1 / (x * y), POSITIVE, True),
    (-log(x * y), POSITIVE, True),
    (-sqrt(x * y), POSITIVE, False),
    (-((x * y * z) ** 0.25), POSITIVE, False),
    (exp(x**2) + y**2.5, POSITIVE, True),
    (number(3), {}, False),
]


@pytest.mark.parametrize(("f", "box", "strict"), PROVEN, ids=[str(f)[:60] for f, _, _ in PROVEN])
def test_convex_formulas_are_proven_convex(f: Expression, box: Box, strict: bool) -> None:
    found = curvature(f, box)
    assert (found.status, found.strict, found.witness) == ("proven", strict, None)


NOT_CONVEX = [
    (X[0] * X[1], WIDE),
    (-(X[0] ** 2), WIDE),
    (x**3, {x: (-1.0, 1.0)}),
    (exp(-(x**2)), {x: (-1.0, 1.0)}),
    (log(1 + x**2), {x: (-2.0, 2.0)}),
    (sqrt(x**2 - 1), {x: (2.0, 3.0)}),
    (sqrt(x), {x: (0.0, 1.0)}),
    (x * log(x) - x**2, {x: (0.1, 1.0)}),
    (x / y, POSITIVE),
    (x**2 * y, POSITIVE),
    (y * exp(x), POSITIVE),
    (x**3 / y**2.5, POSITIVE),
    (sqrt(x * y), POSITIVE),
    ((x * y) ** 0.6, POSITIVE),
    (-((x * y) ** 0.6), POSITIVE),
    (1 / (1 + x**2), {x: (-1.0, 1.0)}),
    ((X[0] + 10 * X[1]) ** 2 - X[0] ** 2 / 10**9, WIDE),
    (sqrt(2 + (X[0] + X[1]) ** 2 - X[0] ** 2 / 101), WIDE),
    (log(exp(X[0]) + exp(X[1])) - X[0] ** 2 / 1000, WIDE),
]


@pytest.mark.parametrize(("f", "box"), NOT_CONVEX, ids=[str(f)[:60] for f, _ in NOT_CONVEX])
def test_witness_of_a_failure_violates_convexity_with_50_digits(f: Expression, box: Box) -> None:
    found = curvature(f, box)
    assert found.status == "fails"
    assert found.witness is not None
    states = in_order(canonical(f).symbols)
    assert all(box[s][0] <= found.witness[s] <= box[s][1] for s in states)
    at = {sympy_symbol(s): sp.Rational(found.witness[s]) for s in states}
    hessian = sp.hessian(sympy_of(canonical(f)), list(at)).xreplace(at)
    matrix = mpmath.matrix([[mpmath.mpf(sp.N(e, 50)) for e in row] for row in hessian.tolist()])
    assert min(mpmath.eigsy(matrix, eigvals_only=True)) < 0


def test_exact_arithmetic_decides_where_floats_cannot() -> None:
    tiny = Fraction(1, 10**60)
    barely = (X[0] + 3 * X[1]) ** 2 + tiny * X[0] ** 2
    not_quite = (X[0] + 3 * X[1]) ** 2 - tiny * X[0] ** 2
    assert curvature(barely, WIDE).strict
    found = curvature(not_quite, WIDE)
    assert (found.status, found.witness) == ("fails", {X[0]: 0.0, X[1]: 0.0})


def test_a_second_derivative_that_vanishes_unseen_is_not_strict() -> None:
    hidden = (x + 1) ** 4 - expanded((x + 1) ** 4) + x
    found = curvature(hidden, {x: (-1.0, 1.0)})
    assert (found.status, found.strict) == ("proven", False)


AFFINE = st.tuples(*[st.integers(-3, 3)] * 3).map(
    lambda c: canonical(c[0] * X[0] + c[1] * X[1] + c[2])
)
ATOMS = st.one_of(
    st.tuples(AFFINE, st.sampled_from([2, 4, 6])).map(lambda t: t[0] ** t[1]),
    AFFINE.map(lambda a: exp(a / 4)),
    st.tuples(AFFINE, AFFINE).map(lambda t: log(exp(t[0] / 4) + exp(t[1] / 4))),
    st.tuples(AFFINE, AFFINE).map(lambda t: sqrt(1 + t[0] ** 2 + t[1] ** 2)),
    st.tuples(AFFINE, AFFINE).map(lambda t: t[0] ** 2 / (20 + t[1])),
    AFFINE.map(lambda a: -log(20 + a)),
    AFFINE.map(lambda a: -((20 + a) ** Fraction(1, 3))),
    AFFINE.map(lambda a: 1 / (20 + a)),
    AFFINE.map(lambda a: expanded(a**2)),
)
SMALL = {X[0]: (-2.0, 2.5), X[1]: (-1.5, 3.0)}
SUMS = st.lists(st.tuples(st.integers(1, 9), ATOMS), min_size=1, max_size=3).map(
    lambda parts: canonical(sum((Fraction(c, 3) * atom for c, atom in parts), number(0)))
)
POINTS = st.tuples(*[st.floats(*bounds) for bounds in SMALL.values()]).map(
    lambda v: dict(zip(SMALL, v, strict=True))
)


@settings(max_examples=40, deadline=None)
@given(f=SUMS, points=st.lists(POINTS, min_size=4, max_size=4))
def test_sums_of_convex_atoms_are_proven_and_obey_the_midpoint_inequality(
    f: Expression, points: list[Any]
) -> None:
    found = curvature(f, SMALL)
    assert found.status == "proven"
    assert bulge(f, points) <= mpmath.mpf(10) ** -40
    apart = [b for b in points[1:] if any(abs(b[s] - points[0][s]) > 1e-3 for s in f.symbols)]
    if found.strict and apart:
        assert bulge(f, [points[0], apart[0]]) < 0


@settings(max_examples=60, deadline=None)
@given(
    f=st.lists(
        st.tuples(st.integers(-9, 9), st.one_of(ATOMS, st.just(X[0] * X[1]))),
        min_size=1,
        max_size=3,
    ).map(lambda parts: canonical(sum((Fraction(c, 3) * atom for c, atom in parts), number(0)))),
    points=st.lists(POINTS, min_size=6, max_size=6),
)
def test_a_formula_that_bulges_between_two_points_is_never_proven_convex(
    f: Expression, points: list[Any]
) -> None:
    assume(bulge(f, points) > mpmath.mpf(10) ** -30)
    assert curvature(f, SMALL).status != "proven"


def test_parameters_are_held_fixed() -> None:
    box = {x: (-1.0, 1.0), p: (1.0, 2.0)}
    assert curvature(p * x**2, box).status == "fails"  # not convex in x and p together
    found = curvature(p * x**2, box, parameters=[p])
    assert (found.status, found.strict) == ("proven", True)
    assert not curvature(p * x**2, {**box, p: (0.0, 2.0)}, parameters=[p]).strict
    found = curvature((p * x + 1) ** 2, {**box, p: (-1.0, 1.0)}, parameters=[p])
    assert (found.status, found.strict) == ("proven", False)
    assert curvature(p * x**2, {**box, p: (-0.1, 2.0)}, parameters=[p]).status == "fails"


def test_a_fleet_is_judged_agent_by_agent() -> None:
    a = np.linspace(1.0, 9.0, 1000)
    b = a - 0.5  # the ranges overlap, so that p - q has no sign over their hull
    f = (p - q) * x**2 + exp(q * x)
    box: dict[Expression, Any] = {x: (0.0, 1.0), p: (a, a), q: (b, b)}
    assert curvature(f, box, parameters=[p, q]).strict
    g = p * x**2 + 2 * q * x * y + p * y**2
    box[y] = (-1.0, 1.0)
    assert curvature(g, box, parameters=[p, q]).status == "proven"
    b = b.copy()
    b[77] = 20.0
    found = curvature(g, {**box, q: (b, b)}, parameters=[p, q])
    assert found.status == "fails"
    assert found.witness is not None
    assert (found.witness[p], found.witness[q]) == (a[77], 20.0)


def test_each_agent_of_a_fleet_has_its_own_box() -> None:
    lower = np.array([0.0, -2.0])
    upper = np.array([1.0, -1.0])
    sign = np.array([1.0, -1.0])
    box = {x: (lower, upper), p: (sign, sign)}
    assert curvature(p * x**3, box, parameters=[p]).status == "proven"
    assert curvature(p * x**3, {**box, p: (-sign, -sign)}, parameters=[p]).status == "fails"


def test_convexity_asks_nothing_of_a_variable_that_cannot_move() -> None:
    assert curvature(x * y, {x: (0.0, 1.0), y: (2.0, 2.0)}).status == "proven"
    lower, upper = np.array([2.0, 3.0]), np.array([2.0, 3.0])
    assert curvature(x * y, {x: (0.0, 1.0), y: (lower, upper)}).status == "proven"
    assert curvature(x * y, {x: (0.0, 1.0), y: (lower, np.array([2.0, 4.0]))}).status == "fails"


def test_what_is_undefined_is_not_convex() -> None:
    for f, at in ((-log(x), 0.0), (1 / x, 0.0), (-sqrt(x - 1), 0.0)):
        found = curvature(f, {x: (0.0, 1.0)})
        assert (found.status, found.witness) == ("fails", {x: at})
        assert "undefined at x = 0" in found.detail


def test_convex_beyond_all_rules_is_said_to_be_checked_only() -> None:
    found = curvature(x * exp(y / x), POSITIVE)
    assert (found.status, found.strict) == ("numerical", False)
    assert "points" in found.detail


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(InputError, match="got none for y"):
        curvature(x + y, {x: (0.0, 1.0)})


SMOOTH = [
    (exp(x) + x**2, {x: (-10.0, 10.0)}, 2),
    (x**2.5, {x: (0.0, 1.0)}, 2),
    (x**1.5, {x: (0.0, 1.0)}, 1),
    (1 / (x**2 - x + 1), {x: (0.0, 2.0)}, 2),
    (log(x), {x: (1e-6, 1.0)}, 2),
    (log(sum(exp(s) for s in X)), WIDE, 2),
    (sqrt(1 + sum(s**2 for s in X)), WIDE, 2),
    (1 / (x - 5), {x: (0.0, 1.0)}, 2),
]


@pytest.mark.parametrize(("f", "box", "order"), SMOOTH, ids=[str(f)[:50] for f, _, _ in SMOOTH])
def test_smooth_formulas_are_proven_smooth(f: Expression, box: Box, order: int) -> None:
    assert smoothness(f, box, order=order).status == "proven"


SINGULAR = [
    (log(x), {x: (0.0, 1.0)}, 2, {x: 0.0}),
    (x**1.5, {x: (0.0, 1.0)}, 2, {x: 0.0}),
    (x**2.5, {x: (0.0, 1.0)}, 3, {x: 0.0}),
    (sqrt(x), {x: (0.0, 1.0)}, 1, {x: 0.0}),
    (sqrt(x**2 + y**2), {x: (-1.0, 1.0), y: (-1.0, 1.0)}, 1, {x: 0.0, y: 0.0}),
    (log(x + 2), {x: (-3.0, 1.0)}, 2, {x: -3.0}),
]


@pytest.mark.parametrize(("f", "box", "order", "at"), SINGULAR)
def test_singular_points_are_found(f: Expression, box: Box, order: int, at: Any) -> None:
    found = smoothness(f, box, order=order)
    assert (found.status, found.witness) == ("fails", at)
    assert "shrink the box" in found.detail


def test_a_pole_between_sample_points_is_found_by_the_change_of_sign() -> None:
    found = smoothness(1 / (x - 0.3), {x: (0.0, 1.0)})
    assert found.status == "fails"
    assert found.witness is not None
    assert abs(found.witness[x] - 0.3) < 1e-3


def test_opposite_signs_of_two_agents_are_no_pole() -> None:
    lower, upper = np.array([0.0, 3.0]), np.array([1.0, 4.0])
    box = {x: (lower, upper)}
    assert smoothness(1 / (x - 2), box).status == "proven"
    assert curvature(1 / (x - 2) ** 2, box).status == "proven"
    assert smoothness(1 / (x - 3), box).status == "fails"


def test_a_narrow_dip_below_zero_is_never_proven_smooth() -> None:
    dip = (x - Fraction(1, 3)) ** 2 - Fraction(1, 10**12)
    assert smoothness(log(dip), {x: (0.0, 1.0)}).status != "proven"
    assert smoothness(1 / dip, {x: (0.0, 1.0)}).status != "proven"


x, y, z, c = map(symbol, "xyzc")
S = sp.Symbol("x")


def region(*variables: Expression, **bounds: Any) -> ProofRegion:
    lower = {symbol(s): np.atleast_1d(np.float64(b[0])) for s, b in bounds.items()}
    upper = {symbol(s): np.atleast_1d(np.float64(b[1])) for s, b in bounds.items()}
    return ProofRegion(variables=variables, lower=lower, upper=upper)


@pytest.mark.parametrize(("top", "proven"), [(1.99, True), (2.01, False)])
def test_interval_hessians_are_definite_if_every_member_is(top: float, proven: bool) -> None:
    # 2 c is the coupling of x and y; the matrix [[2, c], [c, 2]] is definite for |c| < 2.
    box = region(x, y, x=(-1.0, 1.0), y=(-1.0, 1.0), c=(1.0, top))
    found = Hessian(canonical(x**2 + c * x * y + y**2), box).definite(budget=20_000)
    assert found == (frozenset({x, y}) if proven else None)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=3, max_size=3),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_what_is_proven_definite_is_so_at_all_samples(rows: list[list[int]], scale: float) -> None:
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
        with exact_arithmetic():
            p = polynomial(canonical(expr), x)
        assert p is not None
        return nonnegative_polynomial(p, 0.0, 1.0)

    assert not judged((x - third) * (x - third - gap))
    assert judged((x - third) ** 2)
    assert judged(x * (1 - x))
    assert judged(x - x)

"""Exact and enclosed second derivatives."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.certify.hessian import (
    Hessian,
    Region,
    bounded,
    bounded_below,
    definiteness,
    demands,
    independent_blocks,
    polynomial_nonnegative,
    sample_points,
)

x, y, z, c = sp.symbols("x y z c")


def region(*variables: sp.Symbol, **bounds: Any) -> Region:
    lower = {sp.Symbol(s): np.atleast_1d(np.float64(b[0])) for s, b in bounds.items()}
    upper = {sp.Symbol(s): np.atleast_1d(np.float64(b[1])) for s, b in bounds.items()}
    return Region(variables=variables, lower=lower, upper=upper)


def exact(rows: list[list[Any]]) -> list[list[Fraction]]:
    return [[Fraction(entry) for entry in row] for row in rows]


SQUARES = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=n, max_size=n)
)


@settings(max_examples=80, deadline=None)
@given(rows=SQUARES, shift=st.sampled_from([0, 0, 1, -1]), gram=st.booleans())
def test_definiteness_agrees_with_the_signs_of_all_principal_minors(
    rows: list[list[int]], shift: int, gram: bool
) -> None:
    a = sp.Matrix(rows)
    matrix = (a.T * a if gram else a + a.T) / 7 + sp.Rational(shift, 10**9) * sp.eye(a.rows)
    n = a.rows
    chosen = [[k for k in range(n) if mask >> k & 1] for mask in range(1, 2**n)]
    minors = [matrix.extract(rows, rows).det() for rows in chosen]
    leading = [matrix[:k, :k].det() for k in range(1, n + 1)]
    expected = 1 if min(leading) > 0 else 0 if min(minors) >= 0 else -1
    fractions = [[Fraction(int(e.p), int(e.q)) for e in row] for row in matrix.tolist()]
    assert definiteness(fractions) == expected


@pytest.mark.parametrize(("corner", "verdict"), [(1, 1), (0, 0), (-1, -1)])
def test_definiteness_sees_one_part_in_two_to_the_200(corner: int, verdict: int) -> None:
    near = 1 + Fraction(corner, 2**200)
    assert definiteness(exact([[1, 1], [1, near]])) == verdict
    assert definiteness(exact([[1, 1, 0], [1, near, 0], [0, 0, 5]])) == verdict


def test_a_zero_on_the_diagonal_allows_nothing_beside_it() -> None:
    assert definiteness(exact([[0, 1], [1, 5]])) == -1
    assert definiteness(exact([[0, 0], [0, 5]])) == 0
    assert definiteness(exact([[0, 0], [0, 0]])) == 0


ROOTS = st.lists(st.fractions(-2, 2, max_denominator=5), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(roots=ROOTS, doubled=st.booleans(), sign=st.sampled_from([1, -1]))
def test_a_polynomial_is_nonnegative_if_and_only_if_no_sampled_value_is_negative(
    roots: list[Fraction], doubled: bool, sign: int
) -> None:
    factors = [sp.Rational(r.numerator, r.denominator) for r in roots]
    f = sp.Integer(sign)
    for root in factors:
        f *= (x - root) ** (2 if doubled else 1)
    poly = sp.Poly(f, x)
    # Roots are multiples of 1/60 apart at least, so a finer grid meets every interval of signs.
    grid = [sp.Rational(k, 128) for k in range(-128, 129)]
    expected = all(poly.eval(t) >= 0 for t in grid)
    assert polynomial_nonnegative(poly, -1.0, 1.0) == expected


def test_a_polynomial_that_dips_below_zero_between_two_close_roots_is_not_nonnegative() -> None:
    gap = sp.Rational(1, 10**20)
    third = sp.Rational(1, 3)
    assert not polynomial_nonnegative(sp.Poly((x - third) * (x - third - gap), x), 0.0, 1.0)
    assert polynomial_nonnegative(sp.Poly((x - third) ** 2, x), 0.0, 1.0)
    assert polynomial_nonnegative(sp.Poly(x * (1 - x), x), 0.0, 1.0)
    assert polynomial_nonnegative(sp.Poly(0, x), 0.0, 1.0)


def test_blocks_are_the_connected_variables() -> None:
    coupled = np.zeros((5, 5), dtype=np.bool_)
    coupled[0, 3] = coupled[3, 0] = coupled[3, 4] = coupled[4, 3] = True
    assert independent_blocks(coupled) == [[0, 3, 4], [1], [2]]


def test_signs_are_proven_by_subdivision_and_never_beyond_the_truth() -> None:
    box = region(x, x=(0.0, 2.0))
    assert bounded_below(x**2 - 2 * x + sp.Rational(101, 100), box, strict=True)
    assert not bounded_below(x**2 - 2 * x + sp.Rational(99, 100), box, strict=False)
    assert bounded_below(x, box, strict=False)
    assert not bounded_below(x, box, strict=True)


def test_an_undefined_formula_has_no_sign_and_no_bound() -> None:
    box = region(x, x=(0.0, 1.0))
    assert not bounded_below(1 / x, box, strict=True)
    assert not bounded(1 / x, box)
    assert not bounded(sp.log(x), box)
    assert bounded(sp.sqrt(x), box)
    assert bounded(1 / (x**2 - x + 1), box)
    assert not bounded(sp.sqrt(x), region(x, x=(-1.0, 1.0)))
    assert not bounded_below(sp.sqrt(x) + 1, region(x, x=(-1.0, 1.0)), strict=True)


def test_demands_name_what_must_be_positive() -> None:
    f = sp.log(x) + 1 / y + sp.sqrt(z) + z ** sp.Rational(-3, 2) + x**2 + sp.sqrt(2)
    found = {(inner, relation) for inner, relation, _ in demands(f)}
    assert found == {(x, ">"), (y, "!="), (z, ">="), (z, ">")}


@pytest.mark.parametrize(("top", "proven"), [(1.99, True), (2.01, False)])
def test_interval_hessians_are_definite_exactly_as_long_as_every_member_is(
    top: float, proven: bool
) -> None:
    # 2 c is the coupling of x and y; the matrix [[2, c], [c, 2]] is definite for |c| < 2.
    box = region(x, y, x=(-1.0, 1.0), y=(-1.0, 1.0), c=(1.0, top))
    found = Hessian(x**2 + c * x * y + y**2, box).definite(budget=20_000)
    assert found == (frozenset({x, y}) if proven else None)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=3, max_size=3),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_what_is_proven_definite_is_so_at_every_sampled_point(
    rows: list[list[int]], scale: float
) -> None:
    a = sp.Matrix(rows)
    v = sp.Matrix([scale * x, y, z])
    f = sp.expand((v.T * (a.T * a - sp.eye(3)) * v)[0]) + sp.exp(v[0] + y) / 4 + v[0] ** 2 * z
    box = region(x, y, z, x=(-1 / scale, 1 / scale), y=(-1.0, 1.0), z=(-1.0, 1.0))
    hessian = Hessian(f, box)
    proven, found = hessian.definite(budget=500), hessian.negative_direction()
    assert proven is None or found is None
    value = sp.lambdify([x, y, z], sp.hessian(f, [x, y, z]), "numpy")
    unit = np.diag([1 / scale, 1.0, 1.0])

    def least(*point: float) -> float:
        return float(np.linalg.eigvalsh(unit @ value(*point) @ unit)[0])

    if proven is not None:
        assert min(least(*point) for point in sample_points(box, [x, y, z])[0][::8]) > -1e-9
    if found is not None:
        assert least(*(found[0][s] for s in (x, y, z))) < 1e-9


def test_large_sparse_hessians_are_proven_row_by_row() -> None:
    chain = sp.symbols("s1:25")
    f = sum(s**4 + s**2 for s in chain)
    f += sum(a**2 * b**2 for a, b in pairwise(chain)) / 10
    box = region(*chain, **{s.name: (-1.0, 1.0) for s in chain})
    assert Hessian(f, box).definite(budget=2000) == frozenset(chain)
    assert Hessian(f - 2 * chain[3] ** 2, box).definite(budget=2000) is None


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
